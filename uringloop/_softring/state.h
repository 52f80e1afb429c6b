/* The structures of the software ring, for its own files, and for a world (world.h) that needs to
 * look into the ring. Each file calls those above it:
 *
 * queue.c     completions, and the requests in flight
 * waits.c     requests that wait for a descriptor, by epoll
 * sockets.c   the operations of sockets, and polls
 * threads.c   threads, and the chains of requests that they execute
 * files.c     the operations of files
 * softring.c  opening, closing, entering, submitting, cancelling
 *
 * Only the thread that owns a ring touches its state. What it shares with the threads for files is
 * in soft_pool, which outlives the ring until the last of these threads has ended.
 */
#ifndef URINGLOOP_SOFTRING_STATE_H
#define URINGLOOP_SOFTRING_STATE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "_kernel/io_uring.h"
#include "_softring/world.h"

/* Retries a request whose descriptor has *events*; returns whether the descriptor may have more. */
typedef bool soft_try(softring *s, soft_request *request, uint32_t events);

/* The number of events that one epoll_wait(2) takes, and so of connections that are served before
 * the program runs. */
#define SOFT_EVENTS_MAX 64
/* Buffer groups: the loop uses two. */
#define SOFT_GROUPS_MAX 4

/* The state of a request, for the ring's thread only:
 *
 *     WAITING <──soft_await()─────── NEW ──soft_enqueue()──> GIVEN
 *        └──────soft_leave_watch()───^ ^───soft_withdraw()─────┘
 *
 * soft_finish() frees a request in any state. The threads free those that they have (GIVEN) if the
 * ring is closed, or if the request was cancelled while a thread executed it.
 */
typedef enum soft_states {
    SOFT_NEW,     /* in no list */
    SOFT_WAITING, /* waits for a descriptor, in the list of its watch */
    SOFT_GIVEN,   /* given to the threads; the ring has not taken the result yet */
    SOFT_KEPT,    /* executed by the world, which completes it later */
} soft_states;

/* How epoll reports the events that a request waits for. If the requests of a descriptor have
 * different modes, the one that comes last in this list applies to the descriptor. */
typedef enum soft_modes {
    SOFT_ONCE,     /* one event, EPOLLONESHOT: any request that is not multishot */
    SOFT_BY_LEVEL, /* as long as there is something: a multishot receive */
    SOFT_BY_EDGE,  /* at each arrival, EPOLLET: a multishot poll */
} soft_modes;

/* What the threads do with a chain of requests: `work` of its first request. The transitions are
 * drawn in threads.c. */
typedef enum soft_work_states {
    SOFT_WORK_NONE,        /* the threads do not have it */
    SOFT_WORK_LINKED,      /* not the first request of its chain, and stays so */
    SOFT_WORK_QUEUED,      /* in the pool's queue */
    SOFT_WORK_RUNNING,     /* a thread executes it */
    SOFT_WORK_INTERRUPTED, /* a thread executes it, and must not wait any longer for a peer */
    SOFT_WORK_DISCARDED,   /* the same; the ring has posted ECANCELED and forgotten the request */
    SOFT_WORK_DONE,        /* the results are in the pool's list, or the ring has taken them */
} soft_work_states;

/* One operation that did not complete while it was submitted. The ring's thread makes it during the
 * submission and frees it after the last completion; the exceptions are at soft_states.
 *
 * Only the ring's thread uses the members, with three exceptions. `work`, `worker` and `alarm` are
 * under the pool's lock while the request is GIVEN, and so are `next` and `previous` while it is in
 * a list of the pool. While the work is RUNNING, INTERRUPTED or DISCARDED, the thread that executes
 * it reads `sqe` and `linked` and writes `res` without the lock. */
struct soft_request {
    struct io_uring_sqe sqe;       /* a copy: the entry of the queue is reused */
    struct soft_request *next;     /* of the list that it is in */
    struct soft_request *previous;
    struct soft_request *hashed;   /* the next with the same hash of user_data */
    struct soft_request *linked;   /* starts when this one has succeeded; owned by the first */
    struct iovec *vectors;         /* what a blocked sendmsg still has to send; owned */
    size_t vector_count;
    size_t sent;                   /* bytes that have been sent */
    uint64_t note;                 /* the world's own; 0 at first */
    char *held;                    /* memory that a thread uses in place of the caller's; owned */
    void *answer;                  /* the caller's memory that the thread's result is copied to */
    soft_states state;
    uint32_t events;               /* that it waits for */
    soft_modes mode;
    soft_try *attempt;             /* called when they have come */
    soft_work_states work;
    pid_t worker;                  /* the thread's id, once the work is RUNNING */
    int alarm;                     /* the timer that interrupts the thread repeatedly, or -1 */
    int res;                       /* the thread's result */
    bool blocks_on_peer;           /* a thread may block on a peer: on a terminal or a pipe */
};

/* The linked requests that are being submitted. The last one has no IOSQE_IO_LINK. */
typedef struct soft_chain {
    soft_request *first;
    soft_request *last;
    bool open;   /* its last request is still to come */
    bool failed; /* a request could not be made: none of them is started */
} soft_chain;

/* The requests that wait for a descriptor, and its registration with epoll. */
typedef struct soft_watch {
    soft_request *first;
    uint32_t registered;    /* events and mode; 0 if epoll reports none, even if it has an entry */
    uint32_t generation;    /* in its events; a later file of the same number has another one */
    bool known;             /* epoll may have an entry for it */
    bool has_lasting_error; /* an error or hang-up that stays and ends no request */
} soft_watch;

/* A ring of provided buffers: the owner's memory, and the head, which the kernel would keep. */
typedef struct soft_group {
    struct io_uring_buf_ring *buffers; /* borrowed; its BufferPool outlives the ring */
    unsigned mask;
    unsigned short head;
} soft_group;

/* A completion that found the queue full. */
typedef struct soft_overflow {
    struct soft_overflow *next;
    struct io_uring_cqe completion;
} soft_overflow;

/* The pool of threads for files. The last holder frees it. */
typedef struct soft_pool {
    pthread_mutex_t lock; /* for all members but `sleeping` */
    pthread_cond_t work;
    soft_request *first; /* the queue: the first request of each chain */
    soft_request *last;
    soft_request *done; /* oldest first */
    soft_request *done_last;
    unsigned queued; /* chains */
    unsigned threads;
    unsigned idle; /* threads that wait for work, or have been woken and do not run yet */
    unsigned most;
    unsigned holders;     /* threads, and the ring */
    bool closed;          /* the ring is closed: results are discarded */
    unsigned *flags;      /* the ring's flags, to set TASKRUN; invalid once closed */
    int wake_fd;          /* by which the threads wake the ring (wakeup.h); invalid once closed */
    atomic_bool sleeping; /* the ring's thread sleeps, or is about to */
} soft_pool;

struct softring {
    struct io_uring queues; /* the owner has a copy; the pointers go to `memory` and `indexes` */
    char *memory;           /* the submissions and the completions */
    unsigned indexes[12];
    pthread_t owner;
    bool enabled;
    bool lost;           /* a completion was lost for lack of memory */
    bool starved;        /* a receive has ended with ENOBUFS during this look */
    bool has_stale_file; /* epoll reports a file that cannot be removed from it */
    int epoll_fd;
    int sleep_epoll_fd; /* the caller's epoll instance, at which the loop may sleep; or -1 */
    uint64_t sleep_epoll_data; /* of the ring's events there */
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
    const soft_world *world; /* borrowed; NULL: the kernel itself */
    soft_request *kept;      /* chains that are SOFT_KEPT, in the world's order */
    unsigned quiet_looks;    /* looks (softring.c) in a row that found no event */
    int64_t last_look_ns;
};

/* Returns whether the ring has this outcome now, because its world chooses it. */
static inline bool soft_chooses(const softring *s, soft_choices outcome) {
    return s->world != NULL && s->world->chooses(s->world->owner, outcome);
}

#endif
