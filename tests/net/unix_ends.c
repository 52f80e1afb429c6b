/* Ends UNIX streams under a receive of io_uring, and counts ends that the receive has not reported.
 *
 *     unix_ends WATCHED|MULTISHOT|SINGLE COUNT [close|SHUT_WR|SHUT_RDWR|reset]
 *
 * A peer thread, on the same or on another processor, writes bytes and ends the stream, before,
 * while and after the receive is armed. WATCHED is what uringloop does: a multishot receive with a
 * poll for the end, and single receives after that. COUNT ends of each kind, or of the one named,
 * and fewer with many bytes. The exit status is 1 if an end or a byte was lost. `nox -s unix_ends`
 * runs this here, `nox -s kernels -- --ends COUNT` on other kernels. */
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLOSE, WRITE_SIDE, BOTH_SIDES, RESET, ENDS };
enum { WATCHED, MULTISHOT, SINGLE, MODES };
enum { RECEIVE, END, CANCEL, OPERATIONS = 4 };
enum { BUFFERS = 64, BUFFER_SIZE = 64 * 1024, BATCH = 16, LARGEST = 200 * 1000 };
/* The longest pause of a peer between its bytes and their end, and of the receiver. */
enum { PEER_STEPS = 300, RECEIVER_STEPS = 4000 };

static const char *const ends[] = {"close", "SHUT_WR", "SHUT_RDWR", "reset"};
static const char *const modes[] = {"WATCHED", "MULTISHOT", "SINGLE"};

/* A connection. Its address, with the kind of an operation in the lowest bits, is user_data. */
typedef struct connection {
    int fd, peer;
    bool single, armed, watched, cancelled, ended;
    int received;
    const char *data; /* what the peer sends: a part of `bytes` */
} connection;

static struct io_uring ring;
static struct io_uring_buf_ring *buffers;
static char memory[BUFFERS][BUFFER_SIZE];
static char bytes[LARGEST + 1024];
static connection connections[BATCH];
static int mode, end, size;
static int processors[2]; /* of the receiver and of the peer */
static _Atomic int begun, done; /* numbers of batches */
static long lost, wrong, rescued;
static unsigned seed, peer_seed; /* of what the receiver and the peer leave to chance */

static void fail(const char *what, int error) {
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(2);
}

/* The low bits of a linear congruential generator are not random. */
static unsigned chance(unsigned *state, unsigned count) {
    *state = *state * 1103515245u + 12345u;
    return (*state >> 12) % count;
}

static void linger(unsigned *state, unsigned most) {
    for (volatile unsigned step = chance(state, most); step > 0; step--)
        ;
}

static void use_processor(int processor) {
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof(set), &set) < 0)
        fail("sched_setaffinity", errno);
}

static double now(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ── the peer ──────────────────────────────────────────────────────────────────────────────── */

static void end_stream(connection *c) {
    if (end == WRITE_SIDE) {
        shutdown(c->peer, SHUT_WR);
    } else if (end == BOTH_SIDES) {
        shutdown(c->peer, SHUT_RDWR);
    } else {
        close(c->peer);
        c->peer = -1;
    }
}

static void *serve(void *unused) {
    int batch = 0;

    use_processor(processors[1]);
    for (;;) {
        while (atomic_load(&begun) == batch)
            if (processors[0] == processors[1])
                sched_yield();
        if (atomic_load(&begun) < 0)
            return unused;
        for (connection *c = connections; c < connections + BATCH; c++) {
            for (ssize_t sent = 0, n; sent < size; sent += n)
                if ((n = send(c->peer, c->data + sent, (size_t)(size - sent), MSG_NOSIGNAL)) <= 0)
                    fail("send", errno);
            linger(&peer_seed, PEER_STEPS);
            end_stream(c);
        }
        atomic_store(&done, ++batch);
    }
}

/* ── the receiver ──────────────────────────────────────────────────────────────────────────── */

static struct io_uring_sqe *submission(void) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

    if (sqe == NULL) {
        io_uring_submit(&ring);
        sqe = io_uring_get_sqe(&ring);
    }
    return sqe;
}

static void start(struct io_uring_sqe *sqe, connection *c, int operation) {
    sqe->user_data = (unsigned long)c | (unsigned)operation;
}

static void give(int id, int offset) {
    io_uring_buf_ring_add(
        buffers, memory[id], BUFFER_SIZE, (unsigned short)id, BUFFERS - 1, offset);
}

static void arm(connection *c, bool poll_first) {
    struct io_uring_sqe *sqe = submission();

    if (c->single)
        io_uring_prep_recv(sqe, c->fd, NULL, 0, 0);
    else
        io_uring_prep_recv_multishot(sqe, c->fd, NULL, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = 1;
    if (poll_first)
        sqe->ioprio |= IORING_RECVSEND_POLL_FIRST;
    start(sqe, c, RECEIVE);
    c->armed = true;
}

static void on_receive(connection *c, int res, unsigned flags) {
    if (flags & IORING_CQE_F_BUFFER) {
        int id = (int)(flags >> IORING_CQE_BUFFER_SHIFT);

        if (res > 0) {
            wrong += c->received + res > size ||
                     memcmp(memory[id], c->data + c->received, (size_t)res) != 0;
            c->received += res;
        }
        give(id, 0);
        io_uring_buf_ring_advance(buffers, 1);
    }
    if (flags & IORING_CQE_F_MORE)
        return;
    c->armed = false;
    if (c->ended)
        return;
    if (res == 0 || res == -ECONNRESET) {
        c->ended = true;
        wrong += c->received != size || (res != 0) != (end == RESET);
        rescued += c->cancelled;
    } else if (res > 0 || res == -ECANCELED || res == -ENOBUFS) {
        arm(c, res == -ENOBUFS);
    } else {
        fail("receive", -res);
    }
}

static void on_end(connection *c, int res) {
    c->watched = false;
    if (res < 0)
        fail("poll", -res);
    if (c->ended)
        return;
    c->single = true;
    if (c->armed) {
        struct io_uring_sqe *sqe = submission();

        io_uring_prep_cancel64(sqe, (unsigned long)c | RECEIVE, 0);
        sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
        start(sqe, c, CANCEL);
        c->cancelled = true;
    }
}

/* Returns whether there were completions. */
static bool collect(void) {
    struct __kernel_timespec timeout = {.tv_nsec = 5000000};
    struct io_uring_cqe *cqe;
    unsigned head, count = 0;

    io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &timeout, NULL);
    io_uring_for_each_cqe(&ring, head, cqe) {
        connection *c = (connection *)(cqe->user_data & ~(OPERATIONS - 1ul));
        int operation = cqe->user_data & (OPERATIONS - 1);

        count++;
        if (operation == RECEIVE)
            on_receive(c, cqe->res, cqe->flags);
        else if (operation == END)
            on_end(c, cqe->res);
    }
    io_uring_cq_advance(&ring, count);
    return count > 0;
}

/* ── a batch of connections ────────────────────────────────────────────────────────────────── */

static void open_connection(connection *c) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        fail("socketpair", errno);
    *c = (connection){.fd = pair[0], .peer = pair[1], .single = mode == SINGLE};
    c->data = bytes + chance(&seed, 1024);
    /* A peer that closes with unread bytes resets the connection. */
    if (end == RESET && send(c->fd, "x", 1, 0) != 1)
        fail("send", errno);
    if (mode == WATCHED) {
        struct io_uring_sqe *sqe = submission();

        io_uring_prep_poll_add(sqe, c->fd, POLLRDHUP);
        start(sqe, c, END);
        c->watched = true;
    }
    arm(c, chance(&seed, 4) == 0);
}

static bool is_busy(void) {
    for (connection *c = connections; c < connections + BATCH; c++)
        if (!c->ended || c->armed || c->watched)
            return true;
    return false;
}

/* Counts the ends that have not come, and ends these connections. */
static void give_up(void) {
    for (connection *c = connections; c < connections + BATCH; c++) {
        char byte;

        if (c->ended)
            continue;
        lost++;
        c->ended = true;
        wrong += c->received != size || recv(c->fd, &byte, 1, MSG_DONTWAIT) > 0;
        shutdown(c->fd, SHUT_RDWR);
    }
}

static void close_connection(connection *c) {
    char answer[2];

    /* A peer that has shut down its write side still receives. */
    if (end == WRITE_SIDE && send(c->fd, "ok", 2, MSG_NOSIGNAL) == 2)
        wrong += recv(c->peer, answer, 2, MSG_DONTWAIT) != 2;
    close(c->fd);
    if (c->peer >= 0)
        close(c->peer);
}

static void run_batch(void) {
    int batch = atomic_load(&done) + 1;
    double quiet = 0;

    for (connection *c = connections; c < connections + BATCH; c++)
        open_connection(c);
    /* In three of four batches the peers end while their receives are being submitted. */
    if (chance(&seed, 4) == 0)
        io_uring_submit(&ring);
    atomic_store(&begun, batch);
    linger(&seed, RECEIVER_STEPS);
    while (is_busy()) {
        if (collect() || atomic_load(&done) != batch) {
            quiet = 0;
        } else if (quiet == 0) {
            quiet = now();
        } else if (now() - quiet > 0.3) {
            give_up();
            quiet = 0;
        }
    }
    while (atomic_load(&done) != batch)
        sched_yield();
    for (connection *c = connections; c < connections + BATCH; c++)
        close_connection(c);
}

static void run(int which, int bytes_sent, bool elsewhere, long count) {
    cpu_set_t allowed;
    pthread_t thread;
    double began = now();

    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int found = 0, processor = 0; found < 2 && processor < CPU_SETSIZE; processor++)
        if (CPU_ISSET(processor, &allowed))
            processors[found++] = processor;
    if (!elsewhere)
        processors[1] = processors[0];
    use_processor(processors[0]);
    end = which, size = bytes_sent, lost = wrong = rescued = 0;
    atomic_store(&begun, 0);
    atomic_store(&done, 0);
    pthread_create(&thread, NULL, serve, NULL);
    for (long ended = 0; ended < count; ended += BATCH)
        run_batch();
    atomic_store(&begun, -1);
    pthread_join(thread, NULL);
    sched_setaffinity(0, sizeof(allowed), &allowed);
    printf("%-9s %-9s %6d bytes, %-15s %9ld ends, %ld lost, %ld wrong, %ld by the poll, %.0f s\n",
           modes[mode], ends[end], size, elsewhere ? "two processors:" : "one processor:", count,
           lost, wrong, rescued, now() - began);
    fflush(stdout);
}

static void open_ring(void) {
    struct io_uring_params parameters = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
        .cq_entries = 2048,
    };
    struct io_uring_buf_reg registered = {.ring_entries = BUFFERS, .bgid = 1};
    int res = io_uring_queue_init_params(256, &ring, &parameters);

    if (res < 0)
        fail("io_uring", -res);
    if (posix_memalign((void **)&buffers, 4096, 4096) != 0)
        fail("memory", ENOMEM);
    registered.ring_addr = (unsigned long)buffers;
    io_uring_buf_ring_init(buffers);
    res = io_uring_register_buf_ring(&ring, &registered, 0);
    if (res < 0)
        fail("io_uring_register_buf_ring", -res);
    for (int id = 0; id < BUFFERS; id++)
        give(id, id);
    io_uring_buf_ring_advance(buffers, BUFFERS);
}

int main(int count, char **arguments) {
    static const int sizes[] = {0, 1, 100, 4096, 64 * 1024, LARGEST};
    /* In the order of the sizes: many ends with few bytes, as they take less time. */
    static const int shares[] = {25, 25, 35, 12, 2, 1};
    long wanted = count > 2 ? atol(arguments[2]) : 0, failures = 0;
    int first = 0, last = ENDS - 1;

    if (count > 3) {
        while (first < ENDS && strcmp(arguments[3], ends[first]) != 0)
            first++;
        last = first;
    }
    for (mode = 0; mode < MODES && count > 1 && strcmp(arguments[1], modes[mode]) != 0;)
        mode++;
    if (mode == MODES || wanted <= 0 || first == ENDS) {
        fprintf(stderr, "usage: unix_ends WATCHED|MULTISHOT|SINGLE COUNT [END]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    seed = (unsigned)(now() * 1e6); /* each run makes other pauses */
    peer_seed = seed * 7;
    open_ring();
    for (int which = first; which <= last; which++)
        for (int i = 0; i < 6; i++)
            for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
                long part = wanted * shares[i] / 100;

                run(which, sizes[i], elsewhere, elsewhere ? part - part / 4 : part / 4);
                failures += lost + wrong;
            }
    return failures != 0;
}
