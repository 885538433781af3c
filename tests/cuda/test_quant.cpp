/* Blocks of model files to halves on the emulator: the bits that kernels/quant and one rounding give. */
#include "cuda_test.h"
#include <cuda_bf16.h>
extern "C" {
#include "kvf/quant.h"
}

static uint16_t want_of(float v, kvf_cuda_type to) {
    return to == KVF_CUDA_F16 ? kvf_f32_to_f16(v) : __bfloat16_as_ushort(__float2bfloat16_rn(v));
}
static bool is_nan(uint16_t h, kvf_cuda_type to) { return (h & 0x7FFF) > (to == KVF_CUDA_F16 ? 0x7C00 : 0x7F80); }

static void check(uint32_t type, size_t blocks, kvf_cuda_type to) {
    const kvf_dtype_info *info = kvf_dtype_find(type);
    size_t count = blocks * info->block_values;
    maker m;
    std::vector<uint8_t> src(blocks * info->block_bytes);
    for (auto &byte : src) byte = (uint8_t)m.below(256); /* every pattern is a block; scales may be NaN */
    std::vector<float> values(count);
    kvf_dequant_row((kvf_dtype)type, src.data(), values.data(), count);
    std::vector<uint16_t> out(count + 8, 0xABCD);
    assert_int_equal(kvf_cuda_dequantise(out.data(), to, type, src.data(), count, NULL), 0);
    size_t numbers = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t want = want_of(values[i], to);
        numbers += !is_nan(want, to);
        if (out[i] != want && !(is_nan(out[i], to) && is_nan(want, to)))
            fail_msg("difference: %s value %zu: %04x, not %04x", info->name, i, out[i], want);
    }
    assert_true(numbers > count / 2);
    for (size_t i = count; i < out.size(); i++) assert_int_equal(out[i], 0xABCD);
}

static void every_type_as_the_cpu_reads_it(void **state) {
    for (uint32_t type = 0; type < 64; type++) {
        const kvf_dtype_info *info = kvf_dtype_find(type);
        if (!info) {
            assert_int_equal(kvf_cuda_dequantise(NULL, KVF_CUDA_F16, type, NULL, 256, NULL), -1);
            continue;
        }
        check(type, 4096 / info->block_values + 1, KVF_CUDA_F16); /* plain types: a rest of one value */
        check(type, 2048 / info->block_values, KVF_CUDA_BF16);
    }
}

static void parts_of_blocks_are_refused(void **state) {
    assert_int_equal(kvf_cuda_dequantise(NULL, KVF_CUDA_F16, KVF_DTYPE_Q4_K, NULL, 128, NULL), -1);
    assert_int_equal(kvf_cuda_dequantise(NULL, KVF_CUDA_F32, KVF_DTYPE_Q4_K, NULL, 256, NULL), -1);
    assert_int_equal(kvf_cuda_dequantise(NULL, KVF_CUDA_F16, KVF_DTYPE_Q4_K, NULL, 0, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_as_the_cpu_reads_it),
        cmocka_unit_test(parts_of_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
