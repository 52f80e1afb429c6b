"""Messages with ancillary data: their arguments, and the descriptors in them."""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

# linux/socket.h: a descriptor of the sender's process, which SO_PASSPIDFD asks for (6.5).
SCM_PIDFD = 4

# A level, a type and the data, as in socket.recvmsg().
Ancillary: TypeAlias = tuple[int, int, Any]
# What recv_fds() returns: data, descriptors, flags and the sender's address.
ReceivedFds: TypeAlias = tuple[bytes, list[int], int, Any]


def mask_for(flags: Any) -> int:
    """Return the events of poll(2) that a receive with *flags* waits for."""
    if flags and isinstance(flags, int):
        if flags & socket.MSG_ERRQUEUE:
            return select.POLLERR
        if flags & socket.MSG_OOB:
            return select.POLLPRI
    return select.POLLIN


def repeatable(items: Any) -> Any:
    """Return *items* for several attempts, each of which iterates over them."""
    if isinstance(items, (list, tuple)):
        return items
    try:
        iterator = iter(items)
    except TypeError:
        # The socket's own method raises.
        return items
    return list(iterator) if iterator is items else items


def message_of(fds: Sequence[int]) -> list[Ancillary]:
    """Return the ancillary data that pass *fds* on."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]


class Descriptors:
    """Duplicates of descriptors, which are closed with this object."""

    def __init__(self, fds: Iterable[int]) -> None:
        self.fds: list[int] = []
        try:
            for fd in fds:
                self.fds.append(os.dup(fd))
        except BaseException:
            # The exception refers to this object.
            self._close()
            raise

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


def to_keep(ancillary: list[Ancillary]) -> tuple[list[Ancillary], Descriptors | None]:
    """Return *ancillary* for a later send, and what owns the descriptors in it until then."""
    fds = fds_in(ancillary)
    if not fds:
        return ancillary, None
    own = Descriptors(fds)
    others = [item for item in ancillary if item[:2] != (socket.SOL_SOCKET, socket.SCM_RIGHTS)]
    return [*others, *message_of(own.fds)], own


def space_for(count: int) -> int:
    """Return the size of the ancillary data for *count* descriptors."""
    return socket.CMSG_LEN(count * array.array("i").itemsize)


def fds_in(ancillary: Iterable[Ancillary], kind: int = socket.SCM_RIGHTS) -> list[int]:
    """Return the descriptors of received ancillary data, which the caller owns."""
    fds = array.array("i")
    for level, found, data in ancillary:
        if level == socket.SOL_SOCKET and found == kind:
            # The last one may be cut off.
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def received_fds(ancillary: Iterable[Ancillary]) -> list[int]:
    """Return what `fds_in` does, and close descriptors of the sender's process."""
    items = list(ancillary)
    for fd in fds_in(items, SCM_PIDFD):
        # The kernel has put the error there if it could not make the descriptor.
        if fd >= 0:
            os.close(fd)
    return fds_in(items)
