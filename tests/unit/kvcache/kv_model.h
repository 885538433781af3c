/* kv_model.h - a slow, plain second telling of kvf/kvcache.h: arrays, searches over everything, no lists, no hashes.
 * Each call says what the real pool must answer; after it the model's state is what the real one must be.
 *
 * Tokens are told by symbols: a block of the model is (root, path of symbols), and two are equal when those are. */
#ifndef KV_MODEL_H
#define KV_MODEL_H
#include "kvf/kvcache.h"

enum { MODEL_BLOCKS = 24, MODEL_DEPTH = 8 };

typedef struct {
    kvf_block_state state;
    uint32_t generation, pins, uses, filled;
    bool indexed;
    uint32_t root, depth; /* depth 1: first block of a sequence */
    uint8_t path[MODEL_DEPTH];
    bool was_evictable;
    uint64_t let_go; /* when it became evictable, in events */
} model_block;

typedef struct {
    uint32_t blocks, booked;
    uint64_t evictions, hits, misses, duplicates, clock;
    model_block at[MODEL_BLOCKS];
} model;

void model_init(model *m, uint32_t blocks);
void model_count(const model *m, kvf_kv_counts *out);
int64_t model_room(const model *m);
bool model_held(const model *m, uint32_t i);
bool model_live(const model *m, kvf_block_id id); /* right generation, not FREE */

kvf_status model_book(model *m, uint32_t blocks);
void model_unbook(model *m, uint32_t blocks);
uint32_t model_match(model *m, uint32_t root, const uint8_t *path, uint32_t blocks_max, kvf_block_id *out);
kvf_status model_pin(model *m, kvf_block_id id);
void model_unpin(model *m, kvf_block_id id);
kvf_status model_use_begin(model *m, kvf_block_id id);
void model_use_end(model *m, kvf_block_id id);
/* Which block the pool takes: *free_choice when any FREE one will do, else the victim with its next generation.
 * model_took tells the model which it was. */
kvf_status model_take(const model *m, bool *free_choice, kvf_block_id *victim);
void model_took(model *m, kvf_block_id id);
void model_set_filled(model *m, kvf_block_id id, uint32_t tokens);
kvf_status model_seal(model *m, kvf_block_id id, uint32_t root, kvf_block_id parent, uint8_t symbol, kvf_block_id *now);
uint32_t model_flush(model *m);
#endif
