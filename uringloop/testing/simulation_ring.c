/* What a software ring does now, for a loop for tests: may it sleep, and what does it wait for? */
#include "testing/simulation.h"

#include <poll.h>

#include "_softring/queue.h"
#include "_softring/state.h"
#include "_softring/threads.h"

ring_works ring_work(softring *s) {
    const soft_request *request;
    ring_works found = RING_NO_WORK;
    unsigned bucket;

    if (s->pool == NULL)
        return found;
    pthread_mutex_lock(&s->pool->lock);
    for (bucket = 0; bucket < s->table_size; bucket++)
        for (request = s->table[bucket]; request != NULL; request = request->hashed)
            if (request->state != SOFT_GIVEN)
                continue;
            else if (request->work != SOFT_WORK_RUNNING || !soft_waits_for_peer(request))
                found = RING_WORKS;
            else if (found == RING_NO_WORK)
                found = RING_WAITS;
    pthread_mutex_unlock(&s->pool->lock);
    return found;
}

bool ring_is_idle(const simulation *kernel, const softring *s) {
    const struct io_uring_sq *sq = &s->queues.sq;
    /* poll(2), since epoll_wait(2) would consume the events. */
    struct pollfd look = {.fd = s->epoll_fd, .events = POLLIN};

    return *sq->khead == *sq->ktail && soft_ready(s) == 0 && s->overflow == NULL &&
           !(__atomic_load_n(sq->kflags, __ATOMIC_SEQ_CST) & IORING_SQ_TASKRUN) &&
           ring_kept_until(s) > kernel->clock_ns && poll(&look, 1, 0) == 0;
}

int64_t ring_kept_until(const softring *s) {
    return s->kept == NULL ? INT64_MAX : simulation_note_of(s->kept)->due_ns;
}

unsigned ring_waits(const softring *s, int *fds, unsigned *events, unsigned size) {
    const soft_request *request;
    unsigned count = 0;
    int fd;

    for (fd = 0; fd < s->watches_size; fd++)
        for (request = s->watches[fd].first; request != NULL; request = request->next) {
            if (count < size) {
                fds[count] = fd;
                events[count] = request->events;
            }
            count++;
        }
    return count;
}
