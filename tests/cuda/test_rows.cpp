/* Row kernels and the fused write of queries, keys and values, on the emulator against the CPU's ref table. */
#include "cuda_test.h"
#include "f8.h"
#include <algorithm>
#include <cuda_fp8.h>

enum { PAGE = 16 };
static const double LIMIT = 4e-4; /* one rounding to f16 */

static const kvf_kernel_ops *ref(void) { return kvf_kernels_find("ref"); }

/* ---- rows.cu ---- */

static const kvf_cuda_type both_types[] = {KVF_CUDA_F16, KVF_CUDA_BF16};

static void check_norm(uint32_t rows, uint32_t hidden, bool with_add, kvf_cuda_type type) {
    maker m;
    std::vector<float> x(rows * hidden), w(hidden), want(rows * hidden);
    for (auto &v : x) v = m.next() * 3;
    for (auto &v : w) v = 1 + 0.1f * m.next();
    halves add = make_halves(m, rows * hidden, 1, type), out(rows * hidden, 0xFFFF);
    std::vector<float> sum = x, got_x = x;
    for (size_t i = 0; i < x.size() && with_add; i++) sum[i] += float_of(add[i], type);
    for (uint32_t r = 0; r < rows; r++) ref()->rms_norm(&sum[r * hidden], w.data(), 1e-5f, hidden, &want[r * hidden]);
    kvf_cuda_rms_norm(
        out.data(), got_x.data(), with_add ? add.data() : NULL, type, w.data(), 1e-5f, rows, hidden, NULL);
    assert_near("rms norm", out, want, rounding(type), type);
    assert_memory_equal(got_x.data(), sum.data(), sum.size() * sizeof sum[0]); /* the residual is exact */
}

static void norm_with_and_without_residual(void **state) {
    for (kvf_cuda_type type : both_types) {
        in_all_orders([type] {
            check_norm(3, 576, false, type);
            check_norm(2, 72, true, type);
        });
        check_norm(1, 4096, true, type);
    }
}

static void check_swiglu(kvf_cuda_type type) {
    const uint32_t rows = 3, ffn = 1536 + 8;
    maker m;
    halves in = make_halves(m, rows * 2 * ffn, 6, type), out(rows * ffn, 0xFFFF);
    std::vector<float> want(rows * ffn), row = floats_of(in, type);
    for (uint32_t r = 0; r < rows; r++) {
        float *gate = &row[r * 2 * ffn];
        ref()->swiglu(gate, gate + ffn, ffn);
        memcpy(&want[r * ffn], gate, ffn * sizeof(float));
    }
    kvf_cuda_swiglu(out.data(), in.data(), type, rows, ffn, NULL);
    assert_near("swiglu", out, want, rounding(type), type);
}

static void swiglu_as_ref(void **state) {
    for (kvf_cuda_type type : both_types) check_swiglu(type);
}

static void check_embedding(kvf_cuda_type type) {
    const uint32_t hidden = 576, vocab = 10;
    const std::vector<uint32_t> tokens = {9, 0, 3, 3};
    maker m;
    halves table = make_halves(m, vocab * hidden, 1, type);
    std::vector<float> x(tokens.size() * hidden, NAN);
    kvf_cuda_embed(x.data(), table.data(), type, tokens.data(), (uint32_t)tokens.size(), hidden, NULL);
    for (size_t r = 0; r < tokens.size(); r++)
        for (uint32_t i = 0; i < hidden; i++)
            assert_true(x[r * hidden + i] == float_of(table[tokens[r] * hidden + i], type));
}

static void embedding_is_exact(void **state) {
    for (kvf_cuda_type type : both_types) check_embedding(type);
}

/* ---- qkv.cu ---- */

struct shape {
    uint32_t heads, kv_heads, dim, pairs;
    bool halves, bias, norms;
};

static void qkv_by_ref(const shape &s, const kvf_cuda_qkv &a, std::vector<float> *q, std::vector<float> *kv) {
    uint32_t all = s.heads + 2 * s.kv_heads;
    for (uint32_t r = 0; r < a.rows; r++) {
        std::vector<float> row(all * s.dim);
        for (uint32_t i = 0; i < row.size(); i++)
            row[i] = float_of(a.qkv[r * row.size() + i], a.type) + (a.bias ? a.bias[i] : 0);
        for (uint32_t h = 0; h < s.heads + s.kv_heads; h++) {
            const float *norm = h < s.heads ? a.q_norm : a.k_norm;
            if (norm) ref()->rms_norm(&row[h * s.dim], norm, a.eps, s.dim, &row[h * s.dim]);
        }
        ref()->rope(row.data(), s.heads + s.kv_heads, s.dim, a.cos_sin + (size_t)a.positions[r] * 2 * s.pairs, s.pairs,
            s.halves);
        q->insert(q->end(), row.begin(), row.begin() + s.heads * s.dim);
        kv->insert(kv->end(), row.begin() + s.heads * s.dim, row.end());
    }
}

static kvf_half_bits *halves_at(uint8_t *p) { return (kvf_half_bits *)(void *)p; }

/* By the toolkit's own conversion. */
static float code_value(uint8_t code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3)));
}

/* A power of two that leaves the largest value of the head between 224 and 448. */
static void check_scale(float scale, const float *head, uint32_t dim) {
    float top = 0;
    int e;
    for (uint32_t d = 0; d < dim; d++) top = std::max(top, std::fabs(head[d]));
    assert_true(std::frexp(scale, &e) == 0.5f);
    assert_true(top * 0.999f <= 448 * scale && top * 1.001f > 224 * scale);
}

static void check_qkv(const shape &s, kvf_cuda_cell cell = KVF_CUDA_CELL_F16, kvf_cuda_type type = KVF_CUDA_F16) {
    const std::vector<uint32_t> positions = {0, 15, 16, 40}, blocks = {2, 2, 0, 1};
    uint32_t rows = (uint32_t)positions.size(), all = s.heads + 2 * s.kv_heads;
    maker m;
    halves qkv = make_halves(m, (size_t)rows * all * s.dim, 1, type), q(rows * s.heads * s.dim, 0xFFFF);
    std::vector<float> bias(all * s.dim), norm(s.dim), angles(41 * 2 * s.pairs), want_q, want_kv;
    std::vector<double> frequency(s.pairs);
    for (auto &v : bias) v = m.next();
    for (auto &v : norm) v = 1 + 0.2f * m.next();
    kvf_rope_frequencies(10000, 1, NULL, 2 * s.pairs, frequency.data());
    for (uint32_t p = 0; p < 41; p++) kvf_rope_angles(frequency.data(), s.pairs, p, &angles[p * 2 * s.pairs]);
    size_t page_bytes = kvf_cuda_page_bytes(s.kv_heads, s.dim, cell), head_rows = (size_t)2 * s.kv_heads * PAGE;
    std::vector<uint8_t> pages(3 * page_bytes, 0xEE);
    kvf_cuda_qkv a = {};
    a.qkv = qkv.data();
    a.type = type;
    a.bias = s.bias ? bias.data() : NULL;
    a.q_norm = a.k_norm = s.norms ? norm.data() : NULL;
    a.eps = 1e-6f;
    a.cos_sin = angles.data();
    a.pairs = s.pairs;
    a.halves = s.halves;
    a.heads = s.heads;
    a.kv_heads = s.kv_heads;
    a.head_dim = s.dim;
    a.rows = rows;
    a.positions = positions.data();
    a.blocks = blocks.data();
    a.q = q.data();
    a.pages = pages.data();
    a.page_bytes = page_bytes;
    a.cell = cell;
    qkv_by_ref(s, a, &want_q, &want_kv);
    kvf_cuda_qkv_store(&a, NULL);
    assert_near("queries", q, want_q, LIMIT);
    halves kv; /* taken out of the pages by row, in the order of the projection */
    for (uint32_t r = 0; r < rows; r++) {
        uint8_t *page = &pages[blocks[r] * page_bytes];
        for (uint32_t h = 0; h < 2 * s.kv_heads; h++) {
            size_t place = (size_t)h * PAGE + positions[r] % PAGE;
            const float *want = &want_kv[((size_t)r * 2 * s.kv_heads + h) * s.dim];
            float scale = cell == KVF_CUDA_CELL_F8 ? float_of(halves_at(page + head_rows * s.dim)[place]) : 0;
            for (uint32_t d = 0; d < s.dim; d++)
                kv.push_back(cell == KVF_CUDA_CELL_F8 ? half_of(code_value(page[place * s.dim + d]) * scale)
                                                      : halves_at(page)[place * s.dim + d]);
            if (cell == KVF_CUDA_CELL_F8) check_scale(scale, want, s.dim);
        }
    }
    assert_near("keys and values", kv, want_kv, cell == KVF_CUDA_CELL_F8 ? 0.03 : LIMIT);
    size_t untouched = 0;
    for (uint8_t byte : pages) untouched += byte == 0xEE;
    size_t written = cell == KVF_CUDA_CELL_F8 ? s.dim + 2 : s.dim * 2;
    assert_true(untouched >= pages.size() - rows * 2 * s.kv_heads * written); /* and nothing beside them */
}

static void heads_go_to_their_places(void **state) {
    in_all_orders([] {
        check_qkv({9, 3, 64, 32, false, false, false}); /* llama */
        check_qkv({4, 2, 80, 40, true, true, false}); /* qwen2 */
        check_qkv({4, 1, 128, 64, true, false, true}); /* qwen3 */
        check_qkv({2, 1, 256, 32, true, true, true}); /* rotates a part */
    });
}

/* Queries, keys and values are f16 in any case: the projection's type is read, not kept. */
static void heads_of_bf16_go_to_their_places(void **state) {
    check_qkv({9, 3, 64, 32, false, false, false}, KVF_CUDA_CELL_F16, KVF_CUDA_BF16);
    check_qkv({2, 1, 256, 32, true, true, true}, KVF_CUDA_CELL_F16, KVF_CUDA_BF16);
    check_qkv({4, 2, 80, 40, true, true, false}, KVF_CUDA_CELL_F8, KVF_CUDA_BF16);
}

static void heads_become_codes(void **state) {
    in_all_orders([] {
        check_qkv({9, 3, 64, 32, false, false, false}, KVF_CUDA_CELL_F8);
        check_qkv({2, 1, 256, 32, true, true, true}, KVF_CUDA_CELL_F8);
    });
    check_qkv({4, 2, 80, 40, true, true, false}, KVF_CUDA_CELL_F8);
}

/* ---- f8.h ---- */

static void codes_as_the_toolkit_makes_them(void **state) {
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7F) == 0x7F) continue; /* no number, and never made */
        uint32_t four = (uint32_t)code << 8 | (uint32_t)code << 16;
        for (float scale : {1.0f, 0x1p-14f, 0.25f, 0x1p7f}) {
            uint2 v = kvf_f8_to_halves(four, __float2half2_rn(scale));
            kvf_half_bits want = half_of(code_value((uint8_t)code) * scale);
            assert_int_equal(v.x, (uint32_t)want << 16);
            assert_int_equal(v.y, want);
        }
        assert_int_equal(kvf_f8_of(code_value((uint8_t)code)), code);
    }
    uint32_t bits = 0x39000000u; /* 2^-13 and up, to beyond the largest */
    for (; bits < 0x44400000u; bits += 997) {
        float x;
        memcpy(&x, &bits, 4);
        int want = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
        if (kvf_f8_of(x) != want) fail_msg("difference: %a: %02x, not %02x", (double)x, kvf_f8_of(x), want);
        assert_int_equal(kvf_f8_of(-x), want | 0x80);
    }
    for (float top : {0.0f, 1e-30f, 0.1f, 448.0f, 449.0f, 1.0f, 65504.0f, 3e38f}) {
        float scale = kvf_f8_scale(top);
        int e;
        assert_true(std::frexp(scale, &e) == 0.5f && scale >= 0x1p-14f && scale <= 256.0f);
        if (scale < 256.0f) assert_true(top <= 448 * scale);
        if (scale > 0x1p-14f && scale < 256.0f) assert_true(top > 224 * scale);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_with_and_without_residual),
        cmocka_unit_test(swiglu_as_ref),
        cmocka_unit_test(embedding_is_exact),
        cmocka_unit_test(heads_go_to_their_places),
        cmocka_unit_test(heads_of_bf16_go_to_their_places),
        cmocka_unit_test(heads_become_codes),
        cmocka_unit_test(codes_as_the_toolkit_makes_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
