/* Memory that both program and kernels reach: page-locked, registered and managed; one part per
 * run. Usage: reach NAME [contained]: as in a container that forbids userfaultfd and
 * process_vm_readv. Exits 0 if all results are right. Runs on any driver. */
#include "reach.h"

/* Page-locked memory: kernels use the program's own address. */
static int page_locked(void) {
    unsigned *words, *other;
    CUdeviceptr at, base;
    size_t bytes;
    CU(cuMemHostAlloc((void **)&words, N * 4, 0));
    CU(cuMemHostAlloc((void **)&other, 4, 2));
    count(words, N, 7);
    launch(add, (CUdeviceptr)words, N, 10, stream);
    CU(cuStreamSynchronize(stream));
    EXPECT(all(words, N, 17, 1));
    count(words, N, 100);
    launch(add, (CUdeviceptr)words, N - 1, 1, stream);
    launch(add, (CUdeviceptr)words, N - 1, 1, stream);
    CU(cuStreamSynchronize(stream));
    EXPECT(all(words, N - 1, 102, 1) && words[N - 1] == 100 + N - 1);

    CU(cuMemHostGetDevicePointer_v2(&at, words + 5, 0));
    EXPECT(at == (CUdeviceptr)(words + 5));
    FAILS(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&at, words, 1));
    FAILS(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&at, &at, 0));
    EXPECT(attribute(DEVICE_POINTER, at) == at && attribute(HOST_POINTER, at) == at);
    EXPECT(attribute(MEMORY_TYPE, at) == 1 && attribute(IS_MANAGED, at) == 0);
    CU(cuMemGetAddressRange_v2(&base, &bytes, at));
    EXPECT(base == (CUdeviceptr)words && bytes == N * 4);

    /* Fills and copies by the device use the memory too; forms without a stream have completed on
     * return. */
    CU(cuMemsetD32_v2((CUdeviceptr)words, 3, N));
    EXPECT(all(words, N, 3, 0));
    *other = 77;
    CU(cuMemcpy((CUdeviceptr)words, (CUdeviceptr)other, 4));
    EXPECT(words[0] == 77 && words[1] == 3);
    FAILS(INVALID_VALUE, cuMemFree_v2((CUdeviceptr)words));
    CU(cuMemFreeHost(words));
    CU(cuMemFreeHost(other));
    FAILS(INVALID_VALUE, cuMemFreeHost(words));
    FAILS(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&at, words, 0));
    puts("page_locked: right");
    return 0;
}

/* In stream order, between kernels, copies and a program that does not read. */
static int order(void) {
    unsigned *words, *back;
    CUdeviceptr device;
    CU(cuMemHostAlloc((void **)&words, N * 4, 0));
    CU(cuMemHostAlloc((void **)&back, N * 4, 0));
    CU(cuMemAlloc_v2(&device, N * 4));
    /* A copy is in flight to memory that a kernel reaches for the first time. */
    for (unsigned round = 1; round < 20; round++) {
        enum { LONG = 4 << 20 };
        unsigned *fresh;
        CUdeviceptr from;
        CU(cuMemAlloc_v2(&from, LONG));
        CU(cuMemHostAlloc((void **)&fresh, LONG, 0));
        CU(cuMemsetD32_v2(from, round, LONG / 4));
        CU(cuMemcpyDtoHAsync_v2(fresh, from, LONG, stream));
        launch(add, (CUdeviceptr)fresh, LONG / 4, 1, stream);
        CU(cuStreamSynchronize(stream));
        EXPECT(all(fresh, LONG / 4, round + 1, 0));
        CU(cuMemFreeHost(fresh));
        CU(cuMemFree_v2(from));
    }
    for (unsigned round = 0; round < 5; round++) {
        count(words, N, round);
        launch(add, (CUdeviceptr)words, N, 1, stream);
        CU(cuMemcpyHtoDAsync_v2(device, words, N * 4, stream)); /* From the kernel. */
        launch(add, device, N, 1, stream);
        CU(cuMemcpyDtoHAsync_v2(words, device, N * 4, stream));
        launch(add, (CUdeviceptr)words, N, 1, stream); /* The bytes that the copy wrote. */
        CU(cuMemcpyAsync((CUdeviceptr)back, (CUdeviceptr)words, N * 4, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(all(words, N, round + 3, 1) && all(back, N, round + 3, 1));
    }
    /* Synchronous copies. */
    launch(add, (CUdeviceptr)words, N, 1, NULL);
    CU(cuMemcpyHtoD_v2(device, words, N * 4));
    words[0] = 0; /* The copy has completed. */
    CU(cuMemcpyDtoH_v2(back, device, N * 4));
    EXPECT(all(back, N, 8, 1));
    CU(cuMemcpyDtoH_v2(words, device, N * 4));
    EXPECT(all(words, N, 8, 1));
    /* Rows: every second word of the first ten. */
    Rect rows = {{0, 0, 1, words, 0, NULL, 8}, {0, 0, 2, NULL, device, NULL, 4}, 4, 5};
    launch(add, (CUdeviceptr)words, N, 1, NULL);
    CU(cuMemcpy2D_v2(&rows));
    CU(cuMemcpyDtoH_v2(back, device, 20));
    EXPECT(all(back, 5, 9, 2));
    Rect out = {{0, 0, 2, NULL, device, NULL, 4}, {0, 0, 1, words, 0, NULL, 12}, 4, 5};
    CU(cuMemcpy2D_v2(&out));
    for (unsigned i = 0; i < 5; i++) EXPECT(words[3 * i] == 9 + 2 * i && words[3 * i + 1] == 9 + 3 * i + 1);
    puts("order: right");
    return 0;
}

/* The program's own memory, at any address. */
static int registered(void) {
    char *own = allocate(N * 4 + 5000);
    memset(own, 1, N * 4 + 5000);
    unsigned *words = (unsigned *)(own + 4001 - (size_t)own % 4); /* Aligned for the kernel. */
    words = (unsigned *)((size_t)words & ~(size_t)3);
    CUdeviceptr at;
    CU(cuMemHostRegister_v2(words, N * 4, 0));
    count(words, N, 50);
    unsigned some[4];
    at = attribute(DEVICE_POINTER, (CUdeviceptr)(words + 1));
    CU(cuMemcpy((CUdeviceptr)some, at, sizeof some)); /* Copies accept it too. */
    EXPECT(all(some, 4, 51, 1));
    CU(cuMemHostGetDevicePointer_v2(&at, words + 1, 0));
    EXPECT(attribute(DEVICE_POINTER, (CUdeviceptr)(words + 1)) == at);
    EXPECT(attribute(HOST_POINTER, at) == (CUdeviceptr)(words + 1));
    count(words, N, 50);
    launch(add, at, N - 2, 5, stream);
    CU(cuStreamSynchronize(stream));
    EXPECT(words[0] == 50 && all(words + 1, N - 2, 56, 1) && words[N - 1] == 50 + N - 1);
    /* Copies also accept the program's address. */
    CUdeviceptr device;
    CU(cuMemAlloc_v2(&device, N * 4));
    launch(add, at - 4, N, 5, stream);
    CU(cuMemcpyHtoDAsync_v2(device, words, N * 4, stream));
    launch(add, device, N, 1, stream);
    CU(cuMemcpyDtoHAsync_v2(words, device, N * 4, stream));
    launch(add, at - 4, N, 1, stream);
    /* Unregistering waits for the kernels. */
    CU(cuMemHostUnregister(words));
    EXPECT(words[0] == 57 && all(words + 1, N - 2, 63, 1));
    EXPECT(((char *)words)[-1] == 1 && ((char *)(words + N))[0] == 1);
    FAILS(INVALID_VALUE, cuPointerGetAttribute(&at, DEVICE_POINTER, at));
    puts("registered: right");
    return 0;
}

/* Advice on managed memory, set and returned. */
static int hints(void) {
    CUdevice device;
    CUdeviceptr at;
    int concurrent, said = 7, other, who[3];
    CU(cuDeviceGet(&device, 0));
    CU(cuDeviceGetAttribute(&concurrent, CONCURRENT_ACCESS, device));
    CU(cuMemAllocManaged(&at, N * 4, 1));
    CU(cuStreamAttachMemAsync(stream, at, 0, 4));
    CU(cuStreamAttachMemAsync(NULL, at, N * 4, 1));
    CU(cuStreamAttachMemAsync_ptsz(NULL, at, 0, 4)); /* A thread's own stream is a single stream. */
    FAILS(INVALID_VALUE, cuStreamAttachMemAsync(stream, at, 0, 9));

    CU(cuMemAdvise(at, 400, 1, 0));
    CU(cuMemAdvise(at, 400, 3, -1));
    CU(cuMemRangeGetAttribute(&said, 4, 1, at, 400));
    EXPECT(said == 1);
    CU(cuMemRangeGetAttribute(&said, 4, 2, at, 400));
    EXPECT(said == -1);
    CU(cuMemRangeGetAttribute(who, sizeof who, 3, at, 400));
    EXPECT(who[0] == -2 && who[2] == -2);
    Place host = {2, 0};
    CU(cuMemAdvise_v2(at, 400, 5, host));
    CU(cuMemAdvise_v2(at, 200, 2, host));
    CU(cuMemRangeGetAttributes((void *[]){&said, &other, who}, (size_t[]){4, 4, 12}, (int[]){1, 2, 3}, 3, at, 400));
    EXPECT(said == 0 && other == -1 && who[0] == -1 && who[1] == -2);
    CU(cuMemRangeGetAttributes((void *[]){&said, &other}, (size_t[]){4, 4}, (int[]){1, 5}, 2, at + 200, 200));
    EXPECT(said == 1 && other == 2);
    FAILS(INVALID_VALUE, cuMemRangeGetAttribute(&said, 3, 1, at, 400));
    FAILS(INVALID_VALUE, cuMemRangeGetAttribute(&said, 4, 99, at, 400));
    FAILS(INVALID_VALUE, cuMemAdvise(at, N * 4 + 5000000, 1, 0));
    FAILS(INVALID_VALUE, cuMemAdvise(at, 400, 77, 0));

    CU(cuMemPrefetchAsync(at, N * 4, -1, stream));
    CU(cuMemPrefetchAsync_ptsz(at, N * 4, -1, NULL));
    CU(cuMemPrefetchAsync_v2(at, N * 4, host, 0, stream));
    CU(cuMemPrefetchAsync_v2_ptsz(at, N * 4, host, 0, NULL));
    FAILS(INVALID_VALUE, cuMemPrefetchAsync_v2(at, N * 4, host, 1, stream));
    if (!concurrent) {
        Place there = {1, device};
        FAILS(INVALID_DEVICE, cuMemPrefetchAsync(at, N * 4, device, stream));
        FAILS(INVALID_DEVICE, cuMemPrefetchAsync_v2(at, N * 4, there, 0, stream));
        FAILS(INVALID_DEVICE, cuMemAdvise(at, N * 4, 3, device));
    }
    CU(cuMemFree_v2(at));
    FAILS(INVALID_VALUE, cuMemAdvise(at, 400, 1, 0));
    puts("hints: right");
    return 0;
}

/* Managed memory: program and kernels in turn. */
static int managed(void) {
    CUdevice device;
    CUdeviceptr at, base;
    size_t bytes, available, before;
    int can;
    CU(cuDeviceGet(&device, 0));
    CU(cuDeviceGetAttribute(&can, MANAGED_MEMORY, device));
    EXPECT(can == 1);
    FAILS(INVALID_VALUE, cuMemAllocManaged(&at, 0, 1));
    FAILS(INVALID_VALUE, cuMemAllocManaged(&at, 64, 3));
    CU(cuMemGetInfo_v2(&before, &bytes));
    CU(cuMemAllocManaged(&at, N * 4, 1));
    unsigned *words = (unsigned *)at;
    EXPECT(attribute(MEMORY_TYPE, at) == 2 && attribute(IS_MANAGED, at) == 1);
    EXPECT(attribute(DEVICE_POINTER, at + 8) == at + 8 && attribute(HOST_POINTER, at + 8) == at + 8);
    CU(cuMemGetAddressRange_v2(&base, &bytes, at + 8));
    EXPECT(base == at && bytes == N * 4);
    EXPECT(all(words, N, 0, 0));
    count(words, N, 1);
    launch(add, at, N, 1, stream);
    CU(cuStreamSynchronize(stream));
    EXPECT(all(words, N, 2, 1));
    words[3] = 1000;
    launch(add, at, N, 1, stream);
    CU(cuCtxSynchronize());
    EXPECT(all(words, 3, 3, 1) && words[3] == 1001 && all(words + 4, N - 4, 7, 1));

    unsigned plain[N];
    count(plain, N, 9);
    CU(cuMemcpyHtoD_v2(at, plain, sizeof plain));
    EXPECT(all(words, N, 9, 1));
    words[0] = 1;
    CU(cuMemcpyDtoH_v2(plain, at, sizeof plain));
    EXPECT(plain[0] == 1 && all(plain + 1, N - 1, 10, 1));
    CU(cuMemsetD8_v2(at, 0xff, 8));
    EXPECT(words[0] == ~0u && words[1] == ~0u && words[2] == 11);
    CU(cuMemcpy(at + 400, at + 40, 8));
    EXPECT(words[100] == 19 && words[101] == 20 && words[102] == 111);

    launch(add, at, N, 1, stream);
    CU(cuMemFree_v2(at)); /* After the kernel. */
    FAILS(INVALID_VALUE, cuMemFree_v2(at));
    FAILS(INVALID_VALUE, cuPointerGetAttribute(&bytes, MEMORY_TYPE, at));
    CU(cuMemGetInfo_v2(&available, &bytes));
    EXPECT(available >= before);
    puts("managed: right");
    return 0;
}

/* Program and kernel write the same bytes without a wait for each other: the result is undefined. A
 * copy that is too large to be gathered with other calls starts the kernel, which sometimes ends
 * before the program writes. */
static int at_once(void) {
    enum { TURNS = 100, LARGE = 1 << 20 };
    static char bytes[LARGE];
    CUdeviceptr at, other;
    CU(cuMemAllocManaged(&at, N * 4, 1));
    CU(cuMemAlloc_v2(&other, LARGE));
    volatile unsigned *words = (unsigned *)at;
    for (unsigned i = 1; i <= TURNS; i++) {
        launch(add, at, N, 1, stream);
        CU(cuMemcpyHtoDAsync_v2(other, bytes, LARGE, stream));
        usleep(100 * i);
        words[5] = 77777 * i;
        CU(cuStreamSynchronize(stream));
        EXPECT(words[4] == i && words[6] == i);
    }
    CU(cuMemFree_v2(other));
    CU(cuMemFree_v2(at));
    puts("at_once: right");
    return 0;
}

/* The program writes bytes next to those that a running kernel writes. */
static int bytes(void) {
    unsigned char *at;
    CU(cuMemHostAlloc((void **)&at, N, 0));
    for (unsigned round = 1; round < 20; round++) {
        for (unsigned i = 0; i < N; i += 4) at[i] = round;
        launch(odd, (CUdeviceptr)at, N, round + 100, stream);
        for (unsigned i = 2; i < N; i += 4) at[i] = round + 50;
        CU(cuStreamSynchronize(stream));
        for (unsigned i = 0; i < N; i++) {
            unsigned expected = i % 2 ? round + 100 : i % 4 ? round + 50 : round;
            if (at[i] != expected) fprintf(stderr, "round %u: byte %u is %u\n", round, i, at[i]);
            EXPECT(at[i] == expected);
        }
    }
    puts("bytes: right");
    return 0;
}

static unsigned *shared_words;
static unsigned seen_by_function;

static void look(void *data) {
    (void)data;
    seen_by_function = shared_words[N - 1];
    for (unsigned i = 0; i < N; i++) shared_words[i] *= 2;
}

/* After every kind of wait, the program sees the writes of kernels. Host functions in a stream see
 * them too. */
static int waits(void) {
    CUevent event;
    CUdeviceptr at;
    CU(cuEventCreate(&event, 2));
    CU(cuMemAllocManaged(&at, N * 4, 1));
    unsigned *words = shared_words = (unsigned *)at;
    launch(add, at, N, 1, stream);
    CU(cuEventRecord(event, stream));
    CU(cuEventSynchronize(event));
    EXPECT(all(words, N, 1, 0));
    launch(add, at, N, 1, stream);
    CU(cuEventRecord(event, stream));
    CUresult ready;
    while ((ready = cuEventQuery(event)) == NOT_READY) usleep(100);
    CU(ready);
    EXPECT(all(words, N, 2, 0));
    launch(add, at, N, 1, stream);
    while ((ready = cuStreamQuery(stream)) == NOT_READY) usleep(100);
    CU(ready);
    EXPECT(all(words, N, 3, 0));
    launch(add, at, N, 1, NULL);
    unsigned last;
    CU(cuMemcpyDtoH_v2(&last, at + 4 * (N - 1), 4));
    EXPECT(last == 4 && all(words, N, 4, 0));
    launch(add, at, N, 1, stream);
    CU(cuLaunchHostFunc(stream, look, NULL));
    launch(add, at, N, 1, stream); /* The bytes that the function wrote. */
    CU(cuStreamSynchronize(stream));
    EXPECT(seen_by_function == 5 && all(words, N, 11, 0));
    puts("waits: right");
    return 0;
}

/* Calls in which CUDA may wait for earlier work: afterwards, the program may read the results of
 * that work. */
static int implied(void) {
    unsigned *words, *other, plain[64] = {0};
    CUdeviceptr device, another;
    CUevent events[2];
    float took;
    CU(cuMemHostAlloc((void **)&words, N * 4, 0));
    CU(cuMemHostAlloc((void **)&other, 4096, 0));
    CU(cuMemAlloc_v2(&device, 4096));
    CU(cuMemAlloc_v2(&another, 4096));
    for (int i = 0; i < 2; i++) CU(cuEventCreate(&events[i], 0));
    count(words, N, 0);
    launch(add, (CUdeviceptr)words, N, 1, NULL);
    CU(cuMemcpyHtoD_v2(device, plain, sizeof plain));
    EXPECT(all(words, N, 1, 1));
    launch(add, (CUdeviceptr)words, N, 1, NULL);
    CU(cuMemcpyHtoD_v2(device, other, 4096));
    EXPECT(all(words, N, 2, 1));
    launch(add, (CUdeviceptr)words, N, 1, stream);
    CU(cuMemFree_v2(another));
    EXPECT(all(words, N, 3, 1));
    launch(add, (CUdeviceptr)words, N, 1, stream);
    CU(cuMemFreeHost(other));
    EXPECT(all(words, N, 4, 1));
    CU(cuEventRecord(events[0], stream));
    launch(add, (CUdeviceptr)words, N, 1, stream);
    CU(cuEventRecord(events[1], stream));
    CUresult ready;
    while ((ready = cuEventElapsedTime(&took, events[0], events[1])) == NOT_READY) usleep(100);
    CU(ready);
    EXPECT(all(words, N, 5, 1));
    puts("implied: right");
    return 0;
}

/* Work that waits for a word of the program continues when the program waits or queries. */
static int latches(void) {
    unsigned *words;
    CU(cuMemHostAlloc((void **)&words, 64, 0));
    memset(words, 0, 64);
    launch(latch, (CUdeviceptr)words, 3, 5, stream);
    EXPECT(cuStreamQuery(stream) == NOT_READY && words[3] == 0);
    words[0] = 1;
    CU(cuStreamSynchronize(stream));
    EXPECT(words[3] == 5);
    words[1] = 0;
    launch(latch, (CUdeviceptr)(words + 1), 3, 6, stream);
    words[1] = 1;
    CUresult ready;
    while ((ready = cuStreamQuery(stream)) == NOT_READY) usleep(100);
    CU(ready);
    EXPECT(words[4] == 6);
    CU(cuStreamWaitValue32_v2(stream, (CUdeviceptr)(words + 5), 9, 0));
    launch(add, (CUdeviceptr)(words + 6), 1, 7, stream);
    EXPECT(cuStreamQuery(stream) == NOT_READY);
    words[5] = 9;
    CU(cuCtxSynchronize());
    EXPECT(words[6] == 7);
    /* A query shows what a running kernel wrote. */
    words[7] = 0;
    launch(add, (CUdeviceptr)(words + 8), 1, 1, stream);
    launch(latch, (CUdeviceptr)(words + 7), 1, 1, stream);
    while (*(volatile unsigned *)(words + 8) == 0) EXPECT(cuStreamQuery(stream) == NOT_READY);
    words[7] = 1;
    CU(cuStreamSynchronize(stream));
    puts("latches: right");
    return 0;
}

/* Graphs: the same kernels and copies, launched again with other values in the same memory. */
static int graphs(void) {
    unsigned *words, *back;
    CUdeviceptr device, shared;
    CU(cuMemHostAlloc((void **)&words, N * 4, 0));
    CU(cuMemHostAlloc((void **)&back, N * 4, 0));
    CU(cuMemAllocManaged(&shared, N * 4, 1));
    CU(cuMemAlloc_v2(&device, N * 4));
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamBeginCapture_v2(stream, 0));
    launch(add, (CUdeviceptr)words, N, 1, stream);
    CU(cuMemcpyHtoDAsync_v2(device, words, N * 4, stream));
    launch(add, device, N, 1, stream);
    CU(cuMemcpyAsync(shared, device, N * 4, stream));
    launch(add, shared, N, 1, stream);
    CU(cuMemcpyAsync((CUdeviceptr)back, shared, N * 4, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned round = 0; round < 4; round++) {
        count(words, N, 10 * round);
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(all(words, N, 10 * round + 1, 1) && all(back, N, 10 * round + 3, 1));
        EXPECT(all((unsigned *)shared, N, 10 * round + 3, 1));
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    /* By hand, with new memory: the first launch sees what the program wrote, however much of the
     * launch was sent before the memory is mapped for the device. */
    for (unsigned round = 0; round < 30; round++) {
        unsigned *fresh, n = N, five = 5;
        CU(cuMemHostAlloc((void **)&fresh, N * 4, 0));
        CUdeviceptr at = (CUdeviceptr)fresh;
        CUgraphNode node;
        KernelParams params = {add, {(N + 127) / 128, 1, 1}, {128, 1, 1}, 0, (void *[]){&at, &n, &five}, NULL, NULL, NULL};
        CU(cuGraphCreate(&graph, 0));
        CU(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
        CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
        count(fresh, N, 20);
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(all(fresh, N, 25, 1));
        CU(cuGraphExecDestroy(exec));
        CU(cuGraphDestroy(graph));
        CU(cuMemFreeHost(fresh));
    }
    puts("graphs: right");
    return 0;
}

/* More than fits into one message, and many small blocks. */
static int large(void) {
    enum { WORDS = 6 << 20, BLOCKS = 1500 };
    CUdeviceptr at;
    CU(cuMemAllocManaged(&at, WORDS * 4ull, 1));
    unsigned *words = (unsigned *)at;
    count(words, WORDS, 5);
    launch(add, at, WORDS, 3, stream);
    CU(cuStreamSynchronize(stream));
    EXPECT(all(words, WORDS, 8, 1));
    CU(cuMemFree_v2(at));
    static CUdeviceptr blocks[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++) {
        CU(cuMemAllocManaged(&blocks[i], 12, 1));
        *(unsigned *)blocks[i] = i;
    }
    for (unsigned i = 0; i < BLOCKS; i++) launch(add, blocks[i], 1, 1, stream);
    CU(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < BLOCKS; i++) EXPECT(*(unsigned *)blocks[i] == i + 1);
    for (unsigned i = 0; i < BLOCKS; i++) CU(cuMemFree_v2(blocks[i]));
    puts("large: right");
    return 0;
}

static CUcontext context;

static void *work(void *number) {
    unsigned n = (unsigned)(size_t)number, words = 500 + 37 * n;
    CU(cuCtxSetCurrent(context));
    CUstream own;
    CU(cuStreamCreate(&own, 1));
    for (unsigned round = 0; round < 15; round++) {
        CUdeviceptr at;
        CU(cuMemAllocManaged(&at, words * 4, 1));
        unsigned *shared = (unsigned *)at;
        count(shared, words, n);
        for (unsigned i = 0; i < 4; i++) launch(add, at, words, 1, own);
        CU(cuStreamSynchronize(own));
        if (!all(shared, words, n + 4, 1)) exit(EXIT_WRONG);
        CU(cuMemFree_v2(at));
    }
    return NULL;
}

static unsigned *ours;
static pthread_barrier_t together;

static void *first_use(void *number) {
    (void)number;
    CU(cuCtxSetCurrent(context));
    CUstream own;
    CU(cuStreamCreate(&own, 1));
    pthread_barrier_wait(&together);
    launch(latch, (CUdeviceptr)ours, (unsigned)(size_t)number + 1, 3, own);
    CU(cuStreamSynchronize(own));
    return NULL;
}

/* Threads that use the same memory for the first time, all at the same time. */
static int together_first(void) {
    CUdevice device;
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    for (int round = 0; round < 30; round++) {
        pthread_t all_of_them[4];
        pthread_barrier_init(&together, NULL, 4);
        CU(cuMemHostAlloc((void **)&ours, 4096, 0));
        memset(ours, 0, 4096);
        ours[0] = 1;
        for (size_t i = 0; i < 4; i++) pthread_create(&all_of_them[i], NULL, first_use, (void *)i);
        for (int i = 0; i < 4; i++) pthread_join(all_of_them[i], NULL);
        EXPECT(all(ours + 1, 4, 3, 0));
        CU(cuMemFreeHost(ours));
    }
    puts("together_first: right");
    return 0;
}

static void rest(void *data) {
    (void)data;
    usleep(300000);
}

/* A host function delays more copies than may be in flight, without a deadlock. */
static int behind(void) {
    enum { BYTES = 24 << 20 };
    unsigned *words;
    CUdeviceptr device;
    char *bytes = allocate(BYTES);
    memset(bytes, 7, BYTES);
    CU(cuMemAlloc_v2(&device, BYTES));
    CU(cuMemHostAlloc((void **)&words, N * 4, 0));
    count(words, N, 0);
    launch(add, (CUdeviceptr)words, N, 1, stream);
    CU(cuLaunchHostFunc(stream, rest, NULL));
    for (int i = 0; i < 24; i++) CU(cuMemcpyHtoDAsync_v2(device + ((size_t)i << 20), bytes, 1 << 20, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(all(words, N, 1, 1));
    /* A copy that waits for the program delays no launch elsewhere. */
    unsigned *fresh, *gate, *other;
    CUstream aside;
    CU(cuStreamCreate(&aside, 1));
    CU(cuMemHostAlloc((void **)&gate, 64, 0));
    CU(cuMemHostAlloc((void **)&other, 64, 0));
    CU(cuMemHostAlloc((void **)&fresh, N * 4, 0));
    memset(gate, 0, 64);
    memset(fresh, 0, N * 4);
    CU(cuStreamWaitValue32_v2(stream, (CUdeviceptr)gate, 1, 0));
    CU(cuMemcpyDtoHAsync_v2(other, device, 64, stream));
    launch(add, (CUdeviceptr)fresh, N, 9, aside);
    CU(cuStreamSynchronize(aside));
    EXPECT(all(fresh, N, 9, 0) && cuStreamQuery(stream) == NOT_READY);
    gate[0] = 1;
    CU(cuMemFreeHost(fresh)); /* Waits for all work, and sends the change of `gate`. */
    CU(cuStreamSynchronize(stream));
    EXPECT(other[0] == 0x07070707);
    puts("behind: right");
    return 0;
}

/* Threads that each use their own memory. */
static int threads(void) {
    pthread_t all_of_them[8];
    CUdevice device;
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    for (size_t i = 0; i < 8; i++) pthread_create(&all_of_them[i], NULL, work, (void *)i);
    for (int i = 0; i < 8; i++) pthread_join(all_of_them[i], NULL);
    puts("threads: right");
    return 0;
}

/* A destroyed context frees its managed memory. */
static int contexts(void) {
    CUdevice device;
    CUcontext other, first;
    CUdeviceptr at;
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&first, device));
    unsigned *words;
    CU(cuMemHostAlloc((void **)&words, N * 4, 1));
    launch(add, (CUdeviceptr)words, N, 1, stream);
    CU(cuCtxCreate_v2(&other, 0, device));
    CU(cuMemAllocManaged(&at, N * 4, 1));
    CU(cuCtxDestroy_v2(other));
    CU(cuCtxSetCurrent(first));
    FAILS(INVALID_VALUE, cuMemFree_v2(at));
    launch(add, (CUdeviceptr)words, N, 1, stream);
    CU(cuStreamSynchronize(stream));
    EXPECT(all(words, N, 2, 0));
    puts("contexts: right");
    return 0;
}

/* A kernel runs while the program repeatedly writes memory that the kernel may read, and queries
 * it. */
static int fed(void) {
    enum { BYTES = 1 << 20, ROUNDS = 12, BEGIN = 4096 };
    unsigned char *memory;
    CU(cuMemHostAlloc((void **)&memory, BEGIN + BYTES, 0));
    memset(memory, 0, BEGIN + BYTES);
    volatile unsigned *words = (unsigned *)memory;
    launch(latch, (CUdeviceptr)memory, 1, 7, stream);
    for (int round = 1; round <= ROUNDS; round++) {
        memset(memory + BEGIN, round, BYTES);
        EXPECT(cuStreamQuery(stream) == NOT_READY);
    }
    words[0] = 1;
    CU(cuStreamSynchronize(stream));
    EXPECT(words[1] == 7);
    CU(cuMemFreeHost(memory));
    puts("fed: right");
    return 0;
}

/* More than the VM's limit: an error, and existing memory stays usable. */
static int capped(void) {
    CUdeviceptr small, at;
    unsigned taken = 0;
    CU(cuMemAllocManaged(&small, N * 4, 1));
    static CUdeviceptr blocks[64];
    CUresult result = 0;
    while (taken < 64 && !(result = cuMemAllocManaged(&blocks[taken], 4 << 20, 1))) taken++;
    EXPECT(result == OUT_OF_MEMORY && taken > 0);
    launch(add, small, N, 1, stream);
    CU(cuStreamSynchronize(stream));
    EXPECT(all((unsigned *)small, N, 1, 0));
    CU(cuMemFree_v2(blocks[0]));
    CU(cuMemAllocManaged(&at, 4 << 20, 1));
    void *page_locked;
    CU(cuMemHostAlloc(&page_locked, 64 << 20, 0)); /* The program's own memory. */
    FAILS(OUT_OF_MEMORY, cuMemHostGetDevicePointer_v2(&at, page_locked, 0));
    puts("capped: right");
    return 0;
}

int main(int argc, char **argv) {
    static const struct part parts[] = {
        {"page_locked", page_locked}, {"order", order}, {"registered", registered}, {"managed", managed}, {"hints", hints},
        {"bytes", bytes}, {"waits", waits}, {"implied", implied}, {"latches", latches}, {"graphs", graphs}, {"large", large},
        {"threads", threads}, {"together_first", together_first}, {"behind", behind}, {"contexts", contexts}, {"capped", capped},
        {"at_once", at_once}, {"fed", fed},
    };
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
