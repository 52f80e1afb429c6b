"""Parts of the standard library that compiled code replaces, and the switches of these parts.

`tests/cpython/relied_on.py` lists all private names that uringloop uses. Some serve compiled code
that does the work of slower code in the standard library: each such replacement is a part here. A
part is used if the standard library has the shape that the replacement was written for, and if
`URINGLOOP_DISABLE` does not name it. The shape is examined once, when this module is imported; the
variable is read whenever a loop is made (`_ring/backends.py`). Otherwise the standard library's own
code runs.

This module also records what asyncio does on the running Python where versions differ, bug-fix
releases included. Any thread may call its functions.
"""

import _ssl
import asyncio
import os
import socket
import ssl
import sys
import weakref
from asyncio import events, selector_events, streams, tasks, unix_events
from concurrent.futures import thread
from types import BuiltinFunctionType, FunctionType, ModuleType

cimport cython
from cpython.object cimport PyObject
from libc.string cimport memcpy

from uringloop._cpython.membio cimport (
    membio_borrow,
    membio_find,
    membio_give_back,
    membio_lend,
    membio_memory,
    membio_memory_of,
    membio_pending,
    membio_return,
    membio_show,
    membio_unread,
)
from uringloop._cpython.pyapi cimport FREE_THREADED


cdef extern from *:
    """
    #include <structmember.h>

    /* Returns the offset of a slot (a name in a class's __slots__) in the objects of the class,
     * from the slot's descriptor; 0 for anything but such a descriptor. */
    static inline Py_ssize_t uringloop_slot_offset(PyObject *descriptor) {
        return Py_IS_TYPE(descriptor, &PyMemberDescr_Type)
            ? ((PyMemberDescrObject *)descriptor)->d_member->offset : 0;
    }
    /* Returns the content of that slot, borrowed, or NULL. */
    static inline PyObject *uringloop_slot(PyObject *object, Py_ssize_t offset) {
        return *(PyObject **)((char *)object + offset);
    }
    static inline void uringloop_set_slot(PyObject *object, Py_ssize_t offset, PyObject *value) {
        PyObject **slot = (PyObject **)((char *)object + offset);
        PyObject *old = *slot;

        *slot = Py_NewRef(value);
        Py_XDECREF(old);
    }
    """
    Py_ssize_t slot_offset "uringloop_slot_offset" (object descriptor)
    PyObject *slot "uringloop_slot" (object target, Py_ssize_t offset)
    void set_slot "uringloop_set_slot" (object target, Py_ssize_t offset, object value)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────

# The names that each function uses, from 3.11 on; those of IGNORED are left out.
STREAMS_SHAPE = {
    "StreamReaderProtocol.data_received": {"_stream_reader", "feed_data"},
    "StreamReaderProtocol._stream_reader": {"_stream_reader_wr"},
    "StreamReader.feed_data": {
        "_eof", "_buffer", "extend", "_wakeup_waiter", "_transport", "_paused", "len", "_limit",
        "pause_reading", "NotImplementedError",
    },
    "StreamReader._wakeup_waiter": {"_waiter", "cancelled", "set_result"},
}
# For versions up to 3.13. Later ones keep no list of what is to be removed.
WEAK_SET_SHAPE = {
    "WeakSet.__init__": {
        "set", "data", "ref", "_remove", "_pending_removals", "_iterating", "update",
    },
    "WeakSet.add": {"_pending_removals", "_commit_removals", "data", "add", "ref", "_remove"},
    "WeakSet._commit_removals": {"_pending_removals", "pop", "data", "discard", "IndexError"},
}
# An assert statement names AssertionError before 3.14.
IGNORED = {"AssertionError"}


def find(target, path):
    """Return the attribute of *target* that a dotted *path* names; None if there is none."""
    for name in path.split("."):
        target = getattr(target, name, None)
    return target


def code_of(target, path):
    """Return the code of a function, or of a property's getter; None if that is not Python code."""
    function = find(target, path)
    return getattr(getattr(function, "fget", function), "__code__", None)


def has_shape(target, shape):
    """Return whether each function of *shape* uses the names that it is known to use."""
    for path, names in shape.items():
        code = code_of(target, path)
        if code is None or set(code.co_names) - IGNORED != names:
            return False
    return True


cdef tuple variables(object target, str path):
    """Return the names of a function's arguments and local variables."""
    code = code_of(target, path)
    return () if code is None else code.co_varnames


@cython.final
cdef class Original:
    """A function of a module or a class that compiled code stands for, while nobody changes it.

    Tests, tracers and gevent put a function of their own in its place (`setattr`, wrapt), or change
    its code (ddtrace). Such a program expects the function to be called.
    """

    def __init__(self, owner, str name, str uses=None):
        """*uses*: a name that occurs in the code of this function, but hardly in another's."""
        home = owner if isinstance(owner, ModuleType) else sys.modules[owner.__module__]
        self.places = vars(owner)
        self.name = name
        self.function = function = self.places.get(name)
        self.code = getattr(function, "__code__", None)
        # A wrapper passes on the attributes of what it wraps, but has a type of its own.
        self.was_own = type(function) is BuiltinFunctionType or (
            type(function) is FunctionType and function.__globals__ is vars(home)
            and (uses is None or uses in function.__code__.co_names))

    cpdef bint is_in_place(self) except -1:
        """Return whether the owner has it, as the standard library defines it."""
        function = self.function
        return (self.was_own and self.places.get(self.name) is function
                and (self.code is None or function.__code__ is self.code))


cdef bint uses_name(object target, str path, str name) except -1:
    code = code_of(target, path)
    return code is not None and name in code.co_names


cdef bint says(object target, str path, str words) except -1:
    """Return whether *words* are part of a text in a function's code."""
    code = code_of(target, path)
    if code is None:
        return False
    return any([words in constant for constant in code.co_consts if type(constant) is str])


def variable(str name):
    """Return the text of an environment variable without blanks around it; "" if it is not set.

    `os.environ.get` takes 1 us for a variable that is not set, and a new loop looks for seven.
    """
    values = getattr(os.environ, "_data", None)
    if type(values) is dict and name.encode() not in values:
        return ""
    return os.environ.get(name, "").strip()


# ── what differs between versions of asyncio ─────────────────────────────────────────────────

# start_tls() moves what a StreamReader already holds into TLS; before, that stays where it is.
START_TLS_MOVES_READ_AHEAD = uses_name(asyncio, "BaseEventLoop.start_tls", "_incoming")
# A cancelled serve_forever() closes the connections, since it waits for their end (3.14).
CANCEL_CLOSES_CLIENTS = uses_name(asyncio, "Server.serve_forever", "close_clients")
# The protocol of a server's streams keeps the writer, so that a connection stays open after the end
# of its handler. Since gh-114914 (3.11.9, 3.12.3, 3.13) a dropped writer closes it, with a warning.
PROTOCOL_KEEPS_WRITER = uses_name(
    streams, "StreamReaderProtocol.connection_made", "_stream_writer")
# What a server's plain function raises is reported like a coroutine's exception, and the connection
# is closed; before, it stays open until its writer is dropped (gh-155941: 3.16, 3.15.2, 3.14.10).
SERVERS_REPORT_CALLBACKS = uses_name(
    streams, "StreamReaderProtocol.connection_made", "Exception")
# sock_sendfile() sets the position of its file even if nothing was sent (gh-150107, Python 3.16
# and 3.14.10); the function that does so no longer gets the number of bytes that were sent.
SENDFILE_ALWAYS_MOVES = "total_sent" not in variables(
    unix_events, "_UnixSelectorEventLoop._sock_sendfile_update_filepos")


class IdleTransport:
    """The fields of a transport of asyncio's that writelines() uses when nothing is queued."""

    _eof = False
    _empty_waiter = None
    _conn_lost = 0
    _buffer_size = 0

    def __init__(self):
        self._buffer = []


cdef bint skips_false_items() except -1:
    """Return whether writelines() of this asyncio skips an item that is false; others refuse it."""
    writelines = find(selector_events, "_SelectorSocketTransport.writelines")
    if writelines is None:
        return True
    try:
        writelines(IdleTransport(), [None])
    except TypeError:
        return False
    except AttributeError:
        # It uses fields that no known version uses, so it is newer.
        pass
    return True


# Found by a trial, as the names are the same (gh-155888: 3.14.7 refuses them, 3.14.10 does not).
WRITELINES_SKIPS_FALSE = skips_false_items()
# writelines() joins and writes, and raises what join() and write() raise (until 3.11).
WRITELINES_JOINS = uses_name(selector_events, "_SelectorSocketTransport.writelines", "join")
# How a TypeError of write() names what it takes (another wording since 3.14).
WRITE_TAKES_BYTES_LIKE = says(
    selector_events, "_SelectorSocketTransport.write", "a bytes-like object")
# How asyncio.run() refuses what is no coroutine: with a ValueError in these words, until 3.13.
RUN_EXPECTS_COROUTINE = says(asyncio, "Runner.run", "a coroutine was expected")
# The message of a failed bind() repeats the errno (gh-121913: 3.12.5, 3.13).
BIND_SAYS_ERRNO = not uses_name(asyncio, "BaseEventLoop._connect_sock", "strerror")
# create_server() skips addresses that the machine does not have (3.12.5, 3.13).
SERVERS_SKIP_ADDRESSES = uses_name(asyncio, "BaseEventLoop.create_server", "EADDRNOTAVAIL")
# create_datagram_endpoint() takes every socket but a stream socket (gh-114887: 3.11.9, 3.12.3).
DATAGRAMS_OF_ANY_TYPE = uses_name(
    asyncio, "BaseEventLoop.create_datagram_endpoint", "SOCK_STREAM")
# wait_closed() of a closed server returns at once, whatever connections it has (until 3.12.0).
WAIT_CLOSED_IGNORES_CLIENTS = uses_name(asyncio, "Server.wait_closed", "_sockets")
# close() of a UNIX server removes its file (3.13).
CLOSE_REMOVES_FILE = "cleanup_socket" in variables(
    unix_events, "_UnixSelectorEventLoop.create_unix_server")
# An exception handler runs in the context of the task, future or handle that failed (3.12).
HANDLER_HAS_CONTEXT = uses_name(asyncio, "BaseEventLoop.call_exception_handler", "get_context")
# A forked child's signals are kept from the parent's loop (3.12).
FORK_KEEPS_SIGNALS = find(events, "on_fork") is not None


cdef bint sends_empty_datagrams() except -1:
    """Return whether sendto() of this asyncio sends an empty datagram, and counts headers."""
    sendto = find(selector_events, "_SelectorDatagramTransport.sendto")
    try:
        # Others return before they look at a field of the transport.
        sendto(None, b"")
    except (AttributeError, TypeError):
        return True
    return False


# Since 3.13. Before, sendto() ignores an empty datagram, and a queued one has no header.
EMPTY_DATAGRAMS_ARE_SENT = sends_empty_datagrams()


# ── a socket's fields ────────────────────────────────────────────────────────────────────────

# Access by attribute takes 700 of the 13,000 instructions of a socket call that waits.
cdef object IO_REFS = find(socket, "socket._io_refs")
cdef Py_ssize_t REFS_AT = slot_offset(IO_REFS)
cdef Py_ssize_t CLOSED_AT = slot_offset(find(socket, "socket._closed"))


cdef int add_io_refs(object sock, Py_ssize_t change) except -1:
    """Change the socket's count of files, which delays the effect of its close() until it is 0."""
    cdef PyObject *count
    if not uses(SOCKET_SLOTS):
        if IO_REFS is not None:
            sock._io_refs += change
        return 0
    count = slot(sock, REFS_AT)
    set_slot(sock, REFS_AT, change if count == NULL else <object>count + change)
    return 0


cdef bint is_closed(object sock) except -1:
    """Return whether close() has been called."""
    cdef PyObject *state
    if not uses(SOCKET_SLOTS):
        return getattr(sock, "_closed", False)
    state = slot(sock, CLOSED_AT)
    return state != NULL and <object>state


# ── the set of all tasks ─────────────────────────────────────────────────────────────────────

# The set that holds the tasks of asyncio's class in C. It is `_all_tasks` on 3.11, and has another
# name later. From 3.14 on these tasks are in a list of their own, and the set is for other classes.
ALL_TASKS = find(tasks, "_all_tasks")
if ALL_TASKS is None:
    ALL_TASKS = find(tasks, "_scheduled_tasks")


cdef bint task_set_is_known() except -1:
    """Return whether the set of all tasks is a WeakSet of the known shape, with a GIL."""
    return (
        not FREE_THREADED and type(ALL_TASKS) is weakref.WeakSet
        and has_shape(weakref, WEAK_SET_SHAPE))


# ── the queue of a thread pool ───────────────────────────────────────────────────────────────

cdef bint thread_pool_is_known() except -1:
    """Return whether a ThreadPoolExecutor uses its queue and its semaphore in the known way."""
    # A wrapper of submit() may have the code of what it wraps.
    return type(find(thread, "ThreadPoolExecutor.submit")) is FunctionType and all([
        uses_name(thread, path, name) for path, name in (
            ("ThreadPoolExecutor.submit", "_work_queue"),
            ("ThreadPoolExecutor.submit", "_adjust_thread_count"),
            ("ThreadPoolExecutor.shutdown", "_shutdown_lock"),
            ("ThreadPoolExecutor.shutdown", "put"),
            ("ThreadPoolExecutor._adjust_thread_count", "_idle_semaphore"),
            ("ThreadPoolExecutor._adjust_thread_count", "_threads"),
            ("ThreadPoolExecutor._adjust_thread_count", "_max_workers"),
            ("ThreadPoolExecutor._initializer_failed", "_broken"),
            ("_worker", "get"),
            ("_worker", "run"),
            ("_python_exit", "_global_shutdown_lock"),
            ("_python_exit", "_shutdown"),
            ("_python_exit", "put"),
        )
    ])


# ── parts and switches ───────────────────────────────────────────────────────────────────────

# The names that URINGLOOP_DISABLE accepts.
SWITCHES = {
    "bio_memory": BIO_MEMORY,
    "stream_reader": STREAM_READER,
    "socket_slots": SOCKET_SLOTS,
    "kept_bytes": KEPT_BYTES,
    "task_set": TASK_SET,
    "job_queue": JOB_QUEUE,
}


cdef bint bio_memory_is_known() except -1:
    """Return whether a trial shows that membio.h can lend memory to a MemoryBIO."""
    cdef membio_memory *own
    cdef object bio = ssl.MemoryBIO()
    cdef object path = getattr(_ssl, "__file__", None)
    if path is None or not membio_find(ssl.MemoryBIO, os.fsencode(path)):
        # For instance in an interpreter with OpenSSL built in.
        return False
    bio.write(b"own")
    if membio_pending(bio) != 3 or bio.read() != b"own":
        return False
    own = membio_borrow(bio)
    # Write twice, because a second loan must not see what the first one has left behind.
    works = reads_lent(bio, own) and writes_lent(bio, own) and writes_lent(bio, own)
    bio.write(b"own")
    membio_give_back(bio)
    return works and bio.read() == b"own"


cdef bint reads_lent(object bio, membio_memory *own) except -1:
    """Return whether *bio* reads lent memory in place."""
    cdef char[4] memory
    cdef membio_memory lent
    cdef char *rest
    memcpy(memory, b"lent", 4)
    membio_show(&lent, memory, 4)
    membio_lend(bio, &lent)
    found = bio.read(1)
    # In place: OpenSSL has not moved the rest to the front.
    in_place = membio_unread(bio, &rest) == 3 and rest == &memory[1]
    found += bio.read()
    membio_return(bio, own)
    return in_place and found == b"lent" and not membio_pending(bio)


cdef bint writes_lent(object bio, membio_memory *own) except -1:
    """Return whether *bio* writes to lent memory, and records there how much it has written."""
    cdef object other = ssl.MemoryBIO()
    cdef membio_memory *lent = membio_memory_of(other)
    membio_lend(bio, lent)
    bio.write(b"writ")
    bio.write(b"ten")
    membio_return(bio, own)
    return lent.data[:lent.length] == b"written" and not membio_pending(bio)


# Set while the module is loaded. KEPT_BYTES exists in every CPython.
cdef unsigned int present = KEPT_BYTES
cdef unsigned int disabled = 0

if bio_memory_is_known():
    present |= BIO_MEMORY
if has_shape(streams, STREAMS_SHAPE):
    present |= STREAM_READER
if REFS_AT and CLOSED_AT:
    present |= SOCKET_SLOTS
if task_set_is_known():
    present |= TASK_SET
if thread_pool_is_known():
    present |= JOB_QUEUE


cdef bint uses(unsigned int part) noexcept:
    """Return whether a part has the known shape and is not switched off."""
    return present & ~disabled & part != 0


def disable(names):
    """Switch off the parts of these *names* and switch on all others, from now on."""
    global disabled
    cdef unsigned int bits = 0
    for name in names:
        bits |= <unsigned int>SWITCHES[name]
    # Every new loop calls this, while other threads read the variable.
    if bits != disabled:
        disabled = bits


def report():
    """Return "used", "absent" or "disabled" for the name of each part."""
    return {
        name: "disabled" if disabled & <unsigned int>bit
        else "used" if uses(bit) else "absent"
        for name, bit in SWITCHES.items()
    }
