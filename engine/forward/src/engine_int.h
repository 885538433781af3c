/* Private to engine/forward: a loaded model, an engine's workspace, and how one step is laid out in it. */
#ifndef KVF_ENGINE_INT_H
#define KVF_ENGINE_INT_H
#include "image.h"
#include "kvf/engine.h"
#include "kvf/kernels.h"
#include "pool.h"
#include <stdatomic.h>

/* Anonymous memory that costs nothing until touched. */
kvf_status kvf_memory_map(size_t len_bytes, bool huge_pages, void **out);
void kvf_memory_unmap(void *memory, size_t len_bytes);

typedef struct {
    kvf_packed q, k, v, o, gate, up, down;
    /* Vectors in f32, inside the model's image; NULL where the model has none. */
    const float *attn_norm, *ffn_norm, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
} kvf_layer_weights;

/* What form of the activations the products of one input need. */
typedef struct {
    bool q, f32, bf16; /* bf16: and f32, rounded to it for all who use that form */
} kvf_needs;

struct kvf_model {
    kvf_gguf *gguf;
    kvf_model_spec spec;
    const kvf_kernel_ops *ops;
    kvf_precision precision;
    kvf_layer_weights *layer;
    kvf_packed head;
    const float *output_norm;
    double *rope_frequency;
    kvf_image image; /* all packed matrices and vectors: one block, offsets only */
    size_t packed_bytes;
    kvf_needs need_hidden, need_heads, need_ffn, need_head; /* inputs: q,k,v,gate,up; o; down; head */
};

/* Rows of activations in the forms their products need; `groups` groups of 32 values a row. */
typedef struct {
    float *f32;
    int8_t *q;
    kvf_group_scale *scale;
    uint16_t *bf16;
    uint32_t groups;
    kvf_needs need;
} kvf_activations;

typedef struct {
    uint32_t run, first, tokens; /* tokens [first, first+tokens) of the run */
    uint32_t row; /* of the first one */
    uint32_t shared; /* gathered where > 0: e->gathered[first ...], which share so many positions of the run's blocks */
} kvf_tile;

typedef struct {
    uint32_t run, row, position;
    uint32_t common; /* whole pages that it shares with the run a tile is made for */
} kvf_lone_run;

/* A row of the step: one token. */
typedef struct {
    uint32_t token, position;
    uint32_t block;
} kvf_row;

struct kvf_engine {
    const kvf_model *m;
    kvf_engine_options options;
    kvf_pool *pool;
    char numerics[48];
    kvf_cell cell;
    float score_scale; /* 1 / sqrt(head_dim) */
    size_t page_bytes;
    uint8_t *pages; /* [layer][block][page_bytes] */
    size_t pages_bytes;

    uint8_t *workspace; /* everything below is carved from it */
    size_t workspace_bytes;
    kvf_row *rows;
    kvf_tile *tiles;
    kvf_attention_token *gathered; /* tokens of gathered tiles */
    kvf_lone_run *lone; /* runs of one row, while tiles are laid */
    float *cos_sin; /* [row][rope_dims] */
    float *x; /* [row][hidden]: the residual stream */
    float *qkv; /* [row][(heads + 2 kv_heads) * head_dim] */
    float *heads; /* [row][heads * head_dim]: attention's result */
    kvf_activations hidden_in, heads_in, ffn_in, head_in;
    uint8_t *scratch; /* [thread][scratch_bytes] */
    size_t scratch_bytes;

    /* The step that is running. */
    const kvf_engine_step *step;
    uint32_t rows_count, tiles_count, gathered_count, logits_count;
    uint64_t tile_pages; /* that the tiles of a layer read */
    _Atomic uint64_t kv_read_bytes;
    /* For tests: called with the residual stream before layer 0 and after each layer. */
    void (*watch)(void *self, uint32_t layer, const float *x, uint32_t rows);
    void *watch_self;
};

enum { KVF_FFN_ROWS = 24 }; /* rows of a gate and up tile that stay in cache between product and activation */
enum { KVF_TILE_ROWS = 48, KVF_TILE_TOKENS = 16 }; /* query rows (tokens * group) and tokens of an attention tile */
static inline uint32_t kvf_tile_tokens(const kvf_model_spec *s) {
    uint32_t tokens = KVF_TILE_ROWS / (s->heads / s->kv_heads);
    return tokens < 1 ? 1 : tokens > KVF_TILE_TOKENS ? KVF_TILE_TOKENS : tokens;
}

/* Lays the attention tiles of the running step: of all rows, or of those whose logits are wanted, moved to the front.
 */
void kvf_lay_tiles(kvf_engine *e, bool only_wanted);
void kvf_forward(kvf_engine *e);
#endif
