/* Dropped page frames, counted by the peer that they came from. */
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rejected_frames_are_counted_by_peer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
