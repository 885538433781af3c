/* gemm.c - matrix products by cuBLASLt, which is opened when the first user is made: it takes a tenth of a second and
 * 150 MB, and a process without a GPU never pays for it.
 *
 * Its matrices are column by column: our rows of x, w and y are its columns, and y = x w^T is, to it, y' = w^T x'. What
 * it finds for a shape is kept, with the descriptions, for the last SHAPES_MAX shapes. Algorithms that add parts in
 * place, in whatever order they come, or in half precision are left out: one shape, one sum. */
#include "gemm_int.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPES_MAX = 256 };

typedef struct {
    uint32_t rows, outputs, inputs, stride, kinds; /* kinds: types of x and y; no rows: the place is empty */
    uint64_t used; /* larger: later */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
} shape;

struct kvf_cuda_gemm {
    kvf_cublaslt lt;
    void *library; /* NULL: given by a test */
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    size_t workspace_bytes;
    uint64_t clock, searches;
    shape shapes[SHAPES_MAX];
};

/* ---- shapes ---- */

static void forget(kvf_cuda_gemm *g, shape *s) {
    if (s->y) g->lt.cublasLtMatrixLayoutDestroy(s->y);
    if (s->x) g->lt.cublasLtMatrixLayoutDestroy(s->x);
    if (s->w) g->lt.cublasLtMatrixLayoutDestroy(s->w);
    if (s->product) g->lt.cublasLtMatmulDescDestroy(s->product);
    *s = (shape){0};
}

static uint32_t stride_of(const kvf_cuda_product *p) { return p->y_stride ? p->y_stride : p->outputs; }

static cublasStatus_t describe(kvf_cuda_gemm *g, shape *s, const kvf_cuda_product *p) {
    const cudaDataType_t in = p->is_bf16 ? CUDA_R_16BF : CUDA_R_16F, out = p->y_is_f32 ? CUDA_R_32F : in;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t e = g->lt.cublasLtMatmulDescCreate(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!e)
        e = g->lt.cublasLtMatmulDescSetAttribute(
            s->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (!e) e = g->lt.cublasLtMatrixLayoutCreate(&s->w, in, p->inputs, p->outputs, p->inputs);
    if (!e) e = g->lt.cublasLtMatrixLayoutCreate(&s->x, in, p->inputs, p->rows, p->inputs);
    if (!e) e = g->lt.cublasLtMatrixLayoutCreate(&s->y, out, p->outputs, p->rows, stride_of(p));
    return e;
}

static cublasStatus_t search(kvf_cuda_gemm *g, shape *s) {
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    g->searches++;
    cublasStatus_t e = g->lt.cublasLtMatmulAlgoGetHeuristic(
        g->handle, s->product, s->w, s->x, s->y, s->y, g->preference, 1, &found, &count);
    if (e) return e;
    if (count < 1 || found.state != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_NOT_SUPPORTED;
    s->algorithm = found.algo;
    return CUBLAS_STATUS_SUCCESS;
}

static uint32_t kinds_of(const kvf_cuda_product *p) {
    return (p->y_is_f32 ? 1u : 0) | (p->is_bf16 ? 2u : 0) | (p->add ? 4u : 0);
}

/* The shape of p, found before or now. */
static cublasStatus_t shape_of(kvf_cuda_gemm *g, const kvf_cuda_product *p, const shape **out) {
    shape *oldest = &g->shapes[0];
    for (int i = 0; i < SHAPES_MAX; i++) {
        shape *s = &g->shapes[i];
        if (s->rows == p->rows && s->outputs == p->outputs && s->inputs == p->inputs && s->stride == stride_of(p) &&
            s->kinds == kinds_of(p)) {
            s->used = ++g->clock;
            *out = s;
            return CUBLAS_STATUS_SUCCESS;
        }
        if (s->used < oldest->used) oldest = s;
    }
    forget(g, oldest);
    cublasStatus_t e = describe(g, oldest, p);
    if (!e) e = search(g, oldest);
    if (e) {
        forget(g, oldest);
        return e;
    }
    oldest->rows = p->rows;
    oldest->outputs = p->outputs;
    oldest->inputs = p->inputs;
    oldest->stride = stride_of(p);
    oldest->kinds = kinds_of(p);
    oldest->used = ++g->clock;
    *out = oldest;
    return CUBLAS_STATUS_SUCCESS;
}

int kvf_cuda_gemm_run(kvf_cuda_gemm *g, const kvf_cuda_product *p, void *stream) {
    const float one = 1, zero = 0;
    const shape *s = NULL;
    if (p->rows == 0 || p->outputs == 0) return 0;
    cublasStatus_t e = shape_of(g, p, &s);
    if (e) return (int)e;
    return (int)g->lt.cublasLtMatmul(g->handle, s->product, &one, p->w, s->w, p->x, s->x, p->add ? &one : &zero, p->y,
        s->y, p->y, s->y, &s->algorithm, g->workspace, g->workspace_bytes, (cudaStream_t)stream);
}

uint64_t kvf_cuda_gemm_searches(const kvf_cuda_gemm *g) { return g->searches; }

/* ---- life ---- */

static cublasStatus_t make_preference(kvf_cuda_gemm *g) {
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = 16;
    const uint64_t room = g->workspace_bytes;
    const cublasLtMatmulPreferenceAttributes_t aligned[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t e = g->lt.cublasLtMatmulPreferenceCreate(&g->preference);
    if (!e)
        e = g->lt.cublasLtMatmulPreferenceSetAttribute(
            g->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    if (!e)
        e = g->lt.cublasLtMatmulPreferenceSetAttribute(
            g->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (size_t i = 0; i < sizeof aligned / sizeof *aligned && !e; i++)
        e = g->lt.cublasLtMatmulPreferenceSetAttribute(g->preference, aligned[i], &alignment, sizeof alignment);
    return e;
}

void kvf_cuda_gemm_destroy(kvf_cuda_gemm *g) {
    if (!g) return;
    for (int i = 0; i < SHAPES_MAX; i++) forget(g, &g->shapes[i]);
    if (g->preference) g->lt.cublasLtMatmulPreferenceDestroy(g->preference);
    if (g->handle) g->lt.cublasLtDestroy(g->handle);
    if (g->library) dlclose(g->library);
    free(g);
}

int kvf_cuda_gemm_create_on(kvf_cuda_gemm **out, const kvf_cublaslt *lt, void *workspace, size_t workspace_bytes,
    char *why, size_t why_room_bytes) {
    size_t version = lt->cublasLtGetVersion();
    if (version / 10000 != CUBLAS_VER_MAJOR) {
        snprintf(why, why_room_bytes, "cuBLASLt has version %zu, this build wants %d.x", version, CUBLAS_VER_MAJOR);
        return -1;
    }
    kvf_cuda_gemm *g = calloc(1, sizeof *g);
    if (!g) {
        snprintf(why, why_room_bytes, "no memory for matrix products");
        return -1;
    }
    g->lt = *lt;
    g->workspace = workspace;
    g->workspace_bytes = workspace_bytes;
    const char *call = "cublasLtCreate";
    cublasStatus_t e = lt->cublasLtCreate(&g->handle);
    if (!e) {
        call = "cublasLtMatmulPreferenceCreate";
        e = make_preference(g);
    }
    if (e) {
        snprintf(why, why_room_bytes, "%s: error %d", call, (int)e);
        kvf_cuda_gemm_destroy(g);
        return -1;
    }
    *out = g;
    return 0;
}

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)

int kvf_cuda_gemm_create(
    kvf_cuda_gemm **out, void *workspace, size_t workspace_bytes, char *why, size_t why_room_bytes) {
    const char *name = "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR);
    kvf_cublaslt lt;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        snprintf(why, why_room_bytes, "%s", reason ? reason : name);
        return -1;
    }
#define FIND(symbol)                                                                                                   \
    if (!(*(void **)&lt.symbol = dlsym(library, #symbol))) {                                                           \
        snprintf(why, why_room_bytes, "%s has no %s", name, #symbol);                                                  \
        goto undo_library;                                                                                             \
    }
    KVF_CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    if (kvf_cuda_gemm_create_on(out, &lt, workspace, workspace_bytes, why, why_room_bytes) != 0) goto undo_library;
    (*out)->library = library;
    return 0;

undo_library:
    dlclose(library);
    return -1;
}
