/* Probes of what the kernel supports, on a ring and a socket pair of their own. Version numbers are
 * unreliable, since distributions backport fixes to older kernels. Each probe takes some 100 us,
 * once in a process. A probe that cannot be made counts as failed: the loop has a slower way for
 * everything.
 */
#ifndef URINGLOOP_PROBES_H
#define URINGLOOP_PROBES_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "_kernel/files.h"
#include "_kernel/sockets.h"
#include "_ring/operations.h"
#include "_ring/uring.h"

/* Room for a question about each operation. */
#define URING_TRIAL_ENTRIES 32
_Static_assert(URING_OPERATIONS < URING_TRIAL_ENTRIES, "a chain goes in one enter");

/* The abilities of a ring of this kernel. */
typedef struct uring_abilities {
    int quiet_sends;    /* a quiet send posts nothing if it sends everything, the count if it is
                         * short, EAGAIN if it sends nothing */
    uring_answers operations;
    bool listed;        /* a list that the process has inherited restricts its rings */
    unsigned facts;     /* the IORING_FEAT_ bits that the kernel reports */
    const char *call;   /* the system call that has failed */
} uring_abilities;

typedef struct uring_trial {
    uring u;
    int pair[2]; /* of UNIX stream sockets; -1 if a security policy refuses them */
} uring_trial;

/* Opens a disabled ring. Returns 0 or -errno; the caller closes the trial in both cases. */
static inline int uring_trial_open(uring_trial *trial) {
    memset(trial, 0, sizeof(*trial));
    trial->pair[0] = trial->pair[1] = -1;
    trial->u.call = "socketpair";
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, trial->pair) < 0 &&
        !uring_is_forbidden(-errno))
        return -errno;
    return uring_open(&trial->u, URING_TRIAL_ENTRIES, 2 * URING_TRIAL_ENTRIES, true);
}

static inline void uring_trial_close(uring_trial *trial) {
    uring_close(&trial->u);
    if (trial->pair[0] >= 0) {
        close(trial->pair[0]);
        close(trial->pair[1]);
    }
}

/* Enters the ring. Returns 1 and takes the oldest completion, 0 if there is none, or -errno. */
static inline int uring_trial_run(uring_trial *trial, struct io_uring_cqe *completion) {
    int res = uring_submit(&trial->u);
    unsigned head = uring_head(&trial->u);

    trial->u.call = "io_uring_enter";
    if (res < 0 || head == uring_tail(&trial->u))
        return res < 0 ? res : 0;
    *completion = *uring_completion(&trial->u, head);
    uring_consume(&trial->u, head + 1);
    return 1;
}

/* Tries quiet sends. Returns whether the kernel has them, or -errno if the ring fails. */
static inline int uring_try_quiet_sends(uring_trial *trial) {
    static const char data[256 * 1024];
    const size_t sizes[] = {1, sizeof(data), sizeof(data)};
    struct io_uring_cqe completion;
    int results[3] = {0, 0, 0}, res, i;

    for (i = 0; i < 3; i++) {
        struct io_uring_sqe *sqe = uring_get_submission(&trial->u);

        io_uring_prep_send(sqe, trial->pair[0], data, sizes[i], URING_SEND_ONCE);
        uring_set_user_data(sqe, 0, IOSQE_CQE_SKIP_SUCCESS);
        res = uring_trial_run(trial, &completion);
        if (res < 0)
            return res;
        if (res > 0)
            results[i] = completion.res;
        if (uring_pending(&trial->u) != 0)
            results[i] = -1;
    }
    return results[0] == 0 && results[1] > 0 && results[1] < (int)sizeof(data) &&
           results[2] == -EAGAIN;
}

/* Makes a ring, enters it and fills *found*. Returns 0, or -errno if the kernel refuses either, or
 * an operation that a loop cannot do without. */
static inline int uring_try(uring_abilities *found) {
    uring_trial trial;
    int res = uring_trial_open(&trial);

    memset(found, 0, sizeof(*found));
    if (res == 0)
        res = uring_enable(&trial.u);
    if (res == 0) {
        trial.u.call = "io_uring_enter";
        res = uring_ask_operations(&trial.u, &found->operations);
    }
    if (res == 0)
        res = uring_check_needs(&trial.u, &found->operations, &trial.u.call);
    if (res == 0)
        res = uring_try_quiet_sends(&trial);
    found->quiet_sends = res > 0;
    found->call = trial.u.call;
    found->facts = trial.u.ring.features;
    found->listed = trial.u.listed;
    uring_trial_close(&trial);
    return res < 0 ? res : 0;
}

/* Returns the number of a system call of system_calls.py, -1 where this architecture lacks it. */
static inline long uring_call_number(const char *name) {
    static const struct {
        const char *name;
        long number;
    } calls[] = {
        {"accept4", SYS_accept4},
        {"epoll_create1", SYS_epoll_create1},
        {"epoll_ctl", SYS_epoll_ctl},
        {"epoll_pwait", SYS_epoll_pwait},
        {"epoll_pwait2", URING_SYS_EPOLL_PWAIT2},
#ifdef SYS_epoll_wait
        {"epoll_wait", SYS_epoll_wait},
#endif
        {"eventfd2", SYS_eventfd2},
        {"io_uring_enter", 426},
        {"io_uring_register", 427},
        {"io_uring_setup", 425},
        {"madvise", SYS_madvise},
        {"openat2", URING_SYS_OPENAT2},
        {"pidfd_open", 434},
        {"pipe2", SYS_pipe2},
        {"preadv2", SYS_preadv2},
        {"prlimit64", SYS_prlimit64},
        {"pwritev2", SYS_pwritev2},
        {"recvmsg", SYS_recvmsg},
        {"sendmsg", SYS_sendmsg},
        {"socketpair", SYS_socketpair},
        {"statmount", URING_SYS_STATMOUNT},
        {"statx", SYS_statx},
        {"timerfd_create", SYS_timerfd_create},
        {"uname", SYS_uname},
        {"wait4", SYS_wait4},
        {"waitid", SYS_waitid},
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++)
        if (strcmp(calls[i].name, name) == 0)
            return calls[i].number;
    return -1;
}

/* Makes a system call with arguments that none of those above accepts, in a child process, which a
 * sandbox may kill for it. Returns the errno, -1 if the child was killed, or 0 if there is no
 * child. The child has memory of its own: before Linux 5.16, the signal by which a sandbox kills it
 * ends every process that shares its memory, as a child of vfork() does. It answers by one shared
 * page, because its status is lost if SIGCHLD is ignored. */
static inline int uring_ask_call(long number) {
    const size_t size = sizeof(int);
    volatile int *answer =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int error = 0;
    pid_t child;

    if (answer == MAP_FAILED)
        return 0;
    *answer = -1;
    child = fork();
    if (child == 0) {
        syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);
        *answer = errno;
        _exit(0);
    }
    if (child > 0) {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
        error = *answer;
    }
    munmap((void *)answer, size);
    return error;
}

/* Returns whether the kernel can open a path from its caches alone, and describe its mount. */
static inline bool uring_try_paths(void) {
    uring_open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = URING_RESOLVE_CACHED};
    struct statx facts;
    int fd = uring_openat2(AT_FDCWD, "/", &how);
    uring_mount_facts mount;
    bool has_id;

    if (fd < 0)
        return false;
    has_id = uring_statx(fd, "", AT_EMPTY_PATH, URING_STATX_MNT_ID_UNIQUE, &facts) == 0 &&
           facts.stx_mask & URING_STATX_MNT_ID_UNIQUE && uring_ask_mount(&facts, &mount);
    close(fd);
    return has_id;
}

#endif
