"""A Jupyter kernel whose cells run on the loop, by its configuration or by a kernelspec."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import needs_elsewhere, process, python

needs_elsewhere("ipykernel")
needs_elsewhere("jupyter_client")

# The first line of a kernel's output.
UNENCRYPTED = "[IPKernelApp] WARNING | Kernel is running over TCP without encryption"

# Runs before the kernel gets the loop of its main thread, on which cells run.
LOOP = "import asyncio, uringloop; asyncio.set_event_loop(uringloop.new_event_loop())"

# The kernel inherits the client's output. The client prints each cell's output and its status.
CLIENT = """
import sys
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name=sys.argv[1], startup_timeout=30)
kernel = manager.provisioner.process
# A kernel that does not shut down is terminated after half of this time, by default after 2.5 s.
manager.shutdown_wait_time = 60

# Without this, requests soon after a failed cell are aborted.
GO_ON = {"stop_on_error": False}

def tell(message):
    content = message["content"]
    if message["msg_type"] in ("stream", "execute_result", "error"):
        print(content.get("text") or content.get("ename") or content["data"]["text/plain"])

def run(cell):
    answer = client.execute_interactive(cell, timeout=30, output_hook=tell, **GO_ON)
    print("->", answer["content"]["status"])

def interrupt(cell):
    request = client.execute(cell, **GO_ON)
    said = None
    # Output of an earlier cell may come first.
    while said != ("stream", request):
        message = client.get_iopub_msg(timeout=30)
        said = message["msg_type"], message["parent_header"].get("msg_id")
    manager.interrupt_kernel()
    print("interrupted by", client.get_shell_msg(timeout=30)["content"]["ename"])

"""

ECHO = """
async def echo(reader, writer):
    writer.write(await reader.read(5))
    writer.close()

server = await asyncio.start_server(echo, "127.0.0.1", 0)
reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
writer.write(b"hello")
print(await reader.read())
writer.close()
await writer.wait_closed()
server.close()
"""

CHILD = """
from subprocess import PIPE
child = await asyncio.create_subprocess_exec("echo", "from a child", stdout=PIPE)
(await child.communicate())[0]
"""

END = """
client.stop_channels()
manager.shutdown_kernel()
print("status", kernel.returncode)
"""


def session(*steps: tuple[str, str]) -> str:
    """Return the program of a client that takes *steps*, each a function's name and a cell."""
    return CLIENT + "".join(f"{step}({cell!r})\n" for step, cell in steps) + END


def by_configuration(folder: Path) -> str:
    """Configure every kernel of a user, and return the name of the default kernel."""
    profile = folder / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.py").write_text(f"{LOOP}\n")
    return "python3"


def by_kernelspec(folder: Path) -> str:
    """Make another kernel beside the default one, and return its name."""
    spec = folder / "jupyter" / "kernels" / "on_uringloop"
    spec.mkdir(parents=True)
    start = f"{LOOP}; from ipykernel.kernelapp import main; main()"
    command = [sys.executable, "-c", start, "-f", "{connection_file}"]
    described = {"argv": command, "display_name": "On uringloop", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(described))
    return spec.name


def run_session(folder: Path, kernel: str, *steps: tuple[str, str]) -> list[str]:
    """Run a client in a child process, and return the lines of its output."""
    environment = {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_PATH": str(folder / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "PYTHONWARNINGS": "default::ResourceWarning,default::DeprecationWarning",
    }
    command = python("-c", session(*steps), kernel)
    with process(command, environment=environment, cwd=folder) as running:
        assert running.wait() == 0, running.output
    return [line for line in running.output.splitlines() if line and UNENCRYPTED not in line]


@pytest.mark.slow
@pytest.mark.parametrize("made", [by_configuration, by_kernelspec])
def test_cells_are_awaited_on_the_loop(made: Callable[[Path], str], tmp_path: Path) -> None:
    printed = run_session(
        tmp_path,
        made(tmp_path),
        ("run", "import asyncio; type(asyncio.get_running_loop()).__module__"),
        ("run", "await asyncio.sleep(0.001, 42)"),
        ("run", ECHO),
        ("run", "task = asyncio.create_task(asyncio.sleep(0.001, 'from a cell before'))"),
        ("run", "await task"),
        ("run", CHILD),
        ("run", "await asyncio.to_thread(lambda: 'from a thread')"),
        ("run", "raise LookupError if await asyncio.sleep(0, True) else None"),
        ("run", "print('still', 'here')"),
    )
    expected = [
        "'uringloop.loop'",
        "42",
        "b'hello'",
        "",
        "'from a cell before'",
        r"b'from a child\n'",
        "'from a thread'",
        "LookupError",
        "still here",
    ]
    lines = []
    for line in expected:
        lines += [line] if line else []
        lines.append("-> error" if line == "LookupError" else "-> ok")
    assert printed == [*lines, "status 0"]


@pytest.mark.slow
def test_a_cell_can_be_interrupted(tmp_path: Path) -> None:
    printed = run_session(
        tmp_path,
        by_configuration(tmp_path),
        ("run", "import asyncio, time"),
        ("interrupt", "print('waits'); await asyncio.Event().wait()"),
        ("interrupt", "print('turns')\nwhile True: await asyncio.sleep(0)"),
        ("interrupt", "print('sleeps'); time.sleep(1_000)"),
        ("run", "await asyncio.sleep(0.001, type(asyncio.get_running_loop()).__module__)"),
    )
    by_cancel, by_exception = "interrupted by CancelledError", "interrupted by KeyboardInterrupt"
    assert printed[:4] == ["-> ok", by_cancel, by_cancel, by_exception]
    assert printed[4:] == ["'uringloop.loop'", "-> ok", "status 0"]
