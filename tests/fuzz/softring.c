/* Fuzz target: runs any bytes as a program on the software ring: `nox -s fuzz`.
 *
 * A byte is a command, and the bytes that follow are its arguments: requests of every kind with
 * their own memory, actions of the peers, cancels, descriptors closed without the ring's knowledge,
 * waits, completions that stay in the queue. For every program:
 *
 *   - every request has one terminal completion, none after it, and ends when it is cancelled;
 *   - its memory is freed at that moment, so that the sanitizer reports any later use;
 *   - a buffer that a completion names was the ring's, and is named only once;
 *   - bytes arrive in order, each once, and the completions count the bytes that were sent.
 */
#include "ledger.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/un.h>

static char directory[] = "/tmp/fuzz-softring-XXXXXX";
static char fifo[64];

static unsigned byte(void) { return f.data < f.end ? *f.data++ : 0; }

static unsigned many(unsigned most) { return (byte() << 8 | byte()) % (most + 1); }

/* ── requests ────────────────────────────────────────────────────────────────────────────────── */

static struct io_uring_sqe *submission(void) {
    struct io_uring_sqe *sqe = uring_get_submission(&f.u);

    while (sqe == NULL) {
        if (uring_submit_only(&f.u) < 0)
            die("nothing can be submitted");
        sqe = uring_get_submission(&f.u);
    }
    memset(sqe, 0, sizeof(*sqe));
    return sqe;
}

/* A free slot with memory, or NULL. */
static slot *new_slot(enum kinds kind, int of, size_t size) {
    for (unsigned i = 0; i < SLOTS; i++) {
        slot *s = &f.slots[i];

        if (s->id != 0)
            continue;
        f.next_id += SLOTS;
        *s = (slot){.id = f.next_id + i, .kind = kind, .stream = of, .size = size};
        s->memory = malloc(size ? size : 1);
        memset(s->memory, 0, size ? size : 1);
        return s;
    }
    return NULL;
}

static void start(slot *s, struct io_uring_sqe *sqe, unsigned flags) {
    uring_set_user_data(sqe, s->id, flags);
}

/* One request at a time for each stream and direction, as in the loop: two would interleave. */
static stream *idle_stream(bool sending, int *index) {
    *index = (int)(byte() % STREAMS);
    stream *of = &f.streams[*index];

    return (sending ? of->sender : of->receiver) == NULL ? of : NULL;
}

static void submit_receive(void) {
    unsigned how = byte();
    int index;
    stream *from = idle_stream(false, &index);
    size_t size = how & 1 ? 0 : many(MEMORY);
    slot *s = from == NULL ? NULL : new_slot(RECEIVE, index, how & 1 ? MEMORY : size);
    struct io_uring_sqe *sqe;

    if (s == NULL)
        return;
    sqe = submission();
    if (!(how & 1)) {
        io_uring_prep_recv(sqe, from->near, s->memory, size, how & 2 ? MSG_WAITALL : 0);
    } else if (how & 2) {
        uring_prep_recv_multishot(sqe, from->near, 0);
        s->multishot = true;
    } else {
        io_uring_prep_recv(sqe, from->near, NULL, 0, 0);
        uring_select_buffer(sqe, 0);
    }
    from->receiver = s;
    start(s, sqe, 0);
}

static void submit_send(void) {
    unsigned how = byte();
    int index, flags;
    stream *to = idle_stream(true, &index);
    size_t size = how & 1 ? 1 + many(60000) : 1 + many(MEMORY);
    slot *s = to == NULL ? NULL : new_slot(SEND, index, size);
    struct io_uring_sqe *sqe;

    if (s == NULL)
        return;
    for (size_t i = 0; i < size; i++)
        s->memory[i] = pattern((unsigned)index, to->sent + (unsigned)i);
    sqe = submission();
    flags = how & 4 ? URING_SEND_ONCE : URING_SEND_WHOLE;
    if (how & 2) {
        s->message = calloc(1, sizeof(struct msghdr) + 2 * sizeof(struct iovec));
        struct iovec *parts = (struct iovec *)(s->message + 1);

        parts[0] = (struct iovec){s->memory, size / 2};
        parts[1] = (struct iovec){s->memory + size / 2, size - size / 2};
        s->message->msg_iov = parts;
        s->message->msg_iovlen = 2;
        io_uring_prep_sendmsg(sqe, to->near, s->message, flags);
    } else {
        io_uring_prep_send(sqe, to->near, s->memory, size, flags);
    }
    to->sender = s;
    start(s, sqe, 0);
}

static void submit_datagrams(void) {
    unsigned how = byte();
    slot *s = new_slot(OTHER, -1, MEMORY);
    struct io_uring_sqe *sqe;

    if (s == NULL)
        return;
    sqe = submission();
    s->group = 1;
    if (how & 1) {
        uring_prep_recvmsg_multishot(sqe, f.datagrams[0], 1);
        s->multishot = true;
    } else {
        io_uring_prep_send(sqe, f.datagrams[0], s->memory, many(MEMORY), MSG_NOSIGNAL);
    }
    start(s, sqe, 0);
}

static int any_descriptor(void) {
    unsigned which = byte() % (STREAMS + 5);

    if (which < STREAMS)
        return f.streams[which].near;
    switch (which - STREAMS) {
    case 0:
        return f.datagrams[0];
    case 1:
        return f.listener;
    case 2:
        return f.file;
    case 3:
        return -1;
    default:
        return 1000000;
    }
}

static void submit_poll(void) {
    unsigned how = byte();
    slot *s = new_slot(OTHER, -1, 0);
    struct io_uring_sqe *sqe;

    if (s == NULL)
        return;
    sqe = submission();
    io_uring_prep_poll_add(sqe, any_descriptor(), (how & 1 ? POLLIN : 0) | (how & 2 ? POLLOUT : 0) |
                                                      (how & 4 ? POLLRDHUP : 0));
    if (how & 8) {
        sqe->len |= IORING_POLL_ADD_MULTI;
        s->multishot = true;
    }
    start(s, sqe, 0);
}

static void submit_file(void) {
    unsigned how = byte();
    slot *s = new_slot(how % 6 == 5 ? OPEN : OTHER, -1, sizeof(struct statx) + MEMORY);
    struct io_uring_sqe *sqe;

    if (s == NULL)
        return;
    sqe = submission();
    switch (how % 6) {
    case 0:
        io_uring_prep_read(sqe, f.file, s->memory, many(MEMORY), many(8192));
        break;
    case 1:
        io_uring_prep_write(sqe, f.file, s->memory, many(MEMORY), many(8192));
        break;
    case 2:
        io_uring_prep_fsync(sqe, f.file, 0);
        break;
    case 3:
        io_uring_prep_statx(sqe, AT_FDCWD, fifo, 0, STATX_ALL, (struct statx *)s->memory);
        break;
    case 4:
        io_uring_prep_unlinkat(sqe, AT_FDCWD, "/nonexistent/file", 0);
        break;
    default: /* its result is a descriptor; the open of the FIFO waits for a writer */
        io_uring_prep_openat(sqe, AT_FDCWD, how & 64 ? fifo : "/dev/null", O_RDONLY | O_CLOEXEC, 0);
    }
    start(s, sqe, 0);
}

/* The loop's only linked requests: the data is on the disk when both have completed. */
static void submit_durable_write(void) {
    slot *s = new_slot(OTHER, -1, MEMORY), *next = new_slot(OTHER, -1, 0);
    struct io_uring_sqe *sqe;

    if (s == NULL || next == NULL) {
        if (s != NULL)
            finish(s);
        return;
    }
    /* Both in one enter: a link does not continue in the next one. */
    if (uring_room(&f.u) < 2)
        uring_submit_only(&f.u);
    sqe = submission();
    io_uring_prep_write(sqe, byte() & 1 ? f.file : -1, s->memory, many(MEMORY), many(8192));
    start(s, sqe, IOSQE_IO_LINK);
    sqe = submission();
    io_uring_prep_fsync(sqe, f.file, 0);
    start(next, sqe, 0);
}

/* Invalid requests, which must complete as well. Opcodes that take structures are left out: an
 * invalid pointer is a crash in user space, and EFAULT in the kernel. So is CLOSE: other requests
 * use the descriptors. */
static void submit_nonsense(void) {
    unsigned opcode = byte();
    slot *s;
    struct io_uring_sqe *sqe;

    switch (opcode) {
    case IORING_OP_CLOSE:
    case IORING_OP_READV:
    case IORING_OP_WRITEV:
    case IORING_OP_SENDMSG:
    case IORING_OP_RECVMSG:
    case IORING_OP_CONNECT:
    case IORING_OP_OPENAT:
    case IORING_OP_STATX:
    case IORING_OP_RENAMEAT:
    case IORING_OP_UNLINKAT:
    case IORING_OP_MKDIRAT:
    case IORING_OP_SYMLINKAT:
    case IORING_OP_LINKAT:
        return;
    default:
        break;
    }
    s = new_slot(OTHER, -1, MEMORY);
    if (s == NULL)
        return;
    sqe = submission();
    sqe->opcode = (uint8_t)opcode;
    sqe->fd = any_descriptor();
    sqe->addr = (uint64_t)(uintptr_t)s->memory;
    sqe->len = many(MEMORY);
    sqe->off = many(5000);
    sqe->ioprio = (uint16_t)many(31);
    sqe->msg_flags = many(65535);
    sqe->buf_group = (uint16_t)(byte() % 6);
    s->group = sqe->buf_group & 1;
    s->multishot = true;
    for (int i = 0; i < STREAMS; i++)
        f.streams[i].spoiled = true;
    start(s, sqe, byte() & (IOSQE_BUFFER_SELECT | IOSQE_ASYNC));
}

static void submit_cancel(void) {
    unsigned which = byte();
    slot *target = &f.slots[which % SLOTS];
    slot *s = new_slot(OTHER, -1, 0);
    struct io_uring_sqe *sqe;

    if (s == NULL)
        return;
    sqe = submission();
    uring_prep_cancel(sqe, target->id ? target->id : 12345 + which);
    start(s, sqe, 0);
}

/* ── actions of the peers ────────────────────────────────────────────────────────────────────── */

static void far_write(void) {
    unsigned index = byte() % STREAMS, size = 1 + many(5000);
    stream *of = &f.streams[index];
    char data[5001];
    ssize_t res;

    for (unsigned i = 0; i < size; i++)
        data[i] = pattern(index, of->written + i);
    res = send(of->far, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (res > 0)
        of->written += (unsigned)res;
}

static bool far_read(unsigned index, size_t most) {
    stream *of = &f.streams[index];
    char data[65536];
    ssize_t res = recv(of->far, data, most, MSG_DONTWAIT);

    for (ssize_t i = 0; i < res; i++)
        if (data[i] != pattern(index, of->read++) && !of->spoiled)
            die("the peer reads other bytes than were sent");
    return res > 0;
}

static void far_read_some(void) { far_read(byte() % STREAMS, 1 + many(65535)); }

static void far_end(void) {
    stream *of = &f.streams[byte() % STREAMS];

    of->far_ended = true;
    if (byte() & 1) {
        shutdown(of->far, SHUT_WR);
        return;
    }
    /* Bytes in flight are lost, in both directions. */
    of->spoiled = true;
    close(of->far);
    of->far = -1;
}

/* Closes a descriptor that the ring still uses; its number belongs to another socket then. */
static void close_behind(void) {
    stream *of = &f.streams[byte() % STREAMS];
    int ends[2];

    for (int i = 0; i < STREAMS; i++)
        f.streams[i].spoiled = true;
    close(of->near);
    if (of->far >= 0)
        close(of->far);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        die("no sockets");
    of->near = ends[0];
    of->far = ends[1];
}

static void give_back(void) {
    unsigned which = byte();
    group *of = &f.groups[which & 1];

    for (unsigned id = 0; id < BUFFERS; id++)
        if (of->out[id] && (which & 2 << id)) {
            of->out[id] = false;
            /* From here on only the ring may write to it. */
            uring_give_buffer(of->ring, BUFFERS, of->memory + id * BUFFER_SIZE, BUFFER_SIZE, id);
        }
}

static void connect_guest(void) {
    unsigned which = byte() % GUESTS;
    struct sockaddr_un name;
    socklen_t size = sizeof(name);

    if (f.guests[which] >= 0)
        close(f.guests[which]);
    f.guests[which] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (getsockname(f.listener, (struct sockaddr *)&name, &size) == 0)
        (void)!connect(f.guests[which], (struct sockaddr *)&name, size);
}

/* As the loop does when a poll has reported a connection. */
static void accept_guest(void) {
    int fd = softring_accept(f.u.soft, f.listener, NULL, NULL);

    if (fd >= 0)
        close(fd);
}

/* ── a run ───────────────────────────────────────────────────────────────────────────────────── */

static void send_datagram(void) {
    char datagram[100] = {0};

    send(f.datagrams[1], datagram, many(sizeof(datagram)), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void enter(void) {
    unsigned how = byte();

    if (how & 1)
        uring_wait(&f.u, 100000);
    else
        uring_submit(&f.u);
    /* Completions may stay in the queue. */
    if (how & 6)
        look();
}

/* Commands that should be more frequent are listed more often. */
static void (*const COMMANDS[])(void) = {
    submit_receive, submit_receive,   submit_send,   submit_send,   submit_datagrams,
    submit_poll,    submit_file,      submit_cancel, submit_durable_write,
    far_write,      far_write,        far_read_some, far_end,       close_behind,
    give_back,      connect_guest,    accept_guest,  send_datagram, enter,
    enter,          enter,            submit_nonsense,
};

static void open_group(int index) {
    group *g = &f.groups[index];

    g->ring = uring_map(4096);
    g->memory = malloc(BUFFERS * BUFFER_SIZE);
    io_uring_buf_ring_init(g->ring);
    for (unsigned id = 0; id < BUFFERS; id++)
        uring_give_buffer(g->ring, BUFFERS, g->memory + id * BUFFER_SIZE, BUFFER_SIZE, id);
    if (uring_register_buffers(&f.u, g->ring, BUFFERS, index) < 0)
        die("no buffers");
}

static void open_all(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int ends[2];

    if (uring_open_soft(&f.u, 8, 16) < 0 || uring_enable(&f.u) < 0)
        die("no ring");
    uring_limit_workers(&f.u, 4, 4);
    open_group(0);
    open_group(1);
    for (int i = 0; i < STREAMS; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
            die("no sockets");
        f.streams[i].near = ends[0];
        f.streams[i].far = ends[1];
    }
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, f.datagrams) < 0)
        die("no sockets");
    f.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* No name: the kernel chooses one. */
    if (bind(f.listener, (struct sockaddr *)&name, sizeof(sa_family_t)) < 0 ||
        listen(f.listener, 2) < 0)
        die("no listener");
    f.file = memfd_create("fuzz", MFD_CLOEXEC);
    for (int i = 0; i < GUESTS; i++)
        f.guests[i] = -1;
}

static bool busy(void) {
    for (int i = 0; i < SLOTS; i++)
        if (f.slots[i].id != 0)
            return true;
    return false;
}

/* Cancels until everything has ended, as the loop does before it closes. */
static void end_all(void) {
    f.ending = true;
    for (int tries = 0; busy(); tries++) {
        if (tries == PATIENCE)
            die("a cancelled request does not end");
        for (unsigned i = 0; i < SLOTS && tries % 100 == 0; i++)
            if (f.slots[i].id != 0) {
                /* The cancel's own completion is ignored: no slot has the user_data 0. */
                struct io_uring_sqe *sqe = submission();

                uring_prep_cancel(sqe, f.slots[i].id);
                uring_set_user_data(sqe, 0, IOSQE_CQE_SKIP_SUCCESS);
            }
        uring_wait(&f.u, 1000000);
        look();
    }
}

static void close_all(void) {
    for (unsigned i = 0; i < STREAMS; i++) {
        stream *of = &f.streams[i];

        if (of->far >= 0)
            while (far_read(i, 65536))
                ;
        if (!of->spoiled && of->read != of->sent)
            die("the completions count other bytes than were sent");
        close(of->near);
        if (of->far >= 0)
            close(of->far);
    }
    uring_close(&f.u);
    for (int i = 0; i < 2; i++) {
        close(f.datagrams[i]);
        free(f.groups[i].memory);
        munmap(f.groups[i].ring, 4096);
    }
    for (int i = 0; i < GUESTS; i++)
        if (f.guests[i] >= 0)
            close(f.guests[i]);
    close(f.listener);
    close(f.file);
}

static void clean_up(void) {
    unlink(fifo);
    rmdir(directory);
}

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    (void)arguments;
    if (mkdtemp(directory) == NULL)
        die("no temporary folder");
    snprintf(fifo, sizeof(fifo), "%s/fifo", directory);
    if (mkfifo(fifo, 0600) < 0)
        die("no FIFO");
    atexit(clean_up);
    /* As in Python. */
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memset(&f, 0, sizeof(f));
    f.data = data;
    f.end = data + size;
    open_all();
    for (int i = 0; i < COMMANDS_MAX && f.data < f.end; i++)
        COMMANDS[byte() % (sizeof(COMMANDS) / sizeof(*COMMANDS))]();
    end_all();
    close_all();
    return 0;
}
