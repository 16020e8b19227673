/* An NVRTC that returns PTX instead of machine code.
 *
 * The tests of cuda.core and cuda.bindings compile for the device that they find and take the
 * machine code, which soft-gpu cannot run. NVRTC makes PTX as an intermediate step. With
 * VGPU_NVRTC_PTX=1, this library returns the PTX instead, and the clients pass it to the driver
 * like machine code. All other functions are NVRTC's own: this library has NVRTC's name, the
 * original is next to it as libnvrtc-real, and the linker finds the other functions there. */
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
