/* C = A B, n x n, 16 x 16 tiles in shared memory; usage: matmul [n (multiple of 16)] [rounds]. */
#include "guest.h"

int main(int argc, char **argv) {
    int n = argument(argc, argv, 1, 128);
    int rounds = argument(argc, argv, 2, 2);
    if (n <= 0 || n % 16) {
        fprintf(stderr, "n must be a multiple of 16\n");
        return EXIT_USAGE;
    }
    CUmodule module;
    CUfunction matmul = setup("matmul", &module);
    size_t count = (size_t)n * n, bytes = count * sizeof(float);
    float *a = allocate(bytes), *b = allocate(bytes), *c = allocate(bytes);
    CUdeviceptr da, db, dc;
    CU(cuMemAlloc_v2(&da, bytes));
    CU(cuMemAlloc_v2(&db, bytes));
    CU(cuMemAlloc_v2(&dc, bytes));
    uint32_t seed = 2;
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < count; i++) {
            a[i] = sample(&seed) - 0.5f;
            b[i] = sample(&seed) - 0.5f;
        }
        CU(cuMemcpyHtoD_v2(da, a, bytes));
        CU(cuMemcpyHtoD_v2(db, b, bytes));
        void *params[] = {&da, &db, &dc, &n};
        CU(cuLaunchKernel(matmul, n / 16, n / 16, 1, 16, 16, 1, 0, NULL, params, NULL));
        CU(cuCtxSynchronize());
        CU(cuMemcpyDtoH_v2(c, dc, bytes));
        for (int row = 0; row < n; row++) {
            for (int col = 0; col < n; col++) {
                double want = 0;
                for (int k = 0; k < n; k++) want += (double)a[row * n + k] * b[k * n + col];
                if (fabs(c[row * n + col] - want) > 1e-3) {
                    fprintf(stderr, "C[%d][%d] is %g, not %g\n", row, col, c[row * n + col], want);
                    return EXIT_WRONG;
                }
            }
        }
    }
    CU(cuMemFree_v2(da));
    CU(cuMemFree_v2(db));
    CU(cuMemFree_v2(dc));
    CU(cuModuleUnload(module));
    printf("matmul: %d x %d^3 right\n", rounds, n);
    return 0;
}
