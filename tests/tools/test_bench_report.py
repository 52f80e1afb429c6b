"""The benchmark's report with pictures: the page of --report, and the picture of --plot."""

from __future__ import annotations

import dataclasses
import html.parser
import importlib.util
import itertools
import os
import random
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from uringloop.bench import charts, cli, page, report, summary
from uringloop.bench.client import Measurement
from uringloop.bench.loadgen import Histogram
from uringloop.bench.rows import cells_of
from uringloop.bench.runner import EchoRow
from uringloop.bench.settings import Settings

pytest.importorskip("matplotlib", reason="pip install matplotlib")

pytestmark = pytest.mark.usefixtures("restored_sigterm")

SVG = "{http://www.w3.org/2000/svg}"
# Microseconds of CPU time per request.
COSTS = {"asyncio": 40.0, "uvloop": 12.0, "uringloop": 8.0, "rloop": 0.0}
NAMES = [name for name, cost in COSTS.items() if cost]


def measurement(cost: float, clients: int, chance: random.Random) -> Measurement:
    latencies = Histogram()
    for _ in range(2_000):
        latencies.record(int(1e3 * cost * clients * chance.lognormvariate(0, 0.4)))
    requests = int(1e6 / cost * chance.uniform(0.9, 1.1))
    return Measurement(
        requests=requests,
        answers=requests,
        unanswered=0,
        elapsed_ns=10**9,
        latencies=latencies.items(),
        server_cpu_ns=int(requests * cost * 1e3),
        client_cpu_ns=10**9,
        kernel_entries=requests,
        kernel_entries_requests=requests,
        kernel_entries_refused="",
        peak_rss_bytes=(26 << 20) + clients * 10_000,
        failures={},
        failure=None,
    )


def measured(settings: Settings) -> list[summary.Result]:
    """Return the results of a run in which one loop could not be measured."""
    chance = random.Random(1)
    rows = []
    for load in settings.loads:
        row = EchoRow(str(load), load, cells=cells_of(COSTS))
        for name, cost in COSTS.items():
            if cost:
                taken = [measurement(cost, load.clients, chance) for _ in range(3)]
                row.cells[name].rounds += taken
            else:
                row.cells[name].give_up("not supported", f"{name} can <not>")
        rows.append(row)
    return summary.compare(rows)


@pytest.fixture(scope="module")
def made() -> tuple[Settings, str]:
    """Settings with several cells, and the report page of their results."""
    settings = Settings(
        sizes=(100, 1000), clients=(1, 50, 300), loops=("asyncio", "uvloop", "uringloop", "rloop")
    )
    results = measured(settings)
    facts = {
        "date": "2026-11-23 12:34 UTC",
        "kernel": "Linux 6.18",
        "cpu": "A & <B>",
        "mitigations": "meltdown",
    }
    notes = summary.notes(results, 0.0)
    return settings, page.page(settings, facts, results, notes, "python -m uringloop.bench -x '<'")


class Balanced(html.parser.HTMLParser):
    """A parser that checks that elements are closed, and collects all text."""

    EMPTY = frozenset(("meta", "link", "br", "wbr"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [link or "" for name, link in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @classmethod
    def text_of(cls, text: str) -> str:
        parser = cls()
        parser.feed(text)
        return parser.text


def pictures_in(text: str) -> list[ET.Element]:
    """Return the SVG elements of a page's panels."""
    return [
        ET.fromstring(one) for one in re.findall(r"<figure.*?>(<svg.*?</svg>)", text, re.DOTALL)
    ]


def test_page_is_well_formed_and_has_no_external_links(made: tuple[Settings, str]) -> None:
    _, text = made
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    for words in ("A & <B>", "rloop can <not>", "python -m uringloop.bench -x '<'"):
        assert words in parser.text
    assert "<script" not in text
    assert parser.links
    assert [link for link in parser.links if not link.startswith(("#", "data:"))] == []
    assert "$" not in parser.text


def test_pictures_use_the_text_colour(made: tuple[Settings, str]) -> None:
    _, text = made
    assert charts.INK not in text
    assert "currentColor" in text
    # For each size: four panels, and a latency panel for each number of clients.
    assert [one.tag for one in pictures_in(text)] == [f"{SVG}svg"] * 2 * (4 + 3)


def test_page_has_loops_date_and_result_before_the_pictures(made: tuple[Settings, str]) -> None:
    _, text = made
    assert "<title>An echo server on uringloop, asyncio and uvloop<" in text
    assert "2026-11-23 12:34 UTC" in text
    result = text.index("uringloop served ")
    # The list of mitigations is long and explains little, so it comes last.
    assert text.index("<h1>") < result < text.index("<svg") < text.index("mitigations")
    assert "µs" in text
    assert not re.search(r"\bus\b", Balanced.text_of(text))


def test_legend_stays_in_sight_and_names_every_loop(made: tuple[Settings, str]) -> None:
    _, text = made
    legend = text[text.index('<ul class="legend">') : text.index('<div class="panels">')]
    assert re.findall(r"</svg>(.*?)</li>", legend) == NAMES
    colours = re.findall(r'stroke="(#\w+)"', legend)
    assert colours == [charts.style_of(name, NAMES)["color"] for name in NAMES]
    assert re.search(r"\.legend \{[^}]*position: sticky", text)


def test_ids_in_the_page_are_unique(made: tuple[Settings, str]) -> None:
    _, text = made
    names = re.findall(r'\bid="([^"]+)"', text)
    assert names
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(names)


def test_panels_without_data_are_left_out() -> None:
    settings = Settings(sizes=(100,), clients=(1, 50), loops=("asyncio", "uringloop"))
    results = measured(settings)
    for one in results:
        # Nothing was counted, and no loop could serve 50 clients.
        cell = one.cell
        uncounted = [dataclasses.replace(each, kernel_entries=None) for each in cell.rounds]
        cell.rounds = uncounted if one.row.load.clients == 1 else []
    rows = [results[0].row, results[-1].row]
    results = summary.compare(rows)
    titles = [title for title, _ in charts.pictures(settings, results)]
    assert titles == [
        "Throughput, 100 B",
        "Server CPU, 100 B",
        "Peak memory of the server, 100 B",
        "Latency, 100 B, 1 client",
    ]
    figure = charts.figure_of(settings, results, "title")
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == titles


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (
            0.0,
            r"served 1\.\d\d times the requests per second of uvloop with 0\.67 of its CPU time "
            r"for each; served [4-6]\.\d\d times the requests per second of asyncio with 0\.20 of ",
        ),
        (
            9.0,
            r"took for each request 0\.67 of the CPU time of uvloop; "
            r"took for each request 0\.20 of the CPU time of asyncio, on",
        ),
    ],
)
def test_verdict_describes_the_ratio_in_words(rate: float, expected: str) -> None:
    settings = Settings(sizes=(100,), clients=(1, 50))
    results = measured(settings)
    verdict = summary.verdict(results, rate)
    assert re.search(expected, verdict), verdict
    assert verdict.endswith(", on average over 2 cells.")
    alone = [one for one in results if one.cell.loop == "uvloop"]
    assert summary.verdict(alone, rate) == "uringloop was not compared with another loop."


def with_rounds(rates: dict[str, list[int]], cost_ns: dict[str, list[int]]) -> list[summary.Result]:
    """Return the results of one cell, with these figures of each round."""
    settings = Settings(sizes=(100,), clients=(1,))
    (load,) = settings.loads
    row = EchoRow(str(load), load, cells=cells_of(rates))
    for name, requests in rates.items():
        for number, cost in zip(requests, cost_ns[name], strict=True):
            one = measurement(8.0, 1, random.Random(1))
            taken = dataclasses.replace(
                one, requests=number, answers=number, server_cpu_ns=number * cost
            )
            row.cells[name].rounds.append(taken)
    return summary.compare([row])


# Requests per second and CPU time of three rounds; a spread of half, and one of a tenth.
WIDE, LOW, HIGH = [500, 1000, 1500], [700, 770, 800], [1100, 1200, 1300]


@pytest.mark.parametrize(
    ("ours", "costs", "rate", "expected"),
    [
        (
            (WIDE, LOW),
            (WIDE, LOW),
            0.0,
            "The rounds overlap, so no verdict on the requests per second of uvloop and the CPU "
            "time of uvloop.",
        ),
        (
            (WIDE, LOW),
            (LOW, HIGH),
            0.0,
            "uringloop took for each request 0.64 of the CPU time of uvloop. "
            "The rounds overlap, so no verdict on the requests per second of uvloop.",
        ),
        (
            (HIGH, LOW),
            (WIDE, LOW),
            0.0,
            "uringloop served 1.56 times the requests per second of uvloop. "
            "The rounds overlap, so no verdict on the CPU time of uvloop.",
        ),
        (
            (WIDE, LOW),
            (LOW, HIGH),
            9.0,
            "uringloop took for each request 0.64 of the CPU time of uvloop.",
        ),
    ],
)
def test_there_is_no_verdict_where_the_rounds_overlap(
    ours: tuple[list[int], list[int]],
    costs: tuple[list[int], list[int]],
    rate: float,
    expected: str,
) -> None:
    names = ("uringloop", "uvloop")
    results = with_rounds(dict(zip(names, ours, strict=True)), dict(zip(names, costs, strict=True)))
    assert summary.verdict(results, rate) == expected


@pytest.mark.parametrize(
    ("names", "title"),
    [
        ([], "An echo server"),
        (["uvloop"], "An echo server on uvloop"),
        (["uvloop", "uringloop"], "An echo server on uringloop and uvloop"),
        (["asyncio", "uvloop", "uringloop"], "An echo server on uringloop, asyncio and uvloop"),
    ],
)
def test_title_names_the_loops(names: list[str], title: str) -> None:
    assert report.title(names) == title


def test_report_and_plot_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, plot = tmp_path / "report.html", tmp_path / "plot.svg"
    quick = ["--duration", "0.05", "--clients", "1,3", "--sizes", "100", "--loops", "asyncio"]
    assert cli.main([*quick, "--report", str(written), "--plot", str(plot)]) == 0
    text = written.read_text()
    assert f"uringloop.bench {' '.join(quick)} --report {written}" in text
    lines = capsys.readouterr().out.splitlines()
    # The output begins with the measurements and their duration, and ends with files and result.
    assert lines[0] == "An echo server on asyncio"
    assert re.fullmatch(r"6 measurements, .*: about \d+ s", lines[2])
    assert lines[-3:] == [
        f"Written to {written}",
        f"Written to {plot}",
        "uringloop was not compared with another loop.",
    ]
    assert ET.parse(plot).getroot().tag == f"{SVG}svg"


def test_every_panel_has_a_unit_and_every_loop_its_name(made: tuple[Settings, str]) -> None:
    settings, _ = made
    figure = charts.figure_of(settings, measured(settings), "title")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    # For each size: four panels, and a latency panel for each number of clients.
    assert len(shown) == 2 * (4 + 3)
    for axes in shown:
        assert axes.get_title()
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.has_data()
        assert [line.get_label() for line in axes.get_lines()] or axes.containers
    (legend,) = figure.legends
    # A frame would be white behind the light text of a dark page.
    assert not legend.get_frame_on()
    assert [text.get_text() for text in legend.get_texts()] == NAMES
    styles = {name: charts.style_of(name, NAMES) for name in NAMES}
    looks = {(look["color"], look["marker"]) for look in styles.values()}
    assert len(looks) == len(NAMES)


@pytest.mark.parametrize("clients", [(1,), (1, 50, 300), (1, 10, 50, 150, 300, 500, 1000)], ids=len)
def test_labels_in_the_picture_do_not_overlap(clients: tuple[int, ...]) -> None:
    settings = Settings(sizes=(1000,), clients=clients, loops=("asyncio", "uvloop", "uringloop"))
    figure = charts.figure_of(settings, measured(settings), "title")
    figure.canvas.draw()
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 4 + len(clients)
    boxes = [axes.get_tightbbox() for axes in shown]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    for number, box in enumerate(boxes):
        assert figure.bbox.padded(1).containsx(box.x0)
        assert figure.bbox.padded(1).containsx(box.x1)
        assert not [other for other in boxes[number + 1 :] if box.overlaps(other)]
    for axes in shown:
        labels = [one for one in axes.get_xticklabels() if one.get_text()]
        places = sorted((one.get_window_extent().x0, one.get_window_extent().x1) for one in labels)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(places))
        if axes.get_xlabel() == "clients":
            assert labels[-1].get_text() == f"{clients[-1]:,}"


@pytest.mark.parametrize("name", ["plot.jpg", "plot", ".png"])
def test_picture_of_unknown_format_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    assert cli.main(["--plot", str(path)]) == 2
    assert f"{path} ends in neither .png nor .svg" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("option", ["--report", "--plot"])
def test_missing_matplotlib_is_reported_before_the_measurement(
    tmp_path: Path,
    option: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = tmp_path / "picture.svg"
    assert cli.main([option, str(path)]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not path.exists()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
browser = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

# Says how many pixels of the table are cut off, and how wide the narrowest chart is.
SIZES = """<script>
const table = document.querySelector(".wide");
const widths = [...document.querySelectorAll("figure svg")].map(one => one.clientWidth);
document.body.dataset.cut = table.scrollWidth - table.clientWidth;
document.body.dataset.chart = Math.min(...widths);
</script>"""


def in_browser(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "page.html").write_text(text)
    assert CHROMIUM is not None
    return subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={folder / 'profile'}", *options),
            (folder / "page.html").as_uri(),
        ],
        # Without the library of a sanitizer, under which the browser would take minutes.
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.slow
@browser
@pytest.mark.parametrize("dark", [False, True])
def test_browser_shows_the_page_without_errors(
    made: tuple[Settings, str], tmp_path: Path, dark: bool
) -> None:
    _, text = made
    picture = tmp_path / "page.png"
    preferred = ["--blink-settings=preferredColorScheme=0"] if dark else []
    ended = in_browser(
        tmp_path, text, "--window-size=1400,3000", *preferred, f"--screenshot={picture}"
    )
    assert "CONSOLE" not in ended.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@browser
@pytest.mark.parametrize("width", [1200, 1400])
def test_no_column_is_cut_off_and_labels_can_be_read(
    made: tuple[Settings, str], tmp_path: Path, width: int
) -> None:
    _, text = made
    ended = in_browser(tmp_path, text + SIZES, f"--window-size={width},900", "--dump-dom")
    found = re.search(r'<body data-cut="(\d+)" data-chart="(\d+)"', ended.stdout)
    assert found
    cut, chart = map(int, found.groups())
    assert cut == 0
    # Their labels have 9 points at the charts' own width.
    assert chart >= 4.2 * 96
