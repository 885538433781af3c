#include "cluster.h"
#include "table.h"
#include "units.h"
#include <stdio.h>
#include <stdlib.h>

const char *kvf_cluster_role(Kvferry__V1__Role role) {
    switch (role) {
    case KVFERRY__V1__ROLE__ROLE_PREFILL: return "prefill";
    case KVFERRY__V1__ROLE__ROLE_DECODE: return "decode";
    case KVFERRY__V1__ROLE__ROLE_ROUTER: return "router";
    default: return "?";
    }
}
const char *kvf_cluster_state(Kvferry__V1__NodeState state) {
    switch (state) {
    case KVFERRY__V1__NODE_STATE__NODE_STATE_STARTING: return "starting";
    case KVFERRY__V1__NODE_STATE__NODE_STATE_READY: return "ready";
    case KVFERRY__V1__NODE_STATE__NODE_STATE_DRAINING: return "draining";
    case KVFERRY__V1__NODE_STATE__NODE_STATE_LOST: return "lost";
    default: return "?";
    }
}

static const char *text(ProtobufCBinaryData b, char *out, size_t out_bytes) {
    size_t n = KVF_MIN(b.len, out_bytes - 1);
    for (size_t i = 0; i < n; i++) out[i] = b.data[i] < 0x20 || b.data[i] == 0x7F ? '?' : (char)b.data[i];
    out[n] = 0;
    return out;
}

static void pairs_table(const Kvferry__V1__ClusterState *state, kvf_buf *out) {
    kvf_table t;
    kvf_table_init(&t, (const char *const[]){"PAIR", "TRANSPORT", ">PAGES", ">MOVED", ">REJECTED", "REFUSED", NULL});
    for (size_t i = 0; i < state->n_pairs; i++) {
        const Kvferry__V1__PairStatus *p = state->pairs[i];
        char a[64], b[64], pair[140], transport[32], pages[24], moved[KVF_UNITS_TEXT], rejected[24], refused[160];
        snprintf(pair, sizeof pair, "%s > %s", text(p->prefill_node, a, sizeof a), text(p->decode_node, b, sizeof b));
        snprintf(pages, sizeof pages, "%llu", (unsigned long long)p->pages_moved);
        snprintf(rejected, sizeof rejected, "%llu", (unsigned long long)p->frames_rejected);
        kvf_table_row(&t,
            (const char *const[]){pair, text(p->transport, transport, sizeof transport), pages,
                kvf_units_bytes((double)p->bytes_moved, moved), rejected, text(p->refused, refused, sizeof refused)});
    }
    kvf_table_write(&t, out);
    kvf_table_fini(&t);
}

void kvf_cluster_nodes_table(const Kvferry__V1__ClusterState *state, kvf_buf *out) {
    kvf_table t;
    kvf_table_init(
        &t, (const char *const[]){"NODE", "ROLE", "STATE", ">RUNNING", ">WAITING", ">BLOCKS", ">FREE", ">CACHED",
                ">PINNED", ">BOOKED", ">WASTE", ">PREFILL/S", ">DECODE/S", "BACKEND", "ADDRESS", NULL});
    for (size_t i = 0; i < state->n_nodes; i++) {
        const Kvferry__V1__NodeStatus *n = state->nodes[i];
        static const Kvferry__V1__BlockCounts none = KVFERRY__V1__BLOCK_COUNTS__INIT;
        const Kvferry__V1__BlockCounts *b = n->blocks ? n->blocks : &none;
        char id[64], backend[64], address[128], cells[9][KVF_UNITS_TEXT];
        uint64_t taken = b->free + b->pinned, cached = b->total > taken ? b->total - taken : 0;
        snprintf(cells[0], KVF_UNITS_TEXT, "%u", n->running);
        snprintf(cells[1], KVF_UNITS_TEXT, "%u", n->waiting);
        snprintf(cells[2], KVF_UNITS_TEXT, "%llu", (unsigned long long)b->total);
        snprintf(cells[3], KVF_UNITS_TEXT, "%llu", (unsigned long long)b->free);
        snprintf(cells[4], KVF_UNITS_TEXT, "%llu", (unsigned long long)cached);
        snprintf(cells[5], KVF_UNITS_TEXT, "%llu", (unsigned long long)b->pinned);
        snprintf(cells[6], KVF_UNITS_TEXT, "%llu", (unsigned long long)b->booked);
        snprintf(cells[7], KVF_UNITS_TEXT, "%.1f%%", (double)n->waste_ratio * 100);
        char prefill[KVF_UNITS_TEXT], decode[KVF_UNITS_TEXT];
        kvf_table_row(&t,
            (const char *const[]){text(n->id, id, sizeof id), kvf_cluster_role(n->role), kvf_cluster_state(n->state),
                cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7],
                kvf_units_count(n->prefill_tokens_per_s, prefill), kvf_units_count(n->decode_tokens_per_s, decode),
                text(n->backend, backend, sizeof backend), text(n->address, address, sizeof address)});
    }
    kvf_table_write(&t, out);
    kvf_table_fini(&t);
    if (state->n_pairs) {
        kvf_buf_putc(out, '\n');
        pairs_table(state, out);
    }
    kvf_buf_printf(out, "\nqueued %u, finished %llu, failed %llu\n", state->queued,
        (unsigned long long)state->requests_finished, (unsigned long long)state->requests_failed);
}

static int compare_prefix(const void *a, const void *b) {
    const Kvferry__V1__BlockInfo *x = *(Kvferry__V1__BlockInfo *const *)a, *y = *(Kvferry__V1__BlockInfo *const *)b;
    size_t n = KVF_MIN(x->node_id.len, y->node_id.len);
    int c = n ? memcmp(x->node_id.data, y->node_id.data, n) : 0;
    if (c || x->node_id.len != y->node_id.len) return c ? c : (x->node_id.len < y->node_id.len ? -1 : 1);
    n = KVF_MIN(x->prefix_hash.len, y->prefix_hash.len);
    c = n ? memcmp(x->prefix_hash.data, y->prefix_hash.data, n) : 0;
    return c ? c : (x->prefix_hash.len > y->prefix_hash.len) - (x->prefix_hash.len < y->prefix_hash.len);
}

static kvf_cluster_blocks *line_of(kvf_cluster_blocks *out, uint32_t *count, uint32_t max, ProtobufCBinaryData node) {
    char name[64];
    text(node, name, sizeof name);
    for (uint32_t i = 0; i < *count; i++)
        if (strcmp(out[i].node, name) == 0) return &out[i];
    if (*count == max) return NULL;
    out[*count] = (kvf_cluster_blocks){0};
    snprintf(out[*count].node, sizeof out[*count].node, "%s", name);
    return &out[(*count)++];
}

uint32_t kvf_cluster_count_blocks(const Kvferry__V1__GetBlocksResponse *r, kvf_cluster_blocks *out, uint32_t max) {
    uint32_t count = 0;
    for (size_t i = 0; i < r->n_blocks; i++) {
        const Kvferry__V1__BlockInfo *b = r->blocks[i];
        kvf_cluster_blocks *line = line_of(out, &count, max, b->node_id);
        if (!line) continue;
        line->blocks++;
        line->pinned += b->pins > 0;
        line->cached += b->pins == 0 && b->n_request_ids == 0;
        line->shared += b->n_request_ids > 1;
    }
    Kvferry__V1__BlockInfo **sorted = r->n_blocks ? malloc(r->n_blocks * sizeof *sorted) : NULL;
    if (!sorted) return count;
    memcpy(sorted, r->blocks, r->n_blocks * sizeof *sorted);
    qsort(sorted, r->n_blocks, sizeof *sorted, compare_prefix);
    for (size_t i = 1; i < r->n_blocks; i++) {
        if (sorted[i]->prefix_hash.len == 0 || compare_prefix(&sorted[i - 1], &sorted[i]) != 0) continue;
        kvf_cluster_blocks *line = line_of(out, &count, max, sorted[i]->node_id);
        if (line) line->duplicates++;
    }
    free(sorted);
    return count;
}

static void each_block(const Kvferry__V1__GetBlocksResponse *r, kvf_buf *out) {
    kvf_table t;
    kvf_table_init(
        &t, (const char *const[]){"NODE", ">BLOCK", "STATE", ">PINS", ">TOKENS", "PREFIX", "REQUESTS", NULL});
    for (size_t i = 0; i < r->n_blocks; i++) {
        const Kvferry__V1__BlockInfo *b = r->blocks[i];
        char node[64], block[32], state[24], pins[16], tokens[16], prefix[40], id[48];
        kvf_buf holders = {0};
        kvf_buf_puts(&holders, "");
        for (size_t k = 0; k < b->n_request_ids; k++)
            kvf_buf_printf(&holders, "%s%s", k ? " " : "", text(b->request_ids[k], id, sizeof id));
        snprintf(block, sizeof block, "%u.%u", b->block, b->generation);
        snprintf(pins, sizeof pins, "%u", b->pins);
        snprintf(tokens, sizeof tokens, "%u", b->tokens);
        kvf_table_row(
            &t, (const char *const[]){text(b->node_id, node, sizeof node), block, text(b->state, state, sizeof state),
                    pins, tokens, text(b->prefix_hash, prefix, sizeof prefix), holders.text});
        kvf_buf_fini(&holders);
    }
    kvf_table_write(&t, out);
    kvf_table_fini(&t);
}

void kvf_cluster_blocks_table(const Kvferry__V1__GetBlocksResponse *r, bool each, kvf_buf *out) {
    kvf_cluster_blocks lines[64];
    uint32_t count = kvf_cluster_count_blocks(r, lines, 64);
    if (each && r->n_blocks) {
        each_block(r, out);
        kvf_buf_putc(out, '\n');
    }
    kvf_table t;
    kvf_table_init(&t, (const char *const[]){"NODE", ">BLOCKS", ">PINNED", ">CACHED", ">SHARED", ">DUPLICATES", NULL});
    for (uint32_t i = 0; i < count; i++) {
        char cells[5][24];
        const uint64_t values[5] = {
            lines[i].blocks, lines[i].pinned, lines[i].cached, lines[i].shared, lines[i].duplicates};
        for (int k = 0; k < 5; k++) snprintf(cells[k], sizeof cells[k], "%llu", (unsigned long long)values[k]);
        kvf_table_row(&t, (const char *const[]){lines[i].node, cells[0], cells[1], cells[2], cells[3], cells[4]});
    }
    kvf_table_write(&t, out);
    kvf_table_fini(&t);
    if (r->truncated) kvf_buf_puts(out, "(cut: there are more; see --limit)\n");
}

bool kvf_cluster_held_at_rest(const Kvferry__V1__AuditResponse *r, kvf_buf *out) {
    bool held = false;
    for (size_t i = 0; r->at_rest && i < r->n_nodes; i++) {
        const Kvferry__V1__NodeStatus *n = r->nodes[i];
        char id[64];
        if (!n->blocks) continue;
        const struct {
            const char *what;
            uint64_t count;
        } kinds[] = {{"pinned", n->blocks->pinned}, {"filling", n->blocks->filling}, {"booked", n->blocks->booked}};
        for (size_t k = 0; k < KVF_COUNT_OF(kinds); k++) {
            if (!kinds[k].count) continue;
            held = true;
            kvf_buf_printf(out, "%s: %llu blocks %s although nothing runs\n", text(n->id, id, sizeof id),
                (unsigned long long)kinds[k].count, kinds[k].what);
        }
    }
    return held;
}
