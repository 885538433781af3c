/* cuda_test.h - what tests of device kernels share: made-up values, halves, comparison. C++. */
#ifndef KVF_CUDA_TEST_H
#define KVF_CUDA_TEST_H
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
extern "C" {
#include "kvf/kernels.h"
#include "kvf/rng.h"
#include <cmocka.h>
}
#include "emu.h"
#include "kvf/cuda_kernels.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct maker { /* values in (-1, 1), the same in every run */
    uint64_t state = 1;
    float next(void) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (float)((double)(int64_t)state / 9223372036854775808.0);
    }
    uint32_t below(uint32_t n) {
        next();
        return (uint32_t)((state >> 33) % n);
    }
};

typedef std::vector<kvf_half_bits> halves;
static inline kvf_half_bits half_of(float x, kvf_cuda_type type = KVF_CUDA_F16) {
    return type == KVF_CUDA_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half(x));
}
static inline float float_of(kvf_half_bits h, kvf_cuda_type type = KVF_CUDA_F16) {
    return type == KVF_CUDA_BF16 ? __bfloat162float(__ushort_as_bfloat16(h)) : __half2float(__ushort_as_half(h));
}
static inline halves make_halves(maker &m, size_t count, float scale = 1, kvf_cuda_type type = KVF_CUDA_F16) {
    halves h(count);
    for (auto &v : h) v = half_of(m.next() * scale, type);
    return h;
}
static inline std::vector<float> floats_of(const halves &h, kvf_cuda_type type = KVF_CUDA_F16) {
    std::vector<float> f(h.size());
    for (size_t i = 0; i < h.size(); i++) f[i] = float_of(h[i], type);
    return f;
}
/* Of one rounding: bf16 keeps three bits less. */
static inline double rounding(kvf_cuda_type type) { return type == KVF_CUDA_BF16 ? 3.2e-3 : 4e-4; }

/* |got - want| / |want| as vectors; NaN anywhere fails. */
static inline void assert_near(const char *what, const halves &got, const std::vector<float> &want, double limit,
    kvf_cuda_type type = KVF_CUDA_F16) {
    double wrong = 0, all = 0;
    assert_int_equal(got.size(), want.size());
    for (size_t i = 0; i < got.size(); i++) {
        double d = (double)float_of(got[i], type) - want[i];
        wrong += d * d;
        all += (double)want[i] * want[i];
    }
    double relative = std::sqrt(wrong / all);
    if (!(relative <= limit)) fail_msg("%s: relative difference %g, limit %g", what, relative, limit);
}

/* Runs `body` in every order of threads and both ways of copying. */
template <class F> static void in_all_orders(F body) {
    static const kvf_emu::options all[] = {{kvf_emu::FORWARD, 0, false}, {kvf_emu::BACKWARD, 0, true},
        {kvf_emu::RANDOM, 1, false}, {kvf_emu::RANDOM, 2, true}};
    for (auto &o : all) {
        kvf_emu::set_options(o);
        body();
    }
}
#endif
