/* kvf/backend.h - what a node computes with: a model's weights, a pool of KV pages, and steps that end in tokens. Two
 * kinds stand behind it, the CPU engine (engine/forward) and a CUDA device (engine/cuda, a plugin opened at run time).
 *
 * A step is runs of tokens, and what is wanted of their logits: tokens to sample, known tokens to score. Logits never
 * leave the backend, so a device need not carry a vocabulary's worth of them over its bus for each token.
 *
 * Threads: one at a time drives a backend. Pages of blocks that the running step does not touch may be read and
 * written by another. */
#ifndef KVF_BACKEND_H
#define KVF_BACKEND_H
#include "kvf/engine.h"
#include "kvf/sampler.h"

/* What matrices are kept in. AUTO: on the CPU as in the file; on a device bf16 where most of the file's values are,
 * else f16. The others are for devices only. FP8: matrices of layers, as e4m3 with a scale for each output. */
typedef enum { KVF_WEIGHTS_AUTO, KVF_WEIGHTS_F16, KVF_WEIGHTS_BF16, KVF_WEIGHTS_FP8 } kvf_weights;
const char *kvf_weights_name(kvf_weights weights);
bool kvf_weights_find(const char *name, kvf_weights *out); /* false: no such name */

typedef struct {
    const char *model_path;
    kvf_precision precision;
    const char *kernels; /* of the CPU; NULL: best */
    uint32_t threads; /* 1..64 */
    const char *cache_folder; /* of the CPU's packed weights; NULL: none */
    kvf_weights weights;
    const char *cores, *cores_shared; /* kvf/cores.h, of the CPU; `threads` is then no more than these; NULL: none */
    kvf_kv_type kv_type;
    uint64_t kv_memory_bytes; /* the pool: as many whole blocks as fit */
    uint32_t tokens_max, sequences_max, logit_rows_max; /* of one step */
} kvf_backend_options;

typedef struct {
    uint32_t row; /* of the step's rows of logits */
    kvf_sample_input input; /* `logits` is not read */
    kvf_sample *out;
} kvf_backend_sample;

typedef struct {
    uint32_t row;
    uint32_t vocab_used, token, top; /* as kvf_sample_score */
    kvf_sample *out;
} kvf_backend_score;

/* Everything borrowed until run_step returns. Rows of logits: those the runs ask for, in the order of the runs. */
typedef struct {
    const kvf_engine_run *runs;
    uint32_t runs_count;
    const kvf_backend_sample *samples;
    uint32_t samples_count;
    const kvf_backend_score *scores;
    uint32_t scores_count;
    void (*on_layer)(void *self, uint32_t layer); /* may be NULL; as kvf_engine_step */
    void *self;
} kvf_backend_step;

typedef struct kvf_backend kvf_backend;
typedef struct {
    void (*destroy)(kvf_backend *b);
    /* KVF_ERR_INVALID: as kvf_engine_run_step; nothing was written. Any other error: the pages of the step's blocks and
     * its results are unknown. */
    kvf_status (*run_step)(kvf_backend *b, const kvf_backend_step *step);
    /* The first `tokens` positions of a block, all layers. */
    void (*copy_block)(kvf_backend *b, uint32_t to, uint32_t from, uint32_t tokens);
    void *(*page)(kvf_backend *b, uint32_t layer, uint32_t block);
} kvf_backend_ops;

struct kvf_backend { /* an implementation's own part follows it */
    const kvf_backend_ops *ops;
    const kvf_gguf *gguf;
    const kvf_model_spec *spec;
    uint32_t blocks;
    size_t page_bytes;
    char numerics[48]; /* equal names give equal bits */
    char what[64]; /* for people: "cpu avx512-vnni, 2 threads" */
    char trouble[256]; /* why the last step failed; empty: no more is known than the status */
    bool in_device_memory; /* pages: the host cannot read or write them */
    bool broken; /* a device that answers nothing any more: only a new process helps */
};

/* On error nothing is left; err names file, option or device and the reason. */
kvf_status kvf_backend_open_cpu(const kvf_backend_options *options, kvf_backend **out, kvf_error *err);

/* K and V of one layer of one block. */
uint64_t kvf_kv_page_bytes(const kvf_model_spec *spec, kvf_kv_type type);
/* KVF_ERR_INVALID with a message where fewer than two blocks fit. */
kvf_status kvf_backend_count_blocks(
    const kvf_model_spec *spec, kvf_kv_type type, uint64_t kv_memory_bytes, uint32_t *blocks, kvf_error *err);

static inline void kvf_backend_destroy(kvf_backend *b) {
    if (b) b->ops->destroy(b);
}
#endif
