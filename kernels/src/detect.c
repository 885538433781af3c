/* Which tables this processor and operating system can run. */
#include "kernels_int.h"

size_t kvf_attention_scratch_floats(uint32_t rows, uint32_t head_dim) {
    return kvf_attention_keys_floats(head_dim) + rows * kvf_attention_row_floats(head_dim);
}

#if defined(KVF_KERNELS_X86)
#include <cpuid.h>

/* State components the operating system saves: XMM, YMM (6), opmask and ZMM (0xe0). */
static uint32_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void features(bool *avx2, bool *avx_vnni, bool *avx512, bool *avx512_vnni, bool *avx512_bf16) {
    uint32_t a, b, c, d, b7, c7, subleaves;
    *avx2 = *avx_vnni = *avx512 = *avx512_vnni = *avx512_bf16 = false;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    bool fma = c & 1u << 12, xsave = c & 1u << 27, avx = c & 1u << 28, f16c = c & 1u << 29;
    if (!fma || !xsave || !avx || !f16c || (saved_state() & 6) != 6) return;
    if (!__get_cpuid_count(7, 0, &subleaves, &b7, &c7, &d)) return;
    *avx2 = b7 & 1u << 5;
    uint32_t wanted = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    *avx512 = *avx2 && (b7 & wanted) == wanted && (saved_state() & 0xe0) == 0xe0;
    *avx512_vnni = *avx512 && (c7 & 1u << 11);
    if (subleaves < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return;
    *avx_vnni = *avx2 && (a & 1u << 4);
    *avx512_bf16 = *avx512_vnni && (a & 1u << 5);
}
#elif defined(KVF_KERNELS_ARM)
#include <sys/auxv.h>

/* Bits of the kernel's report for 64-bit Arm; named here because a C library's header may be older than they. */
static void features(bool *neon, bool *dotprod, bool *i8mm, bool *bf16) {
    unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    *neon = first & 1ul << 1;
    *dotprod = *neon && (first & 1ul << 20);
    *i8mm = *dotprod && (second & 1ul << 13);
    *bf16 = *i8mm && (second & 1ul << 14);
}
#endif

size_t kvf_kernels_list(const kvf_kernel_ops *list[KVF_KERNELS_MAX]) {
    size_t count = 0;
#if defined(KVF_KERNELS_X86)
    bool avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16;
    features(&avx2, &avx_vnni, &avx512, &avx512_vnni, &avx512_bf16);
#if defined(KVF_KERNELS_AVX512_BF16)
    if (avx512_bf16) list[count++] = &kvf_kernels_avx512_bf16;
#endif
    if (avx512_vnni) list[count++] = &kvf_kernels_avx512_vnni;
    if (avx512) list[count++] = &kvf_kernels_avx512;
#if defined(KVF_KERNELS_AVX_VNNI)
    if (avx_vnni) list[count++] = &kvf_kernels_avx_vnni;
#endif
    if (avx2) list[count++] = &kvf_kernels_avx2;
#elif defined(KVF_KERNELS_ARM)
    bool neon, dotprod, i8mm, bf16;
    features(&neon, &dotprod, &i8mm, &bf16);
    if (bf16) list[count++] = &kvf_kernels_neon_bf16;
    if (i8mm) list[count++] = &kvf_kernels_neon_i8mm;
    if (dotprod) list[count++] = &kvf_kernels_neon_dotprod;
    if (neon) list[count++] = &kvf_kernels_neon;
#endif
    list[count++] = &kvf_kernels_ref;
    return count;
}

const kvf_kernel_ops *kvf_kernels_find(const char *name) {
    const kvf_kernel_ops *list[KVF_KERNELS_MAX];
    size_t count = kvf_kernels_list(list);
    if (!name || !*name || strcmp(name, "auto") == 0) return list[0];
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i]->name, name) == 0) return list[i];
    return NULL;
}
