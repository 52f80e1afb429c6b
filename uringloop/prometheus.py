"""The figures of `loop.stats()`, with histograms, in Prometheus' exposition format 0.0.4."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping

from uringloop._loop.base_loop import BaseLoop
from uringloop._loop.stats import COUNTERS, GAUGES, TIMES
from uringloop._turn.stats import histograms_of, keep_histograms
from uringloop._turn.timing import BOUNDS

__all__ = ["CONTENT_TYPE", "merged", "text"]

INFO = "The ring that the loop is on, and the versions of uringloop and Python."
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Keyed like the result of histograms_of().
HISTOGRAMS = {
    "lag": ("timer_lag", "Lateness of the first due timer of each turn."),
    "turn": ("turn", "Duration of turns without the sleep."),
    "callback": ("callback", "Duration of callbacks and steps of tasks."),
}


def text(loop: BaseLoop, prefix: str = "uringloop", labels: Mapping[str, str] | None = None) -> str:
    """Return the metrics of *loop*, with names that begin with *prefix*. Any thread may call it.

    Each sample has the *labels*, by default `pid` with the process ID, because any of the workers
    that share a port may answer a scrape. From the first call for a loop on, its turns and
    callbacks are timed.
    """
    keep_histograms(loop)
    chosen = {"pid": str(os.getpid())} if labels is None else labels
    return "\n".join(_lines(loop, prefix, chosen)) + "\n"


def merged(texts: Iterable[str]) -> str:
    """Return one text of several loops' or processes', in which each metric stands once.

    The samples of different texts must differ in a label.
    """
    heads: dict[str, str] = {}
    samples: dict[str, str] = {}
    for one in texts:
        # No other line begins with this: newlines in labels are escaped.
        for family in f"\n{one}".split("\n# HELP ")[1:]:
            parts = family.rstrip("\n").split("\n", 2)
            # The end of a text may be missing.
            if len(parts) == 3:
                about, kind, found = parts
                name = about.partition(" ")[0]
                # Another version may describe it otherwise.
                heads.setdefault(name, f"# HELP {about}\n{kind}\n")
                samples[name] = samples.get(name, "") + found + "\n"
    return "".join(head + samples[name] for name, head in heads.items())


def gauge(metric: str, help_text: str, values: Mapping[int, float]) -> str:
    """Return the text of a gauge with a value for each process; empty if there is none."""
    lines = [f"{metric}{_labels({'pid': str(pid)})} {value}" for pid, value in values.items()]
    return "\n".join([*_head(metric, help_text, "gauge"), *lines, ""]) if lines else ""


def info_of(loop: BaseLoop) -> dict[str, str]:
    """Return the labels of `uringloop_info`."""
    return {
        "backend": loop.backend,
        # Do not import it: only the package's programs may import the package itself.
        "version": sys.modules["uringloop"].__version__,
        "python": sys.version.split()[0],
    }


def _lines(loop: BaseLoop, prefix: str, labels: Mapping[str, str]) -> Iterator[str]:
    # A program may have overridden the method.
    stats = BaseLoop.stats(loop)
    common = _labels(labels)
    yield from _head(f"{prefix}_info", INFO, "gauge")
    yield f"{prefix}_info{_labels({**labels, **info_of(loop)})} 1"
    for name, help_text in COUNTERS.items():
        metric = f"{prefix}_{name}{_unit(name)}_total"
        yield from _head(metric, help_text, "counter")
        yield f"{metric}{common} {stats[name]}"  # type: ignore[literal-required]
    for name, help_text in GAUGES.items():
        metric = f"{prefix}_{name}{_unit(name)}"
        yield from _head(metric, help_text, "gauge")
        yield f"{metric}{common} {stats[name]}"  # type: ignore[literal-required]
    # stats() counts a batch under the largest power of two that it reaches: 4 to 7 under 4.
    *sizes, _ = stats["batches"]
    bounds = [2 * size - 1 for size in sizes]
    metric = f"{prefix}_completions_per_turn"
    yield from _head(metric, "Completions dispatched in a turn that had any.", "histogram")
    yield from _histogram(metric, bounds, stats["batches"].values(), stats["batched"], labels)
    for key, (counts, total) in histograms_of(loop).items():
        name, help_text = HISTOGRAMS[key]
        metric = f"{prefix}_{name}_seconds"
        yield from _head(metric, help_text, "histogram")
        yield from _histogram(metric, BOUNDS, counts, total, labels)


def _unit(name: str) -> str:
    return "_seconds" if name in TIMES else ""


def _head(metric: str, help_text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {metric} {help_text}"
    yield f"# TYPE {metric} {kind}"


def _histogram(
    metric: str,
    bounds: Iterable[float],
    counts: Iterable[int],
    total: float,
    labels: Mapping[str, str],
) -> Iterator[str]:
    """Yield the samples of a histogram; buckets are cumulative."""
    below = 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        below += count
        yield f"{metric}_bucket{_labels({**labels, 'le': bound})} {below}"
    common = _labels(labels)
    yield f"{metric}_sum{common} {total}"
    yield f"{metric}_count{common} {below}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
