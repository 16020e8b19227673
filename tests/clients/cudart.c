/* A program of NVIDIA's runtime as nvcc makes it, but without nvcc: it registers its kernel by
 * hand, so that one source can be linked with each version of cudart, statically and dynamically.
 * Arguments and output are those of Rust's test harness: `cudart --exact [PREFIX::]TEST...`. No
 * header of NVIDIA's is needed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *stream_t, *event_t, *graph_t, *graph_exec_t;
typedef struct { unsigned x, y, z; } dim3_t;
int cudaGetDeviceCount(int *), cudaGetDevice(int *), cudaSetDevice(int), cudaRuntimeGetVersion(int *), cudaDriverGetVersion(int *);
int cudaDeviceGetAttribute(int *, int, int), cudaDeviceSynchronize(void), cudaDeviceReset(void), cudaGetLastError(void);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int), cudaMemset(void *, int, size_t);
int cudaMallocHost(void **, size_t), cudaFreeHost(void *), cudaMallocManaged(void **, size_t, unsigned), cudaMemGetInfo(size_t *, size_t *);
int cudaMemcpyAsync(void *, const void *, size_t, int, stream_t), cudaStreamCreate(stream_t *), cudaStreamSynchronize(stream_t);
int cudaStreamDestroy(stream_t), cudaEventCreate(event_t *), cudaEventRecord(event_t, stream_t), cudaEventSynchronize(event_t);
int cudaEventElapsedTime(float *, event_t, event_t), cudaEventDestroy(event_t), cudaStreamBeginCapture(stream_t, int);
int cudaStreamEndCapture(stream_t, graph_t *), cudaGraphInstantiate(graph_exec_t *, graph_t, ...), cudaGraphLaunch(graph_exec_t, stream_t);
int cudaLaunchKernel(const void *, dim3_t, dim3_t, void **, size_t, stream_t), cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t), cudaMallocAsync(void **, size_t, stream_t), cudaFreeAsync(void *, stream_t);
const char *cudaGetErrorString(int), *cudaGetErrorName(int);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **), __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);

enum { TO_DEVICE = 1, TO_HOST = 2, N = 1000 };

static const char PTX[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .global .align 4 .u32 offset;\n"
    ".visible .entry add(.param .u64 p, .param .u64 q, .param .u32 n) {\n"
    " .reg .pred %c; .reg .u32 %i, %b, %t, %x, %y, %n; .reg .u64 %p, %q, %o;\n"
    " mov.u32 %b, %ctaid.x; mov.u32 %t, %ntid.x; mov.u32 %i, %tid.x; mad.lo.u32 %i, %b, %t, %i;\n"
    " ld.param.u32 %n, [n]; setp.ge.u32 %c, %i, %n; @%c bra done;\n"
    " ld.param.u64 %p, [p]; ld.param.u64 %q, [q]; mul.wide.u32 %o, %i, 4; add.u64 %p, %p, %o; add.u64 %q, %q, %o;\n"
    " ld.global.u32 %x, [%p]; ld.global.u32 %y, [offset]; add.u32 %x, %x, %y; st.global.u32 [%q], %x;\n"
    "done: ret;\n}\n";

/* A fatbin with the text as its only entry, as nvcc makes it, and the wrapper that compiled code passes on. */
enum { HEADER = 80 };
static struct { uint32_t magic; uint16_t version, header; uint64_t size; unsigned char rest[HEADER + sizeof PTX + 8]; }
    fatbin __attribute__((aligned(8))) = {0xba55ed50, 1, 16, 0, {0}};
static struct { uint32_t magic, version; const void *data; void *more; } wrapper = {0x466243b1, 1, &fatbin, 0};
static void **module;
static char add_stub, offset_stub;

static void registers(void) {
    uint64_t padded = (sizeof PTX + 7) & ~7ul;
    uint16_t kind = 1, form = 0x101, ptx_major = 7;
    uint32_t header = HEADER, options = 64, arch = 52;
    uint64_t flags = 0x11 /* 64-bit, Linux */, no_options = 72;
    memcpy(fatbin.rest, &kind, 2);
    memcpy(fatbin.rest + 2, &form, 2);
    memcpy(fatbin.rest + 4, &header, 4);
    memcpy(fatbin.rest + 8, &padded, 8);
    memcpy(fatbin.rest + 20, &options, 4);
    memcpy(fatbin.rest + 26, &ptx_major, 2);
    memcpy(fatbin.rest + 28, &arch, 4);
    memcpy(fatbin.rest + 40, &flags, 8);
    memcpy(fatbin.rest + options, &no_options, 8);
    memcpy(fatbin.rest + HEADER, PTX, sizeof PTX);
    fatbin.size = HEADER + padded;
    module = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(module, &add_stub, "add", "add", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(module, &offset_stub, "offset", "offset", 0, 4, 0, 0);
    __cudaRegisterFatBinaryEnd(module);
}

static char why[400];

#define CHECK(what) do { \
        int code = (what); \
        if (code) { snprintf(why, sizeof why, "%s: %s (%d)", #what, cudaGetErrorString(code), code); return 1; } \
    } while (0)
#define HOLDS(what) do { \
        if (!(what)) { snprintf(why, sizeof why, "not so: %s", #what); return 1; } \
    } while (0)

static int launch(void *from, void *to, stream_t stream) {
    unsigned n = N;
    void *arguments[] = {&from, &to, &n};
    return cudaLaunchKernel(&add_stub, (dim3_t){(N + 127) / 128, 1, 1}, (dim3_t){128, 1, 1}, arguments, 0, stream);
}

static int all_are(const unsigned *values, unsigned first) {
    for (unsigned i = 0; i < N; i++)
        if (values[i] != i + first) return 0;
    return 1;
}

static int devices(void) {
    int count = 0, runtime = 0, driver = 0, major = 0, bus = -1;
    CHECK(cudaRuntimeGetVersion(&runtime));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaGetDeviceCount(&count));
    HOLDS(count > 0 && runtime >= 11000 && driver >= 12000);
    CHECK(cudaDeviceGetAttribute(&major, 75, 0));
    CHECK(cudaDeviceGetAttribute(&bus, 33, 0));
    HOLDS(major >= 5 && bus >= 0);
    int after = 0;
    CHECK(cudaDriverGetVersion(&after));
    HOLDS(after == driver);
    return 0;
}

static int memory(void) {
    unsigned values[N], back[N] = {0};
    void *device = 0, *managed = 0, *pinned = 0;
    size_t left = 0, total = 0;
    for (unsigned i = 0; i < N; i++) values[i] = i;
    CHECK(cudaMalloc(&device, sizeof values));
    CHECK(cudaMemcpy(device, values, sizeof values, TO_DEVICE));
    CHECK(cudaMemcpy(back, device, sizeof values, TO_HOST));
    HOLDS(all_are(back, 0));
    CHECK(cudaMemset(device, 0x11, sizeof values));
    CHECK(cudaMallocHost(&pinned, sizeof values));
    CHECK(cudaMemcpy(pinned, device, sizeof values, TO_HOST));
    HOLDS(((unsigned *)pinned)[N - 1] == 0x11111111);
    CHECK(cudaMallocManaged(&managed, sizeof values, 1));
    memcpy(managed, values, sizeof values);
    CHECK(launch(managed, managed, 0));
    CHECK(cudaDeviceSynchronize());
    HOLDS(((unsigned *)managed)[5] >= 5);
    CHECK(cudaMemGetInfo(&left, &total));
    HOLDS(left > 0 && left < total);
    HOLDS(cudaMalloc(&device, (size_t)1 << 50) == 2 && cudaGetLastError() == 2);
    CHECK(cudaFree(managed));
    CHECK(cudaFreeHost(pinned));
    return 0;
}

static int kernels(void) {
    unsigned values[N], back[N], offset = 42;
    void *device = 0;
    int blocks = 0;
    for (unsigned i = 0; i < N; i++) values[i] = i;
    CHECK(cudaMalloc(&device, sizeof values));
    CHECK(cudaMemcpy(device, values, sizeof values, TO_DEVICE));
    CHECK(cudaMemcpyToSymbol(&offset_stub, &offset, 4, 0, TO_DEVICE));
    CHECK(launch(device, device, 0));
    CHECK(cudaMemcpy(back, device, sizeof back, TO_HOST));
    HOLDS(all_are(back, 42));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &add_stub, 128, 0));
    HOLDS(blocks > 0);
    void *arguments[] = {&device, &device, &offset};
    int refused = cudaLaunchKernel(&add_stub, (dim3_t){1, 1, 1}, (dim3_t){5000, 1, 1}, arguments, 0, 0);
    HOLDS(refused && cudaGetLastError() == refused);
    CHECK(cudaFree(device));
    return 0;
}

static int streams(void) {
    unsigned values[N], back[N], offset = 7;
    void *device = 0;
    stream_t stream = 0;
    event_t before = 0, after = 0;
    float ms = -1;
    for (unsigned i = 0; i < N; i++) values[i] = i;
    CHECK(cudaMemcpyToSymbol(&offset_stub, &offset, 4, 0, TO_DEVICE));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventCreate(&after));
    CHECK(cudaEventRecord(before, stream));
    CHECK(cudaMallocAsync(&device, sizeof values, stream));
    CHECK(cudaMemcpyAsync(device, values, sizeof values, TO_DEVICE, stream));
    CHECK(launch(device, device, stream));
    CHECK(cudaMemcpyAsync(back, device, sizeof back, TO_HOST, stream));
    CHECK(cudaFreeAsync(device, stream));
    CHECK(cudaEventRecord(after, stream));
    CHECK(cudaEventSynchronize(after));
    CHECK(cudaEventElapsedTime(&ms, before, after));
    HOLDS(ms >= 0 && all_are(back, 7));
    CHECK(cudaEventDestroy(before));
    CHECK(cudaEventDestroy(after));
    CHECK(cudaStreamDestroy(stream));
    return 0;
}

static int graphs(void) {
    unsigned values[N], back[N], offset = 1;
    void *device = 0;
    stream_t stream = 0;
    graph_t graph = 0;
    graph_exec_t exec = 0;
    for (unsigned i = 0; i < N; i++) values[i] = i;
    CHECK(cudaMalloc(&device, sizeof values));
    CHECK(cudaMemcpy(device, values, sizeof values, TO_DEVICE));
    CHECK(cudaMemcpyToSymbol(&offset_stub, &offset, 4, 0, TO_DEVICE));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, 0));
    CHECK(launch(device, device, stream));
    CHECK(launch(device, device, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0ull, (void *)0, (size_t)0));
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(back, device, sizeof back, TO_HOST));
    HOLDS(all_are(back, 6));
    CHECK(cudaFree(device));
    return 0;
}

static int reset(void) {
    CHECK(cudaDeviceReset());
    if (kernels()) return 1;
    CHECK(cudaDeviceReset());
    return kernels();
}

static void *kept;

/* Frees after the destructors of the thread's variables. */
static void at_exit(void) {
    int code = cudaFree(kept);
    if (code && code != 4) fprintf(stderr, "cudaFree in an exit handler: %s (%d)\n", cudaGetErrorName(code), code), _Exit(3);
}

static int exits(void) {
    CHECK(cudaMalloc(&kept, 1 << 20));
    atexit(at_exit);
    return 0;
}

static const struct { const char *name; int (*run)(void); } TESTS[] = {
    {"devices", devices}, {"memory", memory}, {"kernels", kernels}, {"streams", streams},
    {"graphs", graphs},   {"reset", reset},   {"exits", exits},
};

int main(int count, char **words) {
    size_t len = sizeof TESTS / sizeof *TESTS;
    if (count > 1 && !strcmp(words[1], "--list")) {
        for (size_t t = 0; t < len; t++) printf("%s: test\n", TESTS[t].name);
        return 0;
    }
    registers();
    int failed = 0;
    printf("running %d tests\n", count - 2);
    for (int i = 2; i < count; i++) {
        int known = 0;
        for (size_t t = 0; t < len; t++) {
            const char *colons = strstr(words[i], "::");
            if (strcmp(colons ? colons + 2 : words[i], TESTS[t].name)) continue;
            known = 1;
            int bad = TESTS[t].run();
            printf("test %s ... %s\n", words[i], bad ? "FAILED" : "ok");
            if (bad) printf("---- %s stdout ----\nError: %s\n", words[i], why);
            fflush(stdout);
            failed |= bad;
        }
        if (!known) return fprintf(stderr, "no test is called %s\n", words[i]), 2;
    }
    return failed;
}
