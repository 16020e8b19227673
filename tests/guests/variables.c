/*
 * A program whose module has large variables. Loads the module, and with the argument `twice`
 * unloads and loads it again; then stays until it is killed.
 */
#include "api.h"

int main(int argc, char **argv) {
    CUmodule module;
    CUdeviceptr variables;
    size_t bytes;
    setup("null_kernel", &module);
    if (argc > 1 && !strcmp(argv[1], "twice")) {
        CU(cuModuleUnload(module));
        CU(cuModuleLoadData(&module, guest_ptx));
    }
    CU(cuModuleGetGlobal_v2(&variables, &bytes, module, "variables"));
    CU(cuMemsetD8_v2(variables, 1, bytes));
    CU(cuCtxSynchronize());
    pause();
    return 0;
}
