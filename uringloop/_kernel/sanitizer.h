/* What the thread sanitizer has to be told, because it sees the calls of libc and not the kernel's
 * work on a ring.
 */
#ifndef URINGLOOP_KERNEL_SANITIZER_H
#define URINGLOOP_KERNEL_SANITIZER_H

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)

/* The sanitizer does not see that a ring closes a descriptor. It would report a race between the
 * last use of that descriptor and another thread's close of the next file with the same number. */
#define URING_CLOSES_BY_LIBC 1

/* When liburing has unmapped a ring, the kernel may map the next one at the same address. These
 * macros say that whatever was done to the first happened before whatever is done to the second. */
void __tsan_acquire(void *address);
void __tsan_release(void *address);
__attribute__((weak)) char uring_memory;
#define URING_MAPPED() __tsan_acquire(&uring_memory)
#define URING_UNMAPS() __tsan_release(&uring_memory)

#else
#define URING_CLOSES_BY_LIBC 0
#define URING_MAPPED() ((void)0)
#define URING_UNMAPS() ((void)0)
#endif

#endif
