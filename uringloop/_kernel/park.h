/* How a thread waits until another one wakes it: a futex, which costs the waker nothing but one
 * system call and, unlike a mutex with a condition, has no state that a fork could catch locked. */
#ifndef URINGLOOP_KERNEL_PARK_H
#define URINGLOOP_KERNEL_PARK_H

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Waits until uring_unpark() has been called. A signal does not end the wait. */
static inline void uring_park(int *woken) {
    while (!__atomic_load_n(woken, __ATOMIC_ACQUIRE))
        syscall(SYS_futex, woken, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

/* The number may be gone from memory as soon as it is set: the second argument is only an address
 * by which the kernel finds a thread, and one that finds itself woken for nothing waits again. */
static inline void uring_unpark(int *woken) {
    __atomic_store_n(woken, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, woken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
