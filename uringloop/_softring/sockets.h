/* The operations of sockets, and polls, of a software ring. */
#ifndef URINGLOOP_SOFTRING_SOCKETS_H
#define URINGLOOP_SOFTRING_SOCKETS_H

#include "_softring/state.h"

bool soft_submit_socket(softring *s, const struct io_uring_sqe *sqe);

#endif
