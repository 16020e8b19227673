/* Sum of n unsigned ints by warp shuffles, shared memory and one atomic operation per block;
 * usage: reduce [n] [rounds]. */
#include "guest.h"

int main(int argc, char **argv) {
    int n = argument(argc, argv, 1, 1 << 20);
    int rounds = argument(argc, argv, 2, 3);
    CUmodule module;
    CUfunction reduce = setup("reduce_u32", &module);
    size_t bytes = (size_t)n * sizeof(uint32_t);
    uint32_t *in = allocate(bytes);
    CUdeviceptr din, dout;
    CU(cuMemAlloc_v2(&din, bytes));
    CU(cuMemAlloc_v2(&dout, sizeof(uint32_t)));
    uint32_t seed = 3;
    for (int round = 0; round < rounds; round++) {
        uint32_t want = 0, got = 0;
        for (int i = 0; i < n; i++) {
            in[i] = (uint32_t)(sample(&seed) * 1000.0f);
            want += in[i];
        }
        CU(cuMemcpyHtoD_v2(din, in, bytes));
        CU(cuMemsetD32_v2(dout, 0, 1));
        void *params[] = {&din, &dout, &n};
        CU(cuLaunchKernel(reduce, (n + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
        CU(cuMemcpyDtoH_v2(&got, dout, sizeof got));
        if (got != want) {
            fprintf(stderr, "the sum is %u, not %u\n", got, want);
            return EXIT_WRONG;
        }
    }
    CU(cuMemFree_v2(din));
    CU(cuMemFree_v2(dout));
    CU(cuModuleUnload(module));
    printf("reduce: %d x %d summands right\n", rounds, n);
    return 0;
}
