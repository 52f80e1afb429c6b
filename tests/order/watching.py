"""Sockets that a program watches by add_reader() or sock_recv(), with methods of a transport."""

from __future__ import annotations

import asyncio
import socket

from order.links import BUFFER, Link, said


class Watching:
    """Receives whenever add_reader() says that there is something."""

    def __init__(self, link: Link, sock: socket.socket) -> None:
        self.link = link
        self.sock = sock
        self.reading = False
        self.closing = False
        link.begin(self)
        self.resume_reading()

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self.sock if name == "socket" else None

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False
        self.link.loop.remove_reader(self.sock)

    def resume_reading(self) -> None:
        if not self.closing:
            self.reading = True
            self.link.loop.add_reader(self.sock, self.on_readable)

    def on_readable(self) -> None:
        try:
            data = self.sock.recv(BUFFER)
        except OSError as exc:
            self.end(exc)
            return
        if data:
            self.link.on_data(data)
        else:
            self.link.on_eof()
            self.end(None)

    def end(self, exc: Exception | None) -> None:
        if self.closing:
            return
        self.closing = True
        self.pause_reading()
        self.sock.close()
        self.link.on_lost(exc)

    def close(self) -> None:
        self.end(None)

    def abort(self) -> None:
        self.close()


class Receiving(Watching):
    """Receives in a task, by sock_recv(), one byte after the other."""

    def resume_reading(self) -> None:
        self.reading = True
        self.task = self.link.loop.create_task(self.receive())
        # It may be cancelled before it begins.
        self.task.add_done_callback(lambda task: self.end(None))
        self.link.tasks.append(self.task)

    def pause_reading(self) -> None:
        self.reading = False

    async def receive(self) -> None:
        try:
            while data := await self.link.loop.sock_recv(self.sock, 1):
                self.link.on_data(data)
        except asyncio.CancelledError:
            self.link.note("sock_recv is cancelled")
        except OSError as exc:
            self.link.note(f"sock_recv fails: {said(exc)}")
            self.end(exc)
        else:
            self.link.on_eof()
            self.end(None)

    def abort(self) -> None:
        self.task.cancel()
