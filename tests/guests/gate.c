/* The calls of NVIDIA's runtime before and after a program's work, by hand: it takes the driver's
 * tables, makes a primary context current before it retains the context, stores values with the
 * context, and frees memory in an exit handler. */
#include "api.h"
#include "check.h"

typedef CUresult (*slot_t)();

static const unsigned char CUDART[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
static const unsigned char STORAGE[16] = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
static const unsigned char NONE[16] = {1, 2, 3};

static CUdeviceptr kept;
static int destroyed;

static void at_exit(void) {
    if (cuMemFree_v2(kept)) _exit(EXIT_WRONG);
}

static void destroy(CUcontext context, void *key, void *value) {
    CUdevice device;
    /* The context still exists, and the driver may be called. */
    if (context && key == &kept && value == &destroyed && !cuCtxGetDevice(&device)) destroyed++;
}

int main(void) {
    const slot_t *cudart, *storage;
    const void *table = &kept;
    CUcontext early, ctx, current;
    CUmodule module;
    CUfunction function;
    CUdevice device;
    void *value;
    int before, after, number;
    size_t limit = 9;

    CU(cuDriverGetVersion(&before));
    CU(cuInit(0));
    CU(cuDriverGetVersion(&after));
    EXPECT(before == after);
    CU(cuDeviceGet(&device, 0));
    CU(cuGetExportTable((const void **)&cudart, CUDART));
    CU(cuGetExportTable((const void **)&storage, STORAGE));
    FAILS(1, cuGetExportTable(&table, NONE));
    EXPECT(table == NULL);
    FAILS(1, cuGetExportTable(NULL, CUDART));
    FAILS(1, cuGetExportTable(&table, NULL));
    FAILS(101, cudart[2](&early, 99));
    CU(cudart[2](&early, device));
    FAILS(400, storage[2](&value, NULL, &kept));
    CU(cuCtxSetCurrent(early));
    number = 9;
    CU(cuCtxGetDevice(&number));
    EXPECT(number == device);
    CU(cuDevicePrimaryCtxRetain(&ctx, device));
    EXPECT(ctx == early);
    CU(cuCtxGetCurrent(&current));
    EXPECT(current == early);

    CU(storage[0](NULL, &kept, &destroyed, destroy));
    CU(storage[0](early, &after, &before, NULL));
    CU(storage[2](&value, early, &kept));
    EXPECT(value == &destroyed);
    CU(storage[2](&value, NULL, &after));
    EXPECT(value == &before);
    CU(storage[1](early, &after));
    FAILS(400, storage[2](&value, early, &after));
    CU(cuDevicePrimaryCtxReset_v2(device));
    EXPECT(destroyed == 1);
    FAILS(400, storage[2](&value, early, &kept));
    CU(cuDevicePrimaryCtxRetain(&ctx, device));
    EXPECT(ctx == early);
    CU(storage[0](early, &kept, &destroyed, destroy));
    CU(cuDevicePrimaryCtxRetain(&ctx, device));
    CU(cuDevicePrimaryCtxRelease_v2(device));
    EXPECT(destroyed == 1);
    CU(cuDevicePrimaryCtxRelease_v2(device));
    EXPECT(destroyed == 2);
    CU(cuDevicePrimaryCtxRetain(&ctx, device));

    /* Limits and attributes that NVIDIA's libraries query without checking the result. */
    for (int of_graphics = 8; of_graphics <= 9; of_graphics++) {
        limit = 9;
        CU(cuCtxGetLimit(&limit, of_graphics));
        EXPECT(limit == 0);
    }
    CU(cuModuleLoadData(&module, guest_ptx));
    CU(cuModuleGetFunction(&function, module, "vecadd"));
    /* CU_FUNC_ATTRIBUTE_PTX_VERSION: the virtual architecture, not the version of the language. */
    CU(cuFuncGetAttribute(&number, 5, function));
    EXPECT(number == 80);
    for (int attribute = 16; attribute <= 17; attribute++) {
        number = 9;
        CU(cuFuncGetAttribute(&number, attribute, function));
        EXPECT(number == 0);
    }

    CU(cuMemAlloc_v2(&kept, 1 << 20));
    atexit(at_exit);
    return 0;
}
