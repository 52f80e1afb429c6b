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

typedef struct uring_restrictions {
    struct io_uring_restriction allowed[URING_COUNT(uring_loop_operations) +
                                        URING_COUNT(uring_file_operations) +
                                        URING_COUNT(uring_registrations) + 1];
    unsigned count;
} uring_restrictions;

/* Adds the operations up to *newest*: the kernel returns EINVAL for one that it does not know. */
static inline void uring_allow_operations(uring_restrictions *rules, const uint8_t *operations,
                                          size_t count, unsigned newest) {
    for (size_t i = 0; i < count; i++) {
        if (operations[i] > newest)
            continue;
        rules->allowed[rules->count].opcode = IORING_RESTRICTION_SQE_OP;
        rules->allowed[rules->count++].sqe_op = operations[i];
    }
}

/* Restricts a ring that is not enabled yet; the restrictions begin then. With *files* it may do
 * operations on files. Returns 0 or -errno. */
static inline int uring_restrict(struct io_uring *ring, bool files) {
    static const unsigned newest[] = {URING_OP_EPOLL_WAIT, URING_OP_FTRUNCATE, IORING_OP_LINKAT};
    uring_restrictions rules;
    size_t i, tries;
    int res = -EINVAL;

    for (tries = 0; res == -EINVAL && tries < URING_COUNT(newest); tries++) {
        memset(&rules, 0, sizeof(rules));
        for (i = 0; i < URING_COUNT(uring_registrations); i++) {
            rules.allowed[rules.count].opcode = IORING_RESTRICTION_REGISTER_OP;
            rules.allowed[rules.count++].register_op = uring_registrations[i];
        }
        rules.allowed[rules.count].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
        rules.allowed[rules.count++].sqe_flags = URING_SUBMISSION_FLAGS;
        uring_allow_operations(&rules, uring_loop_operations, URING_COUNT(uring_loop_operations),
                               newest[tries]);
        if (files)
            uring_allow_operations(&rules, uring_file_operations,
                                   URING_COUNT(uring_file_operations), newest[tries]);
        res = io_uring_register_restrictions(ring, rules.allowed, rules.count);
    }
    return res;
}

#endif
