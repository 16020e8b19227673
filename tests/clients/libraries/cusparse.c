/* cuSPARSE: sparse matrices in three forms, their products with vectors, matrices and each other,
 * solutions, and conversions. */
#include "check.h"
#include <cusparse.h>

static cusparseHandle_t h;
static const cudaDataType TYPE[TYPES] = {CUDA_R_64F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_C_64F, CUDA_C_32F};
enum { M = 70, N = 50, MOST = M * N, ROOM = 8 << 20 };

/* A sparse matrix: dense on the host; both sparse forms, by rows, on the device. */
struct sparse {
    cplx dense[MOST];
    struct array row_start, row, column, value;
    int count;
    cusparseSpMatDescr_t csr, coo;
};
static void *room;
static size_t size;

static int begin(void) {
    if (h) return 0;
    CHECK(cusparseCreate(&h));
    CHECK(cudaMalloc(&room, ROOM));
    return 0;
}

#define P(a) ((a).device)
#define ONES(type) double one64[2] = {1}, two64[2] = {2}; float one32[2] = {1}, two32[2] = {2}; int wide = (type) == F64 || (type) == C64; \
    void *one = wide ? (void *)one64 : one32, *two = wide ? (void *)two64 : two32; (void)one, (void)two
static cudaDataType sums(enum type type) { return type == F16 || type == BF16 ? CUDA_R_32F : TYPE[type]; }

/* One value in four is non-zero; `lower`: a lower triangle with a large diagonal. */
static int made(struct sparse *s, enum type type, int rows, int columns, int lower) {
    int start[M + 1] = {0}, row[MOST], column[MOST];
    cplx value[MOST];
    s->count = 0;
    memset(s->dense, 0, sizeof s->dense);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            cplx x = is_complex(type) ? draw() + I * draw() : draw();
            int there = lower ? j == i || (j < i && draw() < -0.5) : draw() < -0.5;
            if (!there) continue;
            if (lower && i == j) x = 3 + cabs(x);
            row[s->count] = i;
            column[s->count] = j;
            value[s->count++] = x;
        }
        start[i + 1] = s->count;
    }
    s->row_start = ints(start, rows + 1);
    s->row = ints(row, s->count);
    s->column = ints(column, s->count);
    s->value = zeros(type, s->count);
    memcpy(s->value.host, value, sizeof(cplx) * s->count);
    upload(&s->value);
    for (int i = 0; i < s->count; i++) s->dense[row[i] * columns + column[i]] = s->value.host[i];
    CHECK(cusparseCreateCsr(&s->csr, rows, columns, s->count, P(s->row_start), P(s->column), P(s->value), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
        CUSPARSE_INDEX_BASE_ZERO, TYPE[type]));
    CHECK(cusparseCreateCoo(&s->coo, rows, columns, s->count, P(s->row), P(s->column), P(s->value), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
        TYPE[type]));
    return 0;
}

/* Sparse matrix by vector, plain and transposed, in both forms and with every algorithm. */
static int spmv(int type) {
    static const cusparseSpMVAlg_t CSR[] = {CUSPARSE_SPMV_ALG_DEFAULT, CUSPARSE_SPMV_CSR_ALG1, CUSPARSE_SPMV_CSR_ALG2};
    static const cusparseSpMVAlg_t COO[] = {CUSPARSE_SPMV_ALG_DEFAULT, CUSPARSE_SPMV_COO_ALG1, CUSPARSE_SPMV_COO_ALG2};
    static struct sparse s;
    DO(begin() || made(&s, type, M, N, 0));
    ONES(type);
    for (int way = 0; way < 12; way++) {
        int coo = way & 1, turned = way >> 1 & 1, algorithm = way >> 2;
        if (turned && algorithm == 2) continue;
        struct array x = filled(type, turned ? M : N), y = filled(type, turned ? N : M);
        cusparseDnVecDescr_t vx, vy;
        CHECK(cusparseCreateDnVec(&vx, x.len, P(x), TYPE[type]));
        CHECK(cusparseCreateDnVec(&vy, y.len, P(y), TYPE[type]));
        cusparseSpMatDescr_t a = coo ? s.coo : s.csr;
        cusparseSpMVAlg_t how = coo ? COO[algorithm] : CSR[algorithm];
        cusparseOperation_t op = turned ? CUSPARSE_OPERATION_TRANSPOSE : CUSPARSE_OPERATION_NON_TRANSPOSE;
        CHECK(cusparseSpMV_bufferSize(h, op, one, a, vx, two, vy, sums(type), how, &size));
        HOLDS(size <= ROOM);
        CHECK(cusparseSpMV(h, op, one, a, vx, two, vy, sums(type), how, room));
        for (int i = 0; i < (int)y.len; i++) {
            y.host[i] *= 2;
            for (int j = 0; j < (int)x.len; j++) y.host[i] += (turned ? s.dense[j * N + i] : s.dense[i * N + j]) * x.host[j];
        }
        DO(same(&y));
        DROP(&x, &y);
    }
    return 0;
}

/* Sparse matrix by matrix, by rows and by columns. */
static int spmm(int type) {
    enum { K = 24 };
    static struct sparse s;
    DO(begin() || made(&s, type, M, N, 0));
    ONES(type);
    for (int way = 0; way < 4; way++) {
        int rows = way & 1, coo = way >> 1;
        cusparseOrder_t order = rows ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL;
        struct array b = filled(type, N * K), c = filled(type, M * K);
        cusparseDnMatDescr_t mb, mc;
        CHECK(cusparseCreateDnMat(&mb, N, K, rows ? K : N, P(b), TYPE[type], order));
        CHECK(cusparseCreateDnMat(&mc, M, K, rows ? K : M, P(c), TYPE[type], order));
        cusparseSpMatDescr_t a = coo ? s.coo : s.csr;
        CHECK(cusparseSpMM_bufferSize(h, 0, 0, one, a, mb, two, mc, sums(type), CUSPARSE_SPMM_ALG_DEFAULT, &size));
        HOLDS(size <= ROOM);
        CHECK(cusparseSpMM(h, 0, 0, one, a, mb, two, mc, sums(type), CUSPARSE_SPMM_ALG_DEFAULT, room));
        for (int i = 0; i < M; i++)
            for (int j = 0; j < K; j++) {
                cplx sum = 0;
                for (int k = 0; k < N; k++) sum += s.dense[i * N + k] * b.host[rows ? k * K + j : k + j * N];
                cplx *to = &c.host[rows ? i * K + j : i + j * M];
                *to = sum + 2 * *to;
            }
        DO(same(&c));
        DROP(&b, &c);
    }
    return 0;
}

/* Checks a sparse matrix by rows on the device. */
static int holds(const struct array *start, const struct array *column, const struct array *value, const cplx *dense, int rows, int columns) {
    cplx *s = download(start), *c = download(column), *v = download(value), *got = calloc((size_t)rows * columns, sizeof *got);
    if (!s || !c || !v) return 1;
    for (int i = 0; i < rows; i++)
        for (int k = (int)s[i]; k < (int)s[i + 1]; k++) got[i * columns + (int)c[k]] += v[k];
    for (int i = 0; i < rows * columns; i++)
        if (!(cabs(got[i] - dense[i]) <= TOLERANCE[value->type] * 16)) {
            snprintf(why, sizeof why, "element %d is %.9g, wanted %.9g", i, creal(got[i]), creal(dense[i]));
            return 1;
        }
    return 0;
}

static int conversions(int type) {
    static struct sparse s;
    DO(begin() || made(&s, type, M, N, 0));
    struct array starts = zeros(I32, N + 1), rows = zeros(I32, s.count), values = zeros(type, s.count), turned = zeros(type, MOST);
    CHECK(cusparseCsr2cscEx2_bufferSize(h, M, N, s.count, P(s.value), P(s.row_start), P(s.column), P(values), P(starts), P(rows), TYPE[type],
        CUSPARSE_ACTION_NUMERIC, CUSPARSE_INDEX_BASE_ZERO, CUSPARSE_CSR2CSC_ALG_DEFAULT, &size));
    HOLDS(size <= ROOM);
    CHECK(cusparseCsr2cscEx2(h, M, N, s.count, P(s.value), P(s.row_start), P(s.column), P(values), P(starts), P(rows), TYPE[type], CUSPARSE_ACTION_NUMERIC,
        CUSPARSE_INDEX_BASE_ZERO, CUSPARSE_CSR2CSC_ALG_DEFAULT, room));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) turned.host[j * M + i] = s.dense[i * N + j];
    DO(holds(&starts, &rows, &values, turned.host, N, M));
    /* Row numbers to row starts, and back. */
    struct array back = zeros(I32, M + 1), numbers = zeros(I32, s.count);
    CHECK(cusparseXcoo2csr(h, P(s.row), s.count, M, P(back), CUSPARSE_INDEX_BASE_ZERO));
    memcpy(back.host, s.row_start.host, sizeof(cplx) * (M + 1));
    DO(same(&back));
    CHECK(cusparseXcsr2coo(h, P(back), s.count, M, P(numbers), CUSPARSE_INDEX_BASE_ZERO));
    memcpy(numbers.host, s.row.host, sizeof(cplx) * s.count);
    DO(same(&numbers));
    DROP(&starts, &rows, &values, &turned, &back, &numbers);
    return 0;
}

static int dense(int type) {
    static struct sparse s;
    DO(begin() || made(&s, type, M, N, 0));
    struct array d = zeros(type, MOST), start = zeros(I32, M + 1);
    cusparseDnMatDescr_t m;
    cusparseSpMatDescr_t a;
    CHECK(cusparseCreateDnMat(&m, M, N, N, P(d), TYPE[type], CUSPARSE_ORDER_ROW));
    CHECK(cusparseSparseToDense_bufferSize(h, s.csr, m, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, &size));
    CHECK(cusparseSparseToDense(h, s.csr, m, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, room));
    memcpy(d.host, s.dense, sizeof(cplx) * MOST);
    DO(same(&d));
    CHECK(cusparseCreateCsr(&a, M, N, 0, P(start), 0, 0, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, TYPE[type]));
    CHECK(cusparseDenseToSparse_bufferSize(h, m, a, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, &size));
    CHECK(cusparseDenseToSparse_analysis(h, m, a, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, room));
    int64_t rows, columns, count;
    CHECK(cusparseSpMatGetSize(a, &rows, &columns, &count));
    HOLDS(count == s.count);
    struct array column = zeros(I32, count), value = zeros(type, count);
    CHECK(cusparseCsrSetPointers(a, P(start), P(column), P(value)));
    CHECK(cusparseDenseToSparse_convert(h, m, a, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, room));
    return holds(&start, &column, &value, s.dense, M, N);
}

/* Sparse matrix by sparse matrix. */
static int spgemm(int type) {
    static struct sparse a, b;
    DO(begin() || made(&a, type, M, N, 0) || made(&b, type, N, M, 0));
    ONES(type);
    (void)two;
    double none[2] = {0};
    cusparseSpMatDescr_t c;
    cusparseSpGEMMDescr_t way;
    void *first, *second;
    struct array start = zeros(I32, M + 1);
    CHECK(cusparseCreateCsr(&c, M, M, 0, P(start), 0, 0, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, TYPE[type]));
    CHECK(cusparseSpGEMM_createDescr(&way));
    CHECK(cusparseSpGEMM_workEstimation(h, 0, 0, one, a.csr, b.csr, none, c, TYPE[type], CUSPARSE_SPGEMM_DEFAULT, way, &size, 0));
    CHECK(cudaMalloc(&first, size + 1));
    CHECK(cusparseSpGEMM_workEstimation(h, 0, 0, one, a.csr, b.csr, none, c, TYPE[type], CUSPARSE_SPGEMM_DEFAULT, way, &size, first));
    CHECK(cusparseSpGEMM_compute(h, 0, 0, one, a.csr, b.csr, none, c, TYPE[type], CUSPARSE_SPGEMM_DEFAULT, way, &size, 0));
    CHECK(cudaMalloc(&second, size + 1));
    CHECK(cusparseSpGEMM_compute(h, 0, 0, one, a.csr, b.csr, none, c, TYPE[type], CUSPARSE_SPGEMM_DEFAULT, way, &size, second));
    int64_t rows, columns, count;
    CHECK(cusparseSpMatGetSize(c, &rows, &columns, &count));
    struct array column = zeros(I32, count), value = zeros(type, count);
    CHECK(cusparseCsrSetPointers(c, P(start), P(column), P(value)));
    CHECK(cusparseSpGEMM_copy(h, 0, 0, one, a.csr, b.csr, none, c, TYPE[type], CUSPARSE_SPGEMM_DEFAULT, way));
    cplx *wanted = calloc(M * M, sizeof *wanted);
    for (int i = 0; i < M; i++)
        for (int k = 0; k < N; k++)
            for (int j = 0; j < M; j++) wanted[i * M + j] += a.dense[i * N + k] * b.dense[k * M + j];
    return holds(&start, &column, &value, wanted, M, M);
}

/* The solution of a lower triangle, for one right side and for several. */
static int solve(int type) {
    enum { K = 5 };
    static struct sparse s;
    DO(begin() || made(&s, type, N, N, 1));
    ONES(type);
    struct array b = filled(type, N * K), x = zeros(type, N * K);
    memcpy(x.host, b.host, sizeof(cplx) * b.len);
    for (int k = 0; k < K; k++)
        for (int i = 0; i < N; i++) {
            b.host[k * N + i] = 0;
            for (int j = 0; j <= i; j++) b.host[k * N + i] += s.dense[i * N + j] * x.host[k * N + j];
        }
    upload(&b);
    cusparseFillMode_t fill = CUSPARSE_FILL_MODE_LOWER;
    cusparseDiagType_t diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
    CHECK(cusparseSpMatSetAttribute(s.csr, CUSPARSE_SPMAT_FILL_MODE, &fill, sizeof fill));
    CHECK(cusparseSpMatSetAttribute(s.csr, CUSPARSE_SPMAT_DIAG_TYPE, &diagonal, sizeof diagonal));
    cusparseSpSVDescr_t way;
    cusparseDnVecDescr_t vb, vx;
    CHECK(cusparseCreateDnVec(&vb, N, P(b), TYPE[type]));
    CHECK(cusparseCreateDnVec(&vx, N, P(x), TYPE[type]));
    CHECK(cusparseSpSV_createDescr(&way));
    CHECK(cusparseSpSV_bufferSize(h, 0, one, s.csr, vb, vx, TYPE[type], CUSPARSE_SPSV_ALG_DEFAULT, way, &size));
    HOLDS(size <= ROOM);
    CHECK(cusparseSpSV_analysis(h, 0, one, s.csr, vb, vx, TYPE[type], CUSPARSE_SPSV_ALG_DEFAULT, way, room));
    CHECK(cusparseSpSV_solve(h, 0, one, s.csr, vb, vx, TYPE[type], CUSPARSE_SPSV_ALG_DEFAULT, way));
    struct array first = x;
    first.len = N;
    DO(same_to(&first, TOLERANCE[type] * 10, 1));
    cusparseSpSMDescr_t many;
    cusparseDnMatDescr_t mb, mx;
    CHECK(cusparseCreateDnMat(&mb, N, K, N, P(b), TYPE[type], CUSPARSE_ORDER_COL));
    CHECK(cusparseCreateDnMat(&mx, N, K, N, P(x), TYPE[type], CUSPARSE_ORDER_COL));
    CHECK(cusparseSpSM_createDescr(&many));
    CHECK(cusparseSpSM_bufferSize(h, 0, 0, one, s.csr, mb, mx, TYPE[type], CUSPARSE_SPSM_ALG_DEFAULT, many, &size));
    HOLDS(size <= ROOM);
    CHECK(cusparseSpSM_analysis(h, 0, 0, one, s.csr, mb, mx, TYPE[type], CUSPARSE_SPSM_ALG_DEFAULT, many, room));
    CHECK(cusparseSpSM_solve(h, 0, 0, one, s.csr, mb, mx, TYPE[type], CUSPARSE_SPSM_ALG_DEFAULT, many));
    return same_to(&x, TOLERANCE[type] * 10, 1);
}

/* A product of dense matrices at the positions of a sparse matrix. */
static int sddmm(int type) {
    enum { K = 30 };
    static struct sparse s;
    DO(begin() || made(&s, type, M, N, 0));
    ONES(type);
    struct array a = filled(type, M * K), b = filled(type, K * N);
    cusparseDnMatDescr_t ma, mb;
    CHECK(cusparseCreateDnMat(&ma, M, K, K, P(a), TYPE[type], CUSPARSE_ORDER_ROW));
    CHECK(cusparseCreateDnMat(&mb, K, N, N, P(b), TYPE[type], CUSPARSE_ORDER_ROW));
    CHECK(cusparseSDDMM_bufferSize(h, 0, 0, one, ma, mb, two, s.csr, TYPE[type], CUSPARSE_SDDMM_ALG_DEFAULT, &size));
    HOLDS(size <= ROOM);
    CHECK(cusparseSDDMM_preprocess(h, 0, 0, one, ma, mb, two, s.csr, TYPE[type], CUSPARSE_SDDMM_ALG_DEFAULT, room));
    CHECK(cusparseSDDMM(h, 0, 0, one, ma, mb, two, s.csr, TYPE[type], CUSPARSE_SDDMM_ALG_DEFAULT, room));
    for (int e = 0; e < s.count; e++) {
        s.value.host[e] *= 2;
        for (int k = 0; k < K; k++) s.value.host[e] += a.host[(int)s.row.host[e] * K + k] * b.host[k * N + (int)s.column.host[e]];
    }
    return same(&s.value);
}

/* Sparse vectors: gathered, scattered, added and multiplied. */
static int vectors(int type) {
    enum { COUNT = 20 };
    DO(begin());
    ONES(type);
    int index[COUNT];
    for (int i = 0; i < COUNT; i++) index[i] = i * 3 + 1;
    struct array at = ints(index, COUNT), x = filled(type, COUNT), y = filled(type, M);
    cusparseSpVecDescr_t sx;
    cusparseDnVecDescr_t vy;
    CHECK(cusparseCreateSpVec(&sx, M, COUNT, P(at), P(x), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, TYPE[type]));
    CHECK(cusparseCreateDnVec(&vy, M, P(y), TYPE[type]));
    CHECK(cusparseAxpby(h, one, sx, two, vy));
    for (int i = 0; i < M; i++) y.host[i] *= 2;
    for (int i = 0; i < COUNT; i++) y.host[index[i]] += x.host[i];
    DO(same(&y));
    CHECK(cusparseGather(h, vy, sx));
    for (int i = 0; i < COUNT; i++) x.host[i] = y.host[index[i]];
    DO(same(&x));
    CHECK(cudaMemset(P(y), 0, M * SIZE[type]));
    memset(y.host, 0, sizeof(cplx) * M);
    CHECK(cusparseScatter(h, sx, vy));
    for (int i = 0; i < COUNT; i++) y.host[index[i]] = x.host[i];
    return same(&y);
}

#define BOTH(name) {#name "_f32", name, F32}, {#name "_f64", name, F64}
#define ALL(name) BOTH(name), {#name "_c32", name, C32}, {#name "_c64", name, C64}
static const struct test TESTS[] = {
    ALL(spmv), {"spmv_f16", spmv, F16}, ALL(spmm), {"spmm_f16", spmm, F16}, {"spmm_bf16", spmm, BF16}, ALL(conversions), BOTH(dense), BOTH(spgemm),
    BOTH(solve), {"solve_c64", solve, C64}, BOTH(sddmm), BOTH(vectors),
};
MAIN(TESTS)
