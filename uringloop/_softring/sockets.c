/* The operations of sockets, and polls, of a software ring: tried without waiting, and tried again
 * when epoll reports an event.
 */
#include "_softring/sockets.h"

#include <limits.h>
#include <poll.h>
#include <sys/uio.h>

#include "_kernel/sockets.h"
#include "_softring/queue.h"
#include "_softring/waits.h"

/* Receives in a row before other descriptors are served. */
#define SOFT_RECEIVES_MAX 4

static soft_try soft_attempt;

/* ── provided buffers ───────────────────────────────────────────────────────────────────────── */

static soft_group *soft_group_of(softring *s, const soft_request *request) {
    return &s->groups[request->sqe.buf_group % SOFT_GROUPS_MAX];
}

/* Returns the next buffer, or NULL; soft_take_buffer removes it from the ring. */
static const struct io_uring_buf *soft_next_buffer(const soft_group *group) {
    if (group->buffers == NULL ||
        group->head == __atomic_load_n(&group->buffers->tail, __ATOMIC_ACQUIRE))
        return NULL;
    return &group->buffers->bufs[group->head & group->mask];
}

static unsigned soft_take_buffer(soft_group *group) {
    unsigned id = group->buffers->bufs[group->head & group->mask].bid;

    group->head++;
    return id << IORING_CQE_BUFFER_SHIFT | IORING_CQE_F_BUFFER;
}

/* ── receiving ──────────────────────────────────────────────────────────────────────────────── */

/* Receives a datagram into a buffer, behind the header, the address and the control messages, as
 * the kernel lays them out. Returns the number of bytes, with those in front of the datagram. */
static ssize_t soft_receive_message(const soft_request *request,
                                    const struct io_uring_buf *buffer) {
    struct io_uring_recvmsg_out *head = (struct io_uring_recvmsg_out *)(uintptr_t)buffer->addr;
    /* soft_submit_receive() has put the sizes from the msghdr into these fields. */
    size_t name_room = request->sqe.addr3, control_room = request->sqe.__pad2[0];
    char *name = (char *)(head + 1);
    size_t before = sizeof(*head) + name_room + control_room;
    struct iovec part;
    struct msghdr message = {.msg_name = name,
                             .msg_namelen = (socklen_t)name_room,
                             .msg_control = name + name_room,
                             .msg_controllen = control_room,
                             .msg_iov = &part,
                             .msg_iovlen = 1};
    ssize_t res;

    if (buffer->len < before)
        return -EFAULT;
    part.iov_base = name + name_room + control_room;
    part.iov_len = buffer->len - before;
    res = recvmsg(request->sqe.fd, &message, (int)request->sqe.msg_flags | MSG_DONTWAIT);
    if (res < 0 && uring_is_forbidden(-errno)) {
        message.msg_controllen = 0;
        res = recvfrom(request->sqe.fd, part.iov_base, part.iov_len,
                       (int)request->sqe.msg_flags | MSG_DONTWAIT, message.msg_name,
                       &message.msg_namelen);
    }
    if (res < 0)
        return -errno;
    head->namelen = message.msg_namelen;
    head->controllen = (uint32_t)message.msg_controllen;
    head->payloadlen = (uint32_t)res;
    head->flags = (uint32_t)message.msg_flags;
    return res + (ssize_t)before;
}

ssize_t soft_receive_now(const soft_request *request, const struct io_uring_buf *buffer,
                         size_t size) {
    ssize_t res;

    if (request->sqe.opcode == IORING_OP_RECVMSG)
        return soft_receive_message(request, buffer);
    res = recv(request->sqe.fd, (void *)(uintptr_t)buffer->addr, size,
               (int)request->sqe.msg_flags | MSG_DONTWAIT);
    return res < 0 ? -errno : res;
}

static ssize_t soft_receive_once(softring *s, soft_request *request,
                                 const struct io_uring_buf *buffer, size_t *size) {
    return s->world == NULL ? soft_receive_now(request, buffer, *size)
                            : s->world->receive(s->world->owner, request, buffer, size);
}

/* The outcome of an attempt. */
typedef enum soft_outcome {
    SOFT_GO_ON, /* there is probably more */
    SOFT_LATER, /* there may be more, but other descriptors are served first */
    SOFT_WAIT,  /* there is no more */
    SOFT_ENDED, /* the request has completed */
} soft_outcome;

/* Receives into the next buffer. */
static soft_outcome soft_receive(softring *s, soft_request *request) {
    soft_group *group = soft_group_of(s, request);
    const struct io_uring_buf *buffer = soft_next_buffer(group);
    unsigned flags;
    size_t size;
    ssize_t res;

    if (!soft_has_room(s) || (buffer == NULL && s->starved)) {
        /* epoll reports the socket again; by then the owner has taken completions or freed
         * buffers. */
        soft_call_again(s);
        return SOFT_LATER;
    }
    if (buffer == NULL || soft_chooses(s, SOFT_NO_BUFFER)) {
        s->starved = true;
        soft_finish(s, request, -ENOBUFS, 0);
        return SOFT_ENDED;
    }
    size = buffer->len;
    res = soft_receive_once(s, request, buffer, &size);
    if (res == -EINTR) {
        /* Do not try again at once: a filter may return EINTR for every call. */
        soft_call_again(s);
        return SOFT_LATER;
    }
    if (res == -EAGAIN)
        return SOFT_WAIT;
    if (res <= 0) {
        soft_finish(s, request, (int)res, 0);
        return SOFT_ENDED;
    }
    flags = soft_take_buffer(group);
    if (request->mode == SOFT_ONCE || soft_chooses(s, SOFT_MULTISHOT_ENDS)) {
        soft_finish(s, request, (int)res, flags);
        return SOFT_ENDED;
    }
    soft_post(s, request->sqe.user_data, (int)res, flags | IORING_CQE_F_MORE);
    /* A receive that gets less than it has asked for has taken all, except with datagrams, or where
     * passed descriptors separate the bytes. */
    return request->sqe.opcode == IORING_OP_RECVMSG || (size_t)res == size ? SOFT_GO_ON
                                                                            : SOFT_LATER;
}

static void soft_submit_receive(softring *s, soft_request *request) {
    const struct msghdr *message;
    int res;

    request->mode = request->sqe.ioprio & IORING_RECV_MULTISHOT ? SOFT_BY_LEVEL : SOFT_ONCE;
    if (request->sqe.opcode == IORING_OP_RECVMSG) {
        message = (const struct msghdr *)(uintptr_t)request->sqe.addr;
        request->sqe.addr3 = message->msg_namelen;
        request->sqe.__pad2[0] = message->msg_controllen;
    } else if (request->mode == SOFT_BY_LEVEL && s->world != NULL) {
        s->world->begin(s->world->owner, request);
    }
    /* A multishot receive does not try, since epoll will report what is there already. */
    if (request->mode == SOFT_ONCE && !(request->sqe.ioprio & IORING_RECVSEND_POLL_FIRST) &&
        soft_receive(s, request) == SOFT_ENDED)
        return;
    res = soft_await(s, request, EPOLLIN | EPOLLRDHUP, soft_attempt);
    if (res == -EPERM)
        /* epoll accepts every socket: this is a file or a directory. */
        res = -ENOTSOCK;
    if (res < 0)
        soft_finish(s, request, res, 0);
}

/* ── sending ────────────────────────────────────────────────────────────────────────────────── */

static size_t soft_size_of(const struct msghdr *message) {
    size_t size = 0, i;

    for (i = 0; i < message->msg_iovlen; i++)
        size += message->msg_iov[i].iov_len;
    return size;
}

/* Removes the first *count* bytes from what a blocked sendmsg still has to send. */
static void soft_advance(soft_request *request, size_t count) {
    struct iovec *first = request->vectors;

    while (request->vector_count > 0 && count >= first->iov_len) {
        count -= first->iov_len;
        first++;
        request->vector_count--;
    }
    memmove(request->vectors, first, request->vector_count * sizeof(*first));
    if (request->vector_count > 0) {
        request->vectors->iov_base = (char *)request->vectors->iov_base + count;
        request->vectors->iov_len -= count;
    }
}

ssize_t soft_send_now(const struct io_uring_sqe *sqe, const struct msghdr *message, size_t sent) {
    int flags = (int)(sqe->msg_flags & ~(unsigned)MSG_WAITALL) | MSG_DONTWAIT;
    const char *bytes = (const char *)(uintptr_t)sqe->addr;
    ssize_t res;

    if (message != NULL)
        res = uring_send_message(sqe->fd, message, flags);
    else
        res = send(sqe->fd, bytes + sent, sqe->len - sent, flags);
    if (res < 0)
        /* After an interruption the send waits for room, like one that found none. */
        res = errno == EINTR ? -EAGAIN : -errno;
    return res;
}

static ssize_t soft_send_once(softring *s, const struct io_uring_sqe *sqe,
                              const struct msghdr *message, size_t sent) {
    return s->world == NULL ? soft_send_now(sqe, message, sent)
                            : s->world->send(s->world->owner, sqe, message, sent);
}

/* Copies the vectors of what a blocked sendmsg still has to send: the caller may reuse its own. */
static int soft_keep_vectors(soft_request *request, const struct msghdr *message) {
    size_t count = message->msg_iovlen;

    request->vectors = malloc((count ? count : 1) * sizeof(*request->vectors));
    if (request->vectors == NULL)
        return -ENOMEM;
    memcpy(request->vectors, message->msg_iov, count * sizeof(*request->vectors));
    request->vector_count = count;
    soft_advance(request, request->sent);
    return 0;
}

/* Continues a send that was blocked. It tries once: a short send means that the socket is full
 * again. */
static void soft_send_on(softring *s, soft_request *request) {
    struct msghdr message = {.msg_iov = request->vectors, .msg_iovlen = request->vector_count};
    bool gathered = request->vectors != NULL;
    size_t left = gathered ? soft_size_of(&message) : request->sqe.len - request->sent;
    ssize_t res = soft_send_once(s, &request->sqe, gathered ? &message : NULL, request->sent);

    if (res == -EAGAIN)
        return;
    if (res < 0) {
        /* Report the bytes that were sent; the next send gets the error. */
        soft_finish(s, request, request->sent ? (int)request->sent : (int)res, 0);
        return;
    }
    request->sent += (size_t)res;
    if ((size_t)res == left)
        soft_finish(s, request, (int)request->sent, 0);
    else if (gathered)
        soft_advance(request, (size_t)res);
}

static void soft_submit_send(softring *s, const struct io_uring_sqe *sqe) {
    const struct msghdr *message =
        sqe->opcode == IORING_OP_SENDMSG ? (const struct msghdr *)(uintptr_t)sqe->addr : NULL;
    size_t size = message != NULL ? soft_size_of(message) : sqe->len;
    ssize_t res = soft_send_once(s, sqe, message, 0);
    bool waits = sqe->msg_flags & MSG_WAITALL && !(sqe->msg_flags & MSG_DONTWAIT);
    soft_request *request;
    int failed = 0;

    if (res == (ssize_t)size) {
        soft_answer(s, sqe, (int)res);
        return;
    }
    if ((res < 0 && res != -EAGAIN) || (!waits && (res >= 0 || sqe->msg_flags & MSG_DONTWAIT))) {
        /* Posted even with CQE_SKIP_SUCCESS: with MSG_WAITALL a short send is a failure. */
        soft_post(s, sqe->user_data, (int)res, 0);
        return;
    }
    request = soft_new_request(s, sqe);
    if (request != NULL) {
        request->sent = res > 0 ? (size_t)res : 0;
        if (message != NULL)
            failed = soft_keep_vectors(request, message);
        if (failed == 0)
            failed = soft_await(s, request, EPOLLOUT, soft_attempt);
        if (failed == 0)
            return;
        soft_finish(s, request, res > 0 ? (int)res : failed, 0);
    } else {
        soft_post(s, sqe->user_data, res > 0 ? (int)res : -ENOMEM, 0);
    }
}

/* ── polls ──────────────────────────────────────────────────────────────────────────────────── */

static void soft_poll(softring *s, soft_request *request, uint32_t events) {
    uint32_t told = events & (request->events | EPOLLERR | EPOLLHUP);

    if (request->mode == SOFT_ONCE || soft_chooses(s, SOFT_MULTISHOT_ENDS))
        soft_finish(s, request, (int)told, 0);
    else if (soft_has_room(s))
        soft_post(s, request->sqe.user_data, (int)told, IORING_CQE_F_MORE);
    else
        /* The poll is edge-triggered: epoll would not report the event again. */
        soft_finish(s, request, (int)told, 0);
}

static void soft_submit_poll(softring *s, soft_request *request) {
    uint32_t events = request->sqe.poll32_events;
    int res;

    request->mode = request->sqe.len & IORING_POLL_ADD_MULTI ? SOFT_BY_EDGE : SOFT_ONCE;
    res = soft_await(s, request, events, soft_attempt);
    if (res == -EPERM)
        /* epoll accepts neither files nor directories; they are always ready. */
        res = (int)(events & (POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM));
    else if (res == 0)
        return;
    soft_finish(s, request, res, 0);
}

/* ── an epoll instance of the caller's ──────────────────────────────────────────────────────── */

/* Takes the events of the instance. It does so at once, because a later call would also report
 * those that arrive in the meantime. */
static void soft_take_events(softring *s, soft_request *request) {
    struct epoll_event *events = (struct epoll_event *)(uintptr_t)request->sqe.addr;
    int count = uring_epoll_wait(request->sqe.fd, events, (int)request->sqe.len, 0);

    if (count != 0)
        soft_finish(s, request, count < 0 ? -errno : count, 0);
}

static void soft_submit_epoll_wait(softring *s, soft_request *request) {
    int res = soft_await(s, request, EPOLLIN, soft_attempt);

    if (res < 0)
        soft_finish(s, request, res, 0);
}

/* ── submitting and retrying ────────────────────────────────────────────────────────────────── */

/* Submits the operation of a socket, or a poll; returns false for any other operation. */
bool soft_submit_socket(softring *s, const struct io_uring_sqe *sqe) {
    soft_request *request;

    switch (sqe->opcode) {
    case IORING_OP_SEND:
    case IORING_OP_SENDMSG:
        soft_submit_send(s, sqe);
        return true;
    case IORING_OP_RECV:
    case IORING_OP_RECVMSG:
    case IORING_OP_POLL_ADD:
    case URING_OP_EPOLL_WAIT:
        break;
    default:
        return false;
    }
    request = soft_new_request(s, sqe);
    if (request == NULL) {
        soft_post(s, sqe->user_data, -ENOMEM, 0);
        return true;
    }
    if (sqe->opcode == IORING_OP_POLL_ADD) {
        soft_submit_poll(s, request);
    } else if (sqe->opcode == URING_OP_EPOLL_WAIT) {
        soft_submit_epoll_wait(s, request);
    } else {
        soft_submit_receive(s, request);
    }
    return true;
}

/* Retries a request whose descriptor has *events*; returns whether the descriptor may have more. */
static bool soft_attempt(softring *s, soft_request *request, uint32_t events) {
    soft_outcome outcome = SOFT_GO_ON;
    int count;

    switch (request->sqe.opcode) {
    case IORING_OP_RECV:
    case IORING_OP_RECVMSG:
        for (count = 0; outcome == SOFT_GO_ON && count < SOFT_RECEIVES_MAX; count++)
            outcome = soft_receive(s, request);
        return outcome == SOFT_GO_ON || outcome == SOFT_LATER;
    case IORING_OP_SEND:
    case IORING_OP_SENDMSG:
        soft_send_on(s, request);
        /* A world may have sent less than the socket has room for. */
        return s->world != NULL;
    case IORING_OP_POLL_ADD:
        soft_poll(s, request, events);
        return false;
    case URING_OP_EPOLL_WAIT:
        soft_take_events(s, request);
        return false;
    default:
        return false;
    }
}
