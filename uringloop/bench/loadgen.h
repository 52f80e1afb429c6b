/* The load generator's engine: many connections on one ring, every echoed byte checked.
 *
 * A connection has at most one request outstanding. Its echo is compared, in the receive buffer,
 * with the bytes that were sent: a stamp of 8 bytes that is unique to the request, then a slice of
 * a pseudo-random pattern that begins at another offset for every request. A message that is
 * swapped with another, repeated, shifted or damaged does not compare equal.
 *
 * Nothing here touches Python. One thread creates a generator, drives it and closes it, because
 * the ring accepts submissions from that thread only. All memory belongs to `struct loadgen`.
 */
#ifndef URINGLOOP_BENCH_LOADGEN_H
#define URINGLOOP_BENCH_LOADGEN_H

#include "loadgen_open.h"
#include "loadgen_types.h"

/* ── failing ──────────────────────────────────────────────────────────────── */

static void loadgen_fail(struct loadgen *lg, struct loadgen_connection *c,
                         enum loadgen_failure kind, int error, uint64_t offset)
{
    bool first = true;

    for (int i = 0; i < LOADGEN_FAILURES; i++)
        first = first && lg->failures[i] == 0;
    lg->failures[kind]++;
    if (first) {
        lg->failed_kind = kind;
        lg->failed_connection = loadgen_index(lg, c);
        lg->failed_sequence = c->sequence;
        lg->failed_offset = offset;
        lg->failed_error = error;
    }
    if (c->state == LOADGEN_CONNECTING || (c->state == LOADGEN_WAITING && c->sequence == 1))
        lg->connecting--;
    if (c->state == LOADGEN_WAITING)
        lg->outstanding--;
    c->state = LOADGEN_CLOSED;
    lg->lost++;
    /* Ends the armed receive too; the descriptor itself is closed with all others. */
    shutdown(c->fd, SHUT_RDWR);
}

/* ── submitting ───────────────────────────────────────────────────────────── */

static struct io_uring_sqe *loadgen_sqe(struct loadgen *lg)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&lg->ring);

    while (sqe == NULL) {
        /* Submissions are consumed by the call itself, so there is room afterwards. */
        io_uring_submit(&lg->ring);
        sqe = io_uring_get_sqe(&lg->ring);
    }
    return sqe;
}

/* Called after the prepare helper: some versions of liburing clear user_data there. */
static inline void loadgen_tag(const struct loadgen *lg, struct io_uring_sqe *sqe,
                               const struct loadgen_connection *c,
                               enum loadgen_operation operation)
{
    io_uring_sqe_set_data64(sqe, ((uint64_t)loadgen_index(lg, c) << 2) | operation);
}

static void loadgen_submit_connect(struct loadgen *lg, struct loadgen_connection *c)
{
    struct io_uring_sqe *sqe = loadgen_sqe(lg);

    io_uring_prep_connect(sqe, c->fd, (const struct sockaddr *)&lg->address, lg->address_length);
    loadgen_tag(lg, sqe, c, LOADGEN_CONNECT);
}

static void loadgen_submit_recv(struct loadgen *lg, struct loadgen_connection *c)
{
    struct io_uring_sqe *sqe = loadgen_sqe(lg);

    io_uring_prep_recv_multishot(sqe, c->fd, NULL, 0, 0);
    /* Nothing has arrived yet, so a first attempt would be wasted; and with an empty buffer ring it
     * would end with ENOBUFS at once (io_uring_prep_recv(3)). */
    sqe->ioprio |= IORING_RECVSEND_POLL_FIRST;
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = LOADGEN_BUFFER_GROUP;
    loadgen_tag(lg, sqe, c, LOADGEN_RECV);
}

static void loadgen_submit_send(struct loadgen *lg, struct loadgen_connection *c)
{
    struct io_uring_sqe *sqe = loadgen_sqe(lg);
    uint32_t index = loadgen_index(lg, c);

    /* With MSG_WAITALL the kernel finishes a partial send by itself. */
    if (lg->messages == NULL) {
        io_uring_prep_send(sqe, c->fd, lg->sends + index * lg->send_stride, lg->size,
                           MSG_WAITALL | MSG_NOSIGNAL);
    } else {
        io_uring_prep_sendmsg(sqe, c->fd, &lg->messages[index].header,
                              MSG_WAITALL | MSG_NOSIGNAL);
    }
    if (lg->fixed_files) {
        sqe->fd = (int)index;
        sqe->flags |= IOSQE_FIXED_FILE;
    }
    if (lg->skips_sends)
        sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
    loadgen_tag(lg, sqe, c, LOADGEN_SEND);
}

/* Builds the next message of a connection and sends it. */
static void loadgen_request(struct loadgen *lg, struct loadgen_connection *c, uint64_t scheduled_ns)
{
    uint32_t index = loadgen_index(lg, c);

    c->sequence++;
    c->stamp = loadgen_mix(((uint64_t)index << 32) | c->sequence);
    c->rotation = (uint32_t)(c->stamp >> 17) & (LOADGEN_ROTATIONS - 1);
    c->checked = 0;
    c->scheduled_ns = scheduled_ns;
    c->state = LOADGEN_WAITING;
    lg->outstanding++;
    if (lg->messages == NULL) {
        /* A slot is never shorter than the stamp; a tiny message sends only its first bytes. */
        char *slot = lg->sends + index * lg->send_stride;
        memcpy(slot, &c->stamp, LOADGEN_STAMP_SIZE);
        if (lg->size > LOADGEN_STAMP_SIZE)
            memcpy(slot + LOADGEN_STAMP_SIZE, lg->pattern + c->rotation,
                   lg->size - LOADGEN_STAMP_SIZE);
    } else {
        lg->messages[index].parts[1].iov_base = lg->pattern + c->rotation;
    }
    loadgen_submit_send(lg, c);
}

/* ── the open loop's schedule ─────────────────────────────────────────────── */

/* Request k of the schedule belongs to connection k modulo the number of connections. */
static inline uint64_t loadgen_due_ns(const struct loadgen *lg, uint64_t k)
{
    return lg->start_ns + (uint64_t)((double)k * 1e9 / lg->rate);
}

static inline uint64_t loadgen_due_of(const struct loadgen *lg, uint32_t index)
{
    return lg->due > index ? (lg->due - index - 1) / lg->count + 1 : 0;
}

/* Sends the oldest request of a connection that is due and was not sent. Its latency counts from
 * the scheduled time, so that a stalled server cannot hide its stall. */
static bool loadgen_request_late(struct loadgen *lg, struct loadgen_connection *c)
{
    uint32_t index = loadgen_index(lg, c);

    if (c->issued >= loadgen_due_of(lg, index))
        return false;
    loadgen_request(lg, c, loadgen_due_ns(lg, c->issued * lg->count + index));
    c->issued++;
    return true;
}

/* Sends the requests that have become due; returns the time at which the next one is due. */
static uint64_t loadgen_request_due(struct loadgen *lg, uint64_t now)
{
    uint64_t next = loadgen_due_ns(lg, lg->due);

    while (next <= now) {
        struct loadgen_connection *c = &lg->connections[lg->due % lg->count];
        lg->due++;
        /* A connection that still waits sends the request as soon as its echo is complete. */
        if (c->state == LOADGEN_IDLE)
            loadgen_request_late(lg, c);
        next = loadgen_due_ns(lg, lg->due);
    }
    return next;
}

/* ── completing ───────────────────────────────────────────────────────────── */

static void loadgen_on_echo(struct loadgen *lg, struct loadgen_connection *c, uint64_t now)
{
    lg->outstanding--;
    c->state = LOADGEN_IDLE;
    if (c->sequence == 1) {
        lg->established++;
        lg->connecting--;
        return;
    }
    lg->answered++;
    lg->histogram[histogram_index(now > c->scheduled_ns ? now - c->scheduled_ns : 0)]++;
    if (lg->draining)
        return;
    if (lg->rate > 0)
        loadgen_request_late(lg, c);
    else
        loadgen_request(lg, c, now);
}

/* Returns the offset at which data differs from the bytes that were sent, or n. The message is the
 * stamp, then the slice of the pattern; the data may begin and end anywhere in it. */
static uint64_t loadgen_compare(const struct loadgen *lg, const struct loadgen_connection *c,
                                const char *data, uint64_t n)
{
    uint64_t at = c->checked, done = 0;

    if (at < LOADGEN_STAMP_SIZE) {
        uint64_t part = LOADGEN_STAMP_SIZE - at < n ? LOADGEN_STAMP_SIZE - at : n;
        if (memcmp(data, (const char *)&c->stamp + at, part) != 0) {
            while (data[done] == ((const char *)&c->stamp)[at + done])
                done++;
            return done;
        }
        done = part;
    }
    if (done < n) {
        const char *body = lg->pattern + c->rotation + (at + done - LOADGEN_STAMP_SIZE);
        if (memcmp(data + done, body, n - done) != 0) {
            while (data[done] == *body++)
                done++;
            return done;
        }
    }
    return n;
}

static void loadgen_check(struct loadgen *lg, struct loadgen_connection *c, const char *data,
                          uint64_t n, uint64_t now)
{
    uint64_t equal;

    if (c->state == LOADGEN_CLOSED)
        return;
    if (c->state != LOADGEN_WAITING || n > lg->size - c->checked) {
        loadgen_fail(lg, c, LOADGEN_UNEXPECTED, 0, c->checked);
        return;
    }
    equal = loadgen_compare(lg, c, data, n);
    c->checked += equal;
    if (equal < n)
        loadgen_fail(lg, c, LOADGEN_MISMATCH, 0, c->checked);
    else if (c->checked == lg->size)
        loadgen_on_echo(lg, c, now);
}

static void loadgen_on_connect(struct loadgen *lg, struct loadgen_connection *c, int res,
                               uint64_t now)
{
    /* The connection was given up as stalled. */
    if (c->state != LOADGEN_CONNECTING)
        return;
    if (res < 0) {
        loadgen_fail(lg, c, LOADGEN_ERROR, -res, 0);
        return;
    }
    loadgen_submit_recv(lg, c);
    /* The first echo shows that the server has accepted; it is not counted. */
    loadgen_request(lg, c, now);
}

static void loadgen_on_send(struct loadgen *lg, struct loadgen_connection *c, int res)
{
    /* A short send means that an error stopped it; the next operation returns that error. */
    if (c->state == LOADGEN_CLOSED || res == (int)lg->size)
        return;
    loadgen_fail(lg, c, LOADGEN_ERROR, res < 0 ? -res : EPIPE, 0);
}

static void loadgen_on_recv(struct loadgen *lg, struct loadgen_connection *c,
                            const struct io_uring_cqe *cqe, uint64_t now)
{
    int res = cqe->res;

    if (res > 0) {
        unsigned int id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
        char *buffer = lg->buffers + (size_t)id * lg->buffer_size;

        loadgen_check(lg, c, buffer, (uint64_t)res, now);
        lg->progress_ns = now;
        io_uring_buf_ring_add(lg->buffer_ring, buffer, lg->buffer_size, (unsigned short)id,
                              io_uring_buf_ring_mask(lg->buffer_count), 0);
        io_uring_buf_ring_advance(lg->buffer_ring, 1);
    }
    if ((cqe->flags & IORING_CQE_F_MORE) || c->state == LOADGEN_CLOSED)
        return;
    /* A multishot receive ends when the buffers run out or its completion overflowed. */
    if (res > 0 || res == -ENOBUFS)
        loadgen_submit_recv(lg, c);
    else if (res == 0)
        loadgen_fail(lg, c, LOADGEN_EARLY_EOF, 0, c->checked);
    else
        loadgen_fail(lg, c, LOADGEN_ERROR, -res, c->checked);
}

static void loadgen_dispatch(struct loadgen *lg, const struct io_uring_cqe *cqe)
{
    struct loadgen_connection *c = &lg->connections[cqe->user_data >> 2];

    switch ((enum loadgen_operation)(cqe->user_data & 3)) {
    case LOADGEN_CONNECT:
        loadgen_on_connect(lg, c, cqe->res, loadgen_now());
        break;
    case LOADGEN_SEND:
        loadgen_on_send(lg, c, cqe->res);
        break;
    case LOADGEN_RECV:
        loadgen_on_recv(lg, c, cqe, loadgen_now());
        break;
    }
}

/* ── the turn ─────────────────────────────────────────────────────────────── */

/* Submits, and waits for a completion until wait_ns have passed. */
static int loadgen_wait(struct loadgen *lg, uint64_t wait_ns)
{
    struct __kernel_timespec ts;
    struct io_uring_cqe *cqe;
    int res;

    if (wait_ns == 0 || (lg->spinning && wait_ns < LOADGEN_SPIN_NS)) {
        /* A wait with a timeout of zero costs 15 us, a plain GETEVENTS 0.2 us. */
        if (io_uring_sq_ready(&lg->ring) == 0 && wait_ns != 0 &&
            (IO_URING_READ_ONCE(*lg->ring.sq.kflags) &
             (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) == 0)
            return 0;
        res = io_uring_submit_and_get_events(&lg->ring);
    } else {
        ts.tv_sec = (long long)(wait_ns / 1000000000);
        ts.tv_nsec = (long long)(wait_ns % 1000000000);
        res = io_uring_submit_and_wait_timeout(&lg->ring, &cqe, 1, &ts, NULL);
    }
    /* After EAGAIN and EBUSY the submissions are still queued and go with the next turn. */
    if (res == -ETIME || res == -EAGAIN || res == -EBUSY)
        return 0;
    return res;
}

static void loadgen_fail_stalled(struct loadgen *lg)
{
    for (uint32_t i = 0; i < lg->opened; i++) {
        struct loadgen_connection *c = &lg->connections[i];
        if (c->state == LOADGEN_WAITING || c->state == LOADGEN_CONNECTING)
            loadgen_fail(lg, c, LOADGEN_STALL, 0, c->checked);
    }
}

/* One pass: send what is due, submit, wait until until_ns at most, dispatch the completions. */
static int loadgen_turn(struct loadgen *lg, uint64_t until_ns)
{
    struct io_uring_cqe *cqe;
    unsigned int head, dispatched = 0;
    uint64_t now = loadgen_now(), wake_ns = until_ns;
    int res;

    if (lg->rate > 0 && !lg->draining) {
        uint64_t next = loadgen_request_due(lg, now);
        if (next < wake_ns)
            wake_ns = next;
    }
    res = loadgen_wait(lg, wake_ns > now ? wake_ns - now : 0);
    if (res < 0 && res != -EINTR)
        return res;
    io_uring_for_each_cqe(&lg->ring, head, cqe)
    {
        loadgen_dispatch(lg, cqe);
        dispatched++;
    }
    io_uring_cq_advance(&lg->ring, dispatched);
    if (res == -EINTR)
        return LOADGEN_INTERRUPTED;
    if (lg->outstanding + lg->connecting == 0)
        lg->progress_ns = now;
    else if (now > lg->progress_ns + lg->stall_ns)
        loadgen_fail_stalled(lg);
    return lg->lost == lg->count ? LOADGEN_DEAD : LOADGEN_GOES_ON;
}

/* ── phases ───────────────────────────────────────────────────────────────── */

static int loadgen_set_tcp_options(const struct loadgen *lg, const struct loadgen_connection *c)
{
    uint32_t source = loadgen_index(lg, c) / LOADGEN_PER_SOURCE;
    struct sockaddr_in from = {.sin_family = AF_INET};
    int on = 1;

    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    /* Reno is in every kernel and the cheapest: BBR alone costs 5 % of a request here, and its
     * pacing would change the load. */
    setsockopt(c->fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    if (source == 0)
        return 0;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + source);
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    return bind(c->fd, (struct sockaddr *)&from, sizeof(from)) < 0 ? -errno : 0;
}

/* Creates sockets while the window of half-open connections has room. */
static int loadgen_open_connections(struct loadgen *lg)
{
    int res = 0;

    while (res == 0 && lg->opened < lg->count && lg->connecting < LOADGEN_CONNECTING_MAX) {
        struct loadgen_connection *c = &lg->connections[lg->opened];

        c->fd = socket(lg->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (c->fd < 0)
            return -errno;
        if (lg->fixed_files &&
            io_uring_register_files_update(&lg->ring, lg->opened, &c->fd, 1) != 1)
            return -EBADF;
        lg->opened++;
        lg->connecting++;
        c->state = LOADGEN_CONNECTING;
        if (lg->address.ss_family == AF_INET)
            res = loadgen_set_tcp_options(lg, c);
        if (res == 0)
            loadgen_submit_connect(lg, c);
    }
    return res;
}

/* Establishes connections until until_ns at most; done when established + lost == count. */
static int loadgen_connect(struct loadgen *lg, uint64_t until_ns)
{
    int res = 0;

    lg->draining = true;
    if (lg->opened == 0)
        lg->progress_ns = loadgen_now();
    while (res == LOADGEN_GOES_ON && lg->established + lg->lost < lg->count &&
           loadgen_now() < until_ns) {
        res = loadgen_open_connections(lg);
        if (res == 0)
            res = loadgen_turn(lg, until_ns);
    }
    return res;
}

/* Starts the requests: on every connection at once, or by the schedule. */
static void loadgen_start(struct loadgen *lg)
{
    lg->draining = false;
    lg->progress_ns = lg->start_ns = loadgen_now();
    if (lg->rate > 0)
        return;
    for (uint32_t i = 0; i < lg->count; i++)
        if (lg->connections[i].state == LOADGEN_IDLE)
            loadgen_request(lg, &lg->connections[i], loadgen_now());
}

static int loadgen_run(struct loadgen *lg, uint64_t until_ns)
{
    int res = 0;

    while (res == LOADGEN_GOES_ON && loadgen_now() < until_ns)
        res = loadgen_turn(lg, until_ns);
    return res;
}

static int loadgen_drain(struct loadgen *lg, uint64_t until_ns)
{
    int res = 0;

    lg->draining = true;
    while (res == LOADGEN_GOES_ON && lg->outstanding > 0 && loadgen_now() < until_ns)
        res = loadgen_turn(lg, until_ns);
    return res;
}

/* Returns how many complete echoes the server has sent that this generator has not taken yet. */
static uint64_t loadgen_count_untaken(struct loadgen *lg)
{
    uint64_t untaken = 0;

    for (uint32_t i = 0; i < lg->opened; i++) {
        struct loadgen_connection *c = &lg->connections[i];
        int bytes = 0;
        if (c->state == LOADGEN_WAITING && ioctl(c->fd, FIONREAD, &bytes) == 0)
            untaken += (c->checked + (uint64_t)bytes) / lg->size;
    }
    return untaken;
}

/* Counts requests of the open loop that are due and not answered. They enter the histogram with
 * their present age. That is less than their latency will be, but this way a stall at the end of an
 * interval is not lost. */
static uint64_t loadgen_count_unanswered(struct loadgen *lg, uint64_t now)
{
    uint64_t unanswered = 0;

    for (uint32_t i = 0; lg->rate > 0 && i < lg->count; i++) {
        struct loadgen_connection *c = &lg->connections[i];
        if (c->state == LOADGEN_WAITING && now > c->scheduled_ns) {
            lg->histogram[histogram_index(now - c->scheduled_ns)]++;
            unanswered++;
        }
        for (uint64_t k = c->issued; c->state != LOADGEN_CLOSED && k < loadgen_due_of(lg, i); k++) {
            lg->histogram[histogram_index(now - loadgen_due_ns(lg, k * lg->count + i))]++;
            unanswered++;
        }
    }
    return unanswered;
}

#endif
