/* Contexts, their settings, resources of devices, and functions for tools. */
#include "tell.h"

typedef struct {
    void *affinities;
    int count;
    void *graphics;
} CreateParams;
typedef struct {
    int kind;
    unsigned char internal[92];
    unsigned count, smallest, alignment, flags, rest[6];
    void *next;
} Resource;
_Static_assert(sizeof(Resource) == 144, "as cuda.h");

static CUdevice device;

static void life(void) {
    CUcontext none = (CUcontext)1, one, two, three, now;
    unsigned long long id[3] = {0}, other = 0;
    unsigned flags = 0, version = 0;
    CUdevice on = -1;
    OK(cuCtxGetCurrent(&none));
    EXPECT(none == NULL);
    FAILS(INVALID_CONTEXT, cuCtxGetDevice(&on));
    FAILS(INVALID_CONTEXT, cuCtxGetFlags(&flags));
    FAILS(INVALID_CONTEXT, cuCtxSynchronize());
    FAILS(INVALID_CONTEXT, cuCtxPopCurrent_v2(&now));
    FAILS(INVALID_CONTEXT, cuCtxPopCurrent(&now));
    FAILS(INVALID_CONTEXT, cuCtxPushCurrent_v2(NULL));
    FAILS(INVALID_VALUE, cuCtxCreate_v2(&one, 0x1000, device));
    FAILS(INVALID_VALUE, cuCtxCreate_v2(&one, 3, device));
    FAILS(INVALID_VALUE, cuCtxCreate_v2(NULL, 0, device));
    FAILS(INVALID_DEVICE, cuCtxCreate_v2(&one, 0, 1000));
    OK(cuCtxCreate_v2(&one, 4, device));
    OK(cuCtxCreate_v3(&two, NULL, 0, 0, device));
    CreateParams params = {0};
    OK(cuCtxCreate_v4(&three, &params, 1, device));
    EXPECT(one != two && two != three);
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == three);
    OK(cuCtxGetFlags(&flags));
    IS(1, flags & 7);
    OK(cuCtxSetFlags(4));
    OK(cuCtxGetFlags(&flags));
    IS(4, flags & 7);
    FAILS(INVALID_VALUE, cuCtxSetFlags(0x1000));
    OK(cuCtxGetId(one, &id[0]));
    OK(cuCtxGetId(two, &id[1]));
    OK(cuCtxGetId(NULL, &id[2]));
    OK(cuCtxGetId(three, &other));
    EXPECT(id[0] != id[1] && id[1] != id[2] && id[2] == other);
    FAILS(INVALID_VALUE, cuCtxGetId(one, NULL));
    OK(cuCtxGetApiVersion(one, &version));
    EXPECT(version >= 3010);
    OK(cuCtxGetDevice(&on));
    IS(0, on);
    on = -1;
    OK(cuCtxGetDevice_v2(&on, one));
    IS(0, on);
    OK(cuCtxGetDevice_v2(&on, NULL));
    /* The stack. */
    OK(cuCtxPushCurrent_v2(one));
    OK(cuCtxPushCurrent(one));
    OK(cuCtxPopCurrent(&now));
    EXPECT(now == one);
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == three);
    OK(cuCtxSetCurrent(two));
    OK(cuCtxPopCurrent_v2(&now));
    EXPECT(now == two);
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == two);
    OK(cuCtxSynchronize_v2(one));
    OK(cuCtxSynchronize_v2(NULL));
    OK(cuCtxSynchronize());
    /* A destroyed context. */
    OK(cuCtxDestroy_v2(one));
    FAILS_EITHER(INVALID_CONTEXT, CONTEXT_DESTROYED, cuCtxDestroy_v2(one));
    FAILS_EITHER(INVALID_CONTEXT, CONTEXT_DESTROYED, cuCtxPushCurrent_v2(one));
    FAILS_EITHER(INVALID_CONTEXT, CONTEXT_DESTROYED, cuCtxSetCurrent(one));
    FAILS_EITHER(INVALID_CONTEXT, CONTEXT_DESTROYED, cuCtxGetId(one, &other));
    FAILS_EITHER(INVALID_CONTEXT, CONTEXT_DESTROYED, cuCtxGetApiVersion(one, &version));
    FAILS_EITHER(INVALID_CONTEXT, CONTEXT_DESTROYED, cuCtxSynchronize_v2(one));
    FAILS_EITHER(INVALID_CONTEXT, CONTEXT_DESTROYED, cuCtxGetDevice_v2(&on, one));
    OK(cuCtxDestroy_v2(two));
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == NULL);
    OK(cuCtxDestroy_v2(three));
}

static void settings(void) {
    static const struct {
        int limit;
        size_t value;
    } limits[] = {{0, 4096}, {1, 2 << 20}, {2, 16 << 20}, {5, 128}};
    size_t value = 0;
    int least = -9, greatest = 9, config = -1;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        OK(cuCtxSetLimit(limits[i].limit, limits[i].value));
        OK(cuCtxGetLimit(&value, limits[i].limit));
        EXPECT(value >= limits[i].value);
    }
    FAILS_EITHER(UNSUPPORTED_LIMIT, INVALID_VALUE, cuCtxGetLimit(&value, 99));
    FAILS_EITHER(UNSUPPORTED_LIMIT, INVALID_VALUE, cuCtxSetLimit(99, 1));
    FAILS(INVALID_VALUE, cuCtxGetLimit(NULL, 0));
    OK(cuCtxGetCacheConfig(&config));
    IS(0, config);
    OK(cuCtxSetCacheConfig(2));
    OK(cuCtxGetCacheConfig(&config));
    IS(2, config);
    FAILS(INVALID_VALUE, cuCtxSetCacheConfig(9));
    FAILS(INVALID_VALUE, cuCtxGetCacheConfig(NULL));
    /* Banks of shared memory have 4 bytes on every supported device. */
    OK(cuCtxSetSharedMemConfig(2));
    OK(cuCtxGetSharedMemConfig(&config));
    IS(1, config);
    FAILS(INVALID_VALUE, cuCtxSetSharedMemConfig(9));
    OK(cuCtxResetPersistingL2Cache());
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    EXPECT(least == 0 && greatest <= 0);
    TELL(greatest);
    OK(cuCtxGetStreamPriorityRange(NULL, NULL));
}

static void peers(CUcontext own) {
    CUcontext other;
    OK(cuCtxCreate_v2(&other, 0, device));
    FAILS(NO_PEERS, cuCtxEnablePeerAccess(other, 0));
    FAILS(INVALID_CONTEXT, cuCtxEnablePeerAccess(NULL, 0));
    FAILS(INVALID_VALUE, cuCtxEnablePeerAccess(own, 1));
    FAILS(NO_PEERS, cuCtxEnablePeerAccess(own, 0));
    FAILS(PEERS_NOT_ENABLED, cuCtxDisablePeerAccess(own));
    FAILS(INVALID_CONTEXT, cuCtxDisablePeerAccess(NULL));
    OK(cuCtxDestroy_v2(other));
}

static void resources(CUcontext ctx) {
    Resource all = {0}, same = {0}, parts[8], rest;
    unsigned count = 0;
    OK(cuDeviceGetDevResource(device, &all, 1));
    int multiprocessors = 0;
    CU(cuDeviceGetAttribute(&multiprocessors, 16, device));
    EXPECT(all.kind == 1 && all.count == (unsigned)multiprocessors);
    OK(cuCtxGetDevResource(ctx, &same, 1));
    EXPECT(same.kind == 1 && same.count == all.count);
    OK(cuStreamGetDevResource(NULL, &same, 1));
    EXPECT(same.kind == 1 && same.count == all.count);
    FAILS(INVALID_RESOURCE_TYPE, cuDeviceGetDevResource(device, &same, 0));
    FAILS(INVALID_DEVICE, cuDeviceGetDevResource(1000, &same, 1));
    FAILS(INVALID_VALUE, cuDeviceGetDevResource(device, NULL, 1));
    OK(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 1));
    EXPECT(count >= 2);
    TELL(count);
    count = 2;
    OK(cuDevSmResourceSplitByCount(parts, &count, &all, &rest, 0, 1));
    IS(2, count);
    EXPECT(parts[0].kind == 1 && parts[0].count == parts[1].count && parts[0].count > 0);
    EXPECT(rest.count == all.count - 2 * parts[0].count);
    TELL(parts[0].count);
    count = 1;
    FAILS(INVALID_RESOURCE_CONFIGURATION,
          cuDevSmResourceSplitByCount(parts, &count, &all, NULL, 0, all.count + 1));
    FAILS(INVALID_VALUE, cuDevSmResourceSplitByCount(parts, NULL, &all, NULL, 0, 1));
    FAILS(INVALID_VALUE, cuDevSmResourceSplitByCount(parts, &count, NULL, NULL, 0, 1));
    FAILS(INVALID_VALUE, cuDevSmResourceSplitByCount(parts, &count, &all, NULL, 0x100, 1));
}

/* The settings of core dumps: names of files, and whether they are written. */
static void tools(void) {
    enum { LIGHT = 3, FILE_NAME = 5 };
    _Bool light = 1;
    /* Names are returned only to buffers of the maximum size. */
    char name[1024] = "";
    size_t size = sizeof light, length = sizeof name;
    OK(cuCoredumpGetAttribute(LIGHT, &light, &size));
    IS(0, light);
    light = 1, size = sizeof light;
    OK(cuCoredumpSetAttribute(LIGHT, &light, &size));
    light = 0;
    OK(cuCoredumpGetAttribute(LIGHT, &light, &size));
    IS(1, light);
    length = sizeof "dump.%p";
    OK(cuCoredumpSetAttributeGlobal(FILE_NAME, "dump.%p", &length));
    length = sizeof name;
    OK(cuCoredumpGetAttributeGlobal(FILE_NAME, name, &length));
    EXPECT(!strcmp(name, "dump.%p"));
    length = sizeof name - 1;
    FAILS(INVALID_VALUE, cuCoredumpGetAttributeGlobal(FILE_NAME, name, &length));
    FAILS(INVALID_VALUE, cuCoredumpGetAttribute(99, name, &length));
    FAILS(INVALID_VALUE, cuCoredumpSetAttributeGlobal(99, name, &length));
    FAILS(INVALID_VALUE, cuCoredumpSetAttribute(LIGHT, &light, NULL));
    OK(cuProfilerStart());
    OK(cuProfilerStop());
    /* Removed in CUDA 12, but older programs call it. */
    TELL(cuProfilerInitialize("config", "output", 0));
}

int main(void) {
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    life();
    CUcontext ctx = begin();
    settings();
    peers(ctx);
    resources(ctx);
    tools();
    return done("contexts");
}
