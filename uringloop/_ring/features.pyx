"""What a ring has of what this loop can use, and what of it shall not be used.

Each is something that the loop can do without, by a slower way. What the kernel has is tried, not
guessed from its version, once in a process and at the first need. Changed under the GIL only.
"""

from uringloop._kernel.errors cimport os_error
from uringloop._kernel.io_uring cimport (
    URING_FEATURE_MIN_TIMEOUT,
    URING_FEATURE_NO_IOWAIT,
    URINGLOOP_LIBURING,
)
from uringloop._ring.probes cimport uring_abilities, uring_try, uring_try_paths


# The version of the library that this was compiled with.
LIBURING = URINGLOOP_LIBURING.decode()
# The names by which one can be switched off.
FEATURES = {
    "shared_accept": SHARED_ACCEPT,
    "multishot_recv": MULTISHOT_RECV,
    "quiet_sends": QUIET_SENDS,
    "no_iowait": NO_IOWAIT,
    "min_wait": MIN_WAIT,
    "cached_files": CACHED_FILES,
    "cached_paths": CACHED_PATHS,
    "truncate": TRUNCATE,
    "epoll_wait": EPOLL_WAIT,
    "nameless_files": NAMELESS_FILES,
}

# The kernel's ring does not serve without these, or, the last, they are none of a ring's.
cdef unsigned int present = SHARED_ACCEPT | MULTISHOT_RECV | CACHED_FILES | NAMELESS_FILES
# What the software ring has; it sleeps as no ring does.
cdef unsigned int soft_present = (
    SHARED_ACCEPT | MULTISHOT_RECV | QUIET_SENDS | MIN_WAIT | CACHED_FILES | TRUNCATE
    | EPOLL_WAIT | NAMELESS_FILES)
cdef unsigned int disabled = 0
cdef bint kernel_tried = False
cdef bint paths_tried = False


cdef bint uses(unsigned int feature, bint soft=False) noexcept:
    """Whether a ring has it and it is not switched off; the kernel's must have been tried."""
    if feature & ~disabled & CACHED_PATHS and not paths_tried:
        try_paths()
    return (soft_present if soft else present) & ~disabled & feature != 0


cdef void try_paths() noexcept:
    """Find out, once, whether the kernel tells what it has of a path; no ring is needed."""
    global present, soft_present, paths_tried
    if uring_try_paths():
        present |= CACHED_PATHS
        soft_present |= CACHED_PATHS
    paths_tried = True


cdef int try_kernel() except -1:
    """Find out, once, whether a ring can be made and entered, and what it can do."""
    global present, kernel_tried
    cdef uring_abilities found
    cdef int res
    if kernel_tried:
        return 0
    res = uring_try(&found)
    if res < 0:
        raise os_error(res, "io_uring")
    if found.quiet_sends:
        present |= QUIET_SENDS
    if found.truncates:
        present |= TRUNCATE
    if found.waits_epoll:
        present |= EPOLL_WAIT
    if found.facts & URING_FEATURE_NO_IOWAIT:
        present |= NO_IOWAIT
    if found.facts & URING_FEATURE_MIN_TIMEOUT:
        present |= MIN_WAIT
    kernel_tried = True
    return 0


def disable(names):
    """Do without the features of these *names* from now on, and with all others."""
    global disabled
    disabled = 0
    for name in names:
        disabled |= <unsigned int>FEATURES[name]


def kernel_has_served():
    """Whether a ring of the kernel's could be made and entered in this process."""
    return kernel_tried


def report(kernel):
    """Return for the name of each feature whether it is used, absent or disabled.

    Of the kernel's ring, or, without *kernel*, which is not asked then, of the software ring.
    Raises OSError if the kernel refuses one.
    """
    if kernel:
        try_kernel()
    return {
        name: "disabled" if disabled & <unsigned int>bit
        else "used" if uses(bit, soft=not kernel) else "absent"
        for name, bit in FEATURES.items()
    }
