/* Weights as e4m3 codes, on the emulator: packed to what the toolkit's own conversion gives, unpacked exactly, and
 * products against sums in double of the very values that the codes stand for. */
#include "cuda_test.h"
#include "kvf/cuda_f8.h"
#include <cuda_fp8.h>

struct weights {
    uint32_t outputs, inputs;
    halves from;
    std::vector<uint8_t> codes;
    std::vector<float> scales;
};

static weights make_weights(maker &m, uint32_t outputs, uint32_t inputs) {
    weights w = {outputs, inputs, make_halves(m, (size_t)outputs * inputs, 0.05f), {}, {}};
    for (uint32_t o = 0; o < outputs; o++) /* rows of other sizes, one of zeros */
        for (uint32_t i = 0; i < inputs; i++) {
            auto &h = w.from[(size_t)o * inputs + i];
            h = half_of(o == 1 ? 0 : float_of(h) * (float)(1 << o % 9));
        }
    w.codes.assign(w.from.size(), 0xEE);
    w.scales.assign(outputs, NAN);
    kvf_cuda_f8_pack(w.codes.data(), w.scales.data(), w.from.data(), outputs, inputs, NULL);
    return w;
}

static float value_of(const weights &w, size_t i) {
    __nv_fp8_e4m3 f;
    f.__x = w.codes[i];
    return (float)f * w.scales[i / w.inputs];
}

static void codes_are_the_nearest(void **state) {
    maker m;
    weights w;
    in_all_orders([&] {
        m = maker();
        w = make_weights(m, 11, 272);
    });
    for (uint32_t o = 0; o < w.outputs; o++) {
        float top = 0, s = w.scales[o];
        int e;
        assert_true(frexpf(s, &e) == 0.5f && s >= ldexpf(1, -14)); /* a power of two */
        for (uint32_t i = 0; i < w.inputs; i++) {
            float v = float_of(w.from[o * w.inputs + i]);
            top = std::fmax(top, std::fabs(v));
            uint8_t want = __nv_fp8_e4m3(v / s).__x;
            if (w.codes[o * w.inputs + i] != want)
                fail_msg("difference: row %u value %u: %02x, not %02x", o, i, w.codes[o * w.inputs + i], want);
        }
        assert_true(top <= 448 * s && (top > 224 * s || s == ldexpf(1, -14)));
    }
    halves back(w.from.size(), 0xFFFF);
    kvf_cuda_f8_unpack(back.data(), w.codes.data(), w.scales.data(), w.outputs, w.inputs, NULL);
    for (size_t i = 0; i < back.size(); i++)
        if (float_of(back[i]) != value_of(w, i)) fail_msg("difference: value %zu is not exact", i);
}

static void a_row_without_a_number_stays_one(void **state) {
    maker m;
    weights w = make_weights(m, 3, 32);
    w.from[40] = 0x7E00;
    kvf_cuda_f8_pack(w.codes.data(), w.scales.data(), w.from.data(), 3, 32, NULL);
    assert_true(!std::isnan(w.scales[0]) && std::isnan(w.scales[1]) && !std::isnan(w.scales[2]));
}

static halves product_of(const weights &w, const halves &x, uint32_t rows) {
    halves y(rows * w.outputs + 8, 0xFFFF);
    std::vector<float> partial(kvf_cuda_f8_partial_floats(w.outputs, w.inputs) + 1, NAN);
    kvf_cuda_f8_product a = {};
    a.w = w.codes.data(), a.scales = w.scales.data(), a.x = x.data(), a.y = y.data();
    a.rows = rows, a.outputs = w.outputs, a.inputs = w.inputs, a.partial = partial.data();
    assert_int_equal(kvf_cuda_f8_multiply(&a, NULL), 0);
    assert_true(std::isnan(partial.back()));
    for (size_t i = rows * w.outputs; i < y.size(); i++) assert_int_equal(y[i], 0xFFFF);
    y.resize(rows * w.outputs);
    return y;
}

static void check(uint32_t rows, uint32_t outputs, uint32_t inputs) {
    maker m;
    weights w = make_weights(m, outputs, inputs);
    halves x = make_halves(m, (size_t)rows * inputs, 2), y = product_of(w, x, rows);
    for (uint32_t o = 0; o < outputs; o++) { /* each output by itself: rows of w are of very different size */
        double wrong = 0, all = 0;
        for (uint32_t r = 0; r < rows; r++) {
            double want = 0, size = 0;
            for (uint32_t k = 0; k < inputs; k++) {
                double p = (double)float_of(x[(size_t)r * inputs + k]) * value_of(w, (size_t)o * inputs + k);
                want += p;
                size += p * p;
            }
            double d = (double)float_of(y[(size_t)r * outputs + o]) - want;
            wrong += d * d;
            all += std::fmax(want * want, size);
        }
        if (!(std::sqrt(wrong) <= 5e-4 * std::sqrt(all))) /* half a unit of f16 */
            fail_msg("difference: %u x %u x %u, output %u: off by %g of %g", rows, outputs, inputs, o, std::sqrt(wrong),
                std::sqrt(all));
    }
}

static void products_of_all_sizes(void **state) {
    in_all_orders([] {
        check(3, 72, 272); /* rests of everything */
        check(9, 64, 1040); /* two spans, a rest in the last tile of the second */
    });
    check(1, 8, 16);
    check(1, 136, 4096); /* eight spans */
    check(16, 64, 640);
    check(17, 200, 512);
    check(33, 64, 128);
    check(64, 80, 144);
    check(65, 64, 1024); /* a second launch of one row */
}

/* Alone, in a batch, at another place of it: the same bits. */
static void rows_do_not_meet(void **state) {
    maker m;
    weights w = make_weights(m, 72, 1040);
    const uint32_t rows = 70;
    halves x = make_halves(m, (size_t)rows * w.inputs, 2), all = product_of(w, x, rows);
    for (uint32_t r : {0u, 5u, 40u, 66u}) {
        halves one(x.begin() + r * w.inputs, x.begin() + (r + 1) * w.inputs), alone = product_of(w, one, 1);
        assert_memory_equal(alone.data(), &all[r * w.outputs], alone.size() * 2);
    }
}

static void widths_that_do_not_fit_are_refused(void **state) {
    kvf_cuda_f8_product a = {};
    a.rows = 1, a.outputs = 8, a.inputs = 24;
    assert_int_equal(kvf_cuda_f8_multiply(&a, NULL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(a_row_without_a_number_stays_one),
        cmocka_unit_test(products_of_all_sizes),
        cmocka_unit_test(rows_do_not_meet),
        cmocka_unit_test(widths_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
