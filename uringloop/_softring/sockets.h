/* The operations of sockets, and polls, of a software ring. */
#ifndef URINGLOOP_SOFTRING_SOCKETS_H
#define URINGLOOP_SOFTRING_SOCKETS_H

#include "_softring/state.h"

bool soft_submit_socket(softring *s, const struct io_uring_sqe *sqe);

/* Make the system call of a receive or of a send; return its result, or -errno. */
ssize_t soft_receive_now(const soft_request *request, const struct io_uring_buf *buffer,
                         size_t size);
ssize_t soft_send_now(const struct io_uring_sqe *sqe, const struct msghdr *message, size_t sent);

#endif
