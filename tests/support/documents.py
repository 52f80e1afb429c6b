"""Parses the documents' Markdown: blocks of code, the commands in them, headings, links.

Supports only as much Markdown as the documents of this repository use: fences of backticks,
headings that begin with `#`, links in brackets. tests/project/test_docs.py runs the blocks.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

# Pages whose blocks are run; LINKED are the pages whose links are checked.
PAGES = sorted(
    [
        *DOCS.rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    ]
)
LINKED = sorted([*PAGES, ROOT / "CHANGELOG.md"])

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^`]*)$")
HEADING = re.compile(r"^(#+) +(.*?)(?: +#+)?$")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)")
CODE_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)

# An assignment before the name of a program.
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Block:
    """A block of code between two fences."""

    page: str
    line: int
    heading: str
    kind: str
    text: str
    # The program's expected output: a block of text right after it.
    output: str | None = None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line} {self.heading}"

    @property
    def place(self) -> tuple[str, str]:
        """The key in tables: headings change less often than line numbers."""
        return self.page, self.heading


@dataclass(frozen=True)
class Command:
    """A command on one line, without its prompt, and the output that a console shows after it."""

    text: str
    shown: str = ""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def plain(heading: str) -> str:
    """Return a heading as displayed: without marks and without the targets of its links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")


def _parts(text: str) -> Iterator[tuple[str, int, str, str]]:
    """Yield kind ("line", "heading" or "block"), line number, text, and a block's language."""
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        begins = FENCE.match(lines[index])
        if begins is None:
            heading = HEADING.match(lines[index])
            yield ("heading" if heading else "line", index + 1, lines[index], "")
            index += 1
            continue
        first = index + 1
        last = first
        while lines[last].strip() != begins["ticks"]:
            last += 1
        inside = textwrap.dedent("\n".join(lines[first:last]) + "\n")
        yield "block", index + 1, inside, begins["info"].strip()
        index = last + 1


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in order; a block of output belongs to its program's block."""
    found: list[Block] = []
    heading = ""
    adjacent = False
    for kind, number, text, info in _parts(path.read_text()):
        if kind == "heading":
            heading = plain(text.lstrip("#").strip())
        elif kind == "block":
            if info == "text" and adjacent and found[-1].kind == "python":
                last = found.pop()
                found.append(
                    Block(last.page, last.line, last.heading, last.kind, last.text, output=text)
                )
            else:
                found.append(Block(name_of(path), number, heading, info, text))
            adjacent = True
            continue
        if text.strip():
            adjacent = False
    return found


def recipe(heading: str, kind: str = "python") -> str:
    """Return the text of the only block of *kind* below a heading, whatever its page."""
    every = [block for path in PAGES for block in blocks(path)]
    (found,) = [it.text for it in every if (it.heading, it.kind) == (heading, kind)]
    return found


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page, as Git hosts and the documentation site make them."""
    found: set[str] = set()
    for kind, _, text, _ in _parts(path.read_text()):
        if kind == "heading":
            name = plain(text.lstrip("#").strip()).lower()
            slug = re.sub(r"[^\w\- ]", "", name).replace(" ", "-")
            again = 1
            while slug in found:
                slug = f"{slug.removesuffix(f'-{again - 1}')}-{again}"
                again += 1
            found.add(slug)
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    return found


def prose(path: Path) -> str:
    """Return a page without its blocks."""
    return "\n".join(
        "" if kind == "block" else text for kind, _, text, _ in _parts(path.read_text())
    )


def links(path: Path) -> list[str]:
    """Return the targets of the page's links, outside of blocks and code spans."""
    return LINK.findall(CODE_SPAN.sub("", prose(path)))


def spans(path: Path) -> list[str]:
    """Return the code spans of a page, each on one line."""
    return [" ".join(found[2].split()) for found in CODE_SPAN.finditer(prose(path))]


def commands(block: Block) -> list[Command]:
    """Return the commands of a block: each line, or each line with a prompt in a console."""
    # A backslash at the end of a line continues it.
    lines = re.sub(r" *\\\n\s*", " ", block.text).splitlines()
    if block.kind != "console":
        return [Command(line.strip()) for line in lines if line.strip(" \t") and line[0] != "#"]
    found: list[Command] = []
    for line in lines:
        if line.startswith(("$ ", "# ")):
            found.append(Command(line[2:]))
        elif found:
            last = found.pop()
            found.append(Command(last.text, f"{last.shown}{line}\n"))
        else:
            raise ValueError(f"{block.name}: output before the first prompt")
    return found


def matches(shown: str, printed: str) -> bool:
    """Return whether *printed* matches *shown*, in which `...` stands for anything."""
    pattern = ".*?".join(map(re.escape, shown.rstrip().split("...")))
    return re.fullmatch(pattern, printed.rstrip(), re.DOTALL) is not None
