/*
 * Device printf; usage: print, or print BYTES.
 * Without an argument: a kernel prints between two lines of the program, which does not flush its
 * standard output. With BYTES: a kernel prints more than fits into a printf buffer of BYTES.
 */
#include "api.h"

enum { PRINTF_FIFO_SIZE = 1, BLOCKS = 128 };

int main(int argc, char **argv) {
    CUmodule module;
    CUfunction print = setup("print_threads", &module);
    int flood = argc > 1;
    if (flood) CU(cuCtxSetLimit(PRINTF_FIFO_SIZE, (size_t)atol(argv[1])));
    printf("before\n");
    CU(cuLaunchKernel(print, flood ? BLOCKS : 2, 1, 1, flood ? 256 : 4, 1, 1, 0, NULL, NULL, NULL));
    CU(cuCtxSynchronize());
    printf("after\n");
    return 0;
}
