"""Declarations of atomics.h: fields that several threads use. The macros take any integer type."""

from libc.stdint cimport int64_t, uint64_t, uintptr_t


cdef extern from "_kernel/atomics.h" nogil:
    unsigned char load_byte "uring_load" (const unsigned char *field)
    int load_int "uring_load" (const int *field)
    unsigned int load_uint "uring_load" (const unsigned int *field)
    unsigned long load_long "uring_load" (const unsigned long *field)
    Py_ssize_t load_size "uring_load" (const Py_ssize_t *field)
    int64_t load_ns "uring_load" (const int64_t *field)
    double load_double "uring_load_double" (const double *field)
    uint64_t load_total "uring_load" (const uint64_t *field)
    uintptr_t load_pointer "uring_load" (const uintptr_t *field)

    void store_byte "uring_store" (unsigned char *field, unsigned char value)
    void store_int "uring_store" (int *field, int value)
    void store_long "uring_store" (unsigned long *field, unsigned long value)
    void store_size "uring_store" (Py_ssize_t *field, Py_ssize_t value)
    void store_double "uring_store_double" (double *field, double value)
    void store_ns "uring_store" (int64_t *field, int64_t value)
    void store_total "uring_store" (uint64_t *field, uint64_t value)

    # For the only thread that writes the field.
    void count_int "uring_count" (int *field, int more)
    void count_size "uring_count" (Py_ssize_t *field, Py_ssize_t more)
    void count_ns "uring_count" (int64_t *field, int64_t more)
    void count_total "uring_count" (uint64_t *field, uint64_t more)

    # For several writers.
    void adjust_size "uring_adjust" (Py_ssize_t *field, Py_ssize_t more)

    int load_int_acquire "uring_load_acquire" (const int *field)
    uintptr_t load_pointer_acquire "uring_load_acquire" (const uintptr_t *field)
    unsigned int load_uint_acquire "uring_load_acquire" (const unsigned int *field)
    void store_long_release "uring_store_release" (unsigned long *field, unsigned long value)
    void store_int_release "uring_store_release" (int *field, int value)

    void store_uint_release "uring_store_release" (unsigned int *field, unsigned int value)
    void add_bits "uring_set_bits" (unsigned int *field, unsigned int bits)
    void clear_bits "uring_clear_bits" (int *field, int bits)
    uintptr_t exchange_pointer "uring_exchange" (uintptr_t *field, uintptr_t value)
    bint replace_long "uring_replace" (
        unsigned long *field, unsigned long *expected, unsigned long value)
    bint replace_int "uring_replace" (int *field, int *expected, int value)
