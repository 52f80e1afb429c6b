/* How another thread ends a loop's sleep: it writes to an eventfd, or sets a timerfd. */
#ifndef URINGLOOP_KERNEL_WAKEUP_H
#define URINGLOOP_KERNEL_WAKEUP_H

#include <errno.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Returns a descriptor for uring_wake(), which the caller polls and never reads, or -errno. It is
 * an eventfd, or a timerfd where a filter refuses eventfd(2). */
static inline int uring_new_wake_fd(void) {
    const struct itimerspec never = {0};
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = errno;

    if (fd >= 0)
        return fd;
    fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0)
        return -error;
    /* A filter may refuse to set the timer. */
    if (timerfd_settime(fd, 0, &never, NULL) < 0) {
        close(fd);
        return -error;
    }
    return fd;
}

/* Returns whether the number may still be a wake-up descriptor's: other code may have closed all
 * descriptors and opened files since. Only anonymous files, such as eventfds and timerfds, have no
 * type. */
static inline bool uring_may_wake(int fd) {
    struct stat found;

    /* Any error but EBADF comes from a filter that refuses the call, and tells nothing. */
    return fstat(fd, &found) == 0 ? !(found.st_mode & S_IFMT) : errno != EBADF;
}

/* Makes the descriptor readable; if it is readable already, its poll reports it once more. If the
 * number belongs to a file of another kind by now, that file is left alone, unless a filter refuses
 * fstat(2). */
static inline void uring_wake(int fd) {
    const struct itimerspec at_once = {.it_value.tv_nsec = 1};

    if (uring_may_wake(fd) && eventfd_write(fd, 1) < 0 && errno == EINVAL)
        timerfd_settime(fd, 0, &at_once, NULL);
}

#endif
