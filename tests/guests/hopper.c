/*
 * What devices of compute capability 9.0 and later have: clusters of blocks, and copies by tensor
 * maps. On other devices the program checks that tensor maps are refused.
 */
#include "tell.h"

enum {
    CLUSTER_DIMENSION = 4, CLUSTER_LAUNCH = 120, TENSOR_MAPS = 127, ANY_CLUSTER = 14,
    INVALID_CLUSTER = 912, FLOAT32 = 7, ROWS = 24, COLUMNS = 96, BOX_ROWS = 8, BOX_COLUMNS = 32
};

typedef struct {
    unsigned id, pad, value[16];
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    Attribute *attributes;
    unsigned count;
} Config;
typedef struct {
    _Alignas(64) unsigned long long words[16];
} Map;

static CUmodule module;

/* A launch of `blocks` blocks in clusters of `cluster`. */
static Config shaped(unsigned blocks, unsigned cluster, Attribute *attribute) {
    *attribute = (Attribute){CLUSTER_DIMENSION, 0, {cluster, 1, 1}};
    return (Config){{blocks, 1, 1}, {32, 1, 1}, 0, NULL, attribute, 1};
}

/* Whether each block has read what its neighbour in the cluster wrote. */
static int right(CUdeviceptr out, unsigned blocks, unsigned cluster) {
    unsigned found[32];
    CU(cuMemcpyDtoH_v2(found, out, blocks * sizeof *found));
    CU(cuMemsetD8_v2(out, 0, blocks * sizeof *found));
    for (unsigned block = 0; block < blocks; block++) {
        unsigned first = block - block % cluster, next = first + (block + 1) % cluster;
        if (found[block] != 100 * next + cluster) return 0;
    }
    return 1;
}

static void clusters(void) {
    CUfunction kernel;
    CUdeviceptr out;
    Attribute attribute;
    OK(cuModuleGetFunction(&kernel, module, "neighbours"));
    CU(cuMemAlloc_v2(&out, 32 * sizeof(unsigned)));
    void *params[] = {&out};
    for (unsigned cluster = 1; cluster <= 8; cluster *= 2) {
        Config config = shaped(16, cluster, &attribute);
        OK(cuLaunchKernelEx(&config, kernel, params, NULL));
        IS(1, right(out, 16, cluster));
    }
    Config config = shaped(6, 4, &attribute);
    FAILS(INVALID_CLUSTER, cuLaunchKernelEx(&config, kernel, params, NULL));
    config = shaped(16, 16, &attribute);
    FAILS(INVALID_CLUSTER, cuLaunchKernelEx(&config, kernel, params, NULL));
    OK(cuFuncSetAttribute(kernel, ANY_CLUSTER, 1));
    OK(cuLaunchKernelEx(&config, kernel, params, NULL));
    IS(1, right(out, 16, 16));
    int number = 0;
    OK(cuOccupancyMaxPotentialClusterSize(&number, kernel, &config));
    TELL(number);
    config = shaped(16, 4, &attribute);
    OK(cuOccupancyMaxActiveClusters(&number, kernel, &config));
    TELL(number);

    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamCreate(&stream, 1));
    config.stream = stream;
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuLaunchKernelEx(&config, kernel, params, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    IS(1, right(out, 16, 4));
}

/* Whether a copy from (x, y) has the elements of the tensor there, and zeros beyond it. */
static int copied(CUfunction kernel, Map *map, int x, int y, CUdeviceptr out) {
    float found[BOX_ROWS * BOX_COLUMNS];
    void *params[] = {map, &x, &y, &out};
    OK(cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    CU(cuMemcpyDtoH_v2(found, out, sizeof found));
    for (int row = 0; row < BOX_ROWS; row++)
        for (int column = 0; column < BOX_COLUMNS; column++) {
            int beyond = y + row >= ROWS || x + column >= COLUMNS;
            float want = beyond ? 0 : (y + row) * COLUMNS + x + column;
            if (found[row * BOX_COLUMNS + column] != want) return 0;
        }
    return 1;
}

static void tensor_maps(void) {
    CUfunction kernel;
    CUdeviceptr tensor, other, out;
    static float values[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = i;
    OK(cuModuleGetFunction(&kernel, module, "tile"));
    CU(cuMemAlloc_v2(&tensor, sizeof values));
    CU(cuMemAlloc_v2(&other, sizeof values));
    CU(cuMemAlloc_v2(&out, BOX_ROWS * BOX_COLUMNS * sizeof *values));
    CU(cuMemcpyHtoD_v2(tensor, values, sizeof values));
    CU(cuMemcpyHtoD_v2(other, values, sizeof values));
    unsigned long long sizes[] = {COLUMNS, ROWS}, strides[] = {COLUMNS * sizeof *values};
    unsigned box[] = {BOX_COLUMNS, BOX_ROWS}, steps[] = {1, 1};
    Map map;
    void *address = (void *)tensor;
    OK(cuTensorMapEncodeTiled(&map, FLOAT32, 2, address, sizes, strides, box, steps, 0, 0, 0, 0));
    IS(1, copied(kernel, &map, 32, 8, out));
    IS(1, copied(kernel, &map, 80, 20, out));
    OK(cuTensorMapReplaceAddress(&map, (void *)other));
    CU(cuMemFree_v2(tensor));
    IS(1, copied(kernel, &map, 0, 0, out));
    unsigned long long odd[] = {COLUMNS * sizeof *values + 4};
    FAILS(INVALID_VALUE, cuTensorMapEncodeTiled(&map, FLOAT32, 2, address, sizes, odd, box, steps, 0, 0, 0, 0));
    FAILS(INVALID_VALUE, cuTensorMapEncodeTiled(&map, FLOAT32, 6, address, sizes, strides, box, steps, 0, 0, 0, 0));
    FAILS(INVALID_VALUE, cuTensorMapEncodeTiled(&map, FLOAT32, 2, (char *)address + 4, sizes, strides, box, steps, 0, 0, 0, 0));
    /* Two images of 8 by 8 pixels with 16 channels, of which a copy takes 32 pixels. */
    unsigned long long images[] = {16, 8, 8, 2}, pitches[] = {64, 512, 4096};
    int lower[] = {-1, -1}, upper[] = {-1, -1};
    unsigned each[] = {1, 1, 1, 1};
    OK(cuTensorMapEncodeIm2col(&map, FLOAT32, 4, (void *)other, images, pitches, lower, upper, 16, 32, each, 0, 0, 0, 0));
    unsigned long long sum = 0;
    for (int i = 0; i < 16; i++) sum ^= map.words[i];
    EXPECT(sum != 0);
    FAILS(INVALID_VALUE, cuTensorMapEncodeIm2col(&map, FLOAT32, 2, (void *)other, images, pitches, lower, upper, 16, 32, each, 0, 0, 0, 0));
}

int main(void) {
    int has_clusters = 0, has_maps = 0;
    begin();
    OK(cuDeviceGetAttribute(&has_clusters, CLUSTER_LAUNCH, 0));
    OK(cuDeviceGetAttribute(&has_maps, TENSOR_MAPS, 0));
    TELL(has_clusters);
    TELL(has_maps);
    if (!has_clusters || !has_maps) {
        unsigned long long size = 64, stride = 256;
        unsigned box = 32, step = 1;
        Map map = {{0}};
        void *at = &map;
        FAILS(NOT_SUPPORTED, cuTensorMapEncodeTiled(&map, FLOAT32, 1, at, &size, &stride, &box, &step, 0, 0, 0, 0));
        FAILS(NOT_SUPPORTED, cuTensorMapReplaceAddress(&map, at));
        FAILS(NOT_SUPPORTED, cuTensorMapEncodeIm2col(&map, FLOAT32, 1, at, &size, &stride, NULL, NULL, 1, 1, &step, 0, 0, 0, 0));
        FAILS(INVALID_VALUE, cuTensorMapEncodeTiled(NULL, FLOAT32, 1, at, &size, &stride, &box, &step, 0, 0, 0, 0));
        FAILS(INVALID_VALUE, cuTensorMapReplaceAddress(NULL, at));
        FAILS(INVALID_VALUE, cuTensorMapEncodeIm2col(NULL, FLOAT32, 1, at, &size, &stride, NULL, NULL, 1, 1, &step, 0, 0, 0, 0));
        return done("hopper");
    }
    CU(cuModuleLoadData(&module, guest_ptx));
    clusters();
    tensor_maps();
    return done("hopper");
}
