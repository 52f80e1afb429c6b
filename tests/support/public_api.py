"""The public API as texts: `python -m support.public_api` records them in tests/project/public_api.

docs/about/policies.md says what is public. griffe reads names and signatures from the sources and
the stubs, so that the result is the same on every Python. Everything else comes from the tables of
the package, and from pages of the reference that other tests compare with the code.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

import uringloop
from support import changelog
from support.metrics import instruments, kinds_of_prometheus
from support.reference_pages import EXTRAS, REFERENCE, names_in, of_commands, statuses, table
from support.sources import ROOT
from uringloop import doctor, top
from uringloop._loop import options
from uringloop.monitor import client, health_settings, snapshots
from uringloop.testing import pytest_seeds

# The names and their texts, by the section that they belong to.
Api = dict[str, dict[str, str]]

RECORDS = ROOT / "tests" / "project" / "public_api"

# The classes of what public functions return: their members are public, although the classes have
# no public names.
RESULTS = {
    "datagram transport": "uringloop._net.datagram_transport.DatagramTransport",
    "result of Server.drain()": "uringloop._net.servers.Drained",
    "result of fs.scandir()": "uringloop.files.directories.Scan",
    "result of open()": "uringloop.files.open.Opening",
    "result of tempfile.NamedTemporaryFile()": "uringloop.tempfile.NamedFile",
    "result of tempfile.SpooledTemporaryFile()": "uringloop.tempfile.SpooledFile",
}
# Only the package makes instances of these, so that the arguments of the classes are private.
NOT_CALLED = {
    "uringloop.BufferedFile",
    "uringloop.RawFile",
    "uringloop.Server",
    "uringloop.StreamTransport",
    "uringloop.TextFile",
    *RESULTS,
}
# Every object has these methods.
OF_EVERY_OBJECT = ("__del__", "__eq__", "__hash__", "__post_init__", "__repr__")


# ── names and signatures ─────────────────────────────────────────────────────────────────────


def load(folder: Path = ROOT) -> griffe.Module:
    """Read the package in *folder*, without importing it."""
    loaded = griffe.load(
        "uringloop",
        search_paths=[str(folder)],
        try_relative_path=False,
        allow_inspection=False,
        resolve_aliases=True,
    )
    assert isinstance(loaded, griffe.Module)
    return loaded


def public_modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """Yield *module* and those in it that have `__all__`, except in private packages."""
    if module.exports is not None:
        yield module
    for name, inner in module.modules.items():
        if not inner.is_alias and not name.startswith("_"):
            assert isinstance(inner, griffe.Module)
            yield from public_modules(inner)


def target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


class Names:
    """Collects the names of a package with their declarations."""

    def __init__(self, root: griffe.Module) -> None:
        self.root = root
        self.found: dict[str, str] = {}
        # The public names of objects, by the names that they have where they are defined.
        self.public: dict[str, str] = {}
        for module in public_modules(root):
            for export in module.exports or ():
                path = f"{module.path}.{export}"
                self.public.setdefault(target(module.members[str(export)]).path, path)

    def collect(self) -> dict[str, str]:
        for module in public_modules(self.root):
            self.found[module.path] = "module"
            for export in module.exports or ():
                path = f"{module.path}.{export}"
                self.add(path, target(module.members[str(export)]))
        for name, path in RESULTS.items():
            self.add(name, self.own(path))
        return self.found

    def own(self, path: str) -> griffe.Object:
        """Return the object of the package that has the name *path*."""
        return target(self.root[path.removeprefix("uringloop.")])

    def of_value(self, value: object) -> griffe.Object | None:
        """Return the object of the package that an expression names, if it names one."""
        path = str(getattr(value, "canonical_path", ""))
        try:
            return self.own(path) if path.startswith("uringloop.") else None
        except (KeyError, griffe.AliasResolutionError):
            # The name of an argument, or one that the module has imported from elsewhere.
            return None

    def add(self, path: str, found: griffe.Object) -> None:
        if isinstance(found, griffe.Attribute):
            # A method may be a function of another module.
            function = self.of_value(found.value)
            found = function if isinstance(function, griffe.Function) else found
        if isinstance(found, griffe.Function):
            self.found[path] = self.declaration_of(found)
        elif isinstance(found, griffe.Attribute):
            self.found[path] = attribute_text(found)
        elif isinstance(found, griffe.Class):
            self.found[path] = f"class ({', '.join(self.bases_of(found))})"
            for name, member in found.all_members.items():
                if is_public_member(name, target(member), path):
                    self.add(f"{path}.{name}", target(member))

    def bases_of(self, found: griffe.Class) -> list[str]:
        """Return the public bases of a class, and those that private bases have."""
        names: list[str] = []
        for base in found.bases:
            path = str(getattr(base, "canonical_path", base))
            private = self.of_value(base)
            if path in self.public:
                names.append(self.public[path])
            elif isinstance(private, griffe.Class):
                names += self.bases_of(private)
            elif isinstance(private, griffe.Attribute):
                names.append(str(getattr(private.value, "canonical_path", private.value)))
            elif path != "typing.Generic":
                names.append(path)
        return list(dict.fromkeys(names))

    def declaration_of(self, function: griffe.Function) -> str:
        """Return the first line of a function, with the name `f` and the values of defaults."""
        for parameter in function.parameters:
            constant = self.of_value(parameter.default)
            if isinstance(constant, griffe.Attribute) and constant.value is not None:
                parameter.default = constant.value
        word = "async def" if "async" in function.labels else "def"
        return f"{word} {function.signature(return_type=True, name='f')}"


def is_public_member(name: str, member: griffe.Object, of: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        is_called = name not in ("__init__", "__new__") or of not in NOT_CALLED
        return member.is_function and is_called and name not in OF_EVERY_OBJECT
    return not name.startswith("_")


def attribute_text(found: griffe.Attribute) -> str:
    """Return the type of an attribute, and the value of a constant."""
    text = "property" if "property" in found.labels else "attribute"
    if found.annotation is not None:
        text += f": {found.annotation}"
    if found.name.isupper() and found.value is not None:
        text += f" = {found.value}"
    return text


# ── options and commands ─────────────────────────────────────────────────────────────────────


def options_found() -> dict[str, str]:
    found: dict[str, str] = {}
    for option in options.TABLE:
        names = [f"Loop({option.argument}=)"] if option.argument else []
        for name in [*names, *filter(None, [option.variable])]:
            found[name] = option.values
            found[f"{name}: default"] = option.default
            found[f"{name}: read by"] = option.read
    variable = options.HEALTH.variable
    return found | {f"{variable}=...?{name}=": "" for name in health_settings.SETTINGS}


# An argument in the help of a command, with what it takes.
ARGUMENT = re.compile(r"^ {2}(?:-h, )?([^\s=]+)(?:[ =](\S+))?(?: {2}|$)", re.MULTILINE)


def commands_found() -> dict[str, str]:
    """Return the commands, their arguments and their exit statuses, as the page has them."""
    found: dict[str, str] = {}
    for command, block in of_commands().items():
        found[command] = ""
        if ".workers." in command:
            # The options are those of the server.
            continue
        for argument, value in ARGUMENT.findall(block.text):
            found[f"{command} {argument}"] = value
    for command, ways in statuses().items():
        found |= {f"{command}: exit status {status}": "" for status in ways}
    marker, _, _ = pytest_seeds.DESCRIPTION.partition(":")
    return found | {f"marker {marker}": "", f"fixture {pytest_seeds.FIXTURE}": ""}


# ── reports ──────────────────────────────────────────────────────────────────────────────────


def kinds_in(report: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a report in JSON, with the types of their values."""
    for key, value in report.items():
        name = f"{path} {key}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield from kinds_in(value[0], f"{name}[]")
        elif isinstance(value, dict) and value and key != "batches":
            yield from kinds_in(value, name)
        else:
            yield name, "null" if value is None else type(value).__name__


def reports_found() -> dict[str, str]:
    """Return the keys of the doctor's report, and of an answer that top prints."""
    printed = io.StringIO()
    loop = uringloop.Loop(warn_fallback=False)
    try:
        first = client.Sample(snapshots.snapshot())
        with contextlib.redirect_stdout(printed):
            top._json(client.Sample(snapshots.snapshot(), first), [])
    finally:
        loop.close()
    answer = json.loads(printed.getvalue())
    # Another test may have left a loop open.
    answer["loops"] = [each for each in answer["loops"] if each["id"] == id(loop)]
    report = {**json.loads(json.dumps(doctor.examine())), "variables": {}, "advice": []}
    return dict([*kinds_in(report, "doctor"), *kinds_in(answer, "top")])


# ── the whole ────────────────────────────────────────────────────────────────────────────────


def others_found() -> dict[str, str]:
    """Return what other programs read or ask for, and the extras of the package."""
    private = table(REFERENCE / "differences.md", "Name", "Value", "Read by")
    found: dict[str, str] = {}
    for names in filter(None, (names_in(row[0]) for row in private)):
        # A name that begins with a dot belongs to the object of the first name in the cell.
        owner = names[0].partition(".")[0]
        found |= {owner + it if it.startswith(".") else it: "private name" for it in names}
    requests = table(REFERENCE / "monitor.md", "Request", "Answer")
    found |= {name: "health" for row in requests for name in names_in(row[0])}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for name in project["optional-dependencies"] if name in EXTRAS]
    return found | {f"{project['name']}[{name}]": "extra" for name in extras}


def api() -> Api:
    metrics = {**kinds_of_prometheus(), **{k: " ".join(v) for k, v in instruments().items()}}
    sections = {
        "names": Names(load()).collect(),
        "options": options_found(),
        "commands": commands_found(),
        "metrics": metrics,
        "reports": reports_found(),
        "others": others_found(),
    }
    return {name: dict(sorted(found.items())) for name, found in sections.items()}


def recorded(version: str) -> Api:
    found: Api = json.loads((RECORDS / f"{version}.json").read_text())
    return found


def versions() -> list[str]:
    """Return the recorded versions, the oldest first."""
    return sorted((path.stem for path in RECORDS.glob("*.json")), key=changelog.numbers)


def main(version: str = uringloop.__version__) -> None:
    """Record the API of *version*, which must not have been released."""
    if changelog.read().get(version, changelog.UNRELEASED).released is not None:
        raise SystemExit(f"{version} is released: raise __version__, and begin a section for it")
    path = RECORDS / f"{version}.json"
    path.write_text(json.dumps(api(), indent=1, ensure_ascii=False) + "\n")
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(*sys.argv[1:])
