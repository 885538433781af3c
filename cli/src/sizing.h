/* sizing.h - the memory bill of a model's KV cache and of handing it from prefill to decode nodes. Pure arithmetic.
 *
 *   KV bytes per token   = 2 (K and V) * layers * kv_heads * (head_dim * bytes of one element + bytes of a scale)
 *   conversation         = whole blocks of block_tokens that hold `context` tokens
 *   hides the hand-off   = KV bytes per token * prefill tokens/s: pages leave as fast as they are made
 *   exposed              = what the link is slower by, and never less than the last layer of the last chunk
 *   prefill : decode     = prompt / prefill tokens/s : output / decode tokens/s (node seconds of one request on each
 * side) */
#ifndef KVF_CLI_SIZING_H
#define KVF_CLI_SIZING_H
#include "kvf/base.h"

typedef struct {
    uint32_t layers, kv_heads, head_dim;
    double element_bytes; /* 2 for f16 and bf16 */
    double scale_bytes; /* of one head of one position, beside its elements */
    uint32_t block_tokens, context, chunk_tokens;
    uint64_t memory_bytes; /* 0: not asked */
    double link_bytes_per_s; /* 0: not asked */
    double prefill_per_s; /* prompt tokens per second of one prefill node */
    double decode_per_s; /* tokens per second of one decode node, all its sequences together */
    double prompt, output; /* tokens of a typical request */
} kvf_sizing_in;

typedef struct {
    uint64_t token_bytes, page_bytes, block_bytes, conversation_bytes;
    uint64_t conversations, tokens_held; /* in memory_bytes */
    double hide_bytes_per_s;
    double transfer_s, prefill_s, exposed_s; /* of `prompt` tokens over the link */
    bool hidden; /* exposed only by the last layer */
    double prefill_node_s, decode_node_s; /* of one request */
    uint32_t ratio_prefill, ratio_decode; /* small whole numbers near the quotient */
} kvf_sizing_out;
void kvf_sizing(const kvf_sizing_in *in, kvf_sizing_out *out);
#endif
