"""Bad input gets the exception type and message that stock asyncio gives.

The tables are in bad_input/, by subject. Every call is made on a loop of asyncio's and on one of
ours, and everything that came of it is compared.
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

TABLES = {
    "scheduling": scheduling.CASES,
    "connections": connections.CASES,
    "names": names.CASES,
    "sockets": sockets.CASES,
    "watching": watching.CASES,
    "transports": transports.CASES,
}
# What uringloop does not have yet: asyncio's abstract method is all there is.
MISSING = {
    method
    for method in later.CASES
    if getattr(uringloop.Loop, method) is getattr(asyncio.AbstractEventLoop, method)
}
TABLES |= {method: table for method, table in later.CASES.items() if method not in MISSING}
EVERY = [(subject, case) for subject, table in TABLES.items() for case in table]
STOCK_ONLY = [case for method in sorted(MISSING) for case in later.CASES[method]]

# Where the difference is meant, with the reason: every call here must differ.
NOT_A_TIME = "refused at once: asyncio takes it, and from then on every turn fails"
NO_LONGER = "refused with the reason, which asyncio gave before 3.11"
ARITY = "Cython has its own words for a wrong number of arguments"
ODD_REPORT = "logged all the same: asyncio trips over it, and the report is lost"
INTERNAL = "asyncio trips over its own internals, and says so in their words"
IN_C = "limits are whole numbers, and no larger than memory"
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
    "plain: Server(closed: start_serving)": INTERNAL,
    "plain: Server(unstarted, closed: start_serving)": INTERNAL,
    "plain: call_later(delay=1j)": NOT_A_TIME,
    "plain: call_at(when=1j)": NOT_A_TIME,
    "plain: call_at(when='1')": NOT_A_TIME,
    "plain: call_at(when=10**400)": NOT_A_TIME,
    "plain: create_datagram_endpoint(reuse_address=True)": NO_LONGER,
    "plain: call_soon()": ARITY,
    "plain: call_later(0)": ARITY,
    "plain: stop(1)": ARITY,
    "plain: sock_recv(sock)": ARITY,
    "debug: sock_recv(sock)": ARITY,
    "plain: call_exception_handler(message=1), default": ODD_REPORT,
    "plain: default_exception_handler(message=1)": ODD_REPORT,
    "plain: call_exception_handler(exception='text'), default": ODD_REPORT,
    "plain: default_exception_handler(exception='text')": ODD_REPORT,
}

UNCLOSED = re.compile("ResourceWarning: unclosed (<socket|transport <_Unix)")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=f"{subject}: {case}") for subject, case in EVERY],
)
def test_bad_input_has_the_outcome_of_asyncio(case: Case, tmp_path: Path) -> None:
    outcomes = {name: observe(case, factory, tmp_path) for name, factory in FACTORIES.items()}
    ours, theirs = outcomes["uringloop"], outcomes["asyncio"]
    # A socket that only asyncio forgets to close is no contract.
    theirs.warnings = [
        each for each in theirs.warnings if each in ours.warnings or not UNCLOSED.match(each)
    ]
    # asyncio often says nothing of the cause of its own exceptions.
    theirs.cause = theirs.cause or ours.cause
    if str(case) in DELIBERATE:
        assert ours != theirs
    else:
        assert ours == theirs


@pytest.mark.parametrize("case", STOCK_ONLY, ids=str)
def test_bad_input_of_what_is_to_come_fails_on_asyncio(case: Case, tmp_path: Path) -> None:
    outcome = observe(case, asyncio.SelectorEventLoop, tmp_path)
    assert outcome.ended.startswith("raised")


def test_the_tables_name_every_call_once() -> None:
    names = [f"{subject}: {case}" for subject, case in EVERY]
    assert len(names) == len(set(names))
    assert {str(case) for _, case in EVERY} >= DELIBERATE.keys()
