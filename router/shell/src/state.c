/* The cluster as the admin API shows it. */
#include "cluster.h"
#include "kvf/proto.h"
#include <stdio.h>
#include <stdlib.h>

enum { N = KVF_ROUTER_NODES_MAX, PAIRS_MAX = 1024 };

typedef struct {
    Kvferry__V1__ClusterState state; /* first: callers free it */
    Kvferry__V1__NodeStatus nodes[N + 1], *node_list[N + 1];
    Kvferry__V1__BlockCounts blocks[N + 1];
    kvf_router_node seen[N];
    Kvferry__V1__PairStatus pairs[PAIRS_MAX], *pair_list[PAIRS_MAX];
    char refused[PAIRS_MAX][KVF_TEXT_MAX], transport[PAIRS_MAX][KVF_TRANSPORT_MAX];
} whole_state;

static double per_second(uint64_t tokens, uint64_t busy_ns) {
    return busy_ns ? (double)tokens * (double)KVF_NS_PER_S / (double)busy_ns : 0;
}

void front_cluster_node_status(
    const kvf_router_node *n, const char *address, Kvferry__V1__NodeStatus *out, Kvferry__V1__BlockCounts *blocks) {
    const kvf_node_stats *s = &n->stats;
    kvferry__v1__node_status__init(out);
    kvferry__v1__block_counts__init(blocks);
    *blocks = (Kvferry__V1__BlockCounts){.base = blocks->base,
        .total = s->blocks_total,
        .free = s->blocks_free,
        .filling = s->blocks_filling,
        .sealed = s->blocks_sealed,
        .pinned = s->blocks_pinned,
        .in_use = s->blocks_in_use,
        .booked = s->blocks_booked};
    out->id = kvf_proto_text(n->id);
    out->role = (Kvferry__V1__Role)n->role;
    out->state = n->state == 0 ? KVFERRY__V1__NODE_STATE__NODE_STATE_LOST : (Kvferry__V1__NodeState)n->state;
    out->epoch = n->info ? n->info->epoch : 0;
    out->address = kvf_proto_text(address);
    out->backend = kvf_proto_text(n->info ? n->info->backend : "");
    out->running = s->running;
    out->waiting = s->waiting;
    out->waiting_tokens = s->waiting_tokens;
    out->blocks = blocks;
    out->waste_ratio = (float)s->waste_ppm / 1e6f;
    out->prefill_tokens_per_s = per_second(s->prefill_tokens, s->prefill_busy_ns);
    out->decode_tokens_per_s = per_second(s->decode_tokens, s->decode_busy_ns);
    out->silent_ms = n->silent_ns / KVF_NS_PER_MS;
}

static bool in_device_memory(const kvf_router_node *n) { return strncmp(n->info->backend, "cuda", 4) == 0; }

/* By which of its transports a pair talks, as the node that sends has told. Before there is a link: shared memory where
 * both ends can reach the same, else the network; of pages in device memory only the link tells. */
static const char *transport_of(
    const kvf_router_pair *pair, const kvf_router_node *prefill, const kvf_router_node *decode) {
    if (pair->transport[0]) return pair->transport;
    if (!prefill->info || !decode->info || in_device_memory(prefill) || in_device_memory(decode)) return "";
    bool local = prefill->info->host_id == decode->info->host_id && decode->info->local_address[0];
    if (local) return "shm";
    return strncmp(decode->info->address, "tls:", 4) == 0 ? "tls" : "tcp";
}

static void add_router(kvf_router_shell *s, whole_state *w, const kvf_router_counters *c) {
    size_t at = w->state.n_nodes++;
    Kvferry__V1__NodeStatus *m = &w->nodes[at];
    kvferry__v1__node_status__init(m);
    m->id = kvf_proto_text(s->name);
    m->role = KVFERRY__V1__ROLE__ROLE_ROUTER;
    m->state = s->draining                ? KVFERRY__V1__NODE_STATE__NODE_STATE_DRAINING
               : atomic_load(&s->serving) ? KVFERRY__V1__NODE_STATE__NODE_STATE_READY
                                          : KVFERRY__V1__NODE_STATE__NODE_STATE_STARTING;
    m->epoch = s->config.epoch;
    m->address = kvf_proto_text(kvf_router_shell_address(s));
    m->running = c->live;
    m->waiting = c->waiting;
    m->waiting_tokens = c->waiting_tokens;
    w->node_list[at] = m;
}

static void add_pairs(kvf_router_shell *s, whole_state *w, kvf_time_ns now) {
    for (uint32_t p = 0; p < s->config.nodes_max; p++) {
        for (uint32_t d = 0; d < s->config.nodes_max; d++) {
            kvf_router_pair pair;
            size_t at = w->state.n_pairs;
            if (p == d || at == PAIRS_MAX || !kvf_router_pair_at(s->core, now, p, d, &pair)) continue;
            Kvferry__V1__PairStatus *m = &w->pairs[at];
            kvferry__v1__pair_status__init(m);
            m->prefill_node = kvf_proto_text(w->seen[p].id);
            m->decode_node = kvf_proto_text(w->seen[d].id);
            snprintf(w->transport[at], KVF_TRANSPORT_MAX, "%s", transport_of(&pair, &w->seen[p], &w->seen[d]));
            m->transport = kvf_proto_text(w->transport[at]);
            m->pages_moved = pair.pages;
            m->bytes_moved = pair.bytes;
            m->frames_rejected = pair.frames_rejected;
            snprintf(w->refused[at], KVF_TEXT_MAX, "%s", pair.refused[0] ? pair.refused : pair.ejected ? pair.why : "");
            m->refused = kvf_proto_text(w->refused[at]);
            w->pair_list[at] = m;
            w->state.n_pairs++;
        }
    }
}

Kvferry__V1__ClusterState *front_cluster_state(kvf_router_shell *s) {
    whole_state *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    kvf_time_ns now = kvf_os_now_ns();
    kvf_router_counters counters;
    kvf_router_count(s->core, &counters);
    kvferry__v1__cluster_state__init(&w->state);
    w->state.nodes = w->node_list;
    w->state.pairs = w->pair_list;
    for (uint32_t i = 0; i < s->config.nodes_max; i++) {
        if (!kvf_router_node_at(s->core, now, i, &w->seen[i])) continue;
        size_t at = w->state.n_nodes++;
        front_cluster_node_status(&w->seen[i], s->links[i].address, &w->nodes[at], &w->blocks[at]);
        w->node_list[at] = &w->nodes[at];
    }
    add_router(s, w, &counters);
    add_pairs(s, w, now);
    w->state.queued = counters.waiting;
    w->state.requests_finished = counters.finished;
    w->state.requests_failed = counters.failed;
    return &w->state;
}
