/* The fuzzer's record of its requests and of the expected bytes; each completion is checked. */
#ifndef FUZZ_LEDGER_H
#define FUZZ_LEDGER_H

#include "_kernel/sockets.h"
#include "_ring/uring.h"

#include <stdio.h>

enum {
    SLOTS = 24,
    STREAMS = 3,
    BUFFERS = 4,
    BUFFER_SIZE = 256,
    MEMORY = 512,
    GUESTS = 8,
    COMMANDS_MAX = 300,
    /* Waits of a millisecond within which a cancelled request must end. */
    PATIENCE = 3000,
};

enum kinds { RECEIVE, SEND, OPEN, OTHER };

typedef struct slot {
    uint64_t id; /* its user_data; 0 if the slot is free */
    enum kinds kind;
    int stream;      /* the stream of its bytes; -1 for none */
    bool multishot;
    int group;
    char *memory;    /* the ring may use it until the terminal completion */
    size_t size;
    struct msghdr *message;
} slot;

typedef struct stream {
    int near, far;
    bool spoiled;       /* the expected bytes are unknown */
    bool far_ended;
    slot *receiver, *sender;
    unsigned written, received; /* bytes written by the far end, and received here */
    unsigned sent, read;        /* bytes sent by completions, and read by the far end */
} stream;

typedef struct group {
    struct io_uring_buf_ring *ring;
    char *memory;
    bool out[BUFFERS];
} group;

static struct {
    uring u;
    slot slots[SLOTS];
    stream streams[STREAMS];
    group groups[2];
    int datagrams[2], listener, file, guests[GUESTS];
    uint64_t next_id;
    const uint8_t *data, *end;
    bool ending;
} f;

static void die(const char *why) {
    fprintf(stderr, "%s\n", why);
    abort();
}

static char pattern(unsigned stream, unsigned position) {
    return (char)(stream * 91 + position * 7 + (position >> 8) * 13);
}

/* ── completions ─────────────────────────────────────────────────────────────────────────────── */

static void finish(slot *s) {
    if (s->stream >= 0) {
        stream *of = &f.streams[s->stream];

        if (of->receiver == s)
            of->receiver = NULL;
        if (of->sender == s)
            of->sender = NULL;
    }
    free(s->memory);
    free(s->message);
    memset(s, 0, sizeof(*s));
}

static void receive(slot *s, const char *data, int res) {
    stream *from = &f.streams[s->stream];

    if (from->spoiled)
        return;
    if (res == 0 && s->size != 0 && !from->far_ended)
        die("an EOF that the peer has not sent");
    for (int i = 0; i < res; i++)
        if (data[i] != pattern((unsigned)s->stream, from->received++))
            die("other bytes than were sent");
    if (from->received > from->written)
        die("more bytes than were sent");
}

static void complete(const struct io_uring_cqe *cqe) {
    slot *s = &f.slots[cqe->user_data % SLOTS];
    bool more = cqe->flags & IORING_CQE_F_MORE;
    const char *data;

    if (s->id == 0 || s->id != cqe->user_data)
        die("a completion without a request, or after the terminal one");
    if (more && !s->multishot)
        die("F_MORE for a request that is not multishot");
    data = s->memory;
    if (cqe->flags & IORING_CQE_F_BUFFER) {
        unsigned id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
        group *from = &f.groups[s->group];

        if (id >= BUFFERS || from->out[id])
            die("a buffer that is not the ring's");
        from->out[id] = true;
        data = from->memory + id * BUFFER_SIZE;
    }
    if (cqe->res >= 0 && s->kind == RECEIVE)
        receive(s, data, cqe->res);
    if (cqe->res > 0 && s->kind == SEND) {
        if ((size_t)cqe->res > s->size)
            die("more bytes were sent than requested");
        f.streams[s->stream].sent += (unsigned)cqe->res;
    }
    if (cqe->res >= 0 && s->kind == OPEN)
        close(cqe->res);
    if (!more)
        finish(s);
}

/* Takes the completions; at the end, those of the cancels themselves are ignored. */
static void look(void) {
    unsigned head = uring_head(&f.u);

    while (head != uring_tail(&f.u)) {
        struct io_uring_cqe cqe = *uring_completion(&f.u, head++);

        uring_consume(&f.u, head);
        if (!f.ending || cqe.user_data != 0)
            complete(&cqe);
    }
}

#endif
