"""The metrics that the package has, for tests that compare them with pages and earlier versions."""

from __future__ import annotations

import re
from typing import Any

import uringloop
from support.sources import PACKAGE
from uringloop import prometheus
from uringloop.monitor import otel


def kinds_of_prometheus() -> dict[str, str]:
    """Return the type of each metric that a scrape has."""
    loop = uringloop.Loop(warn_fallback=False)
    try:
        text = prometheus.text(loop)
    finally:
        loop.close()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    # Health adds metrics of its own to those of the loops.
    health = (PACKAGE / "monitor" / "health_pages.py").read_text()
    return {**kinds, **dict.fromkeys(re.findall(r'"(uringloop_\w+)"', health), "gauge")}


class Meter:
    """Remembers the instruments that are made, with their kinds and units."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, str]] = {}

    def create_observable_counter(self, name: str, _: Any, unit: str, __: str) -> None:
        self.made[name] = ("counter", unit)

    def create_observable_gauge(self, name: str, _: Any, unit: str, __: str) -> None:
        self.made[name] = ("gauge", unit)


def instruments() -> dict[str, tuple[str, str]]:
    """Return the kind and the unit of each instrument of OpenTelemetry."""
    meter = Meter()

    class Observer(otel.Observer):
        def callback(self, values: otel.Values) -> Any:
            return values

    otel._register(meter, Observer())
    return meter.made
