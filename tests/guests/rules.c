/* One rule of CUDA's semantics per run, checked from inside a program; usage: rules NAME.
 * Exits 0 if the rule held. */
#define _GNU_SOURCE
#include "api.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

static CUmodule module;
static CUcontext ctx;

static CUfunction start(const char *kernel) {
    CUdevice device;
    CUfunction f = setup(kernel, &module);
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&ctx, device));
    return f;
}

static int wrong(const char *what) {
    fprintf(stderr, "%s\n", what);
    return EXIT_WRONG;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static const unsigned NON_BLOCKING = 1;

/* One thread waits for a stream whose kernel ends only when another thread feeds it. */
static CUstream waiting_stream;
static void *wait_for_stream(void *unused) {
    (void)unused;
    CU(cuCtxSetCurrent(ctx));
    CU(cuStreamSynchronize(waiting_stream));
    return NULL;
}

static int threads(void) {
    CUfunction spin = start("spin_flag");
    CUdeviceptr flag;
    CUstream feeding;
    CU(cuMemAlloc_v2(&flag, 4));
    CU(cuMemsetD32_v2(flag, 0, 1));
    CU(cuCtxSynchronize());
    CU(cuStreamCreate(&waiting_stream, NON_BLOCKING));
    CU(cuStreamCreate(&feeding, NON_BLOCKING));
    void *params[] = {&flag};
    CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, waiting_stream, params, NULL));
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_for_stream, NULL)) return EXIT_USAGE;
    if (cuStreamQuery(waiting_stream) != 600) return wrong("the kernel ended without its flag");
    unsigned one = 1;
    CU(cuMemcpyHtoDAsync_v2(flag, &one, 4, feeding));
    CU(cuStreamSynchronize(feeding));
    pthread_join(thread, NULL);
    puts("threads: the fed stream ended");
    return 0;
}

/* A program that launches and then makes no call: the launch is still carried out. */
static int sleeper(void) {
    CUfunction null = start("spin_ns");
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    CU(cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    puts("sleeper: launched");
    fflush(stdout);
    sleep(600);
    return 0;
}

/* An asynchronous copy to pinned memory arrives while the program only reads its memory. */
static int async_copy(void) {
    start("spin_ns");
    const size_t n = 8u << 20;
    unsigned char *host;
    CUdeviceptr device;
    CUstream stream;
    CU(cuMemHostAlloc((void **)&host, n, 0));
    memset(host, 0, n);
    CU(cuMemAlloc_v2(&device, n));
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    CU(cuMemsetD8_v2(device, 0xa5, n));
    CU(cuCtxSynchronize());
    CU(cuMemcpyDtoHAsync_v2(host, device, n, stream));
    double deadline = seconds() + 30;
    volatile unsigned char *last = host + n - 1;
    while (*last != 0xa5) {
        if (seconds() > deadline) return wrong("the copy did not arrive");
        usleep(1000);
    }
    CU(cuStreamSynchronize(stream));
    for (size_t i = 0; i < n; i++) {
        if (host[i] != 0xa5) return wrong("a byte is wrong");
    }
    puts("async_copy: arrived while the program did not read");
    return 0;
}

/* The program already uses the address of the device memory: the allocation returns another
 * address. */
static int collision(void) {
    start("spin_ns");
    const size_t n = 4u << 20;
    CUdeviceptr first, second;
    CU(cuMemAlloc_v2(&first, n));
    CU(cuMemFree_v2(first));
    CU(cuCtxSynchronize());
    void *mine = mmap((void *)first, n, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (mine != (void *)first) return wrong("a freed range is still reserved");
    memset(mine, 7, n);
    CU(cuMemAlloc_v2(&second, n));
    if (second < first + n && first < second + n) return wrong("the range was given twice");
    unsigned char *sent = allocate(n), *got = allocate(n);
    memset(sent, 9, n);
    CU(cuMemcpyHtoD_v2(second, sent, n));
    CU(cuMemcpyDtoH_v2(got, second, n));
    if (memcmp(sent, got, n)) return wrong("the other range does not hold its bytes");
    for (size_t i = 0; i < n; i++) {
        if (((unsigned char *)mine)[i] != 7) return wrong("the program's own memory changed");
    }
    puts("collision: another range was given");
    return 0;
}

static int exit_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

/* Forked before cuInit: both processes may use CUDA, each with its own session. */
static int fork_before(void) {
    pid_t child = fork();
    CUfunction null = start("spin_ns");
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    CU(cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CU(cuCtxSynchronize());
    if (child == 0) _exit(0);
    if (exit_of(child) != 0) return wrong("the child failed");
    puts("fork_before: both computed");
    return 0;
}

/* Forked after cuInit: the child gets an error, and the parent is not affected. */
static int fork_after(void) {
    CUfunction null = start("spin_ns");
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    pid_t child = fork();
    if (child == 0) {
        const CUresult NOT_INITIALIZED = 3;
        CUdeviceptr p;
        if (cuCtxSynchronize() != NOT_INITIALIZED) _exit(10);
        if (cuMemAlloc_v2(&p, 4) != NOT_INITIALIZED) _exit(11);
        if (cuInit(0) != NOT_INITIALIZED) _exit(12);
        /* Runs the library's destructors, which must not end the parent's session. */
        exit(0);
    }
    int code = exit_of(child);
    if (code != 0) {
        fprintf(stderr, "the child ended with %d\n", code);
        return EXIT_WRONG;
    }
    for (int i = 0; i < 100; i++) {
        CU(cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    }
    CU(cuCtxSynchronize());
    puts("fork_after: the child was refused, the parent went on");
    return 0;
}

/* The per-thread default streams of two threads do not wait for each other. */
static CUfunction spin_kernel;
static CUdeviceptr shared_flag;
static void *hold_own_stream(void *unused) {
    (void)unused;
    CUstream per_thread = (CUstream)2;
    CU(cuCtxSetCurrent(ctx));
    void *params[] = {&shared_flag};
    CU(cuLaunchKernel(spin_kernel, 1, 1, 1, 1, 1, 1, 0, per_thread, params, NULL));
    CU(cuStreamSynchronize(per_thread));
    return NULL;
}

static int per_thread(void) {
    CUstream mine = (CUstream)2;
    spin_kernel = start("spin_flag");
    CU(cuMemAlloc_v2(&shared_flag, 4));
    CU(cuMemsetD32_v2(shared_flag, 0, 1));
    CU(cuCtxSynchronize());
    pthread_t thread;
    if (pthread_create(&thread, NULL, hold_own_stream, NULL)) return EXIT_USAGE;
    unsigned one = 1;
    usleep(50000); /* The other kernel is then probably running; the result is right either way. */
    CU(cuMemcpyHtoDAsync_v2(shared_flag, &one, 4, mine));
    CU(cuStreamSynchronize(mine));
    pthread_join(thread, NULL);
    puts("per_thread: one thread's default stream did not hold the other's");
    return 0;
}

/* A write out of bounds: the hardware's error at the next synchronisation, permanently. */
static int out_of_bounds(void) {
    const CUresult ILLEGAL_ADDRESS = 700;
    CUfunction spin = start("spin_flag");
    CUdeviceptr nowhere = 0x1000;
    void *params[] = {&nowhere};
    CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    if (cuCtxSynchronize() != ILLEGAL_ADDRESS) return wrong("no CUDA_ERROR_ILLEGAL_ADDRESS");
    CUdeviceptr p;
    if (cuMemAlloc_v2(&p, 4) != ILLEGAL_ADDRESS) return wrong("the error did not stick");
    puts("out_of_bounds: reported, and it stuck");
    return 0;
}

/* More memory than exists: an error, and the program goes on. */
static int out_of_memory(void) {
    const CUresult OUT_OF_MEMORY = 2;
    start("spin_ns");
    size_t free_bytes, total;
    CU(cuMemGetInfo_v2(&free_bytes, &total));
    CUdeviceptr p;
    if (cuMemAlloc_v2(&p, total + 1) != OUT_OF_MEMORY) return wrong("more than the total was given");
    CU(cuMemAlloc_v2(&p, total / 2));
    CU(cuMemFree_v2(p));
    CU(cuMemAlloc_v2(&p, total / 2));
    CU(cuMemFree_v2(p));
    printf("out_of_memory: total %zu\n", total);
    return 0;
}

/* A device heap larger than the VM's memory quota. */
static int heap_out_of_memory(void) {
    const CUresult OUT_OF_MEMORY = 2;
    const int MALLOC_HEAP_SIZE = 2;
    start("spin_ns");
    if (cuCtxSetLimit(MALLOC_HEAP_SIZE, 512 << 20) != OUT_OF_MEMORY) return wrong("the quota does not hold for the heap");
    puts("heap_out_of_memory: refused");
    return 0;
}

/* A program without standard input, output and error: no connection gets descriptor 0, 1 or 2. */
static int closed(void) {
    int said = fcntl(STDERR_FILENO, F_DUPFD, 10);
    for (int fd = 0; fd <= 2; fd++) close(fd);
    CUfunction null = start("spin_ns");
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    CU(cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CU(cuCtxSynchronize());
    int taken = 0;
    for (int fd = 0; fd <= 2; fd++) taken += fcntl(fd, F_GETFD) >= 0;
    dup2(said, STDERR_FILENO);
    if (taken) return wrong("something of the library's has the place of a standard descriptor");
    fputs("closed: none taken\n", stderr);
    return 0;
}

static atomic_int synchronising;
static void *synchronise(void *unused) {
    (void)unused;
    CU(cuCtxSetCurrent(ctx));
    atomic_store(&synchronising, 1);
    for (;;) {
        CU(cuCtxSynchronize());
        pthread_testcancel();
    }
    return NULL;
}

/* A thread that is cancelled in a call ends after the call, and the process goes on. */
static int cancelled(void) {
    CUfunction null = start("spin_ns");
    unsigned long long ns = 300000000;
    void *params[] = {&ns}, *result = NULL;
    pthread_t thread;
    CU(cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    if (pthread_create(&thread, NULL, synchronise, NULL)) return wrong("pthread_create");
    while (!atomic_load(&synchronising)) sched_yield();
    pthread_cancel(thread);
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED) return wrong("the thread was not cancelled");
    CU(cuCtxSynchronize());
    puts("cancelled: the process goes on");
    return 0;
}

/* The VM's memory that an allocation takes is no longer free, even if it is more than the requested
 * bytes. */
static int free_memory(void) {
    enum { BLOCKS = 32, MIB = 1 << 20 };
    start("spin_ns");
    size_t before, after, total;
    CUdeviceptr p;
    CU(cuMemGetInfo_v2(&before, &total));
    for (int i = 0; i < BLOCKS; i++) CU(cuMemAlloc_v2(&p, MIB));
    CU(cuMemGetInfo_v2(&after, &total));
    if (before - after < 2 * BLOCKS * (size_t)MIB) return wrong("more is free than can be had");
    puts("free_memory: as charged");
    return 0;
}

/* A stream that waits for a word to be 7, and another stream. */
static CUstream waits, beside;
static CUdeviceptr word;
static const unsigned AWAITED = 7;

static void wait_for_word(void) {
    enum { EQUAL = 1 };
    CU(cuMemsetD32_v2(word, 0, 1));
    CU(cuStreamSynchronize(NULL));
    CU(cuStreamWaitValue32_v2(waits, word, AWAITED, EQUAL));
}

static void start_with_word(void) {
    start("spin_ns");
    CU(cuMemAlloc_v2(&word, 8));
    CU(cuStreamCreate(&waits, NON_BLOCKING));
    CU(cuStreamCreate(&beside, NON_BLOCKING));
}

/* A small operation every 0.1 s, beside the wait. */
static void trickle(double for_s) {
    for (double until = seconds() + for_s; seconds() < until; usleep(100000)) {
        CU(cuMemsetD32Async(word + 4, 1, 1, beside));
        CU(cuStreamSynchronize(beside));
    }
}

/* A wait for a value does no work on the device, and may last longer than any limit of kernels. */
static int awaiting(void) {
    start_with_word();
    wait_for_word();
    trickle(3);
    if (cuStreamQuery(waits) == 0) return wrong("the stream did not wait");
    CU(cuStreamWriteValue32_v2(beside, word, AWAITED, 0));
    CU(cuStreamSynchronize(waits));
    return 0;
}

/* Work of 1.5 s, repeated until the program is killed, with small operations that complete beside
 * it. */
static int overrunner(void) {
    start_with_word();
    for (;;) {
        wait_for_word();
        CU(cuMemsetD32Async(word, AWAITED, 1, waits));
        trickle(1.5);
        CU(cuStreamWriteValue32_v2(beside, word, AWAITED, 0));
        CU(cuStreamSynchronize(waits));
    }
    return 0;
}

/* Small requests with pauses between them. */
static int now_and_then(void) {
    start_with_word();
    for (int i = 0; i < 400; i++) {
        CU(cuMemsetD32Async(word, i, 1, beside));
        CU(cuStreamSynchronize(beside));
        usleep(5000);
    }
    return 0;
}

/* Copies 32 MiB, and ends while a kernel runs. */
static int debtor(void) {
    enum { BYTES = 32 << 20 };
    CUfunction spin = start("spin_ns");
    unsigned long long ns = 60000000000;
    void *params[] = {&ns};
    CUdeviceptr from;
    CUstream copies, runs;
    void *to = malloc(BYTES);
    CU(cuMemAlloc_v2(&from, BYTES));
    CU(cuStreamCreate(&copies, NON_BLOCKING));
    CU(cuStreamCreate(&runs, NON_BLOCKING));
    CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, runs, params, NULL));
    CU(cuMemcpyDtoHAsync_v2(to, from, BYTES, copies));
    CU(cuStreamSynchronize(copies));
    puts("debtor: copied");
    fflush(stdout);
    _exit(0);
}

/* Holds a session open and reports a failed call, for tests that end the session from outside. */
static int hold(void) {
    CUfunction null = start("spin_ns");
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    puts("hold: open");
    fflush(stdout);
    for (;;) {
        CUresult result = cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
        if (result == 0) result = cuCtxSynchronize();
        if (result != 0) {
            printf("hold: ended with %d\n", result);
            return 0;
        }
        usleep(1000);
    }
}

/* A program with delayed launches goes on with all calls that need no turn. The test must delay the
 * launches for longer than these calls take. */
static int held_back(void) {
    const CUresult NOT_READY = 600;
    CUfunction null = start("spin_ns");
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    CUstream stream;
    CUevent event;
    CUdeviceptr p;
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    CU(cuEventCreate(&event, 0));
    for (int i = 0; i < 500; i++) {
        CU(cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    }
    CU(cuEventRecord(event, stream));
    for (int i = 0; i < 20; i++) {
        size_t free_bytes, total;
        CUmodule another;
        CUfunction f;
        CU(cuMemGetInfo_v2(&free_bytes, &total));
        CU(cuMemAlloc_v2(&p, 1 << 20));
        CU(cuMemFree_v2(p));
        CU(cuModuleLoadData(&another, guest_ptx));
        CU(cuModuleGetFunction(&f, another, "spin_ns"));
        if (cuEventQuery(event) != NOT_READY) return wrong("nothing held the launches back");
    }
    if (cuStreamQuery(stream) != NOT_READY) return wrong("nothing held the launches back");
    puts("held_back: queries, allocations, frees and loads went on");
    /* The following allocation is a signal to a test that watches the VM's memory. */
    CU(cuMemAlloc_v2(&p, 128 << 20));
    /* Nothing is lost: once the limit is removed, all of it is carried out. */
    CU(cuStreamSynchronize(stream));
    if (cuEventQuery(event) != 0) return wrong("the launches were lost");
    puts("held_back: and nothing was lost");
    return 0;
}

static void exit_handler(void) {
    puts("last_thread: the exit handler ran");
}

static void *outlives_main(void *unused) {
    (void)unused;
    CU(cuCtxSetCurrent(ctx));
    usleep(900000);
    CU(cuCtxSynchronize());
    puts("last_thread: the last thread ends");
    return NULL;
}

/* A process ends as by exit(0) when its last thread ends, also if the main thread ended before. */
static int last_thread(void) {
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    pthread_t thread;
    CUstream stream;
    CUfunction null = start("spin_ns");
    CU(cuStreamCreate(&stream, NON_BLOCKING));
    CU(cuLaunchKernel(null, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    CU(cuStreamSynchronize(stream));
    if (atexit(exit_handler) || pthread_create(&thread, NULL, outlives_main, NULL)) return EXIT_USAGE;
    pthread_detach(thread);
    pthread_exit(NULL);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(void);
    } RULES[] = {
        {"threads", threads},           {"sleeper", sleeper},
        {"async_copy", async_copy},     {"collision", collision},
        {"fork_before", fork_before},   {"fork_after", fork_after},
        {"per_thread", per_thread},     {"out_of_bounds", out_of_bounds},
        {"out_of_memory", out_of_memory}, {"hold", hold},
        {"heap_out_of_memory", heap_out_of_memory},
        {"held_back", held_back},       {"closed", closed},
        {"cancelled", cancelled},       {"free_memory", free_memory},
        {"debtor", debtor},             {"awaiting", awaiting},
        {"overrunner", overrunner},     {"now_and_then", now_and_then},
        {"last_thread", last_thread},
    };
    for (size_t i = 0; argc == 2 && i < sizeof RULES / sizeof *RULES; i++) {
        if (!strcmp(argv[1], RULES[i].name)) return RULES[i].run();
    }
    fprintf(stderr, "usage: rules NAME\n");
    return EXIT_USAGE;
}
