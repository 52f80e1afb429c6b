"""TLS faults in each state of a connection, compared with what a program sees on asyncio.

`python benchmarks/faults --child tls_resets --loops uvloop` prints what the program sees in each
case.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import itertools
import ssl
from collections.abc import Iterable
from typing import Any

from parity.probes import CERTIFICATE

from .common import Factory, Fault
from .tls_cases import Case, PeerFault, compare
from .tls_peers import (
    BEFORE,
    CLOSED,
    CONNECTED,
    HANDSHAKE,
    LITTLE,
    PAUSED,
    USED,
    alerts,
    answers,
    damages_a_record,
    deaf,
    ends,
    ends_in_a_record,
    notifies,
    notifies_and_ends,
    notifies_and_goes_on,
    notifies_and_resets,
    notifies_and_sends_garbage,
    renegotiates,
    resets,
    sends_garbage,
    sends_http,
    shakes_hands,
    silent,
    updates_keys,
)

SIDES = ("client", "server")
KINDS = ("protocol", "buffered", "streams", "start_tls")


def cases(
    faults: Iterable[PeerFault], states: Iterable[str], kinds: Iterable[str] = KINDS, **more: Any
) -> list[Case]:
    """Return a case for each combination."""
    found = []
    for fault, state, kind, side in itertools.product(faults, states, kinds, SIDES):
        case = Case(state, fault, kind, side, **more)
        if state in CLOSED and "before" not in more:
            case.before = 0
        if state == "made" and side == "client" and not case.version:
            # With TLS 1.3 a client's handshake ends before its peer may send data.
            case.version = "TLSv1_2"
        found.append(case)
    return found


def tls_resets(factory: Factory) -> str:
    """TLS: a reset in each state."""
    used = cases([resets], HANDSHAKE + USED, before=LITTLE)
    return compare(factory, used + cases([resets], CLOSED))


def tls_ends(factory: Factory) -> str:
    """TLS: an EOF without close_notify in each state, after a record or in the middle of one."""
    whole = cases([ends], HANDSHAKE + CONNECTED)
    return compare(factory, whole + cases([ends_in_a_record], CONNECTED))


def tls_no_records(factory: Factory) -> str:
    """TLS: bytes that are not a record, an HTTP request, or a damaged record, in each state."""
    faults = (sends_garbage, sends_http, damages_a_record)
    return compare(factory, cases(faults, HANDSHAKE + USED, before=LITTLE) + cases(faults, CLOSED))


def tls_alerts(factory: Factory) -> str:
    """TLS: a fatal alert in each state."""
    used = cases([alerts], HANDSHAKE + USED, before=LITTLE)
    return compare(factory, used + cases([alerts], CLOSED))


def tls_silence(factory: Factory) -> str:
    """TLS: a handshake that never goes on; a close_notify that the peer does not answer, or does
    not even read.
    """
    closed = cases([silent, deaf], USED, act="close", before=0)
    return compare(factory, cases([silent], HANDSHAKE) + cases([silent, deaf], CLOSED) + closed)


def tls_notifications(factory: Factory) -> str:
    """TLS: a close_notify in each state, alone or followed by data, garbage, an EOF or a reset."""
    faults = (notifies, notifies_and_ends, notifies_and_goes_on, notifies_and_sends_garbage)
    found = cases(faults, CONNECTED) + cases([notifies_and_resets], CLOSED)
    return compare(factory, found + cases([notifies_and_resets], USED, before=LITTLE))


def tls_closed(factory: Factory) -> str:
    """TLS: `close()` in each state; during the handshake of `start_tls()`, `close()` of the
    underlying transport.
    """
    closed = cases([answers], USED, act="close", before=0)
    closed += cases([silent], HANDSHAKE, ["start_tls"], act="close")
    return compare(factory, closed + cases([answers], CLOSED))


def tls_closed_before_data(factory: Factory) -> str:
    """TLS: after `close()`, data from a peer that answers close_notify, does not answer it, sends
    an EOF, or resets.
    """
    found = cases([answers, silent, ends], CLOSED, before=BEFORE)
    found += cases([resets], CLOSED, before=LITTLE)
    found += cases([answers], ("made",), act="close")
    kinds = ("protocol", "buffered", "start_tls")
    found += cases([answers, silent], ("reading paused",), kinds, act="close")
    # As if the data did not come.
    return compare(factory, found, [dataclasses.replace(case, before=0) for case in found])


def tls_aborted(factory: Factory) -> str:
    """TLS: `abort()` in each state; during the handshake of `start_tls()`, `abort()` of the
    underlying transport.
    """
    below = cases([silent], HANDSHAKE, ["start_tls"], act="abort")
    return compare(factory, below + cases([silent], CONNECTED, act="abort", before=0))


def tls_cancelled(factory: Factory) -> str:
    """TLS: `create_connection()` and `start_tls()` are cancelled in each state of the handshake."""
    found = cases([silent], HANDSHAKE, act="cancel")
    return compare(factory, [c for c in found if c.side == "client" or c.kind == "start_tls"])


def tls_single_bytes(factory: Factory) -> str:
    """TLS: all records arrive as single bytes."""
    return compare(factory, cases([notifies], ("made", "open"), before=2000, single=True))


def trusting_nobody(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def after_the_expiry(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    libcrypto = ctypes.CDLL(importlib.import_module("_ssl").__file__)
    libcrypto.SSL_CTX_get0_param.restype = ctypes.c_void_p
    # The pointer of the SSL_CTX is behind the object's head.
    pointer = ctypes.c_void_p.from_address(id(client) + object.__basicsize__)
    parameters = ctypes.c_void_p(libcrypto.SSL_CTX_get0_param(pointer))
    year_2200 = 230 * 365 * 24 * 3600
    libcrypto.X509_VERIFY_PARAM_set_time(parameters, ctypes.c_long(year_2200))


def wanting_a_certificate(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    server.verify_mode = ssl.CERT_REQUIRED


def presenting_a_servers_certificate(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(CERTIFICATE / "ca.pem")
    client.load_cert_chain(CERTIFICATE / "server.pem")


def without_a_version(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    client.minimum_version = ssl.TLSVersion.TLSv1_3


def without_a_cipher(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    server.set_ciphers("ECDHE+AESGCM")
    client.set_ciphers("ECDHE+CHACHA20")


def tls_refusals(factory: Factory) -> str:
    """TLS: a handshake is refused because of the name, the authority, the date, a wrong or missing
    client certificate, the version, or the cipher.
    """
    found = []
    for prepare, version in (
        (trusting_nobody, ""),
        (trusting_nobody, "TLSv1_2"),
        (after_the_expiry, ""),
        (wanting_a_certificate, ""),
        (wanting_a_certificate, "TLSv1_2"),
        (presenting_a_servers_certificate, ""),
        (presenting_a_servers_certificate, "TLSv1_2"),
        (without_a_version, "TLSv1_2"),
        (without_a_cipher, "TLSv1_2"),
    ):
        name = f"{prepare.__name__} {version}"
        found += cases([shakes_hands], ["refused"], version=version, prepare=prepare, name=name)
    wrong = cases([shakes_hands], ["refused"], host="example.org", name="wrong name")
    return compare(factory, found + [case for case in wrong if case.side == "client"])


def tls_key_updates(factory: Factory) -> str:
    """TLS: a KeyUpdate before data and one after it, with the connection open or paused; the
    program writes afterwards.
    """
    states = ("open", *PAUSED)
    found = cases([updates_keys], states, act="write") + cases([updates_keys], USED[1:])
    return compare(factory, found)


def tls_renegotiations(factory: Factory) -> str:
    """TLS: the peer asks for a renegotiation."""
    return compare(factory, cases([renegotiates], ("open", *PAUSED), version="TLSv1_2"))


FAULTS: tuple[Fault, ...] = (
    tls_resets,
    tls_ends,
    tls_no_records,
    tls_alerts,
    tls_silence,
    tls_notifications,
    tls_closed,
    tls_closed_before_data,
    tls_aborted,
    tls_cancelled,
    tls_single_bytes,
    tls_refusals,
    tls_key_updates,
    tls_renegotiations,
)
