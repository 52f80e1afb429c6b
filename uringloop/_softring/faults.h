/* A simulated kernel: where a seed says so, the software ring behaves as a kernel may, and seldom
 * does. Compiled with URINGLOOP_SIMULATOR only; otherwise nothing of this is left.
 *
 * Tests find `soft_simulation` in the compiled module by its name. There is one for the process.
 */
#ifndef URINGLOOP_SOFTFAULTS_H
#define URINGLOOP_SOFTFAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What does not harm a correct program. */
typedef enum soft_faults {
    SOFT_FAULT_LATE,        /* what is ready is told later */
    SOFT_FAULT_SHORT,       /* fewer bytes than there are, or than there is room for */
    SOFT_FAULT_STARVED,     /* ENOBUFS, and all buffers are back when the owner hears of it */
    SOFT_FAULT_ENDED,       /* a multishot completion without F_MORE */
    SOFT_FAULT_OVERFLOW,    /* the completion queue is full */
    SOFT_FAULT_INTERRUPTED, /* a wait ends with EINTR */
    SOFT_FAULT_BUSY,        /* nothing is submitted: EAGAIN, EBUSY */
    SOFT_FAULT_OVERTAKEN,   /* what shall be cancelled goes on a little before it ends */
    SOFT_FAULT_REORDERED,   /* what is ready is told in another order */
    SOFT_FAULT_JUMP,        /* the clock jumps ahead */
    /* What ends a connection, or delays one. */
    SOFT_FAULT_RESET,     /* ECONNRESET */
    SOFT_FAULT_NO_MEMORY, /* ENOMEM */
    SOFT_FAULT_NO_FILES,  /* EMFILE from accept */
    SOFT_FAULT_KINDS
} soft_faults;

typedef struct softring softring;
struct epoll_event;

#ifdef URINGLOOP_SIMULATOR
#define SOFT_SIMULATED true

typedef struct soft_simulated {
    uint64_t state;                       /* of the random numbers; the seed at first */
    uint32_t one_in[SOFT_FAULT_KINDS];    /* on average one time in so many; 0: never */
    uint32_t happened[SOFT_FAULT_KINDS];
    int64_t clock_ns;                     /* how far ahead the loop's clock is */
    uint32_t jumps;                       /* whether a wait moves the clock instead of waiting */
} soft_simulated;

extern soft_simulated soft_simulation;

/* Whether a fault happens now. */
bool soft_fault(soft_faults kind);

/* From 1 to *size*: less than that if a transfer is short. */
size_t soft_shorten(size_t size);

/* Has the events be told in another order, maybe. */
void soft_shuffle(struct epoll_event *events, int count);

/* ECONNRESET or ENOMEM for what carries bytes; 0 if it does not fail. */
int soft_failure(void);

/* How long to wait for an epoll: the clock goes ahead instead where nothing but a timer would end
 * the wait. *busy* is whether threads have something to do. */
int64_t soft_pass_time(int epoll_fd, int64_t timeout_ns, bool busy);

#else
#define SOFT_SIMULATED false

static inline bool soft_fault(soft_faults kind) {
    (void)kind;
    return false;
}

static inline size_t soft_shorten(size_t size) {
    return size;
}

static inline void soft_shuffle(struct epoll_event *events, int count) {
    (void)events;
    (void)count;
}

static inline int soft_failure(void) {
    return 0;
}

static inline int64_t soft_pass_time(int epoll_fd, int64_t timeout_ns, bool busy) {
    (void)epoll_fd;
    (void)busy;
    return timeout_ns;
}

#endif
#endif
