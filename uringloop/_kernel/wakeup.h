/* The write that ends a loop's sleep from another thread. */
#ifndef URINGLOOP_KERNEL_WAKEUP_H
#define URINGLOOP_KERNEL_WAKEUP_H

#include <errno.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

/* Returns whether the number may still be an eventfd's. Only anonymous files, of which eventfds are
 * one kind, have no type. Other code may have closed all descriptors and opened files since. */
static inline bool uring_may_be_eventfd(int fd) {
    struct stat found;

    /* Any error but EBADF comes from a filter that refuses the call: that says nothing. */
    return fstat(fd, &found) == 0 ? !(found.st_mode & S_IFMT) : errno != EBADF;
}

/* Adds one to an eventfd; writes to no other kind of file. */
static inline void uring_wake(int fd) {
    if (uring_may_be_eventfd(fd))
        eventfd_write(fd, 1);
}

#endif
