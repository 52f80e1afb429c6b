/* Receives and sends of a simulated kernel, and how connections end. */
#include "testing/simulation.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "_softring/sockets.h"
#include "_softring/state.h"

/* When the table of bytes grows, it gets room for so many descriptors, beginning with the one that
 * has received. */
#define BYTES_ROOM 64

/* Returns -ECONNRESET or -ENOMEM if a send or receive is to fail, otherwise 0. */
static int failure_of(simulation *kernel) {
    if (simulation_decide(kernel, FAULT_RESET))
        return -ECONNRESET;
    return simulation_decide(kernel, FAULT_NO_MEMORY) ? -ENOMEM : 0;
}

/* ── the ends of connections ────────────────────────────────────────────────────────────────── */

/* Returns whether the connection has ended in a way that kernels miss. On TCP that is a reset, as
 * the kernel counts a FIN among the bytes that are left, but not a reset. On a UNIX socket it is
 * any end. */
static bool has_ended(int fd) {
    struct pollfd look = {.fd = fd, .events = POLLRDHUP};
    int domain = 0;
    socklen_t size = sizeof(domain);

    if (poll(&look, 1, 0) <= 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0)
        return false;
    return domain == AF_UNIX || look.revents & POLLERR;
}

/* Returns whether a multishot receive has missed the end of its connection. From Linux 6.5 on, one
 * that begins its wait while bytes and the end are there receives the bytes, and goes on waiting.
 * 6.12.117 does that in a later wake-up, too. */
static bool is_deaf(soft_request *request) {
    simulation_note *note = simulation_note_of(request);
    int size = 0;

    if (!note->misses_end || ioctl(request->sqe.fd, FIONREAD, &size) < 0)
        return false;
    if (size > 0 && !note->deaf && has_ended(request->sqe.fd)) {
        note->deaf = true;
        /* The descriptor stays readable, and no receive changes that. */
        request->mode = SOFT_BY_EDGE;
    }
    return note->deaf && size == 0;
}

int simulation_end_with(simulation *kernel, uint64_t inode, int error) {
    simulation_ending *ending = malloc(sizeof(*ending));

    if (ending == NULL)
        return -ENOMEM;
    *ending = (simulation_ending){.next = kernel->endings, .inode = inode, .error = error};
    kernel->endings = ending;
    return 0;
}

/* Returns the place of the ending that stands for *res*, the result of a socket's system call; NULL
 * if there is none. */
static simulation_ending **find_ending(simulation *kernel, int fd, ssize_t res) {
    simulation_ending **place;
    struct stat found;

    if ((res != -ECONNRESET && res != -EPIPE && res != 0) || kernel->endings == NULL ||
        fstat(fd, &found) != 0)
        return NULL;
    for (place = &kernel->endings; *place != NULL; place = &(*place)->next)
        if ((*place)->inode == found.st_ino)
            return place;
    return NULL;
}

/* Returns the result of a receive. A receive that gets an ending removes it. */
int simulated_ended_by(void *owner, int fd, int res) {
    simulation_ending **place = find_ending(owner, fd, res), *ending;

    if (place == NULL)
        return res;
    ending = *place;
    res = -ending->error;
    *place = ending->next;
    free(ending);
    return res;
}

/* ── what a connection has transferred ──────────────────────────────────────────────────────── */

static simulation_bytes *bytes_place(simulation *kernel, int fd) {
    simulation_bytes *grown;
    int size = fd + BYTES_ROOM;

    if (fd < kernel->bytes_size)
        return &kernel->bytes[fd];
    grown = realloc(kernel->bytes, (size_t)size * sizeof(*grown));
    if (grown == NULL)
        return NULL;
    memset(grown + kernel->bytes_size, 0, (size_t)(size - kernel->bytes_size) * sizeof(*grown));
    kernel->bytes = grown;
    kernel->bytes_size = size;
    return &grown[fd];
}

/* Notes what a TCP socket had sent when it received: TCP_INFO has the times of both in ticks of the
 * kernel's clock, and most answers come within the same tick. */
static void note_bytes(simulation *kernel, int fd) {
    /* Offsets in struct tcp_info of linux/tcp.h, of which older headers have less. */
    enum { RECEIVED = 128, SENT = 200, SENT_AGAIN = 208, SIZE = 216 };
    char info[SIZE];
    socklen_t size = SIZE;
    uint64_t again;
    simulation_bytes *bytes = bytes_place(kernel, fd);

    if (bytes == NULL)
        return;
    memset(bytes, 0, sizeof(*bytes));
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) < 0 || size < SIZE)
        return;
    memcpy(&bytes->received, info + RECEIVED, sizeof(bytes->received));
    memcpy(&bytes->sent, info + SENT, sizeof(bytes->sent));
    memcpy(&again, info + SENT_AGAIN, sizeof(again));
    bytes->sent -= again;
}

simulation_bytes simulation_bytes_of(const simulation *kernel, int fd) {
    return fd < kernel->bytes_size ? kernel->bytes[fd] : (simulation_bytes){0};
}

/* ── receiving and sending ──────────────────────────────────────────────────────────────────── */

ssize_t simulated_receive(void *owner, soft_request *request, const struct io_uring_buf *buffer,
                          size_t *size) {
    bool is_stream = request->sqe.opcode == IORING_OP_RECV;
    ssize_t res;

    /* A datagram is received whole. */
    if (is_stream)
        *size = simulation_shorten(owner, *size);
    if (is_stream && is_deaf(request))
        return -EAGAIN;
    res = is_stream ? failure_of(owner) : 0;
    if (res < 0)
        return res;
    res = soft_receive_now(request, buffer, *size);
    if (is_stream && res <= 0)
        res = simulated_ended_by(owner, request->sqe.fd, (int)res);
    if (res > 0)
        note_bytes(owner, request->sqe.fd);
    return res;
}

/* Sends a part of the data. Returns its size, -errno, or 0 if the send is to be left whole. */
static ssize_t send_some(simulation *kernel, const struct io_uring_sqe *sqe,
                         const struct msghdr *message, size_t sent) {
    int flags = (int)(sqe->msg_flags & ~(unsigned)MSG_WAITALL) | MSG_DONTWAIT;
    const char *bytes = (const char *)(uintptr_t)sqe->addr + sent;
    size_t size = sqe->len - sent, some;
    ssize_t res = failure_of(kernel);

    if (res < 0)
        return res;
    if (message != NULL) {
        if (message->msg_controllen || message->msg_iovlen == 0)
            return 0;
        bytes = message->msg_iov->iov_base;
        size = message->msg_iov->iov_len;
    }
    some = simulation_shorten(kernel, size);
    if (some == size)
        return 0;
    res = send(sqe->fd, bytes, some, flags);
    return res < 0 ? -errno : res;
}

ssize_t simulated_send(void *owner, const struct io_uring_sqe *sqe, const struct msghdr *message,
                       size_t sent) {
    simulation_ending **place;
    ssize_t res = 0;

    /* Disturb only a send with MSG_WAITALL: a datagram cannot be sent in part. */
    if (sqe->msg_flags & MSG_WAITALL)
        res = simulation_decide(owner, FAULT_LATE) ? -EAGAIN : send_some(owner, sqe, message, sent);
    if (res != 0)
        return res;
    res = soft_send_now(sqe, message, sent);
    /* The receive gets the ending, too: its error is what a connection reports. */
    place = find_ending(owner, sqe->fd, res);
    return place == NULL ? res : -(*place)->error;
}
