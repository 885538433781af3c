/* device.cpp - lets the tests of device kernels run on a GPU as they are: whatever they allocate with `new` is memory
 * that host and device share, every launch is waited for, and orders of threads are the device's own. */
#include "emu.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <new>

enum { NO_GPU = 77 };
static const size_t ARENA_BYTES_MAX = (size_t)16 << 30; /* of addresses: only what is touched takes memory */
static const size_t PINNED_BYTES = (size_t)2 << 30;
static const size_t ALIGNMENT = 256;
static char *arena;
static size_t arena_bytes, arena_used;

void *operator new(size_t bytes) {
    size_t rounded = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    void *p = nullptr;
    if (arena && arena_used + rounded <= arena_bytes) {
        p = arena + arena_used; /* never given back: a program of tests ends soon */
        arena_used += rounded;
    } else {
        p = malloc(bytes);
    }
    if (!p) abort();
    return p;
}
void operator delete(void *p) noexcept {
    if (!((char *)p >= arena && (char *)p < arena + arena_used)) free(p);
}
void operator delete(void *p, size_t) noexcept { operator delete(p); }

extern "C" void gpu_check_begin(void) {
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0) {
        printf("no GPU here: %s\n", e != cudaSuccess ? cudaGetErrorString(e) : "the driver counts none");
        exit(NO_GPU);
    }
    void *memory = nullptr;
    size_t free_bytes = 0, total_bytes = 0;
    e = cudaMemGetInfo(&free_bytes, &total_bytes);
    /* Never more than there is: a device that has to page managed memory out may hang. */
    arena_bytes = std::min(ARENA_BYTES_MAX, free_bytes / 2);
    if (e == cudaSuccess) e = cudaMallocManaged(&memory, arena_bytes, cudaMemAttachGlobal);
    if (e != cudaSuccess && free_bytes > 0) { /* a container may refuse it: slower, as right */
        printf("no managed memory (%s): pinned memory of the host\n", cudaGetErrorString(e));
        (void)cudaGetLastError();
        arena_bytes = PINNED_BYTES;
        e = cudaHostAlloc(&memory, arena_bytes, cudaHostAllocDefault);
    }
    if (e != cudaSuccess) {
        fprintf(stderr, "no memory that host and device share: %s\n", cudaGetErrorString(e));
        exit(1);
    }
    arena = (char *)memory;
}

/* Called after each launch of the watched kernels. */
extern "C" void kvf_launched(const char *kernel) {
    cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", kernel, cudaGetErrorString(e));
    exit(1);
}

/* The emulator's orders of threads mean nothing here. */
namespace kvf_emu {
void set_options(const options &) {}
} // namespace kvf_emu
