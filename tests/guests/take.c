/*
 * A program that takes memory and keeps it; usage:
 *
 *   take device BYTES    device memory; frees and allocates it again, to check that it is counted
 *   take again BYTES     the same, repeatedly until it succeeds or 60 s have passed; then it ends
 *   take free 0          all memory that cuMemGetInfo reports as free; prints the size, then ends
 *
 * Prints "taken" and stays until it is killed; exits with 4 if there is not enough memory.
 */
#include "guest.h"

enum { EXIT_NO_MEMORY = 4 };

int main(int argc, char **argv) {
    const CUresult OUT_OF_MEMORY = 2;
    if (argc != 3 || (strcmp(argv[1], "device") && strcmp(argv[1], "again") && strcmp(argv[1], "free"))) {
        fprintf(stderr, "usage: take device|again|free BYTES\n");
        return EXIT_USAGE;
    }
    int again = !strcmp(argv[1], "again"), all = !strcmp(argv[1], "free");
    size_t bytes = strtoull(argv[2], NULL, 10), total;
    CUmodule module;
    CUdeviceptr memory;
    setup("null_kernel", &module);
    if (all) {
        CU(cuMemGetInfo_v2(&bytes, &total));
        /* For large blocks, the driver allocates whole units of 2 MiB. */
        bytes -= bytes % (2 << 20);
        printf("%zu of %zu bytes\n", bytes, total);
        fflush(stdout);
    }
    CUresult result = cuMemAlloc_v2(&memory, bytes);
    for (int tries = 0; again && result == OUT_OF_MEMORY && tries < 3000; tries++) {
        usleep(20000);
        result = cuMemAlloc_v2(&memory, bytes);
    }
    if (result == OUT_OF_MEMORY) {
        printf("no memory\n");
        return EXIT_NO_MEMORY;
    }
    CU(result);
    CU(cuMemFree_v2(memory));
    CU(cuMemAlloc_v2(&memory, bytes));
    CU(cuMemsetD8_v2(memory, 1, bytes));
    CU(cuCtxSynchronize());
    printf("taken\n");
    fflush(stdout);
    if (!again && !all) pause();
    return 0;
}
