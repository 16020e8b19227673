/* Shared by reach.c and pointers.c: memory that both program and kernels reach. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boxes.h"
#include "check.h"
#include "graph.h"

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_READY = 600 };
enum { HOST_POINTER = 4, DEVICE_POINTER = 3, MEMORY_TYPE = 2, IS_MANAGED = 8 };
enum { MANAGED_MEMORY = 83, CONCURRENT_ACCESS = 89, CAN_USE_HOST_POINTER = 91, CAN_MAP = 19 };
enum { N = 3000 };

/* Not in api.h: `make lint` cannot compare functions that take a structure by value. */
typedef struct {
    int kind, id;
} Place;
CUresult cuMemAdvise_v2(CUdeviceptr at, size_t bytes, int advice, Place place);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr at, size_t bytes, Place place, unsigned flags, CUstream stream);
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr at, size_t bytes, Place place, unsigned flags, CUstream stream);

static CUmodule module;
static CUfunction add, odd, follow, latch, keep;
static CUstream stream;

static inline void launch(CUfunction f, CUdeviceptr at, unsigned n, unsigned value, CUstream in) {
    void *params[] = {&at, &n, &value};
    CU(cuLaunchKernel(f, (n + 127) / 128, 1, 1, 128, 1, 1, 0, in, params, NULL));
}

static inline int all(const unsigned *words, unsigned n, unsigned first, unsigned step) {
    for (unsigned i = 0; i < n; i++) {
        if (words[i] != first + i * step) {
            fprintf(stderr, "word %u is %u, not %u\n", i, words[i], first + i * step);
            return 0;
        }
    }
    return 1;
}

static inline void count(unsigned *words, unsigned n, unsigned first) {
    for (unsigned i = 0; i < n; i++) words[i] = first + i;
}

static inline unsigned long long attribute(int which, CUdeviceptr at) {
    unsigned long long value = 0;
    CU(cuPointerGetAttribute(&value, which, at));
    return value;
}

/* Containers forbid these calls. */
static int as_in_a_container(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    EXPECT(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    EXPECT(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    EXPECT(syscall(SYS_userfaultfd, 0) == -1);
    EXPECT(syscall(SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0) == -1);
    EXPECT(syscall(SYS_process_vm_writev, getpid(), NULL, 0, NULL, 0, 0) == -1);
    return 0;
}

struct part {
    const char *name;
    int (*run)(void);
};

/* Runs the part of a program that its first argument names. */
static int run_part(const struct part *parts, size_t n, int argc, char **argv) {
    for (size_t i = 0; argc >= 2 && i < n; i++) {
        if (strcmp(argv[1], parts[i].name)) continue;
        if (argc == 3 && as_in_a_container()) return EXIT_USAGE;
        add = setup("add", &module);
        CU(cuModuleGetFunction(&odd, module, "odd"));
        CU(cuModuleGetFunction(&follow, module, "follow"));
        CU(cuModuleGetFunction(&latch, module, "latch"));
        CU(cuModuleGetFunction(&keep, module, "keep"));
        CU(cuStreamCreate(&stream, 0));
        return parts[i].run();
    }
    fprintf(stderr, "usage: %s PART [contained], of parts", argv[0]);
    for (size_t i = 0; i < n; i++) fprintf(stderr, " %s", parts[i].name);
    fputc('\n', stderr);
    return EXIT_USAGE;
}
