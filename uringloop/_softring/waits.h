/* The descriptors that a software ring waits for. */
#ifndef URINGLOOP_SOFTRING_WAITS_H
#define URINGLOOP_SOFTRING_WAITS_H

#include "_softring/state.h"

int soft_open_waits(softring *s, const char **call);
void soft_close_waits(softring *s);
int soft_await(softring *s, soft_request *request, uint32_t events, soft_try *attempt);
void soft_finish(softring *s, soft_request *request, int res, unsigned flags);
void soft_leave_watch(softring *s, soft_request *request);
bool soft_drop_watch(softring *s, int fd);
void soft_end(softring *s, soft_request *request);
bool soft_fall_asleep(softring *s);
void soft_wake_up(softring *s);
int soft_join_sleep_epoll(softring *s, int sleep_epoll_fd, uint64_t data);
int soft_look(softring *s, int64_t timeout_ns);
int soft_watch_pool(softring *s, int fd);

#endif
