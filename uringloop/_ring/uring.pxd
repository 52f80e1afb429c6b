"""Declarations of uring.h: the only interface to a ring."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.io_uring cimport io_uring_buf_ring, io_uring_cqe, io_uring_sqe


cdef extern from "_ring/uring.h" nogil:
    int64_t URING_FOREVER
    struct softring:
        pass

    ctypedef enum uring_life:
        URING_CLOSED
        URING_INHERITED
        URING_DISABLED
        URING_ENABLED

    struct uring:
        softring *soft
        const char *call
        uint64_t enters
        uring_life life
        bint threaded
        bint files
        uring *next

    int uring_open(uring *u, unsigned int sq_entries, unsigned int cq_entries, bint files)
    int uring_open_threaded(
        uring *u, unsigned int sq_entries, unsigned int cq_entries, bint files,
        unsigned int idle_ms, int cpu)
    int uring_open_soft(uring *u, unsigned int sq_entries, unsigned int cq_entries)
    int uring_open_successor(uring *u, const uring *old)
    int uring_open_soft_successor(uring *u, const uring *old)
    bint uring_is_forbidden(int res)
    int uring_enable(uring *u)
    void uring_disable_no_iowait(uring *u)
    void uring_disable_min_wait(uring *u)
    uring_life uring_get_life(const uring *u)
    bint uring_is_inherited(const uring *u)
    bint uring_is_usable(const uring *u)
    void uring_close(uring *u)

    unsigned int uring_pending(const uring *u)
    bint uring_has_task_work(const uring *u)
    bint uring_needs_enter(const uring *u)
    bint uring_has_overflow(const uring *u)
    int uring_submit_only(uring *u)
    unsigned int uring_room(const uring *u)
    int uring_submit(uring *u)
    bint uring_spin(uring *u, int64_t spin_ns)
    int uring_wait_for(
        uring *u, unsigned int wanted, int64_t least_ns, int64_t timeout_ns)
    int uring_wait_batch(uring *u, unsigned int wanted, int64_t least_ns, int64_t timeout_ns)
    int uring_wait_more(uring *u, unsigned int more, int64_t timeout_ns)
    int uring_submit_and_collect(uring *u, unsigned int expected)

    unsigned int uring_head(const uring *u)
    unsigned int uring_tail(const uring *u)
    io_uring_cqe *uring_completion(const uring *u, unsigned int index)
    void uring_consume(uring *u, unsigned int head)
    void uring_post(uring *u, uint64_t user_data, int res, unsigned int flags)

    unsigned int uring_sequence(const uring *u)
    bint uring_submitted(const uring *u, unsigned int sequence)
    bint uring_undo_cancel(uring *u, unsigned int sequence, uint64_t user_data)
    io_uring_sqe *uring_get_submission(uring *u)
    io_uring_sqe *uring_move_submission(uring *to, const uring *source, unsigned int index)

    int uring_register_buffers(
        uring *u, io_uring_buf_ring *buffers, unsigned int entries, int group)
    void uring_give_buffer(
        io_uring_buf_ring *buffers, unsigned int entries, char *address, unsigned int size,
        unsigned int id)
    void *uring_map(size_t size)
    void *uring_map_part(size_t size, unsigned int parts)

    int uring_limit_workers(uring *u, unsigned int bounded, unsigned int unbounded)

    int uring_accept(const uring *u, int fd, void *name, unsigned int *size)
    int uring_ended_by(const uring *u, int fd, int res)
    bint uring_misses_ends(const uring *u)
