/* The avx-vnni kernels with AVX-512's form of their instruction: see kernels/cpu/avx_vnni.c. */
#define KVF_TWIN 1
#include "cpu/avx_vnni.c"
