/* The block formats against values of an independent implementation (bit for bit), and half precision over all its
 * values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "kvf/quant.h"

static uint8_t *read_file(const char *folder, const char *name, const char *extension, size_t *len_bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s/%s.%s", KVF_SOURCE_DIR, folder, name, extension);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing", path);
    fseek(f, 0, SEEK_END);
    *len_bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*len_bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *len_bytes, f), *len_bytes);
    fclose(f);
    return data;
}

static const kvf_dtype golden_types[] = {KVF_DTYPE_F16, KVF_DTYPE_BF16, KVF_DTYPE_Q4_0, KVF_DTYPE_Q4_1, KVF_DTYPE_Q5_0,
    KVF_DTYPE_Q5_1, KVF_DTYPE_Q8_0, KVF_DTYPE_Q2_K, KVF_DTYPE_Q3_K, KVF_DTYPE_Q4_K, KVF_DTYPE_Q5_K, KVF_DTYPE_Q6_K,
    KVF_DTYPE_IQ4_NL, KVF_DTYPE_IQ4_XS, KVF_DTYPE_MXFP4};

static void every_block_format_matches_its_golden_values_bit_for_bit(void **state) {
    for (size_t t = 0; t < KVF_COUNT_OF(golden_types); t++) {
        const kvf_dtype_info *info = kvf_dtype_find(golden_types[t]);
        assert_non_null(info);
        size_t raw_bytes, want_bytes;
        uint8_t *raw = read_file("gguf-blocks", info->name, "raw", &raw_bytes);
        uint8_t *want = read_file("gguf-blocks", info->name, "f32", &want_bytes);
        size_t count = want_bytes / 4, row = 512;
        assert_int_equal(count, 4 * row);
        assert_int_equal(raw_bytes, count / info->block_values * info->block_bytes);
        float *got = malloc(want_bytes);
        assert_non_null(got);
        size_t row_bytes = row / info->block_values * info->block_bytes;
        for (size_t r = 0; r < 4; r++) kvf_dequant_row(golden_types[t], raw + r * row_bytes, got + r * row, row);
        for (size_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, got + i, 4);
            if (bits != kvf_get_le32(want + 4 * i))
                fail_msg("%s value %zu is %a, bits %08x, wanted %08x", info->name, i, (double)got[i], bits,
                    kvf_get_le32(want + 4 * i));
        }
        free(got);
        free(want);
        free(raw);
    }
}

static void f32_rows_are_copied_from_any_alignment(void **state) {
    uint8_t raw[1 + 8] = {9, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0};
    float got[2];
    kvf_dequant_row(KVF_DTYPE_F32, raw + 1, got, 2);
    assert_true(got[0] == 1.0f && got[1] == -2.0f);
}

static double half_by_definition(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double m = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -m : m;
}

static void all_halves_convert_there_and_back(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = kvf_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_true((h & 0x3ff) ? isnan(f) : isinf(f));
            if (isnan(f))
                assert_true(isnan(kvf_f16_to_f32(kvf_f32_to_f16(f))));
            else
                assert_int_equal(kvf_f32_to_f16(f), h);
            continue;
        }
        assert_true((double)f == half_by_definition((uint16_t)h));
        assert_int_equal(!!signbit(f), h >> 15);
        assert_int_equal(kvf_f32_to_f16(f), h);
    }
}

/* Between neighbours a < b: just below the middle gives a, just above gives b, the middle gives the even one. */
static void singles_round_to_the_nearest_half_and_ties_to_even(void **state) {
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float a = kvf_f16_to_f32((uint16_t)h), b = kvf_f16_to_f32((uint16_t)(h + 1)), middle = (a + b) / 2;
        assert_int_equal(kvf_f32_to_f16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(kvf_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(kvf_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(kvf_f32_to_f16(-middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(kvf_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(kvf_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(kvf_f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(kvf_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(kvf_f32_to_f16(1e-45f), 0);
    assert_int_equal(kvf_f32_to_f16(-0.0f), 0x8000);
    assert_true(isnan(kvf_f16_to_f32(kvf_f32_to_f16(NAN))));
}

static void unknown_types_are_found_by_no_one_and_named_by_number(void **state) {
    char buffer[16];
    static const uint32_t unknown[] = {4, 5, 9, 15, 19, 31, 38, 40, 77, UINT32_MAX};
    for (size_t i = 0; i < KVF_COUNT_OF(unknown); i++) assert_null(kvf_dtype_find(unknown[i]));
    assert_string_equal(kvf_dtype_name(77, buffer), "type 77");
    assert_string_equal(kvf_dtype_name(UINT32_MAX, buffer), "type 4294967295");
    assert_string_equal(kvf_dtype_name(13, buffer), "Q5_K");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_format_matches_its_golden_values_bit_for_bit),
        cmocka_unit_test(f32_rows_are_copied_from_any_alignment),
        cmocka_unit_test(all_halves_convert_there_and_back),
        cmocka_unit_test(singles_round_to_the_nearest_half_and_ties_to_even),
        cmocka_unit_test(unknown_types_are_found_by_no_one_and_named_by_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
