/* Device printf between two host lines; usage: print. */
#include "guest.h"

int main(void) {
    CUmodule module;
    CUfunction print = setup("print_threads", &module);
    printf("before\n");
    fflush(stdout);
    CU(cuLaunchKernel(print, 2, 1, 1, 4, 1, 1, 0, NULL, NULL, NULL));
    CU(cuCtxSynchronize());
    printf("after\n");
    return 0;
}
