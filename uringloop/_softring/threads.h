/* The threads of a software ring. */
#ifndef URINGLOOP_SOFTRING_THREADS_H
#define URINGLOOP_SOFTRING_THREADS_H

#include "_softring/state.h"

int soft_open_pool(softring *s);
void soft_close_pool(softring *s);
bool soft_give(soft_pool *pool, soft_request *chain);
soft_work_states soft_stop_work(softring *s, soft_request *request);
soft_request *soft_done_chains(soft_pool *pool);
/* Returns whether a request may be waiting for another program, at a FIFO or a terminal. */
bool soft_waits_for_peer(const soft_request *request);
void soft_perform_chain(soft_request *request, bool here);
size_t soft_bytes_asked(const soft_request *request);

#endif
