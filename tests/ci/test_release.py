"""The parts of a release agree: tag, version, changelog, addresses and workflows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from uringloop import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RECIPE = ROOT / ".ci" / "conda-forge" / "recipe.yaml"
# The files that `.ci/release-check --tag` reads.
READ = (
    ".ci/conda-forge/recipe.yaml",
    ".ci/release-check",
    "CHANGELOG.md",
    "README.md",
    "docs/about/status.md",
    "docs/index.md",
    "docs/project/release-notes.md",
    "pyproject.toml",
    "uringloop/__init__.py",
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with the files of a release whose changelog has the date 2000-01-01."""
    for name in READ:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    edit(
        tmp_path / "CHANGELOG.md",
        lambda text: re.sub(
            rf"(?m)^## {re.escape(__version__)}, .*", rf"## {__version__}, 2000-01-01", text
        ),
    )
    return tmp_path


def edit(path: Path, change: Callable[[str], str]) -> None:
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))


def refused(clone: Path, tag: str) -> str:
    """Return why a tag is refused; nothing if it is not."""
    command = [sys.executable, str(clone / ".ci" / "release-check"), "--tag", tag]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == bool(done.stderr)
    return done.stderr.removeprefix("not ready: ").rstrip()


TAG = f"v{__version__}"


def test_a_tag_with_the_version_of_a_dated_changelog_is_accepted(clone: Path) -> None:
    assert refused(clone, TAG) == ""


def test_another_tag_is_refused(clone: Path) -> None:
    assert refused(clone, "v9.9") == f"the tag is v9.9, and the version {__version__}"
    assert refused(clone, __version__).startswith(f"the tag is {__version__},")


def test_a_tag_is_refused_while_the_changelog_has_no_date(clone: Path) -> None:
    edit(clone / "CHANGELOG.md", lambda text: text.replace("2000-01-01", "unreleased"))
    assert refused(clone, TAG) == "the changelog has no date for this version"


def test_a_tag_is_refused_if_a_page_has_another_version(clone: Path) -> None:
    edit(clone / "docs/about/status.md", lambda text: text.replace(__version__, "0.9"))
    edit(clone / "README.md", lambda text: text.replace(f"version {__version__}", "version 0.9"))
    words = (
        f"README.md: 'version {__version__},', docs/about/status.md: '| version | {__version__} |'"
    )
    assert refused(clone, TAG) == f"missing: {words}"
    edit(clone / "CHANGELOG.md", lambda text: text.replace(f"## {__version__}", "## 0.9"))
    assert "the changelog begins with 0.9" in refused(clone, TAG)


def test_each_action_is_named_by_a_commit_and_its_version() -> None:
    used = [
        (path.name, line.strip())
        for path in WORKFLOWS
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(used) > 10
    pinned = re.compile(r"- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [one for one in used if not pinned.fullmatch(one[1])] == []
    # One version of each.
    commits = {line.split("@")[0]: set[str]() for _, line in used}
    for _, line in used:
        commits[line.split("@")[0]].add(line)
    assert [lines for lines in commits.values() if len(lines) > 1] == []


def test_the_release_is_published_by_the_environment_that_the_page_names() -> None:
    (release,) = (path.read_text() for path in WORKFLOWS if path.name == "release.yml")
    page = (ROOT / "docs" / "project" / "release.md").read_text()
    (environment,) = re.findall(r"environment:\n +name: (\w+)\n", release)
    assert f"`{environment}`" in page
    assert "`release.yml`" in page
    # Only this job can upload, and only for the push of a tag.
    assert release.count("id-token: write") == 1
    assert '\n  push:\n    tags: ["v*"]\n  workflow_dispatch:\n' in release
    assert "if: github.event_name == 'push'\n    permissions:\n      id-token: write" in release


def test_the_addresses_are_written_once() -> None:
    urls = PROJECT["urls"]
    home, site = urls["Homepage"], urls["Documentation"]
    assert urls["Source"] == home
    assert [url for url in urls.values() if not url.startswith((home, site))] == []
    places = [ROOT / name for name in ("setup.py", "noxfile.py", "Makefile", ".readthedocs.yaml")]
    for folder in (".ci", ".github", "docs", "examples", "uringloop"):
        files = (ROOT / folder).rglob("*.*")
        places += [path for path in files if path.suffix not in (".pyc", ".so")]
    places += ROOT.glob("*.md")
    texts = {path: path.read_text() for path in places if path.is_file()}
    named = [path for path, text in texts.items() if home in text or site in text]
    assert named == [RECIPE]


def test_the_recipe_for_conda_forge_agrees_with_the_project() -> None:
    text = RECIPE.read_text()
    assert f"name: {PROJECT['name']}" in text
    assert f"summary: {PROJECT['description']}" in text
    for name in ("Homepage", "Documentation", "Source"):
        assert re.search(rf": {re.escape(PROJECT['urls'][name])}$", text, re.MULTILINE), name
    scripts = re.findall(r"import uringloop|liburing\b|LICENSE|licenses/liburing.txt", text)
    assert {"LICENSE", "licenses/liburing.txt", "liburing"} <= set(scripts)
