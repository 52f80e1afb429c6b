"""asyncio's streams, compiled: the same functions and classes, for programs that choose them.

    from uringloop import streams

    reader, writer = await streams.open_connection("localhost", 6379)

`install()` puts them in asyncio's place: libraries that call asyncio.open_connection() or make an
asyncio.StreamReader then use them as well. `uringloop.run(main(), streams=True)` calls `install()`,
and the environment variable URINGLOOP_STREAMS=1 has the same effect. On other loops the functions
call asyncio's own.
"""

from __future__ import annotations

import asyncio

from uringloop.streams.connections import (
    StreamReaderProtocol,
    open_connection,
    open_unix_connection,
    start_server,
    start_unix_server,
)
from uringloop.streams.reader import StreamReader
from uringloop.streams.stream_writer import StreamWriter

__all__ = [
    "StreamReader",
    "StreamReaderProtocol",
    "StreamWriter",
    "install",
    "open_connection",
    "open_unix_connection",
    "start_server",
    "start_unix_server",
]

FUNCTIONS = (open_connection, open_unix_connection, start_server, start_unix_server)
CLASSES = (StreamReader, StreamReaderProtocol, StreamWriter)


def install() -> None:
    """Put these functions and classes in asyncio's place, for the whole process.

    A module that has run ``from asyncio import StreamReader`` before keeps asyncio's class. In the
    module `asyncio.streams` only the functions are replaced, as its classes refer to each other.
    """
    for function in FUNCTIONS:
        setattr(asyncio, function.__name__, function)
        setattr(asyncio.streams, function.__name__, function)
    for stream_class in CLASSES:
        setattr(asyncio, stream_class.__name__, stream_class)
