/* The fuzzer's programs without a fuzzer: `alone SEEDS` runs as many, of random bytes.
 *
 * For tools that go with no fuzzer: the thread sanitizer, whose races would be those of the counters
 * of coverage, and valgrind. */
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
        /* Told first: whatever stops here, this program has done it. */
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
