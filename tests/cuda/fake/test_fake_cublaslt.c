/* The fake cuBLASLt: a product is right, and each way to ask for it wrongly is refused. */
#include <cublasLt.h>
#include "fake_test.h"
#include "kvf/quant.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static kvf_cuda_api cuda;
enum { K = 24, M = 16, N = 3, ROOM = 1 << 16 };

/* One product, ready to be asked for; a test spoils a field of it. */
typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, y;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    uint8_t *memory; /* device: workspace, A, B, D */
    uint16_t *at_a, *at_b;
    float *at_y;
    void *workspace;
    size_t workspace_bytes;
    float alpha, beta;
} setting;

static cublasStatus_t search(setting *s) {
    int count;
    return cublasLtMatmulAlgoGetHeuristic(
        s->handle, s->product, s->a, s->b, s->y, s->y, s->preference, 1, &s->found, &count);
}
static cublasStatus_t run(setting *s) {
    return cublasLtMatmul(s->handle, s->product, &s->alpha, s->at_a, s->a, s->at_b, s->b, &s->beta, s->at_y, s->y,
        s->at_y, s->y, &s->found.algo, s->workspace, s->workspace_bytes, NULL);
}

static void begin(setting *s) {
    *s = (setting){.alpha = 1, .workspace_bytes = ROOM};
    const cublasOperation_t t = CUBLAS_OP_T;
    const uint64_t room = ROOM;
    const uint32_t alignment = 16;
    assert_int_equal(cublasLtCreate(&s->handle), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    assert_int_equal(cublasLtMatmulDescSetAttribute(s->product, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&s->a, CUDA_R_16F, K, M, K), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&s->b, CUDA_R_16F, K, N, K), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&s->y, CUDA_R_32F, M, N, M + 8), 0);
    assert_int_equal(cublasLtMatmulPreferenceCreate(&s->preference), 0);
    assert_int_equal(cublasLtMatmulPreferenceSetAttribute(
                         s->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room),
        0);
    assert_int_equal(cublasLtMatmulPreferenceSetAttribute(
                         s->preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment),
        0);
    void *memory;
    assert_int_equal(cuda.memory_take(&memory, ROOM + 8192), 0);
    s->memory = s->workspace = memory;
    s->at_a = (uint16_t *)(void *)(s->memory + ROOM);
    s->at_b = (uint16_t *)(void *)(s->memory + ROOM + 4096);
    s->at_y = (float *)(void *)(s->memory + ROOM + 6144);
    assert_int_equal(search(s), 0);
}

static void end(setting *s) {
    fake_cuda_counts counts;
    fake_cuda_count(&counts);
    assert_int_equal(counts.products, 6);
    assert_int_equal(cublasLtMatmulPreferenceDestroy(s->preference), 0);
    assert_int_equal(cublasLtMatrixLayoutDestroy(s->y), 0);
    assert_int_equal(cublasLtMatrixLayoutDestroy(s->b), 0);
    assert_int_equal(cublasLtMatrixLayoutDestroy(s->a), 0);
    assert_int_equal(cublasLtMatmulDescDestroy(s->product), 0);
    assert_int_equal(cublasLtDestroy(s->handle), 0);
    assert_int_equal(cuda.memory_give(s->memory), 0);
    fake_cuda_count(&counts);
    assert_int_equal(counts.products, 0);
}

static void a_product_is_right_and_queued(void **state) {
    setting s;
    begin(&s);
    uint16_t a[M * K], b[N * K];
    float y[N * (M + 8)];
    for (int i = 0; i < M * K; i++) a[i] = kvf_f32_to_f16((float)(i * 7 % 13 - 6));
    for (int i = 0; i < N * K; i++) b[i] = kvf_f32_to_f16((float)(i * 5 % 11 - 5));
    for (size_t i = 0; i < sizeof y / sizeof *y; i++) y[i] = 3;
    s.beta = 2;
    assert_int_equal(cuda.copy(s.at_a, a, sizeof a, KVF_CUDA_HOST_TO_DEVICE), 0);
    assert_int_equal(cuda.copy(s.at_b, b, sizeof b, KVF_CUDA_HOST_TO_DEVICE), 0);
    assert_int_equal(cuda.copy(s.at_y, y, sizeof y, KVF_CUDA_HOST_TO_DEVICE), 0);
    assert_int_equal(run(&s), 0);
    assert_int_equal(cuda.copy(y, s.at_y, sizeof y, KVF_CUDA_DEVICE_TO_HOST), 0);
    for (int j = 0; j < N; j++) {
        for (int i = 0; i < M + 8; i++) {
            float want = i < M ? 6 : 3; /* between the columns nothing is written */
            for (int k = 0; i < M && k < K; k++)
                want += (float)((i * K + k) * 7 % 13 - 6) * (float)((j * K + k) * 5 % 11 - 5);
            assert_true(y[j * (M + 8) + i] == want);
        }
    }
    end(&s);
}

#define REFUSED(change)                                                                                                \
    do {                                                                                                               \
        setting spoilt = s;                                                                                            \
        change;                                                                                                        \
        if (run(&spoilt) != CUBLAS_STATUS_INVALID_VALUE) fail_msg("%s: not refused", #change);                         \
    } while (0)

static void wrong_products_are_refused(void **state) {
    static uint16_t host[M * K];
    setting s;
    begin(&s);
    cublasLtMatrixLayout_t wide, longer;
    assert_int_equal(cublasLtMatrixLayoutCreate(&wide, CUDA_R_16F, K, M, K + 8), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&longer, CUDA_R_16F, K + 8, N, K + 8), 0);
    REFUSED(spoilt.a = wide); /* the algorithm was found for another */
    REFUSED(spoilt.b = longer);
    REFUSED(spoilt.a = s.b);
    REFUSED(spoilt.y = s.b);
    REFUSED(spoilt.handle = NULL);
    REFUSED(spoilt.product = (cublasLtMatmulDesc_t)(void *)s.a);
    REFUSED(spoilt.at_a = host);
    REFUSED(spoilt.at_b = host);
    REFUSED(spoilt.at_b += 1); /* not aligned */
    REFUSED(spoilt.at_y = (float *)(void *)(s.memory + ROOM + 8192 - 64)); /* not whole */
    REFUSED(spoilt.workspace = host);
    REFUSED(spoilt.workspace = s.memory + 16);
    REFUSED(spoilt.workspace_bytes = 16);
    cublasLtMatrixLayout_t none = NULL;
    assert_int_equal(cublasLtMatrixLayoutCreate(&none, CUDA_R_16F, K, M, K - 1), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasLtMatrixLayoutDestroy(none), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasLtMatrixLayoutDestroy(longer), 0);
    assert_int_equal(cublasLtMatrixLayoutDestroy(wide), 0);
    end(&s);
}

static void faults_are_met(void **state) {
    setting s;
    begin(&s);
    fake_cuda_fault("cublasLtMatmulAlgoGetHeuristic", 1, FAKE_FAIL, CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(search(&s), CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(search(&s), 0);
    fake_cuda_fault("cublasLtMatmul", 1, FAKE_FAIL, CUBLAS_STATUS_EXECUTION_FAILED);
    assert_int_equal(run(&s), CUBLAS_STATUS_EXECUTION_FAILED);
    assert_int_equal(run(&s), 0);
    fake_cuda_fault("cublasLtGetVersion", 1, FAKE_FAIL, 120304);
    assert_int_equal(cublasLtGetVersion(), 120304);
    assert_int_equal(cublasLtGetVersion(), CUBLAS_VERSION);
    end(&s);
    fake_cuda_reset();
}

int main(void) {
    fake_open(&cuda, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_product_is_right_and_queued),
        cmocka_unit_test(wrong_products_are_refused), cmocka_unit_test(faults_are_met)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
