/* The structures of the software ring; nobody else includes them. Each part calls those above it:
 *
 * faults.c    when a kernel is simulated: what goes wrong
 * queue.c     completions, and the requests that are not done yet
 * waits.c     which descriptor is waited for, by epoll
 * sockets.c   the operations of sockets, and polls
 * files.c     the operations of files, by threads
 * softring.c  opening, closing, entering, submitting, cancelling
 *
 * Only the thread that owns a ring touches its state. What it shares with the threads for files is
 * in soft_pool, which outlives the ring until the last of them has ended.
 */
#ifndef URINGLOOP_SOFTSTATE_H
#define URINGLOOP_SOFTSTATE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "_kernel/io_uring.h"

typedef struct softring softring;
typedef struct soft_request soft_request;

/* Tries a request again whose descriptor has *events*; whether there may be more to be had. */
typedef bool soft_try(softring *s, soft_request *request, uint32_t events);

/* Events that one look takes: as many connections have their turn before the program has. */
#define SOFT_EVENTS_MAX 64
/* Buffer groups: the loop uses two. */
#define SOFT_GROUPS_MAX 4

/* Where a request is. */
typedef enum soft_states {
    SOFT_NEW,     /* in no list */
    SOFT_WAITING, /* for a descriptor, in the list of its watch */
    SOFT_GIVEN,   /* to the threads, which do it sooner or later, and have not yet been heard */
} soft_states;

/* One operation that was not done at once. Made when it is submitted and freed after its last
 * completion, both by the ring's thread; a thread for files frees those whose ring is closed. */
struct soft_request {
    struct io_uring_sqe sqe;       /* a copy: the queue's is used again */
    struct soft_request *next;     /* of the list that it is in */
    struct soft_request *previous;
    struct soft_request *hashed;   /* the next with the same hash of user_data */
    struct soft_request *linked;   /* begins when this one has been done; owned by the first */
    struct iovec *vectors;         /* what a blocked sendmsg has still to send; owned */
    size_t vector_count;
    size_t sent;                   /* bytes that have gone */
    char *held;                    /* what a thread uses in the place of the caller's; owned */
    void *answer;                  /* the caller's, that what was read there is copied to */
    soft_states state;             /* the ring's thread alone looks at it */
    uint32_t events;               /* it waits for */
    soft_try *attempt;             /* once they have come */
    bool persistent;               /* multishot */
    bool by_edge;                  /* one completion for each arrival: a multishot poll */
    bool queued;                   /* in the pool's list; this and the next three under its lock */
    bool running;                  /* a thread is at it */
    bool given_up;                 /* it has been cancelled: the result is for nobody */
    pid_t worker;                  /* which thread, while it runs */
    bool waits;                    /* for somebody, not a disk: a thread reads a terminal, or writes */
    bool interrupted;              /* the thread that is at it shall wait no more */
    int alarm;                     /* a timer that interrupts it until it hears, if interrupted */
    bool doomed;                   /* cancelled, and still there: a simulated kernel takes time */
    int res;                       /* the thread's answer */
};

/* Who waits for a descriptor, and what epoll has been told of it. */
typedef struct soft_watch {
    soft_request *first;
    uint32_t registered; /* events and mode; 0 if epoll does not look, though it may know of it */
    uint32_t generation; /* in its events: a file that had this number before may have some too */
    bool known;          /* epoll may have an entry for it */
    bool noisy;          /* an error stands, or a hang-up, that ends nobody's wait */
} soft_watch;

/* A ring of provided buffers: the owner's memory, of which the kernel's end is here. */
typedef struct soft_group {
    struct io_uring_buf_ring *buffers; /* borrowed; the pool that gave it outlives the ring */
    unsigned mask;
    unsigned short head;
} soft_group;

/* A completion that found the queue full. */
typedef struct soft_overflow {
    struct soft_overflow *next;
    struct io_uring_cqe completion;
} soft_overflow;

/* The threads for files. Freed by the last of them and the ring. */
typedef struct soft_pool {
    pthread_mutex_t lock; /* for everything but `sleeping` */
    pthread_cond_t work;
    soft_request *first; /* queued; the first of a chain stands for it */
    soft_request *last;
    soft_request *done; /* oldest first */
    soft_request *done_last;
    unsigned queued; /* chains */
    unsigned threads;
    unsigned idle; /* those that nobody has woken, and those woken that have not come to it yet */
    unsigned most;
    unsigned holders; /* threads, and the ring */
    bool closed;      /* the ring has gone: results are for nobody */
    unsigned *flags;  /* the ring's, to set TASKRUN in; not after closed */
    int wake_fd;      /* an eventfd of the ring's; not after closed */
    atomic_bool sleeping; /* the ring's thread sleeps, or is about to */
} soft_pool;

struct softring {
    struct io_uring queues;  /* of which the owner has a copy; the pointers go to `memory` */
    char *memory;            /* the indexes, the completions, the submissions */
    size_t memory_size;
    unsigned indexes[12];
    pthread_t owner;
    bool enabled;
    bool lost;     /* there was no memory for a completion */
    bool starved;  /* a receive has been told of a lack of buffers in this look */
    bool haunted;  /* epoll tells of a file that it can not be asked to forget */
    int epoll_fd;
    int doors_fd;          /* the epoll instance that is told with bell_data, or -1; the caller's */
    uint64_t bell_data;
    soft_watch *watches; /* by number of the descriptor */
    int watches_size;
    soft_request **table; /* by user_data; a power of two */
    unsigned table_size;
    unsigned request_count;
    soft_request *spare; /* freed requests, linked by next */
    soft_overflow *overflow;
    soft_overflow *overflow_last;
    soft_group groups[SOFT_GROUPS_MAX];
    soft_pool *pool;
    unsigned quiet_looks;  /* in a row that found nothing */
    int64_t last_look_ns;
};

#endif
