/* cuBLAS: levels 1, 2 and 3, batched, and products of every type. Matrices are stored by
 * columns. */
#include "check.h"
#include <cublas_v2.h>

static cublasHandle_t h;
static const cudaDataType TYPE[TYPES] = {CUDA_R_64F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_C_64F, CUDA_C_32F, CUDA_R_8I, CUDA_R_32I};

static int begin(void) {
    if (!h) CHECK(cublasCreate(&h));
    return 0;
}

/* The function of a type: S, D, C or Z. Only the arm of the type is called; the other arms only
 * compile. */
#define CALL(type, name, ...) ((type) == F64 ? cublasD##name(h, __VA_ARGS__) : cublasS##name(h, __VA_ARGS__))
#define P(a) ((void *)(a).device)

static int level1(int type) {
    enum { N = 1000 };
    DO(begin());
    struct array x = filled(type, N), y = filled(type, N);
    double f64[4] = {0.75, 0, 0.6, 0.8}, answer64 = 0, dot = 0, sum = 0, squares = 0;
    float f32[4] = {0.75f, 0, 0.6f, 0.8f}, answer32 = 0;
    void *f = type == F64 ? (void *)f64 : f32, *out = type == F64 ? (void *)&answer64 : &answer32;
#define ANSWER (type == F64 ? answer64 : (double)answer32)
    int largest = 0, smallest = 0, at = 0;
    for (int i = 0; i < N; i++) {
        dot += creal(x.host[i]) * creal(y.host[i]);
        sum += cabs(x.host[i]);
        squares += creal(x.host[i]) * creal(x.host[i]);
        if (cabs(x.host[i]) > cabs(x.host[largest])) largest = i;
        if (cabs(x.host[i]) < cabs(x.host[smallest])) smallest = i;
    }
    double near = N * TOLERANCE[type];
    CHECK(CALL(type, dot, N, P(x), 1, P(y), 1, out));
    HOLDS(fabs(ANSWER - dot) < near);
    CHECK(CALL(type, asum, N, P(x), 1, out));
    HOLDS(fabs(ANSWER - sum) < near);
    CHECK(CALL(type, nrm2, N, P(x), 1, out));
    HOLDS(fabs(ANSWER - sqrt(squares)) < near);
    CHECK(type == F64 ? cublasIdamax(h, N, P(x), 1, &at) : cublasIsamax(h, N, P(x), 1, &at));
    HOLDS(at == largest + 1);
    CHECK(type == F64 ? cublasIdamin(h, N, P(x), 1, &at) : cublasIsamin(h, N, P(x), 1, &at));
    HOLDS(at == smallest + 1);
    CHECK(CALL(type, axpy, N, f, P(x), 1, P(y), 1));
    for (int i = 0; i < N; i++) y.host[i] += 0.75 * x.host[i];
    DO(same(&y));
    CHECK(CALL(type, scal, N, f, P(x), 1));
    for (int i = 0; i < N; i++) x.host[i] *= 0.75;
    DO(same(&x));
    CHECK(CALL(type, swap, N / 2, P(x), 2, P(y), 2));
    for (int i = 0; i < N; i += 2) {
        cplx kept = x.host[i];
        x.host[i] = y.host[i];
        y.host[i] = kept;
    }
    DO(same(&x));
    CHECK(type == F64 ? cublasDrot(h, N, P(x), 1, P(y), 1, f64 + 2, f64 + 3) : cublasSrot(h, N, P(x), 1, P(y), 1, f32 + 2, f32 + 3));
    for (int i = 0; i < N; i++) {
        cplx a = x.host[i], b = y.host[i];
        x.host[i] = 0.6 * a + 0.8 * b;
        y.host[i] = 0.6 * b - 0.8 * a;
    }
    DO(same(&x) || same(&y));
    CHECK(CALL(type, copy, N, P(x), 1, P(y), 1));
    memcpy(y.host, x.host, N * sizeof(cplx));
    DO(same(&y));
    DROP(&x, &y);
    return 0;
}

static int level1_complex(int type) {
    enum { N = 500 };
    DO(begin());
    struct array x = filled(type, N), y = filled(type, N), out = zeros(type, 1);
    cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE);
    for (int i = 0; i < N; i++) out.host[0] += conj(x.host[i]) * y.host[i];
    int code = type == C64 ? cublasZdotc(h, N, P(x), 1, P(y), 1, P(out)) : cublasCdotc(h, N, P(x), 1, P(y), 1, P(out));
    cublasSetPointerMode(h, CUBLAS_POINTER_MODE_HOST);
    CHECK(code);
    DO(same_to(&out, TOLERANCE[type], N));
    DROP(&x, &y, &out);
    return 0;
}

/* dot and axpy of narrow types, through the functions for any type. */
static int level1_ex(int type) {
    enum { N = 300 };
    DO(begin());
    struct array x = filled(type, N), y = filled(type, N);
    float alpha = 0.5;
    uint16_t bits[8];
    double dot = 0;
    for (int i = 0; i < N; i++) dot += creal(x.host[i]) * creal(y.host[i]);
    CHECK(cublasDotEx(h, N, P(x), TYPE[type], 1, P(y), TYPE[type], 1, bits, TYPE[type], CUDA_R_32F));
    HOLDS(fabs(creal(get(type, bits, 0)) - dot) < N * TOLERANCE[type] / 4);
    CHECK(cublasAxpyEx(h, N, &alpha, CUDA_R_32F, P(x), TYPE[type], 1, P(y), TYPE[type], 1, CUDA_R_32F));
    for (int i = 0; i < N; i++) y.host[i] += 0.5 * x.host[i];
    DO(same(&y));
    DROP(&x, &y);
    return 0;
}

/* c = alpha op(a) op(b) + beta c, of size m x n with k products; op: 0 none, 1 transposed, 2
 * conjugate transposed. */
static void product(int ta, int tb, int m, int n, int k, double alpha, const cplx *a, int lda, const cplx *b, int ldb, double beta, cplx *c) {
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            cplx sum = 0;
            for (int p = 0; p < k; p++) {
                cplx x = ta ? a[p + i * lda] : a[i + p * lda], y = tb ? b[j + p * ldb] : b[p + j * ldb];
                sum += (ta == 2 ? conj(x) : x) * (tb == 2 ? conj(y) : y);
            }
            c[i + j * m] = alpha * sum + beta * c[i + j * m];
        }
}

#define FACTORS double alpha64 = 0.5, beta64 = 2; float alpha32 = 0.5f, beta32 = 2; \
    void *alpha = type == F64 ? (void *)&alpha64 : &alpha32, *beta = type == F64 ? (void *)&beta64 : &beta32; (void)alpha, (void)beta

/* An element of a symmetric matrix of which only the lower triangle is stored. */
static cplx symmetric(const cplx *a, int lda, int i, int j) { return i >= j ? a[i + j * lda] : a[j + i * lda]; }

/* A triangular matrix whose solutions stay small. */
static struct array triangle(enum type type, int n) {
    struct array a = filled(type, (size_t)n * n);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < n; i++) a.host[i + j * n] = i == j ? 2 + cabs(a.host[i + j * n]) : a.host[i + j * n] / n;
    upload(&a);
    return a;
}

static int gemv(int type) {
    enum { M = 130, N = 70 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, M * N), x = filled(type, M), y = filled(type, M);
    for (int t = 0; t < 2; t++) {
        CHECK(CALL(type, gemv, t ? CUBLAS_OP_T : CUBLAS_OP_N, M, N, alpha, P(a), M, P(x), 1, beta, P(y), 1));
        product(t, 0, t ? N : M, 1, t ? M : N, 0.5, a.host, M, x.host, M, 2, y.host);
        DO(same(&y));
        upload(&y);
    }
    DROP(&a, &x, &y);
    return 0;
}

static int gemv_complex(int type) {
    enum { M = 60, N = 40 };
    DO(begin());
    struct array a = filled(type, M * N), x = filled(type, M), y = filled(type, N);
    double one64[4] = {0.5, 0, 2, 0};
    float one32[4] = {0.5, 0, 2, 0};
    CHECK(type == C64 ? cublasZgemv(h, CUBLAS_OP_C, M, N, (void *)one64, P(a), M, P(x), 1, (void *)(one64 + 2), P(y), 1)
                      : cublasCgemv(h, CUBLAS_OP_C, M, N, (void *)one32, P(a), M, P(x), 1, (void *)(one32 + 2), P(y), 1));
    product(2, 0, N, 1, M, 0.5, a.host, M, x.host, M, 2, y.host);
    DO(same(&y));
    DROP(&a, &x, &y);
    return 0;
}

static int ger(int type) {
    enum { M = 65, N = 33 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, M * N), x = filled(type, M), y = filled(type, N);
    CHECK(CALL(type, ger, M, N, alpha, P(x), 1, P(y), 1, P(a), M));
    product(0, 1, M, N, 1, 0.5, x.host, M, y.host, N, 1, a.host);
    DO(same(&a));
    DROP(&a, &x, &y);
    return 0;
}

static int symv(int type) {
    enum { N = 100 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, N * N), x = filled(type, N), y = filled(type, N);
    CHECK(CALL(type, symv, CUBLAS_FILL_MODE_LOWER, N, alpha, P(a), N, P(x), 1, beta, P(y), 1));
    for (int i = 0; i < N; i++) {
        cplx sum = 0;
        for (int j = 0; j < N; j++) sum += symmetric(a.host, N, i, j) * x.host[j];
        y.host[i] = 0.5 * sum + 2 * y.host[i];
    }
    DO(same(&y));
    CHECK(CALL(type, syr, CUBLAS_FILL_MODE_LOWER, N, alpha, P(x), 1, P(a), N));
    for (int j = 0; j < N; j++)
        for (int i = j; i < N; i++) a.host[i + j * N] += 0.5 * x.host[i] * x.host[j];
    DO(same(&a));
    DROP(&a, &x, &y);
    return 0;
}

/* A triangular product, and the solution that reverses it. */
static int trmv_trsv(int type) {
    enum { N = 90 };
    DO(begin());
    struct array a = triangle(type, N), x = filled(type, N);
    cplx *was = malloc(sizeof(cplx) * N);
    memcpy(was, x.host, sizeof(cplx) * N);
    CHECK(CALL(type, trmv, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, N, P(a), N, P(x), 1));
    for (int i = 0; i < N; i++) {
        x.host[i] = 0;
        for (int j = 0; j <= i; j++) x.host[i] += a.host[i + j * N] * was[j];
    }
    DO(same(&x));
    CHECK(CALL(type, trsv, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, N, P(a), N, P(x), 1));
    memcpy(x.host, was, sizeof(cplx) * N);
    DO(same_to(&x, TOLERANCE[type], 10));
    DROP(&a, &x);
    return 0;
}

/* A band matrix, and a packed triangle. */
static int banded(int type) {
    enum { N = 80, LOW = 2, UP = 3, LD = LOW + UP + 1 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, LD * N), x = filled(type, N), y = filled(type, N), packed = filled(type, N * (N + 1) / 2);
    CHECK(CALL(type, gbmv, CUBLAS_OP_N, N, N, LOW, UP, alpha, P(a), LD, P(x), 1, beta, P(y), 1));
    for (int i = 0; i < N; i++) {
        cplx sum = 0;
        for (int j = i - LOW < 0 ? 0 : i - LOW; j <= i + UP && j < N; j++) sum += a.host[UP + i - j + j * LD] * x.host[j];
        y.host[i] = 0.5 * sum + 2 * y.host[i];
    }
    DO(same(&y));
    CHECK(CALL(type, spmv, CUBLAS_FILL_MODE_UPPER, N, alpha, P(packed), P(x), 1, beta, P(y), 1));
    for (int i = 0; i < N; i++) {
        cplx sum = 0;
        for (int j = 0; j < N; j++) {
            int row = i < j ? i : j, column = i < j ? j : i;
            sum += packed.host[row + column * (column + 1) / 2] * x.host[j];
        }
        y.host[i] = 0.5 * sum + 2 * y.host[i];
    }
    DO(same(&y));
    DROP(&a, &x, &y, &packed);
    return 0;
}

static int gemm(int type) {
    static const int SHAPES[][3] = {{33, 17, 50}, {64, 64, 64}, {128, 100, 200}, {1, 70, 30}};
    DO(begin());
    FACTORS;
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
        for (int t = 0; t < 4; t++) {
            int m = SHAPES[s][0], n = SHAPES[s][1], k = SHAPES[s][2], ta = t & 1, tb = t >> 1, lda = ta ? k : m, ldb = tb ? n : k;
            struct array a = filled(type, (size_t)m * k), b = filled(type, (size_t)k * n), c = filled(type, (size_t)m * n);
            CHECK(CALL(type, gemm, ta, tb, m, n, k, alpha, P(a), lda, P(b), ldb, beta, P(c), m));
            product(ta, tb, m, n, k, 0.5, a.host, lda, b.host, ldb, 2, c.host);
            DO(same(&c));
            DROP(&a, &b, &c);
        }
    return 0;
}

static int gemm_large(int type) {
    enum { N = 384 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, N * N), b = filled(type, N * N), c = filled(type, N * N);
    CHECK(CALL(type, gemm, 0, 0, N, N, N, alpha, P(a), N, P(b), N, beta, P(c), N));
    product(0, 0, N, N, N, 0.5, a.host, N, b.host, N, 2, c.host);
    DO(same(&c));
    DROP(&a, &b, &c);
    return 0;
}

static int gemm_complex(int type) {
    enum { M = 40, N = 50, K = 60 };
    DO(begin());
    double f64[4] = {0.5, 0, 2, 0};
    float f32[4] = {0.5, 0, 2, 0};
    struct array a = filled(type, M * K), b = filled(type, K * N), c = filled(type, M * N);
    CHECK(type == C64 ? cublasZgemm(h, CUBLAS_OP_C, 0, M, N, K, (void *)f64, P(a), K, P(b), K, (void *)(f64 + 2), P(c), M)
                      : cublasCgemm(h, CUBLAS_OP_C, 0, M, N, K, (void *)f32, P(a), K, P(b), K, (void *)(f32 + 2), P(c), M));
    product(2, 0, M, N, K, 0.5, a.host, K, b.host, K, 2, c.host);
    DO(same(&c));
    DROP(&a, &b, &c);
    return 0;
}

/* a and b have `type`, c has `to`. */
static int ex(enum type type, enum type to, cublasComputeType_t compute, double tolerance) {
    enum { M = 64, N = 96, K = 128 };
    DO(begin());
    int whole = compute == CUBLAS_COMPUTE_32I, half = compute == CUBLAS_COMPUTE_16F;
    float alpha32 = 0.5f, beta32 = 2;
    int alpha_int = 1, beta_int = 2;
    _Float16 alpha16 = (_Float16)0.5f, beta16 = 2;
    void *alpha = whole ? (void *)&alpha_int : half ? (void *)&alpha16 : &alpha32, *beta = whole ? (void *)&beta_int : half ? (void *)&beta16 : &beta32;
    struct array a = filled(type, M * K), b = filled(type, K * N), c = filled(to, M * N);
    CHECK(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, alpha, P(a), TYPE[type], K, P(b), TYPE[type], K, beta, P(c), TYPE[to], M, compute,
        CUBLAS_GEMM_DEFAULT));
    product(1, 0, M, N, K, whole ? 1 : 0.5, a.host, K, b.host, K, 2, c.host);
    DO(same_to(&c, tolerance, 16));
    DROP(&a, &b, &c);
    return 0;
}

static int gemm_ex(int which) {
    switch (which) {
    case 0: return ex(F16, F16, CUBLAS_COMPUTE_32F, 1e-3);
    case 1: return ex(F16, F32, CUBLAS_COMPUTE_32F, 1e-5);
    case 2: return ex(BF16, BF16, CUBLAS_COMPUTE_32F, 8e-3);
    case 3: return ex(BF16, F32, CUBLAS_COMPUTE_32F, 1e-5);
    case 4: return ex(I8, I32, CUBLAS_COMPUTE_32I, 0);
    case 5: return ex(F32, F32, CUBLAS_COMPUTE_32F_FAST_TF32, 3e-3);
    case 6: return ex(F16, F16, CUBLAS_COMPUTE_16F, 2e-2);
    default: return ex(F32, F32, CUBLAS_COMPUTE_32F_FAST_16BF, 2e-2);
    }
}

/* The header declares it for C++ only. */
cublasStatus_t cublasHgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *, const void *, int, const void *, int,
    const void *, void *, int);

static int hgemm(int type) {
    enum { M = 72, N = 40, K = 56 };
    DO(begin());
    _Float16 alpha, beta;
    put(F16, &alpha, 0, 0.5);
    put(F16, &beta, 0, 2);
    struct array a = filled(type, M * K), b = filled(type, K * N), c = filled(type, M * N);
    CHECK(cublasHgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &alpha, P(a), M, P(b), K, &beta, P(c), M));
    product(0, 0, M, N, K, 0.5, a.host, M, b.host, K, 2, c.host);
    DO(same_to(&c, 1e-2, 8));
    DROP(&a, &b, &c);
    return 0;
}

static int symm(int type) {
    enum { M = 48, N = 37 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, M * M), b = filled(type, M * N), c = filled(type, M * N);
    CHECK(CALL(type, symm, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, M, N, alpha, P(a), M, P(b), M, beta, P(c), M));
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++) {
            cplx sum = 0;
            for (int k = 0; k < M; k++) sum += symmetric(a.host, M, i, k) * b.host[k + j * M];
            c.host[i + j * M] = 0.5 * sum + 2 * c.host[i + j * M];
        }
    DO(same(&c));
    DROP(&a, &b, &c);
    return 0;
}

static int syrk(int type) {
    enum { N = 50, K = 70 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, N * K), b = filled(type, N * K), c = filled(type, N * N);
    for (int two = 0; two < 2; two++) {
        CHECK(two ? CALL(type, syr2k, CUBLAS_FILL_MODE_LOWER, 0, N, K, alpha, P(a), N, P(b), N, beta, P(c), N)
                  : CALL(type, syrk, CUBLAS_FILL_MODE_LOWER, 0, N, K, alpha, P(a), N, beta, P(c), N));
        for (int j = 0; j < N; j++)
            for (int i = j; i < N; i++) {
                cplx sum = 0;
                for (int k = 0; k < K; k++)
                    sum += two ? a.host[i + k * N] * b.host[j + k * N] + b.host[i + k * N] * a.host[j + k * N] : a.host[i + k * N] * a.host[j + k * N];
                c.host[i + j * N] = 0.5 * sum + 2 * c.host[i + j * N];
            }
        DO(same(&c));
        upload(&c);
    }
    DROP(&a, &b, &c);
    return 0;
}

/* c = a b for a lower triangle a, and back. */
static int trmm_trsm(int type) {
    enum { M = 70, N = 30 };
    DO(begin());
    double one64 = 1;
    float one32 = 1;
    void *one = type == F64 ? (void *)&one64 : &one32;
    struct array a = triangle(type, M), b = filled(type, M * N), c = zeros(type, M * N);
    CHECK(CALL(type, trmm, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, M, N, one, P(a), M, P(b), M, P(c), M));
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++)
            for (int k = 0; k <= i; k++) c.host[i + j * M] += a.host[i + k * M] * b.host[k + j * M];
    DO(same(&c));
    CHECK(CALL(type, trsm, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, M, N, one, P(a), M, P(c), M));
    memcpy(c.host, b.host, sizeof(cplx) * M * N);
    DO(same_to(&c, TOLERANCE[type], 10));
    DROP(&a, &b, &c);
    return 0;
}

/* Sums of transposes, and a diagonal matrix's product. */
static int geam_dgmm(int type) {
    enum { M = 31, N = 45 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, M * N), b = filled(type, M * N), c = zeros(type, M * N), x = filled(type, N);
    CHECK(CALL(type, geam, CUBLAS_OP_T, CUBLAS_OP_N, M, N, alpha, P(a), N, beta, P(b), M, P(c), M));
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++) c.host[i + j * M] = 0.5 * a.host[j + i * N] + 2 * b.host[i + j * M];
    DO(same(&c));
    CHECK(CALL(type, dgmm, CUBLAS_SIDE_RIGHT, M, N, P(b), M, P(x), 1, P(c), M));
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++) c.host[i + j * M] = b.host[i + j * M] * x.host[j];
    DO(same(&c));
    DROP(&a, &b, &c, &x);
    return 0;
}

/* The addresses of `count` consecutive matrices. */
static void **addresses(const struct array *a, size_t count) {
    void **here = malloc(count * sizeof *here), **there = 0;
    for (size_t i = 0; i < count; i++) here[i] = (char *)a->device + i * (a->len / count) * SIZE[a->type];
    if (cudaMalloc((void **)&there, count * sizeof *here) || cudaMemcpy(there, here, count * sizeof *here, cudaMemcpyHostToDevice)) abort();
    free(here);
    return there;
}

static int gemm_batched(int type) {
    enum { M = 20, N = 24, K = 28, B = 9 };
    DO(begin());
    FACTORS;
    struct array a = filled(type, M * K * B), b = filled(type, K * N * B), c = filled(type, M * N * B);
    for (int strided = 0; strided < 2; strided++) {
        CHECK(strided ? CALL(type, gemmStridedBatched, 0, 0, M, N, K, alpha, P(a), M, M * K, P(b), K, K * N, beta, P(c), M, M * N, B)
                      : CALL(type, gemmBatched, 0, 0, M, N, K, alpha, (void *)addresses(&a, B), M, (void *)addresses(&b, B), K, beta,
                            (void *)addresses(&c, B), M, B));
        for (int i = 0; i < B; i++) product(0, 0, M, N, K, 0.5, a.host + i * M * K, M, b.host + i * K * N, K, 2, c.host + i * M * N);
        DO(same(&c));
        upload(&c);
    }
    DROP(&a, &b, &c);
    return 0;
}

static int gemm_batched_ex(int type) {
    enum { M = 32, N = 48, K = 64, B = 5 };
    DO(begin());
    float alpha = 0.5, beta = 2;
    struct array a = filled(type, M * K * B), b = filled(type, K * N * B), c = filled(type, M * N * B);
    for (int strided = 0; strided < 2; strided++) {
        CHECK(strided ? cublasGemmStridedBatchedEx(h, 0, 0, M, N, K, &alpha, P(a), TYPE[type], M, M * K, P(b), TYPE[type], K, K * N, &beta, P(c),
                            TYPE[type], M, M * N, B, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)
                      : cublasGemmBatchedEx(h, 0, 0, M, N, K, &alpha, (void *)addresses(&a, B), TYPE[type], M, (void *)addresses(&b, B), TYPE[type], K,
                            &beta, (void *)addresses(&c, B), TYPE[type], M, B, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
        for (int i = 0; i < B; i++) product(0, 0, M, N, K, 0.5, a.host + i * M * K, M, b.host + i * K * N, K, 2, c.host + i * M * N);
        DO(same_to(&c, TOLERANCE[type] / 2, 16));
        upload(&c);
    }
    DROP(&a, &b, &c);
    return 0;
}

/* Factors, solutions and inverses of many small matrices. */
static int factors_batched(int type) {
    enum { N = 12, B = 7 };
    DO(begin());
    struct array a = filled(type, N * N * B), x = filled(type, N * B), inverse = zeros(type, N * N * B), pivots = zeros(I32, N * B), state = zeros(I32, B);
    for (int i = 0; i < B; i++)
        for (int k = 0; k < N; k++) a.host[i * N * N + k * N + k] += 6;
    upload(&a);
    cplx *was = malloc(sizeof(cplx) * N * B);
    memcpy(was, x.host, sizeof(cplx) * N * B);
    int info = 1;
    void *as = addresses(&a, B), *xs = addresses(&x, B), *out = addresses(&inverse, B);
    CHECK(CALL(type, matinvBatched, N, as, N, out, N, P(state), B));
    for (int i = 0; i < B; i++) product(0, 0, N, 1, N, 1, a.host + i * N * N, N, was + i * N, N, 0, x.host + i * N);
    upload(&x);
    CHECK(CALL(type, getrfBatched, N, as, N, P(pivots), P(state), B));
    DO(same(&state));
    CHECK(CALL(type, getrsBatched, CUBLAS_OP_N, N, 1, as, N, P(pivots), xs, N, &info, B));
    HOLDS(info == 0);
    memcpy(x.host, was, sizeof(cplx) * N * B);
    DO(same_to(&x, TOLERANCE[type] * 10, 1));
    cplx *computed = download(&inverse), unit[N * N] = {0};
    if (!computed) return 1;
    for (int i = 0; i < B; i++) {
        product(0, 0, N, N, N, 1, a.host + i * N * N, N, computed + i * N * N, N, 0, unit);
        for (int k = 0; k < N * N; k++) HOLDS(cabs(unit[k] - (k % (N + 1) == 0)) < TOLERANCE[type] * 100);
    }
    DROP(&a, &x, &inverse, &pivots, &state);
    return 0;
}

static int trsm_batched(int type) {
    enum { M = 24, N = 10, B = 4 };
    DO(begin());
    double one64 = 1;
    float one32 = 1;
    void *one = type == F64 ? (void *)&one64 : &one32;
    struct array a = zeros(type, M * M * B), b = filled(type, M * N * B);
    for (int i = 0; i < B; i++) {
        struct array t = triangle(type, M);
        memcpy(a.host + i * M * M, t.host, sizeof(cplx) * M * M);
        drop(&t);
    }
    upload(&a);
    cplx *was = malloc(sizeof(cplx) * b.len);
    memcpy(was, b.host, sizeof(cplx) * b.len);
    for (int i = 0; i < B; i++)
        for (int j = 0; j < N; j++)
            for (int r = 0; r < M; r++) {
                cplx sum = 0;
                for (int k = 0; k <= r; k++) sum += a.host[i * M * M + r + k * M] * was[i * M * N + k + j * M];
                b.host[i * M * N + r + j * M] = sum;
            }
    upload(&b);
    CHECK(CALL(type, trsmBatched, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, M, N, one, (void *)addresses(&a, B), M,
        (void *)addresses(&b, B), M, B));
    memcpy(b.host, was, sizeof(cplx) * b.len);
    DO(same_to(&b, TOLERANCE[type], 10));
    DROP(&a, &b);
    return 0;
}

/* A product on a separate stream with scalars on the device, captured and launched three times. */
static int graph(int type) {
    enum { N = 64 };
    DO(begin());
    struct array a = filled(type, N * N), b = filled(type, N * N), c = zeros(type, N * N), one = zeros(type, 1);
    one.host[0] = 1;
    upload(&one);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cublasSetStream(h, stream));
    CHECK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(CALL(type, gemm, 0, 0, N, N, N, P(one), P(a), N, P(b), N, P(one), P(c), N));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(cudaGraphLaunch(exec, stream));
        product(0, 0, N, N, N, 1, a.host, N, b.host, N, 1, c.host);
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_HOST));
    CHECK(cublasSetStream(h, 0));
    DO(same(&c));
    DROP(&a, &b, &c, &one);
    return 0;
}

#define BOTH(name) {#name "_f32", name, F32}, {#name "_f64", name, F64}
#define COMPLEX(name) {#name "_c32", name, C32}, {#name "_c64", name, C64}
static const struct test TESTS[] = {
    BOTH(level1), COMPLEX(level1_complex), {"level1_ex_f16", level1_ex, F16}, {"level1_ex_bf16", level1_ex, BF16},
    BOTH(gemv), COMPLEX(gemv_complex), BOTH(ger), BOTH(symv), BOTH(trmv_trsv), BOTH(banded),
    BOTH(gemm), BOTH(gemm_large), COMPLEX(gemm_complex), {"hgemm_f16", hgemm, F16},
    {"gemm_ex_f16", gemm_ex, 0}, {"gemm_ex_f16_to_f32", gemm_ex, 1}, {"gemm_ex_bf16", gemm_ex, 2}, {"gemm_ex_bf16_to_f32", gemm_ex, 3},
    {"gemm_ex_i8", gemm_ex, 4}, {"gemm_ex_tf32", gemm_ex, 5}, {"gemm_ex_f16_sums", gemm_ex, 6}, {"gemm_ex_f32_as_bf16", gemm_ex, 7},
    BOTH(symm), BOTH(syrk), BOTH(trmm_trsm), BOTH(geam_dgmm),
    BOTH(gemm_batched), {"gemm_batched_ex_f16", gemm_batched_ex, F16}, {"gemm_batched_ex_bf16", gemm_batched_ex, BF16},
    BOTH(factors_batched), BOTH(trsm_batched), BOTH(graph),
};
MAIN(TESTS)
