/* The load generator's memory and its ring: made once, before the first connection, and released
 * at the end. loadgen.h uses them.
 */
#ifndef URINGLOOP_BENCH_LOADGEN_OPEN_H
#define URINGLOOP_BENCH_LOADGEN_OPEN_H

#include "loadgen_types.h"

static int loadgen_set_unix_address(struct loadgen *lg, const char *path, size_t length)
{
    struct sockaddr_un *address = (struct sockaddr_un *)&lg->address;

    if (length >= sizeof(address->sun_path))
        return -ENAMETOOLONG;
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, path, length);
    address->sun_path[length] = 0;
    lg->address_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    return 0;
}

static int loadgen_set_tcp_address(struct loadgen *lg, const char *host, uint16_t port)
{
    struct sockaddr_in *address = (struct sockaddr_in *)&lg->address;

    address->sin_family = AF_INET;
    address->sin_port = htons(port);
    lg->address_length = sizeof(*address);
    return inet_pton(AF_INET, host, &address->sin_addr) == 1 ? 0 : -EINVAL;
}

/* The pattern is the same in every run, so that a failure can be repeated. */
static int loadgen_make_pattern(struct loadgen *lg)
{
    uint64_t length = lg->size + LOADGEN_ROTATIONS;

    lg->pattern = malloc(length + sizeof(uint64_t));
    if (lg->pattern == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < length; i += sizeof(uint64_t)) {
        uint64_t word = loadgen_mix(i);
        memcpy(lg->pattern + i, &word, sizeof(word));
    }
    return 0;
}

static int loadgen_make_messages(struct loadgen *lg)
{
    if (lg->size <= LOADGEN_COPY_MAX) {
        /* Slots are whole cache lines, so two connections never share one. */
        lg->send_stride = (lg->size + LOADGEN_STAMP_SIZE + 63) & ~UINT64_C(63);
        lg->sends = calloc(lg->count, lg->send_stride);
        return lg->sends == NULL ? -ENOMEM : 0;
    }
    lg->messages = calloc(lg->count, sizeof(*lg->messages));
    if (lg->messages == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < lg->count; i++) {
        struct loadgen_message *message = &lg->messages[i];
        message->parts[0].iov_base = &lg->connections[i].stamp;
        message->parts[0].iov_len = LOADGEN_STAMP_SIZE;
        message->parts[1].iov_len = lg->size - LOADGEN_STAMP_SIZE;
        message->header.msg_iov = message->parts;
        message->header.msg_iovlen = 2;
    }
    return 0;
}

/* DEFER_TASKRUN needs Linux 6.1; on an older kernel the ring has no flags and is slower. */
static int loadgen_make_ring(struct loadgen *lg)
{
    static const unsigned int flags[] = {
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
            IORING_SETUP_TASKRUN_FLAG,
        0,
    };
    struct io_uring_params params;
    int res = -EINVAL;

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && res == -EINVAL; i++) {
        memset(&params, 0, sizeof(params));
        params.flags = flags[i] | IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE;
        /* One receive and one failing send per connection fit without overflow. */
        params.cq_entries = lg->count < 2048 ? 4096 : 2 * lg->count;
        res = io_uring_queue_init_params(LOADGEN_SQ_ENTRIES, &lg->ring, &params);
    }
    if (res < 0)
        return res;
    lg->ring_open = true;
    lg->skips_sends = (params.features & IORING_FEAT_CQE_SKIP) != 0;
    /* Saves the descriptor look-up of every enter; without it (< 5.18) enters are merely slower. */
    io_uring_register_ring_fd(&lg->ring);
    /* Saves the look-up of every send, 4 % of a request; refused if few open files are allowed. */
    lg->fixed_files = io_uring_register_files_sparse(&lg->ring, lg->count) == 0;
    return 0;
}

/* Provided-buffer rings need Linux 5.19, multishot receives 6.0. */
static int loadgen_make_buffers(struct loadgen *lg)
{
    struct io_uring_buf_reg registration;
    size_t ring_size;
    void *ring;
    int res;

    lg->buffer_size = 256;
    while (lg->buffer_size < lg->size && lg->buffer_size < LOADGEN_BUFFER_SIZE_MAX)
        lg->buffer_size *= 2;
    lg->buffer_count =
        lg->buffer_size == LOADGEN_BUFFER_SIZE_MAX ? LOADGEN_BUFFERS_LARGE : LOADGEN_BUFFERS;
    lg->buffers = malloc((size_t)lg->buffer_count * lg->buffer_size);
    if (lg->buffers == NULL)
        return -ENOMEM;
    ring_size = lg->buffer_count * sizeof(struct io_uring_buf);
    ring = mmap(NULL, ring_size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (ring == MAP_FAILED)
        return -errno;
    lg->buffer_ring = ring;
    memset(&registration, 0, sizeof(registration));
    registration.ring_addr = (uint64_t)(uintptr_t)ring;
    registration.ring_entries = lg->buffer_count;
    registration.bgid = LOADGEN_BUFFER_GROUP;
    res = io_uring_register_buf_ring(&lg->ring, &registration, 0);
    if (res < 0)
        return res;
    io_uring_buf_ring_init(lg->buffer_ring);
    for (unsigned int i = 0; i < lg->buffer_count; i++)
        io_uring_buf_ring_add(lg->buffer_ring, lg->buffers + (size_t)i * lg->buffer_size,
                              lg->buffer_size, (unsigned short)i,
                              io_uring_buf_ring_mask(lg->buffer_count), (int)i);
    io_uring_buf_ring_advance(lg->buffer_ring, (int)lg->buffer_count);
    return 0;
}

/* The caller has set the address and the configuration; after an error it calls loadgen_close. */
static int loadgen_open(struct loadgen *lg)
{
    int res;

    lg->connections = calloc(lg->count, sizeof(*lg->connections));
    if (lg->connections == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < lg->count; i++)
        lg->connections[i].fd = -1;
    res = loadgen_make_pattern(lg);
    if (res == 0)
        res = loadgen_make_messages(lg);
    if (res == 0)
        res = loadgen_make_ring(lg);
    if (res == 0)
        res = loadgen_make_buffers(lg);
    return res;
}

static void loadgen_close(struct loadgen *lg)
{
    /* The ring holds its own reference to every socket with a receive armed, so only shutdown sends
     * a FIN at once; memory is freed when the kernel no longer uses it. */
    for (uint32_t i = 0; lg->connections != NULL && i < lg->count; i++) {
        if (lg->connections[i].fd >= 0) {
            shutdown(lg->connections[i].fd, SHUT_RDWR);
            close(lg->connections[i].fd);
        }
    }
    if (lg->ring_open)
        io_uring_queue_exit(&lg->ring);
    if (lg->buffer_ring != NULL)
        munmap(lg->buffer_ring, lg->buffer_count * sizeof(struct io_uring_buf));
    free(lg->buffers);
    free(lg->pattern);
    free(lg->sends);
    free(lg->messages);
    free(lg->connections);
    memset(lg, 0, sizeof(*lg));
}

#endif
