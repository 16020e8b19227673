/* Streams, their attributes, words that they write and wait for, events, and rules of capture. */
#include "tell.h"

#include <pthread.h>

enum { NON_BLOCKING = 1, SYNC_POLICY = 3, PRIORITY = 8, WINDOW = 1, NO_TIMING = 2 };
enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };
static const CUstream LEGACY = (CUstream)1, PER_THREAD = (CUstream)2;

typedef union {
    unsigned words[16];
    struct {
        void *base;
        size_t bytes;
        float ratio;
        int hit, miss;
    } window;
} Attribute;
typedef struct {
    unsigned operation;
    CUdeviceptr at;
    unsigned long long value;
    unsigned flags;
    CUdeviceptr alias;
    unsigned long long pad;
} Word;
_Static_assert(sizeof(Word) == 48, "as cuda.h");

static CUcontext ctx;
static CUdeviceptr memory;

static void queries(void) {
    CUstream plain, first, beyond, gone;
    unsigned flags = 9;
    int priority = 9, least = 0, greatest = 0, value = -1;
    unsigned long long id[5] = {0};
    CUcontext in;
    CUgreenCtx green = (CUgreenCtx)1;
    CUdevice device = -1;
    CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    OK(cuStreamCreate(&plain, 0));
    OK(cuStreamCreateWithPriority(&first, NON_BLOCKING, greatest));
    OK(cuStreamCreateWithPriority(&beyond, 0, greatest - 100));
    FAILS(INVALID_VALUE, cuStreamCreate(&gone, 0x10));
    FAILS(INVALID_VALUE, cuStreamCreateWithPriority(&gone, 0x10, 0));
    FAILS(INVALID_VALUE, cuStreamCreate(NULL, 0));
    OK(cuStreamGetPriority(plain, &priority));
    IS(0, priority);
    OK(cuStreamGetPriority(first, &priority));
    EXPECT(priority == greatest);
    OK(cuStreamGetPriority(beyond, &priority));
    EXPECT(priority == greatest);
    OK(cuStreamGetPriority(NULL, &priority));
    IS(0, priority);
    OK(cuStreamGetFlags(plain, &flags));
    IS(0, flags);
    OK(cuStreamGetFlags(first, &flags));
    IS(NON_BLOCKING, flags);
    OK(cuStreamGetFlags(LEGACY, &flags));
    IS(0, flags);
    OK(cuStreamGetId(plain, &id[0]));
    OK(cuStreamGetId(first, &id[1]));
    OK(cuStreamGetId(NULL, &id[2]));
    OK(cuStreamGetId(LEGACY, &id[3]));
    OK(cuStreamGetId(PER_THREAD, &id[4]));
    EXPECT(id[0] != id[1] && id[1] != id[2] && id[2] == id[3] && id[3] != id[4]);
    OK(cuStreamGetCtx(plain, &in));
    EXPECT(in == ctx);
    OK(cuStreamGetCtx(NULL, &in));
    EXPECT(in == ctx);
    OK(cuStreamGetCtx_v2(first, &in, &green));
    EXPECT(in == ctx && green == NULL);
    green = (CUgreenCtx)1;
    OK(cuStreamGetGreenCtx(plain, &green));
    EXPECT(green == NULL);
    OK(cuStreamGetDevice(plain, &device));
    IS(0, device);
    FAILS(INVALID_VALUE, cuStreamGetPriority(plain, NULL));
    FAILS(INVALID_VALUE, cuStreamGetFlags(plain, NULL));
    FAILS(INVALID_VALUE, cuStreamGetId(plain, NULL));
    FAILS(INVALID_VALUE, cuStreamGetCtx(plain, NULL));
    FAILS(INVALID_VALUE, cuStreamGetDevice(plain, NULL));
    OK(cuStreamQuery(plain));
    OK(cuStreamSynchronize(LEGACY));
    OK(cuStreamSynchronize(PER_THREAD));
    OK(cuStreamIsCapturing(plain, &value));
    IS(0, value);
    /* A destroyed stream. */
    gone = beyond;
    OK(cuStreamDestroy_v2(beyond));
    FAILS(INVALID_HANDLE, cuStreamQuery(gone));
    FAILS(INVALID_HANDLE, cuStreamSynchronize(gone));
    FAILS(INVALID_HANDLE, cuStreamGetPriority(gone, &priority));
    FAILS(INVALID_HANDLE, cuStreamGetCtx(gone, &in));
    FAILS(INVALID_HANDLE, cuStreamDestroy_v2(gone));
    FAILS(INVALID_HANDLE, cuMemsetD8Async(memory, 0, 4, gone));
    FAILS_EITHER(INVALID_HANDLE, INVALID_VALUE, cuStreamDestroy_v2(NULL));
    OK(cuStreamDestroy_v2(plain));
    OK(cuStreamDestroy_v2(first));
}

static void attributes(void) {
    CUstream one, two;
    Attribute set = {{0}}, got;
    CU(cuStreamCreate(&one, NON_BLOCKING));
    CU(cuStreamCreate(&two, NON_BLOCKING));
    memset(&got, 0xff, sizeof got);
    OK(cuStreamGetAttribute(one, SYNC_POLICY, &got));
    EXPECT(got.words[0] == (unsigned)-1); /* Nothing was set. */
    set.words[0] = 4;
    OK(cuStreamSetAttribute(one, SYNC_POLICY, &set));
    OK(cuStreamGetAttribute(one, SYNC_POLICY, &got));
    IS(4, got.words[0]);
    memset(&set, 0, sizeof set);
    set.window.base = (void *)memory;
    set.window.bytes = 1024;
    set.window.ratio = 0.5f;
    set.window.hit = 2, set.window.miss = 1;
    OK(cuStreamSetAttribute(one, WINDOW, &set));
    OK(cuStreamCopyAttributes(two, one));
    memset(&got, 0, sizeof got);
    OK(cuStreamGetAttribute(two, SYNC_POLICY, &got));
    IS(4, got.words[0]);
    OK(cuStreamGetAttribute(two, WINDOW, &got));
    IS(2, got.window.hit);
    OK(cuStreamGetAttribute(two, PRIORITY, &got));
    IS(0, (int)got.words[0]);
    FAILS(INVALID_VALUE, cuStreamGetAttribute(one, 99, &got));
    FAILS(INVALID_VALUE, cuStreamSetAttribute(one, 99, &set));
    FAILS(INVALID_VALUE, cuStreamGetAttribute(one, SYNC_POLICY, NULL));
    FAILS(INVALID_VALUE, cuStreamSetAttribute(one, SYNC_POLICY, NULL));
    OK(cuStreamDestroy_v2(two));
    FAILS(INVALID_HANDLE, cuStreamCopyAttributes(one, two));
    FAILS(INVALID_HANDLE, cuStreamGetAttribute(two, SYNC_POLICY, &got));
    OK(cuStreamDestroy_v2(one));
}

static void words(void) {
    enum { AT_LEAST = 0, EQUAL = 1, AND = 2, NOR = 3, WAIT32 = 1, WRITE32 = 2, WAIT64 = 4, WRITE64 = 5 };
    CUstream writer, reader;
    unsigned long long value = 0;
    int old = 0;
    CU(cuStreamCreate(&writer, NON_BLOCKING));
    CU(cuStreamCreate(&reader, NON_BLOCKING));
    /* Fills return before they complete, and these streams are not ordered with the NULL stream. */
    OK(cuMemsetD8_v2(memory, 0, 64));
    OK(cuStreamSynchronize(NULL));
    /* The reader waits for each value of the writer in turn. */
    OK(cuStreamWaitValue32_v2(reader, memory, 7, EQUAL));
    OK(cuStreamWaitValue64_v2(reader, memory + 8, 5, AT_LEAST));
    OK(cuStreamWaitValue32_v2(reader, memory + 16, 6, AND));
    OK(cuStreamWaitValue32_v2(reader, memory + 20, 0xfffffff0u, NOR));
    OK(cuStreamWriteValue32_v2(reader, memory + 24, 99, 0));
    FAILS(NOT_READY, cuStreamQuery(reader));
    OK(cuStreamWriteValue32_v2(writer, memory, 7, 0));
    OK(cuStreamWriteValue64_v2(writer, memory + 8, 6, 0));
    OK(cuStreamWriteValue32_v2(writer, memory + 16, 2, 0));
    OK(cuStreamWriteValue32_v2(writer, memory + 20, 1, 0));
    OK(cuStreamSynchronize(reader));
    OK(cuMemcpyDtoH_v2(&value, memory + 24, 4));
    IS(99, value);
    CU(cuDeviceGetAttribute(&old, 92, 0));
    if (old) {
        OK(cuStreamWriteValue32(writer, memory, 11, 0));
        OK(cuStreamWriteValue64(writer, memory + 8, 12, 0));
        OK(cuStreamWaitValue32(writer, memory, 11, EQUAL));
        OK(cuStreamWaitValue64(writer, memory + 8, 12, EQUAL));
        OK(cuStreamSynchronize(writer));
    }
    Word batch[] = {{WRITE32, memory, 21, 0, 0, 0}, {WAIT32, memory, 21, EQUAL, 0, 0},
                    {WRITE64, memory + 8, 1ull << 40, 0, 0, 0}, {WAIT64, memory + 8, 1ull << 40, EQUAL, 0, 0}};
    if (old) OK(cuStreamBatchMemOp(writer, 2, batch, 0));
    OK(cuStreamBatchMemOp_v2(writer, 4, batch, 0));
    OK(cuStreamSynchronize(writer));
    OK(cuMemcpyDtoH_v2(&value, memory + 8, 8));
    IS(1ll << 40, value);
    FAILS(INVALID_VALUE, cuStreamBatchMemOp_v2(writer, 1, NULL, 0));
    FAILS(INVALID_VALUE, cuStreamBatchMemOp_v2(writer, 257, batch, 0));
    batch[0].operation = 99;
    FAILS(INVALID_VALUE, cuStreamBatchMemOp_v2(writer, 1, batch, 0));
    FAILS(INVALID_VALUE, cuStreamWriteValue32_v2(writer, memory + 2, 1, 0));
    FAILS(INVALID_VALUE, cuStreamWaitValue64_v2(writer, memory + 4, 1, 0));
    FAILS(INVALID_VALUE, cuStreamWriteValue32_v2(writer, 0, 1, 0));
    OK(cuStreamDestroy_v2(writer));
    OK(cuStreamDestroy_v2(reader));
}

static void events(void) {
    CUevent start, stop, untimed, bad;
    CUstream stream;
    float ms = -1;
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&stop, 1));
    OK(cuEventCreate(&untimed, NO_TIMING));
    FAILS(INVALID_VALUE, cuEventCreate(&bad, 0x10));
    FAILS(INVALID_VALUE, cuEventCreate(&bad, 4));
    FAILS(INVALID_VALUE, cuEventCreate(NULL, 0));
    /* Events that were never recorded. */
    OK(cuEventQuery(start));
    OK(cuEventSynchronize(start));
    OK(cuStreamWaitEvent(stream, start, 0));
    FAILS(INVALID_HANDLE, cuEventElapsedTime(&ms, start, stop));
    FAILS(INVALID_HANDLE, cuEventElapsedTime_v2(&ms, start, stop));
    OK(cuEventRecord(start, stream));
    OK(cuMemsetD32Async(memory, 1, 16, stream));
    OK(cuEventRecordWithFlags(stop, stream, 0));
    FAILS(INVALID_VALUE, cuEventRecordWithFlags(stop, stream, 0x10));
    OK(cuEventRecord(untimed, NULL));
    OK(cuEventSynchronize(untimed));
    OK(cuEventSynchronize(stop));
    OK(cuEventQuery(stop));
    OK(cuEventElapsedTime(&ms, start, stop));
    EXPECT(ms >= 0 && ms < 60000);
    ms = -1;
    OK(cuEventElapsedTime_v2(&ms, start, stop));
    EXPECT(ms >= 0 && ms < 60000);
    FAILS(INVALID_HANDLE, cuEventElapsedTime(&ms, start, untimed));
    FAILS(INVALID_VALUE, cuEventElapsedTime(NULL, start, stop));
    FAILS(INVALID_VALUE, cuStreamWaitEvent(stream, stop, 0x10));
    /* After a wait for a word that was not written. */
    CU(cuMemsetD32_v2(memory, 0, 1));
    CU(cuStreamSynchronize(NULL));
    OK(cuStreamWaitValue32_v2(stream, memory, 1, 1));
    OK(cuEventRecord(stop, stream));
    FAILS(NOT_READY, cuEventQuery(stop));
    FAILS(NOT_READY, cuEventElapsedTime(&ms, start, stop));
    CUstream other;
    CU(cuStreamCreate(&other, NON_BLOCKING));
    OK(cuStreamWriteValue32_v2(other, memory, 1, 0));
    OK(cuEventSynchronize(stop));
    OK(cuStreamDestroy_v2(other));
    OK(cuEventDestroy_v2(untimed));
    FAILS(INVALID_HANDLE, cuEventDestroy_v2(untimed));
    FAILS(INVALID_HANDLE, cuEventRecord(untimed, stream));
    FAILS(INVALID_HANDLE, cuEventQuery(untimed));
    FAILS(INVALID_HANDLE, cuStreamWaitEvent(stream, untimed, 0));
    /* An event of a destroyed context. */
    CUcontext short_lived;
    CUevent within;
    CUstream lost;
    OK(cuCtxCreate_v2(&short_lived, 0, 0));
    OK(cuEventCreate(&within, 0));
    OK(cuStreamCreate(&lost, 0));
    OK(cuCtxDestroy_v2(short_lived));
    CU(cuCtxSetCurrent(ctx));
    FAILS_EITHER(INVALID_HANDLE, CONTEXT_DESTROYED, cuEventQuery(within));
    FAILS_EITHER(INVALID_HANDLE, CONTEXT_DESTROYED, cuStreamQuery(lost));
    OK(cuEventDestroy_v2(start));
    OK(cuEventDestroy_v2(stop));
    OK(cuStreamDestroy_v2(stream));
}

static CUstream captured;

static void *ends_elsewhere(void *unused) {
    CUgraph graph;
    CU(cuCtxSetCurrent(ctx));
    FAILS(WRONG_THREAD, cuStreamEndCapture(captured, &graph));
    return unused;
}

/* Calls that a capture does not allow invalidate it; each with its error. */
static void illegal(void) {
    CUstream stream, other, third;
    CUevent fork, outside, event;
    CUgraph graph = (CUgraph)1, none;
    CUdeviceptr p;
    int status = 9;
    unsigned long long id = 0, second = 0;
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    CU(cuStreamCreate(&other, NON_BLOCKING));
    CU(cuStreamCreate(&third, 0));
    CU(cuEventCreate(&fork, NO_TIMING));
    CU(cuEventCreate(&event, NO_TIMING));
    CU(cuEventCreate(&outside, NO_TIMING));
    FAILS(CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(NULL, RELAXED));
    FAILS(CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(LEGACY, RELAXED));
    FAILS(INVALID_VALUE, cuStreamBeginCapture_v2(stream, 9));
    FAILS(ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    OK(cuStreamGetCaptureInfo(stream, &status, &id));
    IS(0, status);
    OK(cuStreamBeginCapture(stream));
    FAILS(ILLEGAL_STATE, cuStreamBeginCapture_v2(stream, RELAXED));
    OK(cuStreamGetCaptureInfo(stream, &status, &id));
    IS(1, status);
    OK(cuStreamEndCapture(stream, &graph));
    EXPECT(graph != NULL);
    OK(cuGraphDestroy(graph));
    OK(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    OK(cuStreamGetCaptureInfo(stream, &status, &second));
    EXPECT(second != id);
    FAILS(CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
    OK(cuStreamIsCapturing(stream, &status));
    IS(2, status);
    FAILS(CAPTURE_INVALIDATED, cuMemsetD32Async(memory, 0, 1, stream));
    FAILS(CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    EXPECT(graph == NULL);
    /* A fork that is not joined; a capture does not end in a forked stream. */
    OK(cuStreamBeginCapture_v2(stream, RELAXED));
    OK(cuEventRecord(fork, stream));
    FAILS(CAPTURED_EVENT, cuEventQuery(fork));
    FAILS_EITHER(CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, cuStreamEndCapture(stream, &none));
    OK(cuStreamBeginCapture_v2(stream, RELAXED));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(cuMemsetD32Async(memory, 0, 1, other));
    FAILS(CAPTURE_UNMATCHED, cuStreamEndCapture(other, &none));
    FAILS_EITHER(CAPTURE_UNJOINED, CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &none));
    OK(cuStreamBeginCapture_v2(stream, RELAXED));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(cuMemsetD32Async(memory, 0, 1, other));
    FAILS(CAPTURE_UNJOINED, cuStreamEndCapture(stream, &none));
    /* An event recorded outside; two captures in one stream. */
    OK(cuEventRecord(outside, third));
    OK(cuStreamBeginCapture_v2(stream, RELAXED));
    FAILS(CAPTURE_ISOLATION, cuStreamWaitEvent(stream, outside, 0));
    FAILS(CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &none));
    OK(cuStreamBeginCapture_v2(stream, RELAXED));
    OK(cuStreamBeginCapture_v2(other, RELAXED));
    OK(cuEventRecord(fork, stream));
    FAILS(CAPTURE_MERGE, cuStreamWaitEvent(other, fork, 0));
    FAILS(CAPTURE_INVALIDATED, cuStreamEndCapture(other, &none));
    FAILS(CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &none));
    /* The legacy stream would wait for a blocking stream. */
    OK(cuStreamBeginCapture_v2(third, RELAXED));
    FAILS(CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    FAILS(CAPTURE_IMPLICIT, cuMemsetD32Async(memory, 0, 1, NULL));
    FAILS(CAPTURE_INVALIDATED, cuStreamEndCapture(third, &none));
    /* Only the thread that began a capture ends it, except relaxed captures. */
    pthread_t thread;
    captured = stream;
    OK(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    pthread_create(&thread, NULL, ends_elsewhere, NULL);
    pthread_join(thread, NULL);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    /* Unsafe calls, by the thread's mode. */
    int mode = RELAXED;
    OK(cuStreamBeginCapture_v2(stream, GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    IS(GLOBAL, mode);
    OK(cuMemAlloc_v2(&p, 64));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    IS(RELAXED, mode);
    FAILS(CAPTURE_UNSUPPORTED, cuMemFree_v2(p));
    FAILS(CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &none));
    OK(cuMemFree_v2(p));
    mode = 9;
    FAILS(INVALID_VALUE, cuThreadExchangeStreamCaptureMode(&mode));
    FAILS(INVALID_VALUE, cuThreadExchangeStreamCaptureMode(NULL));
}

/* The dependencies of a capture's next node, read and set in all forms. */
static void dependencies(void) {
    CUstream stream;
    CUgraph graph, now;
    CUgraphNode first, second;
    const CUgraphNode *tips;
    const void *edges = NULL;
    size_t count = 9;
    int status;
    unsigned long long id;
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(stream, RELAXED));
    OK(cuMemsetD32Async(memory, 0, 1, stream));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &now, &tips, &count));
    IS(1, count);
    first = tips[0];
    OK(cuMemsetD32Async(memory, 1, 1, stream));
    OK(cuStreamGetCaptureInfo_v3(stream, &status, &id, &now, &tips, &edges, &count));
    IS(1, count);
    second = tips[0];
    EXPECT(second != first);
    OK(cuStreamUpdateCaptureDependencies_v2(stream, &first, NULL, 1, 0));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &tips, &count));
    IS(2, count);
    OK(cuStreamUpdateCaptureDependencies(stream, &first, 1, 1));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &tips, &count));
    EXPECT(count == 1 && tips[0] == first);
    FAILS(INVALID_VALUE, cuStreamUpdateCaptureDependencies(stream, &first, 1, 9));
    OK(cuStreamUpdateCaptureDependencies_v2(stream, &second, NULL, 1, 1));
    OK(cuStreamEndCapture(stream, &graph));
    EXPECT(graph == now);
    FAILS(ILLEGAL_STATE, cuStreamUpdateCaptureDependencies(stream, &first, 1, 1));
    OK(cuGraphDestroy(graph));
    /* Into an existing graph. */
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEmptyNode(&first, graph, NULL, 0));
    OK(cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, RELAXED));
    OK(cuMemsetD32Async(memory, 5, 1, stream));
    OK(cuStreamEndCapture(stream, &now));
    EXPECT(now == graph);
    OK(cuGraphNodeGetDependentNodes(first, NULL, &count));
    IS(1, count);
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(stream));
}

int main(void) {
    ctx = begin();
    CU(cuMemAlloc_v2(&memory, 4096));
    queries();
    attributes();
    words();
    events();
    illegal();
    dependencies();
    return done("streams");
}
