/* Links between nodes: frames in order, pages read half when their sending begins and half when it ends, landing half
 * and half, so that memory which is given away too early shows. */
#include "sim.h"
#include <stdlib.h>

#define REPEAT_LATER_US 30000

bool link_blocked(const sim *s, const sim_link *l) {
    return s->link_blocked[place_of(l->end[0])][place_of(l->end[1])] > s->now;
}

static uint32_t side_of(const sim_link *l, uint32_t node) { return l->end[0] == node ? 0 : 1; }

static bool draws(sim *s, uint32_t index, uint32_t percent) {
    return sim_draw(s, 100000 + index, &s->link[index].drawn, 100) < percent;
}

static kvf_time_ns latency(sim *s, uint32_t index, uint64_t most_us) {
    static const uint8_t regimes[8] = {1, 1, 1, 1, 2, 4, 8, 20};
    sim_link *l = &s->link[index];
    uint64_t times = regimes[kvf_rng_at(s->plan->world.seed, 50000 + index, s->now / (4 * SIM_MS)) % 8];
    uint64_t lag = 1;
    for (uint32_t side = 0; side < 2; side++)
        if (s->node[l->end[side]].lag_until > s->now) lag = KVF_MAX(lag, s->node[l->end[side]].lag);
    times *= lag;
    return us(1 + sim_draw(s, 100000 + index, &l->drawn, most_us * times));
}

/* Of a landing copy: mostly short, now and then long. */
static kvf_time_ns copy_time(sim *s, uint32_t index) {
    sim_link *l = &s->link[index];
    return us(1 + sim_draw(s, 100000 + index, &l->drawn, draws(s, index, 10) ? 2000 : 30));
}

/* ------------------------------------------------------------------ up and down */

/* known: both ends find out by themselves, however the network is. */
void link_cut(sim *s, uint32_t index, bool known) {
    sim_link *l = &s->link[index];
    if (l->cut) return;
    l->cut = true;
    for (uint32_t i = 0; i < 2; i++) l->loses[i] = sim_draw(s, 100000 + index, &l->drawn, 2) == 0;
    TRACE(s, "link %u %s - %s is cut", index, s->node[l->end[0]].config.info.node, s->node[l->end[1]].config.info.node);
    for (uint32_t side = 0; side < 2; side++) {
        /* One end may learn of it long after the other. */
        uint64_t most_us = draws(s, index, 20) ? 30000 : 2000;
        kvf_time_ns at = s->now + us(1 + sim_draw(s, 100000 + index, &l->drawn, most_us));
        event *e = sim_push(s, at, EV_LINK_DOWN, l->end[side], index);
        e->incarnation = l->incarnation[side];
        e->arrived = known;
    }
}

void link_cut_of(sim *s, uint32_t node, bool known) {
    for (uint32_t i = 0; i < s->links; i++)
        if (s->link[i].end[0] == node || s->link[i].end[1] == node) link_cut(s, i, known);
}

static uint32_t find_peer(const sim *s, const char *name, uint64_t epoch) {
    for (uint32_t i = 0; i < SIM_NODES; i++) {
        const sim_node *n = &s->node[i];
        if (n->core && s->process[i].alive && n->config.info.epoch == epoch && strcmp(n->config.info.node, name) == 0)
            return i;
    }
    return SIM_NONE;
}

static uint32_t link_new(sim *s, uint32_t from, uint32_t to) {
    if (s->links == s->links_max) {
        s->links_max = s->links_max ? 2 * s->links_max : 64;
        s->link = realloc(s->link, sizeof *s->link * s->links_max);
        KVF_ASSERT(s->link);
    }
    sim_link *l = &s->link[s->links];
    *l = (sim_link){.end = {from, to}};
    for (uint32_t side = 0; side < 2; side++) l->incarnation[side] = s->process[l->end[side]].incarnation;
    return s->links++;
}

void link_call(sim *s, uint32_t node, const kvf_node_act *a) {
    uint32_t peer = find_peer(s, a->connect.peer, a->connect.peer_epoch);
    uint32_t index = link_new(s, node, peer == SIM_NONE ? node : peer);
    sim_link *l = &s->link[index];
    kvf_node_on_calling(s->node[node].core, a->connect.peer, a->connect.peer_epoch, index);
    bool reached =
        peer != SIM_NONE && s->place_node[place_of(peer)] == peer && !s->process[peer].frozen && !link_blocked(s, l);
    kvf_time_ns at = s->now + us(30) + latency(s, index, 500);
    if (!reached) {
        l->cut = l->down[1] = true;
        sim_push(s, peer == SIM_NONE ? at : at + us(30000), EV_LINK_DOWN, node, index);
        return;
    }
    sim_push(s, at, EV_LINK_UP, node, index);
    sim_push(s, at - 1, EV_LINK_UP, peer, index);
    l->last[0] = l->last[1] = at;
}

void on_link(sim *s, const event *e) {
    sim_node *n = &s->node[e->who];
    sim_link *l = &s->link[e->index];
    uint32_t side = side_of(l, e->who);
    const kvf_node_info *peer = &s->node[l->end[1 - side]].config.info;
    if (l->down[side]) return;
    touch(s, e->who);
    kvf_time_ns now = sim_clock(s, e->who);
    if (e->kind == EV_LINK_UP) {
        uint8_t nonce[16] = {9};
        kvf_put_le32(nonce + 4, e->index);
        l->up[side] = true;
        kvf_node_on_link_up(n->core, now, e->index, peer->node, peer->epoch, nonce, side == 0);
        return;
    }
    l->down[side] = true;
    kvf_node_on_link_down(n->core, now, e->index, peer->node, KVF_ERR_PEER_LOST, "cut");
}

void on_heartbeat(sim *s, uint32_t node) {
    /* A heartbeat tells the receiver's grants apart from nothing else: without an open hand-off it is left out. */
    if (node_sends(s, node))
        for (uint32_t i = 0; i < s->links; i++)
            if (s->link[i].end[0] == node && s->link[i].incarnation[0] == s->process[node].incarnation &&
                s->link[i].up[0] && !s->link[i].down[0])
                link_send_frame(s, node, i, &(kvf_frame){.kind = KVF_FRAME_RENEW});
    sim_push(s, s->now + s->plan->world.lease_ms * SIM_MS / 4, EV_HEARTBEAT, node, 0);
}

/* ------------------------------------------------------------------ sending */

static event *arrival(sim *s, uint32_t index, uint32_t side, ev_kind kind, uint64_t most_us) {
    sim_link *l = &s->link[index];
    kvf_time_ns at = s->now + latency(s, index, most_us);
    if (at <= l->last[side]) at = l->last[side] + 1;
    l->last[side] = at;
    event *e = sim_push(s, at, kind, l->end[side], index);
    e->incarnation = l->incarnation[side];
    return e;
}

static event *again(sim *s, uint32_t index, uint32_t side, ev_kind kind) {
    sim_link *l = &s->link[index];
    kvf_time_ns at = l->last[side] + us(1 + sim_draw(s, 100000 + index, &l->drawn, REPEAT_LATER_US));
    event *e = sim_push(s, at, kind, l->end[side], index);
    e->incarnation = l->incarnation[side];
    return e;
}

static bool repeats(sim *s, uint32_t index, uint32_t node) {
    const sim_node *n = &s->node[node];
    if (s->healed || n->repeat_until <= s->now || !draws(s, index, n->repeat_percent)) return false;
    s->count.repeated++;
    return true;
}

/* A link of some other node into the same one, by which a stranger sends what it has overheard. */
static uint32_t strangers_link(sim *s, uint32_t index) {
    uint32_t node = s->link[index].end[1], sender = s->link[index].end[0];
    if (s->healed || s->node[node].forge_until <= s->now || !draws(s, index, s->node[node].forge_percent))
        return SIM_NONE;
    for (uint32_t k = 0; k < s->links; k++) {
        const sim_link *o = &s->link[k];
        if (k != index && o->end[1] == node && o->end[0] != sender && o->up[1] && !o->down[1] && !o->cut &&
            o->incarnation[1] == s->process[node].incarnation)
            return k;
    }
    uint32_t stranger = node;
    for (uint32_t i = 0; i < SIM_NODES; i++)
        if (i != node && i != sender && s->process[i].alive) stranger = i;
    if (stranger == node) return SIM_NONE;
    uint32_t k = link_new(s, stranger, node);
    s->link[k].last[0] = s->link[k].last[1] = s->now + 2;
    sim_push(s, s->now + 1, EV_LINK_UP, node, k);
    return k;
}

/* Before the true one, or long after it. */
static event *forged_arrival(sim *s, uint32_t index, ev_kind kind) {
    sim_link *l = &s->link[index];
    kvf_time_ns at =
        s->now + us(1 + sim_draw(s, 100000 + index, &l->drawn, draws(s, index, 60) ? 30 : REPEAT_LATER_US));
    event *e = sim_push(s, KVF_MAX(at, l->last[1] + 1), kind, l->end[1], index);
    s->count.forged++;
    return e;
}

static void forge_frame(sim *s, uint32_t index, const kvf_frame *f) {
    if (f->kind != KVF_FRAME_OPEN && f->kind != KVF_FRAME_COMMIT && f->kind != KVF_FRAME_CANCEL) return;
    uint32_t other = strangers_link(s, index);
    if (other != SIM_NONE) forged_arrival(s, other, EV_FRAME)->payload = sim_clone_frame(f);
}

bool link_has_room(void *self, kvf_link_id link) {
    const sim *s = self;
    return s->link[link].sending < 3;
}

static bool was_altered(const sim_node *n, uint64_t grant) {
    for (uint32_t i = 0; i < KVF_MIN(n->altered_count, KVF_COUNT_OF(n->altered_grants)); i++)
        if (n->altered_grants[i] == grant) return true;
    return false;
}

void link_send_frame(sim *s, uint32_t node, kvf_link_id link, const kvf_frame *f) {
    KVF_ASSERT(link < s->links);
    sim_link *l = &s->link[link];
    sim_note(s, ((uint64_t)f->kind << 48) ^ link);
    if (f->kind == KVF_FRAME_GONE && f->gone.reason == KVF_ERR_CORRUPT && !was_altered(&s->node[node], f->gone.grant))
        sim_fail(s, "node %s: commit and pages of grant %llx differ", s->node[node].config.info.node,
            (unsigned long long)f->gone.grant);
    fault_hook(s, TRIGGER_told, f->kind, node);
    if (l->cut) return; /* nobody has told us yet */
    uint32_t to = 1 - side_of(l, node);
    TRACE(s, "%s -> %s frame %d of link %u, grant %llx", s->node[node].config.info.node,
        s->node[l->end[to]].config.info.node, (int)f->kind, link,
        f->kind == KVF_FRAME_RENEW ? 0ull : (unsigned long long)f->opened.grant);
    arrival(s, link, to, EV_FRAME, 200)->payload = sim_clone_frame(f);
    if (repeats(s, link, l->end[1])) again(s, link, to, EV_FRAME)->payload = sim_clone_frame(f);
    if (to == 1) forge_frame(s, link, f);
}

static uint64_t *source(const sim *s, uint32_t node, const kvf_node_act *a) {
    return s->node[node].pages[a->page.block.index].slot[a->page.header.layer];
}

void link_send_page(sim *s, uint32_t node, const kvf_node_act *a) {
    sim_sending *p = malloc(sizeof *p);
    KVF_ASSERT(p);
    p->act = *a;
    memcpy(p->slot, source(s, node, a), sizeof p->slot / 2);
    s->node[node].uses[a->page.block.index]++;
    s->link[a->link].sending++;
    sim_push(s, s->now + us(1 + below(s, 40)), EV_SENT, node, a->link)->payload = p;
    fault_hook(s, TRIGGER_send, 0, node);
}

static sim_page *page_copy(const sim_page *page) {
    sim_page *copy = malloc(sizeof *copy);
    KVF_ASSERT(copy);
    *copy = *page;
    return copy;
}

static void deliver_page(sim *s, uint32_t index, const sim_page *page) {
    sim_link *l = &s->link[index];
    arrival(s, index, 1, EV_PAGE, 60)->payload = page_copy(page);
    s->count.pages_moved++;
    if (repeats(s, index, l->end[1])) again(s, index, 1, EV_PAGE)->payload = page_copy(page);
    uint32_t other = strangers_link(s, index), node = s->link[index].end[1];
    if (other == SIM_NONE) return;
    sim_page forged = *page; /* other bytes, and a CRC that fits them */
    for (uint32_t i = 0; i < KVF_KV_BLOCK_TOKENS; i++) forged.slot[i] = kvf_rng_mix(forged.slot[i] + 1);
    forged.header.crc = kvf_page_crc(&forged.header, s->node[node].config.info.epoch, forged.slot);
    forged_arrival(s, other, EV_PAGE)->payload = page_copy(&forged);
}

void on_sent(sim *s, event *e) {
    sim_sending *p = e->payload;
    sim_node *n = &s->node[e->who];
    sim_link *l = &s->link[e->index];
    sim_page page = {.header = p->act.page.header};
    uint32_t half = KVF_KV_BLOCK_TOKENS / 2;
    memcpy(page.slot, p->slot, sizeof page.slot / 2);
    memcpy(page.slot + half, source(s, e->who, &p->act) + half, sizeof page.slot / 2);
    page.header.crc = kvf_page_crc(&page.header, s->node[l->end[1]].config.info.epoch, page.slot);
    bool sent = !l->down[0];
    l->sending--;
    n->uses[p->act.page.block.index]--;
    if (sent && !l->cut) deliver_page(s, e->index, &page);
    touch(s, e->who);
    kvf_node_on_page_sent(n->core, sim_clock(s, e->who), p->act.page.token, sent, page.header.crc);
    fault_hook(s, TRIGGER_sent, 0, e->who);
}

/* ------------------------------------------------------------------ arrivals */

void on_frame(sim *s, const event *e) {
    sim_link *l = &s->link[e->index];
    const kvf_frame *f = e->payload;
    uint32_t side = side_of(l, e->who);
    if (l->down[side] || (l->cut && l->loses[side])) return;
    s->count.frames_late += l->cut;
    touch(s, e->who);
    kvf_node_on_frame(s->node[e->who].core, sim_clock(s, e->who), e->index, f);
    fault_hook(s, TRIGGER_frame, f->kind, e->who);
}

/* Other bytes under a checksum that fits them: nothing but the digest of the commit can tell. In the half that is
 * written at once. */
static bool alter(sim *s, uint32_t node, sim_page *p) {
    sim_node *n = &s->node[node];
    if (s->healed || !n->alter_next || n->altered.grant) return false;
    n->alter_next = false;
    n->altered = (sim_altered){.grant = p->header.grant,
        .block = KVF_BLOCK_NONE,
        .layer = p->header.layer,
        .slot = p->header.crc % (KVF_KV_BLOCK_TOKENS / 2),
        .flipped = 1ull << (p->header.crc >> 8) % 64};
    p->slot[n->altered.slot] ^= n->altered.flipped;
    p->header.crc = kvf_page_crc(&p->header, n->config.info.epoch, p->slot);
    n->altered_grants[n->altered_count++ % KVF_COUNT_OF(n->altered_grants)] = p->header.grant;
    s->count.pages_altered++;
    return true;
}

void on_page(sim *s, event *e) {
    sim_node *n = &s->node[e->who];
    sim_link *l = &s->link[e->index];
    sim_page *p = e->payload;
    if (l->down[1] || (l->cut && l->loses[1])) return;
    s->count.frames_late += l->cut;
    touch(s, e->who);
    bool altered = alter(s, e->who, p);
    kvf_page_verdict v = kvf_node_on_page(n->core, sim_clock(s, e->who), e->index, &p->header, &p->landing);
    sim_note(s, ((uint64_t)v << 32) ^ p->header.grant ^ p->header.crc);
    if (v == KVF_PAGE_ACCEPT) {
        if (!s->healed && n->corrupt_next > 0 && !altered) {
            n->corrupt_next--;
            s->count.pages_corrupted++;
            p->slot[p->header.crc % KVF_KV_BLOCK_TOKENS] ^= 1ull << (p->header.crc >> 8) % 64;
        } else if (!s->healed && n->torn_next > 0) {
            n->torn_next--;
            s->count.pages_torn++;
            p->torn = true;
        }
        if (altered) n->altered.block = p->landing.block;
        uint32_t block = p->landing.block.index;
        memcpy(n->pages[block].slot[p->landing.layer], p->slot, sizeof p->slot / 2);
        n->uses[block]++;
        event *landed = sim_push(s, s->now + copy_time(s, e->index), EV_LANDED, e->who, e->index);
        landed->payload = p;
        landed->arrived = true;
        e->payload = NULL;
    }
    fault_hook(s, TRIGGER_page, 0, e->who);
}

void on_landed(sim *s, const event *e) {
    sim_node *n = &s->node[e->who];
    sim_page *p = e->payload;
    uint64_t *target = n->pages[p->landing.block.index].slot[p->landing.layer];
    uint32_t half = KVF_KV_BLOCK_TOKENS / 2;
    if (p->torn) /* the ring was written on meanwhile */
        for (uint32_t i = half + p->header.crc % half; i < KVF_KV_BLOCK_TOKENS; i++)
            p->slot[i] = kvf_rng_mix(i + s->now);
    memcpy(target + half, p->slot + half, sizeof p->slot / 2);
    n->uses[p->landing.block.index]--;
    bool ok = kvf_page_crc(&p->header, n->config.info.epoch, target) == p->header.crc;
    touch(s, e->who);
    kvf_node_on_landed(n->core, sim_clock(s, e->who), &p->landing, ok);
    fault_hook(s, TRIGGER_landed, 0, e->who);
}
