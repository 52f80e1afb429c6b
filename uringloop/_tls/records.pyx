"""TLS records, in and out of OpenSSL as the `ssl` module shows it: an object between two BIOs.

A RecordFramer reads the headers of records, which are in the clear, so that OpenSSL need not be
asked whether it has a whole one: its "no" is an exception, dearer than a record. A Window is a
bytes-like object over memory that somebody else owns: a memoryview is two allocations each time.

Where memory can be lent to a BIO (membio.h), OpenSSL reads records where they were received, and
writes them to a Scratch, from which they are sent. Elsewhere records pass one after the other, so
that what OpenSSL holds of a connection stays small, and in the cache.

Nothing here knows of asyncio, or calls a program.
"""

import _ssl
import ssl

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF

from uringloop._cpython.membio cimport (
    membio_lend,
    membio_memory,
    membio_memory_of,
    membio_pending,
    membio_return,
    membio_show,
    membio_unread,
)
from uringloop._cpython.pyapi cimport (
    PyBytes_New,
    PyBytes_Resize,
    Py_DECREF_owned,
    PyObject_Vectorcall,
    get_attribute,
    raise_pending,
    take_bytes,
)
from uringloop._cpython.stdlib cimport BIO_MEMORY, uses

from uringloop._cpython.stdlib import find


cdef extern from "Python.h":
    Py_ssize_t size_of_long "PyLong_AsSsize_t" (PyObject *number) except? -1


# type, version, length: RFC 8446, 5.1.
HEADER_SIZE = 5
# What TLS 1.3 allows a record beyond its 2**14 bytes of plaintext. 1.2 allows more, and no
# implementation makes use of it.
LENGTH_MAX = 2 ** 14 + 256

cdef Py_ssize_t HEADER = HEADER_SIZE
cdef Py_ssize_t LONGEST = LENGTH_MAX
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)
cdef object OBJECT = ssl.SSLObject
cdef object ENGINE = find(_ssl, "_SSLSocket")
cdef object BIO = ssl.MemoryBIO
# Found once: else each call looks the name up.
cdef object ENGINE_READ = find(_ssl, "_SSLSocket.read")
cdef object ENGINE_WRITE = find(_ssl, "_SSLSocket.write")
cdef object BIO_READ = ssl.MemoryBIO.read
cdef object BIO_WRITE = ssl.MemoryBIO.write
cdef object BIO_PENDING = ssl.MemoryBIO.pending
# Those that nobody uses: mostly one for each thread that ever runs a loop.
cdef list scratches = []


@cython.final
cdef class RecordFramer:

    cdef Py_ssize_t end_of_record(self, const char *data, Py_ssize_t size) noexcept:
        """Return how many of the next *size* bytes end the current record; 0 if they do not.

        In that case all of them are counted as seen, otherwise as many as were returned.
        """
        cdef Py_ssize_t used = 0
        cdef Py_ssize_t length, missing
        while self.tail + used < HEADER:
            if used == size:
                self.tail += size
                return 0
            self.header[self.tail + used] = <unsigned char>data[used]
            used += 1
        length = (self.header[3] << 8) | self.header[4]
        # change_cipher_spec to heartbeat, and any version from SSL 3.0 on.
        if (self.broken or self.header[0] < 20 or self.header[0] > 24 or self.header[1] != 3
                or length > LONGEST):
            self.broken = True
            self.tail = 0
            return 0
        missing = HEADER + length - self.tail
        if missing > size:
            self.tail += size
            return 0
        self.tail = 0
        return missing


@cython.final
cdef class Window:

    cdef void show(self, const char *start, Py_ssize_t size) noexcept:
        """Stand for memory to read from."""
        self.start = <char*>start
        self.size = size
        self.readonly = True

    cdef void lend(self, char *start, Py_ssize_t size) noexcept:
        """Stand for memory to write to."""
        self.start = start
        self.size = size
        self.readonly = False

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, self.readonly, flags)


@cython.final
cdef class Scratch:

    def __cinit__(self):
        self.bio = BIO()
        self.memory = membio_memory_of(self.bio)

    cdef bytes rest(self, Py_ssize_t offset):
        """Return the records from *offset* on, which soon are no longer here."""
        return PyBytes_FromStringAndSize(self.start + offset, self.size - offset)


cdef Scratch take_scratch():
    """Return one that is the caller's until `give_scratch`; None if memory can not be lent."""
    if not uses(BIO_MEMORY):
        return None
    return scratches.pop() if scratches else Scratch()


cdef int give_scratch(Scratch scratch) except -1:
    scratches.append(scratch)
    return 0


@cython.final
cdef class Records:

    def __cinit__(self):
        self.framer = RecordFramer()
        self.window = Window()
        self.unsure = True

    cdef int look(self, object sslobj) except -1:
        """Find out whether *sslobj* and the BIOs are what can be called without their names."""
        self.engine = sslobj._sslobj if type(sslobj) is OBJECT else None
        self.usual = (type(self.engine) is ENGINE
                      and type(self.incoming) is BIO and type(self.outgoing) is BIO)
        return 0

    # ── in ───────────────────────────────────────────────────────────────────────────────────

    cdef int take_in(self, const char *data, Py_ssize_t size) except -1:
        """Give OpenSSL bytes that have been framed."""
        self.check_not_lent()
        if type(self.incoming) is not BIO:
            # It may keep what it is given.
            self.incoming.write(PyBytes_FromStringAndSize(data, size))
            return 0
        self.window.show(data, size)
        Py_DECREF_owned(called(BIO_WRITE, self.incoming, <PyObject*>self.window))
        return 0

    cdef int take_in_all(self, const char *data, Py_ssize_t size) except -1:
        """Give OpenSSL bytes as they come, to be decrypted later."""
        cdef Py_ssize_t offset = 0
        cdef Py_ssize_t end
        while offset < size:
            end = self.framer.end_of_record(data + offset, size - offset)
            if end == 0:
                break
            offset += end
        self.unsure = True
        return self.take_in(data, size)

    cdef Py_ssize_t unread(self) except -1:
        """Return how many bytes have come and not been read, without the front of a record.

        OpenSSL would take that at once, and then it does not count.
        """
        return max(0, pending(self.incoming) - self.framer.tail)

    cdef bint has_more(self) except -1:
        """Return whether to ask OpenSSL for plaintext, which may still refuse."""
        if not self.unsure:
            return False
        return self.unread() > 0 or self.engine.pending() > 0

    cdef Py_ssize_t left(self) except -1:
        """Return how much there is, as records or as plaintext."""
        return self.unread() + <Py_ssize_t>self.engine.pending()

    # ── decrypting ───────────────────────────────────────────────────────────────────────────

    cdef bytes decrypt(self, const char *data, Py_ssize_t size):
        """Take in *size* bytes, and return the plaintext of the records that they end."""
        cdef Py_ssize_t begun = self.framer.tail
        cdef Py_ssize_t end
        cdef bytes piece
        if self.unsure:
            self.take_in_all(data, size)
            return self.decrypt_pending()
        end = self.framer.end_of_record(data, size)
        if self.framer.broken:
            self.take_in(data, size)
            self.unsure = True
            return self.decrypt_pending()
        # No plaintext is longer than its record.
        if end == size:
            if not begun and uses(BIO_MEMORY):
                self.lend(data, size)
                try:
                    return self.decrypt_one(size)
                finally:
                    self.take_back()
            self.take_in(data, size)
            return self.decrypt_one(begun + size)
        if end == 0:
            self.take_in(data, size)
            return None
        piece = self.decrypt_several(data, size, end, begun + size)
        if self.unsure:
            # What follows is no record.
            return (piece or b"") + (self.decrypt_pending() or b"") or None
        return piece

    cdef bytes decrypt_one(self, Py_ssize_t room):
        """Return up to *room* bytes of plaintext; None if there are none yet, or no more."""
        cdef object wanted = room
        cdef PyObject *result = called(ENGINE_READ, self.engine, <PyObject*>wanted)
        cdef bytes data
        if result == NULL:
            # A record of the protocol's own: a session ticket, new keys.
            return None
        data = take_bytes(result)
        if not data:
            self.peer_closed = True
            return None
        return data

    cdef bytes decrypt_several(
            self, const char *data, Py_ssize_t size, Py_ssize_t end, Py_ssize_t room):
        """Take in *size* bytes, and decrypt into *room* the records that they end."""
        cdef PyObject *piece = PyBytes_New(NULL, room)
        cdef char *start = PyBytes_AS_STRING(<bytes>piece)
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t offset = 0
        try:
            while end and not self.peer_closed:
                # In front of the first may be what the BIO has already.
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
                self.unsure = self.framer.broken
            # Nobody else has seen it yet.
            PyBytes_Resize(&piece, filled)
            return <bytes>piece if filled else None
        finally:
            Py_XDECREF(piece)

    cdef Py_ssize_t last_end(self, const char *data, Py_ssize_t size, Py_ssize_t end) noexcept:
        """Return where the last whole record ends, if the first does at *end*."""
        cdef Py_ssize_t more = end
        while more:
            more = self.framer.end_of_record(data + end, size - end)
            end += more
        return end

    cdef Py_ssize_t decrypt_lent(
            self, const char *data, Py_ssize_t size, char *start, Py_ssize_t room) except -1:
        """Have OpenSSL read whole records where they are; return how many bytes they were."""
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t before = 0
        cdef Py_ssize_t left = size
        self.lend(data, size)
        try:
            while left and left != before and not self.peer_closed:
                filled += self.decrypt_into(start + filled, room - filled)
                before = left
                left = membio_pending(self.incoming)
        finally:
            self.take_back()
        return filled

    cdef int lend(self, const char *data, Py_ssize_t size) except -1:
        """Give OpenSSL whole records where they are, until `take_back`."""
        self.check_not_lent()
        assert not membio_pending(self.incoming)
        membio_show(&self.lent, data, size)
        self.own = membio_lend(self.incoming, &self.lent)
        return 0

    cdef int take_back(self) except -1:
        cdef char *rest
        cdef Py_ssize_t left = membio_unread(self.incoming, &rest)
        membio_return(self.incoming, self.own)
        self.own = NULL
        if left:
            # Behind the end, or behind what has failed.
            self.take_in(rest, left)
            self.unsure = not self.peer_closed
        return 0

    cdef int check_not_lent(self) except -1:
        """Refuse bytes that come from within OpenSSL, which would write them to what is lent."""
        if self.own != NULL:
            raise RuntimeError("bytes came while OpenSSL was reading others")
        return 0

    cdef bytes decrypt_pending(self):
        """Return the plaintext of everything that OpenSSL has, of which little is known."""
        cdef list pieces = []
        cdef bytes piece
        cdef Py_ssize_t room
        while self.has_more():
            room = pending(self.incoming) + <Py_ssize_t>self.engine.pending()
            piece = self.decrypt_one(room)
            if piece is None:
                break
            pieces.append(piece)
        # Of a sequence that is none every byte is shown to OpenSSL, which will say what is wrong.
        self.unsure = self.framer.broken
        if len(pieces) > 1:
            return b"".join(pieces)
        return pieces[0] if pieces else None

    cdef Py_ssize_t decrypt_into(self, char *start, Py_ssize_t room) except -1:
        """Return how many bytes were decrypted to *start*; 0 if none yet, or no more."""
        cdef PyObject *args[3]
        cdef PyObject *result
        cdef object wanted = room
        cdef Py_ssize_t count
        self.window.lend(start, room)
        args[0] = <PyObject*>self.engine
        args[1] = <PyObject*>wanted
        args[2] = <PyObject*>self.window
        result = PyObject_Vectorcall(ENGINE_READ, args, 3, NULL)
        if result == NULL:
            forgive()
            return 0
        count = size_of_long(result)
        Py_DECREF_owned(result)
        if count == 0:
            self.peer_closed = True
        return count

    cdef Py_ssize_t fill(self, char *start, Py_ssize_t room) except -1:
        """Decrypt until *room* is full, which leaves us unsure, or nothing is left."""
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t count
        while True:
            count = self.decrypt_into(start + filled, room - filled)
            filled += count
            if count > 0 and filled == room:
                self.unsure = True
                return filled
            if count == 0 or not self.unread():
                self.unsure = self.framer.broken
                return filled

    # ── out ──────────────────────────────────────────────────────────────────────────────────

    cdef Py_ssize_t encrypt(self, bytes data) except -1:
        """Return how many bytes went into a record; 0 if OpenSSL wants to read first."""
        cdef PyObject *result = called(ENGINE_WRITE, self.engine, <PyObject*>data)
        cdef Py_ssize_t count
        if result == NULL:
            return 0
        count = size_of_long(result)
        Py_DECREF_owned(result)
        return count

    cdef Py_ssize_t encrypt_from(self, const char *data, Py_ssize_t size) except -1:
        """As `encrypt`, of bytes that are part of an object."""
        cdef PyObject *result
        cdef Py_ssize_t count
        self.window.show(data, size)
        result = called(ENGINE_WRITE, self.engine, <PyObject*>self.window)
        if result == NULL:
            return 0
        count = size_of_long(result)
        Py_DECREF_owned(result)
        return count

    cdef Py_ssize_t encrypt_to(
            self, Scratch scratch, const char *data, Py_ssize_t size) except -1:
        """As `encrypt_from`, with the records in *scratch*, of a BIO that has none."""
        cdef membio_memory *own
        scratch.memory.length = 0
        own = membio_lend(self.outgoing, scratch.memory)
        try:
            return self.encrypt_from(data, size)
        finally:
            scratch.size = membio_unread(self.outgoing, &scratch.start)
            membio_return(self.outgoing, own)

    cdef Py_ssize_t unsent(self) except -1:
        """Return how many bytes of records wait to be taken out."""
        return pending(self.outgoing)

    cdef bytes take_out(self):
        """Return all records that wait, which may be nothing."""
        cdef PyObject *argument = <PyObject*>self.outgoing
        cdef PyObject *result
        if type(self.outgoing) is not BIO:
            return self.outgoing.read()
        result = PyObject_Vectorcall(BIO_READ, &argument, 1, NULL)
        if result == NULL:
            raise_pending()
        return take_bytes(result)


cdef Py_ssize_t pending(object bio) except -1:
    """Return how many bytes are in a MemoryBIO."""
    cdef PyObject *number
    cdef Py_ssize_t size
    if type(bio) is not BIO:
        return bio.pending
    number = get_attribute(BIO_PENDING, bio)
    if number == NULL:
        raise_pending()
    size = size_of_long(number)
    Py_DECREF_owned(number)
    return size


cdef PyObject *called(object method, object target, PyObject *argument) except? NULL:
    """Call a method with one argument; NULL without an exception if OpenSSL wants to read first."""
    cdef PyObject *args[2]
    cdef PyObject *result
    args[0] = <PyObject*>target
    args[1] = argument
    result = PyObject_Vectorcall(method, args, 2, NULL)
    if result == NULL:
        forgive()
    return result


cdef int forgive() except -1:
    """Clear the exception that says that OpenSSL wants to read first; raise any other."""
    if not PyErr_ExceptionMatches(AGAIN):
        raise_pending()
    PyErr_Clear()
    return 0


def framed(*pieces):
    """Return the sizes of the records in *pieces*, what is left, and whether it makes sense."""
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
    return sizes, framer.tail, not framer.broken
