/* The threads of one loop that call the C library's resolver. They run no Python code and need no
 * GIL. Nobody waits for them: a resolver may take minutes to give up, and meanwhile the loop closes
 * and the process ends. A loop has threads of its own, because a thread inherits from the one that
 * starts it: network namespace, system call filters, processors.
 *
 *     NEW ──name_ask()──> ASKED ──a thread has it──> TAKEN ──the loop is told──> TOLD
 *                                                      │
 *                                                      └──name_leave()──> ABANDONED
 *
 * name_withdraw() frees a query that is ASKED, name_leave() one that is NEW, ASKED or TOLD, and the
 * thread one that is ABANDONED.
 *
 * The loop's thread makes a query, and may read it while it is NEW or TOLD. A lock protects the queue
 * and the states. A thread holds it while it tells the loop: a query that is TOLD is the loop's alone.
 *
 * In a forked child the threads do not exist and the lock may be taken: it must call nothing here. */
#ifndef URINGLOOP_NET_NAME_THREADS_H
#define URINGLOOP_NET_NAME_THREADS_H

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

/* A name server that does not answer keeps a thread for seconds. While so many queries hang, all
 * others wait. */
#define NAME_THREADS_MAX 32
/* A thread that has had nothing to do for so long ends. */
#define NAME_IDLE_S 10

enum name_state { NAME_NEW, NAME_ASKED, NAME_TAKEN, NAME_TOLD, NAME_ABANDONED };

struct name_query {
    struct name_threads *threads; /* NULL while the query is NEW */
    struct name_query *before;    /* in the queue */
    struct name_query *next;
    enum name_state state;
    void *handle; /* tells the loop; owned; NULL once the inbox has it */

    /* The question: for getnameinfo() if it has an address, else for getaddrinfo(). */
    char *host;
    char *service;
    struct addrinfo hints;
    struct sockaddr_in6 address; /* or a sockaddr_in */
    socklen_t address_size;
    int flags;

    /* The answer. */
    int status; /* 0 or an EAI_ code */
    int error;  /* errno, for EAI_SYSTEM */
    struct addrinfo *found;
    char found_host[NI_MAXHOST];
    char found_service[NI_MAXSERV];
    double took_s;
};

struct name_threads {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a query is asked, or the loop is closed */
    struct name_query *first;
    struct name_query *last;
    int count;          /* of threads */
    int idle;           /* of them that wait */
    bool one_is_coming; /* a thread that was woken or started has not yet looked for a query */
    bool closed;
    int users; /* the loop, each thread and each query that is not NEW; the last one frees this */
    unsigned process; /* that of the threads, as PROCESS in ring.pxd */
    /* Puts a handle into the loop's inbox; returns 0 if the loop is closed. */
    int (*tell)(void *inbox, void *handle);
    void *inbox; /* exists as long as a handle */
};

static inline double name_clock_s(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void name_free(struct name_query *query) {
    if (query->found)
        freeaddrinfo(query->found);
    free(query->host);
    free(query->service);
    free(query);
}

static inline void name_append(struct name_threads *threads, struct name_query *query) {
    query->before = threads->last;
    query->next = NULL;
    *(threads->last ? &threads->last->next : &threads->first) = query;
    threads->last = query;
}

static inline void name_remove(struct name_threads *threads, struct name_query *query) {
    *(query->before ? &query->before->next : &threads->first) = query->next;
    *(query->next ? &query->next->before : &threads->last) = query->before;
}

/* Calls the resolver, in the thread of the caller. */
static inline void name_resolve(struct name_query *query) {
    double begun = name_clock_s();

    errno = 0;
    if (query->address_size)
        query->status = getnameinfo((struct sockaddr *)&query->address, query->address_size,
                                    query->found_host, sizeof(query->found_host),
                                    query->found_service, sizeof(query->found_service),
                                    query->flags);
    else
        query->status = getaddrinfo(query->host, query->service, &query->hints, &query->found);
    query->error = errno;
    if (query->status)
        query->found = NULL;
    query->took_s = name_clock_s() - begun;
}

/* Unlocks *threads* for a user that needs it no more. */
static inline void name_end_use(struct name_threads *threads) {
    bool is_last = !--threads->users;

    pthread_mutex_unlock(&threads->lock);
    if (is_last) {
        pthread_mutex_destroy(&threads->lock);
        pthread_cond_destroy(&threads->changed);
        free(threads);
    }
}

static inline void *name_thread(void *argument);

/* Starts a thread without the program's signals, whose handlers are the business of its threads. */
static inline int name_start_thread(struct name_threads *threads) {
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t blocked, before;
    int error = pthread_attr_init(&attributes);

    if (error)
        return -error;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&blocked);
    for (size_t index = 0; index < sizeof(faults) / sizeof(*faults); index++)
        sigdelset(&blocked, faults[index]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    error = pthread_create(&thread, &attributes, name_thread, threads);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -error;
}

/* Wakes or starts a thread, unless one is coming: a thread that takes a query calls the next one if
 * there are more, so a burst of fast queries does not wake threads that would find nothing. Returns 0,
 * or -errno if no thread could be started. The caller holds the lock. */
static inline int name_call_thread(struct name_threads *threads) {
    int error;

    if (threads->one_is_coming)
        return 0;
    if (threads->idle) {
        pthread_cond_signal(&threads->changed);
    } else {
        if (threads->count == NAME_THREADS_MAX)
            return 0;
        error = name_start_thread(threads);
        if (error)
            return error;
        threads->count++;
        threads->users++;
    }
    threads->one_is_coming = true;
    return 0;
}

/* Returns the first query, or waits for one; returns NULL if none comes for a while, or never will.
 * The caller holds the lock. */
static inline struct name_query *name_wait(struct name_threads *threads) {
    struct timespec until;
    int timed_out = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += NAME_IDLE_S;
    while (!threads->first && !threads->closed && !timed_out) {
        threads->idle++;
        timed_out = pthread_cond_timedwait(&threads->changed, &threads->lock, &until);
        threads->idle--;
        threads->one_is_coming = false;
    }
    return threads->first;
}

static inline void *name_thread(void *argument) {
    struct name_threads *threads = argument;
    struct name_query *query;

    pthread_setname_np(pthread_self(), "uringloop-names");
    pthread_mutex_lock(&threads->lock);
    threads->one_is_coming = false;
    while ((query = name_wait(threads))) {
        name_remove(threads, query);
        query->state = NAME_TAKEN;
        /* If no thread can be started, the others take what is left. */
        if (threads->first)
            name_call_thread(threads);
        pthread_mutex_unlock(&threads->lock);
        name_resolve(query);
        pthread_mutex_lock(&threads->lock);
        if (query->state == NAME_ABANDONED) {
            name_free(query);
            threads->users--;
            continue;
        }
        if (threads->tell(threads->inbox, query->handle))
            query->handle = NULL;
        query->state = NAME_TOLD;
    }
    threads->count--;
    name_end_use(threads);
    return NULL;
}

/* Returns the threads of a loop, of which none is started yet; NULL if there is no memory. */
static inline struct name_threads *name_open(int (*tell)(void *, void *), void *inbox,
                                             unsigned process) {
    struct name_threads *threads = calloc(1, sizeof(*threads));
    pthread_condattr_t attributes;

    if (!threads)
        return NULL;
    pthread_mutex_init(&threads->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&threads->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    threads->users = 1;
    threads->process = process;
    threads->tell = tell;
    threads->inbox = inbox;
    return threads;
}

/* Lets the threads end when they have done what they do. */
static inline void name_close(struct name_threads *threads) {
    pthread_mutex_lock(&threads->lock);
    threads->closed = true;
    pthread_cond_broadcast(&threads->changed);
    name_end_use(threads);
}

/* Has a thread answer the query; returns 0, or -errno if there is none and none can be started. */
static inline int name_ask(struct name_threads *threads, struct name_query *query) {
    int error;

    pthread_mutex_lock(&threads->lock);
    error = name_call_thread(threads);
    if (error && threads->count)
        /* The query waits for one of the others. */
        error = 0;
    if (!error) {
        query->state = NAME_ASKED;
        query->threads = threads;
        threads->users++;
        name_append(threads, query);
    }
    pthread_mutex_unlock(&threads->lock);
    return error;
}

/* Frees a query that no thread has; returns its handle, or NULL if an inbox has it. The caller holds
 * the lock, which this unlocks. */
static inline void *name_drop(struct name_threads *threads, struct name_query *query) {
    void *handle = query->handle;

    if (query->state == NAME_ASKED)
        name_remove(threads, query);
    name_free(query);
    name_end_use(threads);
    return handle;
}

/* Ends the loop's use of a query. Returns its handle, or NULL if an inbox has it. */
static inline void *name_leave(struct name_query *query) {
    struct name_threads *threads = query->threads;
    void *handle;

    if (!threads) {
        handle = query->handle;
        name_free(query);
        return handle;
    }
    pthread_mutex_lock(&threads->lock);
    if (query->state != NAME_TAKEN)
        return name_drop(threads, query);
    handle = query->handle;
    query->state = NAME_ABANDONED;
    pthread_mutex_unlock(&threads->lock);
    return handle;
}

/* Frees a query that waits for a thread, and returns its handle; returns NULL if a thread has it, or
 * has answered it. */
static inline void *name_withdraw(struct name_query *query) {
    struct name_threads *threads = query->threads;

    pthread_mutex_lock(&threads->lock);
    if (query->state == NAME_ASKED)
        return name_drop(threads, query);
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

#endif
