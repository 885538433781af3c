/* kvf messages to protobuf messages. Texts, tokens and samples are borrowed, not copied. */
#include "wire_int.h"

/* Taking from the arena can fail only for lack of room: the first failure is remembered and the rest does nothing. */
typedef struct {
    kvf_arena *arena;
    bool full;
} maker;

static void *make_bytes(maker *m, size_t len_bytes) {
    void *p = m->full ? NULL : wire_take(m->arena, len_bytes);
    if (!p) m->full = true;
    return p;
}

/* MAKE(m, Type, type): a fresh message of the generated type, or NULL. */
#define DEFINE_MAKE(Type, type)                                                                                        \
    static PB(Type) * make_##type(maker *m) {                                                                          \
        PB(Type) *p = make_bytes(m, sizeof *p);                                                                        \
        if (p) kvferry__internal__v1__##type##__init(p);                                                               \
        return p;                                                                                                      \
    }
DEFINE_MAKE(RouterMessage, router_message)
DEFINE_MAKE(NodeMessage, node_message)
DEFINE_MAKE(RequestId, request_id)
DEFINE_MAKE(Hash128, hash128)
DEFINE_MAKE(Work, work)
DEFINE_MAKE(ShipTo, ship_to)
DEFINE_MAKE(Live, live)
DEFINE_MAKE(Hello, hello)
DEFINE_MAKE(Prefill, prefill)
DEFINE_MAKE(Cancel, cancel)
DEFINE_MAKE(Ack, ack)
DEFINE_MAKE(Drain, drain)
DEFINE_MAKE(SetRole, set_role)
DEFINE_MAKE(Query, query)
DEFINE_MAKE(BlocksQuery, blocks_query)
DEFINE_MAKE(Nothing, nothing)
DEFINE_MAKE(Rejected, rejected)
DEFINE_MAKE(LinkOver, link_over)
DEFINE_MAKE(Stats, stats)
DEFINE_MAKE(Identity, identity)
DEFINE_MAKE(NodeInfo, node_info)
DEFINE_MAKE(Welcome, welcome)
DEFINE_MAKE(Granted, granted)
DEFINE_MAKE(Local, local)
DEFINE_MAKE(Queued, queued)
DEFINE_MAKE(Refused, refused)
DEFINE_MAKE(AlreadyStarted, already_started)
DEFINE_MAKE(TokenItem, token_item)
DEFINE_MAKE(Tokens, tokens)
DEFINE_MAKE(Shipped, shipped)
DEFINE_MAKE(Failed, failed)
DEFINE_MAKE(Preempted, preempted)
DEFINE_MAKE(PromptLogprobs, prompt_logprobs)
DEFINE_MAKE(Events, events)
DEFINE_MAKE(Snapshot, snapshot)
DEFINE_MAKE(AuditReport, audit_report)
DEFINE_MAKE(BlockReport, block_report)
DEFINE_MAKE(BlocksReport, blocks_report)
DEFINE_MAKE(Flushed, flushed)
DEFINE_MAKE(PrefillingItem, prefilling_item)
DEFINE_MAKE(Prefilling, prefilling)

/* Protobuf-c's types are not const; nothing writes through them here. */
static char *text(const char *s) { return (char *)(uintptr_t)s; }
static ProtobufCBinaryData binary(const void *data, size_t len_bytes) {
    return (ProtobufCBinaryData){.len = len_bytes, .data = (uint8_t *)(uintptr_t)data};
}
static uint32_t *numbers(const uint32_t *p) { return (uint32_t *)(uintptr_t)p; }

/* ---- parts ---- */

static PB(RequestId) * request_id(maker *m, kvf_request_id id) {
    PB(RequestId) *p = make_request_id(m);
    if (!p) return NULL;
    p->router_epoch = id.router_epoch;
    p->counter = id.counter;
    return p;
}

static PB(RequestId) * request_id_or_none(maker *m, kvf_request_id id) {
    return id.router_epoch || id.counter ? request_id(m, id) : NULL;
}

static PB(Hash128) * hash_or_none(maker *m, uint64_t lo, uint64_t hi) {
    if (!lo && !hi) return NULL;
    PB(Hash128) *p = make_hash128(m);
    if (!p) return NULL;
    p->lo = lo;
    p->hi = hi;
    return p;
}

static PB(Work) * work(maker *m, const kvf_work *w) {
    PB(Work) *p = make_work(m);
    if (!p) return NULL;
#define COPY(field) p->field = w->field;
    WIRE_WORK_NUMBERS(COPY)
#undef COPY
    p->request = request_id(m, w->request);
    p->tokens = numbers(w->tokens);
    p->n_tokens = w->tokens_count;
    p->salt = hash_or_none(m, w->salt.lo, w->salt.hi);
    p->sampling = binary(w->sampling.data, w->sampling.len_bytes);
    return p;
}

static PB(ShipTo) * ship_to(maker *m, const kvf_ship_to *to) {
    PB(ShipTo) *p = make_ship_to(m);
    if (!p) return NULL;
    p->node = text(to->node);
    p->epoch = to->epoch;
    p->address = text(to->address);
    p->local_address = text(to->local_address);
    p->host_id = to->host_id;
    p->grant = to->grant;
    p->secret = binary(to->secret, sizeof to->secret);
    p->missing = numbers(to->missing);
    p->n_missing = to->missing_count;
    return p;
}

static PB(Rejected) * rejected(maker *m, const kvf_rejected *r) {
    PB(Rejected) *p = make_rejected(m);
    if (!p) return NULL;
    p->node = text(r->node);
    p->frames = r->frames;
    return p;
}

static PB(LinkOver) * link_over(maker *m, const kvf_link_over *l) {
    PB(LinkOver) *p = make_link_over(m);
    if (!p) return NULL;
    p->node = text(l->node);
    p->transport = text(l->transport);
    return p;
}

static PB(Stats) * stats(maker *m, const kvf_node_stats *s) {
    PB(Stats) *p = make_stats(m);
    if (!p) return NULL;
    p->state = s->state;
    p->role = s->role;
#define COPY(field) p->field = s->field;
    WIRE_STATS_NUMBERS(COPY)
#undef COPY
    if (s->rejected_count) p->rejected = make_bytes(m, s->rejected_count * sizeof *p->rejected);
    for (uint32_t i = 0; !m->full && i < s->rejected_count; i++)
        p->rejected[p->n_rejected++] = rejected(m, &s->rejected[i]);
    if (s->links_count) p->links = make_bytes(m, s->links_count * sizeof *p->links);
    for (uint32_t i = 0; !m->full && i < s->links_count; i++) p->links[p->n_links++] = link_over(m, &s->links[i]);
    return p;
}

static PB(Identity) * identity(maker *m, const kvf_identity *i) {
    PB(Identity) *p = make_identity(m);
    if (!p) return NULL;
#define COPY(field) p->field = i->field;
    WIRE_IDENTITY_NUMBERS(COPY)
#undef COPY
    p->weights_hash = hash_or_none(m, i->weights_hash[0], i->weights_hash[1]);
    p->tokenizer_hash = hash_or_none(m, i->tokenizer_hash[0], i->tokenizer_hash[1]);
    p->numerics = text(i->numerics);
    p->kv_type = text(i->kv_type);
    return p;
}

static PB(NodeInfo) * node_info(maker *m, const kvf_node_info *i) {
    PB(NodeInfo) *p = make_node_info(m);
    if (!p) return NULL;
    p->node = text(i->node);
    p->epoch = i->epoch;
    p->wire_version = i->wire_version;
    p->role = i->role;
    p->host_id = i->host_id;
    p->started_ns = i->started_ns;
    p->address = text(i->address);
    p->local_address = text(i->local_address);
    p->backend = text(i->backend);
    p->identity = identity(m, &i->identity);
    return p;
}

/* ---- router to node ---- */

static PB(Hello) * hello(maker *m, const kvf_rmsg *msg) {
    PB(Hello) *p = make_hello(m);
    if (!p) return NULL;
    p->router = text(msg->hello.router);
    p->router_epoch = msg->hello.router_epoch;
    p->wire_version = msg->hello.wire_version;
    p->events_seen = msg->hello.events_seen;
    p->live = make_bytes(m, msg->hello.live_count * sizeof *p->live);
    for (uint32_t i = 0; !m->full && i < msg->hello.live_count; i++) {
        const kvf_live *live = &msg->hello.live[i];
        PB(Live) *l = make_live(m);
        if (!l) return NULL;
        l->request = request_id(m, live->request);
        l->attempt = live->attempt;
        l->index = live->index;
        l->next_position = live->next_position;
        p->live[p->n_live++] = l;
    }
    return p;
}

static PB(Prefill) * prefill(maker *m, const kvf_rmsg *msg) {
    PB(Prefill) *p = make_prefill(m);
    if (!p) return NULL;
    p->work = work(m, &msg->prefill.work);
    p->to = ship_to(m, &msg->prefill.to);
    return p;
}

static PB(Cancel) * cancel(maker *m, const kvf_rmsg *msg) {
    PB(Cancel) *p = make_cancel(m);
    if (!p) return NULL;
    p->request = request_id(m, msg->cancel.request);
    p->attempt = msg->cancel.attempt;
    p->finished = msg->cancel.finished;
    return p;
}

static PB(BlocksQuery) * blocks_query(maker *m, const kvf_rmsg *msg) {
    PB(BlocksQuery) *p = make_blocks_query(m);
    if (!p) return NULL;
    p->query = msg->blocks.query;
    p->request = request_id_or_none(m, msg->blocks.request);
    p->name = hash_or_none(m, msg->blocks.name.lo, msg->blocks.name.hi);
    p->limit = msg->blocks.limit;
    return p;
}

static PB(Query) * query(maker *m, uint64_t number) {
    PB(Query) *p = make_query(m);
    if (p) p->query = number;
    return p;
}

/* CASE: the oneof member `field` of kind KIND, made by `expression`. */
#define ROUTER(KIND) p->kind_case = KVFERRY__INTERNAL__V1__ROUTER_MESSAGE__KIND_##KIND
static void router_kind(maker *m, const kvf_rmsg *msg, PB(RouterMessage) * p) {
    switch (msg->kind) {
    case KVF_R_HELLO: p->hello = hello(m, msg), ROUTER(HELLO); return;
    case KVF_R_RESERVE: p->reserve = work(m, &msg->reserve), ROUTER(RESERVE); return;
    case KVF_R_PREFILL: p->prefill = prefill(m, msg), ROUTER(PREFILL); return;
    case KVF_R_CANCEL: p->cancel = cancel(m, msg), ROUTER(CANCEL); return;
    case KVF_R_ACK:
        if ((p->ack = make_ack(m))) p->ack->number = msg->ack.number;
        ROUTER(ACK);
        return;
    case KVF_R_DRAIN:
        if ((p->drain = make_drain(m))) p->drain->deadline_ns = msg->drain.deadline_ns;
        ROUTER(DRAIN);
        return;
    case KVF_R_UNDRAIN: p->undrain = make_nothing(m), ROUTER(UNDRAIN); return;
    case KVF_R_SET_ROLE:
        if ((p->set_role = make_set_role(m))) p->set_role->role = msg->set_role.role;
        ROUTER(SET_ROLE);
        return;
    case KVF_R_FLUSH: p->flush = query(m, msg->flush.query), ROUTER(FLUSH); return;
    case KVF_R_AUDIT: p->audit = query(m, msg->audit.query), ROUTER(AUDIT); return;
    case KVF_R_BLOCKS: p->blocks = blocks_query(m, msg), ROUTER(BLOCKS); return;
    case KVF_R_SNAPSHOT: p->snapshot = make_nothing(m), ROUTER(SNAPSHOT); return;
    case KVF_R_SUPERSEDED: p->superseded = make_nothing(m), ROUTER(SUPERSEDED); return;
    }
    KVF_ASSERT(!"a kind of router message");
}

kvf_status kvf_wire_rmsg_encode(const kvf_rmsg *msg, kvf_arena *arena, PB(RouterMessage) * *out) {
    maker m = {.arena = arena};
    PB(RouterMessage) *p = make_router_message(&m);
    if (p) router_kind(&m, msg, p);
    if (m.full) return KVF_ERR_NO_ROOM;
    *out = p;
    return KVF_OK;
}

/* ---- node to router ---- */

static PB(Welcome) * welcome(maker *m, const kvf_nmsg *msg) {
    PB(Welcome) *p = make_welcome(m);
    if (!p) return NULL;
    p->info = node_info(m, &msg->welcome.info);
    p->stats = stats(m, &msg->welcome.stats);
    return p;
}

static PB(Granted) * granted(maker *m, const kvf_nmsg *msg) {
    PB(Granted) *p = make_granted(m);
    if (!p) return NULL;
    p->grant = msg->granted.grant;
    p->secret = binary(msg->granted.secret, sizeof msg->granted.secret);
    p->ttl_ns = msg->granted.ttl_ns;
    p->cached_tokens = msg->granted.cached_tokens;
    p->missing = numbers(msg->granted.missing);
    p->n_missing = msg->granted.missing_count;
    return p;
}

static PB(Refused) * refused(maker *m, const kvf_nmsg *msg) {
    PB(Refused) *p = make_refused(m);
    if (!p) return NULL;
    p->reason = msg->refused.reason;
    p->field = text(msg->refused.field);
    p->text = text(msg->refused.text);
    p->retry_after_ns = msg->refused.retry_after_ns;
    return p;
}

static PB(TokenItem) * token_item(maker *m, const kvf_token_item *item) {
    PB(TokenItem) *p = make_token_item(m);
    if (!p) return NULL;
    p->request = request_id(m, item->request);
    p->attempt = item->attempt;
    p->index = item->index;
    p->position = item->position;
    p->token = item->token;
    p->end = item->end;
    p->again = item->repeated;
    p->sample = binary(item->sample.data, item->sample.len_bytes);
    return p;
}

static PB(Tokens) * tokens(maker *m, const kvf_nmsg *msg) {
    PB(Tokens) *p = make_tokens(m);
    if (!p) return NULL;
    p->number = msg->tokens.number;
    p->items = make_bytes(m, msg->tokens.count * sizeof *p->items);
    for (uint32_t i = 0; !m->full && i < msg->tokens.count; i++)
        p->items[p->n_items++] = token_item(m, &msg->tokens.items[i]);
    return p;
}

static PB(Shipped) * shipped(maker *m, const kvf_nmsg *msg) {
    PB(Shipped) *p = make_shipped(m);
    if (!p) return NULL;
    p->result = msg->shipped.result;
    p->cached_tokens = msg->shipped.cached_tokens;
    p->pages = msg->shipped.pages;
    p->bytes = msg->shipped.bytes;
    p->queue_ns = msg->shipped.queue_ns;
    p->prefill_ns = msg->shipped.prefill_ns;
    p->transfer_ns = msg->shipped.transfer_ns;
    p->exposed_ns = msg->shipped.exposed_ns;
    return p;
}

static PB(Failed) * failed(maker *m, const kvf_nmsg *msg) {
    PB(Failed) *p = make_failed(m);
    if (!p) return NULL;
    p->stage = msg->failed.stage;
    p->reason = msg->failed.reason;
    p->peer = text(msg->failed.peer);
    p->retryable = msg->failed.retryable;
    p->text = text(msg->failed.text);
    return p;
}

static PB(PromptLogprobs) * prompt_logprobs(maker *m, const kvf_nmsg *msg) {
    PB(PromptLogprobs) *p = make_prompt_logprobs(m);
    if (!p) return NULL;
    p->number = msg->prompt_logprobs.number;
    p->start = msg->prompt_logprobs.start;
    p->count = msg->prompt_logprobs.count;
    p->samples = binary(msg->prompt_logprobs.samples.data, msg->prompt_logprobs.samples.len_bytes);
    return p;
}

static void put_name(uint8_t *to, kvf_hash128 name) {
    kvf_put_le64(to, name.lo);
    kvf_put_le64(to + 8, name.hi);
}

static PB(Events) * events(maker *m, const kvf_nmsg *msg) {
    uint32_t count = msg->events.count;
    PB(Events) *p = make_events(m);
    if (!p) return NULL;
    p->first = msg->events.first;
    p->stored = make_bytes(m, count * sizeof *p->stored);
    uint8_t *names = make_bytes(m, (size_t)count * 16);
    if (m->full) return NULL;
    for (uint32_t i = 0; i < count; i++) {
        p->stored[i] = msg->events.events[i].stored;
        put_name(names + (size_t)i * 16, msg->events.events[i].name);
    }
    p->n_stored = count;
    p->names = binary(names, (size_t)count * 16);
    return p;
}

static PB(Snapshot) * snapshot(maker *m, const kvf_nmsg *msg) {
    uint32_t count = msg->snapshot.count;
    PB(Snapshot) *p = make_snapshot(m);
    uint8_t *names = make_bytes(m, (size_t)count * 16);
    if (m->full) return NULL;
    for (uint32_t i = 0; i < count; i++) put_name(names + (size_t)i * 16, msg->snapshot.names[i]);
    p->events_next = msg->snapshot.events_next;
    p->names = binary(names, (size_t)count * 16);
    p->first = msg->snapshot.first;
    p->last = msg->snapshot.last;
    return p;
}

static PB(AuditReport) * audit(maker *m, const kvf_nmsg *msg) {
    PB(AuditReport) *p = make_audit_report(m);
    if (!p) return NULL;
    p->query = msg->audit.query;
    p->blocks_checked = msg->audit.blocks_checked;
    p->at_rest = msg->audit.at_rest;
    p->clean = msg->audit.clean;
    p->invariant = text(msg->audit.invariant);
    p->detail = text(msg->audit.detail);
    p->stats = stats(m, &msg->audit.stats);
    return p;
}

static PB(BlockReport) * block_report(maker *m, const kvf_block_report *b) {
    PB(BlockReport) *p = make_block_report(m);
    if (!p) return NULL;
    p->block = b->block;
    p->generation = b->generation;
    p->state = b->state;
    p->pins = b->pins;
    p->uses = b->uses;
    p->tokens = b->tokens;
    p->indexed = b->indexed;
    p->name = hash_or_none(m, b->name.lo, b->name.hi);
    p->requests = make_bytes(m, KVF_COUNT_OF(b->requests) * sizeof *p->requests);
    for (size_t i = 0; !m->full && i < KVF_COUNT_OF(b->requests) && b->requests[i].counter; i++)
        p->requests[p->n_requests++] = request_id(m, b->requests[i]);
    return p;
}

static PB(BlocksReport) * blocks(maker *m, const kvf_nmsg *msg) {
    PB(BlocksReport) *p = make_blocks_report(m);
    if (!p) return NULL;
    p->query = msg->blocks.query;
    p->truncated = msg->blocks.truncated;
    p->blocks = make_bytes(m, msg->blocks.count * sizeof *p->blocks);
    for (uint32_t i = 0; !m->full && i < msg->blocks.count; i++)
        p->blocks[p->n_blocks++] = block_report(m, &msg->blocks.blocks[i]);
    return p;
}

static PB(Flushed) * flushed(maker *m, const kvf_nmsg *msg) {
    PB(Flushed) *p = make_flushed(m);
    if (!p) return NULL;
    p->query = msg->flushed.query;
    p->blocks_freed = msg->flushed.blocks_freed;
    return p;
}

static PB(PrefillingItem) * prefilling_item(maker *m, const kvf_prefilling_item *item) {
    PB(PrefillingItem) *p = make_prefilling_item(m);
    if (!p) return NULL;
    p->request = request_id(m, item->request);
    p->attempt = item->attempt;
    p->position = item->position;
    p->count = item->count;
    return p;
}

static PB(Prefilling) * prefilling(maker *m, const kvf_nmsg *msg) {
    PB(Prefilling) *p = make_prefilling(m);
    if (!p) return NULL;
    p->items = make_bytes(m, msg->prefilling.count * sizeof *p->items);
    for (uint32_t i = 0; !m->full && i < msg->prefilling.count; i++)
        p->items[p->n_items++] = prefilling_item(m, &msg->prefilling.items[i]);
    return p;
}

static PB(AlreadyStarted) * already_started(maker *m, const kvf_nmsg *msg) {
    PB(AlreadyStarted) *p = make_already_started(m);
    if (!p) return NULL;
    p->attempt = msg->already_started.attempt;
    p->position = msg->already_started.position;
    return p;
}

#define NODE(KIND) p->kind_case = KVFERRY__INTERNAL__V1__NODE_MESSAGE__KIND_##KIND
static void node_kind(maker *m, const kvf_nmsg *msg, PB(NodeMessage) * p) {
    switch (msg->kind) {
    case KVF_N_WELCOME: p->welcome = welcome(m, msg), NODE(WELCOME); return;
    case KVF_N_GRANTED: p->granted = granted(m, msg), NODE(GRANTED); return;
    case KVF_N_LOCAL:
        if ((p->local = make_local(m))) p->local->cached_tokens = msg->local.cached_tokens;
        NODE(LOCAL);
        return;
    case KVF_N_QUEUED:
        if ((p->queued = make_queued(m))) p->queued->place = msg->queued.place;
        NODE(QUEUED);
        return;
    case KVF_N_REFUSED: p->refused = refused(m, msg), NODE(REFUSED); return;
    case KVF_N_STALE: p->stale = make_nothing(m), NODE(STALE); return;
    case KVF_N_ALREADY_STARTED: p->already_started = already_started(m, msg), NODE(ALREADY_STARTED); return;
    case KVF_N_TOKENS: p->tokens = tokens(m, msg), NODE(TOKENS); return;
    case KVF_N_STARTED: p->started = make_nothing(m), NODE(STARTED); return;
    case KVF_N_SHIPPED: p->shipped = shipped(m, msg), NODE(SHIPPED); return;
    case KVF_N_FAILED: p->failed = failed(m, msg), NODE(FAILED); return;
    case KVF_N_PREEMPTED:
        if ((p->preempted = make_preempted(m))) p->preempted->next_position = msg->preempted.next_position;
        NODE(PREEMPTED);
        return;
    case KVF_N_PROMPT_LOGPROBS: p->prompt_logprobs = prompt_logprobs(m, msg), NODE(PROMPT_LOGPROBS); return;
    case KVF_N_STATUS: p->status = stats(m, &msg->status), NODE(STATUS); return;
    case KVF_N_EVENTS: p->events = events(m, msg), NODE(EVENTS); return;
    case KVF_N_SNAPSHOT: p->snapshot = snapshot(m, msg), NODE(SNAPSHOT); return;
    case KVF_N_AUDIT: p->audit = audit(m, msg), NODE(AUDIT); return;
    case KVF_N_BLOCKS: p->blocks = blocks(m, msg), NODE(BLOCKS); return;
    case KVF_N_FLUSHED: p->flushed = flushed(m, msg), NODE(FLUSHED); return;
    case KVF_N_PREFILLING: p->prefilling = prefilling(m, msg), NODE(PREFILLING); return;
    }
    KVF_ASSERT(!"a kind of node message");
}

kvf_status kvf_wire_nmsg_encode(const kvf_nmsg *msg, kvf_arena *arena, PB(NodeMessage) * *out) {
    maker m = {.arena = arena};
    PB(NodeMessage) *p = make_node_message(&m);
    if (p) {
        p->request = request_id_or_none(&m, msg->request);
        p->attempt = msg->attempt;
        node_kind(&m, msg, p);
    }
    if (m.full) return KVF_ERR_NO_ROOM;
    *out = p;
    return KVF_OK;
}

/* ---- bytes ---- */

kvf_status kvf_wire_rmsg_pack(const kvf_rmsg *msg, kvf_arena *arena, kvf_span *out) {
    PB(RouterMessage) * p;
    kvf_status status = kvf_wire_rmsg_encode(msg, arena, &p);
    if (status != KVF_OK) return status;
    size_t len_bytes = kvferry__internal__v1__router_message__get_packed_size(p);
    uint8_t *bytes = wire_take(arena, len_bytes);
    if (!bytes) return KVF_ERR_NO_ROOM;
    kvferry__internal__v1__router_message__pack(p, bytes);
    *out = (kvf_span){bytes, len_bytes};
    return KVF_OK;
}

kvf_status kvf_wire_nmsg_pack(const kvf_nmsg *msg, kvf_arena *arena, kvf_span *out) {
    PB(NodeMessage) * p;
    kvf_status status = kvf_wire_nmsg_encode(msg, arena, &p);
    if (status != KVF_OK) return status;
    size_t len_bytes = kvferry__internal__v1__node_message__get_packed_size(p);
    uint8_t *bytes = wire_take(arena, len_bytes);
    if (!bytes) return KVF_ERR_NO_ROOM;
    kvferry__internal__v1__node_message__pack(p, bytes);
    *out = (kvf_span){bytes, len_bytes};
    return KVF_OK;
}

/* Bounds, generous: fixed parts of the largest message, then what grows. A varint has at most 10 bytes. */
#define FIXED_BYTES 8192
#define LIVE_BYTES (sizeof(void *) + sizeof(PB(Live)) + sizeof(PB(RequestId)) + 32 + 64)
#define ITEM_BYTES (sizeof(void *) + sizeof(PB(TokenItem)) + sizeof(PB(RequestId)) + 32 + 96)
#define PREFILLING_BYTES (sizeof(void *) + sizeof(PB(PrefillingItem)) + sizeof(PB(RequestId)) + 32 + 64)
#define REJECTED_BYTES (sizeof(void *) + sizeof(PB(Rejected)) + 32 + KVF_NAME_MAX + 16)
#define LINK_OVER_BYTES (sizeof(void *) + sizeof(PB(LinkOver)) + 32 + KVF_NAME_MAX + KVF_TRANSPORT_MAX)
#define REPORT_BYTES                                                                                                   \
    (sizeof(void *) + sizeof(PB(BlockReport)) + sizeof(PB(Hash128)) + 4 * (sizeof(void *) + sizeof(PB(RequestId))) +   \
        128 + 320)

static size_t work_bytes(const kvf_work *w) { return (size_t)w->tokens_count * 5 + w->sampling.len_bytes; }

size_t kvf_wire_rmsg_bytes(const kvf_rmsg *msg) {
    switch (msg->kind) {
    case KVF_R_HELLO: return FIXED_BYTES + msg->hello.live_count * LIVE_BYTES;
    case KVF_R_RESERVE: return FIXED_BYTES + work_bytes(&msg->reserve);
    case KVF_R_PREFILL: return FIXED_BYTES + work_bytes(&msg->prefill.work) + (size_t)msg->prefill.to.missing_count * 5;
    default: return FIXED_BYTES;
    }
}

static size_t stats_bytes(const kvf_node_stats *s) {
    return s->rejected_count * REJECTED_BYTES + s->links_count * LINK_OVER_BYTES;
}

size_t kvf_wire_nmsg_bytes(const kvf_nmsg *msg) {
    size_t bytes = FIXED_BYTES;
    switch (msg->kind) {
    case KVF_N_WELCOME: return bytes + stats_bytes(&msg->welcome.stats);
    case KVF_N_STATUS: return bytes + stats_bytes(&msg->status);
    case KVF_N_AUDIT: return bytes + stats_bytes(&msg->audit.stats);
    case KVF_N_GRANTED: return bytes + (size_t)msg->granted.missing_count * 5;
    case KVF_N_TOKENS:
        for (uint32_t i = 0; i < msg->tokens.count; i++) bytes += ITEM_BYTES + msg->tokens.items[i].sample.len_bytes;
        return bytes;
    case KVF_N_PREFILLING: return bytes + msg->prefilling.count * PREFILLING_BYTES;
    case KVF_N_PROMPT_LOGPROBS: return bytes + msg->prompt_logprobs.samples.len_bytes;
    case KVF_N_EVENTS: return bytes + msg->events.count * (16 + 16 + sizeof(protobuf_c_boolean) + 1);
    case KVF_N_SNAPSHOT: return bytes + msg->snapshot.count * (size_t)32;
    case KVF_N_BLOCKS: return bytes + msg->blocks.count * REPORT_BYTES;
    default: return bytes;
    }
}
