/* Kernels that reach memory of the program by an address that they find in memory, or by an address
 * next to it; one part per run. Usage: pointers NAME [contained]: as in a container that forbids
 * userfaultfd and process_vm_readv. Exits 0 if all results are right. Runs on any driver. */
#include "reach.h"

/* Pointers in memory: a list with nodes in managed and in page-locked blocks. */
static int lists(void) {
    enum { LINKS = 200 };
    struct link {
        struct link *next;
        unsigned value, pad;
    } *links[LINKS];
    for (int i = 0; i < LINKS; i++) {
        CUdeviceptr at;
        if (i % 2) {
            CU(cuMemAllocManaged(&at, sizeof(struct link), 1 + i / 2 % 2));
            links[i] = (struct link *)at;
        } else {
            CU(cuMemHostAlloc((void **)&links[i], sizeof(struct link), 2));
            CU(cuMemHostGetDevicePointer_v2(&at, links[i], 0));
        }
    }
    for (int i = 0; i < LINKS; i++) *links[i] = (struct link){links[(i + 1) % LINKS], i, 5};
    CUdeviceptr first = (CUdeviceptr)links[0];
    unsigned n = 2 * LINKS, value = 1000;
    void *params[] = {&first, &n, &value};
    CU(cuLaunchKernel(follow, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    CU(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < LINKS; i++) EXPECT(links[i]->value == i + 2000 && links[i]->pad == 5);
    puts("lists: right");
    return 0;
}

/* Work without relation to the tested memory. */
static void elsewhere(CUdeviceptr device, CUstream in) {
    for (int i = 0; i < 20; i++) {
        launch(add, device, N, 1, in);
        if (i % 4 == 0) CU(cuStreamSynchronize(in));
    }
    CU(cuStreamSynchronize(in));
}

struct node {
    CUdeviceptr next;
    unsigned value, pad;
};

/* Kernels that find the address of a block in device memory, long after it was stored there. They
 * see what the program wrote since, and the program sees their writes after a wait. */
static int indirect_in(struct node *block) {
    CUdeviceptr device, other, at;
    CUstream second;
    struct node first = {0, 7, 0}, back;
    unsigned n = 2, value = 100;
    void *params[] = {&device, &n, &value};
    CU(cuMemAlloc_v2(&device, sizeof first));
    CU(cuMemAlloc_v2(&other, N * 4));
    CU(cuStreamCreate(&second, 1));
    CU(cuMemHostGetDevicePointer_v2(&at, block, 0));
    block->value = 1;
    /* Stored by a copy of the program, and by a kernel that got the address. */
    for (int by_kernel = 0; by_kernel < 2; by_kernel++) {
        first.next = by_kernel ? 0 : at;
        CU(cuMemcpyHtoD_v2(device, &first, sizeof first));
        if (by_kernel) {
            void *both[] = {&device, &at};
            CU(cuLaunchKernel(keep, 1, 1, 1, 1, 1, 1, 0, stream, both, NULL));
            CU(cuStreamSynchronize(stream));
        }
        for (unsigned round = 1; round < 5; round++) {
            elsewhere(other, stream);
            block->value = 10 * round;
            CU(cuLaunchKernel(follow, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
            /* A wait for the stream itself or behind an event, but not a wait for another stream.
             */
            elsewhere(other, second);
            if (round % 2) {
                CU(cuStreamSynchronize(stream));
            } else {
                CUevent event;
                CU(cuEventCreate(&event, 2));
                CU(cuEventRecord(event, stream));
                CU(cuEventSynchronize(event));
                CU(cuEventDestroy_v2(event));
            }
            EXPECT(block->value == 10 * round + 100);
        }
        CU(cuMemcpyDtoH_v2(&back, device, sizeof back));
        EXPECT(back.next == at && back.value == 7 + 4 * 100);
    }
    CU(cuMemFree_v2(device));
    return 0;
}

/* A kernel polls a word while other streams work and are waited for: the program's write reaches
 * the kernel. */
static int polled(unsigned *words, CUdeviceptr at) {
    CUdeviceptr other;
    CUstream second;
    CU(cuMemAlloc_v2(&other, N * 4));
    CU(cuStreamCreate(&second, 1));
    memset(words, 0, 64);
    launch(latch, at, 3, 5, second);
    elsewhere(other, stream);
    EXPECT(words[3] == 0 && cuStreamQuery(second) == NOT_READY);
    words[0] = 1;
    elsewhere(other, stream);
    CU(cuStreamSynchronize(second));
    EXPECT(words[3] == 5);
    return 0;
}

/* A write of the program between two launches is visible to the second launch without a wait. */
static int between(unsigned *words, CUdeviceptr at, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        words[i] = i;
        launch(add, at + 4 * i, 1, 1000, stream);
    }
    CU(cuStreamSynchronize(stream));
    EXPECT(all(words, n, 1000, 1));
    return 0;
}

/* A running kernel waits for the address of a block. The block is the first that the program maps,
 * and is mapped while the kernel runs. */
static int awaited(void) {
    CUdeviceptr place, at;
    CUstream second;
    CUfunction await;
    CUmodule other;
    unsigned *words;
    CU(cuModuleLoadData(&other, guest_ptx));
    CU(cuModuleGetFunction(&await, other, "await"));
    CU(cuStreamCreate(&second, 1));
    CU(cuMemAlloc_v2(&place, 8));
    CU(cuMemsetD32_v2(place, 0, 2));
    CU(cuStreamSynchronize(NULL)); /* A non-blocking stream does not wait for the memset. */
    launch(await, place, 1, 77, second); /* All threads write the same value. */
    EXPECT(cuStreamQuery(second) == NOT_READY);
    CU(cuMemHostAlloc((void **)&words, 4096, 0));
    CU(cuMemHostGetDevicePointer_v2(&at, words, 0));
    CU(cuMemcpyHtoDAsync_v2(place, &at, sizeof at, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamSynchronize(second));
    EXPECT(words[0] == 77);
    return 0;
}

/* Blocks whose written pages the system reports, blocks that are too small for that, and registered
 * blocks. */
static int indirect(void) {
    static const size_t sizes[] = {4096, 3 << 20, 1 << 20};
    if (awaited()) return 1;
    for (int i = 0; i < 3; i++) {
        char *block;
        CUdeviceptr at;
        if (i < 2) {
            CU(cuMemHostAlloc((void **)&block, sizes[i], 0));
        } else {
            block = allocate(sizes[i]);
            CU(cuMemHostRegister_v2(block, sizes[i], 0));
        }
        memset(block, 0, sizes[i]);
        unsigned *words = (unsigned *)(block + sizes[i] - 2048);
        CU(cuMemHostGetDevicePointer_v2(&at, words, 0));
        if (indirect_in((struct node *)words)) return 1;
        if (polled(words, at)) return 1;
        if (between(words, at, 500)) return 1;
        /* A forked copy of the process has its own memory: neither sees the other's writes. */
        pid_t child = fork();
        if (child == 0) {
            words[0] = 99;
            _exit(words[0] == 99 && words[1] == 1001 ? 0 : 1);
        }
        int status = 1;
        words[1] = 4;
        launch(add, at, 2, 1, stream);
        CU(cuStreamSynchronize(stream));
        EXPECT(child > 0 && waitpid(child, &status, 0) == child);
        EXPECT(words[0] == 1001 && words[1] == 5);
        if (indirect_in((struct node *)words)) return 1;
    }
    puts("indirect: right");
    return 0;
}

/* A kernel that adds to a word of a fresh block, which only the program has set; at and n: its
 * parameters. */
static int added_by(const char *name, unsigned *words, CUdeviceptr at, int n, unsigned index) {
    static unsigned value = 10;
    unsigned more = 1000;
    void *params[] = {&at, &n, &more};
    CUfunction kernel;
    CU(cuModuleGetFunction(&kernel, module, name));
    for (int round = 0; round < 2; round++) {
        words[index] = ++value;
        CU(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
        CU(cuStreamSynchronize(stream));
        if (words[index] != value + more) fprintf(stderr, "%s: %u, not %u\n", name, words[index], value + more);
        EXPECT(words[index] == value + more);
    }
    return 0;
}

static int added(const char *name, unsigned *words, CUdeviceptr at, unsigned index) {
    return added_by(name, words, at, 1, index);
}

/* Kernels that read an address from memory change the right memory, however the PTX computes the
 * address. */
static int written(void) {
    static const char *const kernels[] = {"spaced", "unspaced", "halves", "shifts", "steps"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        unsigned *words;
        CUdeviceptr device, at;
        CU(cuMemHostAlloc((void **)&words, 65536, 2));
        CU(cuMemHostGetDevicePointer_v2(&at, words, 0));
        CU(cuMemAlloc_v2(&device, 64));
        CU(cuMemcpyHtoD_v2(device, &at, sizeof at));
        if (added(kernels[i], words, device, 0)) return 1;
        CU(cuMemFree_v2(device));
        CU(cuMemFreeHost(words));
    }
    puts("written: right");
    return 0;
}

/* The end of a block, and addresses before its first byte, also name the block, even next to other
 * blocks. */
static int edges(void) {
    enum { WORDS = 16384, LAST = WORDS - 1 };
    unsigned *blocks[3];
    for (int i = 0; i < 3; i++) CU(cuMemHostAlloc((void **)&blocks[i], WORDS * 4, 2));
    for (int i = 0; i < 3; i++) {
        CUdeviceptr at = (CUdeviceptr)blocks[i];
        if (added("before", blocks[i], at + WORDS * 4, LAST)) return 1;
        if (added("behind", blocks[i], at - 4, 0)) return 1;
    }
    unsigned *own = allocate(WORDS * 4);
    CUdeviceptr at;
    CU(cuMemHostRegister_v2(own, WORDS * 4, 0));
    CU(cuMemHostGetDevicePointer_v2(&at, own, 0));
    if (added("before", own, at + WORDS * 4, LAST)) return 1;
    if (added("behind", own, at - 4, 0)) return 1;
    /* A page-locked block that is shorter than its pages. */
    unsigned *few;
    CU(cuMemHostAlloc((void **)&few, 100, 2));
    if (added("before", few, (CUdeviceptr)few + 100, 24)) return 1;
    puts("edges: right");
    return 0;
}

/* An adjusted pointer, as in programs whose indices begin at 1, and the kernel's index back into
 * the block. */
static int adjusted(void) {
    static const int away[] = {-1, -(10 << 10), -(256 << 10), -(4 << 20), 512 << 10, 4 << 20};
    enum { BYTES = 1 << 20 };
    unsigned *blocks[3];
    for (int i = 0; i < 2; i++) CU(cuMemHostAlloc((void **)&blocks[i], BYTES, 2));
    blocks[2] = allocate(BYTES);
    CU(cuMemHostRegister_v2(blocks[2], BYTES, 0));
    for (int i = 0; i < 3; i++) {
        CUdeviceptr at = (CUdeviceptr)blocks[i];
        if (i == 2) CU(cuMemHostGetDevicePointer_v2(&at, blocks[i], 0));
        for (size_t k = 0; k < sizeof away / sizeof *away; k++) {
            if (added_by("element", blocks[i], at + 4 * (long long)away[k], 5 - away[k], 5)) return 1;
        }
    }
    puts("adjusted: right");
    return 0;
}

int main(int argc, char **argv) {
    static const struct part parts[] = {
        {"lists", lists}, {"indirect", indirect}, {"written", written}, {"edges", edges}, {"adjusted", adjusted},
    };
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
