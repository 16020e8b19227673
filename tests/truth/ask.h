/* Calls of the driver by name, and their results as rows of card-facts.tsv. LD_LIBRARY_PATH selects
 * the library, as for any program; structures are declared from CUDA's documentation. */
#pragma once
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t Word;
typedef unsigned long long CUdeviceptr;
typedef void *Handle;

static void *library;

static void *entry(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s is not exported\n", name);
        exit(3);
    }
    return found;
}

/* Integers and pointers are passed alike, and a function ignores additional arguments. */
enum { MOST = 16 };
typedef int Function(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word,
                     Word);
static int call(const char *name, const Word w[MOST]) {
    Function *f = (Function *)entry(name);
    return f(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14],
             w[15]);
}
#define W1(a) (Word)(a)
#define W2(a, ...) (Word)(a), W1(__VA_ARGS__)
#define W3(a, ...) (Word)(a), W2(__VA_ARGS__)
#define W4(a, ...) (Word)(a), W3(__VA_ARGS__)
#define W5(a, ...) (Word)(a), W4(__VA_ARGS__)
#define W6(a, ...) (Word)(a), W5(__VA_ARGS__)
#define W7(a, ...) (Word)(a), W6(__VA_ARGS__)
#define W8(a, ...) (Word)(a), W7(__VA_ARGS__)
#define W9(a, ...) (Word)(a), W8(__VA_ARGS__)
#define W10(a, ...) (Word)(a), W9(__VA_ARGS__)
#define W11(a, ...) (Word)(a), W10(__VA_ARGS__)
#define TWELFTH(a, b, c, d, e, f, g, h, i, j, k, l, ...) l
#define WORDS(...)                                                                                         \
    TWELFTH(__VA_ARGS__, W11, W10, W9, W8, W7, W6, W5, W4, W3, W2, W1, 0)(__VA_ARGS__)
/* CALL(cuName, arguments…) is the function's result. Functions without arguments get a 0. */
#define CALL(name, ...) call(#name, (const Word[MOST]){WORDS(__VA_ARGS__)})
/* A call on which later rows depend. */
#define NEED(name, ...)                                                                                    \
    do {                                                                                                   \
        int code_ = CALL(name, __VA_ARGS__);                                                               \
        if (code_) fprintf(stderr, "line %d: %s: %s\n", __LINE__, #name, code_name(code_)), exit(2);      \
    } while (0)

static const char *code_name(int code) {
    const char *name = NULL;
    if (code == 0) return "SUCCESS";
    if (CALL(cuGetErrorName, code, &name) || !name) return "?";
    return strncmp(name, "CUDA_ERROR_", 11) ? name : name + 11;
}

/* A row: call, arguments as text, result, and further values. */
__attribute__((format(printf, 4, 5))) static void tell(const char *name, const char *arguments, int code,
                                                       const char *format, ...) {
    char beside[300];
    va_list rest;
    va_start(rest, format);
    vsnprintf(beside, sizeof beside, format, rest);
    va_end(rest);
    printf("%s\t%s\t%s (%d)%s%s\n", name, arguments, code_name(code), code, *beside ? "; " : "", beside);
    fflush(stdout);
}
/* A row with the result only. */
#define ASK(arguments, name, ...) tell(#name, arguments, CALL(name, __VA_ARGS__), "%s", "")

enum { MIB = 1 << 20 };

typedef struct {
    int kind; /* CU_MEM_LOCATION_TYPE_DEVICE is 1, HOST 2. */
    int id;
} Location;

/* Two devices with their primary contexts; the first context is current. */
static int devices[2];
static Handle contexts[2];
static void begin(void) {
    int count = 0, major = 0, minor = 0;
    NEED(cuInit, 0);
    NEED(cuDeviceGetCount, &count);
    if (count > 0) {
        NEED(cuDeviceGetAttribute, &major, 75, 0);
        NEED(cuDeviceGetAttribute, &minor, 76, 0);
    }
    if (count < 2 || major != 8 || minor != 6) exit(4);
    for (int i = 1; i >= 0; i--) {
        NEED(cuDeviceGet, &devices[i], i);
        NEED(cuDevicePrimaryCtxRetain, &contexts[i], devices[i]);
        NEED(cuCtxSetCurrent, contexts[i]);
    }
}
static Handle stream(void) {
    Handle made;
    NEED(cuStreamCreate, &made, 1);
    return made;
}
static CUdeviceptr block(size_t size) {
    CUdeviceptr made;
    NEED(cuMemAlloc_v2, &made, size);
    return made;
}
static CUdeviceptr managed(size_t size) {
    CUdeviceptr made;
    NEED(cuMemAllocManaged, &made, size, 1);
    return made;
}
