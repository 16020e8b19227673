/*
 * A program that allocates memory on its devices and prints the report of CUDA and NVML for each;
 * usage:
 *
 *   share BYTES…         so many bytes of device 0, 1, …
 *   share keep BYTES…    the same, then stays until it is killed, without output
 *
 * Prints a line per device, in bytes:
 * "GPU n: cuda FREE of TOTAL, nvml FREE of TOTAL, used USED, own OWN, reserved RESERVED, process MEMORY".
 * USED is the field of the first version of NVML's structure, OWN and RESERVED are "used" and
 * "reserved" of the second.
 */
#include "guest.h"

#include <dlfcn.h>

typedef struct nvmlDevice_st *nvmlDevice_t;

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process {
    unsigned pid;
    unsigned long long memory;
};

enum { MOST = 4 };

static void *entry(void *library, const char *name) {
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(EXIT_WRONG);
    }
    return found;
}

#define NVML(call) check((call) != 0 ? 999 : 0, #call)

int main(int argc, char **argv) {
    size_t free_bytes[MOST], total[MOST];
    int keep = argc > 1 && !strcmp(argv[1], "keep");
    int count = argc - 1 - keep;
    if (count < 1 || count > MOST) {
        fprintf(stderr, "usage: share [keep] BYTES…\n");
        return EXIT_USAGE;
    }
    CU(cuInit(0));
    CUcontext context[MOST];
    for (int n = 0; n < count; n++) {
        CUdevice device;
        CUdeviceptr memory;
        CU(cuDeviceGet(&device, n));
        CU(cuDevicePrimaryCtxRetain(&context[n], device));
        CU(cuCtxSetCurrent(context[n]));
        CU(cuMemAlloc_v2(&memory, strtoull(argv[n + 1 + keep], NULL, 10)));
        CU(cuCtxSynchronize());
    }
    if (keep) pause();
    for (int n = 0; n < count; n++) {
        CU(cuCtxSetCurrent(context[n]));
        CU(cuMemGetInfo_v2(&free_bytes[n], &total[n]));
    }
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = (int (*)(void))entry(nvml, "nvmlInit_v2");
    int (*handle)(unsigned, nvmlDevice_t *) =
        (int (*)(unsigned, nvmlDevice_t *))entry(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*info)(nvmlDevice_t, struct memory *) =
        (int (*)(nvmlDevice_t, struct memory *))entry(nvml, "nvmlDeviceGetMemoryInfo");
    int (*info_v2)(nvmlDevice_t, struct memory_v2 *) =
        (int (*)(nvmlDevice_t, struct memory_v2 *))entry(nvml, "nvmlDeviceGetMemoryInfo_v2");
    int (*running)(nvmlDevice_t, unsigned *, struct process *) =
        (int (*)(nvmlDevice_t, unsigned *, struct process *))entry(nvml, "nvmlDeviceGetComputeRunningProcesses");
    NVML(init());
    for (int n = 0; n < count; n++) {
        nvmlDevice_t device;
        struct memory memory;
        struct memory_v2 newer = {.version = sizeof newer | 2 << 24};
        struct process processes[MOST];
        unsigned many = MOST;
        NVML(handle(n, &device));
        NVML(info(device, &memory));
        NVML(info_v2(device, &newer));
        NVML(running(device, &many, processes));
        unsigned long long own = 0;
        for (unsigned i = 0; i < many; i++)
            if (processes[i].pid == (unsigned)getpid()) own = processes[i].memory;
        printf("GPU %d: cuda %zu of %zu, nvml %llu of %llu, used %llu, own %llu, reserved %llu, process %llu\n", n,
               free_bytes[n], total[n], memory.free, memory.total, memory.used, newer.used, newer.reserved, own);
    }
    return 0;
}
