/* mma_tile.h - launches of mma_tile.cu. */
#ifndef KVF_MMA_TILE_H
#define KVF_MMA_TILE_H
#include <stdint.h>
void mma_tile(float *c, const uint16_t *a, const uint16_t *b, const uint16_t *bt, int bf16);
void mma_copies(uint32_t *out, const uint32_t *in);
#endif
