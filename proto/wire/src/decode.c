/* Protobuf messages to kvf messages. Nothing that comes from a peer is believed: each reader returns false after naming
 * the field in err; the first one that fails ends the message. */
#include "wire_int.h"
#include <inttypes.h>

typedef struct {
    kvf_arena *arena;
    kvf_error *err;
    bool full;
} reader;

static bool bad(reader *r, const char *field, const char *what) {
    kvf_fail(r->err, KVF_ERR_FORMAT, "%s: %s", field, what);
    return false;
}

static void *reader_take(reader *r, size_t len_bytes) {
    void *p = wire_take(r->arena, len_bytes);
    if (!p) {
        r->full = true;
        kvf_fail(r->err, KVF_ERR_NO_ROOM, "the arena of %zu bytes is too small", r->arena->size_bytes);
    }
    return p;
}

/* ---- atoms ---- */

static bool number(reader *r, const char *field, uint64_t value, uint64_t min, uint64_t max) {
    if (value >= min && value <= max) return true;
    kvf_fail(r->err, KVF_ERR_FORMAT, "%s: %" PRIu64 ", expected %" PRIu64 " to %" PRIu64, field, value, min, max);
    return false;
}

static bool text(reader *r, const char *field, const char *in, char *out, size_t out_bytes) {
    size_t len_bytes = in ? strnlen(in, out_bytes) : 0;
    if (len_bytes >= out_bytes) {
        kvf_fail(r->err, KVF_ERR_FORMAT, "%s: longer than %zu bytes", field, out_bytes - 1);
        return false;
    }
    if (len_bytes) memcpy(out, in, len_bytes);
    memset(out + len_bytes, 0, out_bytes - len_bytes);
    return true;
}

static bool request_id(reader *r, const char *field, const PB(RequestId) * in, kvf_request_id *out) {
    if (!in) return bad(r, field, "is missing");
    if (in->counter == 0) return bad(r, field, "counter 0 names no request");
    *out = (kvf_request_id){in->router_epoch, in->counter};
    return true;
}

static kvf_hash128 hash(const PB(Hash128) * in) { return in ? (kvf_hash128){in->lo, in->hi} : (kvf_hash128){0, 0}; }

static bool secret(reader *r, const char *field, ProtobufCBinaryData in, uint8_t out[16]) {
    if (in.len != 16) return bad(r, field, "expected 16 bytes");
    memcpy(out, in.data, 16);
    return true;
}

static bool is_status(int32_t value) {
    switch (value) {
#define CASE(name, number, text) case number:
        KVF_STATUS_LIST(CASE)
#undef CASE
        return true;
    default: return false;
    }
}

static bool status(reader *r, const char *field, int32_t value, kvf_status *out) {
    if (!is_status(value)) return bad(r, field, "no such status");
    *out = (kvf_status)value;
    return true;
}

static bool ascending(reader *r, const char *field, const uint32_t *in, size_t count) {
    if (!number(r, field, count, 0, KVF_WIRE_MISSING_MAX)) return false;
    for (size_t i = 1; i < count; i++)
        if (in[i] <= in[i - 1]) return bad(r, field, "must be ascending");
    return true;
}

/* ---- parts ---- */

static bool work(reader *r, const PB(Work) * in, kvf_work *w) {
    if (!in) return bad(r, "work", "is missing");
    *w = (kvf_work){.tokens = in->tokens, .tokens_count = (uint32_t)in->n_tokens, .salt = hash(in->salt)};
#define COPY(field) w->field = in->field;
    WIRE_WORK_NUMBERS(COPY)
#undef COPY
    w->sampling = (kvf_span){in->sampling.data, in->sampling.len};
    return request_id(r, "work.request", in->request, &w->request) &&
           number(r, "work.attempt", w->attempt, 1, UINT32_MAX) &&
           number(r, "work.tokens", in->n_tokens, 1, KVF_WIRE_TOKENS_MAX) &&
           number(r, "work.prompt_count", w->prompt_count, 1, in->n_tokens) &&
           number(r, "work.n", w->n, 1, in->n_tokens > w->prompt_count ? 1 : KVF_CHOICES_MAX) &&
           number(r, "work.choice_base", w->choice_base, 0, KVF_CHOICES_MAX - w->n) &&
           number(r, "work.output_max", w->output_max, 1, KVF_WIRE_TOKENS_MAX) &&
           number(r, "work.tokens", in->n_tokens - w->prompt_count, 0, w->output_max) &&
           number(r, "work.prompt_logprobs", w->prompt_logprobs, 0, KVF_WIRE_PROMPT_LOGPROBS_MAX) &&
           number(r, "work.sampling", in->sampling.len, 0, KVF_WIRE_SAMPLING_MAX);
}

static bool ship_to(reader *r, const PB(ShipTo) * in, kvf_ship_to *to) {
    if (!in) return bad(r, "to", "is missing");
    *to = (kvf_ship_to){.epoch = in->epoch,
        .host_id = in->host_id,
        .grant = in->grant,
        .missing = in->missing,
        .missing_count = (uint32_t)in->n_missing};
    return text(r, "to.node", in->node, to->node, sizeof to->node) &&
           text(r, "to.address", in->address, to->address, sizeof to->address) &&
           text(r, "to.local_address", in->local_address, to->local_address, sizeof to->local_address) &&
           secret(r, "to.secret", in->secret, to->secret) && ascending(r, "to.missing", in->missing, in->n_missing);
}

static bool rejected(reader *r, const PB(Stats) * in, kvf_node_stats *s) {
    if (in->n_rejected == 0) return true;
    if (!number(r, "stats.rejected", in->n_rejected, 0, KVF_REJECTED_MAX)) return false;
    kvf_rejected *list = reader_take(r, in->n_rejected * sizeof *list);
    if (!list) return false;
    for (size_t i = 0; i < in->n_rejected; i++) {
        const PB(Rejected) *p = in->rejected[i];
        if (!text(r, "stats.rejected.node", p->node, list[i].node, sizeof list[i].node) ||
            !number(r, "stats.rejected.frames", p->frames, 1, UINT64_MAX))
            return false;
        if (!list[i].node[0]) return bad(r, "stats.rejected.node", "is missing");
        list[i].frames = p->frames;
    }
    s->rejected = list;
    s->rejected_count = (uint32_t)in->n_rejected;
    return true;
}

static bool links(reader *r, const PB(Stats) * in, kvf_node_stats *s) {
    if (in->n_links == 0) return true;
    if (!number(r, "stats.links", in->n_links, 0, KVF_LINKS_TOLD_MAX)) return false;
    kvf_link_over *list = reader_take(r, in->n_links * sizeof *list);
    if (!list) return false;
    for (size_t i = 0; i < in->n_links; i++) {
        const PB(LinkOver) *p = in->links[i];
        if (!text(r, "stats.links.node", p->node, list[i].node, sizeof list[i].node) ||
            !text(r, "stats.links.transport", p->transport, list[i].transport, sizeof list[i].transport))
            return false;
        if (!list[i].node[0]) return bad(r, "stats.links.node", "is missing");
        if (!list[i].transport[0]) return bad(r, "stats.links.transport", "is missing");
    }
    s->links = list;
    s->links_count = (uint32_t)in->n_links;
    return true;
}

static bool stats(reader *r, const char *field, const PB(Stats) * in, kvf_node_stats *s) {
    if (!in) return bad(r, field, "is missing");
    if (!number(r, "stats.state", in->state, KVF_NODE_STARTING, KVF_NODE_LOST) ||
        !number(r, "stats.role", in->role, KVF_ROLE_PREFILL, KVF_ROLE_DECODE))
        return false;
    *s = (kvf_node_stats){.state = (kvf_node_state)in->state, .role = (kvf_role)in->role};
#define COPY(name) s->name = in->name;
    WIRE_STATS_NUMBERS(COPY)
#undef COPY
    return rejected(r, in, s) && links(r, in, s);
}

static bool identity(reader *r, const PB(Identity) * in, kvf_identity *i) {
    if (!in) return bad(r, "info.identity", "is missing");
    *i = (kvf_identity){0};
#define COPY(field) i->field = in->field;
    WIRE_IDENTITY_NUMBERS(COPY)
#undef COPY
    kvf_hash128 weights = hash(in->weights_hash), tokenizer = hash(in->tokenizer_hash);
    i->weights_hash[0] = weights.lo;
    i->weights_hash[1] = weights.hi;
    i->tokenizer_hash[0] = tokenizer.lo;
    i->tokenizer_hash[1] = tokenizer.hi;
    return text(r, "info.identity.numerics", in->numerics, i->numerics, sizeof i->numerics) &&
           text(r, "info.identity.kv_type", in->kv_type, i->kv_type, sizeof i->kv_type);
}

static bool node_info(reader *r, const PB(NodeInfo) * in, kvf_node_info *i) {
    if (!in) return bad(r, "info", "is missing");
    *i = (kvf_node_info){
        .epoch = in->epoch, .wire_version = in->wire_version, .host_id = in->host_id, .started_ns = in->started_ns};
    if (!number(r, "info.role", in->role, KVF_ROLE_PREFILL, KVF_ROLE_DECODE)) return false;
    i->role = (kvf_role)in->role;
    if (!in->node || !in->node[0]) return bad(r, "info.node", "is empty");
    return text(r, "info.node", in->node, i->node, sizeof i->node) &&
           text(r, "info.address", in->address, i->address, sizeof i->address) &&
           text(r, "info.local_address", in->local_address, i->local_address, sizeof i->local_address) &&
           text(r, "info.backend", in->backend, i->backend, sizeof i->backend) &&
           identity(r, in->identity, &i->identity);
}

/* ---- router to node ---- */

static bool hello(reader *r, const PB(Hello) * in, kvf_rmsg *out) {
    out->hello.router_epoch = in->router_epoch;
    out->hello.wire_version = in->wire_version;
    out->hello.events_seen = in->events_seen;
    if (in->router_epoch == 0) return bad(r, "hello.router_epoch", "is 0");
    if (!text(r, "hello.router", in->router, out->hello.router, sizeof out->hello.router) ||
        !number(r, "hello.live", in->n_live, 0, KVF_WIRE_LIVE_MAX))
        return false;
    kvf_live *live = reader_take(r, in->n_live * sizeof *live);
    if (!live) return false;
    for (size_t i = 0; i < in->n_live; i++) {
        const PB(Live) *l = in->live[i];
        if (!request_id(r, "hello.live.request", l->request, &live[i].request) ||
            !number(r, "hello.live.attempt", l->attempt, 1, UINT32_MAX) ||
            !number(r, "hello.live.index", l->index, 0, KVF_CHOICES_MAX - 1))
            return false;
        live[i].attempt = l->attempt;
        live[i].index = l->index;
        live[i].next_position = l->next_position;
    }
    out->hello.live = live;
    out->hello.live_count = (uint32_t)in->n_live;
    return true;
}

static bool blocks_query(reader *r, const PB(BlocksQuery) * in, kvf_rmsg *out) {
    out->blocks.query = in->query;
    out->blocks.limit = in->limit;
    out->blocks.name = hash(in->name);
    return !in->request || request_id(r, "blocks.request", in->request, &out->blocks.request);
}

static bool router_kind(reader *r, const PB(RouterMessage) * in, kvf_rmsg *out) {
    switch (in->kind_case) {
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_HELLO: out->kind = KVF_R_HELLO; return hello(r, in->hello, out);
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_RESERVE:
        out->kind = KVF_R_RESERVE;
        return work(r, in->reserve, &out->reserve);
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_PREFILL:
        out->kind = KVF_R_PREFILL;
        return work(r, in->prefill->work, &out->prefill.work) && ship_to(r, in->prefill->to, &out->prefill.to);
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_CANCEL:
        out->kind = KVF_R_CANCEL;
        out->cancel.attempt = in->cancel->attempt;
        out->cancel.finished = in->cancel->finished;
        return request_id(r, "cancel.request", in->cancel->request, &out->cancel.request);
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_ACK:
        out->kind = KVF_R_ACK;
        out->ack.number = in->ack->number;
        return true;
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_DRAIN:
        out->kind = KVF_R_DRAIN;
        out->drain.deadline_ns = in->drain->deadline_ns;
        return true;
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_UNDRAIN: out->kind = KVF_R_UNDRAIN; return true;
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_SET_ROLE:
        out->kind = KVF_R_SET_ROLE;
        out->set_role.role = (kvf_role)in->set_role->role;
        return number(r, "set_role.role", in->set_role->role, KVF_ROLE_PREFILL, KVF_ROLE_DECODE);
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_FLUSH:
        out->kind = KVF_R_FLUSH;
        out->flush.query = in->flush->query;
        return true;
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_AUDIT:
        out->kind = KVF_R_AUDIT;
        out->audit.query = in->audit->query;
        return true;
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_BLOCKS:
        out->kind = KVF_R_BLOCKS;
        return blocks_query(r, in->blocks, out);
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_SNAPSHOT: out->kind = KVF_R_SNAPSHOT; return true;
    case KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_SUPERSEDED: out->kind = KVF_R_SUPERSEDED; return true;
    default: return bad(r, "kind", "not known");
    }
}

kvf_status kvf_wire_rmsg_decode(const PB(RouterMessage) * in, kvf_arena *arena, kvf_rmsg *out, kvf_error *err) {
    reader r = {.arena = arena, .err = err};
    kvf_rmsg msg = {0};
    if (!router_kind(&r, in, &msg)) return r.full ? KVF_ERR_NO_ROOM : KVF_ERR_FORMAT;
    *out = msg;
    return KVF_OK;
}

/* ---- node to router ---- */

static bool granted(reader *r, const PB(Granted) * in, kvf_nmsg *out) {
    out->granted.grant = in->grant;
    out->granted.ttl_ns = in->ttl_ns;
    out->granted.cached_tokens = in->cached_tokens;
    out->granted.missing = in->missing;
    out->granted.missing_count = (uint32_t)in->n_missing;
    return secret(r, "granted.secret", in->secret, out->granted.secret) &&
           ascending(r, "granted.missing", in->missing, in->n_missing);
}

static bool refused(reader *r, const PB(Refused) * in, kvf_nmsg *out) {
    out->refused.retry_after_ns = in->retry_after_ns;
    if (in->reason == KVF_OK) return bad(r, "refused.reason", "is ok");
    return status(r, "refused.reason", in->reason, &out->refused.reason) &&
           text(r, "refused.field", in->field, out->refused.field, sizeof out->refused.field) &&
           text(r, "refused.text", in->text, out->refused.text, sizeof out->refused.text);
}

static bool token_item(reader *r, const PB(TokenItem) * in, kvf_token_item *item) {
    *item = (kvf_token_item){.attempt = in->attempt,
        .index = in->index,
        .position = in->position,
        .token = in->token,
        .end = (kvf_end)in->end,
        .repeated = in->again,
        .sample = {in->sample.data, in->sample.len}};
    return request_id(r, "tokens.items.request", in->request, &item->request) &&
           number(r, "tokens.items.attempt", in->attempt, 1, UINT32_MAX) &&
           number(r, "tokens.items.index", in->index, 0, KVF_CHOICES_MAX - 1) &&
           number(r, "tokens.items.end", in->end, KVF_END_NONE, KVF_END_LENGTH) &&
           number(r, "tokens.items.sample", in->sample.len, 0, KVF_SAMPLE_BYTES_MAX);
}

static bool tokens(reader *r, const PB(Tokens) * in, kvf_nmsg *out) {
    if (!number(r, "tokens.items", in->n_items, 0, KVF_WIRE_ITEMS_MAX)) return false;
    kvf_token_item *items = reader_take(r, in->n_items * sizeof *items);
    if (!items) return false;
    for (size_t i = 0; i < in->n_items; i++)
        if (!token_item(r, in->items[i], &items[i])) return false;
    out->tokens.number = in->number;
    out->tokens.items = items;
    out->tokens.count = (uint32_t)in->n_items;
    return true;
}

static bool prefilling(reader *r, const PB(Prefilling) * in, kvf_nmsg *out) {
    if (!number(r, "prefilling.items", in->n_items, 0, KVF_WIRE_ITEMS_MAX)) return false;
    kvf_prefilling_item *items = reader_take(r, in->n_items * sizeof *items);
    if (!items) return false;
    for (size_t i = 0; i < in->n_items; i++) {
        const PB(PrefillingItem) *item = in->items[i];
        items[i] = (kvf_prefilling_item){.attempt = item->attempt, .position = item->position, .count = item->count};
        if (!request_id(r, "prefilling.items.request", item->request, &items[i].request) ||
            !number(r, "prefilling.items.attempt", item->attempt, 1, UINT32_MAX) ||
            !number(r, "prefilling.items.position", item->position, 0, KVF_WIRE_TOKENS_MAX) ||
            !number(r, "prefilling.items.count", item->count, 1, KVF_WIRE_TOKENS_MAX))
            return false;
    }
    out->prefilling.items = items;
    out->prefilling.count = (uint32_t)in->n_items;
    return true;
}

static bool shipped(reader *r, const PB(Shipped) * in, kvf_nmsg *out) {
    if (!status(r, "shipped.result", in->result, &out->shipped.result)) return false;
    out->shipped.cached_tokens = in->cached_tokens;
    out->shipped.pages = in->pages;
    out->shipped.bytes = in->bytes;
    out->shipped.queue_ns = in->queue_ns;
    out->shipped.prefill_ns = in->prefill_ns;
    out->shipped.transfer_ns = in->transfer_ns;
    out->shipped.exposed_ns = in->exposed_ns;
    return true;
}

static bool failed(reader *r, const PB(Failed) * in, kvf_nmsg *out) {
    out->failed.stage = (kvf_stage)in->stage;
    out->failed.retryable = in->retryable;
    if (in->reason == KVF_OK) return bad(r, "failed.reason", "is ok");
    return number(r, "failed.stage", in->stage, KVF_STAGE_RESERVE, KVF_STAGE_DECODE) &&
           status(r, "failed.reason", in->reason, &out->failed.reason) &&
           text(r, "failed.peer", in->peer, out->failed.peer, sizeof out->failed.peer) &&
           text(r, "failed.text", in->text, out->failed.text, sizeof out->failed.text);
}

static bool prompt_logprobs(reader *r, const PB(PromptLogprobs) * in, kvf_nmsg *out) {
    if (!number(r, "prompt_logprobs.count", in->count, 1, KVF_WIRE_TOKENS_MAX) ||
        !number(r, "prompt_logprobs.start", in->start, 0, KVF_WIRE_TOKENS_MAX) ||
        !number(r, "prompt_logprobs.samples", in->samples.len, 1, (uint64_t)in->count * KVF_SAMPLE_BYTES_MAX))
        return false;
    if (in->samples.len % in->count) return bad(r, "prompt_logprobs.samples", "not a whole number of samples");
    out->prompt_logprobs.number = in->number;
    out->prompt_logprobs.start = in->start;
    out->prompt_logprobs.count = in->count;
    out->prompt_logprobs.samples = (kvf_span){in->samples.data, in->samples.len};
    return true;
}

static kvf_hash128 name_at(ProtobufCBinaryData names, size_t i) {
    return (kvf_hash128){kvf_get_le64(names.data + i * 16), kvf_get_le64(names.data + i * 16 + 8)};
}

static bool events(reader *r, const PB(Events) * in, kvf_nmsg *out) {
    size_t count = in->n_stored;
    if (!number(r, "events.stored", count, 0, KVF_WIRE_NAMES_MAX)) return false;
    if (in->names.len != count * 16) return bad(r, "events.names", "expected 16 bytes for each of `stored`");
    if (in->first == 0 || in->first > UINT64_MAX - count) return bad(r, "events.first", "out of range");
    kvf_block_event *list = reader_take(r, count * sizeof *list);
    if (!list) return false;
    for (size_t i = 0; i < count; i++) list[i] = (kvf_block_event){in->stored[i] != 0, name_at(in->names, i)};
    out->events.first = in->first;
    out->events.events = list;
    out->events.count = (uint32_t)count;
    return true;
}

static bool snapshot(reader *r, const PB(Snapshot) * in, kvf_nmsg *out) {
    size_t count = in->names.len / 16;
    if (!number(r, "snapshot.names", count, 0, KVF_WIRE_NAMES_MAX)) return false;
    if (in->names.len % 16) return bad(r, "snapshot.names", "not a whole number of names");
    if (in->events_next == 0) return bad(r, "snapshot.events_next", "is 0");
    kvf_hash128 *names = reader_take(r, count * sizeof *names);
    if (!names) return false;
    for (size_t i = 0; i < count; i++) names[i] = name_at(in->names, i);
    out->snapshot.events_next = in->events_next;
    out->snapshot.names = names;
    out->snapshot.count = (uint32_t)count;
    out->snapshot.first = in->first;
    out->snapshot.last = in->last;
    return true;
}

static bool audit(reader *r, const PB(AuditReport) * in, kvf_nmsg *out) {
    out->audit.query = in->query;
    out->audit.blocks_checked = in->blocks_checked;
    out->audit.at_rest = in->at_rest;
    out->audit.clean = in->clean;
    return text(r, "audit.invariant", in->invariant, out->audit.invariant, sizeof out->audit.invariant) &&
           text(r, "audit.detail", in->detail, out->audit.detail, sizeof out->audit.detail) &&
           stats(r, "audit.stats", in->stats, &out->audit.stats);
}

static bool block_report(reader *r, const PB(BlockReport) * in, kvf_block_report *b) {
    *b = (kvf_block_report){.block = in->block,
        .generation = in->generation,
        .state = in->state,
        .pins = in->pins,
        .uses = in->uses,
        .tokens = in->tokens,
        .indexed = in->indexed,
        .name = hash(in->name)};
    if (!number(r, "blocks.blocks.state", in->state, 0, 2) ||
        !number(r, "blocks.blocks.requests", in->n_requests, 0, KVF_COUNT_OF(b->requests)))
        return false;
    for (size_t i = 0; i < in->n_requests; i++)
        if (!request_id(r, "blocks.blocks.requests", in->requests[i], &b->requests[i])) return false;
    return true;
}

static bool blocks(reader *r, const PB(BlocksReport) * in, kvf_nmsg *out) {
    if (!number(r, "blocks.blocks", in->n_blocks, 0, KVF_WIRE_REPORTS_MAX)) return false;
    kvf_block_report *list = reader_take(r, in->n_blocks * sizeof *list);
    if (!list) return false;
    for (size_t i = 0; i < in->n_blocks; i++)
        if (!block_report(r, in->blocks[i], &list[i])) return false;
    out->blocks.query = in->query;
    out->blocks.blocks = list;
    out->blocks.count = (uint32_t)in->n_blocks;
    out->blocks.truncated = in->truncated;
    return true;
}

/* Kinds that are not about one attempt. */
static bool of_node(kvf_n_kind kind) {
    switch (kind) {
    case KVF_N_WELCOME:
    case KVF_N_TOKENS:
    case KVF_N_STATUS:
    case KVF_N_EVENTS:
    case KVF_N_SNAPSHOT:
    case KVF_N_AUDIT:
    case KVF_N_BLOCKS:
    case KVF_N_FLUSHED:
    case KVF_N_PREFILLING: return true;
    default: return false;
    }
}

#define NODE(KIND)                                                                                                     \
    case KVFERRY__INTERNAL__V1__NODE_MESSAGE__KIND_##KIND: out->kind = KVF_N_##KIND
static bool node_kind(reader *r, const PB(NodeMessage) * in, kvf_nmsg *out) {
    switch (in->kind_case) {
        NODE(WELCOME);
        return node_info(r, in->welcome->info, &out->welcome.info) &&
               stats(r, "welcome.stats", in->welcome->stats, &out->welcome.stats);
        NODE(GRANTED);
        return granted(r, in->granted, out);
        NODE(LOCAL);
        out->local.cached_tokens = in->local->cached_tokens;
        return true;
        NODE(QUEUED);
        out->queued.place = in->queued->place;
        return true;
        NODE(REFUSED);
        return refused(r, in->refused, out);
        NODE(STALE);
        return true;
        NODE(ALREADY_STARTED);
        out->already_started.attempt = in->already_started->attempt;
        out->already_started.position = in->already_started->position;
        return number(r, "already_started.attempt", in->already_started->attempt, 1, UINT32_MAX);
        NODE(TOKENS);
        return tokens(r, in->tokens, out);
        NODE(STARTED);
        return true;
        NODE(SHIPPED);
        return shipped(r, in->shipped, out);
        NODE(FAILED);
        return failed(r, in->failed, out);
        NODE(PREEMPTED);
        out->preempted.next_position = in->preempted->next_position;
        return true;
        NODE(PROMPT_LOGPROBS);
        return prompt_logprobs(r, in->prompt_logprobs, out);
        NODE(STATUS);
        return stats(r, "status", in->status, &out->status);
        NODE(EVENTS);
        return events(r, in->events, out);
        NODE(SNAPSHOT);
        return snapshot(r, in->snapshot, out);
        NODE(AUDIT);
        return audit(r, in->audit, out);
        NODE(BLOCKS);
        return blocks(r, in->blocks, out);
        NODE(FLUSHED);
        out->flushed.query = in->flushed->query;
        out->flushed.blocks_freed = in->flushed->blocks_freed;
        return true;
        NODE(PREFILLING);
        return prefilling(r, in->prefilling, out);
    default: return bad(r, "kind", "not known");
    }
}

kvf_status kvf_wire_nmsg_decode(const PB(NodeMessage) * in, kvf_arena *arena, kvf_nmsg *out, kvf_error *err) {
    reader r = {.arena = arena, .err = err};
    kvf_nmsg msg = {.attempt = in->attempt};
    bool good = node_kind(&r, in, &msg);
    if (good && !of_node(msg.kind))
        good =
            request_id(&r, "request", in->request, &msg.request) && number(&r, "attempt", in->attempt, 1, UINT32_MAX);
    else if (good && in->request)
        good = request_id(&r, "request", in->request, &msg.request);
    if (!good) return r.full ? KVF_ERR_NO_ROOM : KVF_ERR_FORMAT;
    *out = msg;
    return KVF_OK;
}

/* ---- bytes ---- */

typedef struct {
    kvf_arena *arena;
    bool full;
} parse_memory;

static void *parse_alloc(void *self, size_t len_bytes) {
    parse_memory *m = self;
    void *p = wire_take(m->arena, len_bytes);
    if (!p) m->full = true;
    return p;
}

static void parse_free(void *self, void *pointer) {
    (void)self;
    (void)pointer; /* with the arena */
}

static kvf_status parse(
    kvf_span bytes, kvf_arena *arena, const ProtobufCMessageDescriptor *type, ProtobufCMessage **out, kvf_error *err) {
    parse_memory memory = {.arena = arena};
    ProtobufCAllocator allocator = {.alloc = parse_alloc, .free = parse_free, .allocator_data = &memory};
    *out = protobuf_c_message_unpack(type, &allocator, bytes.len_bytes, bytes.data);
    if (*out) return KVF_OK;
    if (memory.full) return kvf_fail(err, KVF_ERR_NO_ROOM, "the arena of %zu bytes is too small", arena->size_bytes);
    return kvf_fail(err, KVF_ERR_FORMAT, "not a message of kvferry.internal.v1");
}

kvf_status kvf_wire_rmsg_parse(kvf_span bytes, kvf_arena *arena, kvf_rmsg *out, kvf_error *err) {
    ProtobufCMessage *p;
    kvf_status got = parse(bytes, arena, &kvferry__internal__v1__router_message__descriptor, &p, err);
    return got == KVF_OK ? kvf_wire_rmsg_decode((const PB(RouterMessage) *)p, arena, out, err) : got;
}

kvf_status kvf_wire_nmsg_parse(kvf_span bytes, kvf_arena *arena, kvf_nmsg *out, kvf_error *err) {
    ProtobufCMessage *p;
    kvf_status got = parse(bytes, arena, &kvferry__internal__v1__node_message__descriptor, &p, err);
    return got == KVF_OK ? kvf_wire_nmsg_decode((const PB(NodeMessage) *)p, arena, out, err) : got;
}
