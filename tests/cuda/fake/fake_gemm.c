/* fake_gemm.c - kvf/cuda_gemm.h without cuBLASLt: plain loops, queued on a stream of the fake runtime like a kernel. */
#include "fake_cuda.h"
#include "kvf/cuda_gemm.h"
#include "kvf/quant.h"
#include <stdlib.h>

struct kvf_cuda_gemm {
    void *workspace; /* only to see that each has its own */
};

int kvf_cuda_gemm_create(
    kvf_cuda_gemm **out, void *workspace, size_t workspace_bytes, char *why, size_t why_room_bytes) {
    (void)workspace_bytes, (void)why, (void)why_room_bytes;
    kvf_cuda_gemm *g = calloc(1, sizeof *g);
    if (!g) return -1;
    g->workspace = workspace;
    *out = g;
    return 0;
}
void kvf_cuda_gemm_destroy(kvf_cuda_gemm *g) { free(g); }

static void multiply(void *arg) {
    const kvf_cuda_product *p = arg;
    float *x = malloc(p->inputs * sizeof *x);
    if (!x) abort();
    for (uint32_t row = 0; row < p->rows; row++) {
        for (uint32_t k = 0; k < p->inputs; k++) x[k] = kvf_f16_to_f32(p->x[(size_t)row * p->inputs + k]);
        for (uint32_t output = 0; output < p->outputs; output++) {
            const kvf_half_bits *w = p->w + (size_t)output * p->inputs;
            size_t at = (size_t)row * p->outputs + output;
            float sum = 0;
            for (uint32_t k = 0; k < p->inputs; k++) sum += x[k] * kvf_f16_to_f32(w[k]);
            if (p->y_is_f32)
                ((float *)p->y)[at] = sum;
            else
                ((kvf_half_bits *)p->y)[at] = kvf_f32_to_f16(sum);
        }
    }
    free(x);
}

int kvf_cuda_gemm_run(kvf_cuda_gemm *g, const kvf_cuda_product *p, void *stream) {
    (void)g;
    if (p->is_bf16 || p->add) return -1; /* nobody here asks for it */
    kvf_cuda_product *copy = malloc(sizeof *copy);
    if (!copy) return -1;
    *copy = *p;
    return fake_cuda_enqueue(stream, multiply, free, copy);
}
