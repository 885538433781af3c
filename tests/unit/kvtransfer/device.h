/* device.h - a node's pages in the memory of the fake device (tests/cuda/fake), packed and unpacked by "kernels" that
 * are plain C: what lanes are tested with where no emulator is. */
#ifndef KVF_TEST_DEVICE_H
#define KVF_TEST_DEVICE_H
#include "fake_test.h"
#include "kvf/hash.h"
#include "kvf/lanes.h"
#ifdef KVF_TEST_KERNELS
#include "kvf/cuda_pages.h"
#endif

typedef struct test_device {
    kvf_cuda_api cuda;
    kvf_nccl_api nccl;
    kvf_page_device pages;
    uint8_t *pool; /* [layer][block][page_bytes] */
    uint32_t layers, blocks, page_bytes;
} test_device;

typedef struct {
    const test_device *device;
    const kvf_page_at *pages;
    uint32_t count;
    uint8_t *slot;
    uint32_t *crc;
    bool packs;
} test_move;
static inline void test_move_run(void *arg) {
    const test_move *m = arg;
    size_t len = m->device->page_bytes;
    for (uint32_t i = 0; i < m->count; i++) {
        uint8_t *slot = m->slot + i * len;
        size_t layer = m->pages[i].layer % m->device->layers;
        uint8_t *page = m->device->pool + (layer * m->device->blocks + m->pages[i].block) * len;
        memcpy(m->packs ? slot : page, m->packs ? page : slot, len);
        m->crc[i] = kvf_crc32c(m->pages[i].seed, page, len);
    }
}
static inline void test_move_queue(void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc,
    kvf_cuda_stream stream, bool packs) {
    test_move *m = malloc(sizeof *m);
    if (!m) abort();
    *m = (test_move){self, pages, count, slot, crc, packs};
    (void)fake_cuda_enqueue(stream, test_move_run, free, m);
}
#ifdef KVF_TEST_KERNELS
static inline kvf_cuda_pages test_pages(
    const test_device *d, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc) {
    _Static_assert(sizeof(kvf_page_at) == sizeof(kvf_cuda_page), "one layout");
    return (kvf_cuda_pages){.pool = d->pool,
        .layer_bytes = (size_t)d->blocks * d->page_bytes,
        .page_bytes = d->page_bytes,
        .slot = slot,
        .pages = (const kvf_cuda_page *)(const void *)pages,
        .count = count,
        .crc = crc};
}
#endif
static inline void test_pack(
    void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
#ifdef KVF_TEST_KERNELS
    kvf_cuda_pages a = test_pages(self, pages, count, slot, crc);
    kvf_cuda_pages_pack(&a, stream);
#else
    test_move_queue(self, pages, count, slot, crc, stream, true);
#endif
}
static inline void test_unpack(
    void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
#ifdef KVF_TEST_KERNELS
    kvf_cuda_pages a = test_pages(self, pages, count, slot, crc);
    kvf_cuda_pages_unpack(&a, stream);
#else
    test_move_queue(self, pages, count, slot, crc, stream, false);
#endif
}

static inline void test_device_open(test_device *d, bool ipc, bool nccl) {
    fake_cuda_settings s;
    memset(d, 0, sizeof *d);
    fake_cuda_get(&s);
    s.free_at_once = true; /* a test has two nodes in one process */
    fake_cuda_set(&s);
    fake_open(&d->cuda, &d->nccl);
    d->pages = (kvf_page_device){.cuda = &d->cuda,
        .nccl = nccl ? &d->nccl : NULL,
        .ipc = ipc,
        .pack = test_pack,
        .unpack = test_unpack,
        .self = d};
}
static inline uint8_t *test_device_pool(test_device *d, uint32_t blocks, uint32_t layers, uint32_t page_bytes) {
    void *memory = NULL;
    d->layers = layers;
    d->blocks = blocks;
    d->page_bytes = page_bytes;
    if (d->cuda.memory_take(&memory, (size_t)blocks * layers * page_bytes)) abort();
    return d->pool = memory;
}
static inline void test_device_close(test_device *d) {
    (void)d->cuda.memory_give(d->pool);
    kvf_nccl_unload(&d->nccl);
    kvf_cuda_unload(&d->cuda);
}
#endif
