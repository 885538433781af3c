/* Advanced SIMD with dot products and 8-bit matrix products (Armv8.6 and later): two rows against two outputs at a
 * time. */
#include "lanes_neon.h"
#define KVF_SCORE_ROWS 4
#include "tuned.h"
#include "tuned_attention.h"

#define DOT4(acc, codes, x) vdotq_s32((acc), (codes), (x))
#define KVF_DOT_PAIRS
#include "int8_neon.h"

const kvf_kernel_ops kvf_kernels_neon_i8mm = KVF_KERNEL_TABLE("neon-i8mm");
