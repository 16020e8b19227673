/* Copies to the device read their source after the earlier work of their stream, which writes the
 * source: copies from the device, host functions, and the program itself while a stream waits for a
 * word. And calls that wait, while another thread shares memory with the device.
 * Usage: inorder [wait]; exits 0 if every value was right. */
#include <pthread.h>

#include "boxes.h"

enum {
    HOST = 1, DEVICE = 2, ARRAY = 3, NON_BLOCKING = 1, RELAXED = 2, EQUAL = 1, FILL = 0x07070707,
    MINE = 42, INT32 = 10, BYTES = 8192
};
typedef struct { size_t width, height; int format; unsigned channels; } ArrayShape;

static CUfunction spin;
static CUdeviceptr from, to, flag;
static CUstream one, two;
static int wrong;

static void slow(CUstream stream) {
    unsigned long long ns = 20 * 1000 * 1000;
    void *params[] = {&ns};
    CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void write_mine(void *at) {
    usleep(2000);
    *(volatile int *)at = MINE;
}

static void is(const char *what, int wanted) {
    int got = 0;
    CU(cuCtxSynchronize());
    CU(cuMemcpyDtoH_v2(&got, to, sizeof got));
    if (got == wanted) return;
    fprintf(stderr, "%s: %#x, not %#x\n", what, got, wanted);
    wrong = 1;
}

/* A new block in each case, because a block that a kernel once reached is copied in another way. */
static int *block(int registered) {
    int *at;
    if (!registered) {
        CU(cuMemHostAlloc((void **)&at, BYTES, 0));
    } else {
        at = aligned_alloc(4096, BYTES);
        if (!at) exit(EXIT_USAGE);
        CU(cuMemHostRegister_v2(at, BYTES, 0));
    }
    at[0] = 1;
    return at;
}

/* Rows of one word from memory of the program to `dst`. */
static Rect rows(const int *src, Side dst) {
    Rect rect = {.src = {.kind = HOST, .host = src, .pitch = 64}, .dst = dst, .width = 4, .height = 8};
    return rect;
}

static void asynchronous(int registered) {
    CUevent event;
    CU(cuEventCreate(&event, 2));
    int *h = block(registered);
    slow(one);
    CU(cuMemcpyDtoHAsync_v2(h, from, 4, one));
    CU(cuMemcpyHtoDAsync_v2(to, h, 4, one));
    is("a copy from the device, then to the device", FILL);

    h = block(registered);
    slow(one);
    CU(cuMemcpyDtoHAsync_v2(h, from, 4, one));
    CU(cuEventRecord(event, one));
    CU(cuStreamWaitEvent(two, event, 0));
    CU(cuMemcpyHtoDAsync_v2(to, h, 4, two));
    is("the same in two streams with an event", FILL);

    h = block(registered);
    slow(one);
    CU(cuLaunchHostFunc(one, write_mine, h));
    CU(cuMemcpyHtoDAsync_v2(to, h, 4, one));
    is("a host function, then to the device", MINE);

    h = block(registered);
    slow(one);
    CU(cuLaunchHostFunc(one, write_mine, h));
    Rect rect = rows(h, (Side){.kind = DEVICE, .device = to, .pitch = 64});
    CU(cuMemcpy2DAsync_v2(&rect, one));
    is("a host function, then rows to the device", MINE);

    h = block(registered);
    CU(cuMemsetD32_v2(flag, 0, 1));
    CU(cuCtxSynchronize()); /* Non-blocking streams do not wait for a memset of the legacy stream. */
    CU(cuStreamWaitValue32_v2(one, flag, 1, EQUAL));
    CU(cuMemcpyHtoDAsync_v2(to, h, 4, one));
    h[0] = 13;
    CU(cuStreamWriteValue32_v2(two, flag, 1, 0));
    is("written while the stream waits for a word", 13);

    h = block(registered);
    CUdeviceptr sources[] = {(CUdeviceptr)h}, targets[] = {to};
    size_t sizes[] = {4}, first[] = {0};
    struct { int order, hints[4]; unsigned flags; } stream_order = {.order = 1};
    slow(one);
    CU(cuMemcpyDtoHAsync_v2(h, from, 4, one));
    size_t failed;
    CU(cuMemcpyBatchAsync(targets, sources, sizes, 1, &stream_order, first, 1, &failed, one));
    is("a batch whose sources are read in stream order", FILL);
}

static void synchronous(void) {
    CUstream blocking;
    CU(cuStreamCreate(&blocking, 0));
    int *h = block(0);
    slow(blocking);
    CU(cuMemcpyDtoHAsync_v2(h, from, 4, blocking));
    CU(cuMemcpyHtoD_v2(to, h, 4));
    is("a copy from the device in a blocking stream, then cuMemcpyHtoD", FILL);

    static int pageable[16];
    slow(NULL);
    CU(cuLaunchHostFunc(NULL, write_mine, pageable));
    CU(cuMemcpyHtoD_v2(to, pageable, 4));
    is("a host function that writes other memory, then cuMemcpyHtoD", MINE);

    CUarray array;
    ArrayShape shape = {1, 8, INT32, 1};
    CU(cuArrayCreate_v2(&array, &shape));
    h = block(0);
    slow(NULL);
    CU(cuMemcpyDtoHAsync_v2(h, from, 4, NULL));
    Rect in = rows(h, (Side){.kind = ARRAY, .array = array});
    CU(cuMemcpy2D_v2(&in));
    Rect out = {.src = {.kind = ARRAY, .array = array}, .dst = {.kind = DEVICE, .device = to, .pitch = 64},
                .width = 4, .height = 1};
    CU(cuMemcpy2D_v2(&out));
    is("a copy from the device, then rows to an array", FILL);
}

/* A graph of a slow kernel, what `first` adds, and a copy of `h` to the device. */
static void graph(const char *what, int *h, void (*first)(int *), int wanted) {
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamBeginCapture_v2(one, RELAXED));
    slow(one);
    first(h);
    CU(cuMemcpyHtoDAsync_v2(to, h, 4, one));
    CU(cuStreamEndCapture(one, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        h[0] = 1;
        CU(cuGraphLaunch(exec, one));
        is(what, wanted);
    }
}

static void host_function(int *h) { CU(cuLaunchHostFunc(one, write_mine, h)); }
static void copy_back(int *h) { CU(cuMemcpyDtoHAsync_v2(h, from, 4, one)); }

static volatile int *shared;

/* Answers the device in memory that both share, without a call of CUDA. */
static void *answer(void *unused) {
    while (shared[0] == 0) usleep(1000);
    shared[64] = 1;
    return unused;
}

/* The main thread waits for a stream that tells another thread something and waits for the answer. */
static void waiting(void) {
    CU(cuMemHostAlloc((void **)&shared, BYTES, 2));
    shared[0] = shared[64] = 0;
    CUdeviceptr told = (CUdeviceptr)&shared[0], answered = (CUdeviceptr)&shared[64];
    pthread_t thread;
    CU(cuStreamWriteValue32_v2(one, told, 1, 0));
    CU(cuStreamWaitValue32_v2(one, answered, 1, EQUAL));
    CU(cuMemsetD32_v2(to, 0, 1));
    if (pthread_create(&thread, NULL, answer, NULL)) exit(EXIT_USAGE);
    CU(cuStreamSynchronize(one));
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    CUmodule module;
    spin = setup("spin_ns", &module);
    CU(cuMemAlloc_v2(&from, BYTES));
    CU(cuMemAlloc_v2(&to, BYTES));
    CU(cuMemAlloc_v2(&flag, 4));
    CU(cuMemsetD8_v2(from, 7, BYTES));
    CU(cuStreamCreate(&one, NON_BLOCKING));
    CU(cuStreamCreate(&two, NON_BLOCKING));
    CU(cuCtxSynchronize());
    if (argc > 1 && !strcmp(argv[1], "wait")) {
        waiting();
    } else {
        asynchronous(0);
        asynchronous(1);
        synchronous();
        static int pageable[16];
        graph("graph: a host function, then to the device", block(0), host_function, MINE);
        graph("graph: a host function that writes other memory", pageable, host_function, MINE);
        graph("graph: from the device, then to the device", block(0), copy_back, FILL);
    }
    if (wrong) return EXIT_WRONG;
    puts("inorder: every value was right");
    return 0;
}
