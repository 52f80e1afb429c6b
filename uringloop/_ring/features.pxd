"""The optional features of a ring: which ones exist, and which ones are disabled."""


cdef enum:
    SHARED_ACCEPT = 1       # a connection wakes one of the processes that share the socket
    MULTISHOT_RECV = 2      # one submission for all receives of a socket
    QUIET_SENDS = 4         # a send that has sent everything posts no completion
    NO_IOWAIT = 8           # a sleeping loop is not counted as waiting for a disk
    MIN_WAIT = 16           # completions gather during a sleep
    CACHED_FILES = 32       # data in the page cache is read without a submission
    CACHED_PATHS = 64       # cached paths are examined and opened without a submission
    TRUNCATE = 128          # a submission changes the size of a file
    EPOLL_WAIT = 256        # a completion brings the events of watched descriptors
    NAMELESS_FILES = 512    # a file that is replaced as a whole has no name until written
    UNIX_MULTISHOT = 1024   # MULTISHOT_RECV on UNIX sockets, too
    EPOLL_SLEEP = 2048      # a loop busy with watched descriptors sleeps in epoll_wait(2)


cdef bint kernel_uses(unsigned int feature) noexcept
cdef bint kernel_refuses(unsigned int opcode) noexcept
cdef bint software_uses(unsigned int feature) noexcept
cdef int try_kernel() except -1
