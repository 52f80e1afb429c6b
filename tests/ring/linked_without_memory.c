/* Submits three linked requests and one that is not linked to a software ring, one of whose
 * allocations fails. Prints a line for each completion: user_data and result. Arguments: the path
 * of a folder that does not exist, and the number of the allocation that fails, counted from 0.
 * The linker passes the ring's calls of malloc() to __wrap_malloc(). */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "_kernel/files.h"
#include "_softring/softring.h"

static int refused = -1;

void *__real_malloc(size_t size);

void *__wrap_malloc(size_t size) { return refused-- == 0 ? NULL : __real_malloc(size); }

static void submit(struct io_uring *queues, const char *path, uint64_t user_data, bool link) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(queues);

    io_uring_prep_mkdirat(sqe, AT_FDCWD, path, 0700);
    sqe->user_data = user_data;
    if (link)
        uring_link(sqe);
}

int main(int argc, char **argv) {
    struct io_uring queues;
    int error = 0, left = 4;
    const char *call;
    softring *ring = softring_open(&queues, 8, 16, &call, &error);
    struct io_uring_cqe *cqe;
    char inner[4096];

    if (ring == NULL || argc != 3)
        return 1;
    softring_enable(ring);
    snprintf(inner, sizeof(inner), "%s/inner", argv[1]);
    submit(&queues, argv[1], 1, true);
    submit(&queues, inner, 2, true);
    submit(&queues, "/", 3, false);
    submit(&queues, "/", 4, false);
    io_uring_smp_store_release(queues.sq.ktail, queues.sq.sqe_tail);
    refused = atoi(argv[2]);
    while (left > 0) {
        softring_enter(ring, 1, IORING_ENTER_GETEVENTS, 1000000000);
        refused = -1;
        while (io_uring_peek_cqe(&queues, &cqe) == 0) {
            printf("%d %d\n", (int)cqe->user_data, cqe->res);
            io_uring_cqe_seen(&queues, cqe);
            left--;
        }
    }
    softring_close(ring);
    return 0;
}
