/* A simulated kernel: where a seed decides so, a software ring does what a kernel may do and seldom
 * does. A loop for tests (testing/core.pyx) owns the simulation and lends it to its ring until the
 * ring is closed; other rings have none, and look at one pointer. Only the loop's thread uses it.
 */
#ifndef URINGLOOP_SOFTRING_SIMULATION_H
#define URINGLOOP_SOFTRING_SIMULATION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum soft_faults {
    /* Faults that a correct program does not notice. */
    SOFT_FAULT_LATE,        /* readiness is reported late */
    SOFT_FAULT_SHORT,       /* a transfer is shorter than it could be */
    SOFT_FAULT_STARVED,     /* ENOBUFS, although buffers are free */
    SOFT_FAULT_ENDED,       /* a multishot completes without F_MORE */
    SOFT_FAULT_OVERFLOW,    /* the completion queue is full */
    SOFT_FAULT_INTERRUPTED, /* a wait ends with EINTR */
    SOFT_FAULT_BUSY,        /* an enter submits nothing: EAGAIN, EBUSY */
    SOFT_FAULT_OVERTAKEN,   /* a cancelled operation goes on for a while */
    SOFT_FAULT_REORDERED,   /* events are reported in another order */
    SOFT_FAULT_MISSED_END,  /* a multishot receive misses an end that comes with bytes */
    /* Faults that end a connection, or delay one. */
    SOFT_FAULT_RESET,     /* ECONNRESET */
    SOFT_FAULT_NO_MEMORY, /* ENOMEM */
    SOFT_FAULT_NO_FILES,  /* EMFILE from accept */
    /* Faults of a disk. */
    SOFT_FAULT_NO_SPACE,  /* ENOSPC from what makes a file, or writes to it */
    SOFT_FAULT_BAD_DISK,  /* EIO from a read, a write or an fsync */
    SOFT_FAULT_SLOW_DISK, /* an operation completes later */
    SOFT_FAULT_KINDS
} soft_faults;

/* What the threads for files do; the higher values outweigh the lower. */
typedef enum softring_works {
    SOFTRING_NO_WORK, /* nothing */
    SOFTRING_WAITS,   /* one waits, perhaps, for another program, at a terminal or a FIFO */
    SOFTRING_WORKS,   /* one works, or has a result */
} softring_works;

#define SOFT_ALWAYS (UINT64_C(1) << 32)

/* How a connection ends, in place of ECONNRESET, EPIPE or EOF: a pair of UNIX sockets, which stands
 * for a connection of TCP, has no other error. */
typedef struct soft_ending {
    struct soft_ending *next;
    uint64_t inode; /* of the socket */
    int error;
} soft_ending;

/* Returns a number below *limit*. */
typedef uint64_t soft_chooser(void *owner, uint64_t limit);

/* What a TCP socket has received and sent. */
typedef struct soft_bytes {
    uint64_t received;
    uint64_t sent;
} soft_bytes;

typedef struct soft_simulation {
    uint64_t state;                    /* of the random numbers; initially the seed */
    soft_chooser *choose;              /* returns them, if not NULL */
    void *owner;                       /* of the simulation, for `choose` */
    int64_t clock_ns;
    bool waiting; /* the loop waits in real time: how often it enters is not the seed's business */
    soft_ending *endings;              /* owned; see soft_end_with() */
    uint64_t chance[SOFT_FAULT_KINDS]; /* of a fault at each opportunity: SOFT_ALWAYS is 1 */
    uint64_t happened[SOFT_FAULT_KINDS];
} soft_simulation;

/* Returns a random number below *limit*, which is not 0. The numbers are used such that 0 stands for
 * what happens without a simulation: hypothesis tries to make them small. */
uint64_t soft_random_below(soft_simulation *simulation, uint64_t limit);

/* Returns whether what has the probability *chance*, of SOFT_ALWAYS, happens now. */
bool soft_happens(soft_simulation *simulation, uint64_t chance);

/* Lets the socket with this inode fail with *error* where its connection ends, once. Returns -ENOMEM
 * or 0. */
int soft_end_with(soft_simulation *simulation, uint64_t inode, int error);

/* Frees what the simulation owns. */
void soft_clear(soft_simulation *simulation);

#endif
