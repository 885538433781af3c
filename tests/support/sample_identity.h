/* sample_identity.h - what a node of a model of 135M parameters says of itself. */
#ifndef KVF_TEST_SAMPLE_IDENTITY_H
#define KVF_TEST_SAMPLE_IDENTITY_H
#include "kvf/msg.h"

#define SAMPLE_IDENTITY                                                                                                \
    {                                                                                                                  \
        .wire_version = KVF_WIRE_VERSION, .weights_hash = {1, 2}, .tokenizer_hash = {3, 4},                            \
        .numerics = "v1-int8g32-kvf16", .block_tokens = 16, .layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64,   \
        .vocab = 49152, .page_bytes = 12288, .context_max = 8192, .layout = 1, .rope_dims = 64, .rope_base_bits = 7,   \
        .rope_style = 1, .kv_type = "f16"                                                                              \
    }
#endif
