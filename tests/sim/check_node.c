/* What must be true of a node after each of its events.
 *
 * After every event of its process: the transfer core's and the node's own audits (I1-I3); every pin of a block has a
 * holder (a sequence or a grant) and every holder its pin; every use has an operation that is under way (landing, send,
 * step, copy) and every operation its use; a FILLING block has one filler (I2). The pool's own audit reads nothing but
 * the pool's records, so it runs whenever these differ from those of the last audit. A block that gets a name is
 * compared with the truth at once, and all named blocks again every 64 events and at the end (I4: a page never changes
 * after it has landed). When a hand-off is said to be committed, every page of its sequence is compared (I4). */
#include "kvcache_int.h"
#include "core_int.h"
#include "node_int.h"
#include "sim.h"

#define ALL_PAGES_EVERY 64
#define SALTS 3

static const char *name_of(const sim *s, uint32_t node) { return s->node[node].config.info.node; }

bool node_sends(const sim *s, uint32_t node) { return kvf_tx_active(s->node[node].core->tx) > 0; }

/* ------------------------------------------------------------------ who holds what */

typedef struct {
    uint32_t pins[SIM_BLOCKS_MAX], uses[SIM_BLOCKS_MAX];
} tally;

static void count_holders(const kvf_node *core, const sim_node *n, tally *t) {
    memcpy(t->uses, n->uses, sizeof t->uses);
    for (uint32_t i = 0; i < core->config.sequences_max; i++) {
        const node_seq *q = &core->seqs[i];
        if (q->state == SEQ_FREE) continue;
        for (uint32_t b = 0; b < q->blocks_count; b++) t->pins[q->physical[b]]++;
    }
    for (uint32_t i = 0; i < core->rx->config.grants_max; i++) {
        const rx_grant *g = &core->rx->grants[i];
        if (g->state == RX_FREE) continue;
        for (uint32_t e = 0; e < g->entries_count; e++)
            if (g->entries[e].block.index != KVF_KV_NO_BLOCK) t->pins[g->entries[e].block.index]++;
    }
    for (uint32_t i = core->step_running ? core->step_copies : 0; i < core->copies_count; i++) {
        t->uses[core->copy_blocks[2 * i].index]++;
        t->uses[core->copy_blocks[2 * i + 1].index]++;
    }
}

static void check_holders(sim *s, uint32_t node) {
    const kvf_node *core = s->node[node].core;
    tally t = {0};
    count_holders(core, &s->node[node], &t);
    for (uint32_t i = 0; i < core->config.blocks; i++) {
        const kv_block *b = &core->kv->blocks[i];
        if (b->pins != t.pins[i])
            sim_fail(s, "I6: node %s block %u.%u has %u pins, %u holders", name_of(s, node), i, b->generation, b->pins,
                t.pins[i]);
        if (b->uses != t.uses[i])
            sim_fail(s, "I3: node %s block %u.%u has %u uses, %u operations are under way", name_of(s, node), i,
                b->generation, b->uses, t.uses[i]);
        if (b->state == KVF_BLOCK_FREE && s->node[node].generation[i] == b->generation)
            sim_fail(
                s, "I3: node %s block %u.%u is freed and keeps its generation", name_of(s, node), i, b->generation);
        s->node[node].generation[i] = b->state == KVF_BLOCK_FREE ? 0 : b->generation;
        if (b->state == KVF_BLOCK_FILLING && t.pins[i] > 1)
            sim_fail(s, "I2: node %s block %u.%u is filled by %u", name_of(s, node), i, b->generation, t.pins[i]);
    }
}

/* ------------------------------------------------------------------ grants */

static bool router_is_there(const kvf_node *core, uint64_t grant) {
    for (uint32_t i = 0; i < core->config.requests_max; i++) {
        const node_req *r = &core->reqs[i];
        if (r->state == REQ_GRANTED && r->grant == grant) return core->sessions[r->session].up;
    }
    return false;
}

/* A grant goes from link to link in the order in which its sender chose them, and one that nobody has opened yet lasts
 * as long as its router is there. */
static void check_grants(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    const kvf_node *core = n->core;
    KVF_ASSERT(core->rx->config.grants_max <= SIM_GRANTS_MAX);
    for (uint32_t i = 0; i < core->rx->config.grants_max; i++) {
        const rx_grant *g = &core->rx->grants[i];
        sim_grant *seen = &n->grant[i];
        bool same = rx_live(g) && g->id == seen->id;
        if (same && g->turn < seen->turn)
            sim_fail(s, "node %s: grant %llx goes back to a link that its sender has left", name_of(s, node),
                (unsigned long long)g->id);
        kvf_status reason;
        if (seen->unopened && !same && kvf_rx_buried(core->rx, seen->id, &reason) && reason == KVF_ERR_DEADLINE)
            sim_fail(s, "node %s: grant %llx expires while its router is there", name_of(s, node),
                (unsigned long long)seen->id);
        *seen = rx_live(g) ? (sim_grant){g->id, g->turn, g->state == RX_OFFERED && router_is_there(core, g->id)}
                           : (sim_grant){0};
    }
}

/* A digest covers what one attempt has sent. Pages that the next one keeps have had their own checksums only, so an
 * altered one is put right when its attempt ends without a commit. */
static void end_altered(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    sim_altered *a = &n->altered;
    kvf_status reason = KVF_ERR_GONE;
    if (a->grant == 0 || kvf_rx_find_grant(n->core->rx, a->grant)) return;
    bool committed = kvf_rx_buried(n->core->rx, a->grant, &reason) && reason == KVF_OK;
    uint32_t index = a->block.index;
    if (!committed && index != KVF_KV_NO_BLOCK && n->core->kv->blocks[index].generation == a->block.generation)
        n->pages[index].slot[a->layer][a->slot] ^= a->flipped;
    a->grant = 0;
}

/* ------------------------------------------------------------------ pages against the truth */

static uint64_t root_value(const sim *s, uint32_t node, kvf_hash128 root) {
    static kvf_hash128 roots[SALTS]; /* all nodes of all runs have one identity */
    if (roots[0].lo == 0)
        for (uint64_t salt = 0; salt < SALTS; salt++) {
            const kvf_identity *id = &s->node[node].config.info.identity;
            uint8_t bytes[16] = {0};
            kvf_put_le64(bytes, salt);
            roots[salt] = kvf_kv_root((kvf_span){id->weights_hash, sizeof id->weights_hash},
                (kvf_span){id->numerics, strlen(id->numerics)}, (kvf_span){bytes, salt ? sizeof bytes : 0});
        }
    for (uint64_t salt = 0; salt < SALTS; salt++)
        if (kvf_hash128_equal(roots[salt], root)) return sim_root(salt);
    sim_fail(s, "node %s has a block under an unknown root", name_of(s, node));
}

static uint64_t value_before(const sim *s, uint32_t node, const kvf_kv *kv, const kv_block *b, uint32_t depth) {
    if (depth > PLAN_CONTEXT) sim_fail(s, "node %s: blocks are their own ancestors", name_of(s, node));
    if (b->parent == KVF_KV_NO_BLOCK) return root_value(s, node, b->root);
    const kv_block *up = &kv->blocks[b->parent];
    uint64_t chain = value_before(s, node, kv, up, depth + 1);
    for (uint32_t i = 0; i < KVF_KV_BLOCK_TOKENS; i++) chain = sim_chain(chain, up->tokens[i]);
    return chain;
}

static void check_named(sim *s, uint32_t node, uint32_t index) {
    const kvf_kv *kv = s->node[node].core->kv;
    const kv_block *b = &kv->blocks[index];
    uint64_t chain = value_before(s, node, kv, b, 0);
    for (uint32_t i = 0; i < KVF_KV_BLOCK_TOKENS; i++) {
        chain = sim_chain(chain, b->tokens[i]);
        for (uint32_t l = 0; l < SIM_LAYERS; l++)
            if (s->node[node].pages[index].slot[l][i] != sim_kept(chain, l))
                sim_fail(s, "I4: node %s block %u.%u layer %u position %u is not what its name says", name_of(s, node),
                    index, b->generation, l, i);
    }
    s->count.checked_pages += SIM_LAYERS;
}

void check_node_pages(sim *s, uint32_t node) {
    const kvf_kv *kv = s->node[node].core->kv;
    for (uint32_t i = 0; i < kv->counts.total; i++)
        if (kv->blocks[i].indexed) check_named(s, node, i);
}

static void check_new_names(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    const kvf_kv *kv = n->core->kv;
    for (uint32_t i = 0; i < kv->counts.total; i++) {
        const kv_block *b = &kv->blocks[i];
        if (!b->indexed || n->verified[i] == b->generation) continue;
        check_named(s, node, i);
        n->verified[i] = b->generation;
    }
}

void check_started(sim *s, uint32_t node, kvf_request_id id) {
    const sim_node *n = &s->node[node];
    const node_req *r = node_find(n->core, id, LEG_RESERVE);
    if (!r) return; /* over already */
    const node_seq *q = &n->core->seqs[r->seq[0]];
    uint64_t salt;
    memcpy(&salt, r->sampling, sizeof salt);
    uint64_t chain = sim_root(salt);
    uint32_t count = KVF_MIN(q->computed, q->blocks_count * KVF_KV_BLOCK_TOKENS);
    for (uint32_t p = 0; p < count; p++) {
        chain = sim_chain(chain, q->tokens[p]);
        for (uint32_t l = 0; l < SIM_LAYERS; l++)
            if (n->pages[q->physical[p / KVF_KV_BLOCK_TOKENS]].slot[l][p % KVF_KV_BLOCK_TOKENS] != sim_kept(chain, l))
                sim_fail(s, "I4: node %s starts from a wrong page: position %u layer %u", name_of(s, node), p, l);
    }
    s->count.checked_positions += count;
}

/* ------------------------------------------------------------------ all of it */

static bool pool_changed(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    const kvf_kv *kv = n->core->kv;
    uint64_t hash = kvf_hash64_of(kv->blocks, sizeof *kv->blocks * kv->counts.total, 1);
    hash ^=
        kvf_hash64_of(kv, sizeof *kv, 2) ^ kvf_hash64_of(kv->buckets, sizeof *kv->buckets * (kv->bucket_mask + 1), 3);
    bool changed = hash != n->pool_hash;
    n->pool_hash = hash;
    return changed;
}

void check_node(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    kvf_error err;
    bool changed = pool_changed(s, node);
    kvf_status status = changed ? kvf_node_audit(n->core, &err) : KVF_OK;
    if (!changed) status = kvf_rx_audit(n->core->rx, &err);
    if (!changed && status == KVF_OK) status = kvf_tx_audit(n->core->tx, &err);
    if (status != KVF_OK) sim_fail(s, "node %s: %s", name_of(s, node), err.message);
    check_holders(s, node);
    check_grants(s, node);
    end_altered(s, node);
    if (changed) check_new_names(s, node);
    if (++n->checks % ALL_PAGES_EVERY == 0) check_node_pages(s, node);
    s->count.audits++;
}

void check_node_at_rest(sim *s, uint32_t node) {
    kvf_kv_counts kv;
    kvf_rx_counts rx;
    sim_node *n = &s->node[node];
    kvf_node_get_counts(n->core, &kv, &rx);
    if (kv.pinned || kv.in_use || kv.booked || kv.free + kv.evictable != kv.total)
        sim_fail(s, "I6: node %s at the end: %u pinned, %u in use, %u booked, %u free + %u cached of %u",
            name_of(s, node), kv.pinned, kv.in_use, kv.booked, kv.free, kv.evictable, kv.total);
    if (!kvf_node_idle(n->core)) sim_fail(s, "node %s at the end is not idle", name_of(s, node));
    check_node_pages(s, node);
}

void check_flushed(sim *s, uint32_t node) {
    if (s->node[node].core->kv->indexed) sim_fail(s, "node %s keeps names after a flush", name_of(s, node));
}

void check_forgotten(sim *s, uint32_t router) {
    uint64_t epoch = s->router[router].epoch;
    for (uint32_t i = 0; i < s->sessions; i++) {
        const sim_session *c = &s->session[i];
        if (c->router == router && (!c->node_down || s->now - c->node_down_at < SIM_ROUTER_GRACE_NS * 11 / 10)) return;
    }
    for (uint32_t node = 0; node < SIM_NODES; node++) {
        if (!s->process[node].alive || s->process[node].frozen) continue;
        const kvf_node *core = s->node[node].core;
        for (uint32_t i = 0; i < core->config.requests_max; i++)
            if (core->reqs[i].state != REQ_FREE && !core->reqs[i].ending && core->reqs[i].id.router_epoch == epoch)
                sim_fail(s, "node %s holds a request of r%u, which has been dead for longer than the grace",
                    name_of(s, node), router);
    }
}

/* ------------------------------------------------------------------ a session that comes back */

static bool runs_for(const node_req *r, uint64_t epoch) {
    return r->leg == LEG_RESERVE && (r->state == REQ_COMPUTE || r->state == REQ_DECODE) && !r->ending &&
           r->id.router_epoch == epoch;
}

void check_before_hello(sim *s, uint32_t node, uint32_t router) {
    const kvf_node *core = s->node[node].core;
    s->followed = 0;
    KVF_ASSERT(core->config.requests_max <= 64);
    for (uint32_t i = 0; i < core->config.requests_max; i++) {
        const node_req *r = &core->reqs[i];
        if (runs_for(r, s->router[router].epoch) && router_follows(s, router, place_of(node), r->id, r->attempt))
            s->followed |= 1ull << i;
    }
}

void check_after_hello(sim *s, uint32_t node, uint32_t router) {
    const kvf_node *core = s->node[node].core;
    for (uint32_t i = 0; i < core->config.requests_max; i++)
        if ((s->followed >> i & 1) && !runs_for(&core->reqs[i], s->router[router].epoch))
            sim_fail(s, "node %s gives up request %llu.%u at a Hello, though r%u follows it", name_of(s, node),
                (unsigned long long)core->reqs[i].id.counter, core->reqs[i].attempt, router);
}

void count_deaths(sim *s, uint32_t node, bool failed) {
    const kvf_node *core = s->node[node].core;
    uint64_t told = 0;
    if (!s->process[node].alive || !core->step_running) return;
    for (uint32_t i = 0; i < core->runs_count; i++) {
        const node_seq *q = &core->seqs[core->run_seq[i]];
        for (uint32_t r = 0; r < s->plan->world.routers; r++) {
            kvf_request_id id;
            uint64_t client;
            if (!s->process[router_process(r)].alive) continue;
            if (!kvf_router_request_of(s->router[r].core, core->reqs[q->req].id, &id, &client)) continue;
            sim_request *hit = &s->request[client];
            if (!(told >> client & 1) && failed) hit->engine_failures += hit->fresh;
            if (!(told >> client & 1) && !failed) hit->deaths++;
            told |= 1ull << client;
        }
    }
}
