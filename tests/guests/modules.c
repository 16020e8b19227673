/* Modules, functions, libraries, linking, occupancy and launches. */
#include "tell.h"

enum { PTX = 1, SHARED = 8, CARVEOUT = 9, COOPERATIVE = 2 };

typedef struct {
    int id;
    char pad[4];
    int value[16];
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    Attribute *attributes;
    unsigned count;
} Config;

static CUdeviceptr word;
static char path[] = "/tmp/modules-XXXXXX";

static unsigned read_word(CUdeviceptr at) {
    unsigned value = 0;
    CU(cuMemcpyDtoH_v2(&value, at, 4));
    return value;
}

static void loading(void) {
    CUmodule module, other;
    CUfunction f;
    CUdeviceptr at = 0;
    size_t bytes = 0;
    int mode = 0;
    char log[256] = "";
    int options[] = {3, 4};
    void *values[] = {log, (void *)sizeof log};
    OK(cuModuleGetLoadingMode(&mode));
    EXPECT(mode == 1 || mode == 2);
    FAILS(INVALID_VALUE, cuModuleGetLoadingMode(NULL));
    OK(cuModuleLoad(&module, path));
    FAILS(FILE_NOT_FOUND, cuModuleLoad(&other, "/nowhere/to/be/found"));
    FAILS(INVALID_VALUE, cuModuleLoad(&other, NULL));
    OK(cuModuleGetGlobal_v2(&at, &bytes, module, "counter"));
    IS(4, bytes);
    IS(5, read_word(at));
    OK(cuModuleGetGlobal_v2(NULL, &bytes, module, "table"));
    IS(16, bytes);
    OK(cuModuleGetGlobal_v2(&at, NULL, module, "table"));
    IS(1, read_word(at));
    FAILS(NOT_FOUND, cuModuleGetGlobal_v2(&at, &bytes, module, "nothing"));
    FAILS(NOT_FOUND, cuModuleGetFunction(&f, module, "nothing"));
    FAILS(INVALID_VALUE, cuModuleGetFunction(&f, module, NULL));
    FAILS(INVALID_VALUE, cuModuleGetFunction(NULL, module, "add"));
    OK(cuModuleUnload(module));
    FAILS(INVALID_HANDLE, cuModuleGetFunction(&f, module, "add"));
    FAILS(INVALID_HANDLE, cuModuleUnload(module));
    OK(cuModuleLoadFatBinary(&module, guest_ptx));
    OK(cuModuleUnload(module));
    OK(cuModuleLoadDataEx(&module, guest_ptx, 2, options, values));
    OK(cuModuleUnload(module));
    FAILS(INVALID_VALUE, cuModuleLoadData(&module, NULL));
    FAILS(INVALID_VALUE, cuModuleLoadData(NULL, guest_ptx));
    FAILS(INVALID_PTX, cuModuleLoadData(&module, ".version 7.0\n.target sm_80\n.address_size 64\n!\n"));
    FAILS_EITHER(INVALID_IMAGE, INVALID_PTX, cuModuleLoadData(&module, "nonsense"));
    /* A version of PTX that there is not, and versions that the device is too old for. */
    FAILS(INVALID_PTX, cuModuleLoadData(&module, ".version 0.0\n.target sm_80\n.address_size 64\n"));
    FAILS(UNSUPPORTED_PTX, cuModuleLoadData(&module, ".version 10.0\n.target sm_80\n.address_size 64\n"));
    FAILS(UNSUPPORTED_PTX, cuModuleLoadData(&module, ".version 99.9\n.target sm_80\n.address_size 64\n"));
}

static void functions(void) {
    CUmodule module, of = NULL;
    CUfunction add, count, list[4] = {NULL}, gone;
    const char *name = NULL;
    size_t offset = 9, size = 9, parameters = 9;
    unsigned number = 0;
    int value = 0, loaded = 0;
    OK(cuModuleLoadData(&module, guest_ptx));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&count, module, "count"));
    OK(cuModuleGetFunctionCount(&number, module));
    IS(2, number);
    OK(cuModuleEnumerateFunctions(list, 4, module));
    EXPECT((list[0] == add && list[1] == count) || (list[0] == count && list[1] == add));
    OK(cuFuncGetModule(&of, add));
    EXPECT(of == module);
    OK(cuFuncGetName(&name, count));
    EXPECT(!strcmp(name, "count"));
    OK(cuFuncGetParamInfo(add, 1, &offset, &size));
    IS(8, offset);
    IS(4, size);
    OK(cuFuncGetParamInfo(add, 0, &offset, NULL));
    IS(0, offset);
    FAILS(INVALID_VALUE, cuFuncGetParamInfo(add, 2, &offset, &size));
    OK(cuFuncGetParamCount(add, &parameters));
    IS(2, parameters);
    OK(cuFuncGetParamCount(count, &parameters));
    IS(0, parameters);
    OK(cuFuncLoad(add));
    OK(cuFuncIsLoaded(&loaded, add));
    IS(1, loaded);
    /* Threads; shared, constant and local memory; registers; versions; cache mode; and so on. */
    for (int id = 0; id <= 15; id++) {
        value = -1;
        printf("attribute %d: %d", id, cuFuncGetAttribute(&value, id, count));
        printf(" %d\n", value);
    }
    OK(cuFuncGetAttribute(&value, 0, count));
    IS(64, value);
    OK(cuFuncGetAttribute(&value, 1, count));
    IS(256, value);
    FAILS(INVALID_VALUE, cuFuncGetAttribute(&value, 99, count));
    FAILS(INVALID_VALUE, cuFuncGetAttribute(NULL, 0, count));
    OK(cuFuncSetAttribute(add, SHARED, 16384));
    OK(cuFuncGetAttribute(&value, SHARED, add));
    IS(16384, value);
    OK(cuFuncSetAttribute(add, CARVEOUT, 50));
    OK(cuFuncGetAttribute(&value, CARVEOUT, add));
    IS(50, value);
    FAILS(INVALID_VALUE, cuFuncSetAttribute(add, SHARED, 1 << 30));
    FAILS(INVALID_VALUE, cuFuncSetAttribute(add, 0, 1));
    FAILS(INVALID_VALUE, cuFuncSetAttribute(add, 99, 1));
    OK(cuFuncSetCacheConfig(add, 2));
    FAILS(INVALID_VALUE, cuFuncSetCacheConfig(add, 9));
    OK(cuFuncSetSharedMemConfig(add, 1));
    FAILS(INVALID_VALUE, cuFuncSetSharedMemConfig(add, 9));
    gone = add;
    OK(cuModuleUnload(module));
    FAILS(INVALID_HANDLE, cuFuncGetAttribute(&value, 0, gone));
    FAILS(INVALID_HANDLE, cuFuncGetModule(&of, gone));
    FAILS(INVALID_HANDLE, cuFuncLoad(gone));
}

static void libraries(void) {
    CUlibrary library, of = NULL;
    CUkernel kernel, list[4] = {NULL};
    CUfunction f;
    CUmodule module;
    CUdeviceptr at = 0;
    const char *name = NULL;
    size_t bytes = 0, parameters = 0, offset = 0, size = 0;
    unsigned count = 0;
    int value = 0;
    OK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    FAILS(FILE_NOT_FOUND, cuLibraryLoadFromFile(&of, "/nowhere/to/be/found", NULL, NULL, 0, NULL, NULL, 0));
    FAILS(INVALID_VALUE, cuLibraryLoadData(&of, NULL, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernelCount(&count, library));
    IS(2, count);
    OK(cuLibraryEnumerateKernels(list, 4, library));
    OK(cuLibraryGetKernel(&kernel, library, "add"));
    EXPECT(kernel == list[0] || kernel == list[1]);
    FAILS(NOT_FOUND, cuLibraryGetKernel(&list[2], library, "nothing"));
    OK(cuKernelGetLibrary(&of, kernel));
    EXPECT(of == library);
    OK(cuKernelGetName(&name, kernel));
    EXPECT(!strcmp(name, "add"));
    OK(cuKernelGetParamInfo(kernel, 1, &offset, &size));
    IS(8, offset);
    OK(cuKernelGetParamCount(kernel, &parameters));
    IS(2, parameters);
    OK(cuKernelGetAttribute(&value, 0, kernel, 0));
    EXPECT(value > 0);
    OK(cuKernelSetAttribute(SHARED, 8192, kernel, 0));
    OK(cuKernelGetAttribute(&value, SHARED, kernel, 0));
    IS(8192, value);
    FAILS(INVALID_DEVICE, cuKernelGetAttribute(&value, 0, kernel, 1000));
    OK(cuKernelSetCacheConfig(kernel, 1, 0));
    FAILS(INVALID_VALUE, cuKernelSetCacheConfig(kernel, 9, 0));
    OK(cuLibraryGetGlobal(&at, &bytes, library, "counter"));
    IS(4, bytes);
    IS(5, read_word(at));
    FAILS(NOT_FOUND, cuLibraryGetGlobal(&at, &bytes, library, "nothing"));
    FAILS(NOT_FOUND, cuLibraryGetManaged(&at, &bytes, library, "counter"));
    OK(cuLibraryGetModule(&module, library));
    OK(cuModuleGetFunction(&f, module, "count"));
    OK(cuKernelGetFunction(&f, kernel));
    unsigned by = 4;
    void *params[] = {&word, &by};
    CU(cuMemsetD32_v2(word, 0, 1));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(8, read_word(word));
    OK(cuLibraryUnload(library));
    FAILS(INVALID_HANDLE, cuLibraryUnload(library));
    FAILS(INVALID_HANDLE, cuKernelGetLibrary(&of, kernel));
    FAILS(INVALID_HANDLE, cuKernelGetAttribute(&value, 0, kernel, 0));
}

/* A library has no context: kernels are found without one, and their parameters are queried in one.
 */
static void libraries_without_a_context(void) {
    CUlibrary library;
    CUkernel kernel, none, list[4];
    CUcontext ctx;
    size_t parameters = 0, offset = 0;
    unsigned count = 0;
    OK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuCtxPopCurrent_v2(&ctx));
    OK(cuLibraryGetKernelCount(&count, library));
    IS(2, count);
    OK(cuLibraryEnumerateKernels(list, 4, library));
    OK(cuLibraryGetKernel(&kernel, library, "add"));
    EXPECT(kernel == list[0] || kernel == list[1]);
    FAILS(NOT_FOUND, cuLibraryGetKernel(&none, library, "nothing"));
    FAILS(INVALID_CONTEXT, cuKernelGetParamCount(kernel, &parameters));
    FAILS(INVALID_CONTEXT, cuKernelGetParamInfo(kernel, 1, &offset, NULL));
    OK(cuCtxPushCurrent_v2(ctx));
    OK(cuKernelGetParamCount(kernel, &parameters));
    IS(2, parameters);
    OK(cuKernelGetParamInfo(kernel, 1, &offset, NULL));
    IS(8, offset);
    OK(cuLibraryUnload(library));
}

static void linking(void) {
    CUlinkState state, none;
    CUmodule module;
    CUfunction f;
    void *image = NULL;
    size_t size = 0;
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    FAILS(INVALID_VALUE, cuLinkCreate_v2(0, NULL, NULL, NULL));
    OK(cuLinkAddFile_v2(state, PTX, path, 0, NULL, NULL));
    FAILS(FILE_NOT_FOUND, cuLinkAddFile_v2(state, PTX, "/nowhere/to/be/found", 0, NULL, NULL));
    FAILS(INVALID_VALUE, cuLinkAddData_v2(state, 99, (void *)guest_ptx, 4, "x", 0, NULL, NULL));
    OK(cuLinkComplete(state, &image, &size));
    EXPECT(image && size);
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&f, module, "add"));
    OK(cuLinkDestroy(state));
    OK(cuModuleUnload(module));
    none = state;
    FAILS(INVALID_HANDLE, cuLinkComplete(none, &image, &size));
    FAILS(INVALID_HANDLE, cuLinkDestroy(none));
    /* The forms before CUDA 6.5, which cuDNN calls. */
    OK(cuLinkCreate(0, NULL, NULL, &state));
    FAILS(FILE_NOT_FOUND, cuLinkAddFile(state, PTX, "/nowhere/to/be/found", 0, NULL, NULL));
    OK(cuLinkAddData(state, PTX, (void *)guest_ptx, strlen(guest_ptx) + 1, "x", 0, NULL, NULL));
    OK(cuLinkComplete(state, &image, &size));
    OK(cuLinkDestroy(state));
    /* Many parts, all new to the host. */
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    for (int part = 0; part < 20; part++) {
        char text[200];
        snprintf(text, sizeof text,
                 ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry part%d() { ret; }\n", part);
        OK(cuLinkAddData_v2(state, PTX, text, strlen(text) + 1, "part", 0, NULL, NULL));
    }
    OK(cuLinkComplete(state, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&f, module, "part0"));
    OK(cuModuleGetFunction(&f, module, "part19"));
    OK(cuLinkDestroy(state));
    OK(cuModuleUnload(module));
}

/* A fatbin with one entry: PTX (kind 1) or machine code (kind 2) for an architecture. */
static void *fatbin(uint16_t kind, uint32_t sm, const char *code) {
    enum { HEADER = 16, ENTRY = 64 };
    uint64_t bytes = (strlen(code) + 8) / 8 * 8;
    char *all = calloc(1, HEADER + ENTRY + bytes);
    if (!all) exit(EXIT_USAGE);
    struct {
        uint32_t magic;
        uint16_t version, header;
        uint64_t size;
    } head = {0xba55ed50u, 1, HEADER, ENTRY + bytes};
    struct {
        uint16_t kind, version;
        uint32_t header;
        uint64_t size;
        uint32_t packed, rest, minor_major, sm;
    } entry = {kind, 0x101, ENTRY, bytes, 0, 0, 0x00080003, sm};
    memcpy(all, &head, sizeof head);
    memcpy(all + HEADER, &entry, sizeof entry);
    all[HEADER + 40] = 0x11; /* 64 bits; no debugging information */
    memcpy(all + HEADER + ENTRY, code, strlen(code));
    return all;
}

/* Fatbins whose parts are not where their headers say. Nothing behind them is read. */
static void damaged_fatbins(void) {
    static const uint64_t sizes[] = {1, 63, 1 << 20, 64 << 20, 1ull << 40, ~0ull};
    CUmodule module;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t place = 8; place <= 24; place += 16) {
            char *whole = fatbin(1, 70, ".version 7.0\n.target sm_70\n.address_size 64\n");
            memcpy(whole + place, &sizes[i], sizeof sizes[i]);
            FAILS(INVALID_IMAGE, cuModuleLoadData(&module, whole));
            free(whole);
        }
    }
    char *empty = fatbin(1, 70, "");
    memset(empty + 8, 0, 8);
    FAILS(NO_BINARY, cuModuleLoadData(&module, empty));
    free(empty);
}

/* Relocatable device code: where the program has no code for the device, its parts are linked. */
static void parts_of_a_program(void) {
#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"
    void *parts[] = {
        fatbin(1, 70,
               HEAD ".extern .func (.param .b32 r) seven();\n.visible .entry put(.param .u64 to) {\n.reg .b32 %r;\n"
                    ".reg .b64 %d;\n{ .param .b32 r;\ncall (r), seven;\nld.param.b32 %r, [r]; }\n"
                    "ld.param.u64 %d, [to];\nst.global.u32 [%d], %r;\nret;\n}\n"),
        fatbin(1, 70, HEAD ".visible .func (.param .b32 r) seven() { st.param.b32 [r], 7;\nret;\n}\n"),
        fatbin(2, 80, "machine code of the device runtime"), NULL};
    struct {
        uint32_t magic, version;
        void *linked, **parts;
    } wrapper = {0x466243b1u, 2, fatbin(2, 20, "machine code of long ago"), parts};
    CUmodule module;
    CUlibrary library;
    CUkernel kernel;
    CUfunction put;
    unsigned nothing = 0;
    void *params[] = {&word};
    CU(cuMemcpyHtoD_v2(word, &nothing, 4));
    OK(cuModuleLoadData(&module, &wrapper));
    OK(cuModuleGetFunction(&put, module, "put"));
    OK(cuLaunchKernel(put, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(7, read_word(word));
    OK(cuModuleUnload(module));
    CU(cuMemcpyHtoD_v2(word, &nothing, 4));
    OK(cuLibraryLoadData(&library, &wrapper, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "put"));
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    IS(7, read_word(word));
    OK(cuLibraryUnload(library));
    wrapper.version = 1;
    FAILS(NO_BINARY, cuModuleLoadData(&module, &wrapper));
    free(wrapper.linked);
    free(parts[0]);
    free(parts[1]);
    free(parts[2]);
}

static size_t shared_of(int threads) { return (size_t)threads * 16; }

static void occupancy(void) {
    CUmodule module;
    CUfunction add;
    int blocks = 0, with = 0, grid = 0, block = 0, clusters = -1;
    size_t room = 0;
    CU(cuModuleLoadData(&module, guest_ptx));
    CU(cuModuleGetFunction(&add, module, "add"));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 128, 0));
    EXPECT(blocks > 0);
    TELL(blocks);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with, add, 128, 0, 1));
    EXPECT(with == blocks);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&with, add, 128, 16384));
    EXPECT(with <= blocks);
    TELL(with);
    FAILS(INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 0, 0));
    FAILS(INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(NULL, add, 128, 0));
    FAILS(INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with, add, 128, 0, 9));
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, add, NULL, 0, 0));
    TELL(grid);
    TELL(block);
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, add, NULL, 0, 200));
    EXPECT(block > 0 && block <= 200);
    OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, add, shared_of, 0, 0, 0));
    EXPECT(grid > 0 && block > 0);
    TELL(block);
    FAILS(INVALID_VALUE, cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, add, NULL, 0, 0, 9));
    FAILS(INVALID_VALUE, cuOccupancyMaxPotentialBlockSize(NULL, &block, add, NULL, 0, 0));
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&room, add, 2, 128));
    EXPECT(room > 0);
    TELL(room);
    FAILS(INVALID_VALUE, cuOccupancyAvailableDynamicSMemPerBlock(&room, add, 0, 128));
    /* The results of devices without clusters are only compared. */
    Config config = {{8, 1, 1}, {128, 1, 1}, 0, NULL, NULL, 0};
    TELL(cuOccupancyMaxActiveClusters(&clusters, add, &config));
    TELL(clusters);
    TELL(cuOccupancyMaxPotentialClusterSize(&clusters, add, &config));
    TELL(clusters);
    FAILS(INVALID_VALUE, cuOccupancyMaxActiveClusters(NULL, add, &config));
    FAILS(INVALID_VALUE, cuOccupancyMaxPotentialClusterSize(&clusters, add, NULL));
    OK(cuModuleUnload(module));
}

static void launches(void) {
    CUmodule module;
    CUfunction add, count;
    CUstream stream;
    unsigned by = 3;
    size_t size = 12;
    struct {
        CUdeviceptr at;
        unsigned by;
    } packed = {word, 5};
    void *params[] = {&word, &by}, *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
    void *broken[] = {(void *)7, &packed, NULL};
    CU(cuModuleLoadData(&module, guest_ptx));
    CU(cuModuleGetFunction(&add, module, "add"));
    CU(cuModuleGetFunction(&count, module, "count"));
    CU(cuStreamCreate(&stream, 0));
    CU(cuMemsetD32_v2(word, 0, 1));
    OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
    OK(cuLaunchCooperativeKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, params));
    Attribute together = {COOPERATIVE, {0}, {1}};
    Config config = {{1, 1, 1}, {1, 1, 1}, 0, stream, &together, 1};
    OK(cuLaunchKernelEx(&config, add, params, NULL));
    OK(cuStreamSynchronize(stream));
    IS(14, read_word(word));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 0, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 0, 1, 1, 0, stream, params, NULL));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1 << 20, 1, 1, 1, 1, 0, stream, params, NULL));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 2048, 1, 1, 0, stream, params, NULL));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 1, 1, 128, 0, stream, params, NULL));
    FAILS(INVALID_VALUE, cuLaunchKernel(count, 1, 1, 1, 65, 1, 1, 0, stream, NULL, NULL));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 1 << 30, stream, params, NULL));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, params, extra));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, NULL, broken));
    FAILS(INVALID_VALUE, cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    FAILS(INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    FAILS(TOO_LARGE_TOGETHER, cuLaunchCooperativeKernel(add, 1 << 20, 1, 1, 1, 1, 1, 0, stream, params));
    FAILS(INVALID_VALUE, cuLaunchKernelEx(NULL, add, params, NULL));
    OK(cuStreamSynchronize(stream));
    IS(14, read_word(word));
    OK(cuStreamDestroy_v2(stream));
    FAILS(INVALID_HANDLE, cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    OK(cuModuleUnload(module));
}

int main(void) {
    begin();
    CU(cuMemAlloc_v2(&word, 4));
    int file = mkstemp(path);
    size_t bytes = strlen(guest_ptx);
    if (file < 0 || write(file, guest_ptx, bytes) != (ssize_t)bytes) return EXIT_USAGE;
    close(file);
    loading();
    functions();
    libraries();
    libraries_without_a_context();
    linking();
    damaged_fatbins();
    parts_of_a_program();
    occupancy();
    launches();
    unlink(path);
    return done("modules");
}
