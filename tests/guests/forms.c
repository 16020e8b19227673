/* Rare forms of calls, one part per run; usage: forms NAME.
 * Exits 0 if all results are right. Runs on any driver. */
#define _GNU_SOURCE
#include "boxes.h"
#include "check.h"

#include <pthread.h>

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} Shape;
typedef struct {
    int kind, id;
} Location;
typedef struct {
    int kind, handles;
    Location location;
    void *metadata;
    unsigned char flags[8];
} Properties;
typedef struct {
    Location location;
    int flags;
} Access;
typedef struct {
    int order;
    Location hints[2];
    unsigned flags;
} CopyAttributes;

enum { HOST = 1, DEVICE = 2, ARRAY = 3 };
enum { INVALID_VALUE = 1, INVALID_HANDLE = 400, NOT_READY = 600, NOT_SUPPORTED = 801 };
static CUmodule module;

/* Boxes from the program through an array to another array, to pitched memory, and back. */
static int arrays(void) {
    enum { W = 90, H = 21, D = 3, E = 8, ROW = W * E, PITCH = 1024, HP = ROW + 16 };
    setup("await", &module);
    static unsigned char in[D][H][HP], out[D][H][HP];
    for (size_t i = 0; i < sizeof in; i++) ((unsigned char *)in)[i] = (unsigned char)(i * 13 + 5);
    memset(out, 0xcc, sizeof out);
    Shape shape = {W, H, D, 0x20, 2, 0}, told = {0};
    CUarray one, two;
    CUdeviceptr memory;
    CU(cuArray3DCreate_v2(&one, &shape));
    CU(cuArray3DCreate_v2(&two, &shape));
    CU(cuArray3DGetDescriptor_v2(&told, one));
    EXPECT(told.width == W && told.height == H && told.depth == D && told.channels == 2);
    CU(cuMemAlloc_v2(&memory, (size_t)PITCH * H * D));
    BoxSide host = {.kind = HOST, .host = in, .pitch = HP, .height = H};
    BoxSide first = {.kind = ARRAY, .array = one}, second = {.kind = ARRAY, .array = two};
    BoxSide device = {.kind = DEVICE, .device = memory, .pitch = PITCH, .height = H};
    Box copy = {host, first, ROW, H, D};
    CU(cuMemcpy3D_v2(&copy));
    copy = (Box){first, second, ROW, H, D};
    CU(cuMemcpy3DAsync_v2(&copy, NULL));
    copy = (Box){second, device, ROW, H, D};
    CU(cuDevicePrimaryCtxRetain(&copy.src.ctx, 0));
    copy.dst.ctx = copy.src.ctx;
    CU(cuMemcpy3DPeer(&copy));
    /* A part of the box, moved by an element, a row and a slice. */
    BoxSide into = first, from = device;
    into.x = E, into.y = 1, into.z = 1;
    copy = (Box){from, into, ROW - E, H - 1, D - 1};
    CU(cuMemcpy3D_v2(&copy));
    host.host = out;
    copy = (Box){first, host, ROW, H, D};
    CU(cuMemcpy3D_v2(&copy));
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < HP; x++) {
                int moved = x >= E && y >= 1 && z >= 1;
                int expected = moved ? in[z - 1][y - 1][x - E] : in[z][y][x];
                EXPECT(out[z][y][x] == (x < ROW ? expected : 0xcc));
            }
    into.z = 2;
    copy.dst = into, copy.src = from, copy.depth = 2;
    FAILS(INVALID_VALUE, cuMemcpy3D_v2(&copy));
    /* Lines: single rows in all directions. */
    Shape line = {1000, 0, 0, 1, 1, 0};
    CUarray a, b;
    unsigned char bytes[1000], back[1000] = {0};
    for (int i = 0; i < 1000; i++) bytes[i] = (unsigned char)(i * 3);
    CU(cuArray3DCreate_v2(&a, &line));
    CU(cuArray3DCreate_v2(&b, &line));
    CU(cuMemcpyHtoA_v2(a, 0, bytes, 1000));
    CU(cuMemcpyAtoA_v2(b, 100, a, 0, 900));
    CU(cuMemcpyAtoD_v2(memory, b, 100, 900));
    CU(cuMemcpyDtoA_v2(a, 0, memory + 10, 890));
    CU(cuMemcpyAtoH_v2(back, a, 0, 1000));
    for (int i = 0; i < 1000; i++) EXPECT(back[i] == (i < 890 ? bytes[i + 10] : bytes[i]));
    FAILS(INVALID_VALUE, cuMemcpyHtoA_v2(a, 1, bytes, 1000));
    /* Levels. */
    Shape square = {64, 64, 0, 0x20, 1, 0};
    CUmipmappedArray levels;
    CUarray level;
    CU(cuMipmappedArrayCreate(&levels, &square, 3));
    CU(cuMipmappedArrayGetLevel(&level, levels, 2));
    CU(cuArray3DGetDescriptor_v2(&told, level));
    EXPECT(told.width == 16 && told.height == 16);
    CU(cuMemcpyHtoA_v2(level, 0, bytes, 64));
    FAILS(INVALID_VALUE, cuMipmappedArrayGetLevel(&level, levels, 3));
    CU(cuMipmappedArrayDestroy(levels));
    FAILS(INVALID_HANDLE, cuMemcpyHtoA_v2(level, 0, bytes, 64));
    CU(cuArrayDestroy(a));
    FAILS(INVALID_HANDLE, cuArrayDestroy(a));
    line.channels = 3;
    FAILS(INVALID_VALUE, cuArray3DCreate_v2(&a, &line));
    puts("arrays: right");
    return 0;
}

/* Addresses first, memory later; the same memory twice; a range across two memories. */
static int mappings(void) {
    setup("await", &module);
    int can = 0;
    CU(cuDeviceGetAttribute(&can, 102, 0));
    EXPECT(can == 1);
    Properties properties = {.kind = 1, .location = {1, 0}};
    size_t unit = 0;
    CU(cuMemGetAllocationGranularity(&unit, &properties, 0));
    CUdeviceptr at, again;
    unsigned long long one, two, held;
    CU(cuMemAddressReserve(&at, 2 * unit, 0, 0, 0));
    CU(cuMemAddressReserve(&again, unit, 0, 0, 0));
    CU(cuMemCreate(&one, unit, &properties, 0));
    CU(cuMemCreate(&two, unit, &properties, 0));
    CU(cuMemMap(at, unit, 0, one, 0));
    FAILS(INVALID_VALUE, cuMemMap(at, unit, 0, two, 0));
    CU(cuMemMap(at + unit, unit, 0, two, 0));
    CU(cuMemMap(again, unit, 0, one, 0));
    Access access = {{1, 0}, 3};
    CU(cuMemSetAccess(at, 2 * unit, &access, 1));
    CU(cuMemSetAccess(again, unit, &access, 1));
    unsigned long long flags = 0;
    CU(cuMemGetAccess(&flags, &access.location, at));
    EXPECT(flags == 3);
    int device = -1;
    CU(cuPointerGetAttribute(&device, 9, at));
    EXPECT(device == 0);
    unsigned char bytes[64], back[64];
    for (int i = 0; i < 64; i++) bytes[i] = (unsigned char)(i + 1);
    CU(cuMemcpyHtoD_v2(at + unit - 32, bytes, 64));
    CU(cuMemcpyDtoH_v2(back, at + unit - 32, 64));
    EXPECT(!memcmp(bytes, back, 64));
    CU(cuMemcpyDtoH_v2(back, again + unit - 32, 32));
    EXPECT(!memcmp(bytes, back, 32));
    CUdeviceptr end = at + 2 * unit > again + unit ? at + 2 * unit : again + unit;
    FAILS(INVALID_VALUE, cuMemsetD8_v2(end - 8, 1, 16));
    CU(cuMemRelease(one));
    FAILS(INVALID_VALUE, cuMemRelease(one));
    CU(cuMemRetainAllocationHandle(&held, (void *)(again + 5)));
    EXPECT(held == one);
    CU(cuMemRelease(held));
    CU(cuMemUnmap(at, 2 * unit));
    FAILS(INVALID_VALUE, cuMemsetD8_v2(at, 1, 16));
    FAILS(INVALID_VALUE, cuMemAddressFree(again, unit));
    CU(cuMemcpyDtoH_v2(back, again + unit - 32, 32));
    EXPECT(!memcmp(bytes, back, 32));
    CU(cuMemUnmap(again, unit));
    CU(cuMemAddressFree(at, 2 * unit));
    CU(cuMemAddressFree(again, unit));
    CU(cuMemRelease(two));
    puts("mappings: right");
    return 0;
}

/* Structures by value, up to the largest size. */
static int kilobytes(void) {
    CUfunction small = setup("sum4k", &module), large;
    CU(cuModuleGetFunction(&large, module, "sum32k"));
    static unsigned words[8189];
    CUdeviceptr out;
    CU(cuMemAlloc_v2(&out, 4));
    for (int i = 0; i < 8189; i++) words[i] = (unsigned)i * 2654435761u;
    unsigned expected[2] = {0, 0}, got = 0;
    for (unsigned i = 0; i < 8189; i++) {
        if (i < 1022) expected[0] += i * words[i];
        expected[1] += i * words[i];
    }
    void *params[] = {words, &out}, *params2[] = {&out, words};
    CU(cuLaunchKernel(small, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CU(cuMemcpyDtoH_v2(&got, out, 4));
    EXPECT(got == expected[0]);
    CU(cuLaunchKernel(large, 1, 1, 1, 1, 1, 1, 0, NULL, params2, NULL));
    CU(cuMemcpyDtoH_v2(&got, out, 4));
    EXPECT(got == expected[1]);
    /* The same as one packed buffer. */
    static unsigned char packed[32764];
    memcpy(packed, &out, 8);
    memcpy(packed + 8, words, sizeof words);
    size_t size = sizeof packed;
    void *extra[] = {(void *)1, packed, (void *)2, &size, NULL};
    CU(cuMemsetD8_v2(out, 0, 4));
    CU(cuLaunchKernel(large, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    CU(cuMemcpyDtoH_v2(&got, out, 4));
    EXPECT(got == expected[1]);
    puts("kilobytes: right");
    return 0;
}

/* Default streams of two threads: per-thread streams do not wait for each other, the legacy stream
 * does. */
static CUcontext current;
static CUdeviceptr flag, result;
static CUfunction waits;
static volatile int waiting;

static void *own_waits(void *unused) {
    (void)unused;
    unsigned value = 7;
    void *params[] = {&flag, &result, &value};
    CU(cuCtxSetCurrent(current));
    CU(cuLaunchKernel_ptsz(waits, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    if (cuStreamQuery_ptsz(NULL) != NOT_READY) exit(EXIT_WRONG);
    waiting = 1;
    CU(cuStreamSynchronize_ptsz(NULL));
    return NULL;
}

static void *legacy_waits(void *unused) {
    (void)unused;
    unsigned value = 9;
    void *params[] = {&flag, &result, &value};
    CU(cuCtxSetCurrent(current));
    CU(cuLaunchKernel(waits, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    waiting = 1;
    CU(cuStreamSynchronize(NULL));
    return NULL;
}

static int per_thread(void) {
    waits = setup("await", &module);
    CU(cuDevicePrimaryCtxRetain(&current, 0));
    CU(cuMemAlloc_v2(&flag, 4));
    CU(cuMemAlloc_v2(&result, 8));
    CU(cuMemsetD32_v2(flag, 0, 1));
    CU(cuMemsetD32_v2(result, 0, 2));
    CU(cuCtxSynchronize());
    pthread_t other;
    unsigned got[2] = {0, 0};
    pthread_create(&other, NULL, own_waits, NULL);
    while (!waiting) usleep(200);
    /* This thread's own stream goes on, and ends the wait of the other's stream. */
    CU(cuMemsetD32Async_ptsz(flag, 1, 1, NULL));
    CU(cuStreamSynchronize_ptsz(NULL));
    pthread_join(other, NULL);
    CU(cuMemcpyDtoH_v2(got, result, 8));
    EXPECT(got[0] == 7);
    /* The legacy stream is the same for both threads. */
    CUstream beside;
    CU(cuStreamCreate(&beside, 1));
    CU(cuMemsetD32_v2(flag, 0, 1));
    CU(cuCtxSynchronize());
    waiting = 0;
    pthread_create(&other, NULL, legacy_waits, NULL);
    while (!waiting) usleep(200);
    CU(cuMemsetD32Async(result + 4, 5, 1, NULL));
    for (int i = 0; i < 20; i++) {
        CU(cuMemcpyDtoHAsync_v2(got, result, 8, beside));
        CU(cuStreamSynchronize(beside));
        EXPECT(got[0] == 7 && got[1] == 0);
        usleep(1000);
    }
    CU(cuMemsetD32Async(flag, 1, 1, beside));
    pthread_join(other, NULL);
    CU(cuMemcpyDtoH_v2(got, result, 8));
    EXPECT(got[0] == 9 && got[1] == 5);
    puts("per_thread: right");
    return 0;
}

/* Copies in one call; the addresses determine each direction. */
static int batches(void) {
    setup("await", &module);
    CUdeviceptr a, b;
    CU(cuMemAlloc_v2(&a, 4096));
    CU(cuMemAlloc_v2(&b, 4096));
    CUstream stream;
    CU(cuStreamCreate(&stream, 1));
    unsigned char in[2][1000], out[2][1000];
    for (int i = 0; i < 2000; i++) ((unsigned char *)in)[i] = (unsigned char)(i * 5);
    CopyAttributes attributes[2] = {{.order = 2}, {.order = 1}};
    CUdeviceptr to[] = {a, a + 2000}, from[] = {(CUdeviceptr)in[0], (CUdeviceptr)in[1]};
    size_t sizes[] = {1000, 1000}, first[] = {0, 1};
    CU(cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, first, 2, stream));
    CUdeviceptr on[] = {b, b + 1000}, off[] = {a + 2000, a};
    CU(cuMemcpyBatchAsync_v2(on, off, sizes, 2, attributes + 1, first, 1, stream));
    CUdeviceptr home[] = {(CUdeviceptr)out[0], (CUdeviceptr)out[1]};
    CU(cuMemcpyBatchAsync_v2(home, on, sizes, 2, attributes + 1, first, 1, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(!memcmp(out[0], in[1], 1000) && !memcmp(out[1], in[0], 1000));
    attributes[0].order = 9;
    FAILS(INVALID_VALUE, cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, first, 1, stream));
    puts("batches: right");
    return 0;
}

/* The devices that the program sees, in order. */
static int visible(void) {
    int count = 0;
    CUresult begun = cuInit(0);
    if (begun == 100) {
        puts("none");
        return 0;
    }
    CU(begun);
    CU(cuDeviceGetCount(&count));
    for (int d = 0; d < count; d++) {
        unsigned char uuid[16];
        CU(cuDeviceGetUuid_v2(uuid, d));
        printf("GPU-");
        for (int i = 0; i < 16; i++)
            printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
        puts("");
    }
    /* Each device can be used. */
    for (int d = 0; d < count; d++) {
        CUcontext context;
        CUdeviceptr p;
        CU(cuDevicePrimaryCtxRetain(&context, d));
        CU(cuCtxSetCurrent(context));
        CU(cuMemAlloc_v2(&p, 4096));
        int on = -1;
        CU(cuPointerGetAttribute(&on, 9, p));
        EXPECT(on == d);
        CU(cuMemFree_v2(p));
    }
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*part)(void);
    } parts[] = {
        {"arrays", arrays},       {"mappings", mappings}, {"kilobytes", kilobytes},
        {"per_thread", per_thread}, {"batches", batches},   {"visible", visible},
    };
    for (size_t i = 0; argc == 2 && i < sizeof parts / sizeof parts[0]; i++)
        if (!strcmp(argv[1], parts[i].name)) return parts[i].part();
    fprintf(stderr, "usage: forms NAME\n");
    return EXIT_USAGE;
}
