/* The constants and structures of the load generator's engine, with its clock and its hash. All
 * memory belongs to `struct loadgen`; loadgen_open.h makes and frees it.
 */
#ifndef URINGLOOP_BENCH_LOADGEN_TYPES_H
#define URINGLOOP_BENCH_LOADGEN_TYPES_H

#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"

#define LOADGEN_STAMP_SIZE 8

/* Slices of the pattern begin at one of this many places; a power of two, for the mask. */
#define LOADGEN_ROTATIONS 4096

/* Up to this size a message is built in the connection's own buffer and sent with SEND. Above it
 * the copy costs more than the two iovecs of SENDMSG, which point into the shared pattern. */
#define LOADGEN_COPY_MAX 2048

/* Connections that are being established at once: well below any server's backlog, because a SYN
 * that finds the backlog full is retried a second later. */
#define LOADGEN_CONNECTING_MAX 64

/* Connections per source address: the ephemeral port range holds about 28,000. */
#define LOADGEN_PER_SOURCE 20000

/* With a core of its own the generator spins when a send is due sooner than a sleep takes. */
#define LOADGEN_SPIN_NS 60000

/* The ring of receive buffers is walked in order, so it stays small enough to live in the cache.
 * More than 40 completions never wait at once: the kernel runs 20 per pass since 6.13. */
#define LOADGEN_BUFFERS 64
#define LOADGEN_BUFFERS_LARGE 16
#define LOADGEN_BUFFER_SIZE_MAX 65536
#define LOADGEN_BUFFER_GROUP 1

#define LOADGEN_SQ_ENTRIES 1024

/* The failures of a connection; their names are in loadgen.pyx, in this order. */
enum loadgen_failure {
    LOADGEN_MISMATCH,
    LOADGEN_UNEXPECTED,
    LOADGEN_EARLY_EOF,
    LOADGEN_ERROR,
    LOADGEN_STALL,
    LOADGEN_FAILURES
};

enum loadgen_state { LOADGEN_CLOSED, LOADGEN_CONNECTING, LOADGEN_IDLE, LOADGEN_WAITING };

/* Stored in the low bits of user_data; the bits above them are the index of the connection. */
enum loadgen_operation { LOADGEN_CONNECT, LOADGEN_SEND, LOADGEN_RECV };

/* The results of loadgen_turn besides -errno. */
enum loadgen_outcome { LOADGEN_GOES_ON, LOADGEN_INTERRUPTED, LOADGEN_DEAD };

struct loadgen_connection {
    int fd;
    uint32_t state;        /* enum loadgen_state. */
    uint32_t sequence;     /* Requests sent so far. */
    uint32_t rotation;     /* Where this request's slice of the pattern begins. */
    uint64_t stamp;        /* The first bytes of this request. */
    uint64_t scheduled_ns; /* When the request was sent; in the open loop, when it was due. */
    uint64_t checked;      /* Bytes of the echo that have arrived and are correct. */
    uint64_t issued;       /* Requests of the open loop's schedule that were sent. */
};

/* The message of a SENDMSG; the kernel may read it until the send has completed. */
struct loadgen_message {
    struct msghdr header;
    struct iovec parts[2];
};

struct loadgen {
    /* Configuration, set once. */
    struct sockaddr_storage address;
    socklen_t address_length;
    uint32_t count;    /* Connections. */
    uint64_t size;     /* Bytes per message. */
    double rate;       /* Requests per second over all connections; 0 is the closed loop. */
    uint64_t stall_ns; /* After this long without progress the run has failed. */
    bool spinning;     /* The generator has its core for itself. */

    /* The ring and its memory, released by loadgen_close. */
    struct io_uring ring;
    struct io_uring_buf_ring *buffer_ring; /* Mapped; unmapped after the ring is gone. */
    char *buffers;                         /* Lent to the kernel through buffer_ring. */
    unsigned int buffer_count;
    unsigned int buffer_size;
    bool ring_open;
    bool skips_sends; /* A successful send posts no completion (5.17+). */
    bool fixed_files; /* Sockets are in the ring's file table, at their connection's index. */
    struct loadgen_connection *connections;
    struct loadgen_message *messages; /* One per connection, for large messages only. */
    char *sends;                      /* One slot per connection, for small messages only. */
    uint64_t send_stride;
    char *pattern; /* size + LOADGEN_ROTATIONS pseudo-random bytes. */

    /* The run. */
    bool draining;         /* No new requests. */
    uint32_t outstanding;  /* Connections that wait for an echo. */
    uint32_t connecting;   /* Connections before their first echo. */
    uint32_t opened;       /* Sockets created. */
    uint32_t established;  /* Connections whose first echo has arrived. */
    uint32_t lost;         /* Connections closed by a failure. */
    uint64_t start_ns;     /* When the open loop's schedule began; 0 before. */
    uint64_t due;          /* Requests of the schedule that are due. */
    uint64_t progress_ns;  /* When the last bytes arrived. */
    uint64_t answered;     /* Complete echoes in this interval. */
    uint64_t *histogram;   /* HISTOGRAM_BUCKETS counts of this interval, owned by the caller. */
    uint64_t failures[LOADGEN_FAILURES];

    /* The first failure, for the message. */
    uint32_t failed_connection;
    uint32_t failed_sequence;
    uint64_t failed_offset;
    int failed_error;
    uint32_t failed_kind;
};

static inline uint64_t loadgen_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

/* SplitMix64 of Steele, Lea and Flood: neighbouring inputs give unrelated outputs. */
static inline uint64_t loadgen_mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint32_t loadgen_index(const struct loadgen *lg, const struct loadgen_connection *c)
{
    return (uint32_t)(c - lg->connections);
}

#endif
