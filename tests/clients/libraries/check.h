/* Shared by the programs of this directory: each is linked with one of NVIDIA's libraries, calls
 * it, and compares the results with its own sums on the CPU, in double precision. Arguments and
 * output are those of Rust's test harness: `program --exact [PREFIX::]TEST...`; `program --list`
 * names the tests. */
#include <complex.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

typedef double complex cplx;
enum type { F64, F32, F16, BF16, C64, C32, I8, I32, F8, TYPES };
static const size_t SIZE[TYPES] = {8, 4, 2, 2, 16, 8, 1, 4, 1};
/* Tolerance of a sum of some hundred products, relative to its largest possible value. */
static const double TOLERANCE[TYPES] = {1e-13, 1e-5, 4e-3, 2e-2, 1e-13, 1e-5, 0, 0, 0};

static char why[600];

#define CHECK(what) do { \
        int failed_ = (int)(what); \
        if (failed_) { snprintf(why, sizeof why, "line %d: %s: status %d, %s", __LINE__, #what, failed_, cudaGetErrorName(cudaPeekAtLastError())); return 1; } \
    } while (0)
#define HOLDS(what) do { \
        if (!(what)) { snprintf(why, sizeof why, "line %d: not so: %s", __LINE__, #what); return 1; } \
    } while (0)
#define DO(what) do { if (what) return 1; } while (0)

/* The same numbers in each process, in [-1, 1). */
static double draw(void) {
    static uint64_t state = 42;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(state >> 32) / 2147483648.0;
}

static double of_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bf16(double x) {
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* F8 is e4m3: four bits of exponent, three of fraction, no infinity. */
static double of_f8(uint8_t bits) {
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return bits & 128 ? -size : size;
}

/* The nearest value. */
static uint8_t to_f8(double x) {
    uint8_t best = 0;
    for (uint8_t bits = 1; bits < 0x7f; bits++)
        if (fabs(of_f8(bits) - fabs(x)) < fabs(of_f8(best) - fabs(x))) best = bits;
    return best | (x < 0 ? 128 : 0);
}

static void put(enum type type, void *to, size_t i, cplx x) {
    double r = creal(x);
    switch (type) {
    case F64: ((double *)to)[i] = r; break;
    case F32: ((float *)to)[i] = (float)r; break;
    case F16: ((_Float16 *)to)[i] = (_Float16)r; break;
    case BF16: ((uint16_t *)to)[i] = to_bf16(r); break;
    case C64: ((double complex *)to)[i] = x; break;
    case C32: ((float complex *)to)[i] = (float complex)x; break;
    case I8: ((int8_t *)to)[i] = (int8_t)r; break;
    case F8: ((uint8_t *)to)[i] = to_f8(r); break;
    default: ((int32_t *)to)[i] = (int32_t)r; break;
    }
}

static cplx get(enum type type, const void *from, size_t i) {
    switch (type) {
    case F64: return ((const double *)from)[i];
    case F32: return ((const float *)from)[i];
    case F16: return (double)((const _Float16 *)from)[i];
    case BF16: return of_bf16(((const uint16_t *)from)[i]);
    case C64: return ((const double complex *)from)[i];
    case C32: return ((const float complex *)from)[i];
    case I8: return ((const int8_t *)from)[i];
    case F8: return of_f8(((const uint8_t *)from)[i]);
    default: return ((const int32_t *)from)[i];
    }
}

static int is_complex(enum type type) { return type == C64 || type == C32; }

/* An array on the device, and its values on the host. */
struct array {
    enum type type;
    size_t len;
    void *device;
    cplx *host;
};

static void upload(struct array *a) {
    void *bytes = malloc(a->len * SIZE[a->type] + 16);
    for (size_t i = 0; i < a->len; i++) {
        put(a->type, bytes, i, a->host[i]);
        a->host[i] = get(a->type, bytes, i);
    }
    if (cudaMemcpy(a->device, bytes, a->len * SIZE[a->type], cudaMemcpyHostToDevice)) abort();
    free(bytes);
}

static struct array zeros(enum type type, size_t len) {
    struct array a = {type, len, 0, calloc(len + 1, sizeof(cplx))};
    if (cudaMalloc(&a.device, len * SIZE[type] + 16) || cudaMemset(a.device, 0, len * SIZE[type] + 16)) {
        printf("no memory on the device\n");
        exit(3);
    }
    return a;
}

/* Random values, rounded to the type. */
static struct array filled(enum type type, size_t len) {
    struct array a = zeros(type, len);
    for (size_t i = 0; i < len; i++)
        a.host[i] = type == I8 || type == I32 ? floor(draw() * 8) : is_complex(type) ? draw() + I * draw() : draw();
    upload(&a);
    return a;
}

static struct array ints(const int *values, size_t len) {
    struct array a = zeros(I32, len);
    for (size_t i = 0; i < len; i++) a.host[i] = values[i];
    upload(&a);
    return a;
}

/* The device's values; the caller frees them. NULL on an error. */
static cplx *download(const struct array *a) {
    void *bytes = malloc(a->len * SIZE[a->type] + 16);
    cplx *values = malloc((a->len + 1) * sizeof(cplx));
    int code = cudaMemcpy(bytes, a->device, a->len * SIZE[a->type], cudaMemcpyDeviceToHost);
    if (code) {
        snprintf(why, sizeof why, "reading the result: %s", cudaGetErrorName(code));
        return 0;
    }
    for (size_t i = 0; i < a->len; i++) values[i] = get(a->type, bytes, i);
    free(bytes);
    return values;
}

/* Fails if the device's values differ from the host's by more than `tolerance` (relative to
 * `scale`, at least 1). */
static int same_to(struct array *a, double tolerance, double scale) {
    cplx *got = download(a);
    if (!got) return 1;
    double worst = fmax(scale, 1) * tolerance;
    for (size_t i = 0; i < a->len; i++)
        if (!(cabs(got[i] - a->host[i]) <= worst)) {
            snprintf(why, sizeof why, "element %zu of %zu is %.9g%+.9gi, wanted %.9g%+.9gi", i, a->len, creal(got[i]), cimag(got[i]),
                creal(a->host[i]), cimag(a->host[i]));
            free(got);
            return 1;
        }
    free(got);
    return 0;
}

static int same(struct array *a) {
    double scale = 1;
    for (size_t i = 0; i < a->len; i++) scale = fmax(scale, cabs(a->host[i]));
    return same_to(a, TOLERANCE[a->type], scale);
}

static void drop(struct array *a) {
    cudaFree(a->device);
    free(a->host);
}
#define DROP(...) do { \
        struct array *all[] = {__VA_ARGS__}; \
        for (size_t at = 0; at < sizeof all / sizeof *all; at++) drop(all[at]); \
    } while (0)

/* A test; `which` is for functions that several tests share. */
struct test { const char *name; int (*run)(int which); int which; };

static int tests(const struct test *all, size_t len, int count, char **words) {
    int failed = 0;
    if (count > 1 && !strcmp(words[1], "--list")) {
        for (size_t t = 0; t < len; t++) printf("%s: test\n", all[t].name);
        return 0;
    }
    printf("running %d tests\n", count - 2);
    for (int i = 2; i < count; i++) {
        int known = 0;
        for (size_t t = 0; t < len; t++) {
            const char *colons = strstr(words[i], "::");
            if (strcmp(colons ? colons + 2 : words[i], all[t].name)) continue;
            known = 1;
            int bad = all[t].run(all[t].which);
            printf("test %s ... %s\n", words[i], bad ? "FAILED" : "ok");
            if (bad) printf("---- %s stdout ----\nError: %s\n", words[i], why);
            fflush(stdout);
            failed |= bad;
        }
        if (!known) return fprintf(stderr, "no test is called %s\n", words[i]), 2;
    }
    return failed;
}
#define MAIN(all) int main(int count, char **words) { return tests(all, sizeof all / sizeof *all, count, words); }
