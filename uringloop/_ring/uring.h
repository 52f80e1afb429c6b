/* The only interface to the rings, the kernel's and the software ring's: all other code calls these
 * functions. The queues of a software ring (softring.h) are memory of this process, and its
 * functions are called in place of the kernel.
 *
 * Header-only, over liburing 2.3 or newer. Every function returns 0 or a count, or -errno; none of
 * them raises, allocates Python memory or needs the GIL. A uring belongs to one Ring object
 * (_ring/ring.pyx), which opens and closes it.
 */
#ifndef URINGLOOP_URING_H
#define URINGLOOP_URING_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "_kernel/atomics.h"
#include "_kernel/clock.h"
#include "_kernel/compat.h"
#include "_kernel/io_uring.h"
#include "_kernel/sanitizer.h"
#include "_ring/restrictions.h"
#include "_softring/softring.h"

/* How long to wait for a kernel thread (SQPOLL) before the caller tries again. */
#define URING_PATIENCE_NS 10000000

/* A wait without a deadline. */
#define URING_FOREVER INT64_MIN

/* struct io_uring_getevents_arg; older headers call its third member `pad`. */
typedef struct uring_wait_arg {
    uint64_t sigmask;
    uint32_t sigmask_sz;
    uint32_t min_wait_usec;
    uint64_t ts;
} uring_wait_arg;
_Static_assert(sizeof(uring_wait_arg) == sizeof(struct io_uring_getevents_arg),
               "the kernel tells the kinds of argument apart by size");

/* The life of a ring. The order matters: a ring may be used in DISABLED and all later states.
 *
 *     CLOSED ──opened──> DISABLED ──uring_enable()──> ENABLED ──uring_close()──> CLOSED
 *                            └───────────┬───────────┘
 *                         fork: in the child it is INHERITED
 */
typedef enum uring_life {
    URING_CLOSED,
    URING_INHERITED, /* a parent process owns it; this one has neither descriptor nor mappings */
    URING_DISABLED,
    URING_ENABLED, /* the thread that has enabled it is its only issuer */
} uring_life;

typedef struct uring {
    /* Other threads read the members before `ring`, see uring_take_place. */
    uint64_t enters; /* system calls made */
    uring_life life;
    struct io_uring ring;
    softring *soft;       /* the software ring; NULL for the kernel's */
    unsigned enter_flags; /* NO_IOWAIT where the kernel has it */
    const char *call;     /* the system call with which opening it has failed, or may fail next */
    bool threaded;        /* a kernel thread takes the submissions (SQPOLL) */
    bool files;           /* the ring may do operations on files */
    bool listed;          /* restricted by a list that the process has inherited (Linux 7.0) */
    int eventfd;          /* by which a kernel's ring ends a sleep elsewhere (at_epoll.h); or -1 */
    struct uring *next;   /* the list of live rings that the fork handler walks */
} uring;

/* ── lifetime ───────────────────────────────────────────────────────────────────────────────── */

static inline void uring_clear(uring *u) {
    memset(u, 0, sizeof(*u));
    u->eventfd = -1;
}

static inline void uring_close_eventfd(uring *u) {
    if (u->eventfd >= 0)
        close(u->eventfd);
    u->eventfd = -1;
}

static inline int uring_setup(uring *u, unsigned sq_entries, unsigned cq_entries, unsigned flags) {
    struct io_uring_params params;

    memset(&params, 0, sizeof(params));
    params.flags = flags;
    params.cq_entries = cq_entries;
    uring_clear(u);
    u->call = "io_uring_setup";
    return io_uring_queue_init_params(sq_entries, &u->ring, &params);
}

/* The common end of opening a ring of the kernel, with a kernel thread or without. */
static inline int uring_finish_open(uring *u, bool files) {
    int res;

    u->files = files;
    URING_MAPPED();
    if (u->ring.features & URING_FEATURE_NO_IOWAIT)
        u->enter_flags |= URING_ENTER_NO_IOWAIT;
    /* A forked child must not see the rings: one store there would corrupt the parent's. */
    u->call = "madvise";
    res = io_uring_ring_dontfork(&u->ring);
    if (res == 0) {
        u->call = "io_uring_register";
        res = uring_restrict(&u->ring, files);
        u->listed = res == -EBUSY;
        res = u->listed ? 0 : res;
    }
    if (res < 0) {
        io_uring_queue_exit(&u->ring);
        return res;
    }
    uring_store(&u->life, URING_DISABLED);
    return 0;
}

/* Opens a disabled ring: the thread that enables it becomes its only issuer.
 * Kernel 6.1 is the first with DEFER_TASKRUN; older ones return EINVAL. */
static inline int uring_open(uring *u, unsigned sq_entries, unsigned cq_entries, bool files) {
    unsigned flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL |
                     IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
                     IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    int res = uring_setup(u, sq_entries, cq_entries, flags);

    return res < 0 ? res : uring_finish_open(u, files);
}

/* Opens a disabled ring with a kernel thread, which takes submissions as they are published, runs
 * deferred completions, and sleeps after *idle_ms* without work. No thread of this process owns the
 * ring. *cpu* is the thread's processor, -1 for any; ENXIO if it cannot run there. */
static inline int uring_open_threaded(uring *u, unsigned sq_entries, unsigned cq_entries,
                                      bool files, unsigned idle_ms, int cpu) {
    struct io_uring_params params;
    /* Open an ordinary ring first. It needs the same kernels and fails with the same errors, so
     * that an EINVAL below is due to *cpu*. */
    int res = uring_open(u, sq_entries, cq_entries, files);

    if (res < 0)
        return res;
    io_uring_queue_exit(&u->ring);
    uring_clear(u);
    u->call = "io_uring_setup";
    memset(&params, 0, sizeof(params));
    params.flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL |
                   IORING_SETUP_R_DISABLED | IORING_SETUP_SQPOLL;
    params.cq_entries = cq_entries;
    params.sq_thread_idle = idle_ms;
    if (cpu >= 0) {
        params.flags |= IORING_SETUP_SQ_AFF;
        params.sq_thread_cpu = (unsigned)cpu;
    }
    res = io_uring_queue_init_params(sq_entries, &u->ring, &params);
    if (res < 0)
        return res == -EINVAL && cpu >= 0 ? -ENXIO : res;
    u->threaded = true;
    return uring_finish_open(u, files);
}

/* Opens a disabled software ring. */
static inline int uring_open_soft(uring *u, unsigned sq_entries, unsigned cq_entries) {
    int res;

    uring_clear(u);
    u->files = true;
    u->soft = softring_open(&u->ring, sq_entries, cq_entries, &u->call, &res);
    if (u->soft == NULL)
        return res;
    /* uring_wait_twice() emulates the minimum wait. */
    u->ring.features |= URING_FEATURE_MIN_TIMEOUT;
    uring_store(&u->life, URING_DISABLED);
    return 0;
}

/* Stop using a feature that the ring may have. */
static inline void uring_disable_no_iowait(uring *u) { u->enter_flags &= ~URING_ENTER_NO_IOWAIT; }

static inline void uring_disable_min_wait(uring *u) {
    u->ring.features &= ~URING_FEATURE_MIN_TIMEOUT;
}

static inline int uring_enable(uring *u) {
    int res = 0;

    if (u->soft != NULL)
        softring_enable(u->soft);
    else
        res = io_uring_enable_rings(&u->ring);
    if (res < 0)
        return res;
    uring_store(&u->life, URING_ENABLED);
    return 0;
}

/* Limits the kernel's worker threads: *bounded* are those for regular files and block devices,
 * *unbounded* those for other files, which have no limit by default. */
static inline int uring_limit_workers(uring *u, unsigned bounded, unsigned unbounded) {
    unsigned limits[2] = {bounded, unbounded};

    if (u->soft != NULL) {
        softring_limit_workers(u->soft, bounded);
        return 0;
    }
    return io_uring_register_iowq_max_workers(&u->ring, limits);
}

/* Any thread may call these three. */
static inline uring_life uring_get_life(const uring *u) { return uring_load(&u->life); }

static inline bool uring_is_inherited(const uring *u) {
    return uring_get_life(u) == URING_INHERITED;
}

/* Returns whether the ring is open, and this process's own. */
static inline bool uring_is_usable(const uring *u) { return uring_get_life(u) >= URING_DISABLED; }

/* Unmaps and closes the ring. An inherited ring stays as it is: the fork handler has closed its
 * descriptor, and this process never had the mappings (other memory may be at their addresses). */
static inline void uring_close(uring *u) {
    if (!uring_is_usable(u))
        return;
    URING_UNMAPS();
    if (u->soft != NULL)
        softring_close(u->soft);
    else
        io_uring_queue_exit(&u->ring);
    uring_close_eventfd(u);
    uring_store(&u->life, URING_CLOSED);
}

/* Enables a ring, opened with the result *res*, for the calling thread, to replace *old*. */
static inline int uring_succeed(uring *u, const uring *old, int res) {
    if (res < 0)
        return res;
    res = uring_enable(u);
    if (res < 0) {
        uring_close(u);
        return res;
    }
    if (u->soft != NULL && old->soft != NULL)
        softring_succeed(u->soft, old->soft);
    u->ring.features &= old->ring.features;
    u->enter_flags &= old->enter_flags;
    u->enters = old->enters;
    return res;
}

/* Opens and enables a kernel's ring of the size of *old*. */
static inline int uring_open_successor(uring *u, const uring *old) {
    return uring_succeed(
        u, old,
        uring_open(u, *old->ring.sq.kring_entries, *old->ring.cq.kring_entries, old->files));
}

/* Opens and enables a software ring of the size of *old*. */
static inline int uring_open_soft_successor(uring *u, const uring *old) {
    return uring_succeed(
        u, old, uring_open_soft(u, *old->ring.sq.kring_entries, *old->ring.cq.kring_entries));
}

/* After a fork the child lacks the ring's mappings. This points the queues to readable memory,
 * because the callback that forked returns to code that looks for completions. */
static inline void uring_empty_queues(struct io_uring *ring) {
    static unsigned zero;

    ring->sq.khead = ring->sq.ktail = ring->sq.kflags = ring->sq.kring_entries = &zero;
    ring->sq.sqe_head = ring->sq.sqe_tail = 0;
    ring->cq.khead = ring->cq.ktail = ring->cq.koverflow = ring->cq.kring_entries = &zero;
    ring->cq.kflags = NULL;
}

/* Called by the fork handler, in the child. The mappings are gone (dontfork). The descriptor must
 * go, too, or it would keep the parent's sockets alive after the parent has closed them. */
static inline void uring_leave_to_parent(uring *u) {
    if (!uring_is_usable(u))
        return;
    if (u->soft != NULL) {
        softring_leave_to_parent(u->soft);
    } else {
        close(u->ring.ring_fd);
        uring_empty_queues(&u->ring);
    }
    uring_close_eventfd(u);
    uring_store(&u->life, URING_INHERITED);
}

/* Returns how many submissions are prepared, or published and not yet taken by a kernel thread. */
static inline unsigned uring_pending(const uring *u) {
    return u->ring.sq.sqe_tail - uring_load(u->ring.sq.khead);
}

static inline unsigned uring_room(const uring *u) {
    return *u->ring.sq.kring_entries - uring_pending(u);
}

/* ── completions ────────────────────────────────────────────────────────────────────────────── */

static inline unsigned uring_head(const uring *u) { return *u->ring.cq.khead; }

static inline unsigned uring_tail(const uring *u) {
    return io_uring_smp_load_acquire(u->ring.cq.ktail);
}

static inline struct io_uring_cqe *uring_completion(const uring *u, unsigned index) {
    return &u->ring.cq.cqes[index & *u->ring.cq.kring_mask];
}

static inline void uring_consume(uring *u, unsigned head) {
    io_uring_smp_store_release(u->ring.cq.khead, head);
}

/* Posts a completion to the queue of a software ring. */
static inline void uring_post(uring *u, uint64_t user_data, int res, unsigned flags) {
    softring_post(u->soft, user_data, res, flags);
}

/* ── entering the kernel ────────────────────────────────────────────────────────────────────── */

/* Returns whether the kernel has deferred completions, which only an enter with GETEVENTS posts.
 * The flag may be set for nothing: another processor queues the work before it sets the flag, and
 * an enter may run the work in between. The flag then stays set until there is work again (seen on
 * 6.18). So a caller that does not sleep because of the flag enters once, and sleeps if that posts
 * nothing. */
static inline bool uring_has_task_work(const uring *u) {
    return (__atomic_load_n(u->ring.sq.kflags, __ATOMIC_RELAXED) &
            (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

/* Returns whether an enter may have something to do. */
static inline bool uring_needs_enter(const uring *u) {
    return uring_pending(u) != 0 || uring_has_task_work(u) ||
           (u->soft != NULL && softring_is_due(u->soft));
}

/* Returns whether completions found the queue full: an enter with GETEVENTS posts them. */
static inline bool uring_has_overflow(const uring *u) {
    return (__atomic_load_n(u->ring.sq.kflags, __ATOMIC_RELAXED) & IORING_SQ_CQ_OVERFLOW) != 0;
}

/* Publishes the prepared submissions; the kernel reads them in the next enter. */
static inline unsigned uring_publish(uring *u) {
    struct io_uring_sq *sq = &u->ring.sq;

    if (sq->sqe_head != sq->sqe_tail) {
        sq->sqe_head = sq->sqe_tail;
        io_uring_smp_store_release(sq->ktail, sq->sqe_tail);
    }
    return uring_pending(u);
}

/* Returns the flags for an enter of a ring whose kernel thread has *count* submissions to take:
 * SQ_WAKEUP if the thread sleeps, SQ_WAIT, which waits for room, if the queue is full. Returns 0 if
 * no enter is needed. */
static inline unsigned uring_thread_flags(const uring *u, unsigned count) {
    unsigned flags = 0;

    /* The thread sets the flag and then reads the queue; this process has written the queue and
     * then reads the flag. */
    atomic_thread_fence(memory_order_seq_cst);
    if (__atomic_load_n(u->ring.sq.kflags, __ATOMIC_RELAXED) & IORING_SQ_NEED_WAKEUP)
        flags |= IORING_ENTER_SQ_WAKEUP;
    if (count >= *u->ring.sq.kring_entries)
        flags |= IORING_ENTER_SQ_WAIT;
    return flags;
}

/* Publishes what is prepared, and enters; with a kernel thread only if the thread or the caller
 * needs that. */
static inline int uring_enter(uring *u, unsigned wanted, unsigned flags, void *arg, size_t size) {
    unsigned count = uring_publish(u);

    if (u->soft != NULL) {
        uring_count(&u->enters, 1);
        return softring_enter(u->soft, wanted, flags, -1);
    }
    if (u->threaded) {
        unsigned thread_flags = uring_thread_flags(u, count);

        if (!thread_flags && !wanted && !uring_has_overflow(u))
            return 0;
        flags |= thread_flags;
        count = 0;
    }
    uring_count(&u->enters, 1);
    return io_uring_enter2(u->ring.ring_fd, count, wanted, flags, arg, size);
}

/* Submits, and runs deferred completions; never sleeps. A timeout of zero would sleep: it arms a
 * timer and schedules, which takes 15 us; a plain GETEVENTS takes 0.2 us. */
static inline int uring_submit(uring *u) {
    return uring_enter(u, 0, IORING_ENTER_GETEVENTS, NULL, 0);
}

/* Submits, and leaves deferred completions to a later enter. */
static inline int uring_submit_only(uring *u) { return uring_enter(u, 0, 0, NULL, 0); }

/* Hints to the processor that this is a spin loop. */
static inline void uring_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Spins until something has completed or *spin_ns* have passed; returns whether something has.
 * Makes no system call for a ring of the kernel. */
static inline bool uring_spin(uring *u, int64_t spin_ns) {
    int64_t end = uring_clock_ns() + spin_ns;

    do {
        for (int i = 0; i < 16; i++) {
            if (uring_head(u) != uring_tail(u) || uring_has_task_work(u))
                return true;
            uring_relax();
        }
        /* A software ring finds events only in an enter. */
        if (u->soft != NULL && softring_enter(u->soft, 1, IORING_ENTER_GETEVENTS, 0) == 0)
            return true;
    } while (uring_clock_ns() < end);
    return false;
}

/* Submits and sleeps until *wanted* completions are there, or *least_ns* have passed and there is
 * one, or *timeout_ns* has passed. */
static inline int uring_wait_for(uring *u, unsigned wanted, int64_t least_ns, int64_t timeout_ns) {
    unsigned flags = IORING_ENTER_GETEVENTS | u->enter_flags;
    struct __kernel_timespec ts;
    uring_wait_arg arg;

    if (u->soft != NULL) {
        uring_publish(u);
        uring_count(&u->enters, 1);
        return softring_enter(u->soft, wanted, flags,
                              timeout_ns == URING_FOREVER ? -1 : timeout_ns);
    }
    if (timeout_ns == URING_FOREVER && !least_ns)
        return uring_enter(u, wanted, flags, NULL, _NSIG / 8);
    memset(&arg, 0, sizeof(arg));
    arg.sigmask_sz = _NSIG / 8;
    arg.min_wait_usec = (uint32_t)(least_ns / 1000);
    if (timeout_ns != URING_FOREVER) {
        ts.tv_sec = timeout_ns / 1000000000;
        ts.tv_nsec = timeout_ns % 1000000000;
        arg.ts = (uint64_t)(uintptr_t)&ts;
    }
    return uring_enter(u, wanted, flags | IORING_ENTER_EXT_ARG, (void *)&arg, sizeof(arg));
}

/* Submits and sleeps until something completes or *timeout_ns* has passed. It waits for one
 * completion however many sends are submitted: the rest of a short or refused send must not
 * wait. */
static inline int uring_wait(uring *u, int64_t timeout_ns) {
    return uring_wait_for(u, 1, 0, timeout_ns);
}

/* Waits like uring_wait_batch, on a software ring, in two sleeps. */
static inline int uring_wait_twice(uring *u, unsigned wanted, int64_t least_ns,
                                   int64_t timeout_ns) {
    int res = uring_wait_for(u, wanted, 0, least_ns), again;

    if (uring_head(u) != uring_tail(u))
        return res == -ETIME ? 0 : res;
    if (res < 0 && res != -ETIME)
        return res;
    again = uring_wait(u, timeout_ns == URING_FOREVER ? timeout_ns : timeout_ns - least_ns);
    return res > 0 ? res : again;
}

/* Waits like uring_wait, but lets completions gather until there are *wanted*, or for *least_ns*.
 * The timeout may end before that. */
static inline int uring_wait_batch(uring *u, unsigned wanted, int64_t least_ns,
                                   int64_t timeout_ns) {
    if (wanted <= 1 || !(u->ring.features & URING_FEATURE_MIN_TIMEOUT))
        return uring_wait(u, timeout_ns);
    if (u->soft != NULL && (timeout_ns == URING_FOREVER || timeout_ns > least_ns))
        return uring_wait_twice(u, wanted, least_ns, timeout_ns);
    /* The kernel checks the timeout only after the minimum wait. */
    if (timeout_ns != URING_FOREVER && timeout_ns <= least_ns)
        least_ns = 0;
    return uring_wait_for(u, wanted, least_ns, timeout_ns);
}

/* Submits and sleeps until *more* completions are there than now, or *timeout_ns* has passed. */
static inline int uring_wait_more(uring *u, unsigned more, int64_t timeout_ns) {
    unsigned wanted = uring_load(u->ring.cq.ktail) - uring_head(u) + more;
    unsigned most = *u->ring.cq.kring_entries;

    return uring_wait_for(u, wanted < most ? wanted : most, 0, timeout_ns);
}

/* Submits, for a caller that cannot go on without *expected* completions. An enter of this thread
 * posts what has completed; a kernel thread gets URING_PATIENCE_NS to do so. */
static inline int uring_submit_and_collect(uring *u, unsigned expected) {
    return u->threaded ? uring_wait_more(u, expected, URING_PATIENCE_NS) : uring_submit(u);
}

/* ── submissions ────────────────────────────────────────────────────────────────────────────── */

static inline struct io_uring_sqe *uring_get_submission(uring *u) {
    return io_uring_get_sqe(&u->ring);
}

/* Copies one of the submissions that are still in the queue of *from* to *to*, which must have room
 * for it; *index* counts from the oldest. Returns the copy. */
static inline struct io_uring_sqe *uring_move_submission(uring *to, const uring *from,
                                                         unsigned index) {
    struct io_uring_sqe *sqe = uring_get_submission(to);

    *sqe = from->ring.sq.sqes[(*from->ring.sq.khead + index) & *from->ring.sq.kring_mask];
    return sqe;
}

/* uring_sequence() returns the position after the newest submission; uring_submitted() returns
 * whether the kernel has taken all submissions before such a position. */
static inline unsigned uring_sequence(const uring *u) { return u->ring.sq.sqe_tail; }

static inline bool uring_submitted(const uring *u, unsigned sequence) {
    return (int)(io_uring_smp_load_acquire(u->ring.sq.khead) - sequence) >= 0;
}

/* Turns the cancel of *user_data*, the submission just before the position *sequence*, into a NOP.
 * Returns false if the kernel may have taken it, or if this ring does not have it. */
static inline bool uring_undo_cancel(uring *u, unsigned sequence, uint64_t user_data) {
    struct io_uring_sqe *sqe;

    if (!uring_is_usable(u) || u->threaded || uring_submitted(u, sequence))
        return false;
    sqe = &u->ring.sq.sqes[(sequence - 1) & *u->ring.sq.kring_mask];
    if (sqe->opcode != IORING_OP_ASYNC_CANCEL || sqe->addr != user_data)
        return false;
    io_uring_prep_nop(sqe);
    sqe->user_data = 0;
    sqe->flags = IOSQE_CQE_SKIP_SUCCESS;
    return true;
}

/* ── provided buffers ───────────────────────────────────────────────────────────────────────── */

static inline int uring_register_buffers(uring *u, struct io_uring_buf_ring *buffers,
                                         unsigned entries, int group) {
    struct io_uring_buf_reg reg;

    if (u->soft != NULL)
        return softring_register_buffers(u->soft, buffers, entries, group);
    memset(&reg, 0, sizeof(reg));
    reg.ring_addr = (uint64_t)(uintptr_t)buffers;
    reg.ring_entries = entries;
    reg.bgid = (uint16_t)group;
    return io_uring_register_buf_ring(&u->ring, &reg, 0);
}

static inline void uring_give_buffer(struct io_uring_buf_ring *buffers, unsigned entries,
                                     char *address, unsigned size, unsigned id) {
    io_uring_buf_ring_add(buffers, address, size, (unsigned short)id,
                          io_uring_buf_ring_mask(entries), 0);
    io_uring_buf_ring_advance(buffers, 1);
}

/* Maps anonymous, page-aligned memory, which a forked child finds full of zeros. Returns NULL if
 * there is no memory. */
static inline void *uring_map(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    /* Do not let a fork copy the pages: the kernel goes on writing to the parent's. The child has
     * memory at these addresses, because a callback that forks may still use a buffer. */
    madvise(memory, size, MADV_WIPEONFORK);
    return memory;
}

/* Maps memory like uring_map() if *size* is at most one of *parts* equal parts of what the process
 * may still map, and otherwise returns NULL. */
static inline void *uring_map_part(size_t size, unsigned parts) {
    char *memory = uring_map(parts * size);

    if (memory != NULL)
        munmap(memory + size, (parts - 1) * size);
    return memory;
}

/* Accepts a connection without waiting, and stores the peer's name. Returns a descriptor or
 * -errno. */
static inline int uring_accept(const uring *u, int fd, void *name, socklen_t *size) {
    int res;

    if (u->soft != NULL)
        return softring_accept(u->soft, fd, name, size);
    res = accept4(fd, name, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return res < 0 ? -errno : res;
}

/* Returns what has ended receiving from a socket, if *res* is what recv(2) has returned: 0 at EOF,
 * or -errno. */
static inline int uring_ended_by(const uring *u, int fd, int res) {
    return u->soft == NULL ? res : softring_ended_by(u->soft, fd, res);
}

/* Returns whether a multishot receive may miss the end of its connection. Kernels from 6.5 on miss
 * a reset, and on UNIX sockets any end, that is there with the last bytes; 6.1 does not. */
static inline bool uring_misses_ends(const uring *u) {
    return u->soft == NULL || softring_misses_ends(u->soft);
}

#endif
