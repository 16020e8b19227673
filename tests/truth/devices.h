/* Devices, contexts, peers, and functions for tools. */
#pragma once
#include "ask.h"

/* This part needs a process in which no call has failed, because its rows expect an empty log. */
static void heard(void *data, int level, char *text, size_t length) {
    (void)data, (void)level, (void)text, (void)length;
}
static void logs(void) {
    unsigned place = 99;
    char text[64], path[] = "/tmp/vgpu-truth-XXXXXX";
    size_t room = sizeof text;
    Word handle = 0;
    int code = CALL(cuLogsCurrent, &place, 0);
    tell("cuLogsCurrent", "nothing logged, flags 0", code, "it=%u", place);
    code = CALL(cuLogsDumpToMemory, NULL, text, &room, 0);
    tell("cuLogsDumpToMemory", "room for 64, nothing logged", code, "sz=%zu", room);
    int file = mkstemp(path);
    ASK("a path in /tmp", cuLogsDumpToFile, NULL, path, 0);
    close(file);
    unlink(path);
    code = CALL(cuLogsRegisterCallback, heard, NULL, &handle);
    int end = CALL(cuLogsUnregisterCallback, handle);
    tell("cuLogsRegisterCallback", "callback given; then unregistered", code, "h %d; unregister %d", !!handle,
         end);
    ASK("handle NULL", cuLogsUnregisterCallback, NULL);
}

static void noticed(void *info, void *data, Handle handle) { (void)info, (void)data, (void)handle; }
static void device_queries(void) {
    char luid[8];
    unsigned mask, capability = 99, add = 0, unknown = 77;
    size_t width = 0;
    Handle handle = NULL;
    ASK("device 9 of 2", cuDeviceGetLuid, luid, &mask, 9);
    int code = CALL(cuDeviceGetTexture1DLinearMaxWidth, &width, 1, 4, devices[0]);
    tell("cuDeviceGetTexture1DLinearMaxWidth", "unsigned bytes, four channels", code, "w=%zu", width);
    ASK("format 0x99", cuDeviceGetTexture1DLinearMaxWidth, &width, 0x99, 4, devices[0]);
    ASK("result NULL", cuDeviceGetTexture1DLinearMaxWidth, NULL, 1, 4, devices[0]);
    ASK("result NULL", cuDeviceGetHostAtomicCapabilities, NULL, &add, 1, devices[0]);
    ASK("operation 77", cuDeviceGetHostAtomicCapabilities, &capability, &unknown, 1, devices[0]);
    code = CALL(cuDeviceGetP2PAtomicCapabilities, &capability, &add, 1, devices[0], devices[1]);
    tell("cuDeviceGetP2PAtomicCapabilities", "from device 0 to 1", code, "%u", capability);
    ASK("from device 0 to 9", cuDeviceGetP2PAtomicCapabilities, &capability, &add, 1, devices[0], 9);
    ASK("buffer NULL", cuDeviceGetNvSciSyncAttributes, NULL, devices[0], 1);
    code = CALL(cuDeviceRegisterAsyncNotification, devices[0], noticed, NULL, &handle);
    int end = CALL(cuDeviceUnregisterAsyncNotification, devices[0], handle);
    tell("cuDeviceRegisterAsyncNotification", "callback given; then unregistered", code, "h=%d; unregister %d",
         !!handle, end);
    ASK("device 9", cuDeviceRegisterAsyncNotification, 9, noticed, NULL, &handle);
    char resource[256];
    ASK("multiprocessors of device 9", cuDeviceGetDevResource, 9, resource, 1);
}

static void context_calls(void) {
    int device = -1;
    Handle event, out = NULL;
    ASK("current context, to owner", cuFlushGPUDirectRDMAWrites, 0, 100);
    ASK("scope 7", cuFlushGPUDirectRDMAWrites, 0, 7);
    int code = CALL(cuCtxGetDevice_v2, &device, NULL);
    tell("cuCtxGetDevice_v2", "context NULL", code, "d=%d", device);
    ASK("primary context", cuCtxSynchronize_v2, contexts[0]);
    ASK("-", cuCtxResetPersistingL2Cache, 0);
    NEED(cuEventCreate, &event, 2);
    ASK("context NULL", cuCtxRecordEvent, NULL, event);
    NEED(cuEventRecord, event, NULL);
    ASK("event recorded on the legacy stream", cuCtxWaitEvent, contexts[0], event);
    ASK("event NULL", cuCtxWaitEvent, contexts[0], NULL);
    ASK("NULL", cuCtxFromGreenCtx, &out, NULL);
    ASK("NULL", cuGreenCtxRecordEvent, NULL, event);
    ASK("NULL, non-blocking", cuGreenCtxStreamCreate, &out, NULL, 1, 0);
}

static void dumped(void *data, int pid, int device) { (void)data, (void)pid, (void)device; }
static void tools(void) {
    int value = -9, one = 1, thread = 0;
    size_t size = sizeof value;
    char text[256] = "", args[64] = {0};
    Handle handle = NULL;
    int code = CALL(cuCoredumpGetAttribute, 2, &value, &size);
    tell("cuCoredumpGetAttribute", "trigger host, 4 bytes of room", code, "v=%d sz=%zu", value, size);
    size = sizeof text;
    code = CALL(cuCoredumpGetAttribute, 6, text, &size);
    tell("cuCoredumpGetAttribute", "pipe, room for 256", code, "'%s' sz=%zu", text, size);
    size = sizeof value;
    ASK("attribute 99", cuCoredumpGetAttribute, 99, &value, &size);
    ASK("enable on exception := 1 (4 bytes), after cuInit", cuCoredumpSetAttributeGlobal, 1, &one, &size);
    ASK("attribute 99", cuCoredumpSetAttribute, 99, &one, &size);
    code = CALL(cuCoredumpRegisterCompleteCallback, dumped, NULL, &handle);
    tell("cuCoredumpRegisterCompleteCallback", "callback and result given", code, "handle %d", !!handle);
    ASK("result NULL", cuCoredumpRegisterStartCallback, dumped, NULL, NULL);
    ASK("result NULL", cuCoredumpRegisterCompleteCallback, dumped, NULL, NULL);
    ASK("a registered one", cuCoredumpDeregisterCompleteCallback, handle);
    NEED(cuCoredumpRegisterStartCallback, dumped, NULL, &handle);
    ASK("a registered one", cuCoredumpDeregisterStartCallback, handle);
    ASK("NULL", cuCoredumpDeregisterCompleteCallback, NULL);
    ASK("own process, result NULL", cuCheckpointProcessGetState, getpid(), NULL);
    code = CALL(cuCheckpointProcessGetRestoreThreadId, getpid(), &thread);
    tell("cuCheckpointProcessGetRestoreThreadId", "own process", code, "tid set %d", thread != 0);
    ASK("own process, not locked", cuCheckpointProcessCheckpoint, getpid(), args);
    ASK("own process, not locked", cuCheckpointProcessUnlock, getpid(), args);
    ASK("own process, not locked", cuCheckpointProcessRestore, getpid(), args);
}

static void peers(void) {
    int value;
    char words[64];
    static const struct {
        const char *words;
        int from, to;
    } pairs[] = {{"0 to 1", 0, 1}, {"0 to 0", 0, 0}, {"-1 to 0", -1, 0}, {"0 to itself", 0, 0}};
    for (unsigned i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        value = -1;
        int code = CALL(cuDeviceCanAccessPeer, &value, pairs[i].from, pairs[i].to);
        if (code) tell("cuDeviceCanAccessPeer", pairs[i].words, code, "%s", "");
        else tell("cuDeviceCanAccessPeer", pairs[i].words, code, "%d", value);
    }
    for (int attribute = 0; attribute <= 7; attribute++) {
        int code = CALL(cuDeviceGetP2PAttribute, &value, attribute, 0, 1);
        snprintf(words, sizeof words, "attribute %d, 0 to 1", attribute);
        if (code) tell("cuDeviceGetP2PAttribute", words, code, "%s", "");
        else tell("cuDeviceGetP2PAttribute", words, code, "%d", value);
    }
    ASK("attribute 2, 0 to itself", cuDeviceGetP2PAttribute, &value, 2, 0, 0);
    ASK("result NULL", cuDeviceGetP2PAttribute, NULL, 2, 0, 1);
    ASK("other device's context, flags 0", cuCtxEnablePeerAccess, contexts[1], 0);
    ASK("own context", cuCtxEnablePeerAccess, contexts[0], 0);
    ASK("never enabled", cuCtxDisablePeerAccess, contexts[1]);
    /* Bytes can still be copied from one device to the other. */
    CUdeviceptr here = block(4096), there;
    unsigned char got = 0;
    NEED(cuMemsetD8_v2, here, 0x5a, 4096);
    NEED(cuCtxSetCurrent, contexts[1]);
    there = block(4096);
    int code = CALL(cuMemcpyPeer, there, contexts[1], here, contexts[0], 4096);
    NEED(cuMemcpyDtoH_v2, &got, there, 1);
    tell("cuMemcpyPeer", "first byte that arrived (0x5a sent)", code, "%02x", got);
    NEED(cuMemsetD8_v2, there, 0, 4096);
    code = CALL(cuMemcpy, there, here, 4096);
    NEED(cuMemcpyDtoH_v2, &got, there, 1);
    tell("cuMemcpy", "first byte that arrived", code, "%02x", got);
    NEED(cuCtxSetCurrent, contexts[0]);
}

/* The rows of the table name the attributes: `NAME (number)`. */
static void attributes(const char *table) {
    char line[1000];
    FILE *rows = fopen(table, "r");
    if (!rows) perror(table), exit(3);
    while (fgets(line, sizeof line, rows)) {
        char *words = strchr(line, '\t'), *end = words ? strchr(words + 1, '\t') : NULL;
        int number, value = -1;
        if (!end || strncmp(line, "cuDeviceGetAttribute\t", 21)) continue;
        *end = 0;
        char *at = strrchr(words, '(');
        if (!at || sscanf(at, "(%d)", &number) != 1) continue;
        int code = CALL(cuDeviceGetAttribute, &value, number, devices[0]);
        tell("cuDeviceGetAttribute", words + 1, code, "%d", value);
    }
    fclose(rows);
    static const struct {
        const char *words;
        int attribute, device;
    } named[] = {
        {"ConcurrentManagedAccess, device 0", 89, 0},
        {"PageableMemoryAccess, device 0", 88, 0},
        {"ManagedMemory, device 0", 83, 0},
        {"ConcurrentManagedAccess, device 1", 89, 1},
        {"PageableMemoryAccess, device 1", 88, 1},
        {"ManagedMemory, device 1", 83, 1},
        {"cluster launch (compute capability 8.6)", 120, 0},
    };
    for (unsigned i = 0; i < sizeof named / sizeof *named; i++) {
        int value = -1, code = CALL(cuDeviceGetAttribute, &value, named[i].attribute, named[i].device);
        tell("cuDeviceGetAttribute", named[i].words, code, "%d", value);
    }
}
