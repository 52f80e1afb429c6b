/* Preloaded into a program: names whose answers come when a test wants, and threads that cannot be
 * started. "slow-*" waits for release_names() and then fails as a name server that does not answer.
 * Other names are libc's. */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int released;
static int asked;
static int threads_refused;
static int wakes_are_held;
static int held_wakes;

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);
typedef int starter(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    resolver *next = (resolver *)dlsym(RTLD_NEXT, "getaddrinfo");
    bool is_slow = host && !strncmp(host, "slow-", 5);

    if (hints && hints->ai_flags & AI_NUMERICHOST)
        return next(host, service, hints, found);
    pthread_mutex_lock(&lock);
    asked++;
    while (is_slow && !released)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return is_slow ? EAI_AGAIN : next(host, service, hints, found);
}

/* Returns how many calls asked more than for a numeric host. */
int names_asked(void) {
    int count;

    pthread_mutex_lock(&lock);
    count = asked;
    pthread_mutex_unlock(&lock);
    return count;
}

void release_names(void) {
    pthread_mutex_lock(&lock);
    released = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Lets writes to eventfds wait until it is called with 0. */
void hold_wakes(int held) { __atomic_store_n(&wakes_are_held, held, __ATOMIC_RELEASE); }

/* Returns how many writes have waited, or wait. */
int wakes_held(void) { return __atomic_load_n(&held_wakes, __ATOMIC_ACQUIRE); }

int eventfd_write(int fd, eventfd_t value) {
    int (*next)(int, eventfd_t) = (int (*)(int, eventfd_t))dlsym(RTLD_NEXT, "eventfd_write");

    if (__atomic_load_n(&wakes_are_held, __ATOMIC_ACQUIRE)) {
        __atomic_add_fetch(&held_wakes, 1, __ATOMIC_ACQ_REL);
        while (__atomic_load_n(&wakes_are_held, __ATOMIC_ACQUIRE))
            usleep(1000);
    }
    return next(fd, value);
}

void refuse_threads(int refused) { __atomic_store_n(&threads_refused, refused, __ATOMIC_RELEASE); }

int pthread_create(pthread_t *made, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument) {
    starter *next = (starter *)dlsym(RTLD_NEXT, "pthread_create");

    if (__atomic_load_n(&threads_refused, __ATOMIC_ACQUIRE))
        return EAGAIN;
    return next(made, attributes, start, argument);
}
