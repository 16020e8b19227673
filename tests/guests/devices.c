/* Devices and their primary contexts. With an argument: every attribute, one per line. */
#include "tell.h"

/* CU_LIMIT_MALLOC_HEAP_SIZE. */
enum { HEAP = 2 };

typedef struct {
    int threads, block[3], grid[3], shared, constant, warp, pitch, registers, clock, alignment;
} Properties;

/* Every number in cuda.h of CUDA 13, and some beyond. */
static int attributes(void) {
    for (int id = 0; id <= 170; id++) {
        int value = -77;
        CUresult result = cuDeviceGetAttribute(&value, id, 0);
        printf("%d %d %d\n", id, result, value);
    }
    return 0;
}

static void identity(void) {
    char name[256], cut[4], bus[16], again[16];
    unsigned char uuid[16], second[16];
    int version = 0, count = 0;
    CUdevice device = -1;
    OK(cuDriverGetVersion(&version));
    EXPECT(version >= 12000);
    OK(cuDeviceGetCount(&count));
    EXPECT(count >= 1);
    OK(cuDeviceGet(&device, 0));
    FAILS(INVALID_DEVICE, cuDeviceGet(&device, -1));
    FAILS(INVALID_DEVICE, cuDeviceGet(&device, 1000));
    FAILS(INVALID_VALUE, cuDeviceGet(NULL, 0));
    OK(cuDeviceGetName(name, sizeof name, 0));
    OK(cuDeviceGetName(cut, sizeof cut, 0));
    EXPECT(strlen(cut) == 3 && !strncmp(name, cut, 3));
    FAILS(INVALID_VALUE, cuDeviceGetName(name, 0, 0));
    FAILS(INVALID_DEVICE, cuDeviceGetName(name, sizeof name, 1000));
    OK(cuDeviceGetUuid(uuid, 0));
    OK(cuDeviceGetUuid_v2(second, 0));
    EXPECT(!memcmp(uuid, second, 16));
    FAILS(INVALID_VALUE, cuDeviceGetUuid_v2(NULL, 0));
    FAILS(INVALID_DEVICE, cuDeviceGetUuid(uuid, 1000));
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
    EXPECT(strlen(bus) == 12);
    OK(cuDeviceGetByPCIBusId(&device, bus));
    IS(0, device);
    /* The forms without a domain and without a function. */
    OK(cuDeviceGetByPCIBusId(&device, bus + 5));
    IS(0, device);
    bus[10] = 0;
    OK(cuDeviceGetByPCIBusId(&device, bus));
    IS(0, device);
    FAILS_EITHER(INVALID_VALUE, INVALID_DEVICE, cuDeviceGetByPCIBusId(&device, "nothing"));
    FAILS(INVALID_DEVICE, cuDeviceGetByPCIBusId(&device, "fffe:fe:1f.0"));
    int domain, number, slot;
    CU(cuDeviceGetAttribute(&domain, 50, 0));
    CU(cuDeviceGetAttribute(&number, 33, 0));
    CU(cuDeviceGetAttribute(&slot, 34, 0));
    snprintf(again, sizeof again, "%04x:%02x:%02x", domain & 0xffff, number & 0xff, slot & 0xff);
    EXPECT(!strcmp(bus, again));
}

static void limits(void) {
    size_t bytes = 0;
    int major = 0, minor = 0, value = -1, one = 0;
    Properties all;
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    EXPECT(bytes >= (size_t)64 << 20);
    FAILS(INVALID_VALUE, cuDeviceTotalMem_v2(NULL, 0));
    OK(cuDeviceComputeCapability(&major, &minor, 0));
    OK(cuDeviceGetAttribute(&value, 75, 0));
    IS(major, value);
    OK(cuDeviceGetAttribute(&value, 76, 0));
    IS(minor, value);
    FAILS(INVALID_VALUE, cuDeviceGetAttribute(&value, 0, 0));
    FAILS(INVALID_VALUE, cuDeviceGetAttribute(&value, 9999, 0));
    FAILS(INVALID_VALUE, cuDeviceGetAttribute(NULL, 1, 0));
    FAILS(INVALID_DEVICE, cuDeviceGetAttribute(&value, 1, 1000));
    OK(cuDeviceGetProperties(&all, 0));
    const int *field = &all.threads;
    for (int id = 1; id <= 14; id++) {
        CU(cuDeviceGetAttribute(&one, id, 0));
        EXPECT(*field++ == one);
    }
    OK(cuDeviceCanAccessPeer(&value, 0, 0));
    IS(0, value);
    FAILS(INVALID_DEVICE, cuDeviceCanAccessPeer(&value, 0, 1000));
    FAILS(INVALID_DEVICE, cuDeviceGetP2PAttribute(&value, 1, 0, 0));
    FAILS(INVALID_DEVICE, cuDeviceGetP2PAttribute(&value, 1, 0, 1000));
    OK(cuDeviceGetExecAffinitySupport(&value, 0, 0));
    EXPECT(value == 0 || value == 1);
    FAILS(INVALID_VALUE, cuDeviceGetExecAffinitySupport(&value, 77, 0));
    FAILS(INVALID_DEVICE, cuDeviceGetExecAffinitySupport(&value, 0, 1000));
}

/* The current context is the primary one, with flags 4. */
static void of_the_primary(CUcontext primary) {
    unsigned flags = 9;
    CUdevice device = 9, same = 9, named = 9;
    OK(cuCtxGetDevice(&device));
    OK(cuCtxGetDevice_v2(&same, NULL));
    OK(cuCtxGetDevice_v2(&named, primary));
    IS(0, device);
    IS(0, same);
    IS(0, named);
    OK(cuCtxGetFlags(&flags));
    IS(4, flags & 7);
}

static void primary(void) {
    unsigned flags = 9;
    int active = 9;
    CUcontext first, again, now;
    CUdeviceptr p;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(0, flags);
    IS(0, active);
    FAILS(INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    FAILS(INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 4));
    OK(cuDevicePrimaryCtxSetFlags(0, 1));
    FAILS(INVALID_VALUE, cuDevicePrimaryCtxSetFlags_v2(0, 0x1000));
    FAILS(INVALID_VALUE, cuDevicePrimaryCtxSetFlags_v2(0, 3));
    FAILS(INVALID_DEVICE, cuDevicePrimaryCtxSetFlags_v2(1000, 0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT(first == again);
    FAILS(INVALID_DEVICE, cuDevicePrimaryCtxRetain(&again, 1000));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(1, flags & 7);
    IS(1, active);
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 4));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(4, flags & 7);
    OK(cuCtxSetCurrent(first));
    FAILS(INVALID_CONTEXT, cuCtxDestroy_v2(first));
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&p, 4096));
    /* The last release destroys the content of the context; the context stays on the thread's
     * stack. */
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(0, active);
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == first);
    FAILS(CONTEXT_DESTROYED, cuMemAlloc_v2(&p, 4096));
    FAILS(CONTEXT_DESTROYED, cuCtxSynchronize());
    of_the_primary(first);
    /* A new retain revives the context under the same handle. */
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT(again == first);
    OK(cuMemAlloc_v2(&p, 4096));
    size_t heap = 0, reset = 0;
    OK(cuCtxGetLimit(&heap, HEAP));
    OK(cuCtxSetLimit(HEAP, 2 * heap));
    OK(cuCtxSetLimit(HEAP, 3 * heap));
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(0, active);
    FAILS(CONTEXT_DESTROYED, cuMemFree_v2(p));
    FAILS(CONTEXT_DESTROYED, cuMemAlloc_v2(&p, 4096));
    /* The device and the flags of a primary context can be queried even after its reset. */
    of_the_primary(first);
    OK(cuDevicePrimaryCtxReset(0));
    FAILS(INVALID_DEVICE, cuDevicePrimaryCtxReset_v2(1000));
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    OK(cuCtxSetCurrent(again));
    OK(cuCtxGetLimit(&reset, HEAP));
    EXPECT(reset == heap);
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemFree_v2(p));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

int main(int argc, char **argv) {
    (void)argv;
    int value;
    FAILS(NOT_INITIALIZED, cuDeviceGetCount(&value));
    FAILS(INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    if (argc > 1) return attributes();
    identity();
    limits();
    primary();
    return done("devices");
}
