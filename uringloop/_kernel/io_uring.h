/* io_uring as the kernel has it: liburing's header, and what version 2.3 of it lacks.
 *
 * That is here by number, because a feature belongs to the kernel that runs, not to the header that
 * was there at build time.
 */
#ifndef URINGLOOP_IO_URING_H
#define URINGLOOP_IO_URING_H

#include <liburing.h>

/* The version of liburing, which setup.py knows: its headers tell since 2.4 only. */
#ifndef URINGLOOP_LIBURING
#define URINGLOOP_LIBURING "unknown"
#endif

/* Values newer than liburing 2.3; the kernel that brought each one is named beside it. */
#define URING_ENTER_NO_IOWAIT (1U << 7)     /* 6.15 */
#define URING_FEATURE_NO_IOWAIT (1U << 17)  /* 6.15 */
#define URING_FEATURE_MIN_TIMEOUT (1U << 15) /* 6.12 */
#define URING_OP_FTRUNCATE 55               /* 6.9 */
#define URING_OP_EPOLL_WAIT 59              /* 6.15 */

#endif
