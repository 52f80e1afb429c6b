"""A service that answers requests over HTTP, one request on each connection.

The standard library's http.server parses the head of a request and formats that of an answer; the
sockets are the monitor's. The thread that serves calls this.
"""

from __future__ import annotations

import http.server
import io
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus

from uringloop.monitor.serving import Answer, Service

TEXT = "text/plain; charset=utf-8"
# More than any probe sends, and little for 64 clients.
REQUEST_BYTES_MAX = 8192
# How long a client may take to send a request, and to read the answer.
TIMEOUT_S = 5.0
CLIENTS_MAX = 64


class Page:
    """An answer before it has a head."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.OK, kind: str = TEXT) -> None:
        self.body = text.encode("utf-8", "replace")
        self.status = status
        self.kind = kind


class Request(http.server.BaseHTTPRequestHandler):
    """One request; `answered()` is the answer."""

    server_version = "uringloop"
    sys_version = ""

    def __init__(self, received: bytes, pages: Mapping[str, Callable[[], Page]]) -> None:
        # The base class would take a socket, and read and write it in this call.
        self.rfile = io.BytesIO(received)
        self.wfile = self.sent = io.BytesIO()
        self.client_address = ("", 0)
        self.pages = pages
        # The parser may fail before it sets these.
        self.command = ""
        self.requestline = ""
        self.request_version = self.default_request_version

    def answered(self) -> bytes:
        try:
            self.handle_one_request()
        except BaseException as exc:
            # The parser raises for some heads; a page shows objects of the program, whose methods
            # can raise anything. So may the text of the exception.
            self.wfile = self.sent = io.BytesIO()
            self.request_version = "HTTP/1.0"
            self._send(Page(f"{type(exc).__name__}\n", HTTPStatus.INTERNAL_SERVER_ERROR))
        return self.sent.getvalue()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.pages:
            self._send(self.pages[path]())
        else:
            self._send(Page(f"there are {', '.join(self.pages)}\n", HTTPStatus.NOT_FOUND))

    do_HEAD = do_GET

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: a probe comes every few seconds."""


class Pages(Service):
    """The functions that make the pages, by path."""

    request_bytes_max = REQUEST_BYTES_MAX
    timeout_s = TIMEOUT_S
    clients_max = CLIENTS_MAX

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self.pages = pages

    def refusal_of(self, sock: socket.socket) -> bytes | None:
        return None

    def length_of(self, received: bytes) -> int:
        ends = [(received.find(end), len(end)) for end in (b"\r\n\r\n", b"\n\n")]
        return min((at + length for at, length in ends if at >= 0), default=0)

    def answer(self, request: bytes) -> Answer:
        return Answer(Request(request, self.pages).answered(), last=True)

    def too_long(self) -> Answer:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        head = f"HTTP/1.0 {status.value} {status.phrase}\r\nConnection: close\r\n\r\n"
        return Answer(head.encode(), last=True)

    def too_many(self) -> bytes | None:
        # A client that holds its connection open must not keep a probe away.
        return None
