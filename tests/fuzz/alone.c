/* The fuzz target without a fuzzer: `alone SEEDS` runs that many programs of random bytes.
 *
 * For tools that do not work with a fuzzer: the thread sanitizer, which would report races of the
 * coverage counters, and valgrind. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 600 };

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int count, char **arguments) {
    unsigned seeds = count > 1 ? (unsigned)atoi(arguments[1]) : 1000;
    uint8_t program[SIZE];
    uint64_t state;

    LLVMFuzzerInitialize(&count, &arguments);
    for (unsigned seed = 1; seed <= seeds; seed++) {
        /* Printed first: if the process stops, this program is the cause. */
        fprintf(stderr, "\rseed %u", seed);
        state = seed * 0x9E3779B97F4A7C15u;
        for (int i = 0; i < SIZE; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            program[i] = (uint8_t)(state >> 32);
        }
        LLVMFuzzerTestOneInput(program, SIZE);
    }
    fprintf(stderr, ": nothing found\n");
    return 0;
}
