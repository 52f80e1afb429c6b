"""A program of grpcio's asyncio API: a server and its clients, on the loop that its argument names.

It runs in its own process because grpcio keeps threads and descriptors until the exit.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from application import LARGE

import uringloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uringloop": uringloop.new_event_loop,
}
PATIENCE = 10.0
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


# ── the service, whose messages are plain bytes ───────────────────────────────────────────────


async def echo(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(0)
    return request


async def count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for number in range(int(request)):
        yield b"%d" % number


async def measure(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return b"%d" % sum([len(request) async for request in requests])


async def talk(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def refuse(request: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
    raise AssertionError("abort() raises")


async def hang(request: bytes, context: Any) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


def service() -> Any:
    return grpc.method_handlers_generic_handler(
        "Test",
        {
            "Echo": grpc.unary_unary_rpc_method_handler(echo),
            "Count": grpc.unary_stream_rpc_method_handler(count),
            "Measure": grpc.stream_unary_rpc_method_handler(measure),
            "Talk": grpc.stream_stream_rpc_method_handler(talk),
            "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
            "Hang": grpc.unary_unary_rpc_method_handler(hang),
        },
    )


# ── the client ────────────────────────────────────────────────────────────────────────────────


async def check_calls(channel: Any) -> None:
    call = channel.unary_unary("/Test/Echo")
    for request in (b"", b"small", LARGE):
        assert await call(request) == request
    answers = await asyncio.gather(*(call(b"%d" % n) for n in range(300)))
    assert answers == [b"%d" % n for n in range(300)]


async def check_streams(channel: Any) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield LARGE[:100_000]
            await asyncio.sleep(0)

    numbers = [answer async for answer in channel.unary_stream("/Test/Count")(b"1000")]
    assert numbers == [b"%d" % n for n in range(1_000)]
    assert await channel.stream_unary("/Test/Measure")(requests()) == b"2000000"
    both = channel.stream_stream("/Test/Talk")()
    for number in range(100):
        await both.write(b"%d" % number)
        assert await both.read() == b"%d" % number
    await both.done_writing()
    assert await both.read() is grpc.aio.EOF


async def failure(call: Awaitable[bytes]) -> str:
    """Return the name of the status that *call* fails with."""
    try:
        await call
    except grpc.aio.AioRpcError as exc:
        return str(exc.code().name)
    raise AssertionError("answered")


async def check_ends(channel: Any) -> None:
    assert await failure(channel.unary_unary("/Test/Refuse")(b"")) == "PERMISSION_DENIED"
    assert await failure(channel.unary_unary("/Test/Absent")(b"")) == "UNIMPLEMENTED"
    hang = channel.unary_unary("/Test/Hang")
    assert await failure(hang(b"", timeout=0.05)) == "DEADLINE_EXCEEDED"
    hanging = hang(b"")
    await asyncio.sleep(0)
    assert hanging.cancel()
    assert (await hanging.code()).name == "CANCELLED"


async def end_of_others() -> None:
    """Wait for the tasks that grpcio leaves: a task cancelled by the runner prints a traceback."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=PATIENCE)
        assert not pending, pending


async def main() -> None:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((service(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        await check_calls(channel)
        await check_streams(channel)
        await check_ends(channel)
    await server.stop(grace=1)
    await end_of_others()
    print("all answered on", type(asyncio.get_running_loop()).__module__)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LOOPS[sys.argv[1]]) as runner:
        runner.run(main())
