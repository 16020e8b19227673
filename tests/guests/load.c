/*
 * A program that loads the GPU in a known way; its kernels last what the device says (clocked.ptx).
 *
 *   load saturate KERNEL BATCH SECONDS          two batches always queued, so that there is always
 *                                               work waiting; prints when each batch was seen to end
 *   load requests KERNEL COUNT THINK_US SECONDS COUNT launches and a synchronisation, then a pause of
 *                                               THINK_US, half of it to one and a half; prints when each
 *                                               request began and how long it took
 *   load hang                                   a kernel that does not end; prints when it was
 *                                               launched, when the driver gave up, and with what
 *
 * Times are CLOCK_MONOTONIC nanoseconds, which processes of one machine share.
 */
#include "guest.h"

static const unsigned NON_BLOCKING = 1, NO_TIMING = 2;
/* More samples than any run of minutes takes. */
enum { MOST = 1 << 20 };
static long long samples[MOST][2];
static int taken;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void take(long long first, long long second) {
    if (taken == MOST) return;
    samples[taken][0] = first;
    samples[taken][1] = second;
    taken++;
}

static int print(int columns) {
    for (int i = 0; i < taken; i++) {
        if (columns == 2) printf("%lld %lld\n", samples[i][0], samples[i][1]);
        else printf("%lld\n", samples[i][0]);
    }
    return 0;
}

static void launch(CUfunction f, CUstream stream, int count) {
    for (int i = 0; i < count; i++) {
        CU(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    }
}

static int saturate(CUfunction f, CUstream stream, int batch, int seconds) {
    CUevent ended[2];
    for (int i = 0; i < 2; i++) {
        CU(cuEventCreate(&ended[i], NO_TIMING));
        launch(f, stream, batch);
        CU(cuEventRecord(ended[i], stream));
    }
    long long until = now() + seconds * 1000000000LL;
    for (int i = 0; now() < until; i = !i) {
        CU(cuEventSynchronize(ended[i]));
        take(now(), 0);
        launch(f, stream, batch);
        CU(cuEventRecord(ended[i], stream));
    }
    return print(1);
}

static int requests(CUfunction f, CUstream stream, int count, int think_us, int seconds) {
    uint32_t seed = (uint32_t)getpid();
    /* The first ones load, learn and settle. */
    for (int i = 0; i < 5; i++) {
        launch(f, stream, count);
        CU(cuStreamSynchronize(stream));
    }
    long long until = now() + seconds * 1000000000LL;
    for (long long begun; (begun = now()) < until;) {
        launch(f, stream, count);
        CU(cuStreamSynchronize(stream));
        take(begun, now() - begun);
        if (think_us > 0) usleep((useconds_t)(think_us * (0.5f + sample(&seed))));
    }
    return print(2);
}

static int hang(CUfunction f, CUstream stream) {
    long long begun = now();
    CU(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CUresult result = cuStreamSynchronize(stream);
    printf("%lld %lld %d\n", begun, now(), result);
    return 0;
}

int main(int argc, char **argv) {
    CUmodule module;
    CUstream stream;
    const char *what = argc > 1 ? argv[1] : "";
    CUfunction f = setup(argc > 2 ? argv[2] : "hang", &module);
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    if (!strcmp(what, "saturate") && argc == 5)
        return saturate(f, stream, atoi(argv[3]), atoi(argv[4]));
    if (!strcmp(what, "requests") && argc == 6)
        return requests(f, stream, atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    if (!strcmp(what, "hang") && argc == 2) return hang(f, stream);
    fprintf(stderr, "usage: load saturate KERNEL BATCH SECONDS |\n"
                    "       load requests KERNEL COUNT THINK_US SECONDS | load hang\n");
    return EXIT_USAGE;
}
