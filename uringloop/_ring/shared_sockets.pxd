"""Declarations of shared_sockets.h: listening sockets that several processes share."""

from libc.stdint cimport int64_t

from uringloop._ring.uring cimport uring


cdef extern from "_ring/shared_sockets.h" nogil:
    int64_t URING_SEARCH_NS
    int uring_open_doors(uring *u)
    void uring_close_doors(uring *u)
    void uring_move_doors(uring *fresh, uring *old)
    int uring_add_waker(uring *u, int fd)
    int uring_add_door(uring *u, int fd)
    void uring_remove_door(uring *u, int fd)
    int uring_step_back(uring *u, int fd)
    void uring_search(uring *u)
    int uring_reserve(uring *u)
    bint uring_use_reserve(uring *u)
    bint uring_is_crowded(int fd)
    void uring_sign(int fd)
    bint uring_has_company(int fd)
    int sched_yield()
    int uring_listen_at_doors(uring *u, int64_t timeout_ns)
    void uring_leave_doors(uring *u, bint away)
    int uring_sleep(uring *u, unsigned int wanted, int64_t least_ns, int64_t timeout_ns)
