"""python -m uringloop.top: show every second what the loops of running programs do.

A program can be watched if it was started with URINGLOOP_MONITOR=1 or has called
`uringloop.monitor.start()`. Without an argument, the table has a line for each loop of all programs
of the user. With the PID of a process whose descendants can be watched, such as a server with
workers, the table has a line for each loop of that process and its descendants. For a single
process, the table has all figures.

On a terminal, and with `rich` installed, the table is updated in place; otherwise each table is
printed below the previous one. The exit status is 0 after Ctrl-C, --once or --list; 1 if nothing
can be watched; 2 if the arguments are wrong; and 3 when all watched programs have ended.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from uringloop.monitor import client, command_line
from uringloop.monitor.client import CannotWatch, Connection, Ended, Sample
from uringloop.monitor.fleet import Fleet, Member
from uringloop.monitor.render import (
    View,
    duration,
    is_blocked,
    overview_of,
    plain_lines,
    printable,
    rich_group,
    view_of,
)

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "python -m uringloop.top"
# A monitor disconnects a client that sends no request for a minute.
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 30.0
# Time for the first answer: a thread that keeps the GIL may delay it.
FIRST_ANSWER_S = 10.0
# The width of the table where there is no terminal.
WIDTH = 120

# The exit status when the watched programs have ended.
ENDED = 3

NO_ANSWER_REASON = "a thread of the process keeps the GIL, or the process is stopped"

Show = Callable[[View], None]


# ── screens ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _plain() -> Iterator[Show]:
    def show(view: View) -> None:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        print("\n".join(plain_lines(view, width)), end="\n\n", flush=True)

    yield show


@contextmanager
def rich_screen(console: Console) -> Iterator[Show]:
    """Show each view in place of the previous one; the last view stays on the screen."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda view: live.update(rich_group(view, console.width), refresh=True)


@contextmanager
def screen() -> Iterator[Show]:
    if importlib.util.find_spec("rich") is None or not (sys.stdout and sys.stdout.isatty()):
        chosen = _plain()
    else:
        from rich.console import Console

        chosen = rich_screen(Console())
    with chosen as show:
        yield show


# ── the program ──────────────────────────────────────────────────────────────────────────────


def watch(connection: Connection, options: argparse.Namespace, show: Callable[..., None]) -> None:
    """Call *show* with each answer and its notes, once or until the program ends.

    Raises Ended when the program ends, and CannotWatch if it does not answer at first.
    """
    snapshot = connection.ask(FIRST_ANSWER_S)
    if snapshot is None:
        raise CannotWatch(f"no answer in {FIRST_ANSWER_S:.0f} s: {NO_ANSWER_REASON}")
    sample = Sample(snapshot)
    # The first answer has no rates: --once and --json skip it.
    follows = not (options.once or options.json)
    if follows:
        show(sample, [])
    while True:
        connection.sleep(options.interval)
        silent_s = 0.0
        while (snapshot := connection.ask(options.interval)) is None:
            silent_s += options.interval
            if follows:
                show(sample, [f"no answer for {duration(silent_s)}: {NO_ANSWER_REASON}"])
        sample = Sample(snapshot, sample)
        show(sample, [])
        if options.once:
            return


def watch_fleet(
    fleet: Fleet, options: argparse.Namespace, show: Callable[[list[Member]], None]
) -> None:
    """Call *show* with the processes that can be watched, once or until all have ended.

    Raises Ended when all have ended, and CannotWatch if there are none at first.
    """
    members = fleet.poll(options.interval)
    follows = not (options.once or options.json)
    if not members:
        unknown = "; ".join(fleet.others.values())
        raise CannotWatch(unknown or f"no program with a monitor found: {client.HINT}")
    if follows:
        show(members)
    while True:
        time.sleep(options.interval)
        members = fleet.poll(options.interval)
        if not members:
            raise Ended("all watched programs have ended")
        show(members)
        if options.once:
            return


def _fleet_view(members: list[Member], heading: str, others: Iterable[str]) -> View:
    samples = [(member.sample, member.silent_s) for member in members if member.sample is not None]
    loops = [loop for sample, _ in samples for loop in sample.loops]
    blocked = sum(map(is_blocked, loops))
    title = [
        f"{heading}: processes {len(members)}, loops {len(loops)}, blocked {blocked}",
    ]
    notes = [
        f"{member.connection.pid}: no answer for {duration(member.silent_s)}: {NO_ANSWER_REASON}"
        for member in members
        if member.silent_s
    ]
    notes += map(printable, others)
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    return overview_of(title, samples, width, notes)


def _fleet_json(members: list[Member]) -> None:
    for member in members:
        if member.has_new_sample and member.sample is not None:
            _json(member.sample, [])


def run_fleet(find: Callable[[], list[str]], heading: str, options: argparse.Namespace) -> None:
    with Fleet(find) as fleet:
        if options.json:
            watch_fleet(fleet, options, _fleet_json)
            return
        with screen() as show:
            watch_fleet(
                fleet,
                options,
                lambda members: show(_fleet_view(members, heading, fleet.others.values())),
            )


def _json(sample: Sample, notes: list[str]) -> None:
    loops = [{**loop["snapshot"], "rates": loop["rates"]} for loop in sample.loops]
    snapshot = {
        **sample.snapshot,
        "loops": loops,
        "seconds": sample.seconds,
        "cpu_share": sample.cpu,
    }
    print(json.dumps(snapshot), flush=True)


def print_list() -> int:
    """Print the programs that can be watched, and return the exit status."""
    rows = [
        (str(one["pid"]), str(len(one["loops"])), printable(path), printable(one["command"]))
        for path, one in client.all_snapshots()
    ]
    if not rows:
        print(f"no program with a monitor found: {client.HINT}", file=sys.stderr)
        return 1
    rows.insert(0, ("PID", "loops", "socket", "command"))
    pids, loops, paths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for pid, count, path, command in rows:
        print(f"{pid:>{pids}}  {count:>{loops}}  {path:<{paths}}  {command}")
    return 0


def interval(text: str) -> float:
    seconds = float(text)
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text} is not between {INTERVAL_MIN_S:g} and {INTERVAL_MAX_S:g}"
        )
    return seconds


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Show every second what the loops of running programs do.",
        epilog="The exit status is 0 after Ctrl-C, --once or --list; 1 if nothing can be watched; "
        "2 if the arguments are wrong; and 3 when all watched programs have ended.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="PID|SOCKET",
        help="a process to watch, with its descendants, or the socket of a monitor; "
        "by default, all programs of this user are watched",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the programs that can be watched, and exit"
    )
    parser.add_argument(
        "--interval",
        type=interval,
        default=1.0,
        metavar="SECONDS",
        help=f"time between updates, {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g}; 1 by default",
    )
    parser.add_argument("--once", action="store_true", help="show one interval, and exit")
    parser.add_argument(
        "--json", action="store_true", help="print a line of JSON for each process and interval"
    )
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    if options.list:
        return print_list()
    if options.target is None:
        run_fleet(client.all_paths, "all programs", options)
        return 0
    if options.target.isdecimal():
        pid = int(options.target)
        if list(client.existing_paths_of(client.descendants_of(pid))):
            heading = printable(f"{pid} and its descendants")
            run_fleet(lambda: client.family_paths(pid), heading, options)
            return 0
    with Connection(client.path_of(options.target)) as connection:
        if options.json:
            watch(connection, options, _json)
            return 0
        with screen() as show:
            watch(connection, options, lambda sample, notes: show(view_of(sample, notes)))
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        return command_line.run(PROGRAM, lambda: run(options))
    except KeyboardInterrupt:
        return 0
    except CannotWatch as exc:
        print(printable(str(exc)), file=sys.stderr)
        return 1
    except Ended as exc:
        print(printable(str(exc)), file=sys.stderr)
        return ENDED


if __name__ == "__main__":
    sys.exit(main())
