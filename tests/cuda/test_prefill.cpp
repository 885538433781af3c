/* Prefill attention on the emulator against the CPU's ref table. */
#include "attention_test.h"

/* The last tokens[s] tokens of each sequence. */
static halves by_kernel(
    const cluster &c, std::vector<uint32_t> tokens, float scale, kvf_cuda_type type = KVF_CUDA_F16) {
    halves out(c.q.size(), 0xFFFF);
    std::vector<kvf_cuda_run> runs;
    kvf_cuda_prefill a = {};
    for (uint32_t s = 0, row = 0; s < tokens.size(); row += tokens[s++]) {
        runs.push_back({row, tokens[s], c.contexts[s] - tokens[s], s});
        a.tokens_max = std::max(a.tokens_max, tokens[s]);
    }
    a.out = out.data();
    a.out_type = type;
    a.q = c.q.data();
    a.pages = c.pages.data();
    a.page_bytes = c.page_bytes;
    a.cell = c.cell;
    a.block_tables = c.tables.data();
    a.table_stride = c.table_stride;
    a.runs = runs.data();
    a.runs_count = (uint32_t)runs.size();
    a.heads = c.heads;
    a.kv_heads = c.kv_heads;
    a.head_dim = c.dim;
    a.scale = scale;
    assert_int_equal(kvf_cuda_prefill_attention(&a, NULL), 0);
    return out;
}

static cluster make_runs(
    uint32_t kv_heads, uint32_t group, uint32_t dim, std::vector<uint32_t> contexts, std::vector<uint32_t> tokens) {
    size_t rows = 0;
    for (uint32_t n : tokens) rows += n;
    return make(kv_heads, group, dim, contexts, rows);
}

static void check(
    uint32_t kv_heads, uint32_t group, uint32_t dim, std::vector<uint32_t> contexts, std::vector<uint32_t> tokens) {
    char what[96];
    snprintf(what, sizeof what, "%u x %u heads of %u, %zu runs, first %u of %u", kv_heads, group, dim, contexts.size(),
        tokens[0], contexts[0]);
    cluster c = make_runs(kv_heads, group, dim, contexts, tokens);
    float scale = 1 / std::sqrt((float)dim);
    std::vector<uint32_t> position;
    for (size_t s = 0; s < contexts.size(); s++) position.push_back(contexts[s] - tokens[s]);
    assert_near(what, by_kernel(c, tokens, scale), by_ref(c, position, tokens, scale), LIMIT_PPM * 1e-6);
}

/* Codes are the halves they stand for: the same bits as from pages of those halves. */
static void check_codes(
    uint32_t kv_heads, uint32_t group, uint32_t dim, std::vector<uint32_t> contexts, std::vector<uint32_t> tokens) {
    cluster exact = make_runs(kv_heads, group, dim, contexts, tokens), c = to_codes(&exact);
    halves got = by_kernel(c, tokens, 0.125f), want = by_kernel(exact, tokens, 0.125f);
    for (size_t i = 0; i < got.size(); i++)
        if (got[i] != want[i])
            fail_msg("difference at %zu of codes, heads of %u: %04x, not %04x", i, dim, got[i], want[i]);
}

static void codes_of_all_head_sizes(void **state) {
    for (uint32_t dim : {64, 80, 96, 128, 256}) check_codes(2, 1, dim, {70}, {18});
    in_all_orders([] { check_codes(1, 2, 64, {80, 17}, {20, 17}); });
    check_codes(1, 1, 128, {1030}, {3});
}

static void head_sizes(void **state) {
    for (uint32_t dim : {16, 32, 64, 80, 96, 128, 256}) check(1, 2, dim, {70}, {70});
}

static void every_head_size_with_every_group(void **state) {
    for (uint32_t dim : {64, 80, 96, 128, 256})
        for (uint32_t group : {1, 3, 4, 7, 8}) check(group == 3 ? 2 : 1, group, dim, {17, 16}, {17, 1});
}

static void lengths(void **state) {
    for (uint32_t n : {1, 15, 16, 17, 63, 64, 65, 129}) check(1, 1, 64, {n}, {n});
}

static void chunks_behind_a_prefix(void **state) { check(1, 2, 128, {257, 100, 16}, {48, 1, 16}); }

/* Whole prompts of that length are for a GPU: here the last queries. */
static void long_contexts(void **state) {
    check(1, 1, 64, {4097}, {48});
    check(1, 1, 256, {4097}, {48});
}

static void ragged_batches_in_all_orders(void **state) {
    in_all_orders([] { check(1, 2, 64, {80, 1, 31}, {66, 1, 15}); });
}

static void results_in_bf16(void **state) {
    cluster c = make_runs(1, 2, 64, {80, 31}, {18, 31});
    std::vector<float> want = by_ref(c, {62, 0}, {18, 31}, 0.125f);
    assert_near("in bf16", by_kernel(c, {18, 31}, 0.125f, KVF_CUDA_BF16), want,
        LIMIT_PPM * 1e-6 + rounding(KVF_CUDA_BF16), KVF_CUDA_BF16);
}

static void a_token_does_not_feel_how_its_prompt_was_cut(void **state) {
    cluster all = make_runs(1, 2, 64, {150}, {150});
    halves whole = by_kernel(all, {150}, 0.125f);
    cluster tail = all;
    size_t row = all.heads * all.dim;
    tail.q.assign(all.q.begin() + 113 * row, all.q.end());
    halves cut = by_kernel(tail, {37}, 0.125f);
    assert_memory_equal(cut.data(), &whole[113 * row], cut.size() * sizeof cut[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_sizes),
        cmocka_unit_test(codes_of_all_head_sizes),
        cmocka_unit_test(every_head_size_with_every_group),
        cmocka_unit_test(lengths),
        cmocka_unit_test(chunks_behind_a_prefix),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(ragged_batches_in_all_orders),
        cmocka_unit_test(results_in_bf16),
        cmocka_unit_test(a_token_does_not_feel_how_its_prompt_was_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
