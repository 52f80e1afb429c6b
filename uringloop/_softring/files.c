/* The operations of files of a software ring: threads execute them, in chains of linked requests.
 *
 * The threads use copies of paths, and of the data of operations that may block for ever. Pipes,
 * terminals, sockets and the like would block a thread, so epoll waits for them.
 */
#include "_softring/files.h"

#include "_kernel/files.h"
#include "_softring/queue.h"
#include "_softring/threads.h"
#include "_softring/waits.h"

/* The bytes that a writable pipe accepts without blocking, and the default capacity of a pipe. */
#define SOFT_PIPE_ROOM 4096
#define SOFT_PIPE_SIZE (64 * 1024)

/* Copies the paths, as the kernel does during the submission, and makes room for the result of
 * statx: if the ring is closed, the caller's memory may be gone before a thread starts. */
static int soft_keep_names(soft_request *request) {
    struct io_uring_sqe *sqe = &request->sqe;
    const char *name = (const char *)(uintptr_t)sqe->addr, *second = NULL;
    size_t room = 0, size, second_size;

    switch (sqe->opcode) {
    case IORING_OP_STATX:
        room = sizeof(struct statx);
        break;
    case IORING_OP_RENAMEAT:
    case IORING_OP_SYMLINKAT:
    case IORING_OP_LINKAT:
        second = (const char *)(uintptr_t)sqe->addr2;
        break;
    case IORING_OP_OPENAT:
    case IORING_OP_MKDIRAT:
    case IORING_OP_UNLINKAT:
        break;
    default:
        return 0;
    }
    size = strlen(name) + 1;
    second_size = second != NULL ? strlen(second) + 1 : 0;
    request->held = malloc(room + size + second_size);
    if (request->held == NULL)
        return -ENOMEM;
    sqe->addr = (uintptr_t)memcpy(request->held + room, name, size);
    if (second != NULL)
        sqe->addr2 = (uintptr_t)memcpy(request->held + size, second, second_size);
    if (room) {
        request->answer = (void *)(uintptr_t)sqe->off;
        sqe->off = (uintptr_t)request->held;
    }
    return 0;
}

/* Posts the completions of a finished chain. */
void soft_finish_chain(softring *s, soft_request *chain) {
    soft_request *linked;

    for (; chain != NULL; chain = linked) {
        linked = chain->linked;
        if (chain->answer != NULL && chain->res >= 0)
            memcpy(chain->answer, chain->held,
                   chain->sqe.opcode == IORING_OP_STATX ? sizeof(struct statx)
                                                        : (size_t)chain->res);
        soft_finish(s, chain, chain->res, 0);
    }
}

/* Makes a thread execute a chain. If there is no thread, executes the chain here. */
static void soft_queue(softring *s, soft_request *chain) {
    if (s->world != NULL && s->world->perform(s->world->owner, s, chain))
        return;
    if ((s->pool != NULL || soft_open_pool(s) == 0) && soft_give(s->pool, chain))
        return;
    soft_perform_chain(chain, true);
    soft_finish_chain(s, chain);
}

/* Posts the completions of what the threads have finished. */
void soft_take_done(softring *s) {
    soft_request *chain, *next;

    for (chain = soft_done_chains(s->pool); chain != NULL; chain = next) {
        next = chain->next;
        assert(chain->work == SOFT_WORK_DONE);
        assert(chain->state == SOFT_GIVEN);
        soft_finish_chain(s, chain);
    }
}

static bool soft_writes(const struct io_uring_sqe *sqe) {
    return sqe->opcode == IORING_OP_WRITE || sqe->opcode == IORING_OP_WRITEV;
}

static bool soft_transfers(const struct io_uring_sqe *sqe) {
    return soft_writes(sqe) || sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READV;
}

/* Returns whether a transfer may block on a peer instead of a disk. It rules out the other types,
 * because a file that blocks may have no type, as an eventfd has none. */
static bool soft_is_stream(int fd) {
    struct stat found;

    return fstat(fd, &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode) &&
           !S_ISBLK(found.st_mode);
}

/* Returns whether a request is a transfer that may block on a peer. */
bool soft_may_wait(const struct io_uring_sqe *sqe) {
    return soft_transfers(sqe) && soft_is_stream(sqe->fd);
}

/* Makes a thread execute a transfer that is only possible with blocking calls: that of a terminal,
 * or of a pipe before Linux 6.4. The descriptor is ready, but the thread blocks if another process
 * is faster. Therefore the transfer is small, and uses memory of the request's own. */
static void soft_leave_to_thread(softring *s, soft_request *request, const struct iovec *part) {
    struct io_uring_sqe *sqe = &request->sqe;
    bool writes = soft_writes(sqe);
    size_t most = writes ? SOFT_PIPE_ROOM : SOFT_PIPE_SIZE;
    size_t size = part->iov_len < most ? part->iov_len : most;

    request->held = malloc(size + 1);
    if (request->held == NULL) {
        soft_finish(s, request, -ENOMEM, 0);
        return;
    }
    if (writes)
        memcpy(request->held, part->iov_base, size);
    else
        request->answer = part->iov_base;
    sqe->opcode = writes ? IORING_OP_WRITE : IORING_OP_READ;
    sqe->addr = (uintptr_t)request->held;
    sqe->len = (unsigned)size;
    sqe->off = (uint64_t)-1;
    request->blocks_on_peer = true;
    soft_leave_watch(s, request);
    soft_queue(s, request);
}

/* Tries a read or write of a pipe, a terminal or a socket for which epoll has reported an event. */
static bool soft_try_file(softring *s, soft_request *request, uint32_t events) {
    struct io_uring_sqe *sqe = &request->sqe;
    void *address = (void *)(uintptr_t)sqe->addr;
    struct iovec part = {.iov_base = address, .iov_len = sqe->len}, *vectors = &part;
    int count = 1;
    ssize_t res;

    (void)events;
    if (sqe->opcode == IORING_OP_READV || sqe->opcode == IORING_OP_WRITEV) {
        vectors = address;
        count = (int)sqe->len;
    }
    for (; count > 1 && vectors->iov_len == 0; count--)
        vectors++;
    res = soft_writes(sqe) ? pwritev2(sqe->fd, vectors, count, -1, RWF_NOWAIT)
                           : preadv2(sqe->fd, vectors, count, -1, RWF_NOWAIT);
    if (res < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (res < 0 && errno == EOPNOTSUPP)
        soft_leave_to_thread(s, request, vectors);
    else
        soft_finish(s, request, res < 0 ? -errno : (int)res, 0);
    return false;
}

/* Starts a request that is not linked. */
static void soft_start(softring *s, soft_request *request) {
    const struct io_uring_sqe *sqe = &request->sqe;
    int res = -EPERM;

    if (soft_may_wait(sqe))
        res = soft_await(s, request, soft_writes(sqe) ? EPOLLOUT : EPOLLIN | EPOLLRDHUP,
                         soft_try_file);
    /* epoll does not accept /dev/null and the like, which do not block. */
    if (res == -EPERM)
        soft_queue(s, request);
    else if (res < 0)
        soft_finish(s, request, res, 0);
}

void soft_cancel_chain(softring *s, soft_request *chain) {
    soft_request *linked;

    for (; chain != NULL; chain = linked) {
        linked = chain->linked;
        assert(chain->state == SOFT_NEW);
        soft_finish(s, chain, -ECANCELED, 0);
    }
}

/* Starts the chain that is being submitted, or cancels it if one of its requests has failed. */
void soft_end_chain(softring *s, soft_chain *chain) {
    if (chain->failed)
        soft_cancel_chain(s, chain->first);
    else if (chain->first != NULL)
        soft_queue(s, chain->first);
    *chain = (soft_chain){0};
}

static void soft_add_to_chain(soft_chain *chain, soft_request *request) {
    if (chain->first == NULL) {
        chain->first = request;
    } else {
        assert(request->work == SOFT_WORK_NONE);
        request->work = SOFT_WORK_LINKED;
        chain->last->linked = request;
    }
    chain->last = request;
}

/* Submits any operation, or adds it to the chain that its predecessor has opened. */
void soft_submit_file(softring *s, const struct io_uring_sqe *sqe, soft_chain *chain) {
    bool opens = sqe->flags & IOSQE_IO_LINK, linked = opens || chain->open;
    soft_request *request = soft_new_request(s, sqe);
    int res = request != NULL ? soft_keep_names(request) : -ENOMEM;

    if (request == NULL)
        soft_post(s, sqe->user_data, res, 0);
    else if (res < 0)
        soft_finish(s, request, res, 0);
    else if (s->world != NULL)
        s->world->begin(s->world->owner, request);
    chain->failed |= linked && res < 0;
    chain->open = opens;
    if (res == 0 && linked)
        soft_add_to_chain(chain, request);
    else if (res == 0)
        soft_start(s, request);
    if (linked && !opens)
        soft_end_chain(s, chain);
}
