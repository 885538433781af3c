/* attention_test.h - sequences over shuffled pages of one layer, and what the CPU's ref table makes of them. C++. */
#ifndef KVF_ATTENTION_TEST_H
#define KVF_ATTENTION_TEST_H
#include "cuda_test.h"
#include "f8.h"
#include <algorithm>

enum { PAGE = 16, LIMIT_PPM = 700 /* f16 rounding of probabilities and output */ };

struct cluster { /* sequences over shuffled blocks of one layer */
    uint32_t heads, kv_heads, dim, table_stride;
    std::vector<uint32_t> contexts, tables;
    std::vector<uint8_t> pages;
    size_t page_bytes;
    halves q;
    kvf_cuda_cell cell = KVF_CUDA_CELL_F16;
};

static inline cluster make(uint32_t kv_heads, uint32_t group, uint32_t dim, std::vector<uint32_t> contexts,
    size_t query_rows = 0 /* 0: one a sequence */) {
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
    c.q = make_halves(m, (query_rows ? query_rows : contexts.size()) * c.heads * dim, 2);
    return c;
}

/* The same sequences with pages of 8-bit codes; those of c become what the codes say, exactly. */
static inline cluster to_codes(cluster *c) {
    cluster f8 = *c;
    size_t rows = (size_t)2 * c->kv_heads * PAGE;
    f8.cell = KVF_CUDA_CELL_F8;
    f8.page_bytes = kvf_cuda_page_bytes(c->kv_heads, c->dim, f8.cell);
    f8.pages.assign(c->pages.size() / c->page_bytes * f8.page_bytes, 0xFF); /* NaN again */
    for (size_t b = 0; b < c->pages.size() / c->page_bytes; b++) {
        kvf_half_bits *from = (kvf_half_bits *)(void *)&c->pages[b * c->page_bytes];
        uint8_t *to = &f8.pages[b * f8.page_bytes];
        for (size_t r = 0; r < rows; r++, from += c->dim) {
            float top = 0;
            for (uint32_t d = 0; d < c->dim; d++) top = std::max(top, std::fabs(float_of(from[d])));
            if (std::isnan(float_of(from[0]))) continue; /* nobody wrote it */
            float scale = kvf_f8_scale(top);
            ((kvf_half_bits *)(void *)(to + rows * c->dim))[r] = half_of(scale);
            for (uint32_t d = 0; d < c->dim; d++) {
                to[r * c->dim + d] = kvf_f8_of(float_of(from[d]) / scale);
                from[d] = (kvf_half_bits)kvf_f8_to_halves(to[r * c->dim + d], __float2half2_rn(scale)).x;
            }
        }
    }
    return f8;
}

/* Sequence s asks for tokens[s] tokens from position[s] on; queries lie one after another. */
static inline std::vector<float> by_ref(
    const cluster &c, std::vector<uint32_t> position, std::vector<uint32_t> tokens, float scale) {
    const kvf_kernel_ops *ref = kvf_kernels_find("ref");
    uint32_t group = c.heads / c.kv_heads;
    std::vector<float> q = floats_of(c.q), out(q.size());
    for (size_t s = 0, row = 0; s < position.size(); row += tokens[s++]) {
        size_t floats = kvf_attention_scratch_floats(tokens[s] * group, c.dim);
        float *scratch = (float *)aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
        for (uint32_t h = 0; h < c.kv_heads; h++) {
            size_t at = (row * c.heads + h * group) * c.dim;
            kvf_attention a = {};
            a.q = &q[at];
            a.out = &out[at];
            a.q_stride = a.out_stride = c.heads * c.dim;
            a.pages = c.pages.data();
            a.page_bytes = c.page_bytes;
            a.blocks = &c.tables[s * c.table_stride];
            a.position = position[s];
            a.tokens = tokens[s];
            a.kv_head = h;
            a.kv_heads = c.kv_heads;
            a.group = group;
            a.head_dim = c.dim;
            a.scale = scale;
            a.cell = KVF_CELL_F16;
            a.scratch = scratch;
            ref->attention(&a);
        }
        free(scratch);
    }
    return out;
}
#endif
