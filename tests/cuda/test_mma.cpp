/* Lanes and operands of the tensor core instructions, against a product in double. */
#include "cuda_test.h"
#include "mma_tile.h"

static uint16_t bits_of(float x, bool bf16) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bf16 ? (uint16_t)(bits >> 16) : half_of(x);
}

static void check(bool bf16) {
    maker m;
    std::vector<float> a(256), b(256);
    std::vector<uint16_t> ha(256), hb(256), ht(256);
    for (int i = 0; i < 256; i++) { /* eighths: exact in both types, and so is every sum */
        a[i] = (float)((int)m.below(129) - 64) / 8;
        b[i] = (float)((int)m.below(129) - 64) / 8;
        ha[i] = bits_of(a[i], bf16);
        hb[i] = ht[i % 16 * 16 + i / 16] = bits_of(b[i], bf16);
    }
    std::vector<float> c(512, NAN);
    mma_tile(c.data(), ha.data(), hb.data(), ht.data(), bf16);
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++) {
            float want = 0;
            for (int k = 0; k < 16; k++) want += a[i * 16 + k] * b[j * 16 + k];
            for (int t = 0; t < 2; t++)
                if (c[t * 256 + i * 16 + j] != want)
                    fail_msg("difference at row %d, column %d%s: %g, not %g", i, j, t ? ", transposed" : "",
                        (double)c[t * 256 + i * 16 + j], (double)want);
        }
    }
}

static void halves_multiply(void **state) {
    in_all_orders([] { check(false); });
}
static void bfloats_multiply(void **state) {
    in_all_orders([] { check(true); });
}

static void copies_fill_with_zeros(void **state) {
    in_all_orders([] {
        std::vector<uint32_t> in(32), out(32, 7);
        for (uint32_t i = 0; i < 32; i++) in[i] = i + 100;
        mma_copies(out.data(), in.data());
        for (uint32_t i = 0; i < 32; i++) assert_int_equal(out[i], (i ^ 1) < 29 ? (i ^ 1) + 100 : 0);
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_multiply),
        cmocka_unit_test(bfloats_multiply),
        cmocka_unit_test(copies_fill_with_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
