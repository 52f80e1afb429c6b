"""uringloop.streams in asyncio's place: which names change, and for whom."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from support.roles import run_script

NAMES = ("StreamReader", "StreamReaderProtocol", "StreamWriter")
FUNCTIONS = ("open_connection", "open_unix_connection", "start_server", "start_unix_server")

SHOW = """
    import asyncio, asyncio.streams
    def shown(module):
        return {name: getattr(module, name).__module__ for name in NAMES}
    NAMES = ("StreamReader", "StreamReaderProtocol", "StreamWriter", "open_connection",
             "open_unix_connection", "start_server", "start_unix_server")
"""
COMPILED = {
    **dict.fromkeys(NAMES, "uringloop.streams"),
    "StreamReaderProtocol": "uringloop.streams.connections",
    **dict.fromkeys(FUNCTIONS, "uringloop.streams.connections"),
}
STOCK = dict.fromkeys((*NAMES, *FUNCTIONS), "asyncio.streams")


def output(script: str, **environment: str) -> list[object]:
    """Run *script*, which shows names; return what each line of its output evaluates to."""
    program = textwrap.dedent(SHOW) + textwrap.dedent(script)
    kept = {name: value for name, value in os.environ.items() if name != "URINGLOOP_STREAMS"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**kept, **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [eval(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        ("import uringloop", {"URINGLOOP_STREAMS": "1"}),
        ("import uringloop", {"URINGLOOP_STREAMS": "yes"}),
        ("import uringloop.streams; uringloop.streams.install()", {}),
        ("import uringloop; uringloop.run(asyncio.sleep(0), streams=True)", {}),
    ],
    ids=["variable", "word", "install", "run"],
)
def test_the_names_of_asyncio_are_replaced(script: str, environment: dict[str, str]) -> None:
    lines = output(script + "\nprint(shown(asyncio))\nprint(shown(asyncio.streams))", **environment)
    # asyncio's functions and classes find each other in asyncio.streams.
    in_streams = {**COMPILED, **dict.fromkeys(NAMES, "asyncio.streams")}
    assert lines == [COMPILED, in_streams]


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_nothing_is_replaced_unless_it_is_asked_for(value: str) -> None:
    script = "import uringloop\nuringloop.run(asyncio.sleep(0))\nprint(shown(asyncio))"
    assert output(script, URINGLOOP_STREAMS=value) == [STOCK]


def test_install_may_be_called_twice() -> None:
    script = """
        from uringloop import streams
        streams.install()
        streams.install()
        print(shown(asyncio))
        async def main():
            reader = streams.StreamReader()
            reader.feed_data(b"x")
            return await reader.read(1)
        import uringloop
        print(uringloop.run(main()))
    """
    assert output(script) == [COMPILED, b"x"]


# An echo; prints the classes of both sides. `early` has imported asyncio's names before install().
ECHO = """
    import sys, types
    early = types.SimpleNamespace()
    from asyncio import open_connection, start_server
    early.open_connection, early.start_server = open_connection, start_server
    import uringloop
    from uringloop import streams
    streams.install()

    async def echo(module):
        async def serve(reader, writer):
            served.append((type(reader).__module__, type(writer).__module__))
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
        served = []
        server = await module.start_server(serve, "127.0.0.1", 0)
        reader, writer = await module.open_connection(*server.sockets[0].getsockname())
        writer.write(b"line\\n")
        assert await reader.readline() == b"line\\n"
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        print({*served[0], type(reader).__module__, type(writer).__module__,
               type(writer._protocol).__module__})
"""


@pytest.mark.parametrize("run", ["uringloop.run", "asyncio.run"])
def test_a_module_that_imported_the_functions_before_keeps_asyncio_s_classes(run: str) -> None:
    assert output(f"{textwrap.dedent(ECHO)}\n{run}(echo(early))") == [{"asyncio.streams"}]


@pytest.mark.parametrize("module", ["asyncio", "asyncio.streams", "streams"])
def test_the_replaced_functions_use_compiled_classes_on_this_loop(module: str) -> None:
    script = f"{textwrap.dedent(ECHO)}\nuringloop.run(echo({module}))"
    assert output(script) == [set(COMPILED.values())]


@pytest.mark.parametrize("module", ["asyncio", "asyncio.streams", "streams"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_replaced_functions_use_asyncio_s_classes_on_other_loops(
    loop: str, module: str
) -> None:
    pytest.importorskip(loop)
    factory = {"asyncio": "asyncio.SelectorEventLoop", "uvloop": "uvloop.new_event_loop"}[loop]
    script = f"""
import {loop}
with asyncio.Runner(loop_factory={factory}) as runner:
    runner.run(echo({module}))
"""
    assert output(textwrap.dedent(ECHO) + script) == [{"asyncio.streams"}]


PIPES = """
    import os, sys, uringloop
    from uringloop import streams
    streams.install()

    async def main():
        loop = asyncio.get_running_loop()
        source, sink = os.pipe()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        pipe, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(source, "rb", 0))
        transport, flow = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(sink, "wb", 0))
        writer = asyncio.StreamWriter(transport, flow, None, loop)
        data = os.urandom(3_000_000)

        async def send():
            for start in range(0, len(data), 70_000):
                writer.write(data[start : start + 70_000])
                await writer.drain()
            writer.close()

        sending = asyncio.create_task(send())
        assert await reader.readexactly(1_000_000) == data[:1_000_000]
        assert await reader.read() == data[1_000_000:]
        await sending
        pipe.close()
        await asyncio.sleep(0)

        # asyncio's subprocesses make their streams by asyncio.streams, whose classes stay.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import sys; print(sys.stdin.read().upper())",
            stdin=-1, stdout=-1)
        print(type(process.stdout).__module__)
        print((await process.communicate(b"whisper"))[0])

    uringloop.run(main())
"""


def test_pipes_and_subprocesses_work_after_install() -> None:
    done = run_script(PIPES.replace("import os, sys", "import asyncio, os, sys", 1))
    assert (done.stdout, done.stderr) == ("asyncio.streams\nb'WHISPER\\n'\n", "")
