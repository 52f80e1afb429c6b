/* The operations of files of a software ring, by threads. */
#ifndef URINGLOOP_SOFTRING_FILES_H
#define URINGLOOP_SOFTRING_FILES_H

#include "_softring/state.h"

int soft_open_pool(softring *s);
void soft_close_pool(softring *s);
void soft_submit_file(softring *s, const struct io_uring_sqe *sqe, soft_chain *chain);
void soft_end_chain(softring *s, soft_chain *chain);
void soft_cancel_chain(softring *s, soft_request *chain);
soft_work_states soft_stop_work(softring *s, soft_request *request);
void soft_take_done(softring *s);
bool soft_is_busy(soft_pool *pool);

#endif
