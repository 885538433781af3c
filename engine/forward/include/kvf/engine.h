/* kvf/engine.h - a model loaded for computing, and a pool of KV pages it computes into.
 *
 * Page: K and V of one layer of one block of KVF_BLOCK_TOKENS tokens, contiguous: K [kv_heads][block_tokens][head_dim],
 * then V the same. Pages of one layer lie in one array indexed by block. Attention reads pages in place through block
 * tables.
 *
 * Same bits (ARCHITECTURE.md): inside one numerics id the logits of a token depend only on the tokens before it, never
 * on batch, chunking, cache state, thread count or process.
 *
 * Threads: kvf_model is immutable and shared by engines. One thread at a time drives an engine (it runs its own worker
 * pool); kvf_engine_page may be read and written by other threads for blocks that the running step does not touch. */
#ifndef KVF_ENGINE_H
#define KVF_ENGINE_H
#include "kvf/base.h"
#include "kvf/cores.h"
#include "kvf/model_spec.h"

#define KVF_BLOCK_TOKENS 16

typedef enum {
    KVF_PRECISION_FAST,
    KVF_PRECISION_EXACT
} kvf_precision; /* 8-bit activations per 32 values / f32 activations */
/* Q8: codes with a scale for each 32 (KVF_CELL_Q8); only the CPU. FP8: e4m3 codes with a scale for each head of each
 * position; only devices. */
typedef enum { KVF_KV_F16, KVF_KV_F32, KVF_KV_FP8, KVF_KV_Q8 } kvf_kv_type;
const char *kvf_kv_type_name(kvf_kv_type type); /* as engine.kv_type spells it: "f16" */
bool kvf_kv_type_find(const char *name, kvf_kv_type *out);

typedef struct kvf_model kvf_model;
typedef struct {
    kvf_precision precision;
    const char *kernels; /* NULL: best for this CPU; else "ref", "avx2", "avx512" ... (also from KVFERRY_CPU, read by
                            the CLI) */
    uint32_t threads; /* for packing at load */
    const char *cache_folder; /* packed weights are kept there and shared by processes; NULL: memory of this one */
} kvf_model_options;
/* Opens, checks and packs. err names file, tensor and reason. */
kvf_status kvf_model_open(const char *path, const kvf_model_options *options, kvf_model **out, kvf_error *err);
void kvf_model_close(kvf_model *m); /* after its engines */
const kvf_model_spec *kvf_model_get_spec(const kvf_model *m);
const kvf_gguf *kvf_model_get_gguf(const kvf_model *m);
const char *kvf_model_kernels(const kvf_model *m); /* "avx512-vnni" */
uint64_t kvf_model_packed_bytes(const kvf_model *m);
bool kvf_model_packed_is_shared(const kvf_model *m); /* pages of a file in cache_folder */

typedef struct kvf_engine kvf_engine;
typedef struct {
    kvf_kv_type kv_type;
    uint32_t blocks; /* pool size */
    uint32_t threads; /* 1..64, including the caller's */
    uint32_t tokens_max; /* of one step, all sequences together: sizes the workspace */
    uint32_t sequences_max; /* of one step */
    uint32_t logit_rows_max; /* rows of logits wanted in one step */
    kvf_cores *cores; /* where they compute; NULL: wherever the system puts them */
} kvf_engine_options;
kvf_status kvf_engine_create(const kvf_model *m, const kvf_engine_options *options, kvf_engine **out, kvf_error *err);
void kvf_engine_destroy(kvf_engine *e);

/* Names activation type, KV type, kernel family where it changes bits, and version: "v1-int8g32-kvf16". NUL-terminated,
 * kept with the engine. Equal ids give equal bits. */
const char *kvf_engine_numerics(const kvf_engine *e);
size_t kvf_engine_page_bytes(const kvf_engine *e);
/* Bytes of KV pages that attention has asked for since creation: a page counts once for each tile that reads it. Runs
 * of one token whose first blocks are the same read those once for all of them. Any thread. */
uint64_t kvf_engine_kv_read_bytes(const kvf_engine *e);
void *kvf_engine_page(kvf_engine *e, uint32_t layer, uint32_t block);
/* Copies the first `tokens` positions of a block (all layers) into another: a private copy of a partly filled block. */
void kvf_engine_copy_block(kvf_engine *e, uint32_t to, uint32_t from, uint32_t tokens);

typedef struct {
    const uint32_t *tokens; /* [count] to compute now */
    uint32_t count;
    uint32_t position; /* of tokens[0]; all earlier positions are already in pages */
    const uint32_t *blocks; /* physical block of positions [16*i, 16*i+16), for i = 0 .. (position+count-1)/16 */
    uint32_t logit_rows; /* logits of the last so many tokens of this run (0: none, 1: the usual, count: all) */
} kvf_engine_run;

typedef struct {
    uint32_t blocks, tokens_max, sequences_max, logit_rows_max; /* as kvf_engine_options */
} kvf_engine_limits;
/* Whether the runs make a step: counts within the limits, positions within the context, tokens and blocks that exist.
 */
bool kvf_engine_runs_fit(
    const kvf_model_spec *spec, const kvf_engine_limits *limits, const kvf_engine_run *runs, uint32_t runs_count);

typedef struct {
    const kvf_engine_run *runs;
    uint32_t runs_count;
    float *logits; /* [sum of logit_rows][vocab], in the order of the runs; caller's memory */
    /* May be NULL. Called from the driving thread after layer `layer` of the whole step is in its pages. */
    void (*on_layer)(void *self, uint32_t layer);
    void *self;
} kvf_engine_step;
/* KVF_ERR_INVALID: counts over the limits given at creation, or a token out of range; nothing was written. */
kvf_status kvf_engine_run_step(kvf_engine *e, const kvf_engine_step *step);
#endif
