"""Downloads packages from the archives of Debian's releases, for any architecture.

Each archive has an apt of its own: nothing is installed on this machine, and no privileges are
required.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

from kernels.base import BUILD, Architecture, KernelsError

# Modules for the disk, in the order of their dependencies; a kernel has some of them built in.
MODULES = (
    *("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"),
    *("virtio_blk", "crc16", "crc32c_generic", "mbcache", "jbd2", "ext4"),
)


def mirror() -> str:
    """Return the address of an archive: $MIRROR, or that of this Debian."""
    named = os.environ.get("MIRROR")
    if named:
        return named
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian"]
    done = subprocess.run(targets, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise KernelsError("this is not Debian: name an archive with MIRROR=http://.../debian")
    return done.stdout.split()[0]


class Archive:
    """apt for one release and architecture, separate from the apt of this machine."""

    def __init__(self, release: str, architecture: Architecture, folder: Path) -> None:
        self.debian = architecture.debian
        self.folder = folder / "apt"
        for name in ("lists/partial", "archives/partial", "parts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
        (self.folder / "sources.list").write_text(
            f"deb [arch={self.debian} signed-by={keys}] {mirror()} {release} main\n"
        )
        self.run("apt-get", "update", "-q")

    def run(self, program: str, *arguments: str) -> str:
        options = {
            "APT::Architecture": self.debian,
            "APT::Architectures": self.debian,
            "APT::Sandbox::User": "",
            # A mirror may be some weeks old.
            "Acquire::Check-Valid-Until": "false",
            "Acquire::Languages": "none",
            "Dir::Cache": self.folder,
            "Dir::Etc::sourcelist": self.folder / "sources.list",
            "Dir::Etc::sourceparts": self.folder / "parts",
            "Dir::State": self.folder,
            "Dir::State::lists": self.folder / "lists",
            "Dir::State::status": self.folder / "status",
        }
        command = [program, *(part for n, v in options.items() for part in ("-o", f"{n}={v}"))]
        done = subprocess.run(
            [*command, *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise KernelsError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def download(self, *names: str) -> None:
        self.run("apt-get", "download", "-q", *names)

    def with_dependencies(self, *names: str) -> list[str]:
        plan = self.run("apt-get", "install", "--simulate", "--no-install-recommends", *names)
        return re.findall(r"^Inst (\S+)", plan, re.MULTILINE)

    def unpack(self, folder: Path) -> None:
        """Unpack the downloaded packages; *folder* exists only when it is complete."""
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for package in self.folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, partial], check=True)
        shutil.rmtree(self.folder)
        partial.rename(folder)

    def kernel(self, pages: str) -> list[str]:
        """Return the names of the newest kernel's packages: one, or several since 7.x."""
        known = set(self.run("apt-cache", "pkgnames", "linux-image").split())
        wanted = [f"linux-image-cloud-{self.debian}", f"linux-image-{self.debian}"]
        if pages:
            wanted = [f"linux-image-{self.debian}-{pages}"]
        names: list[str] = [name for name in wanted if name in known][:1]
        if not names:
            raise KernelsError(f"the archive has none of {', '.join(wanted)}")
        for name in names:
            shown = self.run("apt-cache", "show", "--no-all-versions", name)
            depends = re.search(r"^Depends: (.*)$", shown, re.MULTILINE)
            needed = re.findall(
                r"linux-(?:image|binary|modules)-\S+", depends[1] if depends else ""
            )
            names += [n for n in needed if n not in names]
        return names


def unpacked(release: str, architecture: Architecture, folder: Path, *packages: str) -> Path:
    """Return *folder* with these packages and all that they depend on; download them once."""
    if not folder.exists():
        archive = Archive(release, architecture, folder.parent)
        archive.download(*archive.with_dependencies(*packages))
        archive.unpack(folder)
    return folder


def kernel_of(release: str, architecture: Architecture, pages: str) -> Path:
    """Return the folder with the release's kernel; download it once.

    `vmlinuz` is the kernel, and `guest` has what the guest needs of its modules.
    """
    folder = BUILD / architecture.name / f"{release}{pages}"
    if (folder / "guest").exists():
        return folder
    archive = Archive(release, architecture, folder)
    archive.download(*archive.kernel(pages))
    tree = folder / "unpacked"
    shutil.rmtree(tree, ignore_errors=True)
    archive.unpack(tree)
    (image,) = [path for path in tree.rglob("vmlinuz*") if path.is_file()]
    shutil.copy(image, folder / "vmlinuz")
    partial = folder / "guest.partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "modules").mkdir(parents=True)
    for number, name in enumerate(MODULES):
        for path in tree.rglob(f"{name}.ko*"):
            data = path.read_bytes()
            data = lzma.decompress(data) if path.suffix == ".xz" else data
            (partial / "modules" / f"{number:02}-{name}.ko").write_bytes(data)
    partial.rename(folder / "guest")
    shutil.rmtree(tree)
    return folder
