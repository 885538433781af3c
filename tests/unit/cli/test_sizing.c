/* The memory bill: figures worked out by hand. */
#include "cli_test.h"
#include "sizing.h"
#include <math.h>

static kvf_sizing_in base(void) {
    return (kvf_sizing_in){.layers = 32,
        .kv_heads = 32,
        .head_dim = 128,
        .element_bytes = 2,
        .block_tokens = 16,
        .context = 8192,
        .chunk_tokens = 2048,
        .prefill_per_s = 50000,
        .decode_per_s = 4000,
        .prompt = 1000,
        .output = 200};
}

static void seven_billion_without_gqa(void **state) {
    kvf_sizing_in in = base();
    kvf_sizing_out out;
    in.memory_bytes = (64ull << 30) + 1;
    kvf_sizing(&in, &out);
    assert_true(out.token_bytes == 512 * 1024); /* 0.5 MiB a token */
    assert_true(out.conversation_bytes == 4ull << 30); /* 4 GiB for 8K */
    assert_true(out.page_bytes == 256 * 1024);
    assert_true(out.block_bytes == 8ull << 20);
    assert_true(out.conversations == 16);
    assert_true(out.tokens_held == 16 * 8192);
}

static void eight_billion_with_gqa(void **state) {
    kvf_sizing_in in = base();
    kvf_sizing_out out;
    in.kv_heads = 8;
    in.context = 4096;
    kvf_sizing(&in, &out);
    assert_true(out.token_bytes == 128 * 1024);
    assert_true(out.page_bytes == 64 * 1024);
    assert_true(out.conversation_bytes == 512ull << 20);
    assert_true(fabs(out.hide_bytes_per_s - 6.5536e9) < 1); /* 128 KiB * 50000/s */
}

static void conversations_are_whole_blocks(void **state) {
    kvf_sizing_in in = base();
    kvf_sizing_out out;
    in.context = 17; /* two blocks */
    in.memory_bytes = 3 * (8ull << 20) + (8ull << 20) - 1;
    kvf_sizing(&in, &out);
    assert_true(out.conversation_bytes == 2 * (8ull << 20));
    assert_true(out.conversations == 1); /* three blocks and not quite a fourth: one pair */
    assert_true(out.tokens_held == 48);
}

static void link_that_hides(void **state) {
    kvf_sizing_in in = base();
    kvf_sizing_out out;
    in.kv_heads = 8;
    in.link_bytes_per_s = 12.5e9; /* 100 Gbit/s */
    kvf_sizing(&in, &out);
    assert_true(out.hidden);
    /* Only the last layer of the last chunk is waited for: 1000 tokens * 4 KiB. */
    assert_true(fabs(out.exposed_s - 1000 * 4096 / 12.5e9) < 1e-12);
    in.link_bytes_per_s = 1.25e9;
    kvf_sizing(&in, &out);
    assert_false(out.hidden);
    assert_true(fabs(out.exposed_s - (1000 * 131072 / 1.25e9 - 0.02)) < 1e-9);
}

static void ratio_balances_both_sides(void **state) {
    kvf_sizing_in in = base();
    kvf_sizing_out out;
    in.prefill_per_s = 10000; /* 0.1 s */
    in.decode_per_s = 1000; /* 0.2 s */
    kvf_sizing(&in, &out);
    assert_int_equal(out.ratio_prefill, 1);
    assert_int_equal(out.ratio_decode, 2);
    in.prompt = 30000; /* 3 s : 0.2 s */
    kvf_sizing(&in, &out);
    assert_int_equal(out.ratio_prefill, 15);
    assert_int_equal(out.ratio_decode, 1);
    in.prompt = 1; /* nothing to prefill */
    kvf_sizing(&in, &out);
    assert_int_equal(out.ratio_prefill, 1);
    assert_int_equal(out.ratio_decode, 2000);
}

static void scaled_eight_bit_values(void **state) {
    kvf_sizing_in in = base();
    kvf_sizing_out out;
    in.element_bytes = 34.0 / 32;
    kvf_sizing(&in, &out);
    assert_true(out.token_bytes == 2 * 32 * 32 * 128 * 34 / 32);
    in.element_bytes = 1;
    in.scale_bytes = 2; /* e4m3 as device nodes keep it */
    kvf_sizing(&in, &out);
    assert_true(out.token_bytes == 2 * 32 * 32 * (128 + 2));
    assert_true(out.page_bytes == 2 * 16 * 32 * (128 + 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(seven_billion_without_gqa),
        cmocka_unit_test(eight_billion_with_gqa), cmocka_unit_test(conversations_are_whole_blocks),
        cmocka_unit_test(link_that_hides), cmocka_unit_test(ratio_balances_both_sides),
        cmocka_unit_test(scaled_eight_bit_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
