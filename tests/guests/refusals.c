/* The guest's library logs refused calls, and reports them to a callback of the program. Exits 0 if
 * all results are right.
 * Runs through the guest's library only, because the messages are its own. */
#define _GNU_SOURCE
#include "api.h"
#include "check.h"

enum { INVALID_VALUE = 1, NOT_SUPPORTED = 801 };

/* A callback that stores refusals. */
static char heard[1000];
static void hear(void *times, int level, char *message, size_t length) {
    CUdeviceptr p;
    ++*(int *)times;
    snprintf(heard, sizeof heard, "%d %.*s", level, (int)length, message);
    if (cuMemAlloc_v2(&p, 4) == 0) strcpy(heard, "a call was possible"); /* Not allowed here. */
}
int main(void) {
    int times = 0;
    CUlogsCallbackHandle handle, other;
    unsigned place, now;
    FAILS(INVALID_VALUE, cuLogsRegisterCallback(NULL, NULL, &handle));
    CU(cuLogsRegisterCallback(hear, &times, &handle)); /* Before cuInit. */
    CU(cuLogsRegisterCallback(hear, &times, &other));
    CU(cuLogsUnregisterCallback(other));
    FAILS(INVALID_VALUE, cuLogsUnregisterCallback(other));
    CU(cuLogsCurrent(&place, 0));
    FAILS(INVALID_VALUE, cuLogsCurrent(&place, 1));
    CUmodule module;
    setup("vecadd", &module);
    CUdeviceptr p;
    size_t size = 64;
    CU(cuMemAllocManaged(&p, size, 1));
    CUstream stream;
    CU(cuStreamCreate(&stream, 0));
    FAILS(INVALID_VALUE, cuMemDiscardBatchAsync(&p, &size, 1, 0, NULL));
    FAILS(NOT_SUPPORTED, cuMemDiscardBatchAsync(&p, &size, 1, 0, stream));
    EXPECT(times == 1 && !strncmp(heard, "0 managed memory is not moved", 29));
    char text[1000], path[] = "/tmp/vgpu-logs-XXXXXX";
    size_t room = sizeof text;
    now = place;
    CU(cuLogsDumpToMemory(&now, text, &room, 0));
    EXPECT(now == place + 1 && room == strlen(heard + 2) + 1 && !strncmp(text, heard + 2, room - 1));
    room = sizeof text;
    CU(cuLogsDumpToMemory(&now, text, &room, 0));
    EXPECT(room == 0 && text[0] == 0);
    int file = mkstemp(path);
    EXPECT(file >= 0);
    CU(cuLogsDumpToFile(NULL, path, 0));
    CU(cuLogsDumpToFile(&place, path, 0));
    EXPECT(read(file, text, sizeof text) == (ssize_t)(2 * strlen(heard + 2) + 2));
    unlink(path);
    CU(cuLogsUnregisterCallback(handle));
    void *address = NULL;
    int status = -1;
    CU(cuGetProcAddress_v2("cuMemDiscardBatchAsync", &address, 13000, 0, &status));
    EXPECT(address && status == 0);
    /* PyTorch looks these up together with all memory functions, even if it shares no memory. */
    int (*share)(void *, unsigned long long, int, unsigned long long);
    CU(cuGetProcAddress_v2("cuMemExportToShareableHandle", (void **)&share, 13000, 0, &status));
    EXPECT(share && status == 0);
    EXPECT(share(&file, 1, 1, 0) == NOT_SUPPORTED);
    CU(cuGetProcAddress_v2("cuMemImportFromShareableHandle", &address, 13000, 0, &status));
    EXPECT(address && status == 0);
    puts("refusals: right");
    return 0;
}
