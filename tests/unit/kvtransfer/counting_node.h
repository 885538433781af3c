/* counting_node.h - callbacks of an endpoint that count, for tests in which only whether and how often matters. Pages
 * of 64 bytes, any of which is accepted. After cmocka.h. */
#ifndef KVF_TEST_COUNTING_NODE_H
#define KVF_TEST_COUNTING_NODE_H
#include "kvf/endpoint.h"

typedef struct {
    int ups, downs, pages, frames;
    kvf_link_id link;
    kvf_status reason;
    uint8_t page[64];
} node;
static void on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {
    node *n = self;
    n->ups++;
    n->link = link;
}
static void on_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    node *n = self;
    n->downs++;
    n->reason = reason;
    assert_true(reason < 0 && text[0]);
}
static void on_frame(void *self, kvf_link_id link, const kvf_frame *f) { ((node *)self)->frames++; }
static kvf_page_verdict on_page(void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *l) {
    node *n = self;
    *target = n->page;
    *l = (kvf_landing){.grant = h->grant};
    return KVF_PAGE_ACCEPT;
}
static void on_landed(void *self, kvf_link_id link, const kvf_landing *l, bool crc_ok) {
    ((node *)self)->pages += crc_ok;
}
static void on_room(void *self, kvf_link_id link) {}

static const kvf_identity counting_model = {.wire_version = 1, .page_bytes = 64, .numerics = "f", .kv_type = "f16"};

static inline kvf_endpoint_callbacks counting(node *n) {
    return (kvf_endpoint_callbacks){
        n, on_up, on_down, on_frame, on_page, on_landed, on_room, NULL, NULL, NULL, NULL, NULL};
}
#endif
