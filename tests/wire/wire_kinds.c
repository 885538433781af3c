/* wire_kinds.c - one function per kind of fault. Each says something that an honest wire would not have said at this
 * moment, lets D read it, and tells by what it was caught. */
#include "wire.h"

static uint8_t bytes[WIRE_BYTES_MAX];

typedef struct {
    kvf_rx_counts rx;
    uint64_t downs, opened, landed;
} mark;
static mark now_mark(void) {
    mark m = {.downs = w.downs, .opened = w.opened_said, .landed = w.pages_landed};
    kvf_rx_count(w.rx, &m.rx);
    return m;
}

static caught_by of_link_end(kvf_status reason) {
    switch (reason) {
    case KVF_ERR_CORRUPT: return BY_FRAME_CRC;
    case KVF_ERR_FORMAT: return BY_FORMAT;
    case KVF_ERR_MISMATCH: return BY_PAIRING;
    case KVF_ERR_STALE: return BY_GENERATION;
    case KVF_ERR_PEER_LOST: return BY_END_OF_LINK;
    default: return BY_NOTHING;
    }
}
static caught_by judge(const mark *m) {
    mark n = now_mark();
    if (n.landed > m->landed) return BY_NOTHING; /* a fault that lands is none that was caught */
    if (n.downs > m->downs) return of_link_end(w.down_reason);
    const kvf_rx_counts *x = &n.rx, *y = &m->rx;
    if (x->pages_corrupt > y->pages_corrupt) return BY_PAGE_CRC;
    if (x->pages_duplicate > y->pages_duplicate) return BY_DUPLICATE;
    static const caught_by verdicts[KVF_PAGE_VERDICTS] = {[KVF_PAGE_GONE] = BY_GRANT,
        [KVF_PAGE_NOT_YOURS] = BY_LINK,
        [KVF_PAGE_NOT_LISTED] = BY_LIST,
        [KVF_PAGE_BAD_LENGTH] = BY_LENGTH};
    for (int v = 0; v < KVF_PAGE_VERDICTS; v++)
        if (x->rejected[v] > y->rejected[v]) return verdicts[v];
    if (x->opens_late > y->opens_late) return BY_GENERATION;
    if (x->opens_refused > y->opens_refused) return w.frame_status == KVF_ERR_AUTH ? BY_PROOF : BY_GRANT;
    if (x->frames_gone > y->frames_gone) return BY_GRANT;
    if (x->frames_stale > y->frames_stale) return BY_LINK;
    if (x->commits_corrupt > y->commits_corrupt) return BY_DIGEST;
    if (x->commits_missing > y->commits_missing) return BY_MISSING;
    if (x->repeats > y->repeats || n.opened > m->opened) return BY_SAME;
    return BY_NOTHING;
}

/* D reads `len` bytes from c. When it waits for the rest of a frame, the wire goes on with zeros until it has one. */
static caught_by strike_as(caller *c, size_t len, bool filler) {
    static const uint8_t zeros[KVF_FRAME_BYTES_MAX];
    mark m = now_mark();
    wire_say(c, bytes, len);
    wire_turn();
    caught_by by = judge(&m);
    if (filler && !c->lost && c->conn->ops->room(c->conn) < c->room_bytes) {
        wire_say(c, zeros, sizeof zeros);
        wire_turn();
        if (by == BY_NOTHING) by = judge(&m);
        CHECK(c->lost);
    }
    wire_hear(c);
    return by;
}
static caught_by strike(caller *c, size_t len) { return strike_as(c, len, true); }

/* ---------------------------------------------------------------- what to say */
static bool opened(void) { return w.running && !w.a.over && !w.p.lost && w.a.bound == w.p.d_link; }
static bool unopened(void) { return w.running && !w.a.over && !w.p.lost && w.a.bound != w.p.d_link; }
static uint32_t landed_count(const grant_state *g) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->missing_count; i++) n += (uint32_t)__builtin_popcount(g->landed[i]);
    return n;
}
static uint32_t pages_of(const grant_state *g) { return g->missing_count * WIRE_LAYERS; }
/* A page of g that has landed, or one that has not. */
static bool find_page(const grant_state *g, bool landed, uint32_t *block, uint32_t *layer) {
    uint32_t have = landed ? landed_count(g) : pages_of(g) - landed_count(g);
    if (have == 0) return false;
    uint32_t nth = pick(have);
    for (uint32_t i = 0; i < g->missing_count; i++)
        for (uint32_t l = 0; l < WIRE_LAYERS; l++) {
            if ((g->landed[i] >> l & 1) != landed || nth-- > 0) continue;
            *block = g->missing[i];
            *layer = l;
            return true;
        }
    return false;
}
static bool any_page(const grant_state *g, uint32_t *block, uint32_t *layer) {
    return find_page(g, chance(50), block, layer) || find_page(g, true, block, layer) ||
           find_page(g, false, block, layer);
}
static size_t put_frame(const kvf_frame *f) {
    size_t len = kvf_frame_encode(f, bytes, KVF_FRAME_BYTES_MAX);
    CHECK(len > 0);
    return len;
}
static size_t put_header(const kvf_page_header *h) {
    return put_frame(&(kvf_frame){.kind = KVF_FRAME_PAGE, .page = *h});
}
static kvf_page_header header_of(const grant_state *g, uint32_t block, uint32_t layer, uint64_t epoch) {
    uint8_t page[WIRE_PAGE_BYTES];
    kvf_page_header h = {g->grant, block, layer, WIRE_PAGE_BYTES, 0};
    pattern(g->request.counter, block, layer, page);
    h.crc = kvf_page_crc(&h, epoch, page);
    return h;
}
/* The page as an honest sender would say it. */
static size_t put_page(const grant_state *g, uint32_t block, uint32_t layer) {
    kvf_page_header h = header_of(g, block, layer, WIRE_EPOCH_D);
    size_t len = put_header(&h);
    pattern(g->request.counter, block, layer, bytes + len);
    return len + WIRE_PAGE_BYTES;
}
static size_t put_commit(const grant_state *g, uint32_t count, uint64_t digest_add) {
    uint64_t digest = digest_add;
    uint8_t payload[8];
    for (uint32_t i = 0; i < g->missing_count; i++)
        for (uint32_t l = 0; l < WIRE_LAYERS; l++)
            digest += kvf_page_digest(g->missing[i], l, header_of(g, g->missing[i], l, WIRE_EPOCH_D).crc);
    kvf_put_le64(payload, g->request.counter);
    return put_frame(
        &(kvf_frame){.kind = KVF_FRAME_COMMIT, .commit = {g->grant, count, digest, {payload, sizeof payload}}});
}
static size_t put_cancel(const grant_state *g) {
    return put_frame(&(kvf_frame){.kind = KVF_FRAME_CANCEL, .cancel = {g->grant}});
}
static kvf_frame open_of(const grant_state *g, const uint8_t nonce[16], uint32_t turn) {
    kvf_frame f = {.kind = KVF_FRAME_OPEN, .open = {g->grant, g->request, g->attempt, turn, {0}}};
    kvf_grant_proof(g->secret, nonce, g->grant, g->request, g->attempt, turn, f.open.proof);
    return f;
}
/* Some frame about g, as it was said once: 0 a page, 1 COMMIT, 2 CANCEL, 3 OPEN. */
static size_t put_any(const grant_state *g, const caller *c, uint32_t which) {
    uint32_t block, layer;
    kvf_frame f = open_of(g, c->nonce, g->turn);
    switch (which) {
    case 0: return any_page(g, &block, &layer) ? put_page(g, block, layer) : put_cancel(g);
    case 1: return put_commit(g, pages_of(g), 0);
    case 2: return put_cancel(g);
    default: return put_frame(&f);
    }
}
static const said *past(kvf_frame_kind kind, bool this_link, bool this_grant) {
    uint32_t have = KVF_MIN(w.past_count, WIRE_PAST), from = have ? pick(have) : 0;
    for (uint32_t i = 0; i < have; i++) {
        const said *s = &w.past[(from + i) % have];
        if ((kind && s->kind != kind) || (s->link == w.p.id) != this_link || (s->grant == w.a.grant) != this_grant)
            continue;
        return s;
    }
    return NULL;
}
static size_t put_said(const said *s) {
    memcpy(bytes, s->bytes, s->len);
    return s->len;
}
/* An honest frame of p1 at this moment, pages that have not landed first. */
static size_t put_honest(void) {
    uint32_t block, layer;
    switch (pick(6)) {
    case 0: return put_commit(&w.a, pages_of(&w.a), 0);
    case 1: return put_any(&w.a, &w.p, 3);
    case 2: return put_frame(&(kvf_frame){.kind = KVF_FRAME_RENEW});
    case 3: return put_cancel(&w.a);
    default:
        return find_page(&w.a, false, &block, &layer) || any_page(&w.a, &block, &layer) ? put_page(&w.a, block, layer)
                                                                                        : 0;
    }
}

/* ---------------------------------------------------------------- kinds */
static bool replayed(caught_by *by) {
    const said *s = opened() ? past(0, true, true) : NULL;
    if (!s || s->kind == KVF_FRAME_CANCEL) return false;
    *by = strike(&w.p, put_said(s));
    return true;
}
static bool of_an_ended_grant(caught_by *by, const grant_state *g) {
    if (w.p.lost || !g->grant) return false;
    *by = strike(&w.p, put_any(g, &w.p, pick(4)));
    return true;
}
static bool late_after_revoke(caught_by *by) { return of_an_ended_grant(by, &w.gone); }
static bool late_after_commit(caught_by *by) { return of_an_ended_grant(by, &w.done); }
static bool late_after_cut(caught_by *by) {
    if (chance(50)) { /* on the connection that was left */
        if (!w.old.conn || w.old.conn->ops->room(w.old.conn) < WIRE_BYTES_MAX) return false;
        mark m = now_mark();
        wire_say(&w.old, bytes, put_any(&w.a, &w.old, pick(4)));
        wire_turn();
        *by = judge(&m);
        if (*by == BY_NOTHING && w.old.lost) *by = BY_END_OF_LINK;
        return true;
    }
    const said *s = opened() || unopened() ? past(KVF_FRAME_OPEN, false, false) : NULL; /* on the one after it */
    if (!s) return false;
    *by = strike(&w.p, put_said(s));
    return true;
}
static bool lost_and_late(caught_by *by, bool expired) {
    if (!opened() || !chance(10)) return false; /* else hardly a hand-off would come to its end */
    wire_lose(expired);
    *by = strike(&w.p, put_any(&w.a, &w.p, pick(4)));
    return true;
}
static bool thawed_after_its_lease(caught_by *by) { return lost_and_late(by, true); }
static bool revoked_under_way(caught_by *by) { return lost_and_late(by, false); }
static bool for_another_grant(caught_by *by) {
    if (w.p.lost) return false;
    *by = strike(&w.p, put_any(&w.b, &w.p, pick(3))); /* q1's grant, said by p1 */
    return true;
}
static bool on_another_link(caught_by *by) {
    if (!opened()) return false;
    *by = strike(&w.q, put_any(&w.a, &w.p, pick(3)));
    return true;
}
static bool stranger_says(caught_by *by, const caller *like, const char *peer, uint64_t peer_epoch) {
    caller s = *like;
    s.conn = NULL;
    CHECK(wire_dial(&s));
    *by = strike_as(&s, wire_hello(&s, peer, peer_epoch, bytes), false);
    wire_hang_up(&s);
    wire_turn();
    return true;
}
static bool to_another_node(caught_by *by) {
    caller s = {.node = "p7", .epoch = 5, .generation = 1};
    return stranger_says(by, &s, "d2", WIRE_EPOCH_D);
}
static bool to_another_epoch(caught_by *by) {
    uint32_t block, layer;
    caller s = {.node = "p7", .epoch = 5, .generation = 1};
    if (chance(25) || !opened()) return stranger_says(by, &s, "d1", WIRE_EPOCH_D_BEFORE);
    if (!find_page(&w.a, false, &block, &layer)) return false;
    kvf_page_header h = header_of(&w.a, block, layer, WIRE_EPOCH_D_BEFORE);
    size_t len = put_header(&h);
    pattern(w.a.request.counter, block, layer, bytes + len);
    *by = strike(&w.p, len + WIRE_PAGE_BYTES);
    return true;
}
static bool of_an_older_connection(caught_by *by) {
    caller s = w.p;
    s.generation = s.generation - pick(2);
    return !w.p.lost && stranger_says(by, &s, "d1", WIRE_EPOCH_D);
}
static bool of_an_older_process(caught_by *by) {
    caller s = w.p;
    s.epoch = WIRE_EPOCH_P_BEFORE;
    s.generation = w.generation + 1000000;
    return !w.p.lost && stranger_says(by, &s, "d1", WIRE_EPOCH_D);
}
static bool of_an_older_turn(caught_by *by) {
    if (!opened() || w.a.turn < 2) return false;
    kvf_frame f = open_of(&w.a, w.p.nonce, 1 + pick(w.a.turn - 1));
    *by = strike(&w.p, put_frame(&f));
    return true;
}
static bool truncated(caught_by *by) {
    static uint32_t next;
    uint8_t after[sizeof w.past[0].bytes];
    const said *s = opened() ? past(0, true, true) : NULL;
    if (!s) return false;
    memcpy(after, s->bytes, s->len);
    size_t len = put_honest(), cut = 1 + next++ % (len - 1);
    memcpy(bytes + cut, after, s->len);
    *by = strike(&w.p, cut + s->len);
    return true;
}
static bool cut_inside_a_frame(caught_by *by) {
    static uint32_t next;
    if (!opened()) return false;
    mark m = now_mark();
    wire_say(&w.p, bytes, 1 + next++ % (put_honest() - 1));
    wire_hang_up(&w.p);
    wire_turn();
    *by = judge(&m);
    return true;
}
static bool reordered(caught_by *by) {
    if (!opened() || landed_count(&w.a) == pages_of(&w.a)) return false;
    *by = strike(&w.p, put_commit(&w.a, pages_of(&w.a), 0));
    return true;
}
static bool before_open(caught_by *by) {
    if (!unopened()) return false;
    *by = strike(&w.p, put_any(&w.a, &w.p, pick(3)));
    return true;
}
static bool before_hello(caught_by *by) {
    caller s = {.node = "p7"};
    CHECK(wire_dial(&s));
    *by = strike_as(
        &s, w.a.over ? put_frame(&(kvf_frame){.kind = KVF_FRAME_RENEW}) : put_any(&w.a, &w.p, pick(4)), false);
    wire_hang_up(&s);
    wire_turn();
    return true;
}
/* 1 to 16 bits of [from, to) are turned. */
static void turn_bits(size_t from, size_t to) {
    uint8_t before[KVF_FRAME_PAGE_BYTES + WIRE_PAGE_BYTES];
    CHECK(to <= sizeof before && from < to);
    memcpy(before, bytes, to);
    do
        for (uint32_t n = 1 + pick(16); n > 0; n--) {
            size_t bit = from * 8 + pick((uint32_t)(to - from) * 8);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    while (memcmp(before, bytes, to) == 0);
}
static bool bits_of_a_head(caught_by *by) {
    if (!opened()) return false;
    size_t len = put_honest();
    turn_bits(0, KVF_FRAME_HEAD_BYTES);
    *by = strike(&w.p, len);
    return true;
}
static bool bits_of_a_crc(caught_by *by) {
    if (!opened()) return false;
    size_t len = put_honest();
    turn_bits(8, KVF_FRAME_HEAD_BYTES);
    *by = strike(&w.p, len);
    return true;
}
static bool bits_of_a_body(caught_by *by) {
    if (!opened()) return false;
    size_t len = put_honest();
    if (len <= KVF_FRAME_HEAD_BYTES) return false;
    turn_bits(KVF_FRAME_HEAD_BYTES, bytes[4] == KVF_FRAME_PAGE ? KVF_FRAME_PAGE_BYTES : len);
    *by = strike(&w.p, len);
    return true;
}
static bool bits_of_a_page(caught_by *by) {
    uint32_t block, layer;
    if (!opened() || !find_page(&w.a, false, &block, &layer)) return false;
    size_t len = put_page(&w.a, block, layer);
    if (chance(80))
        turn_bits(KVF_FRAME_PAGE_BYTES, len);
    else /* as a torn copy: the end of it is something else */
        for (size_t at = KVF_FRAME_PAGE_BYTES + pick(WIRE_PAGE_BYTES); at < len; at++)
            bytes[at] ^= (uint8_t)(1 + pick(255));
    *by = strike(&w.p, len);
    return true;
}
static bool spliced(caught_by *by) {
    uint8_t other[KVF_FRAME_PAGE_BYTES + WIRE_PAGE_BYTES];
    uint32_t b1, l1, b2, l2;
    if (!opened() || !find_page(&w.a, false, &b1, &l1) || !any_page(&w.a, &b2, &l2) || (b1 == b2 && l1 == l2))
        return false;
    size_t len = put_page(&w.a, b2, l2);
    memcpy(other, bytes, len);
    put_page(&w.a, b1, l1);
    size_t at = chance(30) ? KVF_FRAME_PAGE_BYTES : 1 + pick((uint32_t)len - 1);
    if (memcmp(bytes + at, other + at, len - at) == 0) return false;
    memcpy(bytes + at, other + at, len - at);
    if (memcmp(bytes, other, len) == 0) return false;
    *by = strike(&w.p, len);
    return true;
}
static bool wrong_length(caught_by *by) {
    static const uint32_t lengths[] = {0, 1, 24, WIRE_PAGE_BYTES - 1, WIRE_PAGE_BYTES + 1, WIRE_PAGE_BYTES + 40};
    uint32_t block, layer;
    if (!opened() || !any_page(&w.a, &block, &layer)) return false;
    kvf_page_header h = {w.a.grant, block, layer, lengths[pick(KVF_COUNT_OF(lengths))], pick(UINT32_MAX)};
    size_t len = put_header(&h), told = len + h.len_bytes;
    memset(bytes + len, 0xab, h.len_bytes);
    if (chance(30)) { /* head and page header disagree, and the checksum agrees */
        told = len + (h.len_bytes + 1 + pick(WIRE_PAGE_BYTES)) % WIRE_PAGE_BYTES;
        kvf_put_le32(bytes, (uint32_t)(told - KVF_FRAME_HEAD_BYTES));
        kvf_put_le32(
            bytes + 8, kvf_crc32c(kvf_crc32c(0, bytes, 8), bytes + KVF_FRAME_HEAD_BYTES, len - KVF_FRAME_HEAD_BYTES));
    }
    *by = strike(&w.p, told);
    return true;
}
/* A page under the name of another: outside the grant, or inside it with the checksum of the first. */
static bool wrong_place(caught_by *by) {
    uint32_t block, layer;
    if (!opened() || !find_page(&w.a, false, &block, &layer)) return false;
    kvf_page_header h = header_of(&w.a, block, layer, WIRE_EPOCH_D);
    uint8_t page[WIRE_PAGE_BYTES];
    pattern(w.a.request.counter, block, layer, page);
    switch (pick(4)) {
    case 0: h.layer = chance(50) ? WIRE_LAYERS : UINT32_MAX - pick(9); break;
    case 1: h.block = chance(50) ? WIRE_BLOCKS + pick(9) : UINT32_MAX - pick(9); break;
    case 2: h.layer = (h.layer + 1) % WIRE_LAYERS; break;
    default: h.block = w.a.missing[pick(w.a.missing_count)];
    }
    if (h.block == block && h.layer == layer) return false;
    size_t len = put_header(&h);
    memcpy(bytes + len, page, sizeof page);
    *by = strike(&w.p, len + sizeof page);
    return true;
}
static bool written_twice(caught_by *by) {
    uint32_t block, layer;
    if (!opened() || !find_page(&w.a, true, &block, &layer)) return false;
    uint8_t page[WIRE_PAGE_BYTES];
    pattern(w.a.request.counter + 1, block, layer, page);
    kvf_page_header h = {w.a.grant, block, layer, WIRE_PAGE_BYTES, 0};
    h.crc = kvf_page_crc(&h, WIRE_EPOCH_D, page);
    size_t len = put_header(&h);
    memcpy(bytes + len, page, sizeof page);
    *by = strike(&w.p, len + sizeof page);
    return true;
}
static bool wrong_digest(caught_by *by) {
    if (!opened() || landed_count(&w.a) < pages_of(&w.a)) return false;
    size_t len = chance(50) ? put_commit(&w.a, pages_of(&w.a), 1 + pick(UINT32_MAX - 1))
                            : put_commit(&w.a, pages_of(&w.a) + 1 + pick(9), 0);
    *by = strike(&w.p, len);
    return true;
}
static bool forged_open(caught_by *by) {
    if (w.a.over || w.a.turn == 0) return false;
    uint32_t turn = w.a.turn + 1;
    grant_state forged = w.a;
    kvf_frame f = open_of(&w.a, w.q.nonce, turn);
    switch (pick(8)) {
    case 0: memset(f.open.proof, 0, sizeof f.open.proof); break;
    case 1: f = open_of(&w.a, w.p.nonce, w.a.turn); break; /* p1's own proof, said on another connection */
    case 2: memcpy(forged.secret, w.b.secret, sizeof forged.secret), f = open_of(&forged, w.q.nonce, turn); break;
    case 3: forged.secret[pick(16)] ^= (uint8_t)(1 << pick(8)), f = open_of(&forged, w.q.nonce, turn); break;
    case 4: f.open.proof[pick(32)] ^= (uint8_t)(1 << pick(8)); break;
    case 5: f.open.turn++; break;
    case 6: f.open.attempt++; break;
    default: f.open.request.counter++;
    }
    *by = strike(&w.q, put_frame(&f));
    return true;
}
static bool wrong_way(caught_by *by) {
    if (w.p.lost || w.p.conn == NULL) return false;
    kvf_frame f = {.kind = KVF_FRAME_OPENED, .opened = {w.a.grant}};
    static const kvf_frame_kind kinds[] = {KVF_FRAME_OPENED, KVF_FRAME_COMMITTED, KVF_FRAME_MISSING, KVF_FRAME_GONE};
    uint32_t which = pick(5);
    if (which < 4) f.kind = kinds[which];
    *by = strike(&w.p, which < 4 ? put_frame(&f) : wire_hello(&w.p, "d1", WIRE_EPOCH_D, bytes));
    return true;
}
static bool unknown(caught_by *by) {
    if (w.p.lost) return false;
    size_t len = put_frame(&(kvf_frame){.kind = KVF_FRAME_CANCEL, .cancel = {w.a.grant}});
    switch (pick(4)) {
    case 0: bytes[4] = (uint8_t)(KVF_FRAME_RENEW + 1 + pick(255 - KVF_FRAME_RENEW)); break;
    case 1: bytes[5] = (uint8_t)(KVF_WIRE_VERSION + 1 + pick(250)); break;
    case 2: bytes[6 + pick(2)] = (uint8_t)(1 + pick(255)); break;
    default: kvf_put_le32(bytes, UINT32_MAX - pick(1000));
    }
    kvf_put_le32(
        bytes + 8, kvf_crc32c(kvf_crc32c(0, bytes, 8), bytes + KVF_FRAME_HEAD_BYTES, len - KVF_FRAME_HEAD_BYTES));
    *by = strike(&w.p, len);
    return true;
}
static bool noise(caught_by *by) {
    if (w.p.lost) return false;
    size_t len = KVF_FRAME_HEAD_BYTES + pick(200);
    for (size_t i = 0; i < len; i++) bytes[i] = (uint8_t)pick(256);
    *by = strike(&w.p, len);
    return true;
}
static bool bits_of_an_answer(caught_by *by) {
    const said *s = opened() ? past(KVF_FRAME_OPEN, true, true) : NULL;
    if (!s) return false;
    w.spoil_answer = true;
    w.answer_caught = BY_NOTHING;
    (void)strike(&w.p, put_said(s));
    CHECK(!w.spoil_answer);
    *by = w.answer_caught;
    return true;
}

#define ENDS (BIT(BY_FRAME_CRC) | BIT(BY_FORMAT))
const fault_kind fault_kinds[] = {
    {"replayed", replayed, BIT(BY_DUPLICATE) | BIT(BY_SAME) | BIT(BY_MISSING)},
    {"late, after revoke", late_after_revoke, BIT(BY_GRANT) | BIT(BY_SAME)},
    {"late, after commit", late_after_commit, BIT(BY_GRANT) | BIT(BY_SAME)},
    {"late, after a cut", late_after_cut, BIT(BY_END_OF_LINK) | BIT(BY_GRANT) | BIT(BY_SAME) | BIT(BY_PROOF)},
    {"thawed after its lease", thawed_after_its_lease, BIT(BY_GRANT) | BIT(BY_SAME)},
    {"revoked under way", revoked_under_way, BIT(BY_GRANT) | BIT(BY_SAME)},
    {"for another grant", for_another_grant, BIT(BY_LINK)},
    {"on another link", on_another_link, BIT(BY_LINK)},
    {"to another node", to_another_node, BIT(BY_PAIRING)},
    {"to another epoch", to_another_epoch, BIT(BY_GENERATION) | BIT(BY_PAGE_CRC)},
    {"of an older connection", of_an_older_connection, BIT(BY_GENERATION)},
    {"of an older process", of_an_older_process, BIT(BY_GENERATION)},
    {"of an older turn", of_an_older_turn, BIT(BY_GENERATION)},
    {"truncated, stream goes on", truncated, ENDS | BIT(BY_PAGE_CRC) | BIT(BY_DUPLICATE)},
    {"cut inside a frame", cut_inside_a_frame, BIT(BY_END_OF_LINK)},
    {"commit overtakes", reordered, BIT(BY_MISSING)},
    {"before OPEN", before_open, BIT(BY_LINK)},
    {"before HELLO", before_hello, BIT(BY_FORMAT)},
    {"bits of a head", bits_of_a_head, ENDS},
    {"bits of a head's crc", bits_of_a_crc, BIT(BY_FRAME_CRC)},
    {"bits of a body", bits_of_a_body, BIT(BY_FRAME_CRC)},
    {"bits of a page, torn page", bits_of_a_page, BIT(BY_PAGE_CRC)},
    {"bits of an answer", bits_of_an_answer, ENDS},
    {"two pages spliced", spliced, ENDS | BIT(BY_PAGE_CRC)},
    {"wrong length", wrong_length, BIT(BY_LENGTH) | BIT(BY_FORMAT)},
    {"wrong block or layer", wrong_place, BIT(BY_LIST) | BIT(BY_PAGE_CRC) | BIT(BY_DUPLICATE)},
    {"page written twice", written_twice, BIT(BY_DUPLICATE)},
    {"wrong digest or count", wrong_digest, BIT(BY_DIGEST)},
    {"forged OPEN", forged_open, BIT(BY_PROOF)},
    {"said by the wrong side", wrong_way, BIT(BY_FORMAT)},
    {"unknown kind, version, flag", unknown, BIT(BY_FORMAT)},
    {"noise", noise, ENDS},
};
const uint32_t fault_kinds_count = KVF_COUNT_OF(fault_kinds);
