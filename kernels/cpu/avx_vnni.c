/* AVX2 with AVX-VNNI: processors with 256-bit registers only that have VNNI's products all the same. What
 * int8_avx512_vnni.h says of them holds here. With KVF_TWIN it uses AVX-512's form of the same instruction: what tests
 * run on processors that have only that one. */
#include "lanes_avx2.h"
#define KVF_SCORE_ROWS 4
#include "tuned.h"
#include "tuned_attention.h"

#if defined(KVF_TWIN)
#define DPBUSD _mm256_dpbusd_epi32
#define kvf_kernels_avx_vnni kvf_kernels_avx_vnni_twin
#else
#define DPBUSD _mm256_dpbusd_avx_epi32
#endif
LANES_INLINE i16x32 dot4(i16x32 acc, i16x32 u, i16x32 s) {
    return (i16x32){DPBUSD(acc.a, u.a, s.a), DPBUSD(acc.b, u.b, s.b)};
}

enum { Q_ROWS = 3, Q_AHEAD = 8192 };
#define Q_PANELS_OF(rows) ((rows) == 1 ? 2 : 1) /* sixteen registers */
#define DOT4_NIBBLES(acc, codes, x) dot4((acc), (codes), (x))
#define NIBBLES_END(acc) (acc)
#define LOAD_BYTES(p) i16_load(p)
#define BYTES_START(neg_128) i16_set1(neg_128)
#define DOT4_BYTES(acc, codes, x) DOT4_NIBBLES(acc, codes, x)
#include "int8_x86.h"

const kvf_kernel_ops kvf_kernels_avx_vnni = KVF_KERNEL_TABLE("avx-vnni");
