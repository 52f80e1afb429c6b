"""OpenTelemetry's metrics of the loops of this process.

The instruments have the names of Prometheus' metrics, with dots: an exporter to Prometheus makes
the same names of them. `uringloop.eventloop.*` follows the semantic conventions of Node's runtime,
because there are none of asyncio's. A reader's thread observes, so a blocked loop is observed, too.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from uringloop._loop.base_loop import BaseLoop
from uringloop._loop.stats import COUNTERS, GAUGES, TIMES, Stats
from uringloop._turn.stats import histograms_of, keep_histograms
from uringloop._turn.timing import BOUNDS
from uringloop.monitor.answers import named_loops
from uringloop.prometheus import HISTOGRAMS, INFO, info_of

# The names of units follow UCUM: braces hold what has no unit.
COUNT = "{count}"
UNITS = {"received_bytes": "By", "sent_bytes": "By"} | dict.fromkeys(TIMES, "s")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
# The attribute with the name of the loop, like Prometheus' label.
LOOP = "loop"


class Figures(NamedTuple):
    """One loop at one moment; times are in seconds."""

    name: str
    at: float
    info: dict[str, str]
    stats: Stats
    histograms: dict[str, tuple[list[int], float]]


# The loop now, and at the collection before.
Values = Callable[[Figures, Figures], Iterator[tuple[float, dict[str, str]]]]


class Observer:
    """What the callbacks of one provider's instruments observe.

    A collection calls each callback once, so one that is called again begins a new collection.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.collection = 0
        # Keyed by weak references, so that a loop can be freed.
        self.now: weakref.WeakKeyDictionary[BaseLoop, Figures] = weakref.WeakKeyDictionary()
        self.before: weakref.WeakKeyDictionary[BaseLoop, Figures] = weakref.WeakKeyDictionary()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.lock = threading.Lock()

    def callback(self, values: Values) -> Callable[[object], Iterator[Any]]:
        """Return the callback of an instrument that observes *values* of each loop."""
        from opentelemetry.metrics import Observation

        seen = 0

        def observe(_: object) -> Iterator[Any]:
            nonlocal seen
            with self.lock:
                if seen == self.collection:
                    self._collect()
                seen = self.collection
                pairs = [(now, self.before.get(loop, now)) for loop, now in self.now.items()]
            for now, before in pairs:
                for value, attributes in values(now, before):
                    yield Observation(value, {LOOP: now.name, **attributes})

        return observe

    def _collect(self) -> None:
        self.collection += 1
        self.before, self.now = self.now, weakref.WeakKeyDictionary()
        at = time.monotonic()
        for name, loop in named_loops():
            keep_histograms(loop)
            # A program may have overridden the method.
            self.now[loop] = Figures(
                name, at, info_of(loop), BaseLoop.stats(loop), histograms_of(loop)
            )


# ── values ───────────────────────────────────────────────────────────────────────────────────


def figure(name: str) -> Values:
    def values(now: Figures, _: Figures) -> Iterator[tuple[float, dict[str, str]]]:
        yield now.stats[name], {}  # type: ignore[literal-required]

    return values


def info(now: Figures, _: Figures) -> Iterator[tuple[float, dict[str, str]]]:
    yield 1, now.info


def utilization(now: Figures, before: Figures) -> Iterator[tuple[float, dict[str, str]]]:
    if now.at > before.at:
        worked = now.stats["busy"] - before.stats["busy"]
        yield min(1.0, worked / (now.at - before.at)), {}


def quantile(histogram: str, share: float) -> Values:
    """Return the values of a quantile of the durations since the collection before."""

    def values(now: Figures, before: Figures) -> Iterator[tuple[float, dict[str, str]]]:
        later, earlier = now.histograms[histogram][0], before.histograms[histogram][0]
        counts = [count - less for count, less in zip(later, earlier, strict=True)]
        if any(counts):
            yield quantile_of(counts, share), {}

    return values


def quantile_of(counts: list[int], share: float) -> float:
    """Return a quantile in seconds: within a bucket durations count as evenly spread."""
    wanted = share * sum(counts)
    lower = 0.0
    for upper, count in zip(BOUNDS, counts, strict=False):
        if count and wanted <= count:
            return lower + (upper - lower) * wanted / count
        wanted -= count
        lower = upper
    # Longer than the last bound.
    return lower


# ── registration ─────────────────────────────────────────────────────────────────────────────


# The providers that have the instruments: a program and a tool may both ask for them.
SERVED: weakref.WeakSet[Any] = weakref.WeakSet()
SERVED_LOCK = threading.Lock()


def opentelemetry(meter_provider: Any = None) -> None:
    """Register instruments for the figures of all loops of this process, present and future.

    *meter_provider* is a `MeterProvider`, by default the global one. A second call for the same
    provider does nothing. The page "Statistics and metrics" of the manual has the names. Raises
    ImportError if the package opentelemetry-api, which the extra `otel` installs, is missing.
    """
    from opentelemetry import metrics

    provider = meter_provider or metrics.get_meter_provider()
    with SERVED_LOCK:
        is_new = provider not in SERVED
        SERVED.add(provider)
    if is_new:
        _register(metrics.get_meter("uringloop", meter_provider=provider), Observer())


class Instrumentor:
    """What `opentelemetry-instrument` uses, by an entry point of this package."""

    def instrument(self, **options: Any) -> None:
        opentelemetry(options.get("meter_provider"))


def _register(meter: Any, observer: Observer) -> None:
    for name, about in COUNTERS.items():
        callbacks = [observer.callback(figure(name))]
        meter.create_observable_counter(
            f"uringloop.{name}", callbacks, UNITS.get(name, COUNT), about
        )
    for name, about in GAUGES.items():
        callbacks = [observer.callback(figure(name))]
        meter.create_observable_gauge(f"uringloop.{name}", callbacks, UNITS.get(name, COUNT), about)
    meter.create_observable_gauge("uringloop.info", [observer.callback(info)], "", INFO)
    meter.create_observable_gauge(
        "uringloop.eventloop.utilization",
        [observer.callback(utilization)],
        "1",
        "Share of the time in which the loop worked, since the last collection.",
    )
    for key, (name, about) in HISTOGRAMS.items():
        name = "eventloop.delay" if key == "lag" else name
        for part, share in QUANTILES.items():
            callbacks = [observer.callback(quantile(key, share))]
            meter.create_observable_gauge(
                f"uringloop.{name}.{part}",
                callbacks,
                "s",
                f"{about} This is the {part} since the last collection.",
            )
