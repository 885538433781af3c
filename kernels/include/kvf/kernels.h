/* kvf/kernels.h - the arithmetic of a forward pass behind one ops table, and the packed form of weights it works on.
 *
 * Same bits. Every table gives the same bits for the same arguments (tests/unit/kernels compares them all with `ref`),
 * because each operation is defined down to the order of its roundings:
 * 1. An output of a matrix product is one chain over ascending k. f32: acc = fma(x[k], w[k], acc). 8-bit: per 32 values
 * an exact integer dot product i, then (4-bit kinds) acc = fma(m, us, acc), then acc = fma((float)i * d, s, acc).
 * bf16: over pairs, the odd value first: acc = fma(x[k+1], w[k+1], acc), then acc = fma(x[k], w[k], acc); subnormal
 * weights and results, and what the output is added to, are zeros of their sign (what AVX-512's vdpbf16ps does).
 * 2. A reduction along a row has 16 lanes (lane = index mod 16, ascending), then lanes j and j+8 are added, then +4,
 * +2, +1.
 * 3. Attention: a score is one fma chain over ascending d; softmax and values over fixed splits of 256 absolute
 * positions, which are folded left to right; masked positions are skipped.
 * 4. exp, sin, cos are our own polynomials; division and square root are IEEE.
 *
 * Weights are cut into panels of 16 outputs. A panel is a contiguous stream over k, so a table may take one row or many
 * against it. The packed form does not depend on the table: a packed image may be shared by processes. Pure functions;
 * any thread; memory is the caller's. No pointer needs alignment unless said. */
#ifndef KVF_KERNELS_H
#define KVF_KERNELS_H
#include "kvf/base.h"
#include "kvf/quant.h"

#define KVF_PANEL 16 /* outputs of one panel */
#define KVF_GROUP 32 /* values that share a scale; packed rows are padded with zeros to whole groups */
#define KVF_ATTENTION_SPLIT 256
#define KVF_PAGE_TOKENS 16

/* Packed kinds. Q*: codes and scales, used with 8-bit or f32 activations; BF16 with bf16 or f32; the others with
 * f32 only. */
typedef enum {
    KVF_PACK_Q4, /* per group and panel: 256 bytes of nibbles, d[16], m[16] as f16;  w = d*q + m, q 0..15. 5 bits a
                    weight */
    KVF_PACK_Q4F, /* the same with d, m as f32. 6 bits */
    KVF_PACK_Q8, /* per group: 512 codes q+128 of each panel, then d[16] as f16 of each; w = d*q. 8.5 bits */
    KVF_PACK_Q8G, /* codes as Q8, then per panel d[16] of the first 16 values, d[16] of the others, as f32. 10 bits */
    KVF_PACK_Q8M, /* codes as Q8, then per panel d[16], m[16] as f32; w = d*q + m. 10 bits */
    KVF_PACK_F16,
    KVF_PACK_BF16,
    KVF_PACK_F32
} kvf_pack_kind;

typedef struct {
    kvf_pack_kind kind;
    uint32_t outputs, inputs; /* rows of the matrix and their length */
    uint32_t panels, groups; /* outputs/16 and inputs/32, rounded up */
    uint32_t pairs; /* panels/2, rounded up */
    uint32_t group_bytes; /* of one group of a pair; a multiple of 64 */
    size_t pair_bytes; /* groups * group_bytes */
    const uint8_t *data; /* [pairs][groups][group_bytes], aligned to 64 */
} kvf_packed;

/* Chooses the kind that keeps every weight exactly and fills in all but `data`. `src` holds `outputs` rows. */
void kvf_pack_plan(kvf_packed *p, kvf_dtype type, const void *src, uint32_t outputs, uint32_t inputs);
/* Packs pairs [begin, end) into dst, the place of pair `begin`. `scratch`: kvf_pack_scratch_bytes. */
size_t kvf_pack_scratch_bytes(const kvf_packed *p);
void kvf_pack_pairs(
    const kvf_packed *p, kvf_dtype type, const void *src, uint32_t begin, uint32_t end, uint8_t *dst, void *scratch);
static inline bool kvf_pack_is_quantised(kvf_pack_kind kind) { return kind <= KVF_PACK_Q8M; }

/* Scale of one group of 8-bit activations. */
typedef struct {
    float s; /* x = s * q, |q| <= 127 */
    float us; /* s * sum(q) */
    int32_t neg_128[2]; /* -128 * sum of the first 16 q, of the others: takes the offset out of 8-bit weight codes */
} kvf_group_scale;

/* Rows of activations. f32 rows are `f32_stride` apart and padded with zeros to whole groups. */
typedef struct {
    const float *f32;
    size_t f32_stride;
    const int8_t *q; /* [row][groups * 32] */
    const kvf_group_scale *scale; /* [row][groups] */
    const uint16_t *bf16; /* [row][groups * 32] */
    uint32_t groups;
} kvf_rows;

typedef struct {
    float *y; /* [rows][stride]: element 0 is the call's first row and first output */
    size_t stride;
    bool add; /* y += product (one more rounding) instead of y = product */
} kvf_product;

/* What K and V are kept in, a row (one head of one position) at a time.
 * Q8: [head_dim] codes, then a scale s as f16 for each 32 of them, w = s * code. s: largest |x| / 127 rounded to f16
 * (65504 at most); code: nearest(x * (1 / s)), -127 to 127; all 0 where s is 0. A group with a NaN or an infinity has
 * codes 0 and s = NaN. */
typedef enum { KVF_CELL_F16, KVF_CELL_F32, KVF_CELL_Q8 } kvf_cell;
static inline size_t kvf_cell_row_bytes(kvf_cell cell, uint32_t head_dim) {
    if (cell == KVF_CELL_Q8) return head_dim + 2 * (size_t)kvf_div_up(head_dim, KVF_GROUP);
    return (size_t)head_dim * (cell == KVF_CELL_F16 ? 2 : 4);
}

/* One token of a gathered tile. */
typedef struct {
    const uint32_t *blocks; /* of its sequence */
    uint32_t position;
    uint32_t row; /* its q and out are so many strides from the tile's */
} kvf_attention_token;

/* One tile of attention: consecutive tokens of one sequence against everything up to themselves, for the query heads
 * that share one key head. Or a gathered tile: tokens of several sequences whose first positions lie in the same
 * blocks; those are read once for all of them, and each token's bits are those of a tile of its own. Page: K
 * [kv_heads][16] rows of cells, then V the same. */
typedef struct {
    const float *q; /* first token's heads of this group: [group][head_dim], tokens q_stride apart; already rotated */
    float *out; /* same shape, out_stride apart */
    size_t q_stride, out_stride;
    const uint8_t *pages; /* of the layer */
    size_t page_bytes;
    const uint32_t *blocks; /* physical block of positions [16*i, 16*i+16) */
    uint32_t position; /* of the first token */
    uint32_t tokens;
    const kvf_attention_token *each; /* gathered: [tokens]; `position` is not read. Else NULL */
    uint32_t shared; /* gathered: positions common to all, whole pages, behind no token's own; their pages: `blocks` */
    uint32_t kv_head, kv_heads, group, head_dim;
    float scale; /* score = chain * scale */
    kvf_cell cell;
    float *scratch; /* kvf_attention_scratch_floats(tokens * group, head_dim), aligned to 64 */
} kvf_attention;
size_t kvf_attention_scratch_floats(uint32_t rows, uint32_t head_dim);

typedef struct {
    const char *name; /* "ref"; "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16"; "neon", "neon-dotprod",
                         "neon-i8mm" */
    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x. */
    void (*rms_norm)(const float *x, const float *w, float eps, uint32_t count, float *y);
    /* Per 32 values: s = max|x| / 127, q = nearest(x * (127 / max|x|)); a short last group is filled with zeros. A
     * group with a NaN or an infinity gets q = 0, s = NaN. */
    void (*quantise)(const float *x, uint32_t count, int8_t *q, kvf_group_scale *scale);
    /* rows [row, row+rows) of x against panels [panel, panel+panels) of w. */
    void (*matmul_q)(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
        uint32_t panels, const kvf_product *out);
    void (*matmul_f)(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
        uint32_t panels, const kvf_product *out);
    /* For KVF_PACK_BF16: x in both forms that round_bf16 gives. */
    void (*matmul_b)(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
        uint32_t panels, const kvf_product *out);
    /* x to the nearest (even) bf16, in place and into dst; subnormals become zeros of their sign. */
    void (*round_bf16)(float *x, uint32_t count, uint16_t *dst);
    void (*add)(float *x, const float *y, uint32_t count); /* x += y */
    /* x[heads][head_dim], the first 2*pairs of each head rotated: a' = fma(a, c, -(b*s)), b' = fma(a, s, b*c).
     * cos_sin: [pairs] cosines, then [pairs] sines. halves: pair i is (i, i+pairs), else (2i, 2i+1). */
    void (*rope)(float *x, uint32_t heads, uint32_t head_dim, const float *cos_sin, uint32_t pairs, bool halves);
    void (*swiglu)(float *gate, const float *up, uint32_t count); /* gate = gate / (1 + exp(-gate)) * up */
    void (*store_cells)(
        const float *x, uint32_t count, kvf_cell cell, void *dst); /* one row, rounded to the cell's type */
    void (*attention)(const kvf_attention *a);
} kvf_kernel_ops;

#define KVF_KERNELS_MAX 8
/* Tables this processor can run, best first; the last is always "ref". */
size_t kvf_kernels_list(const kvf_kernel_ops *list[KVF_KERNELS_MAX]);
/* NULL, "" or "auto": the best. A name: exactly that one, NULL when it does not exist or cannot run here. */
const kvf_kernel_ops *kvf_kernels_find(const char *name);

/* Frequencies and angles of rotary embedding, in double with our own exp, log, sin, cos: equal on every machine. */
void kvf_rope_frequencies(double base, double scale, const float *factors, uint32_t dims, double *frequency);
void kvf_rope_angles(const double *frequency, uint32_t pairs, uint32_t position, float *cos_sin);
void kvf_sin_cos(double x, double *sine, double *cosine); /* |x| < 2^24 */
double kvf_exp_double(double x);
double kvf_log_double(double x);
#endif
