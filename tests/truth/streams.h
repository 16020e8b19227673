/* Streams, host functions, graphs, and objects of other APIs. */
#pragma once
#include "ask.h"

typedef struct {
    void *base;
    size_t bytes;
    float ratio;
    int hit, miss;
} Window;
typedef union {
    char room[64];
    int policy;
    Window window;
} StreamAttribute;

static void streams(void) {
    enum { WINDOW = 1, POLICY_OF_WAITS = 3, PERSISTING = 2, STREAMING = 1 };
    Handle s = stream();
    int device = -1;
    Word id = 0, zero[64] = {0};
    StreamAttribute value;
    int code = CALL(cuStreamGetDevice, NULL, &device);
    tell("cuStreamGetDevice", "stream NULL", code, "d=%d", device);
    code = CALL(cuStreamGetId, s, &id);
    tell("cuStreamGetId", "a new stream", code, "id>0 %d", id > 0);
    ASK("result NULL", cuStreamGetId, s, NULL);
    ASK("destination NULL", cuStreamCopyAttributes, NULL, s);
    memset(&value, 0xff, sizeof value);
    code = CALL(cuStreamGetAttribute, s, POLICY_OF_WAITS, &value);
    tell("cuStreamGetAttribute", "synchronisation policy of a new stream", code, "v=%d", value.policy);
    memset(&value, 0xff, sizeof value);
    code = CALL(cuStreamGetAttribute, s, WINDOW, &value);
    tell("cuStreamGetAttribute", "access policy window of a new stream", code, "num_bytes=%zu hit=%.1f",
         value.window.bytes, (double)value.window.ratio);
    memset(&value, 0, sizeof value), value.policy = 2;
    code = CALL(cuStreamSetAttribute, s, POLICY_OF_WAITS, &value);
    value.policy = -1;
    NEED(cuStreamGetAttribute, s, POLICY_OF_WAITS, &value);
    tell("cuStreamSetAttribute", "synchronisation policy 2 (spin... CU_SYNC_POLICY_SPIN), read back", code,
         "now %d", value.policy);
    memset(&value, 0, sizeof value);
    value.window = (Window){(void *)block(MIB), MIB, 0.5f, PERSISTING, STREAMING};
    ASK("access policy window of 1 MiB, ratio 0.5, persisting/streaming", cuStreamSetAttribute, s, WINDOW, &value);
    ASK("zeroed parameters", cuStreamBeginCaptureToCig, s, zero);
}

static void count_up(void *data) { ++*(int *)data; }
static void host_functions(void) {
    Handle s = stream();
    int ran = 0;
    int code = CALL(cuLaunchHostFunc_v2, s, count_up, &ran, 0);
    NEED(cuStreamSynchronize, s);
    tell("cuLaunchHostFunc_v2", "mode 0 (blocking)", code, "ran %d", ran);
    ran = 0, code = CALL(cuLaunchHostFunc_v2, s, count_up, &ran, 2);
    NEED(cuStreamSynchronize, s);
    tell("cuLaunchHostFunc_v2", "mode 2", code, "ran %d", ran);
    ASK("function NULL, mode 0", cuLaunchHostFunc_v2, s, NULL, &ran, 0);
}

/* CUgraphNodeParams. */
typedef struct {
    int type, reserved[3];
    union {
        Word words[29];
        struct {
            CUdeviceptr to;
            size_t pitch;
            unsigned value, element;
            size_t width, height;
            Handle context;
        } fill;
        struct {
            void (*call)(void *);
            void *data;
        } host;
    };
    Word after;
} NodeParams;
_Static_assert(sizeof(NodeParams) == 256, "as cuda.h");

static void nodes(void) {
    Handle graph, other, fill, empty, foreign, host, exec[2], owner = NULL;
    unsigned local[3] = {9, 9, 9}, id = 0, ids[2] = {0};
    CUdeviceptr at = block(256);
    struct {
        CUdeviceptr to;
        size_t pitch;
        unsigned value, element;
        size_t width, height;
    } seven = {at, 0, 7, 1, 256, 1};
    struct {
        void (*call)(void *);
        void *data;
    } called = {count_up, &local};
    NEED(cuGraphCreate, &graph, 0);
    NEED(cuGraphCreate, &other, 0);
    NEED(cuGraphAddMemsetNode, &fill, graph, NULL, 0, &seven, contexts[0]);
    NEED(cuGraphAddEmptyNode, &empty, graph, &fill, 1);
    NEED(cuGraphAddEmptyNode, &foreign, other, NULL, 0);
    ASK("result NULL", cuGraphGetId, graph, NULL);
    int code = CALL(cuGraphNodeGetLocalId, fill, &local[0]);
    code = code ? code : CALL(cuGraphNodeGetLocalId, empty, &local[1]);
    code = code ? code : CALL(cuGraphNodeGetLocalId, foreign, &local[2]);
    tell("cuGraphNodeGetLocalId", "two nodes of one graph, one of another", code, "%u %u %u", local[0], local[1],
         local[2]);
    ASK("node NULL", cuGraphNodeGetLocalId, NULL, &local[0]);
    ASK("result NULL", cuGraphNodeGetToolsId, fill, NULL);
    code = CALL(cuGraphNodeGetContainingGraph, fill, &owner);
    tell("cuGraphNodeGetContainingGraph", "a node", code, "is %d", owner == graph);
    ASK("result NULL", cuGraphNodeGetContainingGraph, fill, NULL);
    NEED(cuGraphGetId, graph, &id);
    for (int i = 0; i < 2; i++) {
        NEED(cuGraphInstantiateWithFlags, &exec[i], graph, 0);
        int now = CALL(cuGraphExecGetId, exec[i], &ids[i]);
        code = code ? code : now;
    }
    tell("cuGraphExecGetId", "two instances of a graph", code, "differ %d, is graph's %d, step %d",
         ids[0] != ids[1], ids[0] == id || ids[1] == id, (int)(ids[1] - ids[0]));
    ASK("instance NULL", cuGraphExecGetId, NULL, &id);

    NodeParams told;
    memset(&told, 0, sizeof told), code = CALL(cuGraphNodeGetParams, fill, &told);
    tell("cuGraphNodeGetParams", "fill of 256 bytes with 7", code,
         "type %d, dst %d, value %u, width %zu, element %u", told.type, told.fill.to == at, told.fill.value,
         told.fill.width, told.fill.element);
    memset(&told, 0, sizeof told), code = CALL(cuGraphNodeGetParams, empty, &told);
    tell("cuGraphNodeGetParams", "empty node", code, "type %d", told.type);
    NEED(cuGraphAddHostNode, &host, other, NULL, 0, &called);
    memset(&told, 0, sizeof told), code = CALL(cuGraphNodeGetParams, host, &told);
    tell("cuGraphNodeGetParams", "host node", code, "type %d, data %d", told.type, told.host.data == &local);
    ASK("result NULL", cuGraphNodeGetParams, fill, NULL);

    Word conditional;
    ASK("flags 7", cuGraphConditionalHandleCreate, &conditional, graph, contexts[0], 0, 7);
    ASK("result NULL", cuGraphConditionalHandleCreate, NULL, graph, contexts[0], 0, 0);
    Word zero[64] = {0};
    ASK("node NULL", cuGraphExternalSemaphoresSignalNodeGetParams, NULL, zero);
    ASK("node NULL", cuGraphExternalSemaphoresWaitNodeGetParams, NULL, zero);
    ASK("node NULL", cuGraphExecExternalSemaphoresSignalNodeSetParams, exec[0], NULL, zero);
}

/* Memory and semaphores of other APIs, tensor maps, multicast objects. */
static void external(void) {
    struct {
        int type, pad, handle, pad2;
        Word more;
        Word size;
        unsigned flags, reserved[16];
    } memory = {0};
    Word zero[64] = {0}, list[1] = {0};
    Handle out = NULL, s = stream();
    memory.type = 1, memory.handle = 5, memory.size = 4096;
    ASK("opaque descriptor 5 (not open), 4096 bytes", cuImportExternalMemory, &out, &memory);
    ASK("result NULL, description zero", cuImportExternalMemory, NULL, zero);
    memory.type = 2;
    ASK("Win32 handle type", cuImportExternalMemory, &out, &memory);
    ASK("external memory NULL", cuExternalMemoryGetMappedMipmappedArray, &out, NULL, zero);
    memory.type = 1, memory.size = 0;
    ASK("opaque descriptor 5 (not open)", cuImportExternalSemaphore, &out, &memory);
    ASK("list NULL, count 1", cuSignalExternalSemaphoresAsync, NULL, zero, 1, s);
    ASK("count 0", cuWaitExternalSemaphoresAsync, list, zero, 0, s);
    const Word wide[MOST] = {(Word)zero, 0, 3, 0, 0, 0, 0, 0, 8, 8, (Word)zero, 0, 0, 0, 0, 0};
    tell("cuTensorMapEncodeIm2colWide", "address, dimensions and strides NULL",
         call("cuTensorMapEncodeIm2colWide", wide), "%s", "");
    ASK("handle 0, address 0, 2 MiB", cuMulticastBindAddr_v2, 0, devices[0], 0, 0, 2 * MIB, 0);
}

static void textures(void) {
    int told[128] = {0};
    Word object = 0;
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } shape = {64, 64, 1, 4};
    struct {
        int type, pad;
        Handle array;
        Word room[16];
        unsigned flags;
    } resource = {0};
    struct {
        int modes[3], filter;
        unsigned flags;
        int rest[20];
    } texture = {{0}, 1, 1, {0}};
    Handle array, mipmapped, reference = NULL;
    int mode = -1, anisotropy = -1, get = -1;
    float bias = -1, colour[4] = {1, 0.5f, 0.25f, 0}, back[4] = {9, 9, 9, 9};
    NEED(cuArrayCreate_v2, &array, &shape);
    resource.array = array;
    int code = CALL(cuTexObjectCreate, &object, &resource, &texture, NULL);
    code = code ? code : CALL(cuTexObjectGetTextureDesc, told, object);
    tell("cuTexObjectGetTextureDesc", "linear filter, read as integer", code, "filter=%d flags=%d",
         told[3], told[4]);
    ASK("object 0x1234", cuTexObjectGetResourceDesc, told, 0x1234);
    int made = CALL(cuSurfObjectCreate, &object, &resource);
    code = CALL(cuSurfObjectGetResourceDesc, told, object);
    tell("cuSurfObjectGetResourceDesc", "surface of an array made without the surface flag", code,
         "create %d; type=%d", made, told[0]);

    CALL(cuTexRefCreate, &reference);
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } levels = {64, 64, 0, 1, 4, 0};
    NEED(cuMipmappedArrayCreate, &mipmapped, &levels, 2);
    CALL(cuTexRefSetFlags, reference, 1);
    ASK("a mipmapped array, read as integer", cuTexRefSetMipmappedArray, reference, mipmapped, 1);
    code = CALL(cuTexRefSetMipmapFilterMode, reference, 1);
    get = CALL(cuTexRefGetMipmapFilterMode, &mode, reference);
    tell("cuTexRefSetMipmapFilterMode", "linear, read back", code, "get %d %d", get, mode);
    code = ((int (*)(Handle, float))entry("cuTexRefSetMipmapLevelBias"))(reference, 1.5f);
    get = CALL(cuTexRefGetMipmapLevelBias, &bias, reference);
    tell("cuTexRefSetMipmapLevelBias", "1.5, read back", code, "get %d %.2f", get, (double)bias);
    code = CALL(cuTexRefSetMaxAnisotropy, reference, 8);
    get = CALL(cuTexRefGetMaxAnisotropy, &anisotropy, reference);
    tell("cuTexRefSetMaxAnisotropy", "8, read back", code, "get %d %d", get, anisotropy);
    code = CALL(cuTexRefSetBorderColor, reference, colour);
    get = CALL(cuTexRefGetBorderColor, back, reference);
    tell("cuTexRefSetBorderColor", "1, 0.5, 0.25, 0, read back", code, "get %d %.2f %.2f %.2f %.2f", get,
         (double)back[0], (double)back[1], (double)back[2], (double)back[3]);
    ASK("reference NULL", cuTexRefSetMaxAnisotropy, NULL, 8);
}
