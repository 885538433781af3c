/* Admin calls that nodes must answer: Audit, GetBlocks, FlushCache. */
#include "cluster.h"
#include "kvf/log.h"
#include "kvf/proto.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS_DEFAULT = 1000, BLOCKS_MAX = 20000 };

typedef enum { GATHER_AUDIT, GATHER_BLOCKS, GATHER_FLUSH } gather_kind;

typedef struct {
    uint32_t node;
    uint64_t query; /* 0: not asked, or answered */
    char id[KVF_NAME_MAX];
    bool asked, answered;
    /* audit */
    bool clean, at_rest;
    char invariant[KVF_NAME_MAX], detail[KVF_TEXT_MAX];
    uint32_t missing, extra;
    kvf_node_stats stats;
} gather_node;

typedef struct {
    uint32_t node; /* index in nodes */
    kvf_block_report report;
} gather_block;

struct gather {
    kvf_router_shell *shell;
    admin_call *call;
    gather_kind kind;
    gather *next, **link;
    struct event *deadline;
    gather_node nodes[KVF_ROUTER_NODES_MAX];
    uint32_t count, waiting;
    uint64_t blocks_checked, blocks_freed;
    gather_block *blocks;
    uint32_t blocks_count, blocks_max;
    bool truncated;
};

static void gather_free(gather *g) {
    *g->link = g->next;
    if (g->next) g->next->link = g->link;
    if (g->deadline) event_free(g->deadline);
    if (g->call) front_admin_call_free(g->call);
    free(g->blocks);
    free(g);
}

/* ---- answers ---- */

typedef struct {
    Kvferry__V1__Violation items[3 * KVF_ROUTER_NODES_MAX], *list[3 * KVF_ROUTER_NODES_MAX];
    char details[3 * KVF_ROUTER_NODES_MAX][KVF_TEXT_MAX + 64];
    size_t count;
    kvf_router_node seen[KVF_ROUTER_NODES_MAX];
    Kvferry__V1__NodeStatus nodes[KVF_ROUTER_NODES_MAX], *node_list[KVF_ROUTER_NODES_MAX];
    Kvferry__V1__BlockCounts blocks[KVF_ROUTER_NODES_MAX];
} audit_answer;

static void violate(audit_answer *w, const char *node, const char *invariant, const char *detail) {
    KVF_ASSERT(w->count < KVF_COUNT_OF(w->items));
    Kvferry__V1__Violation *v = &w->items[w->count];
    kvferry__v1__violation__init(v);
    snprintf(w->details[w->count], sizeof w->details[0], "%s", detail);
    v->node_id = kvf_proto_text(node);
    v->invariant = kvf_proto_text(invariant);
    v->detail = kvf_proto_text(w->details[w->count]);
    w->list[w->count++] = v;
}

static void judge(audit_answer *w, const gather_node *n) {
    char text[KVF_TEXT_MAX];
    if (!n->answered) {
        if (n->asked) violate(w, n->id, "answer", "the node did not answer in time");
        return;
    }
    if (!n->clean) violate(w, n->id, n->invariant, n->detail);
    if (n->missing || n->extra) {
        snprintf(text, sizeof text,
            "the directory lacked %" PRIu32 " blocks of the node and had %" PRIu32 " that it does not have", n->missing,
            n->extra);
        violate(w, n->id, "I8", text);
    }
}

static void reply_audit(gather *g) {
    kvf_router_shell *s = g->shell;
    audit_answer *w = calloc(1, sizeof *w);
    if (!w) {
        front_admin_fail(g->call, KVF_ERR_NO_MEMORY, NULL, "audit");
        g->call = NULL;
        return;
    }
    Kvferry__V1__AuditResponse m = KVFERRY__V1__AUDIT_RESPONSE__INIT;
    m.at_rest = s->live == 0;
    for (uint32_t i = 0; i < g->count; i++) {
        gather_node *n = &g->nodes[i];
        judge(w, n);
        if (!n->answered || !n->at_rest) m.at_rest = false; /* of a node that says nothing only old numbers are known */
        kvf_router_node *seen = &w->seen[m.n_nodes];
        if (!kvf_router_node_at(s->core, kvf_os_now_ns(), n->node, seen)) continue;
        if (n->answered) seen->stats = n->stats;
        front_cluster_node_status(seen, s->links[n->node].address, &w->nodes[m.n_nodes], &w->blocks[m.n_nodes]);
        w->node_list[m.n_nodes] = &w->nodes[m.n_nodes];
        m.n_nodes++;
    }
    m.nodes = w->node_list;
    m.n_violations = w->count;
    m.violations = w->list;
    m.blocks_checked = g->blocks_checked;
    for (size_t i = 0; i < w->count; i++)
        kvf_log(KVF_LOG_WARN, "router", "audit: node %s: %s: %s", (const char *)w->items[i].node_id.data,
            (const char *)w->items[i].invariant.data, w->details[i]);
    kvf_rpc_reply(g->call->call, &m.base);
    free(w);
}

static const char *state_name(uint32_t state) {
    static const char *const names[] = {"free", "filling", "sealed"};
    return state < KVF_COUNT_OF(names) ? names[state] : "?";
}

typedef struct {
    Kvferry__V1__BlockInfo info;
    char hash[KVF_HASH_TEXT_MAX], requests[4][KVF_REQUEST_TEXT_MAX];
    ProtobufCBinaryData request_list[4];
} block_row;

/* Nodes know parts of a request by ids of their own: shown is the one the client was told. */
static void fill_holders(gather *g, const kvf_block_report *r, block_row *row) {
    for (size_t i = 0; i < 4 && r->requests[i].counter; i++) {
        kvf_request_id id = r->requests[i];
        uint64_t client;
        if (!kvf_router_request_of(g->shell->core, r->requests[i], &id, &client)) id = r->requests[i];
        kvf_request_id_format(id, row->requests[i]);
        row->request_list[i] = kvf_proto_text(row->requests[i]);
        row->info.n_request_ids = i + 1;
    }
    row->info.request_ids = row->request_list;
}

static void reply_blocks(gather *g) {
    block_row *rows = calloc(g->blocks_count + 1, sizeof *rows);
    Kvferry__V1__BlockInfo **list = calloc(g->blocks_count + 1, sizeof *list);
    Kvferry__V1__GetBlocksResponse m = KVFERRY__V1__GET_BLOCKS_RESPONSE__INIT;
    if (!rows || !list) {
        front_admin_fail(g->call, KVF_ERR_NO_MEMORY, NULL, "blocks");
        g->call = NULL;
    } else {
        for (uint32_t i = 0; i < g->blocks_count; i++) {
            const kvf_block_report *r = &g->blocks[i].report;
            Kvferry__V1__BlockInfo *b = &rows[i].info;
            kvferry__v1__block_info__init(b);
            b->node_id = kvf_proto_text(g->nodes[g->blocks[i].node].id);
            b->block = r->block;
            b->generation = r->generation;
            b->state = kvf_proto_text(state_name(r->state));
            b->pins = r->pins;
            b->tokens = r->tokens;
            if (r->indexed) {
                kvf_hash_format(r->name, rows[i].hash);
                b->prefix_hash = kvf_proto_text(rows[i].hash);
            }
            fill_holders(g, r, &rows[i]);
            list[i] = b;
        }
        m.n_blocks = g->blocks_count;
        m.blocks = list;
        m.truncated = g->truncated || g->waiting > 0;
        kvf_rpc_reply(g->call->call, &m.base);
    }
    free(rows);
    free(list);
}

static void reply_flush(gather *g) {
    Kvferry__V1__FlushCacheResponse m = KVFERRY__V1__FLUSH_CACHE_RESPONSE__INIT;
    m.blocks_freed = g->blocks_freed;
    if (g->waiting == 0) {
        kvf_rpc_reply(g->call->call, &m.base);
        return;
    }
    front_admin_fail(g->call, KVF_ERR_DEADLINE, "node_id", "a node did not answer");
    g->call = NULL;
}

static void finish(gather *g) {
    switch (g->kind) {
    case GATHER_AUDIT: reply_audit(g); break;
    case GATHER_BLOCKS: reply_blocks(g); break;
    case GATHER_FLUSH: reply_flush(g); break;
    }
    gather_free(g);
}

static void on_deadline(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    finish(self);
}

/* ---- questions ---- */

typedef struct {
    kvf_request_id request;
    kvf_hash128 name;
    uint32_t limit;
} block_filter;

static kvf_status ask(gather *g, gather_node *n, const block_filter *filter) {
    kvf_router_shell *s = g->shell;
    kvf_time_ns now = kvf_os_now_ns();
    n->query = ++s->next_query;
    switch (g->kind) {
    case GATHER_AUDIT: return kvf_router_audit(s->core, now, n->node, n->query);
    case GATHER_FLUSH: return kvf_router_flush(s->core, now, n->node, n->query);
    case GATHER_BLOCKS: break;
    }
    return kvf_router_blocks(s->core, now, n->node, n->query, filter->request, filter->name, filter->limit);
}

/* only: one node's index, or NO_SLOT for all that have a session. */
static void gather_start(admin_call *a, gather_kind kind, uint32_t only, const block_filter *filter) {
    kvf_router_shell *s = a->shell;
    gather *g = calloc(1, sizeof *g);
    if (g) g->deadline = evtimer_new(s->base, on_deadline, g);
    if (!g || !g->deadline) {
        free(g);
        front_admin_fail(a, KVF_ERR_NO_MEMORY, NULL, "query");
        return;
    }
    g->shell = s;
    g->call = a;
    g->kind = kind;
    g->blocks_max = filter ? filter->limit : 0;
    g->next = s->gathers;
    g->link = &s->gathers;
    if (g->next) g->next->link = &g->next;
    s->gathers = g;
    kvf_status status = KVF_OK;
    for (uint32_t i = 0; i < s->config.nodes_max; i++) {
        kvf_router_node seen;
        if ((only != NO_SLOT && i != only) || !kvf_router_node_at(s->core, kvf_os_now_ns(), i, &seen)) continue;
        gather_node *n = &g->nodes[g->count++];
        n->node = i;
        snprintf(n->id, sizeof n->id, "%s", seen.id);
        kvf_status one = seen.session || only != NO_SLOT ? ask(g, n, filter) : KVF_ERR_PEER_LOST;
        n->asked = one == KVF_OK;
        if (n->asked) g->waiting++;
        if (only != NO_SLOT) status = one;
    }
    if (status != KVF_OK) {
        front_admin_fail(a, status, "node_id", "the node cannot be asked");
        g->call = NULL;
        gather_free(g);
    } else if (g->waiting == 0) {
        finish(g);
    } else {
        struct timeval tv = {.tv_sec = (time_t)(s->options.node_answer_ns / KVF_NS_PER_S),
            .tv_usec = (suseconds_t)(s->options.node_answer_ns % KVF_NS_PER_S / 1000)};
        front_timer_set(g->deadline, &tv);
    }
}

void front_query_audit(admin_call *a) { gather_start(a, GATHER_AUDIT, NO_SLOT, NULL); }

void front_query_flush(admin_call *a) {
    const Kvferry__V1__FlushCacheRequest *request = (const void *)a->message;
    uint32_t node = NO_SLOT;
    if (request->node_id.len && !front_cluster_find(a, request->node_id, &node)) return;
    gather_start(a, GATHER_FLUSH, node, NULL);
}

void front_query_blocks(admin_call *a) {
    const Kvferry__V1__GetBlocksRequest *request = (const void *)a->message;
    block_filter filter = {.limit = request->limit ? KVF_MIN(request->limit, (uint32_t)BLOCKS_MAX) : BLOCKS_DEFAULT};
    uint32_t node = NO_SLOT;
    if (request->request_id.len &&
        !kvf_request_id_parse((const char *)request->request_id.data, request->request_id.len, &filter.request)) {
        front_admin_fail(a, KVF_ERR_INVALID, "request_id", "request_id is 16 hex digits, a dash and a number");
        return;
    }
    if (request->prefix_hash.len &&
        !kvf_hash_parse((const char *)request->prefix_hash.data, request->prefix_hash.len, &filter.name)) {
        front_admin_fail(a, KVF_ERR_INVALID, "prefix_hash", "prefix_hash is 32 hex digits");
        return;
    }
    if (request->node_id.len && !front_cluster_find(a, request->node_id, &node)) return;
    gather_start(a, GATHER_BLOCKS, node, &filter);
}

/* ---- what comes back ---- */

static void take_blocks(gather *g, uint32_t index, const kvf_nmsg *m) {
    uint32_t room = g->blocks_max - g->blocks_count, count = KVF_MIN(m->blocks.count, room);
    g->truncated |= m->blocks.truncated || count < m->blocks.count;
    gather_block *grown = count ? realloc(g->blocks, sizeof *grown * (g->blocks_count + count)) : NULL;
    if (!grown) return;
    g->blocks = grown;
    for (uint32_t i = 0; i < count; i++)
        g->blocks[g->blocks_count++] = (gather_block){.node = index, .report = m->blocks.blocks[i]};
}

static void take(gather *g, uint32_t index, const kvf_router_action *a) {
    gather_node *n = &g->nodes[index];
    const kvf_nmsg *m = a->answer.msg;
    switch (g->kind) {
    case GATHER_AUDIT:
        n->clean = m->audit.clean;
        n->at_rest = m->audit.at_rest;
        n->stats = m->audit.stats;
        n->stats.rejected = NULL; /* was borrowed, as links were */
        n->stats.links = NULL;
        n->stats.rejected_count = n->stats.links_count = 0;
        g->blocks_checked += m->audit.blocks_checked;
        snprintf(n->invariant, sizeof n->invariant, "%s", m->audit.invariant);
        snprintf(n->detail, sizeof n->detail, "%s", m->audit.detail);
        if (a->answer.directory_compared) {
            n->missing = a->answer.directory_missing;
            n->extra = a->answer.directory_extra;
        }
        break;
    case GATHER_BLOCKS: take_blocks(g, index, m); break;
    case GATHER_FLUSH: g->blocks_freed += m->flushed.blocks_freed; break;
    }
    n->answered = true;
    n->query = 0;
    if (--g->waiting == 0) finish(g);
}

void front_query_answer(kvf_router_shell *s, const kvf_router_action *a) {
    for (gather *g = s->gathers; g; g = g->next)
        for (uint32_t i = 0; i < g->count; i++)
            if (g->nodes[i].asked && g->nodes[i].query == a->answer.query) {
                take(g, i, a);
                return;
            }
}

void front_query_stop(kvf_router_shell *s) {
    while (s->gathers) finish(s->gathers);
}
