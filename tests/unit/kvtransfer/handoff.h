/* handoff.h - a small sending and a small receiving node around the transfer core and a real endpoint: what node/ does,
 * without requests. For tests and the transfer benchmark. */
#ifndef KVF_TEST_HANDOFF_H
#define KVF_TEST_HANDOFF_H
#include "kvf/endpoint.h"
#include "kvf/os.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef KVF_TEST_LANES
#include "device.h"
#else
typedef struct test_device test_device;
#endif

typedef struct {
    kvf_kv *kv;
    kvf_rx *rx;
    kvf_tx *tx;
    kvf_endpoint *e;
    uint8_t *pages; /* [layer][block][page_bytes] */
    uint32_t blocks, layers, page_bytes;
    kvf_link_id link; /* KVF_LINK_NONE: down */
    kvf_link_id incoming; /* the last one that came up */
    uint8_t nonces[256][16]; /* by slot of the link */
    void (*on_rx)(void *self, const kvf_rx_act *act); /* COMMITTED, LOST */
    void (*on_tx_end)(void *self, const kvf_tx_act *act);
    void *self;
    void *memory[4];
    uint32_t downs;
    kvf_status reason; /* of the last one */
    test_device *device; /* NULL: pages in memory of the host */
    char lost[256]; /* on_device_lost */
    bool hides_use; /* of its links: "uses" says no */
    char transport[16]; /* of the last link that we made */
} handoff_node;

static inline uint8_t *handoff_page(const handoff_node *n, kvf_block_id block, uint32_t layer) {
    return n->pages + ((size_t)layer * n->blocks + block.index) * n->page_bytes;
}
static inline bool handoff_room(void *self, kvf_link_id link) {
    return kvf_endpoint_has_room(((handoff_node *)self)->e, link);
}

static inline void handoff_pump(handoff_node *n) {
    kvf_rx_act r;
    while (kvf_rx_next(n->rx, &r)) {
        if (r.kind == KVF_RX_FRAME)
            (void)kvf_endpoint_send_frame(n->e, r.link, &r.frame);
        else if (n->on_rx)
            n->on_rx(n->self, &r);
    }
    kvf_tx_act t;
    while (kvf_tx_next(n->tx, handoff_room, n, &t)) {
        if (t.kind == KVF_TX_FRAME) {
            (void)kvf_endpoint_send_frame(n->e, t.link, &t.frame);
        } else if (t.kind == KVF_TX_PAGE) {
            uint32_t crc = 0;
            kvf_status s = n->device ? kvf_endpoint_post_page(n->e, t.link, &t.header, t.block.index, t.token)
                                     : kvf_endpoint_send_page(
                                           n->e, t.link, &t.header, handoff_page(n, t.block, t.header.layer), &crc);
            if (n->device && s == KVF_OK) continue; /* handoff_on_page_sent */
            kvf_tx_on_page_sent(n->tx, kvf_os_now_ns(), t.token, s == KVF_OK, crc);
        } else if (n->on_tx_end) {
            n->on_tx_end(n->self, &t);
        }
    }
    kvf_endpoint_flush(n->e);
}
static inline void handoff_on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch,
    const uint8_t nonce[16], bool outgoing, const char *transport) {
    handoff_node *n = self;
    (void)peer;
    (void)epoch;
    memcpy(n->nonces[link & 0xff], nonce, 16);
    if (!outgoing) n->incoming = link;
    if (!outgoing) return;
    n->link = link;
    snprintf(n->transport, sizeof n->transport, "%s", transport);
}
static inline void handoff_on_down(
    void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    handoff_node *n = self;
    (void)peer;
    (void)text;
    n->downs++;
    n->reason = reason;
    kvf_rx_on_link_down(n->rx, kvf_os_now_ns(), link);
    kvf_tx_on_link_down(n->tx, kvf_os_now_ns(), link);
    if (n->link == link) n->link = KVF_LINK_NONE;
    handoff_pump(n);
}
static inline void handoff_on_frame(void *self, kvf_link_id link, const kvf_frame *f) {
    handoff_node *n = self;
    kvf_rx_on_frame(n->rx, kvf_os_now_ns(), link, n->nonces[link & 0xff], f);
    kvf_tx_on_frame(n->tx, kvf_os_now_ns(), link, f);
    handoff_pump(n);
}
static inline kvf_page_verdict handoff_on_page(
    void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *landing) {
    handoff_node *n = self;
    kvf_page_verdict v = kvf_rx_on_page(n->rx, kvf_os_now_ns(), link, h, landing);
    if (v == KVF_PAGE_ACCEPT) *target = handoff_page(n, landing->block, landing->layer);
    return v;
}
static inline void handoff_on_landed(void *self, kvf_link_id link, const kvf_landing *landing, bool crc_ok) {
    handoff_node *n = self;
    (void)link;
    kvf_rx_on_landed(n->rx, kvf_os_now_ns(), landing, crc_ok);
    if (n->device) handoff_pump(n); /* a COMMIT may have waited for it, and no frame need follow */
}
static inline void handoff_on_room(void *self, kvf_link_id link) {
    (void)link;
    handoff_pump(self);
}

static inline void handoff_on_dropped(void *self, kvf_link_id link, const kvf_landing *landing) {
    (void)link;
    kvf_rx_on_dropped(((handoff_node *)self)->rx, kvf_os_now_ns(), landing);
    handoff_pump(self);
}
static inline void handoff_on_page_sent(void *self, uint64_t token, bool ok, uint32_t crc) {
    handoff_node *n = self;
    kvf_tx_on_page_sent(n->tx, kvf_os_now_ns(), token, ok, crc);
    handoff_pump(n);
}
static inline bool handoff_waits(void *self, kvf_link_id link) {
    return kvf_tx_waits(((handoff_node *)self)->tx, link);
}
static inline bool handoff_uses(void *self, kvf_link_id link) {
    const handoff_node *n = self;
    return !n->hides_use && (kvf_tx_uses(n->tx, link) || kvf_rx_uses(n->rx, link));
}
static inline void handoff_on_device_lost(void *self, const char *text) {
    handoff_node *n = self;
    snprintf(n->lost, sizeof n->lost, "%s", text);
}

static inline void *handoff_zeroed(size_t size_bytes) {
    size_t rounded = (size_bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, rounded);
    if (!p) abort();
    return memset(p, 0, rounded);
}
/* options: node, epoch, base, addresses; identity gives layers and page_bytes. */
static inline kvf_status handoff_open(handoff_node *n, const kvf_endpoint_options *options, uint32_t blocks,
    uint32_t blocks_max, uint32_t inflight_max, kvf_time_ns relink_ns, kvf_error *err) {
    uint32_t layers = options->identity->layers, page_bytes = options->identity->page_bytes;
    kvf_kv_config kc = {.blocks = blocks, .events_max = 16};
    kvf_rx_config rc = {.grants_max = 8,
        .blocks_max = blocks_max,
        .layers = layers,
        .page_bytes = page_bytes,
        .epoch = options->epoch,
        .grant_ttl_ns = 30 * KVF_NS_PER_S,
        .tombstones_max = 64};
    kvf_tx_config tc = {.handoffs_max = 8,
        .blocks_max = blocks_max,
        .layers = layers,
        .page_bytes = page_bytes,
        .inflight_max = inflight_max,
        .hold_ttl_ns = 30 * KVF_NS_PER_S,
        .relink_ttl_ns = relink_ns};
    n->blocks = blocks;
    n->layers = layers;
    n->page_bytes = page_bytes;
    n->link = KVF_LINK_NONE;
    n->kv = kvf_kv_init(n->memory[0] = handoff_zeroed(kvf_kv_size(&kc)), &kc);
    n->rx = kvf_rx_init(n->memory[1] = handoff_zeroed(kvf_rx_size(&rc)), &rc, n->kv);
    n->tx = kvf_tx_init(n->memory[2] = handoff_zeroed(kvf_tx_size(&tc)), &tc, n->kv);
    n->pages = n->memory[3] = handoff_zeroed((size_t)blocks * layers * page_bytes);
    kvf_endpoint_options o = *options;
#ifdef KVF_TEST_LANES
    if (n->device) {
        free(n->memory[3]);
        n->memory[3] = NULL;
        n->pages = test_device_pool(n->device, blocks, layers, page_bytes);
        o.device = &n->device->pages;
    }
#endif
    o.callbacks = (kvf_endpoint_callbacks){n, handoff_on_up, handoff_on_down, handoff_on_frame, handoff_on_page,
        handoff_on_landed, handoff_on_room, handoff_on_dropped, handoff_on_page_sent, handoff_waits, handoff_uses,
        handoff_on_device_lost};
    return kvf_endpoint_create(&o, &n->e, err);
}
static inline void handoff_close(handoff_node *n) {
    kvf_endpoint_destroy(n->e);
#ifdef KVF_TEST_LANES
    if (n->device) test_device_close(n->device);
#endif
    for (int i = 0; i < 4; i++) free(n->memory[i]);
}
#endif
