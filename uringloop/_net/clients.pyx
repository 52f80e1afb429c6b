"""Clients: create_connection, create_unix_connection, connect_accepted_socket.

This module is compiled because a client that keeps no connections open makes one for each request.
"""

import collections
import functools
import itertools
import os
import socket
from asyncio import staggered
from asyncio.log import logger

cimport cython

from uringloop._kernel.libc cimport AF_INET
from uringloop._net.sock_calls cimport is_numeric
from uringloop._turn.turn cimport LoopCore

from uringloop._net.argument_checks import bind_failure, check_socket, check_stream
from uringloop._net.resolver import ensure_resolved
from uringloop._net.stream_transport import make_stream
from uringloop._tls import upgrade

cdef object INET = socket.AF_INET
cdef object STREAM = socket.SOCK_STREAM
cdef object TCP = socket.IPPROTO_TCP


async def create_connection(
        LoopCore loop not None, protocol_factory, host, port, *, family, proto, flags, sock,
        local_addr, happy_eyeballs_delay, interleave, all_errors, tls_options):
    cdef Protocols protocols
    if host is not None or port is not None:
        if sock is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
        infos = await resolved(loop, (host, port), family, proto, flags)
        local_infos = None
        if local_addr is not None:
            local_infos = await resolved(loop, local_addr, family, proto, flags)
        if happy_eyeballs_delay is not None and interleave is None:
            interleave = 1
        if interleave:
            infos = interleaved(infos, interleave)
        sock = await connect_first(loop, infos, local_infos, happy_eyeballs_delay, all_errors)
        protocols = make_or_close(loop, protocol_factory, tls_options, sock)
    else:
        if sock is None:
            raise ValueError("host and port was not specified and no sock specified")
        check_stream(sock)
        protocols = make_protocols(loop, protocol_factory, tls_options)
    transport = await open_transport(loop, sock, protocols)
    if loop.in_debug_mode():
        logger.debug("%r connected to %s:%r: (%r, %r)", sock, host, port, transport, protocols.app)
    return transport, protocols.app


async def create_unix_connection(
        LoopCore loop not None, protocol_factory, path, *, sock, tls_options):
    cdef Protocols protocols
    if path is not None:
        if sock is not None:
            raise ValueError("path and sock can not be specified at the same time")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, os.fspath(path))
        except BaseException:
            sock.close()
            raise
        protocols = make_or_close(loop, protocol_factory, tls_options, sock)
    else:
        if sock is None:
            raise ValueError("no path and sock were specified")
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
            raise ValueError(f"A UNIX Domain Stream Socket was expected, got {sock!r}")
        protocols = make_protocols(loop, protocol_factory, tls_options)
    return await open_transport(loop, sock, protocols), protocols.app


async def connect_accepted_socket(
        LoopCore loop not None, protocol_factory, sock, tls_options):
    cdef Protocols protocols
    check_stream(sock)
    check_socket(sock)
    protocols = make_protocols(loop, protocol_factory, tls_options)
    transport = await open_transport(loop, sock, protocols)
    if loop.in_debug_mode():
        logger.debug("%r handled: (%r, %r)", sock, transport, protocols.app)
    return transport, protocols.app


# ── from a socket to a transport ─────────────────────────────────────────────────────────────


@cython.final
cdef class Protocols:
    # The protocols of a connection.
    cdef object app         # the program's
    cdef object tls         # the SSLProtocol below it, or None
    cdef object waiter      # resolved after connection_made(), or at the end of the TLS handshake


cdef Protocols make_protocols(LoopCore loop, object protocol_factory, object tls_options):
    """Create the protocols. Raises the exceptions for invalid TLS arguments."""
    cdef Protocols made = Protocols.__new__(Protocols)
    made.app = protocol_factory()
    made.waiter = loop.create_future()
    if tls_options is not None:
        made.tls = upgrade.wrap(loop, made.app, tls_options, made.waiter)
    return made


cdef Protocols make_or_close(
        LoopCore loop, object protocol_factory, object tls_options, object sock):
    """Create the protocols; close *sock* if that raises."""
    try:
        return make_protocols(loop, protocol_factory, tls_options)
    except BaseException:
        sock.close()
        raise


async def open_transport(LoopCore loop, sock, Protocols protocols):
    """Create the transport of a connected socket, which it owns, and wait until it is open."""
    try:
        sock.setblocking(False)
        if protocols.tls is None:
            transport = make_stream(loop, sock, protocols.app, protocols.waiter)
        else:
            make_stream(loop, sock, protocols.tls)
            transport = upgrade.app_transport(protocols.tls)
    except BaseException:
        # No transport owns the socket.
        sock.close()
        raise
    try:
        await protocols.waiter
    except BaseException:
        transport.close()
        raise
    return transport


# ── addresses ────────────────────────────────────────────────────────────────────────────────


async def resolved(LoopCore loop, address, family, proto, flags):
    """Return the addresses of a host and port. Raises OSError if there are none."""
    if (family == 0 or family == AF_INET) and proto == 0 and is_numeric(AF_INET, address):
        return [(INET, STREAM, TCP, "", address)]
    infos = await ensure_resolved(
        loop, address, family=family, type=STREAM, proto=proto, flags=flags)
    if not infos:
        raise OSError("getaddrinfo() returned empty list")
    return infos


def interleaved(infos, first_count):
    """Alternate the families of *infos*, the first family leading by *first_count*."""
    by_family = collections.OrderedDict()
    for info in infos:
        by_family.setdefault(info[0], []).append(info)
    groups = list(by_family.values())
    leading = []
    if first_count > 1:
        leading = groups[0][: first_count - 1]
        del groups[0][: first_count - 1]
    return leading + [
        info for group in itertools.zip_longest(*groups) for info in group if info is not None]


# ── happy eyeballs ───────────────────────────────────────────────────────────────────────────


async def connect_first(LoopCore loop, infos, local_infos, delay, all_errors):
    """Return the first socket that connects.

    Attempts start *delay* seconds apart; without a delay, one starts when the last has failed.
    """
    failures = []
    sock = None
    if delay is None:
        for info in infos:
            try:
                sock = await connect_one(loop, failures, info, local_infos)
                break
            except OSError:
                continue
    else:
        attempts = [
            functools.partial(connect_one, loop, failures, info, local_infos) for info in infos]
        # The race's other results are not kept: they refer to the exceptions.
        sock = (await staggered.staggered_race(attempts, delay, loop=loop))[0]
    try:
        if sock is not None:
            return sock
        raise combined([exc for group in failures for exc in group], all_errors)
    finally:
        # The exceptions and their frames refer to each other.
        failures.clear()


cdef object combined(list failures, all_errors):
    if all_errors:
        return ExceptionGroup("create_connection failed", failures)
    if not failures:
        return TimeoutError("create_connection failed")
    if len({str(exc) for exc in failures}) == 1:
        return failures[0]
    return OSError("Multiple exceptions: {}".format(", ".join(map(str, failures))))


async def connect_one(LoopCore loop, list failures, info, local_infos):
    cdef list mine = []
    failures.append(mine)
    family, kind, proto, _, address = info
    sock = None
    try:
        sock = socket.socket(family, kind, proto)
        sock.setblocking(False)
        if local_infos is not None:
            bind_local(sock, local_infos, mine)
        await loop.sock_connect(sock, address)
        return sock
    except OSError as exc:
        mine.append(exc)
        if sock is not None:
            sock.close()
        raise
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    finally:
        # The exceptions and this frame refer to each other.
        failures = mine = None


cdef int bind_local(object sock, object local_infos, list failures) except -1:
    """Bind to the first available local address of the socket's family."""
    family = sock.family
    for local_family, _, _, _, address in local_infos:
        if local_family != family:
            continue
        try:
            sock.bind(address)
            return 0
        except OSError as exc:
            failures.append(OSError(exc.errno, bind_failure(address, exc)))
    if failures:
        raise failures.pop()
    raise OSError(f"no matching local address with {family=} found")
