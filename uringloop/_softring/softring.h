/* The software ring: the contract of the kernel's rings, kept in user space by epoll, system calls
 * that do not wait, and a few threads for files. For machines where io_uring is not to be had.
 *
 * The queues are the same structures in plain memory, so that everything which prepares submissions
 * and takes completions is the same code; only what enters the kernel comes here. It understands
 * the operations that this loop uses and answers EINVAL to others. What differs from the kernel,
 * for the better: no completion is lost while there is memory, multishot operations end only by a
 * cancel, an error, an end or a lack of buffers, and a poll tells of nothing that was not asked
 * for.
 *
 * A ring belongs to the thread that has enabled it; another gets EEXIST.
 */
#ifndef URINGLOOP_SOFTRING_H
#define URINGLOOP_SOFTRING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "_kernel/io_uring.h"

typedef struct softring softring;

/* Makes a ring, and *queues* those of it. The caller closes it. */
softring *softring_open(struct io_uring *queues, unsigned sq_entries, unsigned cq_entries,
                        int *error);

/* Closes it. What is in flight is forgotten; what a thread is doing, it ends alone. */
void softring_close(softring *s);

/* In a forked child: closes the descriptors of what the parent goes on using. */
void softring_leave_to_parent(softring *s);

/* Has the calling thread be the one that enters. */
void softring_enable(softring *s);

/* io_uring_enter(2): what is published is submitted first. Without GETEVENTS nothing is looked for;
 * with *wanted* the call sleeps until so many completions are there, *timeout_ns* (-1: for ever)
 * has passed (ETIME) or a signal has come (EINTR). */
int softring_enter(softring *s, unsigned wanted, bool get_events, int64_t timeout_ns);

/* Puts a completion into the queue: of another ring's, which this one replaces. */
void softring_post(softring *s, uint64_t user_data, int res, unsigned flags);

/* Whether it is time to look for events in a turn that has nothing else to do with the kernel. */
bool softring_is_due(softring *s);

/* For a sleep at the epoll instance *doors_fd* in place of softring_enter: it is told there, with
 * *data*, when there is something to enter for; -1 ends that. 0 or -errno. */
int softring_hang_bell(softring *s, int doors_fd, uint64_t data);

/* Begins such a sleep, false if there is something already, and ends it. */
bool softring_fall_asleep(softring *s);
void softring_wake_up(softring *s);

int softring_register_buffers(softring *s, struct io_uring_buf_ring *buffers, unsigned entries,
                              int group);

/* accept4(2), non-blocking and closed on exec; the descriptor or -errno. */
int softring_accept(int fd, struct sockaddr *name, socklen_t *size);

/* At most so many threads for files. */
void softring_limit_workers(softring *s, unsigned most);

#endif
