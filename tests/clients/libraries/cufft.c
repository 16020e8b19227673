/* cuFFT: one to three dimensions, complex and real, both precisions, batches, and lengths that are
 * not powers of two. */
#include "check.h"
#include <cufft.h>

struct form {
    int rank, size[3], batch;
    cufftType type;
};

static const struct form FORMS[] = {
    {1, {256}, 1, CUFFT_C2C}, {1, {1000}, 3, CUFFT_C2C}, {1, {241}, 2, CUFFT_C2C}, {1, {8192}, 1, CUFFT_C2C},
    {1, {256}, 4, CUFFT_Z2Z}, {1, {1009}, 1, CUFFT_Z2Z}, {1, {360}, 5, CUFFT_R2C}, {1, {2048}, 2, CUFFT_D2Z}, {1, {360}, 5, CUFFT_C2R},
    {1, {128}, 2, CUFFT_Z2D}, {2, {32, 48}, 2, CUFFT_C2C}, {2, {32, 48}, 1, CUFFT_Z2Z}, {2, {30, 64}, 2, CUFFT_R2C}, {2, {30, 64}, 1, CUFFT_C2R},
    {2, {24, 20}, 1, CUFFT_D2Z}, {3, {8, 12, 16}, 1, CUFFT_C2C}, {3, {8, 10, 16}, 2, CUFFT_Z2Z}, {3, {8, 12, 16}, 1, CUFFT_R2C},
    {3, {8, 12, 16}, 1, CUFFT_C2R}, {3, {8, 12, 16}, 1, CUFFT_D2Z}, {1, {1 << 16}, 1, CUFFT_C2C},
};

static int wide(cufftType type) { return type == CUFFT_Z2Z || type == CUFFT_D2Z || type == CUFFT_Z2D; }
static int from_real(cufftType type) { return type == CUFFT_R2C || type == CUFFT_D2Z; }
static int to_real(cufftType type) { return type == CUFFT_C2R || type == CUFFT_Z2D; }

/* A transform in one dimension, in place: by halves if the length is even, otherwise by the sum. */
static void line(cplx *x, int n, int stride, int sign) {
    cplx *in = malloc(sizeof(cplx) * n), *root = malloc(sizeof(cplx) * n);
    if (n % 2 == 0 && n > 16) {
        cplx *even = malloc(sizeof(cplx) * n), *odd = even + n / 2;
        for (int i = 0; i < n / 2; i++) even[i] = x[2 * i * stride], odd[i] = x[(2 * i + 1) * stride];
        line(even, n / 2, 1, sign);
        line(odd, n / 2, 1, sign);
        for (int k = 0; k < n; k++) x[k * stride] = even[k % (n / 2)] + cexp(sign * 2 * M_PI * I * k / n) * odd[k % (n / 2)];
        free(even);
    } else {
        for (int i = 0; i < n; i++) in[i] = x[i * stride], root[i] = cexp(sign * 2 * M_PI * I * i / n);
        for (int k = 0; k < n; k++) {
            cplx sum = 0;
            for (int i = 0; i < n; i++) sum += in[i] * root[(long)i * k % n];
            x[k * stride] = sum;
        }
    }
    free(in);
    free(root);
}

static void transform(cplx *x, const int *n, int sign) {
    int all = n[0] * n[1] * n[2], stride = 1;
    for (int d = 2; d >= 0; d--) {
        for (int at = 0; at < all; at++)
            if (at / stride % n[d] == 0) line(x + at, n[d], stride, sign);
        stride *= n[d];
    }
}

/* Three sizes; missing dimensions have size 1. */
static void sizes(struct form f, int n[3]) {
    for (int d = 0; d < 3; d++) n[d] = d < 3 - f.rank ? 1 : f.size[d - 3 + f.rank];
}

static int execute(cufftHandle plan, cufftType type, void *in, void *out, int sign) {
    switch (type) {
    case CUFFT_C2C: return cufftExecC2C(plan, in, out, sign);
    case CUFFT_Z2Z: return cufftExecZ2Z(plan, in, out, sign);
    case CUFFT_R2C: return cufftExecR2C(plan, in, out);
    case CUFFT_D2Z: return cufftExecD2Z(plan, in, out);
    case CUFFT_C2R: return cufftExecC2R(plan, in, out);
    default: return cufftExecZ2D(plan, in, out);
    }
}

static int fft(int which) {
    struct form f = FORMS[which];
    int n[3];
    sizes(f, n);
    int all = n[0] * n[1] * n[2], half = n[2] / 2 + 1, kept = n[0] * n[1] * half, both = !from_real(f.type) && !to_real(f.type);
    enum type c = wide(f.type) ? C64 : C32, r = wide(f.type) ? F64 : F32;
    double scale = sqrt(all);
    cufftHandle plan;
    CHECK(cufftPlanMany(&plan, f.rank, n + 3 - f.rank, 0, 1, 0, 0, 1, 0, f.type, f.batch));
    struct array full = filled(from_real(f.type) ? r : c, (size_t)all * f.batch);
    struct array in = to_real(f.type) ? zeros(c, (size_t)kept * f.batch) : full;
    struct array out = zeros(to_real(f.type) ? r : c, (size_t)(from_real(f.type) ? kept : all) * f.batch);
    for (int sign = -1; sign <= (both ? 1 : -1); sign += 2) {
        for (int b = 0; b < f.batch; b++) {
            cplx *x = malloc(sizeof(cplx) * all);
            memcpy(x, full.host + (size_t)b * all, sizeof(cplx) * all);
            if (to_real(f.type)) {
                /* A complex-to-real plan takes the transform of real numbers. */
                for (int i = 0; i < all; i++) x[i] = out.host[(size_t)b * all + i] = creal(x[i]);
                transform(x, n, -1);
                for (int i = 0; i < all; i++) {
                    out.host[(size_t)b * all + i] *= all;
                    if (i % n[2] < half) in.host[(size_t)b * kept + i / n[2] * half + i % n[2]] = x[i];
                }
            } else {
                transform(x, n, sign);
                for (int i = 0; i < all; i++) {
                    if (both) out.host[(size_t)b * all + i] = x[i];
                    else if (i % n[2] < half) out.host[(size_t)b * kept + i / n[2] * half + i % n[2]] = x[i];
                }
            }
            free(x);
        }
        if (to_real(f.type)) {
            upload(&in);
            scale = all;
        }
        CHECK(execute(plan, f.type, in.device, out.device, sign < 0 ? CUFFT_FORWARD : CUFFT_INVERSE));
        DO(same_to(&out, TOLERANCE[c], scale * 4));
    }
    CHECK(cufftDestroy(plan));
    return 0;
}

static const struct test TESTS[] = {
    {"c2c_256", fft, 0}, {"c2c_1000_batched", fft, 1}, {"c2c_prime", fft, 2}, {"c2c_8192", fft, 3}, {"z2z_256_batched", fft, 4}, {"z2z_prime", fft, 5},
    {"r2c_360_batched", fft, 6}, {"d2z_2048_batched", fft, 7}, {"c2r_360_batched", fft, 8}, {"z2d_128_batched", fft, 9}, {"c2c_2d", fft, 10},
    {"z2z_2d", fft, 11}, {"r2c_2d", fft, 12}, {"c2r_2d", fft, 13}, {"d2z_2d", fft, 14}, {"c2c_3d", fft, 15}, {"z2z_3d_batched", fft, 16},
    {"r2c_3d", fft, 17}, {"c2r_3d", fft, 18}, {"d2z_3d", fft, 19}, {"c2c_65536", fft, 20},
};
MAIN(TESTS)
