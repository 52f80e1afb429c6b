/* The interface of io_uring: liburing's header, and what version 2.3 of it lacks.
 *
 * The missing constants are defined by number: the kernel that runs decides whether a feature
 * exists, not the header at build time.
 */
#ifndef URINGLOOP_IO_URING_H
#define URINGLOOP_IO_URING_H

#include <liburing.h>

/* The version of liburing, defined by setup.py: liburing's headers have it only since 2.4. */
#ifndef URINGLOOP_LIBURING
#define URINGLOOP_LIBURING "unknown"
#endif

/* Values newer than liburing 2.3, each with the first kernel that has it. */
#define URING_ENTER_NO_IOWAIT (1U << 7)      /* 6.15 */
#define URING_FEATURE_NO_IOWAIT (1U << 17)   /* 6.15 */
#define URING_FEATURE_MIN_TIMEOUT (1U << 15) /* 6.12 */
#define URING_OP_FTRUNCATE 55                /* 6.9 */
#define URING_OP_EPOLL_WAIT 59               /* 6.15 */

#endif
