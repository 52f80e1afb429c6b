"""The owner, the group, the mode and the POSIX ACL of one file, given to another.

At no time does the other file let anybody do more than the first one does. What can not be kept
therefore takes rights away: a group that the caller may not give leaves the new group what all
others have, and an ACL that can not be set leaves each class the least that it gave any of its
members.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
import struct
from typing import Any

ACL = "system.posix_acl_access"
# The kernel's answers to an owner that the caller may not give, or that has no number here.
FOREIGN = (errno.EPERM, errno.EINVAL)
# The mode of a file that nobody but its owner opens.
PRIVATE = 0o600
# A file without an ACL, and a file system without ACLs.
NO_ACL = (errno.ENODATA, errno.EOPNOTSUPP)
# An ACL is a version and its entries: a tag, rights, and the number of a user or group.
ACL_VERSION = struct.Struct("<I")
ACL_ENTRY = struct.Struct("<HHI")
# The tags of entries.
USER, GROUP_OWNER, GROUP, MASK, OTHERS = 0x02, 0x04, 0x08, 0x10, 0x20


def resemble(fd: int, name: Any, facts: os.stat_result) -> None:
    """Give the open file *fd* the rights of *name*, whose *facts* are known, as far as allowed."""
    acl = _acl_of(name, follow_symlinks=False)
    mode = modes.S_IMODE(facts.st_mode)
    own = os.fstat(fd)
    if modes.S_IMODE(own.st_mode) & ~(mode & PRIVATE):
        # One that was made before that of this name.
        os.fchmod(fd, own.st_mode & mode & PRIVATE)
    if (own.st_uid, own.st_gid) != (facts.st_uid, facts.st_gid):
        _give(fd, facts)
        own = os.fstat(fd)
    if own.st_uid != facts.st_uid:
        mode &= ~modes.S_ISUID
    if own.st_gid != facts.st_gid:
        # Those who are in the new group were others before.
        mode &= ~modes.S_ISGID
        acl = acl and _for_another_group(acl)
        if not acl:
            mode &= ~modes.S_IRWXG | (mode & modes.S_IRWXO) << 3
    if not _set_acl(fd, acl):
        mode = _without_acl(mode, acl)
    # After the owner, whose change takes some of these away.
    if modes.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


def _give(fd: int, facts: os.stat_result) -> None:
    for owner in (facts.st_uid, -1):
        try:
            os.fchown(fd, owner, facts.st_gid)
        except OSError as exc:
            if exc.errno not in FOREIGN:
                raise
        else:
            return


def _acl_of(file: Any, *, follow_symlinks: bool = True) -> bytes:
    try:
        return os.getxattr(file, ACL, follow_symlinks=follow_symlinks)
    except FileNotFoundError:
        # It has been removed meanwhile.
        return b""
    except OSError as exc:
        if exc.errno not in NO_ACL:
            raise
        return b""


def _set_acl(fd: int, acl: bytes) -> bool:
    """Give the file this *acl*, or none; False if it can not have it, and has none then."""
    if acl:
        with contextlib.suppress(OSError):
            os.setxattr(fd, ACL, acl)
            return True
    if _acl_of(fd):
        # That which a new file has by the default of its folder.
        os.removexattr(fd, ACL)
    return not acl


def _entries(acl: bytes) -> list[tuple[int, int, int]]:
    return list(ACL_ENTRY.iter_unpack(acl[ACL_VERSION.size :]))


def _least(entries: list[tuple[int, int, int]], *tags: int) -> int:
    """Return the rights that all entries with these *tags* give."""
    rights = 7
    for tag, given, _ in entries:
        if tag in tags:
            rights &= given
    return rights


def _for_another_group(acl: bytes) -> bytes:
    """Return *acl* with no more for the file's group than for others, or named users or groups."""
    entries = _entries(acl)
    rights = _least(entries, GROUP_OWNER, USER, GROUP, MASK, OTHERS)
    changed = [(tag, rights if tag == GROUP_OWNER else each, of) for tag, each, of in entries]
    return acl[: ACL_VERSION.size] + b"".join(ACL_ENTRY.pack(*entry) for entry in changed)


def _without_acl(mode: int, acl: bytes) -> int:
    """Return *mode* with no more for anybody than *acl* gives, which can not be kept."""
    entries = _entries(acl)
    # Named users are in the file's group or not, those of a named group may be anybody else.
    group = _least(entries, GROUP_OWNER, USER, MASK)
    others = _least(entries, USER, GROUP, MASK, OTHERS)
    return mode & ~(modes.S_IRWXG | modes.S_IRWXO) | group << 3 | others
