/* endpoint_world.h - two endpoints of one process, p1 and d1, over one kind of link; with KVF_TEST_LANES their pages
 * lie on the fake device. For test_endpoint.c. */
#ifndef KVF_TEST_ENDPOINT_WORLD_H
#define KVF_TEST_ENDPOINT_WORLD_H
#include "kvf/endpoint.h"
#include "kvf/rng.h"
#include "kvf/transport.h"
#include "../../support/sample_identity.h"
#include "loop.h"
#include "stores.h"
#ifdef KVF_TEST_LANES
#include "device.h"
#endif

#ifdef KVF_TEST_LANES
enum { PAGE_BYTES = 12288, PAGES = 3000 };
#else
enum { PAGE_BYTES = 12288, PAGES = 10000 };
#endif
static const kvf_identity model = SAMPLE_IDENTITY;

typedef struct {
    kvf_endpoint *e;
    kvf_link_id link; /* the last one that came up */
    int ups, downs, frames, renews, rooms, pages, pages_bad;
    uint32_t judged; /* pages given to on_page and accepted */
    bool outgoing;
    char peer[KVF_NAME_MAX], transport[16], text[KVF_TEXT_MAX];
    uint64_t peer_epoch;
    uint8_t nonce[16];
    kvf_status reason;
    kvf_frame last;
    kvf_page_name names[KVF_FRAME_MISSING_MAX];
    uint8_t payload[KVF_FRAME_COMMIT_PAYLOAD_MAX];
    uint8_t page[PAGE_BYTES];
    kvf_page_verdict verdict;
    bool close_on_page;
#ifdef KVF_TEST_LANES
    test_device device;
    bool has_device;
    uint64_t sent; /* the token that on_page_sent has next */
#endif
} node;

/* The stream of a kind, and what on_link_up calls it. */
static const char *stream_of(const char *kind) {
    return strcmp(kind, "cuda_ipc") == 0 ? "shm"
           : strcmp(kind, "nccl") == 0   ? "tcp"
           : strcmp(kind, "pinned") == 0 ? "tls"
                                         : kind;
}
static const char *transport_of(const char *kind) { return strcmp(kind, "pinned") == 0 ? "tls" : kind; }

static void on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {
    node *n = self;
    n->ups++;
    n->link = link;
    n->outgoing = outgoing;
    n->peer_epoch = epoch;
    snprintf(n->peer, sizeof n->peer, "%s", peer);
    snprintf(n->transport, sizeof n->transport, "%s", transport);
    memcpy(n->nonce, nonce, 16);
}
static void on_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    node *n = self;
    (void)link;
    (void)peer;
    n->downs++;
    n->reason = reason;
    snprintf(n->text, sizeof n->text, "%s", text);
}
static void on_frame(void *self, kvf_link_id link, const kvf_frame *f) {
    node *n = self;
    (void)link;
    if (f->kind == KVF_FRAME_RENEW) {
        n->renews++;
        return;
    }
    n->frames++;
    n->last = *f;
    if (f->kind == KVF_FRAME_MISSING) memcpy(n->names, f->missing.pages, f->missing.count * sizeof n->names[0]);
    if (f->kind == KVF_FRAME_COMMIT) memcpy(n->payload, f->commit.payload.data, f->commit.payload.len_bytes);
}
#ifdef KVF_TEST_LANES
enum { POOL_BLOCKS = 256 };
static uint8_t *pool_page(const node *n, uint32_t block, uint32_t layer) {
    (void)layer; /* one page for each block is enough here */
    return n->device.pool + (size_t)(block % POOL_BLOCKS) * PAGE_BYTES;
}
#endif
static void fill(uint8_t *page, uint32_t n) {
    for (uint32_t i = 0; i < PAGE_BYTES; i += 8) kvf_put_le64(page + i, kvf_rng_at(9, n, i));
}
static kvf_page_verdict on_page(
    void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *landing) {
    node *n = self;
    if (n->close_on_page) kvf_endpoint_close(n->e, link);
    *landing = (kvf_landing){.grant = h->grant, .block_logical = h->block, .layer = h->layer, .crc = h->crc};
    *target = n->page;
#ifdef KVF_TEST_LANES
    landing->block.index = h->block % POOL_BLOCKS;
#endif
    if (n->verdict == KVF_PAGE_ACCEPT && h->block != n->judged++) n->pages_bad += 1000000; /* out of order */
    return n->verdict;
}
static void on_landed(void *self, kvf_link_id link, const kvf_landing *landing, bool crc_ok) {
    node *n = self;
    (void)link;
    static uint8_t want[PAGE_BYTES];
    const uint8_t *page = n->page;
#ifdef KVF_TEST_LANES
    if (n->has_device) page = pool_page(n, landing->block_logical, landing->layer);
#endif
    fill(want, landing->block_logical);
    if (crc_ok && memcmp(want, page, PAGE_BYTES) == 0)
        n->pages++;
    else
        n->pages_bad++;
}
static void on_room(void *self, kvf_link_id link) {
    node *n = self;
    (void)link;
    n->rooms++;
}

#ifdef KVF_TEST_LANES
static void on_dropped(void *self, kvf_link_id link, const kvf_landing *landing) {
    (void)link;
    (void)landing;
    ((node *)self)->pages_bad++;
}
static void on_page_sent(void *self, uint64_t token, bool ok, uint32_t crc) {
    node *n = self;
    kvf_page_header h = {.grant = 1, .block = (uint32_t)token, .layer = token % 30, .len_bytes = PAGE_BYTES};
    if (ok && (token != n->sent++ || crc != kvf_page_crc(&h, 22, pool_page(n, h.block, h.layer)))) n->pages_bad++;
}
#endif

typedef struct {
    struct event_base *base;
    kvf_loopback *hub;
    const char *kind;
    node p, d;
} world;

static kvf_tls_store *tls; /* of one certificate for every node here */

static kvf_endpoint_options options_for(world *w, node *n, const char *name, uint64_t epoch) {
    return (kvf_endpoint_options){.base = w->base,
        .node = name,
        .epoch = epoch,
        .identity = &model,
        .listen_tcp = "127.0.0.1:0",
        .tls = strcmp(stream_of(w->kind), "tls") == 0 ? tls : NULL,
        .listen_shm = true,
        .connect_timeout_ns = 20 * KVF_NS_PER_S,
        .heartbeat_ns = KVF_NS_PER_S,
        .peer_timeout_ns = 60 * KVF_NS_PER_S,
        .loopback = w->hub,
        .callbacks = {n, on_up, on_down, on_frame, on_page, on_landed, on_room}};
}
static const char *kind_of_node; /* of the world that is started */
static void node_start(node *n, const kvf_endpoint_options *given) {
    kvf_endpoint_options options = *given, *o = &options;
    kvf_error err;
    *n = (node){.verdict = KVF_PAGE_ACCEPT};
#ifdef KVF_TEST_LANES
    n->has_device = stream_of(kind_of_node) != kind_of_node;
    if (n->has_device) {
        test_device_open(&n->device, strcmp(kind_of_node, "cuda_ipc") == 0, strcmp(kind_of_node, "nccl") == 0);
        (void)test_device_pool(&n->device, POOL_BLOCKS, 1, PAGE_BYTES);
        n->device.pages.slot_bytes = 40 * PAGE_BYTES;
        o->device = &n->device.pages;
        o->callbacks.on_dropped = on_dropped;
        o->callbacks.on_page_sent = on_page_sent;
    }
#endif
    if (kvf_endpoint_create(o, &n->e, &err) != KVF_OK) fail_msg("%s", err.message);
}
static void node_end(node *n) {
    kvf_endpoint_destroy(n->e);
#ifdef KVF_TEST_LANES
    if (n->has_device) test_device_close(&n->device);
    n->has_device = false;
#endif
}
static void world_open(world *w, const char *kind) {
    memset(w, 0, sizeof *w);
    w->base = event_base_new();
    w->hub = kvf_loopback_create();
    w->kind = kind_of_node = kind;
}
static void world_start(world *w, const char *kind) {
    world_open(w, kind);
    kvf_endpoint_options o = options_for(w, &w->p, "p1", 11);
    node_start(&w->p, &o);
    o = options_for(w, &w->d, "d1", 22);
    node_start(&w->d, &o);
}
static kvf_status call(world *w, const char *peer, uint64_t epoch, kvf_link_id *link) {
    bool shm = strcmp(stream_of(w->kind), "shm") == 0;
    const char *address = strcmp(w->kind, "loopback") == 0 ? "loopback:d1" : kvf_endpoint_address(w->d.e);
    return kvf_endpoint_connect(
        w->p.e, peer, epoch, address, shm ? kvf_endpoint_local_address(w->d.e) : "", kvf_os_host_id(), link);
}
static void world_pair(world *w, const char *kind) {
    world_start(w, kind);
    kvf_link_id link;
    assert_int_equal(call(w, "d1", 22, &link), KVF_OK);
    LOOP_UNTIL(w->base, (w->p.ups && w->d.ups) || w->p.downs);
    assert_int_equal(w->p.downs, 0);
    assert_int_equal(w->p.link, link);
}
/* What kvf_endpoint_send_page does, wherever the pages are. */
static kvf_status send_page(world *w, const kvf_page_header *h, const uint8_t *page, uint32_t *crc) {
#ifdef KVF_TEST_LANES
    if (w->p.has_device) {
        if (!kvf_endpoint_has_room(w->p.e, w->p.link)) return KVF_AGAIN;
        memcpy(pool_page(&w->p, h->block, h->layer), page, PAGE_BYTES);
        *crc = kvf_page_crc(h, 22, page);
        return kvf_endpoint_post_page(w->p.e, w->p.link, h, h->block % POOL_BLOCKS, h->block);
    }
#endif
    return kvf_endpoint_send_page(w->p.e, w->p.link, h, page, crc);
}
static void world_end(world *w) {
    node_end(&w->p);
    node_end(&w->d);
    kvf_loopback_destroy(w->hub);
    event_base_free(w->base);
}
#ifdef KVF_TEST_LANES
static const char *const kinds[] = {"cuda_ipc", "nccl", "pinned"};
#else
static const char *const kinds[] = {"loopback", "shm", "tcp", "tls"};
#endif
#define FOR_ALL(kind)                                                                                                  \
    for (size_t one = 0; one < KVF_COUNT_OF(kinds); one++)                                                             \
        for (const char *kind = kinds[one]; kind; kind = NULL)
#endif
