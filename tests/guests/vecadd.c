/* c = a + b over n floats, `rounds` times; usage: vecadd [n] [rounds]. */
#include "guest.h"

int main(int argc, char **argv) {
    int n = argument(argc, argv, 1, 1 << 20);
    int rounds = argument(argc, argv, 2, 3);
    CUmodule module;
    CUfunction add = setup("vecadd", &module);
    size_t bytes = (size_t)n * sizeof(float);
    float *a = allocate(bytes), *b = allocate(bytes), *c = allocate(bytes);
    CUdeviceptr da, db, dc;
    CU(cuMemAlloc_v2(&da, bytes));
    CU(cuMemAlloc_v2(&db, bytes));
    CU(cuMemAlloc_v2(&dc, bytes));
    uint32_t seed = 1;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            a[i] = sample(&seed);
            b[i] = sample(&seed);
        }
        CU(cuMemcpyHtoD_v2(da, a, bytes));
        CU(cuMemcpyHtoD_v2(db, b, bytes));
        void *params[] = {&da, &db, &dc, &n};
        CU(cuLaunchKernel(add, (n + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
        CU(cuMemcpyDtoH_v2(c, dc, bytes));
        for (int i = 0; i < n; i++) {
            if (c[i] != a[i] + b[i]) {
                fprintf(stderr, "c[%d] is %g, not %g\n", i, c[i], a[i] + b[i]);
                return EXIT_WRONG;
            }
        }
    }
    CU(cuMemFree_v2(da));
    CU(cuMemFree_v2(db));
    CU(cuMemFree_v2(dc));
    CU(cuModuleUnload(module));
    printf("vecadd: %d x %d floats right\n", rounds, n);
    return 0;
}
