/* The operations of files of a software ring. */
#ifndef URINGLOOP_SOFTRING_FILES_H
#define URINGLOOP_SOFTRING_FILES_H

#include "_softring/state.h"

void soft_submit_file(softring *s, const struct io_uring_sqe *sqe, soft_chain *chain);
void soft_end_chain(softring *s, soft_chain *chain);
void soft_cancel_chain(softring *s, soft_request *chain);
void soft_take_done(softring *s);
void soft_finish_chain(softring *s, soft_request *chain);
bool soft_may_wait(const struct io_uring_sqe *sqe);

#endif
