"""The races: the package of each, the versions with and without the bug, and what a loop needs."""

from __future__ import annotations

from dataclasses import dataclass

from uringloop.testing import Faults

# The package of a race of the standard library; its versions are those of interpreters.
CPYTHON = "CPython"

ANYIO = ("idna==3.20", "sniffio==1.3.1", "typing_extensions==4.16.0")
AIOHTTP = (
    "aiohappyeyeballs==2.7.1",
    "aiosignal==1.4.0",
    "attrs==26.1.0",
    "frozenlist==1.8.0",
    "idna==3.20",
    "multidict==6.9.1",
    "propcache==0.5.4",
    "typing_extensions==4.16.0",
    "yarl==1.25.1",
)
PSYCOPG_3_1 = ("psycopg==3.1.20", "psycopg-binary==3.1.20", "typing_extensions==4.16.0")
PSYCOPG_3_3 = ("psycopg==3.3.2", "psycopg-binary==3.3.2", "typing_extensions==4.16.0")

# For timeouts that end while an answer is on its way. Other orders of callbacks alone find only the
# first of these races.
DELAY = Faults(delay=0.2)
DELAY_SPLIT = Faults(delay=0.2, split=0.3)


@dataclass(frozen=True, slots=True)
class Race:
    """A program; of the versions that were tried, the last with its bug and the first without."""

    name: str
    # The path on GitHub.
    thread: str
    package: str
    affected: str
    mended: str
    # All other packages of the environment.
    others: tuple[str, ...] = ()
    faults: Faults | None = None
    # The Python of both versions, of another package than CPYTHON.
    python: str = "3.11"

    def python_of(self, version: str) -> str:
        return version if self.package == CPYTHON else self.python

    def requirements_of(self, version: str) -> tuple[str, ...]:
        return () if self.package == CPYTHON else (f"{self.package}=={version}", *self.others)


RACES = (
    Race("asyncio_wait_for", "python/cpython/issues/86296", CPYTHON, "3.11", "3.13"),
    Race("asyncio_condition", "python/cpython/issues/112202", CPYTHON, "3.11", "3.13"),
    Race("asyncio_task_group", "python/cpython/issues/116720", CPYTHON, "3.11", "3.13"),
    Race("anyio_condition", "agronholm/anyio/pull/1075", "anyio", "4.12.1", "4.13.0", ANYIO),
    Race("anyio_lock", "agronholm/anyio/pull/1145", "anyio", "4.13.0", "4.14.0", ANYIO),
    Race("anyio_stream", "agronholm/anyio/issues/728", "anyio", "4.3.0", "4.4.0", ANYIO),
    Race("anyio_limiter", "agronholm/anyio/issues/947", "anyio", "4.9.0", "4.10.0", ANYIO),
    Race("aiorwlock_reader", "aio-libs/aiorwlock/pull/514", "aiorwlock", "1.5.0", "1.5.1"),
    Race(
        "aiohttp_connector",
        "aio-libs/aiohttp/issues/9670",
        "aiohttp",
        "3.10.10",
        "3.10.11",
        AIOHTTP,
    ),
    Race(
        "psycopg_pool_handover",
        "psycopg/psycopg/issues/1275",
        "psycopg-pool",
        "3.3.0",
        "3.3.1",
        PSYCOPG_3_3,
        python="3.13",
    ),
    Race(
        "psycopg_pool_queue",
        "psycopg/psycopg/issues/509",
        "psycopg-pool",
        "3.1.6",
        "3.1.7",
        PSYCOPG_3_1,
    ),
    Race("redis_command", "redis/redis-py/issues/2624", "redis", "4.5.3", "4.5.5", faults=DELAY),
    Race(
        "redis_pubsub",
        "redis/redis-py/pull/2510",
        "redis",
        "4.4.0",
        "4.4.1",
        ("async-timeout==5.0.1",),
        DELAY_SPLIT,
    ),
    Race(
        "websockets_ping",
        "python-websockets/websockets/issues/1566",
        "websockets",
        "14.1",
        "14.2",
        faults=DELAY,
    ),
    Race(
        "aiosmtplib_timeout",
        "cole/aiosmtplib/commit/5cd299f",
        "aiosmtplib",
        "5.1.1",
        "5.1.2",
        faults=DELAY,
    ),
    Race("nats_iterator", "nats-io/nats.py/pull/804", "nats-py", "2.14.0", "2.15.0", faults=DELAY),
)
