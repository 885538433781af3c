/* What a machine can do at most and what our matrix products make of it, in one process, alternating, best of each:
 *   limits MODEL [THREADS [ROUNDS]]          KVFERRY_CPU names the kernels
 * Prints one line a figure: "kernels NAME", "weights BYTES" (of the file's matrices, what a step of decoding has to
 * read once), "read GB/s", "f32 GFLOP/s", "bf16 GFLOP/s", "int8 GOP/s" (only what this family of kernels may use:
 * forced to avx2, 256-bit registers), "gemm GOP/s" (all products of a prefill step of 512 rows but the head's, tasks
 * cut as engine/forward cuts them, activations already quantised; a product and a sum are two). */
#include "kvf/kernels.h"
#include "kvf/model_spec.h"
#include "kvf/os.h"
#include "pool.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 512, ROWS_A_TASK = 240, READ_BYTES = 256 << 20, READ_TASKS = 64, GROUPS_OF_PRODUCTS = 4 };

/* ---- arithmetic: independent chains in registers, nothing from memory ---- */

#if defined(__x86_64__)
#include <immintrin.h>
enum { CHAINS = 12, LOOPS = 4000000 };
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define LOOP(type, start, next, sum)                                                                                   \
    type a[CHAINS];                                                                                                    \
    UNROLL for (int i = 0; i < CHAINS; i++) a[i] = start;                                                              \
    for (int r = 0; r < LOOPS; r++) UNROLL for (int i = 0; i < CHAINS; i++) a[i] = next;                               \
    UNROLL for (int i = 1; i < CHAINS; i++) a[0] = sum(a[0], a[i])

__attribute__((target("avx2,fma"))) static float f32_256(int seed) {
    __m256 b = _mm256_set1_ps(1e-9f), c = _mm256_set1_ps(0.5f);
    LOOP(__m256, _mm256_set1_ps((float)(i + seed)), _mm256_fmadd_ps(a[i], c, b), _mm256_add_ps);
    return _mm256_cvtss_f32(a[0]);
}
__attribute__((target("avx512f"))) static float f32_512(int seed) {
    __m512 b = _mm512_set1_ps(1e-9f), c = _mm512_set1_ps(0.5f);
    LOOP(__m512, _mm512_set1_ps((float)(i + seed)), _mm512_fmadd_ps(a[i], c, b), _mm512_add_ps);
    return _mm512_cvtss_f32(a[0]);
}
__attribute__((target("avx512f,avx512vnni"))) static float int8_512(int seed) {
    __m512i b = _mm512_set1_epi32(0x01020304), c = _mm512_set1_epi32(0x01010101 + seed);
    LOOP(__m512i, _mm512_set1_epi32(i), _mm512_dpbusd_epi32(a[i], c, b), _mm512_add_epi32);
    return (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(a[0]));
}
__attribute__((target("avx512f,avx512bf16"))) static float bf16_512(int seed) {
    __m512bh b = (__m512bh)_mm512_set1_epi32(0x3f803f80), c = (__m512bh)_mm512_set1_epi32(0x3f003f00 + seed);
    LOOP(__m512, _mm512_set1_ps((float)i), _mm512_dpbf16_ps(a[i], c, b), _mm512_add_ps);
    return _mm512_cvtss_f32(a[0]);
}
typedef struct {
    const char *name;
    double operations; /* of one instruction */
    float (*run)(int seed);
    bool wide; /* 512-bit */
    const char *needs;
} peak;
static const peak peaks[] = {
    {"f32 GFLOP/s", 16, f32_256, false, "fma"},
    {"f32 GFLOP/s", 32, f32_512, true, "avx512f"},
    {"bf16 GFLOP/s", 64, bf16_512, true, "avx512bf16"},
    {"int8 GOP/s", 128, int8_512, true, "avx512vnni"},
};
static bool can(const peak *p) {
    if (strcmp(p->needs, "fma") == 0) return __builtin_cpu_supports("fma");
    if (strcmp(p->needs, "avx512f") == 0) return __builtin_cpu_supports("avx512f");
    if (strcmp(p->needs, "avx512bf16") == 0) return __builtin_cpu_supports("avx512bf16");
    return __builtin_cpu_supports("avx512vnni");
}
#else
typedef struct {
    const char *name;
    double operations;
    float (*run)(int seed);
    bool wide;
} peak;
static const peak peaks[] = {{"none", 0, NULL, false}}; /* no loop for this processor yet: only reading and products */
enum { CHAINS = 0, LOOPS = 0 };
static bool can(const peak *p) { return p->run != NULL; }
#endif

typedef struct {
    kvf_pool *pool;
    uint32_t threads;
    const kvf_kernel_ops *ops;
    const peak *peak;
    const uint8_t *bytes;
    _Atomic uint64_t sink;
    kvf_packed *packed;
    uint32_t packed_count;
    double operations; /* of one gemm */
    /* of the products that run now */
    const kvf_packed *first;
    uint32_t count, row_tasks;
    kvf_rows x;
    int8_t *q;
    kvf_group_scale *scale;
    float *y;
} limits;

static void peak_task(void *self, uint32_t task, uint32_t thread) {
    limits *l = self;
    l->sink += (uint64_t)(l->peak->run((int)(l->sink & 1)) != 0.25f);
}
static void read_task(void *self, uint32_t task, uint32_t thread) {
    limits *l = self;
    const uint64_t *at = (const uint64_t *)(const void *)(l->bytes + (size_t)task * (READ_BYTES / READ_TASKS));
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < READ_BYTES / READ_TASKS / 8; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += at[i + (size_t)k];
    for (int k = 0; k < 8; k++) l->sink += sum[k];
}

/* ---- our products ---- */

static uint32_t tasks_of(const limits *l, const kvf_packed *w) { return w->pairs * l->row_tasks; }
static void product_task(void *self, uint32_t task, uint32_t thread) {
    limits *l = self;
    const kvf_packed *w = l->first;
    for (; task >= tasks_of(l, w); w++) task -= tasks_of(l, w);
    uint32_t row = task % l->row_tasks * ROWS_A_TASK, panel = task / l->row_tasks * 2;
    uint32_t offset = 0; /* each matrix has its columns of y */
    for (const kvf_packed *before = l->first; before < w; before++) offset += before->panels * KVF_PANEL;
    size_t stride = offset;
    for (const kvf_packed *p = w; p < l->first + l->count; p++) stride += p->panels * KVF_PANEL;
    kvf_product out = {l->y + row * stride + offset + (size_t)panel * KVF_PANEL, stride, false};
    l->ops->matmul_q(
        w, &l->x, row, KVF_MIN(ROWS - row, (uint32_t)ROWS_A_TASK), panel, KVF_MIN(w->panels - panel, 2u), &out);
}
static void gemm(limits *l) {
    static const uint8_t together[GROUPS_OF_PRODUCTS] = {3, 1, 2, 1}; /* q k v; o; gate, up; down */
    for (uint32_t at = 0, i = 0; at < l->packed_count; at += l->count, i++) {
        l->first = l->packed + at;
        l->count = together[i % GROUPS_OF_PRODUCTS];
        l->x = (kvf_rows){.q = l->q, .scale = l->scale, .groups = l->first->groups};
        uint32_t tasks = 0;
        for (uint32_t k = 0; k < l->count; k++) tasks += tasks_of(l, &l->first[k]);
        kvf_pool_run(l->pool, product_task, l, tasks);
    }
}

static bool pack(limits *l, const kvf_gguf_tensor *t) {
    kvf_packed *p = &l->packed[l->packed_count++];
    kvf_pack_plan(p, t->type, t->data, (uint32_t)t->dims[1], (uint32_t)t->dims[0]);
    if (!kvf_pack_is_quantised(p->kind)) return false;
    uint8_t *data = aligned_alloc(64, p->pairs * p->pair_bytes);
    void *scratch = malloc(kvf_pack_scratch_bytes(p));
    if (data && scratch) kvf_pack_pairs(p, t->type, t->data, 0, p->pairs, data, scratch);
    free(scratch);
    p->data = data;
    l->operations += 2.0 * ROWS * (double)t->dims[0] * (double)t->dims[1];
    return data != NULL;
}

static bool load(limits *l, const kvf_model_spec *s) {
    uint32_t widest = KVF_MAX(KVF_MAX(s->hidden, s->ffn), s->heads * s->head_dim);
    size_t values = (size_t)ROWS * kvf_div_up(widest, KVF_GROUP) * KVF_GROUP;
    l->packed = calloc((size_t)s->layers * 7, sizeof *l->packed);
    l->q = calloc(values, 1);
    l->scale = calloc(values / KVF_GROUP, sizeof *l->scale);
    float *x = calloc(values, sizeof *x);
    l->y = calloc(((size_t)s->ffn * 2 + (size_t)s->heads * s->head_dim * 3 + s->hidden + 128) * ROWS, sizeof *l->y);
    bool ok = l->packed && l->q && l->scale && x && l->y;
    for (size_t i = 0; ok && i < values; i++) x[i] = (float)((i * 2654435761u >> 7) % 2001) / 1000.0f - 1;
    if (ok) l->ops->quantise(x, (uint32_t)values, l->q, l->scale);
    free(x);
    for (uint32_t i = 0; ok && i < s->layers; i++) {
        const kvf_model_layer *w = &s->layer[i];
        const kvf_gguf_tensor *all[] = {
            w->attn_q, w->attn_k, w->attn_v, w->attn_output, w->ffn_gate, w->ffn_up, w->ffn_down};
        for (size_t k = 0; ok && k < KVF_COUNT_OF(all); k++) ok = pack(l, all[k]);
    }
    return ok;
}

static double weight_bytes(const kvf_gguf *g, const kvf_model_spec *s) {
    double bytes = 0;
    for (size_t i = 0; i < kvf_gguf_tensor_count(g); i++) {
        const kvf_gguf_tensor *t = kvf_gguf_tensor_at(g, i);
        const kvf_dtype_info *info = kvf_dtype_find(t->type);
        if (t == s->embedding && !s->head_tied) continue; /* one row a token */
        double values = 1;
        for (size_t d = 0; d < KVF_COUNT_OF(t->dims); d++) values *= (double)KVF_MAX(t->dims[d], (uint64_t)1);
        bytes += values / info->block_values * info->block_bytes;
    }
    return bytes;
}

static double seconds_since(kvf_time_ns start) { return (double)(kvf_os_now_ns() - start) / 1e9; }

static void measure(limits *l, uint32_t rounds) {
    bool narrow = strcmp(l->ops->name, "avx2") == 0 || strcmp(l->ops->name, "ref") == 0;
    double best[KVF_COUNT_OF(peaks)] = {0}, read = 0, product = 0;
    for (uint32_t r = 0; r < rounds; r++) {
        for (size_t i = 0; i < KVF_COUNT_OF(peaks); i++) {
            l->peak = &peaks[i];
            if (peaks[i].wide == narrow || !can(l->peak)) continue;
            kvf_time_ns start = kvf_os_now_ns();
            kvf_pool_run(l->pool, peak_task, l, l->threads);
            best[i] = KVF_MAX(best[i], l->threads * peaks[i].operations * CHAINS * LOOPS / seconds_since(start) / 1e9);
        }
        kvf_time_ns start = kvf_os_now_ns();
        kvf_pool_run(l->pool, read_task, l, READ_TASKS);
        read = fmax(read, READ_BYTES / seconds_since(start) / 1e9);
        start = kvf_os_now_ns();
        gemm(l);
        product = fmax(product, l->operations / seconds_since(start) / 1e9);
    }
    printf("read GB/s %.1f\n", read);
    for (size_t i = 0; i < KVF_COUNT_OF(peaks); i++)
        if (best[i] > 0) printf("%s %.1f\n", peaks[i].name, best[i]);
    printf("gemm GOP/s %.1f\n", product);
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    uint32_t threads = argc > 2 ? (uint32_t)atoi(argv[2]) : kvf_os_cpu_count(),
             rounds = argc > 3 ? (uint32_t)atoi(argv[3]) : 5;
    limits l = {.threads = threads,
        .row_tasks = (uint32_t)kvf_div_up(ROWS, ROWS_A_TASK),
        .ops = kvf_kernels_find(getenv("KVFERRY_CPU"))};
    kvf_gguf *g;
    kvf_model_spec s;
    kvf_error err = {0};
    if (threads < 1 || threads > 64 || rounds < 1 || !l.ops) return 64;
    if (kvf_gguf_open(argv[1], &g, &err) != KVF_OK || kvf_model_spec_load(g, &s, &err) != KVF_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    uint8_t *bytes = aligned_alloc(64, READ_BYTES);
    if (!bytes || !load(&l, &s) || kvf_pool_create(threads, NULL, &l.pool) != KVF_OK) {
        fprintf(stderr, "limits: out of memory, or matrices without an 8-bit product\n");
        return 1;
    }
    memset(bytes, 1, READ_BYTES);
    l.bytes = bytes;
    printf("kernels %s\nweights %.0f\n", l.ops->name, weight_bytes(g, &s));
    measure(&l, rounds);
    kvf_pool_destroy(l.pool);
    return 0;
}
