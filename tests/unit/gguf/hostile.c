#include "hostile.h"
#include <math.h>

static const writer_shape tiny_shape = {.arch = "llama",
    .layers = 1,
    .hidden = 8,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 4,
    .ffn = 8,
    .vocab = 4,
    .tied = true};

static void tiny(writer *w) { writer_model(w, &tiny_shape); }

/* Puts another value for a key of the good model. */
#define WITH_KEY(name, key, put)                                                                                       \
    static void name(writer *w) {                                                                                      \
        put;                                                                                                           \
        writer_skip(w, key);                                                                                           \
        tiny(w);                                                                                                       \
    }
#define WITH_U32(name, key, v) WITH_KEY(name, key, writer_u32(w, key, v))
#define WITH_F32(name, key, v) WITH_KEY(name, key, writer_f32(w, key, v))

static void good_tiny(writer *w) { tiny(w); }
static void good_v2(writer *w) {
    w->version = 2;
    tiny(w);
}
static void good_empty(writer *w) { (void)w; }
static void good_alignment_64(writer *w) {
    w->alignment = 64;
    writer_u32(w, "general.alignment", 64);
    tiny(w);
}
static void good_qwen3(writer *w) {
    writer_shape s = tiny_shape;
    s.arch = "qwen3";
    s.norms = true;
    s.head_dim = 8;
    writer_strings(w, "tokenizer.ggml.tokens", 4, "t");
    writer_model(w, &s);
}

/* --- structure --- */
static void version_1(writer *w) { w->version = 1; }
static void version_big_endian(writer *w) { w->version = 0x03000000; }
static void keys_2_63(writer *w) { w->claim_keys = 1ull << 63; }
static void keys_too_many(writer *w) {
    tiny(w);
    w->claim_keys = 60000;
}
static void tensors_2_63(writer *w) { w->claim_tensors = 1ull << 63; }
static void tensors_too_many(writer *w) {
    tiny(w);
    w->claim_tensors = 1000;
}
static void key_length_max(writer *w) {
    writer_raw_u64(w, UINT64_MAX);
    writer_raw(w, "aaaaaaaaaa", 10);
    w->keys_count = 1;
}
static void key_empty(writer *w) {
    writer_u32(w, "", 1);
    tiny(w);
}
static void key_with_nul(writer *w) {
    writer_raw_u64(w, 3);
    writer_raw(w, "a\0b\4\0\0\0\1\0\0\0", 11);
    w->keys_count++;
    tiny(w);
}
static void key_twice(writer *w) {
    writer_u32(w, "x.y", 1);
    writer_u32(w, "x.y", 2);
    tiny(w);
}
static void string_length_max(writer *w) {
    writer_key(w, "general.name", 8);
    writer_raw_u64(w, UINT64_MAX);
    writer_raw(w, "abcdefgh", 8);
}
static void value_type_unknown(writer *w) {
    writer_key(w, "x.type", 13);
    writer_raw_u64(w, 0);
    tiny(w);
}
static void truth_value_2(writer *w) {
    writer_key(w, "x.flag", 7);
    writer_raw(w, "\2", 1);
    tiny(w);
}
static void array_of(writer *w, const char *key, uint32_t type, uint64_t count) {
    writer_key(w, key, 9);
    writer_raw_u32(w, type);
    writer_raw_u64(w, count);
    writer_raw(w, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
}
static void array_count_2_40(writer *w) { array_of(w, "x.list", 4, 1ull << 40); }
static void array_count_wraps(writer *w) { array_of(w, "x.list", 10, (1ull << 61) + 1); }
static void array_strings_2_40(writer *w) { array_of(w, "x.list", 8, 1ull << 40); }
static void array_strings_wrap(writer *w) { array_of(w, "x.list", 8, UINT64_MAX); }
static void array_nested(writer *w) { array_of(w, "x.list", 9, 1); }
static void array_type_unknown(writer *w) { array_of(w, "x.list", 77, 1); }
static void array_string_runs_out(writer *w) {
    writer_key(w, "x.list", 9);
    writer_raw_u32(w, 8);
    writer_raw_u64(w, 2);
    writer_raw_string(w, "abc");
    writer_raw_u64(w, 1ull << 62);
}

WITH_U32(alignment_0, "general.alignment", 0)
WITH_U32(alignment_3, "general.alignment", 3)
WITH_U32(alignment_8, "general.alignment", 8)
WITH_U32(alignment_2_31, "general.alignment", 1u << 31)
WITH_KEY(alignment_wrong_type, "general.alignment", writer_string(w, "general.alignment", "32"))
WITH_KEY(alignment_u64, "general.alignment", writer_u64(w, "general.alignment", 64))
WITH_U32(split_file, "split.count", 3)

/* --- tensors --- */
static writer_tensor *first(writer *w) {
    tiny(w);
    return &w->tensors[0];
}
static void dim_0(writer *w) { first(w)->dims[1] = 0; }
static void dims_wrap(writer *w) {
    writer_tensor *t = first(w);
    t->dims[0] = (1ull << 42) + 1;
    t->dims[1] = 1ull << 22;
}
static void dims_wrap_small(writer *w) {
    writer_tensor *t = first(w);
    t->dims_count = 4;
    t->dims[0] = t->dims[1] = t->dims[2] = t->dims[3] = 1ull << 32;
}
static void dims_max(writer *w) { first(w)->dims[0] = UINT64_MAX; }
static void n_dims_0(writer *w) { first(w)->dims_count = 0; }
static void n_dims_9(writer *w) { first(w)->dims_count = 9; }
static void n_dims_max(writer *w) { first(w)->dims_count = UINT32_MAX; }
static void type_unknown(writer *w) { first(w)->type = 77; }
static void type_iq2(writer *w) { first(w)->type = 16; }
static void type_max(writer *w) { first(w)->type = UINT32_MAX; }
static void row_not_blocks(writer *w) { first(w)->type = 8; }
static void offset_unaligned(writer *w) { first(w)->offset = 4; }
static void offset_past_end(writer *w) { first(w)->offset = 1u << 20; }
static void offset_wraps(writer *w) { first(w)->offset = UINT64_MAX - 31; }
static void tensors_overlap(writer *w) {
    tiny(w);
    w->tensors[2].offset = w->tensors[0].offset;
}
static void tensor_twice(writer *w) {
    tiny(w);
    w->tensors[2].name = w->tensors[1].name;
}
static void tensor_name_empty(writer *w) { first(w)->name = ""; }
static void data_missing(writer *w) {
    tiny(w);
    w->data_bytes -= 32;
}

/* --- the model --- */
WITH_KEY(arch_missing, "general.architecture", (void)w)
WITH_KEY(arch_unknown, "general.architecture", writer_string(w, "general.architecture", "mamba\x1b[31m"))
WITH_U32(arch_number, "general.architecture", 7)
WITH_U32(layers_0, "llama.block_count", 0)
WITH_U32(layers_2_31, "llama.block_count", 1u << 31)
WITH_U32(layers_1000, "llama.block_count", 1000)
WITH_KEY(layers_2_40, "llama.block_count", writer_u64(w, "llama.block_count", 1ull << 40))
WITH_KEY(layers_string, "llama.block_count", writer_string(w, "llama.block_count", "1"))
WITH_KEY(layers_missing, "llama.block_count", (void)w)
WITH_U32(heads_0, "llama.attention.head_count", 0)
WITH_U32(heads_3, "llama.attention.head_count", 3)
WITH_U32(heads_too_many, "llama.attention.head_count", 1u << 20)
WITH_U32(kv_heads_0, "llama.attention.head_count_kv", 0)
WITH_U32(kv_heads_4, "llama.attention.head_count_kv", 4)
WITH_U32(hidden_0, "llama.embedding_length", 0)
WITH_U32(hidden_huge, "llama.embedding_length", 1u << 30)
WITH_U32(hidden_16, "llama.embedding_length", 16)
WITH_U32(ffn_0, "llama.feed_forward_length", 0)
WITH_U32(ffn_16, "llama.feed_forward_length", 16)
WITH_U32(context_0, "llama.context_length", 0)
WITH_U32(key_length_0, "llama.attention.key_length", 0)
WITH_U32(key_length_huge, "llama.attention.key_length", 1u << 16)
WITH_U32(value_length_other, "llama.attention.value_length", 2)
WITH_F32(eps_nan, "llama.attention.layer_norm_rms_epsilon", NAN)
WITH_F32(eps_inf, "llama.attention.layer_norm_rms_epsilon", INFINITY)
WITH_F32(eps_negative, "llama.attention.layer_norm_rms_epsilon", -1e-5f)
WITH_KEY(eps_missing, "llama.attention.layer_norm_rms_epsilon", (void)w)
WITH_F32(rope_base_0, "llama.rope.freq_base", 0)
WITH_F32(rope_base_nan, "llama.rope.freq_base", NAN)
WITH_U32(rope_dims_odd, "llama.rope.dimension_count", 3)
WITH_U32(rope_dims_6, "llama.rope.dimension_count", 6)
WITH_KEY(rope_yarn, "llama.rope.scaling.type", writer_string(w, "llama.rope.scaling.type", "yarn"))
WITH_F32(rope_factor_nan, "llama.rope.scaling.factor", NAN)
WITH_F32(rope_factor_negative, "llama.rope.scaling.factor", -2)
WITH_U32(experts, "llama.expert_count", 8)
WITH_U32(vocab_size_5, "llama.vocab_size", 5)
WITH_KEY(tokens_too_many, "tokenizer.ggml.tokens", writer_strings(w, "tokenizer.ggml.tokens", 5, "t"))
WITH_KEY(embedding_missing, "token_embd.weight", (void)w)
WITH_KEY(down_missing, "blk.0.ffn_down.weight", (void)w)
static void tensor_left_over(writer *w) {
    tiny(w);
    writer_tensor_add(w, "blk.0.attn_output.bias", 8, 0);
}
static void norm_not_f32(writer *w) {
    tiny(w);
    w->tensors[1].type = 1;
}
static void rope_factor_zero(writer *w) {
    static const float factors[2] = {1, 0};
    tiny(w);
    writer_tensor_add(w, "rope_freqs.weight", 2, 0)->data = factors;
}
static void rope_factors_shape(writer *w) {
    tiny(w);
    writer_tensor_add(w, "rope_freqs.weight", 3, 0);
}

#define BAD(fn, word)                                                                                                  \
    { #fn, word, fn }
const hostile_case hostile_cases[] = {
    BAD(good_tiny, NULL),
    BAD(good_v2, NULL),
    BAD(good_alignment_64, NULL),
    BAD(good_qwen3, NULL),
    BAD(good_empty, "general.architecture"),
    BAD(version_1, "version is 1"),
    BAD(version_big_endian, "big-endian"),
    BAD(keys_2_63, "metadata_kv_count is 9223372036854775808"),
    BAD(keys_too_many, "metadata_kv_count is 60000"),
    BAD(tensors_2_63, "tensor_count is 9223372036854775808"),
    BAD(tensors_too_many, "tensor_count is 1000"),
    BAD(key_length_max, "key 0: name: expected 18446744073709551615 bytes at offset 32, found 10"),
    BAD(key_empty, "key 0: name of 0 bytes"),
    BAD(key_with_nul, "key 0: name of 3 bytes"),
    BAD(key_twice, "key 'x.y' is there twice"),
    BAD(string_length_max, "key 'general.name': value: expected 18446744073709551615 bytes"),
    BAD(value_type_unknown, "key 'x.type': unknown value type 13"),
    BAD(truth_value_2, "key 'x.flag': truth value 2"),
    BAD(array_count_2_40, "key 'x.list': array count: expected 4398046511104 bytes"),
    BAD(array_count_wraps, "key 'x.list': array count"),
    BAD(array_strings_2_40, "key 'x.list': array count"),
    BAD(array_strings_wrap, "key 'x.list': array count"),
    BAD(array_nested, "key 'x.list': array of arrays"),
    BAD(array_type_unknown, "key 'x.list': array of an unknown type (value type 77)"),
    BAD(array_string_runs_out, "key 'x.list': string in array: expected 4611686018427387904"),
    BAD(alignment_0, "'general.alignment' is 0"),
    BAD(alignment_3, "'general.alignment' is 3"),
    BAD(alignment_8, "'general.alignment' is 8"),
    BAD(alignment_2_31, "'general.alignment' is 2147483648"),
    BAD(alignment_wrong_type, "'general.alignment' has value type 8"),
    BAD(alignment_u64, "'general.alignment' has value type 10"),
    BAD(split_file, "'split.count' is 3"),
    BAD(dim_0, "'token_embd.weight': dimension 1 is 0"),
    BAD(dims_wrap, "'token_embd.weight': dimension 0 is 4398046511105"),
    BAD(dims_wrap_small, "'token_embd.weight': dimension 1 is 4294967296"),
    BAD(dims_max, "'token_embd.weight': dimension 0 is 18446744073709551615"),
    BAD(n_dims_0, "'token_embd.weight': n_dims is 0"),
    BAD(n_dims_9, "'token_embd.weight': n_dims is 9"),
    BAD(n_dims_max, "'token_embd.weight': n_dims is 4294967295"),
    BAD(type_unknown, "'token_embd.weight': type 77"),
    BAD(type_iq2, "'token_embd.weight': type 16 (IQ2_XXS)"),
    BAD(type_max, "'token_embd.weight': type 4294967295"),
    BAD(row_not_blocks, "'token_embd.weight': row of 8 values is not a multiple of the 32 in a block of Q8_0"),
    BAD(offset_unaligned, "'token_embd.weight': offset 4"),
    BAD(offset_past_end, "'token_embd.weight': expected 128 bytes at offset 1048576 of the data section, found 0"),
    BAD(offset_wraps, "'token_embd.weight': expected 128 bytes"),
    BAD(tensors_overlap, "overlap"),
    BAD(tensor_twice, "tensor 'output_norm.weight' is there twice"),
    BAD(tensor_name_empty, "tensor 0: name of 0 bytes"),
    BAD(data_missing, "'blk.0.ffn_down.weight': expected 256 bytes"),
    BAD(arch_missing, "'general.architecture' is missing"),
    BAD(arch_unknown, "'general.architecture' is 'mamba?[31m'"),
    BAD(arch_number, "'general.architecture' is not a string"),
    BAD(layers_0, "'llama.block_count' is 0"),
    BAD(layers_2_31, "'llama.block_count' is 2147483648"),
    BAD(layers_1000, "'blk.1.attn_norm.weight' is missing"),
    BAD(layers_2_40, "'llama.block_count' is 1099511627776"),
    BAD(layers_string, "'llama.block_count' is not a whole number"),
    BAD(layers_missing, "'llama.block_count' is missing"),
    BAD(heads_0, "'llama.attention.head_count' is 0"),
    BAD(heads_3,
        "'llama.attention.key_length' is missing and embedding_length 8 is not a multiple of attention.head_count 3"),
    BAD(heads_too_many, "'llama.attention.head_count' is 1048576"),
    BAD(kv_heads_0, "'llama.attention.head_count_kv' is 0"),
    BAD(kv_heads_4, "head_count 2 is not a multiple of attention.head_count_kv 4"),
    BAD(hidden_0, "'llama.embedding_length' is 0"),
    BAD(hidden_huge, "'llama.embedding_length' is 1073741824"),
    BAD(hidden_16, "'token_embd.weight' has shape [8, 4], the hyperparameters ask for [16, 4]"),
    BAD(ffn_0, "'llama.feed_forward_length' is 0"),
    BAD(ffn_16, "'blk.0.ffn_gate.weight' has shape [8, 8], the hyperparameters ask for [8, 16]"),
    BAD(context_0, "'llama.context_length' is 0"),
    BAD(key_length_0, "'llama.attention.key_length' is 0"),
    BAD(key_length_huge, "'llama.attention.key_length' is 65536"),
    BAD(value_length_other, "key_length 4 and attention.value_length 2 differ"),
    BAD(eps_nan, "'llama.attention.layer_norm_rms_epsilon' is nan"),
    BAD(eps_inf, "'llama.attention.layer_norm_rms_epsilon' is inf"),
    BAD(eps_negative, "'llama.attention.layer_norm_rms_epsilon' is -1e-05"),
    BAD(eps_missing, "'llama.attention.layer_norm_rms_epsilon' is missing"),
    BAD(rope_base_0, "'llama.rope.freq_base' is 0"),
    BAD(rope_base_nan, "'llama.rope.freq_base' is nan"),
    BAD(rope_dims_odd, "rope.dimension_count is 3"),
    BAD(rope_dims_6, "rope.dimension_count is 6"),
    BAD(rope_yarn, "'llama.rope.scaling.type' is 'yarn'"),
    BAD(rope_factor_nan, "'llama.rope.scaling.factor' is nan"),
    BAD(rope_factor_negative, "'llama.rope.scaling.factor' is -2"),
    BAD(experts, "'llama.expert_count' is 8"),
    BAD(vocab_size_5, "'llama.vocab_size' is 5"),
    BAD(tokens_too_many, "'tokenizer.ggml.tokens' lists 5 tokens, tensor 'token_embd.weight' has 4 rows"),
    BAD(embedding_missing, "tensor 'token_embd.weight' is missing"),
    BAD(down_missing, "tensor 'blk.0.ffn_down.weight' is missing"),
    BAD(tensor_left_over, "tensor 'blk.0.attn_output.bias' is not part of"),
    BAD(norm_not_f32, "tensor 'output_norm.weight' has type F16"),
    BAD(rope_factor_zero, "'rope_freqs.weight' value 1 is 0"),
    BAD(rope_factors_shape, "'rope_freqs.weight' has shape [3], the hyperparameters ask for [2]"),
};
const size_t hostile_cases_count = KVF_COUNT_OF(hostile_cases);
