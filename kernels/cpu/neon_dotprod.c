/* Advanced SIMD with dot products (Armv8.2 and later): four products of signed bytes summed into 32 bits. */
#include "lanes_neon.h"
#define KVF_SCORE_ROWS 4
#include "tuned.h"
#include "tuned_attention.h"

#define DOT4(acc, codes, x) vdotq_s32((acc), (codes), (x))
#include "int8_neon.h"

const kvf_kernel_ops kvf_kernels_neon_dotprod = KVF_KERNEL_TABLE("neon-dotprod");
