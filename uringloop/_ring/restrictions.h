/* What the kernel lets the ring of a loop do (IORING_REGISTER_RESTRICTIONS, Linux 5.10): the
 * operations and registrations that a loop and its files use. The kernel refuses all others with
 * EACCES. Whoever can write to the memory of the process thus cannot use this ring for what the loop
 * never does, such as commands to devices. It costs 0 to 1.5 ns for each submission.
 */
#ifndef URINGLOOP_RESTRICTIONS_H
#define URINGLOOP_RESTRICTIONS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_kernel/io_uring.h"

#define URING_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* SECURITY.md lists these; tests/ring/test_restrictions.py submits all others. */
static const uint8_t uring_loop_operations[] = {
    IORING_OP_NOP,
    IORING_OP_POLL_ADD,
    IORING_OP_ASYNC_CANCEL,
    IORING_OP_SEND,
    IORING_OP_SENDMSG,
    IORING_OP_RECV,
    IORING_OP_RECVMSG,
    URING_OP_EPOLL_WAIT,
};

static const uint8_t uring_file_operations[] = {
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
    URING_OP_FTRUNCATE,
};

/* What is registered after the ring has been enabled. */
static const uint8_t uring_registrations[] = {
    IORING_REGISTER_PBUF_RING,
    IORING_REGISTER_IOWQ_MAX_WORKERS,
    IORING_REGISTER_EVENTFD,
};

#define URING_SUBMISSION_FLAGS \
    (IOSQE_BUFFER_SELECT | IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK | IOSQE_ASYNC)

#define URING_OPERATIONS (URING_COUNT(uring_loop_operations) + URING_COUNT(uring_file_operations))

/* Returns the operation of this number, below URING_OPERATIONS; those of loops come first. */
static inline uint8_t uring_operation(size_t number) {
    if (number < URING_COUNT(uring_loop_operations))
        return uring_loop_operations[number];
    return uring_file_operations[number - URING_COUNT(uring_loop_operations)];
}

/* Restricts a ring that is not enabled yet; the restrictions begin then. With *files* it may do
 * operations on files. Returns 0 or -errno: EBUSY if the ring has inherited a list from the process
 * (Linux 7.0), which cannot be changed. */
static inline int uring_restrict(struct io_uring *ring, bool files) {
    /* The kernel returns EINVAL for an operation that it does not know. */
    static const uint8_t newest[] = {URING_OP_EPOLL_WAIT, URING_OP_FTRUNCATE, IORING_OP_LINKAT};
    struct io_uring_restriction allowed[URING_OPERATIONS + URING_COUNT(uring_registrations) + 1];
    size_t operations = files ? URING_OPERATIONS : URING_COUNT(uring_loop_operations), i, tries;
    unsigned count;
    int res = -EINVAL;

    for (tries = 0; res == -EINVAL && tries < URING_COUNT(newest); tries++) {
        memset(allowed, 0, sizeof(allowed));
        count = 0;
        for (i = 0; i < URING_COUNT(uring_registrations); i++) {
            allowed[count].opcode = IORING_RESTRICTION_REGISTER_OP;
            allowed[count++].register_op = uring_registrations[i];
        }
        allowed[count].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
        allowed[count++].sqe_flags = URING_SUBMISSION_FLAGS;
        for (i = 0; i < operations; i++)
            if (uring_operation(i) <= newest[tries]) {
                allowed[count].opcode = IORING_RESTRICTION_SQE_OP;
                allowed[count++].sqe_op = uring_operation(i);
            }
        res = io_uring_register_restrictions(ring, allowed, count);
    }
    return res;
}

#endif
