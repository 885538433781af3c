#include "sizing.h"
#include <math.h>

/* The fraction p/q with p, q <= 8 nearest to `quotient` on a logarithmic scale; out of that range 1:n or n:1. */
static void small_ratio(double quotient, uint32_t *p, uint32_t *q) {
    *p = *q = 1;
    if (!isfinite(quotient) || quotient <= 0) return;
    if (quotient > 8 || quotient < 1.0 / 8) {
        double n = fmin(quotient > 1 ? quotient : 1 / quotient, 1e6);
        *(quotient > 1 ? p : q) = (uint32_t)lround(n);
        return;
    }
    double best = INFINITY;
    for (uint32_t b = 1; b <= 8; b++) {
        for (uint32_t a = 1; a <= 8; a++) {
            /* A simpler pair is worth a few per cent of error. */
            double error = fabs(log((double)a / b / quotient)) + 0.01 * (a + b);
            if (error >= best) continue;
            best = error;
            *p = a;
            *q = b;
        }
    }
}

void kvf_sizing(const kvf_sizing_in *in, kvf_sizing_out *out) {
    *out = (kvf_sizing_out){0};
    double per_layer = 2.0 * in->kv_heads * (in->head_dim * in->element_bytes + in->scale_bytes);
    out->token_bytes = (uint64_t)ceil(per_layer * in->layers);
    out->page_bytes = (uint64_t)ceil(per_layer * in->block_tokens);
    out->block_bytes = out->page_bytes * in->layers;
    uint64_t blocks = kvf_div_up(in->context, in->block_tokens);
    out->conversation_bytes = blocks * out->block_bytes;
    if (in->memory_bytes && out->block_bytes) {
        uint64_t held = in->memory_bytes / out->block_bytes;
        out->conversations = blocks ? held / blocks : 0;
        out->tokens_held = held * in->block_tokens;
    }
    double token_bytes = per_layer * in->layers;
    out->hide_bytes_per_s = token_bytes * in->prefill_per_s;
    out->prefill_s = in->prompt / in->prefill_per_s;
    if (in->link_bytes_per_s > 0) {
        out->transfer_s = in->prompt * token_bytes / in->link_bytes_per_s;
        double tail = fmin(in->prompt, in->chunk_tokens) * per_layer / in->link_bytes_per_s;
        out->exposed_s = fmax(out->transfer_s - out->prefill_s, tail);
        out->hidden = in->link_bytes_per_s >= out->hide_bytes_per_s;
    }
    out->prefill_node_s = out->prefill_s;
    out->decode_node_s = in->output / in->decode_per_s;
    small_ratio(out->prefill_node_s / out->decode_node_s, &out->ratio_prefill, &out->ratio_decode);
}
