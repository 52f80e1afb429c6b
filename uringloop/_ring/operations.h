/* Which operations a ring of this process may do. A kernel may lack one; from Linux 7.0 on, a filter
 * or a list that the process has inherited may refuse one (IORING_REGISTER_BPF_FILTER and
 * IORING_REGISTER_RESTRICTIONS without a ring).
 *
 * IORING_REGISTER_PROBE knows nothing of filters. So the operations are submitted, as a chain whose
 * first request is invalid: the kernel checks all of them, ends those that it would do with
 * ECANCELED, and starts none, and so no worker. This takes 23 us, once in a process.
 */
#ifndef URINGLOOP_OPERATIONS_H
#define URINGLOOP_OPERATIONS_H

#include <sys/syscall.h>

#include "_ring/uring.h"

/* No kernel has this operation. */
#define URING_OP_INVALID 255

typedef struct uring_answers {
    /* Bits 1 << opcode; all opcodes of restrictions.h are below 64. */
    uint64_t unknown;
    uint64_t refused;
} uring_answers;

/* The operations without which a loop cannot use a ring; for all others it has another way. */
static const uint8_t uring_needed[] = {
    IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL, IORING_OP_SEND,
    IORING_OP_SENDMSG,  IORING_OP_RECV,         IORING_OP_RECVMSG,
};

/* Returns the name of an operation of restrictions.h. */
static inline const char *uring_operation_name(unsigned opcode) {
#define URING_NAMED(name) [IORING_OP_##name] = "IORING_OP_" #name
    static const char *const names[64] = {
        URING_NAMED(NOP),
        URING_NAMED(POLL_ADD),
        URING_NAMED(ASYNC_CANCEL),
        URING_NAMED(SEND),
        URING_NAMED(SENDMSG),
        URING_NAMED(RECV),
        URING_NAMED(RECVMSG),
        URING_NAMED(READ),
        URING_NAMED(READV),
        URING_NAMED(WRITE),
        URING_NAMED(WRITEV),
        URING_NAMED(FSYNC),
        URING_NAMED(FALLOCATE),
        URING_NAMED(CLOSE),
        URING_NAMED(OPENAT),
        URING_NAMED(STATX),
        URING_NAMED(RENAMEAT),
        URING_NAMED(UNLINKAT),
        URING_NAMED(MKDIRAT),
        URING_NAMED(SYMLINKAT),
        URING_NAMED(LINKAT),
        [URING_OP_FTRUNCATE] = "IORING_OP_FTRUNCATE",
        [URING_OP_EPOLL_WAIT] = "IORING_OP_EPOLL_WAIT",
    };
#undef URING_NAMED
    return names[opcode];
}

/* Prepares a request without a descriptor. Its other arguments are valid, because the kernel runs
 * filters only after it has read the arguments. */
static inline void uring_prep_question(struct io_uring_sqe *sqe, uint8_t opcode) {
    static char byte;
    static const struct iovec part = {.iov_base = &byte, .iov_len = 1};
    static const struct msghdr message;
    const void *address = NULL;
    uint64_t second = 0;
    unsigned size = 0;

    switch (opcode) {
    case IORING_OP_SENDMSG:
    case IORING_OP_RECVMSG:
        address = &message;
        size = 1;
        break;
    case IORING_OP_READV:
    case IORING_OP_WRITEV:
    case URING_OP_EPOLL_WAIT:
        address = &part;
        size = 1;
        break;
    case IORING_OP_STATX:
    case IORING_OP_RENAMEAT:
    case IORING_OP_SYMLINKAT:
    case IORING_OP_LINKAT:
        second = (uint64_t)(uintptr_t) "x";
        /* fall through */
    case IORING_OP_OPENAT:
    case IORING_OP_UNLINKAT:
    case IORING_OP_MKDIRAT:
        address = "x";
        break;
    default:
        break;
    }
    io_uring_prep_rw(opcode, sqe, -1, address, size, second);
    sqe->user_data = opcode;
    sqe->flags = IOSQE_IO_LINK;
    /* The flag that a loop sets. */
    if (opcode == IORING_OP_RECV || opcode == IORING_OP_RECVMSG)
        sqe->flags |= IOSQE_BUFFER_SELECT;
}

/* Asks the enabled ring *u*, whose queue is empty and has room for one submission more than there
 * are operations. Returns 0 or -errno. */
static inline int uring_ask_operations(uring *u, uring_answers *answers) {
    unsigned left = URING_OPERATIONS + 1, head;
    struct io_uring_sqe *sqe = uring_get_submission(u);
    int res = 0, rounds = 0;

    *answers = (uring_answers){0, 0};
    uring_prep_question(sqe, URING_OP_INVALID);
    for (size_t i = 0; i < URING_OPERATIONS; i++) {
        sqe = uring_get_submission(u);
        uring_prep_question(sqe, uring_operation(i));
    }
    sqe->flags &= (uint8_t)~IOSQE_IO_LINK;
    /* One enter brings all completions; no sandbox may keep this function for ever. */
    for (; res >= 0 && left > 0 && rounds < 8; rounds++) {
        res = uring_submit(u);
        for (head = uring_head(u); head != uring_tail(u); uring_consume(u, ++head), left--) {
            const struct io_uring_cqe *answer = uring_completion(u, head);

            if (answer->user_data == URING_OP_INVALID)
                continue;
            if (answer->res == -EINVAL)
                answers->unknown |= 1ULL << answer->user_data;
            else if (answer->res == -EACCES)
                answers->refused |= 1ULL << answer->user_data;
        }
    }
    return res < 0 ? res : 0;
}

/* Returns 0 if *u* may do what a loop needs, else -errno, and stores the name of what it may not
 * do. */
static inline int uring_check_needs(uring *u, const uring_answers *answers, const char **call) {
    for (size_t i = 0; i < URING_COUNT(uring_needed); i++)
        if (answers->refused >> uring_needed[i] & 1) {
            *call = uring_operation_name(uring_needed[i]);
            return -EACCES;
        }
    /* Without arguments it fails otherwise if it is allowed. */
    if (syscall(SYS_io_uring_register, u->ring.ring_fd, IORING_REGISTER_PBUF_RING, NULL, 0) < 0 &&
        uring_is_forbidden(-errno)) {
        *call = "IORING_REGISTER_PBUF_RING";
        return -errno;
    }
    return 0;
}

#endif
