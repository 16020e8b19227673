/*
 * Kernels that launch kernels; usage:
 *
 *   nested               order, limits, errors and a fault of launched kernels
 *   nested heap BYTES    sets the limit of the device heap, fills the heap with blocks of 1 MiB,
 *                        prints how many there are, and stays until it is killed; exits with 4 if
 *                        the limit cannot be set for lack of memory
 *   nested contexts N    makes N contexts, or as many as the memory allows; destroys and makes them
 *                        again, and prints both numbers
 */
#include "tell.h"

enum { HEAP = 2, PENDING = 4, ILLEGAL_ADDRESS = 700, WORDS = 32, EXIT_NO_MEMORY = 4 };

static CUmodule module;
static CUdeviceptr memory;
static unsigned words[WORDS];

/* Runs a kernel with one thread, then reads the log. */
static CUresult run(const char *name, unsigned n) {
    CUfunction kernel;
    void *params[] = {&memory, &n};
    CU(cuModuleGetFunction(&kernel, module, name));
    CU(cuMemsetD8_v2(memory, 0, sizeof words));
    CU(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    return cuMemcpyDtoH_v2(words, memory, sizeof words);
}

static int heap(size_t bytes) {
    CUresult set = cuCtxSetLimit(HEAP, bytes);
    if (set == OUT_OF_MEMORY) return EXIT_NO_MEMORY;
    CU(set);
    CU(run("hoard", 1 << 20));
    printf("%u blocks\n", words[0]);
    fflush(stdout);
    pause();
    return 0;
}

static int create(CUcontext *all, int most) {
    CUdevice device;
    CU(cuDeviceGet(&device, 0));
    for (int made = 0; made < most; made++) {
        CUresult one = cuCtxCreate_v2(&all[made], 0, device);
        if (one == OUT_OF_MEMORY) return made;
        CU(one);
    }
    return most;
}

static int contexts(int most) {
    CUcontext *all = calloc((size_t)most, sizeof *all);
    int first = create(all, most);
    for (int i = 0; i < first; i++) CU(cuCtxDestroy_v2(all[i]));
    printf("%d contexts, then %d\n", first, create(all, most));
    return 0;
}

static void order(void) {
    static const unsigned logged[] = {10, 1, 2, 4, 5, 102, 3, 6, 7, 103, 101};
    OK(run("tree", 1));
    for (unsigned i = 0; i < sizeof logged / sizeof *logged; i++) IS(logged[i], words[i]);
}

static void limits(void) {
    size_t before = 0;
    OK(cuCtxGetLimit(&before, PENDING));
    IS(2048, before);
    OK(cuCtxSetLimit(PENDING, 3));
    for (int again = 0; again < 2; again++) {
        OK(run("many", 5));
        IS(3, words[0]);
        IS(3, words[15]);
    }
    OK(cuCtxSetLimit(PENDING, before));
    OK(run("many", 5));
    IS(5, words[0]);
    OK(cuCtxSetLimit(HEAP, 20 << 20));
    OK(run("hoard", 1 << 20));
    IS(20, words[0]);
}

int main(int argc, char **argv) {
    begin();
    CU(cuModuleLoadData(&module, guest_ptx));
    CU(cuMemAlloc_v2(&memory, sizeof words));
    if (argc == 3 && !strcmp(argv[1], "heap")) return heap(strtoull(argv[2], NULL, 10));
    if (argc == 3 && !strcmp(argv[1], "contexts")) return contexts(atoi(argv[2]));
    order();
    limits();
    FAILS(ILLEGAL_ADDRESS, run("wild", 0));
    return done("nested");
}
