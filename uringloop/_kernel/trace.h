/* The trace of a ring, URINGLOOP_TRACE: one line for each submission, cancel and completion.
 *
 * Tracing makes no Python object and does not release the GIL, so that no finalizer finds an
 * operation half started. A line is one write(2), so the lines of several processes
 * stay whole.
 */
#ifndef URINGLOOP_TRACE_H
#define URINGLOOP_TRACE_H

#include "_kernel/clock.h"
#include "_kernel/io_uring.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Room for a line. A longer one, with the path of a file, is truncated. */
#define URING_TRACE_LINE 512
/* The kernel's errors end at 133; it uses those from 512 on internally only. */
#define URING_TRACE_ERRORS 134

/* Embedded in its ring. The descriptor and the names belong to the process. */
typedef struct uring_trace {
    int fd;               /* -1: no trace */
    unsigned loop;        /* its number in this process */
    unsigned number;      /* of the newest operation */
    int64_t began_ns;     /* when the trace began, on the loop's clock */
    const int64_t *clock_ns; /* a clock of the loop's own, which owns it; NULL: the real one */
    const char **errors;  /* URING_TRACE_ERRORS names, or NULL */
} uring_trace;

static inline const char *uring_name(unsigned opcode) {
    switch (opcode) {
    case IORING_OP_NOP:
        return "nop";
    case IORING_OP_READV:
        return "readv";
    case IORING_OP_WRITEV:
        return "writev";
    case IORING_OP_FSYNC:
        return "fsync";
    case IORING_OP_POLL_ADD:
        return "poll";
    case IORING_OP_SENDMSG:
        return "sendmsg";
    case IORING_OP_RECVMSG:
        return "recvmsg";
    case IORING_OP_FALLOCATE:
        return "fallocate";
    case IORING_OP_OPENAT:
        return "openat";
    case IORING_OP_CLOSE:
        return "close";
    case IORING_OP_STATX:
        return "statx";
    case IORING_OP_READ:
        return "read";
    case IORING_OP_WRITE:
        return "write";
    case IORING_OP_SEND:
        return "send";
    case IORING_OP_RECV:
        return "recv";
    case IORING_OP_RENAMEAT:
        return "renameat";
    case IORING_OP_UNLINKAT:
        return "unlinkat";
    case IORING_OP_MKDIRAT:
        return "mkdirat";
    case IORING_OP_SYMLINKAT:
        return "symlinkat";
    case IORING_OP_LINKAT:
        return "linkat";
    case URING_OP_FTRUNCATE:
        return "ftruncate";
    case URING_OP_EPOLL_WAIT:
        return "epoll_wait";
    default:
        return "other";
    }
}

static inline bool uring_names_path(unsigned opcode) {
    return opcode == IORING_OP_OPENAT || opcode == IORING_OP_STATX ||
           opcode == IORING_OP_RENAMEAT || opcode == IORING_OP_UNLINKAT ||
           opcode == IORING_OP_MKDIRAT || opcode == IORING_OP_SYMLINKAT ||
           opcode == IORING_OP_LINKAT;
}

static inline bool uring_has_size(unsigned opcode) {
    return opcode == IORING_OP_READ || opcode == IORING_OP_WRITE || opcode == IORING_OP_SEND;
}

static inline bool uring_is_multishot(const struct io_uring_sqe *sqe) {
    switch (sqe->opcode) {
    case IORING_OP_RECV:
    case IORING_OP_RECVMSG:
        return sqe->ioprio & IORING_RECV_MULTISHOT;
    case IORING_OP_POLL_ADD:
        return sqe->len & IORING_POLL_ADD_MULTI;
    default:
        return false;
    }
}

/* Appends to a line of *size* bytes; what does not fit is left out. */
static inline __attribute__((format(printf, 3, 4))) int
uring_trace_add(char *line, int size, const char *format, ...) {
    va_list arguments;
    int more;

    va_start(arguments, format);
    more = vsnprintf(line + size, (size_t)(URING_TRACE_LINE - size), format, arguments);
    va_end(arguments);
    if (more < 0)
        return size;
    return more < URING_TRACE_LINE - size ? size + more : URING_TRACE_LINE - 1;
}

static inline int uring_trace_begin(const uring_trace *trace, char *line) {
    int64_t passed = uring_clock_ns() - trace->began_ns;

    if (trace->clock_ns != NULL)
        /* Without process and real time, so that the lines of two runs can be compared. */
        return uring_trace_add(line, 0, "%" PRId64 ".%09d ", *trace->clock_ns / 1000000000,
                               (int)(*trace->clock_ns % 1000000000));
    return uring_trace_add(line, 0, "[%d.%u] %" PRId64 ".%06d ", (int)getpid(), trace->loop,
                           passed / 1000000000, (int)(passed % 1000000000 / 1000));
}

/* Ignores errors, such as a reader that has gone. */
static inline void uring_trace_write(const uring_trace *trace, char *line, int size) {
    ssize_t written;

    line[size] = '\n';
    do {
        written = write(trace->fd, line, (size_t)size + 1);
    } while (written < 0 && errno == EINTR);
}

/* Traces a prepared submission. Returns its number, which is also in the other lines about it. */
static inline unsigned uring_trace_start(uring_trace *trace, const struct io_uring_sqe *sqe,
                                         bool quiet, const char *owner) {
    char line[URING_TRACE_LINE];
    int saved = errno, size = uring_trace_begin(trace, line);
    const char *dot = strrchr(owner, '.');

    size = uring_trace_add(line, size, "%s#%u", uring_name(sqe->opcode), ++trace->number);
    if (uring_names_path(sqe->opcode) && sqe->addr)
        size = uring_trace_add(line, size, " \"%s\"", (const char *)(uintptr_t)sqe->addr);
    else
        size = uring_trace_add(line, size, " fd=%d", sqe->fd);
    if (uring_has_size(sqe->opcode))
        size = uring_trace_add(line, size, " size=%u", sqe->len);
    size = uring_trace_add(line, size, "%s%s for %s", uring_is_multishot(sqe) ? " multishot" : "",
                           quiet ? " quiet" : "", dot != NULL ? dot + 1 : owner);
    uring_trace_write(trace, line, size);
    errno = saved;
    return trace->number;
}

/* Traces a cancel. *what* is "cancel", or "keep" where a cancel is taken back. */
static inline void uring_trace_cancel(const uring_trace *trace, const char *what, unsigned opcode,
                                      unsigned number) {
    char line[URING_TRACE_LINE];
    int saved = errno, size = uring_trace_begin(trace, line);

    size = uring_trace_add(line, size, "%s %s#%u", what, uring_name(opcode), number);
    uring_trace_write(trace, line, size);
    errno = saved;
}

static inline int uring_trace_result(const uring_trace *trace, char *line, int size, int res) {
    const char *name = NULL;

    if (res < 0 && res > -URING_TRACE_ERRORS)
        name = trace->errors[-res];
    return uring_trace_add(line, size, " = %d%s%s", res, name != NULL ? " " : "",
                           name != NULL ? name : "");
}

/* Traces a completion. *more* is true if it is not the terminal one, and *all* is true for a quiet
 * operation that has succeeded. */
static inline void uring_trace_complete(const uring_trace *trace, unsigned opcode, unsigned number,
                                        int res, bool more, bool all) {
    char line[URING_TRACE_LINE];
    int saved = errno, size = uring_trace_begin(trace, line);

    size = uring_trace_add(line, size, "%s#%u", uring_name(opcode), number);
    if (all)
        size = uring_trace_add(line, size, " = all");
    else if (opcode == IORING_OP_POLL_ADD && res >= 0)
        size = uring_trace_add(line, size, " = 0x%x", (unsigned)res);
    else
        size = uring_trace_result(trace, line, size, res);
    if (more)
        size = uring_trace_add(line, size, ", more");
    uring_trace_write(trace, line, size);
    errno = saved;
}

/* Traces an io_uring_enter that has failed. */
static inline void uring_trace_enter(const uring_trace *trace, int res) {
    char line[URING_TRACE_LINE];
    int saved = errno, size = uring_trace_begin(trace, line);

    size = uring_trace_add(line, size, "io_uring_enter");
    size = uring_trace_result(trace, line, size, res);
    uring_trace_write(trace, line, size);
    errno = saved;
}

#endif
