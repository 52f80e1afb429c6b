/* The operations of files of a software ring: done by threads, which may wait for a disk.
 *
 * A thread does one chain of linked requests at a time. Results go to the ring by a list, and by an
 * eventfd if the ring's thread sleeps. The threads take no signals, know nothing of Python, and end
 * when there is nothing to do for a while. A ring that is closed leaves them what they are doing:
 * what they read or write of a file must stay, as with the kernel's threads. Names, and what may
 * take for ever, they have copies of.
 *
 * Pipes, terminals, sockets and the like are waited for by epoll: a thread would be stuck in them.
 */
#include "_softring/files.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "_kernel/files.h"
#include "_softring/faults.h"
#include "_softring/queue.h"
#include "_softring/waits.h"

/* An old name, and a new one. */
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/* Threads at most, until the owner asks for another number; what asyncio's executor has. */
#define SOFT_WORKERS_MAX 32
/* What a thread needs beside what the C library takes. */
#define SOFT_WORKER_STACK (128 * 1024)
/* A thread with nothing to do stays so long. */
#define SOFT_WORKER_IDLE_S 5
/* A pipe that is writable takes so much without waiting; and what a pipe holds at most. */
#define SOFT_PIPE_ROOM 4096
#define SOFT_PIPE_SIZE (64 * 1024)
/* How often a thread is interrupted that must not wait any more. */
#define SOFT_ALARM_NS (10 * 1000000)

/* ── the threads ────────────────────────────────────────────────────────────────────────────── */

/* What a simulated kernel's short transfer leaves out. */
static size_t soft_left_out(const struct io_uring_sqe *sqe) {
    return SOFT_SIMULATED ? sqe->__pad2[0] : 0;
}

static void soft_leave_out(struct io_uring_sqe *sqe) {
    unsigned size = sqe->len;

    if (sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_WRITE) {
        sqe->len = (unsigned)soft_shorten(size);
        sqe->__pad2[0] = size - sqe->len;
    }
}

static size_t soft_bytes_asked(const struct io_uring_sqe *sqe) {
    const struct iovec *vectors = (const struct iovec *)(uintptr_t)sqe->addr;
    size_t size = 0;
    unsigned i;

    switch (sqe->opcode) {
    case IORING_OP_READ:
    case IORING_OP_WRITE:
        return sqe->len + soft_left_out(sqe);
    case IORING_OP_READV:
    case IORING_OP_WRITEV:
        for (i = 0; i < sqe->len; i++)
            size += vectors[i].iov_len;
        return size;
    default:
        return 0;
    }
}

/* Does a chain, in a thread or *here* in the loop's: what follows a failure, or a short count, is
 * not begun. */
static void soft_perform_chain(soft_request *request, bool here) {
    bool broken = false;

    for (; request != NULL; request = request->linked) {
        request->res = broken ? -ECANCELED
                       : here ? uring_perform_here(&request->sqe)
                              : uring_perform(&request->sqe);
        /* Asked only where it matters: the vectors of one that stands alone may be gone. */
        broken = request->linked != NULL &&
                 (request->res < 0 || (size_t)request->res < soft_bytes_asked(&request->sqe));
    }
}

/* What a thread did for a ring that has gone: a descriptor that it has opened is nobody's. */
static void soft_discard_chain(soft_request *request) {
    soft_request *linked;

    for (; request != NULL; request = linked) {
        linked = request->linked;
        if (request->sqe.opcode == IORING_OP_OPENAT && request->res >= 0)
            close(request->res);
        free(request->held);
        free(request);
    }
}

/* Gives up a hold, with the lock held: the last one frees the pool. */
static void soft_let_go(soft_pool *pool) {
    bool last = --pool->holders == 0;

    pthread_mutex_unlock(&pool->lock);
    if (last) {
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->lock);
        free(pool);
    }
}

/* Hands a chain to the ring, with the lock held. */
static void soft_hand_over(soft_pool *pool, soft_request *chain) {
    chain->next = NULL;
    if (pool->done == NULL)
        pool->done = chain;
    else
        pool->done_last->next = chain;
    pool->done_last = chain;
    /* First the flag, which who is about to sleep looks at after it has said so. */
    __atomic_fetch_or(pool->flags, IORING_SQ_TASKRUN, __ATOMIC_SEQ_CST);
    if (atomic_load(&pool->sleeping))
        eventfd_write(pool->wake_fd, 1);
}

static soft_request *soft_take_work(soft_pool *pool) {
    soft_request *request = pool->first;

    if (request != NULL) {
        pool->first = request->next;
        if (pool->first != NULL)
            pool->first->previous = NULL;
        else
            pool->last = NULL;
        request->queued = false;
        pool->queued--;
        request->running = true;
        request->worker = (pid_t)syscall(SYS_gettid);
    }
    return request;
}

/* Waits for work, with the lock held; NULL when there was none for long, or the ring has gone. */
static soft_request *soft_wait_for_work(soft_pool *pool) {
    soft_request *request;
    struct timespec end;
    int res = 0;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += SOFT_WORKER_IDLE_S;
    while ((request = soft_take_work(pool)) == NULL && !pool->closed && res == 0) {
        pool->idle++;
        res = pthread_cond_timedwait(&pool->work, &pool->lock, &end);
        pool->idle--;
    }
    return request;
}

/* Whether a result is still to come; a simulated kernel asks. */
bool soft_is_busy(soft_pool *pool) {
    bool busy;

    if (pool == NULL)
        return false;
    pthread_mutex_lock(&pool->lock);
    busy = pool->queued || pool->idle < pool->threads || pool->done != NULL;
    pthread_mutex_unlock(&pool->lock);
    return busy;
}

static void *soft_work(void *argument) {
    soft_pool *pool = argument;
    soft_request *chain;

    /* For who looks at the process's threads. */
    prctl(PR_SET_NAME, "uringloop-files");
    pthread_mutex_lock(&pool->lock);
    while ((chain = soft_wait_for_work(pool)) != NULL) {
        pthread_mutex_unlock(&pool->lock);
        soft_perform_chain(chain, false);
        pthread_mutex_lock(&pool->lock);
        chain->running = false;
        if (chain->interrupted)
            syscall(SYS_timer_delete, chain->alarm);
        if (chain->interrupted && chain->res == -EINTR)
            chain->res = -ECANCELED;
        if (pool->closed || chain->given_up)
            soft_discard_chain(chain);
        else
            soft_hand_over(pool, chain);
    }
    pool->threads--;
    soft_let_go(pool);
    return NULL;
}

/* The signal that ends a thread's wait for somebody, as for the other end of a FIFO: one that
 * nobody uses. It gets a handler when it is sent first. */
static pthread_once_t soft_signal_chosen = PTHREAD_ONCE_INIT;
static int soft_signal;

/* That there is a handler has a system call end with EINTR. */
static void soft_on_signal(int number) {
    (void)number;
}

static void soft_choose_signal(void) {
    struct sigaction action;
    int number;

    for (number = SIGRTMAX; number >= SIGRTMIN && !soft_signal; number--)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_DFL)
            soft_signal = number;
}

static bool soft_may_signal(void) {
    struct sigaction action;

    if (!soft_signal || sigaction(soft_signal, NULL, &action) != 0)
        return false;
    if (action.sa_handler == SIG_DFL) {
        memset(&action, 0, sizeof(action));
        action.sa_handler = soft_on_signal;
        return sigaction(soft_signal, &action, NULL) == 0;
    }
    /* Or the program has found a use for it. */
    return action.sa_handler == soft_on_signal;
}

/* Interrupts the thread that is at a request, again and again: one signal may come before it waits.
 * The thread ends that itself. Without a timer it is one signal. */
static void soft_interrupt(soft_request *request) {
    struct itimerspec when = {.it_value.tv_nsec = 1, .it_interval.tv_nsec = SOFT_ALARM_NS};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = soft_signal};

    event.sigev_notify_thread_id = request->worker;
    request->interrupted = true;
    request->alarm = -1;
    if (!soft_may_signal())
        return;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &request->alarm) == 0)
        syscall(SYS_timer_settime, request->alarm, 0, &when, NULL);
    else
        syscall(SYS_tgkill, getpid(), request->worker, soft_signal);
}

/* Has an open that a thread is at be for nobody, and ends it if it waits; false if it is another
 * request, or has been done. */
bool soft_give_up(softring *s, soft_request *request) {
    soft_pool *pool = s->pool;
    bool running;

    if (request->sqe.opcode != IORING_OP_OPENAT || request->linked != NULL)
        return false;
    pthread_mutex_lock(&pool->lock);
    running = request->running;
    if (running) {
        request->given_up = true;
        soft_forget(s, request);
        soft_interrupt(request);
    }
    pthread_mutex_unlock(&pool->lock);
    return running;
}

/* Has a thread wait no more for what others may have taken before it; what it has got by then it
 * tells as ever. False if no thread is at the request, or need not wait. */
bool soft_stop(softring *s, soft_request *request) {
    soft_pool *pool = s->pool;
    bool running;

    if (!request->waits)
        return false;
    pthread_mutex_lock(&pool->lock);
    running = request->running;
    if (running && !request->interrupted)
        soft_interrupt(request);
    pthread_mutex_unlock(&pool->lock);
    return running;
}

/* Starts a thread, with the lock held; false if there is none to be had. */
static bool soft_start_worker(soft_pool *pool) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int res;

    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* The least is more than a constant where libraries have variables for each thread. */
    pthread_attr_setstacksize(&attributes,
                              SOFT_WORKER_STACK + (size_t)sysconf(_SC_THREAD_STACK_MIN));
    /* Signals are for the threads that Python knows; but for the one that is ours. */
    pthread_once(&soft_signal_chosen, soft_choose_signal);
    sigfillset(&all);
    if (soft_signal)
        sigdelset(&all, soft_signal);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    res = pthread_create(&thread, &attributes, soft_work, pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (res != 0)
        return false;
    pool->threads++;
    pool->holders++;
    return true;
}

int soft_open_pool(softring *s) {
    soft_pool *pool = calloc(1, sizeof(*pool));
    pthread_condattr_t attributes;
    int res;

    if (pool == NULL)
        return -ENOMEM;
    pool->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    res = pool->wake_fd < 0 ? -errno : soft_watch_pool(s, pool->wake_fd);
    if (res < 0) {
        if (pool->wake_fd >= 0)
            close(pool->wake_fd);
        free(pool);
        return res;
    }
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->work, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&pool->lock, NULL);
    pool->most = SOFT_WORKERS_MAX;
    pool->holders = 1;
    pool->flags = s->queues.sq.kflags;
    s->pool = pool;
    return 0;
}

/* The ring closes; what is queued has been withdrawn, what is done is freed here. */
void soft_close_pool(softring *s) {
    soft_pool *pool = s->pool;
    soft_request *chain, *next;

    pthread_mutex_lock(&pool->lock);
    for (chain = pool->done; chain != NULL; chain = next) {
        next = chain->next;
        soft_discard_chain(chain);
    }
    pool->done = NULL;
    pool->closed = true;
    close(pool->wake_fd);
    pthread_cond_broadcast(&pool->work);
    s->pool = NULL;
    soft_let_go(pool);
}

/* ── requests ───────────────────────────────────────────────────────────────────────────────── */

/* Copies the names, as the kernel does while it submits, and makes room for what statx fills: who
 * has asked may be gone, with a ring that is closed, before a thread comes to it. */
static int soft_keep_names(soft_request *request) {
    struct io_uring_sqe *sqe = &request->sqe;
    const char *name = (const char *)(uintptr_t)sqe->addr, *second = NULL;
    size_t room = 0, size, second_size;

    switch (sqe->opcode) {
    case IORING_OP_STATX:
        room = sizeof(struct statx);
        break;
    case IORING_OP_RENAMEAT:
    case IORING_OP_SYMLINKAT:
    case IORING_OP_LINKAT:
        second = (const char *)(uintptr_t)sqe->addr2;
        break;
    case IORING_OP_OPENAT:
    case IORING_OP_MKDIRAT:
    case IORING_OP_UNLINKAT:
        break;
    default:
        return 0;
    }
    size = strlen(name) + 1;
    second_size = second != NULL ? strlen(second) + 1 : 0;
    request->held = malloc(room + size + second_size);
    if (request->held == NULL)
        return -ENOMEM;
    sqe->addr = (uintptr_t)memcpy(request->held + room, name, size);
    if (second != NULL)
        sqe->addr2 = (uintptr_t)memcpy(request->held + size, second, second_size);
    if (room) {
        request->answer = (void *)(uintptr_t)sqe->off;
        sqe->off = (uintptr_t)request->held;
    }
    return 0;
}

/* Posts the completions of a chain that has been done. */
static void soft_finish_chain(softring *s, soft_request *chain) {
    soft_request *linked;

    for (; chain != NULL; chain = linked) {
        linked = chain->linked;
        if (chain->answer != NULL && chain->res >= 0)
            memcpy(chain->answer, chain->held,
                   chain->sqe.opcode == IORING_OP_STATX ? sizeof(struct statx)
                                                        : (size_t)chain->res);
        soft_finish(s, chain, chain->res, 0);
    }
}

/* Gives a chain to the threads; false if there is none, and none to be had. */
static bool soft_give(soft_pool *pool, soft_request *chain) {
    bool served;

    pthread_mutex_lock(&pool->lock);
    /* One for each chain: it may wait for what another one does, as the two ends of a FIFO. */
    served = pool->idle > pool->queued ||
             (pool->threads < pool->most && soft_start_worker(pool)) || pool->threads > 0;
    if (served) {
        chain->queued = true;
        pool->queued++;
        chain->next = NULL;
        chain->previous = pool->last;
        if (pool->last != NULL)
            pool->last->next = chain;
        else
            pool->first = chain;
        pool->last = chain;
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return served;
}

/* Has a thread do a chain; without any, this one does. */
static void soft_queue(softring *s, soft_request *chain) {
    soft_request *request;

    for (request = chain; request != NULL; request = request->linked)
        request->state = SOFT_GIVEN;
    if ((s->pool != NULL || soft_open_pool(s) == 0) && soft_give(s->pool, chain))
        return;
    soft_perform_chain(chain, true);
    soft_finish_chain(s, chain);
}

/* Takes a chain from the threads' list; false if one has it, or *request* is not its first. */
bool soft_withdraw(softring *s, soft_request *request) {
    soft_pool *pool = s->pool;
    bool queued;

    pthread_mutex_lock(&pool->lock);
    queued = request->queued;
    if (queued) {
        if (request->previous != NULL)
            request->previous->next = request->next;
        else
            pool->first = request->next;
        if (request->next != NULL)
            request->next->previous = request->previous;
        else
            pool->last = request->previous;
        request->queued = false;
        pool->queued--;
    }
    pthread_mutex_unlock(&pool->lock);
    for (; queued && request != NULL; request = request->linked)
        request->state = SOFT_NEW;
    return queued;
}

/* Posts what the threads have done. */
void soft_take_done(softring *s) {
    soft_request *chain, *next;

    pthread_mutex_lock(&s->pool->lock);
    chain = s->pool->done;
    s->pool->done = s->pool->done_last = NULL;
    pthread_mutex_unlock(&s->pool->lock);
    for (; chain != NULL; chain = next) {
        next = chain->next;
        soft_finish_chain(s, chain);
    }
}

static bool soft_writes(const struct io_uring_sqe *sqe) {
    return sqe->opcode == IORING_OP_WRITE || sqe->opcode == IORING_OP_WRITEV;
}

static bool soft_transfers(const struct io_uring_sqe *sqe) {
    return soft_writes(sqe) || sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READV;
}

/* Whether reading may wait for somebody, not a disk: an eventfd, for one, has no type at all. */
static bool soft_is_stream(int fd) {
    struct stat found;

    return fstat(fd, &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode) &&
           !S_ISBLK(found.st_mode);
}

/* Has a thread do what can only be done waiting: a terminal's, or with a pipe before Linux 6.4. It
 * is ready, but others may be faster; so it is a little, and done in memory of the thread's. */
static void soft_leave_to_thread(softring *s, soft_request *request, const struct iovec *part) {
    struct io_uring_sqe *sqe = &request->sqe;
    bool writes = soft_writes(sqe);
    size_t most = writes ? SOFT_PIPE_ROOM : SOFT_PIPE_SIZE;
    size_t size = part->iov_len < most ? part->iov_len : most;

    request->held = malloc(size + 1);
    if (request->held == NULL) {
        soft_finish(s, request, -ENOMEM, 0);
        return;
    }
    if (writes)
        memcpy(request->held, part->iov_base, size);
    else
        request->answer = part->iov_base;
    sqe->opcode = writes ? IORING_OP_WRITE : IORING_OP_READ;
    sqe->addr = (uintptr_t)request->held;
    sqe->len = (unsigned)size;
    sqe->off = (uint64_t)-1;
    request->waits = true;
    soft_leave_watch(s, request);
    soft_queue(s, request);
}

/* Tries a read or write of a pipe, a terminal or a socket that epoll has told of. */
static bool soft_try_file(softring *s, soft_request *request, uint32_t events) {
    struct io_uring_sqe *sqe = &request->sqe;
    void *address = (void *)(uintptr_t)sqe->addr;
    struct iovec part = {.iov_base = address, .iov_len = sqe->len}, *vectors = &part;
    int count = 1;
    ssize_t res;

    (void)events;
    if (sqe->opcode == IORING_OP_READV || sqe->opcode == IORING_OP_WRITEV) {
        vectors = address;
        count = (int)sqe->len;
    }
    for (; count > 1 && vectors->iov_len == 0; count--)
        vectors++;
    do
        res = soft_writes(sqe) ? pwritev2(sqe->fd, vectors, count, -1, RWF_NOWAIT)
                               : preadv2(sqe->fd, vectors, count, -1, RWF_NOWAIT);
    while (res < 0 && errno == EINTR);
    if (res < 0 && errno == EAGAIN)
        return false;
    if (res < 0 && errno == EOPNOTSUPP)
        soft_leave_to_thread(s, request, vectors);
    else
        soft_finish(s, request, res < 0 ? -errno : (int)res, 0);
    return false;
}

/* Takes a submission, whatever it asks for; with NULL it ends an open chain. */
void soft_submit_file(softring *s, const struct io_uring_sqe *sqe, soft_request **chain) {
    soft_request *request, *last;
    int res;

    if (sqe == NULL) {
        soft_queue(s, *chain);
        return;
    }
    request = soft_new_request(s, sqe);
    if (request == NULL) {
        soft_post(s, sqe->user_data, -ENOMEM, 0);
        return;
    }
    if (SOFT_SIMULATED)
        soft_leave_out(&request->sqe);
    res = soft_keep_names(request);
    if (res < 0) {
        soft_finish(s, request, res, 0);
        return;
    }
    if (*chain != NULL) {
        for (last = *chain; last->linked != NULL; last = last->linked)
            ;
        last->linked = request;
        if (!(sqe->flags & IOSQE_IO_LINK)) {
            soft_queue(s, *chain);
            *chain = NULL;
        }
    } else if (sqe->flags & IOSQE_IO_LINK) {
        *chain = request;
    } else if (!soft_transfers(sqe) || !soft_is_stream(sqe->fd)) {
        soft_queue(s, request);
    } else {
        res = soft_await(s, request, soft_writes(sqe) ? EPOLLOUT : EPOLLIN | EPOLLRDHUP,
                         soft_try_file);
        if (res == -EPERM)
            /* /dev/null and the like. */
            soft_queue(s, request);
        else if (res < 0)
            soft_finish(s, request, res, 0);
    }
}
