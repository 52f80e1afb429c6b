/* A simulated kernel: the world of a software ring (_softring/world.h). Where a seed decides so, it
 * does what a kernel may do and seldom does. A loop for tests (core.pyx) owns the simulation, and
 * the loop's ring calls it. Only the loop's thread uses it.
 *
 * simulation.c         random numbers, choices, and the table of functions
 * simulated_sockets.c  receives and sends, and how connections end
 * simulated_disk.c     operations of files
 * simulation_ring.c    what the ring does now
 */
#ifndef URINGLOOP_TESTING_SIMULATION_H
#define URINGLOOP_TESTING_SIMULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "_softring/world.h"

typedef enum simulation_faults {
    /* Faults that a correct program does not notice. */
    FAULT_LATE,        /* readiness is reported late */
    FAULT_SHORT,       /* a transfer is shorter than it could be */
    FAULT_STARVED,     /* ENOBUFS, although buffers are free */
    FAULT_ENDED,       /* a multishot completes without F_MORE */
    FAULT_OVERFLOW,    /* the completion queue is full */
    FAULT_INTERRUPTED, /* a wait ends with EINTR */
    FAULT_BUSY,        /* an enter submits nothing: EAGAIN, EBUSY */
    FAULT_OVERTAKEN,   /* a cancelled operation goes on for a while */
    FAULT_REORDERED,   /* events are reported in another order */
    FAULT_MISSED_END,  /* a multishot receive misses an end that comes with bytes */
    /* Faults that end a connection, or delay one. */
    FAULT_RESET,     /* ECONNRESET */
    FAULT_NO_MEMORY, /* ENOMEM */
    FAULT_NO_FILES,  /* EMFILE from accept */
    /* Faults of a disk. */
    FAULT_NO_SPACE,  /* ENOSPC from what makes a file, or writes to it */
    FAULT_BAD_DISK,  /* EIO from a read, a write or an fsync */
    FAULT_SLOW_DISK, /* an operation completes later */
    FAULT_KINDS
} simulation_faults;

#define SIMULATION_ALWAYS (UINT64_C(1) << 32)

/* Returns a number below *limit*. */
typedef uint64_t simulation_chooser(void *owner, uint64_t limit);

/* What a TCP socket has received and sent. */
typedef struct simulation_bytes {
    uint64_t received;
    uint64_t sent;
} simulation_bytes;

/* How a connection ends, in place of ECONNRESET, EPIPE or EOF: a pair of UNIX sockets, which stands
 * for a connection of TCP, has no other error. */
typedef struct simulation_ending {
    struct simulation_ending *next;
    uint64_t inode; /* of the socket */
    int error;
} simulation_ending;

typedef struct simulation {
    soft_world world;
    uint64_t state;               /* of the random numbers; initially the seed */
    simulation_chooser *choose;   /* returns them, if not NULL */
    void *owner;                  /* of the simulation, for `choose` */
    int64_t clock_ns;
    bool waiting; /* the loop waits in real time: how often it enters is not the seed's business */
    simulation_ending *endings;   /* owned; see simulation_end_with() */
    simulation_bytes *bytes;      /* owned; by descriptor: see simulation_bytes_of() */
    int bytes_size;
    uint64_t chance[FAULT_KINDS]; /* of a fault at each opportunity: SIMULATION_ALWAYS is 1 */
    uint64_t happened[FAULT_KINDS];
} simulation;

/* Makes *kernel* the world of a ring, until the ring is closed. */
void simulation_begin(simulation *kernel, softring *s);

/* Frees what the simulation owns. */
void simulation_clear(simulation *kernel);

/* Returns a random number below *limit*, which is not 0. Every caller takes 0 for what happens
 * without a simulation, because hypothesis tries to make the numbers small. */
uint64_t simulation_random_below(simulation *kernel, uint64_t limit);

/* Returns whether something of probability *chance* / SIMULATION_ALWAYS happens now. */
bool simulation_happens(simulation *kernel, uint64_t chance);

/* Lets the socket with this inode fail once with *error*, where its connection ends. Returns
 * -ENOMEM or 0. */
int simulation_end_with(simulation *kernel, uint64_t inode, int error);

/* Returns what a TCP socket had received and sent when the ring last received from the descriptor
 * *fd*; zeros if it never has. */
simulation_bytes simulation_bytes_of(const simulation *kernel, int fd);

/* ── what the ring does now ─────────────────────────────────────────────────────────────────── */

/* What the threads for files do; the higher values outweigh the lower. */
typedef enum ring_works {
    RING_NO_WORK, /* nothing */
    RING_WAITS,   /* one waits, perhaps, for another program, at a terminal or a FIFO */
    RING_WORKS,   /* one works, or has a result */
} ring_works;

ring_works ring_work(softring *s);

/* Returns whether an enter would find nothing: no submission, event, result or completion. */
bool ring_is_idle(const simulation *kernel, const softring *s);

/* Returns when the slow disk completes its next operation, on the simulation's clock; INT64_MAX if
 * it has none. */
int64_t ring_kept_until(const softring *s);

/* Stores the descriptors that requests wait for, at most *size*, and what each waits for (the
 * events of poll(2)). Returns how many there are. */
unsigned ring_waits(const softring *s, int *fds, unsigned *events, unsigned size);

/* ── for the files of the simulation ────────────────────────────────────────────────────────── */

/* What the simulation keeps with a request, in its `note`. */
typedef union simulation_note {
    uint64_t all;
    struct {
        unsigned left_out;   /* bytes that a short transfer leaves out */
        short failure;       /* the result that the disk gives it, or 0 */
        bool cancelled : 1;  /* its cancel has come late, and ends it in the next enter */
        bool misses_end : 1; /* a multishot receive: it may miss the end of its connection */
        bool deaf : 1;       /* it has missed the end, and only receives what is there */
    };
    int64_t due_ns; /* of a KEPT chain: when it completes, on the simulation's clock */
} simulation_note;

simulation_note *simulation_note_of(soft_request *request);

/* Returns whether a fault happens now, and counts it. */
bool simulation_decide(simulation *kernel, simulation_faults kind);

/* Returns *size*, or less, at least 1, if the transfer is to be short. */
size_t simulation_shorten(simulation *kernel, size_t size);

ssize_t simulated_receive(void *owner, soft_request *request, const struct io_uring_buf *buffer,
                          size_t *size);
ssize_t simulated_send(void *owner, const struct io_uring_sqe *sqe, const struct msghdr *message,
                       size_t sent);
int simulated_ended_by(void *owner, int fd, int res);

/* Decides what the disk does to a request that begins. */
void simulated_disturb(simulation *kernel, soft_request *request);
bool simulated_perform(void *owner, softring *s, soft_request *chain);
void simulated_complete(void *owner, softring *s);

#endif
