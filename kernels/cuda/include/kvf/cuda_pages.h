/* kvf/cuda_pages.h - pages of the pool into a contiguous slot and back, with their CRC-32C made on the way. Launches:
 * nothing here waits for the device. Pointers are device memory unless said; `stream` is a cudaStream_t.
 *
 * The page of (block, layer) lies at pool + layer * layer_bytes + block * page_bytes. page_bytes: a multiple of 16. */
#ifndef KVF_CUDA_PAGES_H
#define KVF_CUDA_PAGES_H
#include "kvf/cuda_kernels.h"
#ifdef __cplusplus
extern "C" {
#endif

/* In device memory (or pinned host memory that the device may read). */
typedef struct {
    uint32_t block, layer;
    uint32_t seed; /* what the checksum goes on from: of the page's name and the receiver's epoch (kvf_page_seed) */
} kvf_cuda_page;

typedef struct {
    uint8_t *pool;
    size_t layer_bytes, page_bytes;
    uint8_t *slot; /* page i of the list at slot + i * page_bytes; aligned to 16 */
    const kvf_cuda_page *pages;
    uint32_t count; /* at most 65535 */
    uint32_t *crc; /* out: of each page, kvf_crc32c(seed, bytes); NULL: none is made */
} kvf_cuda_pages;
/* Pool to slot. */
void kvf_cuda_pages_pack(const kvf_cuda_pages *a, void *stream);
/* Slot to pool; crc is that of the bytes in the slot, for the host to compare. No two entries name the same page. */
void kvf_cuda_pages_unpack(const kvf_cuda_pages *a, void *stream);

/* The first `tokens` positions of a block, in all layers, to another block. */
typedef struct {
    uint8_t *pool;
    size_t layer_bytes, page_bytes;
    uint32_t layers, kv_heads, head_dim;
    kvf_cuda_cell cell;
    uint32_t to, from, tokens;
} kvf_cuda_copy;
void kvf_cuda_block_copy(const kvf_cuda_copy *a, void *stream);
#ifdef __cplusplus
}
#endif
#endif
