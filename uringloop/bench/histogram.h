/* A log-linear histogram of nanoseconds, as HDR histograms have it.
 *
 * Every power of two is divided into 128 buckets of equal width, so that a bucket is never wider
 * than 1/128 of the values in it and its middle is at most 0.4 % away from any of them. Recording
 * is a shift and an increment: cheap enough for every request of the load generator.
 */
#ifndef URINGLOOP_BENCH_HISTOGRAM_H
#define URINGLOOP_BENCH_HISTOGRAM_H

#include <stdint.h>

/* 128 buckets per power of two: two significant digits and a half, below the noise of any run. */
#define HISTOGRAM_SUB_BITS 7
#define HISTOGRAM_SUB_COUNT (1u << HISTOGRAM_SUB_BITS)

/* 2^40 ns are 18 minutes, longer than any run; larger values land in the last bucket. */
#define HISTOGRAM_VALUE_MAX ((UINT64_C(1) << 40) - 1)
#define HISTOGRAM_BUCKETS ((40 - HISTOGRAM_SUB_BITS) * HISTOGRAM_SUB_COUNT + HISTOGRAM_SUB_COUNT)

static inline unsigned int histogram_index(uint64_t value)
{
    unsigned int shift;

    if (value < 2 * HISTOGRAM_SUB_COUNT)
        return (unsigned int)value;
    if (value > HISTOGRAM_VALUE_MAX)
        value = HISTOGRAM_VALUE_MAX;
    shift = 63u - (unsigned int)__builtin_clzll(value) - HISTOGRAM_SUB_BITS;
    return (shift << HISTOGRAM_SUB_BITS) + (unsigned int)(value >> shift);
}

/* The middle of a bucket: the value that percentiles report. */
static inline uint64_t histogram_value(unsigned int index)
{
    unsigned int shift;

    if (index < 2 * HISTOGRAM_SUB_COUNT)
        return index;
    shift = (index >> HISTOGRAM_SUB_BITS) - 1;
    return ((uint64_t)((index & (HISTOGRAM_SUB_COUNT - 1)) + HISTOGRAM_SUB_COUNT) << shift) +
           ((UINT64_C(1) << shift) >> 1);
}

#endif
