/*
 * Launches an empty kernel as fast as possible; usage: flood [launches] [seconds at most].
 * Prints launches and seconds on one line: "flood: N launches in S s".
 */
#include "guest.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    int launches = argument(argc, argv, 1, 10000);
    int seconds = argument(argc, argv, 2, 60);
    CUmodule module;
    CUfunction null = setup("null_kernel", &module);
    double t0 = now();
    int done = 0;
    while (done < launches && now() - t0 < seconds) {
        for (int i = 0; i < 64 && done < launches; i++, done++) {
            CU(cuLaunchKernel(null, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        }
        /* A bounded queue, so that the time limit is noticed. */
        CU(cuCtxSynchronize());
    }
    printf("flood: %d launches in %.3f s\n", done, now() - t0);
    return 0;
}
