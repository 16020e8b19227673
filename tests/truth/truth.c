/* Makes the calls of card-facts.tsv and prints their results in the form of its rows. Run with the
 * name of a part; `attributes` reads the table at the path that follows. Exits with 4 without two
 * devices of compute capability 8.6. */
#include "devices.h"
#include "kernels.h"
#include "kin.h"
#include "memory.h"
#include "modules.h"
#include "runtime.h"
#include "streams.h"
#include "visible.h"

static const struct {
    const char *name;
    void (*rows)(void);
} parts[] = {
    {"devices", device_queries},
    {"contexts", context_calls},
    {"tools", tools},
    {"peers", peers},
    {"copies", copies},
    {"arrays", arrays},
    {"pools", pools},
    {"ranges", ranges},
    {"physical", physical},
    {"modules", modules},
    {"libraries", libraries},
    {"functions", function_attributes},
    {"shared", set_shared},
    {"kernels", kernel_attributes},
    {"launches", launches},
    {"clusters", clusters},
    {"streams", streams},
    {"host", host_functions},
    {"nodes", nodes},
    {"external", external},
    {"textures", textures},
    {"control", control_flow},
    {"values", values},
    {"kin", kin},
};

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    if (!strcmp(part, "seen")) return see(), 0;
    if (!strcmp(part, "visible")) return visible(argv[0]), 0;
    begin();
    if (!strcmp(part, "logs")) return logs(), 0;
    if (!strcmp(part, "attributes") && argc > 2) return attributes(argv[2]), 0;
    if (!strcmp(part, "runtime") && argc > 2) return runtime(argv[2]), 0;
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(part, parts[i].name)) return parts[i].rows(), 0;
    fprintf(stderr, "no part %s\n", part);
    return 3;
}
