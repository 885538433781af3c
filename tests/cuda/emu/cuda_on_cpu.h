/* cuda_on_cpu.h - CUDA's words for a C++ compiler, on the emulator. Included by kernels/cuda/port.h where nvcc is not.
 */
#ifndef KVF_CUDA_ON_CPU_H
#define KVF_CUDA_ON_CPU_H
#include "emu.h"
#include <cmath>
#include <cstring>
#include <vector_functions.h>
#include <vector_types.h>
/* The toolkit's own host arithmetic: the same roundings as on the device. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ static_assert(false, "take shared memory by KVF_SHARED");

#define threadIdx (kvf_emu::now.self->index)
#define blockIdx (kvf_emu::now.block_index)
#define blockDim (kvf_emu::now.block)
#define gridDim (kvf_emu::now.grid)

#define KVF_UNROLL
#define KVF_UNROLL_BY(n)
#define KVF_DEVICE static inline
#define KVF_MEMBER static
#define KVF_BOTH static inline
#define KVF_ALLOW_SHARED(kernel, bytes) ((void)0)
#define KVF_SHARED(type, name) type *name = (type *)(void *)kvf_emu::now.shared
/* With the fake runtime a launch is queued on its stream; without it a launch is over when it returns. */
#ifdef KVF_EMU_STREAMS
#include "fake_cuda.h"
template <class F> static void kvf_emu_queue(dim3 grid, dim3 block, size_t shared_bytes, void *stream, F body) {
    struct launch {
        dim3 grid, block;
        size_t shared_bytes;
        F body;
    };
    auto run = [](void *p) {
        launch *l = (launch *)p;
        kvf_emu::launch(
            l->grid, l->block, l->shared_bytes, [](void *q) { (*(F *)q)(); }, &l->body);
    };
    /* A refused launch is the runtime's to tell: cudaGetLastError. */
    (void)fake_cuda_enqueue(
        (kvf_cuda_stream)stream, run, [](void *p) { delete (launch *)p; }, new launch{grid, block, shared_bytes, body});
}
#define KVF_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                     \
    kvf_emu_queue((grid), (block), (shared_bytes), (void *)(stream), [=] { kernel(__VA_ARGS__); })
#else
template <class F> static void kvf_emu_launch(dim3 grid, dim3 block, size_t shared_bytes, F body) {
    kvf_emu::launch(
        grid, block, shared_bytes, [](void *p) { (*(F *)p)(); }, &body);
}
#define KVF_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                     \
    ((void)(stream), kvf_emu_launch((grid), (block), (shared_bytes), [=] { kernel(__VA_ARGS__); }))
#endif

/* The line is the place: two barriers on one line look like one. */
#define KVF_EMU_SITE ((const void *)(uintptr_t)__LINE__)
#define __syncthreads() ((void)kvf_emu::barrier(KVF_EMU_SITE, 0))
#define __syncthreads_count(p) kvf_emu::barrier(KVF_EMU_SITE, !!(p))
#define __syncthreads_or(p) (kvf_emu::barrier(KVF_EMU_SITE, !!(p)) != 0)

static inline void __syncwarp(unsigned mask = KVF_WARP_ALL) {
    kvf_emu::with_warp(mask, kvf_emu::SYNC_WARP, nullptr, nullptr, __builtin_return_address(0));
}

template <class T> static T kvf_emu_shuffle(unsigned mask, T value, int lane) {
    static_assert(sizeof(T) <= 8, "shuffles carry at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = kvf_emu::shuffle(mask, bits, lane, __builtin_return_address(0));
    memcpy(&value, &bits, sizeof value);
    return value;
}
#define KVF_EMU_LANE (kvf_emu::now.self->lane)
template <class T> static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
    return kvf_emu_shuffle(mask, v, (KVF_EMU_LANE & ~(width - 1)) | (lane & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32) {
    int from = KVF_EMU_LANE ^ bits, begin = KVF_EMU_LANE & ~(width - 1);
    return kvf_emu_shuffle(mask, v, (from & ~(width - 1)) <= begin ? from : KVF_EMU_LANE);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, int by, int width = 32) {
    int from = KVF_EMU_LANE + by;
    return kvf_emu_shuffle(mask, v, (from & ~(width - 1)) == (KVF_EMU_LANE & ~(width - 1)) ? from : KVF_EMU_LANE);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, int by, int width = 32) {
    int from = KVF_EMU_LANE - by;
    return kvf_emu_shuffle(mask, v, from >= (KVF_EMU_LANE & ~(width - 1)) ? from : KVF_EMU_LANE);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return kvf_emu::ballot(mask, predicate, __builtin_return_address(0));
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

/* Relaxed, as on the device. */
template <class T, class F> static T kvf_emu_update(T *p, F f) {
    T old, next;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do next = f(old);
    while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
template <class T> static inline T atomicAdd(T *p, T v) {
    return kvf_emu_update(p, [v](T a) { return (T)(a + v); });
}
template <class T> static inline T atomicMax(T *p, T v) {
    return kvf_emu_update(p, [v](T a) { return a < v ? v : a; });
}
template <class T> static inline T atomicOr(T *p, T v) {
    return kvf_emu_update(p, [v](T a) { return (T)(a | v); });
}
template <class T> static inline T atomicXor(T *p, T v) {
    return kvf_emu_update(p, [v](T a) { return (T)(a ^ v); });
}
template <class T> static inline T atomicExch(T *p, T v) {
    return kvf_emu_update(p, [v](T) { return v; });
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T> static inline T __ldg(const T *p) { return *p; }

#define __expf(x) expf(x) /* glibc declares a function of that name */
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
/* Rounded to nearest, never contracted: the build forbids it. */
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline unsigned long long __float2ull_rn(float x) { return (unsigned long long)rint((double)x); }
static inline unsigned long long __double2ull_ru(double x) { return (unsigned long long)ceil(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return out;
}
static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline long long __double_as_longlong(double x) {
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double __longlong_as_double(long long bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

static inline void kvf_copy_async16(void *to, const void *from, int from_bytes) {
    kvf_emu::copy_async(to, from, 16, from_bytes);
}
static inline void kvf_copy_commit() { kvf_emu::copy_commit(); }
template <int KEEP> static inline void kvf_copy_wait() { kvf_emu::copy_wait(KEEP); }
static inline void kvf_mma_f16(float *d, const uint32_t *a, const uint32_t *b) {
    kvf_emu::matrix_product(d, a, b, false, __builtin_return_address(0));
}
static inline void kvf_mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
    kvf_emu::matrix_product(d, a, b, true, __builtin_return_address(0));
}
static inline void kvf_load_matrix_x4(uint32_t *r, const void *row) {
    kvf_emu::load_matrix(r, row, 4, false, __builtin_return_address(0));
}
static inline void kvf_load_matrix_x4_trans(uint32_t *r, const void *row) {
    kvf_emu::load_matrix(r, row, 4, true, __builtin_return_address(0));
}
#endif
