/* Dropped page frames, counted by the peer that they came from; links that are up, by their transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "rig.h"

static rig R;

static uint64_t rejected_of(const kvf_node_stats *s, const char *peer) {
    for (uint32_t i = 0; i < s->rejected_count; i++)
        if (strcmp(s->rejected[i].node, peer) == 0) return s->rejected[i].frames;
    return 0;
}

static void rejected_frames_are_counted_by_peer(void **state) {
    (void)state;
    rig_init(&R, 128, 128);
    uint32_t prompt[40];
    for (uint32_t i = 0; i < KVF_COUNT_OF(prompt); i++) prompt[i] = i + 1;
    static const uint8_t nonce[16] = {4};
    kvf_node *d = R.node[RIG_D];
    kvf_node_stats s;
    kvf_node_get_stats(d, &s);
    assert_int_equal(s.rejected_count, 0);
    kvf_node_on_link_up(d, R.now, 90, "p8", 1, nonce, false);
    kvf_node_on_link_up(d, R.now, 91, "p9", 1, nonce, false);
    kvf_frame commit = {.kind = KVF_FRAME_COMMIT, .commit = {.grant = 0x10000}};
    kvf_page_header page = {.grant = 0x10000};
    kvf_landing landing;
    assert_int_equal(kvf_node_on_frame(d, R.now, 90, &commit), KVF_ERR_GONE);
    assert_int_equal(kvf_node_on_page(d, R.now, 90, &page, &landing), KVF_PAGE_GONE);
    assert_int_equal(kvf_node_on_page(d, R.now, 91, &page, &landing), KVF_PAGE_GONE);
    commit.kind = KVF_FRAME_RENEW; /* always taken */
    assert_int_equal(kvf_node_on_frame(d, R.now, 91, &commit), KVF_OK);
    kvf_node_get_stats(d, &s);
    assert_int_equal(s.rejected_count, 2);
    assert_int_equal(rejected_of(&s, "p8"), 2);
    assert_int_equal(rejected_of(&s, "p9"), 1);
    assert_int_equal(s.frames_rejected, 3);
    /* A link that comes again goes on with the count of its peer; one that is gone has no peer. */
    kvf_node_on_link_down(d, R.now, 91, "p9", KVF_ERR_PEER_LOST, "test");
    assert_int_equal(kvf_node_on_page(d, R.now, 91, &page, &landing), KVF_PAGE_GONE);
    kvf_node_on_link_up(d, R.now, 92, "p9", 2, nonce, false);
    assert_int_equal(kvf_node_on_page(d, R.now, 92, &page, &landing), KVF_PAGE_GONE);
    kvf_node_get_stats(d, &s);
    assert_int_equal(rejected_of(&s, "p9"), 2);
    assert_int_equal(s.frames_rejected, 5);
    /* A page that lands corrupt. */
    R.corrupt_pages = 1;
    kvf_work w = rig_work(1, prompt, 40, 3);
    rig_ship(&R, &w);
    kvf_node_get_stats(d, &s);
    assert_int_equal(rejected_of(&s, R.config[RIG_P].info.node), 1);
    assert_int_equal(s.frames_rejected, 6);
    /* The list is bounded, the sum is not. */
    for (uint32_t i = 0; i < 2 * KVF_REJECTED_MAX; i++) {
        char peer[KVF_NAME_MAX];
        snprintf(peer, sizeof peer, "x%u", i);
        kvf_node_on_link_up(d, R.now, 100 + i, peer, 1, nonce, false);
        assert_int_equal(kvf_node_on_page(d, R.now, 100 + i, &page, &landing), KVF_PAGE_GONE);
        kvf_node_on_link_down(d, R.now, 100 + i, peer, KVF_ERR_PEER_LOST, "test");
    }
    kvf_node_get_stats(d, &s);
    assert_int_equal(s.rejected_count, KVF_REJECTED_MAX);
    assert_int_equal(rejected_of(&s, "x0"), 1);
    assert_int_equal(rejected_of(&s, "p8"), 2);
    assert_int_equal(s.frames_rejected, 6 + 2 * KVF_REJECTED_MAX);
    rig_fini(&R);
}

static const char *told(kvf_node *n, const char *peer) {
    kvf_node_stats s;
    kvf_node_get_stats(n, &s);
    for (uint32_t i = 0; i < s.links_count; i++)
        if (strcmp(s.links[i].node, peer) == 0) return s.links[i].transport;
    return NULL;
}

static void links_up(kvf_node *n, kvf_link_id link, const char *peer, bool outgoing, const char *transport) {
    static const uint8_t nonce[16] = {4};
    kvf_node_on_link_up(n, R.now, link, peer, 1, nonce, outgoing);
    kvf_node_on_link_over(n, link, transport);
}

static void links_are_told_while_they_are_up(void **state) {
    (void)state;
    rig_init(&R, 128, 128);
    kvf_node *p = R.node[RIG_P];
    links_up(p, 90, "d8", true, "nccl");
    links_up(p, 91, "d9", true, "tcp");
    links_up(p, 92, "p9", false, "shm"); /* it sends, not we */
    assert_string_equal(told(p, "d8"), "nccl");
    assert_string_equal(told(p, "d9"), "tcp");
    assert_null(told(p, "p9"));
    kvf_node_on_link_down(p, R.now, 90, "d8", KVF_ERR_GONE, "idle");
    assert_null(told(p, "d8"));
    assert_string_equal(told(p, "d9"), "tcp");
    links_up(p, 93, "d8", true, "cuda_ipc");
    assert_string_equal(told(p, "d8"), "cuda_ipc");
    kvf_node_on_link_down(p, R.now, 90, "d8", KVF_ERR_GONE, "an older one");
    assert_string_equal(told(p, "d8"), "cuda_ipc");
    for (uint32_t i = 0; i < 2 * KVF_LINKS_TOLD_MAX; i++) { /* no room: nothing is told of it */
        char peer[KVF_NAME_MAX];
        snprintf(peer, sizeof peer, "x%u", i);
        links_up(p, 100 + i, peer, true, "shm");
    }
    for (uint32_t i = 0; i < 2 * KVF_LINKS_TOLD_MAX; i++)
        kvf_node_on_link_down(p, R.now, 100 + i, "x", KVF_ERR_PEER_LOST, "test");
    kvf_node_stats s;
    kvf_node_get_stats(p, &s);
    assert_int_equal(s.links_count, 2);
    rig_fini(&R);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rejected_frames_are_counted_by_peer), cmocka_unit_test(links_are_told_while_they_are_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
