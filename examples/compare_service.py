"""Your service on two loops: `python examples/compare_service.py "uvicorn app:app --loop {loop}"`.

Starts it on each loop in turn and sends requests, with wrk if installed. Needs nothing but Python.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import time
from multiprocessing import get_context
from typing import Any
from urllib.parse import urlsplit

OPTIONS = {"url": "http://127.0.0.1:8000/", "folder": ".", "clients": 50, "seconds": 3, "rounds": 5}
LINE = "{:32}{:>16}{:>12}{:>12}{:>18}"
MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


def by_python(options: Any, seconds: int) -> tuple[int, list[float]]:
    """Send requests; return their number, the rate, and p50 and p99 in milliseconds."""
    url, delays, end = urlsplit(options.url), list[float](), time.perf_counter() + seconds
    lines = [f"GET {options.url.partition(url.netloc)[2] or '/'} HTTP/1.1", f"Host: {url.netloc}"]
    request = "\r\n".join([*lines, *options.header, "\r\n"]).encode()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(url.hostname, url.port or 80)
        while (began := time.perf_counter()) < end:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head[9:10] > b"3" or not (size := re.search(rb"\ncontent-length: *(\d+)", head)):
                raise RuntimeError(f"{head.splitlines()[0].decode()}, or no Content-Length")
            await reader.readexactly(int(size[1]))
            delays.append(time.perf_counter() - began)
        writer.close()

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(options.clients)))

    try:
        asyncio.run(clients())
    except (ConnectionError, EOFError):
        raise RuntimeError("the service refuses or closes connections") from None
    percent = statistics.quantiles(delays, n=100)
    return len(delays), [len(delays) / seconds, percent[49] * 1000, percent[98] * 1000]


def by_wrk(options: Any, seconds: int) -> tuple[int, list[float]]:
    words = ["wrk", "-t1", f"-c{options.clients}", f"-d{seconds}s", "--latency", options.url]
    words += [f"-H{header}" for header in options.header]
    text = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    if wrong := re.search(r"(Socket errors|Non-2xx).*", text):
        raise RuntimeError(wrong[0])
    ((number, rate),) = re.findall(r"(\d+) requests in (?s:.*)Requests/sec: +([\d.]+)", text)
    found = re.findall(r"^ +(?:50|99)% +([\d.]+)(\w+)", text, re.MULTILINE)
    return int(number), [float(rate), *(float(value) * MS[unit] for value, unit in found)]


def processor_us(session: int) -> float:
    ticks = 0  # of all processes of the session, and of their children that have ended
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15])) if int(fields[3]) == session else 0
    return ticks / os.sysconf("SC_CLK_TCK") * 1_000_000


def measure(options: Any, loop: str, pool: Any) -> Any:
    command = [word.replace("{loop}", loop) for word in shlex.split(options.command)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "cwd": options.folder, "start_new_session": True}
    url, deadline = urlsplit(options.url), time.monotonic() + 60
    with subprocess.Popen(command, **quiet) as server:
        try:
            with socket.socket() as sock:
                while sock.connect_ex((url.hostname, url.port or 80)):
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"nothing listens at {options.url}")
                    time.sleep(0.05)
            while not pool.apply(options.send, (options, 1))[0]:  # It listens, but still loads.
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{options.url} is not answered")
            before = processor_us(server.pid)
            number, figures = pool.apply(options.send, (options, options.seconds))
            figures += [(processor_us(server.pid) - before) / number]
            if server.poll() is not None or not figures[-1]:
                raise RuntimeError(f"{options.url} is not answered by this command's processes")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
    print(LINE.format(loop, *(f"{figure:,.2f}" for figure in figures)), flush=True)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", help="starts the service; {loop} stands for the loop")
    parser.add_argument("--loops", nargs=2, default=["uvloop", "uringloop:new_event_loop"])
    parser.add_argument("--header", action="append", default=[], help="for each request")
    for name, value in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.set_defaults(send=by_wrk if shutil.which("wrk") else by_python)
    options = parser.parse_args()
    if "{loop}" not in options.command:
        parser.error("the command has no {loop}")
    # Like Ctrl-C, it ends the service, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(LINE.format("", "requests/s", "p50 ms", "p99 ms", "CPU us/request"), flush=True)
    with get_context("spawn").Pool(1, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            found = [measure(options, loop, pool) for loop in options.loops * options.rounds]
        except (KeyboardInterrupt, OSError, RuntimeError, subprocess.SubprocessError) as exc:
            parser.exit(1, f"{parser.prog}: {str(exc) or 'interrupted'}\n")
    pairs = (zip(*found[n : n + 2], strict=True) for n in range(0, len(found), 2))
    columns = list(zip(*([b / a for a, b in pair] for pair in pairs), strict=True))
    for name, choose in (("ratio, median", statistics.median), ("lowest", min), ("highest", max)):
        print(LINE.format(name, *(f"{choose(column):.2f}" for column in columns)))
