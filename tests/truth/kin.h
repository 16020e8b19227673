/* Related rows: the same rules with other arguments (kin.tsv names the rule). */
#pragma once
#include "memory.h"
#include "modules.h"
#include "streams.h"

static void kin(void);

static void kin_of_queries(void) {
    char luid[8];
    unsigned mask, capability = 99, add = 0, unknown = 77;
    size_t width = 0;
    int device = -1;
    ASK("result NULL", cuDeviceGetLuid, NULL, &mask, 0);
    ASK("device -1", cuDeviceGetLuid, luid, &mask, -1);
    int code = CALL(cuDeviceGetTexture1DLinearMaxWidth, &width, 0x20, 1, 0);
    tell("cuDeviceGetTexture1DLinearMaxWidth", "floats, one channel", code, "w=%zu", width);
    ASK("three channels", cuDeviceGetTexture1DLinearMaxWidth, &width, 1, 3, 0);
    ASK("device 9", cuDeviceGetTexture1DLinearMaxWidth, &width, 1, 4, 9);
    ASK("operations NULL", cuDeviceGetHostAtomicCapabilities, &capability, NULL, 1, 0);
    ASK("count 0", cuDeviceGetHostAtomicCapabilities, &capability, &add, 0, 0);
    ASK("device 9", cuDeviceGetHostAtomicCapabilities, &capability, &add, 1, 9);
    ASK("from device 0 to 0", cuDeviceGetP2PAtomicCapabilities, &capability, &add, 1, 0, 0);
    ASK("count 0", cuDeviceGetP2PAtomicCapabilities, &capability, &add, 0, 0, 1);
    ASK("operation 77", cuDeviceGetP2PAtomicCapabilities, &capability, &unknown, 1, 0, 1);
    ASK("target 7", cuFlushGPUDirectRDMAWrites, 7, 100);
    code = CALL(cuCtxGetDevice_v2, &device, contexts[1]);
    tell("cuCtxGetDevice_v2", "the second device's context", code, "d=%d", device);
    Word resource[64] = {0}, made;
    ASK("result NULL", cuCtxAttach, NULL, 0);
    ASK("flags 1", cuCtxAttach, &made, 1);
    ASK("input NULL", cuDevSmResourceSplit, NULL, 1, NULL, NULL, 0, resource);
    ASK("groups NULL", cuDevSmResourceSplit, NULL, 1, resource, NULL, 0, NULL);
    ASK("result NULL", cuMemAlloc, NULL, 64);
    ASK("size 0", cuMemAlloc, &made, 0);
    ASK("process 0", cuCheckpointProcessGetState, 0, &device);
    char name[1024];
    size_t room = sizeof name;
    ASK("pipe, room for 1024", cuCoredumpGetAttribute, 6, name, &room);
    room = 1023;
    ASK("file, room for 1023", cuCoredumpGetAttributeGlobal, 5, name, &room);
}

static void kin_of_modules(void) {
    Handle module = module_of(three), library, kernel, f = function_of(module, "b"), list[8];
    CUdeviceptr at;
    size_t size, offset;
    unsigned count;
    NEED(cuLibraryLoadData, &library, three, NULL, NULL, 0, NULL, NULL, 0);
    NEED(cuLibraryGetKernel, &kernel, library, "b");
    ASK("module NULL", cuModuleGetFunctionCount, &count, NULL);
    ASK("array NULL, room for 3", cuModuleEnumerateFunctions, NULL, 3, module);
    ASK("result NULL", cuLibraryGetKernelCount, NULL, library);
    ASK("library NULL", cuLibraryEnumerateKernels, list, 3, NULL);
    ASK("result NULL", cuKernelGetLibrary, NULL, kernel);
    ASK("both results NULL", cuLibraryGetGlobal, NULL, NULL, library, "variable");
    ASK("address NULL", cuLibraryGetGlobal, NULL, &size, library, "variable");
    ASK("both results NULL", cuModuleGetGlobal_v2, NULL, NULL, module, "variable");
    ASK("library NULL", cuLibraryGetManaged, &at, &size, NULL, "variable");
    ASK("the name of a kernel", cuLibraryGetManaged, &at, &size, library, "b");
    ASK("name that is not there", cuLibraryGetUnifiedFunction, &at, library, "nothing");
    ASK("configuration 9", cuKernelSetCacheConfig, kernel, 9, 0);
    ASK("parameter 1 of 1", cuFuncGetParamInfo, f, 1, &offset, &size);
    ASK("size NULL", cuFuncGetParamInfo, f, 0, &offset, NULL);
    ASK("result NULL", cuFuncGetModule, NULL, f);
    ASK("a CUkernel", cuFuncGetModule, &list[0], kernel);
    ASK("policy 3", cuFuncSetAttribute, f, POLICY, 3);
    ASK("carveout 101", cuFuncSetAttribute, f, CARVEOUT, 101);
    ASK("required cluster width -1", cuFuncSetAttribute, f, CLUSTER, -1);
    ASK("device 5", cuKernelSetAttribute, DYNAMIC, 1, kernel, 5);
    ASK("attribute 99", cuKernelSetAttribute, 99, 1, kernel, 0);
    Word zero[8] = {0};
    ASK("no devices", cuLaunchCooperativeKernelMultiDevice, zero, 0, 0);
    ASK("flags 7", cuLaunchCooperativeKernelMultiDevice, zero, 1, 7);
}

static void kin_of_memory(void) {
    const size_t g = 2 * MIB;
    const Physical plain = {.kind = 1, .place = {1, 0}};
    Handle on = stream();
    CUdeviceptr m = managed(65536), base, to = block(4096), from = block(4096);
    size_t size = 65536, start = 0, fail, sizes[2] = {0, 64};
    CUdeviceptr both[2] = {to, to + 64};
    const Location here = {1, 0};
    CopyAttributes how = in_order;
    BoxCopy one = box(to, from);
    ASK("legacy stream", cuMemPrefetchBatchAsync, &m, &size, 1, &here, &start, 1, 0, NULL);
    ASK("legacy stream", cuMemDiscardAndPrefetchBatchAsync, &m, &size, 1, &here, &start, 1, 0, NULL);
    ASK("legacy stream", cuMemcpyWithAttributesAsync, to, from, 64, &how, NULL);
    ASK("CU_STREAM_LEGACY", cuMemcpyWithAttributesAsync, to, from, 64, &how, 1);
    how.order = 4;
    ASK("order 4", cuMemcpyWithAttributesAsync, to, from, 64, &how, on);
    how.order = 1;
    BATCH("first size 0", both, both, sizes, 2, &how, &start, 1, &fail, on);
    sizes[0] = 64;
    CUdeviceptr sources[2] = {from, 0};
    BATCH("second source NULL", both, sources, sizes, 2, &how, &start, 1, &fail, on);
    ASK("size 0", cuMemcpyWithAttributesAsync, to, from, 0, &how, on);
    ASK("size 0", cuMemDiscardBatchAsync, &m, &start, 1, 0, on);
    ASK("destinations NULL", cuMemcpyBatchAsync_v2, NULL, both, sizes, 2, &how, &start, 1, on);
    ASK("legacy stream", cuMemcpy3DBatchAsync_v2, 1, &one, 0, NULL);
    one.depth = 0;
    ASK("depth 0", cuMemcpy3DWithAttributesAsync, &one, 0, on);
    Handle pool;
    ASK("place NULL", cuMemGetDefaultMemPool, &pool, NULL, 1);
    ASK("type 9", cuMemGetDefaultMemPool, &pool, &here, 9);

    Word handle;
    Access access = {{1, 0}, 2};
    NEED(cuMemAddressReserve, &base, 4 * g, 0, 0, 0);
    NEED(cuMemCreate, &handle, 2 * g, &plain, 0);
    ASK("handle 0", cuMemMap, base, 2 * g, 0, 0, 0);
    ASK("half of the handle", cuMemMap, base, g, 0, handle, 0);
    NEED(cuMemMap, base, 2 * g, 0, handle, 0);
    ASK("flags 2", cuMemSetAccess, base, 2 * g, &access, 1);
    access = (Access){{0, 0}, 3};
    ASK("place of no kind", cuMemSetAccess, base, 2 * g, &access, 1);
    const Location ninth = {1, 9};
    Word told;
    ASK("device 9", cuMemGetAccess, &told, &ninth, base);
    ASK("2g at base+g", cuMemUnmap, base + g, 2 * g);
    NEED(cuMemUnmap, base, 2 * g);
    NEED(cuMemRelease, handle);
    ASK("the handle again", cuMemRelease, handle);
    NEED(cuMemAddressFree, base, 4 * g);
    ASK("4g again", cuMemAddressFree, base, 4 * g);
}

static void kin_of_streams(void) {
    Handle s = stream(), graph, node, list[1] = {NULL};
    StreamAttribute value;
    Word zero[64] = {0};
    ASK("between streams of which nothing was set", cuStreamCopyAttributes, s, stream());
    ASK("descriptor NULL", cuGreenCtxCreate, &node, NULL, 0, 1);
    ASK("handle not wanted", cuLogsRegisterCallback, kin, NULL, NULL);
    memset(&value, 0, sizeof value), value.policy = 5;
    ASK("synchronisation policy 5", cuStreamSetAttribute, s, 3, &value);
    memset(&value, 0, sizeof value), value.window.ratio = 2;
    ASK("access policy window, ratio 2", cuStreamSetAttribute, s, 1, &value);
    ASK("a semaphore NULL", cuWaitExternalSemaphoresAsync, list, zero, 1, s);
    NEED(cuGraphCreate, &graph, 0);
    NEED(cuGraphAddEmptyNode, &node, graph, NULL, 0);
    ASK("an empty node", cuGraphExternalSemaphoresSignalNodeGetParams, node, zero);
    ASK("result NULL", cuGraphNodeGetLocalId, node, NULL);
    ASK("node NULL", cuGraphNodeGetContainingGraph, NULL, list);
}

static void kin(void) { kin_of_queries(), kin_of_modules(), kin_of_memory(), kin_of_streams(); }
