"""The doctor: its report as text and as JSON, and its exit status."""

from __future__ import annotations

import functools
import json
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest
from support import seccomp
from support.loops import on_io_uring

import uringloop
from uringloop import doctor
from uringloop._cpython import gil, stdlib
from uringloop._loop import options
from uringloop._ring import backends, features

Facts = TypedDict(
    "Facts",
    {
        "uringloop": str,
        "python": str,
        "GIL": str,
        "liburing": str,
        "kernel": str,
        "kernel.io_uring_disabled": str,
        "kernel.io_uring_group": str,
        "seccomp mode": str,
        "container": str,
        "locked memory": str,
        "descriptors": str,
        "processes of the user": str,
        "processes of the cgroup": str,
        "memory of the cgroup": str,
        "backend": str,
        "reason": str,
        "restrictions of the ring": str,
        "operations refused": str,
        "variables": dict[str, str],
        "features": dict[str, str],
        "advice": list[str],
    },
)

# Warnings are errors; in development mode an unclosed resource is a warning.
STRICT = ("-Werror", "-Xdev", "-m", "uringloop.doctor")


@functools.cache
def examined(under: str | None = None, **variables: str) -> tuple[str, Facts, int]:
    """Return the doctor's text, its facts from --json, and its exit status, the same for both."""
    text = seccomp.run(*STRICT, under=under, **variables)
    facts = seccomp.run(*STRICT, "--json", under=under, **variables)
    assert (text.stderr, facts.stderr) == ("", "")
    assert text.returncode == facts.returncode
    parsed: Facts = json.loads(facts.stdout)
    return text.stdout, parsed, text.returncode


def with_descriptors(count: int) -> Facts:
    """Return the facts of a process with a soft limit of *count* descriptors."""
    command = [sys.executable, *STRICT, "--json"]
    ended = subprocess.run(
        ["sh", "-c", f'ulimit -Sn {count}; exec "$@"', "sh", *command],
        env=seccomp.environment(),
        capture_output=True,
        text=True,
        timeout=seccomp.PATIENCE,
        check=False,
    )
    assert ended.stderr == ""
    parsed: Facts = json.loads(ended.stdout)
    return parsed


# ── the form ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("under", "variables"),
    [
        (None, {}),
        ("EPERM", {}),
        (None, {"URINGLOOP_BACKEND": "soft"}),
        (None, {"URINGLOOP_BACKEND": "nonsense"}),
        (None, {"URINGLOOP_DISABLE": "quiet_sends,min_wait"}),
    ],
)
def test_text_and_json_have_the_same_facts(under: str | None, variables: dict[str, str]) -> None:
    text, facts, _ = examined(under, **variables)
    head, variables_set, seen, advised = text.split("\n\n")
    named = [(name, value) for name, value in facts.items() if isinstance(value, str)]
    assert [line.split() for line in head.splitlines()] == [
        [*name.split(), *value.split()] for name, value in named
    ]
    # The tests switch the warning off.
    assert facts["variables"] == {"URINGLOOP_WARN_FALLBACK": "0", **variables}
    effects = {option.variable: option.effect for option in options.TABLE}
    assert [line.split(None, 1) for line in variables_set.splitlines()] == [
        ["Variables"],
        *([f"{name}={value}", effects[name]] for name, value in facts["variables"].items()),
    ]
    states = facts["features"]
    assert [line.split()[:2] for line in seen.splitlines()] == [
        ["Features"],
        *([name, state] for name, state in states.items()),
    ]
    advice = facts["advice"] or ["nothing to do"]
    assert advised == "\n  ".join(["Advice", *advice]) + "\n"


def test_every_feature_is_listed_with_its_benefit() -> None:
    text, facts, _ = examined()
    known = {*features.FEATURES, *stdlib.SWITCHES}
    assert set(facts["features"]) == set(doctor.BENEFITS) == known
    assert set(facts["features"].values()) <= {"used", "absent", "disabled"}
    lines = text.splitlines()
    for name, brings in doctor.BENEFITS.items():
        (line,) = [line for line in lines if line.strip().startswith(f"{name} ")]
        since = doctor.SINCE.get(name)
        assert line.endswith(f"{brings} ({since[0]}.{since[1]})" if since else brings)


@pytest.mark.parametrize(("release", "newer"), [((6, 9), "no_iowait"), ((6, 18), "")])
def test_only_an_older_kernel_is_blamed_for_what_is_absent(
    monkeypatch: pytest.MonkeyPatch, release: tuple[int, ...], newer: str
) -> None:
    monkeypatch.setattr(backends, "release", lambda: release)
    absent = {"cached_paths", "no_iowait"}
    states = {name: "absent" if name in absent else "used" for name in features.FEATURES}
    lines = doctor.advice("io_uring", "", states)
    expected = [f"a newer kernel supports: {newer}"] if newer else []
    named = ", ".join(name for name in features.FEATURES if name in absent and name != newer)
    assert lines[: len(expected) + 1] == [
        *expected,
        f"a sandbox, or the lack of a privilege, refuses: {named}",
    ]


def test_facts_are_those_of_the_process() -> None:
    _, facts, _ = examined()
    assert facts["uringloop"] == uringloop.__version__
    assert facts["python"] == sys.version.split()[0]
    soft, hard = (
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    assert facts["descriptors"] == f"{soft} of {hard}"
    assert all(isinstance(value, str) and value for value in list(facts.values())[:16])


def test_the_gil_of_an_ordinary_build_is_on() -> None:
    if gil.free_threaded():
        pytest.skip("needs a build with a GIL")
    _, facts, _ = examined()
    assert facts["GIL"] == "on"


@pytest.mark.parametrize("on", [False, True])
def test_the_gil_of_a_free_threaded_build_is_reported(
    on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gil, "free_threaded", lambda: True)
    monkeypatch.setattr(gil, "enabled", lambda: on)
    assert doctor.examine()["GIL"] == f"{'on' if on else 'off'} (free-threaded build)"


def test_unknown_option_prints_the_usage_and_exits_with_status_2() -> None:
    ended = seccomp.run(*STRICT, "--nonsense")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("usage: python -m uringloop.doctor")


# ── rings ────────────────────────────────────────────────────────────────────────────────────


@on_io_uring
def test_status_is_0_on_io_uring() -> None:
    _, facts, status = examined()
    assert (facts["backend"], facts["reason"], status) == ("io_uring", "the kernel has it", 0)
    assert facts["features"]["cached_files"] == "used"
    assert not any("io_uring" in line for line in facts["advice"])


@pytest.mark.parametrize("refusal", ["ENOSYS", "EOPNOTSUPP", "enter-ENOSYS"])
def test_refusal_is_reported_with_cause_and_remedy(refusal: str) -> None:
    _, facts, status = examined(refusal)
    assert (facts["backend"], facts["seccomp mode"], status) == ("soft", "2", 1)
    assert "seccomp mode 2" in facts["reason"]
    (advice,) = [line for line in facts["advice"] if "io_uring" in line]
    assert "allow io_uring_setup, io_uring_enter and io_uring_register" in advice


@pytest.mark.parametrize("refusal", ["EPERM", "EINVAL", "EACCES", "ENOMEM"])
def test_refusal_by_the_kernel_is_not_reported_as_a_choice(refusal: str) -> None:
    _, facts, status = examined(refusal)
    assert (facts["backend"], status) == ("soft", 1)
    (advice,) = [line for line in facts["advice"] if "io_uring" in line]
    assert advice.startswith("to use io_uring: ")
    assert facts["reason"].endswith(advice.removeprefix("to use io_uring: "))


def test_features_of_the_software_ring_are_reported_as_used() -> None:
    _, facts, _ = examined(URINGLOOP_BACKEND="soft")
    used = {name for name in features.FEATURES if facts["features"][name] == "used"}
    # cached_paths depends on the kernel.
    has = set(features.FEATURES) - {"no_iowait"}
    assert used | {"cached_paths"} == has | {"cached_paths"}


@pytest.mark.parametrize(
    ("release", "version", "kind"),
    [
        ("4.19.0-gvisor", "#1 SMP Sun Jan 10 15:06:54 PST 2016", "gvisor"),
        ("4.4.0", "#1 SMP Sun Jan 10 15:06:54 PST 2016", "gvisor"),
        ("6.1.0-50-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.1-1 (2026-01-10)", "lxc"),
    ],
)
def test_kind_of_container_is_reported(
    monkeypatch: pytest.MonkeyPatch, release: str, version: str, kind: str
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    monkeypatch.setattr(platform, "version", lambda: version)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("container", "lxc")
    assert doctor.container() == kind


def test_chosen_software_ring_is_reported_with_the_variable() -> None:
    _, facts, status = examined(URINGLOOP_BACKEND="soft")
    assert (facts["backend"], status) == ("soft", 1)
    assert facts["reason"] == "asked for by URINGLOOP_BACKEND"
    (advice,) = [line for line in facts["advice"] if "URINGLOOP_BACKEND" in line]
    assert "software ring" in advice


def test_chosen_software_ring_makes_no_io_uring_call() -> None:
    _, facts, status = examined("KILL", URINGLOOP_BACKEND="soft")
    assert (facts["backend"], facts["seccomp mode"], status) == ("soft", "2", 1)


def test_refusal_of_a_required_io_uring_is_reported() -> None:
    text, facts, status = examined("ENOSYS", URINGLOOP_BACKEND="io_uring")
    assert (facts["backend"], status) == ("none", 1)
    assert "Function not implemented" in facts["reason"]
    assert "seccomp mode 2" in facts["reason"]
    (advice,) = [line for line in facts["advice"] if "io_uring" in line]
    assert "allow io_uring_setup, io_uring_enter and io_uring_register" in advice
    assert "Traceback" not in text


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize(
    ("name", "backend", "words"),
    [
        ("epoll_create1", "none", "to run a loop: allow epoll_create1 there"),
        ("statx", "", "statx is refused here: `fstatat` takes its place"),
        ("uname", "", "uname is refused here"),
        ("prlimit64", "", "prlimit64 is refused here"),
    ],
)
def test_a_refused_system_call_is_named(name: str, backend: str, words: str, error: str) -> None:
    text, facts, _ = examined(f"{features.number_of_call(name)}-{error}")
    assert any(words in line for line in facts["advice"])
    assert "nothing to do" not in text
    assert "Traceback" not in text
    if backend:
        assert facts["backend"] == backend
        assert "io_uring" not in facts["reason"]
    if name == "prlimit64":
        assert facts["descriptors"] == "unknown: prlimit64 is refused"
    if name == "uname":
        assert facts["kernel"].startswith(Path(backends.RELEASE).read_text().strip())


@on_io_uring
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_a_ring_that_is_refused_by_madvise_is_not_blamed_on_io_uring(error: str) -> None:
    _, facts, _ = examined(f"{features.number_of_call('madvise')}-{error}")
    assert facts["backend"] == "soft"
    assert "refuses the system call madvise" in facts["reason"]
    assert "to use io_uring: allow madvise there" in facts["advice"]


def test_variables_that_are_set_are_listed_with_their_effect() -> None:
    text, facts, _ = examined(URINGLOOP_STALL_MS=" 100 ", URINGLOOP_MONITOR="")
    assert facts["variables"] == {"URINGLOOP_WARN_FALLBACK": "0", "URINGLOOP_STALL_MS": "100"}
    assert f"  URINGLOOP_STALL_MS=100        {options.STALL_MS.effect}\n" in text
    without = doctor.text_of({"backend": "soft", "variables": {}, "advice": []})
    assert "Variables" not in without


# ── settings ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("variable", "known"),
    [
        ("URINGLOOP_BACKEND", "auto, io_uring, soft"),
        ("URINGLOOP_DISABLE", "min_wait, cached_files, cached_paths"),
    ],
)
def test_invalid_variable_is_reported_as_the_cause(variable: str, known: str) -> None:
    text, facts, status = examined(**{variable: "nonsense"})
    assert (facts["backend"], status) == ("none", 1)
    for words in (variable, "nonsense", known):
        assert words in facts["reason"]
    # The advice at the end repeats the cause, for users who read only the last lines.
    assert any(variable in line and "nonsense" in line for line in facts["advice"])
    # The kernel has not refused anything.
    assert not any("refused" in line for line in facts["advice"])
    assert "Traceback" not in text


@on_io_uring
def test_disabled_features_are_reported() -> None:
    _, facts, status = examined(URINGLOOP_DISABLE="quiet_sends,min_wait")
    assert status == 0
    disabled = {name for name, state in facts["features"].items() if state == "disabled"}
    assert disabled == {"quiet_sends", "min_wait"}
    (advice,) = [line for line in facts["advice"] if "URINGLOOP_DISABLE" in line]
    assert "quiet_sends" in advice
    assert "min_wait" in advice
    assert "cached_files" not in advice


def test_disabled_feature_of_the_software_ring_is_reported() -> None:
    _, facts, _ = examined(URINGLOOP_BACKEND="soft", URINGLOOP_DISABLE="cached_files")
    assert facts["features"]["cached_files"] == "disabled"
    assert any("URINGLOOP_DISABLE" in line for line in facts["advice"])


@pytest.mark.parametrize("name", stdlib.SWITCHES)
def test_disabled_part_of_the_standard_library_is_reported(name: str) -> None:
    _, facts, _ = examined(URINGLOOP_DISABLE=name)
    disabled = {name for name, state in facts["features"].items() if state == "disabled"}
    assert disabled == {name}
    (advice,) = [line for line in facts["advice"] if "URINGLOOP_DISABLE" in line]
    assert name in advice


def test_few_descriptors_get_advice() -> None:
    facts = with_descriptors(512)
    assert facts["descriptors"].startswith("512 of ")
    (advice,) = [line for line in facts["advice"] if "descriptors" in line]
    assert "ulimit -n" in advice


def test_many_descriptors_get_no_advice() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this process may not have many descriptors")
    assert not any("descriptors" in line for line in with_descriptors(4096)["advice"])


# ── transports of other packages ─────────────────────────────────────────────────────────────


def with_versions(monkeypatch: pytest.MonkeyPatch, **versions: str) -> list[str]:
    """Return the advice about transports where only these packages are installed."""
    monkeypatch.setattr(doctor, "version_of", versions.get)
    return doctor.other_transports()


def test_nothing_is_said_without_aiofastnet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_versions(monkeypatch, aiohttp="3.15.0") == []


@pytest.mark.parametrize("version", ["3.15.0", "3.16.1", "4.0.0a2"])
def test_aiohttp_on_aiofastnet_is_reported(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed, used, remedy = with_versions(monkeypatch, aiofastnet="1.2.0", aiohttp=version)
    assert installed.startswith("aiofastnet 1.2.0: ")
    assert used.startswith(f"aiohttp {version}: ")
    assert "pip uninstall aiofastnet" in remedy


@pytest.mark.parametrize("versions", [{"aiohttp": "3.14.5"}, {}], ids=["older", "none"])
def test_without_such_an_aiohttp_only_aiofastnet_is_reported(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]
) -> None:
    installed, _ = with_versions(monkeypatch, aiofastnet="1.2.0", **versions)
    assert "3.15" in installed


def test_version_of_a_package_that_is_not_installed_is_none() -> None:
    assert doctor.version_of("pytest") == pytest.__version__
    assert doctor.version_of("uringloop-no-such-package") is None
