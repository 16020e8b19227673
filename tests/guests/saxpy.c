/*
 * y = a x + y on two streams with pinned memory: upload on one, compute on the other, ordered by
 * events; usage: saxpy [n] [rounds].
 */
#include "guest.h"

int main(int argc, char **argv) {
    int n = argument(argc, argv, 1, 1 << 19);
    int rounds = argument(argc, argv, 2, 3);
    const unsigned NON_BLOCKING = 1;
    CUmodule module;
    CUfunction saxpy = setup("saxpy", &module);
    size_t bytes = (size_t)n * sizeof(float);
    float *x, *y, *out, a = 2.5f;
    CU(cuMemHostAlloc((void **)&x, bytes, 0));
    CU(cuMemHostAlloc((void **)&y, bytes, 0));
    CU(cuMemHostAlloc((void **)&out, bytes, 0));
    CUdeviceptr dx, dy;
    CU(cuMemAlloc_v2(&dx, bytes));
    CU(cuMemAlloc_v2(&dy, bytes));
    CUstream upload, compute;
    CUevent uploaded, begin, end;
    CU(cuStreamCreate(&upload, NON_BLOCKING));
    CU(cuStreamCreate(&compute, NON_BLOCKING));
    CU(cuEventCreate(&uploaded, 0));
    CU(cuEventCreate(&begin, 0));
    CU(cuEventCreate(&end, 0));
    uint32_t seed = 4;
    float total_ms = 0;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            x[i] = sample(&seed);
            y[i] = sample(&seed);
        }
        CU(cuMemcpyHtoDAsync_v2(dx, x, bytes, upload));
        CU(cuMemcpyHtoDAsync_v2(dy, y, bytes, upload));
        CU(cuEventRecord(uploaded, upload));
        CU(cuStreamWaitEvent(compute, uploaded, 0));
        CU(cuEventRecord(begin, compute));
        void *params[] = {&a, &dx, &dy, &n};
        CU(cuLaunchKernel(saxpy, (n + 255) / 256, 1, 1, 256, 1, 1, 0, compute, params, NULL));
        CU(cuEventRecord(end, compute));
        CU(cuMemcpyDtoHAsync_v2(out, dy, bytes, compute));
        CU(cuStreamSynchronize(compute));
        if (cuEventQuery(end) != 0) {
            fprintf(stderr, "the stream is done and its event is not\n");
            return EXIT_WRONG;
        }
        float ms = -1;
        CU(cuEventElapsedTime(&ms, begin, end));
        if (!(ms >= 0)) {
            fprintf(stderr, "%g ms between the events\n", ms);
            return EXIT_WRONG;
        }
        total_ms += ms;
        for (int i = 0; i < n; i++) {
            float want = fmaf(a, x[i], y[i]);
            if (fabsf(out[i] - want) > 1e-6f) {
                fprintf(stderr, "y[%d] is %.9g, not %.9g\n", i, out[i], want);
                return EXIT_WRONG;
            }
        }
    }
    CU(cuEventDestroy_v2(uploaded));
    CU(cuEventDestroy_v2(begin));
    CU(cuEventDestroy_v2(end));
    CU(cuStreamDestroy_v2(upload));
    CU(cuStreamDestroy_v2(compute));
    CU(cuMemFree_v2(dx));
    CU(cuMemFree_v2(dy));
    CU(cuMemFreeHost(x));
    CU(cuMemFreeHost(y));
    CU(cuMemFreeHost(out));
    printf("saxpy: %d x %d floats right, %.3f ms of device time\n", rounds, n, total_ms);
    return 0;
}
