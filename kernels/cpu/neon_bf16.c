/* Advanced SIMD with dot products, 8-bit matrix products and BF16 (Armv8.6 and later). bfmlalt and bfmlalb take every
 * second bf16 of a register, the odd or the even ones, times one bf16, and add to f32 by fused multiply-adds, rounded
 * as those are: what vdpbf16ps does in one instruction. bfdot and bfmmla do more at a time, but round their sums to
 * odd: other bits. */
#include "lanes_neon.h"
#define KVF_SCORE_ROWS 4
#define KVF_OWN_B_MATRIX
#include "tuned.h"
#include "tuned_attention.h"

#define DOT4(acc, codes, x) vdotq_s32((acc), (codes), (x))
#define KVF_DOT_PAIRS
#include "int8_neon.h"

/* A register of weights is 8 outputs at one k, its sums are two: of outputs 0, 2, 4, 6 and of 1, 3, 5, 7. Three rows
 * would fit, but an indexed operand must lie in the first sixteen registers, and then sums are spilled. */
enum { B_ROWS = 2, B_PANELS = 2, B_PARTS = 2 * B_PANELS, B_AHEAD = 0, B_VALUES = 8 };

LANES_INLINE bfloat16x8_t b_load(const void *at) { return vreinterpretq_bf16_u8(vld1q_u8(at)); }

/* Value `lane` (a literal) of the eight of each row. */
#define B_STEP(lane)                                                                                                   \
    do {                                                                                                               \
        bfloat16x8_t weight[B_PARTS];                                                                                  \
        UNROLL for (int o = 0; o < 2 * PANELS; o++) weight[o] = b_load(at[o / 2] + 32 * (lane) + 16 * (o % 2));        \
        UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int o = 0; o < 2 * PANELS; o++) {                            \
            even[t][o] = vbfmlalbq_laneq_f32(even[t][o], weight[o], value[t], (lane));                                 \
            odd[t][o] = vbfmlaltq_laneq_f32(odd[t][o], weight[o], value[t], (lane));                                   \
        }                                                                                                              \
    } while (0)

LANES_INLINE void b_values(const int ROWS, const int PANELS, const uint8_t *const at[B_PANELS], const uint16_t *x,
    size_t stride, float32x4_t even[B_ROWS][B_PARTS], float32x4_t odd[B_ROWS][B_PARTS]) {
    bfloat16x8_t value[B_ROWS];
    UNROLL for (int t = 0; t < ROWS; t++) value[t] = b_load(x + t * stride);
    B_STEP(1);
    B_STEP(0);
    B_STEP(3);
    B_STEP(2);
    B_STEP(5);
    B_STEP(4);
    B_STEP(7);
    B_STEP(6);
}

LANES_INLINE void b_tile(const int ROWS, const int PANELS, const kvf_packed *w, const kvf_rows *x, uint32_t row,
    uint32_t panel, uint32_t first_panel, uint32_t first_row, size_t ahead, const kvf_product *out) {
    const uint32_t bytes = group_bytes_of(KVF_PACK_BF16);
    const size_t stride = (size_t)x->groups * KVF_GROUP;
    const uint16_t *at_row = x->bf16 + row * stride;
    const uint8_t *group = w->data + panel / 2 * w->pair_bytes + kvf_codes_offset(KVF_PACK_BF16, bytes, panel);
    float32x4_t even[B_ROWS][B_PARTS], odd[B_ROWS][B_PARTS];
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int o = 0; o < 2 * PANELS; o++) even[t][o] = odd[t][o] =
        vdupq_n_f32(0);
    for (uint32_t g = 0; g < w->groups; g++, group += bytes) {
        if (ahead)
            for (uint32_t line = 0; line < bytes; line += 64) lanes_prefetch(group + ahead + line);
        for (int k = 0; k < KVF_GROUP; k += B_VALUES, at_row += B_VALUES) {
            const uint8_t *at[B_PANELS] = {group + 32 * k, group + bytes / 2 + 32 * k};
            b_values(ROWS, PANELS, at, at_row, stride, even, odd);
        }
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) {
        const float32x4_t *e = &even[t][2 * p], *o = &odd[t][2 * p];
        uint32_t index = panel + (uint32_t)p;
        v16 sum = {vzip1q_f32(e[0], o[0]), vzip2q_f32(e[0], o[0]), vzip1q_f32(e[1], o[1]), vzip2q_f32(e[1], o[1])};
        put_outputs(out, first_row + (uint32_t)t, index - first_panel, w->outputs - index * KVF_PANEL, sum);
    }
}

#include "bf16_matmul.h"

const kvf_kernel_ops kvf_kernels_neon_bf16 = KVF_KERNEL_TABLE("neon-bf16");
