/* Steps in which every run is one token are recorded once for each bound of runs and of context, and replayed:
 * some ten launches a layer would otherwise cost the host more than the device. A recording holds addresses and sizes,
 * all of which are fixed by that key; what changes from step to step is read from the inputs in device memory. */
#include "device_int.h"

static cuda_graph *graph_of(cuda_backend *b) {
    cuda_graph *oldest = &b->graphs[0];
    for (size_t i = 0; i < GRAPHS_MAX; i++) {
        cuda_graph *g = &b->graphs[i];
        if (g->exec && g->decodes == b->decodes && g->context_max == b->context_max) return g;
        if (g->used < oldest->used) oldest = g;
    }
    if (oldest->exec) b->api.graph_exec_destroy(oldest->exec);
    *oldest = (cuda_graph){0};
    return oldest;
}

static kvf_status record(cuda_backend *b, const kvf_backend_step *step, cuda_graph *g) {
    kvf_cuda_graph graph = NULL;
    CUDA_TRY(b, capture_begin, b->stream, KVF_CUDA_CAPTURE_THREAD_LOCAL);
    kvf_status status = cuda_queue_forward(b, step, false);
    int error = b->api.capture_end(b->stream, &graph); /* also after a failure: the stream must leave capture */
    if (status == KVF_OK && error) status = cuda_failed(b, kvf_cuda_symbols.capture_end, error);
    if (error && !graph) { /* a stream that went on recording would be lost */
        b->api.capture_end(b->stream, &graph);
        b->api.last_error();
    }
    if (status == KVF_OK) {
        error = b->api.graph_instantiate(&g->exec, graph, 0);
        if (error) status = cuda_failed(b, kvf_cuda_symbols.graph_instantiate, error);
    }
    if (graph) b->api.graph_destroy(graph);
    if (status != KVF_OK) g->exec = NULL;
    g->decodes = b->decodes;
    g->context_max = b->context_max;
    return status;
}

kvf_status cuda_queue_decode(cuda_backend *b, const kvf_backend_step *step) {
    cuda_graph *g = graph_of(b);
    if (!g->exec) {
        kvf_status status = record(b, step, g);
        if (status != KVF_OK) return status;
    }
    g->used = ++b->graph_clock;
    CUDA_TRY(b, graph_launch, g->exec, b->stream);
    return KVF_OK;
}

void cuda_drop_graphs(cuda_backend *b) {
    for (size_t i = 0; i < GRAPHS_MAX; i++)
        if (b->graphs[i].exec) b->api.graph_exec_destroy(b->graphs[i].exec);
}
