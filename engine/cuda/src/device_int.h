/* Private to engine/cuda. */
#ifndef KVF_DEVICE_INT_H
#define KVF_DEVICE_INT_H
#include "kvf/cuda_backend.h"
#include "kvf/cuda_plugin.h"

enum { ALLOCATIONS_MAX = 16, GRAPHS_MAX = 64, CUDA_ALIGN = 256 };

/* [outputs][inputs]: f16 or bf16, or e4m3 codes with the scale of each output. */
typedef struct {
    const void *w;
    const float *scales; /* NULL: no codes */
} cuda_matrix;

typedef struct {
    const float *attn_norm, *ffn_norm, *qkv_bias, *q_norm, *k_norm; /* NULL where the model has none */
    cuda_matrix qkv, o, gate_up, down; /* q, k, v and gate, up one below the other */
} cuda_layer;

/* What a step tells the device: written on the host, copied in one go. Same offsets on both sides. */
typedef struct {
    uint32_t *tokens, *positions, *row_blocks; /* [rows] */
    uint32_t *contexts; /* [decodes] */
    uint32_t *tables; /* [runs][table_stride]: decodes first */
    kvf_cuda_run *prefills;
} cuda_inputs;

/* A run of the step in the device's order: those of one token first, so that decode attention finds its rows together.
 */
typedef struct {
    uint32_t run, row;
} cuda_place;

typedef struct {
    uint32_t decodes, context_max; /* rounded up, see step.c */
    kvf_cuda_graph_exec exec;
    uint64_t used; /* larger: later */
} cuda_graph;

/* What is asked of the device's sampler in one step: on the host pinned, with a twin on the device. */
typedef struct {
    kvf_cuda_sampling *rows;
    kvf_cuda_adjustment *adjustments;
    kvf_cuda_sampled *results;
} cuda_choices;

typedef struct {
    kvf_backend base;
    kvf_cuda_api api;
    const kvf_cuda_plugin_table *kernels;
    void *plugin;
    kvf_gguf *gguf;
    kvf_model_spec spec;
    bool spec_is_ours; /* read from a file */
    kvf_backend_options options;
    int ordinal; /* of the device */
    kvf_cuda_stream stream;
    kvf_cuda_event *layer_done; /* [layers] */
    uint32_t layers_events;
    kvf_cuda_gemm *gemm;
    void *allocations[ALLOCATIONS_MAX]; /* device memory */
    uint32_t allocations_count;

    cuda_layer *layer;
    kvf_weights weights; /* never AUTO */
    kvf_cuda_type type; /* F16 or BF16: of matrices that are no codes, and of activations between products */
    const kvf_half_bits *embedding; /* and the head: no codes in any case */
    cuda_matrix head;
    const float *output_norm, *cos_sin;
    kvf_cuda_cell cell; /* what pages hold */
    uint8_t
        *pages; /* [layer][block][page_bytes]; after the pool's blocks a spare one, for rows that nobody asked for */
    size_t layer_bytes;

    /* Workspace on the device. */
    float *x; /* [rows][hidden]: the residual stream */
    kvf_half_bits *normed, *qkv, *q, *heads, *gate_up, *ffn, *sum; /* rows of hidden, qkv, q, q, 2 ffn, ffn, hidden */
    float *x_kept; /* rows whose logits are wanted */
    kvf_half_bits *heads_kept;
    float *logits, *partial;
    float *spans; /* of products over codes */
    kvf_half_bits *unpacked; /* [unpacked_values]: codes of a large product, part by part */
    size_t unpacked_values;
    cuda_inputs device;
    void *device_inputs;

    /* The same on the host, pinned. */
    void *host_inputs;
    cuda_inputs host;
    size_t inputs_bytes;
    float *host_logits; /* [vocab]: of a row that the device cannot sample */
    void *scratch; /* the host sampler's */

    /* Sampling: choose.c. */
    uint32_t choices_max, adjustments_max;
    cuda_choices device_choices, host_choices;
    void *device_choices_memory, *host_choices_memory;
    void *sample_scratch; /* on the device */
    kvf_sample **choice_out; /* [choices_max]: where result i goes */
    uint32_t choices_count, adjustments_count;

    /* The step that is running. */
    uint32_t table_stride, rows, decodes, prefills, prefill_tokens_max, context_max, logits_count;
    bool is_decode; /* every run is one token whose logits are wanted; rows may be more than that */
    bool is_warming_up; /* nothing is recorded */
    cuda_place *places; /* [sequences_max] */
    uint32_t *run_rows; /* [sequences_max]: first row of each run, in the step's order */
    cuda_graph graphs[GRAPHS_MAX];
    uint64_t graph_clock;
} cuda_backend;

/* Says what went wrong in base.trouble; a sticky error marks the backend broken. */
kvf_status cuda_failed(cuda_backend *b, const char *call, int error);
#define CUDA_TRY(b, name, ...)                                                                                         \
    do {                                                                                                               \
        int error_ = (b)->api.name(__VA_ARGS__);                                                                       \
        if (error_) return cuda_failed((b), kvf_cuda_symbols.name, error_);                                            \
    } while (0)

/* device.c. NULL with base.trouble set when there is no room. */
void *cuda_take(cuda_backend *b, size_t len_bytes);
/* weights.c: everything of the model into device memory. */
kvf_status cuda_load_weights(cuda_backend *b, kvf_error *err);
/* workspace.c */
kvf_status cuda_make_pool(cuda_backend *b, double memory_share, kvf_error *err);
kvf_status cuda_make_workspace(cuda_backend *b, kvf_error *err);
void cuda_size_unpacked(cuda_backend *b, size_t wanted_bytes); /* before; 0: as much as is good */
/* warm.c */
kvf_status cuda_warm_up(cuda_backend *b, kvf_error *err);
/* step.c */
kvf_status cuda_run_step(kvf_backend *base, const kvf_backend_step *step);
/* forward.c: queues the step up to its logits. */
kvf_status cuda_queue_forward(cuda_backend *b, const kvf_backend_step *step, bool events);
/* choose.c: what a step's logits are for, queued behind them, and taken when the device has ended. */
kvf_status cuda_make_choices(cuda_backend *b, kvf_error *err);
kvf_status cuda_queue_choices(cuda_backend *b, const kvf_backend_step *step);
kvf_status cuda_take_choices(cuda_backend *b, const kvf_backend_step *step);
/* graph.c: the same for a step of single tokens, by a graph recorded before. */
kvf_status cuda_queue_decode(cuda_backend *b, const kvf_backend_step *step);
void cuda_drop_graphs(cuda_backend *b);
#endif
