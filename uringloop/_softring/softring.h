/* The software ring: the contract of the kernel's rings, kept in user space with epoll, system
 * calls that do not wait, and a few threads for files. It serves machines where io_uring is not
 * available.
 *
 * The queues are liburing's structures in plain memory, so the same code prepares submissions and
 * takes completions; only a call that would enter the kernel comes here. The software ring
 * implements the operations that this loop uses, and completes others with EINVAL. It is stricter
 * than the kernel: no completion is lost while there is memory; a multishot operation ends only by
 * a cancel, an error, EOF or a lack of buffers; and a poll reports no event that was not requested.
 *
 * A ring belongs to the thread that has enabled it; other threads get EEXIST.
 */
#ifndef URINGLOOP_SOFTRING_H
#define URINGLOOP_SOFTRING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "_kernel/io_uring.h"
#include "_softring/world.h"

/* Makes a ring, and sets *queues* to its queues. The caller closes it. On failure returns NULL and
 * sets *error*, and *call* to the name of the call that has failed. */
softring *softring_open(struct io_uring *queues, unsigned sq_entries, unsigned cq_entries,
                        const char **call, int *error);

/* Closes a ring. Requests in flight are dropped; a thread finishes the one that it is executing. */
void softring_close(softring *s);

/* In a forked child: closes its copies of the descriptors that the parent uses. */
void softring_leave_to_parent(softring *s);

/* Makes the calling thread the one that may enter. */
void softring_enable(softring *s);

/* Like io_uring_enter(2). Submits what is published. With IORING_ENTER_GETEVENTS, the only flag that
 * has an effect, it then looks for events, and sleeps until *wanted* completions are there,
 * *timeout_ns* (-1: no limit) has passed (ETIME) or a signal has come (EINTR). */
int softring_enter(softring *s, unsigned wanted, unsigned flags, int64_t timeout_ns);

/* Posts a completion of the ring that this one replaces. */
void softring_post(softring *s, uint64_t user_data, int res, unsigned flags);

/* Returns whether a turn that needs no system call should nevertheless enter, to look for
 * events. */
bool softring_is_due(softring *s);

/* Adds the ring to the epoll instance *sleep_epoll_fd*, at which the loop may sleep instead of in
 * softring_enter. There, an event with *data* says that there is something to enter for. No request
 * may wait for that instance. The caller passes -1 before it closes the instance. Returns 0 or
 * -errno. */
int softring_add_to_epoll(softring *s, int sleep_epoll_fd, uint64_t data);

/* Begin and end a sleep at that instance. The first returns false if there is already something to
 * enter for. */
bool softring_fall_asleep(softring *s);
void softring_wake_up(softring *s);

int softring_register_buffers(softring *s, struct io_uring_buf_ring *buffers, unsigned entries,
                              int group);

/* accept4(2), non-blocking and close-on-exec. Returns the descriptor or -errno. */
int softring_accept(softring *s, int fd, struct sockaddr *name, socklen_t *size);

/* Limits the number of threads for files. */
void softring_limit_workers(softring *s, unsigned most);

/* Replaces the kernel by *world* (world.h), until the ring is closed; NULL for the kernel. */
void softring_set_world(softring *s, const soft_world *world);

/* Gives a ring the world of the ring that it replaces. */
void softring_succeed(softring *s, const softring *old);

/* Returns whether a multishot receive may miss the end of its connection. */
bool softring_misses_ends(const softring *s);

/* Returns what has ended a stream of which recv(2) has returned *res*: 0 at EOF, or -errno. */
int softring_ended_by(const softring *s, int fd, int res);

#endif
