/* The software ring: the contract of the kernel's rings, kept in user space with epoll, system
 * calls that do not wait, and a few threads for files. For machines where io_uring is not
 * available.
 *
 * The queues are liburing's structures in plain memory, so preparing submissions and taking
 * completions is the same code; only a call that would enter the kernel comes here. The software
 * ring implements the operations that this loop uses, and completes others with EINVAL. It is
 * stricter than the kernel: no completion is lost while there is memory; a multishot operation ends
 * only by a cancel, an error, EOF or a lack of buffers; and a poll reports no event that was not
 * requested.
 *
 * A ring belongs to the thread that has enabled it; other threads get EEXIST.
 */
#ifndef URINGLOOP_SOFTRING_H
#define URINGLOOP_SOFTRING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "_kernel/io_uring.h"
#include "_softring/simulation.h"

typedef struct softring softring;

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

/* Like io_uring_enter(2). Submits what is published. With *get_events* it then looks for events,
 * and sleeps until *wanted* completions are there, *timeout_ns* (-1: no limit) has passed (ETIME)
 * or a signal has come (EINTR). */
int softring_enter(softring *s, unsigned wanted, bool get_events, int64_t timeout_ns);

/* Posts a completion of the ring that this one replaces. */
void softring_post(softring *s, uint64_t user_data, int res, unsigned flags);

/* Returns whether a turn that needs no system call should nevertheless enter, to look for
 * events. */
bool softring_is_due(softring *s);

/* Adds the ring to the epoll instance *accept_epoll_fd*, for which no request waits and where the
 * loop may sleep instead of in softring_enter: an event with *data* says that there is something to
 * enter for. The caller passes -1 before it closes that instance. Returns 0 or -errno. */
int softring_add_to_epoll(softring *s, int accept_epoll_fd, uint64_t data);

/* Begin and end such a sleep. The first returns false if there is something to enter for
 * already. */
bool softring_fall_asleep(softring *s);
void softring_wake_up(softring *s);

int softring_register_buffers(softring *s, struct io_uring_buf_ring *buffers, unsigned entries,
                              int group);

/* accept4(2), non-blocking and close-on-exec. Returns the descriptor or -errno. */
int softring_accept(softring *s, int fd, struct sockaddr *name, socklen_t *size);

/* Limits the number of threads for files. */
void softring_limit_workers(softring *s, unsigned most);

/* ── for loops that simulate a kernel ───────────────────────────────────────────────────────── */

/* Lets *simulation* decide, from now on and until the ring is closed; NULL for none. */
void softring_simulate(softring *s, soft_simulation *simulation);

/* Lets the simulation of *old*, if it has one, decide in the ring that replaces it. */
void softring_succeed(softring *s, const softring *old);

/* Returns what the threads for files do. */
softring_works softring_work(softring *s);

/* Returns whether an enter would find nothing: no submission, event, result or completion. */
bool softring_is_idle(softring *s);

/* Returns when a simulated slow disk completes its next operation, on the simulation's clock;
 * INT64_MAX if it has none. */
int64_t softring_held_until(const softring *s);

/* Stores the descriptors that requests wait for, at most *size*, and what each waits for (the
 * events of poll(2)). Returns how many there are. */
unsigned softring_waits(softring *s, int *fds, unsigned *events, unsigned size);

/* Returns what a TCP socket had received and sent when the ring last received from the descriptor
 * *fd*; zeros if it never has. */
soft_bytes softring_bytes(const softring *s, int fd);

/* Returns whether a multishot receive may miss the end of its connection, as those of kernels do. */
bool softring_misses_ends(const softring *s);

/* Returns *res*, which has ended receiving from a socket, or the error that stands for it in a
 * simulation; see soft_end_with(). */
int softring_ended_by(const softring *s, int fd, int res);

#endif
