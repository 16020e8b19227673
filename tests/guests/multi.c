/* A program on all devices that it sees: a vector addition on each, all in flight at the same time,
 * `rounds` times; results are checked. Prints the number of devices. Usage: multi [rounds]. */
#include "guest.h"

enum { N = 1 << 14, MOST = 8 };

static float a[N], b[N], c[N];

int main(int argc, char **argv) {
    int rounds = argument(argc, argv, 1, 3), count = 0, n = N;
    CUcontext context[MOST];
    CUfunction add[MOST];
    CUdeviceptr da[MOST], db[MOST], dc[MOST];
    CU(cuInit(0));
    CU(cuDeviceGetCount(&count));
    if (count < 1 || count > MOST) {
        fprintf(stderr, "%d devices\n", count);
        return EXIT_WRONG;
    }
    uint32_t seed = 1;
    for (int i = 0; i < N; i++) {
        a[i] = sample(&seed);
        b[i] = sample(&seed);
    }
    for (int d = 0; d < count; d++) {
        CUdevice device;
        CUmodule module;
        CU(cuDeviceGet(&device, d));
        CU(cuDevicePrimaryCtxRetain(&context[d], device));
        CU(cuCtxSetCurrent(context[d]));
        CU(cuModuleLoadData(&module, guest_ptx));
        CU(cuModuleGetFunction(&add[d], module, "vecadd"));
        CU(cuMemAlloc_v2(&da[d], sizeof a));
        CU(cuMemAlloc_v2(&db[d], sizeof b));
        CU(cuMemAlloc_v2(&dc[d], sizeof c));
        CU(cuMemcpyHtoD_v2(da[d], a, sizeof a));
        CU(cuMemcpyHtoD_v2(db[d], b, sizeof b));
    }
    for (int round = 0; round < rounds; round++) {
        for (int d = 0; d < count; d++) {
            void *params[] = {&da[d], &db[d], &dc[d], &n};
            CU(cuCtxSetCurrent(context[d]));
            CU(cuMemsetD8_v2(dc[d], 0, sizeof c));
            CU(cuLaunchKernel(add[d], N / 256, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
        }
        for (int d = 0; d < count; d++) {
            CU(cuCtxSetCurrent(context[d]));
            CU(cuMemcpyDtoH_v2(c, dc[d], sizeof c));
            for (int i = 0; i < N; i++) {
                if (c[i] != a[i] + b[i]) {
                    fprintf(stderr, "device %d: c[%d] is %g, not %g\n", d, i, c[i], a[i] + b[i]);
                    return EXIT_WRONG;
                }
            }
        }
    }
    for (int d = 0; d < count; d++) {
        CU(cuCtxSetCurrent(context[d]));
        CU(cuMemFree_v2(da[d]));
        CU(cuMemFree_v2(db[d]));
        CU(cuMemFree_v2(dc[d]));
    }
    printf("multi: %d devices right\n", count);
    return 0;
}
