"""The command line: its options, their checks, and the exit status.

The status is 0 after a clean run, 1 if a server or an echo failed, 2 if the options are invalid or
this machine cannot run what they ask for, 130 after Ctrl-C and 143 after SIGTERM. No process is
left behind.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import environment, loops, placement, process
from .echo import SERVERS
from .settings import (
    DEFAULT_CLIENTS,
    DEFAULT_DURATION,
    DEFAULT_LOOPS,
    DEFAULT_ROUNDS,
    DEFAULT_SIZES,
    FULL_CLIENTS,
    FULL_SIZES,
    BenchError,
    Settings,
)

# The limit of one message: a SEND submission carries its length in 32 bits.
_SIZE_MAX = 1 << 30

# The schedule itself costs nanoseconds per request; no server reaches this rate.
_RATE_MAX = 10_000_000

# Seconds that a server and a load generator take to start and to end.
START_S = 0.6

# matplotlib writes more formats; these are the ones that documents can include.
PICTURES = (".png", ".svg")

# The last paragraph of --help.
_EPILOG = (
    "Known loops: " + ", ".join(loops.KNOWN) + ". Any other loop is named as module:factory."
    " The row of a loop that is not installed says so."
)


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise BenchError(message)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None


def names(text: str) -> tuple[str, ...]:
    """Return the parts of a list, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m uringloop.bench",
        description="Compare asyncio event loops with one echo server. Every byte is checked.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--mode", choices=tuple(SERVERS), default="protocol", help="API of the server (protocol)")
    add("--sizes", type=_numbers, metavar="N,...", help="bytes per message (1000)")
    add("--clients", type=_numbers, metavar="N,...", help="simultaneous connections (1,50,300)")
    full = f"{len(FULL_SIZES)} sizes, each with {len(FULL_CLIENTS)} numbers of clients"
    add("--full", action="store_true", help=full)
    add(
        "--duration",
        type=float,
        default=DEFAULT_DURATION,
        metavar="SECONDS",
        help=f"length of each measurement ({DEFAULT_DURATION:g})",
    )
    add(
        "--rounds",
        type=int,
        default=DEFAULT_ROUNDS,
        metavar="N",
        help=f"measurements for each figure, at least 3 ({DEFAULT_ROUNDS})",
    )
    add(
        "--loops",
        type=names,
        default=DEFAULT_LOOPS,
        metavar="NAME,...",
        help=f"loops to compare ({','.join(DEFAULT_LOOPS)})",
    )
    add("--unix", action="store_true", help="use UNIX sockets instead of TCP")
    add("--port", type=int, default=0, help="TCP port of the server (any free port)")
    add(
        "--rate",
        type=float,
        default=0.0,
        metavar="R",
        help="open loop: R requests/s in total; latencies count from the scheduled time",
    )
    add("--same-core", action="store_true", help="run server and load generator on one core")
    add("--json", type=Path, metavar="FILE", help="write the report as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    add("--report", type=Path, metavar="FILE", help="write the report as HTML, with charts")
    add("--plot", type=Path, metavar="FILE", help="write the charts as PNG or SVG")
    return parser


def refuse(condition: bool, message: str) -> None:
    """Raise BenchError with *message* if *condition* is true."""
    if condition:
        raise BenchError(message)


def _settings(arguments: argparse.Namespace) -> Settings:
    """Check what argparse cannot check, and return the settings."""
    full: bool = arguments.full
    refuse(
        full and (arguments.sizes is not None or arguments.clients is not None),
        "--full sets --sizes and --clients itself",
    )
    settings = Settings(
        mode=arguments.mode,
        sizes=arguments.sizes or (FULL_SIZES if full else DEFAULT_SIZES),
        clients=arguments.clients or (FULL_CLIENTS if full else DEFAULT_CLIENTS),
        duration=arguments.duration,
        rounds=arguments.rounds,
        loops=arguments.loops,
        unix=arguments.unix,
        port=arguments.port,
        rate=arguments.rate,
        same_core=arguments.same_core,
    )
    for size in settings.sizes:
        refuse(not 1 <= size <= _SIZE_MAX, f"--sizes: {size} is not between 1 and {_SIZE_MAX}")
    for clients in settings.clients:
        refuse(clients < 1, f"--clients: {clients} is not a number of connections")
    refuse(not 0 < settings.duration < 3600, "--duration: not between 0 and 3600 seconds")
    refuse(settings.rounds < 3, "--rounds: fewer than 3 show no spread")
    refuse(not 0 <= settings.port < 65536, f"--port: {settings.port} is not a port")
    refuse(settings.unix and settings.port != 0, "--port: a UNIX socket has none")
    refuse(not 0 <= settings.rate <= _RATE_MAX, f"--rate: not between 0 and {_RATE_MAX:,}")
    for name in settings.loops:
        loops.check(name)
    return settings


def _check_machine(settings: Settings) -> None:
    refuse(sys.platform != "linux", "the load generator needs Linux")
    clients = max(settings.clients)
    refuse(
        clients > (most := process.connections_max()),
        f"{clients} clients need as many open files, and {most} are left for them: see ulimit -n",
    )


def check_file(path: Path | None) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as exc:
        raise BenchError(f"{path}: {exc.strerror}") from None


def check_picture(path: Path | None) -> None:
    """Refuse an unknown format, and any picture if matplotlib is not installed."""
    if path is not None:
        kinds = " nor ".join(PICTURES)
        refuse(path.suffix not in PICTURES, f"--plot: {path} ends in neither {kinds}")
        check_matplotlib()


def check_matplotlib() -> None:
    """Raise BenchError if matplotlib is not installed."""
    missing = importlib.util.find_spec("matplotlib") is None
    refuse(missing, "pictures need matplotlib: pip install matplotlib")


def _check_files(arguments: argparse.Namespace) -> None:
    check_picture(arguments.plot)
    if arguments.report is not None:
        check_matplotlib()
    for path in (arguments.json, arguments.markdown, arguments.report, arguments.plot):
        check_file(path)


def _plan(settings: Settings, steps: int) -> str:
    """Return one line with the number of measurements and the time that they take."""
    each = settings.warm_up + settings.duration + settings.counting + START_S
    seconds = steps * each
    about = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
    return (
        f"{steps} measurements, each with a server and a load generator of its own: about {about}"
    )


def _run(arguments: argparse.Namespace, command: str) -> int:
    settings = _settings(arguments)
    _check_files(arguments)
    _check_machine(settings)
    try:
        # Imported late, because these need the compiled load generator.
        from . import charts, page, report, runner, summary, terminal
    except ImportError as exc:
        raise BenchError(f"the load generator is not built: {exc}") from None
    where = placement.choose(settings.same_core)
    with (
        tempfile.TemporaryDirectory(prefix="uringloop-bench-") as name,
        placement.awake() as idle,
    ):
        directory = Path(name)
        names = list(settings.loops)
        facts = environment.describe(names, where.note, idle)
        steps = len(names) * len(settings.loads) * settings.rounds
        head = [report.title(names), report.sentence(report.conditions(settings))]
        print("\n".join([*head, _plan(settings, steps), ""]), flush=True)
        with terminal.progress(steps) as step:
            measured = runner.Runner(settings, where, directory)
            rows = measured.run(lambda row, cell: step(terminal.describe(row, cell)))
    results = summary.compare(rows)
    notes = summary.notes(results, settings.rate)
    terminal.print_table(results)
    print("\n".join(["", *notes, "", *report.environment_lines(facts), ""]))
    if arguments.json is not None:
        arguments.json.write_text(report.to_json(settings, facts, results, notes))
    if arguments.markdown is not None:
        arguments.markdown.write_text(report.markdown(settings, facts, results, notes))
    if arguments.report is not None:
        arguments.report.write_text(page.page(settings, facts, results, notes, command))
    if arguments.plot is not None:
        charts.draw(settings, results, arguments.plot)
    for path in (arguments.json, arguments.markdown, arguments.report, arguments.plot):
        if path is not None:
            print(f"Written to {path.resolve()}")
    print(summary.verdict(results, settings.rate), flush=True)
    failed = [one for one in results if one.cell.status == "failed"]
    if failed:
        row, cell = failed[0].row, failed[0].cell
        print(f"bench: {cell.loop}, {row.name} failed: {cell.note}", file=sys.stderr)
    return 1 if failed else 0


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    # Unwinds the stack like Ctrl-C, so that the children are stopped.
    raise SystemExit(128 + signum)


def guarded(program: str, run: Callable[[], int]) -> int:
    """Run a command and return its exit status; an error is printed as one line."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return run()
    except BenchError as exc:
        print(f"{program}: {exc}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the report has gone: flushing the buffer at exit must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as exc:
        # Any other error of the system: a refused policy or process, a full disk.
        print(f"{program}: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = _parser()
    typed = sys.argv[1:] if argv is None else argv
    command = shlex.join([*parser.prog.split(), *typed])
    return guarded("bench", lambda: _run(parser.parse_args(typed), command))
