"""Passes TLS records to and from OpenSSL: an SSLObject between two MemoryBIOs.

A RecordFramer reads the headers of records, which are not encrypted, so that OpenSSL is called only
when a whole record is there: without one it raises an exception, which costs more than a record. A
Window is a bytes-like object over borrowed memory; a memoryview would take two allocations each
time.

Where memory can be lent to a BIO (`_cpython/membio.h`), OpenSSL reads records where they were
received and writes them to a Scratch, from which they are sent. Elsewhere records are processed one
by one, so that a connection's BIOs stay small and in the processor's cache. Only a connection that
keeps its records, because it is paused or has a BufferedProtocol, copies them as they come.

Nothing here uses asyncio or calls the program.
"""

import _ssl
import ssl

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.string cimport memcpy

from uringloop._cpython.membio cimport (
    membio_borrow,
    membio_give_back,
    membio_lend,
    membio_memory,
    membio_memory_of,
    membio_pending,
    membio_return,
    membio_show,
    membio_unread,
)
from uringloop._cpython.pyapi cimport (
    METH_O,
    METH_VARARGS,
    PyBytes_New,
    PyCFunction,
    PyObject_Vectorcall,
    Py_DECREF_owned,
    cut_bytes,
    function_of,
    raise_pending,
    take_bytes,
)
from uringloop._cpython.stdlib cimport BIO_MEMORY, uses
from uringloop._turn.turn cimport LoopCore

from uringloop._cpython.stdlib import find


cdef extern from "Python.h":
    Py_ssize_t size_of_long "PyLong_AsSsize_t" (PyObject *number) except? -1


cdef enum:
    # Type, version, length: RFC 8446, section 5.1.
    HEADER_SIZE = 5
    # TLS 1.3 allows a record 256 bytes more than its 16 KiB of plaintext. TLS 1.2 allows 2,048,
    # which no implementation uses.
    LENGTH_MAX = 16 * 1024 + 256
    # Header, type and tag of a record of TLS 1.3, except with the suite whose tag is shorter.
    OVERHEAD_1_3 = HEADER_SIZE + 1 + 16
SHORT_TAG = "CCM_8"
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)
cdef object OBJECT = ssl.SSLObject
cdef object ENGINE = find(_ssl, "_SSLSocket")
cdef object BIO = ssl.MemoryBIO
# The C functions of its methods, which take no new tuple of arguments for each call. NULL if a
# method takes its arguments in another way: then SSLObject's methods are called.
cdef PyCFunction read_function = function_of(find(_ssl, "_SSLSocket.read"), METH_VARARGS)
cdef PyCFunction write_function = function_of(find(_ssl, "_SSLSocket.write"), METH_O)
cdef object BIO_READ = ssl.MemoryBIO.read
cdef object BIO_WRITE = ssl.MemoryBIO.write


@cython.final
cdef class RecordFramer:

    cdef Py_ssize_t end_of_record(self, const char *data, Py_ssize_t size) noexcept:
        """Return how many of the next *size* bytes complete the current record; 0 if it continues.

        The framer advances by the number returned, or by *size* if that is 0.
        """
        cdef Py_ssize_t used = 0
        cdef Py_ssize_t length, missing
        if self.blind:
            return 0
        while self.tail + used < HEADER_SIZE:
            if used == size:
                self.tail += size
                return 0
            self.header[self.tail + used] = <unsigned char>data[used]
            used += 1
        length = (self.header[3] << 8) | self.header[4]
        # Types change_cipher_spec (20) to heartbeat (24), version SSL 3.0 or newer.
        if (self.header[0] < 20 or self.header[0] > 24 or self.header[1] != 3
                or length > LENGTH_MAX):
            self.blind = True
            self.tail = 0
            return 0
        missing = HEADER_SIZE + length - self.tail
        if missing > size:
            self.tail += size
            return 0
        self.tail = 0
        return missing


@cython.final
cdef class Window:

    cdef void show(self, const char *start, Py_ssize_t size) noexcept:
        """Set the memory that is read from."""
        self.start = <char*>start
        self.size = size
        self.readonly = True

    cdef void lend(self, char *start, Py_ssize_t size) noexcept:
        """Set the memory that is written to."""
        self.start = start
        self.size = size
        self.readonly = False

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, self.readonly, flags)


@cython.final
@cython.no_gc
cdef class BIOMemory:

    def __cinit__(self, bio):
        if type(bio) is not BIO or not uses(BIO_MEMORY):
            raise TypeError("memory cannot be lent to this BIO")
        self.bio = bio
        self.own = membio_borrow(bio)

    def __dealloc__(self):
        # Last of all, the BIO frees its memory.
        if self.own != NULL:
            membio_give_back(self.bio)

    cdef void lend(self, membio_memory *memory) noexcept:
        membio_lend(self.bio, memory)

    cdef void take_back(self) noexcept:
        membio_return(self.bio, self.own)


@cython.final
cdef class Scratch:

    def __cinit__(self):
        self.bio = BIO()
        self.memory = membio_memory_of(self.bio)

    cdef bytes rest(self, Py_ssize_t offset):
        """Return a copy of the records from *offset* on: the next call overwrites them."""
        return PyBytes_FromStringAndSize(
            self.memory.data + offset, <Py_ssize_t>self.memory.length - offset)


cdef int give_scratch(LoopCore loop, Scratch scratch) except -1:
    loop.tls_scratch = scratch
    return 0


@cython.final
cdef class Records:

    def __cinit__(self, context, server_side, server_hostname):
        self.incoming = BIO()
        self.outgoing = BIO()
        self.sslobj = context.wrap_bio(
            self.incoming, self.outgoing, server_side=server_side, server_hostname=server_hostname)
        self.framer = RecordFramer()
        # SSLObject's methods are in Python and only pass their arguments on. Another class may read
        # less than asked for, or keep what it is given: it is called as asyncio calls it. A class
        # that resumes sessions (tls.py) reads and writes as its base does.
        kind = type(self.sslobj)
        self.resumes = hasattr(kind, "_uringloop_base")
        self.is_stock = (
            read_function != NULL and write_function != NULL
            and kind.__dict__.get("_uringloop_base", kind) is OBJECT
            and type(getattr(self.sslobj, "_sslobj", None)) is ENGINE)
        self.engine = self.sslobj._sslobj if self.is_stock else self.sslobj
        self.framer.blind = not self.is_stock
        self.window = Window()
        # 0 stands for the size of the window.
        self.fill_arguments = (0, self.window)
        self.may_have_more = True

    cdef int learn_overhead(self) except -1:
        """Set `overhead`, by which `decrypt` knows the exact size of the plaintext.

        The bytes object that is made for it need not be reallocated then. TLS 1.2 may change its
        cipher later, and with it the overhead.
        """
        cdef object cipher = self.engine.cipher() if self.is_stock else None
        self.overhead = 0
        if cipher is not None and cipher[1] == "TLSv1.3" and SHORT_TAG not in cipher[0]:
            self.overhead = OVERHEAD_1_3
        return 0

    # ── receiving ────────────────────────────────────────────────────────────────────────────

    cdef int take_in(self, const char *data, Py_ssize_t size) except -1:
        """Pass bytes that the framer has seen to OpenSSL."""
        cdef PyObject *args[2]
        cdef PyObject *result
        self.check_not_lent()
        self.window.show(data, size)
        args[0] = <PyObject*>self.incoming
        args[1] = <PyObject*>self.window
        result = PyObject_Vectorcall(BIO_WRITE, args, 2, NULL)
        if result == NULL:
            raise_pending()
        Py_DECREF_owned(result)
        return 0

    cdef int take_in_all(self, const char *data, Py_ssize_t size) except -1:
        """Pass received bytes to OpenSSL, to be decrypted later."""
        cdef Py_ssize_t offset = 0
        cdef Py_ssize_t end
        while offset < size:
            end = self.framer.end_of_record(data + offset, size - offset)
            if end == 0:
                break
            offset += end
        self.may_have_more = True
        return self.take_in(data, size)

    cdef Py_ssize_t unread(self) except -1:
        """Return the number of unread bytes, without those of an incomplete record.

        asyncio's SSLProtocol does not count these either: there OpenSSL has read them from the BIO.
        """
        return max(0, pending(self.incoming) - self.framer.tail)

    cdef bint has_more(self) except -1:
        """Return whether OpenSSL may have plaintext; a read may still find none."""
        if not self.may_have_more or self.is_at_end():
            return False
        return self.unread() > 0 or self.engine.pending() > 0

    cdef Py_ssize_t left(self) except -1:
        """Return the number of bytes that `unread` counts, and of the plaintext in OpenSSL."""
        return self.unread() + <Py_ssize_t>self.engine.pending()

    cdef bint is_at_end(self) noexcept:
        """Return whether a read has found close_notify, or a record that fails."""
        return self.peer_closed or self.failure is not None

    cdef int end_read(self) except -1:
        """Process the exception that a read has set."""
        try:
            clear_want_read()
        except BaseException as exc:
            self.keep_failure(exc)
        return 0

    cdef int keep_failure(self, object exc) except -1:
        """Keep the exception of a read until the plaintext before it is delivered."""
        if isinstance(exc, Exception):
            self.failure = exc
            if self.resumes and isinstance(exc, ssl.SSLError):
                # Now: the program may abort the connection before it is told.
                self.sslobj.check_failure(exc)
            return 0
        # The plaintext of this read is lost.
        self.failure = ConnectionAbortedError("a read of TLS was interrupted")
        raise exc

    cdef int raise_failure(self) except -1:
        """Raise what a read has raised: the plaintext before it is delivered now."""
        cdef object failure = self.failure
        if failure is not None:
            self.failure = None
            raise failure
        return 0

    # ── decrypting ───────────────────────────────────────────────────────────────────────────

    cdef bytes decrypt(self, const char *data, Py_ssize_t size):
        """Take in *size* bytes; return the plaintext of the records that they complete."""
        cdef Py_ssize_t begun = self.framer.tail
        cdef Py_ssize_t end
        cdef bytes piece
        end = 0 if self.may_have_more else self.framer.end_of_record(data, size)
        if self.may_have_more or self.framer.blind:
            self.take_in_all(data, size)
            return self.decrypt_pending()
        # The size of the records is room enough: no plaintext is longer than its record.
        if end == size:
            if not begun and uses(BIO_MEMORY):
                self.lend(data, size)
                try:
                    return self.decrypt_one(size - self.overhead)
                finally:
                    self.take_back()
            self.take_in(data, size)
            return self.decrypt_one(begun + size - self.overhead)
        if end == 0:
            self.take_in(data, size)
            return None
        piece = self.decrypt_several(data, size, end, begun + size)
        if self.may_have_more:
            # The bytes that follow are not a record.
            return (piece or b"") + (self.decrypt_pending() or b"") or None
        return piece

    cdef bytes decrypt_one(self, Py_ssize_t room):
        """Return up to *room* bytes of plaintext; None if none yet, or at close_notify."""
        cdef PyObject *result
        cdef bytes data
        # An alert or a change_cipher_spec may be no longer than the overhead.
        room = max(1, room)
        if not self.is_stock:
            return self.read_other(room)
        if room != self.read_room:
            self.read_arguments = (room,)
            self.read_room = room
        result = read_function(<PyObject*>self.engine, <PyObject*>self.read_arguments)
        if result == NULL:
            # A record without application data: a session ticket, a key update.
            self.end_read()
            return None
        data = take_bytes(result)
        if not data:
            self.peer_closed = True
            return None
        return data

    cdef bytes decrypt_several(
            self, const char *data, Py_ssize_t size, Py_ssize_t end, Py_ssize_t room):
        """Take in *size* bytes; return the plaintext of several records, at most *room* bytes."""
        cdef PyObject *piece = PyBytes_New(NULL, room)
        cdef char *start = PyBytes_AS_STRING(<bytes>piece)
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t offset = 0
        try:
            while end and not self.is_at_end():
                # The first record cannot be lent if its beginning is in the BIO already.
                if (offset or room == size) and uses(BIO_MEMORY):
                    end = self.last_end(data + offset, size - offset, end)
                    filled += self.decrypt_lent(data + offset, end, start + filled, room - filled)
                    offset += end
                    break
                self.take_in(data + offset, end)
                offset += end
                filled += self.decrypt_into(start + filled, room - filled)
                end = self.framer.end_of_record(data + offset, size - offset)
            if offset < size:
                self.take_in(data + offset, size - offset)
                self.may_have_more = self.framer.blind
            # The object may be cut, because this is the only reference to it.
            cut_bytes(&piece, filled)
            return <bytes>piece if filled else None
        finally:
            Py_XDECREF(piece)

    cdef Py_ssize_t last_end(self, const char *data, Py_ssize_t size, Py_ssize_t end) noexcept:
        """Return the end of the last whole record; the first one ends at *end*."""
        cdef Py_ssize_t more = end
        while more:
            more = self.framer.end_of_record(data + end, size - end)
            end += more
        return end

    cdef Py_ssize_t decrypt_lent(
            self, const char *data, Py_ssize_t size, char *start, Py_ssize_t room) except -1:
        """Have OpenSSL read *size* bytes of whole records in place; return the plaintext's size."""
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t before = 0
        cdef Py_ssize_t left = size
        self.lend(data, size)
        try:
            while left and left != before and not self.is_at_end():
                filled += self.decrypt_into(start + filled, room - filled)
                before = left
                left = membio_pending(self.incoming)
        finally:
            self.take_back()
        return filled

    cdef int lend(self, const char *data, Py_ssize_t size) except -1:
        """Lend whole records to OpenSSL, in place, until `take_back`."""
        self.check_not_lent()
        assert not membio_pending(self.incoming)
        if self.memory_in is None:
            self.memory_in = BIOMemory(self.incoming)
        membio_show(&self.lent, data, size)
        self.memory_in.lend(&self.lent)
        self.is_lent = True
        return 0

    cdef int take_back(self) except -1:
        cdef char *rest
        cdef Py_ssize_t left = membio_unread(self.incoming, &rest)
        self.memory_in.take_back()
        self.is_lent = False
        if left:
            # OpenSSL does not read records after close_notify, or after a record that has failed.
            self.take_in(rest, left)
            self.may_have_more = not self.peer_closed
        return 0

    cdef int check_not_lent(self) except -1:
        """Refuse bytes that a callback of OpenSSL passes in: they would go to the lent memory."""
        if self.is_lent:
            raise RuntimeError("bytes came while OpenSSL was reading others")
        return 0

    cdef bytes decrypt_pending(self):
        """Return the plaintext of all that OpenSSL has, where the framer's count is not enough."""
        cdef list pieces = []
        cdef bytes piece
        cdef Py_ssize_t room
        while self.has_more():
            room = pending(self.incoming) + <Py_ssize_t>self.engine.pending()
            piece = self.decrypt_one(room)
            if piece is None:
                break
            pieces.append(piece)
        # If the bytes are not records, OpenSSL gets all of them and raises the error.
        self.may_have_more = self.framer.blind
        if len(pieces) > 1:
            return b"".join(pieces)
        return pieces[0] if pieces else None

    cdef Py_ssize_t decrypt_into(self, char *start, Py_ssize_t room) except -1:
        """Return the number of bytes decrypted to *start*; 0 if none yet, or at close_notify."""
        cdef PyObject *result
        cdef Py_ssize_t count
        if not self.is_stock:
            return self.read_other_into(start, room)
        self.window.lend(start, room)
        result = read_function(<PyObject*>self.engine, <PyObject*>self.fill_arguments)
        if result == NULL:
            self.end_read()
            return 0
        count = size_of_long(result)
        Py_DECREF_owned(result)
        if count == 0:
            self.peer_closed = True
        return count

    # What is no SSLObject of the `ssl` module is called with bytes objects only.

    cdef bytes read_other(self, Py_ssize_t room):
        """Return up to *room* bytes of plaintext; None if none yet, or at close_notify."""
        cdef bytes data
        try:
            data = bytes(memoryview(self.engine.read(room)))
        except AGAIN:
            return None
        except BaseException as exc:
            self.keep_failure(exc)
            return None
        if len(data) > room:
            raise ValueError(f"read({room}) has returned {len(data)} bytes")
        if not data:
            self.peer_closed = True
            return None
        return data

    cdef Py_ssize_t read_other_into(self, char *start, Py_ssize_t room) except -1:
        """Do what `decrypt_into` does."""
        cdef bytes data = self.read_other(room)
        if data is None:
            return 0
        memcpy(start, PyBytes_AS_STRING(data), len(data))
        return len(data)

    cdef Py_ssize_t write_other(self, bytes data) except -1:
        """Return the number of bytes encrypted; 0 if the object wants to read first."""
        cdef Py_ssize_t count
        try:
            count = self.engine.write(data)
        except AGAIN:
            return 0
        if not 0 <= count <= len(data):
            raise ValueError(f"write() of {len(data)} bytes has returned {count}")
        return count

    cdef Py_ssize_t fill(self, char *start, Py_ssize_t room) except -1:
        """Decrypt until nothing is left, or *room* is full; then more may be left."""
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t count
        while True:
            count = self.decrypt_into(start + filled, room - filled)
            filled += count
            if count > 0 and filled == room:
                self.may_have_more = True
                return filled
            if count == 0 or self.is_stock and not self.unread():
                self.may_have_more = self.framer.blind
                return filled

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    cdef Py_ssize_t encrypt(self, object data) except -1:
        """Return the number of bytes encrypted; 0 if OpenSSL wants to read first."""
        cdef PyObject *result
        cdef Py_ssize_t count
        if not self.is_stock:
            return self.write_other(data)
        result = write_function(<PyObject*>self.engine, <PyObject*>data)
        if result == NULL:
            clear_want_read()
            return 0
        count = size_of_long(result)
        Py_DECREF_owned(result)
        return count

    cdef Py_ssize_t encrypt_from(self, const char *data, Py_ssize_t size) except -1:
        """Encrypt like `encrypt`, from memory."""
        if not self.is_stock:
            return self.encrypt(PyBytes_FromStringAndSize(data, size))
        self.window.show(data, size)
        return self.encrypt(self.window)

    cdef Py_ssize_t encrypt_to(self, Scratch scratch, object data) except -1:
        """Encrypt like `encrypt`, to *scratch*; `outgoing` must be empty."""
        if self.memory_out is None:
            self.memory_out = BIOMemory(self.outgoing)
        scratch.memory.length = 0
        self.memory_out.lend(scratch.memory)
        try:
            return self.encrypt(data)
        finally:
            self.memory_out.take_back()

    cdef bytes encrypt_out(self, LoopCore loop, bytes data, Py_ssize_t *done):
        """Encrypt like `encrypt`; return the records, after those that `outgoing` has."""
        cdef Scratch scratch = self.take_scratch(loop)
        if scratch is None:
            done[0] = self.encrypt(data)
            return self.take_out()
        try:
            done[0] = self.encrypt_to(scratch, data)
            return loop.freelist.copy(scratch.memory.data, scratch.memory.length)
        finally:
            give_scratch(loop, scratch)

    cdef Scratch take_scratch(self, LoopCore loop):
        """Return a Scratch, the caller's until `give_scratch`.

        None if the records must go to `outgoing`: behind others, or because no memory can be lent.
        """
        cdef object scratch = loop.tls_scratch
        if not uses(BIO_MEMORY) or not self.is_stock or self.unsent():
            return None
        loop.tls_scratch = None
        return Scratch() if scratch is None else scratch

    cdef Py_ssize_t unsent(self) except -1:
        """Return the number of bytes in `outgoing`."""
        return pending(self.outgoing)

    cdef bytes take_out(self):
        """Remove and return all bytes in `outgoing`, maybe none."""
        cdef PyObject *argument = <PyObject*>self.outgoing
        cdef PyObject *result
        result = PyObject_Vectorcall(BIO_READ, &argument, 1, NULL)
        if result == NULL:
            raise_pending()
        return take_bytes(result)


cdef Py_ssize_t pending(object bio) except -1:
    """Return the number of bytes in a MemoryBIO."""
    return membio_pending(bio) if uses(BIO_MEMORY) else <Py_ssize_t>bio.pending


cdef int clear_want_read() except -1:
    """Clear SSLWantReadError and SSLSyscallError; raise any other exception."""
    if not PyErr_ExceptionMatches(AGAIN):
        raise_pending()
    PyErr_Clear()
    return 0


def framed(*pieces):
    """Return the sizes of the records in *pieces*, the bytes left, and whether all were valid."""
    cdef RecordFramer framer = RecordFramer()
    cdef bytes piece
    cdef Py_ssize_t used, begun, offset
    cdef list sizes = []
    for piece in pieces:
        offset = 0
        while offset < len(piece):
            begun = framer.tail
            used = framer.end_of_record(PyBytes_AS_STRING(piece) + offset, len(piece) - offset)
            if used == 0:
                break
            sizes.append(begun + used)
            offset += used
    return sizes, framer.tail, not framer.blind
