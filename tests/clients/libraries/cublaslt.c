/* cuBLASLt: the product of two matrices in every type, with epilogues, orders and batches. */
#include "check.h"
#include <cublasLt.h>

static cublasLtHandle_t h;
static const cudaDataType TYPE[TYPES] = {CUDA_R_64F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_C_64F, CUDA_C_32F, CUDA_R_8I, CUDA_R_32I,
    CUDA_R_8F_E4M3};

/* Properties of a product. */
struct form {
    enum type in, out;
    cublasComputeType_t compute;
    cudaDataType scale;
    cublasLtEpilogue_t epilogue;
    int rows, batch;
    double tolerance;
};

static const struct form FORMS[] = {
    {F32, F32, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 1e-5},
    {F64, F64, CUBLAS_COMPUTE_64F, CUDA_R_64F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 1e-12},
    {F16, F16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 2e-3},
    {BF16, BF16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 1e-2},
    {F32, F32, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 3e-3},
    {I8, I32, CUBLAS_COMPUTE_32I, CUDA_R_32I, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 0},
    {F32, F32, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_RELU_BIAS, 0, 1, 1e-5},
    {F16, F16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_RELU_BIAS, 0, 1, 2e-3},
    {F16, F16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_GELU, 0, 1, 2e-3},
    {BF16, BF16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_BIAS, 0, 1, 1e-2},
    {F32, F32, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1, 1, 1e-5},
    {F16, F16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 4, 2e-3},
    {C32, C32, CUBLAS_COMPUTE_32F, CUDA_C_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 1e-5},
    {F8, F32, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 1e-5},
    {F8, F16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 2e-3},
    {F8, BF16, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0, 1, 1e-2},
};

static double after(cublasLtEpilogue_t epilogue, double x, double bias) {
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS: return x + bias;
    case CUBLASLT_EPILOGUE_RELU_BIAS: return fmax(x + bias, 0);
    case CUBLASLT_EPILOGUE_GELU: return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    default: return x;
    }
}

static int layout(cublasLtMatrixLayout_t *to, cudaDataType type, int rows, int columns, int by_rows, int batch) {
    cublasLtOrder_t order = by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    int64_t stride = (int64_t)rows * columns;
    CHECK(cublasLtMatrixLayoutCreate(to, type, rows, columns, by_rows ? columns : rows));
    CHECK(cublasLtMatrixLayoutSetAttribute(*to, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
    CHECK(cublasLtMatrixLayoutSetAttribute(*to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    CHECK(cublasLtMatrixLayoutSetAttribute(*to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    return 0;
}

/* d = epilogue(alpha a^T b + beta c), in cuBLASLt's form for narrow types: the first matrix is
 * transposed. */
static int matmul(int which) {
    enum { M = 96, N = 64, K = 128 };
    struct form f = FORMS[which];
    int b = f.batch, whole = f.in == I8;
    if (!h) CHECK(cublasLtCreate(&h));
    struct array x = filled(f.in, M * K * b), y = filled(f.in, K * N * b), c = filled(f.out, M * N * b), bias = filled(f.out, M);
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t lx, ly, lc;
    cublasOperation_t transposed = f.rows ? CUBLAS_OP_N : CUBLAS_OP_T;
    CHECK(cublasLtMatmulDescCreate(&op, f.compute, f.scale));
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &f.epilogue, sizeof f.epilogue));
    if (f.epilogue != CUBLASLT_EPILOGUE_DEFAULT && f.epilogue != CUBLASLT_EPILOGUE_GELU)
        CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.device, sizeof bias.device));
    DO(f.rows ? layout(&lx, TYPE[f.in], M, K, 1, b) : layout(&lx, TYPE[f.in], K, M, 0, b));
    DO(layout(&ly, TYPE[f.in], K, N, f.rows, b));
    DO(layout(&lc, TYPE[f.out], M, N, f.rows, b));
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    size_t room = 4 << 20;
    int any = 0;
    void *workspace;
    CHECK(cudaMalloc(&workspace, room));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    CHECK(cublasLtMatmulAlgoGetHeuristic(h, op, lx, ly, lc, lc, preference, 1, &found, &any));
    HOLDS(any == 1);
    double alpha64[2] = {0.5}, beta64[2] = {2};
    float alpha32[2] = {0.5}, beta32[2] = {2};
    int one = 1, two = 2;
    void *alpha = whole ? (void *)&one : f.in == F64 ? (void *)alpha64 : alpha32, *beta = whole ? (void *)&two : f.in == F64 ? (void *)beta64 : beta32;
    CHECK(cublasLtMatmul(h, op, alpha, x.device, lx, y.device, ly, beta, c.device, lc, c.device, lc, &found.algo, workspace, room, 0));
    for (int i = 0; i < b; i++)
        for (int n = 0; n < N; n++)
            for (int m = 0; m < M; m++) {
                cplx sum = 0, *to = c.host + i * M * N + (f.rows ? m * N + n : m + n * M);
                for (int k = 0; k < K; k++) sum += x.host[i * M * K + m * K + k] * y.host[i * K * N + (f.rows ? k * N + n : k + n * K)];
                *to = (whole ? 1 : 0.5) * sum + 2 * *to;
                if (!is_complex(f.in)) *to = after(f.epilogue, creal(*to), creal(bias.host[m]));
            }
    DO(same_to(&c, f.tolerance, whole ? 1 : 16));
    DROP(&x, &y, &c, &bias);
    return 0;
}

static const struct test TESTS[] = {
    {"matmul_f32", matmul, 0}, {"matmul_f64", matmul, 1}, {"matmul_f16", matmul, 2}, {"matmul_bf16", matmul, 3}, {"matmul_tf32", matmul, 4},
    {"matmul_i8", matmul, 5}, {"matmul_f32_relu_bias", matmul, 6}, {"matmul_f16_relu_bias", matmul, 7}, {"matmul_f16_gelu", matmul, 8},
    {"matmul_bf16_bias", matmul, 9}, {"matmul_f32_rows", matmul, 10}, {"matmul_f16_batched", matmul, 11}, {"matmul_c32", matmul, 12},
    {"matmul_f8_to_f32", matmul, 13}, {"matmul_f8_to_f16", matmul, 14}, {"matmul_f8_to_bf16", matmul, 15},
};
MAIN(TESTS)
