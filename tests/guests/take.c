/*
 * A program that takes memory and keeps it; usage:
 *
 *   take device BYTES    device memory, and gives it back and takes it again, so that it was really counted
 *   take again BYTES     the same, again and again until it is there or 60 s have passed; then it ends
 *
 * Prints "taken" and stays until it is killed; exits with 4 if there is not so much.
 */
#include "guest.h"

enum { EXIT_NO_MEMORY = 4 };

int main(int argc, char **argv) {
    const CUresult OUT_OF_MEMORY = 2;
    if (argc != 3 || (strcmp(argv[1], "device") && strcmp(argv[1], "again"))) {
        fprintf(stderr, "usage: take device|again BYTES\n");
        return EXIT_USAGE;
    }
    int again = !strcmp(argv[1], "again");
    size_t bytes = strtoull(argv[2], NULL, 10);
    CUmodule module;
    CUdeviceptr memory;
    setup("null_kernel", &module);
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
    if (!again) pause();
    return 0;
}
