"""The limits that the doctor reports before a program runs into them."""

from __future__ import annotations

import resource

import pytest
from support.loops import on_io_uring
from support.roles import run_script

from uringloop._ring import backends, limits

ROOT, ROOTLESS = "0 0 4294967295", "0 100000 65536"
ALL, NONE = "000001ffffffffff", "0000000000000000"
# Root in the initial user namespace, without a cgroup.
FREE = {backends.STATUS: f"CapEff:\t{ALL}", backends.USERS: ROOT}
BOUND = {**FREE, backends.STATUS: f"CapEff:\t{NONE}"}
V2 = {limits.CGROUP: "0::/app"}
V1 = {limits.CGROUP: "9:cpu,pids:/app\n4:memory:/app"}


class System:
    """The files and limits of a machine; initially nothing is limited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, str] = dict(FREE)
        self.limits: dict[int, int] = {}
        monkeypatch.setattr(backends, "read", self.files.get)
        monkeypatch.setattr(resource, "getrlimit", self.getrlimit)

    def getrlimit(self, kind: int) -> tuple[int, int]:
        return self.limits.get(kind, resource.RLIM_INFINITY), resource.RLIM_INFINITY


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


def test_no_limits_give_no_advice(system: System) -> None:
    assert limits.advice("io_uring") == limits.advice("soft") == []
    assert limits.limit_text(resource.RLIMIT_NOFILE) == "unlimited of unlimited"


@pytest.mark.parametrize(
    ("users", "capable", "kib", "words"),
    [
        (ROOT, NONE, 64, "enough for 1 loop on io_uring"),
        (ROOT, NONE, 0, "enough for 0 loops on io_uring"),
        (ROOTLESS, ALL, 128, "enough for 2 loops on io_uring"),
        (ROOT, NONE, 8192, ""),
        (ROOT, ALL, 64, ""),
    ],
)
def test_locked_memory_is_counted_in_loops(
    system: System, users: str, capable: str, kib: int, words: str
) -> None:
    system.files |= {backends.USERS: users, backends.STATUS: f"CapEff:\t{capable}"}
    system.limits[resource.RLIMIT_MEMLOCK] = kib * 1024
    advice = limits.advice("io_uring")
    assert len(advice) == bool(words)
    assert all(words in line and "LimitMEMLOCK=" in line for line in advice)
    # The software ring locks no memory.
    assert limits.advice("soft") == []


def test_descriptors_are_counted_up_to_the_soft_limit(system: System) -> None:
    system.limits[resource.RLIMIT_NOFILE] = 1024
    (line,) = limits.advice("soft")
    assert "LimitNOFILE=" in line
    system.limits[resource.RLIMIT_NOFILE] = 1025
    assert limits.advice("soft") == []


def test_sysctl_that_exempts_privileged_processes_gives_advice(system: System) -> None:
    system.files[backends.SYSCTL] = "1"
    (line,) = limits.advice("io_uring")
    assert "kernel.io_uring_group" in line
    assert limits.advice("soft") == []


@pytest.mark.parametrize(
    ("files", "folder"),
    [
        (V2, "/sys/fs/cgroup/app"),
        # In a container, whose cgroup is the root.
        (V2, "/sys/fs/cgroup"),
        (V1, "/sys/fs/cgroup/pids/app"),
        (V1, "/sys/fs/cgroup/pids"),
    ],
)
@pytest.mark.parametrize(("most", "used", "left"), [("100", "60", 40), ("100", "36", None)])
def test_threads_are_counted_up_to_the_limit_of_the_cgroup(
    system: System, files: dict[str, str], folder: str, most: str, used: str, left: int | None
) -> None:
    system.files |= {**files, f"{folder}/pids.max": most, f"{folder}/pids.current": used}
    advice = limits.advice("io_uring")
    assert len(advice) == (left is not None)
    assert all(f"few threads: {left} more" in line and "TasksMax=" in line for line in advice)


def test_threads_are_counted_up_to_the_limit_of_the_user(system: System) -> None:
    system.limits[resource.RLIMIT_NPROC] = 30
    # The limit does not apply to root.
    assert limits.advice("io_uring") == []
    system.files |= BOUND
    (line,) = limits.advice("io_uring")
    assert "few threads: 30 more" in line
    assert "ulimit -u" in line
    # The lower limit is reported.
    system.files |= {**V2, "/sys/fs/cgroup/app/pids.max": "10"}
    (line,) = limits.advice("io_uring")
    assert "few threads: 10 more" in line


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (V2, "/sys/fs/cgroup/app/memory.max"),
        (V1, "/sys/fs/cgroup/memory/app/memory.limit_in_bytes"),
    ],
)
def test_low_memory_limit_of_the_cgroup_gives_advice(
    system: System, files: dict[str, str], name: str
) -> None:
    for value, little in ((32 << 20, True), (64 << 20, False), ((1 << 63) - 4096, False)):
        system.files |= {**files, name: str(value)}
        advice = limits.advice("soft")
        assert len(advice) == little
        assert all("little memory: 32 MiB" in line and "MemoryMax=" in line for line in advice)


@pytest.mark.parametrize("value", ["max", "", "nonsense"])
def test_limit_that_is_no_number_is_ignored(system: System, value: str) -> None:
    names = ("pids.max", "memory.max")
    system.files |= {**V2, **{f"/sys/fs/cgroup/app/{name}": value for name in names}}
    assert limits.advice("io_uring") == []


@on_io_uring
def test_doctor_reports_little_locked_memory_before_a_loop_falls_back() -> None:
    done = run_script(
        """
        import os, resource
        from uringloop import doctor

        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, 64 * 1024))
        if os.getuid() == 0:
            os.setresuid(65534, 65534, 65534)
        report = doctor.examine()
        # Other processes of that user may have locked all of it.
        print(report["backend"], any("little locked memory" in line for line in report["advice"]))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("io_uring True\n", "soft False\n")
