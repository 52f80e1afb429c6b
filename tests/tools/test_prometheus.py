"""The metrics of a loop in Prometheus' text format."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import platform
import re
import time
from typing import NamedTuple

import pytest
from support.protocols import Collector, Echo
from support.roles import link, wait_until

import uringloop
from uringloop import prometheus
from uringloop._turn.stats import histograms_of, turn_of
from uringloop._turn.timing import BOUNDS

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:{{(?P<labels>{LABEL}(?:,{LABEL})*)}})? (?P<value>\S+)")
# The label of all samples, unless the program passes other labels.
PID = f'pid="{os.getpid()}"'
HISTOGRAMS = ("completions_per_turn", "timer_lag_seconds", "turn_seconds", "callback_seconds")


class Family(NamedTuple):
    """A metric: its type, and its samples by suffix and labels, without the label `pid`."""

    kind: str
    samples: dict[str, float]


def parsed(text: str, label: str = PID) -> dict[str, Family]:
    """Parse the exposition format as strictly as its specification allows, without timestamps."""
    assert text.endswith("\n")
    lines = iter(text.removesuffix("\n").split("\n"))
    families: dict[str, Family] = {}
    name, family = "", Family("", {})
    for line in lines:
        if line.startswith("#"):
            about = re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line)
            assert about, line
            kind = re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", next(lines))
            assert kind, line
            name = kind[1]
            assert about[1] == name
            assert name not in families
            family = families[name] = Family(kind[2], {})
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        assert sample["name"] in [name + suffix for suffix in suffixes], line
        labels = re.findall(LABEL, sample["labels"] or "")
        if label:
            labels.remove(label)
        key = ",".join([sample["name"].removeprefix(name), *labels])
        assert key not in family.samples, line
        family.samples[key] = float(sample["value"])
    return families


def buckets_of(family: Family) -> dict[float, float]:
    """Return the cumulative counts of a histogram by their bounds."""
    return {
        float(key.removeprefix('_bucket,le="').removesuffix('"')): value
        for key, value in family.samples.items()
        if key.startswith("_bucket")
    }


def metrics(loop: uringloop.Loop) -> dict[str, Family]:
    return parsed(prometheus.text(loop))


@pytest.fixture
def worked(loop: uringloop.Loop) -> uringloop.Loop:
    """A loop that was scraped once and has worked since then."""

    async def work() -> None:
        protocol = Collector(loop)
        async with link(loop, protocol, Echo()) as (transport, _):
            transport.write(bytes(1_000_000))
            await protocol.received(1_000_000)
        await asyncio.sleep(0.001)

    prometheus.text(loop)
    loop.call_later(3600, print)
    loop.run_until_complete(work())
    return loop


def test_every_figure_of_stats_is_a_metric(worked: uringloop.Loop) -> None:
    families = metrics(worked)
    stats = worked.stats()
    for name, value in stats.items():
        if name in ("batches", "batched"):
            continue
        (family,) = [
            families[f"uringloop_{name}{suffix}"]
            for suffix in ("", "_total", "_seconds", "_seconds_total")
            if f"uringloop_{name}{suffix}" in families
        ]
        assert family.samples == {"": value}
    # `batches` and `batched` are one histogram; there are three more histograms, and `info`.
    assert len(families) == len(stats) - 1 + 3 + 1
    assert families["uringloop_received_bytes_total"].samples[""] == 2_000_000
    assert families["uringloop_timers_pending"].samples[""] == 1


def test_names_follow_the_conventions_for_counters_and_units(worked: uringloop.Loop) -> None:
    families = metrics(worked)
    counting = {name for name, family in families.items() if family.kind == "counter"}
    assert counting == {name for name in families if name.endswith("_total")}
    gauges = {name for name, family in families.items() if family.kind == "gauge"}
    present = ("operations", "buffers_out", "callbacks_ready", "timers_pending")
    of_executor = ("threads", "queue", "wait_seconds")
    assert gauges == {
        *(f"uringloop_{name}" for name in present),
        *(f"uringloop_executor_{name}" for name in of_executor),
        "uringloop_lag_seconds",
        "uringloop_lag_max_seconds",
        "uringloop_info",
    }
    histograms = {name for name, family in families.items() if family.kind == "histogram"}
    assert histograms == {f"uringloop_{name}" for name in HISTOGRAMS}
    assert prometheus.CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_the_ring_and_the_versions_are_labels_of_a_metric(worked: uringloop.Loop) -> None:
    (labels, value), *others = metrics(worked)["uringloop_info"].samples.items()
    assert (value, others) == (1, [])
    assert labels == (
        f',backend="{worked.backend}",version="{uringloop.__version__}"'
        f',python="{platform.python_version()}"'
    )


def test_batches_are_a_cumulative_histogram(worked: uringloop.Loop) -> None:
    family = metrics(worked)["uringloop_completions_per_turn"]
    bounds, counts = zip(*buckets_of(family).items(), strict=True)
    # A batch that counts under 4 has 4 to 7 completions.
    assert bounds == (1, 3, 7, 15, 31, 63, 127, math.inf)
    assert list(counts) == sorted(counts)
    stats = worked.stats()
    assert family.samples["_count"] == counts[-1] == sum(stats["batches"].values()) > 0
    each = [n - below for n, below in zip(counts, [0, *counts], strict=False)]
    assert each == list(stats["batches"].values())
    assert sum(size * n for size, n in stats["batches"].items()) <= family.samples["_sum"]
    assert family.samples["_sum"] == stats["batched"]


# ── durations ────────────────────────────────────────────────────────────────────────────────


def test_durations_are_cumulative_histograms_in_seconds(worked: uringloop.Loop) -> None:
    families = metrics(worked)
    for key, (name, _) in prometheus.HISTOGRAMS.items():
        family = families[f"uringloop_{name}_seconds"]
        bounds, counts = zip(*buckets_of(family).items(), strict=True)
        assert bounds == (*BOUNDS, math.inf)
        assert list(counts) == sorted(counts)
        assert family.samples["_count"] == counts[-1] > 0
        each, total = histograms_of(worked)[key]
        assert counts[-1] == sum(each)
        assert family.samples["_sum"] == pytest.approx(total)
        assert total < BOUNDS[-1]


def test_long_turn_and_callback_are_in_the_right_buckets(
    loop: uringloop.Loop,
) -> None:
    prometheus.text(loop)
    before = metrics(loop)
    loop.call_soon(time.sleep, 0.11)
    loop.call_soon(loop.stop)
    loop.run_forever()
    after = metrics(loop)
    for name in ("turn", "callback"):
        first, last = (
            buckets_of(families[f"uringloop_{name}_seconds"]) for families in (before, after)
        )
        # Between 100 and 250 ms, unless the machine is very busy.
        assert last[0.1] - first[0.1] == last[math.inf] - first[math.inf] - 1
    assert after["uringloop_stalls_total"].samples[""] == 1
    assert before["uringloop_stalls_total"].samples[""] == 0
    # Two callbacks, one turn.
    counts = {
        name: after[f"uringloop_{name}_seconds"].samples["_count"] for name in ("turn", "callback")
    }
    assert counts == {"turn": 1, "callback": 2}


def test_turns_are_timed_from_the_first_call_on(loop: uringloop.Loop) -> None:
    loop.run_until_complete(asyncio.sleep(0))
    assert sum(histograms_of(loop)["turn"][0]) == 0
    prometheus.text(loop)
    loop.run_until_complete(asyncio.sleep(0))
    assert sum(histograms_of(loop)["turn"][0]) > 0


def test_sleep_is_not_part_of_the_duration_of_turns(loop: uringloop.Loop) -> None:
    prometheus.text(loop)
    loop.run_until_complete(asyncio.sleep(0.2))
    counts, total = histograms_of(loop)["turn"]
    assert sum(counts) > 1
    assert total < 0.2


def test_running_callback_counts_as_lag(loop: uringloop.Loop) -> None:
    prometheus.text(loop)
    seen: list[float] = []

    def block() -> None:
        wait_until(lambda: turn_of(loop)[2] > 0.02)
        seen.append(metrics(loop)["uringloop_lag_seconds"].samples[""])

    loop.call_soon(block)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen[0] > 0.02
    assert metrics(loop)["uringloop_lag_seconds"].samples[""] == 0


# ── names ────────────────────────────────────────────────────────────────────────────────────


def test_prefix_stands_before_every_name(worked: uringloop.Loop) -> None:
    own = parsed(prometheus.text(worked, prefix="my_server"))
    usual = metrics(worked)
    assert own == {
        name.replace("uringloop_", "my_server_", 1): family for name, family in usual.items()
    }
    assert all(name.startswith("my_server_") for name in own)


def test_labels_of_the_caller_replace_the_default(worked: uringloop.Loop) -> None:
    usual = metrics(worked)
    assert parsed(prometheus.text(worked, labels={}), "") == usual
    text = prometheus.text(worked, labels={"worker": 'a "b"\\\nc'})
    assert PID not in text
    assert parsed(text, r'worker="a \"b\"\\\nc"') == usual


def test_new_loop_has_all_figures_at_zero(loop: uringloop.Loop) -> None:
    for name, family in metrics(loop).items():
        assert set(family.samples.values()) == ({1} if name == "uringloop_info" else {0})


def test_closed_loop_has_metrics(worked: uringloop.Loop) -> None:
    with contextlib.closing(worked):
        pass
    assert prometheus.text(worked) == prometheus.text(worked)
