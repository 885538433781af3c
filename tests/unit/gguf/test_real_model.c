/* The sample model of 98 MB, where it is: exit 77 where it is not (it is not kept in the repository). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <unistd.h>
#include "kvf/model_spec.h"

#define MODEL KVF_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

static void the_sample_model_is_read_whole(void **state) {
    kvf_gguf *g;
    kvf_model_spec s;
    kvf_error err = {0};
    if (kvf_gguf_open(MODEL, &g, &err) || kvf_model_spec_load(g, &s, &err)) fail_msg("%s", err.message);
    assert_int_equal(kvf_gguf_tensor_count(g), 272);
    assert_true(s.arch == KVF_ARCH_LLAMA && s.layers == 30 && s.hidden == 576 && s.heads == 9 && s.kv_heads == 3);
    assert_true(s.head_dim == 64 && s.rope_dims == 64 && s.ffn == 1536 && s.vocab == 49152 && s.context_max == 8192);
    assert_true(s.head_tied && s.rope_base == 100000.0f && s.rms_eps == 1e-5f && s.rope_scale == 1.0);
    assert_int_equal(s.embedding->type, KVF_DTYPE_Q8_0);
    assert_int_equal(s.layer[29].ffn_down->type, KVF_DTYPE_Q4_1);
    kvf_gguf_array merges;
    kvf_span text;
    assert_true(kvf_gguf_get_array(g, "tokenizer.ggml.merges", &merges) && merges.count == 48900);
    assert_true(
        kvf_gguf_array_string(&merges, 3, &text) && text.len_bytes == 3 && !__builtin_memcmp(text.data, "h e", 3));
    uint64_t hash[2];
    kvf_gguf_weights_hash(g, hash);
    if (hash[1] != 0x0d7abee64e79c1e6ull || hash[0] != 0xa0c95653b60bc8f5ull)
        fail_msg("hash is %016llx%016llx", (unsigned long long)hash[1], (unsigned long long)hash[0]);
    kvf_model_spec_free(&s);
    kvf_gguf_close(g);
}

int main(void) {
    if (access(MODEL, R_OK) != 0) {
        printf("skipped: %s is not here\n", MODEL);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_sample_model_is_read_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
