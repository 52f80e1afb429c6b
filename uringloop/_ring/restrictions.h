/* What the kernel lets the ring of a loop do (IORING_REGISTER_RESTRICTIONS, Linux 5.10): the
 * operations and registrations that a loop and its files use. The kernel refuses all others with
 * EACCES. Whoever can write to the memory of the process thus cannot use this ring for what the loop
 * never does, such as commands to devices. It costs 0 to 1.5 ns for each submission.
 */
#ifndef URINGLOOP_RESTRICTIONS_H
#define URINGLOOP_RESTRICTIONS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_kernel/io_uring.h"

#define URING_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* SECURITY.md lists these; tests/ring/test_restrictions.py submits all others. */
static const uint8_t uring_operations[] = {
    /* sockets, pipes, and the loop itself */
    IORING_OP_NOP,
    IORING_OP_POLL_ADD,
    IORING_OP_ASYNC_CANCEL,
    IORING_OP_SEND,
    IORING_OP_SENDMSG,
    IORING_OP_RECV,
    IORING_OP_RECVMSG,
    /* files */
    IORING_OP_READ,
    IORING_OP_READV,
    IORING_OP_WRITE,
    IORING_OP_WRITEV,
    IORING_OP_FSYNC,
    IORING_OP_FALLOCATE,
    IORING_OP_CLOSE,
    IORING_OP_OPENAT,
    IORING_OP_STATX,
    IORING_OP_RENAMEAT,
    IORING_OP_UNLINKAT,
    IORING_OP_MKDIRAT,
    IORING_OP_SYMLINKAT,
    IORING_OP_LINKAT,
    /* newer than the oldest kernel with which the ring is used, the newest last */
    URING_OP_FTRUNCATE,
    URING_OP_EPOLL_WAIT,
};
#define URING_NEWER_OPERATIONS 2

/* What is registered after the ring has been enabled. */
static const uint8_t uring_registrations[] = {
    IORING_REGISTER_PBUF_RING,
    IORING_REGISTER_IOWQ_MAX_WORKERS,
    IORING_REGISTER_EVENTFD,
};

#define URING_SUBMISSION_FLAGS \
    (IOSQE_BUFFER_SELECT | IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK | IOSQE_ASYNC)

/* Restricts a ring that is not enabled yet; the restrictions begin then. Returns 0 or -errno. */
static inline int uring_restrict(struct io_uring *ring) {
    struct io_uring_restriction
        allowed[URING_COUNT(uring_operations) + URING_COUNT(uring_registrations) + 1];
    unsigned count = 0, least;
    size_t i;
    int res;

    memset(allowed, 0, sizeof(allowed));
    for (i = 0; i < URING_COUNT(uring_registrations); i++) {
        allowed[count].opcode = IORING_RESTRICTION_REGISTER_OP;
        allowed[count++].register_op = uring_registrations[i];
    }
    allowed[count].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
    allowed[count++].sqe_flags = URING_SUBMISSION_FLAGS;
    for (i = 0; i < URING_COUNT(uring_operations); i++) {
        allowed[count].opcode = IORING_RESTRICTION_SQE_OP;
        allowed[count++].sqe_op = uring_operations[i];
    }
    /* The kernel returns EINVAL for an operation that it does not know. */
    least = count - URING_NEWER_OPERATIONS;
    do
        res = io_uring_register_restrictions(ring, allowed, count--);
    while (res == -EINVAL && count >= least);
    return res;
}

#endif
