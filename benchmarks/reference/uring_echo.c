/* An echo server on io_uring: the limit for completion loops.
 *
 * One multishot accept, one multishot receive per connection from a ring of provided buffers, and
 * one SEND per receive from the same buffer. A connection has at most one send in flight: data
 * received meanwhile waits in the connection's queue. The buffer is given back to the kernel when
 * its send has completed.
 */
#define _GNU_SOURCE
#include <liburing.h>
#include <sys/mman.h>

#include "echo.h"

#define SQ_ENTRIES 512
#define CQ_ENTRIES 16384
/* 16 KiB hold a small message whole; 128 of them are 2 MiB, the size of a core's cache. */
#define BUFFER_SIZE 16384
#define BUFFER_COUNT 128
#define BUFFER_GROUP 1
#define NO_BUFFER (-1)

enum operation { ACCEPT, RECV, SEND };

struct connection {
    int fd;
    int first;         /* Head of the queue: the buffer of the send in flight; or NO_BUFFER. */
    int last;          /* Tail of the queue. */
    bool receiving;    /* A multishot receive is armed. */
    bool closing;      /* After EOF or an error; closed when nothing is in flight. */
    bool starved;      /* In the list of receives that found no buffer. */
    struct connection *next_starved;
};

static struct io_uring ring;
static struct io_uring_buf_ring *buffer_ring;
static char *buffers;
/* Per buffer: the number of bytes, and the next buffer in the queue of its connection. */
static unsigned int lengths[BUFFER_COUNT];
static int followers[BUFFER_COUNT];
static struct connection *starved_first, *starved_last;
static int buffers_free = BUFFER_COUNT;

static struct io_uring_sqe *next_sqe(void)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

    while (sqe == NULL) {
        io_uring_submit(&ring);
        sqe = io_uring_get_sqe(&ring);
    }
    return sqe;
}

/* A connection is aligned to 16 bytes, so the operation fits into the low bits. */
static void tag(struct io_uring_sqe *sqe, struct connection *c, enum operation operation)
{
    io_uring_sqe_set_data64(sqe, (uint64_t)(uintptr_t)c | operation);
}

static void give_back(int id)
{
    io_uring_buf_ring_add(buffer_ring, buffers + (size_t)id * BUFFER_SIZE, BUFFER_SIZE,
                          (unsigned short)id, io_uring_buf_ring_mask(BUFFER_COUNT), 0);
    io_uring_buf_ring_advance(buffer_ring, 1);
    buffers_free++;
}

static void submit_accept(struct connection *listening)
{
    struct io_uring_sqe *sqe = next_sqe();

    io_uring_prep_multishot_accept(sqe, listening->fd, NULL, NULL, SOCK_CLOEXEC);
    tag(sqe, listening, ACCEPT);
}

static void submit_recv(struct connection *c)
{
    struct io_uring_sqe *sqe = next_sqe();

    io_uring_prep_recv_multishot(sqe, c->fd, NULL, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = BUFFER_GROUP;
    tag(sqe, c, RECV);
    c->receiving = true;
}

static void submit_send(struct connection *c)
{
    struct io_uring_sqe *sqe = next_sqe();

    io_uring_prep_send(sqe, c->fd, buffers + (size_t)c->first * BUFFER_SIZE, lengths[c->first],
                       MSG_WAITALL | MSG_NOSIGNAL);
    tag(sqe, c, SEND);
}

static void close_when_idle(struct connection *c)
{
    if (!c->closing || c->receiving || c->starved || c->first != NO_BUFFER)
        return;
    close(c->fd);
    free(c);
}

static void on_accept(struct connection *listening, int res, unsigned int flags)
{
    struct connection *c;

    if (!(flags & IORING_CQE_F_MORE))
        submit_accept(listening);
    if (res < 0) {
        if (res == -ECONNABORTED || res == -EINTR || res == -EAGAIN)
            return;
        die("accept", -res);
    }
    c = aligned_alloc(16, (sizeof(*c) + 15) & ~(size_t)15);
    if (c == NULL)
        die("aligned_alloc", ENOMEM);
    memset(c, 0, sizeof(*c));
    c->fd = res;
    c->first = c->last = NO_BUFFER;
    set_no_delay(res);
    submit_recv(c);
}

static void starve(struct connection *c)
{
    c->starved = true;
    c->next_starved = NULL;
    if (starved_first == NULL)
        starved_first = c;
    else
        starved_last->next_starved = c;
    starved_last = c;
}

/* Re-arms as many receives as buffers are free: the first alone may stay without data for long. */
static void feed_starved(void)
{
    for (int n = buffers_free; n > 0 && starved_first != NULL; n--) {
        struct connection *c = starved_first;

        starved_first = c->next_starved;
        c->starved = false;
        if (c->closing)
            close_when_idle(c);
        else
            submit_recv(c);
    }
}

static void on_recv(struct connection *c, int res, unsigned int flags)
{
    if (!(flags & IORING_CQE_F_MORE))
        c->receiving = false;
    if (res > 0) {
        int id = (int)(flags >> IORING_CQE_BUFFER_SHIFT);

        buffers_free--;
        if (c->closing) {
            give_back(id);
        } else {
            lengths[id] = (unsigned int)res;
            followers[id] = NO_BUFFER;
            if (c->first == NO_BUFFER) {
                c->first = c->last = id;
                submit_send(c);
            } else {
                followers[c->last] = id;
                c->last = id;
            }
        }
        if (!c->receiving && !c->closing)
            submit_recv(c);
    } else if (res == -ENOBUFS) {
        starve(c);
        return;
    } else {
        /* EOF or an error: bytes received before it are still echoed. */
        c->closing = true;
    }
    close_when_idle(c);
}

static void on_send(struct connection *c, int res)
{
    int id = c->first;
    bool failed = res < 0 || (unsigned int)res < lengths[id];

    c->first = followers[id];
    give_back(id);
    if (failed) {
        /* The peer has disconnected: drop the queue; shutdown() ends the armed receive. */
        while (c->first != NO_BUFFER) {
            id = c->first;
            c->first = followers[id];
            give_back(id);
        }
        c->closing = true;
        shutdown(c->fd, SHUT_RDWR);
    } else if (c->first != NO_BUFFER) {
        submit_send(c);
    }
    close_when_idle(c);
}

static void set_up_ring(void)
{
    struct io_uring_params params;
    struct io_uring_buf_reg registration;
    int res;

    memset(&params, 0, sizeof(params));
    params.flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL |
                   IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    params.cq_entries = CQ_ENTRIES;
    res = io_uring_queue_init_params(SQ_ENTRIES, &ring, &params);
    if (res < 0)
        die("io_uring_setup", -res);
    io_uring_register_ring_fd(&ring);
    buffers = malloc((size_t)BUFFER_COUNT * BUFFER_SIZE);
    buffer_ring = mmap(NULL, BUFFER_COUNT * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE,
                       MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (buffers == NULL || buffer_ring == MAP_FAILED)
        die("buffers", ENOMEM);
    memset(&registration, 0, sizeof(registration));
    registration.ring_addr = (uint64_t)(uintptr_t)buffer_ring;
    registration.ring_entries = BUFFER_COUNT;
    registration.bgid = BUFFER_GROUP;
    res = io_uring_register_buf_ring(&ring, &registration, 0);
    if (res < 0)
        die("io_uring_register_buf_ring", -res);
    io_uring_buf_ring_init(buffer_ring);
    buffers_free = 0;
    for (int id = 0; id < BUFFER_COUNT; id++)
        give_back(id);
}

static void dispatch(const struct io_uring_cqe *cqe)
{
    struct connection *c = (struct connection *)(uintptr_t)(cqe->user_data & ~UINT64_C(15));

    switch ((enum operation)(cqe->user_data & 15)) {
    case ACCEPT:
        on_accept(c, cqe->res, cqe->flags);
        break;
    case RECV:
        on_recv(c, cqe->res, cqe->flags);
        break;
    case SEND:
        on_send(c, cqe->res);
        break;
    }
}

int main(int argc, char **argv)
{
    static _Alignas(16) struct connection listening;

    listening.fd = listen_on_arguments(argc, argv);
    set_up_ring();
    submit_accept(&listening);
    announce(listening.fd);
    for (;;) {
        struct io_uring_cqe *cqe;
        unsigned int head, count = 0;
        int res = io_uring_submit_and_wait(&ring, 1);

        if (res < 0 && res != -EINTR && res != -EAGAIN && res != -EBUSY)
            die("io_uring_enter", -res);
        io_uring_for_each_cqe(&ring, head, cqe)
        {
            dispatch(cqe);
            count++;
        }
        io_uring_cq_advance(&ring, count);
        feed_starved();
    }
}
