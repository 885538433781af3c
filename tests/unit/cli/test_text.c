/* Tables, frames of top, what is made of the admin API's answers, text from outside. */
#include "cli_test.h"
#include "cluster.h"
#include "kvf/proto.h"
#include "table.h"
#include "term.h"
#include "top.h"
#include <stdio.h>
#include <stdlib.h>

static void tables_align_characters(void **state) {
    kvf_table t;
    kvf_buf b = {0};
    kvf_table_init(&t, (const char *const[]){"NAME", ">N", "END", NULL});
    kvf_table_row(&t, (const char *const[]){"a", "5", "x"});
    kvf_table_row(&t, (const char *const[]){"\u00e4\u00f6\u00fc-long", "1234", ""});
    kvf_table_write(&t, &b);
    assert_string_equal(b.text, "NAME         N  END\na            5  x\n\u00e4\u00f6\u00fc-long  1234\n");
    assert_int_equal(kvf_text_width("\033[1;32mab\033[0m\u2588"), 3);
    kvf_table_fini(&t);
    kvf_buf_fini(&b);
}

static void terminals_get_no_control_characters(void **state) {
    kvf_buf b = {0};
    static const char evil[] = "a\033]0;title\007b\r\n\tc\xC2\x9B"
                               "31m\u00e9\u2588\x7F";
    kvf_term_clean(&b, evil, sizeof evil - 1);
    assert_string_equal(b.text, "a]0;titleb\n\tc31m\u00e9\u2588");
    kvf_buf_fini(&b);
}

typedef struct {
    Kvferry__V1__BlockInfo blocks[6], *list[6];
    ProtobufCBinaryData ids[2];
    Kvferry__V1__GetBlocksResponse r;
} blocks;

static void blocks_init(blocks *x) {
    static const struct {
        const char *node, *prefix;
        uint32_t pins, holders;
    } rows[6] = {{"p0", "aa", 2, 2}, {"p0", "bb", 0, 0}, {"d0", "aa", 1, 1}, {"p0", "aa", 0, 0}, {"d0", "", 1, 1},
        {"d0", "", 1, 1}};
    x->ids[0] = kvf_proto_text("7f-1");
    x->ids[1] = kvf_proto_text("7f-2");
    kvferry__v1__get_blocks_response__init(&x->r);
    for (int i = 0; i < 6; i++) {
        kvferry__v1__block_info__init(&x->blocks[i]);
        x->blocks[i].node_id = kvf_proto_text(rows[i].node);
        x->blocks[i].prefix_hash = kvf_proto_text(rows[i].prefix);
        x->blocks[i].pins = rows[i].pins;
        x->blocks[i].n_request_ids = rows[i].holders;
        x->blocks[i].request_ids = x->ids;
        x->list[i] = &x->blocks[i];
    }
    x->r.n_blocks = 6;
    x->r.blocks = x->list;
}

static void equal_prefixes_on_one_node_are_duplicates(void **state) {
    blocks x;
    blocks_init(&x);
    kvf_cluster_blocks lines[4];
    assert_int_equal(kvf_cluster_count_blocks(&x.r, lines, 4), 2);
    assert_string_equal(lines[0].node, "p0");
    assert_true(lines[0].blocks == 3 && lines[0].pinned == 1 && lines[0].cached == 2 && lines[0].shared == 1);
    assert_true(lines[0].duplicates == 1);
    assert_string_equal(lines[1].node, "d0");
    assert_true(lines[1].blocks == 3 && lines[1].pinned == 3 && lines[1].cached == 0);
    assert_true(
        lines[1].duplicates == 0); /* the same prefix on another node is no duplicate; no prefix is none either */
    kvf_buf b = {0};
    kvf_cluster_blocks_table(&x.r, true, &b);
    assert_non_null(strstr(b.text, "7f-1 7f-2"));
    kvf_buf_fini(&b);
}

typedef struct {
    Kvferry__V1__NodeStatus node, *nodes[1];
    Kvferry__V1__BlockCounts counts;
    Kvferry__V1__PairStatus pair, *pairs[1];
    Kvferry__V1__ClusterState state;
} cluster;

static void cluster_init(cluster *x) {
    kvferry__v1__node_status__init(&x->node);
    kvferry__v1__block_counts__init(&x->counts);
    kvferry__v1__pair_status__init(&x->pair);
    kvferry__v1__cluster_state__init(&x->state);
    x->node.id = kvf_proto_text("d0\033[2J");
    x->node.role = KVFERRY__V1__ROLE__ROLE_DECODE;
    x->node.state = KVFERRY__V1__NODE_STATE__NODE_STATE_READY;
    x->node.running = 4;
    x->node.decode_tokens_per_s = 400;
    x->node.prefill_tokens_per_s = 1000;
    x->node.waiting_tokens = 500;
    x->node.blocks = &x->counts;
    x->counts = (Kvferry__V1__BlockCounts){
        .base = x->counts.base, .total = 100, .free = 50, .filling = 1, .sealed = 49, .pinned = 30};
    x->pair.prefill_node = kvf_proto_text("p0");
    x->pair.decode_node = kvf_proto_text("d0");
    x->pair.transport = kvf_proto_text("shm");
    x->pair.pages_moved = 1000;
    x->nodes[0] = &x->node;
    x->pairs[0] = &x->pair;
    x->state.n_nodes = x->state.n_pairs = 1;
    x->state.nodes = x->nodes;
    x->state.pairs = x->pairs;
}

static void rates_come_from_two_states(void **state) {
    cluster x;
    cluster_init(&x);
    kvf_top t = {0};
    kvf_top_update(&t, &x.state, 5 * KVF_NS_PER_S);
    assert_true(t.pages_per_s == 0); /* one state has no rate */
    x.pair.pages_moved = 1600;
    x.state.requests_finished = 3;
    kvf_top_update(&t, &x.state, 7 * KVF_NS_PER_S);
    assert_true(t.pages_per_s == 300);
    assert_true(t.finished_per_s == 1.5);
    assert_true(t.tpot_s == 0.01 && t.ttft_s == 0.5);
    x.pair.pages_moved = 10; /* a node began anew */
    kvf_top_update(&t, &x.state, 8 * KVF_NS_PER_S);
    assert_true(t.pages_per_s == 0);
    for (uint64_t i = 0; i < 2 * KVF_TOP_HISTORY; i++) kvf_top_update(&t, &x.state, (9 + i) * KVF_NS_PER_S);
    assert_int_equal(t.history_count, KVF_TOP_HISTORY);
}

static void no_frame_is_wider_or_longer_than_its_screen(void **state) {
    cluster x;
    cluster_init(&x);
    kvf_top t = {0};
    kvf_top_update(&t, &x.state, 1);
    kvf_top_update(&t, &x.state, KVF_NS_PER_S);
    for (uint32_t columns = 1; columns < 200; columns += 7) {
        for (uint32_t rows = 1; rows < 16; rows += 5) {
            for (int mode = 0; mode < 4; mode++) {
                kvf_top_style style = {columns, rows, mode & 1, mode & 2};
                kvf_buf b = {0};
                kvf_top_render(&t, &x.state, "127.0.0.1:7071", "12:00:00", "no answer", &style, &b);
                uint32_t lines = 0;
                for (char *at = b.text, *line; (line = strsep(&at, "\n")) && at; lines++) {
                    assert_true(kvf_text_width(line) <= columns);
                    if (!(mode & 1)) assert_null(strchr(line, '\033'));
                    for (const char *c = line; !(mode & 2) && *c; c++) assert_true((unsigned char)*c < 0x80);
                }
                assert_true(lines <= rows);
                kvf_buf_fini(&b);
            }
        }
    }
}

static void bars_fill_their_width(void **state) {
    kvf_buf b = {0};
    const kvf_top_part parts[] = {{50, "#", ""}, {1, "+", ""}, {24, "=", ""}};
    kvf_top_bar(&b, parts, 3, 100, 20);
    assert_string_equal(b.text, "##########+=====    ");
    b.len_bytes = 0;
    kvf_top_bar(
        &b, (const kvf_top_part[]){{100, "#", ""}, {100, "+", ""}}, 2, 100, 5); /* counts that do not fit together */
    assert_string_equal(b.text, "#####");
    b.len_bytes = 0;
    kvf_top_bar(&b, parts, 3, 0, 4);
    assert_string_equal(b.text, "    ");
    kvf_buf_fini(&b);
}

static void held_at_rest_is_not_clean(void **state) {
    cluster x;
    cluster_init(&x);
    kvf_buf b = {0};
    Kvferry__V1__AuditResponse a = KVFERRY__V1__AUDIT_RESPONSE__INIT;
    a.n_nodes = 1;
    a.nodes = x.nodes;
    assert_false(kvf_cluster_held_at_rest(&a, &b)); /* requests run: pins are theirs */
    a.at_rest = true;
    assert_true(kvf_cluster_held_at_rest(&a, &b));
    assert_non_null(strstr(b.text, "30 blocks pinned"));
    x.counts.pinned = x.counts.filling = 0;
    assert_false(kvf_cluster_held_at_rest(&a, &b));
    kvf_buf_fini(&b);
}

static void nodes_table_shows_no_escape_of_a_peer(void **state) {
    cluster x;
    cluster_init(&x);
    kvf_buf b = {0};
    kvf_cluster_nodes_table(&x.state, &b);
    assert_null(strchr(b.text, '\033'));
    assert_non_null(strstr(b.text, "p0 > d0"));
    kvf_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_align_characters),
        cmocka_unit_test(terminals_get_no_control_characters),
        cmocka_unit_test(equal_prefixes_on_one_node_are_duplicates), cmocka_unit_test(rates_come_from_two_states),
        cmocka_unit_test(no_frame_is_wider_or_longer_than_its_screen), cmocka_unit_test(bars_fill_their_width),
        cmocka_unit_test(held_at_rest_is_not_clean), cmocka_unit_test(nodes_table_shows_no_escape_of_a_peer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
