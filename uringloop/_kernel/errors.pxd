"""Error numbers, and the conversion of the kernel's negative results to exceptions."""

from libc.string cimport strerror

cdef extern from "<errno.h>" nogil:
    # libc.errno lacks some of these.
    const int EAGAIN
    const int EBADF
    const int EBADR
    const int EBUSY
    const int ECANCELED
    const int ECONNABORTED
    const int ECONNRESET
    const int EEXIST
    const int EINTR
    const int EINVAL
    const int EISDIR
    const int EMFILE
    const int ENFILE
    const int ENOBUFS
    const int ENOENT
    const int ENOMEM
    const int ENOSPC
    const int ENOSYS
    const int ENOTSOCK
    const int ENXIO
    const int EOPNOTSUPP
    const int EPERM
    const int ESPIPE
    const int ETIME
    int errno


cdef inline object os_error(int res, str operation):
    """Build the OSError for *res* (-errno); Python itself picks the subclass."""
    cdef str reason = strerror(-res).decode("utf-8", "replace")
    return OSError(-res, f"{reason} ({operation})" if operation else reason)
