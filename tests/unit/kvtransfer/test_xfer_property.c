/* The sending half against the receiving half over a wire that keeps what a connection promises (order, or nothing) and
 * spoils everything else: links are cut and replaced, each side learns of it when it likes, frames are repeated and
 * replayed on other links, payloads rot, senders lie about digests or do not know the secret, landings and sends are
 * slow, anybody cancels at any moment, grants expire, attempts supersede each other. After every event all audits must
 * be clean. The seed of a failure is printed.
 *
 *   test_xfer_property [scenarios [first seed]] */
#include "kvf/xfer.h"
#include "kvf/rng.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    LAYERS = 3,
    PAGE_BYTES = 40,
    POOL = 40,
    BLOCKS_MAX = 6,
    REQUESTS = 5,
    ATTEMPTS = 3,
    LINKS = 24,
    BLIPS = 12,
    QUEUE = 512,
    SLOW = 64,
    PAST = 64
};
#define EPOCH 0xd0d0d0d0d0d0ull
#define TTL 1000

typedef struct {
    uint8_t bytes[KVF_FRAME_PAGE_BYTES + 512];
    uint32_t len;
    uint8_t payload[PAGE_BYTES];
    bool lie;
} item;
typedef struct {
    item items[QUEUE];
    uint32_t head, count;
} queue;
typedef struct {
    bool used, alive, p_knows_up, d_up, p_up; /* alive: the wire; *_up: what each side believes */
    uint8_t nonce[16];
    queue to_d, to_p;
} wire_link;
typedef struct {
    bool running, ended, finished, wrong_secret, lies;
    kvf_tx_id id;
    kvf_link_id link;
    uint64_t grant;
    uint32_t missing_count, missing[BLOCKS_MAX];
    kvf_block_id blocks[BLOCKS_MAX]; /* of all logical blocks, pinned by us until END */
    uint32_t ready[BLOCKS_MAX]; /* layers as bits */
    kvf_status result;
} sender;
typedef struct {
    bool offered, over, committed, d_holds;
    kvf_request_id request;
    uint32_t attempt, blocks, missing_count, missing[BLOCKS_MAX];
    uint64_t grant;
    uint8_t secret[16];
    kvf_link_id bound;
    uint32_t turn; /* of the OPEN that the present grant answered last */
    bool honest_commit; /* one was delivered for the present grant */
    kvf_block_id owned[BLOCKS_MAX];
    uint32_t owned_count;
    sender senders[ATTEMPTS + 1];
} request_state;
typedef struct {
    bool used;
    kvf_landing landing;
    kvf_page_header header;
    uint8_t staging[PAGE_BYTES];
} slow_landing;
typedef struct {
    bool used;
    kvf_link_id link;
    kvf_page_header header;
    kvf_block_id block;
    uint64_t token;
    uint32_t request;
} slow_send;
typedef struct {
    bool landed[LAYERS];
    uint32_t generation;
} shadow;
typedef struct {
    uint64_t seed;
    kvf_rng rng;
    kvf_time_ns now;
    bool calm; /* nothing goes wrong */
    bool blips; /* links are cut and replaced, nothing else goes wrong: every hand-off must come through */
    bool hostile;
    kvf_kv *kv_d, *kv_p;
    kvf_rx *rx;
    kvf_tx *tx;
    uint8_t mem_d[POOL][LAYERS][PAGE_BYTES], mem_p[POOL][LAYERS][PAGE_BYTES];
    shadow shadows[POOL];
    wire_link links[LINKS];
    uint32_t links_used;
    request_state requests[REQUESTS];
    slow_landing landings[SLOW];
    slow_send sends[SLOW];
    item past[PAST];
    uint32_t past_count;
    uint64_t commits, ends_ok, opened_said;
} world;

static world w;

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x)) fail_at(#x, __LINE__);                                                                               \
    } while (0)
static void fail_at(const char *what, int line) {
    fprintf(
        stderr, "seed %llu time %llu line %d: %s\n", (unsigned long long)w.seed, (unsigned long long)w.now, line, what);
    exit(1);
}
static void on_abort(int sig) {
    (void)sig;
    _exit(
        1); /* an assertion of the core caught it: a failure like any other, not a crash (WILL_FAIL tells them apart) */
}

static uint32_t pick(uint32_t bound) { return (uint32_t)kvf_rng_below(&w.rng, bound); }
static bool chance(uint32_t percent) { return pick(100) < percent; }
static void pattern(uint32_t request, uint32_t logical, uint32_t layer, uint8_t out[PAGE_BYTES]) {
    for (uint32_t i = 0; i < PAGE_BYTES; i++) out[i] = (uint8_t)kvf_rng_at(request + 1, logical * LAYERS + layer, i);
}

static void audit(void) {
    kvf_error err;
    if (kvf_kv_audit(w.kv_d, &err) || kvf_kv_audit(w.kv_p, &err) || kvf_rx_audit(w.rx, &err) ||
        kvf_tx_audit(w.tx, &err))
        fail_at(err.message, __LINE__);
}

/* ---------------------------------------------------------------- wire */
static void push(queue *q, const item *it) {
    CHECK(q->count < QUEUE);
    q->items[(q->head + q->count++) % QUEUE] = *it;
}
static void send_frame(queue *q, const kvf_frame *f, const uint8_t *payload, bool lie) {
    item it = {.lie = lie};
    it.len = (uint32_t)kvf_frame_encode(f, it.bytes, sizeof it.bytes);
    CHECK(it.len > 0);
    if (payload) memcpy(it.payload, payload, PAGE_BYTES);
    push(q, &it);
}

static request_state *by_grant(uint64_t grant) {
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (w.requests[i].offered && w.requests[i].grant == grant) return &w.requests[i];
    return NULL;
}

/* ---------------------------------------------------------------- receiving node */
static void settle(request_state *r, uint32_t spent) {
    uint32_t listed_at_first = r->owned_count; /* booked when offered first */
    CHECK(spent <= listed_at_first);
    kvf_kv_unbook(w.kv_d, listed_at_first - spent);
    r->over = true;
}

static void on_committed(const kvf_rx_act *a) {
    request_state *r = by_grant(a->grant);
    CHECK(r && !r->committed && !r->over); /* once, and never after a revocation */
    CHECK(kvf_request_id_equal(r->request, a->request) && r->attempt == a->attempt);
    CHECK(r->honest_commit);
    CHECK(a->blocks_count == r->owned_count && a->blocks_spent == a->blocks_count);
    for (uint32_t i = 0; i < SLOW; i++)
        for (uint32_t b = 0; b < a->blocks_count; b++)
            CHECK(!w.landings[i].used || !kvf_block_id_equal(w.landings[i].landing.block, a->blocks[b]));
    for (uint32_t b = 0; b < a->blocks_count; b++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            uint8_t want[PAGE_BYTES];
            pattern((uint32_t)(r - w.requests), a->logical[b], l, want);
            CHECK(memcmp(want, w.mem_d[a->blocks[b].index][l], PAGE_BYTES) == 0);
        }
        r->owned[b] = a->blocks[b];
    }
    CHECK(a->payload.len_bytes == 8 && kvf_get_le64(a->payload.data) == r->request.counter);
    settle(r, a->blocks_spent);
    r->committed = r->d_holds = true;
    w.commits++;
}

static void drain_rx(void) {
    kvf_rx_act a;
    while (kvf_rx_next(w.rx, &a)) {
        if (a.kind == KVF_RX_FRAME) {
            CHECK(a.link < w.links_used);
            request_state *r = by_grant(a.grant);
            if (a.frame.kind == KVF_FRAME_OPENED) w.opened_said++;
            if (r && a.frame.kind == KVF_FRAME_OPENED) r->bound = a.link;
            wire_link *k = &w.links[a.link];
            if (k->alive) send_frame(&k->to_p, &a.frame, NULL, false);
        } else if (a.kind == KVF_RX_COMMITTED) {
            on_committed(&a);
        } else {
            request_state *r = by_grant(a.grant);
            CHECK(r && !r->over);
            settle(r, a.blocks_spent);
        }
        audit();
    }
}

static void finish_landing(slow_landing *s) {
    s->used = false;
    shadow *sh = &w.shadows[s->landing.block.index];
    if (sh->generation != s->landing.block.generation)
        *sh = (shadow){.generation = s->landing.block.generation}; /* first page of this life */
    CHECK(!sh->landed[s->landing.layer]); /* I4: no page changes after it has landed */
    uint8_t *target = w.mem_d[s->landing.block.index][s->landing.layer];
    memcpy(target, s->staging, PAGE_BYTES);
    bool ok = kvf_page_crc(&s->header, EPOCH, target) == s->landing.crc;
    sh->landed[s->landing.layer] = ok;
    kvf_rx_on_landed(w.rx, w.now, &s->landing, ok);
    drain_rx();
}

static void page_arrives(kvf_link_id link, const item *it, const kvf_page_header *h) {
    slow_landing *s = NULL;
    for (uint32_t i = 0; i < SLOW && !s; i++)
        if (!w.landings[i].used) s = &w.landings[i];
    if (!s) {
        s = &w.landings[pick(SLOW)];
        finish_landing(s);
    }
    kvf_landing landing;
    if (kvf_rx_on_page(w.rx, w.now, link, h, &landing) != KVF_PAGE_ACCEPT) return;
    request_state *r = by_grant(h->grant);
    CHECK(r && !r->over && r->bound == link);
    CHECK(!r->senders[r->attempt].wrong_secret);
    CHECK(landing.block_logical == h->block && landing.layer == h->layer);
    *s = (slow_landing){.used = true, .landing = landing, .header = *h};
    memcpy(s->staging, it->payload, PAGE_BYTES);
    if (chance(70)) finish_landing(s);
}

static void frame_arrives(kvf_link_id link, const item *it, bool at_d) {
    static kvf_page_name names[KVF_FRAME_MISSING_MAX];
    kvf_frame f;
    CHECK(kvf_frame_decode((kvf_span){it->bytes, it->len}, names, &f) == KVF_OK);
    if (!at_d) {
        kvf_tx_on_frame(w.tx, w.now, link, &f);
        return;
    }
    if (f.kind == KVF_FRAME_PAGE) {
        page_arrives(link, it, &f.page);
    } else {
        request_state *r = f.kind == KVF_FRAME_COMMIT ? by_grant(f.commit.grant) : NULL;
        if (r && !it->lie) r->honest_commit = true;
        kvf_rx_on_frame(w.rx, w.now, link, w.links[link].nonce, &f);
    }
    uint64_t opened_before = w.opened_said;
    drain_rx();
    if (f.kind != KVF_FRAME_OPEN || w.opened_said == opened_before) return;
    request_state *r = by_grant(f.open.grant);
    CHECK(r && f.open.turn >= r->turn); /* a grant never goes back to a link that its sender has left */
    r->turn = f.open.turn;
}

/* ---------------------------------------------------------------- sending node */
static sender *by_id(kvf_tx_id id, uint32_t *request) {
    for (uint32_t i = 0; i < REQUESTS; i++)
        for (uint32_t a = 1; a <= ATTEMPTS; a++)
            if (w.requests[i].senders[a].running && w.requests[i].senders[a].id == id) {
                *request = i;
                return &w.requests[i].senders[a];
            }
    return NULL;
}
static sender *by_sender_grant(uint64_t grant, uint32_t *request) {
    for (uint32_t i = 0; i < REQUESTS; i++)
        for (uint32_t a = 1; a <= ATTEMPTS; a++)
            if (w.requests[i].senders[a].running && w.requests[i].senders[a].grant == grant) {
                *request = i;
                return &w.requests[i].senders[a];
            }
    return NULL;
}

static void on_end(const kvf_tx_act *a) {
    uint32_t request;
    sender *s = by_id(a->id, &request);
    CHECK(s && !s->ended);
    s->ended = true;
    s->running = false;
    s->result = a->result;
    if (a->result == KVF_OK) w.ends_ok++;
    if (a->result == KVF_OK) CHECK(w.requests[request].committed);
    for (uint32_t b = w.requests[request].blocks; b-- > 0;) {
        kvf_block_info info;
        CHECK(kvf_kv_block_at(w.kv_p, s->blocks[b].index, &info));
        kvf_kv_unpin(w.kv_p, s->blocks[b]);
        memset(w.mem_p[s->blocks[b].index], 0xee, sizeof w.mem_p[0]); /* the memory is somebody else's now */
    }
}

static void finish_send(slow_send *s) {
    s->used = false;
    uint8_t want[PAGE_BYTES];
    const uint8_t *page = w.mem_p[s->block.index][s->header.layer];
    pattern(s->request, s->header.block, s->header.layer, want);
    CHECK(memcmp(page, want, PAGE_BYTES) == 0); /* nobody reuses the memory of a page in flight */
    uint32_t crc = kvf_page_crc(&s->header, EPOCH, page);
    wire_link *k = &w.links[s->link];
    bool ok = k->p_up && (w.calm || chance(95));
    if (ok && k->alive) {
        kvf_frame f = {.kind = KVF_FRAME_PAGE, .page = s->header};
        f.page.crc = crc;
        uint8_t payload[PAGE_BYTES];
        memcpy(payload, page, PAGE_BYTES);
        if (w.hostile && chance(3)) payload[pick(PAGE_BYTES)] ^= (uint8_t)(1 + pick(255));
        send_frame(&k->to_d, &f, payload, false);
    }
    kvf_tx_on_page_sent(w.tx, w.now, s->token, ok, crc);
}

static bool has_room(void *self, kvf_link_id link) {
    (void)self;
    return w.links[link].to_d.count < QUEUE / 2;
}

static void start_send(const kvf_tx_act *a) {
    slow_send *s = NULL;
    for (uint32_t i = 0; i < SLOW && !s; i++)
        if (!w.sends[i].used) s = &w.sends[i];
    CHECK(s); /* the in-flight bound of the core is below ours */
    *s = (slow_send){.used = true, .link = a->link, .header = a->header, .block = a->block, .token = a->token};
    sender *from = by_sender_grant(a->header.grant, &s->request);
    CHECK(from && (from->ready[a->header.block] >> a->header.layer & 1));
    if (chance(70)) finish_send(s);
}

static void drain_tx(uint32_t acts_max) {
    kvf_tx_act a;
    while (acts_max-- > 0 && kvf_tx_next(w.tx, has_room, NULL, &a)) {
        if (a.kind == KVF_TX_END) {
            on_end(&a);
        } else if (a.kind == KVF_TX_PAGE) {
            start_send(&a);
        } else {
            wire_link *k = &w.links[a.link];
            CHECK(k->p_up);
            uint32_t request;
            sender *s = a.frame.kind == KVF_FRAME_COMMIT ? by_sender_grant(a.frame.commit.grant, &request) : NULL;
            kvf_frame f = a.frame;
            if (s && s->lies) f.commit.digest ^= 1;
            if (k->alive) send_frame(&k->to_d, &f, NULL, s && s->lies);
        }
        audit();
    }
}

/* ---------------------------------------------------------------- events */
static void ev_link_up(void) {
    if (w.links_used == LINKS) {
        CHECK(!w.blips);
        return;
    }
    wire_link *k = &w.links[w.links_used++];
    k->used = k->alive = k->d_up = k->p_up = true;
    for (uint32_t i = 0; i < 16; i++) k->nonce[i] = (uint8_t)pick(256);
}

static void ev_cut(void) {
    if (w.links_used == 0 || (w.blips && w.links_used > BLIPS)) return;
    wire_link *k = &w.links[pick(w.links_used)];
    if (!k->alive) return;
    k->alive = false;
    /* What is on the way arrives up to some frame, then nothing. */
    k->to_d.count = pick(k->to_d.count + 1);
    k->to_p.count = pick(k->to_p.count + 1);
}

static void ev_notice(bool at_d, uint32_t link) {
    wire_link *k = &w.links[link];
    bool *up = at_d ? &k->d_up : &k->p_up;
    if (k->alive || !*up || (at_d ? k->to_d.count : k->to_p.count)) return;
    *up = false;
    if (at_d) {
        kvf_rx_on_link_down(w.rx, w.now, link);
        drain_rx();
    } else {
        kvf_tx_on_link_down(w.tx, w.now, link);
    }
}

static void ev_deliver(uint32_t link, bool at_d) {
    wire_link *k = &w.links[link];
    queue *q = at_d ? &k->to_d : &k->to_p;
    if (q->count == 0 || !(at_d ? k->d_up : k->p_up)) return;
    item it = q->items[q->head];
    q->head = (q->head + 1) % QUEUE;
    q->count--;
    if (at_d) w.past[w.past_count++ % PAST] = it;
    frame_arrives(link, &it, at_d);
    if (!w.calm && chance(5)) frame_arrives(link, &it, at_d); /* said twice */
}

static void ev_replay(void) {
    if (w.past_count == 0 || w.links_used == 0) return;
    uint32_t link = pick(w.links_used);
    if (w.links[link].d_up) frame_arrives(link, &w.past[pick(KVF_MIN(w.past_count, PAST))], true);
}

static void ev_offer(uint32_t i) {
    request_state *r = &w.requests[i];
    if (r->offered) return;
    r->request = (kvf_request_id){77, i + 1};
    r->attempt = 1;
    r->blocks = 1 + pick(BLOCKS_MAX);
    r->missing_count = 0;
    for (uint32_t b = 0; b < r->blocks; b++)
        if (chance(70)) r->missing[r->missing_count++] = b;
    for (uint32_t n = 0; n < 16; n++) r->secret[n] = (uint8_t)pick(256);
    if (kvf_kv_book(w.kv_d, r->missing_count) != KVF_OK) return;
    if (kvf_rx_offer(w.rx, w.now, r->request, 1, r->secret, r->missing, r->missing_count, &r->grant) != KVF_OK) {
        kvf_kv_unbook(w.kv_d, r->missing_count);
        return;
    }
    r->offered = true;
    r->bound = KVF_LINK_NONE;
    r->owned_count = r->missing_count;
}

static void ev_reoffer(uint32_t i) {
    request_state *r = &w.requests[i];
    if (!r->offered || r->over || r->attempt == ATTEMPTS) return;
    uint64_t grant;
    uint32_t missing[BLOCKS_MAX], count;
    CHECK(kvf_rx_reoffer(w.rx, w.now, r->grant, r->attempt, r->secret, &grant, missing, &count) == KVF_ERR_STALE);
    for (uint32_t n = 0; n < 16; n++) r->secret[n] = (uint8_t)pick(256);
    CHECK(kvf_rx_reoffer(w.rx, w.now, r->grant, r->attempt + 1, r->secret, &grant, missing, &count) == KVF_OK);
    CHECK(count <= r->missing_count);
    r->attempt++;
    r->grant = grant;
    r->bound = KVF_LINK_NONE;
    r->honest_commit = false;
    r->turn = 0;
    r->missing_count = count;
    memcpy(r->missing, missing, count * sizeof missing[0]);
    drain_rx();
}

static void ev_start(uint32_t i) {
    request_state *r = &w.requests[i];
    sender *s = &r->senders[r->attempt];
    if (!r->offered || s->running || s->ended || kvf_kv_book(w.kv_p, r->blocks) != KVF_OK) return;
    s->wrong_secret = w.hostile && chance(8);
    s->lies = w.hostile && chance(8);
    uint8_t secret[16];
    memcpy(secret, r->secret, 16);
    if (s->wrong_secret) secret[pick(16)] ^= 1;
    if (kvf_tx_start(w.tx, w.now, r->request, r->attempt, r->grant, secret, r->missing, r->missing_count, &s->id) !=
        KVF_OK) {
        kvf_kv_unbook(w.kv_p, r->blocks);
        return;
    }
    s->running = true;
    s->link = KVF_LINK_NONE;
    s->grant = r->grant;
    for (uint32_t b = 0; b < r->blocks; b++) {
        CHECK(kvf_kv_take(w.kv_p, &s->blocks[b]) == KVF_OK);
        for (uint32_t l = 0; l < LAYERS; l++) pattern(i, b, l, w.mem_p[s->blocks[b].index][l]);
        kvf_tx_set_block(w.tx, s->id, b, s->blocks[b]);
    }
}

static void ev_link_for(sender *s) {
    uint32_t alive[LINKS], n = 0;
    for (uint32_t i = 0; i < w.links_used; i++)
        if (w.links[i].p_up) alive[n++] = i;
    if (!s->running) return;
    if (n == 0 && w.blips) { /* dials again */
        ev_link_up();
        alive[n++] = w.links_used - 1;
    }
    if (n == 0) return;
    uint32_t link = alive[w.hostile ? pick(n) : n - 1];
    s->link = link;
    kvf_tx_set_link(w.tx, w.now, s->id, link, w.links[link].nonce);
}

static bool linked(const sender *s) { return s->link != KVF_LINK_NONE && w.links[s->link].p_up; }

static void ev_ready(request_state *r, sender *s) {
    if (!s->running) return;
    uint32_t first = pick(r->blocks), count = 1 + pick(r->blocks - first), layer = pick(LAYERS + 1);
    for (uint32_t b = first; b < first + count; b++) s->ready[b] |= layer == LAYERS ? (1u << LAYERS) - 1 : 1u << layer;
    kvf_tx_pages_ready(w.tx, s->id, first, count, layer == LAYERS ? KVF_TX_ALL_LAYERS : layer);
}

/* Sealing has found a twin: same bytes elsewhere, the old block is let go while pages of it may still be leaving. */
static void ev_swap(request_state *r, sender *s) {
    if (!s->running || kvf_kv_book(w.kv_p, 1) != KVF_OK) return;
    uint32_t b = pick(r->blocks);
    kvf_block_id twin;
    CHECK(kvf_kv_take(w.kv_p, &twin) == KVF_OK);
    memcpy(w.mem_p[twin.index], w.mem_p[s->blocks[b].index], sizeof w.mem_p[0]);
    kvf_tx_set_block(w.tx, s->id, b, twin);
    kvf_kv_unpin(w.kv_p, s->blocks[b]);
    s->blocks[b] = twin;
}

static void ev_finish(request_state *r, sender *s) {
    if (!s->running || s->finished) return;
    s->finished = true;
    for (uint32_t b = 0; b < r->blocks; b++) s->ready[b] = (1u << LAYERS) - 1;
    kvf_tx_pages_ready(w.tx, s->id, 0, r->blocks, KVF_TX_ALL_LAYERS);
    uint8_t payload[8];
    kvf_put_le64(payload, r->request.counter);
    kvf_tx_finish(w.tx, w.now, s->id, (kvf_span){payload, sizeof payload});
}

static void ev_revoke(request_state *r) {
    if (!r->offered || r->over) return;
    uint32_t spent;
    CHECK(kvf_rx_revoke(w.rx, w.now, r->grant, KVF_ERR_CANCELLED, &spent) == KVF_OK);
    settle(r, spent);
    CHECK(kvf_rx_revoke(w.rx, w.now, r->grant, KVF_ERR_CANCELLED, &spent) == KVF_ERR_NOT_FOUND);
    drain_rx();
}

static void release(request_state *r) {
    if (!r->d_holds) return;
    for (uint32_t b = r->owned_count; b-- > 0;) kvf_kv_unpin(w.kv_d, r->owned[b]);
    r->d_holds = false;
}

static void pass_time(kvf_time_ns step) {
    w.now += step;
    kvf_tx_on_time(w.tx, w.now);
    kvf_rx_on_time(w.rx, w.now);
    drain_rx();
}

static void renew(void) {
    for (uint32_t i = 0; i < w.links_used; i++)
        if (w.links[i].alive && w.links[i].p_up && w.links[i].to_d.count < QUEUE / 2)
            send_frame(&w.links[i].to_d, &(kvf_frame){.kind = KVF_FRAME_RENEW}, NULL, false);
}

static void disturb(request_state *r, sender *s) {
    switch (pick(8)) {
    case 0: ev_cut(); break;
    case 1: ev_replay(); break;
    case 2: ev_reoffer((uint32_t)(r - w.requests)); break;
    case 3:
        if (chance(30)) ev_revoke(r);
        break;
    case 4:
        if (s->running && chance(30)) kvf_tx_cancel(w.tx, w.now, s->id, KVF_ERR_CANCELLED);
        break;
    case 5: pass_time(pick(TTL)); break;
    case 6: ev_replay(); break;
    default: ev_link_for(s);
    }
}

static void any_event(void) {
    uint32_t i = pick(REQUESTS);
    request_state *r = &w.requests[i];
    sender *s = &r->senders[1 + pick(KVF_MAX(r->attempt, 1u))];
    switch (pick(14)) {
    case 0: ev_offer(i); break;
    case 1: ev_start(i); break;
    case 2:
        if (w.links_used == 0 || (w.links_used < BLIPS && chance(10)) || (w.hostile && chance(10))) ev_link_up();
        break;
    case 3:
        if (w.hostile || s->ready[0] == 0 || (w.blips && s->running && !linked(s))) ev_link_for(s);
        break;
    case 4:
        if (s->running && !s->finished) ev_ready(r, s);
        break;
    case 5: ev_finish(r, s); break;
    case 6: ev_swap(r, s); break;
    case 7: drain_tx(1 + pick(8)); break;
    case 8:
        renew();
        pass_time(pick(w.blips ? 4 : 20));
        break;
    case 9:
        if (w.landings[i].used) finish_landing(&w.landings[i]);
        break;
    case 10:
        if (w.sends[i].used) finish_send(&w.sends[i]);
        break;
    case 11:
        if (w.blips) ev_cut();
        if (w.hostile) disturb(r, s);
        break;
    default:
        for (uint32_t n = 0; n < 4 && w.links_used; n++) {
            uint32_t link = pick(w.links_used);
            ev_deliver(link, chance(60));
            if (chance(10)) ev_notice(chance(50), link);
        }
    }
    audit();
}

/* Everything that is on its way arrives, nothing new begins. */
static void settle_down(void) {
    for (uint32_t round = 0; round < 400; round++) {
        for (uint32_t i = 0; i < SLOW; i++) {
            if (w.landings[i].used) finish_landing(&w.landings[i]);
            if (w.sends[i].used) finish_send(&w.sends[i]);
        }
        for (uint32_t l = 0; l < w.links_used; l++) {
            while (w.links[l].d_up && w.links[l].to_d.count) ev_deliver(l, true);
            while (w.links[l].p_up && w.links[l].to_p.count) ev_deliver(l, false);
            ev_notice(true, l);
            ev_notice(false, l);
        }
        drain_tx(64);
        audit();
    }
}

static void end_of_scenario(void) {
    if (w.links_used == 0) ev_link_up();
    for (uint32_t i = 0; i < REQUESTS; i++) {
        request_state *r = &w.requests[i];
        if (!w.hostile) {
            ev_offer(i);
            ev_start(i);
        }
        for (uint32_t a = 1; a <= ATTEMPTS; a++) {
            if (!w.hostile && !linked(&r->senders[a])) ev_link_for(&r->senders[a]);
            ev_finish(r, &r->senders[a]);
        }
    }
    settle_down();
    for (uint32_t i = 0; w.blips && i < REQUESTS; i++)
        if (!linked(&w.requests[i].senders[1])) ev_link_for(&w.requests[i].senders[1]);
    if (w.blips) settle_down();
    for (uint32_t i = 0; !w.hostile && i < REQUESTS; i++) {
        const request_state *r = &w.requests[i];
        CHECK(!r->senders[1].running);
        if (r->offered && r->senders[1].ended) CHECK(r->committed && r->senders[1].result == KVF_OK);
    }
    for (uint32_t n = 0; n < 4; n++) {
        pass_time(2 * TTL);
        settle_down();
    }
    CHECK(kvf_tx_active(w.tx) == 0 && kvf_rx_open_grants(w.rx) == 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        CHECK(!w.requests[i].offered || w.requests[i].over);
        for (uint32_t a = 1; a <= ATTEMPTS; a++) CHECK(!w.requests[i].senders[a].running);
        release(&w.requests[i]);
    }
    kvf_kv_counts c[2];
    kvf_kv_count(w.kv_d, &c[0]);
    kvf_kv_count(w.kv_p, &c[1]);
    for (int n = 0; n < 2; n++) CHECK(c[n].free == POOL && c[n].pinned == 0 && c[n].in_use == 0 && c[n].booked == 0);
    audit();
}

static void *arena_for(size_t size_bytes) {
    void *p = aligned_alloc(64, (size_bytes + 63) & ~(size_t)63);
    CHECK(p);
    memset(p, 0, size_bytes);
    return p;
}

int main(int argc, char **argv) {
    signal(SIGABRT, on_abort);
    uint64_t scenarios = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000,
             first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    kvf_kv_config kc = {.blocks = POOL, .events_max = 16};
    kvf_rx_config rc = {.grants_max = 4,
        .blocks_max = BLOCKS_MAX,
        .layers = LAYERS,
        .page_bytes = PAGE_BYTES,
        .epoch = EPOCH,
        .grant_ttl_ns = TTL,
        .tombstones_max = 8};
    kvf_tx_config tc = {.handoffs_max = 6,
        .blocks_max = BLOCKS_MAX,
        .layers = LAYERS,
        .page_bytes = PAGE_BYTES,
        .inflight_max = 4,
        .hold_ttl_ns = TTL};
    void *memory[4] = {arena_for(kvf_kv_size(&kc)), arena_for(kvf_kv_size(&kc)), arena_for(kvf_rx_size(&rc)),
        arena_for(kvf_tx_size(&tc))};
    uint64_t commits = 0, ends_ok = 0;
    for (uint64_t seed = first; seed < first + scenarios; seed++) {
        memset(&w, 0, offsetof(world, links));
        memset(&w.links_used, 0, sizeof w - offsetof(world, links_used));
        for (uint32_t i = 0; i < LINKS; i++) {
            wire_link *k = &w.links[i];
            k->used = k->alive = k->p_up = k->d_up = false;
            k->to_d.head = k->to_d.count = k->to_p.head = k->to_p.count = 0;
        }
        w.seed = seed;
        w.rng = (kvf_rng){seed, 0};
        w.now = 1;
        w.calm = seed % 8 == 0;
        w.blips = seed % 8 == 4;
        w.hostile = !w.calm && !w.blips;
        tc.relink_ttl_ns = w.blips ? TTL : seed % 3 == 0 ? 0 : TTL / 2;
        memset(memory[0], 0, kvf_kv_size(&kc));
        memset(memory[1], 0, kvf_kv_size(&kc));
        memset(memory[2], 0, kvf_rx_size(&rc));
        memset(memory[3], 0, kvf_tx_size(&tc));
        w.kv_d = kvf_kv_init(memory[0], &kc);
        w.kv_p = kvf_kv_init(memory[1], &kc);
        w.rx = kvf_rx_init(memory[2], &rc, w.kv_d);
        w.tx = kvf_tx_init(memory[3], &tc, w.kv_p);
        uint32_t steps = 100 + pick(300);
        for (uint32_t n = 0; n < steps; n++) any_event();
        end_of_scenario();
        commits += w.commits;
        ends_ok += w.ends_ok;
    }
    printf("%llu scenarios from seed %llu: %llu commits, %llu hand-offs ended well\n", (unsigned long long)scenarios,
        (unsigned long long)first, (unsigned long long)commits, (unsigned long long)ends_ok);
    for (int i = 0; i < 4; i++) free(memory[i]);
    return commits > 0 && ends_ok > 0 ? 0 : 1;
}
