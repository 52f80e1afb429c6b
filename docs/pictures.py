"""Draws the pictures of the architecture page, each as SVG for light and for dark pages.

    python docs/pictures.py

A test compares the files in `docs/pictures` with the output of this program. The packages are those
of the list in architecture.md; ROWS determines which of them are side by side. The steps of a turn
are those of that page, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).with_name("pictures")
WIDTH = 840
FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True)
class Palette:
    """The colours of one kind of page."""

    text: str
    faint: str
    line: str
    public: str
    private: str
    kernel: str


PALETTES = {
    "light": Palette("#1f2328", "#59636e", "#8b949e", "#ddf4ff", "#f6f8fa", "#fff8c5"),
    "dark": Palette("#e6edf3", "#9198a1", "#6e7681", "#0c2d6b", "#21262d", "#4b3a06"),
}


@dataclass
class Picture:
    """Boxes, arrows and words; coordinates are pixels from the upper left corner."""

    palette: Palette
    height: int = 0
    parts: list[str] = field(default_factory=list)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        faint: bool = False,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        colour = self.palette.faint if faint else self.palette.text
        weight = " font-weight='600'" if bold else ""
        self.parts.append(
            f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}' fill='{colour}'"
            f" text-anchor='{anchor}'{weight}>{escape(text)}</text>"
        )

    def box(self, x: float, y: float, w: float, h: float, title: str, note: str, fill: str) -> None:
        self.parts.append(
            f"<rect x='{x:g}' y='{y:g}' width='{w:g}' height='{h:g}' rx='6' fill='{fill}'"
            f" stroke='{self.palette.line}'/>"
        )
        self.words(x + w / 2, y + (h / 2 + 5 if not note else h / 2 - 2), title, bold=True)
        if note:
            self.words(x + w / 2, y + h / 2 + 14, note, size=11, faint=True)
        self.height = max(self.height, int(y + h) + 10)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, text: str = "") -> None:
        self.parts.append(
            f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{self.palette.faint}'"
            " stroke-width='1.5' marker-end='url(#tip)'/>"
        )
        if text:
            self.words((x1 + x2) / 2, (y1 + y2) / 2 - 5, text, size=11, faint=True)
        self.height = max(self.height, int(max(y1, y2)) + 10)

    def svg(self, title: str) -> str:
        tip = (
            "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7'"
            " markerHeight='7' orient='auto'>"
            f"<path d='M0 0 L8 4 L0 8 z' fill='{self.palette.faint}'/></marker></defs>"
        )
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {self.height}'"
            f" role='img'><title>{escape(title)}</title>{tip}\n"
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


# The packages of each row, from the top down, and the subject of the row.
ROWS = (
    (("__main__", "doctor", "top", "as_uvloop", "pytest_plugin", "workers", "bench"), "programs"),
    (
        ("__init__", "threads", "tls", "policy", "fs", "tempfile", "prometheus"),
        "public modules",
    ),
    (
        ("sockets", "streams", "testing", "monitor", "files"),
        "sockets, streams, loops for tests, the monitor, files",
    ),
    (("loop",), "class Loop"),
    (("_loop",), "running, tasks, threads, signals"),
    (("_net", "_process"), "connections, processes"),
    (("_tls",), "TLS above the transports"),
    (("_transport",), "pausing, flow control, writing, closing"),
    (("_turn",), "one turn: handles, timers"),
    (("_ring",), "operations, completions, buffers"),
    (("_softring",), "the ring if io_uring is refused"),
    (("_kernel", "_cpython"), "system calls, CPython's C API"),
)
# Packages without a box: each belongs to another package.
NOT_SHOWN = {"_as_uvloop", "_pyinstaller"}


def packages(palette: Palette) -> tuple[str, Picture]:
    picture = Picture(palette)
    left, width, height, gap = 10, 590, 38, 12
    for row, (names, about) in enumerate(ROWS):
        y = 10 + row * (height + gap)
        each = (width - 8 * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            public = not name.startswith("_") or name.startswith("__")
            fill = palette.public if public else palette.private
            fill = palette.kernel if name in ("_kernel", "_softring") else fill
            x = left + place * (each + 8)
            picture.parts.append(
                f"<rect x='{x:g}' y='{y}' width='{each:g}' height='{height}' rx='6' fill='{fill}'"
                f" stroke='{palette.line}'/>"
            )
            picture.words(x + each / 2, y + 24, name, size=10 if len(names) > 4 else 13, bold=True)
        picture.words(left + width + 14, y + 24, about, size=11, faint=True, anchor="start")
        if row:
            picture.arrow(left + width / 2, y - gap, left + width / 2, y - 1)
        picture.height = y + height + 10
    return "The packages: each imports from those below it", picture


def steps() -> list[list[str]]:
    """Return the steps of a turn, each with what it does."""
    page = (Path(__file__).parent / "project" / "architecture.md").read_text()
    listed = page.partition("## One turn\n")[2].partition("```text\n")[2].partition("```")[0]
    return [line.split(maxsplit=1) for line in listed.splitlines()]


def turn(palette: Palette) -> tuple[str, Picture]:
    picture = Picture(palette)
    listed = steps()
    for step, (name, note) in enumerate(listed):
        y = 10 + step * 58
        picture.box(125, y, 380, 44, name, note, palette.private)
        if step:
            picture.arrow(315, y - 14, 315, y - 1)
    bottom = 10 + (len(listed) - 1) * 58
    picture.box(
        600, 10 + 2 * 58, 140, bottom + 44 - (10 + 2 * 58), "kernel", "two queues", palette.kernel
    )
    picture.arrow(600, 10 + 2 * 58 + 22, 506, 10 + 2 * 58 + 22, "completions")
    picture.arrow(506, bottom + 22, 599, bottom + 22, "submissions")
    picture.parts.append(
        f"<path d='M125 {bottom + 22} H80 V32 H124' fill='none' stroke='{palette.faint}'"
        " stroke-width='1.5' marker-end='url(#tip)'/>"
    )
    picture.words(74, (bottom + 54) / 2, "the next turn", size=11, faint=True, anchor="end")
    return "One turn of the loop", picture


LANES = ("kernel", "Ring", "StreamTransport", "protocol")
MESSAGES = (
    (0, 1, "completion: a buffer of the pool"),
    (1, 2, "on_recv"),
    (2, 2, "copy the bytes, give the buffer back"),
    (2, 3, "data_received(data)"),
    (3, 2, "write(data)"),
    (2, 2, "queue; flush at the end of the turn"),
    (2, 1, "submit_send"),
    (1, 0, "io_uring_enter: all sends, then sleep"),
    (1, 2, "confirm: drop the bytes"),
)


def echo(palette: Palette) -> tuple[str, Picture]:
    picture = Picture(palette)
    places = [90, 310, 530, 750]
    bottom = 80 + 40 * len(MESSAGES)
    for place, name in zip(places, LANES, strict=True):
        fill = palette.kernel if name == "kernel" else palette.private
        picture.box(place - 70, 10, 140, 32, name, "", fill)
        picture.parts.append(
            f"<line x1='{place}' y1='42' x2='{place}' y2='{bottom}' stroke='{palette.line}'"
            " stroke-dasharray='3 4'/>"
        )
    for number, (start, end, text) in enumerate(MESSAGES):
        y = 82 + 40 * number
        if start == end:
            picture.words(places[start] + 8, y, text, size=11, faint=True, anchor="start")
            picture.parts.append(
                f"<circle cx='{places[start]}' cy='{y - 4}' r='4' fill='{palette.faint}'/>"
            )
        else:
            aside = 6 if end > start else -6
            picture.arrow(places[start] + aside, y, places[end] - aside, y, text)
    picture.height = bottom + 10
    return "One echo: receiving a message and sending the answer", picture


PICTURES = {"packages": packages, "turn": turn, "echo": echo}


def drawn() -> dict[str, str]:
    """Return the text of each file by its name."""
    files = {}
    for name, draw in PICTURES.items():
        for kind, palette in PALETTES.items():
            title, picture = draw(palette)
            files[f"{name}-{kind}.svg"] = picture.svg(title)
    return files


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawn().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
