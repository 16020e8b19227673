/* One part of the driver API per run, as a program uses it; usage: surface NAME.
 * Exits 0 if all results are right. Runs on any driver. */
#define _GNU_SOURCE
#include "boxes.h"
#include "check.h"
#include "graph.h"

#include <pthread.h>

enum { HOST = 1, DEVICE = 2 };

typedef struct {
    int id;
    char pad[4];
    int value[16];
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    Attribute *attributes;
    unsigned count;
} Config;

static const unsigned NON_BLOCKING = 1;
static CUmodule module;
static CUcontext ctx;

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, INVALID_CLUSTER_SIZE = 912 };

static CUfunction start(const char *kernel) {
    CUfunction f = setup(kernel, &module);
    CU(cuCtxGetCurrent(&ctx));
    return f;
}

/* c = a + b in a stream. */
static void add(CUfunction f, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, unsigned n,
                CUstream stream) {
    void *params[] = {&a, &b, &c, &n};
    CU(cuLaunchKernel(f, (n + 127) / 128, 1, 1, 128, 1, 1, 0, stream, params, NULL));
}

enum { N = 1000 };

static int check_sums(CUdeviceptr c, float expected) {
    float sums[N];
    CU(cuMemcpyDtoH_v2(sums, c, sizeof sums));
    for (int i = 0; i < N; i++) EXPECT(sums[i] == expected);
    return 0;
}

static CUdeviceptr filled(float value) {
    CUdeviceptr p;
    unsigned bits;
    memcpy(&bits, &value, 4);
    CU(cuMemAlloc_v2(&p, N * 4));
    CU(cuMemsetD32_v2(p, bits, N));
    return p;
}

static int pools(void) {
    CUfunction f = start("vecadd");
    CUmemoryPool pool, current;
    CUstream stream;
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    CU(cuDeviceGetDefaultMemPool(&pool, 0));
    CU(cuDeviceGetMemPool(&current, 0));
    EXPECT(pool == current && pool && (long long)pool > 0);
    FAILS(INVALID_VALUE, cuMemPoolDestroy(pool));
    unsigned long long threshold = 1 << 20, used = 1, high = 0, got = 0;
    int reuse = 0;
    CU(cuMemPoolSetAttribute(pool, 4, &threshold));
    CU(cuMemPoolGetAttribute(pool, 4, &got));
    EXPECT(got == threshold);
    CU(cuMemPoolSetAttribute(pool, 1, &reuse));
    reuse = 7;
    CU(cuMemPoolGetAttribute(pool, 1, &reuse));
    EXPECT(reuse == 0);
    CUdeviceptr a = filled(1), b = filled(2);
    CU(cuCtxSynchronize());
    for (int round = 0; round < 50; round++) {
        CUdeviceptr c, d;
        CU(cuMemAllocAsync(&c, N * 4, stream));
        CU(cuMemAllocFromPoolAsync(&d, N * 4, pool, stream));
        EXPECT(c != d);
        add(f, a, b, c, N, stream);
        add(f, c, b, d, N, stream);
        CU(cuMemFreeAsync(c, stream));
        CU(cuStreamSynchronize(stream));
        int bad = check_sums(d, 5);
        if (bad) return bad;
        CU(cuMemFreeAsync(d, stream));
        FAILS(INVALID_VALUE, cuMemFreeAsync(c, stream));
    }
    CU(cuStreamSynchronize(stream));
    CU(cuMemPoolGetAttribute(pool, 7, &used));
    CU(cuMemPoolGetAttribute(pool, 8, &high));
    EXPECT(used == 0 && high >= 2 * N * 4);
    CUdeviceptr kept;
    CU(cuMemAllocAsync(&kept, 64, stream));
    CUmemoryPool of = NULL;
    CU(cuPointerGetAttribute(&of, 17, kept));
    EXPECT(of == pool);
    CU(cuMemFree_v2(kept));
    CU(cuMemAllocAsync(&kept, 0, stream));
    EXPECT(kept == 0);
    FAILS(OUT_OF_MEMORY, cuMemAllocAsync(&kept, (size_t)1 << 60, stream));
    puts("pools: right");
    return 0;
}

static int library(void) {
    CUfunction f = start("vecadd");
    CUlibrary lib;
    CUkernel kernel, again;
    CU(cuLibraryLoadData(&lib, guest_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, lib, "vecadd"));
    CU(cuLibraryGetKernel(&again, lib, "vecadd"));
    EXPECT(kernel == again && (long long)kernel > 0);
    FAILS(NOT_FOUND, cuLibraryGetKernel(&again, lib, "nothing"));
    unsigned count = 0;
    CU(cuLibraryGetKernelCount(&count, lib));
    EXPECT(count == 1);
    const char *name = NULL;
    CU(cuKernelGetName(&name, kernel));
    EXPECT(!strcmp(name, "vecadd"));
    size_t offset = 99, size = 99;
    CU(cuKernelGetParamInfo(kernel, 3, &offset, &size));
    EXPECT(offset == 24 && size == 4);
    FAILS(INVALID_VALUE, cuKernelGetParamInfo(kernel, 4, &offset, &size));
    int threads = 0, shared = 0;
    CU(cuKernelGetAttribute(&threads, 0, kernel, 0));
    EXPECT(threads >= 128);
    CU(cuKernelSetAttribute(8, 16384, kernel, 0));
    CU(cuKernelGetAttribute(&shared, 8, kernel, 0));
    EXPECT(shared == 16384);
    CUdeviceptr a = filled(1), b = filled(2), c = filled(0);
    /* A kernel is accepted wherever a function is. */
    add((CUfunction)kernel, a, b, c, N, NULL);
    int bad = check_sums(c, 3);
    if (bad) return bad;
    CUfunction own;
    CU(cuKernelGetFunction(&own, kernel));
    add(own, c, b, c, N, NULL);
    bad = check_sums(c, 5);
    if (bad) return bad;
    Config config = {{8, 1, 1}, {128, 1, 1}, 0, NULL, NULL, 0};
    unsigned n = N;
    void *params[] = {&a, &b, &c, &n};
    CU(cuLaunchKernelEx(&config, (CUfunction)kernel, params, NULL));
    bad = check_sums(c, 3);
    if (bad) return bad;
    Attribute cluster = {4, {0}, {2, 1, 1}}, serial = {6, {0}, {1}};
    config.attributes = &serial;
    config.count = 1;
    CU(cuLaunchKernelEx(&config, (CUfunction)kernel, params, NULL));
    config.attributes = &cluster;
    /* A device without clusters returns its own error; the guest's library returns that clusters
     * are not served. */
    CUresult refused = cuLaunchKernelEx(&config, (CUfunction)kernel, params, NULL);
    EXPECT(refused == NOT_SUPPORTED || refused == INVALID_CLUSTER_SIZE);
    int blocks = 0;
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (CUfunction)kernel, 128, 0));
    EXPECT(blocks > 0);
    size_t room = 0;
    CU(cuOccupancyAvailableDynamicSMemPerBlock(&room, f, 1, 128));
    EXPECT(room > 0);
    /* The library's module is an ordinary module. */
    CUmodule inside;
    CUfunction list[4];
    CU(cuLibraryGetModule(&inside, lib));
    CU(cuModuleGetFunctionCount(&count, inside));
    EXPECT(count == 1);
    CU(cuModuleEnumerateFunctions(list, 4, inside));
    CU(cuFuncGetName(&name, list[0]));
    EXPECT(!strcmp(name, "vecadd"));
    CU(cuLibraryUnload(lib));
    FAILS(INVALID_HANDLE, cuLibraryGetKernel(&kernel, lib, "vecadd"));
    FAILS(INVALID_HANDLE, cuLaunchKernel((CUfunction)again, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    puts("library: right");
    return 0;
}

static int linking(void) {
    start("vecadd");
    CUlinkState state;
    char info[512] = "", error[512] = "";
    int options[] = {3, 4, 5, 6};
    void *values[] = {info, (void *)sizeof info, error, (void *)sizeof error};
    CU(cuLinkCreate_v2(4, options, values, &state));
    CU(cuLinkAddData_v2(state, 1, (void *)guest_ptx, strlen(guest_ptx) + 1, "a.ptx", 0, NULL, NULL));
    void *image = NULL;
    size_t size = 0;
    CU(cuLinkComplete(state, &image, &size));
    EXPECT(image && size);
    CUmodule linked;
    CUfunction f;
    CU(cuModuleLoadData(&linked, image));
    CU(cuLinkDestroy(state));
    CU(cuModuleGetFunction(&f, linked, "vecadd"));
    CUdeviceptr a = filled(1), b = filled(2), c = filled(0);
    add(f, a, b, c, N, NULL);
    int bad = check_sums(c, 3);
    if (bad) return bad;
    FAILS(INVALID_HANDLE, cuLinkDestroy(state));
    puts("linking: right");
    return 0;
}

/* Rows and boxes from pitched host memory to pitched device memory, within it, and back. */
static int areas(void) {
    start("vecadd");
    enum { W = 100, H = 37, D = 3, HP = 120, DP = 256 };
    static unsigned char host[D][H + 2][HP], back[D][H + 2][HP];
    for (size_t i = 0; i < sizeof host; i++) ((unsigned char *)host)[i] = (unsigned char)(i * 7);
    memset(back, 0xcc, sizeof back);
    CUdeviceptr one, two;
    CUstream stream;
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    CU(cuMemAlloc_v2(&one, DP * H * D));
    CU(cuMemAlloc_v2(&two, DP * H * D));
    Box to = {0};
    to.src.kind = HOST, to.src.host = host, to.src.pitch = HP, to.src.height = H + 2;
    to.src.x = 5, to.src.y = 1;
    to.dst.kind = DEVICE, to.dst.device = one, to.dst.pitch = DP, to.dst.height = H;
    to.width = W, to.height = H, to.depth = D;
    CU(cuMemcpy3D_v2(&to));
    Rect within = {0};
    within.src.kind = within.dst.kind = DEVICE;
    within.src.device = one, within.dst.device = two;
    within.src.pitch = within.dst.pitch = DP;
    within.width = W, within.height = H * D;
    CU(cuMemcpy2DAsync_v2(&within, stream));
    CU(cuStreamSynchronize(stream));
    Box from = {0};
    from.src.kind = DEVICE, from.src.device = two, from.src.pitch = DP, from.src.height = H;
    from.dst.kind = HOST, from.dst.host = back, from.dst.pitch = HP, from.dst.height = H + 2;
    from.dst.x = 5, from.dst.y = 1;
    from.width = W, from.height = H, from.depth = D;
    CU(cuMemcpy3D_v2(&from));
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H + 2; y++)
            for (int x = 0; x < HP; x++) {
                int inside = y >= 1 && y < H + 1 && x >= 5 && x < 5 + W;
                EXPECT(back[z][y][x] == (inside ? host[z][y][x] : 0xcc));
            }
    within.height = H * D + 1;
    FAILS(INVALID_VALUE, cuMemcpy2D_v2(&within));
    within.height = 2, within.src.pitch = W - 1;
    FAILS(INVALID_VALUE, cuMemcpy2D_v2(&within));
    within.src.pitch = (size_t)1 << 63;
    FAILS(INVALID_VALUE, cuMemcpy2D_v2(&within));
    puts("areas: right");
    return 0;
}

/* Host functions: in stream order, on a separate thread, without CUDA. */
static volatile int step, release_it, refused;
static CUstream seen_by_host;
static CUcontext mine;
static pthread_t host_thread;
static void first(void *data) {
    host_thread = pthread_self();
    refused = cuStreamQuery(seen_by_host);
    /* With a context, so that only the host function is a reason to refuse the calls. */
    if (cuCtxSetCurrent(mine) || cuStreamSynchronize(seen_by_host) != NOT_PERMITTED ||
        cuCtxSynchronize() != NOT_PERMITTED) {
        refused = 0;
    }
    while (!release_it) usleep(200);
    *(volatile int *)data = ++step;
}
static void later(CUstream stream, CUresult status, void *data) {
    (void)stream;
    *(volatile int *)data = status == 0 ? ++step : -1;
}

static int host_functions(void) {
    CUfunction f = start("vecadd");
    CUdeviceptr a = filled(1), b = filled(2), c = filled(0), d = filled(0);
    CUstream held, other;
    volatile int one = 0, two = 0;
    CU(cuCtxSynchronize());
    CU(cuStreamCreate(&held, NON_BLOCKING));
    CU(cuStreamCreate(&other, NON_BLOCKING));
    seen_by_host = other;
    CU(cuCtxGetCurrent(&mine));
    CU(cuLaunchHostFunc(held, first, (void *)&one));
    add(f, a, b, c, N, held);
    CU(cuStreamAddCallback(held, later, (void *)&two, 0));
    CU(cuLaunchHostFunc(held, first, (void *)&one));
    /* The stream waits; another stream does not. */
    add(f, a, b, d, N, other);
    CU(cuStreamSynchronize(other));
    FAILS(NOT_READY, cuStreamQuery(held));
    EXPECT(step == 0);
    release_it = 1;
    CU(cuStreamSynchronize(held));
    EXPECT(two == 2 && one == 3 && step == 3);
    EXPECT(refused == NOT_PERMITTED);
    EXPECT(!pthread_equal(host_thread, pthread_self()));
    int bad = check_sums(c, 3);
    if (bad) return bad;
    FAILS(INVALID_VALUE, cuLaunchHostFunc(held, NULL, NULL));
    puts("host_functions: right");
    return 0;
}

/* A host function that never returns blocks only its own stream. */
static void never(void *unused) {
    (void)unused;
    for (;;) sleep(1000);
}
static void count_up(void *count) { ++*(int *)count; }
static int host_never(void) {
    CUfunction f = start("vecadd");
    CUdeviceptr a = filled(1), b = filled(2), c = filled(0);
    CU(cuCtxSynchronize());
    CUstream held, other;
    CU(cuStreamCreate(&held, NON_BLOCKING));
    CU(cuStreamCreate(&other, NON_BLOCKING));
    CU(cuLaunchHostFunc(held, never, NULL));
    add(f, a, b, c, N, held);
    int done = 0;
    for (int i = 0; i < 20; i++) {
        add(f, a, b, c, N, other);
        CU(cuLaunchHostFunc(other, count_up, &done));
        CU(cuStreamSynchronize(other));
    }
    EXPECT(done == 20);
    FAILS(NOT_READY, cuStreamQuery(held));
    puts("host_never: the other stream went on");
    fflush(stdout);
    _exit(0);
}

/* 8 threads, each with 8 streams whose chains of additions depend on each other by events. */
enum { THREADS = 8, STREAMS = 8, STEPS = 25 };
static CUfunction shared_function;
static void *chains(void *number) {
    CU(cuCtxSetCurrent(ctx));
    CUstream streams[STREAMS];
    CUevent events[STREAMS];
    CUdeviceptr sum = filled(0), ones = filled((float)(1 + (long)number));
    CU(cuCtxSynchronize());
    for (int i = 0; i < STREAMS; i++) {
        CU(cuStreamCreate(&streams[i], i % 2 ? NON_BLOCKING : 0));
        CU(cuEventCreate(&events[i], 2));
    }
    for (int i = 0; i < STEPS * STREAMS; i++) {
        int now = i % STREAMS, before = (i + STREAMS - 1) % STREAMS;
        if (i) CU(cuStreamWaitEvent(streams[now], events[before], 0));
        add(shared_function, sum, ones, sum, N, streams[now]);
        CU(cuEventRecord(events[now], streams[now]));
    }
    float *result = allocate(N * 4);
    CU(cuStreamSynchronize(streams[STREAMS - 1]));
    CU(cuMemcpyDtoHAsync_v2(result, sum, N * 4, streams[0]));
    CU(cuStreamSynchronize(streams[0]));
    float expected = (float)(STEPS * STREAMS) * (float)(1 + (long)number);
    for (int i = 0; i < N; i++) {
        if (result[i] != expected) {
            fprintf(stderr, "thread %ld: %f instead of %f\n", (long)number, result[i], expected);
            exit(EXIT_WRONG);
        }
    }
    return NULL;
}
static int threads(void) {
    shared_function = start("vecadd");
    pthread_t all[THREADS];
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&all[i], NULL, chains, (void *)i)) return EXIT_USAGE;
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    puts("threads: right");
    return 0;
}

/* Words that streams write and wait for, if the device supports them. */
static int words(void) {
    start("vecadd");
    CUdeviceptr word;
    CUstream writes, waits;
    CU(cuMemAlloc_v2(&word, 64));
    CU(cuMemsetD32_v2(word, 0, 16));
    CU(cuCtxSynchronize());
    CU(cuStreamCreate(&writes, NON_BLOCKING));
    CU(cuStreamCreate(&waits, NON_BLOCKING));
    CUresult able = cuStreamWaitValue32_v2(waits, word, 7, 0);
    if (able == NOT_SUPPORTED) {
        puts("words: not supported by this device");
        return 0;
    }
    CU(able);
    CU(cuMemsetD32Async(word + 4, 5, 1, waits));
    CU(cuStreamWriteValue32_v2(writes, word, 7, 0));
    CU(cuStreamSynchronize(waits));
    unsigned got[2];
    CU(cuMemcpyDtoH_v2(got, word, 8));
    EXPECT(got[0] == 7 && got[1] == 5);
    FAILS(INVALID_VALUE, cuStreamWriteValue32_v2(writes, word + 1, 7, 0));
    FAILS(INVALID_VALUE, cuStreamWriteValue32_v2(writes, word + 64, 7, 0));
    puts("words: right");
    return 0;
}

/* Capture: two streams joined by events, copies from and to the host, a host function. */
static void count_call(void *count) { ++*(int *)count; }
static int capture(void) {
    CUfunction f = start("vecadd");
    CUdeviceptr a = filled(0), b = filled(0), c = filled(0), d = filled(0);
    CUstream one, two;
    CUevent fork, join;
    static float in[N];
    int status = -1;
    CU(cuCtxSynchronize());
    CU(cuStreamCreate(&one, NON_BLOCKING));
    CU(cuStreamCreate(&two, NON_BLOCKING));
    CU(cuEventCreate(&fork, 2));
    CU(cuEventCreate(&join, 2));
    CU(cuStreamIsCapturing(one, &status));
    EXPECT(status == 0);
    CU(cuStreamBeginCapture_v2(one, 0));
    FAILS(401, cuStreamBeginCapture_v2(one, 0));
    CU(cuMemcpyHtoDAsync_v2(a, in, sizeof in, one));
    CU(cuEventRecord(fork, one));
    CU(cuStreamWaitEvent(two, fork, 0));
    CU(cuStreamIsCapturing(two, &status));
    EXPECT(status == 1);
    CU(cuMemsetD32Async(b, 0x3f800000, N, two)); /* 1.0 */
    add(f, a, a, c, N, one);
    CU(cuEventRecord(join, two));
    FAILS(907, cuEventQuery(join));
    CUgraph none;
    FAILS(901, cuStreamEndCapture(one, &none));
    return d ? 100 : 0;
}
static int captures(void) {
    int tried = capture();
    EXPECT(tried == 100);
    CUfunction f = start("vecadd");
    CUdeviceptr a = filled(0), b = filled(0), c = filled(0), d = filled(0);
    CUstream one, two;
    CUevent fork, join;
    static float in[N], out[N];
    static int calls;
    CU(cuCtxSynchronize());
    CU(cuStreamCreate(&one, NON_BLOCKING));
    CU(cuStreamCreate(&two, NON_BLOCKING));
    CU(cuEventCreate(&fork, 2));
    CU(cuEventCreate(&join, 2));
    CU(cuStreamBeginCapture_v2(one, 0));
    CU(cuMemcpyHtoDAsync_v2(a, in, sizeof in, one));
    CU(cuEventRecord(fork, one));
    CU(cuStreamWaitEvent(two, fork, 0));
    CU(cuMemsetD32Async(b, 0x3f800000, N, two));
    add(f, a, a, c, N, one);
    CU(cuEventRecord(join, two));
    CU(cuStreamWaitEvent(one, join, 0));
    add(f, c, b, d, N, one);
    CU(cuLaunchHostFunc(one, count_call, &calls));
    CU(cuMemcpyDtoHAsync_v2(out, d, sizeof out, one));
    int status = -1;
    unsigned long long id = 0;
    CUgraph graph = NULL, seen = NULL;
    const CUgraphNode *tips = NULL;
    size_t count = 99, edges = 99;
    CU(cuStreamGetCaptureInfo_v2(one, &status, &id, &seen, &tips, &count));
    EXPECT(status == 1 && id && seen && count == 1 && tips);
    CU(cuStreamEndCapture(one, &graph));
    EXPECT(graph == seen);
    CU(cuGraphGetNodes(graph, NULL, &count));
    EXPECT(count == 6);
    CU(cuGraphGetEdges(graph, NULL, NULL, &edges));
    EXPECT(edges == 6);
    CUgraphExec exec;
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    EXPECT(calls == 0);
    for (int round = 1; round < 5; round++) {
        for (int i = 0; i < N; i++) in[i] = (float)(round * i);
        CU(cuGraphLaunch(exec, two));
        CU(cuStreamSynchronize(two));
        EXPECT(calls == round);
        for (int i = 0; i < N; i++) EXPECT(out[i] == (float)(2 * round * i + 1));
    }
    CU(cuGraphExecDestroy(exec));
    FAILS(INVALID_VALUE, cuGraphLaunch(exec, two));
    /* Work that is not joined, and a wait for an event that is not captured. */
    CU(cuStreamBeginCapture_v2(one, 0));
    CU(cuEventRecord(fork, one));
    CU(cuStreamWaitEvent(two, fork, 0));
    CU(cuMemsetD32Async(b, 0, N, two));
    FAILS(904, cuStreamEndCapture(one, &graph));
    EXPECT(graph == NULL);
    CU(cuEventRecord(join, two));
    CU(cuStreamBeginCapture_v2(one, 0));
    FAILS(905, cuStreamWaitEvent(one, join, 0));
    FAILS(901, cuStreamEndCapture(one, &graph));
    CU(cuStreamBeginCapture_v2(one, 0));
    FAILS(900, cuStreamSynchronize(one));
    FAILS(901, cuStreamEndCapture(one, &graph));
    CU(cuStreamSynchronize(one));
    puts("captures: right");
    return 0;
}

/* A graph built by calls, changed after its instantiation. */
static int graphs(void) {
    CUfunction f = start("vecadd");
    CUdeviceptr a = filled(1), b = filled(2), c = filled(0), d = filled(0);
    static float out[N];
    static int calls;
    CUgraph graph, child, copy;
    CUgraphNode fill, first, inner, last, fetch, host, all[8];
    CU(cuCtxSynchronize());
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphCreate(&child, 0));
    FillParams three = {a, 0, 0x40400000, 4, N, 1};
    CU(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &three, ctx));
    unsigned n = N;
    void *params[] = {&a, &b, &c, &n};
    KernelParams kernel = {f, {8, 1, 1}, {128, 1, 1}, 0, params, NULL, NULL, NULL};
    CU(cuGraphAddKernelNode_v2(&first, graph, &fill, 1, &kernel));
    void *more[] = {&c, &b, &d, &n};
    kernel.params = more;
    CU(cuGraphAddKernelNode_v2(&inner, child, NULL, 0, &kernel));
    CU(cuGraphAddChildGraphNode(&last, graph, &first, 1, child));
    Box to_host = {0};
    to_host.src.kind = DEVICE, to_host.src.device = d;
    to_host.dst.kind = HOST, to_host.dst.host = out;
    to_host.width = sizeof out, to_host.height = to_host.depth = 1;
    CU(cuGraphAddMemcpyNode(&fetch, graph, &last, 1, &to_host, ctx));
    HostParams call = {count_call, &calls};
    CU(cuGraphAddHostNode(&host, graph, &fetch, 1, &call));
    int type = -1;
    CU(cuGraphNodeGetType(host, &type));
    EXPECT(type == 3);
    KernelParams got;
    CU(cuGraphKernelNodeGetParams_v2(first, &got));
    EXPECT(got.function == f && got.grid[0] == 8 && *(CUdeviceptr *)got.params[1] == b);
    FAILS(INVALID_VALUE, cuGraphAddKernelNode_v2(&last, graph, &inner, 1, &kernel));
    size_t count = 8;
    CU(cuGraphClone(&copy, graph));
    CU(cuGraphGetNodes(copy, all, &count));
    EXPECT(count == 5);
    CUgraphExec exec;
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUstream stream;
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    for (int round = 0; round < 3; round++) {
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(calls == round + 1);
        for (int i = 0; i < N; i++) EXPECT(out[i] == 7);
    }
    void *others[] = {&a, &a, &c, &n};
    kernel.params = others;
    CU(cuGraphExecKernelNodeSetParams_v2(exec, first, &kernel));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    for (int i = 0; i < N; i++) EXPECT(out[i] == 8);
    CU(cuGraphDestroy(graph));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(calls == 5);
    puts("graphs: right");
    return 0;
}

/* Functions that cannot be served remotely return an error. */
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(void);
    } parts[] = {{"pools", pools},       {"library", library},
                 {"linking", linking},   {"areas", areas},
                 {"host_functions", host_functions}, {"host_never", host_never},
                 {"threads", threads},   {"words", words},
                 {"captures", captures}, {"graphs", graphs}};
    for (size_t i = 0; argc > 1 && i < sizeof parts / sizeof *parts; i++) {
        if (!strcmp(argv[1], parts[i].name)) return parts[i].run();
    }
    fprintf(stderr, "usage: surface NAME\n");
    return EXIT_USAGE;
}
