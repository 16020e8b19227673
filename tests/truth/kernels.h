/* The values that threads of a block of 256 compute. */
#pragma once
#include "modules.h"

enum { BLOCK = 256 };

static void run(Handle f, Word out[BLOCK]) {
    CUdeviceptr at = block(BLOCK * sizeof *out);
    void *parameters[] = {&at};
    NEED(cuMemsetD8_v2, at, 0, BLOCK * sizeof *out);
    NEED(cuLaunchKernel, f, 1, 1, 1, BLOCK, 1, 1, 0, NULL, parameters, NULL);
    NEED(cuMemcpyDtoH_v2, out, at, BLOCK * sizeof *out);
}

static void control_flow(void) {
    Word out[BLOCK];
    run(fresh("control"), out);
    for (int t = 0; t < BLOCK; t++)
        printf("control flow thread %d\tnested divergence, loop with break, barrier sum, unbalanced loop\t"
               "0x%016llx\n",
               t, (unsigned long long)out[t]);
}

/* One instruction per thread. `kind` is the result: r 32 bits, d 64, h 16, p a predicate. */
static const struct {
    int thread;
    const char *op;
    char kind;
    int operands;
    unsigned of[4];
} cases[] = {
    {1, "shr.s32", 'r', 2, {0xffffffff, 0x28}},
    {3, "shl.b32", 'r', 2, {0x1, 0x21}},
    {5, "rem.s32", 'r', 2, {0xfffffff9, 0x2}},
    {7, "min.s32", 'r', 2, {0xfffffffb, 0x3}},
    {9, "mul.wide.s32", 'd', 2, {0xfffe7960, 0x186a0}},
    {11, "mad.lo.s32", 'r', 3, {0x10000, 0x10000, 0x7}},
    {13, "bfe.s32", 'r', 3, {0xffffffff, 0x0, 0x0}},
    {15, "bfi.b32", 'r', 4, {0xff, 0x0, 0x28, 0x8}},
    {17, "shf.r.clamp.b32", 'r', 3, {0x9abcdef0, 0x12345678, 0x28}},
    {19, "popc.b32", 'r', 1, {0xf0f0f0f0}},
    {21, "brev.b32", 'r', 1, {0x1}},
    {23, "cvt.rni.s32.f32", 'r', 1, {0x40200000}},
    {25, "cvt.rmi.s32.f32", 'r', 1, {0xc00ccccd}},
    {27, "cvt.rzi.u32.f32", 'r', 1, {0xc0a00000}},
    {29, "setp.gt.f32", 'p', 2, {0x7fc00000, 0x3f800000}},
    {31, "max.f32", 'r', 2, {0x80000000, 0x0}},
    {33, "cvt.rn.f32.u32", 'r', 1, {0xffffffff}},
    {35, "cvt.rn.f16.f32", 'h', 1, {0x477ff000}},
    {37, "cvt.f32.f16", 'r', 1, {0x3c01}},
    {81, "lg2.approx.f32", 'r', 1, {0x41000000}},
    {83, "sin.approx.f32", 'r', 1, {0x3f800000}},
    {85, "sqrt.rn.f32", 'r', 1, {0x40000000}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Threads that exchange a value with their warp; the value is base + thread. */
static const struct {
    int first, last, base;
    const char *op, *rest, *words;
    int predicate;
} exchanges[] = {
    {40, 71, 1000, "shfl.sync.down.b32", "30, 31",
     "shfl.sync.down by 30, clamp 31, of 1000+t, predicate in the high half; lane %d", 1},
    {90, 121, 2000, "shfl.sync.up.b32", "4, 0", "shfl.sync.up by 4, clamp 0, of 2000+t; lane %d", 0},
    {130, 161, 3000, "shfl.sync.bfly.b32", "16, 31", "shfl.sync.bfly 16, clamp 31, of 3000+t; lane %d", 0},
};
enum { EXCHANGES = sizeof exchanges / sizeof *exchanges };

static void words_of(int thread, char *words, size_t room) {
    snprintf(words, room, "value 0 (thread without a case)");
    for (int i = 0; i < CASES; i++) {
        if (cases[i].thread != thread) continue;
        int at = snprintf(words, room, "%s of", cases[i].op);
        for (int o = 0; o < cases[i].operands; o++)
            at += snprintf(words + at, room - (size_t)at, "%s 0x%x", o ? "," : "", cases[i].of[o]);
    }
    for (int i = 0; i < EXCHANGES; i++)
        if (exchanges[i].first <= thread && thread <= exchanges[i].last)
            snprintf(words, room, exchanges[i].words, thread % 32);
}

/* The module of all cases; operands are in registers. */
static void write_module(FILE *to) {
    fprintf(to, ".version 8.4\n.target sm_86\n.address_size 64\n"
                ".visible .entry values(.param .u64 at) {\n"
                ".reg .b64 p, v; .reg .b32 t, r, a<4>; .reg .b16 h, b<4>; .reg .pred q, mine, last;\n"
                "ld.param.u64 p, [at]; mov.u32 t, %%tid.x; mov.u64 v, 0;\n");
    for (int i = 0; i < CASES; i++) {
        int half = strstr(cases[i].op, ".f32.f16") != NULL;
        fprintf(to, "setp.ne.u32 mine, t, %d;\n@mine bra N%d;\n", cases[i].thread, i);
        for (int o = 0; o < cases[i].operands; o++)
            fprintf(to, half ? "mov.b16 b%d, 0x%x;\n" : "mov.b32 a%d, 0x%x;\n", o, cases[i].of[o]);
        const char *out = cases[i].kind == 'd' ? "v" : cases[i].kind == 'h' ? "h" : cases[i].kind == 'p' ? "q" : "r";
        fprintf(to, "%s %s", cases[i].op, out);
        for (int o = 0; o < cases[i].operands; o++) fprintf(to, half ? ", b%d" : ", a%d", o);
        fprintf(to, ";\n");
        if (cases[i].kind == 'h') fprintf(to, "cvt.u64.u16 v, h;\n");
        if (cases[i].kind == 'p') fprintf(to, "selp.u64 v, 1, 0, q;\n");
        if (cases[i].kind == 'r') fprintf(to, "cvt.u64.u32 v, r;\n");
        fprintf(to, "N%d:\n", i);
    }
    for (int i = 0; i < EXCHANGES; i++) {
        fprintf(to, "add.u32 r, t, %d;\n%s a0|q, r, %s, 0xffffffff;\n", exchanges[i].base, exchanges[i].op,
                exchanges[i].rest);
        fprintf(to, "setp.lt.u32 mine, t, %d;\n@mine bra X%d;\n", exchanges[i].first, i);
        fprintf(to, "setp.gt.u32 last, t, %d;\n@last bra X%d;\n", exchanges[i].last, i);
        fprintf(to, "selp.u32 a1, 1, 0, q;\nmov.b64 v, {a0, %s};\nX%d:\n", exchanges[i].predicate ? "a1" : "a2", i);
    }
    fprintf(to, "mad.wide.u32 p, t, 8, p;\nst.global.u64 [p], v;\nret;\n}\n");
}

static void values(void) {
    char *text = NULL, words[200];
    size_t length;
    Word out[BLOCK];
    FILE *module = open_memstream(&text, &length);
    write_module(module);
    fclose(module);
    run(function_of(module_of(text), "values"), out);
    for (int t = 0; t < BLOCK; t++) {
        words_of(t, words, sizeof words);
        printf("PTX thread %d\t%s\t0x%016llx\n", t, words, (unsigned long long)out[t]);
    }
    free(text);
}
