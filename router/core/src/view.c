/* What operators see. */
#include "router_int.h"
#include <stdio.h>

bool kvf_router_node_at(const kvf_router *r, kvf_time_ns now, uint32_t node, kvf_router_node *out) {
    if (node >= r->config.nodes_max || !r->nodes[node].used) return false;
    const rt_node *n = &r->nodes[node];
    *out = (kvf_router_node){.used = true,
        .role = rt_node_role(n),
        .state = n->lost    ? KVF_NODE_LOST
                 : n->known ? n->stats.state
                            : KVF_NODE_STARTING,
        .session = n->up && n->welcomed,
        .ready = rt_node_ready(r, n),
        .info = n->known ? &n->info : NULL,
        .stats = n->stats,
        .silent_ns = n->known && now > n->heard_ns ? now - n->heard_ns : 0,
        .legs = n->reserving + n->queued + n->decoding + n->prefilling,
        .directory_blocks = r->directory.held[node]};
    memcpy(out->id, n->id, sizeof out->id);
    memcpy(out->refused, n->refused, sizeof out->refused);
    return true;
}

bool kvf_router_pair_at(
    const kvf_router *r, kvf_time_ns now, uint32_t prefill_node, uint32_t decode_node, kvf_router_pair *out) {
    if (prefill_node >= r->config.nodes_max || decode_node >= r->config.nodes_max || prefill_node == decode_node)
        return false;
    const rt_node *p = &r->nodes[prefill_node], *d = &r->nodes[decode_node];
    if (!p->used || !d->used || !p->known || !d->known) return false;
    if (rt_node_role(p) != KVF_ROLE_PREFILL || rt_node_role(d) != KVF_ROLE_DECODE) return false;
    const rt_pair *pair = rt_pair_of(r, prefill_node, decode_node);
    *out = (kvf_router_pair){.prefill_node = prefill_node,
        .decode_node = decode_node,
        .pages = pair->pages,
        .bytes = pair->bytes,
        .frames_rejected = pair->rejected_before + pair->rejected_now,
        .failures = pair->failures,
        .why = pair->failures && pair->why ? pair->why : "",
        .ejected = pair->failures && pair->until_ns > now};
    memcpy(out->transport, pair->transport, sizeof out->transport);
    char a[64], b[64];
    const char *field = NULL;
    if (pair->refused && !(pair->numerics_only && r->config.allow_other_numerics))
        field = kvf_identity_differs(&p->info.identity, &d->info.identity, a, b);
    if (field)
        snprintf(out->refused, sizeof out->refused, "%.20s differs: %.24s has %.63s, %.24s has %.63s", field, p->id, a,
            d->id, b);
    return true;
}

void kvf_router_count(const kvf_router *r, kvf_router_counters *out) {
    *out = r->counters;
    out->directory_entries = r->directory.count;
    out->directory_dropped = r->directory.dropped;
}

uint32_t kvf_router_ready_nodes(const kvf_router *r, kvf_role role) {
    return (uint32_t)__builtin_popcountll(rt_nodes_ready(r, role));
}

/* ---- invariants ---- */

typedef struct {
    uint32_t reserving, queued, decoding, prefilling;
    uint64_t prefill_load;
} rt_tally;

static void tally_leg(const kvf_router *r, const rt_seq *s, rt_tally *tally, uint32_t *waiting) {
    const rt_leg *l = &s->l;
    const rt_request *q = rt_request_at(r, s);
    KVF_ASSERT(!q->closed && q->used);
    KVF_ASSERT(l->left == RT_LEG_NONE);
    KVF_ASSERT((l->state == RT_LEG_WAITING) == rt_heap_has(&r->queue, rt_seq_index(r, s)));
    KVF_ASSERT((l->decode == RT_NONE) == (l->state == RT_LEG_WAITING || l->state == RT_LEG_HELD));
    KVF_ASSERT(l->prefill == RT_NONE || l->state == RT_LEG_PREFILLING || l->state == RT_LEG_DECODING);
    KVF_ASSERT(l->state != RT_LEG_PREFILLING || l->prefill != RT_NONE);
    bool timed = l->state == RT_LEG_HELD || l->state == RT_LEG_GRANTED;
    KVF_ASSERT((timed || l->unverified || l->stall_ns) == rt_heap_has(&r->timers, rt_seq_index(r, s)));
    if (l->counted_waiting) *waiting += l->n;
    if (l->state == RT_LEG_RESERVING) tally[l->decode].reserving++;
    if (l->state == RT_LEG_QUEUED) tally[l->decode].queued++;
    if (l->state == RT_LEG_GRANTED || l->state == RT_LEG_PREFILLING || l->state == RT_LEG_DECODING)
        tally[l->decode].decoding++;
    if (l->prefill == RT_NONE) return;
    tally[l->prefill].prefilling++;
    tally[l->prefill].prefill_load += l->prefill_load;
}

static void check_request(const kvf_router *r, const rt_request *q) {
    uint32_t open = 0, choices = 0;
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next) {
        const rt_seq *s = &r->seqs[i];
        KVF_ASSERT(s->request == (uint32_t)(q - r->requests) && s->choice == choices);
        KVF_ASSERT(s->output_count <= q->output_max);
        choices++;
        if (q->closed) {
            KVF_ASSERT(s->l.state == RT_LEG_NONE);
            continue;
        }
        if (s->ended) continue;
        open++;
        KVF_ASSERT(s->leg != RT_NONE && r->seqs[s->leg].l.state != RT_LEG_NONE);
    }
    KVF_ASSERT(choices == q->n);
    KVF_ASSERT(q->closed || open == q->open_choices);
    KVF_ASSERT(!q->closed || q->in_events);
}

void rt_check(const kvf_router *r) {
    rt_tally tally[KVF_ROUTER_NODES_MAX] = {0};
    uint32_t waiting = 0, live = 0;
    for (uint32_t i = 0; i < r->fresh_seqs; i++)
        if (r->seqs[i].request != RT_NONE && r->seqs[i].l.state != RT_LEG_NONE)
            tally_leg(r, &r->seqs[i], tally, &waiting);
    for (uint32_t i = 0; i < r->fresh_requests; i++)
        if (r->requests[i].used) {
            live++;
            check_request(r, &r->requests[i]);
        }
    KVF_ASSERT(waiting == r->counters.waiting && live == r->counters.live);
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        const rt_node *n = &r->nodes[i];
        KVF_ASSERT(n->reserving == tally[i].reserving && n->queued == tally[i].queued);
        KVF_ASSERT(n->decoding == tally[i].decoding && n->prefilling == tally[i].prefilling);
        KVF_ASSERT(n->prefill_load == tally[i].prefill_load);
    }
}
