/* A large copy right after the launch of a kernel that faults: the fault comes before the end of the
 * copy or in the next call. Exits 0 if the program gets CUDA_ERROR_ILLEGAL_ADDRESS and no other
 * error. */
#include "guest.h"

int main(void) {
    const CUresult ILLEGAL_ADDRESS = 700;
    const size_t BYTES = (size_t)400 << 20;
    CUmodule module;
    CUfunction add = setup("vecadd", &module);
    CUdeviceptr memory, wild = 0x666600000000;
    unsigned count = 32;
    void *parameters[] = {&wild, &wild, &wild, &count};
    void *source = calloc(1, BYTES);
    if (!source) {
        fprintf(stderr, "no memory for the source\n");
        return EXIT_WRONG;
    }
    CU(cuMemAlloc_v2(&memory, BYTES));
    CU(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    CUresult copied = cuMemcpyHtoD_v2(memory, source, BYTES);
    CUresult waited = cuCtxSynchronize();
    if ((copied != 0 && copied != ILLEGAL_ADDRESS) || waited != ILLEGAL_ADDRESS) {
        fprintf(stderr, "the copy returned %d and the wait %d, not %d\n", copied, waited, ILLEGAL_ADDRESS);
        return EXIT_WRONG;
    }
    printf("fault: %d\n", waited);
    return 0;
}
