/* The calls of a training step, and of a token of a language model, as NVIDIA's runtime and PyTorch
 * make them. Usage: steps train|tokens N. Exits 0 if the results are right. Runs on any driver. */
#include "check.h"
#include "graph.h"

typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void *attributes;
    unsigned count;
} Config;

enum { N = 256, LAYERS = 6, DYNAMIC_SHARED = 8, PTX_VERSION = 5, MULTIPROCESSORS = 16, MEMORY_TYPE = 2 };

static CUfunction add;
static CUstream stream, side;
static CUdeviceptr weights, gradients, batch;
static unsigned *input, *output;

/* The queries of a framework before each kernel. */
static void look(CUstream in) {
    CUcontext context;
    CUdevice device;
    int value, mode = 2;
    unsigned type;
    CU(cuCtxGetCurrent(&context));
    CU(cuCtxGetDevice(&device));
    CU(cuDeviceGetAttribute(&value, MULTIPROCESSORS, device));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamIsCapturing(in, &value));
    CU(cuPointerGetAttribute(&type, MEMORY_TYPE, weights));
    CU(cuFuncGetAttribute(&value, PTX_VERSION, add));
}

static void launch(CUdeviceptr at, unsigned value, CUstream in) {
    unsigned n = N;
    void *params[] = {&at, &n, &value};
    look(in);
    CU(cuLaunchKernel(add, N / 64, 1, 1, 64, 1, 1, 0, in, params, NULL));
}

/* A product of matrices, divided by what fits on a multiprocessor. */
static void product(CUdeviceptr at, unsigned value, CUstream in) {
    unsigned n = N;
    int blocks;
    size_t bytes;
    void *params[] = {&at, &n, &value};
    Config config = {{N / 64, 1, 1}, {64, 1, 1}, 16384, in, NULL, 0};
    look(in);
    CU(cuFuncSetAttribute(add, DYNAMIC_SHARED, 16384));
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, add, 64, 16384, 0));
    CU(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, add, 2, 64));
    CU(cuLaunchKernelEx(&config, add, params, NULL));
}

/* Sums over all blocks. */
static void reduction(CUdeviceptr at, unsigned value, CUstream in) {
    unsigned n = N;
    void *params[] = {&at, &n, &value};
    look(in);
    CU(cuLaunchCooperativeKernel(add, 2, 1, 1, 128, 1, 1, 0, in, params));
}

/* Forward, backward, optimizer: the gradients are LAYERS, by which each weight grows per step. */
static int train(unsigned steps) {
    CUevent event;
    unsigned expected = 0;
    CU(cuEventCreate(&event, 2));
    for (unsigned step = 0; step < steps; step++) {
        for (unsigned i = 0; i < N; i++) input[i] = step; /* No wait: words may be of a later step. */
        CU(cuMemcpyHtoDAsync_v2(batch, input, N * 4, side));
        CU(cuEventRecord(event, side));
        CU(cuStreamWaitEvent(stream, event, 0));
        CU(cuMemsetD32Async(gradients, 0, N, stream));
        for (int i = 0; i < LAYERS / 2; i++) {
            product(gradients, 1, stream);
            launch(gradients, 1, stream);
        }
        reduction(weights, LAYERS, stream);
        CU(cuMemcpyDtoDAsync_v2(weights + N * 4, gradients, N * 4, stream));
        expected += LAYERS;
    }
    CU(cuMemcpyDtoHAsync_v2(output, weights, 2 * N * 4, stream));
    CU(cuCtxSynchronize());
    for (unsigned i = 0; i < N; i++) EXPECT(output[i] == expected && output[N + i] == LAYERS);
    puts("train: right");
    return 0;
}

/* A captured layer, then the choice of the token; the program reads each token, and waits for
 * nothing else. */
static int tokens(unsigned count) {
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamBeginCapture_v2(stream, 2));
    for (int i = 0; i < LAYERS; i++) launch(weights, 1, stream);
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    for (unsigned token = 0; token < count; token++) {
        input[0] = token;
        CU(cuMemcpyHtoDAsync_v2(batch, input, 4, stream));
        CU(cuGraphLaunch(exec, stream));
        product(batch, 1, stream);
        CU(cuMemcpyDtoHAsync_v2(output, batch, 4, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(output[0] == token + 1);
    }
    CU(cuMemcpyDtoHAsync_v2(output, weights, 4, stream));
    CU(cuCtxSynchronize());
    EXPECT(output[0] == LAYERS * (count + 1));
    puts("tokens: right");
    return 0;
}

int main(int argc, char **argv) {
    CUmodule module;
    if (argc != 3) {
        fprintf(stderr, "usage: steps train|tokens N\n");
        return EXIT_USAGE;
    }
    add = setup("add", &module);
    CU(cuStreamCreate(&stream, 1));
    CU(cuStreamCreate(&side, 1));
    CU(cuMemAlloc_v2(&weights, 2 * N * 4));
    CU(cuMemAlloc_v2(&gradients, N * 4));
    CU(cuMemAlloc_v2(&batch, N * 4));
    CU(cuMemsetD32_v2(weights, 0, 2 * N));
    CU(cuMemHostAlloc((void **)&input, N * 4, 0));
    CU(cuMemHostAlloc((void **)&output, 2 * N * 4, 0));
    /* Queries that are made only once. */
    product(gradients, 0, stream);
    reduction(gradients, 0, stream);
    CU(cuCtxSynchronize());
    unsigned n = (unsigned)atoi(argv[2]);
    return !strcmp(argv[1], "train") ? train(n) : tokens(n);
}
