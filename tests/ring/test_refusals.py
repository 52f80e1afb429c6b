"""The messages for a refused ring: every cause, with its remedy, in one sentence."""

from __future__ import annotations

import errno
import os

import pytest

from uringloop._ring import backends, features

ALLOW = backends.ALLOW


def test_a_refusal_is_recorded_unless_it_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_refusal", None)
    monkeypatch.setattr(features, "kernel_ring_has_worked", lambda: True)
    assert backends.record_refusal(OSError(errno.ENOMEM, "no"))
    assert backends.known_refusal() is None
    reason = backends.record_refusal(PermissionError(errno.EPERM, "no"))
    assert backends.known_refusal() == reason


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("5.10.0-32-amd64", ("too old; ", "from 6.1 on")),
        ("6.0.19", ("too old; ", "from 6.1 on")),
        ("6.1.0-50-amd64", ("sandbox", ALLOW)),
        ("10.1", ("sandbox", ALLOW)),
        ("nonsense", ("too old; ", "from 6.1 on")),
    ],
)
def test_only_an_old_kernel_is_called_too_old(
    monkeypatch: pytest.MonkeyPatch, release: str, words: tuple[str, str]
) -> None:
    names = os.uname()
    monkeypatch.setattr(
        os, "uname", lambda: os.uname_result((names[0], names[1], release, *names[3:]))
    )
    cause = backends.cause(errno.EINVAL)
    assert all(word in cause for word in words)


# Contents of /proc: the sysctl, its group, the seccomp mode, the user namespace, the capabilities.
ROOT, ROOTLESS = "0 0 4294967295", "0 100000 65536"
ALL, NONE = "000001ffffffffff", "0000000000000000"


@pytest.mark.parametrize(
    ("value", "group", "seccomp_mode", "users", "capable", "words"),
    [
        ("0", "-1", "2", ROOT, ALL, ("security policy", ALLOW)),
        ("2", "-1", "0", ROOT, ALL, ("switched off", "io_uring_disabled=0 allows it")),
        ("1", "-1", "0", ROOT, NONE, ("switched off", "io_uring_group allows it to a group")),
        ("1", "-1", "2", ROOT, ALL, ("security policy", ALLOW)),
        ("1", "-1", "2", ROOT, NONE, ("switched off", "io_uring_disabled=0 allows it", ALLOW)),
        # Root in a container's user namespace is not privileged.
        ("1", "-1", "0", ROOTLESS, ALL, ("switched off", "io_uring_disabled=0 allows it")),
        ("1", "{}", "2", ROOT, NONE, ("security policy", ALLOW)),
        (None, None, "2", ROOT, NONE, ("security policy", ALLOW)),
    ],
)
def test_sysctl_is_the_cause_only_where_it_forbids_io_uring(
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
    group: str | None,
    seccomp_mode: str,
    users: str,
    capable: str,
    words: tuple[str, ...],
) -> None:
    files = {
        backends.SYSCTL: value,
        backends.GROUP_SYSCTL: group and group.format(os.getegid()),
        backends.STATUS: f"Seccomp:\t{seccomp_mode}\nCapEff:\t{capable}",
        backends.USERS: users,
    }
    monkeypatch.setattr(backends, "read", files.__getitem__)
    cause = backends.cause(errno.EPERM)
    assert all(word in cause for word in words)
    assert ("switched off" in cause) == ("switched off" in words)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EIO])
def test_every_failure_has_a_remedy(number: int) -> None:
    error = backends.with_cause(OSError(number, os.strerror(number)))
    assert (type(error), error.errno) == (type(OSError(number, "")), number)
    remedy = backends.remedy_in(str(error))
    assert remedy is not None
    assert "`" in remedy or "sysctl" in remedy
