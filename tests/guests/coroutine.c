/* Calls on a stack that is not the thread's own, as coroutines make them: the stack is in one
 * mapping, above the thread's stack and other data of the program, and ends at an unreadable page.
 * Runs on any driver. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "check.h"

enum { OWN = 1 << 20, OTHER = 512 << 10, STACK = 128 << 10, PAGE = 4096, N = 1000, MARK = 0xee };

static ucontext_t back, there;
static int version;
static float a[N], b[N], c[N];

/* The frame is small, so that the calls are right below the top of the stack. */
static void first_call(void) {
    if (cuDriverGetVersion(&version)) version = -1;
}

static void work(void) {
    int n = N;
    size_t bytes = sizeof a;
    CUmodule module;
    CUfunction add = setup("vecadd", &module);
    CUdeviceptr da, db, dc;
    CU(cuMemAlloc_v2(&da, bytes));
    CU(cuMemAlloc_v2(&db, bytes));
    CU(cuMemAlloc_v2(&dc, bytes));
    CU(cuMemcpyHtoD_v2(da, a, bytes));
    CU(cuMemcpyHtoD_v2(db, b, bytes));
    void *params[] = {&da, &db, &dc, &n};
    /* Five of the arguments are on the stack. */
    CU(cuLaunchKernel(add, (N + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
    CU(cuMemcpyDtoH_v2(c, dc, bytes));
}

static void run_there(char *stack, void (*function)(void)) {
    if (getcontext(&there)) exit(EXIT_USAGE);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = STACK;
    there.uc_link = &back;
    makecontext(&there, function, 0);
    if (swapcontext(&back, &there)) exit(EXIT_USAGE);
}

static int overwritten(const char *other) {
    int count = 0;
    for (int i = 0; i < OTHER; i++) count += (unsigned char)other[i] != MARK;
    return count;
}

static int calls(char *other) {
    memset(other, MARK, OTHER);
    run_there(other + OTHER, first_call);
    EXPECT(version > 0);
    EXPECT(overwritten(other) == 0);
    for (int i = 0; i < N; i++) {
        a[i] = i;
        b[i] = 2 * i;
    }
    run_there(other + OTHER, work);
    for (int i = 0; i < N; i++) EXPECT(c[i] == 3 * i);
    EXPECT(overwritten(other) == 0);
    return 0;
}

static void *thread(void *own) {
    static int status;
    status = calls((char *)own + OWN);
    return &status;
}

int main(void) {
    size_t bytes = OWN + OTHER + STACK;
    pthread_attr_t attributes;
    pthread_t caller;
    void *status;
    char *own = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED || mprotect(own + bytes, PAGE, PROT_NONE)) return EXIT_USAGE;
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, own, OWN)) return EXIT_USAGE;
    if (pthread_create(&caller, &attributes, thread, own) || pthread_join(caller, &status)) return EXIT_USAGE;
    return *(int *)status;
}
