"""python -m uringloop.top: what the loops of running programs do, once in a second.

The programs must have been started with URINGLOOP_MONITOR=1, or have called
`uringloop.monitor.start()`. Without an argument all loops of all programs of the user are shown, a
line for each; so are those of a process and its descendants, a server and its workers. One process
has a table with all figures.

On a terminal and with `rich` the table stays in its place; else each one is printed below the last.
The exit status is 0 after Ctrl-C and --once, 1 for a program that cannot be watched, 2 for wrong
arguments, and 3 when the program has ended while it was watched.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from uringloop._monitor import client, command_line
from uringloop._monitor.client import CannotWatch, Connection, Ended, Look
from uringloop._monitor.fleet import Fleet, Member
from uringloop._monitor.render import (
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
# A monitor lets go of those who do not ask for a minute.
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 30.0
# For the first answer: one thread that keeps the GIL may be in the way.
FIRST_ANSWER_S = 10.0
# Where there is no terminal to ask.
WIDTH = 120

# The exit status when the program has ended.
ENDED = 3

HELD = "something in that process keeps the GIL, and no other thread of it runs"

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
    """Show each view in the place of the last; that one stays at the end."""
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
    """Call *show* with each look and its notes: once, or until the program ends."""
    told = connection.ask(FIRST_ANSWER_S)
    if told is None:
        raise CannotWatch(f"no answer in {FIRST_ANSWER_S:.0f} s: {HELD}")
    look = Look(told)
    # What is compared with nothing has no rates.
    follows = not (options.once or options.json)
    if follows:
        show(look, [])
    while True:
        connection.rest(options.interval)
        silent_s = 0.0
        while (told := connection.ask(options.interval)) is None:
            silent_s += options.interval
            if follows:
                show(look, [f"no answer for {duration(silent_s)}: {HELD}"])
        look = Look(told, look)
        show(look, [])
        if options.once:
            return


def watch_fleet(
    fleet: Fleet, options: argparse.Namespace, show: Callable[[list[Member]], None]
) -> None:
    """Call *show* with the processes that can be watched: once, or until all have ended."""
    members = fleet.look(options.interval)
    follows = not (options.once or options.json)
    if not members:
        raise CannotWatch(f"no program that can be watched: {client.HINT}")
    if follows:
        show(members)
    while True:
        time.sleep(options.interval)
        members = fleet.look(options.interval)
        if not members:
            raise Ended("all of them have ended")
        show(members)
        if options.once:
            return


def _fleet_view(members: list[Member], heading: str) -> View:
    looks = [(member.look, member.silent_s) for member in members if member.look is not None]
    loops = [watched for look, _ in looks for watched in look.loops]
    blocked = sum(map(is_blocked, loops))
    title = [
        f"{heading}: processes {len(members)}, loops {len(loops)}, blocked {blocked}",
    ]
    notes = [
        f"{member.connection.pid}: no answer for {duration(member.silent_s)}: {HELD}"
        for member in members
        if member.silent_s
    ]
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    return overview_of(title, looks, width, notes)


def _fleet_json(members: list[Member]) -> None:
    for member in members:
        if member.is_new and member.look is not None:
            _json(member.look, [])


def run_fleet(find: Callable[[], list[str]], heading: str, options: argparse.Namespace) -> None:
    with Fleet(find) as fleet:
        if options.json:
            watch_fleet(fleet, options, _fleet_json)
            return
        with screen() as show:
            watch_fleet(fleet, options, lambda members: show(_fleet_view(members, heading)))


def _json(look: Look, notes: list[str]) -> None:
    loops = [{**watched["told"], "rates": watched["rates"]} for watched in look.loops]
    told = {**look.told, "loops": loops, "seconds": look.seconds, "cpu_share": look.cpu}
    print(json.dumps(told), flush=True)


def print_list() -> int:
    """Print the programs that can be watched, and return the exit status."""
    rows = [
        (str(told["pid"]), str(len(told["loops"])), printable(path), printable(told["command"]))
        for path, told in client.listed()
    ]
    if not rows:
        print(f"no program that can be watched: {client.HINT}", file=sys.stderr)
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
        description="Show what the loops of running programs do.",
        epilog="The exit status is 0 after Ctrl-C and --once, 1 for a program that cannot be "
        "watched, 2 for wrong arguments, 3 when the program has ended.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="PID|SOCKET",
        help="what to watch, a server with its workers; all programs of this user without it",
    )
    parser.add_argument("--list", action="store_true", help="list the programs, and end")
    parser.add_argument(
        "--interval",
        type=interval,
        default=1.0,
        metavar="SECONDS",
        help=f"between two looks, {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g}; 1 by default",
    )
    parser.add_argument("--once", action="store_true", help="show one interval, and end")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each interval")
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
            watch(connection, options, lambda look, notes: show(view_of(look, notes)))
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
