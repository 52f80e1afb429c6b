"""Runs the tests of thread pools among the interpreter's own test.test_concurrent_futures.

`python thread_pools.py stock` or `python thread_pools.py uringloop`, which replaces the executor by
that of a uringloop loop. Prints what `conformance.py` prints.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import sys
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conformance import Reporter

MODULES = ("test_thread_pool", "test_shutdown", "test_init", "test_wait", "test_as_completed")


def replace_thread_pools() -> None:
    """Replace ThreadPoolExecutor for modules that are imported from now on."""
    from uringloop._loop.executors import ThreadPool

    for module in (concurrent.futures, concurrent.futures.thread):
        module.ThreadPoolExecutor = ThreadPool  # type: ignore[attr-defined]


def cases() -> Iterator[type[unittest.TestCase]]:
    for name in MODULES:
        module = importlib.import_module(f"test.test_concurrent_futures.{name}")
        for case in vars(module).values():
            if (
                isinstance(case, type)
                and issubclass(case, unittest.TestCase)
                and case.__name__.startswith("ThreadPool")
            ):
                yield case


def main() -> None:
    if sys.argv[1] != "stock":
        replace_thread_pools()
    warnings.simplefilter("default")
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    unittest.TestSuite(map(load, cases())).run(Reporter())


if __name__ == "__main__":
    main()
