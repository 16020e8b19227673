/* Calls of NVIDIA's runtime of CUDA 12 about peers and managed memory. `path` is the runtime's
 * library, which the argument after the name of the part gives. */
#pragma once
#include "ask.h"

static void runtime(const char *path) {
    enum { CPU = -1, UNSET_PREFERRED = 4, PREFERRED = 3, ACCESSED_BY = 5, MANAGED = 1 };
    void *kept = library;
    void *block_ = NULL, *m = NULL;
    library = dlopen(path, RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(3);
    /* The names of codes are the driver's; the runtime has the same numbers for them. */
#define RUNTIME(arguments, name, ...)                                                                      \
    do {                                                                                                   \
        int code_ = CALL(name, __VA_ARGS__);                                                               \
        void *runtime_ = library;                                                                          \
        library = kept;                                                                                    \
        tell(#name, arguments, code_, "%s", "");                                                           \
        library = runtime_;                                                                                \
    } while (0)
    if (CALL(cudaSetDevice, 0) || CALL(cudaMalloc, &block_, 65536) ||
        CALL(cudaMallocManaged, &m, 65536, MANAGED))
        fprintf(stderr, "the runtime gives no memory\n"), exit(2);
    CALL(cudaDeviceEnablePeerAccess, 1, 0);
    RUNTIME("the same again", cudaDeviceEnablePeerAccess, 1, 0);
    RUNTIME("itself", cudaDeviceEnablePeerAccess, 0, 0);
    RUNTIME("device 1", cudaDeviceDisablePeerAccess, 1);
    RUNTIME("device 5", cudaDeviceDisablePeerAccess, 5);
    RUNTIME("managed to the host", cudaMemPrefetchAsync, m, 65536, CPU, NULL);
    RUNTIME("device memory to device 0", cudaMemPrefetchAsync, block_, 65536, 0, NULL);
    RUNTIME("set preferred location host", cudaMemAdvise, m, 65536, PREFERRED, CPU);
    RUNTIME("unset preferred location, device 0", cudaMemAdvise, m, 65536, UNSET_PREFERRED, 0);
    RUNTIME("set accessed by host", cudaMemAdvise, m, 65536, ACCESSED_BY, CPU);
    library = kept;
}
