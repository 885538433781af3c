/* wire_world.c - the two ends and the wire between them. */
#include "wire.h"
#include <event2/event.h>

wire_world w;
static const kvf_identity model = {
    .wire_version = 1, .layers = WIRE_LAYERS, .page_bytes = WIRE_PAGE_BYTES, .numerics = "f", .kv_type = "f16"};

void wire_fail(const char *what, const char *file, int line) {
    fprintf(stderr, "seed %llu hand-off %llu: %s:%d: %s\n", (unsigned long long)w.seed, (unsigned long long)w.handoffs,
        file, line, what);
    exit(1);
}
uint32_t pick(uint32_t bound) { return (uint32_t)kvf_rng_below(&w.rng, bound); }
bool chance(uint32_t percent) { return pick(100) < percent; }
void pattern(uint64_t request, uint32_t block, uint32_t layer, uint8_t out[WIRE_PAGE_BYTES]) {
    for (uint32_t i = 0; i < WIRE_PAGE_BYTES; i += 8)
        kvf_put_le64(out + i, kvf_rng_at(request, block * WIRE_LAYERS + layer, i));
}

void wire_check(void) {
    kvf_error err;
    if (kvf_kv_audit(w.kv_d, &err) || kvf_rx_audit(w.rx, &err) || kvf_tx_audit(w.tx, &err))
        wire_fail(err.message, __FILE__, __LINE__);
    if (memcmp(w.memory, w.image, sizeof w.memory) != 0) {
        w.silent++;
        wire_fail("a page has changed that D did not accept", __FILE__, __LINE__);
    }
}

/* ---------------------------------------------------------------- decode node */
static grant_state *by_grant(uint64_t grant) { return grant == w.a.grant ? &w.a : grant == w.b.grant ? &w.b : NULL; }

static void on_committed(const kvf_rx_act *r) {
    uint8_t want[WIRE_PAGE_BYTES];
    CHECK(r->grant == w.a.grant && !w.a.over && r->blocks_count == w.a.missing_count);
    while (w.kept_count) kvf_kv_unpin(w.kv_d, w.kept[--w.kept_count]);
    for (uint32_t i = 0; i < r->blocks_count; i++) {
        CHECK(r->logical[i] == w.a.missing[i]);
        w.kept[w.kept_count++] = r->blocks[i];
        for (uint32_t layer = 0; layer < WIRE_LAYERS; layer++) {
            pattern(w.a.request.counter, r->logical[i], layer, want);
            CHECK(memcmp(w.memory[r->blocks[i].index][layer], want, sizeof want) == 0);
        }
    }
    CHECK(r->payload.len_bytes == 8 && kvf_get_le64(r->payload.data) == w.a.request.counter);
    w.a.over = w.a.committed = true;
    w.done = w.a;
}

void wire_drain(void) {
    kvf_rx_act r;
    while (kvf_rx_next(w.rx, &r)) {
        grant_state *g = by_grant(r.grant);
        if (r.kind == KVF_RX_FRAME) {
            if (r.frame.kind == KVF_FRAME_OPENED) {
                w.opened_said++;
                CHECK(g);
                g->bound = r.link;
            }
            (void)kvf_endpoint_send_frame(w.d, r.link, &r.frame);
        } else if (r.kind == KVF_RX_COMMITTED) {
            on_committed(&r);
        } else {
            CHECK(g == &w.a && !g->over);
            g->over = true;
            kvf_kv_unbook(w.kv_d, g->missing_count - r.blocks_spent);
            w.gone = w.a;
        }
    }
}
static void on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {
    (void)self, (void)epoch, (void)outgoing, (void)transport;
    memcpy(w.nonces[link & 0xff], nonce, 16);
    caller *c = strcmp(peer, "p1") == 0 ? &w.p : &w.q;
    c->d_link = link;
}
static void on_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    (void)self, (void)peer, (void)text;
    w.downs++;
    w.down_reason = reason;
    if (link == w.p.d_link) w.p.lost = true;
    if (link == w.q.d_link) w.q.lost = true;
    kvf_rx_on_link_down(w.rx, w.now, link);
    wire_drain();
}
static void on_frame(void *self, kvf_link_id link, const kvf_frame *f) {
    (void)self;
    w.frame_status = kvf_rx_on_frame(w.rx, w.now, link, w.nonces[link & 0xff], f);
    wire_drain();
}
static kvf_page_verdict on_page(void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *l) {
    (void)self;
    kvf_page_verdict v = kvf_rx_on_page(w.rx, w.now, link, h, l);
    if (v != KVF_PAGE_ACCEPT) return v;
    const grant_state *g = by_grant(h->grant);
    CHECK(g && !g->over && g->bound == link);
    *target = w.memory[l->block.index][l->layer];
    if (w.pages[l->block.index].generation != l->block.generation) {
        memset(&w.pages[l->block.index], 0, sizeof w.pages[0]);
        w.pages[l->block.index].generation = l->block.generation;
    }
    CHECK(!w.pages[l->block.index].landed[l->layer]);
    return v;
}
static void on_landed(void *self, kvf_link_id link, const kvf_landing *l, bool crc_ok) {
    (void)self, (void)link;
    uint8_t *page = w.memory[l->block.index][l->layer];
    if (crc_ok) {
        grant_state *g = by_grant(l->grant);
        uint8_t want[WIRE_PAGE_BYTES];
        CHECK(g);
        pattern(g->request.counter, l->block_logical, l->layer, want);
        if (memcmp(page, want, sizeof want) != 0) w.silent++; /* told at the end: a checksum that lies is a figure */
        w.pages[l->block.index].landed[l->layer] = true;
        w.pages_landed++;
        for (uint32_t i = 0; i < g->missing_count; i++)
            if (g->missing[i] == l->block_logical) g->landed[i] |= 1u << l->layer;
        g->digest += kvf_page_digest(l->block_logical, l->layer, l->crc);
    }
    memcpy(w.image[l->block.index][l->layer], page, WIRE_PAGE_BYTES);
    kvf_rx_on_landed(w.rx, w.now, l, crc_ok);
    wire_drain();
}
static void on_room(void *self, kvf_link_id link) { (void)self, (void)link; }

/* ---------------------------------------------------------------- callers */
static void c_open(void *self) { ((caller *)self)->open = true; }
static void c_down(void *self, kvf_status reason, const char *text) {
    (void)reason, (void)text;
    ((caller *)self)->lost = true;
}
static void c_ignore(void *self) { (void)self; }

void wire_turn(void) {
    event_base_loop(w.base, EVLOOP_NONBLOCK);
    event_base_loop(w.base, EVLOOP_NONBLOCK);
}
bool wire_dial(caller *c) {
    kvf_error err;
    c->open = c->welcome = c->lost = false;
    CHECK(kvf_transport_loopback.dial(&w.env, "d1", &c->conn, &err) == KVF_OK);
    c->conn->events = (kvf_conn_events){
        .self = c, .on_open = c_open, .on_readable = c_ignore, .on_room = c_ignore, .on_down = c_down};
    wire_turn();
    c->room_bytes = c->conn->ops->room(c->conn);
    return c->open;
}
void wire_say(caller *c, const void *bytes, size_t len) {
    CHECK(c->conn && c->conn->ops->room(c->conn) >= len);
    c->conn->ops->put(c->conn, bytes, len);
    c->conn->ops->flush(c->conn);
}
void wire_hang_up(caller *c) {
    if (c->conn) c->conn->ops->close(c->conn);
    c->conn = NULL;
}
size_t wire_hello(const caller *c, const char *peer, uint64_t peer_epoch, uint8_t *out) {
    kvf_frame f = {.kind = KVF_FRAME_HELLO};
    memcpy(f.hello.node, c->node, strlen(c->node));
    memcpy(f.hello.peer, peer, strlen(peer));
    f.hello.epoch = c->epoch;
    f.hello.peer_epoch = peer_epoch;
    f.hello.generation = c->generation;
    f.hello.identity = model;
    size_t len = kvf_frame_encode(&f, out, KVF_FRAME_BYTES_MAX);
    CHECK(len > 0);
    return len;
}

/* A bit of an answer turned on its way back: p1 must see that, as its own endpoint does, and give the link up. */
static bool spoilt(caller *c, uint8_t *bytes, size_t len) {
    static kvf_page_name names[KVF_FRAME_MISSING_MAX];
    kvf_frame f;
    if (!w.spoil_answer || c != &w.p) return false;
    w.spoil_answer = false;
    uint32_t first = pick((uint32_t)len * 8);
    for (uint32_t n = 1 + pick(4); n > 0; n--) { /* neighbours, so that none turns back */
        uint32_t bit = (first + n) % ((uint32_t)len * 8);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    kvf_status status = kvf_frame_decode((kvf_span){bytes, len}, names, &f);
    w.answer_caught = status == KVF_ERR_CORRUPT ? BY_FRAME_CRC : status == KVF_ERR_FORMAT ? BY_FORMAT : BY_NOTHING;
    c->lost = true;
    return true;
}

void wire_hear(caller *c) {
    static uint8_t bytes[KVF_FRAME_BYTES_MAX];
    static kvf_page_name names[KVF_FRAME_MISSING_MAX];
    while (c->conn) {
        size_t ready = c->conn->ops->ready(c->conn);
        kvf_frame_kind kind;
        uint32_t whole;
        kvf_frame f;
        if (ready < KVF_FRAME_HEAD_BYTES) return;
        c->conn->ops->peek(c->conn, 0, bytes, KVF_FRAME_HEAD_BYTES);
        CHECK(kvf_frame_measure(bytes, WIRE_PAGE_BYTES, &kind, &whole) == KVF_OK);
        if (ready < whole) return;
        c->conn->ops->peek(c->conn, 0, bytes, whole);
        c->conn->ops->consume(c->conn, whole);
        if (kind != KVF_FRAME_WELCOME && spoilt(c, bytes, whole)) return;
        CHECK(kvf_frame_decode((kvf_span){bytes, whole}, names, &f) == KVF_OK);
        if (kind == KVF_FRAME_WELCOME) {
            memcpy(c->nonce, f.welcome.nonce, sizeof c->nonce);
            c->welcome = true;
        } else if (c == &w.p && kind != KVF_FRAME_REFUSE && kind != KVF_FRAME_RENEW) {
            kvf_tx_on_frame(w.tx, w.now, c->id, &f);
        }
    }
}

static void open_b(void) {
    kvf_frame f = {.kind = KVF_FRAME_OPEN,
        .open = {.grant = w.b.grant, .request = w.b.request, .attempt = w.b.attempt, .turn = ++w.b.turn}};
    uint8_t bytes[256];
    kvf_grant_proof(w.b.secret, w.q.nonce, w.b.grant, w.b.request, w.b.attempt, f.open.turn, f.open.proof);
    wire_say(&w.q, bytes, kvf_frame_encode(&f, bytes, sizeof bytes));
    wire_turn();
    CHECK(w.b.bound == w.q.d_link);
}

void wire_call(caller *c) {
    uint8_t bytes[512];
    if (c == &w.p && c->id) { /* the connection before stays as it is: half open, for late frames */
        if (c->conn) {
            wire_hang_up(&w.old);
            w.old = *c;
            w.old.conn->events.self = &w.old;
        }
        kvf_tx_on_link_down(w.tx, w.now, c->id);
        c->conn = NULL;
        w.relinks++;
    }
    wire_hang_up(c);
    c->d_link = KVF_LINK_NONE;
    c->generation = c->id = (uint32_t)++w.generation;
    CHECK(wire_dial(c));
    wire_say(c, bytes, wire_hello(c, "d1", WIRE_EPOCH_D, bytes));
    wire_turn();
    wire_hear(c);
    CHECK(c->welcome);
    if (c == &w.q && w.b.grant)
        open_b();
    else if (c == &w.p && w.running)
        kvf_tx_set_link(w.tx, w.now, w.id, c->id, c->nonce);
}
void wire_mend(void) {
    if (w.p.lost) wire_call(&w.p);
    if (w.q.lost) wire_call(&w.q);
}

/* ---------------------------------------------------------------- hand-offs */
static void offer(grant_state *g, uint64_t counter, uint32_t attempt) {
    *g = (grant_state){.request = {77, counter}, .attempt = attempt, .bound = KVF_LINK_NONE};
    for (uint32_t i = 0; i < sizeof g->secret; i++) g->secret[i] = (uint8_t)pick(256);
    while (g->missing_count == 0)
        for (uint32_t b = 0; b < WIRE_BLOCKS; b++)
            if (chance(70)) g->missing[g->missing_count++] = b;
    CHECK(kvf_kv_book(w.kv_d, g->missing_count) == KVF_OK);
    CHECK(kvf_rx_offer(w.rx, w.now, g->request, attempt, g->secret, g->missing, g->missing_count, &g->grant) == KVF_OK);
}

void wire_begin(void) {
    bool again = w.handoffs > 0 && w.result != KVF_OK;
    uint64_t counter = again ? w.a.request.counter : w.a.request.counter + 1;
    if (w.handoffs > 0 && !w.a.over) wire_lose(false);
    w.handoffs += !again;
    w.retries += again;
    offer(&w.a, counter, again ? w.a.attempt + 1 : 1);
    CHECK(kvf_tx_start(w.tx, w.now, w.a.request, w.a.attempt, w.a.grant, w.a.secret, w.a.missing, w.a.missing_count,
              &w.id) == KVF_OK);
    CHECK(kvf_kv_book(w.kv_p, WIRE_BLOCKS) == KVF_OK);
    for (uint32_t b = 0; b < WIRE_BLOCKS; b++) {
        CHECK(kvf_kv_take(w.kv_p, &w.source_blocks[b]) == KVF_OK);
        for (uint32_t layer = 0; layer < WIRE_LAYERS; layer++)
            pattern(counter, b, layer, w.source[w.source_blocks[b].index][layer]);
        kvf_tx_set_block(w.tx, w.id, b, w.source_blocks[b]);
    }
    w.running = true;
    kvf_tx_pages_ready(w.tx, w.id, 0, WIRE_BLOCKS, KVF_TX_ALL_LAYERS);
    uint8_t payload[8];
    kvf_put_le64(payload, counter);
    kvf_tx_finish(w.tx, w.now, w.id, (kvf_span){payload, sizeof payload});
    kvf_tx_set_link(w.tx, w.now, w.id, w.p.id, w.p.nonce);
}

void wire_lose(bool expired) {
    if (expired) { /* frozen for longer than the lease: nothing of p1 was heard, q1 is alive */
        kvf_frame renew = {.kind = KVF_FRAME_RENEW};
        w.now += WIRE_TTL_NS + 1;
        CHECK(kvf_rx_on_frame(w.rx, w.now, w.q.d_link, w.q.nonce, &renew) == KVF_OK);
        kvf_rx_on_time(w.rx, w.now);
    } else {
        uint32_t spent;
        CHECK(kvf_rx_revoke(w.rx, w.now, w.a.grant, KVF_ERR_CANCELLED, &spent) == KVF_OK);
        kvf_kv_unbook(w.kv_d, w.a.missing_count - spent);
        w.a.over = true;
        w.gone = w.a;
    }
    wire_drain();
    CHECK(w.a.over && !w.b.over);
}

static void carry(const kvf_tx_act *t) {
    said *s = &w.past[w.past_count++ % WIRE_PAST];
    *s = (said){.kind = t->kind == KVF_TX_PAGE ? KVF_FRAME_PAGE : t->frame.kind, .link = w.p.id, .grant = w.a.grant};
    CHECK(t->link == w.p.id);
    kvf_frame f = t->frame;
    if (t->kind == KVF_TX_PAGE) {
        const uint8_t *page = w.source[t->block.index][t->header.layer];
        f = (kvf_frame){.kind = KVF_FRAME_PAGE, .page = t->header};
        f.page.crc = kvf_page_crc(&t->header, WIRE_EPOCH_D, page);
        memcpy(s->bytes + KVF_FRAME_PAGE_BYTES, page, WIRE_PAGE_BYTES);
        kvf_tx_on_page_sent(w.tx, w.now, t->token, true, f.page.crc);
    }
    s->len = (uint32_t)kvf_frame_encode(&f, s->bytes, sizeof s->bytes);
    CHECK(s->len > 0);
    if (t->kind == KVF_TX_PAGE) s->len += WIRE_PAGE_BYTES;
    wire_say(&w.p, s->bytes, s->len);
    if (f.kind == KVF_FRAME_OPEN) w.a.turn = f.open.turn;
}

bool wire_step(void) {
    kvf_tx_act t;
    if (!kvf_tx_next(w.tx, NULL, NULL, &t)) {
        wire_turn();
        wire_hear(&w.p);
        if (!kvf_tx_next(w.tx, NULL, NULL, &t)) {
            /* Nothing to do and nothing on the way can only be a link that is lost. */
            CHECK(w.p.lost);
            return true;
        }
    }
    if (t.kind == KVF_TX_END) {
        w.running = false;
        w.result = t.result;
        CHECK(t.result != KVF_OK || w.a.committed);
        for (uint32_t b = WIRE_BLOCKS; b-- > 0;) kvf_kv_unpin(w.kv_p, w.source_blocks[b]);
        return false;
    }
    carry(&t);
    wire_turn();
    wire_hear(&w.p);
    return true;
}

/* ---------------------------------------------------------------- life */
static void *zeroed(size_t size_bytes) {
    size_t rounded = (size_bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, rounded);
    CHECK(p);
    return memset(p, 0, rounded);
}
void wire_open(uint64_t seed) {
    kvf_kv_config kc = {.blocks = WIRE_POOL, .events_max = 16};
    kvf_rx_config rc = {.grants_max = 4,
        .blocks_max = WIRE_BLOCKS,
        .layers = WIRE_LAYERS,
        .page_bytes = WIRE_PAGE_BYTES,
        .epoch = WIRE_EPOCH_D,
        .grant_ttl_ns = WIRE_TTL_NS,
        .tombstones_max = 16};
    kvf_tx_config tc = {.handoffs_max = 2,
        .blocks_max = WIRE_BLOCKS,
        .layers = WIRE_LAYERS,
        .page_bytes = WIRE_PAGE_BYTES,
        .inflight_max = 2,
        .hold_ttl_ns = KVF_NS_PER_S,
        .relink_ttl_ns = KVF_NS_PER_S};
    w.seed = seed;
    w.rng = (kvf_rng){seed, 0};
    w.now = 1;
    w.kv_d = kvf_kv_init(w.arenas[0] = zeroed(kvf_kv_size(&kc)), &kc);
    w.kv_p = kvf_kv_init(w.arenas[1] = zeroed(kvf_kv_size(&kc)), &kc);
    w.rx = kvf_rx_init(w.arenas[2] = zeroed(kvf_rx_size(&rc)), &rc, w.kv_d);
    w.tx = kvf_tx_init(w.arenas[3] = zeroed(kvf_tx_size(&tc)), &tc, w.kv_p);
    w.base = event_base_new();
    w.hub = kvf_loopback_create();
    CHECK(w.base && w.hub);
    w.env = (kvf_transport_env){.base = w.base, .staging_bytes = 1 << 17, .loopback = w.hub};
    kvf_endpoint_options o = {.base = w.base,
        .node = "d1",
        .epoch = WIRE_EPOCH_D,
        .identity = &model,
        .ring_bytes = 1 << 17,
        .connect_timeout_ns = 3600 * KVF_NS_PER_S,
        .heartbeat_ns = 3600 * KVF_NS_PER_S,
        .peer_timeout_ns = 3600 * KVF_NS_PER_S,
        .callbacks = {NULL, on_up, on_down, on_frame, on_page, on_landed, on_room},
        .loopback = w.hub};
    kvf_error err;
    if (kvf_endpoint_create(&o, &w.d, &err) != KVF_OK) wire_fail(err.message, __FILE__, __LINE__);
    w.p = (caller){.node = "p1", .epoch = WIRE_EPOCH_P_BEFORE, .d_link = KVF_LINK_NONE};
    w.q = (caller){.node = "q1", .epoch = 33, .d_link = KVF_LINK_NONE};
    wire_call(&w.p);
    w.p.epoch = WIRE_EPOCH_P; /* p1 was started again */
    wire_call(&w.p);
    offer(&w.b, UINT64_C(1) << 40, 1);
    wire_call(&w.q);
}
void wire_close(void) {
    wire_hang_up(&w.p);
    wire_hang_up(&w.q);
    wire_hang_up(&w.old);
    wire_turn();
    kvf_endpoint_destroy(w.d);
    kvf_loopback_destroy(w.hub);
    event_base_free(w.base);
    for (size_t i = 0; i < KVF_COUNT_OF(w.arenas); i++) free(w.arenas[i]);
}
