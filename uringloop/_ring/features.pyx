"""The optional features of a ring: which ones exist, and which ones are disabled.

The loop can do without each of them, in a slower way. What the kernel supports is probed, not
derived from its version, once in a process and at the first need. Any thread may call these
functions: two threads that probe at the same time find the same.

A filter that the process has inherited may refuse single operations to the kernel's ring. Those are
probed, too.
"""

from libc.stdint cimport uint64_t

from uringloop._kernel.atomics cimport (
    add_bits,
    load_total,
    load_uint,
    load_uint_acquire,
    store_total,
    store_uint_release,
)
from uringloop._kernel.errors cimport os_error
from uringloop._kernel.io_uring cimport (
    URINGLOOP_LIBURING,
    URING_FEATURE_MIN_TIMEOUT,
    URING_FEATURE_NO_IOWAIT,
    URING_OP_EPOLL_WAIT,
    URING_OP_FTRUNCATE,
)
from uringloop._ring.probes cimport (
    uring_abilities,
    uring_ask_call,
    uring_call_number,
    uring_operation_name,
    uring_try,
    uring_try_paths,
)


# The version of liburing that this was compiled with.
LIBURING = URINGLOOP_LIBURING.decode()
# The names that URINGLOOP_DISABLE accepts.
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
    "unix_multishot": UNIX_MULTISHOT,
    "epoll_sleep": EPOLL_SLEEP,
}

# What the kernel's ring has. The first four always exist where a ring can be made; the last two do
# not depend on the ring.
cdef unsigned int present = (
    SHARED_ACCEPT | MULTISHOT_RECV | UNIX_MULTISHOT | EPOLL_SLEEP | CACHED_FILES | NAMELESS_FILES)
# What the software ring has. It needs no NO_IOWAIT, because it does not sleep in io_uring_enter.
cdef unsigned int soft_present = (
    SHARED_ACCEPT | MULTISHOT_RECV | QUIET_SENDS | MIN_WAIT | CACHED_FILES | TRUNCATE
    | EPOLL_WAIT | EPOLL_SLEEP | NAMELESS_FILES | UNIX_MULTISHOT)
cdef unsigned int disabled = 0
# What the kernel's ring may not do, as bits 1 << opcode.
cdef uint64_t refused = 0
# Whether a list that the process has inherited restricts the kernel's rings.
cdef unsigned int listed = False
cdef unsigned int kernel_tried = False
cdef unsigned int paths_tried = False


cdef bint kernel_uses(unsigned int feature) noexcept:
    """Return whether the kernel's ring has *feature* and it is enabled, after `try_kernel`.

    For a feature that does not depend on the kind of ring, the answer holds for the software ring,
    too. Ring.uses() knows the kind of its ring.
    """
    # This comes first: it may try what is present.
    cdef unsigned int wanted = enabled(feature)
    return wanted & load_uint(&present) != 0


cdef bint kernel_refuses(unsigned int opcode) noexcept:
    """Return whether a filter refuses this operation to the kernel's ring, after `try_kernel`."""
    return load_total(&refused) >> opcode & 1 != 0


cdef bint software_uses(unsigned int feature) noexcept:
    """Return whether the software ring has *feature* and it is enabled."""
    cdef unsigned int wanted = enabled(feature)
    return wanted & load_uint(&soft_present) != 0


cdef unsigned int enabled(unsigned int feature) noexcept:
    """Return *feature*, or 0 if it is disabled."""
    cdef unsigned int wanted = feature & ~load_uint(&disabled)
    # Acquire: who finds that the paths were tried also finds what the trial has noted.
    if wanted & CACHED_PATHS and not load_uint_acquire(&paths_tried):
        try_paths()
    return wanted


cdef void try_paths() noexcept:
    """Probe, once, whether the kernel opens and describes cached paths; no ring is needed."""
    if uring_try_paths():
        add_bits(&present, CACHED_PATHS)
        add_bits(&soft_present, CACHED_PATHS)
    store_uint_release(&paths_tried, True)


cdef int try_kernel() except -1:
    """Probe, once, whether a ring can be made and entered, and what it supports."""
    cdef uring_abilities found
    cdef unsigned int more = 0
    cdef uint64_t absent
    cdef int res
    if load_uint_acquire(&kernel_tried):
        return 0
    res = uring_try(&found)
    store_total(&refused, found.operations.refused)
    if res < 0:
        raise os_error(res, found.call.decode())
    if found.quiet_sends:
        more |= QUIET_SENDS
    absent = found.operations.unknown | found.operations.refused
    if not absent >> URING_OP_FTRUNCATE & 1:
        more |= TRUNCATE
    if not absent >> URING_OP_EPOLL_WAIT & 1:
        more |= EPOLL_WAIT
    if found.facts & URING_FEATURE_NO_IOWAIT:
        more |= NO_IOWAIT
    if found.facts & URING_FEATURE_MIN_TIMEOUT:
        more |= MIN_WAIT
    add_bits(&present, more)
    if found.listed:
        add_bits(&listed, True)
    store_uint_release(&kernel_tried, True)
    return 0


def disable(names):
    """Disable the features of these *names* from now on, and enable all others."""
    cdef unsigned int bits = 0
    for name in names:
        bits |= <unsigned int>FEATURES[name]
    store_uint_release(&disabled, bits)


def kernel_ring_has_worked():
    """Return whether a ring of the kernel has been made and entered in this process."""
    return load_uint_acquire(&kernel_tried) != 0


def refused_operations():
    """Return the names of the operations that a filter refuses to the kernel's ring."""
    cdef unsigned int opcode
    return [
        uring_operation_name(opcode).decode() for opcode in range(64) if kernel_refuses(opcode)]


def has_inherited_list():
    """Return whether a list that the process has inherited restricts the kernel's rings."""
    return load_uint(&listed) != 0


def number_of_call(str name):
    """Return the number of the system call *name*, or -1 where this architecture lacks it."""
    return uring_call_number(name.encode())


def answer_to_call(str name):
    """Return the errno of system call *name* with wrong arguments, or -1 if it kills the caller."""
    cdef long number = uring_call_number(name.encode())
    return uring_ask_call(number) if number >= 0 else 0


def report(backend):
    """Return "used", "absent" or "disabled" for the name of each feature of the ring *backend*.

    For "io_uring" this raises OSError if the kernel refuses a ring. For any other name the
    features are those of the software ring, and the kernel is not probed.
    """
    if backend == "io_uring":
        try_kernel()
        used = {name for name, bit in FEATURES.items() if kernel_uses(bit)}
    else:
        used = {name for name, bit in FEATURES.items() if software_uses(bit)}
    return {
        name: "disabled" if load_uint(&disabled) & <unsigned int>bit
        else "used" if name in used else "absent"
        for name, bit in FEATURES.items()
    }
