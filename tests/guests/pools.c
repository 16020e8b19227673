/* Pools of memory, and physical memory. */
#include "tell.h"

enum { PINNED = 1, MANAGED = 2, ON_DEVICE = 1, READ_WRITE = 3 };

typedef struct {
    int kind, id;
} Location;
typedef struct {
    int allocation, handles;
    Location location;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
} PoolProperties;
typedef struct {
    Location location;
    int flags;
} Access;
typedef struct {
    int kind, handles;
    Location location;
    void *meta;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} Properties;
_Static_assert(sizeof(PoolProperties) == 88 && sizeof(Properties) == 32, "as cuda.h");

static CUstream stream;

static void attributes(CUmemoryPool pool, CUdeviceptr p) {
    unsigned long long value = 0, zero = 0, one = 1;
    int flag = 9, off = 0;
    for (int id = 1; id <= 3; id++) {
        OK(cuMemPoolGetAttribute(pool, id, &flag));
        IS(1, flag);
        OK(cuMemPoolSetAttribute(pool, id, &off));
        OK(cuMemPoolGetAttribute(pool, id, &flag));
        IS(0, flag);
    }
    OK(cuMemPoolGetAttribute(pool, 4, &value));
    IS(0, value);
    OK(cuMemPoolSetAttribute(pool, 4, &one));
    OK(cuMemPoolGetAttribute(pool, 4, &value));
    IS(1, value);
    OK(cuMemPoolGetAttribute(pool, 5, &value));
    EXPECT(value >= 4096);
    OK(cuMemPoolGetAttribute(pool, 6, &value));
    EXPECT(value >= 4096);
    OK(cuMemPoolGetAttribute(pool, 7, &value));
    IS(4096, value);
    OK(cuMemPoolGetAttribute(pool, 8, &value));
    EXPECT(value >= 4096);
    /* High watermarks can only be set to zero; the present use cannot be set. */
    FAILS(INVALID_VALUE, cuMemPoolSetAttribute(pool, 8, &one));
    FAILS(INVALID_VALUE, cuMemPoolSetAttribute(pool, 6, &one));
    FAILS(INVALID_VALUE, cuMemPoolSetAttribute(pool, 7, &zero));
    OK(cuMemFreeAsync(p, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolSetAttribute(pool, 8, &zero));
    OK(cuMemPoolGetAttribute(pool, 8, &value));
    IS(0, value);
    OK(cuMemPoolGetAttribute(pool, 7, &value));
    IS(0, value);
    FAILS(INVALID_VALUE, cuMemPoolGetAttribute(pool, 99, &value));
    FAILS(INVALID_VALUE, cuMemPoolSetAttribute(pool, 99, &value));
    FAILS(INVALID_VALUE, cuMemPoolGetAttribute(pool, 4, NULL));
    FAILS(INVALID_VALUE, cuMemPoolSetAttribute(pool, 4, NULL));
}

/* A pool of managed memory may have no location; a device without concurrent access (89) has no
 * such pools. */
static void managed_pools(void) {
    CUmemoryPool now;
    Location anywhere = {0, 0};
    int concurrent = 0;
    OK(cuDeviceGetAttribute(&concurrent, 89, 0));
    int found = cuMemGetMemPool(&now, &anywhere, MANAGED);
    EXPECT(found == (concurrent ? 0 : NOT_SUPPORTED));
}

static void pools(void) {
    PoolProperties properties = {.allocation = PINNED, .location = {ON_DEVICE, 0}};
    Location here = {ON_DEVICE, 0}, nowhere = {ON_DEVICE, 1000};
    Access access = {{ON_DEVICE, 0}, READ_WRITE};
    CUmemoryPool pool, first, now;
    CUdeviceptr p, q;
    int flags = 0;
    OK(cuDeviceGetDefaultMemPool(&first, 0));
    OK(cuDeviceGetMemPool(&now, 0));
    EXPECT(first == now);
    OK(cuMemGetDefaultMemPool(&now, &here, PINNED));
    EXPECT(first == now);
    OK(cuMemPoolCreate(&pool, &properties));
    EXPECT(pool != first);
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuDeviceGetMemPool(&now, 0));
    EXPECT(now == pool);
    OK(cuMemAllocAsync(&p, 4096, stream));
    OK(cuPointerGetAttribute(&now, 17, p));
    EXPECT(now == pool);
    attributes(pool, p);
    OK(cuMemSetMemPool(&here, PINNED, first));
    OK(cuMemGetMemPool(&now, &here, PINNED));
    EXPECT(now == first);
    OK(cuMemAllocFromPoolAsync(&p, 100, pool, stream));
    OK(cuMemAllocFromPoolAsync(&q, 100, pool, NULL));
    OK(cuMemsetD8Async(p, 3, 100, stream));
    OK(cuMemFreeAsync(q, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolGetAccess(&flags, pool, &here));
    IS(READ_WRITE, flags);
    OK(cuMemPoolSetAccess(pool, &access, 1));
    access.flags = 0;
    FAILS(INVALID_VALUE, cuMemPoolSetAccess(pool, &access, 1));
    FAILS(INVALID_VALUE, cuMemPoolSetAccess(pool, NULL, 1));
    FAILS(INVALID_VALUE, cuMemPoolGetAccess(NULL, pool, &here));
    /* Memory in use outlives its pool; a destroyed pool is no longer the current one. */
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuMemPoolDestroy(pool));
    OK(cuDeviceGetMemPool(&now, 0));
    EXPECT(now == first);
    unsigned char byte = 0;
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&byte, p + 99, 1));
    IS(3, byte);
    OK(cuMemFreeAsync(p, stream));
    OK(cuStreamSynchronize(stream));
    FAILS_EITHER(INVALID_VALUE, INVALID_HANDLE, cuMemPoolDestroy(pool));
    FAILS_EITHER(INVALID_VALUE, INVALID_HANDLE, cuMemPoolTrimTo(pool, 0));
    FAILS_EITHER(INVALID_VALUE, INVALID_HANDLE, cuMemAllocFromPoolAsync(&p, 100, pool, stream));
    FAILS_EITHER(INVALID_VALUE, INVALID_HANDLE, cuDeviceSetMemPool(0, pool));
    FAILS(INVALID_VALUE, cuMemPoolDestroy(first));
    FAILS(INVALID_DEVICE, cuDeviceGetMemPool(&now, 1000));
    FAILS(INVALID_DEVICE, cuDeviceGetDefaultMemPool(&now, 1000));
    FAILS_EITHER(INVALID_DEVICE, INVALID_VALUE, cuMemGetMemPool(&now, &nowhere, PINNED));
    FAILS_EITHER(INVALID_DEVICE, INVALID_VALUE, cuMemGetDefaultMemPool(&now, &nowhere, PINNED));
    managed_pools();
    FAILS(INVALID_VALUE, cuMemPoolCreate(&pool, NULL));
    properties.allocation = 9;
    FAILS(INVALID_VALUE, cuMemPoolCreate(&pool, &properties));
    properties = (PoolProperties){.allocation = PINNED, .location = nowhere};
    FAILS_EITHER(INVALID_DEVICE, INVALID_VALUE, cuMemPoolCreate(&pool, &properties));
    FAILS(INVALID_VALUE, cuMemAllocAsync(NULL, 64, stream));
    FAILS(INVALID_VALUE, cuMemFreeAsync(64, stream));
    OK(cuMemAllocAsync(&p, 64, stream));
    OK(cuMemFreeAsync(p, stream));
    FAILS(INVALID_VALUE, cuMemFreeAsync(p, stream));
}

static void physical(void) {
    Properties properties = {.kind = PINNED, .location = {ON_DEVICE, 0}}, told = {0};
    unsigned long long memory = 0, held = 0, flags = 0;
    size_t unit = 0, best = 0;
    CUdeviceptr at, other;
    Access access = {{ON_DEVICE, 0}, READ_WRITE};
    OK(cuMemGetAllocationGranularity(&unit, &properties, 0));
    OK(cuMemGetAllocationGranularity(&best, &properties, 1));
    EXPECT(unit > 0 && best % unit == 0);
    FAILS(INVALID_VALUE, cuMemGetAllocationGranularity(&unit, &properties, 9));
    FAILS(INVALID_VALUE, cuMemGetAllocationGranularity(NULL, &properties, 0));
    FAILS(INVALID_VALUE, cuMemGetAllocationGranularity(&unit, NULL, 0));
    FAILS(INVALID_VALUE, cuMemCreate(&memory, unit + 1, &properties, 0));
    FAILS(INVALID_VALUE, cuMemCreate(&memory, 0, &properties, 0));
    FAILS(INVALID_VALUE, cuMemCreate(&memory, unit, NULL, 0));
    FAILS(INVALID_VALUE, cuMemCreate(&memory, unit, &properties, 1));
    properties.handles = 1; /* File descriptors: NCCL and PyTorch request them for all memory. */
    OK(cuMemCreate(&memory, unit, &properties, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&told, memory));
    IS(1, told.handles);
    OK(cuMemRelease(memory));
    properties.handles = 0;
    OK(cuMemCreate(&memory, unit, &properties, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&told, memory));
    IS(0, told.handles);
    EXPECT(told.kind == PINNED && told.location.kind == ON_DEVICE && told.location.id == 0);
    FAILS(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(NULL, memory));
    FAILS(INVALID_VALUE, cuMemAddressReserve(&at, unit + 1, 0, 0, 0));
    FAILS(INVALID_VALUE, cuMemAddressReserve(&at, 0, 0, 0, 0));
    OK(cuMemAddressReserve(&at, 2 * unit, 0, 0, 0));
    OK(cuMemAddressReserve(&other, unit, 0, 0, 0));
    FAILS(NOT_SUPPORTED, cuMemMap(at + 1, unit, 0, memory, 0));
    FAILS(NOT_SUPPORTED, cuMemMap(at, 2 * unit, 0, memory, 0));
    OK(cuMemMap(at, unit, 0, memory, 0));
    FAILS(INVALID_VALUE, cuMemsetD8_v2(at, 1, 16));
    OK(cuMemGetAccess(&flags, &access.location, at));
    IS(0, flags);
    OK(cuMemSetAccess(at, unit, &access, 1));
    OK(cuMemGetAccess(&flags, &access.location, at));
    IS(READ_WRITE, flags);
    OK(cuMemsetD8_v2(at, 1, 16));
    FAILS(INVALID_VALUE, cuMemSetAccess(at, 2 * unit, &access, 1));
    FAILS(INVALID_VALUE, cuMemSetAccess(at, unit, NULL, 1));
    OK(cuMemRetainAllocationHandle(&held, (void *)(at + 5)));
    EXPECT(held == memory);
    OK(cuMemRelease(held));
    FAILS(INVALID_VALUE, cuMemRetainAllocationHandle(&held, (void *)other));
    FAILS(INVALID_VALUE, cuMemUnmap(at, unit / 2));
    OK(cuMemUnmap(at, unit));
    OK(cuMemUnmap(at, unit)); /* Nothing is mapped there any more. */
    OK(cuMemRelease(memory));
    FAILS(INVALID_VALUE, cuMemRelease(memory));
    FAILS(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&told, memory));
    FAILS(INVALID_VALUE, cuMemMap(at, unit, 0, memory, 0));
    FAILS(INVALID_VALUE, cuMemAddressFree(at, unit));
    OK(cuMemAddressFree(at, 2 * unit));
    OK(cuMemAddressFree(other, unit));
    FAILS(INVALID_VALUE, cuMemAddressFree(other, unit));
}

int main(void) {
    begin();
    CU(cuStreamCreate(&stream, 1));
    pools();
    physical();
    return done("pools");
}
