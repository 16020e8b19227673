/* Copies, arrays, pools, managed memory, and physical memory. */
#pragma once
#include "ask.h"

typedef struct {
    int order; /* CU_MEMCPY_SRC_ACCESS_ORDER_STREAM is 1. */
    Location from, to;
    unsigned flags;
} CopyAttributes;
typedef struct {
    int type; /* A pointer is 1, an array 2. */
    CUdeviceptr at;
    size_t row, layer;
    Location hint;
} Operand;
typedef struct {
    Operand from, to;
    size_t width, height, depth;
    int order;
    unsigned flags;
} BoxCopy;
_Static_assert(sizeof(Operand) == 40 && sizeof(BoxCopy) == 112, "as cuda.h");

static BoxCopy box(CUdeviceptr to, CUdeviceptr from) {
    return (BoxCopy){{1, from, 0, 0, {0}}, {1, to, 0, 0, {0}}, 64, 4, 2, 1, 0};
}
static const CopyAttributes in_order = {.order = 1};

/* Batches of copies in the first form, which returns the index of a failed copy. */
static void batches(Handle on) {
    unsigned char one[64], two[64], back[128] = {0};
    CUdeviceptr to[2] = {block(256), 0}, from[2] = {(CUdeviceptr)one, (CUdeviceptr)two};
    size_t sizes[2] = {64, 64}, starts[2] = {0, 5}, fail = (size_t)-1;
    CopyAttributes how[2] = {in_order, in_order};
    to[1] = to[0] + 64;
    memset(one, 1, sizeof one), memset(two, 16, sizeof two);
#define BATCH(words, ...)                                                                                  \
    do {                                                                                                   \
        fail = (size_t)-1;                                                                                 \
        int code_ = CALL(cuMemcpyBatchAsync, __VA_ARGS__);                                                 \
        tell("cuMemcpyBatchAsync", words, code_, "fail=%zd", (ssize_t)fail);                               \
    } while (0)
    ASK("destinations and sources NULL, legacy stream", cuMemcpyBatchAsync_v2, NULL, NULL, sizes, 1, how, starts,
        1, NULL);
    BATCH("count 0", to, from, sizes, 0, how, starts, 1, &fail, on);
    ASK("failure index NULL, a right copy", cuMemcpyBatchAsync, to, from, sizes, 1, how, starts, 1, NULL, on);
    how[0].order = 0;
    BATCH("source access order 0", to, from, sizes, 1, how, starts, 1, &fail, on);
    how[0].order = 1;
    int code = CALL(cuMemcpyBatchAsync, to, from, sizes, 2, how, starts, 1, &fail, on);
    NEED(cuStreamSynchronize, on);
    NEED(cuMemcpyDtoH_v2, back, to[0], sizeof back);
    tell("cuMemcpyBatchAsync", "two copies from the host, read back", code, "fail=%zd back=%d,%d", (ssize_t)fail,
         back[0], back[64]);
    sizes[1] = 0;
    BATCH("second size 0", to, from, sizes, 2, how, starts, 1, &fail, on);
    sizes[1] = 64;
    BATCH("second attribute starts at copy 5 of 1", to, from, sizes, 1, how, starts, 2, &fail, on);
}

static void box_batches(Handle on) {
    CUdeviceptr from = block(4096), to = block(4096);
    BoxCopy list[2], zero = {0};
    size_t fail;
#define BOXES(words, count, boxes)                                                                         \
    do {                                                                                                   \
        fail = (size_t)-1;                                                                                 \
        int code_ = CALL(cuMemcpy3DBatchAsync, count, boxes, &fail, 0, on);                                \
        tell("cuMemcpy3DBatchAsync", words, code_, "fail=%zd", (ssize_t)fail);                             \
    } while (0)
    list[0] = list[1] = box(to, from);
    ASK("count 0, legacy stream", cuMemcpy3DBatchAsync_v2, 0, list, 0, NULL);
    ASK("flags 1, operation all zero, legacy stream", cuMemcpy3DBatchAsync_v2, 1, &zero, 1, NULL);
    BOXES("list NULL", 1, NULL);
    list[0].width = list[0].height = list[0].depth = 0;
    BOXES("extent zero", 1, list);
    list[0] = box(to, from);
    list[0].from.type = 9;
    BOXES("operand type 9", 1, list);
    list[0] = box(to, from);
    list[1].depth = 0;
    BOXES("second operation with depth 0", 2, list);
}

static void copies(void) {
    Handle on = stream();
    Word zero[32] = {0};
    unsigned char bytes[512], back[512];
    CUdeviceptr from = block(512), to = block(512);
    CopyAttributes how = in_order;
    for (int i = 0; i < 512; i++) bytes[i] = (unsigned char)(i * 7);
    ASK("all fields zero", cuMemcpy3DPeer, zero);
    batches(on);
    box_batches(on);

    NEED(cuMemcpyHtoD_v2, from, bytes, 512);
    int code = CALL(cuMemcpyWithAttributesAsync, to, from, 256, &how, on);
    NEED(cuStreamSynchronize, on);
    NEED(cuMemcpyDtoH_v2, back, to, 256);
    tell("cuMemcpyWithAttributesAsync", "device to device, 256 bytes, stream order", code, "right %d",
         !memcmp(back, bytes, 256));
    ASK("attributes NULL", cuMemcpyWithAttributesAsync, to, from, 256, NULL, on);
    how.order = 0;
    ASK("order 0", cuMemcpyWithAttributesAsync, to, from, 256, &how, on);
    how = in_order, how.flags = 0x80;
    ASK("flags 0x80", cuMemcpyWithAttributesAsync, to, from, 256, &how, on);

    BoxCopy right = box(to, from), none = {0};
    code = CALL(cuMemcpy3DWithAttributesAsync, &right, 0, on);
    NEED(cuStreamSynchronize, on);
    NEED(cuMemcpyDtoH_v2, back, to, 512);
    tell("cuMemcpy3DWithAttributesAsync", "64 x 4 x 2 between device blocks", code, "right %d",
         !memcmp(back, bytes, 512));
    ASK("flags 1, operation zero", cuMemcpy3DWithAttributesAsync, &none, 1, on);
    ASK("legacy stream, a right copy", cuMemcpy3DWithAttributesAsync, &right, 0, NULL);
}

static void arrays(void) {
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } shape = {64, 64, 1, 4};
    Word out[8];
    Handle array, plane;
    NEED(cuArrayCreate_v2, &array, &shape);
    ASK("an ordinary array", cuArrayGetMemoryRequirements, out, array, devices[0]);
    ASK("array NULL", cuArrayGetMemoryRequirements, out, NULL, devices[0]);
    ASK("array NULL", cuMipmappedArrayGetMemoryRequirements, out, NULL, devices[0]);
    ASK("array NULL", cuArrayGetSparseProperties, out, NULL);
    ASK("array NULL", cuMipmappedArrayGetSparseProperties, out, NULL);
    ASK("array NULL", cuArrayGetPlane, &plane, NULL, 0);
    ASK("count 0", cuMemMapArrayAsync, out, 0, NULL);
}

static void pools(void) {
    enum { PINNED = 1, MANAGED };
    Location here = {1, devices[0]};
    Handle pool = NULL, same = NULL;
    int file = -1;
    size_t failed = 0, size = 65536;
    CUdeviceptr p = block(MIB), m = managed(65536);
    int code = CALL(cuMemGetDefaultMemPool, &pool, &here, PINNED);
    tell("cuMemGetDefaultMemPool", "pinned, device 0", code, "p=%d", !!pool);
    ASK("managed, device 0", cuMemGetDefaultMemPool, &same, &here, MANAGED);
    ASK("result NULL", cuMemGetDefaultMemPool, NULL, &here, PINNED);
    code = CALL(cuMemGetMemPool, &same, &here, PINNED);
    tell("cuMemGetMemPool", "pinned, device 0, beside the default one", code, "same %d", same == pool);
    ASK("pool NULL", cuMemSetMemPool, &here, PINNED, NULL);
    ASK("DMA-BUF descriptor of 1 MiB of cuMemAlloc", cuMemGetHandleForAddressRange, &file, p, MIB, 1, 0);
    ASK("handle type 5", cuMemGetHandleForAddressRange, &file, p, MIB, 5, 0);
    ASK("count 0", cuMemBatchDecompressAsync, NULL, 0, 0, &failed, NULL);
    ASK("one managed block, legacy stream", cuMemDiscardBatchAsync, &m, &size, 1, 0, NULL);
}

static void ranges(void) {
    enum { READ_MOSTLY = 1, PREFERRED = 2, LAST_PREFETCH = 4 };
    enum { CPU = -1 };
    CUdeviceptr fresh = managed(65536), m = managed(65536), p = block(65536);
    int one = -9, two = -9, value = -9;
    int asked[2] = {READ_MOSTLY, PREFERRED};
    void *out[2] = {&one, &two};
    size_t sizes[2] = {4, 4};
    int code = CALL(cuMemRangeGetAttribute, &value, 4, READ_MOSTLY, fresh, 65536);
    tell("cuMemRangeGetAttribute", "fresh managed, read mostly", code, "v=%d", value);
    code = CALL(cuMemRangeGetAttribute, &value, 4, LAST_PREFETCH, fresh, 65536);
    tell("cuMemRangeGetAttribute", "fresh managed, last prefetch", code, "v=%d", value);
    ASK("read mostly into 1 byte", cuMemRangeGetAttribute, &value, 1, READ_MOSTLY, fresh, 65536);
    ASK("attribute 99", cuMemRangeGetAttribute, &value, 4, 99, fresh, 65536);
    code = CALL(cuMemRangeGetAttributes, out, sizes, asked, 2, fresh, 65536);
    tell("cuMemRangeGetAttributes", "read mostly and preferred location", code, "%d %d", one, two);
    ASK("count 1, lists NULL", cuMemRangeGetAttributes, NULL, NULL, NULL, 1, fresh, 65536);

    ASK("managed to device 1", cuMemPrefetchAsync, m, 65536, devices[1], NULL);
    ASK("managed to the host", cuMemPrefetchAsync, m, 65536, CPU, NULL);
    ASK("device memory to device 0", cuMemPrefetchAsync, p, 65536, devices[0], NULL);
    ASK("size 0", cuMemPrefetchAsync, m, 0, devices[0], NULL);
    ASK("set read mostly, device 0", cuMemAdvise, m, 65536, 1, devices[0]);
    ASK("set preferred location host", cuMemAdvise, m, 65536, 3, CPU);
    ASK("set preferred location device 1", cuMemAdvise, m, 65536, 3, devices[1]);
    ASK("set accessed by host", cuMemAdvise, m, 65536, 5, CPU);
    ASK("unset accessed by device 0", cuMemAdvise, m, 65536, 6, devices[0]);
    ASK("set read mostly on device memory", cuMemAdvise, p, 65536, 1, devices[0]);
    ASK("advice 99", cuMemAdvise, m, 65536, 99, devices[0]);
    code = CALL(cuMemRangeGetAttribute, &value, 4, READ_MOSTLY, m, 65536);
    tell("cuMemRangeGetAttribute", "read mostly, after set read mostly (accepted)", code, "%d", value);
    code = CALL(cuMemRangeGetAttribute, &value, 4, LAST_PREFETCH, m, 65536);
    tell("cuMemRangeGetAttribute", "last prefetch location", code, "%d", value);
}

typedef struct {
    int kind, handles;
    Location place;
    void *meta;
    char flags[8];
} Physical;
typedef struct {
    Location place;
    int flags;
} Access;

static void granularity(const Physical *plain) {
    static const struct {
        const char *words;
        int handles;
        Location place;
    } cases[] = {
        {"minimum, device 0", 0, {1, 0}},
        {"minimum, exportable as descriptor", 1, {1, 0}},
        {"minimum, location host", 0, {2, 0}},
        {"minimum, device 7", 0, {1, 7}},
    };
    size_t unit;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        Physical p = *plain;
        p.handles = cases[i].handles, p.place = cases[i].place, unit = 0;
        int code = CALL(cuMemGetAllocationGranularity, &unit, &p, 0);
        tell("cuMemGetAllocationGranularity", cases[i].words, code, "%zu", unit);
    }
    ASK("option 2", cuMemGetAllocationGranularity, &unit, plain, 2);
    ASK("property NULL", cuMemGetAllocationGranularity, &unit, NULL, 0);
}

static void reserve(const char *words, size_t size, size_t alignment, int flags) {
    CUdeviceptr p = 0;
    int code = CALL(cuMemAddressReserve, &p, size, alignment, 0, flags);
    tell("cuMemAddressReserve", words, code, "%s", code ? "" : p % (2 * MIB) ? "not aligned" : "2 MiB aligned");
    if (!code) NEED(cuMemAddressFree, p, size);
}

static void physical(void) {
    const size_t g = 2 * MIB, sizes[] = {1, 65536, 2097151, 2097153, 3145728, 0};
    const Physical plain = {.kind = 1, .place = {1, devices[0]}};
    const Access access = {{1, devices[0]}, 3};
    Word handle = 0;
    CUdeviceptr base;
    char words[32];
    granularity(&plain);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(words, sizeof words, "%zu bytes", sizes[i]);
        ASK(words, cuMemCreate, &handle, sizes[i], &plain, 0);
    }
    reserve("4096", 4096, 0, 0);
    reserve("g (2 MiB)", g, 0, 0);
    reserve("2g", 2 * g, 0, 0);
    reserve("g, alignment 4096", g, 4096, 0);
    reserve("g, alignment g", g, g, 0);
    reserve("g, alignment 3g", g, 3 * g, 0);
    reserve("g, alignment 5", g, 5, 0);
    reserve("g, flags 1", g, 0, 1);
    NEED(cuMemAddressReserve, &base, 4 * g, 0, 0, 0);
    NEED(cuMemCreate, &handle, 2 * g, &plain, 0);
    ASK("4g reserved, handle of 2g: g/2", cuMemMap, base, g / 2, 0, handle, 0);
    ASK("size 0", cuMemMap, base, 0, 0, handle, 0);
    ASK("g at base+65536", cuMemMap, base + 65536, g, 0, handle, 0);
    ASK("g, offset 65536", cuMemMap, base, g, 65536, handle, 0);
    ASK("3g of the 2g handle", cuMemMap, base, 3 * g, 0, handle, 0);
    ASK("flags 1", cuMemMap, base, 2 * g, 0, handle, 1);
    ASK("2g, right", cuMemMap, base, 2 * g, 0, handle, 0);
    ASK("g at base+g, within the mapping", cuMemMap, base + g, g, 0, handle, 0);
    ASK("g+1", cuMemSetAccess, base, g + 1, &access, 1);
    ASK("g at base+4096", cuMemSetAccess, base + 4096, g, &access, 1);
    ASK("g behind the mapping", cuMemSetAccess, base + 2 * g, g, &access, 1);
    ASK("count 0", cuMemSetAccess, base, 2 * g, &access, 0);
    ASK("all 2g", cuMemSetAccess, base, 2 * g, &access, 1);
    ASK("g+1", cuMemUnmap, base, g + 1);
    ASK("g at base+4096", cuMemUnmap, base + 4096, g);
    ASK("second g of the mapping", cuMemUnmap, base + g, g);
    ASK("4g while mapped", cuMemAddressFree, base, 4 * g);
    NEED(cuMemUnmap, base, 2 * g);
    ASK("2g again", cuMemUnmap, base, 2 * g);
    ASK("g", cuMemAddressFree, base, g);
    ASK("4g at base+4096", cuMemAddressFree, base + 4096, 4 * g);
    ASK("5g", cuMemAddressFree, base, 5 * g);
    ASK("4g, right", cuMemAddressFree, base, 4 * g);
    ASK("the handle", cuMemRelease, handle);
}
