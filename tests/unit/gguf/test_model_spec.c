/* The description of a model: values of the tiny models, tied and untied heads (MF-04), rope factors and scaling
 * (MF-05), a head size that is not hidden/heads (MF-07), defaults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "gguf_writer.h"
#include "kvf/model_spec.h"

typedef struct {
    writer *w;
    kvf_gguf *g;
    kvf_model_spec spec;
} loaded;

/* Takes w. */
static loaded load_good(writer *w) {
    loaded l = {.w = w};
    kvf_error err = {0};
    writer_finish(w);
    if (kvf_gguf_open_memory(w->file, w->file_bytes, "dir/test.gguf", &l.g, &err)) fail_msg("%s", err.message);
    if (kvf_model_spec_load(l.g, &l.spec, &err)) fail_msg("%s", err.message);
    return l;
}

static void unload(loaded *l) {
    kvf_model_spec_free(&l->spec);
    kvf_gguf_close(l->g);
    writer_free(l->w);
}

static void expect_refused(writer *w, const char *word) {
    kvf_error err = {0};
    kvf_gguf *g;
    kvf_model_spec spec;
    writer_finish(w);
    if (kvf_gguf_open_memory(w->file, w->file_bytes, "test.gguf", &g, &err)) fail_msg("%s", err.message);
    assert_true(kvf_model_spec_load(g, &spec, &err) < 0);
    if (!strstr(err.message, word)) fail_msg("'%s' lacks '%s'", err.message, word);
    kvf_gguf_close(g);
    writer_free(w);
}

static const writer_shape plain = {
    .arch = "llama", .layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 96, .vocab = 32};

static void the_tiny_models_are_read_as_they_were_made(void **state) {
    static const struct {
        const char *name;
        kvf_arch arch;
        kvf_rope_style style;
        uint32_t kv_heads, head_dim;
        float rope_base;
        bool tied, biases, norms, factors;
    } rows[] = {
        {"llama", KVF_ARCH_LLAMA, KVF_ROPE_PAIRS, 2, 16, 1e4f, false, false, false, false},
        {"llama-mha", KVF_ARCH_LLAMA, KVF_ROPE_PAIRS, 4, 16, 1e4f, false, false, false, false},
        {"llama3-rope", KVF_ARCH_LLAMA, KVF_ROPE_PAIRS, 2, 16, 5e5f, true, false, false, true},
        {"mistral-wide-head", KVF_ARCH_LLAMA, KVF_ROPE_PAIRS, 2, 32, 1e6f, false, false, false, false},
        {"qwen2", KVF_ARCH_QWEN2, KVF_ROPE_HALVES, 2, 16, 1e6f, true, true, false, false},
        {"qwen3", KVF_ARCH_QWEN3, KVF_ROPE_HALVES, 2, 32, 1e6f, true, false, true, false},
    };
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        char path[512];
        kvf_gguf *g;
        kvf_model_spec s;
        kvf_error err = {0};
        snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.gguf", KVF_SOURCE_DIR, rows[i].name);
        if (kvf_gguf_open(path, &g, &err) || kvf_model_spec_load(g, &s, &err)) fail_msg("%s", err.message);
        assert_int_equal(s.arch, rows[i].arch);
        assert_int_equal(s.rope_style, rows[i].style);
        assert_true(
            s.layers == 3 && s.hidden == 64 && s.heads == 4 && s.ffn == 160 && s.vocab == 320 && s.context_max == 4096);
        assert_true(
            s.kv_heads == rows[i].kv_heads && s.head_dim == rows[i].head_dim && s.rope_dims == rows[i].head_dim);
        assert_true(s.rms_eps == 1e-5f && s.rope_base == rows[i].rope_base && s.rope_scale == 1.0);
        assert_int_equal(s.head_tied, rows[i].tied);
        assert_int_equal(s.output == s.embedding, rows[i].tied);
        assert_int_equal(s.rope_factors != NULL, rows[i].factors);
        assert_non_null(strstr(s.name, rows[i].name));
        for (uint32_t l = 0; l < s.layers; l++) {
            const kvf_model_layer *layer = &s.layer[l];
            assert_true(layer->attn_norm && layer->attn_q && layer->attn_k && layer->attn_v && layer->attn_output);
            assert_true(layer->ffn_norm && layer->ffn_gate && layer->ffn_up && layer->ffn_down);
            assert_true((layer->attn_q_bias && layer->attn_k_bias && layer->attn_v_bias) == rows[i].biases);
            assert_true((layer->attn_q_norm && layer->attn_k_norm) == rows[i].norms);
        }
        assert_true(s.layer[1].attn_q != s.layer[0].attn_q);
        assert_int_equal(kvf_model_page_elements(&s, 16), 2u * 16 * rows[i].kv_heads * rows[i].head_dim);
        kvf_model_spec_free(&s);
        kvf_gguf_close(g);
    }
}

static void tied_and_untied_heads_are_told_apart(void **state) {
    writer_shape s = plain;
    writer *w = writer_new();
    writer_model(w, &s);
    loaded l = load_good(w);
    assert_false(l.spec.head_tied);
    assert_string_equal(l.spec.output->name, "output.weight");
    unload(&l);
    s.tied = true;
    w = writer_new();
    writer_model(w, &s);
    l = load_good(w);
    assert_true(l.spec.head_tied);
    assert_ptr_equal(l.spec.output, l.spec.embedding);
    unload(&l);
    w = writer_new();
    writer_model(w, &s);
    writer_tensor_add(w, "output.weight", s.hidden, s.vocab - 1);
    expect_refused(w, "'output.weight' has shape [64, 31], the hyperparameters ask for [64, 32]");
}

/* MF-07: hidden 40, 12 heads, 2 KV heads, head size 16. */
static void head_size_stands_apart_from_hidden_and_heads(void **state) {
    static const writer_shape s = {.arch = "llama",
        .layers = 1,
        .hidden = 40,
        .heads = 12,
        .kv_heads = 2,
        .head_dim = 16,
        .ffn = 8,
        .vocab = 8,
        .tied = true};
    writer *w = writer_new();
    writer_model(w, &s);
    loaded l = load_good(w);
    assert_true(l.spec.head_dim == 16 && l.spec.rope_dims == 16);
    assert_true(l.spec.layer[0].attn_q->dims[0] == 40 && l.spec.layer[0].attn_q->dims[1] == 192);
    assert_true(l.spec.layer[0].attn_k->dims[1] == 32 && l.spec.layer[0].attn_v->dims[1] == 32);
    assert_true(l.spec.layer[0].attn_output->dims[0] == 192 && l.spec.layer[0].attn_output->dims[1] == 40);
    unload(&l);
    w = writer_new();
    writer_skip(w, "llama.attention.key_length");
    writer_model(w, &s);
    expect_refused(w, "'llama.attention.key_length' is missing and embedding_length 40");
    w = writer_new();
    writer_u32(w, "llama.attention.key_length", 8);
    writer_skip(w, "llama.attention.key_length");
    writer_model(w, &s);
    expect_refused(w, "'blk.0.attn_q.weight' has shape [40, 192], the hyperparameters ask for [40, 96]");
    w = writer_new(); /* where it divides, the key may be absent */
    writer_model(w, &plain);
    l = load_good(w);
    assert_int_equal(l.spec.head_dim, 16);
    unload(&l);
}

/* The published formula of llama3 scaling, in double: what divides the frequency of pair i. */
static double llama3_factor(
    uint32_t i, uint32_t dims, double base, double factor, double low, double high, double original) {
    double wavelength = 2 * M_PI * pow(base, 2.0 * i / dims);
    if (wavelength < original / high) return 1;
    if (wavelength > original / low) return factor;
    double smooth = (original / wavelength - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
}

/* MF-05: the ratios quoted there come back through rope_freqs.weight; pairs are counted from 0. */
static void rope_factors_of_llama3_come_through(void **state) {
    static const struct {
        uint32_t dims;
        double factor;
        uint32_t first, count;
        double ratio[6];
    } rows[] = {
        {64, 32, 15, 3, {0.605572755, 0.303742524, 0.103447609}},
        {128, 8, 29, 6, {0.828168412, 0.643743133, 0.493507123, 0.371122280, 0.271425477, 0.190210744}},
    };
    for (size_t r = 0; r < KVF_COUNT_OF(rows); r++) {
        static float factors[64];
        uint32_t pairs = rows[r].dims / 2;
        for (uint32_t i = 0; i < pairs; i++)
            factors[i] = (float)llama3_factor(i, rows[r].dims, 500000, rows[r].factor, 1, 4, 8192);
        writer_shape s = plain;
        s.head_dim = rows[r].dims;
        writer *w = writer_new();
        writer_f32(w, "llama.rope.freq_base", 500000);
        writer_model(w, &s);
        writer_tensor_add(w, "rope_freqs.weight", pairs, 0)->data = factors;
        loaded l = load_good(w);
        assert_non_null(l.spec.rope_factors);
        for (uint32_t i = 0; i < pairs; i++) {
            double want = i < rows[r].first                   ? 1
                          : i < rows[r].first + rows[r].count ? rows[r].ratio[i - rows[r].first]
                                                              : 1 / rows[r].factor;
            assert_true(fabs(1 / (double)l.spec.rope_factors[i] - want) < 1e-7);
        }
        unload(&l);
    }
}

/* The tensor that an independent converter wrote into the tiny model holds the same formula (factor 8 over 256 tokens).
 */
static void rope_factors_of_the_tiny_model_follow_the_formula(void **state) {
    kvf_gguf *g;
    kvf_model_spec s;
    assert_int_equal(kvf_gguf_open(KVF_SOURCE_DIR "/tests/golden/tiny/llama3-rope.gguf", &g, NULL), KVF_OK);
    assert_int_equal(kvf_model_spec_load(g, &s, NULL), KVF_OK);
    for (uint32_t i = 0; i < 8; i++) {
        double want = llama3_factor(i, 16, 500000, 8, 1, 4, 256);
        if (fabs((double)s.rope_factors[i] - want) > 1e-5 * want)
            fail_msg("factor %u is %g, the formula gives %g", i, (double)s.rope_factors[i], want);
    }
    kvf_model_spec_free(&s);
    kvf_gguf_close(g);
}

static void linear_scaling_is_read_and_none_turns_it_off(void **state) {
    static const struct {
        const char *type, *factor_key;
        float factor;
        double want;
    } rows[] = {
        {NULL, NULL, 0, 1},
        {"none", NULL, 0, 1},
        {"none", "llama.rope.scaling.factor", 4, 1},
        {"linear", "llama.rope.scaling.factor", 4, 0.25},
        {NULL, "llama.rope.scaling.factor", 4, 0.25},
        {NULL, "llama.rope.scale_linear", 2, 0.5},
        {"linear", "llama.rope.scaling.factor", 0, 1},
        {"linear", NULL, 0, 1},
    };
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        writer *w = writer_new();
        if (rows[i].type) writer_string(w, "llama.rope.scaling.type", rows[i].type);
        if (rows[i].factor_key) writer_f32(w, rows[i].factor_key, rows[i].factor);
        writer_model(w, &plain);
        loaded l = load_good(w);
        assert_true(l.spec.rope_scale == rows[i].want);
        unload(&l);
    }
    static const char *const refused[] = {"yarn", "longrope", "llama3", "dynamic", ""};
    for (size_t i = 0; i < KVF_COUNT_OF(refused); i++) {
        writer *w = writer_new();
        char word[64];
        writer_string(w, "llama.rope.scaling.type", refused[i]);
        writer_model(w, &plain);
        snprintf(word, sizeof word, "'llama.rope.scaling.type' is '%s'", refused[i]);
        expect_refused(w, word);
    }
}

static void absent_keys_take_their_defaults(void **state) {
    writer_shape s = plain;
    s.kv_heads = s.heads;
    writer *w = writer_new();
    writer_skip(w, "llama.attention.head_count_kv");
    writer_skip(w, "general.name");
    writer_model(w, &s);
    loaded l = load_good(w);
    assert_int_equal(l.spec.kv_heads, 4);
    assert_true(l.spec.rope_base == 10000.0f);
    assert_int_equal(l.spec.rope_dims, 16);
    assert_string_equal(l.spec.name, "test.gguf");
    unload(&l);
    w = writer_new();
    writer_u32(w, "llama.rope.dimension_count", 8); /* part of the head is rotated */
    writer_u32(w, "llama.attention.sliding_window", 128);
    writer_model(w, &plain);
    l = load_good(w);
    assert_int_equal(l.spec.rope_dims, 8);
    assert_int_equal(l.spec.context_max, 128);
    unload(&l);
}

static void names_are_made_printable(void **state) {
    static const struct {
        const char *raw, *want;
    } rows[] = {
        {"plain", "plain"},
        {"Gr\xc3\xbc\xc3\x9f"
         "e \xe4\xbd\xa0",
            "Gr\xc3\xbc\xc3\x9f"
            "e \xe4\xbd\xa0"},
        {"a\x1b[31mb\nc\x7f", "a?[31mb?c?"}, {"\xff\xc3", "??"},
        {"\xe2\x80\xae"
         "x",
            "?x"}, /* U+202E turns the direction of text */
    };
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        writer *w = writer_new();
        writer_string(w, "general.name", rows[i].raw);
        writer_skip(w, "general.name");
        writer_model(w, &plain);
        loaded l = load_good(w);
        assert_string_equal(l.spec.name, rows[i].want);
        unload(&l);
    }
    char longest[301];
    for (int i = 0; i < 300; i += 2) memcpy(longest + i, "\xc3\xbc", 2);
    longest[300] = 0;
    writer *w = writer_new();
    writer_string(w, "general.name", longest);
    writer_skip(w, "general.name");
    writer_model(w, &plain);
    loaded l = load_good(w);
    size_t length = strlen(l.spec.name);
    assert_true(length <= 127 && length > 120);
    assert_memory_equal(l.spec.name, longest, length - 3);
    assert_int_equal((length - 3) % 2, 0); /* cut between characters */
    assert_string_equal(l.spec.name + length - 3, "...");
    unload(&l);
}

static void biases_and_norms_are_there_exactly_where_the_architecture_has_them(void **state) {
    writer_shape s = plain;
    s.biases = true; /* optional in llama */
    writer *w = writer_new();
    writer_model(w, &s);
    loaded l = load_good(w);
    assert_non_null(l.spec.layer[1].attn_k_bias);
    unload(&l);
    s.arch = "qwen2";
    w = writer_new();
    writer_skip(w, "blk.1.attn_k.bias");
    writer_model(w, &s);
    expect_refused(w, "tensor 'blk.1.attn_k.bias' is missing");
    s.biases = false;
    s.arch = "qwen3";
    w = writer_new();
    writer_model(w, &s);
    expect_refused(w, "tensor 'blk.0.attn_q_norm.weight' is missing");
    s.norms = true;
    s.arch = "llama";
    w = writer_new();
    writer_model(w, &s);
    expect_refused(w, "tensor 'blk.0.attn_q_norm.weight' is not part of architecture llama");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tiny_models_are_read_as_they_were_made),
        cmocka_unit_test(tied_and_untied_heads_are_told_apart),
        cmocka_unit_test(head_size_stands_apart_from_hidden_and_heads),
        cmocka_unit_test(rope_factors_of_llama3_come_through),
        cmocka_unit_test(rope_factors_of_the_tiny_model_follow_the_formula),
        cmocka_unit_test(linear_scaling_is_read_and_none_turns_it_off),
        cmocka_unit_test(absent_keys_take_their_defaults),
        cmocka_unit_test(names_are_made_printable),
        cmocka_unit_test(biases_and_norms_are_there_exactly_where_the_architecture_has_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
