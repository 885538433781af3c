/* Private to kernels: the tables, and the constants that every implementation of an operation must share. */
#ifndef KVF_KERNELS_INT_H
#define KVF_KERNELS_INT_H
#include "kvf/kernels.h"

/* The table of a source that defines every operation under its own name. */
#define KVF_KERNEL_TABLE(family)                                                                                       \
    {                                                                                                                  \
        .name = (family), .rms_norm = rms_norm, .quantise = quantise, .matmul_q = matmul_q, .matmul_f = matmul_f,      \
        .matmul_b = matmul_b, .round_bf16 = round_bf16, .add = add, .rope = rope, .swiglu = swiglu,                    \
        .store_cells = store_cells, .attention = attention                                                             \
    }

extern const kvf_kernel_ops kvf_kernels_ref;
#if defined(KVF_KERNELS_X86)
extern const kvf_kernel_ops kvf_kernels_avx2;
extern const kvf_kernel_ops kvf_kernels_avx_vnni;
extern const kvf_kernel_ops kvf_kernels_avx512;
extern const kvf_kernel_ops kvf_kernels_avx512_vnni;
extern const kvf_kernel_ops kvf_kernels_avx512_bf16;
#elif defined(KVF_KERNELS_ARM)
extern const kvf_kernel_ops kvf_kernels_neon;
extern const kvf_kernel_ops kvf_kernels_neon_dotprod;
extern const kvf_kernel_ops kvf_kernels_neon_i8mm;
extern const kvf_kernel_ops kvf_kernels_neon_bf16;
#endif

/* Where the codes (or values) and the scales of one panel lie inside a group of its pair. */
static inline bool kvf_kind_has_bytes(kvf_pack_kind kind) {
    return kind == KVF_PACK_Q8 || kind == KVF_PACK_Q8G || kind == KVF_PACK_Q8M;
}
static inline size_t kvf_codes_offset(kvf_pack_kind kind, uint32_t group_bytes, uint32_t panel) {
    return panel % 2 * (kvf_kind_has_bytes(kind) ? (size_t)512 : group_bytes / 2);
}
static inline size_t kvf_scales_offset(kvf_pack_kind kind, uint32_t group_bytes, uint32_t panel) {
    if (kvf_kind_has_bytes(kind)) return 1024 + panel % 2 * (size_t)(group_bytes / 2 - 512);
    return panel % 2 * (size_t)(group_bytes / 2) + 256;
}

/* exp(x): n = nearest(x log2 e), r = x - n ln2, p = Taylor to r^7 by Horner with fma, p * 2^n. Below MIN the result is
 * 0; above MAX it stays at exp(MAX). Adding MAGIC = 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
#define KVF_EXP_MIN (-87.0f)
#define KVF_EXP_MAX 88.0f
#define KVF_EXP_LOG2E 0x1.715476p+0f
#define KVF_EXP_MAGIC 12582912.0f
#define KVF_EXP_NEG_LN2_HI (-0x1.62e4p-1f)
#define KVF_EXP_NEG_LN2_LO (-0x1.7f7d1cp-20f)
#define KVF_EXP_C3 (1.0f / 6)
#define KVF_EXP_C4 (1.0f / 24)
#define KVF_EXP_C5 (1.0f / 120)
#define KVF_EXP_C6 (1.0f / 720)
#define KVF_EXP_C7 (1.0f / 5040)

/* Groups whose largest value is below this are zero: 127/x must not overflow. */
#define KVF_QUANTISE_MIN 1e-30f

/* Scratch of an attention tile, in floats, for `rows` = tokens * group. In this order: keys turned so that a lane is a
 * position, queries turned so that a tile of rows lies together, of the whole tile and of each token alone (a gathered
 * tile needs both), then per row the weights of one split, its values, and its state. */
enum {
    KVF_ATTENTION_KEYS = 32,
    KVF_ATTENTION_STATE = 4
}; /* positions turned at a time; largest score and sum: so far, of the split */
static inline size_t kvf_attention_width(uint32_t head_dim) { return (size_t)kvf_align_up(head_dim, 16); }
static inline size_t kvf_attention_keys_floats(uint32_t head_dim) {
    return kvf_attention_width(head_dim) * KVF_ATTENTION_KEYS;
}
static inline size_t kvf_attention_row_floats(uint32_t head_dim) {
    return 3 * kvf_attention_width(head_dim) + KVF_ATTENTION_SPLIT + KVF_ATTENTION_STATE;
}
#endif
