/* The devices that a process sees: each case is a separate process. */
#pragma once
#include "ask.h"
#include <sys/wait.h>

typedef struct {
    int init, counted, count;
    unsigned char ids[4][16];
} Seen;

/* The devices that a process with these variables sees. */
static Seen seen(const char *program, const char *devices, const char *order) {
    int ends[2];
    Seen found;
    memset(&found, 0xff, sizeof found);
    if (pipe(ends)) perror("pipe"), exit(3);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("CUDA_VISIBLE_DEVICES"), unsetenv("CUDA_DEVICE_ORDER");
        if (devices) setenv("CUDA_VISIBLE_DEVICES", devices, 1);
        if (order) setenv("CUDA_DEVICE_ORDER", order, 1);
        dup2(ends[1], 1);
        execl(program, program, "seen", (char *)NULL);
        _exit(3);
    }
    close(ends[1]);
    if (read(ends[0], &found, sizeof found) != sizeof found) fprintf(stderr, "%s saw nothing\n", program);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return found;
}

/* In the process: writes the devices that it sees. */
static void see(void) {
    Seen found = {.count = -1};
    int device;
    found.init = CALL(cuInit, 0);
    found.counted = CALL(cuDeviceGetCount, &found.count);
    for (int i = 0; i < found.count && i < 4; i++) {
        NEED(cuDeviceGet, &device, i);
        NEED(cuDeviceGetUuid_v2, found.ids[i], device);
    }
    if (write(1, &found, sizeof found) != sizeof found) exit(3);
}

static const char *uuid(const unsigned char id[16], char *text) {
    static const char hyphens[] = "\0\0\0\0-\0-\0-\0-\0\0\0\0\0";
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++) {
        if (hyphens[i]) *at++ = hyphens[i];
        at += sprintf(at, "%02x", id[i]);
    }
    return text;
}

static void visible(const char *program) {
    const Seen all = seen(program, NULL, NULL);
    char zero[64], one[64], two[160], number[160];
    uuid(all.ids[0], zero), uuid(all.ids[1], one);
    snprintf(two, sizeof two, "%s,%s", one, zero);
    snprintf(number, sizeof number, "%s,0", one);
    const struct {
        const char *words, *devices, *order;
    } cases[] = {
        {"0,1", "0,1", NULL},
        {"1: the machine's second device keeps its identity", "1", NULL},
        {"0x1 is device 0 (reading stops at x)", "0x1", NULL},
        {"spaces are ignored", " 1 , 0 ", NULL},
        {"0,-1,1: likewise", "0,-1,1", NULL},
        {"5 of 2 devices: none", "5", NULL},
        {"empty: none", "", NULL},
        {"0,0: a device twice", "0,0", NULL},
        {"full UUID of device 1", one, NULL},
        {"two UUIDs", two, NULL},
        {"a UUID, then a number: the number ends the list", number, NULL},
        {"unknown UUID: none", "GPU-01234567-89ab-cdef-0123-456789abcdef", NULL},
        {"CUDA_DEVICE_ORDER=FASTEST_FIRST", NULL, "FASTEST_FIRST"},
        {"CUDA_DEVICE_ORDER of another value", NULL, "BY_NAME"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Seen found = seen(program, cases[i].devices, cases[i].order);
        char list[64] = "";
        for (int d = 0; d < found.count && d < 4; d++)
            for (int m = 0; m < all.count && m < 4; m++)
                if (!memcmp(found.ids[d], all.ids[m], 16))
                    snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", d ? "," : "", m);
        if (found.init) tell("cuInit", cases[i].words, found.init, "count %d", found.counted);
        else tell("cuInit", cases[i].words, found.init, "%s", list);
    }
}
