/* A CUDA program of a VM: `hold LIBRARY ready stop` computes until the file `stop` exists, and
 * creates `ready` after the first result; `hold LIBRARY` computes once. Exit status 0: no error. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static void *library;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "hold: %s\n", dlerror());
        _exit(2);
    }
    return found;
}

static void check(const char *what, int result) {
    if (result != 0) {
        fprintf(stderr, "hold: %s returned %d\n", what, result);
        _exit(1);
    }
}

int main(int argc, char **argv) {
    int device;
    void *context;
    unsigned long long memory;
    library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "hold: %s\n", argc > 1 ? dlerror() : "usage: hold LIBRARY [READY STOP]");
        return 2;
    }
    int (*fill)(unsigned long long, unsigned char, size_t) = function("cuMemsetD8_v2");
    int (*wait)(void) = function("cuCtxSynchronize");
    check("cuInit", ((int (*)(unsigned))function("cuInit"))(0));
    check("cuDeviceGet", ((int (*)(int *, int))function("cuDeviceGet"))(&device, 0));
    check("cuCtxCreate", ((int (*)(void **, unsigned, int))function("cuCtxCreate_v2"))(&context, 0, device));
    check("cuMemAlloc", ((int (*)(unsigned long long *, size_t))function("cuMemAlloc_v2"))(&memory, 4096));
    do {
        check("cuMemsetD8", fill(memory, 1, 4096));
        check("cuCtxSynchronize", wait());
        if (argc > 3) {
            close(open(argv[2], O_CREAT | O_WRONLY, 0600));
            usleep(20000);
        }
    } while (argc > 3 && access(argv[3], F_OK) != 0);
    return 0;
}
