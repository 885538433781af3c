/* Both cores, both endpoints and every transport together: pages of several hand-offs at once arrive byte for byte,
 * layer by layer as they are "computed", over links that are cut in the middle. With KVF_TEST_LANES the pages of one
 * side or both lie on the fake device, and go over every lane. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "handoff.h"
#include "kvf/log.h"
#include "kvf/rng.h"
#include "kvf/transport.h"
#include "loop.h"
#include "stores.h"

enum { LAYERS = 6, PAGE_BYTES = 4096, POOL = 128, BLOCKS = 20, HANDOFFS = 5 };
static const kvf_identity model = {
    .wire_version = 1, .layers = LAYERS, .page_bytes = PAGE_BYTES, .kv_type = "f16", .numerics = "t"};
static const uint8_t secret[16] = {4, 2};

typedef struct {
    kvf_tx_id tx;
    uint64_t grant;
    uint32_t missing[BLOCKS], missing_count, ready_layers;
    kvf_block_id source[BLOCKS], landed[BLOCKS];
    bool committed, ended;
    kvf_status result;
} handoff;
static struct {
    struct event_base *base;
    kvf_loopback *hub;
    handoff_node p, d;
    handoff h[HANDOFFS];
    int commits, ends;
} w;

static void fill(uint8_t *page, uint32_t handoff_index, uint32_t block, uint32_t layer) {
    for (uint32_t i = 0; i < PAGE_BYTES; i += 8)
        kvf_put_le64(page + i, kvf_rng_at(handoff_index, block * LAYERS + layer, i));
}
typedef struct {
    const char *link; /* of the stream */
    bool p_device, d_device, ipc, nccl;
    const char *transport; /* as on_link_up calls it */
} way;

static void on_rx(void *self, const kvf_rx_act *a) {
    (void)self;
    if (a->kind != KVF_RX_COMMITTED) fail_msg("lost: %s", kvf_status_name(a->reason));
    for (uint32_t i = 0; i < HANDOFFS; i++) {
        if (w.h[i].grant != a->grant) continue;
        assert_false(w.h[i].committed);
        w.h[i].committed = true;
        assert_int_equal(a->blocks_count, w.h[i].missing_count);
        static uint8_t want[PAGE_BYTES];
        for (uint32_t b = 0; b < a->blocks_count; b++) {
            for (uint32_t l = 0; l < LAYERS; l++) {
                fill(want, i, a->logical[b], l);
                assert_memory_equal(handoff_page(&w.d, a->blocks[b], l), want, PAGE_BYTES);
            }
            w.h[i].landed[b] = a->blocks[b];
        }
        w.commits++;
    }
}
static void on_tx_end(void *self, const kvf_tx_act *a) {
    (void)self;
    for (uint32_t i = 0; i < HANDOFFS; i++) {
        if (w.h[i].tx != a->id) continue;
        assert_false(w.h[i].ended);
        w.h[i].ended = true;
        w.h[i].result = a->result;
        for (uint32_t b = BLOCKS; b-- > 0;) kvf_kv_unpin(w.p.kv, w.h[i].source[b]);
        w.ends++;
    }
}

static void dial(const char *kind, const char *transport) {
    kvf_link_id link;
    const char *address = strcmp(kind, "loopback") == 0 ? "loopback:d1" : kvf_endpoint_address(w.d.e);
    const char *local = strcmp(kind, "shm") == 0 ? kvf_endpoint_local_address(w.d.e) : "";
    assert_int_equal(kvf_endpoint_connect(w.p.e, "d1", 22, address, local, kvf_os_host_id(), &link), KVF_OK);
    LOOP_UNTIL(w.base, w.p.link != KVF_LINK_NONE);
    assert_string_equal(w.p.transport, transport);
}
static void audit(void) {
    kvf_error err;
    if (kvf_kv_audit(w.p.kv, &err) || kvf_kv_audit(w.d.kv, &err) || kvf_rx_audit(w.d.rx, &err) ||
        kvf_tx_audit(w.p.tx, &err))
        fail_msg("%s", err.message);
}
static void relink(void) {
    for (uint32_t i = 0; i < HANDOFFS; i++)
        if (!w.h[i].ended) kvf_tx_set_link(w.p.tx, kvf_os_now_ns(), w.h[i].tx, w.p.link, w.p.nonces[w.p.link & 0xff]);
    handoff_pump(&w.p);
}

static void prepare(uint32_t i) {
    handoff *h = &w.h[i];
    for (uint32_t b = 0; b < BLOCKS; b++)
        if ((b + i) % 4 != 0) h->missing[h->missing_count++] = b;
    kvf_request_id request = {1, i + 1};
    assert_int_equal(kvf_kv_book(w.d.kv, h->missing_count), KVF_OK);
    assert_int_equal(
        kvf_rx_offer(w.d.rx, kvf_os_now_ns(), request, 1, secret, h->missing, h->missing_count, &h->grant), KVF_OK);
    assert_int_equal(
        kvf_tx_start(w.p.tx, kvf_os_now_ns(), request, 1, h->grant, secret, h->missing, h->missing_count, &h->tx),
        KVF_OK);
    assert_int_equal(kvf_kv_book(w.p.kv, BLOCKS), KVF_OK);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(kvf_kv_take(w.p.kv, &h->source[b]), KVF_OK);
        kvf_tx_set_block(w.p.tx, h->tx, b, h->source[b]);
    }
}
static void compute_layer(uint32_t i) {
    handoff *h = &w.h[i];
    uint32_t layer = h->ready_layers++;
    for (uint32_t b = 0; b < BLOCKS; b++) fill(handoff_page(&w.p, h->source[b], layer), i, b, layer);
    kvf_tx_pages_ready(w.p.tx, h->tx, 0, BLOCKS, layer);
    if (h->ready_layers == LAYERS) kvf_tx_finish(w.p.tx, kvf_os_now_ns(), h->tx, (kvf_span){"first", 5});
    handoff_pump(&w.p);
}

static kvf_tls_store *tls;

#ifdef KVF_TEST_LANES
static test_device *device_open(test_device *d, const way *how) {
    test_device_open(d, how->ipc, how->nccl);
    d->pages.slots = 3;
    d->pages.slot_bytes = 8 * PAGE_BYTES;
    d->pages.stall_ns = 60 * KVF_NS_PER_S; /* emulated kernels, busy machines */
    return d;
}
#endif

static void run(const way *how, bool cuts) {
    const char *kind = how->link;
    memset(&w, 0, sizeof w);
    w.base = event_base_new();
    w.hub = kvf_loopback_create();
    kvf_error err;
    kvf_endpoint_options o = {.base = w.base,
        .node = "p1",
        .epoch = 11,
        .identity = &model,
        .listen_tcp = "127.0.0.1:0",
        .tls = strcmp(kind, "tls") == 0 ? tls : NULL,
        .listen_shm = true,
        .ring_bytes = 128 << 10,
        .connect_timeout_ns = 20 * KVF_NS_PER_S,
        .heartbeat_ns = KVF_NS_PER_S,
        .peer_timeout_ns = 60 * KVF_NS_PER_S,
        .loopback = w.hub};
#ifdef KVF_TEST_LANES
    static test_device devices[2];
    const uint32_t inflight = 3 * 8;
    if (how->p_device) w.p.device = device_open(&devices[0], how);
    if (how->d_device) w.d.device = device_open(&devices[1], how);
#else
    const uint32_t inflight = 8;
#endif
    assert_int_equal(handoff_open(&w.p, &o, POOL, BLOCKS, inflight, 30 * KVF_NS_PER_S, &err), KVF_OK);
    o.node = "d1";
    o.epoch = 22;
    assert_int_equal(handoff_open(&w.d, &o, POOL, BLOCKS, inflight, 0, &err), KVF_OK);
    w.d.on_rx = on_rx;
    w.p.on_tx_end = on_tx_end;
    dial(kind, how->transport);
    for (uint32_t i = 0; i < HANDOFFS; i++) prepare(i);
    relink();
    for (uint32_t step = 0; step < HANDOFFS * LAYERS; step++) {
        compute_layer(step % HANDOFFS);
        loop_rounds(w.base, 2);
        audit();
        if (!cuts || step % 7 != 3) continue;
        kvf_link_id old = w.p.link;
        kvf_endpoint_close(w.p.e, old);
        kvf_tx_on_link_down(w.p.tx, kvf_os_now_ns(), old);
        w.p.link = KVF_LINK_NONE;
        dial(kind, how->transport);
        relink();
    }
    LOOP_UNTIL(w.base, w.ends == HANDOFFS);
    audit();
    assert_int_equal(w.commits, HANDOFFS);
    kvf_rx_counts c;
    kvf_rx_count(w.d.rx, &c);
    uint32_t pages = 0;
    for (uint32_t i = 0; i < HANDOFFS; i++) {
        assert_int_equal(w.h[i].result, KVF_OK);
        pages += w.h[i].missing_count * LAYERS;
        for (uint32_t b = w.h[i].missing_count; b-- > 0;) kvf_kv_unpin(w.d.kv, w.h[i].landed[b]);
    }
    assert_int_equal(c.pages_landed, pages);
    assert_int_equal(c.pages_corrupt, 0);
    kvf_kv_counts k;
    kvf_kv_count(w.p.kv, &k);
    assert_int_equal(k.free, POOL);
    kvf_kv_count(w.d.kv, &k);
    assert_int_equal(k.free, POOL);
    handoff_close(&w.p);
    handoff_close(&w.d);
    kvf_loopback_destroy(w.hub);
    event_base_free(w.base);
}

#ifdef KVF_TEST_KERNELS /* an emulated page takes its time */
static const way ways[] = {{"shm", true, true, true, true, "cuda_ipc"}, {"tcp", true, true, false, true, "nccl"},
    {"shm", true, false, true, true, "shm"}, {"tls", false, true, true, true, "tls"}};
#elif defined(KVF_TEST_LANES)
static const way ways[] = {{"shm", true, true, true, true, "cuda_ipc"}, {"tcp", true, true, false, true, "nccl"},
    {"tls", true, true, false, true, "nccl"}, {"shm", true, true, false, false, "shm"},
    {"tcp", true, true, false, false, "tcp"}, {"shm", true, false, true, true, "shm"},
    {"tcp", true, false, true, true, "tcp"}, {"shm", false, true, true, true, "shm"},
    {"tls", false, true, true, true, "tls"}};
#else
static const way ways[] = {{.link = "loopback", .transport = "loopback"}, {.link = "shm", .transport = "shm"},
    {.link = "tcp", .transport = "tcp"}, {.link = "tls", .transport = "tls"}};
#endif
static void handoffs_over_every_way(void **state) {
    for (size_t i = 0; i < KVF_COUNT_OF(ways); i++) run(&ways[i], false);
}
#ifndef KVF_TEST_KERNELS
static void handoffs_over_every_way_with_cuts(void **state) {
    for (size_t i = 0; i < KVF_COUNT_OF(ways); i++) run(&ways[i], true);
}
#endif

static one_store store;
static int setup(void **state) {
    one_store_open(&store, "DNS:p1,DNS:d1");
    tls = store.tls;
    return 0;
}
static int teardown(void **state) {
    one_store_close(&store);
    return 0;
}

int main(void) {
    kvf_log_set_level(KVF_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handoffs_over_every_way),
#ifndef KVF_TEST_KERNELS
        cmocka_unit_test(handoffs_over_every_way_with_cuts),
#endif
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
