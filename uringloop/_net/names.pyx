"""Questions to the C library's resolver, asked in threads that need no GIL.

A loop has one object `Names`. It answers at once what needs no look-up: numeric hosts with
numeric ports. Other questions go to threads (name_threads.h), and equal ones share an answer while
it is awaited. Only the loop's thread may call this module. The other threads run `tell`, and
`forget` if they collect a coroutine.
"""

import socket
import sys

cimport cython
from cpython.exc cimport PyErr_SetFromErrno
from cpython.long cimport PyLong_Check, PyLong_CheckExact
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc cimport errno
from libc.stdlib cimport calloc
from libc.string cimport memcpy, strdup

from uringloop._cpython.pyapi cimport PyContext_New, PyUnicode_DecodeLocale
from uringloop._kernel.addresses cimport python_address
from uringloop._kernel.libc cimport AF_INET, AF_INET6, SOCK_DGRAM, htonl, sockaddr_in6
from uringloop._ring.ring cimport PROCESS
from uringloop._turn.handles cimport Handle, fill
from uringloop._turn.inbox cimport Inbox
from uringloop._turn.turn cimport LoopCore


cdef tuple NO_ARGS = ()
cdef dict FAMILIES = {int(family): family for family in socket.AddressFamily}
cdef dict KINDS = {int(kind): kind for kind in socket.SocketKind}
cdef object GAIERROR = socket.gaierror
cdef object AUDIT = sys.audit
# The most bytes of a label of a name, as in IDNA.
cdef int LABEL_MAX = 63
cdef Py_ssize_t PORT_DIGITS = 5
cdef unsigned int FLOW_MAX = 0xfffff


@cython.final
cdef class Names:
    """The questions of one loop."""

    def __cinit__(self):
        self.queries = {}

    def __dealloc__(self):
        self.leave_threads()

    def addresses(self, LoopCore loop not None, host, port, family, type, proto, flags):
        """Do what socket.getaddrinfo() does.

        Return the addresses and the seconds that it took, or a Query that a thread answers. Return
        None if the socket module has to answer, which refuses or converts such arguments.
        """
        cdef Query query
        cdef name_query *asked
        cdef bytes name, service
        if not (is_text(host) and (is_text(port) or PyLong_CheckExact(port))
                and PyLong_Check(family) and PyLong_Check(type)
                and PyLong_Check(proto) and PyLong_Check(flags)):
            return None
        query = Query.__new__(Query)
        asked = query.asked
        try:
            asked.hints.ai_family = family
            asked.hints.ai_socktype = type
            asked.hints.ai_protocol = proto
            asked.hints.ai_flags = asked.flags = flags
            name = host_name(host)
            service = service_name(port)
        except OverflowError:
            return None
        if has_null(name) or has_null(service):
            return None
        AUDIT(
            "socket.getaddrinfo", host, port, asked.hints.ai_family, asked.hints.ai_socktype,
            asked.hints.ai_protocol)
        query.ask(name, service)
        if is_number(service) and may_be_numeric(name, asked.flags):
            asked.hints.ai_flags |= AI_NUMERICHOST
            name_resolve(asked)
            if asked.status != EAI_NONAME or name is None or asked.flags & AI_NUMERICHOST:
                return query.answer()
            asked.hints.ai_flags = asked.flags
        return self.in_flight(loop, query, (
            name, service, asked.hints.ai_family, asked.hints.ai_socktype,
            asked.hints.ai_protocol, asked.flags))

    def name(self, LoopCore loop not None, address, flags):
        """Do what socket.getnameinfo() does; return as `addresses` does."""
        cdef Query query = Query.__new__(Query)
        cdef name_query *asked = query.asked
        try:
            if not PyLong_Check(flags) or not read_address(query, address):
                return None
            asked.flags = flags
        except OverflowError:
            return None
        AUDIT("socket.getnameinfo", address)
        if asked.flags & NI_NUMERICHOST and asked.flags & NI_NUMERICSERV:
            name_resolve(asked)
            return query.answer()
        return self.in_flight(
            loop, query, ((<char*>&asked.address)[:asked.address_size], asked.flags))

    cdef object in_flight(self, LoopCore loop, Query query, tuple question):
        """Return *query*, which a thread then answers, or an equal one in flight."""
        cdef Query equal = self.queries.get(question)
        if equal is not None:
            return equal
        if self.threads == NULL:
            self.threads = name_open(
                <int (*)(void*, void*) noexcept nogil>tell, <void*>loop.inbox, PROCESS)
            if self.threads == NULL:
                raise MemoryError
        query.loop = loop
        query.queries = self.queries
        query.question = question
        query.waiters = {}
        self.queries[question] = query
        try:
            query.hand_over(self.threads)
        except BaseException:
            del self.queries[question]
            raise
        return query

    def close(self):
        """Leave the queries in flight to the threads: nobody waits for an answer."""
        cdef Query query
        for query in self.queries.values():
            query.leave()
        self.queries.clear()
        self.leave_threads()

    cdef void leave_threads(self) noexcept:
        if self.threads != NULL and not is_inherited(self.threads):
            name_close(self.threads)
        self.threads = NULL


@cython.final
cdef class Query:
    """A question to the resolver, and all who wait for the answer."""

    def __cinit__(self):
        self.asked = <name_query*>calloc(1, sizeof(name_query))
        if self.asked == NULL:
            raise MemoryError

    def __dealloc__(self):
        # The query has no handle, which would keep this object alive.
        if self.asked != NULL and not is_inherited(self.asked.threads):
            name_leave(self.asked)

    cdef int ask(self, bytes host, bytes service) except -1:
        """Set the question for getaddrinfo()."""
        if host is not None:
            self.asked.host = strdup(host)
            if self.asked.host == NULL:
                raise MemoryError
        if service is not None:
            self.asked.service = strdup(service)
            if self.asked.service == NULL:
                raise MemoryError
        return 0

    cdef int hand_over(self, name_threads *threads) except -1:
        """Have a thread find the answer."""
        # Made here, so that no lack of memory can lose the answer.
        cdef Handle handle = fill(
            self.loop.new_handle(), self.loop, self, NO_ARGS, PyContext_New())
        Py_INCREF(handle)
        self.asked.handle = <void*>handle
        if name_ask(threads, self.asked) < 0:
            self.leave()
            raise RuntimeError("can't start new thread")
        return 0

    def new_waiter(self):
        """Return a future of the addresses, or the name, and the seconds that it took."""
        cdef object waiter = self.loop.create_future()
        self.waiters[waiter] = None
        return waiter

    def forget(self, waiter):
        """Forget *waiter*. If it was the last one and no thread has the question, withdraw it."""
        cdef void *handle
        # Without a GIL, a coroutine may be collected in another thread while the answer comes.
        with cython.critical_section(self):
            self.waiters.pop(waiter, None)
            if self.waiters or self.asked == NULL or is_inherited(self.asked.threads):
                return
            handle = name_withdraw(self.asked)
            if handle != NULL:
                self.asked = NULL
                del self.queries[self.question]
                self.drop(handle)

    def __call__(self):
        """Give the answer to all who wait for it, when a thread has told the loop."""
        cdef object failure = None
        with cython.critical_section(self):
            assert self.asked != NULL, "a query that was withdrawn is answered"
            del self.queries[self.question]
            for waiter in list(self.waiters):
                try:
                    self.resolve(waiter)
                except BaseException as exc:
                    failure = exc
            self.leave()
        if failure is not None:
            raise failure

    cdef int resolve(self, waiter) except -1:
        cdef object answer
        if waiter.done():
            return 0
        try:
            answer = self.answer()
        except Exception as exc:
            waiter.set_exception(exc)
        else:
            waiter.set_result(answer)
        return 0

    cdef object answer(self):
        """Return what the socket module returns, and how long it took; or raise its exception."""
        cdef name_query *asked = self.asked
        if asked.status == EAI_SYSTEM:
            errno.errno = asked.error
            PyErr_SetFromErrno(OSError)
        if asked.status:
            raise GAIERROR(
                asked.status,
                PyUnicode_DecodeLocale(gai_strerror(asked.status), "surrogateescape"))
        if asked.address_size:
            return (asked.found_host.decode(), asked.found_service.decode()), asked.took_s
        return list_of(asked.found), asked.took_s

    cdef int leave(self) except -1:
        """Do not use the query any more; a thread may."""
        cdef name_query *asked = self.asked
        self.asked = NULL
        # A forked child cannot know whether the handle is in the inbox.
        return 0 if is_inherited(asked.threads) else self.drop(name_leave(asked))

    cdef int drop(self, void *handle) except -1:
        """Drop a handle that no inbox has."""
        if handle != NULL:
            (<Handle>handle).callback = None
            Py_DECREF(<Handle>handle)
        return 0


cdef bint is_inherited(const name_threads *threads) noexcept:
    """Return whether the threads, if there are any, are a parent's, which this process forked."""
    return threads != NULL and threads.process != PROCESS


cdef int tell(Inbox inbox, Handle handle) noexcept nogil:
    # A handle refers to its loop, and so to the inbox, until it has run.
    return inbox.put(handle)


# ── questions ────────────────────────────────────────────────────────────────────────────────


cdef bint is_text(object argument) noexcept:
    return argument is None or type(argument) is str or type(argument) is bytes


cdef bytes host_name(object host):
    """Return the bytes of a host, which the socket module encodes by IDNA."""
    cdef bytes name
    if type(host) is not str:
        return host
    if (<str>host).isascii():
        name = (<str>host).encode("ascii")
        if has_usual_labels(name):
            # The codec returns the same, in 2 us.
            return name
    return (<str>host).encode("idna")


cdef bint has_usual_labels(bytes name) noexcept:
    cdef unsigned char letter
    cdef int length = 0
    for letter in name:
        if letter == c".":
            if not 0 < length <= LABEL_MAX:
                return False
            length = 0
        else:
            length += 1
    return length <= LABEL_MAX


cdef bytes service_name(object port):
    cdef long number
    if PyLong_CheckExact(port):
        number = port
        return b"%d" % number
    return (<str>port).encode() if type(port) is str else port


cdef bint has_null(bytes text) noexcept:
    return text is not None and b"\0" in text


cdef bint may_be_numeric(bytes host, int flags) noexcept:
    """Return whether *host* may need no resolver: None stands for the loopback addresses."""
    cdef unsigned char last
    if flags & AI_ADDRCONFIG:
        # The C library reads all addresses of this machine.
        return False
    if host is None or flags & AI_NUMERICHOST:
        return True
    if not host:
        return False
    # No top-level domain ends in a digit.
    last = host[len(host) - 1]
    return c"0" <= last <= c"9" or b":" in host


cdef bint is_number(bytes service) noexcept:
    """Return whether *service* is a port, which the C library does not look up."""
    return service is None or len(service) <= PORT_DIGITS and service.isdigit()


cdef bint read_address(Query query, address) except -1:
    """Read the tuple of a numeric host, a port and more; return False for any other."""
    cdef name_query *asked = query.asked
    cdef addrinfo *found
    cdef int port
    cdef unsigned int flow = 0
    cdef unsigned int scope = 0
    if type(address) is not tuple or not 2 <= len(address) <= 4:
        return False
    for number in address[1:]:
        if not PyLong_CheckExact(number):
            return False
    if type(address[0]) is not str or not address[0].isascii() or "\0" in address[0]:
        return False
    port = address[1]
    if len(address) > 2:
        flow = address[2]
    if len(address) > 3:
        scope = address[3]
    asked.hints.ai_flags = AI_NUMERICHOST
    asked.hints.ai_socktype = SOCK_DGRAM
    query.ask(address[0].encode(), b"%d" % port)
    name_resolve(asked)
    found = asked.found
    if found == NULL or found.ai_next != NULL or flow > FLOW_MAX:
        return False
    if found.ai_family != AF_INET6 and (found.ai_family != AF_INET or len(address) != 2):
        return False
    memcpy(&asked.address, found.ai_addr, found.ai_addrlen)
    asked.address_size = found.ai_addrlen
    if found.ai_family == AF_INET6:
        asked.address.sin6_flowinfo = htonl(flow)
        asked.address.sin6_scope_id = scope
    asked.found = NULL
    freeaddrinfo(found)
    return True


# ── answers ──────────────────────────────────────────────────────────────────────────────────


cdef list list_of(const addrinfo *found):
    """Return what socket.getaddrinfo() returns."""
    cdef list answer = []
    while found != NULL:
        answer.append((
            FAMILIES.get(found.ai_family, found.ai_family),
            KINDS.get(found.ai_socktype, found.ai_socktype),
            found.ai_protocol,
            "" if found.ai_canonname == NULL else found.ai_canonname.decode(),
            python_address(<const sockaddr_in6*>found.ai_addr)))
        found = found.ai_next
    return answer
