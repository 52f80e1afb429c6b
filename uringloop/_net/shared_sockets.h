/* What a process knows of a listening socket that others may accept from, too. */
#ifndef URINGLOOP_NET_SHARED_SOCKETS_H
#define URINGLOOP_NET_SHARED_SOCKETS_H

#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>

#include "_kernel/compat.h"

/* Takes a shared lock on the socket, by which other processes see that this one accepts from it.
 * The kernel releases it when the process ends, or closes any of its descriptors of the socket. */
static inline void uring_mark_shared(int fd) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};

    fcntl(fd, F_SETLK, &lock);
}

/* Takes the mark of this process off. */
static inline void uring_unmark_shared(int fd) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_len = 1};

    fcntl(fd, F_SETLK, &lock);
}

/* Returns whether another process has marked the socket (uring_mark_shared). Takes 0.3 us. */
static inline bool uring_is_shared(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};

    return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Returns whether waiting connections fill half of the backlog: the socket may soon refuse more. */
static inline bool uring_is_crowded(int fd) {
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    /* For a listening socket, unacked is the number of waiting connections, sacked the backlog. */
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           2 * info.tcpi_unacked >= info.tcpi_sacked && info.tcpi_unacked > 0;
}

#endif
