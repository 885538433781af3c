/* fake_cublaslt.c - the functions of cuBLASLt that kernels/cuda/gemm.c calls, under their real names: a product is
 * checked as it is asked for, then queued on a stream of the fake runtime like a kernel, in plain loops, sums in f32.
 *
 * Everything is column by column, as there. Known: A transposed, types f16, bf16 and f32 (D alone), compute type and
 * scale f32, alpha and beta on the host. An algorithm is good for the shape it was found for, and wants a workspace. */
#include "fake_library.h"
#include "kvf/quant.h"
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { HANDLE = 0x4c54, PRODUCT, LAYOUT, PREFERENCE } kind_of_object;
typedef struct {
    kind_of_object kind; /* 0 once it is destroyed */
    union {
        cublasOperation_t a_is; /* PRODUCT */
        struct {
            cudaDataType_t type;
            uint64_t rows, columns;
            int64_t leading;
        } layout;
        struct {
            uint64_t room;
            uint32_t alignment, reductions;
        } preference;
    };
} object;

enum { WANTED_BYTES = 4096 }; /* of workspace, by every algorithm */

/* ---- objects ---- */

static cublasStatus_t wrong(const char *call, const char *what) {
    fprintf(stderr, "fake cuBLASLt: %s: %s\n", call, what);
    return CUBLAS_STATUS_INVALID_VALUE;
}
#define CHECK(so, what)                                                                                                \
    if (!(so)) return wrong(__func__, (what))

static cublasStatus_t make(const char *call, kind_of_object kind, void **out) {
    int fault = fake_enter_nccl(call);
    if (fault) return (cublasStatus_t)fault;
    object *o = calloc(1, sizeof *o);
    if (!o) return CUBLAS_STATUS_ALLOC_FAILED;
    o->kind = kind;
    *out = o;
    FAKE_COUNT(products, 1);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t drop(const char *call, kind_of_object kind, void *which) {
    object *o = which;
    if (!o || o->kind != kind) return wrong(call, "not one of ours");
    o->kind = 0;
    free(o);
    FAKE_COUNT(products, -1u);
    return CUBLAS_STATUS_SUCCESS;
}
static const object *of(const void *which, kind_of_object kind) {
    const object *o = which;
    return o && o->kind == kind ? o : NULL;
}

FAKE_API size_t cublasLtGetVersion(void) {
    int planted = fake_enter_nccl(__func__);
    return planted ? (size_t)planted : CUBLAS_VERSION;
}
FAKE_API cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) { return make(__func__, HANDLE, (void **)out); }
FAKE_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return drop(__func__, HANDLE, h); }

FAKE_API cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    CHECK(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F, "sums and factors are f32 here");
    return make(__func__, PRODUCT, (void **)out);
}
FAKE_API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return drop(__func__, PRODUCT, d); }
FAKE_API cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name, const void *value, size_t bytes) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return (cublasStatus_t)fault;
    object *o = (object *)(void *)d;
    CHECK(of(o, PRODUCT), "not a description");
    CHECK(name == CUBLASLT_MATMUL_DESC_TRANSA && bytes == sizeof o->a_is, "an attribute that is not known here");
    memcpy(&o->a_is, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static size_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

FAKE_API cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading) {
    CHECK(type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F, "a type that is not known here");
    CHECK(rows && columns && leading > 0 && (uint64_t)leading >= rows, "columns overlap");
    cublasStatus_t e = make(__func__, LAYOUT, (void **)out);
    if (e) return e;
    object *o = (object *)(void *)*out;
    o->layout.type = type;
    o->layout.rows = rows;
    o->layout.columns = columns;
    o->layout.leading = leading;
    return CUBLAS_STATUS_SUCCESS;
}
FAKE_API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return drop(__func__, LAYOUT, l); }

FAKE_API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return make(__func__, PREFERENCE, (void **)out);
}
FAKE_API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    return drop(__func__, PREFERENCE, p);
}
FAKE_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t name, const void *value, size_t bytes) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return (cublasStatus_t)fault;
    object *o = (object *)(void *)p;
    CHECK(of(o, PREFERENCE), "not a preference");
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof o->preference.room)
        memcpy(&o->preference.room, value, bytes);
    else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof o->preference.reductions)
        memcpy(&o->preference.reductions, value, bytes);
    else if (name >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES && name <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        memcpy(&o->preference.alignment, value, sizeof o->preference.alignment);
    else
        return wrong(__func__, "an attribute that is not known here");
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- algorithms ---- */

/* Of description and layouts: those of another shape have another. */
static uint64_t shape_hash(const object *const *list, size_t count) {
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < count; i++) {
        const uint64_t parts[] = {list[i]->kind == PRODUCT ? (uint64_t)list[i]->a_is : list[i]->layout.rows,
            list[i]->kind == PRODUCT ? 0 : list[i]->layout.columns,
            list[i]->kind == PRODUCT ? 0 : (uint64_t)list[i]->layout.leading,
            list[i]->kind == PRODUCT ? 0 : (uint64_t)list[i]->layout.type};
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) h = (h ^ parts[j]) * 1099511628211ull;
    }
    return h | 1;
}

/* What is wrong with a product of these, or NULL. */
static const char *misfit(const object *d, const object *a, const object *b, const object *c, const object *y) {
    if (!d || !a || !b || !c || !y) return "a description or layout that is none";
    if (d->a_is != CUBLAS_OP_T) return "A is not transposed";
    if (a->layout.type == CUDA_R_32F || a->layout.type != b->layout.type) return "A and B differ in type, or are f32";
    if (y->layout.type != CUDA_R_32F && y->layout.type != a->layout.type) return "D is of no type that A gives";
    if (a->layout.rows != b->layout.rows) return "A and B differ in length";
    if (y->layout.rows != a->layout.columns || y->layout.columns != b->layout.columns) return "D has another shape";
    if (memcmp(&c->layout, &y->layout, sizeof c->layout) != 0) return "C is laid out otherwise than D";
    /* What tensor cores want of 16-bit operands. */
    if (a->layout.leading % 8 || b->layout.leading % 8) return "columns of A or B are not aligned to 16 bytes";
    return NULL;
}

FAKE_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
    cublasLtMatmulPreference_t p, int asked, cublasLtMatmulHeuristicResult_t found[], int *count) {
    int fault = fake_enter_nccl(__func__);
    *count = 0;
    if (fault) return (cublasStatus_t)fault;
    const object *list[] = {of(d, PRODUCT), of(a, LAYOUT), of(b, LAYOUT), of(c, LAYOUT), of(y, LAYOUT)};
    const object *preference = of(p, PREFERENCE);
    CHECK(of(h, HANDLE) && preference && asked > 0, "no handle, no preference, or nothing asked for");
    const char *what = misfit(list[0], list[1], list[2], list[3], list[4]);
    CHECK(!what, what);
    if (preference->preference.room < WANTED_BYTES) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(found, 0, sizeof *found);
    found->algo.data[0] = shape_hash(list, 5);
    found->algo.data[1] = preference->preference.alignment;
    found->workspaceSize = WANTED_BYTES;
    found->state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

typedef struct {
    object a_of, b_of, y_of;
    const uint16_t *a, *b;
    void *y;
    float alpha, beta;
} work;

static float from16(uint16_t bits, cudaDataType_t type) {
    if (type == CUDA_R_16F) return kvf_f16_to_f32(bits);
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
}
static uint16_t to16(float f, cudaDataType_t type) {
    if (type == CUDA_R_16F) return kvf_f32_to_f16(f);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static void put(const work *w, size_t at, float sum) {
    cudaDataType_t type = w->y_of.layout.type;
    sum *= w->alpha;
    if (type == CUDA_R_32F) {
        float *y = w->y;
        y[at] = w->beta != 0 ? sum + w->beta * y[at] : sum;
    } else {
        uint16_t *y = w->y;
        y[at] = to16(w->beta != 0 ? sum + w->beta * from16(y[at], type) : sum, type);
    }
}

static void multiply(void *arg) {
    const work *w = arg;
    uint64_t length = w->a_of.layout.rows;
    cudaDataType_t type = w->a_of.layout.type;
    float *column = malloc(length * sizeof *column);
    if (!column) abort();
    for (uint64_t j = 0; j < w->y_of.layout.columns; j++) {
        const uint16_t *b = w->b + j * (uint64_t)w->b_of.layout.leading;
        for (uint64_t k = 0; k < length; k++) column[k] = from16(b[k], type);
        for (uint64_t i = 0; i < w->y_of.layout.rows; i++) {
            const uint16_t *a = w->a + i * (uint64_t)w->a_of.layout.leading;
            float sum = 0;
            for (uint64_t k = 0; k < length; k++) sum += column[k] * from16(a[k], type);
            put(w, i + j * (uint64_t)w->y_of.layout.leading, sum);
        }
    }
    free(column);
}

/* Of the device, whole, aligned as the algorithm was found for. */
static bool lies_well(const void *p, const object *o, uint64_t alignment) {
    size_t bytes =
        ((o->layout.columns - 1) * (uint64_t)o->layout.leading + o->layout.rows) * element_bytes(o->layout.type);
    return fake_is_device(p, bytes) && (uintptr_t)p % (alignment ? alignment : 1) == 0;
}

FAKE_API cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
    cublasLtMatrixLayout_t a_of, const void *b, cublasLtMatrixLayout_t b_of, const void *beta, const void *c,
    cublasLtMatrixLayout_t c_of, void *y, cublasLtMatrixLayout_t y_of, const cublasLtMatmulAlgo_t *algorithm,
    void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    int fault = fake_enter_nccl(__func__);
    if (fault) return (cublasStatus_t)fault;
    const object *list[] = {of(d, PRODUCT), of(a_of, LAYOUT), of(b_of, LAYOUT), of(c_of, LAYOUT), of(y_of, LAYOUT)};
    CHECK(of(h, HANDLE), "no handle");
    const char *what = misfit(list[0], list[1], list[2], list[3], list[4]);
    CHECK(!what, what);
    CHECK(algorithm && algorithm->data[0] == shape_hash(list, 5), "the algorithm is another shape's");
    CHECK(workspace_bytes >= WANTED_BYTES && fake_is_device(workspace, workspace_bytes), "no workspace of its own");
    CHECK((uintptr_t)workspace % 256 == 0, "the workspace is not aligned to 256");
    CHECK(lies_well(a, list[1], algorithm->data[1]), "A is not whole, aligned and on the device");
    CHECK(lies_well(b, list[2], algorithm->data[1]), "B is not whole, aligned and on the device");
    CHECK(lies_well(y, list[4], algorithm->data[1]) && c == y, "D is not whole, aligned and on the device, or not C");
    work *w = malloc(sizeof *w);
    if (!w) return CUBLAS_STATUS_ALLOC_FAILED;
    *w = (work){.a_of = *list[1], .b_of = *list[2], .y_of = *list[4], .a = a, .b = b, .y = y};
    memcpy(&w->alpha, alpha, sizeof w->alpha);
    memcpy(&w->beta, beta, sizeof w->beta);
    return fake_cuda_enqueue((kvf_cuda_stream)(void *)stream, multiply, free, w) ? CUBLAS_STATUS_EXECUTION_FAILED
                                                                                 : CUBLAS_STATUS_SUCCESS;
}
