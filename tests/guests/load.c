/*
 * A program that loads the GPU in a known way. The device decides how long its kernels take
 * (clocked.ptx).
 *
 *   load saturate KERNEL BATCH SECONDS
 *       keeps two batches queued, so that work always waits; prints the time at which the program
 *       saw the end of each batch
 *   load requests KERNEL COUNT THINK_US SECONDS
 *       COUNT launches and a synchronisation, then a pause of 0.5 to 1.5 THINK_US; prints the begin
 *       and the duration of each request
 *   load graphs KERNEL NODES SECONDS
 *       launches a graph of NODES consecutive kernels repeatedly, with four unfinished launches;
 *       prints the number of launches
 *   load copies BYTES SECONDS
 *       copies to the device without a wait, and reads the last copy back at the end; prints the
 *       number of copies
 *   load everywhere KERNEL BATCH SECONDS
 *       batches on every device at the same time; prints the number of devices and of batches
 *   load fill
 *       takes the device's memory as often as there is some, until the program is ended; prints the
 *       number of bytes when there is none left for the first time
 *   load hang
 *       a kernel that never ends; prints the time of the launch, the time at which the driver gave
 *       up, and the driver's result
 *
 * Times are CLOCK_MONOTONIC nanoseconds, which processes of one machine share.
 */
#include "api.h"

static const unsigned NON_BLOCKING = 1, NO_TIMING = 2;
/* More samples than a run of some minutes records. */
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
    /* The first launches load the module and teach the gate, so they are not measured. */
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

static int graphs(CUfunction f, CUstream stream, int nodes, int seconds) {
    enum { UNFINISHED = 4 };
    CUgraph graph;
    CUgraphExec exec;
    CUevent ended[UNFINISHED];
    CU(cuStreamBeginCapture_v2(stream, 0));
    launch(f, stream, nodes);
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < UNFINISHED; i++) CU(cuEventCreate(&ended[i], NO_TIMING));
    int launched = 0;
    for (long long until = now() + seconds * 1000000000LL; now() < until; launched++) {
        if (launched >= UNFINISHED) CU(cuEventSynchronize(ended[launched % UNFINISHED]));
        CU(cuGraphLaunch(exec, stream));
        CU(cuEventRecord(ended[launched % UNFINISHED], stream));
    }
    CU(cuStreamSynchronize(stream));
    printf("%d graphs\n", launched);
    return 0;
}

static int copies(CUstream stream, size_t bytes, int seconds) {
    unsigned char *from = allocate(bytes), *back = allocate(bytes);
    CUdeviceptr to;
    CU(cuMemAlloc_v2(&to, bytes));
    int sent = 0;
    for (long long until = now() + seconds * 1000000000LL; now() < until; sent++) {
        memset(from, sent, bytes);
        CU(cuMemcpyHtoDAsync_v2(to, from, bytes, stream));
    }
    CU(cuMemcpyDtoHAsync_v2(back, to, bytes, stream));
    CU(cuStreamSynchronize(stream));
    if (memcmp(from, back, bytes)) {
        fprintf(stderr, "the last of %d copies is not what was sent\n", sent);
        return EXIT_WRONG;
    }
    printf("%d copies\n", sent);
    return 0;
}

static int everywhere(const char *kernel, int batch, int seconds) {
    enum { MOST_DEVICES = 8 };
    CUcontext context[MOST_DEVICES];
    CUfunction f[MOST_DEVICES];
    int count, batches = 0;
    CU(cuDeviceGetCount(&count));
    if (count > MOST_DEVICES) count = MOST_DEVICES;
    for (int d = 0; d < count; d++) {
        CUdevice device;
        CUmodule module;
        CU(cuDeviceGet(&device, d));
        CU(cuDevicePrimaryCtxRetain(&context[d], device));
        CU(cuCtxSetCurrent(context[d]));
        CU(cuModuleLoadData(&module, guest_ptx));
        CU(cuModuleGetFunction(&f[d], module, kernel));
    }
    for (long long until = now() + seconds * 1000000000LL; now() < until; batches++) {
        for (int d = 0; d < count; d++) {
            CU(cuCtxSetCurrent(context[d]));
            launch(f[d], NULL, batch);
        }
        for (int d = 0; d < count; d++) {
            CU(cuCtxSetCurrent(context[d]));
            CU(cuCtxSynchronize());
        }
    }
    printf("%d devices, %d batches\n", count, batches);
    return 0;
}

static int hang(CUfunction f, CUstream stream) {
    long long begun = now();
    CU(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CUresult result = cuStreamSynchronize(stream);
    printf("%lld %lld %d\n", begun, now(), result);
    return 0;
}

static int fill(void) {
    unsigned long long taken_bytes = 0;
    size_t part = 64 << 20;
    for (int told = 0;;) {
        CUdeviceptr at;
        CUresult result = cuMemAlloc_v2(&at, part);
        if (result == 0) {
            taken_bytes += part;
        } else if (part > 1 << 12) {
            part /= 2;
        } else if (!told++) {
            printf("%llu\n", taken_bytes);
            fflush(stdout);
        } else {
            usleep(1000);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    CUmodule module;
    CUstream stream;
    const char *what = argc > 1 ? argv[1] : "";
    int named = argc > 2 && strcmp(what, "copies");
    CUfunction f = setup(named ? argv[2] : "hang", &module);
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    if (!strcmp(what, "saturate") && argc == 5)
        return saturate(f, stream, atoi(argv[3]), atoi(argv[4]));
    if (!strcmp(what, "requests") && argc == 6)
        return requests(f, stream, atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    if (!strcmp(what, "graphs") && argc == 5) return graphs(f, stream, atoi(argv[3]), atoi(argv[4]));
    if (!strcmp(what, "copies") && argc == 4)
        return copies(stream, strtoull(argv[2], NULL, 10), atoi(argv[3]));
    if (!strcmp(what, "everywhere") && argc == 5)
        return everywhere(argv[2], atoi(argv[3]), atoi(argv[4]));
    if (!strcmp(what, "fill") && argc == 2) return fill();
    if (!strcmp(what, "hang") && argc == 2) return hang(f, stream);
    fprintf(stderr, "usage: load saturate KERNEL BATCH SECONDS |\n"
                    "       load requests KERNEL COUNT THINK_US SECONDS |\n"
                    "       load graphs KERNEL NODES SECONDS | load copies BYTES SECONDS |\n"
                    "       load everywhere KERNEL BATCH SECONDS | load fill | load hang\n");
    return EXIT_USAGE;
}
