"""The pages of health over HTTP: about one process, and about all processes with its address.

The health thread calls this. A page is made from the reports of the loops, and names each process
that cannot report.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from http import HTTPStatus

from uringloop import prometheus
from uringloop.monitor import answers
from uringloop.monitor.answers import Report
from uringloop.monitor.health_settings import Limits
from uringloop.monitor.over_http import Page, Pages
from uringloop.monitor.serving import peer_of
from uringloop.monitor.siblings import Replies, Siblings

FORBIDDEN = b"HTTP/1.0 403 Forbidden\r\n\r\n"


class OwnPages(Pages):
    """The pages that a process serves to its siblings, about itself."""

    def __init__(self, limits: Limits) -> None:
        pages: dict[str, Callable[[], Page]] = {
            "/loops": lambda: Page(answers.reports_text()),
            "/metrics": lambda: Page(answers.metrics()),
        }
        stacks = {"/stacks": lambda: Page(answers.stacks())}
        super().__init__({**pages, **stacks} if limits.stacks else pages)
        # A service may give up its user later; its siblings have done so already, or have not.
        self.user = os.geteuid()

    def refusal_of(self, sock: socket.socket) -> bytes | None:
        _, user = peer_of(sock)
        return None if user in (0, self.user, os.geteuid()) else FORBIDDEN


class ServicePages(Pages):
    """The pages about all processes."""

    def __init__(self, limits: Limits, others: Siblings) -> None:
        pages: dict[str, Callable[[], Page]] = {
            "/live": self.live,
            "/ready": self.ready,
            "/metrics": self.metrics,
        }
        super().__init__({**pages, "/stacks": self.stacks} if limits.stacks else pages)
        self.limits = limits
        self.others = others

    def live(self) -> Page:
        """Answer 503 if a loop has been in one turn for too long."""
        found, replies = self._reports()
        return _page(_longest(found, replies) < self.limits.dead_after, found, replies)

    def ready(self) -> Page:
        """Answer 503 if a loop has been in one turn for too long, or if no loop runs."""
        found, replies = self._reports()
        runs = bool(replies.silent) or any(one["running"] for one in found)
        return _page(runs and _longest(found, replies) < self.limits.ready_after, found, replies)

    def metrics(self) -> Page:
        replies = self.others.ask("/metrics")
        silent = prometheus.gauge(
            "uringloop_silent_seconds",
            "Time for which a process of the service has not answered.",
            dict(replies.silent),
        )
        texts = [answers.metrics(), *(text for _, text in replies.texts), silent]
        return Page(prometheus.merged(texts), kind=prometheus.CONTENT_TYPE)

    def stacks(self) -> Page:
        replies = self.others.ask("/stacks")
        return Page(
            "\n".join([answers.stacks(), *(text for _, text in replies.texts), *_lines(replies)])
        )

    def _reports(self) -> tuple[list[Report], Replies]:
        """Return the reports of all loops, and the replies of the other processes."""
        replies = self.others.ask("/loops")
        found = answers.reports()
        for pid, text in replies.texts:
            parsed = answers.parsed(text)
            if parsed is None:
                replies.failed.append(pid)
            else:
                found += parsed
        return found, replies


def _longest(found: list[Report], replies: Replies) -> float:
    """Return for how many seconds the worst loop has been in one turn."""
    silent = [seconds for _, seconds in replies.silent]
    return max([0.0, *silent, *[report["busy"] for report in found]])


def _page(is_well: bool, found: list[Report], replies: Replies) -> Page:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    lines = [*map(_line, found), *_lines(replies)] or ["no loop"]
    return Page("\n".join(lines) + "\n", status)


def _line(report: Report) -> str:
    state = "asleep" if report["running"] else "not running"
    if report["busy"]:
        state = ", ".join(filter(None, (f"busy for {report['busy']:.2f} s", report["doing"])))
    return f"process {report['pid']}, loop {report['loop']}: {state}"


def _lines(replies: Replies) -> list[str]:
    """Return a line for each process that has not replied."""
    return [
        *(
            f"process {pid}: has not answered for {seconds:.2f} s"
            for pid, seconds in replies.silent
        ),
        *(f"process {pid}: cannot answer" for pid in replies.failed),
    ]
