/* The faults of a simulated kernel, for the files of the software ring. */
#ifndef URINGLOOP_SOFTRING_FAULTS_H
#define URINGLOOP_SOFTRING_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

#include "_softring/simulation.h"
#include "_softring/state.h"

/* Returns whether a fault happens now, and counts it. */
bool soft_decide(soft_simulation *simulation, soft_faults kind);

static inline bool soft_fault(const softring *s, soft_faults kind) {
    return s->simulation != NULL && soft_decide(s->simulation, kind);
}

/* Returns *size*, or less, at least 1, if the transfer is to be short. */
size_t soft_shorten(const softring *s, size_t size);

/* Shuffles the events, if that fault happens. */
void soft_shuffle(const softring *s, struct epoll_event *events, int count);

/* Returns -ECONNRESET or -ENOMEM if a send or receive is to fail, otherwise 0. */
int soft_failure(const softring *s);

/* Returns -ENOSPC or -EIO if an operation of a file is to fail, otherwise 0. */
int soft_disk_failure(const softring *s, const struct io_uring_sqe *sqe);

/* Returns for how many nanoseconds of the simulation's clock an operation of a file takes longer. */
int64_t soft_disk_delay(const softring *s);

/* Decides whether a multishot receive that begins misses an end. */
void soft_begin_multishot(const softring *s, soft_request *request);

/* Returns whether a multishot receive has missed the end of its connection. */
bool soft_is_deaf(soft_request *request);

/* Returns *res*, the result of a socket's system call, or the error that stands for it. */
ssize_t soft_ended_by(const softring *s, int fd, ssize_t res, bool receives);

#endif
