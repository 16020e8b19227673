/* A kernel that never ends, in a program that holds memory. Exits 0 if the driver ends the kernel
 * with CUDA_ERROR_LAUNCH_TIMEOUT and keeps returning this error, as hardware with a watchdog does;
 * prints the time until then. */
#include "guest.h"

int main(void) {
    const CUresult TIMEOUT = 702;
    CUmodule module;
    CUfunction spin = setup("hang", &module);
    struct timespec t0, t1;
    CUdeviceptr memory;
    CU(cuMemAlloc_v2(&memory, 1 << 20));
    clock_gettime(CLOCK_MONOTONIC, &t0);
    CU(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CUresult result = cuCtxSynchronize();
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double s = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) / 1e9;
    if (result != TIMEOUT) {
        fprintf(stderr, "cuCtxSynchronize returned %d after %.3f s, not %d\n", result, s, TIMEOUT);
        return EXIT_WRONG;
    }
    size_t free_bytes, total;
    result = cuMemGetInfo_v2(&free_bytes, &total);
    if (result != TIMEOUT) {
        fprintf(stderr, "the error did not stick: cuMemGetInfo returned %d\n", result);
        return EXIT_WRONG;
    }
    printf("hang: ended by the watchdog after %.3f s\n", s);
    return 0;
}
