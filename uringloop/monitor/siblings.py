"""The processes of one service that share an address for their health, and their answers.

In addition to the address, each process listens at an abstract UNIX socket, whose name has the
user, the address, the process and a number that nobody can guess. Such a socket needs no folder,
and a process that is killed leaves none behind. The process that has the address finds the others
in /proc/net/unix and asks them the same question over HTTP. It believes only processes of its own
user.

A question stays open until it is answered, so that the time for which a process has been silent is
known. One thread uses the object.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import socket
import time
from typing import NamedTuple

from uringloop.monitor.serving import peer_of

# How long all processes together may take to answer; one that is known to be silent is not waited
# for. Shorter than the second that Kubernetes gives a probe, longer than a busy interpreter needs
# to change threads a few times.
WAIT_S = 0.25
# How often the processes are looked for: each system call may wait 5 ms for the GIL.
KEEP_S = 1.0
# More names are not tried, but those of known processes come first.
SIBLINGS_MAX = 1000
# The rest of a longer answer is dropped.
ANSWER_BYTES_MAX = 4_000_000
BACKLOG = 128


def group_of(address: str) -> str:
    """Return what the names of all processes of this user with that *address* begin with.

    A name has 107 bytes at most, and an address may be a path, so it has a digest. Containers may
    share their network, but not the numbers of their processes.
    """
    processes = os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else 0
    digest = hashlib.sha256(os.fsencode(f"{processes} {address}")).hexdigest()[:32]
    return f"uringloop-health-{os.geteuid()}-{digest}-"


def listen(group: str) -> socket.socket:
    """Return the socket at which this process answers the others."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0{group}{os.getpid()}.{os.urandom(8).hex()}")
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def names_of(group: str) -> list[str]:
    """Return the names of the sockets of *group*, without the null byte. Raises OSError."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read()
    except FileNotFoundError:
        # There is no /proc: each process answers for itself only.
        return []
    # Connected sockets have the name of the listening one, so a name is found several times.
    found = re.findall(rf" @({re.escape(group)}[1-9][0-9]*\.[0-9a-f]{{16}})$", lines, re.MULTILINE)
    return sorted(set(found))


def process_of(name: str) -> int:
    return int(name.rpartition("-")[2].partition(".")[0])


class Question:
    """A question to one process, and what has been received of its answer."""

    def __init__(self, name: str, path: str, user: int) -> None:
        """Ask for *path*. Raises OSError if the process does not listen, or is not of *user*."""
        self.asked = time.monotonic()
        self.received = b""
        # A system call less than setblocking().
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self.sock.connect(f"\0{name}")
            # Its user when it began to listen.
            pid, found = peer_of(self.sock)
            if found != user:
                raise PermissionError(f"process {pid} belongs to another user")
            self.sock.send(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        except OSError:
            self.sock.close()
            raise

    def has_ended(self) -> bool:
        """Receive what there is. Return whether nothing more will come."""
        try:
            while len(self.received) < ANSWER_BYTES_MAX:
                data = self.sock.recv(65536)
                if not data:
                    break
                self.received += data
        except BlockingIOError:
            return False
        except OSError:
            # The process has ended, or has refused without reading.
            return True
        return True

    def text(self) -> str | None:
        """Return the text of a whole answer; None if the process could not answer."""
        head, end, body = self.received.partition(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: ([0-9]+)", head)
        is_whole = length is not None and int(length[1]) == len(body)
        if not (end and is_whole) or head.split(b" ", 2)[1:2] != [b"200"]:
            return None
        return body.decode("utf-8", "replace")


class Replies(NamedTuple):
    """What the other processes have answered."""

    texts: list[tuple[int, str]]  # processes, and their answers
    silent: list[tuple[int, float]]  # processes that have not answered, and for how many seconds
    failed: list[int]  # processes that could not be asked, or could not answer


class Siblings:
    """The other processes of *group*; *own* is the name of this one's socket."""

    def __init__(self, group: str, own: str) -> None:
        self.group = group
        self.own = own
        # A service may give up its user later.
        self.user = os.geteuid()
        # By name: the questions that were not answered in time.
        self.silent: dict[str, Question] = {}
        # The names of all others, and of those that are of this user. Anybody can make such names.
        self.found: list[str] = []
        self.found_at = 0.0
        self.known: set[str] = set()
        self.foreign: set[str] = set()

    def close(self) -> None:
        """Close the descriptors."""
        for question in self.silent.values():
            question.sock.close()
        self.silent.clear()

    def names(self) -> list[str]:
        """Return the names of the others, as they were at most a second ago."""
        now = time.monotonic()
        if now - self.found_at > KEEP_S:
            # Those of the second before are asked if no descriptor is left.
            with contextlib.suppress(OSError):
                self.found = [name for name in names_of(self.group) if name != self.own]
                self.found.sort(key=lambda name: name not in self.known)
                self.foreign.intersection_update(self.found)
            self.found_at = now
        return [name for name in self.found if name not in self.foreign][:SIBLINGS_MAX]

    def ask(self, path: str) -> Replies:
        """Ask all processes for *path*."""
        names = self.names()
        for name, question in list(self.silent.items()):
            if name not in names or question.has_ended():
                self.silent.pop(name).sock.close()
        replies = Replies([], [], [])
        deadline = time.monotonic() + WAIT_S
        asked = self._send([name for name in names if name not in self.silent], path, replies)
        _receive(asked, deadline, replies)
        self.silent.update(asked)
        now = time.monotonic()
        for name, question in self.silent.items():
            replies.silent.append((process_of(name), now - question.asked))
        return replies

    def _send(self, names: list[str], path: str, replies: Replies) -> dict[str, Question]:
        """Return the questions that could be sent, by name."""
        asked: dict[str, Question] = {}
        for name in names:
            try:
                asked[name] = Question(name, path, self.user)
            except ConnectionRefusedError:
                # The process has ended.
                continue
            except PermissionError:
                self.foreign.add(name)
            except OSError:
                # No descriptor is left here, or no room there.
                if name in self.known:
                    replies.failed.append(process_of(name))
        self.known = self.known.intersection(self.found).union(asked)
        return asked


def _receive(asked: dict[str, Question], deadline: float, replies: Replies) -> None:
    """Receive the answers that arrive in time, and remove their questions."""
    while asked:
        poll = select.poll()
        for question in asked.values():
            poll.register(question.sock, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            break
        for name in [name for name, question in asked.items() if question.has_ended()]:
            question = asked.pop(name)
            question.sock.close()
            text = question.text()
            if text is not None:
                replies.texts.append((process_of(name), text))
            elif question.received:
                replies.failed.append(process_of(name))
