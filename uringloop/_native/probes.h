/* What a kernel does, tried on a ring and a socket pair of the trial's own: version numbers lie,
 * since distributions carry mends to older kernels. Each trial takes some 100 us, once in a process.
 * A trial that cannot be made counts as failed: there is a slower way for everything.
 */
#ifndef URINGLOOP_PROBES_H
#define URINGLOOP_PROBES_H

#include <stdio.h>
#include <sys/utsname.h>

#include "requests.h"

/* The first kernel of which it is not known that its multishot receives on UNIX sockets hear of
 * every end. 7.2.13 and 7.3-rc7 lose one in a thousand when the peer writes and shuts down on
 * another processor meanwhile, too seldom for a trial; 6.1.176, 6.12.107 and 6.18.44 lose none. */
#define URING_UNIX_UNKNOWN_MAJOR 6
#define URING_UNIX_UNKNOWN_MINOR 19

typedef struct uring_trial {
    uring u;
    int pair[2]; /* of UNIX stream sockets */
    void *memory;
} uring_trial;

/* Page-sized memory comes with it, for buffers that the kernel is told of. 0, or -errno; to be
 * closed either way. */
static inline int uring_trial_open(uring_trial *trial) {
    int res;

    memset(trial, 0, sizeof(*trial));
    trial->pair[0] = trial->pair[1] = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, trial->pair) < 0)
        return -errno;
    trial->memory = uring_map(4096);
    if (trial->memory == NULL)
        return -ENOMEM;
    res = uring_open(&trial->u, 4, 16);
    return res < 0 ? res : uring_enable(&trial->u);
}

static inline void uring_trial_close(uring_trial *trial) {
    uring_close(&trial->u);
    if (trial->memory != NULL)
        munmap(trial->memory, 4096);
    if (trial->pair[0] >= 0) {
        close(trial->pair[0]);
        close(trial->pair[1]);
    }
}

/* Enters; 1 with the oldest completion taken from the queue, 0 if there is none, or -errno. */
static inline int uring_trial_run(uring_trial *trial, struct io_uring_cqe *completion) {
    int res = uring_submit(&trial->u);
    unsigned head = uring_head(&trial->u);

    if (res < 0 || head == uring_tail(&trial->u))
        return res < 0 ? res : 0;
    *completion = *uring_completion(&trial->u, head);
    uring_consume(&trial->u, head + 1);
    return 1;
}

/* Makes a ring and enters it: 0, or -errno where either is refused. *quiet* tells whether a quiet
 * send does what it promises: nothing for success, the count of a short send, EAGAIN for none.
 * *facts* are the features that the kernel tells of. */
static inline int uring_try(int *quiet, unsigned *facts) {
    static const char data[256 * 1024];
    const size_t sizes[] = {1, sizeof(data), sizeof(data)};
    struct io_uring_cqe completion;
    uring_trial trial;
    int results[3] = {0, 0, 0}, res = uring_trial_open(&trial), i;

    for (i = 0; res == 0 && i < 3; i++) {
        struct io_uring_sqe *sqe = uring_get_submission(&trial.u);

        uring_prep_send(sqe, trial.pair[0], data, sizes[i], true);
        uring_set_user_data(sqe, 0, IOSQE_CQE_SKIP_SUCCESS);
        res = uring_trial_run(&trial, &completion);
        if (res > 0)
            results[i] = completion.res;
        if (uring_pending(&trial.u) != 0)
            results[i] = -1;
        res = res < 0 ? res : 0;
    }
    *facts = trial.u.ring.features;
    uring_trial_close(&trial);
    *quiet = res == 0 && results[0] == 0 && results[1] > 0 && results[1] < (int)sizeof(data) &&
             results[2] == -EAGAIN;
    return res;
}

static inline int uring_unix_multishot_is_known(void) {
    struct utsname name;
    unsigned major, minor;

    if (uname(&name) < 0 || sscanf(name.release, "%u.%u", &major, &minor) != 2)
        return 0;
    return major < URING_UNIX_UNKNOWN_MAJOR ||
           (major == URING_UNIX_UNKNOWN_MAJOR && minor < URING_UNIX_UNKNOWN_MINOR);
}

/* Whether a multishot receive on a UNIX socket sees the end of a peer that writes and shuts down
 * before the receive has run. Kernels before spring 2026 lose it: what wakes the receive up for the
 * second time is taken for a part of the first. Nothing runs here before the next enter. -errno if
 * that could not be tried. */
static inline int uring_unix_multishot_works(void) {
    struct io_uring_cqe completion;
    struct io_uring_buf_ring *buffers;
    uring_trial trial;
    int last = -1, i, res;

    if (!uring_unix_multishot_is_known())
        return 0;
    res = uring_trial_open(&trial);
    if (res < 0) {
        uring_trial_close(&trial);
        return res;
    }
    buffers = (struct io_uring_buf_ring *)trial.memory;
    io_uring_buf_ring_init(buffers);
    if (uring_register_buffers(&trial.u, buffers, 2, 0) == 0) {
        struct io_uring_sqe *sqe = uring_get_submission(&trial.u);

        uring_give_buffer(buffers, 2, (char *)trial.memory + 1024, 1024, 0);
        uring_give_buffer(buffers, 2, (char *)trial.memory + 2048, 1024, 1);
        uring_prep_recv_multishot(sqe, trial.pair[0], 0, false);
        uring_set_user_data(sqe, 0, 0);
        uring_submit(&trial.u);
        if (send(trial.pair[1], "", 1, MSG_NOSIGNAL) == 1 && shutdown(trial.pair[1], SHUT_WR) == 0)
            for (i = 0; i < 4; i++)
                if (uring_trial_run(&trial, &completion) > 0)
                    last = completion.res;
    }
    uring_trial_close(&trial);
    return last == 0;
}

#endif
