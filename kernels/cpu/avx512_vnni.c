/* AVX-512 with VNNI. */
#include "lanes_avx512.h"
#define KVF_SCORE_ROWS 8
#include "tuned.h"
#include "tuned_attention.h"

#include "int8_avx512_vnni.h"

const kvf_kernel_ops kvf_kernels_avx512_vnni = KVF_KERNEL_TABLE("avx512-vnni");
