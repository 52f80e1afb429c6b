"""A loop that has been closed holds no object that it did not hold before its last run."""

# Issue 51.

from __future__ import annotations

import asyncio
import gc

from support.protocols import Echo

import uringloop


def object_ids() -> set[int]:
    return {id(each) for each in gc.get_objects()}


async def converse(loop: uringloop.Loop) -> None:
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"ping")
    assert await reader.readexactly(4) == b"ping"
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0)


def test_run_and_close_leave_no_new_list_on_the_loop(loop: uringloop.Loop) -> None:
    loop.run_until_complete(converse(loop))
    gc.collect()
    gc.disable()
    try:
        before = object_ids()
        loop.run_until_complete(converse(loop))
        loop.close()
        held = [each for each in gc.get_referents(loop) if type(each) is list]
        assert [each for each in held if id(each) not in before] == []
    finally:
        gc.enable()
