/* The inner kernels with shapes small enough to step through (1,000 to 40,000 instructions) and large enough for the
 * inner loop to dominate. Values do not matter, but must be ordinary: no path for zeros or NaN. */
#include "instructions.h"
#include <stdlib.h>

enum {
    INPUTS = 128,
    OUTPUTS = 32,
    ROWS = 12, /* whole tiles of 2, 3, 4, 6; one tile of 8 and what is left */
    KINDS = 4,
    HEAD = 64,
    GROUP = 3,
    TOKENS = 3, /* of a tile of prefill; sequences of a gathered one */
    CONTEXT = 32, /* positions that a tile sees before its own */
    BLOCKS = CONTEXT / KVF_PAGE_TOKENS + TOKENS, /* each sequence has one of its own behind the shared ones */
    PAGE_BYTES = 2 * KVF_PAGE_TOKENS * HEAD * 2,
    VALUES = 512
};

struct instruction_data {
    kvf_packed weights[KINDS];
    kvf_rows rows;
    float *x, *y, *q, *out, *scratch;
    int8_t *codes;
    uint16_t *bf16;
    kvf_group_scale *scale;
    uint8_t *pages;
    uint32_t blocks[TOKENS][BLOCKS];
    kvf_attention_token each[TOKENS];
};

typedef enum { WEIGHTS_Q4, WEIGHTS_Q8, WEIGHTS_BF16, WEIGHTS_F32 } weights_index;
static const kvf_dtype weight_types[KINDS] = {KVF_DTYPE_Q4_1, KVF_DTYPE_Q8_0, KVF_DTYPE_BF16, KVF_DTYPE_F32};

static float *floats(size_t count) {
    float *p = aligned_alloc(64, kvf_align_up(count * sizeof *p, 64));
    for (size_t i = 0; p && i < count; i++) p[i] = (float)(int32_t)(i * 2654435761u % 1999) / 1000 - 1;
    return p;
}

/* Any bytes are codes; a scale of 0x20 in both bytes is a small half, bf16 or float. */
static bool make_weights(kvf_packed *w, kvf_dtype type) {
    const kvf_dtype_info *info = kvf_dtype_find(type);
    size_t bytes = (size_t)OUTPUTS * INPUTS / info->block_values * info->block_bytes;
    uint8_t *source = malloc(bytes);
    if (!source) return false;
    memset(source, 0x20, bytes);
    kvf_pack_plan(w, type, source, OUTPUTS, INPUTS);
    uint8_t *packed = aligned_alloc(64, w->pairs * w->pair_bytes);
    void *scratch = malloc(kvf_pack_scratch_bytes(w));
    if (packed && scratch) kvf_pack_pairs(w, type, source, 0, w->pairs, packed, scratch);
    w->data = packed;
    free(scratch);
    free(source);
    return packed && scratch;
}

static void make_blocks(instruction_data *d) {
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t b = 0; b < BLOCKS; b++) d->blocks[t][b] = b;
        d->blocks[t][CONTEXT / KVF_PAGE_TOKENS] += t;
        d->each[t] = (kvf_attention_token){.blocks = d->blocks[t], .position = CONTEXT + t, .row = t};
    }
}

instruction_data *instruction_data_make(void) {
    instruction_data *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->x = floats(KVF_MAX((uint32_t)ROWS * INPUTS, (uint32_t)VALUES));
    d->y = floats(KVF_MAX((uint32_t)ROWS * OUTPUTS, (uint32_t)VALUES));
    d->q = floats(TOKENS * GROUP * HEAD);
    d->out = floats(TOKENS * GROUP * HEAD);
    d->scratch = floats(kvf_attention_scratch_floats(TOKENS * GROUP, HEAD));
    d->codes = malloc(ROWS * INPUTS);
    d->bf16 = malloc(KVF_MAX(ROWS * INPUTS, VALUES) * sizeof *d->bf16);
    d->scale = malloc(ROWS * INPUTS / KVF_GROUP * sizeof *d->scale);
    d->pages = malloc((size_t)BLOCKS * PAGE_BYTES);
    bool good = d->x && d->bf16 && d->y && d->q && d->out && d->scratch && d->codes && d->scale && d->pages;
    for (uint32_t i = 0; good && i < KINDS; i++) good = make_weights(&d->weights[i], weight_types[i]);
    if (!good) return NULL;
    memset(d->pages, 0x20, (size_t)BLOCKS * PAGE_BYTES);
    kvf_kernels_find("ref")->quantise(d->x, ROWS * INPUTS, d->codes, d->scale);
    kvf_kernels_find("ref")->round_bf16(d->x, ROWS * INPUTS, d->bf16);
    d->rows = (kvf_rows){.f32 = d->x,
        .f32_stride = INPUTS,
        .q = d->codes,
        .scale = d->scale,
        .bf16 = d->bf16,
        .groups = INPUTS / KVF_GROUP};
    make_blocks(d);
    return d;
}

static void product(const kvf_kernel_ops *ops, instruction_data *d, weights_index index, bool q, uint32_t rows) {
    kvf_product out = {.y = d->y, .stride = OUTPUTS};
    (q ? ops->matmul_q : ops->matmul_f)(&d->weights[index], &d->rows, 0, rows, 0, OUTPUTS / KVF_PANEL, &out);
}
static void q4_rows(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_Q4, true, ROWS); }
static void q4_one(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_Q4, true, 1); }
static void q8_rows(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_Q8, true, ROWS); }
static void q8_one(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_Q8, true, 1); }
static void f_q4_rows(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_Q4, false, ROWS); }
static void f_q4_one(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_Q4, false, 1); }
static void f_bf16_rows(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_BF16, false, ROWS); }
static void f_bf16_one(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_BF16, false, 1); }
static void f_f32_rows(const kvf_kernel_ops *ops, instruction_data *d) { product(ops, d, WEIGHTS_F32, false, ROWS); }

static void b_product(const kvf_kernel_ops *ops, instruction_data *d, uint32_t rows) {
    kvf_product out = {.y = d->y, .stride = OUTPUTS};
    ops->matmul_b(&d->weights[WEIGHTS_BF16], &d->rows, 0, rows, 0, OUTPUTS / KVF_PANEL, &out);
}
static void b_rows(const kvf_kernel_ops *ops, instruction_data *d) { b_product(ops, d, ROWS); }
static void b_one(const kvf_kernel_ops *ops, instruction_data *d) { b_product(ops, d, 1); }
static void to_bf16(const kvf_kernel_ops *ops, instruction_data *d) { ops->round_bf16(d->x, VALUES, d->bf16); }

static kvf_attention attention_of(instruction_data *d) {
    return (kvf_attention){.q = d->q,
        .out = d->out,
        .q_stride = GROUP * HEAD,
        .out_stride = GROUP * HEAD,
        .pages = d->pages,
        .page_bytes = PAGE_BYTES,
        .blocks = d->blocks[0],
        .position = CONTEXT,
        .kv_heads = 1,
        .group = GROUP,
        .head_dim = HEAD,
        .scale = 0.125f,
        .cell = KVF_CELL_F16,
        .scratch = d->scratch};
}
static void attend_prefill(const kvf_kernel_ops *ops, instruction_data *d) {
    kvf_attention a = attention_of(d);
    a.tokens = TOKENS;
    ops->attention(&a);
}
static void attend_decode(const kvf_kernel_ops *ops, instruction_data *d) {
    kvf_attention a = attention_of(d);
    a.position = CONTEXT + KVF_PAGE_TOKENS - 1;
    a.tokens = 1;
    ops->attention(&a);
}
static void attend_shared(const kvf_kernel_ops *ops, instruction_data *d) {
    kvf_attention a = attention_of(d);
    a.tokens = TOKENS;
    a.each = d->each;
    a.shared = CONTEXT;
    ops->attention(&a);
}

static void norm(const kvf_kernel_ops *ops, instruction_data *d) { ops->rms_norm(d->x, d->x, 1e-5f, VALUES, d->y); }
static void quantise(const kvf_kernel_ops *ops, instruction_data *d) {
    ops->quantise(d->x, VALUES, d->codes, d->scale);
}
static void swiglu(const kvf_kernel_ops *ops, instruction_data *d) { ops->swiglu(d->y, d->x, VALUES); }
static void rope(const kvf_kernel_ops *ops, instruction_data *d) {
    ops->rope(d->y, VALUES / HEAD, HEAD, d->x, HEAD / 2, false);
}
static void store(const kvf_kernel_ops *ops, instruction_data *d) {
    ops->store_cells(d->x, VALUES, KVF_CELL_F16, d->pages);
}

#define PRODUCTS(rows) ((uint64_t)(rows)*INPUTS * OUTPUTS)
/* Positions that all tokens of a prefill tile see together, twice: scores and values. */
#define PREFILL_PRODUCTS ((uint64_t)2 * HEAD * GROUP * (TOKENS * CONTEXT + TOKENS * (TOKENS + 1) / 2))
#define KV_BYTES(positions) ((uint64_t)(positions)*2 * HEAD * 2)
const instruction_case instruction_cases[] = {
    {"int8-q4-12-rows", "multiply-add", PRODUCTS(ROWS), q4_rows},
    {"int8-q4-1-row", "multiply-add", PRODUCTS(1), q4_one},
    {"int8-q8-12-rows", "multiply-add", PRODUCTS(ROWS), q8_rows},
    {"int8-q8-1-row", "multiply-add", PRODUCTS(1), q8_one},
    {"f32-q4-12-rows", "multiply-add", PRODUCTS(ROWS), f_q4_rows},
    {"f32-q4-1-row", "multiply-add", PRODUCTS(1), f_q4_one},
    {"f32-bf16-12-rows", "multiply-add", PRODUCTS(ROWS), f_bf16_rows},
    {"f32-bf16-1-row", "multiply-add", PRODUCTS(1), f_bf16_one},
    {"f32-f32-12-rows", "multiply-add", PRODUCTS(ROWS), f_f32_rows},
    {"bf16-12-rows", "multiply-add", PRODUCTS(ROWS), b_rows},
    {"bf16-1-row", "multiply-add", PRODUCTS(1), b_one},
    {"attention-prefill", "multiply-add", PREFILL_PRODUCTS, attend_prefill},
    {"attention-decode", "KV byte", KV_BYTES(CONTEXT + KVF_PAGE_TOKENS), attend_decode},
    {"attention-3-shared", "KV byte", KV_BYTES(CONTEXT + TOKENS * (TOKENS + 1) / 2), attend_shared},
    {"rms-norm", "value", VALUES, norm},
    {"quantise", "value", VALUES, quantise},
    {"round-bf16", "value", VALUES, to_bf16},
    {"swiglu", "value", VALUES, swiglu},
    {"rope", "value", VALUES, rope},
    {"store-f16", "value", VALUES, store},
};
const uint32_t instruction_cases_count = KVF_COUNT_OF(instruction_cases);
