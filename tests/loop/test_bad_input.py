"""Bad input gets the exception type and message that stock asyncio gives.

The tables are in bad_input/, by subject. Each call is made on an asyncio loop and on a uringloop
loop, and the outcomes are compared: result or exception, logs, warnings.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from bad_input import connections, later, names, scheduling, sockets, transports, watching
from bad_input.stage import Case, observe
from support.loops import FACTORIES

import uringloop
from uringloop._cpython import gil

TABLES = {
    "scheduling": scheduling.CASES,
    "connections": connections.CASES,
    "names": names.CASES,
    "sockets": sockets.CASES,
    "watching": watching.CASES,
    "transports": transports.CASES,
}
# Methods that uringloop does not implement: it has only those of AbstractEventLoop.
MISSING = {
    method
    for method in later.CASES
    if getattr(uringloop.Loop, method) is getattr(asyncio.AbstractEventLoop, method)
}
TABLES |= {method: table for method, table in later.CASES.items() if method not in MISSING}
EVERY = [(subject, case) for subject, table in TABLES.items() for case in table]
STOCK_ONLY = [case for method in sorted(MISSING) for case in later.CASES[method]]

# Deliberate differences, with their reasons; every call listed here must differ from asyncio.
NOT_A_TIME = "refused at once; asyncio accepts it, and from then on every turn fails"
NO_LONGER = "refused with the message that asyncio had before 3.11"
ARITY = "Cython has a message of its own for a wrong number of arguments"
ODD_REPORT = "logged; asyncio raises while it formats the report, which is lost"
INTERNAL = "asyncio raises an exception from its internals, with an unrelated message"
COPIED = "sent without its gaps; asyncio ends the connection, or before 3.12 refuses it in a list"
IN_C = "limits are integers, and not larger than memory"
DELIBERATE = {
    "plain: create_connection(local_addr=host)": INTERNAL,
    "closed: create_connection(local_addr=host)": INTERNAL,
    "plain: sock_connect(sock, six items)": INTERNAL,
    "debug: sock_connect(sock, six items)": INTERNAL,
    "plain: sock_accept(None)": INTERNAL,
    "plain: sock_accept(1)": INTERNAL,
    "plain: sock_accept('text')": INTERNAL,
    "closed: sock_accept(None)": INTERNAL,
    "plain: set_write_buffer_limits(high=1.5)": IN_C,
    "plain: set_write_buffer_limits(high=2**70)": IN_C,
    "plain: set_write_buffer_limits(low=2**70)": IN_C,
    "plain: write(every second)": COPIED,
    "plain: writelines([every second])": COPIED,
    "plain: Server(closed: start_serving)": INTERNAL,
    "plain: Server(unstarted, closed: start_serving)": INTERNAL,
    "plain: call_later(delay=1j)": NOT_A_TIME,
    "plain: call_at(when=1j)": NOT_A_TIME,
    "plain: call_at(when='1')": NOT_A_TIME,
    "plain: call_at(when=10**400)": NOT_A_TIME,
    "plain: create_datagram_endpoint(reuse_address=True)": NO_LONGER,
    "plain: stop(1)": ARITY,
    "plain: sock_recv(sock)": ARITY,
    "debug: sock_recv(sock)": ARITY,
    "plain: call_exception_handler(message=1), default": ODD_REPORT,
    "plain: default_exception_handler(message=1)": ODD_REPORT,
    "plain: call_exception_handler(exception='text'), default": ODD_REPORT,
    "plain: default_exception_handler(exception='text')": ODD_REPORT,
}
if transports.JOINED:
    DELIBERATE |= {
        "plain: after close: writelines([every second])": COPIED,
        "plain: after abort: writelines([every second])": COPIED,
        "plain: after write_eof: writelines([every second])": COPIED,
    }

UNAWAITED = re.compile("RuntimeWarning: coroutine '.*' was never awaited$")
UNCLOSED = re.compile("ResourceWarning: unclosed (<socket|transport <_Unix)")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=f"{subject}: {case}") for subject, case in EVERY],
)
def test_bad_input_has_the_same_outcome_as_on_asyncio(case: Case, tmp_path: Path) -> None:
    outcomes = {name: observe(case, factory, tmp_path) for name, factory in FACTORIES.items()}
    ours, theirs = outcomes["uringloop"], outcomes["asyncio"]
    # Warnings of sockets that asyncio does not close need not be matched.
    theirs.warnings = [
        each for each in theirs.warnings if each in ours.warnings or not UNCLOSED.match(each)
    ]
    if case.name == "run_in_executor(coroutine function)" and not gil.enabled():
        # The coroutine is freed by the executor's thread, maybe where warnings are not caught.
        for outcome in (ours, theirs):
            outcome.warnings = [each for each in outcome.warnings if not UNAWAITED.match(each)]
    # asyncio often sets no cause; then any cause is accepted.
    theirs.cause = theirs.cause or ours.cause
    if str(case) in DELIBERATE:
        assert ours != theirs
    else:
        assert ours == theirs


@pytest.mark.parametrize("case", STOCK_ONLY, ids=str)
def test_bad_input_of_missing_methods_raises_on_asyncio(case: Case, tmp_path: Path) -> None:
    outcome = observe(case, asyncio.SelectorEventLoop, tmp_path)
    assert outcome.ended.startswith("raised")


def test_calls_in_the_tables_are_unique() -> None:
    names = [f"{subject}: {case}" for subject, case in EVERY]
    assert len(names) == len(set(names))
    assert {str(case) for _, case in EVERY} >= DELIBERATE.keys()
