"""The options of a loop: one table of the arguments of Loop() and of the environment variables.

The same rules apply to all of them. An argument overrides a variable. A variable is read when a
loop is created, except for one that is read when uringloop is imported; it counts as not set if it
is empty. A wrong value raises ValueError, which names the argument or the variable; an argument
of a wrong type raises TypeError.

BaseLoop takes its values from here, the doctor shows the variables that are set, and
docs/reference/configuration.md has the table for users. Any thread may call this.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping

from uringloop._cpython import stdlib
from uringloop._ring import backends

# One second, in microseconds: a longer wait is a mistake in the unit.
WAIT_MAX_US = 1_000_000
# One minute, in milliseconds: a longer idle time of the kernel's thread, and a longer stall, is a
# mistake in the unit.
IDLE_MAX_MS = 60_000
# What a variable says to switch something on or off, in any case.
ON = ("1", "yes", "true", "on")
OFF = ("0", "no", "false", "off")

# Who obeys a variable. Each new loop also checks the variables that only one loop obeys.
EACH_LOOP = "each new loop"
FIRST_LOOP = "the first loop that finds it set"
IMPORT = "`import uringloop`"
# On which ring an option has an effect, and with which kernel if the ring alone does not decide.
BOTH = "both"
IO_URING_ONLY = "io_uring"
IO_URING_NEWER = "both; io_uring from Linux 6.12"


def says_yes(name: str, text: str) -> bool:
    """Return whether *text*, the value of *name*, means yes. Raises ValueError for other words."""
    word = text.lower()
    if word not in (*ON, *OFF):
        raise ValueError(f"{name} must be one of {', '.join((*ON, *OFF))}, not {text!r}")
    return word in ON


def out_of_range(name: str, most: int, given: object) -> ValueError:
    """Return the error for what was *given* where a number from 0 to *most* is wanted."""
    return ValueError(f"{name} must be between 0 and {most:,}, not {given!r}")


class Option:
    """An option: its argument and its variable, either of which may be "", and its description.

    *read* says what reads the argument and the variable, and *ring* where the option has an effect.
    A subclass has the method `value`, which takes the argument if there is one.
    """

    def __init__(
        self,
        argument: str,
        variable: str,
        *,
        values: str,
        default: str,
        effect: str,
        read: str = EACH_LOOP,
        ring: str = BOTH,
    ) -> None:
        self.argument = argument
        self.variable = variable
        self.values = values
        self.default = default
        self.effect = effect
        self.read = read
        self.ring = ring

    def text(self, variables: Mapping[str, str] | None = None) -> str:
        """Return the text of the variable, "" if it is not set; by default that of this process."""
        if variables is None:
            return stdlib.variable(self.variable)
        return variables.get(self.variable, "").strip()


class Number(Option):
    """A number from 0, the default, to *most*."""

    def __init__(
        self,
        argument: str,
        variable: str = "",
        *,
        most: int,
        effect: str,
        ring: str = BOTH,
    ) -> None:
        super().__init__(
            argument,
            variable,
            values=f"0 to {most:,}",
            default="0",
            effect=effect,
            ring=ring,
        )
        self.most = most

    def value(self, argument: int | None) -> int:
        if argument is None and self.variable:
            text = stdlib.variable(self.variable)
            if not text:
                return 0
            if not text.isdecimal() or int(text) > self.most:
                raise out_of_range(self.variable, self.most, text)
            return int(text)
        # Without a variable, None raises TypeError, like any other object that is not an integer.
        number = operator.index(argument)  # type: ignore[arg-type]
        if not 0 <= number <= self.most:
            raise out_of_range(self.argument, self.most, number)
        return number


class Processor(Option):
    """The number of a processor of this machine; -1 is any."""

    def value(self, argument: int | None) -> int:
        if argument is None:
            return -1
        last = os.sysconf("SC_NPROCESSORS_CONF") - 1
        number = operator.index(argument)
        if not 0 <= number <= last:
            raise out_of_range(self.argument, last, number)
        return number


class RingOption(Option):
    """The ring of a loop."""

    def value(self, argument: str | None) -> backends.Choice:
        wanted = (stdlib.variable(self.variable) or backends.AUTO) if argument is None else argument
        for choice in backends.BACKENDS:
            if wanted == choice:
                return choice
        name = self.variable if argument is None else self.argument
        raise ValueError(f"{name}={wanted!r} is none of {self.values}")

    def reason(self, argument: str | None) -> str:
        """Return why a loop is on the ring that was chosen."""
        return f"asked for by {self.variable if argument is None else f'{self.argument}='}"


class Switch(Option):
    """Yes or no; in a variable a word of ON or OFF."""

    def __init__(
        self,
        argument: str,
        variable: str,
        *,
        default: bool,
        effect: str,
        read: str = EACH_LOOP,
        ring: str = BOTH,
    ) -> None:
        super().__init__(
            argument,
            variable,
            values="yes, no",
            default="yes" if default else "no",
            effect=effect,
            read=read,
            ring=ring,
        )
        self.is_on = default

    def value(self, argument: bool | None = None) -> bool:
        if argument is not None:
            # Any other object would count as yes or no by its truth value: the word "no" as yes.
            if not isinstance(argument, bool):
                raise TypeError(f"{self.argument} must be True or False, not {argument!r}")
            return argument
        text = stdlib.variable(self.variable)
        return says_yes(self.variable, text) if text else self.is_on


class PlaceOption(Option):
    """A place to write to or to be found at; "1" is the usual place, if any, and "" is none.

    A place contains *mark*, so that a wrong word is not taken for the name of a file.
    """

    def __init__(
        self,
        variable: str,
        *,
        mark: str = "/",
        values: str = "0, 1 or a path with a slash",
        effect: str,
        read: str = EACH_LOOP,
    ) -> None:
        super().__init__("", variable, values=values, default="0", effect=effect, read=read)
        self.mark = mark

    def value(self, variables: Mapping[str, str] | None = None) -> str:
        text = self.text(variables)
        if not text or self.mark in text:
            return text
        try:
            return "1" if says_yes(self.variable, text) else ""
        except ValueError:
            raise ValueError(f"{self.variable} must be {self.values}, not {text!r}") from None


# ── the table ────────────────────────────────────────────────────────────────────────────────

BACKEND = RingOption(
    "backend",
    "URINGLOOP_BACKEND",
    values=", ".join(backends.BACKENDS),
    default=backends.AUTO,
    effect="the ring; auto is io_uring, or the software ring if io_uring is refused",
)
WARN_FALLBACK = Switch(
    "warn_fallback",
    "URINGLOOP_WARN_FALLBACK",
    default=True,
    effect="logs a warning if auto becomes the software ring",
)
BATCH_WAIT_US = Number(
    "batch_wait_us",
    most=WAIT_MAX_US,
    effect="lets completions gather for this many microseconds while the loop sleeps",
    ring=IO_URING_NEWER,
)
BUSY_POLL_US = Number(
    "busy_poll_us",
    most=WAIT_MAX_US,
    effect="polls for work for this many microseconds before each sleep",
)
SQPOLL = Number(
    "sqpoll",
    most=IDLE_MAX_MS,
    effect="lets a kernel thread send and receive, and sleep after this many idle milliseconds",
    ring=IO_URING_ONLY,
)
SQPOLL_CPU = Processor(
    "sqpoll_cpu",
    "",
    values="the number of a processor",
    default="any",
    effect="the processor of the kernel thread",
    ring=IO_URING_ONLY,
)
RING_FILES = Switch(
    "ring_files",
    "URINGLOOP_RING_FILES",
    default=True,
    effect="no: threads perform operations on files, and the kernel refuses them to the ring",
    ring=IO_URING_ONLY,
)
NESTABLE = Switch(
    "nestable",
    "URINGLOOP_NESTABLE",
    default=False,
    effect="allows the loop to be run again while it runs",
)
STALL_MS = Number(
    "stall_ms",
    "URINGLOOP_STALL_MS",
    most=IDLE_MAX_MS,
    effect="logs what has blocked the loop for this many milliseconds",
)
MONITOR = PlaceOption(
    "URINGLOOP_MONITOR",
    effect="opens a socket, at that path if there is one, on which "
    "python -m uringloop.top watches the process",
    read=FIRST_LOOP,
)
HEALTH = PlaceOption(
    "URINGLOOP_HEALTH",
    mark=":",
    values="0 or an address",
    effect="answers over HTTP at that address whether the loops are alive and ready",
    read=FIRST_LOOP,
)
TRACE = PlaceOption(
    "URINGLOOP_TRACE",
    effect="writes each operation to the file at that path; 1 is standard error",
)
STREAMS = Switch(
    "",
    "URINGLOOP_STREAMS",
    default=False,
    effect="puts compiled streams in asyncio's place when uringloop is imported",
    read=IMPORT,
)
# Read in `_ring/backends.py`, which knows the names.
DISABLE = Option(
    "",
    backends.DISABLE_VARIABLE,
    values="names",
    default="none",
    effect="disables the named features of the ring and replacements of standard library code",
)

# In the order of docs/reference/configuration.md.
TABLE: tuple[Option, ...] = (
    BACKEND,
    WARN_FALLBACK,
    BATCH_WAIT_US,
    BUSY_POLL_US,
    SQPOLL,
    SQPOLL_CPU,
    RING_FILES,
    NESTABLE,
    STALL_MS,
    MONITOR,
    HEALTH,
    TRACE,
    STREAMS,
    DISABLE,
)


def check() -> None:
    """Read the variables that every loop reads. Raises ValueError for a wrong one."""
    for option in TABLE:
        if not option.variable or option.read == IMPORT:
            continue
        if isinstance(option, RingOption | Number | Switch | PlaceOption):
            option.value(None)
    backends.disable_features()
