"""UNIX sockets of this process: in which private directories they are, and how one is made.

The monitor and its client use the same rules, so that `top` finds a process by its number.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Mapping

# Clients that are connected at once; few people watch a process at the same time.
CLIENTS_MAX = 8


class PathInUse(FileExistsError):
    """Another process listens at a path."""


def is_private(folder: str, user: int) -> bool:
    """Return whether *folder* is a directory of *user* that no other user may write to."""
    try:
        # lstat(): a symbolic link does not count, because any user can create one in /tmp.
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o022


def folders(variables: Mapping[str, str], user: int) -> list[str]:
    """Return the directories for the socket of a *user*'s process, the preferred one first.

    *variables* is the environment of that process.
    """
    temporary = os.path.join(variables.get("TMPDIR") or "/tmp", f"uringloop-{user}")
    runtime = variables.get("XDG_RUNTIME_DIR")
    # After `su` or `sudo` the variable may name another user's directory.
    return [runtime, temporary] if runtime and is_private(runtime, user) else [temporary]


def name_for(pid: int) -> str:
    return f"uringloop-{pid}.sock"


def default_path() -> str:
    """Return the path for this process, in a private directory, which is created if needed.

    Raises PermissionError if the directory exists and is not private.
    """
    user = os.geteuid()
    folder = folders(os.environ, user)[0]
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        # Made by an earlier process of this user, or by another user.
        if not is_private(folder, user):
            raise PermissionError(
                f"{folder} must be a directory of this user that no other user may write to"
            ) from None
    return os.path.join(folder, name_for(os.getpid()))


def has_listener(path: str) -> bool:
    """Return whether a process listens at the socket *path*."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        # Any other error, such as EAGAIN of a full backlog, means that a process listens.
        return sock.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def remove_stale(folder: str) -> None:
    """Remove the sockets of processes that were killed."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        number = name.removeprefix("uringloop-").removesuffix(".sock")
        # A live process listens before its socket gets this name: see listen().
        if number.isdigit() and name == name_for(int(number)) and not has_listener(path):
            # Another starting process may have removed it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def listen(path: str, backlog: int = CLIENTS_MAX) -> socket.socket:
    """Return a socket that listens at *path*; a stale socket file there is replaced.

    Raises FileExistsError if *path* is another kind of file, or if a process listens there.
    """
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
        if has_listener(path):
            raise PathInUse(f"another process listens at {path}")
    temporary = f"{path}.{os.getpid()}"
    sock = socket.socket(socket.AF_UNIX)
    try:
        # bind() gives the file the mode of the socket, so it never has another mode.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(temporary)
        try:
            os.chmod(temporary, 0o600)
            sock.listen(backlog)
            sock.setblocking(False)
            # Rename when the socket listens: a client that finds *path* can connect. This also
            # replaces a stale file atomically.
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError:
        sock.close()
        raise
    return sock
