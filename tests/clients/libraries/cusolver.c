/* cuSOLVER, dense: LU, Cholesky, QR, singular values and eigenvalues. Matrices are stored by
 * columns. Each factorisation is compared with the factored matrix. */
#include "check.h"
#include <cusolverDn.h>

static cusolverDnHandle_t h;
static int info;
static int *device_info;
static void *room;
static int len;

static int begin(void) {
    if (h) return 0;
    CHECK(cusolverDnCreate(&h));
    CHECK(cudaMalloc((void **)&device_info, sizeof info * 64));
    return 0;
}

#define CALL(type, name, ...) ((type) == F64 ? cusolverDnD##name(h, __VA_ARGS__) : cusolverDnS##name(h, __VA_ARGS__))
#define COMPLEX_CALL(type, name, ...) ((type) == C64 ? cusolverDnZ##name(h, __VA_ARGS__) : cusolverDnC##name(h, __VA_ARGS__))
#define P(a) ((void *)(a).device)
/* Allocates the required work space, and frees the earlier one. */
#define WITH_ROOM(type) do { \
        cudaFree(room); \
        CHECK(cudaMalloc(&room, (size_t)len * SIZE[type] + 16)); \
    } while (0)
#define SUCCEEDED do { \
        CHECK(cudaMemcpy(&info, device_info, sizeof info, cudaMemcpyDeviceToHost)); \
        HOLDS(info == 0); \
    } while (0)

/* a b, for matrices of n columns of a. */
static cplx *times(const cplx *a, const cplx *b, int m, int n, int columns) {
    cplx *c = calloc((size_t)m * columns, sizeof *c);
    for (int j = 0; j < columns; j++)
        for (int k = 0; k < n; k++)
            for (int i = 0; i < m; i++) c[i + j * m] += a[i + k * m] * b[k + j * n];
    return c;
}

static int near(const cplx *got, const cplx *want, int n, double tolerance) {
    for (int i = 0; i < n; i++)
        if (!(cabs(got[i] - want[i]) <= tolerance)) {
            snprintf(why, sizeof why, "element %d is %.9g%+.9gi, wanted %.9g%+.9gi", i, creal(got[i]), cimag(got[i]), creal(want[i]), cimag(want[i]));
            return 1;
        }
    return 0;
}

/* Checks that the n columns of length m have the length 1 and are orthogonal. */
static int is_orthonormal(const cplx *v, int m, int n, double tolerance) {
    for (int j = 0; j < n; j++)
        for (int k = 0; k <= j; k++) {
            cplx sum = 0, want = j == k;
            for (int i = 0; i < m; i++) sum += conj(v[i + j * m]) * v[i + k * m];
            DO(near(&sum, &want, 1, tolerance));
        }
    return 0;
}

/* A matrix with a large diagonal, and a Hermitian matrix. */
static struct array dominant(enum type type, int n) {
    struct array a = filled(type, (size_t)n * n);
    for (int i = 0; i < n; i++) a.host[i + i * n] += n;
    upload(&a);
    return a;
}

static struct array hermitian(enum type type, int n, double more) {
    struct array a = filled(type, (size_t)n * n);
    for (int j = 0; j < n; j++)
        for (int i = 0; i <= j; i++) a.host[j + i * n] = i == j ? creal(a.host[i + j * n]) + more : conj(a.host[i + j * n]);
    upload(&a);
    return a;
}

/* The right side b of a x = b: uploads the product of `a` and random values, and returns these
 * values. */
static struct array right_side(const struct array *a, int n, int columns, cplx **wanted) {
    struct array b = filled(a->type, (size_t)n * columns);
    *wanted = malloc(sizeof(cplx) * b.len);
    memcpy(*wanted, b.host, sizeof(cplx) * b.len);
    b.host = times(a->host, *wanted, n, n, columns);
    upload(&b);
    return b;
}

static int lu(int type) {
    enum { N = 75, B = 3 };
    DO(begin());
    cplx *wanted;
    struct array a = dominant(type, N), b = right_side(&a, N, B, &wanted), pivots = zeros(I32, N);
    CHECK(CALL(type, getrf_bufferSize, N, N, P(a), N, &len));
    WITH_ROOM(type);
    CHECK(CALL(type, getrf, N, N, P(a), N, room, P(pivots), device_info));
    SUCCEEDED;
    CHECK(CALL(type, getrs, CUBLAS_OP_N, N, B, P(a), N, P(pivots), P(b), N, device_info));
    SUCCEEDED;
    b.host = wanted;
    return same_to(&b, TOLERANCE[type] * 10, 1);
}

static int lu_complex(int type) {
    enum { N = 40, B = 2 };
    DO(begin());
    cplx *wanted;
    struct array a = dominant(type, N), b = right_side(&a, N, B, &wanted), pivots = zeros(I32, N);
    CHECK(COMPLEX_CALL(type, getrf_bufferSize, N, N, P(a), N, &len));
    WITH_ROOM(type);
    CHECK(COMPLEX_CALL(type, getrf, N, N, P(a), N, room, P(pivots), device_info));
    SUCCEEDED;
    CHECK(COMPLEX_CALL(type, getrs, CUBLAS_OP_N, N, B, P(a), N, P(pivots), P(b), N, device_info));
    b.host = wanted;
    return same_to(&b, TOLERANCE[type] * 10, 1);
}

static int cholesky(int type) {
    enum { N = 90, B = 2 };
    DO(begin());
    cplx *wanted;
    struct array a = hermitian(type, N, N), b = right_side(&a, N, B, &wanted);
    CHECK(CALL(type, potrf_bufferSize, CUBLAS_FILL_MODE_LOWER, N, P(a), N, &len));
    WITH_ROOM(type);
    CHECK(CALL(type, potrf, CUBLAS_FILL_MODE_LOWER, N, P(a), N, room, len, device_info));
    SUCCEEDED;
    CHECK(CALL(type, potrs, CUBLAS_FILL_MODE_LOWER, N, B, P(a), N, P(b), N, device_info));
    SUCCEEDED;
    b.host = wanted;
    DO(same_to(&b, TOLERANCE[type] * 10, 1));
    CHECK(CALL(type, potri_bufferSize, CUBLAS_FILL_MODE_LOWER, N, P(a), N, &len));
    WITH_ROOM(type);
    CHECK(CALL(type, potri, CUBLAS_FILL_MODE_LOWER, N, P(a), N, room, len, device_info));
    SUCCEEDED;
    cplx *inverse = download(&a), unit[N * N] = {0};
    if (!inverse) return 1;
    for (int j = 0; j < N; j++)
        for (int i = 0; i < j; i++) inverse[i + j * N] = inverse[j + i * N];
    for (int i = 0; i < N; i++) unit[i * (N + 1)] = 1;
    return near(times(a.host, inverse, N, N, N), unit, N * N, TOLERANCE[type] * 20);
}

/* Many small matrices at once. */
static int cholesky_batched(int type) {
    enum { N = 10, B = 6 };
    DO(begin());
    struct array a = zeros(type, N * N * B), x = zeros(type, N * B);
    cplx *wanted = malloc(sizeof(cplx) * N * B);
    void *as[B], *xs[B], **tables;
    for (int i = 0; i < B; i++) {
        cplx *one;
        struct array m = hermitian(type, N, N), b = right_side(&m, N, 1, &one);
        memcpy(a.host + i * N * N, m.host, sizeof(cplx) * N * N);
        memcpy(x.host + i * N, b.host, sizeof(cplx) * N);
        memcpy(wanted + i * N, one, sizeof(cplx) * N);
        as[i] = (char *)a.device + i * N * N * SIZE[type];
        xs[i] = (char *)x.device + i * N * SIZE[type];
    }
    upload(&a);
    upload(&x);
    CHECK(cudaMalloc((void **)&tables, sizeof as * 2));
    CHECK(cudaMemcpy(tables, as, sizeof as, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(tables + B, xs, sizeof xs, cudaMemcpyHostToDevice));
    CHECK(CALL(type, potrfBatched, CUBLAS_FILL_MODE_LOWER, N, (void *)tables, N, device_info, B));
    CHECK(CALL(type, potrsBatched, CUBLAS_FILL_MODE_LOWER, N, 1, (void *)tables, N, (void *)(tables + B), N, device_info, B));
    x.host = wanted;
    return same_to(&x, TOLERANCE[type] * 10, 1);
}

static int qr(int type) {
    enum { M = 80, N = 50 };
    DO(begin());
    struct array a = filled(type, M * N), tau = zeros(type, N);
    CHECK(CALL(type, geqrf_bufferSize, M, N, P(a), M, &len));
    WITH_ROOM(type);
    CHECK(CALL(type, geqrf, M, N, P(a), M, P(tau), room, len, device_info));
    SUCCEEDED;
    cplx *r = download(&a);
    if (!r) return 1;
    for (int j = 0; j < N; j++)
        for (int i = 0; i < N; i++) r[i + j * N] = i <= j ? r[i + j * M] : 0;
    struct array c = filled(type, M * 2);
    CHECK(CALL(type, ormqr_bufferSize, CUBLAS_SIDE_LEFT, CUBLAS_OP_T, M, 2, N, P(a), M, P(tau), P(c), M, &len));
    WITH_ROOM(type);
    CHECK(CALL(type, ormqr, CUBLAS_SIDE_LEFT, CUBLAS_OP_T, M, 2, N, P(a), M, P(tau), P(c), M, room, len, device_info));
    SUCCEEDED;
    CHECK(CALL(type, orgqr_bufferSize, M, N, N, P(a), M, P(tau), &len));
    WITH_ROOM(type);
    CHECK(CALL(type, orgqr, M, N, N, P(a), M, P(tau), room, len, device_info));
    SUCCEEDED;
    cplx *q = download(&a), *turned = download(&c);
    if (!q || !turned) return 1;
    DO(near(times(q, r, M, N, N), a.host, M * N, TOLERANCE[type] * 20));
    DO(is_orthonormal(q, M, N, TOLERANCE[type] * 20));
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < N; i++) {
            cplx sum = 0;
            for (int k = 0; k < M; k++) sum += q[k + i * M] * c.host[k + j * M];
            DO(near(&turned[i + j * M], &sum, 1, TOLERANCE[type] * 20));
        }
    return 0;
}

/* Checks that u s v^T equals a, and that u and v have orthonormal columns. */
static int is_product(const struct array *a, struct array *u, struct array *s, struct array *v, int m, int n, int v_transposed) {
    cplx *left = download(u), *values = download(s), *right = download(v);
    if (!left || !values || !right) return 1;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            cplx sum = 0;
            for (int k = 0; k < n; k++) sum += left[i + k * m] * values[k] * (v_transposed ? right[k + j * n] : conj(right[j + k * n]));
            DO(near(&sum, &a->host[i + j * m], 1, TOLERANCE[a->type] * 50));
        }
    for (int k = 0; k + 1 < n; k++) HOLDS(creal(values[k]) >= creal(values[k + 1]));
    return is_orthonormal(left, m, n, TOLERANCE[a->type] * 50) || is_orthonormal(right, n, n, TOLERANCE[a->type] * 50);
}

static int svd(int type) {
    enum { M = 45, N = 30 };
    DO(begin());
    struct array a = filled(type, M * N), u = zeros(type, M * N), s = zeros(type, N), v = zeros(type, N * N);
    CHECK(CALL(type, gesvd_bufferSize, M, N, &len));
    WITH_ROOM(type);
    CHECK(CALL(type, gesvd, 'S', 'S', M, N, P(a), M, P(s), P(u), M, P(v), N, room, len, 0, device_info));
    SUCCEEDED;
    return is_product(&a, &u, &s, &v, M, N, 1);
}

static int svd_jacobi(int type) {
    enum { M = 40, N = 24 };
    DO(begin());
    struct array a = filled(type, M * N), u = zeros(type, M * N), s = zeros(type, N), v = zeros(type, N * N);
    gesvdjInfo_t parameters;
    CHECK(cusolverDnCreateGesvdjInfo(&parameters));
    CHECK(CALL(type, gesvdj_bufferSize, CUSOLVER_EIG_MODE_VECTOR, 1, M, N, P(a), M, P(s), P(u), M, P(v), N, &len, parameters));
    WITH_ROOM(type);
    CHECK(CALL(type, gesvdj, CUSOLVER_EIG_MODE_VECTOR, 1, M, N, P(a), M, P(s), P(u), M, P(v), N, room, len, device_info, parameters));
    SUCCEEDED;
    return is_product(&a, &u, &s, &v, M, N, 0);
}

/* Checks that a v equals v times the eigenvalues, that v has orthonormal columns, and that the sum of
 * the eigenvalues is the trace. */
static int is_decomposed(const struct array *a, struct array *vectors, struct array *values, int n) {
    cplx *v = download(vectors), *w = download(values);
    if (!v || !w) return 1;
    DO(is_orthonormal(v, n, n, TOLERANCE[a->type] * 50));
    cplx *product = times(a->host, v, n, n, n), sum = 0, trace = 0;
    for (int j = 0; j < n; j++) {
        sum += w[j];
        trace += a->host[j * (n + 1)];
        for (int i = 0; i < n; i++) v[i + j * n] *= w[j];
    }
    DO(near(&sum, &trace, 1, TOLERANCE[a->type] * 50));
    for (int k = 0; k + 1 < n; k++) HOLDS(creal(w[k]) <= creal(w[k + 1]));
    return near(product, v, n * n, TOLERANCE[a->type] * 50);
}

static int eigen(int type) {
    enum { N = 50 };
    DO(begin());
    struct array a = hermitian(type, N, 0), w = zeros(type, N);
    CHECK(CALL(type, syevd_bufferSize, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, P(a), N, P(w), &len));
    WITH_ROOM(type);
    CHECK(CALL(type, syevd, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, P(a), N, P(w), room, len, device_info));
    SUCCEEDED;
    return is_decomposed(&a, &a, &w, N);
}

static int eigen_jacobi(int type) {
    enum { N = 40 };
    DO(begin());
    struct array a = hermitian(type, N, 0), w = zeros(type, N);
    syevjInfo_t parameters;
    CHECK(cusolverDnCreateSyevjInfo(&parameters));
    CHECK(CALL(type, syevj_bufferSize, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, P(a), N, P(w), &len, parameters));
    WITH_ROOM(type);
    CHECK(CALL(type, syevj, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, P(a), N, P(w), room, len, device_info, parameters));
    SUCCEEDED;
    return is_decomposed(&a, &a, &w, N);
}

static int eigen_complex(int type) {
    enum { N = 32 };
    DO(begin());
    struct array a = hermitian(type, N, 0), w = zeros(type == C64 ? F64 : F32, N);
    CHECK(COMPLEX_CALL(type, heevd_bufferSize, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, P(a), N, P(w), &len));
    WITH_ROOM(type);
    CHECK(COMPLEX_CALL(type, heevd, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, P(a), N, P(w), room, len, device_info));
    SUCCEEDED;
    return is_decomposed(&a, &a, &w, N);
}

/* Makes eigenvectors of columns. A real value has one column. A pair of conjugate values has two, x
 * and y, and the eigenvectors x + iy and x - iy. */
static int complex_columns(cplx *vectors, const cplx *values, int n, double tolerance) {
    for (int j = 0; j < n; j++) {
        cplx *x = vectors + j * n, *y = x + n, value = conj(values[j]);
        if (cimag(values[j]) != 0) {
            HOLDS(j + 1 < n);
            DO(near(&values[j + 1], &value, 1, tolerance));
            for (int i = 0; i < n; i++) {
                cplx real = x[i], imaginary = I * y[i];
                x[i] = real + imaginary;
                y[i] = real - imaginary;
            }
            j++;
        }
        double length = 0;
        for (int i = 0; i < n; i++) length += creal(conj(x[i]) * x[i]);
        /* The library makes the length 1; here only zero vectors are refused. */
        HOLDS(length > 0.5 && length < 2);
    }
    return 0;
}

/* The functions for any type: LU, and eigenvalues of a matrix that is not symmetric. */
static int any_type(int type) {
    enum { N = 40 };
    DO(begin());
    cudaDataType t = type == F64 ? CUDA_R_64F : CUDA_R_32F;
    cusolverDnParams_t parameters;
    size_t there = 0, here = 0;
    int64_t *pivots;
    cplx *wanted;
    struct array a = dominant(type, N), b = right_side(&a, N, 1, &wanted);
    CHECK(cudaMalloc((void **)&pivots, N * 8));
    CHECK(cusolverDnCreateParams(&parameters));
    CHECK(cusolverDnXgetrf_bufferSize(h, parameters, N, N, t, P(a), N, t, &there, &here));
    void *mine = malloc(here + 1);
    CHECK(cudaMalloc(&room, there + 1));
    CHECK(cusolverDnXgetrf(h, parameters, N, N, t, P(a), N, pivots, t, room, there, mine, here, device_info));
    SUCCEEDED;
    CHECK(cusolverDnXgetrs(h, parameters, CUBLAS_OP_N, N, 1, t, P(a), N, pivots, t, P(b), N, device_info));
    SUCCEEDED;
    b.host = wanted;
    DO(same_to(&b, TOLERANCE[type] * 10, 1));
    struct array m = filled(type, N * N), w = zeros(type == F64 ? C64 : C32, N), v = zeros(type, N * N);
    CHECK(cusolverDnXgeev_bufferSize(h, parameters, CUSOLVER_EIG_MODE_NOVECTOR, CUSOLVER_EIG_MODE_VECTOR, N, t, P(m), N, t == CUDA_R_64F ? CUDA_C_64F : CUDA_C_32F,
        P(w), t, 0, N, t, P(v), N, t, &there, &here));
    CHECK(cudaMalloc(&room, there + 1));
    mine = malloc(here + 1);
    CHECK(cusolverDnXgeev(h, parameters, CUSOLVER_EIG_MODE_NOVECTOR, CUSOLVER_EIG_MODE_VECTOR, N, t, P(m), N, t == CUDA_R_64F ? CUDA_C_64F : CUDA_C_32F, P(w), t,
        0, N, t, P(v), N, t, room, there, mine, here, device_info));
    SUCCEEDED;
    cplx *values = download(&w), *vectors = download(&v), sum = 0, trace = 0;
    if (!values || !vectors) return 1;
    DO(complex_columns(vectors, values, N, TOLERANCE[type] * 100));
    cplx *product = times(m.host, vectors, N, N, N);
    for (int j = 0; j < N; j++) {
        sum += values[j];
        trace += m.host[j * (N + 1)];
        for (int i = 0; i < N; i++) vectors[i + j * N] *= values[j];
    }
    DO(near(&sum, &trace, 1, TOLERANCE[type] * 100));
    return near(product, vectors, N * N, TOLERANCE[type] * 100);
}

#define BOTH(name) {#name "_f32", name, F32}, {#name "_f64", name, F64}
#define COMPLEX(name) {#name "_c32", name, C32}, {#name "_c64", name, C64}
static const struct test TESTS[] = {
    BOTH(lu), COMPLEX(lu_complex), BOTH(cholesky), BOTH(cholesky_batched), BOTH(qr), BOTH(svd), BOTH(svd_jacobi), BOTH(eigen), BOTH(eigen_jacobi),
    COMPLEX(eigen_complex), BOTH(any_type),
};
MAIN(TESTS)
