/* An NVRTC that hands over PTX where machine code is asked for.
 *
 * cuda.core and cuda.bindings' tests compile for the device they find and take the machine code of it, which
 * soft-gpu cannot run. NVRTC has made the PTX on the way; with VGPU_NVRTC_PTX=1 this library gives that
 * instead, and the clients pass it to the driver as they would machine code. Everything else is NVRTC's own:
 * this file stands in its place, it lies beside it as libnvrtc-real, and the linker finds the rest there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

typedef int (*size_of)(void *program, size_t *size);
typedef int (*bytes_of)(void *program, char *bytes);

/* NVRTC_ERROR_INTERNAL_ERROR of nvrtc.h. */
enum { INTERNAL_ERROR = 11 };

static void *theirs(const char *machine_code, const char *ptx)
{
    const char *asked = getenv("VGPU_NVRTC_PTX");
    return dlsym(RTLD_NEXT, asked && *asked == '1' ? ptx : machine_code);
}

int nvrtcGetCUBINSize(void *program, size_t *size)
{
    size_of call = (size_of)theirs("nvrtcGetCUBINSize", "nvrtcGetPTXSize");
    return call ? call(program, size) : INTERNAL_ERROR;
}

int nvrtcGetCUBIN(void *program, char *bytes)
{
    bytes_of call = (bytes_of)theirs("nvrtcGetCUBIN", "nvrtcGetPTX");
    return call ? call(program, bytes) : INTERNAL_ERROR;
}
