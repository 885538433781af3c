/* What a peer may say: frames decoded, then the whole receiving path (endpoint over loopback, receiving core, block
 * pool) and the sending core fed by a script. First byte: 0 decode the rest; odd: script for the receiver; even: script
 * for the sender.
 *
 * Receiver's script, one op per step (op % 10; op / 10 % 4 + 1 is the generation of HELLO and the turn of OPEN),
 * operands follow:
 *   0 raw bytes (len, bytes)      1 HELLO that fits           2 OPEN with a right proof     3 PAGE (block, layer, crc
 * right?) 4 COMMIT (count, right sum?)  5 CANCEL or RENEW           6 any frame, its body from the input, its head
 * right 7 re-offer                    8 revoke                    9 time passes After every step all audits must be
 * clean; at the end nothing is pinned, in use or booked. */
#include "kvf/endpoint.h"
#include "kvf/log.h"
#include "kvf/transport.h"
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LAYERS = 2, PAGE_BYTES = 128, POOL = 8, BLOCKS = 3, TTL = 1000 };
static const kvf_identity model = {
    .wire_version = 1, .layers = LAYERS, .page_bytes = PAGE_BYTES, .numerics = "f", .kv_type = "f16"};
static const kvf_request_id request = {3, 4};
static const uint8_t secret[16] = {1};

typedef struct {
    const uint8_t *at, *end;
} input;
static uint8_t take(input *in) { return in->at < in->end ? *in->at++ : 0; }
static size_t take_len(input *in) {
    size_t wish = take(in), left = (size_t)(in->end - in->at);
    return wish < left ? wish : left;
}

static void must(bool fine, const char *what) {
    if (fine) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void fuzz_decode(const uint8_t *data, size_t size) {
    static kvf_page_name names[KVF_FRAME_MISSING_MAX];
    static uint8_t again[KVF_FRAME_BYTES_MAX];
    kvf_frame f;
    kvf_frame_kind kind;
    uint32_t whole;
    if (size >= KVF_FRAME_HEAD_BYTES) (void)kvf_frame_measure(data, PAGE_BYTES, &kind, &whole);
    if (kvf_frame_decode((kvf_span){data, size}, names, &f) != KVF_OK) return;
    /* One frame has one spelling, but for reasons that this build does not know. */
    size_t len = kvf_frame_encode(&f, again, sizeof again);
    must(len == size, "length of the frame written again");
    if (f.kind != KVF_FRAME_GONE && f.kind != KVF_FRAME_REFUSE)
        must(memcmp(again, data, size) == 0, "bytes of the frame written again");
}

/* ---------------------------------------------------------------- receiver */
static struct {
    struct event_base *base;
    kvf_loopback *hub;
    kvf_endpoint *e;
    void *kv_memory, *rx_memory;
    size_t kv_bytes, rx_bytes;
    kvf_kv_config kc;
    kvf_rx_config rc;
    kvf_kv *kv;
    kvf_rx *rx;
    uint8_t pages[POOL][LAYERS][PAGE_BYTES];
    kvf_link_id link;
    uint8_t nonce[16];
    kvf_time_ns now;
    bool up;
    uint64_t grant;
    uint32_t attempt, booked;
    bool over;
    uint64_t digest;
    uint64_t generation; /* least that this input says */
    kvf_conn *conn;
    int downs;
} w;

static void drain(void) {
    kvf_error err;
    kvf_rx_act a;
    while (kvf_rx_next(w.rx, &a)) {
        if (a.kind == KVF_RX_FRAME) {
            if (w.up) (void)kvf_endpoint_send_frame(w.e, w.link, &a.frame);
            continue;
        }
        must(!w.over, "a grant ends once");
        w.over = true;
        kvf_kv_unbook(w.kv, w.booked - a.blocks_spent);
        for (uint32_t i = a.blocks_count; i-- > 0;) kvf_kv_unpin(w.kv, a.blocks[i]);
    }
    must(kvf_rx_audit(w.rx, &err) == KVF_OK && kvf_kv_audit(w.kv, &err) == KVF_OK, "audit");
}
static void on_up(void *self, kvf_link_id link, const char *peer, uint64_t epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {
    w.link = link;
    memcpy(w.nonce, nonce, 16);
    w.up = true;
}
static void on_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    w.up = false;
    w.downs++;
    must(reason < 0 && text[0], "a link ends with a reason");
    kvf_rx_on_link_down(w.rx, w.now, link);
    drain();
}
static void on_frame(void *self, kvf_link_id link, const kvf_frame *f) {
    kvf_rx_on_frame(w.rx, w.now, link, w.nonce, f);
    drain();
}
static kvf_page_verdict on_page(void *self, kvf_link_id link, const kvf_page_header *h, void **target, kvf_landing *l) {
    kvf_page_verdict v = kvf_rx_on_page(w.rx, w.now, link, h, l);
    if (v == KVF_PAGE_ACCEPT) *target = w.pages[l->block.index][l->layer];
    return v;
}
static void on_landed(void *self, kvf_link_id link, const kvf_landing *l, bool crc_ok) {
    kvf_rx_on_landed(w.rx, w.now, l, crc_ok);
    drain();
}
static void on_room(void *self, kvf_link_id link) {}
static void ignore(void *self) {}
static void ignore_down(void *self, kvf_status reason, const char *text) {}

static void loop(void) {
    for (int i = 0; i < 4; i++) event_base_loop(w.base, EVLOOP_NONBLOCK);
}

static void receiver_once(void) {
    if (w.base) return;
    kvf_log_set_level(KVF_LOG_ERROR);
    w.base = event_base_new();
    w.hub = kvf_loopback_create();
    w.kc = (kvf_kv_config){.blocks = POOL, .events_max = 8};
    w.rc = (kvf_rx_config){.grants_max = 2,
        .blocks_max = BLOCKS,
        .layers = LAYERS,
        .page_bytes = PAGE_BYTES,
        .epoch = 22,
        .grant_ttl_ns = TTL,
        .tombstones_max = 4};
    w.kv_bytes = (kvf_kv_size(&w.kc) + 63) & ~(size_t)63;
    w.rx_bytes = (kvf_rx_size(&w.rc) + 63) & ~(size_t)63;
    w.kv_memory = aligned_alloc(64, w.kv_bytes);
    w.rx_memory = aligned_alloc(64, w.rx_bytes);
    must(w.kv_memory && w.rx_memory, "memory");
    kvf_endpoint_options o = {.base = w.base,
        .node = "d1",
        .epoch = 22,
        .identity = &model,
        .ring_bytes = 64 << 10,
        .connect_timeout_ns = 3600 * KVF_NS_PER_S,
        .heartbeat_ns = 3600 * KVF_NS_PER_S,
        .peer_timeout_ns = 3600 * KVF_NS_PER_S,
        .callbacks = {.on_link_up = on_up,
            .on_link_down = on_down,
            .on_frame = on_frame,
            .on_page = on_page,
            .on_landed = on_landed,
            .on_room = on_room},
        .loopback = w.hub};
    kvf_error err;
    must(kvf_endpoint_create(&o, &w.e, &err) == KVF_OK, err.message);
}

static void say(const void *bytes, size_t len) {
    if (w.conn->ops->room(w.conn) < len) return;
    w.conn->ops->put(w.conn, bytes, len);
    w.conn->ops->flush(w.conn);
    loop();
    w.conn->ops->consume(w.conn, w.conn->ops->ready(w.conn)); /* answers are not looked at */
}
static void say_frame(const kvf_frame *f, const uint8_t *payload, uint32_t len) {
    static uint8_t bytes[KVF_FRAME_BYTES_MAX + PAGE_BYTES];
    size_t n = kvf_frame_encode(f, bytes, KVF_FRAME_BYTES_MAX);
    if (n == 0) return;
    if (len) memcpy(bytes + n, payload, len);
    say(bytes, n + len);
}
static void say_any(input *in) {
    uint8_t bytes[KVF_FRAME_HEAD_BYTES + 300], kind = take(in);
    size_t len = take_len(in);
    memcpy(bytes + KVF_FRAME_HEAD_BYTES, in->at, len);
    in->at += len;
    kvf_put_le32(bytes, (uint32_t)len);
    bytes[4] = kind % 14;
    bytes[5] = KVF_WIRE_VERSION;
    kvf_put_le16(bytes + 6, 0);
    size_t covered = bytes[4] == KVF_FRAME_PAGE ? KVF_MIN(len, (size_t)24) : len;
    kvf_put_le32(bytes + 8, kvf_crc32c(kvf_crc32c(0, bytes, 8), bytes + KVF_FRAME_HEAD_BYTES, covered));
    say(bytes, KVF_FRAME_HEAD_BYTES + len);
}
static void say_page(input *in) {
    uint8_t page[PAGE_BYTES];
    kvf_frame f = {.kind = KVF_FRAME_PAGE};
    f.page = (kvf_page_header){
        .grant = w.grant, .block = take(in) % (BLOCKS + 1), .layer = take(in) % (LAYERS + 1), .len_bytes = PAGE_BYTES};
    memset(page, (int)f.page.block, sizeof page);
    f.page.crc = kvf_page_crc(&f.page, 22, page) ^ (take(in) % 4 == 3);
    kvf_rx_counts before, after;
    kvf_rx_count(w.rx, &before);
    say_frame(&f, page, PAGE_BYTES);
    kvf_rx_count(w.rx, &after);
    if (after.pages_landed > before.pages_landed) w.digest += kvf_page_digest(f.page.block, f.page.layer, f.page.crc);
}
static void step(input *in) {
    kvf_frame f = {0};
    uint32_t spent, missing[BLOCKS], count;
    uint8_t op = take(in);
    switch (op % 10) {
    case 0: {
        size_t len = take_len(in);
        say(in->at, len);
        in->at += len;
        break;
    }
    case 1:
        f = (kvf_frame){.kind = KVF_FRAME_HELLO,
            .hello = {.node = "p1",
                .epoch = 11,
                .peer = "d1",
                .peer_epoch = 22,
                .generation = w.generation + op / 10 % 4,
                .identity = model}};
        say_frame(&f, NULL, 0);
        break;
    case 2:
        f = (kvf_frame){.kind = KVF_FRAME_OPEN,
            .open = {.grant = w.grant, .request = request, .attempt = w.attempt, .turn = 1 + op / 10 % 4}};
        kvf_grant_proof(secret, w.nonce, w.grant, request, w.attempt, f.open.turn, f.open.proof);
        say_frame(&f, NULL, 0);
        break;
    case 3: say_page(in); break;
    case 4:
        f = (kvf_frame){.kind = KVF_FRAME_COMMIT, .commit = {w.grant, take(in), w.digest ^ (take(in) & 1), {"x", 1}}};
        if (f.commit.page_count == 6) f.commit.page_count = BLOCKS * LAYERS;
        say_frame(&f, NULL, 0);
        break;
    case 5:
        f = (kvf_frame){.kind = take(in) & 1 ? KVF_FRAME_CANCEL : KVF_FRAME_RENEW, .cancel = {w.grant}};
        say_frame(&f, NULL, 0);
        break;
    case 6: say_any(in); break;
    case 7:
        if (kvf_rx_reoffer(w.rx, w.now, w.grant, w.attempt + 1, secret, &w.grant, missing, &count) != KVF_OK) break;
        w.attempt++;
        w.digest = 0;
        break;
    case 8:
        if (kvf_rx_revoke(w.rx, w.now, w.grant, KVF_ERR_CANCELLED, &spent) != KVF_OK) break;
        w.over = true;
        kvf_kv_unbook(w.kv, w.booked - spent);
        break;
    default: w.now += take(in) * 4u; kvf_rx_on_time(w.rx, w.now);
    }
    drain();
}

static void fuzz_receiver(input in) {
    receiver_once();
    memset(w.kv_memory, 0, w.kv_bytes);
    memset(w.rx_memory, 0, w.rx_bytes);
    w.kv = kvf_kv_init(w.kv_memory, &w.kc);
    w.rx = kvf_rx_init(w.rx_memory, &w.rc, w.kv);
    w.now = w.digest = 0;
    w.generation += 8; /* the endpoint outlives the input, and knows what its caller said before */
    w.over = w.up = false;
    w.attempt = 1;
    w.booked = BLOCKS;
    w.downs = 0;
    static const uint32_t missing[BLOCKS] = {0, 1, 2};
    must(kvf_kv_book(w.kv, BLOCKS) == KVF_OK, "book");
    must(kvf_rx_offer(w.rx, 0, request, 1, secret, missing, BLOCKS, &w.grant) == KVF_OK, "offer");
    kvf_transport_env env = {.base = w.base, .staging_bytes = 64 << 10, .loopback = w.hub};
    kvf_error err;
    must(kvf_transport_loopback.dial(&env, "d1", &w.conn, &err) == KVF_OK, "dial");
    w.conn->events =
        (kvf_conn_events){.on_open = ignore, .on_readable = ignore, .on_room = ignore, .on_down = ignore_down};
    loop();
    for (int n = 0; n < 200 && in.at < in.end; n++) step(&in);
    w.conn->ops->close(w.conn);
    loop();
    must(w.downs == 1 && !w.up, "a link ends once");
    kvf_rx_on_time(w.rx, w.now + TTL);
    drain();
    must(w.over, "the grant is over");
    kvf_kv_counts c;
    kvf_kv_count(w.kv, &c);
    must(c.free == POOL && c.pinned == 0 && c.in_use == 0 && c.booked == 0, "at rest");
}

/* ---------------------------------------------------------------- sender: any answers in any order */
static void fuzz_sender(input in) {
    static void *kv_memory, *tx_memory;
    const kvf_kv_config kc = {.blocks = POOL, .events_max = 8};
    const kvf_tx_config tc = {.handoffs_max = 2,
        .blocks_max = BLOCKS,
        .layers = LAYERS,
        .page_bytes = PAGE_BYTES,
        .inflight_max = 2,
        .hold_ttl_ns = TTL,
        .relink_ttl_ns = 100};
    size_t kv_bytes = (kvf_kv_size(&kc) + 63) & ~(size_t)63, tx_bytes = (kvf_tx_size(&tc) + 63) & ~(size_t)63;
    if (!kv_memory) kv_memory = aligned_alloc(64, kv_bytes), tx_memory = aligned_alloc(64, tx_bytes);
    must(kv_memory && tx_memory, "memory");
    kvf_kv *kv = kvf_kv_init(memset(kv_memory, 0, kv_bytes), &kc);
    kvf_tx *tx = kvf_tx_init(memset(tx_memory, 0, tx_bytes), &tc, kv);
    static const uint32_t missing[2] = {0, 2};
    kvf_tx_id id;
    kvf_block_id blocks[BLOCKS];
    uint64_t tokens[16];
    uint32_t tokens_count = 0, ends = 0;
    kvf_time_ns now = 1;
    kvf_link_id link = 0;
    kvf_error err;
    must(kvf_tx_start(tx, now, request, 1, 9, secret, missing, 2, &id) == KVF_OK && kvf_kv_book(kv, BLOCKS) == KVF_OK,
        "start");
    for (uint32_t b = 0; b < BLOCKS; b++) {
        must(kvf_kv_take(kv, &blocks[b]) == KVF_OK, "take");
        kvf_tx_set_block(tx, id, b, blocks[b]);
    }
    for (int n = 0; n < 300 && (in.at < in.end || ends == 0); n++) {
        kvf_page_name names[2] = {{take(&in) % 4, take(&in) % 3}, {2, 1}};
        kvf_frame f = {.kind = (kvf_frame_kind)(take(&in) % 13), .missing = {9, 2, names}};
        if (f.kind == KVF_FRAME_GONE) f.gone.reason = KVF_ERR_DEADLINE;
        switch (in.at < in.end ? take(&in) % 9 : 8) {
        case 0: kvf_tx_set_link(tx, now, id, ++link, secret); break;
        case 1: kvf_tx_pages_ready(tx, id, names[0].block, 1 + take(&in) % 4, KVF_TX_ALL_LAYERS); break;
        case 2: kvf_tx_pages_ready(tx, id, 0, BLOCKS, names[0].layer % LAYERS); break;
        case 3: kvf_tx_finish(tx, now, id, (kvf_span){"x", 1}); break;
        case 4: kvf_tx_on_frame(tx, now, link, &f); break;
        case 5: kvf_tx_on_link_down(tx, now, link); break;
        case 6:
            if (tokens_count) kvf_tx_on_page_sent(tx, now, tokens[--tokens_count], take(&in) & 1, 7);
            break;
        case 7: kvf_tx_on_time(tx, now += take(&in)); break;
        default:
            if (in.at >= in.end) { /* the script is over: everything comes to an end by itself */
                while (tokens_count) kvf_tx_on_page_sent(tx, now, tokens[--tokens_count], false, 0);
                kvf_tx_cancel(tx, now, id, KVF_ERR_CANCELLED);
            }
        }
        kvf_tx_act a;
        while (tokens_count < 16 && kvf_tx_next(tx, NULL, NULL, &a)) {
            if (a.kind == KVF_TX_PAGE) tokens[tokens_count++] = a.token;
            if (a.kind == KVF_TX_END) {
                must(a.id == id && ends++ == 0 && tokens_count == 0, "ends once, with nothing in flight");
                for (uint32_t b = BLOCKS; b-- > 0;) kvf_kv_unpin(kv, blocks[b]);
            }
        }
        must(kvf_tx_audit(tx, &err) == KVF_OK && kvf_kv_audit(kv, &err) == KVF_OK, "audit");
    }
    kvf_kv_counts c;
    kvf_kv_count(kv, &c);
    must(ends == 1 && kvf_tx_active(tx) == 0 && c.free == POOL, "at rest");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    input in = {data + 1, data + size};
    if (data[0] == 0)
        fuzz_decode(data + 1, size - 1);
    else if (data[0] & 1)
        fuzz_receiver(in);
    else
        fuzz_sender(in);
    return 0;
}
