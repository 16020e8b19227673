/* Modules, libraries, functions, launches, occupancy and clusters. */
#pragma once
#include "ask.h"

/* truth.ptx, which the build embeds. */
__asm__(".section .rodata\n"
        "truth_ptx:\n"
        ".incbin \"" PTX_FILE "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char truth_ptx[];

static const char three[] = ".version 8.4\n.target sm_86\n.address_size 64\n"
                            ".global .align 4 .u32 variable;\n"
                            ".visible .entry a() { ret; }\n"
                            ".visible .entry b(.param .u64 at) { ret; }\n"
                            ".visible .entry c() { ret; }\n";

enum {
    THREADS,
    STATIC,
    PTX = 5,
    BINARY,
    CACHE_CA,
    DYNAMIC,
    CARVEOUT,
    MUST,
    CLUSTER,
    NON_PORTABLE = 14,
    POLICY,
};

static Handle module_of(const char *text) {
    Handle module;
    NEED(cuModuleLoadData, &module, text);
    return module;
}
static Handle function_of(Handle module, const char *name) {
    Handle f;
    NEED(cuModuleGetFunction, &f, module, name);
    return f;
}
/* A function of a new module, so that the settings of other rows have no effect on it. */
static Handle fresh(const char *name) { return function_of(module_of(truth_ptx), name); }

static void modules(void) {
    Handle module = module_of(three), f[3] = {0}, owner = NULL, k = function_of(module, "b");
    size_t offset = 99, size = 99;
    ASK("result NULL", cuModuleGetFunctionCount, NULL, module);
    int code = CALL(cuModuleEnumerateFunctions, f, 3, module);
    tell("cuModuleEnumerateFunctions", "room for 3, module of 3", code, "%d %d %d", !!f[0], !!f[1], !!f[2]);
    ASK("room for 0", cuModuleEnumerateFunctions, f, 0, module);
    ASK("module NULL", cuModuleEnumerateFunctions, f, 3, NULL);
    code = CALL(cuFuncGetModule, &owner, k);
    tell("cuFuncGetModule", "a function of a module", code, "m=%d", owner == module);
    ASK("function NULL", cuFuncGetModule, &owner, NULL);
    ASK("result NULL", cuFuncGetName, NULL, k);
    code = CALL(cuFuncGetParamInfo, k, 0, &offset, &size);
    tell("cuFuncGetParamInfo", "parameter 0 of one pointer", code, "off=%zu sz=%zu", offset, size);
    ASK("function NULL", cuFuncGetParamInfo, NULL, 0, &offset, &size);
    ASK("100 blocks a multiprocessor", cuOccupancyAvailableDynamicSMemPerBlock, &size, k, 100, 128);
    ASK("result NULL, 1 block", cuOccupancyAvailableDynamicSMemPerBlock, NULL, k, 1, 128);
}

static void libraries(void) {
    static const char nowhere[] = "/nowhere/at/all.ptx";
    Handle library, kernel, owner = NULL, list[8], pointer;
    CUdeviceptr at;
    size_t size, offset;
    unsigned count = 0;
    ASK("a path that is not there", cuLibraryLoadFromFile, &library, nowhere, NULL, NULL, 0, NULL, NULL, 0);
    ASK("result NULL", cuLibraryLoadFromFile, NULL, nowhere, NULL, NULL, 0, NULL, NULL, 0);
    NEED(cuLibraryLoadData, &library, three, NULL, NULL, 0, NULL, NULL, 0);
    NEED(cuLibraryGetKernel, &kernel, library, "b");
    int code = CALL(cuLibraryGetKernelCount, &count, library);
    tell("cuLibraryGetKernelCount", "library of three", code, "n=%u", count);
    ASK("library NULL", cuLibraryGetKernelCount, &count, NULL);
    ASK("room for 8", cuLibraryEnumerateKernels, list, 8, library);
    ASK("array NULL, count 3", cuLibraryEnumerateKernels, NULL, 3, library);
    code = CALL(cuKernelGetLibrary, &owner, kernel);
    tell("cuKernelGetLibrary", "a kernel of a library", code, "l=%d", owner == library);
    ASK("kernel NULL", cuKernelGetLibrary, &owner, NULL);
    ASK("name that is not there", cuLibraryGetGlobal, &at, &size, library, "nothing");
    ASK("library NULL", cuLibraryGetGlobal, &at, &size, NULL, "variable");
    ASK("the name of a kernel", cuLibraryGetGlobal, &at, &size, library, "b");
    ASK("a variable that is not managed", cuLibraryGetManaged, &at, &size, library, "variable");
    ASK("the name of a kernel", cuLibraryGetUnifiedFunction, &pointer, library, "b");
    ASK("prefer shared, device 0", cuKernelSetCacheConfig, kernel, 1, devices[0]);
    ASK("kernel NULL", cuKernelSetCacheConfig, NULL, 1, devices[0]);
    ASK("device -1", cuKernelSetCacheConfig, kernel, 1, -1);
    ASK("parameter 1 of 1", cuKernelGetParamInfo, kernel, 1, &offset, &size);
    ASK("size NULL", cuKernelGetParamInfo, kernel, 0, &offset, NULL);
}

static int attribute(Handle f, int number) {
    int value = -99;
    NEED(cuFuncGetAttribute, &value, number, f);
    return value;
}
/* All attributes except constant and local memory and registers, which depend on the compiler. */
static void all_of(const char *name, const char *words, int code, Handle f) {
    tell(name, words, code,
         "threads %d, static %d, ptx %d, binary %d, cacheCA %d, dyn %d, carve %d, must %d, cluster %d/%d/%d, "
         "nonport %d, policy %d",
         attribute(f, THREADS), attribute(f, STATIC), attribute(f, PTX), attribute(f, BINARY),
         attribute(f, CACHE_CA), attribute(f, DYNAMIC), attribute(f, CARVEOUT), attribute(f, MUST),
         attribute(f, CLUSTER), attribute(f, CLUSTER + 1), attribute(f, CLUSTER + 2), attribute(f, NON_PORTABLE),
         attribute(f, POLICY));
}

static void function_attributes(void) {
    char words[100];
    int value = -5;
    all_of("cuFuncGetAttribute", "256 bytes static, attributes 0 to 15", 0, fresh("small_shared"));
    all_of("cuFuncGetAttribute", "48 KiB static, attributes 0 to 15", 0, fresh("full_shared"));
    all_of("cuFuncGetAttribute", "launch bounds 512, 2, attributes 0 to 15", 0, fresh("wide"));
    all_of("cuFuncGetAttribute", "module with constants, attributes 0 to 15", 0, fresh("constant"));
    int code = CALL(cuFuncGetAttribute, &value, -1, fresh("none"));
    tell("cuFuncGetAttribute", "attribute -1", code, "v=%d", value);
    ASK("function NULL", cuFuncGetAttribute, &value, 0, NULL);
    ASK("function NULL", cuFuncSetAttribute, NULL, DYNAMIC, 1);
    for (int number = 0; number <= 17; number++) {
        Handle f = fresh("bounded");
        code = CALL(cuFuncSetAttribute, f, number, 1);
        snprintf(words, sizeof words, "attribute %d := 1 on a kernel with launch bounds 128; all read back",
                 number);
        all_of("cuFuncSetAttribute", words, code, f);
    }
}

static void set_shared(void) {
    static const struct {
        const char *words, *kernel;
        int number, to;
    } cases[] = {
        {"dynamic shared size := 0, no static", "none", DYNAMIC, 0},
        {"dynamic shared size := 1024, no static", "none", DYNAMIC, 1024},
        {"dynamic shared size := 49153, no static", "none", DYNAMIC, 49153},
        {"dynamic shared size := 101376, no static", "none", DYNAMIC, 101376},
        {"dynamic shared size := 102400, no static", "none", DYNAMIC, 102400},
        {"dynamic shared size := 101121, 256 static", "small_shared", DYNAMIC, 101121},
        {"dynamic shared size := 61377, 40000 static", "middle_shared", DYNAMIC, 61377},
        {"carveout := -2", "none", CARVEOUT, -2},
        {"carveout := 0", "none", CARVEOUT, 0},
        {"carveout := 100", "none", CARVEOUT, 100},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        Handle f = fresh(cases[i].kernel);
        int code = CALL(cuFuncSetAttribute, f, cases[i].number, cases[i].to);
        tell("cuFuncSetAttribute", cases[i].words, code, "now %d", attribute(f, cases[i].number));
    }
    Handle f = fresh("bounded"), other, kernel, library;
    int code = CALL(cuFuncSetAttribute, f, CLUSTER, 3);
    code = code ? code : CALL(cuFuncSetAttribute, f, CLUSTER + 1, 2);
    code = code ? code : CALL(cuFuncSetAttribute, f, CLUSTER + 2, 5);
    all_of("cuFuncSetAttribute", "required cluster 3 x 2 x 5", code, f);
    f = fresh("bounded"), code = CALL(cuFuncSetAttribute, f, POLICY, 2);
    all_of("cuFuncSetAttribute", "cluster scheduling policy := 2", code, f);
    f = fresh("bounded"), code = CALL(cuFuncSetAttribute, f, NON_PORTABLE, 7);
    all_of("cuFuncSetAttribute", "non-portable cluster size allowed := 7", code, f);
    f = fresh("none"), other = fresh("none");
    code = CALL(cuFuncSetAttribute, f, DYNAMIC, 70000);
    tell("cuFuncSetAttribute",
         "dynamic size 70000 on one function; another of a second load of the module, and the same name loaded "
         "again",
         code, "other %d, again %d", attribute(other, DYNAMIC), attribute(fresh("none"), DYNAMIC));
    int now = -1;
    NEED(cuLibraryLoadData, &library, truth_ptx, NULL, NULL, 0, NULL, NULL, 0);
    NEED(cuLibraryGetKernel, &kernel, library, "none");
    code = CALL(cuFuncSetAttribute, kernel, DYNAMIC, 65000);
    NEED(cuKernelGetAttribute, &now, DYNAMIC, kernel, devices[0]);
    tell("cuFuncSetAttribute", "a CUkernel handed in as the function, dynamic size 65000", code, "kernel %d",
         now);
}

static int of_kernel(Handle kernel, int number) {
    int value = -99;
    NEED(cuKernelGetAttribute, &value, number, kernel, devices[0]);
    return value;
}
static void kernel_attributes(void) {
    Handle library, kernel, none, f;
    size_t count = 99;
    int value;
    NEED(cuLibraryLoadData, &library, truth_ptx, NULL, NULL, 0, NULL, NULL, 0);
    NEED(cuLibraryGetKernel, &kernel, library, "small_shared");
    NEED(cuLibraryGetKernel, &none, library, "none");
    tell("cuKernelGetAttribute", "256 bytes static, attributes", 0,
         "threads %d, static %d, ptx %d, binary %d, dyn %d, carve %d", of_kernel(kernel, THREADS),
         of_kernel(kernel, STATIC), of_kernel(kernel, PTX), of_kernel(kernel, BINARY), of_kernel(kernel, DYNAMIC),
         of_kernel(kernel, CARVEOUT));
    ASK("result NULL", cuKernelGetAttribute, NULL, THREADS, kernel, devices[0]);
    ASK("device 5", cuKernelGetAttribute, &value, THREADS, kernel, 5);
    ASK("kernel NULL", cuKernelSetAttribute, DYNAMIC, 1, NULL, devices[0]);
    int code = CALL(cuKernelSetAttribute, DYNAMIC, 101121, kernel, devices[0]);
    tell("cuKernelSetAttribute", "dynamic size 101121 with 256 static", code, "now %d",
         of_kernel(kernel, DYNAMIC));
    code = CALL(cuKernelSetAttribute, CARVEOUT, 30, kernel, devices[0]);
    NEED(cuKernelGetFunction, &f, kernel);
    tell("cuKernelSetAttribute", "carveout 30, then its function asked", code, "function %d",
         attribute(f, CARVEOUT));
    code = CALL(cuKernelGetParamCount, none, &count);
    tell("cuKernelGetParamCount", "none", code, "n=%zu", count);
    ASK("kernel NULL", cuKernelGetParamCount, NULL, &count);
    count = 99, code = CALL(cuFuncGetParamCount, fresh("none"), &count);
    tell("cuFuncGetParamCount", "none", code, "n=%zu", count);
    ASK("result NULL", cuFuncGetParamCount, fresh("none"), NULL);
    count = 99, code = CALL(cuFuncGetParamCount, kernel, &count);
    tell("cuFuncGetParamCount", "a CUkernel", code, "n=%zu", count);
}

static int launch(Handle f, int x, int y, int shared) {
    return CALL(cuLaunchKernel, f, 1, 1, 1, x, y, 1, shared, NULL, NULL, NULL);
}
static void launches(void) {
    Handle f = fresh("none");
    int code = launch(f, 32, 1, 49152);
    tell("cuLaunchKernel", "dynamic sizes 49152, 49153, 65536, not opted in", code, "%d %d %d", code,
         launch(f, 32, 1, 49153), launch(f, 32, 1, 65536));
    f = fresh("full_shared"), code = launch(f, 32, 1, 0);
    tell("cuLaunchKernel", "dynamic sizes 0, 1 with 49152 static", code, "%d %d", code, launch(f, 32, 1, 1));
    f = fresh("none");
    NEED(cuFuncSetAttribute, f, DYNAMIC, 100);
    code = launch(f, 32, 1, 100);
    tell("cuLaunchKernel", "dynamic sizes 100, 101, 49152, opted in to 100", code, "%d %d %d", code,
         launch(f, 32, 1, 101), launch(f, 32, 1, 49152));
    f = fresh("bounded"), code = launch(f, 128, 1, 0);
    tell("cuLaunchKernel", "launch bounds 128: blocks of 128, 129, 64x2, 64x3", code, "%d %d %d %d", code,
         launch(f, 129, 1, 0), launch(f, 64, 2, 0), launch(f, 64, 3, 0));
    NEED(cuCtxSynchronize, 0);

    const int sizes[] = {0, 49152, 49153, 65536, 101376};
    int blocks[5];
    f = fresh("bounded"), code = 0;
    NEED(cuFuncSetAttribute, f, DYNAMIC, 60000);
    for (int i = 0; i < 5; i++) {
        blocks[i] = -1;
        int now = CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks[i], f, 128, sizes[i]);
        code = code ? code : now;
    }
    tell("cuOccupancyMaxActiveBlocksPerMultiprocessor", "the same, opted in to 60000", code, "%d %d %d %d %d",
         blocks[0], blocks[1], blocks[2], blocks[3], blocks[4]);

    Word zero[8] = {0};
    ASK("one zeroed entry", cuLaunchCooperativeKernelMultiDevice, zero, 1, 0);
    ASK("list NULL", cuLaunchCooperativeKernelMultiDevice, NULL, 1, 0);
}

/* On a device without clusters. */
static void clusters(void) {
    struct {
        int id, pad;
        unsigned x, y, z, rest[13];
    } size = {4, 0, 1, 1, 1, {0}};
    struct {
        unsigned grid[3], block[3], shared;
        Handle stream;
        void *attributes;
        unsigned count;
    } config = {{120, 1, 1}, {128, 1, 1}, 0, NULL, &size, 0};
    static const int widths[] = {2, 4, 8, 12, 17};
    char words[64];
    int out;
    for (int beyond = 0; beyond <= 1; beyond++) {
        const char *allowed = beyond ? " (non-portable sizes allowed)" : "";
        Handle f = fresh("none");
        if (beyond) CALL(cuFuncSetAttribute, f, NON_PORTABLE, 1);
        config.count = 0, out = -7;
        int code = CALL(cuOccupancyMaxPotentialClusterSize, &out, f, &config);
        snprintf(words, sizeof words, "no cluster dimension%s", allowed);
        tell("cuOccupancyMaxPotentialClusterSize", words, code, "%d", out);
        config.count = 1;
        for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++) {
            snprintf(words, sizeof words, "cluster of %d%s", widths[i], allowed);
            config.grid[0] = widths[i] * 10, size.x = widths[i], out = -7;
            code = CALL(cuOccupancyMaxActiveClusters, &out, f, &config);
            tell("cuOccupancyMaxActiveClusters", words, code, "%d", out);
        }
        snprintf(words, sizeof words, "cluster of 2%s", allowed);
        config.grid[0] = 20, size.x = 2, out = -7;
        code = CALL(cuOccupancyMaxPotentialClusterSize, &out, f, &config);
        tell("cuOccupancyMaxPotentialClusterSize", words, code, "%d", out);
    }
}
