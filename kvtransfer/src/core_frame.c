/* core_frame.c - frames to bytes and back. The byte tables stand in kvtransfer/README.md; golden bytes in
 * tests/unit/kvtransfer. Decoding believes nothing: every length is checked against the bytes that are there, and a
 * frame must use up its body exactly. */
#include "core_int.h"
#include "kvf/rng.h"

typedef struct {
    uint8_t *at, *end;
    bool ok;
} writer;

static uint8_t *put(writer *w, size_t len_bytes) {
    if (!w->ok || (size_t)(w->end - w->at) < len_bytes) {
        w->ok = false;
        return NULL;
    }
    uint8_t *p = w->at;
    w->at += len_bytes;
    return p;
}
static void put_u32(writer *w, uint32_t v) {
    uint8_t *p = put(w, 4);
    if (p) kvf_put_le32(p, v);
}
static void put_u64(writer *w, uint64_t v) {
    uint8_t *p = put(w, 8);
    if (p) kvf_put_le64(p, v);
}
static void put_bytes(writer *w, const void *data, size_t len_bytes) {
    uint8_t *p = put(w, len_bytes);
    if (p && len_bytes) memcpy(p, data, len_bytes);
}
static void put_text(writer *w, const char *text, size_t size_max) {
    const char *end = memchr(text, 0, size_max);
    if (!end) {
        w->ok = false;
        return;
    }
    uint8_t *p = put(w, 1);
    if (p) *p = (uint8_t)(end - text);
    put_bytes(w, text, (size_t)(end - text));
}

typedef struct {
    const uint8_t *at, *end;
    bool ok;
} reader;

static const uint8_t *get(reader *r, size_t len_bytes) {
    if (!r->ok || (size_t)(r->end - r->at) < len_bytes) {
        r->ok = false;
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += len_bytes;
    return p;
}
static uint32_t get_u32(reader *r) {
    const uint8_t *p = get(r, 4);
    return p ? kvf_get_le32(p) : 0;
}
static uint64_t get_u64(reader *r) {
    const uint8_t *p = get(r, 8);
    return p ? kvf_get_le64(p) : 0;
}
static void get_bytes(reader *r, void *out, size_t len_bytes) {
    const uint8_t *p = get(r, len_bytes);
    if (p) memcpy(out, p, len_bytes);
}
static void get_text(reader *r, char *out, size_t size_max) {
    const uint8_t *len = get(r, 1);
    const uint8_t *p = len ? get(r, *len) : NULL;
    if (!p || *len >= size_max || memchr(p, 0, *len)) {
        r->ok = false;
        return;
    }
    memcpy(out, p, *len);
    out[*len] = 0;
}

static void put_identity(writer *w, const kvf_identity *i) {
    put_u32(w, i->wire_version);
    put_u64(w, i->weights_hash[0]);
    put_u64(w, i->weights_hash[1]);
    put_u64(w, i->tokenizer_hash[0]);
    put_u64(w, i->tokenizer_hash[1]);
    const uint32_t fields[] = {i->block_tokens, i->layers, i->heads, i->kv_heads, i->head_dim, i->vocab, i->page_bytes,
        i->context_max, i->layout, i->rope_dims, i->rope_base_bits, i->rope_style};
    for (size_t n = 0; n < KVF_COUNT_OF(fields); n++) put_u32(w, fields[n]);
    put_text(w, i->numerics, sizeof i->numerics);
    put_text(w, i->kv_type, sizeof i->kv_type);
}

static void get_identity(reader *r, kvf_identity *i) {
    i->wire_version = get_u32(r);
    i->weights_hash[0] = get_u64(r);
    i->weights_hash[1] = get_u64(r);
    i->tokenizer_hash[0] = get_u64(r);
    i->tokenizer_hash[1] = get_u64(r);
    uint32_t *fields[] = {&i->block_tokens, &i->layers, &i->heads, &i->kv_heads, &i->head_dim, &i->vocab,
        &i->page_bytes, &i->context_max, &i->layout, &i->rope_dims, &i->rope_base_bits, &i->rope_style};
    for (size_t n = 0; n < KVF_COUNT_OF(fields); n++) *fields[n] = get_u32(r);
    get_text(r, i->numerics, sizeof i->numerics);
    get_text(r, i->kv_type, sizeof i->kv_type);
}

/* A status that this build does not know still means "over". */
static kvf_status known_status(uint32_t raw) {
    switch ((int32_t)raw) {
#define KNOWN(name, value, text) case value:
        KVF_STATUS_LIST(KNOWN)
#undef KNOWN
        return (kvf_status)(int32_t)raw;
    default: return KVF_ERR_GONE;
    }
}

static void put_grant_body(writer *w, const kvf_frame *f) {
    switch (f->kind) {
    case KVF_FRAME_OPEN:
        put_u64(w, f->open.grant);
        put_u64(w, f->open.request.router_epoch);
        put_u64(w, f->open.request.counter);
        put_u32(w, f->open.attempt);
        put_u32(w, f->open.turn);
        put_bytes(w, f->open.proof, sizeof f->open.proof);
        break;
    case KVF_FRAME_OPENED:
    case KVF_FRAME_COMMITTED:
    case KVF_FRAME_CANCEL: put_u64(w, f->opened.grant); break;
    case KVF_FRAME_PAGE:
        put_u64(w, f->page.grant);
        put_u32(w, f->page.block);
        put_u32(w, f->page.layer);
        put_u32(w, f->page.len_bytes);
        put_u32(w, f->page.crc);
        break;
    case KVF_FRAME_COMMIT:
        put_u64(w, f->commit.grant);
        put_u32(w, f->commit.page_count);
        put_u32(w, (uint32_t)f->commit.payload.len_bytes);
        put_u64(w, f->commit.digest);
        if (f->commit.payload.len_bytes > KVF_FRAME_COMMIT_PAYLOAD_MAX) w->ok = false;
        put_bytes(w, f->commit.payload.data, f->commit.payload.len_bytes);
        break;
    case KVF_FRAME_MISSING:
        put_u64(w, f->missing.grant);
        put_u32(w, f->missing.count);
        if (f->missing.count > KVF_FRAME_MISSING_MAX) w->ok = false;
        for (uint32_t i = 0; w->ok && i < f->missing.count; i++) {
            put_u32(w, f->missing.pages[i].block);
            put_u32(w, f->missing.pages[i].layer);
        }
        break;
    case KVF_FRAME_GONE:
        put_u64(w, f->gone.grant);
        put_u32(w, (uint32_t)f->gone.reason);
        break;
    default: w->ok = false;
    }
}

static void put_lane_body(writer *w, const kvf_frame *f) {
    if (f->kind == KVF_FRAME_LANE) {
        put_u32(w, f->lane.step);
        put_u32(w, f->lane.slots);
        put_u32(w, f->lane.slot_pages);
        put_u32(w, (uint32_t)f->lane.bytes.len_bytes);
        if (f->lane.bytes.len_bytes > KVF_FRAME_LANE_BYTES_MAX) w->ok = false;
        put_bytes(w, f->lane.bytes.data, f->lane.bytes.len_bytes);
    } else if (f->kind == KVF_FRAME_BATCH) {
        put_u32(w, f->batch.seq);
        put_u32(w, f->batch.count);
        if (f->batch.count == 0 || f->batch.count > KVF_FRAME_BATCH_MAX) w->ok = false;
        put_bytes(w, f->batch.pages, (size_t)f->batch.count * KVF_FRAME_BATCH_PAGE_BYTES);
    } else {
        put_u32(w, f->slot.seq);
        put_u32(w, f->slot.news);
    }
}

static void put_body(writer *w, const kvf_frame *f) {
    switch (f->kind) {
    case KVF_FRAME_HELLO:
        put_text(w, f->hello.node, sizeof f->hello.node);
        put_u64(w, f->hello.epoch);
        put_text(w, f->hello.peer, sizeof f->hello.peer);
        put_u64(w, f->hello.peer_epoch);
        put_u64(w, f->hello.generation);
        put_identity(w, &f->hello.identity);
        if (f->hello.lanes) put_u32(w, f->hello.lanes);
        break;
    case KVF_FRAME_WELCOME:
        put_text(w, f->welcome.node, sizeof f->welcome.node);
        put_u64(w, f->welcome.epoch);
        put_bytes(w, f->welcome.nonce, sizeof f->welcome.nonce);
        put_identity(w, &f->welcome.identity);
        if (f->welcome.lanes) put_u32(w, f->welcome.lanes);
        break;
    case KVF_FRAME_REFUSE:
        put_u32(w, (uint32_t)f->refuse.reason);
        put_text(w, f->refuse.field, sizeof f->refuse.field);
        put_text(w, f->refuse.mine, sizeof f->refuse.mine);
        put_text(w, f->refuse.yours, sizeof f->refuse.yours);
        break;
    case KVF_FRAME_RENEW: break;
    case KVF_FRAME_LANE:
    case KVF_FRAME_BATCH:
    case KVF_FRAME_SLOT: put_lane_body(w, f); break;
    default: put_grant_body(w, f);
    }
}

static uint32_t head_crc(const uint8_t *head, const uint8_t *body, size_t body_bytes) {
    return kvf_crc32c(kvf_crc32c(0, head, 8), body, body_bytes);
}

size_t kvf_frame_encode(const kvf_frame *frame, uint8_t *out, size_t room_bytes) {
    writer w = {.at = out, .end = out + room_bytes, .ok = true};
    uint8_t *head = put(&w, KVF_FRAME_HEAD_BYTES);
    if (!head) return 0;
    put_body(&w, frame);
    if (!w.ok) return 0;
    size_t written = (size_t)(w.at - out);
    size_t body_bytes = written - KVF_FRAME_HEAD_BYTES;
    uint32_t payload = frame->kind == KVF_FRAME_PAGE ? frame->page.len_bytes : 0;
    kvf_put_le32(head, (uint32_t)body_bytes + payload);
    head[4] = (uint8_t)frame->kind;
    head[5] = KVF_WIRE_VERSION;
    kvf_put_le16(head + 6, 0);
    kvf_put_le32(head + 8, head_crc(head, head + KVF_FRAME_HEAD_BYTES, body_bytes));
    return written;
}

kvf_status kvf_frame_measure(
    const uint8_t *head, uint32_t page_bytes_max, kvf_frame_kind *kind, uint32_t *whole_bytes) {
    uint32_t body = kvf_get_le32(head);
    if (head[4] < KVF_FRAME_HELLO || head[4] > KVF_FRAME_SLOT || kvf_get_le16(head + 6)) return KVF_ERR_FORMAT;
    if (head[5] != KVF_WIRE_VERSION) return KVF_ERR_UNSUPPORTED;
    bool page = head[4] == KVF_FRAME_PAGE;
    uint32_t body_min = page ? KVF_FRAME_PAGE_BYTES - KVF_FRAME_HEAD_BYTES : 0;
    uint32_t extra = page ? page_bytes_max : KVF_FRAME_BYTES_MAX - KVF_FRAME_HEAD_BYTES;
    if (body < body_min || body - body_min > extra) return KVF_ERR_FORMAT;
    *kind = (kvf_frame_kind)head[4];
    *whole_bytes = KVF_FRAME_HEAD_BYTES + body;
    return KVF_OK;
}

static void get_commit(reader *r, kvf_frame *f) {
    f->commit.grant = get_u64(r);
    f->commit.page_count = get_u32(r);
    uint32_t len = get_u32(r);
    f->commit.digest = get_u64(r);
    if (len > KVF_FRAME_COMMIT_PAYLOAD_MAX) r->ok = false;
    f->commit.payload = (kvf_span){get(r, len), len};
}

static void get_missing(reader *r, kvf_frame *f, kvf_page_name *names) {
    f->missing.grant = get_u64(r);
    f->missing.count = get_u32(r);
    f->missing.pages = names;
    if (f->missing.count > KVF_FRAME_MISSING_MAX) r->ok = false;
    for (uint32_t i = 0; r->ok && i < f->missing.count; i++) {
        names[i].block = get_u32(r);
        names[i].layer = get_u32(r);
    }
}

static void get_grant_body(reader *r, kvf_page_name *names, kvf_frame *f) {
    switch (f->kind) {
    case KVF_FRAME_OPEN:
        f->open.grant = get_u64(r);
        f->open.request.router_epoch = get_u64(r);
        f->open.request.counter = get_u64(r);
        f->open.attempt = get_u32(r);
        f->open.turn = get_u32(r);
        get_bytes(r, f->open.proof, sizeof f->open.proof);
        break;
    case KVF_FRAME_OPENED:
    case KVF_FRAME_COMMITTED:
    case KVF_FRAME_CANCEL: f->opened.grant = get_u64(r); break;
    case KVF_FRAME_PAGE:
        f->page.grant = get_u64(r);
        f->page.block = get_u32(r);
        f->page.layer = get_u32(r);
        f->page.len_bytes = get_u32(r);
        f->page.crc = get_u32(r);
        break;
    case KVF_FRAME_COMMIT: get_commit(r, f); break;
    case KVF_FRAME_MISSING: get_missing(r, f, names); break;
    case KVF_FRAME_GONE:
        f->gone.grant = get_u64(r);
        f->gone.reason = known_status(get_u32(r));
        break;
    default: r->ok = false;
    }
}

/* Not written where there is nothing to say: one frame, one row of bytes. */
static void get_lanes(reader *r, uint32_t *lanes) {
    if (!r->ok || r->at == r->end) return;
    *lanes = get_u32(r);
    if (*lanes == 0) r->ok = false;
}

static void get_lane_body(reader *r, kvf_frame *f) {
    if (f->kind == KVF_FRAME_LANE) {
        f->lane.step = get_u32(r);
        f->lane.slots = get_u32(r);
        f->lane.slot_pages = get_u32(r);
        uint32_t len = get_u32(r);
        if (len > KVF_FRAME_LANE_BYTES_MAX || f->lane.step < KVF_LANE_OFFER || f->lane.step > KVF_LANE_NOT)
            r->ok = false;
        f->lane.bytes = (kvf_span){get(r, len), len};
    } else if (f->kind == KVF_FRAME_BATCH) {
        f->batch.seq = get_u32(r);
        f->batch.count = get_u32(r);
        if (f->batch.count == 0 || f->batch.count > KVF_FRAME_BATCH_MAX) r->ok = false;
        f->batch.pages = get(r, (size_t)f->batch.count * KVF_FRAME_BATCH_PAGE_BYTES);
    } else {
        f->slot.seq = get_u32(r);
        f->slot.news = get_u32(r);
        if (f->slot.news < KVF_SLOT_POST || f->slot.news > KVF_SLOT_FREE) r->ok = false;
    }
}

static void get_body(reader *r, kvf_page_name *names, kvf_frame *f) {
    switch (f->kind) {
    case KVF_FRAME_HELLO:
        get_text(r, f->hello.node, sizeof f->hello.node);
        f->hello.epoch = get_u64(r);
        get_text(r, f->hello.peer, sizeof f->hello.peer);
        f->hello.peer_epoch = get_u64(r);
        f->hello.generation = get_u64(r);
        get_identity(r, &f->hello.identity);
        get_lanes(r, &f->hello.lanes);
        break;
    case KVF_FRAME_WELCOME:
        get_text(r, f->welcome.node, sizeof f->welcome.node);
        f->welcome.epoch = get_u64(r);
        get_bytes(r, f->welcome.nonce, sizeof f->welcome.nonce);
        get_identity(r, &f->welcome.identity);
        get_lanes(r, &f->welcome.lanes);
        break;
    case KVF_FRAME_REFUSE:
        f->refuse.reason = known_status(get_u32(r));
        get_text(r, f->refuse.field, sizeof f->refuse.field);
        get_text(r, f->refuse.mine, sizeof f->refuse.mine);
        get_text(r, f->refuse.yours, sizeof f->refuse.yours);
        break;
    case KVF_FRAME_RENEW: break;
    case KVF_FRAME_LANE:
    case KVF_FRAME_BATCH:
    case KVF_FRAME_SLOT: get_lane_body(r, f); break;
    default: get_grant_body(r, names, f);
    }
}

kvf_status kvf_frame_decode(kvf_span bytes, kvf_page_name *names, kvf_frame *out) {
    const uint8_t *head = bytes.data;
    kvf_frame_kind kind;
    uint32_t whole;
    if (bytes.len_bytes < KVF_FRAME_HEAD_BYTES || kvf_frame_measure(head, UINT32_MAX / 2, &kind, &whole))
        return KVF_ERR_FORMAT;
    size_t body_bytes = bytes.len_bytes - KVF_FRAME_HEAD_BYTES;
    if (kind == KVF_FRAME_PAGE ? bytes.len_bytes != KVF_FRAME_PAGE_BYTES : bytes.len_bytes != whole)
        return KVF_ERR_FORMAT;
    if (head_crc(head, head + KVF_FRAME_HEAD_BYTES, body_bytes) != kvf_get_le32(head + 8)) return KVF_ERR_CORRUPT;
    reader r = {.at = head + KVF_FRAME_HEAD_BYTES, .end = head + bytes.len_bytes, .ok = true};
    memset(out, 0, sizeof *out);
    out->kind = kind;
    get_body(&r, names, out);
    if (kind == KVF_FRAME_PAGE && out->page.len_bytes != whole - KVF_FRAME_PAGE_BYTES) return KVF_ERR_FORMAT;
    return r.ok && r.at == r.end ? KVF_OK : KVF_ERR_FORMAT;
}

uint32_t kvf_page_seed(const kvf_page_header *h, uint64_t receiver_epoch) {
    uint8_t name[24];
    kvf_put_le64(name, h->grant);
    kvf_put_le32(name + 8, h->block);
    kvf_put_le32(name + 12, h->layer);
    kvf_put_le64(name + 16, receiver_epoch);
    return kvf_crc32c(0, name, sizeof name);
}

uint32_t kvf_page_crc(const kvf_page_header *h, uint64_t receiver_epoch, const void *bytes) {
    return kvf_crc32c(kvf_page_seed(h, receiver_epoch), bytes, h->len_bytes);
}

void kvf_batch_page_put(uint8_t *at, const kvf_page_header *h) {
    kvf_put_le64(at, h->grant);
    kvf_put_le32(at + 8, h->block);
    kvf_put_le32(at + 12, h->layer);
    kvf_put_le32(at + 16, h->crc);
}

void kvf_batch_page_get(const kvf_frame *batch, uint32_t index, uint32_t page_bytes, kvf_page_header *out) {
    const uint8_t *at = batch->batch.pages + (size_t)index * KVF_FRAME_BATCH_PAGE_BYTES;
    *out = (kvf_page_header){.grant = kvf_get_le64(at),
        .block = kvf_get_le32(at + 8),
        .layer = kvf_get_le32(at + 12),
        .len_bytes = page_bytes,
        .crc = kvf_get_le32(at + 16)};
}

uint64_t kvf_page_digest(uint32_t block, uint32_t layer, uint32_t crc) {
    return kvf_rng_at(crc, block, layer); /* a sum of these does not depend on the order in which pages come */
}

void kvf_grant_proof(const uint8_t secret[16], const uint8_t nonce[16], uint64_t grant, kvf_request_id request,
    uint32_t attempt, uint32_t turn, uint8_t proof[32]) {
    uint8_t text[48];
    memcpy(text, nonce, 16);
    kvf_put_le64(text + 16, grant);
    kvf_put_le64(text + 24, request.router_epoch);
    kvf_put_le64(text + 32, request.counter);
    kvf_put_le32(text + 40, attempt);
    kvf_put_le32(text + 44, turn);
    kvf_hmac_sha256(secret, 16, text, sizeof text, proof);
}
