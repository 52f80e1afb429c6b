/* A simulated kernel: where a seed decides so, a software ring does what a kernel may do and seldom
 * does. A loop for tests (_testing/core.pyx) owns the simulation and lends it to its ring until the
 * ring is closed; other rings have none, and look at one pointer. Only the loop's thread uses it.
 */
#ifndef URINGLOOP_SOFTRING_SIMULATION_H
#define URINGLOOP_SOFTRING_SIMULATION_H

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
    /* Faults that end a connection, or delay one. */
    SOFT_FAULT_RESET,     /* ECONNRESET */
    SOFT_FAULT_NO_MEMORY, /* ENOMEM */
    SOFT_FAULT_NO_FILES,  /* EMFILE from accept */
    SOFT_FAULT_KINDS
} soft_faults;

#define SOFT_ALWAYS (UINT64_C(1) << 32)

typedef struct soft_simulation {
    uint64_t state;                    /* of the random numbers; initially the seed */
    uint64_t chance[SOFT_FAULT_KINDS]; /* of a fault at each opportunity: SOFT_ALWAYS is 1 */
    uint64_t happened[SOFT_FAULT_KINDS];
} soft_simulation;

/* Returns a random number below *limit*, which is not 0. */
uint64_t soft_random_below(soft_simulation *simulation, uint64_t limit);

#endif
