/* sixteen.h - numbers of 16 bits, f16 or bf16, as a type that kernels are written over. Both go through f32. */
#ifndef KVF_CUDA_SIXTEEN_H
#define KVF_CUDA_SIXTEEN_H
#include "kvf/cuda_kernels.h"
#include "port.h"

struct f16 {
    typedef __half value;
    typedef __half2 pair;
    KVF_MEMBER float wide(value v) { return __half2float(v); }
    KVF_MEMBER float2 wide(pair v) { return __half22float2(v); }
    KVF_MEMBER value of(float v) { return __float2half(v); }
    KVF_MEMBER pair of(float low, float high) { return __floats2half2_rn(low, high); }
};

struct bf16 {
    typedef __nv_bfloat16 value;
    typedef __nv_bfloat162 pair;
    KVF_MEMBER float wide(value v) { return __bfloat162float(v); }
    KVF_MEMBER float2 wide(pair v) { return __bfloat1622float2(v); }
    KVF_MEMBER value of(float v) { return __float2bfloat16_rn(v); }
    KVF_MEMBER pair of(float low, float high) { return __floats2bfloat162_rn(low, high); }
};

/* Eight of them, one 16-byte access. */
template <class T> union eight {
    uint4 word;
    uint32_t pairs[4];
    KVF_MEMBER float2 wide(uint32_t pair) { return T::wide(*(const typename T::pair *)&pair); }
    KVF_MEMBER uint32_t of(float2 v) {
        typename T::pair pair = T::of(v.x, v.y);
        return *(const uint32_t *)&pair;
    }
};

/* Where a kernel is bound by other things, the type is looked at when it writes. to: aligned to 4. */
KVF_DEVICE void kvf_put_pair(void *to, kvf_cuda_type type, float low, float high) {
    if (type == KVF_CUDA_BF16)
        *(bf16::pair *)to = bf16::of(low, high);
    else
        *(f16::pair *)to = f16::of(low, high);
}
#endif
