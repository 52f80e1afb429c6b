"""The loop's thread does not call blocking functions that tools like blockbuster forbid.

Such a tool replaces functions of the standard library by functions that raise in the thread of a
running loop. The test replaces them before and after the import of the package.
"""

from __future__ import annotations

import pytest
from support.loops import each_ring
from support.roles import run_script

PROGRAM = """
import asyncio, os, os.path, socket, sys, tempfile, threading

REFUSED = (
    "stat lstat access open read write link symlink unlink remove rename replace mkdir rmdir "
    "listdir scandir statvfs truncate ftruncate fsync sendfile getxattr setxattr"
).split()

def refusing(name, function):
    def call(*args, **options):
        if threading.current_thread() is threading.main_thread() and may_not:
            raise AssertionError(f"{{name}} blocks")
        return function(*args, **options)
    return call

def forbid():
    for name in REFUSED:
        setattr(os, name, refusing(name, getattr(os, name)))
    for name in ("exists", "isfile", "isdir", "samestat", "samefile", "realpath", "ismount"):
        setattr(os.path, name, refusing(name, getattr(os.path, name)))

may_not = False
{order}

async def main(folder):
    global may_not
    may_not = True
    name = folder + "/file"
    path = folder + "/socket"
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
    reader, writer = await asyncio.open_unix_connection(path)
    await reader.read()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    for _ in range(2):
        # The second endpoint removes the socket file of the first.
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=path, family=socket.AF_UNIX
        )
        transport.close()
    for _ in range(2):
        await fs.write_atomic(name, b"one\\n")
    print(await fs.samefile(name, name), await fs.samefile(name, folder))
    async with uringloop.open(name, "a+") as file:
        await file.write("two\\n")
        await file.seek(0)
        print(await file.readlines())
        await file.truncate(4)
        await file.fsync()
    await fs.copyfile(name, name + "2")
    await fs.rename(name + "2", name + "3")
    print(sorted(await fs.listdir(folder))[:2], await fs.getsize(name))
    async with uringloop.tempfile.TemporaryFile(dir=folder) as file:
        await file.write(b"x")
    async with uringloop.tempfile.TemporaryDirectory(dir=folder):
        pass
    may_not = False

with tempfile.TemporaryDirectory() as folder:
    uringloop.run(main(folder), loop_factory=lambda: uringloop.Loop(backend={backend!r}))
"""
IMPORT = "import uringloop\nfrom uringloop import fs\nimport uringloop.tempfile"
ORDERS = {"before": f"{IMPORT}\nforbid()", "after": f"forbid()\n{IMPORT}"}
OUTPUT = """\
True False
['one\\n', 'two\\n']
['file', 'file3'] 4
"""


@pytest.mark.parametrize("order", ORDERS)
@each_ring
def test_the_loops_thread_calls_no_blocking_function(backend: str, order: str) -> None:
    ended = run_script(PROGRAM.format(order=ORDERS[order], backend=backend))
    assert (ended.stderr, ended.stdout) == ("", OUTPUT)
