/* Advanced SIMD with dot products and 8-bit matrix products (Armv8.6 and later): two rows against two outputs at a
 * time. */
#include "lanes_neon.h"
#define KVF_SCORE_ROWS 4
#include "tuned.h"
#include "tuned_attention.h"

#define DOT4(acc, codes, x) vdotq_s32((acc), (codes), (x))
#define KVF_DOT_PAIRS
#include "int8_neon.h"

const kvf_kernel_ops kvf_kernels_neon_i8mm = {
    .name = "neon-i8mm",
    .rms_norm = rms_norm,
    .quantise = quantise,
    .matmul_q = matmul_q,
    .matmul_f = matmul_f,
    .add = add,
    .rope = rope,
    .swiglu = swiglu,
    .store_cells = store_cells,
    .attention = attention,
};
