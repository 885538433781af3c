/* port.h - the only header that a kernel file includes besides our own: the same source for nvcc and, in tests, for the
 * emulator (tests/cuda/emu) on a CPU.
 *
 * Rules that keep both true: no static __shared__ (KVF_SHARED gives the launch's dynamic block, checked to the byte by
 * the emulator); the instructions below instead of asm; KVF_LAUNCH instead of <<<>>>; no waiting for another block; at
 * most sm_80 (mma.sync, ldmatrix, cp.async), so that one source serves every supported GPU. */
#ifndef KVF_CUDA_PORT_H
#define KVF_CUDA_PORT_H
#include <stddef.h>
#include <stdint.h>

#define KVF_WARP_ALL 0xFFFFFFFFu

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifdef KVF_LAUNCH_WATCHED /* tests/cuda/gpu_check */
extern "C" void kvf_launched(const char *kernel);
#define KVF_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                     \
    (kernel<<<(grid), (block), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__), kvf_launched(#kernel))
#else
#define KVF_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                     \
    kernel<<<(grid), (block), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__)
#endif
#define KVF_SHARED(type, name)                                                                                         \
    extern __shared__ __align__(128) unsigned char kvf_shared_block[];                                                 \
    type *name = (type *)kvf_shared_block
#define KVF_PRAGMA(text) _Pragma(#text)
#define KVF_UNROLL KVF_PRAGMA(unroll)
#define KVF_UNROLL_BY(n) KVF_PRAGMA(unroll n)
#define KVF_DEVICE static __device__ __forceinline__
#define KVF_MEMBER static __device__ __forceinline__ /* of a struct */
#define KVF_BOTH static __host__ __device__ __forceinline__
/* More dynamic shared memory than 48 KiB has to be asked for. */
#define KVF_ALLOW_SHARED(kernel, bytes)                                                                                \
    ((void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)))

KVF_DEVICE uint32_t kvf_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* 16 bytes of which the first from_bytes are read, the others become zero. */
KVF_DEVICE void kvf_copy_async16(void *to, const void *from, int from_bytes) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(kvf_shared_address(to)), "l"(from), "r"(from_bytes)
        : "memory");
}
KVF_DEVICE void kvf_copy_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int KEEP> KVF_DEVICE void kvf_copy_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(KEEP) : "memory");
}

/* d[4] += a[16x16] * b[16x8] of the warp, f16 in, f32 sums: mma.sync.m16n8k16. */
KVF_DEVICE void kvf_mma_f16(float *d, const uint32_t *a, const uint32_t *b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KVF_DEVICE void kvf_mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Lane 8*m + r gives the address of row r (8 values of 16 bits) of matrix m. */
KVF_DEVICE void kvf_load_matrix_x4(uint32_t *r, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(kvf_shared_address(row))
                 : "memory");
}
KVF_DEVICE void kvf_load_matrix_x4_trans(uint32_t *r, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(kvf_shared_address(row))
                 : "memory");
}
#else
#include "cuda_on_cpu.h"
#endif
#endif
