/* Every function in the form for per-thread default streams (_ptds, _ptsz), while another thread's
 * own stream is blocked. A call that went to the legacy stream instead would wait for that stream,
 * and the program would not end. */
#include "boxes.h"
#include "tell.h"

#include <pthread.h>

enum { HOST = 1, DEVICE = 2, ARRAY = 3, N = 256, ROW = 32, ROWS = 8, EQUAL = 1, RELAXED = 2 };

typedef struct {
    int order, hints[4];
    unsigned flags;
} Attributes;
typedef struct {
    int kind;
    CUdeviceptr at;
    size_t row, layer;
    int hint[2];
} Operand;
typedef struct {
    Operand src, dst;
    size_t width, height, depth;
    int order;
    unsigned flags;
} Operation;
typedef struct {
    unsigned operation;
    CUdeviceptr at;
    unsigned long long value;
    unsigned flags;
    CUdeviceptr alias;
    unsigned long long pad;
} Word;
typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void *attributes;
    unsigned count;
} Config;
typedef struct {
    unsigned long long flags;
    CUstream upload;
    CUgraphNode bad;
    int result;
} Instantiation;
_Static_assert(sizeof(Operation) == 112 && sizeof(Word) == 48, "as cuda.h");

static CUcontext ctx;
static CUdeviceptr flag, a, b;
static CUfunction add;
static unsigned char in[N], out[N];
static volatile int waiting;
static unsigned long long other_id;

static void *stands_still(void *unused) {
    CU(cuCtxSetCurrent(ctx));
    CU(cuStreamWaitValue32_v2_ptsz(NULL, flag, 1, EQUAL));
    CU(cuStreamGetId_ptsz(NULL, &other_id));
    if (cuStreamQuery_ptsz(NULL) != NOT_READY) exit(EXIT_WRONG);
    waiting = 1;
    CU(cuStreamSynchronize_ptsz(NULL));
    return unused;
}

static unsigned value(CUdeviceptr at) {
    unsigned word = 0;
    CU(cuStreamSynchronize_ptsz(NULL));
    CU(cuMemcpyDtoH_v2_ptds(&word, at, 4));
    return word;
}

static int arrived(void) {
    CU(cuStreamSynchronize_ptsz(NULL));
    int same = !memcmp(in, out, N);
    memset(out, 0, N);
    for (int i = 0; i < N; i++) in[i] = (unsigned char)(in[i] * 5 + 3);
    return same;
}

static void fills(void) {
    OK(cuMemsetD8_v2_ptds(a, 1, 64));
    IS(0x01010101, value(a));
    OK(cuMemsetD16_v2_ptds(a, 2, 32));
    IS(0x00020002, value(a));
    OK(cuMemsetD32_v2_ptds(a, 3, 16));
    IS(3, value(a));
    OK(cuMemsetD8Async_ptsz(a, 4, 64, NULL));
    IS(0x04040404, value(a));
    OK(cuMemsetD16Async_ptsz(a, 5, 32, NULL));
    IS(0x00050005, value(a));
    OK(cuMemsetD32Async_ptsz(a, 6, 16, NULL));
    IS(6, value(a));
    OK(cuMemsetD2D8_v2_ptds(a, 16, 7, 8, 2));
    IS(0x07070707, value(a + 16));
    OK(cuMemsetD2D16_v2_ptds(a, 16, 8, 4, 2));
    IS(0x00080008, value(a + 16));
    OK(cuMemsetD2D32_v2_ptds(a, 16, 9, 2, 2));
    IS(9, value(a + 16));
    OK(cuMemsetD2D8Async_ptsz(a, 16, 10, 8, 2, NULL));
    IS(0x0a0a0a0a, value(a + 16));
    OK(cuMemsetD2D16Async_ptsz(a, 16, 11, 4, 2, NULL));
    IS(0x000b000b, value(a + 16));
    OK(cuMemsetD2D32Async_ptsz(a, 16, 12, 2, 2, NULL));
    IS(12, value(a + 16));
}

static void copies(void) {
    OK(cuMemcpy_ptds(a, (CUdeviceptr)in, N));
    OK(cuMemcpyAsync_ptsz(b, a, N, NULL));
    OK(cuMemcpyDtoH_v2_ptds(out, b, N));
    EXPECT(arrived());
    OK(cuMemcpyHtoD_v2_ptds(a, in, N));
    OK(cuMemcpyDtoD_v2_ptds(b, a, N));
    OK(cuMemcpyDtoHAsync_v2_ptsz(out, b, N, NULL));
    EXPECT(arrived());
    OK(cuMemcpyHtoDAsync_v2_ptsz(a, in, N, NULL));
    OK(cuMemcpyDtoDAsync_v2_ptsz(b, a, N, NULL));
    OK(cuMemcpyPeer_ptds(a, ctx, b, ctx, N));
    OK(cuMemcpyPeerAsync_ptsz(b, ctx, a, ctx, N, NULL));
    OK(cuMemcpy_ptds((CUdeviceptr)out, b, N));
    EXPECT(arrived());
}

static void shapes(CUarray one, CUarray two) {
    OK(cuMemcpyHtoA_v2_ptds(one, 0, in, N));
    OK(cuMemcpyAtoA_v2_ptds(two, 0, one, 0, N));
    OK(cuMemcpyAtoD_v2_ptds(a, two, 0, N));
    OK(cuMemcpyDtoA_v2_ptds(one, 0, a, N));
    OK(cuMemcpyAtoH_v2_ptds(out, one, 0, N));
    EXPECT(arrived());
    OK(cuMemcpyHtoAAsync_v2_ptsz(one, 0, in, N, NULL));
    OK(cuMemcpyAtoHAsync_v2_ptsz(out, one, 0, N, NULL));
    EXPECT(arrived());
    Side host = {.kind = HOST, .host = in, .pitch = ROW}, home = {.kind = HOST, .host = out, .pitch = ROW};
    Side first = {.kind = DEVICE, .device = a, .pitch = ROW}, second = {.kind = DEVICE, .device = b, .pitch = ROW};
    Rect rect = {host, first, ROW, ROWS};
    OK(cuMemcpy2D_v2_ptds(&rect));
    rect = (Rect){first, second, ROW, ROWS};
    OK(cuMemcpy2DUnaligned_v2_ptds(&rect));
    rect = (Rect){second, home, ROW, ROWS};
    OK(cuMemcpy2DAsync_v2_ptsz(&rect, NULL));
    EXPECT(arrived());
    BoxSide from = {.kind = HOST, .host = in, .pitch = ROW};
    BoxSide here = {.kind = DEVICE, .device = a, .pitch = ROW}, there = {.kind = DEVICE, .device = b, .pitch = ROW};
    Box box = {from, here, ROW, ROWS, 1};
    OK(cuMemcpy3D_v2_ptds(&box));
    box = (Box){here, there, ROW, ROWS, 1};
    OK(cuMemcpy3DAsync_v2_ptsz(&box, NULL));
    here.ctx = there.ctx = ctx;
    box = (Box){there, here, ROW, ROWS, 1};
    OK(cuMemcpy3DPeer_ptds(&box));
    box = (Box){here, there, ROW, ROWS, 1};
    OK(cuMemcpy3DPeerAsync_ptsz(&box, NULL));
    OK(cuMemcpyDtoH_v2_ptds(out, b, N));
    EXPECT(arrived());
}

static void batches(void) {
    Attributes attributes = {.order = 1};
    size_t size = N, first = 0, failed = 0;
    CUdeviceptr host = (CUdeviceptr)in, home = (CUdeviceptr)out;
    OK(cuMemcpyBatchAsync_ptsz(&a, &host, &size, 1, &attributes, &first, 1, &failed, NULL));
    OK(cuMemcpyBatchAsync_v2_ptsz(&b, &a, &size, 1, &attributes, &first, 1, NULL));
    OK(cuMemcpyWithAttributesAsync_ptsz(home, b, N, &attributes, NULL));
    EXPECT(arrived());
    Operand from = {1, host, 0, 0, {0, 0}}, one = {1, a, 0, 0, {1, 0}}, two = {1, b, 0, 0, {1, 0}},
            to = {1, home, 0, 0, {0, 0}};
    Operation op = {from, one, ROW, ROWS, 1, 1, 0};
    OK(cuMemcpy3DBatchAsync_ptsz(1, &op, &failed, 0, NULL));
    op.src = one, op.dst = two;
    OK(cuMemcpy3DBatchAsync_v2_ptsz(1, &op, 0, NULL));
    op.src = two, op.dst = to;
    OK(cuMemcpy3DWithAttributesAsync_ptsz(&op, 0, NULL));
    EXPECT(arrived());
}

static void queries(void) {
    int priority = 9, device = 9, capturing = 9;
    unsigned flags = 9;
    unsigned long long id = 0;
    CUcontext of = NULL;
    CUgreenCtx green = (CUgreenCtx)1;
    unsigned attribute[16] = {0}, resource[36];
    OK(cuStreamGetPriority_ptsz(NULL, &priority));
    IS(0, priority);
    OK(cuStreamGetFlags_ptsz(NULL, &flags));
    IS(0, flags);
    OK(cuStreamGetId_ptsz(NULL, &id));
    EXPECT(id != other_id);
    OK(cuStreamGetCtx_ptsz(NULL, &of));
    EXPECT(of == ctx);
    OK(cuStreamGetCtx_v2_ptsz(NULL, &of, &green));
    EXPECT(of == ctx && green == NULL);
    OK(cuStreamGetDevice_ptsz(NULL, &device));
    IS(0, device);
    OK(cuStreamGetDevResource_ptsz(NULL, resource, 1));
    IS(1, resource[0]);
    attribute[0] = 2;
    OK(cuStreamSetAttribute_ptsz(NULL, 3, attribute));
    attribute[0] = 0;
    OK(cuStreamGetAttribute_ptsz(NULL, 3, attribute));
    IS(2, attribute[0]);
    OK(cuStreamCopyAttributes_ptsz(NULL, NULL));
    OK(cuStreamIsCapturing_ptsz(NULL, &capturing));
    IS(0, capturing);
    OK(cuStreamQuery_ptsz(NULL));
}

static volatile int called;
static void counts(void *by) { called += *(int *)by; }
static void told(CUstream stream, CUresult status, void *by) {
    (void)stream;
    called += status ? 1000 : *(int *)by;
}

static void work(CUevent event) {
    static int one = 1, ten = 10;
    unsigned by = 2;
    void *params[] = {&a, &by};
    Config config = {{1, 1, 1}, {1, 1, 1}, 0, NULL, NULL, 0};
    OK(cuMemsetD32Async_ptsz(a, 0, 1, NULL));
    OK(cuLaunchKernel_ptsz(add, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuLaunchKernelEx_ptsz(&config, add, params, NULL));
    OK(cuLaunchCooperativeKernel_ptsz(add, 1, 1, 1, 1, 1, 1, 0, NULL, params));
    IS(6, value(a));
    OK(cuLaunchHostFunc_ptsz(NULL, counts, &one));
    OK(cuLaunchHostFunc_v2_ptsz(NULL, counts, &one, 1));
    OK(cuStreamAddCallback_ptsz(NULL, told, &ten, 0));
    OK(cuStreamSynchronize_ptsz(NULL));
    IS(12, called);
    OK(cuEventRecord_ptsz(event, NULL));
    OK(cuStreamWaitEvent_ptsz(NULL, event, 0));
    OK(cuEventSynchronize(event));
    OK(cuEventRecordWithFlags_ptsz(event, NULL, 0));
    OK(cuEventSynchronize(event));
}

static void words(void) {
    enum { WAIT32 = 1, WRITE32 = 2 };
    int old = 0;
    Word list[] = {{WRITE32, a, 21, 0, 0, 0}, {WAIT32, a, 21, EQUAL, 0, 0}};
    OK(cuStreamWriteValue32_v2_ptsz(NULL, a, 5, 0));
    OK(cuStreamWaitValue32_v2_ptsz(NULL, a, 5, EQUAL));
    OK(cuStreamWriteValue64_v2_ptsz(NULL, a + 8, 6, 0));
    OK(cuStreamWaitValue64_v2_ptsz(NULL, a + 8, 6, EQUAL));
    IS(5, value(a));
    OK(cuStreamBatchMemOp_v2_ptsz(NULL, 2, list, 0));
    IS(21, value(a));
    CU(cuDeviceGetAttribute(&old, 92, 0));
    if (!old) return;
    OK(cuStreamWriteValue32_ptsz(NULL, a, 7, 0));
    OK(cuStreamWaitValue32_ptsz(NULL, a, 7, EQUAL));
    OK(cuStreamWriteValue64_ptsz(NULL, a + 8, 8, 0));
    OK(cuStreamWaitValue64_ptsz(NULL, a + 8, 8, EQUAL));
    IS(7, value(a));
    OK(cuStreamBatchMemOp_ptsz(NULL, 2, list, 0));
    IS(21, value(a));
}

static void pools(void) {
    CUmemoryPool pool;
    CUdeviceptr p, q;
    CU(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync_ptsz(&p, 64, NULL));
    OK(cuMemAllocFromPoolAsync_ptsz(&q, 64, pool, NULL));
    OK(cuMemsetD32Async_ptsz(p, 8, 16, NULL));
    OK(cuMemcpyDtoDAsync_v2_ptsz(q, p, 64, NULL));
    IS(8, value(q));
    OK(cuMemFreeAsync_ptsz(p, NULL));
    OK(cuMemFreeAsync_ptsz(q, NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
}

static void captures(void) {
    CUgraph graph, same;
    CUgraphExec exec;
    CUgraphNode node;
    const CUgraphNode *tips;
    const void *edges;
    unsigned long long id = 0;
    size_t count = 0;
    int status = 9;
    OK(cuStreamBeginCapture_ptsz(NULL));
    OK(cuStreamIsCapturing_ptsz(NULL, &status));
    IS(1, status);
    OK(cuStreamGetCaptureInfo_ptsz(NULL, &status, &id));
    IS(1, status);
    OK(cuStreamEndCapture_ptsz(NULL, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamBeginCapture_v2_ptsz(NULL, RELAXED));
    OK(cuMemsetD32Async_ptsz(a, 31, 1, NULL));
    OK(cuStreamGetCaptureInfo_v2_ptsz(NULL, &status, &id, &same, &tips, &count));
    IS(1, count);
    node = tips[0];
    OK(cuStreamUpdateCaptureDependencies_ptsz(NULL, &node, 1, 1));
    OK(cuStreamUpdateCaptureDependencies_v2_ptsz(NULL, &node, NULL, 1, 1));
    OK(cuStreamGetCaptureInfo_v3_ptsz(NULL, &status, &id, &same, &tips, &edges, &count));
    IS(1, count);
    OK(cuStreamEndCapture_ptsz(NULL, &graph));
    EXPECT(graph == same);
    OK(cuStreamBeginCaptureToGraph_ptsz(NULL, graph, &node, NULL, 1, RELAXED));
    OK(cuMemsetD32Async_ptsz(a + 4, 32, 1, NULL));
    OK(cuStreamEndCapture_ptsz(NULL, &same));
    EXPECT(graph == same);
    Instantiation how = {.flags = 0, .result = 9};
    OK(cuGraphInstantiateWithParams_ptsz(&exec, graph, &how));
    IS(0, how.result);
    OK(cuGraphUpload_ptsz(exec, NULL));
    OK(cuGraphLaunch_ptsz(exec, NULL));
    IS(31, value(a));
    IS(32, value(a + 4));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

/* The legacy stream waits for all of these streams, and they wait for it. */
static void legacy(CUstream beside) {
    OK(cuMemsetD32Async(a, 77, 1, NULL));
    FAILS(NOT_READY, cuStreamQuery(NULL));
    OK(cuMemsetD32Async_ptsz(b, 78, 1, NULL));
    FAILS(NOT_READY, cuStreamQuery_ptsz(NULL));
    OK(cuStreamWriteValue32_v2(beside, flag, 1, 0));
    OK(cuStreamSynchronize_ptsz(NULL));
    IS(77, value(a));
    IS(78, value(b));
}

int main(void) {
    CUmodule module;
    CUarray one, two;
    CUevent event;
    CUstream beside;
    pthread_t other;
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } line = {N, 0, 1, 1};
    add = setup("add", &module);
    CU(cuCtxGetCurrent(&ctx));
    CU(cuMemAlloc_v2(&flag, 4));
    CU(cuMemAlloc_v2(&a, N));
    CU(cuMemAlloc_v2(&b, N));
    CU(cuArrayCreate_v2(&one, &line));
    CU(cuArrayCreate_v2(&two, &line));
    CU(cuEventCreate(&event, 0));
    CU(cuStreamCreate(&beside, 1));
    CU(cuMemsetD32_v2(flag, 0, 1));
    CU(cuCtxSynchronize());
    for (int i = 0; i < N; i++) in[i] = (unsigned char)(i * 7 + 1);
    pthread_create(&other, NULL, stands_still, NULL);
    while (!waiting) usleep(200);
    fills();
    copies();
    shapes(one, two);
    batches();
    queries();
    work(event);
    words();
    pools();
    captures();
    legacy(beside);
    pthread_join(other, NULL);
    return done("perthread");
}
