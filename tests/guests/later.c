/* A kernel that spins on a flag; then (after a pause of argument 1, in ms) a thousand launches
 * behind the kernel; then the memset in another stream that sets the flag. On hardware, all of
 * this completes, whatever other programs use the GPU. */
#include "api.h"

enum { NON_BLOCKING = 1, LAUNCHES = 1000 };

int main(int argc, char **argv) {
    CUmodule module;
    CUfunction spin = setup("spin_flag", &module);
    CUdeviceptr flag;
    CUstream work, feed;
    CU(cuMemAlloc_v2(&flag, sizeof(unsigned)));
    CU(cuMemsetD32_v2(flag, 0, 1));
    CU(cuCtxSynchronize());
    CU(cuStreamCreate(&work, NON_BLOCKING));
    CU(cuStreamCreate(&feed, NON_BLOCKING));
    void *args[] = {&flag};
    CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, work, args, NULL));
    /* Sends the kernel, and checks that it has not ended. */
    CUresult running = cuStreamQuery(work);
    if (running != 600) {
        fprintf(stderr, "cuStreamQuery returned %d, not CUDA_ERROR_NOT_READY\n", running);
        return EXIT_WRONG;
    }
    usleep((unsigned)argument(argc, argv, 1, 0) * 1000);
    for (int i = 0; i < LAUNCHES; i++) {
        CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, work, args, NULL));
    }
    CU(cuMemsetD32Async(flag, 1, 1, feed));
    CU(cuStreamSynchronize(feed));
    CU(cuStreamSynchronize(work));
    unsigned seen = 0;
    CU(cuMemcpyDtoH_v2(&seen, flag, sizeof seen));
    if (seen != 1) {
        fprintf(stderr, "the flag is %u\n", seen);
        return EXIT_WRONG;
    }
    printf("later: %d kernels waited for the flag and ended\n", LAUNCHES + 1);
    return 0;
}
