/* cuRAND: each generator on the device, compared with the same generator on the CPU
 * (curandCreateGeneratorHost), and the means of the distributions. */
#include "check.h"
#include <curand.h>

enum { N = 1 << 14 };
enum what { BITS, UNIFORM, UNIFORM64, NORMAL, NORMAL64, LOG_NORMAL, POISSON };
static const double MEAN[] = {0, 0.5, 0.5, 1, 1, 1.6487212707, 3}, SPREAD[] = {0, 0.2886751346, 0.2886751346, 2, 2, 2.1611974158, 1.7320508076};

static int draws(curandGenerator_t generator, enum what what, void *to) {
    switch (what) {
    case BITS: return curandGenerate(generator, to, N);
    case UNIFORM: return curandGenerateUniform(generator, to, N);
    case UNIFORM64: return curandGenerateUniformDouble(generator, to, N);
    case NORMAL: return curandGenerateNormal(generator, to, N, 1, 2);
    case NORMAL64: return curandGenerateNormalDouble(generator, to, N, 1, 2);
    case LOG_NORMAL: return curandGenerateLogNormal(generator, to, N, 0, 1);
    default: return curandGeneratePoisson(generator, to, N, 3);
    }
}

static double value(enum what what, const void *from, int i) {
    switch (what) {
    case BITS: case POISSON: return ((const unsigned *)from)[i];
    case UNIFORM64: case NORMAL64: return ((const double *)from)[i];
    default: return ((const float *)from)[i];
    }
}

static int compare(curandRngType_t type, enum what what) {
    curandGenerator_t here, there;
    size_t size = (what == UNIFORM64 || what == NORMAL64 ? 8 : 4) * (size_t)N;
    void *device, *mine = malloc(size), *theirs = malloc(size);
    CHECK(cudaMalloc(&device, size));
    CHECK(curandCreateGenerator(&there, type));
    CHECK(curandCreateGeneratorHost(&here, type));
    if (type < CURAND_RNG_QUASI_DEFAULT) {
        CHECK(curandSetPseudoRandomGeneratorSeed(there, 1234));
        CHECK(curandSetPseudoRandomGeneratorSeed(here, 1234));
    }
    /* Twice, because a generator continues its sequence. */
    for (int turn = 0; turn < 2; turn++) {
        CHECK(draws(there, what, device));
        CHECK(draws(here, what, mine));
        CHECK(cudaMemcpy(theirs, device, size, cudaMemcpyDeviceToHost));
        double sum = 0;
        for (int i = 0; i < N; i++) {
            double want = value(what, mine, i), got = value(what, theirs, i);
            sum += got;
            if (!(fabs(got - want) <= (what == BITS || what == POISSON ? 0 : 1e-5 * fmax(1, fabs(want))))) {
                snprintf(why, sizeof why, "turn %d: value %d is %.9g, the CPU's %.9g", turn, i, got, want);
                return 1;
            }
        }
        if (what != BITS) HOLDS(fabs(sum / N - MEAN[what]) < 6 * SPREAD[what] / sqrt(N));
    }
    CHECK(curandDestroyGenerator(here));
    CHECK(curandDestroyGenerator(there));
    CHECK(cudaFree(device));
    free(mine);
    free(theirs);
    return 0;
}

static int generator(int type) { return compare(type, BITS) || compare(type, UNIFORM); }
static int distribution(int what) { return compare(CURAND_RNG_PSEUDO_PHILOX4_32_10, what) || compare(CURAND_RNG_PSEUDO_XORWOW, what); }
static int normal_of(int type) { return compare(type, NORMAL); }

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Checks uniform values: mean, variance, correlation of neighbours, and how many values differ. Of
 * N values of 23 bits, about 16 are equal to an earlier one. */
static int is_uniform(float *values) {
    double sum = 0, squares = 0, neighbours = 0, root = sqrt(N);
    for (int i = 0; i < N; i++) {
        double x = values[i] - 0.5;
        HOLDS(values[i] > 0 && values[i] <= 1);
        sum += x;
        squares += x * x;
        if (i) neighbours += x * (values[i - 1] - 0.5);
    }
    HOLDS(fabs(sum / N) < 6 * 0.2886751346 / root);
    HOLDS(fabs(squares / N - 1.0 / 12) < 6 * 0.0745355992 / root);
    HOLDS(fabs(neighbours / N) < 6 / 12.0 / root);
    qsort(values, N, sizeof *values, by_size);
    int equal = 0;
    for (int i = 1; i < N; i++) equal += values[i] == values[i - 1];
    HOLDS(equal < 100);
    return 0;
}

/* MTGP32 has no counterpart on the CPU. Two turns together must also be uniform: the generator
 * continues its sequence and does not repeat it. */
static int mtgp32(int unused) {
    (void)unused;
    curandGenerator_t generator;
    float *device, *values = malloc(4 * N), *both = malloc(4 * N);
    CHECK(cudaMalloc((void **)&device, 4 * N));
    CHECK(curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_MTGP32));
    CHECK(curandSetPseudoRandomGeneratorSeed(generator, 1234));
    for (int turn = 0; turn < 2; turn++) {
        CHECK(curandGenerateUniform(generator, device, N));
        CHECK(cudaMemcpy(values, device, 4 * N, cudaMemcpyDeviceToHost));
        memcpy(both + turn * N / 2, values, 2 * N);
        DO(is_uniform(values));
    }
    return is_uniform(both);
}

static const struct test TESTS[] = {
    {"xorwow", generator, CURAND_RNG_PSEUDO_XORWOW}, {"mrg32k3a", generator, CURAND_RNG_PSEUDO_MRG32K3A},
    {"philox", generator, CURAND_RNG_PSEUDO_PHILOX4_32_10}, {"mt19937", normal_of, CURAND_RNG_PSEUDO_MT19937}, {"mtgp32", mtgp32, 0},
    {"sobol32", generator, CURAND_RNG_QUASI_SOBOL32}, {"scrambled_sobol32", generator, CURAND_RNG_QUASI_SCRAMBLED_SOBOL32},
    {"uniform_f64", distribution, UNIFORM64}, {"normal_f32", distribution, NORMAL}, {"normal_f64", distribution, NORMAL64},
    {"log_normal", distribution, LOG_NORMAL}, {"poisson", distribution, POISSON},
    {"normal_mrg32k3a", normal_of, CURAND_RNG_PSEUDO_MRG32K3A},
    {"normal_sobol32", normal_of, CURAND_RNG_QUASI_SOBOL32},
};
MAIN(TESTS)
