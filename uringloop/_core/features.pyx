"""What the kernel has of what this loop can use, and what of it shall not be used.

Each is something that the loop can do without, by a slower way. What the kernel has is tried, not
guessed from its version, once in a process and at the first need. Changed under the GIL only.
"""

from uringloop._core.errors cimport os_error
from uringloop._native.probes cimport uring_try
from uringloop._native.uring cimport (
    URING_FEATURE_MIN_TIMEOUT,
    URING_FEATURE_NO_IOWAIT,
    URINGLOOP_LIBURING,
)


# The version of the library that this was compiled with.
LIBURING = URINGLOOP_LIBURING.decode()
# The names by which one can be switched off.
FEATURES = {
    "multishot_accept": MULTISHOT_ACCEPT,
    "multishot_recv": MULTISHOT_RECV,
    "quiet_sends": QUIET_SENDS,
    "no_iowait": NO_IOWAIT,
    "min_wait": MIN_WAIT,
    "cached_files": CACHED_FILES,
}

# The ring does not serve without these, or, the last, they are none of a ring's.
cdef unsigned int present = MULTISHOT_ACCEPT | MULTISHOT_RECV | CACHED_FILES
cdef unsigned int disabled = 0
cdef bint kernel_tried = False


cdef bint uses(unsigned int feature) noexcept:
    """Whether the kernel has it and it is not switched off; `try_kernel` must have been."""
    return present & ~disabled & feature != 0


cdef int try_kernel() except -1:
    """Find out, once, whether a ring can be made and entered, and what it can do."""
    global present, kernel_tried
    cdef unsigned int facts = 0
    cdef bint quiet = False
    cdef int res
    if kernel_tried:
        return 0
    res = uring_try(&quiet, &facts)
    if res < 0:
        raise os_error(res, "io_uring")
    if quiet:
        present |= QUIET_SENDS
    if facts & URING_FEATURE_NO_IOWAIT:
        present |= NO_IOWAIT
    if facts & URING_FEATURE_MIN_TIMEOUT:
        present |= MIN_WAIT
    kernel_tried = True
    return 0


def disable(names):
    """Do without the features of these *names* from now on, and with all others."""
    global disabled
    disabled = 0
    for name in names:
        disabled |= <unsigned int>FEATURES[name]


def report(kernel):
    """Return for the name of each feature whether it is used, absent or disabled.

    Without *kernel* nothing is asked of it, and what is a ring's is absent. Raises OSError if it
    refuses a ring.
    """
    cdef unsigned int there = present & CACHED_FILES
    if kernel:
        try_kernel()
        there = present
    return {
        name: "disabled" if disabled & <unsigned int>bit
        else "used" if there & <unsigned int>bit else "absent"
        for name, bit in FEATURES.items()
    }
