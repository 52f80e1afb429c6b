"""Copy the owner, the group, the mode and the POSIX ACL of one file to another.

At no time does the target permit more to any user than the source does. Where something cannot be
copied, permissions are removed: if the caller may not set the group, the new group gets no more
than others have; if the ACL cannot be set, each class gets the least that the ACL grants to any of
its members.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
import struct
from typing import Any

ACL = "system.posix_acl_access"
# Errors of fchown: the caller may not set this owner, or the user namespace does not map it.
OWNER_ERRORS = (errno.EPERM, errno.EINVAL)
# The mode of a file that only its owner may open.
PRIVATE = 0o600
# Errors of getxattr for a file without an ACL, and on a file system without ACLs.
NO_ACL = (errno.ENODATA, errno.EOPNOTSUPP)
# An ACL is a version and its entries: a tag, permission bits, and the ID of a user or group.
ACL_VERSION = struct.Struct("<I")
ACL_ENTRY = struct.Struct("<HHI")
# The tags of entries.
USER, GROUP_OWNER, GROUP, MASK, OTHERS = 0x02, 0x04, 0x08, 0x10, 0x20


def copy_permissions(fd: int, name: Any, facts: os.stat_result) -> None:
    """Copy the permissions of *name*, whose stat result is *facts*, to *fd* as far as allowed."""
    acl = _acl_of(name, follow_symlinks=False)
    mode = modes.S_IMODE(facts.st_mode)
    own = os.fstat(fd)
    if modes.S_IMODE(own.st_mode) & ~(mode & PRIVATE):
        # The file *fd* was created before *name* existed, with a wider mode.
        os.fchmod(fd, own.st_mode & mode & PRIVATE)
    if (own.st_uid, own.st_gid) != (facts.st_uid, facts.st_gid):
        _give(fd, facts)
        own = os.fstat(fd)
    if own.st_uid != facts.st_uid:
        mode &= ~modes.S_ISUID
    if own.st_gid != facts.st_gid:
        # For the source file the members of the new group count as others.
        mode &= ~modes.S_ISGID
        acl = acl and _for_another_group(acl)
        if not acl:
            mode &= ~modes.S_IRWXG | (mode & modes.S_IRWXO) << 3
    if not _set_acl(fd, acl):
        mode = _without_acl(mode, acl)
    # After fchown, which clears the set-ID bits.
    if modes.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


def _give(fd: int, facts: os.stat_result) -> None:
    for owner in (facts.st_uid, -1):
        try:
            os.fchown(fd, owner, facts.st_gid)
        except OSError as exc:
            if exc.errno not in OWNER_ERRORS:
                raise
        else:
            return


def _acl_of(file: Any, *, follow_symlinks: bool = True) -> bytes:
    # Python 3.11 has no functions for extended attributes with musl.
    if not hasattr(os, "getxattr"):
        return b""
    try:
        return os.getxattr(file, ACL, follow_symlinks=follow_symlinks)
    except FileNotFoundError:
        # The file has been removed meanwhile.
        return b""
    except OSError as exc:
        if exc.errno not in NO_ACL:
            raise
        return b""


def _set_acl(fd: int, acl: bytes) -> bool:
    """Set *acl* on the file, or remove its ACL; return False if *acl* could not be set."""
    if acl:
        with contextlib.suppress(OSError):
            os.setxattr(fd, ACL, acl)
            return True
    if _acl_of(fd):
        # A new file may have inherited the default ACL of its directory.
        os.removexattr(fd, ACL)
    return not acl


def _entries(acl: bytes) -> list[tuple[int, int, int]]:
    return list(ACL_ENTRY.iter_unpack(acl[ACL_VERSION.size :]))


def _least(entries: list[tuple[int, int, int]], *tags: int) -> int:
    """Return the permission bits that every entry with one of these *tags* grants."""
    rights = 7
    for tag, given, _ in entries:
        if tag in tags:
            rights &= given
    return rights


def _for_another_group(acl: bytes) -> bytes:
    """Return *acl* with no more for the file's group than for others and every named entry."""
    entries = _entries(acl)
    rights = _least(entries, GROUP_OWNER, USER, GROUP, MASK, OTHERS)
    changed = [(tag, rights if tag == GROUP_OWNER else each, of) for tag, each, of in entries]
    return acl[: ACL_VERSION.size] + b"".join(ACL_ENTRY.pack(*entry) for entry in changed)


def _without_acl(mode: int, acl: bytes) -> int:
    """Return *mode* without what *acl*, which could not be set, denies to any user."""
    entries = _entries(acl)
    # A named user may be in the file's group or not; members of a named group may be others.
    group = _least(entries, GROUP_OWNER, USER, MASK)
    others = _least(entries, USER, GROUP, MASK, OTHERS)
    return mode & ~(modes.S_IRWXG | modes.S_IRWXO) | group << 3 | others
