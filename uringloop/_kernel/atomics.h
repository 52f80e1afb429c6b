/* Fields that one thread writes and others read, and fields that several threads write.
 *
 * A count has one writer, so that adding to it needs no locked instruction; a reader in another
 * thread gets some value that the count has had. The macros take pointers to integers of any size.
 */
#ifndef URINGLOOP_ATOMICS_H
#define URINGLOOP_ATOMICS_H

#define uring_load(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define uring_store(p, value) __atomic_store_n(p, value, __ATOMIC_RELAXED)
#define uring_count(p, more) __atomic_store_n(p, *(p) + (more), __ATOMIC_RELAXED)

static inline double uring_load_double(const double *field) {
    double value;
    __atomic_load(field, &value, __ATOMIC_RELAXED);
    return value;
}

static inline void uring_store_double(double *field, double value) {
    __atomic_store(field, &value, __ATOMIC_RELAXED);
}

/* For fields with several writers. With a GIL the writers take turns. */
#ifdef Py_GIL_DISABLED
#define uring_adjust(p, more) __atomic_fetch_add(p, more, __ATOMIC_RELAXED)
#else
#define uring_adjust(p, more) uring_count(p, more)
#endif

/* A thread whose load finds the value of a store also sees what was written before that store. */
#define uring_load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define uring_store_release(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)

/* Whoever reads a value that was stored after the first fence, and then has the second one, also
 * sees what was written before the first. */
#define uring_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)
#define uring_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)

#define uring_add_release(p, more) __atomic_fetch_add(p, more, __ATOMIC_RELEASE)
#define uring_set_bits(p, bits) __atomic_fetch_or(p, bits, __ATOMIC_RELEASE)
#define uring_clear_bits(p, bits) __atomic_fetch_and(p, ~(bits), __ATOMIC_RELAXED)
#define uring_exchange(p, value) __atomic_exchange_n(p, value, __ATOMIC_ACQ_REL)
/* Stores *value* if the field holds what *expected* points to; otherwise reads the field into it. */
#define uring_replace(p, expected, value)                                                          \
    __atomic_compare_exchange_n(p, expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)

#endif
