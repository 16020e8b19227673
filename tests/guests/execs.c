/* Parameters of nodes, in graphs and in instances, by kind and in all forms. */
#include "graph.h"
#include "tell.h"

enum { HOST = 1, DEVICE = 2, KERNEL = 0, FILL = 2, WRITE32 = 2, UPLOAD = 2 };

typedef struct {
    size_t x, y, z, level;
    int kind;
    const void *host;
    CUdeviceptr device;
    void *array, *reserved;
    size_t pitch, height;
} Side;
typedef struct {
    Side src, dst;
    size_t width, height, depth;
} Box;
typedef struct {
    unsigned operation;
    CUdeviceptr at;
    unsigned long long value;
    unsigned flags;
    CUdeviceptr alias;
    unsigned long long pad;
} Word;
typedef struct {
    CUcontext ctx;
    unsigned count;
    Word *list;
    unsigned flags;
} WordsParams;
typedef struct {
    int type, reserved[3];
    union {
        KernelParams kernel;
        struct {
            FillParams fill;
            CUcontext ctx;
        } fill;
        long long room[29];
    };
    long long reserved2;
} AnyParams;
typedef struct {
    unsigned long long flags;
    CUstream upload;
    CUgraphNode bad;
    int result;
} Instantiation;
typedef struct {
    int result;
    CUgraphNode to, from;
} UpdateInfo;
_Static_assert(sizeof(Box) == 200 && sizeof(AnyParams) == 256 && sizeof(WordsParams) == 32, "as cuda.h");

static CUcontext ctx;
static CUfunction add;
static CUstream stream;
static CUdeviceptr words;
static unsigned seen[8];

/* Launches with cleared words and returns the first of them. */
static unsigned run(CUgraphExec exec) {
    CU(cuMemsetD32Async(words, 0, 8, stream));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH_v2(seen, words, sizeof seen));
    return seen[0];
}

static CUgraphExec made(CUgraph graph) {
    CUgraphExec exec;
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static KernelParams adds(void **params) {
    return (KernelParams){add, {1, 1, 1}, {1, 1, 1}, 0, params, NULL, NULL, ctx};
}

static void kernels(void) {
    CUgraph graph;
    CUgraphNode first, second, third;
    unsigned one = 1, two = 2, five = 5, nine = 9;
    void *by_one[] = {&words, &one}, *by_two[] = {&words, &two}, *by_five[] = {&words, &five},
         *by_nine[] = {&words, &nine};
    KernelParams params = adds(by_one), got;
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&first, graph, NULL, 0, &params));
    params = adds(by_two);
    OK(cuGraphAddKernelNode_v2(&second, graph, &first, 1, &params));
    CUgraphExec exec = made(graph);
    IS(3, run(exec));
    OK(cuGraphKernelNodeGetParams(first, &got));
    EXPECT(got.function == add && got.grid[0] == 1 && *(unsigned *)got.params[1] == 1);
    OK(cuGraphKernelNodeGetParams_v2(second, &got));
    EXPECT(got.function == add && *(unsigned *)got.params[1] == 2 && got.ctx == ctx);
    params = adds(by_five);
    OK(cuGraphKernelNodeSetParams(first, &params));
    OK(cuGraphKernelNodeSetParams_v2(second, &params));
    IS(3, run(exec));
    CUgraphExec again = made(graph);
    IS(10, run(again));
    params = adds(by_nine);
    OK(cuGraphExecKernelNodeSetParams(again, first, &params));
    IS(14, run(again));
    OK(cuGraphExecKernelNodeSetParams_v2(again, second, &params));
    IS(18, run(again));
    params.block[0] = 0;
    FAILS(INVALID_VALUE, cuGraphAddKernelNode_v2(&third, graph, NULL, 0, &params));
    params = adds(by_nine);
    params.grid[1] = 1 << 20;
    FAILS(INVALID_VALUE, cuGraphAddKernelNode_v2(&third, graph, NULL, 0, &params));
    FAILS(INVALID_VALUE, cuGraphAddKernelNode(&third, graph, NULL, 0, NULL));
    FAILS(INVALID_VALUE, cuGraphKernelNodeGetParams(first, NULL));
    /* Attributes. */
    unsigned value[16] = {1}, told[16] = {0};
    OK(cuGraphKernelNodeSetAttribute(first, 2, value));
    OK(cuGraphKernelNodeCopyAttributes(second, first));
    OK(cuGraphKernelNodeGetAttribute(second, 2, told));
    IS(1, told[0]);
    FAILS(INVALID_VALUE, cuGraphKernelNodeGetAttribute(second, 77, told));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphExecDestroy(again));
    CU(cuGraphDestroy(graph));
}

static void fills(void) {
    CUgraph graph;
    CUgraphNode node;
    FillParams fill = {words, 0, 7, 4, 2, 1}, got = {0};
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, ctx));
    OK(cuGraphMemsetNodeGetParams(node, &got));
    EXPECT(got.dst == words && got.value == 7 && got.element == 4 && got.width == 2);
    CUgraphExec exec = made(graph);
    IS(7, run(exec));
    fill.value = 8;
    OK(cuGraphMemsetNodeSetParams(node, &fill));
    IS(7, run(exec));
    fill.value = 9;
    OK(cuGraphExecMemsetNodeSetParams(exec, node, &fill, ctx));
    IS(9, run(exec));
    fill.element = 3;
    FAILS(INVALID_VALUE, cuGraphMemsetNodeSetParams(node, &fill));
    FAILS(INVALID_VALUE, cuGraphAddMemsetNode(&node, graph, NULL, 0, NULL, ctx));
    FAILS(INVALID_VALUE, cuGraphMemcpyNodeGetParams(node, &got));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void copies(void) {
    static unsigned source[2] = {11, 12}, other[2] = {13, 14};
    CUgraph graph;
    CUgraphNode node;
    Box copy = {{.kind = HOST, .host = source}, {.kind = DEVICE, .device = words}, 8, 1, 1}, got;
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, ctx));
    OK(cuGraphMemcpyNodeGetParams(node, &got));
    EXPECT(got.src.host == source && got.dst.device == words && got.width == 8);
    CUgraphExec exec = made(graph);
    IS(11, run(exec));
    copy.src.host = other;
    OK(cuGraphMemcpyNodeSetParams(node, &copy));
    IS(11, run(exec));
    OK(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, ctx));
    IS(13, run(exec));
    copy.src.kind = 9;
    FAILS(INVALID_VALUE, cuGraphMemcpyNodeSetParams(node, &copy));
    FAILS(INVALID_VALUE, cuGraphAddMemcpyNode(&node, graph, NULL, 0, NULL, ctx));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static int called;
static void counts(void *by) { called += *(int *)by; }

static void functions(void) {
    static int one = 1, ten = 10, hundred = 100;
    CUgraph graph;
    CUgraphNode node;
    HostParams host = {counts, &one}, got = {0};
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphAddHostNode(&node, graph, NULL, 0, &host));
    OK(cuGraphHostNodeGetParams(node, &got));
    EXPECT(got.function == counts && got.data == &one);
    CUgraphExec exec = made(graph);
    run(exec);
    IS(1, called);
    host.data = &ten;
    OK(cuGraphHostNodeSetParams(node, &host));
    run(exec);
    IS(2, called);
    host.data = &hundred;
    OK(cuGraphExecHostNodeSetParams(exec, node, &host));
    run(exec);
    IS(102, called);
    FAILS(INVALID_VALUE, cuGraphAddHostNode(&node, graph, NULL, 0, NULL));
    host.function = NULL;
    FAILS(INVALID_VALUE, cuGraphHostNodeSetParams(node, &host));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void events(void) {
    CUgraph graph;
    CUgraphNode record, waits;
    CUevent first, second, got = NULL;
    CU(cuEventCreate(&first, 2));
    CU(cuEventCreate(&second, 2));
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEventRecordNode(&record, graph, NULL, 0, first));
    OK(cuGraphAddEventWaitNode(&waits, graph, &record, 1, first));
    OK(cuGraphEventRecordNodeGetEvent(record, &got));
    EXPECT(got == first);
    OK(cuGraphEventWaitNodeGetEvent(waits, &got));
    EXPECT(got == first);
    CUgraphExec exec = made(graph);
    run(exec);
    OK(cuEventQuery(first));
    OK(cuGraphEventRecordNodeSetEvent(record, second));
    OK(cuGraphEventWaitNodeSetEvent(waits, second));
    OK(cuGraphEventRecordNodeGetEvent(record, &got));
    EXPECT(got == second);
    OK(cuGraphExecEventRecordNodeSetEvent(exec, record, second));
    OK(cuGraphExecEventWaitNodeSetEvent(exec, waits, second));
    run(exec);
    OK(cuEventSynchronize(second));
    FAILS(INVALID_VALUE, cuGraphEventRecordNodeGetEvent(waits, &got));
    FAILS(INVALID_VALUE, cuGraphEventWaitNodeGetEvent(record, &got));
    FAILS_EITHER(INVALID_VALUE, INVALID_HANDLE, cuGraphAddEventRecordNode(&record, graph, NULL, 0, NULL));
    FAILS(INVALID_VALUE, cuGraphEventRecordNodeGetEvent(record, NULL));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void values(void) {
    CUgraph graph;
    CUgraphNode node;
    Word list[] = {{WRITE32, words, 41, 0, 0, 0}, {WRITE32, words + 4, 42, 0, 0, 0}};
    WordsParams params = {ctx, 2, list, 0}, got = {0};
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params));
    OK(cuGraphBatchMemOpNodeGetParams(node, &got));
    EXPECT(got.ctx == ctx && got.count == 2 && got.list[1].at == words + 4 && got.list[1].value == 42);
    CUgraphExec exec = made(graph);
    IS(41, run(exec));
    IS(42, seen[1]);
    list[0].value = 43;
    OK(cuGraphBatchMemOpNodeSetParams(node, &params));
    IS(41, run(exec));
    OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
    IS(43, run(exec));
    params.list = NULL;
    FAILS(INVALID_VALUE, cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params));
    FAILS(INVALID_VALUE, cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, NULL));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* One structure for nodes of all kinds. */
static void any_kind(void) {
    CUgraph graph;
    CUgraphNode one, two, three, bad;
    unsigned by = 3;
    void *list[] = {&words, &by};
    AnyParams fill = {.type = FILL}, kernel = {.type = KERNEL}, got = {0};
    fill.fill.fill = (FillParams){words, 0, 20, 4, 1, 1};
    fill.fill.ctx = ctx;
    kernel.kernel = adds(list);
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphAddNode(&one, graph, NULL, 0, &fill));
    OK(cuGraphAddNode_v2(&two, graph, &one, NULL, 1, &kernel));
    OK(cuGraphAddNode_v3(&three, graph, &two, NULL, 1, &kernel));
    CUgraphExec exec = made(graph);
    IS(26, run(exec));
    fill.fill.fill.value = 30;
    OK(cuGraphNodeSetParams(one, &fill));
    by = 4;
    OK(cuGraphNodeSetParams_v2(two, &kernel));
    OK(cuGraphNodeGetParams(two, &got));
    EXPECT(got.type == KERNEL && *(unsigned *)got.kernel.params[1] == 4);
    OK(cuGraphExecNodeSetParams(exec, three, &kernel));
    IS(27, run(exec));
    FAILS(INVALID_VALUE, cuGraphExecNodeSetParams(exec, one, &kernel));
    FAILS(INVALID_VALUE, cuGraphNodeSetParams(one, &kernel));
    FAILS(INVALID_VALUE, cuGraphAddNode_v2(&bad, graph, NULL, NULL, 0, NULL));
    kernel.type = 99;
    FAILS(INVALID_VALUE, cuGraphAddNode_v3(&bad, graph, NULL, NULL, 0, &kernel));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* All ways to instantiate a graph, and the properties of an instance. */
static void instances(void) {
    CUgraph graph;
    CUgraphNode node, bad = NULL;
    CUgraphExec exec[5];
    char log[64] = "";
    unsigned long long flags = 99;
    unsigned id[2] = {0};
    FillParams fill = {words, 0, 5, 4, 1, 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, ctx));
    OK(cuGraphInstantiate(&exec[0], graph, &bad, log, sizeof log));
    OK(cuGraphInstantiate_v2(&exec[1], graph, &bad, log, sizeof log));
    OK(cuGraphInstantiateWithFlags(&exec[2], graph, 8));
    Instantiation params = {.flags = 0, .result = 9}, with = {.flags = UPLOAD, .upload = stream, .result = 9};
    OK(cuGraphInstantiateWithParams(&exec[3], graph, &params));
    IS(0, params.result);
    OK(cuGraphInstantiateWithParams(&exec[4], graph, &with));
    IS(0, with.result);
    for (int i = 0; i < 5; i++) IS(5, run(exec[i]));
    OK(cuGraphExecGetFlags(exec[2], &flags));
    IS(8, flags);
    OK(cuGraphExecGetFlags(exec[0], &flags));
    IS(0, flags);
    OK(cuGraphExecGetId(exec[0], &id[0]));
    OK(cuGraphExecGetId(exec[1], &id[1]));
    EXPECT(id[0] != id[1]);
    OK(cuGraphUpload(exec[0], stream));
    IS(5, run(exec[0]));
    FAILS(INVALID_VALUE, cuGraphInstantiateWithFlags(&exec[0], graph, 0x1000));
    FAILS(INVALID_VALUE, cuGraphInstantiateWithFlags(NULL, graph, 0));
    FAILS(INVALID_VALUE, cuGraphInstantiateWithFlags(&exec[0], NULL, 0));
    FAILS(INVALID_VALUE, cuGraphInstantiateWithParams(&exec[0], graph, NULL));
    FAILS(INVALID_VALUE, cuGraphExecGetFlags(exec[0], NULL));
    for (int i = 0; i < 5; i++) OK(cuGraphExecDestroy(exec[i]));
    FAILS(INVALID_VALUE, cuGraphExecDestroy(exec[0]));
    FAILS(INVALID_VALUE, cuGraphLaunch(exec[0], stream));
    FAILS(INVALID_VALUE, cuGraphUpload(exec[0], stream));
    FAILS(INVALID_VALUE, cuGraphExecGetFlags(exec[0], &flags));
    CU(cuGraphDestroy(graph));
}

/* Disabled nodes, and updates from whole graphs. */
static void changes(void) {
    CUgraph graph, same, longer, kind, parent, other;
    CUgraphNode node, second, empty, bad, child;
    unsigned enabled = 9;
    int result = 9;
    UpdateInfo info = {9, NULL, NULL};
    FillParams fill = {words, 0, 5, 4, 1, 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, ctx));
    CU(cuGraphAddEmptyNode(&empty, graph, &node, 1));
    CUgraphExec exec = made(graph);
    OK(cuGraphNodeGetEnabled(exec, node, &enabled));
    IS(1, enabled);
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuGraphNodeGetEnabled(exec, node, &enabled));
    IS(0, enabled);
    IS(0, run(exec));
    OK(cuGraphNodeSetEnabled(exec, node, 1));
    IS(5, run(exec));
    FAILS(INVALID_VALUE, cuGraphNodeSetEnabled(exec, empty, 0));
    FAILS(INVALID_VALUE, cuGraphNodeGetEnabled(exec, node, NULL));
    /* The same nodes with other parameters. */
    OK(cuGraphClone(&same, graph));
    OK(cuGraphNodeFindInClone(&second, node, same));
    fill.value = 6;
    OK(cuGraphMemsetNodeSetParams(second, &fill));
    OK(cuGraphExecUpdate_v2(exec, same, &info));
    IS(0, info.result);
    IS(6, run(exec));
    OK(cuGraphExecUpdate(exec, graph, &bad, &result));
    IS(0, result);
    IS(5, run(exec));
    /* An additional node; a node of another kind. */
    OK(cuGraphClone(&longer, graph));
    OK(cuGraphAddEmptyNode(&second, longer, NULL, 0));
    FAILS(UPDATE_FAILED, cuGraphExecUpdate_v2(exec, longer, &info));
    IS(2, info.result);
    FAILS(UPDATE_FAILED, cuGraphExecUpdate(exec, longer, &bad, &result));
    IS(2, result);
    CU(cuGraphCreate(&kind, 0));
    CU(cuGraphAddEmptyNode(&second, kind, NULL, 0));
    CU(cuGraphAddEmptyNode(&second, kind, &second, 1));
    FAILS(UPDATE_FAILED, cuGraphExecUpdate_v2(exec, kind, &info));
    IS(3, info.result);
    IS(5, run(exec));
    FAILS(INVALID_VALUE, cuGraphExecUpdate_v2(exec, NULL, &info));
    /* The graph inside a node. */
    CU(cuGraphCreate(&parent, 0));
    CU(cuGraphCreate(&other, 0));
    OK(cuGraphAddChildGraphNode(&child, parent, NULL, 0, graph));
    CUgraphExec outer = made(parent);
    IS(5, run(outer));
    OK(cuGraphExecChildGraphNodeSetParams(outer, child, same));
    IS(6, run(outer));
    FAILS_EITHER(INVALID_VALUE, UPDATE_FAILED, cuGraphExecChildGraphNodeSetParams(outer, child, other));
    FAILS(INVALID_VALUE, cuGraphExecChildGraphNodeSetParams(outer, child, NULL));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphExecDestroy(outer));
}

static void memory(void) {
    unsigned long long used = 9;
    OK(cuDeviceGetGraphMemAttribute(0, 0, &used));
    IS(0, used);
    OK(cuDeviceGraphMemTrim(0));
    FAILS(INVALID_VALUE, cuDeviceGetGraphMemAttribute(0, 9, &used));
    FAILS(INVALID_DEVICE, cuDeviceGetGraphMemAttribute(1000, 0, &used));
    FAILS(INVALID_DEVICE, cuDeviceGraphMemTrim(1000));
    used = 0;
    OK(cuDeviceSetGraphMemAttribute(0, 1, &used));
    FAILS(INVALID_DEVICE, cuDeviceSetGraphMemAttribute(1000, 1, &used));
}

int main(void) {
    CUmodule module;
    add = setup("add", &module);
    CU(cuCtxGetCurrent(&ctx));
    CU(cuStreamCreate(&stream, 1));
    CU(cuMemAlloc_v2(&words, sizeof seen));
    kernels();
    fills();
    copies();
    functions();
    events();
    values();
    any_kind();
    instances();
    changes();
    memory();
    return done("execs");
}
