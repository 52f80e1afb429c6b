/* The completions of a software ring, and its requests in flight. */
#ifndef URINGLOOP_SOFTRING_QUEUE_H
#define URINGLOOP_SOFTRING_QUEUE_H

#include "_softring/state.h"

/* Posts a completion, or keeps it until the queue has room. */
void soft_post(softring *s, uint64_t user_data, int res, unsigned flags);
/* Moves kept completions to the queue, as far as it has room. */
void soft_flush_overflow(softring *s);
/* Returns how many completions are in the queue. */
unsigned soft_ready(const softring *s);
bool soft_has_room(const softring *s);
void soft_call_again(softring *s);
/* Posts the completion of an operation that ended while it was submitted, unless it has succeeded
 * and IOSQE_CQE_SKIP_SUCCESS is set. */
void soft_answer(softring *s, const struct io_uring_sqe *sqe, int res);

soft_request *soft_new_request(softring *s, const struct io_uring_sqe *sqe);
soft_request *soft_find(const softring *s, uint64_t user_data);
void soft_forget(softring *s, soft_request *request);
void soft_free_request(softring *s, soft_request *request);
void soft_walk(softring *s, void (*visit)(softring *s, soft_request *request));

#endif
