/* Field case PD-08: each single difference is found and named with both values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "../../support/sample_identity.h"
#include "kvf/msg.h"

static kvf_identity sample(void) { return (kvf_identity)SAMPLE_IDENTITY; }

static void equal_identities_do_not_differ(void **state) {
    kvf_identity a = sample(), b = sample();
    char at[64], bt[64];
    assert_null(kvf_identity_differs(&a, &b, at, bt));
}

static void every_field_is_compared_and_named(void **state) {
    kvf_identity a = sample();
    char at[64], bt[64];
#define CHANGED(field, value, name, a_want, b_want)                                                                    \
    do {                                                                                                               \
        kvf_identity b = sample();                                                                                     \
        b.field = value;                                                                                               \
        const char *got = kvf_identity_differs(&a, &b, at, bt);                                                        \
        assert_non_null(got);                                                                                          \
        assert_string_equal(got, name);                                                                                \
        assert_string_equal(at, a_want);                                                                               \
        assert_string_equal(bt, b_want);                                                                               \
    } while (0)
    CHANGED(wire_version, 2, "wire_version", "1", "2");
    CHANGED(weights_hash[1], 9, "weights_hash", "00000000000000020000000000000001", "00000000000000090000000000000001");
    CHANGED(
        tokenizer_hash[0], 9, "tokenizer_hash", "00000000000000040000000000000003", "00000000000000040000000000000009");
    CHANGED(block_tokens, 32, "block_tokens", "16", "32");
    CHANGED(layers, 31, "layers", "30", "31");
    CHANGED(heads, 8, "heads", "9", "8");
    CHANGED(kv_heads, 1, "kv_heads", "3", "1");
    CHANGED(head_dim, 128, "head_dim", "64", "128");
    CHANGED(vocab, 5, "vocab", "49152", "5");
    CHANGED(page_bytes, 5, "page_bytes", "12288", "5");
    CHANGED(context_max, 5, "context_max", "8192", "5");
    CHANGED(layout, 2, "layout", "1", "2");
    CHANGED(rope_dims, 32, "rope_dims", "64", "32");
    CHANGED(rope_base_bits, 8, "rope_base_bits", "7", "8");
    CHANGED(rope_style, 0, "rope_style", "1", "0");
    CHANGED(kv_type[1], '3', "kv_type", "f16", "f36");
    CHANGED(numerics[1], '2', "numerics", "v1-int8g32-kvf16", "v2-int8g32-kvf16");
#undef CHANGED
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_identities_do_not_differ),
        cmocka_unit_test(every_field_is_compared_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
