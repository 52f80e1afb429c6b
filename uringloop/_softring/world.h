/* The world of a software ring: the functions by which its owner may replace the kernel.
 *
 * A ring without a world calls the kernel. Where the contract of io_uring allows several outcomes,
 * such a ring chooses the one that is best for its owner: it reports events at once, transfers as
 * many bytes as there are, and accepts every enter. A ring with a world calls these functions in
 * place of the kernel. They may make the same system calls, ask for less, return other errors, and
 * have any outcome that the contract allows.
 *
 * The table belongs to its owner, and must be valid until the ring is closed. No function in it is
 * NULL, and only the thread that owns the ring calls them. Their first argument is `owner`. Results
 * below zero are -errno.
 */
#ifndef URINGLOOP_SOFTRING_WORLD_H
#define URINGLOOP_SOFTRING_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "_kernel/io_uring.h"

typedef struct softring softring;
typedef struct soft_request soft_request;

/* Outcomes that the contract allows at any time, and that a ring without a world has only when it
 * must. */
typedef enum soft_choices {
    SOFT_EVENT_LATE,       /* a request does not get an event now; epoll reports it again */
    SOFT_MULTISHOT_ENDS,   /* a multishot operation completes without F_MORE */
    SOFT_WAIT_INTERRUPTED, /* a wait for completions ends with EINTR */
    SOFT_NO_BUFFER,        /* a receive finds no buffer: ENOBUFS */
    SOFT_NO_ROOM,          /* a completion finds the queue full */
    SOFT_NO_DESCRIPTOR,    /* an accept finds no free descriptor: EMFILE */
} soft_choices;

typedef struct soft_world {
    void *owner;

    /* Returns whether the ring has this outcome now. */
    bool (*chooses)(void *owner, soft_choices outcome);

    /* Called when an enter begins. If this returns less than zero, the enter submits nothing and
     * returns the same. */
    int (*enter)(void *owner, softring *s);

    /* epoll_wait(2). The requests get the events in the order of the array. */
    int (*wait)(void *owner, int epoll_fd, struct epoll_event *events, int size,
                int64_t timeout_ns);

    /* Called when a multishot receive of a stream begins, or an operation of a file. */
    void (*begin)(void *owner, soft_request *request);

    /* Called when a request that waits for a descriptor is to be cancelled. Returns 0, or with what
     * the cancel fails: -EALREADY if it comes too late, and the world ends the request in a later
     * enter; -ENOENT if it misses the request. In both cases the request goes on. */
    int (*overtakes)(void *owner, softring *s, soft_request *request);

    /* recv(2) or recvmsg(2) into a buffer. *size* is the number of bytes to ask for; the function
     * stores the number for which it has asked. */
    ssize_t (*receive)(void *owner, soft_request *request, const struct io_uring_buf *buffer,
                       size_t *size);

    /* send(2) of the bytes from *sent* on; or sendmsg(2) of *message* if that is not NULL. */
    ssize_t (*send)(void *owner, const struct io_uring_sqe *sqe, const struct msghdr *message,
                    size_t sent);

    /* Executes a chain of operations of files, or returns false to leave it to the threads. The
     * world posts the results with soft_finish_chain(), at once or in a later call of `complete`,
     * which the ring calls in each enter that looks for events. Until then the chain is SOFT_KEPT,
     * and in the ring's list `kept`. */
    bool (*perform)(void *owner, softring *s, soft_request *chain);
    void (*complete)(void *owner, softring *s);

    /* Returns whether a multishot receive may miss the end of its connection, as those of kernels
     * do. */
    bool (*misses_ends)(void *owner);

    /* Returns what has ended a stream of which the ring's owner has called recv(2) itself. *res* is
     * the result of that call: 0 at EOF, or -errno. */
    int (*ended_by)(void *owner, int fd, int res);
} soft_world;

#endif
