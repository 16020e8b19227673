/* cuDNN: convolutions by functions of the C API and by graphs, attention, and other layers. Arrays
 * are NCHW or NHWC. */
#include <stdbool.h>

#include "check.h"
#include <cudnn.h>
#include <cudnn_backend.h>

static cudnnHandle_t h;
static void *room;
enum { ROOM = 64 << 20 };

static int begin(void) {
    if (h) return 0;
    CHECK(cudnnCreate(&h));
    CHECK(cudaMalloc(&room, ROOM));
    return 0;
}

#define P(a) ((a).device)
static cudnnDataType_t data_type(enum type type) {
    switch (type) {
    case F64: return CUDNN_DATA_DOUBLE;
    case F16: return CUDNN_DATA_HALF;
    case BF16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
    }
}

/* 1 and 0 in the type of the sums. */
#define ONE_ZERO(type) double one64 = 1, zero64 = 0; float one32 = 1, zero32 = 0; \
    void *one = (type) == F64 ? (void *)&one64 : &one32, *zero = (type) == F64 ? (void *)&zero64 : &zero32; (void)one, (void)zero

/* Images of N x C, K filters of R x R, with a border of zeros and a stride. */
enum { N = 2, C = 16, H = 14, K = 24, R = 3, PAD = 1, STRIDE = 2, Q = (H + 2 * PAD - R) / STRIDE + 1 };

/* The index of an element in a 4-D array. */
static size_t at(int nhwc, int channels, int side, int n, int c, int y, int x) {
    return nhwc ? (((size_t)n * side + y) * side + x) * channels + c : (((size_t)n * channels + c) * side + y) * side + x;
}

/* Runs `body` with the three indices of each product of the convolution. */
#define EACH_PRODUCT(nhwc, body) do { \
        for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) for (int p = 0; p < Q; p++) for (int q = 0; q < Q; q++) \
            for (int d = 0; d < C; d++) for (int r = 0; r < R; r++) for (int s = 0; s < R; s++) { \
                int i = p * STRIDE - PAD + r, j = q * STRIDE - PAD + s; \
                if (i < 0 || j < 0 || i >= H || j >= H) continue; \
                size_t in = at(nhwc, C, H, n, d, i, j), filter = at(nhwc, C, R, k, d, r, s), out = at(nhwc, K, Q, n, k, p, q); \
                body; \
            } \
    } while (0)

struct convolution {
    struct array x, w, y;
    cudnnTensorDescriptor_t dx, dy;
    cudnnFilterDescriptor_t dw;
    cudnnConvolutionDescriptor_t how;
};

static int prepare(struct convolution *c, enum type type, int nhwc) {
    cudnnTensorFormat_t format = nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    DO(begin());
    c->x = filled(type, N * C * H * H);
    c->w = filled(type, K * C * R * R);
    c->y = filled(type, N * K * Q * Q);
    CHECK(cudnnCreateTensorDescriptor(&c->dx));
    CHECK(cudnnCreateTensorDescriptor(&c->dy));
    CHECK(cudnnCreateFilterDescriptor(&c->dw));
    CHECK(cudnnCreateConvolutionDescriptor(&c->how));
    CHECK(cudnnSetTensor4dDescriptor(c->dx, format, data_type(type), N, C, H, H));
    CHECK(cudnnSetTensor4dDescriptor(c->dy, format, data_type(type), N, K, Q, Q));
    CHECK(cudnnSetFilter4dDescriptor(c->dw, data_type(type), format, K, C, R, R));
    CHECK(cudnnSetConvolution2dDescriptor(c->how, PAD, PAD, STRIDE, STRIDE, 1, 1, CUDNN_CROSS_CORRELATION, type == F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
    if (type == F16 || type == BF16) CHECK(cudnnSetConvolutionMathType(c->how, CUDNN_TENSOR_OP_MATH));
    return 0;
}

static double tolerance(enum type type) { return type == F64 ? 1e-11 : type == F32 ? 2e-4 : type == F16 ? 3e-2 : 2e-1; }

static int forward(int type) {
    struct convolution c;
    ONE_ZERO(type);
    DO(prepare(&c, type & 7, type >> 3));
    cudnnConvolutionFwdAlgoPerf_t best;
    int found;
    CHECK(cudnnGetConvolutionForwardAlgorithm_v7(h, c.dx, c.dw, c.how, c.dy, 1, &found, &best));
    HOLDS(found == 1 && best.memory <= ROOM);
    CHECK(cudnnConvolutionForward(h, one, c.dx, P(c.x), c.dw, P(c.w), c.how, best.algo, room, ROOM, zero, c.dy, P(c.y)));
    memset(c.y.host, 0, c.y.len * sizeof(cplx));
    EACH_PRODUCT(type >> 3, c.y.host[out] += c.x.host[in] * c.w.host[filter]);
    return same_to(&c.y, tolerance(type & 7), 1);
}

/* Every algorithm that the library offers for these sizes. */
static int forward_all(int type) {
    struct convolution c;
    ONE_ZERO(type);
    DO(prepare(&c, type, 0));
    memset(c.y.host, 0, c.y.len * sizeof(cplx));
    EACH_PRODUCT(0, c.y.host[out] += c.x.host[in] * c.w.host[filter]);
    cudnnConvolutionFwdAlgoPerf_t all[8];
    int found, computed = 0;
    CHECK(cudnnGetConvolutionForwardAlgorithm_v7(h, c.dx, c.dw, c.how, c.dy, 8, &found, all));
    for (int i = 0; i < found; i++) {
        if (all[i].status || all[i].memory > ROOM) continue;
        CHECK(cudaMemset(P(c.y), 0xff, c.y.len * SIZE[type]));
        int code = cudnnConvolutionForward(h, one, c.dx, P(c.x), c.dw, P(c.w), c.how, all[i].algo, room, ROOM, zero, c.dy, P(c.y));
        if (code || same_to(&c.y, tolerance(type), 1)) {
            char what[sizeof why];
            snprintf(what, sizeof what, "algorithm %d: status %d, %.200s", all[i].algo, code, code ? cudnnGetErrorString(code) : why);
            strcpy(why, what);
            return 1;
        }
        computed++;
    }
    HOLDS(computed > 0);
    return 0;
}

static int backward_data(int type) {
    struct convolution c;
    ONE_ZERO(type);
    DO(prepare(&c, type & 7, type >> 3));
    cudnnConvolutionBwdDataAlgoPerf_t best;
    int found;
    CHECK(cudnnGetConvolutionBackwardDataAlgorithm_v7(h, c.dw, c.dy, c.how, c.dx, 1, &found, &best));
    HOLDS(found == 1 && best.memory <= ROOM);
    CHECK(cudnnConvolutionBackwardData(h, one, c.dw, P(c.w), c.dy, P(c.y), c.how, best.algo, room, ROOM, zero, c.dx, P(c.x)));
    memset(c.x.host, 0, c.x.len * sizeof(cplx));
    EACH_PRODUCT(type >> 3, c.x.host[in] += c.y.host[out] * c.w.host[filter]);
    return same_to(&c.x, tolerance(type & 7), 1);
}

static int backward_filter(int type) {
    struct convolution c;
    ONE_ZERO(type);
    DO(prepare(&c, type & 7, type >> 3));
    cudnnConvolutionBwdFilterAlgoPerf_t best;
    int found;
    CHECK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(h, c.dx, c.dy, c.how, c.dw, 1, &found, &best));
    HOLDS(found == 1 && best.memory <= ROOM);
    CHECK(cudnnConvolutionBackwardFilter(h, one, c.dx, P(c.x), c.dy, P(c.y), c.how, best.algo, room, ROOM, zero, c.dw, P(c.w)));
    memset(c.w.host, 0, c.w.len * sizeof(cplx));
    EACH_PRODUCT(type >> 3, c.w.host[filter] += c.y.host[out] * c.x.host[in]);
    return same_to(&c.w, tolerance(type & 7), 1);
}

/* Other layers, on one array. */
static int layers(int type) {
    enum { SIDE = 8, CHANNELS = 6, COUNT = N * CHANNELS * SIDE * SIDE, HALF = SIDE / 2 };
    ONE_ZERO(type);
    DO(begin());
    struct array x = filled(type, COUNT), y = zeros(type, COUNT), pooled = zeros(type, COUNT / 4), mean = zeros(type, CHANNELS);
    cudnnTensorDescriptor_t dx, dp, dm;
    CHECK(cudnnCreateTensorDescriptor(&dx));
    CHECK(cudnnCreateTensorDescriptor(&dp));
    CHECK(cudnnCreateTensorDescriptor(&dm));
    CHECK(cudnnSetTensor4dDescriptor(dx, CUDNN_TENSOR_NCHW, data_type(type), N, CHANNELS, SIDE, SIDE));
    CHECK(cudnnSetTensor4dDescriptor(dp, CUDNN_TENSOR_NCHW, data_type(type), N, CHANNELS, HALF, HALF));
    CHECK(cudnnSetTensor4dDescriptor(dm, CUDNN_TENSOR_NCHW, data_type(type), 1, CHANNELS, 1, 1));
    cudnnActivationDescriptor_t tanh_of;
    CHECK(cudnnCreateActivationDescriptor(&tanh_of));
    CHECK(cudnnSetActivationDescriptor(tanh_of, CUDNN_ACTIVATION_TANH, CUDNN_PROPAGATE_NAN, 0));
    CHECK(cudnnActivationForward(h, tanh_of, one, dx, P(x), zero, dx, P(y)));
    for (int i = 0; i < COUNT; i++) y.host[i] = tanh(creal(x.host[i]));
    DO(same_to(&y, tolerance(type), 1));
    CHECK(cudnnSoftmaxForward(h, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, one, dx, P(x), zero, dx, P(y)));
    for (int i = 0; i < COUNT; i++) {
        int image = i / (CHANNELS * SIDE * SIDE), place = i % (SIDE * SIDE);
        double sum = 0;
        for (int c = 0; c < CHANNELS; c++) sum += exp(creal(x.host[(image * CHANNELS + c) * SIDE * SIDE + place]));
        y.host[i] = exp(creal(x.host[i])) / sum;
    }
    DO(same_to(&y, tolerance(type), 1));
    for (int average = 0; average < 2; average++) {
        cudnnPoolingDescriptor_t pool;
        CHECK(cudnnCreatePoolingDescriptor(&pool));
        CHECK(cudnnSetPooling2dDescriptor(pool, average ? CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING : CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));
        CHECK(cudnnPoolingForward(h, pool, one, dx, P(x), zero, dp, P(pooled)));
        for (int i = 0; i < COUNT / 4; i++) {
            const cplx *corner = x.host + i / HALF * 2 * SIDE + i % HALF * 2;
            double a = creal(corner[0]), b = creal(corner[1]), c = creal(corner[SIDE]), d = creal(corner[SIDE + 1]);
            pooled.host[i] = average ? (a + b + c + d) / 4 : fmax(fmax(a, b), fmax(c, d));
        }
        DO(same_to(&pooled, tolerance(type), 1));
    }
    cudnnReduceTensorDescriptor_t sums;
    CHECK(cudnnCreateReduceTensorDescriptor(&sums));
    CHECK(cudnnSetReduceTensorDescriptor(sums, CUDNN_REDUCE_TENSOR_AVG, type == F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, CUDNN_PROPAGATE_NAN,
        CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES));
    CHECK(cudnnReduceTensor(h, sums, 0, 0, room, ROOM, one, dx, P(x), zero, dm, P(mean)));
    for (int i = 0; i < COUNT; i++) mean.host[i / (SIDE * SIDE) % CHANNELS] += x.host[i] / (COUNT / CHANNELS);
    DO(same_to(&mean, tolerance(type), 1));
    CHECK(cudnnAddTensor(h, one, dm, P(mean), one, dx, P(x)));
    for (int i = 0; i < COUNT; i++) x.host[i] += mean.host[i / (SIDE * SIDE) % CHANNELS];
    return same_to(&x, tolerance(type), 1);
}

static int batch_norm(int type) {
    enum { SIDE = 6, CHANNELS = 5, EACH = N * SIDE * SIDE, COUNT = EACH * CHANNELS };
    ONE_ZERO(type);
    DO(begin());
    enum type p = type == F64 ? F64 : F32;
    struct array x = filled(type, COUNT), y = zeros(type, COUNT), scale = filled(p, CHANNELS), bias = filled(p, CHANNELS), mean = zeros(p, CHANNELS),
        inverse = zeros(p, CHANNELS);
    cudnnTensorDescriptor_t dx, dp;
    CHECK(cudnnCreateTensorDescriptor(&dx));
    CHECK(cudnnCreateTensorDescriptor(&dp));
    CHECK(cudnnSetTensor4dDescriptor(dx, CUDNN_TENSOR_NCHW, data_type(type), N, CHANNELS, SIDE, SIDE));
    CHECK(cudnnDeriveBNTensorDescriptor(dp, dx, CUDNN_BATCHNORM_SPATIAL));
    CHECK(cudnnBatchNormalizationForwardTraining(h, CUDNN_BATCHNORM_SPATIAL, one, zero, dx, P(x), dx, P(y), dp, P(scale), P(bias), 1, 0, 0, 1e-5, P(mean),
        P(inverse)));
    for (int c = 0; c < CHANNELS; c++) {
        double sum = 0, squares = 0;
        for (int n = 0; n < N; n++)
            for (int i = 0; i < SIDE * SIDE; i++) sum += creal(x.host[(n * CHANNELS + c) * SIDE * SIDE + i]) / EACH;
        for (int n = 0; n < N; n++)
            for (int i = 0; i < SIDE * SIDE; i++) squares += pow(creal(x.host[(n * CHANNELS + c) * SIDE * SIDE + i]) - sum, 2) / EACH;
        mean.host[c] = sum;
        inverse.host[c] = 1 / sqrt(squares + 1e-5);
        for (int n = 0; n < N; n++)
            for (int i = 0; i < SIDE * SIDE; i++) {
                int to = (n * CHANNELS + c) * SIDE * SIDE + i;
                y.host[to] = (creal(x.host[to]) - sum) * creal(inverse.host[c]) * creal(scale.host[c]) + creal(bias.host[c]);
            }
    }
    return same_to(&mean, tolerance(p), 1) || same_to(&inverse, tolerance(p), 1) || same_to(&y, tolerance(type), 1);
}

/* Graphs. A finalised descriptor with attributes; NULL if an attribute is refused. */
struct attribute { cudnnBackendAttributeName_t name; cudnnBackendAttributeType_t type; int64_t count; const void *values; };

static cudnnBackendDescriptor_t described(cudnnBackendDescriptorType_t type, const struct attribute *all, int count) {
    cudnnBackendDescriptor_t d;
    int code = cudnnBackendCreateDescriptor(type, &d);
    for (int i = 0; i < count && !code; i++) code = cudnnBackendSetAttribute(d, all[i].name, all[i].type, all[i].count, all[i].values);
    if (!code) code = cudnnBackendFinalize(d);
    if (!code) return d;
    char said[300] = "";
    cudnnGetLastErrorString(said, sizeof said);
    snprintf(why, sizeof why, "descriptor %d: status %d, %s", type, code, said);
    return 0;
}
#define DESCRIBED(type, ...) described(type, (const struct attribute[]){__VA_ARGS__}, sizeof((const struct attribute[]){__VA_ARGS__}) / sizeof(struct attribute))

/* A tensor; `virtual_`: the tensor stays within the graph. */
static cudnnBackendDescriptor_t tensor(int64_t id, enum type type, const int64_t *sizes, const int64_t *strides, bool virtual_) {
    int64_t align = 16;
    cudnnDataType_t t = data_type(type);
    return DESCRIBED(CUDNN_BACKEND_TENSOR_DESCRIPTOR, {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes}, {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id}, {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &virtual_});
}

/* Runs a graph of operations with the first engine of the heuristics that can be planned. */
static int run_graph(cudnnBackendDescriptor_t *operations, int count, void **pointers, int64_t *ids, int tensors) {
    cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    int64_t offered = 0, planned = 0;
    cudnnBackendDescriptor_t graph = DESCRIBED(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &h},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, operations});
    if (!graph) return 1;
    snprintf(why, sizeof why, "no engine was offered");
    for (int mode = 0; mode < 2; mode++) {
        cudnnBackendDescriptor_t advice = DESCRIBED(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
            {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph},
            {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &modes[mode]});
        if (!advice) continue;
        cudnnBackendDescriptor_t engines[16];
        int64_t got = 0;
        for (int i = 0; i < 16; i++) CHECK(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &engines[i]));
        CHECK(cudnnBackendGetAttribute(advice, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 16, &got, engines));
        if (got > 16) got = 16;
        offered += got;
        for (int i = 0; i < got; i++) {
            cudnnBackendDescriptor_t plan = DESCRIBED(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &h},
                {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engines[i]});
            if (!plan) continue;
            planned++;
            int64_t wanted = 0, one;
            CHECK(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one, &wanted));
            if (wanted > ROOM) continue;
            cudnnBackendDescriptor_t pack = DESCRIBED(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, tensors, pointers},
                {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, tensors, ids}, {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &room});
            if (!pack) return 1;
            int code = cudnnBackendExecute(h, plan, pack);
            if (!code) return 0;
            snprintf(why, sizeof why, "an engine ended with status %d", code);
        }
    }
    char said[sizeof why];
    snprintf(said, sizeof said, "%ld engines offered, %ld planned; the last: %.400s", (long)offered, (long)planned, why);
    strcpy(why, said);
    return 1;
}

static int graph_convolution(int type) {
    DO(begin());
    struct array x = filled(type, N * C * H * H), w = filled(type, K * C * R * R), y = zeros(type, N * K * Q * Q);
    int64_t sx[] = {N, C, H, H}, tx[] = {C * H * H, 1, C * H, C}, sw[] = {K, C, R, R}, tw[] = {C * R * R, 1, C * R, C}, sy[] = {N, K, Q, Q},
            ty[] = {K * Q * Q, 1, K * Q, K}, pads[] = {PAD, PAD}, strides[] = {STRIDE, STRIDE}, ones[] = {1, 1}, dims = 2, ids[] = {1, 2, 3};
    cudnnBackendDescriptor_t dx = tensor(1, type, sx, tx, 0), dw = tensor(2, type, sw, tw, 0), dy = tensor(3, type, sy, ty, 0);
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    float one = 1, zero = 0;
    cudnnBackendDescriptor_t how = DESCRIBED(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode}, {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides}, {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads}, {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims});
    if (!dx || !dw || !dy || !how) return 1;
    cudnnBackendDescriptor_t op = DESCRIBED(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one}, {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dx},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dw},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dy});
    if (!op) return 1;
    void *pointers[] = {P(x), P(w), P(y)};
    DO(run_graph(&op, 1, pointers, ids, 3));
    EACH_PRODUCT(1, y.host[out] += x.host[in] * w.host[filter]);
    return same_to(&y, tolerance(type), 1);
}

#if CUDNN_VERSION >= 91300
/* softmax(scale q k^T) v, as a single operation. */
static int attention(int type) {
    enum { B = 2, HEADS = 2, S = 64, D = 64, COUNT = B * HEADS * S * D };
    DO(begin());
    struct array q = filled(type, COUNT), k = filled(type, COUNT), v = filled(type, COUNT), o = zeros(type, COUNT);
    int64_t sizes[] = {B, HEADS, S, D}, strides[] = {HEADS * S * D, S * D, D, 1}, single[] = {1, 1, 1, 1}, ids[] = {1, 2, 3, 4, 5};
    struct array scale = zeros(F32, 1);
    scale.host[0] = 0.125;
    upload(&scale);
    cudnnBackendDescriptor_t dq = tensor(1, type, sizes, strides, 0), dk = tensor(2, type, sizes, strides, 0), dv = tensor(3, type, sizes, strides, 0),
                             d_o = tensor(4, type, sizes, strides, 0), ds = tensor(5, F32, single, single, 0);
    if (!dq || !dk || !dv || !d_o || !ds) return 1;
    cudnnBackendDescriptor_t op = DESCRIBED(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR,
        {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dq}, {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dk},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dv}, {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d_o},
        {CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &ds});
    if (!op) return 1;
    void *pointers[] = {P(q), P(k), P(v), P(o), P(scale)};
    DO(run_graph(&op, 1, pointers, ids, 5));
    for (int head = 0; head < B * HEADS; head++)
        for (int i = 0; i < S; i++) {
            double weight[S], sum = 0;
            for (int j = 0; j < S; j++) {
                double dot = 0;
                for (int d = 0; d < D; d++) dot += creal(q.host[(head * S + i) * D + d]) * creal(k.host[(head * S + j) * D + d]);
                sum += weight[j] = exp(dot * 0.125);
            }
            for (int d = 0; d < D; d++)
                for (int j = 0; j < S; j++) o.host[(head * S + i) * D + d] += weight[j] / sum * creal(v.host[(head * S + j) * D + d]);
        }
    return same_to(&o, tolerance(type), 1);
}

#endif

/* A recurrent layer with ReLU, whose sums are simple. */
static int recurrent(int type) {
    enum { T = 4, B = 3, IN = 8, HID = 6 };
    DO(begin());
    cudnnRNNDescriptor_t rnn;
    cudnnDropoutDescriptor_t none;
    cudnnRNNDataDescriptor_t dx, dy;
    cudnnTensorDescriptor_t dh, dw, db;
    cudnnDataType_t t = data_type(type);
    CHECK(cudnnCreateDropoutDescriptor(&none));
    CHECK(cudnnSetDropoutDescriptor(none, h, 0, 0, 0, 0));
    CHECK(cudnnCreateRNNDescriptor(&rnn));
    CHECK(cudnnSetRNNDescriptor_v8(rnn, CUDNN_RNN_ALGO_STANDARD, CUDNN_RNN_RELU, CUDNN_RNN_SINGLE_INP_BIAS, CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, t, t,
        type == F32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH, IN, HID, HID, 1, none, 0));
    int lengths[B] = {T, T, T}, sizes[] = {1, B, HID}, strides[] = {B * HID, HID, 1};
    double fill = 0;
    CHECK(cudnnCreateRNNDataDescriptor(&dx));
    CHECK(cudnnCreateRNNDataDescriptor(&dy));
    CHECK(cudnnSetRNNDataDescriptor(dx, t, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, T, B, IN, lengths, &fill));
    CHECK(cudnnSetRNNDataDescriptor(dy, t, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, T, B, HID, lengths, &fill));
    CHECK(cudnnCreateTensorDescriptor(&dh));
    CHECK(cudnnCreateTensorDescriptor(&dw));
    CHECK(cudnnCreateTensorDescriptor(&db));
    CHECK(cudnnSetTensorNdDescriptor(dh, t, 3, sizes, strides));
    size_t weights = 0, work = 0, reserve = 0;
    CHECK(cudnnGetRNNWeightSpaceSize(h, rnn, &weights));
    CHECK(cudnnGetRNNTempSpaceSizes(h, rnn, CUDNN_FWD_MODE_INFERENCE, dx, &work, &reserve));
    HOLDS(work <= ROOM);
    struct array w = filled(type, weights / SIZE[type]), x = filled(type, T * B * IN), y = zeros(type, T * B * HID);
    struct array last = zeros(type, B * HID), device_lengths = ints(lengths, B);
    size_t at_w[2], at_b[2];
    for (int m = 0; m < 2; m++) {
        void *wp, *bp;
        CHECK(cudnnGetRNNWeightParams(h, rnn, 0, weights, P(w), m, dw, &wp, db, &bp));
        at_w[m] = ((char *)wp - (char *)P(w)) / SIZE[type];
        at_b[m] = bp ? ((char *)bp - (char *)P(w)) / SIZE[type] : 0;
    }
    CHECK(cudnnRNNForward(h, rnn, CUDNN_FWD_MODE_INFERENCE, P(device_lengths), dx, P(x), dy, P(y), dh, 0, P(last), 0, 0, 0, weights, P(w), work, room, 0, 0));
    for (int step = 0; step < T; step++)
        for (int b = 0; b < B; b++)
            for (int o = 0; o < HID; o++) {
                double sum = creal(w.host[at_b[0] + o]);
                for (int i = 0; i < IN; i++) sum += creal(w.host[at_w[0] + o * IN + i]) * creal(x.host[(step * B + b) * IN + i]);
                for (int i = 0; step && i < HID; i++) sum += creal(w.host[at_w[1] + o * HID + i]) * creal(y.host[((step - 1) * B + b) * HID + i]);
                y.host[(step * B + b) * HID + o] = fmax(sum, 0);
            }
    return same_to(&y, tolerance(type) * 10, 1);
}

#define NHWC(type) (8 | type)
static const struct test TESTS[] = {
    {"forward_f32", forward, F32}, {"forward_f64", forward, F64}, {"forward_f32_nhwc", forward, NHWC(F32)}, {"forward_f16", forward, F16},
    {"forward_f16_nhwc", forward, NHWC(F16)}, {"forward_bf16_nhwc", forward, NHWC(BF16)}, {"forward_all_f32", forward_all, F32},
    {"backward_data_f32", backward_data, F32}, {"backward_data_f64", backward_data, F64}, {"backward_data_f16_nhwc", backward_data, NHWC(F16)},
    {"backward_filter_f32", backward_filter, F32}, {"backward_filter_f64", backward_filter, F64}, {"backward_filter_f16_nhwc", backward_filter, NHWC(F16)},
    {"layers_f32", layers, F32}, {"layers_f64", layers, F64}, {"layers_f16", layers, F16}, {"batch_norm_f32", batch_norm, F32}, {"batch_norm_f64", batch_norm, F64},
    {"batch_norm_f16", batch_norm, F16}, {"graph_convolution_f32", graph_convolution, F32}, {"graph_convolution_f16", graph_convolution, F16},
    {"graph_convolution_bf16", graph_convolution, BF16},
#if CUDNN_VERSION >= 91300
    {"attention_f16", attention, F16}, {"attention_bf16", attention, BF16},
#endif
    {"recurrent_f32", recurrent, F32},
    {"recurrent_f64", recurrent, F64},
};
MAIN(TESTS)
