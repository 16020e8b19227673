/* Calls with their results, one per line, so that two drivers can be compared by the output of a
 * program.
 * A result that contradicts CUDA's documentation is also printed to stderr, and makes the program
 * fail at its end. */
#pragma once
#include "api.h"

enum {
    INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, STUB = 34, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, UNSUPPORTED_LIMIT = 215,
    NO_PEERS = 217, INVALID_PTX = 218, UNSUPPORTED_PTX = 222, UNSUPPORTED_AFFINITY = 224, FILE_NOT_FOUND = 301,
    INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600,
    OUT_OF_RESOURCES = 701, PEERS_NOT_ENABLED = 705, CONTEXT_DESTROYED = 709,
    ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, TOO_LARGE_TOGETHER = 720, NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, WRONG_THREAD = 908, UPDATE_FAILED = 910,
    INVALID_RESOURCE_TYPE = 914, INVALID_RESOURCE_CONFIGURATION = 915
};

static int wrongs;

static inline CUresult gave(CUresult got, CUresult wanted, const char *call, int line) {
    const char *name = NULL;
    if (cuGetErrorName(got, &name)) name = "?";
    printf("%s: %s\n", call, name);
    if (got != wanted) {
        fprintf(stderr, "line %d: %s gave %d (%s), not %d\n", line, call, got, name, wanted);
        wrongs++;
    }
    return got;
}

static inline void equals(long long got, long long wanted, const char *what, int line) {
    printf("%s = %lld\n", what, got);
    if (got != wanted) {
        fprintf(stderr, "line %d: %s is %lld, not %lld\n", line, what, got, wanted);
        wrongs++;
    }
}

static inline void expect(int holds, const char *what, int line) {
    if (holds) return;
    fprintf(stderr, "line %d: not so: %s\n", line, what);
    wrongs++;
}

/* The call succeeds. */
#define OK(call) gave((call), 0, #call, __LINE__)
/* The call returns this error. */
#define FAILS(code, call) gave((call), (code), #call, __LINE__)
/* The number equals `wanted`. */
#define IS(wanted, number) equals((long long)(number), (long long)(wanted), #number, __LINE__)
/* A value that must be equal on both drivers. */
#define TELL(number) printf("%s = %lld\n", #number, (long long)(number))
/* For values that differ between two runs, such as addresses. */
#define EXPECT(what) expect((what) != 0, #what, __LINE__)

/* A call that may return one of two errors; the error is compared. */
#define FAILS_EITHER(code, other, call) \
    do { \
        CUresult got_ = (call); \
        gave(got_, got_ == (other) ? (other) : (code), #call, __LINE__); \
    } while (0)

static inline int done(const char *program) {
    printf("%s: %s\n", program, wrongs ? "wrong" : "right");
    return wrongs ? EXIT_WRONG : 0;
}

/* The first device's primary context, current. */
static inline CUcontext begin(void) {
    CUcontext ctx;
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&ctx, 0));
    CU(cuCtxSetCurrent(ctx));
    return ctx;
}
