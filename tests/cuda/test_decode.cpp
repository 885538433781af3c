/* Decode attention on the emulator against the CPU's ref table: head sizes, groups and contexts that users run. */
#include "cuda_test.h"

enum { PAGE = 16, LIMIT_PPM = 700 /* f16 rounding of probabilities and output */ };

struct cluster { /* sequences over shuffled blocks of one layer */
    uint32_t heads, kv_heads, dim, table_stride;
    std::vector<uint32_t> contexts, tables;
    std::vector<uint8_t> pages;
    size_t page_bytes;
    halves q;
};

static cluster make(uint32_t kv_heads, uint32_t group, uint32_t dim, std::vector<uint32_t> contexts) {
    maker m;
    cluster c;
    c.heads = kv_heads * group;
    c.kv_heads = kv_heads;
    c.dim = dim;
    c.contexts = contexts;
    c.table_stride = 0;
    for (uint32_t n : contexts) c.table_stride = std::max(c.table_stride, (n + PAGE - 1) / PAGE);
    uint32_t blocks = c.table_stride * (uint32_t)contexts.size() + 1;
    c.page_bytes = (size_t)2 * kv_heads * PAGE * dim * sizeof(kvf_half_bits);
    c.pages.assign(blocks * c.page_bytes, 0xFF); /* NaN: what nobody wrote must not be read */
    std::vector<uint32_t> order(blocks);
    for (uint32_t i = 0; i < blocks; i++) order[i] = i;
    for (uint32_t i = blocks - 1; i > 0; i--) std::swap(order[i], order[m.below(i + 1)]);
    c.tables.assign(c.table_stride * contexts.size(), UINT32_MAX);
    for (size_t s = 0, next = 0; s < contexts.size(); s++)
        for (uint32_t p = 0; p * PAGE < contexts[s]; p++) c.tables[s * c.table_stride + p] = order[next++];
    for (size_t s = 0; s < contexts.size(); s++) {
        for (uint32_t at = 0; at < contexts[s]; at++) {
            kvf_half_bits *page =
                (kvf_half_bits *)(void *)&c.pages[c.tables[s * c.table_stride + at / PAGE] * c.page_bytes];
            for (uint32_t h = 0; h < 2 * kv_heads; h++)
                for (uint32_t d = 0; d < dim; d++) page[((size_t)h * PAGE + at % PAGE) * dim + d] = half_of(m.next());
        }
    }
    c.q = make_halves(m, contexts.size() * c.heads * dim, 2);
    return c;
}

static std::vector<float> by_ref(const cluster &c, float scale) {
    const kvf_kernel_ops *ref = kvf_kernels_find("ref");
    uint32_t group = c.heads / c.kv_heads;
    std::vector<float> q = floats_of(c.q), out(q.size());
    size_t floats = kvf_attention_scratch_floats(group, c.dim);
    float *scratch = (float *)aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
    for (size_t s = 0; s < c.contexts.size(); s++) {
        for (uint32_t h = 0; h < c.kv_heads; h++) {
            size_t at = (s * c.heads + h * group) * c.dim;
            kvf_attention a = {};
            a.q = &q[at];
            a.out = &out[at];
            a.q_stride = a.out_stride = c.heads * c.dim;
            a.pages = c.pages.data();
            a.page_bytes = c.page_bytes;
            a.blocks = &c.tables[s * c.table_stride];
            a.position = c.contexts[s] - 1;
            a.tokens = 1;
            a.kv_head = h;
            a.kv_heads = c.kv_heads;
            a.group = group;
            a.head_dim = c.dim;
            a.scale = scale;
            a.cell = KVF_CELL_F16;
            a.scratch = scratch;
            ref->attention(&a);
        }
    }
    free(scratch);
    return out;
}

static halves by_kernel(const cluster &c, float scale) {
    halves out(c.q.size(), 0xFFFF);
    uint32_t context_max = 0;
    for (uint32_t n : c.contexts) context_max = std::max(context_max, n);
    std::vector<float> partial(
        kvf_cuda_decode_partial_floats((uint32_t)c.contexts.size(), c.heads, c.dim, context_max), NAN);
    kvf_cuda_decode a = {};
    a.out = out.data();
    a.q = c.q.data();
    a.pages = c.pages.data();
    a.page_bytes = c.page_bytes;
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
    assert_near(what, by_kernel(c, scale), by_ref(c, scale), LIMIT_PPM * 1e-6);
}

static void head_sizes(void **state) {
    for (uint32_t dim : {64, 80, 96, 128, 256}) check(2, 3, dim, {33, 16});
}

static void groups(void **state) {
    for (uint32_t group : {1, 3, 4, 7, 8}) check(2, group, 64, {40, 5});
}

static void contexts(void **state) {
    for (uint32_t n : {1, 15, 16, 17, 255, 256, 257, 513}) check(1, 4, 64, {n});
}

static void a_long_context(void **state) { check(1, 8, 128, {4097}); }

static void ragged_batches_in_all_orders(void **state) {
    in_all_orders([] { check(2, 4, 64, {1, 300, 16, 17, 77}); });
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
        cmocka_unit_test(groups),
        cmocka_unit_test(contexts),
        cmocka_unit_test(a_long_context),
        cmocka_unit_test(ragged_batches_in_all_orders),
        cmocka_unit_test(a_sequence_does_not_feel_its_batch),
        cmocka_unit_test(shapes_without_a_kernel_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
