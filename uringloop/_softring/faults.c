/* The faults of a simulated kernel, chosen by random numbers from a seed. */
#include "_softring/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

/* An operation of a slow disk takes so long, doubled less than SOFT_SLOW_DOUBLINGS times: at most
 * 2 s. */
#define SOFT_SLOW_MIN_NS 1000000
#define SOFT_SLOW_DOUBLINGS 12

/* SplitMix64: every seed, even 0, gives a different sequence. */
static uint64_t soft_random(soft_simulation *simulation) {
    uint64_t mixed = simulation->state += UINT64_C(0x9E3779B97F4A7C15);

    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

uint64_t soft_random_below(soft_simulation *simulation, uint64_t limit) {
    if (simulation->choose != NULL)
        return simulation->choose(simulation->owner, limit);
    return soft_random(simulation) % limit;
}

bool soft_happens(soft_simulation *simulation, uint64_t chance) {
    return chance != 0 && SOFT_ALWAYS - soft_random_below(simulation, SOFT_ALWAYS) <= chance;
}

bool soft_decide(soft_simulation *simulation, soft_faults kind) {
    if (!soft_happens(simulation, simulation->chance[kind]))
        return false;
    simulation->happened[kind]++;
    return true;
}

size_t soft_shorten(const softring *s, size_t size) {
    soft_simulation *simulation = s->simulation;

    if (size < 2 || !soft_fault(s, SOFT_FAULT_SHORT))
        return size;
    /* In half of the cases, at most 7 bytes. */
    return 1 + soft_random_below(simulation, soft_random_below(simulation, 2) ? size - 1
                                             : size < 8                       ? size - 1
                                                                              : 7);
}

void soft_shuffle(const softring *s, struct epoll_event *events, int count) {
    struct epoll_event other;
    int i, j;

    if (count < 2 || !soft_fault(s, SOFT_FAULT_REORDERED))
        return;
    for (i = count - 1; i > 0; i--) {
        j = i - (int)soft_random_below(s->simulation, (uint64_t)i + 1);
        other = events[i];
        events[i] = events[j];
        events[j] = other;
    }
}

int soft_failure(const softring *s) {
    if (soft_fault(s, SOFT_FAULT_RESET))
        return -ECONNRESET;
    return soft_fault(s, SOFT_FAULT_NO_MEMORY) ? -ENOMEM : 0;
}

/* Returns whether an operation needs space on the disk. */
static bool soft_makes_file(const struct io_uring_sqe *sqe) {
    const char *path = (const char *)(uintptr_t)sqe->addr;

    switch (sqe->opcode) {
    case IORING_OP_OPENAT:
        return sqe->open_flags & O_CREAT && faccessat(sqe->fd, path, F_OK, 0) != 0;
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
    case IORING_OP_MKDIRAT:
    case IORING_OP_SYMLINKAT:
    case IORING_OP_LINKAT:
        return true;
    default:
        return false;
    }
}

static bool soft_uses_disk(const struct io_uring_sqe *sqe) {
    switch (sqe->opcode) {
    case IORING_OP_READ:
    case IORING_OP_READV:
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
    case IORING_OP_FSYNC:
        return true;
    default:
        return false;
    }
}

int soft_disk_failure(const softring *s, const struct io_uring_sqe *sqe) {
    if (soft_makes_file(sqe) && soft_fault(s, SOFT_FAULT_NO_SPACE))
        return -ENOSPC;
    return soft_uses_disk(sqe) && soft_fault(s, SOFT_FAULT_BAD_DISK) ? -EIO : 0;
}

int64_t soft_disk_delay(const softring *s) {
    if (!soft_fault(s, SOFT_FAULT_SLOW_DISK))
        return 0;
    return (int64_t)SOFT_SLOW_MIN_NS << soft_random_below(s->simulation, SOFT_SLOW_DOUBLINGS);
}

/* ── the ends of connections ────────────────────────────────────────────────────────────────── */

void soft_begin_multishot(const softring *s, soft_request *request) {
    request->misses_end = soft_fault(s, SOFT_FAULT_MISSED_END);
}

/* Returns whether the connection has an end of a kind that kernels miss: of TCP a reset, which the
 * kernel does not count among what is left, as it does a FIN; of UNIX sockets any. */
static bool soft_has_ended(int fd) {
    struct pollfd look = {.fd = fd, .events = POLLRDHUP};
    int domain = 0;
    socklen_t size = sizeof(domain);

    if (poll(&look, 1, 0) <= 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0)
        return false;
    return domain == AF_UNIX || look.revents & POLLERR;
}

/* From Linux 6.5 on, a multishot receive that begins its wait while bytes and the end are there
 * receives the bytes, and waits on. 6.12.117 does that in a later wake-up, too. */
bool soft_is_deaf(soft_request *request) {
    int size = 0;

    if (!request->misses_end || ioctl(request->sqe.fd, FIONREAD, &size) < 0)
        return false;
    if (size > 0 && !request->deaf && soft_has_ended(request->sqe.fd)) {
        request->deaf = true;
        /* The descriptor stays readable, and no receive changes that. */
        request->mode = SOFT_BY_EDGE;
    }
    return request->deaf && size == 0;
}

int soft_end_with(soft_simulation *simulation, uint64_t inode, int error) {
    soft_ending *ending = malloc(sizeof(*ending));

    if (ending == NULL)
        return -ENOMEM;
    *ending = (soft_ending){.next = simulation->endings, .inode = inode, .error = error};
    simulation->endings = ending;
    return 0;
}

/* Returns the error that ends a socket; otherwise *res*. A receive that gets it is the last one to
 * get it; a send leaves it to the receive, whose error a connection reports. */
static ssize_t soft_take_ending(soft_simulation *simulation, uint64_t inode, ssize_t res,
                                bool receives) {
    soft_ending **place, *ending;
    int error;

    for (place = &simulation->endings; (ending = *place) != NULL; place = &ending->next)
        if (ending->inode == inode) {
            error = ending->error;
            if (receives) {
                *place = ending->next;
                free(ending);
            }
            return -error;
        }
    return res;
}

ssize_t soft_ended_by(const softring *s, int fd, ssize_t res, bool receives) {
    struct stat found;

    if ((res != -ECONNRESET && res != -EPIPE && res != 0) || s->simulation == NULL ||
        s->simulation->endings == NULL || fstat(fd, &found) != 0)
        return res;
    return soft_take_ending(s->simulation, found.st_ino, res, receives);
}

void soft_clear(soft_simulation *simulation) {
    soft_ending *ending;

    while ((ending = simulation->endings) != NULL) {
        simulation->endings = ending->next;
        free(ending);
    }
}
