/*
 * Loads a module image of about `mebibytes` MiB: a fat binary with one PTX text and one very large
 * entry for another architecture, as in the largest libraries; usage: bigimage [mebibytes].
 */
#define _GNU_SOURCE
#include "guest.h"

#include <sys/mman.h>

/* Layout of a fat binary and of its entries, as in images of CUDA's own tools. */
struct header {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};
struct entry {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, reserved0;
    uint16_t minor, major;
    uint32_t arch;
    uint32_t name_offset, name_size;
    uint64_t flags, reserved1, uncompressed_size;
};
_Static_assert(sizeof(struct header) == 16 && sizeof(struct entry) == 64, "layout");

int main(int argc, char **argv) {
    const uint16_t KIND_PTX = 1, KIND_ELF = 2;
    size_t filler = (size_t)argument(argc, argv, 1, 16) << 20;
    size_t text = (strlen(guest_ptx) + 1 + 7) & ~(size_t)7;
    size_t total = sizeof(struct header) + 2 * sizeof(struct entry) + text + filler;
    /* Untouched pages cost nothing: only the beginning is written. */
    char *image = mmap(NULL, total, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (image == MAP_FAILED) return EXIT_USAGE;
    struct header *header = (struct header *)image;
    *header = (struct header){0xba55ed50u, 1, sizeof *header, total - sizeof *header};
    struct entry *ptx = (struct entry *)(header + 1);
    *ptx = (struct entry){.kind = KIND_PTX, .version = 0x101, .header_size = sizeof *ptx,
                          .size = text, .major = 8, .arch = 80};
    memcpy(ptx + 1, guest_ptx, strlen(guest_ptx));
    struct entry *elf = (struct entry *)((char *)(ptx + 1) + text);
    *elf = (struct entry){.kind = KIND_ELF, .version = 0x101, .header_size = sizeof *elf,
                          .size = filler, .major = 1, .arch = 90};

    CUdevice device;
    CUcontext ctx;
    CUmodule module;
    CUfunction null;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&ctx, device));
    CU(cuCtxSetCurrent(ctx));
    CU(cuModuleLoadData(&module, image));
    CU(cuModuleGetFunction(&null, module, "null_kernel"));
    CU(cuLaunchKernel(null, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CU(cuCtxSynchronize());
    printf("bigimage: %zu bytes loaded\n", total);
    return 0;
}
