/* A simulated kernel: where a seed decides so, the software ring does what a kernel may do and
 * seldom does. Compiled with URINGLOOP_SIMULATOR only; in other builds the functions do nothing.
 *
 * Tests find `soft_simulation` in the compiled module by its name. It is one per process.
 */
#ifndef URINGLOOP_SOFTRING_FAULTS_H
#define URINGLOOP_SOFTRING_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Up to SOFT_FAULT_JUMP, faults that a correct program does not notice. */
typedef enum soft_faults {
    SOFT_FAULT_LATE,        /* readiness is reported late */
    SOFT_FAULT_SHORT,       /* a transfer is shorter than it could be */
    SOFT_FAULT_STARVED,     /* ENOBUFS, although buffers are free */
    SOFT_FAULT_ENDED,       /* a multishot completes without F_MORE */
    SOFT_FAULT_OVERFLOW,    /* the completion queue is full */
    SOFT_FAULT_INTERRUPTED, /* a wait ends with EINTR */
    SOFT_FAULT_BUSY,        /* an enter submits nothing: EAGAIN, EBUSY */
    SOFT_FAULT_OVERTAKEN,   /* a cancelled operation goes on for a while */
    SOFT_FAULT_REORDERED,   /* events are reported in another order */
    SOFT_FAULT_JUMP,        /* the clock jumps ahead */
    /* Faults that end a connection, or delay one. */
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
    uint64_t state;                       /* of the random numbers; initially the seed */
    uint32_t one_in[SOFT_FAULT_KINDS];    /* the average interval of a fault; 0: never */
    uint32_t happened[SOFT_FAULT_KINDS];
    int64_t clock_ns;                     /* how far the loop's clock is ahead */
    uint32_t jumps;                       /* whether a wait moves the clock instead of waiting */
} soft_simulated;

extern soft_simulated soft_simulation;

/* Returns whether a fault happens now. */
bool soft_fault(soft_faults kind);

/* Returns *size*, or less, at least 1, if the transfer is to be short. */
size_t soft_shorten(size_t size);

/* Shuffles the events, if that fault happens. */
void soft_shuffle(struct epoll_event *events, int count);

/* Returns -ECONNRESET or -ENOMEM if a send or receive is to fail, otherwise 0. */
int soft_failure(void);

/* Returns how long to wait for an epoll instance. Where only a timer would end the wait, the clock
 * is set ahead instead, and the wait is 0. *busy*: the threads for files have work. */
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
