/* Advanced SIMD as every 64-bit Arm has it. Products of bytes become 16 bits, pairs of them fit (2 * 128 * 127 < 2^15).
 */
#include "lanes_neon.h"
#define KVF_SCORE_ROWS 4
#include "tuned.h"
#include "tuned_attention.h"

LANES_INLINE int32x4_t dot4(int32x4_t acc, int8x16_t codes, int8x16_t x) {
    int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(x)), high = vmull_high_s8(codes, x);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
}
#define DOT4(acc, codes, x) dot4((acc), (codes), (x))
#include "int8_neon.h"

const kvf_kernel_ops kvf_kernels_neon = KVF_KERNEL_TABLE("neon");
