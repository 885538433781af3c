/* Pages into slots and back on the emulator: bytes, and checksums equal to the CPU's. */
#include "cuda_test.h"
#include "kvf/cuda_pages.h"
extern "C" {
#include "kvf/hash.h"
}

struct pool {
    uint32_t layers, blocks;
    size_t page_bytes;
    std::vector<uint4> words; /* pages are aligned to 16 */
    uint8_t *bytes() { return (uint8_t *)words.data(); }
    uint8_t *page(kvf_cuda_page p) { return bytes() + (p.layer * blocks + p.block) * page_bytes; }
};

static pool make_pool(uint32_t layers, uint32_t blocks, size_t page_bytes) {
    pool p = {layers, blocks, page_bytes, std::vector<uint4>(layers * blocks * page_bytes / 16)};
    maker m;
    for (size_t i = 0; i < p.words.size() * 4; i++)
        ((uint32_t *)p.words.data())[i] = (m.next(), (uint32_t)(m.state >> 32));
    return p;
}

static std::vector<kvf_cuda_page> names(const pool &p, size_t count) {
    std::vector<kvf_cuda_page> list;
    for (uint32_t i = 0; i < count; i++) { /* all different, in no order */
        uint32_t at = (i * 7 + 3) % (p.layers * p.blocks);
        list.push_back({at % p.blocks, at / p.blocks, i == 1 ? 0 : 0x9E3779B9u * (i + 1)});
    }
    return list;
}

static void check(size_t page_bytes, uint32_t count, bool crc) {
    pool p = make_pool(3, 5, page_bytes), before = p;
    std::vector<kvf_cuda_page> list = names(p, count);
    std::vector<uint4> slot(count * page_bytes / 16, make_uint4(1, 2, 3, 4));
    std::vector<uint32_t> sums(count, 0xEEEEEEEEu);
    kvf_cuda_pages a = {};
    a.pool = p.bytes();
    a.layer_bytes = p.blocks * page_bytes;
    a.page_bytes = page_bytes;
    a.slot = (uint8_t *)slot.data();
    a.pages = list.data();
    a.count = count;
    a.crc = crc ? sums.data() : NULL;
    kvf_cuda_pages_pack(&a, NULL);
    auto expect_sums = [&] {
        for (uint32_t i = 0; i < count && crc; i++) {
            uint32_t want = kvf_crc32c(list[i].seed, before.page(list[i]), page_bytes);
            if (sums[i] != want)
                fail_msg("difference: page %u of %zu bytes: %08x, not %08x", i, page_bytes, sums[i], want);
        }
    };
    expect_sums();
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(a.slot + i * page_bytes, before.page(list[i]), page_bytes)) fail_msg("difference in page %u", i);

    for (auto &w : p.words) w = make_uint4(9, 9, 9, 9);
    pool want = p;
    for (auto name : list) memcpy(want.page(name), before.page(name), page_bytes);
    sums.assign(count, 0);
    kvf_cuda_pages_unpack(&a, NULL);
    expect_sums();
    if (memcmp(p.bytes(), want.bytes(), p.words.size() * 16)) fail_msg("difference in the pool after unpacking");
}

/* The smallest page, fewer chunks than threads, uneven runs, as many runs as a step takes and more. */
static void pages_of_every_kind_of_size(void **state) {
    for (size_t bytes : {4096, 2112, 8192 + 16, 10240, 32768, 16 * 512 * 5 - 32}) check(bytes, 2, true);
}

static void without_checksums(void **state) {
    check(4096, 4, false);
    check(65536 / 2 + 16, 3, false);
}

static void pages_in_all_orders(void **state) {
    in_all_orders([] { check(16384, 3, true); });
}

static void a_wrong_byte_has_another_checksum(void **state) {
    pool p = make_pool(1, 1, 4096);
    std::vector<uint4> slot(4096 / 16);
    std::vector<kvf_cuda_page> names = {{0, 0, 77}};
    std::vector<uint32_t> sums(2);
    kvf_cuda_pages a = {p.bytes(), 4096, 4096, (uint8_t *)slot.data(), names.data(), 1, &sums[0]};
    kvf_cuda_pages_pack(&a, NULL);
    a.slot[4000] ^= 1;
    a.crc = &sums[1];
    kvf_cuda_pages_unpack(&a, NULL);
    assert_int_not_equal(sums[0], sums[1]);
    assert_int_equal(sums[1], kvf_crc32c(77, p.bytes(), 4096));
}

static void first_positions_are_copied(kvf_cuda_cell cell, uint32_t tokens) {
    const uint32_t kv_heads = 2, dim = 80;
    size_t page_bytes = kvf_cuda_page_bytes(kv_heads, dim, cell), row = dim * (cell == KVF_CUDA_CELL_F16 ? 2 : 1);
    pool p = make_pool(2, 3, page_bytes), want = p;
    for (uint32_t layer = 0; layer < 2; layer++) {
        uint8_t *to = want.page({2, layer, 0}), *from = want.page({0, layer, 0});
        for (uint32_t h = 0; h < 2 * kv_heads; h++) memcpy(to + h * 16 * row, from + h * 16 * row, tokens * row);
        size_t scales = 2 * kv_heads * 16 * row;
        for (uint32_t h = 0; h < 2 * kv_heads && scales < page_bytes; h++)
            memcpy(to + scales + h * 32, from + scales + h * 32, tokens * 2);
    }
    kvf_cuda_copy a = {p.bytes(), 3 * page_bytes, page_bytes, 2, kv_heads, dim, cell, 2, 0, tokens};
    kvf_cuda_block_copy(&a, NULL);
    assert_memory_equal(p.bytes(), want.bytes(), p.words.size() * 16);
}

static void a_block_is_copied_in_part(void **state) {
    for (uint32_t tokens : {1, 9, 16}) {
        first_positions_are_copied(KVF_CUDA_CELL_F16, tokens);
        first_positions_are_copied(KVF_CUDA_CELL_F8, tokens);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_every_kind_of_size),
        cmocka_unit_test(without_checksums),
        cmocka_unit_test(pages_in_all_orders),
        cmocka_unit_test(a_wrong_byte_has_another_checksum),
        cmocka_unit_test(a_block_is_copied_in_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
