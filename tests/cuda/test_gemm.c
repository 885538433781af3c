/* Matrix products over a cuBLASLt of ours: what is asked of it for which shape, once; that its column-wise view is the
 * row-wise product we mean; and what becomes of its refusals. */
#include "../../kernels/cuda/gemm_int.h"
#include "kvf/cuda_plugin.h"
#include "kvf/quant.h"
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* after those that it needs */
#include <cmocka.h>

/* ---- a library that computes by its own words: column by column ---- */

typedef struct {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t leading;
} layout;

static struct {
    int alive; /* descriptions and layouts not yet destroyed */
    size_t version;
    int fail_at; /* this call fails; -1: none */
    int calls;
    int found; /* algorithms that the search finds */
    uint64_t room;
    uint32_t schemes, alignments;
} lib;

static cublasStatus_t step(void) {
    return lib.calls++ == lib.fail_at ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t create(void **out, size_t bytes) {
    if (step()) return CUBLAS_STATUS_ALLOC_FAILED;
    *out = calloc(1, bytes);
    assert_non_null(*out);
    lib.alive++;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t destroy(void *object) {
    free(object);
    lib.alive--;
    return CUBLAS_STATUS_SUCCESS;
}

static size_t fake_version(void) { return lib.version; }
static cublasStatus_t fake_create(cublasLtHandle_t *out) { return create((void **)out, 1); }
static cublasStatus_t fake_destroy(cublasLtHandle_t h) { return destroy(h); }
static cublasStatus_t fake_desc_create(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    assert_int_equal(compute, CUBLAS_COMPUTE_32F);
    assert_int_equal(scale, CUDA_R_32F);
    return create((void **)out, sizeof(cublasOperation_t));
}
static cublasStatus_t fake_desc_destroy(cublasLtMatmulDesc_t d) { return destroy(d); }
static cublasStatus_t fake_desc_set(
    cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name, const void *value, size_t bytes) {
    assert_int_equal(name, CUBLASLT_MATMUL_DESC_TRANSA);
    if (step()) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(d, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_layout_create(
    cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading) {
    cublasStatus_t e = create((void **)out, sizeof(layout));
    if (!e) *(layout *)(void *)*out = (layout){type, rows, columns, leading};
    return e;
}
static cublasStatus_t fake_layout_destroy(cublasLtMatrixLayout_t l) { return destroy(l); }
static cublasStatus_t fake_preference_create(cublasLtMatmulPreference_t *out) { return create((void **)out, 1); }
static cublasStatus_t fake_preference_destroy(cublasLtMatmulPreference_t p) { return destroy(p); }
static cublasStatus_t fake_preference_set(
    cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t name, const void *value, size_t bytes) {
    (void)p;
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&lib.room, value, bytes);
    else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&lib.schemes, value, bytes);
    else
        lib.alignments += *(const uint32_t *)value == 16;
    return step();
}
static cublasStatus_t fake_search(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y, cublasLtMatmulPreference_t p,
    int asked, cublasLtMatmulHeuristicResult_t found[], int *count) {
    (void)h, (void)d, (void)c, (void)p, (void)asked;
    if (step()) return CUBLAS_STATUS_INTERNAL_ERROR;
    memset(found, 0, sizeof *found);
    /* An algorithm of this shape only: run checks that it is used for no other. */
    found->algo.data[0] = ((layout *)(void *)a)->columns;
    found->algo.data[1] = ((layout *)(void *)b)->columns;
    found->algo.data[2] = ((layout *)(void *)y)->type;
    *count = lib.found;
    return CUBLAS_STATUS_SUCCESS;
}

static float at(const void *m, const layout *l, uint64_t row, uint64_t column) {
    size_t i = row + column * (uint64_t)l->leading;
    if (l->type == CUDA_R_32F) return ((const float *)m)[i];
    if (l->type == CUDA_R_16F) return kvf_f16_to_f32(((const uint16_t *)m)[i]);
    float f;
    uint32_t bits = (uint32_t)((const uint16_t *)m)[i] << 16;
    memcpy(&f, &bits, 4);
    return f;
}
static cublasStatus_t fake_run(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
    cublasLtMatrixLayout_t a_of, const void *b, cublasLtMatrixLayout_t b_of, const void *beta, const void *c,
    cublasLtMatrixLayout_t c_of, void *y, cublasLtMatrixLayout_t y_of, const cublasLtMatmulAlgo_t *algorithm,
    void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    const layout *la = (void *)a_of, *lb = (void *)b_of, *lc = (void *)c_of, *ly = (void *)y_of;
    (void)h, (void)stream, (void)workspace;
    assert_int_equal(*(cublasOperation_t *)(void *)d, CUBLAS_OP_T);
    assert_true(algorithm->data[0] == la->columns && algorithm->data[1] == lb->columns);
    assert_true(algorithm->data[2] == ly->type && workspace_bytes == lib.room);
    if (step()) return CUBLAS_STATUS_EXECUTION_FAILED;
    for (uint64_t j = 0; j < ly->columns; j++) {
        for (uint64_t i = 0; i < ly->rows; i++) {
            float sum = 0;
            for (uint64_t k = 0; k < la->rows; k++) sum += at(a, la, k, i) * at(b, lb, k, j);
            sum = sum * *(const float *)alpha;
            if (*(const float *)beta != 0) sum += *(const float *)beta * at(c, lc, i, j);
            size_t to = i + j * (uint64_t)ly->leading;
            uint32_t bits;
            memcpy(&bits, &sum, 4);
            if (ly->type == CUDA_R_32F)
                ((float *)y)[to] = sum;
            else
                ((uint16_t *)y)[to] = ly->type == CUDA_R_16F ? kvf_f32_to_f16(sum) : (uint16_t)(bits >> 16);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static const kvf_cublaslt fake = {fake_version, fake_create, fake_destroy, fake_desc_create, fake_desc_destroy,
    fake_desc_set, fake_layout_create, fake_layout_destroy, fake_preference_create, fake_preference_destroy,
    fake_preference_set, fake_search, fake_run};

static int begin(void **state) {
    memset(&lib, 0, sizeof lib);
    lib.version = CUBLAS_VERSION;
    lib.fail_at = -1;
    lib.found = 1;
    return 0;
}
static int end(void **state) { return lib.alive; } /* nothing is left behind */

static kvf_cuda_gemm *make(void) {
    kvf_cuda_gemm *g = NULL;
    char why[128] = "";
    assert_int_equal(kvf_cuda_gemm_create_on(&g, &fake, NULL, 4096, why, sizeof why), 0);
    return g;
}

/* ---- the tests ---- */

enum { ROWS = 3, OUTPUTS = 16, INPUTS = 24 };

static uint16_t half(float x, bool bf16) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bf16 ? (uint16_t)(bits >> 16) : kvf_f32_to_f16(x);
}

static void check_product(kvf_cuda_gemm *g, bool bf16, bool f32, bool add) {
    uint16_t w[OUTPUTS * INPUTS], x[ROWS * INPUTS], y16[ROWS * OUTPUTS];
    float y32[ROWS * OUTPUTS];
    for (int i = 0; i < OUTPUTS * INPUTS; i++) w[i] = half((float)(i * 7 % 13 - 6), bf16); /* whole numbers: exact */
    for (int i = 0; i < ROWS * INPUTS; i++) x[i] = half((float)(i * 5 % 11 - 5), bf16);
    for (int i = 0; i < ROWS * OUTPUTS; i++) y16[i] = half(2, bf16), y32[i] = 2;
    kvf_cuda_product p = {.w = w,
        .x = x,
        .y = f32 ? (void *)y32 : (void *)y16,
        .y_is_f32 = f32,
        .is_bf16 = bf16,
        .add = add,
        .rows = ROWS,
        .outputs = OUTPUTS,
        .inputs = INPUTS};
    assert_int_equal(kvf_cuda_gemm_run(g, &p, NULL), 0);
    for (int r = 0; r < ROWS; r++) {
        for (int o = 0; o < OUTPUTS; o++) {
            float want = add ? 2 : 0;
            for (int k = 0; k < INPUTS; k++)
                want += (float)((r * INPUTS + k) * 5 % 11 - 5) * (float)((o * INPUTS + k) * 7 % 13 - 6);
            if (f32)
                assert_true(y32[r * OUTPUTS + o] == want);
            else
                assert_int_equal(y16[r * OUTPUTS + o], half(want, bf16));
        }
    }
}

static void products_are_row_by_row(void **state) {
    kvf_cuda_gemm *g = make();
    for (int kinds = 0; kinds < 8; kinds++) check_product(g, kinds & 1, kinds & 2, kinds & 4);
    assert_int_equal(kvf_cuda_gemm_searches(g), 8);
    assert_int_equal(lib.room, 4096);
    assert_int_equal(lib.schemes, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    assert_int_equal(lib.alignments, 4);
    kvf_cuda_gemm_destroy(g);
}

static int run_rows(kvf_cuda_gemm *g, uint32_t rows) {
    static uint16_t x[400 * 8], y[400 * 8];
    kvf_cuda_product p = {.w = x, .x = x, .y = y, .rows = rows, .outputs = 8, .inputs = 8};
    return kvf_cuda_gemm_run(g, &p, NULL);
}

static void a_shape_is_searched_once_and_the_oldest_makes_room(void **state) {
    kvf_cuda_gemm *g = make();
    for (int round = 0; round < 2; round++)
        for (uint32_t rows = 1; rows <= 256; rows++) assert_int_equal(run_rows(g, rows), 0);
    assert_int_equal(kvf_cuda_gemm_searches(g), 256);
    assert_int_equal(run_rows(g, 1), 0);
    assert_int_equal(run_rows(g, 300), 0); /* takes the place of 2 */
    assert_int_equal(run_rows(g, 1), 0);
    assert_int_equal(kvf_cuda_gemm_searches(g), 257);
    assert_int_equal(run_rows(g, 2), 0);
    assert_int_equal(kvf_cuda_gemm_searches(g), 258);
    assert_int_equal(run_rows(g, 0), 0);
    assert_int_equal(kvf_cuda_gemm_searches(g), 258);
    kvf_cuda_gemm_destroy(g);
}

static void refusals_are_errors_and_leave_nothing(void **state) {
    kvf_cuda_gemm *g = make();
    lib.found = 0;
    assert_int_equal(run_rows(g, 5), CUBLAS_STATUS_NOT_SUPPORTED);
    lib.found = 1;
    int first = lib.calls, last;
    assert_int_equal(run_rows(g, 6), 0);
    last = lib.calls;
    for (int i = 0; i < last - first; i++) { /* each call of a new shape fails in turn, then all is well */
        lib.fail_at = lib.calls + i;
        assert_int_not_equal(run_rows(g, 100 + (uint32_t)i), 0);
        lib.fail_at = -1;
        assert_int_equal(run_rows(g, 100 + (uint32_t)i), 0);
    }
    kvf_cuda_gemm_destroy(g);
    assert_int_equal(lib.alive, 0);
    for (int i = 0; i < 8; i++) { /* and each call of the creation */
        char why[128] = "";
        lib.calls = 0;
        lib.fail_at = i;
        assert_int_equal(kvf_cuda_gemm_create_on(&g, &fake, NULL, 0, why, sizeof why), -1);
        assert_non_null(strstr(why, "cublasLt"));
        assert_int_equal(lib.alive, 0);
    }
    lib.fail_at = -1;
}

static void another_major_version_is_named(void **state) {
    kvf_cuda_gemm *g = NULL;
    char why[128] = "";
    lib.version = CUBLAS_VERSION + 10000;
    assert_int_equal(kvf_cuda_gemm_create_on(&g, &fake, NULL, 0, why, sizeof why), -1);
    assert_non_null(strstr(why, "version"));
}

/* The real library, or none: without a GPU either way a sentence. Not under sanitizers: it leaks when it finds no GPU.
 */
static void the_library_is_opened_by_name(void **state) {
#ifndef KVF_SANITIZED
    kvf_cuda_gemm *g = NULL;
    char why[256] = "";
    if (kvf_cuda_gemm_create(&g, NULL, 0, why, sizeof why) == 0)
        kvf_cuda_gemm_destroy(g);
    else
        assert_true(strlen(why) > 10);
#endif
}

/* The plugin that nvcc and the linker made of all this: it opens, and knows its own ABI only. */
static void the_plugin_opens(void **state) {
#ifdef KVF_PLUGIN
    void *library = dlopen(KVF_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    kvf_cuda_plugin_entry entry;
    *(void **)&entry = dlsym(library, KVF_CUDA_PLUGIN_SYMBOL);
    assert_non_null(entry);
    assert_null(entry(KVF_CUDA_PLUGIN_ABI + 1));
    const kvf_cuda_plugin_table *table = entry(KVF_CUDA_PLUGIN_ABI);
    assert_non_null(table);
    assert_int_equal(table->table_bytes, sizeof *table);
    dlclose(library);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(products_are_row_by_row, begin, end),
        cmocka_unit_test_setup_teardown(a_shape_is_searched_once_and_the_oldest_makes_room, begin, end),
        cmocka_unit_test_setup_teardown(refusals_are_errors_and_leave_nothing, begin, end),
        cmocka_unit_test_setup_teardown(another_major_version_is_named, begin, end),
        cmocka_unit_test(the_library_is_opened_by_name),
        cmocka_unit_test(the_plugin_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
