/* Memory: pitched, page-locked, registered; attributes of addresses; fills and copies in all forms.
 */
#include "boxes.h"
#include "tell.h"

#include <sys/mman.h>

enum { HOST = 1, DEVICE = 2, N = 4096 };

static CUcontext ctx;
static CUstream stream;
static CUdeviceptr a, b;
static unsigned char in[N], out[N];

/* The value in the first bytes of `a`. */
static unsigned first(size_t bytes) {
    unsigned value = 0;
    CU(cuMemcpyDtoH_v2(&value, a, bytes));
    return value;
}

static void allocations(void) {
    CUdeviceptr p, base, rows;
    size_t size = 0, pitch = 0, left = 0, total = 0;
    FAILS(INVALID_VALUE, cuMemAlloc_v2(&p, 0));
    FAILS(INVALID_VALUE, cuMemAlloc_v2(NULL, 64));
    FAILS(OUT_OF_MEMORY, cuMemAlloc_v2(&p, (size_t)1 << 50));
    OK(cuMemAlloc_v2(&p, 1000));
    OK(cuMemGetAddressRange_v2(&base, &size, p + 999));
    EXPECT(base == p && size >= 1000);
    OK(cuMemGetAddressRange_v2(NULL, &size, p));
    OK(cuMemGetAddressRange_v2(&base, NULL, p));
    FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, 64));
    FAILS(INVALID_VALUE, cuMemFree_v2(p + 8));
    OK(cuMemFree_v2(p));
    FAILS(INVALID_VALUE, cuMemFree_v2(p));
    FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, p));
    OK(cuMemFree_v2(0));
    OK(cuMemGetInfo_v2(&left, &total));
    EXPECT(left > 0 && left <= total);
    OK(cuMemAllocPitch_v2(&rows, &pitch, 100, 7, 4));
    EXPECT(pitch >= 100 && pitch % 4 == 0);
    TELL(pitch);
    OK(cuMemGetAddressRange_v2(&base, &size, rows));
    EXPECT(base == rows && size >= 6 * pitch + 100);
    OK(cuMemFree_v2(rows));
    FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&rows, &pitch, 100, 7, 5));
    FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&rows, NULL, 100, 7, 4));
    FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&rows, &pitch, 0, 7, 4));
}

static void host(void) {
    void *p = NULL, *q;
    unsigned flags = 0;
    static char own[8192];
    OK(cuMemAllocHost_v2(&p, 5000));
    memset(p, 1, 5000);
    OK(cuMemHostGetFlags(&flags, p));
    OK(cuMemFreeHost(p));
    FAILS(INVALID_VALUE, cuMemFreeHost(p));
    FAILS(INVALID_VALUE, cuMemFreeHost(own));
    FAILS(INVALID_VALUE, cuMemAllocHost_v2(&q, 0));
    FAILS(INVALID_VALUE, cuMemAllocHost_v2(NULL, 64));
    OK(cuMemHostAlloc(&p, 64, 4));
    OK(cuMemHostGetFlags(&flags, p));
    IS(4, flags & 4);
    FAILS(INVALID_VALUE, cuMemHostAlloc(&q, 64, 0x100));
    OK(cuMemFreeHost(p));
    FAILS(INVALID_VALUE, cuMemHostGetFlags(&flags, own));
    OK(cuMemHostRegister_v2(own, sizeof own, 0));
    OK(cuMemHostGetFlags(&flags, own));
    FAILS(ALREADY_REGISTERED, cuMemHostRegister_v2(own, sizeof own, 0));
    OK(cuMemcpyHtoDAsync_v2(a, own, 64, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemHostUnregister(own));
    FAILS(NOT_REGISTERED, cuMemHostUnregister(own));
    FAILS(INVALID_VALUE, cuMemHostRegister_v2(NULL, 64, 0));
    FAILS(INVALID_VALUE, cuMemHostRegister_v2(own, 0, 0));
    FAILS(INVALID_VALUE, cuMemHostRegister_v2(own, 64, 0x100));
}

static void addresses(void) {
    int kind = 0, device = -1, attributes[] = {2, 9, 3, 12};
    unsigned one = 1, managed = 9;
    unsigned long long id = 0, other = 0;
    CUcontext of = NULL;
    CUdeviceptr at = 0, start = 0;
    size_t size = 0;
    void *page, *told = NULL;
    OK(cuPointerGetAttribute(&kind, 2, a + 5));
    IS(DEVICE, kind);
    OK(cuPointerGetAttribute(&of, 1, a));
    EXPECT(of == ctx);
    OK(cuPointerGetAttribute(&at, 3, a + 5));
    EXPECT(at == a + 5);
    OK(cuPointerGetAttribute(&managed, 8, a));
    IS(0, managed);
    OK(cuPointerGetAttribute(&device, 9, a));
    IS(0, device);
    OK(cuPointerGetAttribute(&one, 10, a)); /* Of cuMemAlloc: NCCL asks. */
    IS(1, one);
    OK(cuPointerGetAttribute(&start, 11, a + 5));
    OK(cuPointerGetAttribute(&size, 12, a + 5));
    EXPECT(start == a && size == N);
    OK(cuPointerGetAttribute(&id, 7, a));
    OK(cuPointerGetAttribute(&other, 7, b));
    EXPECT(id != other);
    OK(cuPointerSetAttribute(&one, 6, a));
    OK(cuPointerGetAttribute(&one, 6, a));
    IS(1, one);
    one = 0;
    OK(cuPointerSetAttribute(&one, 6, a));
    FAILS(INVALID_VALUE, cuPointerSetAttribute(&one, 2, a));
    FAILS(INVALID_VALUE, cuPointerSetAttribute(NULL, 6, a));
    FAILS(INVALID_VALUE, cuPointerGetAttribute(&kind, 99, a));
    FAILS(INVALID_VALUE, cuPointerGetAttribute(NULL, 2, a));
    FAILS(INVALID_VALUE, cuPointerGetAttribute(&told, 4, a));
    OK(cuMemAllocHost_v2(&page, 64));
    OK(cuPointerGetAttribute(&kind, 2, (CUdeviceptr)page));
    IS(HOST, kind);
    OK(cuPointerGetAttribute(&told, 4, (CUdeviceptr)page + 8));
    EXPECT(told == (char *)page + 8);
    void *results[] = {&kind, &device, &at, &size};
    OK(cuPointerGetAttributes(4, attributes, results, b));
    EXPECT(kind == DEVICE && device == 0 && at == b && size == N);
    /* Memory that CUDA does not know. */
    FAILS(INVALID_VALUE, cuPointerGetAttribute(&kind, 2, (CUdeviceptr)in));
    OK(cuPointerGetAttributes(4, attributes, results, (CUdeviceptr)in));
    IS(0, kind);
    IS(-2, device);
    EXPECT(at == 0 && size == 0);
    FAILS(INVALID_VALUE, cuPointerGetAttributes(4, NULL, results, b));
    FAILS(INVALID_VALUE, cuPointerGetAttributes(4, attributes, NULL, b));
    OK(cuMemFreeHost(page));
}

static void fills(void) {
    enum { PITCH = 64 };
    OK(cuMemsetD8_v2(a, 0x11, N));
    IS(0x11111111, first(4));
    OK(cuMemsetD16_v2(a, 0x2233, N / 2));
    IS(0x22332233, first(4));
    OK(cuMemsetD32_v2(a, 0x445566, N / 4));
    IS(0x445566, first(4));
    OK(cuMemsetD8Async(a, 0x12, N, stream));
    OK(cuMemsetD16Async(a + 2, 0x3456, 1, stream));
    OK(cuStreamSynchronize(stream));
    IS(0x34561212, first(4));
    OK(cuMemsetD32Async(a, 7, 1, stream));
    OK(cuStreamSynchronize(stream));
    IS(7, first(4));
    OK(cuMemsetD8_v2(a, 1, 0));
    FAILS(INVALID_VALUE, cuMemsetD16_v2(a + 1, 1, 1));
    FAILS(INVALID_VALUE, cuMemsetD32_v2(a + 2, 1, 1));
    FAILS(INVALID_VALUE, cuMemsetD32Async(a + 2, 1, 1, stream));
    FAILS(INVALID_VALUE, cuMemsetD8_v2(64, 1, 1));
    /* Areas: bytes next to the rows are unchanged. */
    OK(cuMemsetD8_v2(a, 0, N));
    OK(cuMemsetD2D8_v2(a, PITCH, 1, 10, 3));
    OK(cuMemsetD2D16_v2(a + 16, PITCH, 2, 5, 3));
    OK(cuMemsetD2D32_v2(a + 32, PITCH, 3, 2, 3));
    OK(cuMemsetD2D8Async(a + 3 * PITCH, PITCH, 4, 10, 2, NULL));
    OK(cuMemsetD2D16Async(a + 3 * PITCH + 16, PITCH, 5, 5, 2, NULL));
    OK(cuMemsetD2D32Async(a + 3 * PITCH + 32, PITCH, 6, 2, 2, NULL));
    CU(cuMemcpyDtoH_v2(out, a, N));
    for (int y = 0; y < 6; y++)
        for (int x = 0; x < PITCH; x++) {
            int byte = 0, late = y >= 3 ? 3 : 0;
            if (x < 10) byte = 1 + late;
            else if (x >= 16 && x < 26 && x % 2 == 0) byte = 2 + late;
            else if (x >= 32 && x < 40 && x % 4 == 0) byte = 3 + late;
            if (y == 5) byte = 0;
            EXPECT(out[y * PITCH + x] == byte);
        }
    FAILS(INVALID_VALUE, cuMemsetD2D32_v2(a, 6, 1, 2, 3));
    FAILS(INVALID_VALUE, cuMemsetD2D8_v2(a, 4, 1, 10, 3));
    FAILS(INVALID_VALUE, cuMemsetD2D8_v2(a, PITCH, 1, 10, 1 + N / PITCH));
}

/* From the program through both memories and back, one function per step. */
static int arrived(void) {
    CU(cuStreamSynchronize(stream));
    CU(cuCtxSynchronize());
    int same = !memcmp(in, out, N);
    memset(out, 0, N);
    for (int i = 0; i < N; i++) in[i] = (unsigned char)(in[i] * 5 + 3);
    return same;
}

static void copies(void) {
    OK(cuMemcpy(a, (CUdeviceptr)in, N));
    OK(cuMemcpy(b, a, N));
    OK(cuMemcpy((CUdeviceptr)out, b, N));
    EXPECT(arrived());
    OK(cuMemcpy((CUdeviceptr)out, (CUdeviceptr)in, N));
    EXPECT(arrived());
    OK(cuMemcpyAsync(a, (CUdeviceptr)in, N, stream));
    OK(cuMemcpyAsync(b, a, N, stream));
    OK(cuMemcpyAsync((CUdeviceptr)out, b, N, stream));
    EXPECT(arrived());
    OK(cuMemcpyHtoD_v2(a, in, N));
    OK(cuMemcpyDtoD_v2(b, a, N));
    OK(cuMemcpyDtoH_v2(out, b, N));
    EXPECT(arrived());
    OK(cuMemcpyHtoDAsync_v2(a, in, N, stream));
    OK(cuMemcpyDtoDAsync_v2(b, a, N, stream));
    OK(cuMemcpyDtoHAsync_v2(out, b, N, stream));
    EXPECT(arrived());
    OK(cuMemcpyHtoD_v2(a, in, N));
    OK(cuMemcpyPeer(b, ctx, a, ctx, N));
    OK(cuMemcpyDtoH_v2(out, b, N));
    EXPECT(arrived());
    OK(cuMemcpyHtoDAsync_v2(a, in, N, stream));
    OK(cuMemcpyPeerAsync(b, ctx, a, ctx, N, stream));
    OK(cuMemcpyDtoHAsync_v2(out, b, N, stream));
    EXPECT(arrived());
    OK(cuMemcpyDtoD_v2(b, a, 0));
    FAILS(INVALID_VALUE, cuMemcpyDtoD_v2(b, 64, 16));
    FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(64, in, 16));
    FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(out, 64, 16));
    FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(a, NULL, 16));
    FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(NULL, a, 16));
    FAILS(INVALID_CONTEXT, cuMemcpyPeer(b, (CUcontext)12345, a, ctx, 16));
}

static void shapes(void) {
    enum { ROWS = 16, ROW = N / ROWS };
    Side host = {.kind = HOST, .host = in, .pitch = ROW}, home = {.kind = HOST, .host = out, .pitch = ROW};
    Side one = {.kind = DEVICE, .device = a, .pitch = ROW}, two = {.kind = DEVICE, .device = b, .pitch = ROW};
    Rect copy = {host, one, ROW, ROWS};
    OK(cuMemcpy2D_v2(&copy));
    copy = (Rect){one, two, ROW, ROWS};
    OK(cuMemcpy2DUnaligned_v2(&copy));
    /* Copies within the device return before they complete. */
    CU(cuStreamSynchronize(NULL));
    copy = (Rect){two, home, ROW, ROWS};
    OK(cuMemcpy2DAsync_v2(&copy, stream));
    EXPECT(arrived());
    copy.width = ROW + 1;
    FAILS(INVALID_VALUE, cuMemcpy2DUnaligned_v2(&copy));
    FAILS(INVALID_VALUE, cuMemcpy2D_v2(&copy));
    FAILS(INVALID_VALUE, cuMemcpy2D_v2(NULL));
    BoxSide from = {.kind = HOST, .host = in, .ctx = ctx, .pitch = ROW, .height = 4};
    BoxSide to = {.kind = DEVICE, .device = a, .ctx = ctx, .pitch = ROW, .height = 4};
    BoxSide back = {.kind = HOST, .host = out, .ctx = ctx, .pitch = ROW, .height = 4};
    Box box = {from, to, ROW, 4, 4};
    OK(cuMemcpy3DPeer(&box));
    CU(cuStreamSynchronize(NULL));
    box = (Box){to, back, ROW, 4, 4};
    OK(cuMemcpy3DPeerAsync(&box, stream));
    EXPECT(arrived());
    box.src.ctx = box.dst.ctx = NULL;
    OK(cuMemcpy3D_v2(&box));
    OK(cuMemcpy3DAsync_v2(&box, stream));
    OK(cuStreamSynchronize(stream));
    box.depth = 5;
    FAILS(INVALID_VALUE, cuMemcpy3D_v2(&box));
    box.src.kind = 9;
    FAILS(INVALID_VALUE, cuMemcpy3DAsync_v2(&box, stream));
}

int main(void) {
    ctx = begin();
    CU(cuStreamCreate(&stream, 1));
    CU(cuMemAlloc_v2(&a, N));
    CU(cuMemAlloc_v2(&b, N));
    for (int i = 0; i < N; i++) in[i] = (unsigned char)(i * 7 + 1);
    allocations();
    host();
    addresses();
    fills();
    copies();
    shapes();
    return done("memory");
}
