"""What a ring has of what this loop can use, and what of it shall not be used."""


cdef enum:
    SHARED_ACCEPT = 1       # a connection wakes one of the processes that share its socket
    MULTISHOT_RECV = 2      # one for all that a socket receives
    QUIET_SENDS = 4         # no completion for a send that has done everything
    NO_IOWAIT = 8           # a loop that sleeps is no processor that waits for a disk
    MIN_WAIT = 16           # completions gather in a sleep
    CACHED_FILES = 32       # what the page cache has is read without a submission
    CACHED_PATHS = 64       # what the kernel knows of a path is told, and opened, without one
    TRUNCATE = 128          # the size of a file is changed by a submission
    EPOLL_WAIT = 256        # what is watched is told by the completion of a request
    NAMELESS_FILES = 512    # a file that is replaced as a whole has no name before it is written


cdef bint uses(unsigned int feature, bint soft=*) noexcept
cdef int try_kernel() except -1
