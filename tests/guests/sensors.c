/*
 * A program that never calls CUDA and prints NVML's answers about the first device, one per line:
 * "temperature 0 61" has the result code and the value of the function.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct nvmlDevice_st *nvmlDevice_t;

static void *library;

static void *entry(const char *name) {
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

static void say(const char *what, int code, unsigned value) { printf("%s %d %u\n", what, code, value); }

int main(void) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = (int (*)(void))entry("nvmlInit_v2");
    int (*handle)(unsigned, nvmlDevice_t *) =
        (int (*)(unsigned, nvmlDevice_t *))entry("nvmlDeviceGetHandleByIndex_v2");
    int (*power)(nvmlDevice_t, unsigned *) = (int (*)(nvmlDevice_t, unsigned *))entry("nvmlDeviceGetPowerUsage");
    int (*utilization)(nvmlDevice_t, unsigned *) =
        (int (*)(nvmlDevice_t, unsigned *))entry("nvmlDeviceGetUtilizationRates");
    int (*temperature)(nvmlDevice_t, int, unsigned *) =
        (int (*)(nvmlDevice_t, int, unsigned *))entry("nvmlDeviceGetTemperature");
    int (*clock)(nvmlDevice_t, int, unsigned *) =
        (int (*)(nvmlDevice_t, int, unsigned *))entry("nvmlDeviceGetClockInfo");
    int (*ecc)(nvmlDevice_t, unsigned *, unsigned *) =
        (int (*)(nvmlDevice_t, unsigned *, unsigned *))entry("nvmlDeviceGetEccMode");
    nvmlDevice_t device;
    int code = init();
    if (code == 0) code = handle(0, &device);
    if (code != 0) {
        fprintf(stderr, "no device: NVML answers %d\n", code);
        return 1;
    }
    unsigned value = 0, pending = 0, rates[2] = {0, 0};
    code = utilization(device, rates);
    say("utilization", code, rates[0]);
    code = temperature(device, 0, &value);
    say("temperature", code, value);
    code = power(device, &value);
    say("power", code, value);
    const char *clocks[] = {"graphics", "sm", "memory", "video"};
    for (int kind = 0; kind < 4; kind++) {
        code = clock(device, kind, &value);
        say(clocks[kind], code, value);
    }
    code = ecc(device, &value, &pending);
    say("ecc", code, value);
    return 0;
}
