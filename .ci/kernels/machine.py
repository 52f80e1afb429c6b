"""The emulated machine: qemu with a kernel and an initramfs, watched until it ends."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from pathlib import Path

from kernels.archive import unpacked
from kernels.base import BUILD, HERE, PATH, Architecture

# QEMU 7.2 of Debian 12 sets bits in the emulated processor's flags that no code has set: 7 of 18
# boots of Linux 6.12 ended in an oops. 10.0 of Debian 13 has not shown this.
QEMU_MIN = 10
QEMU_RELEASE = "trixie"
MEMORY_MB = 1536
# The size of a sparse file; pytest keeps the files of both runs.
DISK_MB = 4096
# On the emulated machine, the suite's core takes some minutes for each ring. Other programs have
# no limit.
BOOT_SECONDS_MAX = 3600
# Each test prints a dot on the console, each round of ends its numbers; none takes this long.
SILENCE_SECONDS_MAX = 300
LOOK_SECONDS = 2
# The mitigations are not needed and are very slow when emulated. An oops or a panic ends qemu.
COMMAND_LINE = "loglevel=5 oops=panic panic=-1 mitigations=off random.trust_cpu=on"


def qemu(architecture: Architecture) -> list[str]:
    """Return the command of the emulator: $QEMU, a recent one on this machine, or Debian's."""
    named = os.environ.get("QEMU")
    if named:
        return [named]
    program = f"qemu-system-{architecture.name}"
    found = shutil.which(program)
    if found is not None:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
        version = re.search(r"version (\d+)\.", done.stdout)
        if version and int(version[1]) >= QEMU_MIN:
            return [found]
    folder = BUILD / architecture.name / "qemu"
    # It runs on this machine, whatever it emulates.
    root = unpacked(QEMU_RELEASE, HERE, folder / "root", architecture.emulator)
    # A program of another release: its own dynamic linker loads it.
    (linker,) = root.glob("usr/lib/*/ld-linux-*.so.*")
    command = [str(linker), "--library-path", str(linker.parent), str(root / "usr/bin" / program)]
    return [*command, "-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios")]


def boot(architecture: Architecture, folder: Path, initramfs: Path, words: list[str]) -> Path:
    """Boot the kernel in *folder*, wait for its end, and return its console's log.

    The init reads *words*, which contain no spaces, from the kernel's command line.
    """
    disk, log = folder / "disk", folder / "console.log"
    disk.unlink(missing_ok=True)
    with disk.open("wb") as file:
        file.truncate(DISK_MB << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True, env={"PATH": PATH})
    line = " ".join([architecture.command_line, COMMAND_LINE, *words])
    command = [*qemu(architecture), *architecture.machine]
    command += ["-accel", "tcg,thread=multi", "-smp", "2", "-m", str(MEMORY_MB)]
    command += ["-kernel", str(folder / "vmlinuz"), "-append", line, "-initrd", str(initramfs)]
    command += ["-drive", f"file={disk},if=virtio,format=raw"]
    command += ["-nographic", "-no-reboot", "-net", "none", "-serial", f"file:{log}"]
    # Without audio it loads no modules; those of this machine's own qemu would not fit.
    command += ["-monitor", "none", "-audio", "none"]
    log.write_bytes(b"")
    try:
        with (
            (folder / "qemu.log").open("wb") as said,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=said) as machine,
        ):
            unlimited = "kernels.ends=" in line or "kernels.resets=" in line
            watch(machine, log, math.inf if unlimited else BOOT_SECONDS_MAX)
    finally:
        disk.unlink()
        initramfs.unlink()
    return log


def watch(machine: subprocess.Popen[bytes], log: Path, limit: float) -> None:
    """Wait until the machine ends; kill it after *limit* seconds, or if its console is silent.

    The seconds are counted, not read from a clock, because this process may be stopped for a while.
    """
    said = silent = seconds = 0
    while True:
        try:
            machine.wait(LOOK_SECONDS)
            return
        except subprocess.TimeoutExpired:
            seconds += LOOK_SECONDS
            silent = 0 if log.stat().st_size != said else silent + LOOK_SECONDS
            said = log.stat().st_size
            if silent > SILENCE_SECONDS_MAX or seconds > limit:
                machine.kill()
                return
        except BaseException:
            machine.kill()
            raise
