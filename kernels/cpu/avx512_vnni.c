/* AVX-512 with VNNI: four products of unsigned codes and signed activations summed into 32 bits by one instruction,
 * without saturation. Byte codes stay offset by 128; the sum starts at -128 * sum(x), which takes the offset out
 * exactly. */
#include "lanes_avx512.h"
#define KVF_SCORE_ROWS 8
#include "tuned.h"
#include "tuned_attention.h"

#define DOT4_NIBBLES(acc, codes, x) _mm512_dpbusd_epi32((acc), (codes), (x))
#define DOT4_BYTES(acc, codes, x) _mm512_dpbusd_epi32((acc), (codes), (x))
#define LOAD_BYTES(p) _mm512_loadu_si512(p)
#define BYTES_START(neg_128) _mm512_set1_epi32(neg_128)
#include "int8_avx512.h"

const kvf_kernel_ops kvf_kernels_avx512_vnni = KVF_KERNEL_TABLE("avx512-vnni");
