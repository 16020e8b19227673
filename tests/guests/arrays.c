/* Descriptions of arrays, copies to arrays, and copies in batches. */
#include "boxes.h"
#include "tell.h"

enum { HOST = 1, DEVICE = 2, ARRAY = 3, W = 64, H = 8, BYTE = 1, FLOAT = 0x20 };
enum { IN_STREAM = 1, DURING_CALL = 2, ANY = 3 };

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} Flat;
typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} Shape;
typedef struct {
    int kind, id;
} Location;
typedef struct {
    int order;
    Location hints[2];
    unsigned flags;
} Attributes;
typedef struct {
    int kind;
    union {
        struct {
            CUdeviceptr at;
            size_t row, layer;
            Location hint;
        } pointer;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    };
} Operand;
typedef struct {
    Operand src, dst;
    size_t width, height, depth;
    int order;
    unsigned flags;
} Operation;
_Static_assert(sizeof(Operation) == 112 && sizeof(Attributes) == 24, "as cuda.h");

static CUstream stream;
static CUdeviceptr memory;
static unsigned char in[W * H], out[W * H];

static int arrived(void) {
    CU(cuStreamSynchronize(stream));
    int same = !memcmp(in, out, sizeof in);
    memset(out, 0, sizeof out);
    for (int i = 0; i < W * H; i++) in[i] = (unsigned char)(in[i] * 5 + 3);
    return same;
}

static void descriptions(void) {
    Flat flat = {W, H, FLOAT, 2}, told = {0};
    Shape shape = {0}, box = {16, 8, 4, BYTE, 4, 0};
    CUarray array, cube, plane;
    CUmipmappedArray levels;
    unsigned char room[64];
    OK(cuArrayCreate_v2(&array, &flat));
    OK(cuArrayGetDescriptor_v2(&told, array));
    EXPECT(told.width == W && told.height == H && told.format == FLOAT && told.channels == 2);
    OK(cuArray3DGetDescriptor_v2(&shape, array));
    EXPECT(shape.width == W && shape.height == H && shape.depth == 0 && shape.flags == 0);
    OK(cuArray3DCreate_v2(&cube, &box));
    OK(cuArray3DGetDescriptor_v2(&shape, cube));
    EXPECT(shape.depth == 4 && shape.channels == 4 && shape.format == BYTE);
    FAILS(INVALID_VALUE, cuArrayGetMemoryRequirements(room, array, 0));
    FAILS(INVALID_VALUE, cuArrayGetSparseProperties(room, array));
    FAILS(INVALID_VALUE, cuArrayGetPlane(&plane, array, 0));
    flat.channels = 3;
    FAILS(INVALID_VALUE, cuArrayCreate_v2(&plane, &flat));
    flat = (Flat){W, H, 0x77, 1};
    FAILS(INVALID_VALUE, cuArrayCreate_v2(&plane, &flat));
    flat = (Flat){0, H, FLOAT, 1};
    FAILS(INVALID_VALUE, cuArrayCreate_v2(&plane, &flat));
    FAILS(INVALID_VALUE, cuArrayCreate_v2(&plane, NULL));
    FAILS(INVALID_VALUE, cuArrayCreate_v2(NULL, &flat));
    OK(cuMipmappedArrayCreate(&levels, &box, 2));
    OK(cuMipmappedArrayGetLevel(&plane, levels, 1));
    OK(cuArray3DGetDescriptor_v2(&shape, plane));
    EXPECT(shape.width == 8 && shape.height == 4 && shape.depth == 2);
    FAILS(INVALID_VALUE, cuMipmappedArrayGetLevel(&plane, levels, 2));
    FAILS(INVALID_VALUE, cuMipmappedArrayGetMemoryRequirements(room, levels, 0));
    FAILS(INVALID_VALUE, cuMipmappedArrayGetSparseProperties(room, levels));
    OK(cuMipmappedArrayDestroy(levels));
    FAILS(INVALID_HANDLE, cuMipmappedArrayGetLevel(&plane, levels, 0));
    FAILS(INVALID_HANDLE, cuMipmappedArrayDestroy(levels));
    OK(cuArrayDestroy(cube));
    FAILS(INVALID_HANDLE, cuArrayDestroy(cube));
    FAILS(INVALID_HANDLE, cuArrayGetDescriptor_v2(&told, cube));
    FAILS(INVALID_VALUE, cuArrayGetDescriptor_v2(NULL, array));
    OK(cuArrayDestroy(array));
}

static void copies(void) {
    Flat line = {W * H, 0, BYTE, 1}, area = {W, H, BYTE, 1};
    CUarray one, other, two;
    CU(cuArrayCreate_v2(&one, &line));
    CU(cuArrayCreate_v2(&other, &line));
    CU(cuArrayCreate_v2(&two, &area));
    OK(cuMemcpyHtoAAsync_v2(one, 0, in, W * H, stream));
    OK(cuMemcpyAtoHAsync_v2(out, one, 0, W * H, stream));
    EXPECT(arrived());
    OK(cuMemcpyHtoA_v2(one, 0, in, W * H));
    OK(cuMemcpyAtoA_v2(other, 0, one, 0, W * H));
    OK(cuMemcpyAtoD_v2(memory, other, 0, W * H));
    OK(cuMemcpyDtoA_v2(one, 0, memory, W * H));
    OK(cuMemcpyAtoH_v2(out, one, 0, W * H));
    EXPECT(arrived());
    Side host = {.kind = HOST, .host = in, .pitch = W}, home = {.kind = HOST, .host = out, .pitch = W};
    Side array = {.kind = ARRAY, .array = two};
    Rect copy = {host, array, W, H};
    OK(cuMemcpy2DUnaligned_v2(&copy));
    CU(cuStreamSynchronize(NULL));
    copy = (Rect){array, home, W, H};
    OK(cuMemcpy2DAsync_v2(&copy, stream));
    EXPECT(arrived());
    FAILS(INVALID_VALUE, cuMemcpyHtoAAsync_v2(one, 1, in, W * H, stream));
    FAILS(INVALID_VALUE, cuMemcpyAtoHAsync_v2(out, one, W * H, 1, stream));
    copy.src.y = 1;
    FAILS(INVALID_VALUE, cuMemcpy2D_v2(&copy));
    CU(cuArrayDestroy(other));
    FAILS(INVALID_HANDLE, cuMemcpyHtoAAsync_v2(other, 0, in, 1, stream));
    CU(cuArrayDestroy(one));
    CU(cuArrayDestroy(two));
}

static void batches(void) {
    enum { HALF = W * H / 2 };
    Attributes attributes = {.order = IN_STREAM};
    size_t sizes[] = {HALF, HALF}, first = 0, failed = 77;
    CUdeviceptr device[] = {memory, memory + HALF};
    CUdeviceptr from[] = {(CUdeviceptr)in, (CUdeviceptr)in + HALF};
    CUdeviceptr home[] = {(CUdeviceptr)out, (CUdeviceptr)out + HALF};
    OK(cuMemcpyBatchAsync(device, from, sizes, 2, &attributes, &first, 1, &failed, stream));
    OK(cuMemcpyBatchAsync_v2(home, device, sizes, 2, &attributes, &first, 1, stream));
    EXPECT(arrived());
    attributes.order = DURING_CALL;
    OK(cuMemcpyWithAttributesAsync(memory, (CUdeviceptr)in, W * H, &attributes, stream));
    attributes.order = ANY;
    OK(cuMemcpyWithAttributesAsync((CUdeviceptr)out, memory, W * H, &attributes, stream));
    EXPECT(arrived());
    FAILS(INVALID_VALUE, cuMemcpyBatchAsync_v2(home, device, sizes, 0, &attributes, &first, 1, stream));
    FAILS(INVALID_VALUE, cuMemcpyBatchAsync_v2(home, device, sizes, 2, &attributes, &first, 0, stream));
    FAILS(INVALID_VALUE, cuMemcpyBatchAsync_v2(home, device, sizes, 2, &attributes, &first, 3, stream));
    attributes.order = 9;
    FAILS(INVALID_VALUE, cuMemcpyWithAttributesAsync(memory, memory, 1, &attributes, stream));
    FAILS(INVALID_VALUE, cuMemcpyBatchAsync(device, from, sizes, 2, &attributes, &first, 1, &failed, stream));

    Flat area = {W, H, BYTE, 1};
    CUarray array;
    CU(cuArrayCreate_v2(&array, &area));
    Operand host = {1, .pointer = {(CUdeviceptr)in, W, H, {0, 0}}};
    Operand back = {1, .pointer = {(CUdeviceptr)out, W, H, {0, 0}}};
    Operand middle = {1, .pointer = {memory, W, H, {1, 0}}};
    Operand shaped = {2, .array = {array, 0, 0, 0}};
    Operation ops[] = {{host, middle, W, H, 1, IN_STREAM, 0}, {middle, shaped, W, H, 1, IN_STREAM, 0}};
    OK(cuMemcpy3DBatchAsync(1, &ops[0], &failed, 0, stream));
    OK(cuMemcpy3DBatchAsync_v2(1, &ops[1], 0, stream));
    ops[0].src = shaped, ops[0].dst = back;
    OK(cuMemcpy3DWithAttributesAsync(&ops[0], 0, stream));
    EXPECT(arrived());
    /* Rows without a pitch are contiguous. */
    host.pointer.row = host.pointer.layer = back.pointer.row = back.pointer.layer = 0;
    ops[0].src = host, ops[0].dst = middle;
    ops[1].src = middle, ops[1].dst = back;
    OK(cuMemcpy3DBatchAsync_v2(2, ops, 0, stream));
    EXPECT(arrived());
    FAILS(INVALID_VALUE, cuMemcpy3DBatchAsync_v2(0, ops, 0, stream));
    FAILS(INVALID_VALUE, cuMemcpy3DBatchAsync_v2(1, NULL, 0, stream));
    FAILS(INVALID_VALUE, cuMemcpy3DBatchAsync_v2(1, ops, 5, stream));
    ops[0].order = 9;
    FAILS(INVALID_VALUE, cuMemcpy3DBatchAsync(1, ops, &failed, 0, stream));
    FAILS(INVALID_VALUE, cuMemcpy3DWithAttributesAsync(ops, 0, stream));
    CU(cuArrayDestroy(array));
}

int main(void) {
    begin();
    CU(cuStreamCreate(&stream, 1));
    CU(cuMemAlloc_v2(&memory, W * H));
    for (int i = 0; i < W * H; i++) in[i] = (unsigned char)(i * 7 + 1);
    descriptions();
    copies();
    batches();
    return done("arrays");
}
