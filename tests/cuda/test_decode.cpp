/* Decode attention on the emulator against the CPU's ref table: head sizes, groups and contexts that users run. */
#include "attention_test.h"

static std::vector<uint32_t> last_tokens(const cluster &c) {
    std::vector<uint32_t> positions;
    for (uint32_t n : c.contexts) positions.push_back(n - 1);
    return positions;
}

static halves by_kernel(const cluster &c, float scale, kvf_cuda_type type = KVF_CUDA_F16) {
    halves out(c.q.size(), 0xFFFF);
    uint32_t context_max = 0;
    for (uint32_t n : c.contexts) context_max = std::max(context_max, n);
    std::vector<float> partial(
        kvf_cuda_decode_partial_floats((uint32_t)c.contexts.size(), c.heads, c.dim, context_max), NAN);
    kvf_cuda_decode a = {};
    a.out = out.data();
    a.out_type = type;
    a.q = c.q.data();
    a.pages = c.pages.data();
    a.page_bytes = c.page_bytes;
    a.cell = c.cell;
    a.block_tables = c.tables.data();
    a.table_stride = c.table_stride;
    a.contexts = c.contexts.data();
    a.context_max = context_max;
    a.sequences = (uint32_t)c.contexts.size();
    a.heads = c.heads;
    a.kv_heads = c.kv_heads;
    a.head_dim = c.dim;
    a.scale = scale;
    a.partial = partial.data();
    assert_int_equal(kvf_cuda_decode_attention(&a, NULL), 0);
    return out;
}

static void check(uint32_t kv_heads, uint32_t group, uint32_t dim, std::vector<uint32_t> contexts) {
    char what[96];
    snprintf(what, sizeof what, "%u x %u heads of %u, %zu sequences, first context %u", kv_heads, group, dim,
        contexts.size(), contexts[0]);
    cluster c = make(kv_heads, group, dim, contexts);
    float scale = 1 / std::sqrt((float)dim);
    assert_near(what, by_kernel(c, scale),
        by_ref(c, last_tokens(c), std::vector<uint32_t>(c.contexts.size(), 1), scale), LIMIT_PPM * 1e-6);
}

/* Codes are the halves they stand for: the same bits as from pages of those halves. */
static void check_codes(uint32_t kv_heads, uint32_t group, uint32_t dim, std::vector<uint32_t> contexts) {
    cluster exact = make(kv_heads, group, dim, contexts), c = to_codes(&exact);
    halves got = by_kernel(c, 0.125f), want = by_kernel(exact, 0.125f);
    for (size_t i = 0; i < got.size(); i++)
        if (got[i] != want[i])
            fail_msg("difference at %zu of codes, heads of %u: %04x, not %04x", i, dim, got[i], want[i]);
    assert_near("codes", got, by_ref(exact, last_tokens(exact), std::vector<uint32_t>(contexts.size(), 1), 0.125f),
        LIMIT_PPM * 1e-6);
}

static void codes_of_all_head_sizes(void **state) {
    for (uint32_t dim : {64, 80, 96, 128, 256}) check_codes(2, 3, dim, {33, 16, 1});
    check_codes(1, 8, 128, {300});
    in_all_orders([] { check_codes(1, 2, 64, {90, 7}); });
}

static void head_sizes(void **state) {
    for (uint32_t dim : {16, 32, 64, 80, 96, 128, 256}) check(2, 3, dim, {33, 16});
}

static void every_head_size_with_every_group(void **state) {
    for (uint32_t dim : {64, 80, 96, 128, 256})
        for (uint32_t group : {1, 3, 4, 7, 8}) check(group == 3 ? 2 : 1, group, dim, {1, 15, 16, 17});
    check(1, KVF_CUDA_GROUP_MAX, 64, {40, 5});
}

static void contexts(void **state) {
    for (uint32_t n : {1, 15, 16, 17, 255, 256, 257, 513}) check(1, 4, 64, {n});
}

static void long_contexts(void **state) {
    check(1, 4, 64, {4097});
    check(1, 8, 128, {4097});
    check(1, 1, 256, {4097});
}

static void ragged_batches_in_all_orders(void **state) {
    in_all_orders([] { check(2, 4, 64, {1, 300, 16, 17, 77}); });
}

/* What is rounded to bf16 is what is rounded to f16 otherwise. */
static void results_in_bf16(void **state) {
    cluster c = make(2, 3, 64, {300, 17});
    std::vector<float> want = by_ref(c, last_tokens(c), {1, 1}, 0.125f);
    assert_near("in bf16", by_kernel(c, 0.125f, KVF_CUDA_BF16), want, LIMIT_PPM * 1e-6 + rounding(KVF_CUDA_BF16),
        KVF_CUDA_BF16);
}

static void a_sequence_does_not_feel_its_batch(void **state) {
    cluster all = make(2, 4, 64, {300, 1, 290});
    halves together = by_kernel(all, 0.125f);
    cluster one = all;
    one.contexts = {290};
    one.tables.assign(all.tables.begin() + 2 * all.table_stride, all.tables.end());
    one.q.assign(all.q.begin() + 2 * all.heads * all.dim, all.q.end());
    halves alone = by_kernel(one, 0.125f);
    assert_memory_equal(alone.data(), &together[2 * all.heads * all.dim], alone.size() * sizeof alone[0]);
}

static void shapes_without_a_kernel_are_refused(void **state) {
    kvf_cuda_decode a = {};
    a.sequences = 1;
    a.heads = 4;
    a.kv_heads = 2;
    a.head_dim = 72;
    assert_int_equal(kvf_cuda_decode_attention(&a, NULL), -1);
    a.head_dim = 64;
    a.heads = 34;
    assert_int_equal(kvf_cuda_decode_attention(&a, NULL), -1);
    a.heads = 3;
    assert_int_equal(kvf_cuda_decode_attention(&a, NULL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_sizes),
        cmocka_unit_test(codes_of_all_head_sizes),
        cmocka_unit_test(every_head_size_with_every_group),
        cmocka_unit_test(contexts),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(ragged_batches_in_all_orders),
        cmocka_unit_test(results_in_bf16),
        cmocka_unit_test(a_sequence_does_not_feel_its_batch),
        cmocka_unit_test(shapes_without_a_kernel_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
