/* One kind of graph per run, as a program uses it; usage: graphs NAME.
 * Exits 0 if all results are right. Runs on any driver. */
#define _GNU_SOURCE
#include "graph.h"

typedef unsigned long long Handle;

typedef struct {
    int type, handle_types, location, device;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
    const void *access;
    size_t accesses, bytes;
    CUdeviceptr address;
} AllocParams;
typedef struct {
    Handle handle;
    int kind;
    unsigned size;
    CUgraph *bodies;
    CUcontext ctx;
} ConditionalParams;
/* CUgraphNodeParams. */
typedef struct {
    int type, reserved[3];
    union {
        KernelParams kernel;
        struct {
            FillParams fill;
            CUcontext ctx;
        } fill;
        AllocParams alloc;
        ConditionalParams conditional;
        CUdeviceptr freed;
        long long room[29];
    };
    long long reserved2;
} AnyParams;

enum { KERNEL = 0, FILL = 2, ALLOC = 10, FREE = 11, CONDITIONAL = 13 };
enum { IF = 0, WHILE = 1, SWITCH = 2 };
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, LAUNCH_TIMEOUT = 702, NOT_SUPPORTED = 801 };
enum { NON_BLOCKING = 1, RELAXED = 2, AUTO_FREE = 1, ASSIGN_DEFAULT = 1 };

_Static_assert(sizeof(AnyParams) == 256, "as cuda.h");
_Static_assert(sizeof(AllocParams) == 120, "as cuda.h");

static CUfunction set, step, add;
static CUcontext ctx;
static CUdevice device;
static CUstream stream;
/* Four words that graphs change. */
static CUdeviceptr words;
static unsigned seen[4];

#define EXPECT(what)                                                          \
    do {                                                                      \
        if (!(what)) {                                                        \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what);        \
            exit(EXIT_WRONG);                                                 \
        }                                                                     \
    } while (0)
#define FAILS(code, call)                                                     \
    do {                                                                      \
        CUresult got_ = (call);                                               \
        if (got_ != (code)) {                                                 \
            fprintf(stderr, "line %d: %s returned %d\n", __LINE__, #call, got_); \
            exit(EXIT_WRONG);                                                 \
        }                                                                     \
    } while (0)

static void start(void) {
    CUmodule module;
    set = setup("set", &module);
    CU(cuModuleGetFunction(&step, module, "step"));
    CU(cuModuleGetFunction(&add, module, "add"));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&ctx, device));
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    CU(cuMemAlloc_v2(&words, sizeof seen));
}

/* Launches with cleared words, and reads them. */
static void run(CUgraphExec exec) {
    CU(cuMemsetD32Async(words, 0, 4, stream));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH_v2(seen, words, sizeof seen));
}

static CUgraphNode kernel(CUgraph graph, CUgraphNode behind, CUfunction f, void **params) {
    AnyParams any = {.type = KERNEL};
    any.kernel = (KernelParams){f, {1, 1, 1}, {1, 1, 1}, 0, params, NULL, NULL, NULL};
    CUgraphNode node;
    CU(cuGraphAddNode(&node, graph, &behind, behind ? 1 : 0, &any));
    return node;
}

static CUgraphNode adds(CUgraph graph, CUgraphNode behind, int word, unsigned value) {
    CUdeviceptr at = words + 4 * (CUdeviceptr)word;
    return kernel(graph, behind, add, (void *[]){&at, &value});
}

static CUgraphNode sets(CUgraph graph, CUgraphNode behind, Handle handle, unsigned value) {
    return kernel(graph, behind, set, (void *[]){&handle, &value});
}

static CUgraphNode conditional(CUgraph graph, CUgraphNode behind, Handle handle, int kind,
                               unsigned size, CUgraph *bodies) {
    AnyParams any = {.type = CONDITIONAL};
    any.conditional = (ConditionalParams){handle, kind, size, NULL, ctx};
    CUgraphNode node;
    CU(cuGraphAddNode(&node, graph, &behind, behind ? 1 : 0, &any));
    for (unsigned i = 0; i < size; i++) bodies[i] = any.conditional.bodies[i];
    return node;
}

static AllocParams allocation(size_t bytes) {
    AllocParams params = {.type = 1, .location = 1, .device = device, .bytes = bytes};
    return params;
}

static unsigned long long used(int attribute) {
    unsigned long long value = 0;
    CU(cuDeviceGetGraphMemAttribute(device, attribute, &value));
    return value;
}

/* Allocation and free nodes, added by calls. */
static int memory(void) {
    CUgraph graph, copy;
    CUgraphNode made, filled, copied, freed, bad;
    CU(cuGraphCreate(&graph, 0));
    AllocParams params = allocation(4096);
    CU(cuGraphAddMemAllocNode(&made, graph, NULL, 0, &params));
    CUdeviceptr at = params.address;
    EXPECT(at != 0 && used(0) >= 4096 && used(1) >= 4096);
    AllocParams got;
    CU(cuGraphMemAllocNodeGetParams(made, &got));
    EXPECT(got.address == at && got.bytes == 4096 && got.location == 1);
    AnyParams fill = {.type = FILL};
    fill.fill.fill = (FillParams){at, 0, 77, 4, 4, 1};
    CU(cuGraphAddNode(&filled, graph, &made, 1, &fill));
    unsigned three = 3;
    copied = kernel(graph, filled, add, (void *[]){&at, &three});
    CU(cuGraphAddMemFreeNode(&freed, graph, &copied, 1, at));
    CUdeviceptr told;
    CU(cuGraphMemFreeNodeGetParams(freed, &told));
    EXPECT(told == at);
    FAILS(INVALID_VALUE, cuGraphAddMemFreeNode(&bad, graph, NULL, 0, at));
    FAILS(INVALID_VALUE, cuGraphAddMemFreeNode(&bad, graph, NULL, 0, words));
    FAILS(NOT_SUPPORTED, cuGraphDestroyNode(copied));
    FAILS(NOT_SUPPORTED, cuGraphClone(&copy, graph));
    AllocParams none = allocation(0), huge = allocation((size_t)1 << 40);
    FAILS(INVALID_VALUE, cuGraphAddMemAllocNode(&bad, graph, NULL, 0, &none));
    FAILS(OUT_OF_MEMORY, cuGraphAddMemAllocNode(&bad, graph, NULL, 0, &huge));
    CUgraphExec exec, second;
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    FAILS(INVALID_VALUE, cuGraphInstantiateWithFlags(&second, graph, 0));
    for (int i = 0; i < 3; i++) run(exec);
    FAILS(INVALID_VALUE, cuMemFree_v2(at));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));

    /* Not freed in the graph: a second launch fails until the program frees the memory. */
    CU(cuGraphCreate(&graph, 0));
    params = allocation(64);
    CU(cuGraphAddMemAllocNode(&made, graph, NULL, 0, &params));
    at = params.address;
    fill.fill.fill = (FillParams){at, 0, 5, 4, 4, 1};
    CU(cuGraphAddNode(&filled, graph, &made, 1, &fill));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        run(exec);
        CU(cuMemcpyDtoH_v2(seen, at, sizeof seen));
        EXPECT(seen[0] == 5 && seen[3] == 5);
        FAILS(INVALID_VALUE, cuGraphLaunch(exec, stream));
        if (i == 0) CU(cuMemFree_v2(at));
        else CU(cuMemFreeAsync(at, stream));
        FAILS(INVALID_VALUE, cuMemFreeAsync(at, stream));
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphInstantiateWithFlags(&exec, graph, AUTO_FREE));
    for (int i = 0; i < 3; i++) run(exec);
    /* The allocation outlives the instance. */
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    CU(cuMemcpyDtoH_v2(seen, at, sizeof seen));
    EXPECT(seen[0] == 5);
    CU(cuMemFree_v2(at));
    FAILS(INVALID_VALUE, cuMemFree_v2(at));
    unsigned long long zero = 0, one = 1;
    CU(cuDeviceGraphMemTrim(device));
    EXPECT(used(0) == 0 && used(2) == 0 && used(1) >= 4096);
    FAILS(INVALID_VALUE, cuDeviceSetGraphMemAttribute(device, 1, &one));
    FAILS(INVALID_VALUE, cuDeviceSetGraphMemAttribute(device, 0, &zero));
    CU(cuDeviceSetGraphMemAttribute(device, 1, &zero));
    EXPECT(used(1) == 0);
    puts("memory: right");
    return 0;
}

/* Allocation and free nodes, created by a capture. */
static int captured_memory(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at;
    CU(cuStreamBeginCapture_v2(stream, RELAXED));
    CU(cuMemAllocAsync(&at, 64, stream));
    CU(cuMemsetD32Async(at, 9, 4, stream));
    CU(cuMemcpyDtoDAsync_v2(words, at, 16, stream));
    CU(cuMemFreeAsync(at, stream));
    FAILS(INVALID_VALUE, cuMemFreeAsync(words, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        run(exec);
        EXPECT(seen[0] == 9 && seen[3] == 9);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    puts("captured_memory: right");
    return 0;
}

/* A captured graph that fills memory with `value` and copies its last words to `words`. */
static CUgraphExec filler(CUdeviceptr *at, size_t bytes, unsigned value, int frees, int flags) {
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamBeginCapture_v2(stream, RELAXED));
    CU(cuMemAllocAsync(at, bytes, stream));
    CU(cuMemsetD32Async(*at, value, bytes / 4, stream));
    CU(cuMemcpyDtoDAsync_v2(words, *at + bytes - sizeof seen, sizeof seen, stream));
    if (frees) CU(cuMemFreeAsync(*at, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, flags));
    CU(cuGraphDestroy(graph));
    return exec;
}

static void waits(void *gate) {
    while (!__atomic_load_n((int *)gate, __ATOMIC_ACQUIRE)) usleep(1000);
}

/* Large memory of graphs exists only while it is allocated. Graphs that are launched one after
 * another share memory. */
static int large(void) {
    enum { BYTES = 4 << 20 };
    CUdeviceptr at[5];
    CUgraphExec execs[5];
    for (unsigned i = 0; i < 5; i++) execs[i] = filler(&at[i], BYTES - 64, 10 + i, i < 3, 0);
    EXPECT(used(0) == 0 && at[0] != at[1] && at[1] != at[2]);
    for (unsigned i = 0; i < 6; i++) {
        run(execs[i % 3]);
        EXPECT(seen[0] == 10 + i % 3 && seen[3] == 10 + i % 3 && used(0) == BYTES);
    }
    /* What the program has not freed keeps its memory, and the other graphs get other memory. */
    for (unsigned i = 3; i < 5; i++) {
        run(execs[i]);
        EXPECT(seen[0] == 10 + i && used(0) == (i - 2) * BYTES);
        FAILS(INVALID_VALUE, cuGraphLaunch(execs[i], stream));
    }
    for (unsigned i = 0; i < 3; i++) {
        run(execs[i]);
        EXPECT(seen[0] == 10 + i && used(0) == 3 * BYTES);
    }
    CU(cuDeviceGraphMemTrim(device));
    EXPECT(used(0) == 2 * BYTES);
    for (unsigned i = 3; i < 5; i++) {
        CU(cuMemcpyDtoH_v2(seen, at[i] + BYTES - 64 - sizeof seen, sizeof seen));
        EXPECT(seen[0] == 10 + i && seen[3] == 10 + i);
    }
    CU(cuMemFree_v2(at[3]));
    CU(cuMemFreeAsync(at[4], stream));
    EXPECT(used(0) == 2 * BYTES);
    for (unsigned i = 0; i < 5; i++) {
        run(execs[i]);
        EXPECT(seen[0] == 10 + i);
    }
    EXPECT(used(0) == 2 * BYTES);
    CU(cuMemFree_v2(at[3]));
    /* Memory outlives the instance. */
    CU(cuGraphExecDestroy(execs[4]));
    CU(cuMemcpyDtoH_v2(seen, at[4], sizeof seen));
    EXPECT(seen[0] == 14);
    CU(cuMemFree_v2(at[4]));
    CU(cuDeviceGraphMemTrim(device));
    EXPECT(used(0) == 0 && used(1) == 3 * BYTES);

    /* Work of another stream does not get memory that unfinished work uses. */
    CUstream other;
    int gate = 0;
    CU(cuStreamCreate(&other, NON_BLOCKING));
    CU(cuLaunchHostFunc(stream, waits, &gate));
    CU(cuGraphLaunch(execs[0], stream));
    CU(cuGraphLaunch(execs[1], other));
    CU(cuStreamSynchronize(other));
    EXPECT(used(0) == 2 * BYTES);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    CU(cuStreamSynchronize(stream));
    CU(cuGraphLaunch(execs[2], other));
    CU(cuStreamDestroy_v2(other));
    run(execs[1]);
    EXPECT(seen[0] == 11 && used(0) == 2 * BYTES);

    CUdeviceptr kept;
    CUgraphExec again = filler(&kept, BYTES, 20, 0, AUTO_FREE);
    for (int i = 0; i < 3; i++) run(again);
    EXPECT(seen[0] == 20 && used(0) == 2 * BYTES);
    CU(cuDevicePrimaryCtxReset_v2(device));
    EXPECT(used(0) == 0);
    puts("large: right");
    return 0;
}

/* Graphs that together need more memory than the VM's limit succeed one after another, but not at
 * the same time. */
static int capped(void) {
    size_t free_bytes, total;
    CU(cuMemGetInfo_v2(&free_bytes, &total));
    size_t part = (total / 4 * 3) & ~(size_t)4095;
    CUdeviceptr at[4];
    CUgraphExec execs[4];
    for (unsigned i = 0; i < 4; i++) execs[i] = filler(&at[i], part, i, i < 2, 0);
    for (unsigned i = 0; i < 3; i++) {
        run(execs[i]);
        EXPECT(seen[0] == i);
    }
    CU(cuMemGetInfo_v2(&free_bytes, &total));
    EXPECT(free_bytes < total / 2);
    FAILS(OUT_OF_MEMORY, cuGraphLaunch(execs[3], stream));
    FAILS(OUT_OF_MEMORY, cuGraphLaunch(execs[0], stream));
    CU(cuMemFree_v2(at[2]));
    /* A launch that gets memory for one of two nodes only gives the memory back. */
    CUgraph graph;
    CUgraphNode first, second;
    CUgraphExec both;
    AllocParams one = allocation(part), two = allocation(part);
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemAllocNode(&first, graph, NULL, 0, &one));
    CU(cuGraphAddMemAllocNode(&second, graph, &first, 1, &two));
    CU(cuGraphInstantiateWithFlags(&both, graph, 0));
    FAILS(OUT_OF_MEMORY, cuGraphLaunch(both, stream));
    FAILS(OUT_OF_MEMORY, cuGraphUpload(both, stream));
    run(execs[1]);
    EXPECT(seen[0] == 1);
    run(execs[3]);
    EXPECT(seen[0] == 3);
    CU(cuMemFree_v2(at[3]));
    /* Other allocations get the memory that is kept for graphs. */
    CUdeviceptr more;
    CU(cuMemAlloc_v2(&more, part));
    EXPECT(used(0) == 0);
    puts("capped: right");
    return 0;
}

static void host_call(void *count) { ++*(int *)count; }

/* Conditional nodes, added by calls. */
static int conditions(void) {
    for (unsigned value = 0; value < 4; value++) {
        CUgraph graph, bodies[3], inner, none;
        Handle outer, in;
        CU(cuGraphCreate(&graph, 0));
        CU(cuGraphConditionalHandleCreate(&outer, graph, ctx, 0, 0));
        CUgraphExec exec;
        FAILS(INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, graph, 0)); /* Not used. */
        CUgraphNode first = sets(graph, NULL, outer, value);
        CUgraphNode branch = conditional(graph, first, outer, SWITCH, 3, bodies);
        for (int i = 0; i < 3; i++) adds(bodies[i], NULL, i, 10);
        /* A conditional node in the first body, with its own value. */
        CU(cuGraphConditionalHandleCreate(&in, bodies[0], ctx, 1, ASSIGN_DEFAULT));
        conditional(bodies[0], NULL, in, IF, 1, &inner);
        adds(inner, NULL, 0, 1);
        adds(graph, branch, 3, 5);
        static int calls;
        CUgraphNode host, bad;
        HostParams call = {host_call, &calls};
        CU(cuGraphAddHostNode(&host, graph, &branch, 1, &call));
        AnyParams other = {.type = CONDITIONAL};
        other.conditional = (ConditionalParams){in, IF, 1, NULL, ctx};
        FAILS(INVALID_VALUE, cuGraphAddNode(&bad, graph, NULL, 0, &other));
        other.conditional = (ConditionalParams){outer, WHILE, 2, NULL, ctx};
        FAILS(INVALID_VALUE, cuGraphAddNode(&bad, graph, NULL, 0, &other));
        other.conditional = (ConditionalParams){outer + 1, IF, 1, NULL, ctx};
        FAILS(INVALID_VALUE, cuGraphAddNode(&bad, graph, NULL, 0, &other));
        FAILS(NOT_SUPPORTED, cuGraphClone(&none, graph));
        int type;
        CU(cuGraphNodeGetType(branch, &type));
        EXPECT(type == CONDITIONAL);
        CUgraphExec again;
        CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
        CU(cuGraphInstantiateWithFlags(&again, graph, 0));
        int before = calls;
        for (int round = 0; round < 3; round++) {
            run(round == 1 ? again : exec);
            EXPECT(seen[0] == (value == 0 ? 11 : 0) && seen[1] == (value == 1 ? 10 : 0));
            EXPECT(seen[2] == (value == 2 ? 10 : 0) && seen[3] == 5);
        }
        EXPECT(calls == before + 3);
        /* Another value, in the instance. */
        unsigned changed = 1;
        AnyParams any = {.type = KERNEL};
        any.kernel = (KernelParams){set, {1, 1, 1}, {1, 1, 1}, 0, (void *[]){&outer, &changed},
                                    NULL, NULL, NULL};
        CU(cuGraphExecNodeSetParams(exec, first, &any));
        run(exec);
        EXPECT(seen[0] == 0 && seen[1] == 10 && seen[2] == 0);
        unsigned char info[24];
        CU(cuGraphExecUpdate_v2(exec, graph, info));
        run(exec);
        EXPECT(seen[1] == (value == 1 ? 10 : 0));
        CU(cuGraphDestroy(graph));
        run(exec);
        EXPECT(seen[3] == 5);
        CU(cuGraphExecDestroy(exec));
        CU(cuGraphExecDestroy(again));
    }
    puts("conditions: right");
    return 0;
}

/* A loop, captured into its body. */
static int loops(void) {
    CUgraph graph, body, same;
    Handle handle;
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphConditionalHandleCreate(&handle, graph, ctx, 1, ASSIGN_DEFAULT));
    conditional(graph, NULL, handle, WHILE, 1, &body);
    unsigned limit = 25;
    CU(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, RELAXED));
    void *params[] = {&handle, &words, &limit};
    CU(cuLaunchKernel(step, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    CU(cuStreamEndCapture(stream, &same));
    EXPECT(same == body);
    CUgraphExec exec;
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        run(exec);
        EXPECT(seen[0] == 25);
    }
    FAILS(INVALID_VALUE, cuGraphDestroy(body));
    puts("loops: right");
    return 0;
}

/* A loop that never ends, which the watchdog must end. */
static int forever(void) {
    CUgraph graph, body;
    Handle handle;
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphConditionalHandleCreate(&handle, graph, ctx, 1, ASSIGN_DEFAULT));
    conditional(graph, NULL, handle, WHILE, 1, &body);
    adds(body, NULL, 0, 1);
    CUgraphExec exec;
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    puts("forever: launched");
    fflush(stdout);
    FAILS(LAUNCH_TIMEOUT, cuStreamSynchronize(stream));
    puts("forever: ended by the watchdog");
    return 0;
}

/* A capture that forks; the forked streams are destroyed before it ends. */
static int forks(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUstream other;
    CUevent fork, join;
    CU(cuEventCreate(&fork, 2));
    CU(cuEventCreate(&join, 2));
    CU(cuStreamBeginCapture_v2(stream, RELAXED));
    CU(cuMemsetD32Async(words, 1, 1, stream));
    CU(cuEventRecord(fork, stream));
    CU(cuStreamCreate(&other, NON_BLOCKING));
    CU(cuStreamWaitEvent(other, fork, 0));
    CU(cuMemsetD32Async(words + 4, 2, 1, other));
    CU(cuEventRecord(join, other));
    CU(cuStreamDestroy_v2(other));
    CU(cuMemsetD32Async(words + 8, 3, 1, stream));
    CU(cuStreamWaitEvent(stream, join, 0));
    int status;
    unsigned long long id;
    CUgraph captured;
    const CUgraphNode *tips;
    const unsigned long long *edges;
    size_t count;
    CU(cuStreamGetCaptureInfo_v3(stream, &status, &id, &captured, &tips, (const void **)&edges, &count));
    EXPECT(status == 1 && count == 2 && tips[0] != tips[1]);
    /* Programs read data of one edge per node. */
    EXPECT(edges && edges[0] == 0 && edges[1] == 0);
    FAILS(INVALID_VALUE, cuGraphDestroy(captured));
    /* A conditional node at this place, as in the CUDA samples. */
    Handle handle;
    CU(cuGraphConditionalHandleCreate(&handle, captured, ctx, 1, ASSIGN_DEFAULT));
    CUgraph body;
    AnyParams any = {.type = CONDITIONAL};
    any.conditional = (ConditionalParams){handle, IF, 1, NULL, ctx};
    CUgraphNode node;
    CU(cuGraphAddNode(&node, captured, tips, count, &any));
    body = any.conditional.bodies[0];
    CU(cuStreamUpdateCaptureDependencies(stream, &node, 1, 1));
    adds(body, NULL, 3, 7);
    CU(cuStreamEndCapture(stream, &graph));
    EXPECT(graph == captured);
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    run(exec);
    EXPECT(seen[0] == 1 && seen[1] == 2 && seen[2] == 3 && seen[3] == 7);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    puts("forks: right");
    return 0;
}

/* Parameters of nodes, read and changed. */
static int nodes(void) {
    CUgraph graph;
    CUgraphExec exec;
    CU(cuGraphCreate(&graph, 0));
    CUgraphNode one = adds(graph, NULL, 0, 1), two = adds(graph, one, 1, 2);
    unsigned value[16] = {1}, got[16] = {0};
    CU(cuGraphKernelNodeSetAttribute(one, 2, value)); /* Cooperative. */
    CU(cuGraphKernelNodeCopyAttributes(two, one));
    CU(cuGraphKernelNodeGetAttribute(two, 2, got));
    EXPECT(got[0] == 1);
    FAILS(INVALID_VALUE, cuGraphKernelNodeGetAttribute(two, 77, got));
    AnyParams any = {0};
    CU(cuGraphNodeGetParams(two, &any));
    EXPECT(any.type == KERNEL && any.kernel.function == add && any.kernel.ctx == ctx);
    EXPECT(*(CUdeviceptr *)any.kernel.params[0] == words + 4 && *(unsigned *)any.kernel.params[1] == 2);
    unsigned nine = 9;
    CUdeviceptr at = words + 8;
    any.kernel.params = (void *[]){&at, &nine};
    CU(cuGraphNodeSetParams(two, &any));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    run(exec);
    EXPECT(seen[0] == 1 && seen[1] == 0 && seen[2] == 9);
    any = (AnyParams){.type = FILL};
    any.fill.fill = (FillParams){words, 0, 0, 4, 4, 1};
    FAILS(INVALID_VALUE, cuGraphNodeSetParams(two, &any));
    any.type = 99;
    FAILS(INVALID_VALUE, cuGraphAddNode(&two, graph, NULL, 0, &any));
    char path[] = "/tmp/vgpu-graph-XXXXXX";
    int file = mkstemp(path);
    EXPECT(file >= 0);
    CU(cuGraphDebugDotPrint(graph, path, 0));
    char text[2048] = {0};
    EXPECT(read(file, text, sizeof text - 1) > 0 && strstr(text, "KERNEL") && strstr(text, "->"));
    unlink(path);
    puts("nodes: right");
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*part)(void);
    } parts[] = {
        {"memory", memory}, {"captured_memory", captured_memory}, {"large", large},
        {"capped", capped},
        {"conditions", conditions}, {"loops", loops}, {"forever", forever},
        {"forks", forks}, {"nodes", nodes},
    };
    for (size_t i = 0; argc == 2 && i < sizeof parts / sizeof *parts; i++) {
        if (!strcmp(argv[1], parts[i].name)) {
            start();
            return parts[i].part();
        }
    }
    fprintf(stderr, "usage: graphs memory|captured_memory|large|capped|conditions|loops|forever|forks|nodes\n");
    return EXIT_USAGE;
}
