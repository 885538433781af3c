/* The codec of node control: every field of every kind comes back; what is out of bounds is refused by name; damaged
 * bytes do no harm. */
#include "kvf/wire.h"
#include "wire_random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define ARENA_BYTES (1u << 20)
#define ROUNDS 400

typedef struct {
    kvf_arena make, read;
} arenas;

static arenas *arenas_new(void) {
    arenas *a = calloc(1, sizeof *a);
    assert_non_null(a);
    a->make = (kvf_arena){.base = aligned_alloc(64, ARENA_BYTES), .size_bytes = ARENA_BYTES};
    a->read = (kvf_arena){.base = aligned_alloc(64, ARENA_BYTES), .size_bytes = ARENA_BYTES};
    assert_true(a->make.base && a->read.base);
    return a;
}

static void arenas_free(arenas *a) {
    free(a->make.base);
    free(a->read.base);
    free(a);
}

static void reset(arenas *a) { a->make.used_bytes = a->read.used_bytes = 0; }

/* ---- equality, by hand: padding and pointers do not count ---- */

#define SAME(field)                                                                                                    \
    if (memcmp(&a->field, &b->field, sizeof a->field) != 0) return #field
#define SAME_LIST(list, count)                                                                                         \
    if (a->count != b->count || (a->count && memcmp(a->list, b->list, (size_t)a->count * sizeof *a->list) != 0))       \
    return #list
#define SAME_SPAN(span)                                                                                                \
    if (a->span.len_bytes != b->span.len_bytes ||                                                                      \
        (a->span.len_bytes && memcmp(a->span.data, b->span.data, a->span.len_bytes) != 0))                             \
    return #span
#define SAME_PART(check, part)                                                                                         \
    do {                                                                                                               \
        const char *differs = check(&a->part, &b->part);                                                               \
        if (differs) return differs;                                                                                   \
    } while (0)

static const char *work_differs(const kvf_work *a, const kvf_work *b) {
    SAME(request);
    SAME(attempt);
    SAME_LIST(tokens, tokens_count);
    SAME(prompt_count);
    SAME(n);
    SAME(choice_base);
    SAME(output_max);
    SAME(output_max_given);
    SAME(priority);
    SAME(time_left_ns);
    SAME(salt);
    SAME(ship_min);
    SAME(prompt_logprobs);
    SAME_SPAN(sampling);
    return NULL;
}

static const char *ship_to_differs(const kvf_ship_to *a, const kvf_ship_to *b) {
    SAME(node);
    SAME(epoch);
    SAME(address);
    SAME(local_address);
    SAME(host_id);
    SAME(grant);
    SAME(secret);
    SAME_LIST(missing, missing_count);
    return NULL;
}

#define SAME_ITEMS(check, list, count)                                                                                 \
    do {                                                                                                               \
        if (a->count != b->count) return #count;                                                                       \
        for (uint32_t i = 0; i < a->count; i++) {                                                                      \
            const char *differs = check(&a->list[i], &b->list[i]);                                                     \
            if (differs) return differs;                                                                               \
        }                                                                                                              \
    } while (0)

static const char *rejected_differs(const kvf_rejected *a, const kvf_rejected *b) {
    SAME(node);
    SAME(frames);
    return NULL;
}

static const char *link_differs(const kvf_link_over *a, const kvf_link_over *b) {
    SAME(node);
    SAME(transport);
    return NULL;
}

static const char *stats_differ(const kvf_node_stats *a, const kvf_node_stats *b) {
    SAME(state);
    SAME(role);
    SAME(running);
    SAME(waiting);
    SAME(waiting_tokens);
    SAME(blocks_total);
    SAME(blocks_free);
    SAME(blocks_filling);
    SAME(blocks_sealed);
    SAME(blocks_pinned);
    SAME(blocks_in_use);
    SAME(blocks_booked);
    SAME(blocks_evictable);
    SAME(waste_ppm);
    SAME(prefill_tokens);
    SAME(decode_tokens);
    SAME(prefill_busy_ns);
    SAME(decode_busy_ns);
    SAME(pages_sent);
    SAME(bytes_sent);
    SAME(pages_received);
    SAME(bytes_received);
    SAME(frames_rejected);
    SAME(preemptions);
    SAME(cancels);
    SAME(evictions);
    SAME(cache_hit_tokens);
    SAME(events_next);
    SAME_ITEMS(rejected_differs, rejected, rejected_count);
    SAME_ITEMS(link_differs, links, links_count);
    return NULL;
}

static const char *info_differs(const kvf_node_info *a, const kvf_node_info *b) {
    SAME(node);
    SAME(epoch);
    SAME(wire_version);
    SAME(role);
    SAME(host_id);
    SAME(started_ns);
    SAME(address);
    SAME(local_address);
    SAME(backend);
    SAME(identity.wire_version);
    SAME(identity.weights_hash);
    SAME(identity.tokenizer_hash);
    SAME(identity.numerics);
    SAME(identity.block_tokens);
    SAME(identity.layers);
    SAME(identity.heads);
    SAME(identity.kv_heads);
    SAME(identity.head_dim);
    SAME(identity.vocab);
    SAME(identity.page_bytes);
    SAME(identity.context_max);
    SAME(identity.layout);
    SAME(identity.rope_dims);
    SAME(identity.rope_base_bits);
    SAME(identity.rope_style);
    SAME(identity.kv_type);
    return NULL;
}

static const char *live_differs(const kvf_live *a, const kvf_live *b) {
    SAME(request);
    SAME(attempt);
    SAME(index);
    SAME(next_position);
    return NULL;
}

static const char *rmsg_differs(const kvf_rmsg *a, const kvf_rmsg *b) {
    SAME(kind);
    switch (a->kind) {
    case KVF_R_HELLO:
        SAME(hello.router);
        SAME(hello.router_epoch);
        SAME(hello.wire_version);
        SAME(hello.events_seen);
        SAME_ITEMS(live_differs, hello.live, hello.live_count);
        return NULL;
    case KVF_R_RESERVE: SAME_PART(work_differs, reserve); return NULL;
    case KVF_R_PREFILL:
        SAME_PART(work_differs, prefill.work);
        SAME_PART(ship_to_differs, prefill.to);
        return NULL;
    case KVF_R_CANCEL:
        SAME(cancel.request);
        SAME(cancel.attempt);
        SAME(cancel.finished);
        return NULL;
    case KVF_R_ACK: SAME(ack.number); return NULL;
    case KVF_R_DRAIN: SAME(drain.deadline_ns); return NULL;
    case KVF_R_SET_ROLE: SAME(set_role.role); return NULL;
    case KVF_R_FLUSH: SAME(flush.query); return NULL;
    case KVF_R_AUDIT: SAME(audit.query); return NULL;
    case KVF_R_BLOCKS:
        SAME(blocks.query);
        SAME(blocks.request);
        SAME(blocks.name);
        SAME(blocks.limit);
        return NULL;
    default: return NULL;
    }
}

static const char *item_differs(const kvf_token_item *a, const kvf_token_item *b) {
    SAME(request);
    SAME(attempt);
    SAME(index);
    SAME(position);
    SAME(token);
    SAME(end);
    SAME(repeated);
    SAME_SPAN(sample);
    return NULL;
}

static const char *event_differs(const kvf_block_event *a, const kvf_block_event *b) {
    SAME(stored);
    SAME(name);
    return NULL;
}

static const char *report_differs(const kvf_block_report *a, const kvf_block_report *b) {
    SAME(block);
    SAME(generation);
    SAME(state);
    SAME(pins);
    SAME(uses);
    SAME(tokens);
    SAME(indexed);
    SAME(name);
    SAME(requests);
    return NULL;
}

static const char *prefilling_differs(const kvf_prefilling_item *a, const kvf_prefilling_item *b) {
    SAME(request);
    SAME(attempt);
    SAME(position);
    SAME(count);
    return NULL;
}

static const char *node_part_differs(const kvf_nmsg *a, const kvf_nmsg *b) {
    switch (a->kind) {
    case KVF_N_WELCOME:
        SAME_PART(info_differs, welcome.info);
        SAME_PART(stats_differ, welcome.stats);
        return NULL;
    case KVF_N_TOKENS:
        SAME(tokens.number);
        SAME_ITEMS(item_differs, tokens.items, tokens.count);
        return NULL;
    case KVF_N_STATUS: SAME_PART(stats_differ, status); return NULL;
    case KVF_N_EVENTS:
        SAME(events.first);
        SAME_ITEMS(event_differs, events.events, events.count);
        return NULL;
    case KVF_N_SNAPSHOT:
        SAME(snapshot.events_next);
        SAME_LIST(snapshot.names, snapshot.count);
        SAME(snapshot.first);
        SAME(snapshot.last);
        return NULL;
    case KVF_N_AUDIT:
        SAME(audit.query);
        SAME(audit.blocks_checked);
        SAME(audit.at_rest);
        SAME(audit.clean);
        SAME(audit.invariant);
        SAME(audit.detail);
        SAME_PART(stats_differ, audit.stats);
        return NULL;
    case KVF_N_BLOCKS:
        SAME(blocks.query);
        SAME(blocks.truncated);
        SAME_ITEMS(report_differs, blocks.blocks, blocks.count);
        return NULL;
    case KVF_N_FLUSHED:
        SAME(flushed.query);
        SAME(flushed.blocks_freed);
        return NULL;
    case KVF_N_PREFILLING: SAME_ITEMS(prefilling_differs, prefilling.items, prefilling.count); return NULL;
    default: return NULL;
    }
}

static const char *nmsg_differs(const kvf_nmsg *a, const kvf_nmsg *b) {
    SAME(kind);
    SAME(request);
    SAME(attempt);
    switch (a->kind) {
    case KVF_N_GRANTED:
        SAME(granted.grant);
        SAME(granted.secret);
        SAME(granted.ttl_ns);
        SAME(granted.cached_tokens);
        SAME_LIST(granted.missing, granted.missing_count);
        return NULL;
    case KVF_N_LOCAL: SAME(local.cached_tokens); return NULL;
    case KVF_N_QUEUED: SAME(queued.place); return NULL;
    case KVF_N_REFUSED:
        SAME(refused.reason);
        SAME(refused.field);
        SAME(refused.text);
        SAME(refused.retry_after_ns);
        return NULL;
    case KVF_N_ALREADY_STARTED:
        SAME(already_started.attempt);
        SAME(already_started.position);
        return NULL;
    case KVF_N_SHIPPED:
        SAME(shipped.result);
        SAME(shipped.cached_tokens);
        SAME(shipped.pages);
        SAME(shipped.bytes);
        SAME(shipped.queue_ns);
        SAME(shipped.prefill_ns);
        SAME(shipped.transfer_ns);
        SAME(shipped.exposed_ns);
        return NULL;
    case KVF_N_FAILED:
        SAME(failed.stage);
        SAME(failed.reason);
        SAME(failed.peer);
        SAME(failed.retryable);
        SAME(failed.text);
        return NULL;
    case KVF_N_PREEMPTED: SAME(preempted.next_position); return NULL;
    case KVF_N_PROMPT_LOGPROBS:
        SAME(prompt_logprobs.number);
        SAME(prompt_logprobs.start);
        SAME(prompt_logprobs.count);
        SAME_SPAN(prompt_logprobs.samples);
        return NULL;
    default: return node_part_differs(a, b);
    }
}

/* ---- tests ---- */

static void round_trip(void **state) {
    (void)state;
    arenas *a = arenas_new();
    kvf_rng rng = {.seed = 11};
    for (int round = 0; round < ROUNDS; round++) {
        for (int kind = KVF_R_HELLO; kind <= KVF_R_SUPERSEDED; kind++) {
            kvf_rmsg in, out;
            kvf_span bytes;
            kvf_error err = {0};
            wire_random_rmsg(&rng, (kvf_r_kind)kind, &in);
            reset(a);
            a->make.size_bytes = kvf_wire_rmsg_bytes(&in);
            assert_true(a->make.size_bytes <= ARENA_BYTES);
            assert_int_equal(kvf_wire_rmsg_pack(&in, &a->make, &bytes), KVF_OK);
            kvf_status got = kvf_wire_rmsg_parse(bytes, &a->read, &out, &err);
            if (got != KVF_OK) fail_msg("router kind %d: %s", kind, err.message);
            const char *differs = rmsg_differs(&in, &out);
            if (differs) fail_msg("router kind %d: %s differs", kind, differs);
        }
        for (int kind = KVF_N_WELCOME; kind <= KVF_N_PREFILLING; kind++) {
            kvf_nmsg in, out;
            kvf_span bytes;
            kvf_error err = {0};
            wire_random_nmsg(&rng, (kvf_n_kind)kind, &in);
            reset(a);
            a->make.size_bytes = kvf_wire_nmsg_bytes(&in);
            assert_true(a->make.size_bytes <= ARENA_BYTES);
            assert_int_equal(kvf_wire_nmsg_pack(&in, &a->make, &bytes), KVF_OK);
            kvf_status got = kvf_wire_nmsg_parse(bytes, &a->read, &out, &err);
            if (got != KVF_OK) fail_msg("node kind %d: %s", kind, err.message);
            const char *differs = nmsg_differs(&in, &out);
            if (differs) fail_msg("node kind %d: %s differs", kind, differs);
        }
    }
    arenas_free(a);
}

static void small_arena(void **state) {
    (void)state;
    arenas *a = arenas_new();
    kvf_rng rng = {.seed = 12};
    for (int kind = KVF_N_WELCOME; kind <= KVF_N_PREFILLING; kind++) {
        kvf_nmsg in, out;
        kvf_span bytes;
        wire_random_nmsg(&rng, (kvf_n_kind)kind, &in);
        reset(a);
        a->make.size_bytes = a->read.size_bytes = ARENA_BYTES;
        assert_int_equal(kvf_wire_nmsg_pack(&in, &a->make, &bytes), KVF_OK);
        size_t packed = a->make.used_bytes;
        assert_int_equal(kvf_wire_nmsg_parse(bytes, &a->read, &out, NULL), KVF_OK);
        size_t parsed = a->read.used_bytes;
        uint8_t *kept = malloc(bytes.len_bytes + 1);
        assert_non_null(kept);
        memcpy(kept, bytes.data, bytes.len_bytes);
        kvf_span again = {kept, bytes.len_bytes}, unused;
        for (size_t size = 0; size < packed; size += 1 + packed / 37) {
            a->make = (kvf_arena){.base = a->make.base, .size_bytes = size};
            assert_int_equal(kvf_wire_nmsg_pack(&in, &a->make, &unused), KVF_ERR_NO_ROOM);
        }
        for (size_t size = 0; size < parsed; size += 1 + parsed / 37) {
            a->read = (kvf_arena){.base = a->read.base, .size_bytes = size};
            assert_int_equal(kvf_wire_nmsg_parse(again, &a->read, &out, NULL), KVF_ERR_NO_ROOM);
        }
        free(kept);
    }
    a->make.size_bytes = a->read.size_bytes = ARENA_BYTES;
    arenas_free(a);
}

/* One fault each, made by an encoder that does not look. */
static const uint32_t numbers_down[] = {5, 4};
static uint8_t long_sample[KVF_SAMPLE_BYTES_MAX + 1], long_sampling[KVF_WIRE_SAMPLING_MAX + 1];

static void r_attempt(kvf_rmsg *m) { m->reserve.attempt = 0; }
static void r_counter(kvf_rmsg *m) { m->reserve.request.counter = 0; }
static void r_empty(kvf_rmsg *m) { m->reserve.tokens_count = 0; }
static void r_prompt(kvf_rmsg *m) { m->reserve.prompt_count = m->reserve.tokens_count + 1; }
static void r_n_zero(kvf_rmsg *m) { m->reserve.n = 0; }
static void r_n_many(kvf_rmsg *m) { m->reserve.n = KVF_CHOICES_MAX + 1; }
static void r_base(kvf_rmsg *m) { m->reserve.choice_base = KVF_CHOICES_MAX; }
static void r_output(kvf_rmsg *m) { m->reserve.output_max = 0; }
static void r_logprobs(kvf_rmsg *m) { m->reserve.prompt_logprobs = KVF_WIRE_PROMPT_LOGPROBS_MAX + 1; }
static void r_sampling(kvf_rmsg *m) { m->reserve.sampling = (kvf_span){long_sampling, sizeof long_sampling}; }
static void r_missing(kvf_rmsg *m) {
    m->prefill.to.missing = numbers_down;
    m->prefill.to.missing_count = 2;
}
static void r_role(kvf_rmsg *m) { m->set_role.role = (kvf_role)3; }
static void r_epoch(kvf_rmsg *m) { m->hello.router_epoch = 0; }
static void r_cancel(kvf_rmsg *m) { m->cancel.request.counter = 0; }

static void n_request(kvf_nmsg *m) { m->request = (kvf_request_id){0}; }
static void n_attempt(kvf_nmsg *m) { m->attempt = 0; }
static void n_missing(kvf_nmsg *m) {
    m->granted.missing = numbers_down;
    m->granted.missing_count = 2;
}
static void n_reason(kvf_nmsg *m) { m->refused.reason = (kvf_status)-7777; }
static void n_reason_ok(kvf_nmsg *m) { m->refused.reason = KVF_OK; }
static void n_stage(kvf_nmsg *m) { m->failed.stage = (kvf_stage)9; }
static void n_state(kvf_nmsg *m) { m->status.state = (kvf_node_state)0; }
static void n_role(kvf_nmsg *m) { m->welcome.info.role = (kvf_role)0; }
static void n_node(kvf_nmsg *m) { m->welcome.info.node[0] = 0; }
static void n_snapshot(kvf_nmsg *m) { m->snapshot.events_next = 0; }
static void n_events(kvf_nmsg *m) { m->events.first = 0; }
static void n_samples(kvf_nmsg *m) { m->prompt_logprobs.count = 0; }
static kvf_token_item one_item;
static void n_item(kvf_nmsg *m) {
    m->tokens.items = &one_item;
    m->tokens.count = 1;
}
static void n_item_id(kvf_nmsg *m) {
    one_item = (kvf_token_item){.attempt = 1};
    n_item(m);
}
static void n_item_index(kvf_nmsg *m) {
    one_item = (kvf_token_item){.request = {1, 1}, .attempt = 1, .index = KVF_CHOICES_MAX};
    n_item(m);
}
static void n_item_end(kvf_nmsg *m) {
    one_item = (kvf_token_item){.request = {1, 1}, .attempt = 1, .end = (kvf_end)4};
    n_item(m);
}
static void n_item_sample(kvf_nmsg *m) {
    one_item = (kvf_token_item){.request = {1, 1}, .attempt = 1, .sample = {long_sample, sizeof long_sample}};
    n_item(m);
}

static void n_rejected(kvf_nmsg *m) {
    static const kvf_rejected many[KVF_REJECTED_MAX + 1] = {{"n", 1}};
    m->status.rejected = many;
    m->status.rejected_count = KVF_COUNT_OF(many);
}
static void n_rejected_node(kvf_nmsg *m) {
    static const kvf_rejected nameless = {"", 1};
    m->status.rejected = &nameless;
    m->status.rejected_count = 1;
}
static void n_rejected_frames(kvf_nmsg *m) {
    static const kvf_rejected none = {"n", 0};
    m->status.rejected = &none;
    m->status.rejected_count = 1;
}

static void n_links(kvf_nmsg *m) {
    static const kvf_link_over many[KVF_LINKS_TOLD_MAX + 1] = {{"n", "tcp"}};
    m->status.links = many;
    m->status.links_count = KVF_COUNT_OF(many);
}
static void n_links_node(kvf_nmsg *m) {
    static const kvf_link_over nameless = {"", "tcp"};
    m->status.links = &nameless;
    m->status.links_count = 1;
}
static void n_links_transport(kvf_nmsg *m) {
    static const kvf_link_over none = {"n", ""};
    m->status.links = &none;
    m->status.links_count = 1;
}

static void refused_by_name(void **state) {
    (void)state;
    static const struct {
        kvf_r_kind kind;
        void (*spoil)(kvf_rmsg *m);
        const char *field;
    } router[] = {{KVF_R_RESERVE, r_attempt, "work.attempt"}, {KVF_R_RESERVE, r_counter, "work.request"},
        {KVF_R_RESERVE, r_empty, "work.tokens"}, {KVF_R_RESERVE, r_prompt, "work.prompt_count"},
        {KVF_R_RESERVE, r_n_zero, "work.n"}, {KVF_R_RESERVE, r_n_many, "work.n"},
        {KVF_R_RESERVE, r_base, "work.choice_base"}, {KVF_R_RESERVE, r_output, "work.output_max"},
        {KVF_R_RESERVE, r_logprobs, "work.prompt_logprobs"}, {KVF_R_RESERVE, r_sampling, "work.sampling"},
        {KVF_R_PREFILL, r_missing, "to.missing"}, {KVF_R_SET_ROLE, r_role, "set_role.role"},
        {KVF_R_HELLO, r_epoch, "hello.router_epoch"}, {KVF_R_CANCEL, r_cancel, "cancel.request"}};
    static const struct {
        kvf_n_kind kind;
        void (*spoil)(kvf_nmsg *m);
        const char *field;
    } node[] = {{KVF_N_STARTED, n_request, "request"}, {KVF_N_STARTED, n_attempt, "attempt"},
        {KVF_N_GRANTED, n_missing, "granted.missing"}, {KVF_N_REFUSED, n_reason, "refused.reason"},
        {KVF_N_REFUSED, n_reason_ok, "refused.reason"}, {KVF_N_FAILED, n_stage, "failed.stage"},
        {KVF_N_STATUS, n_state, "stats.state"}, {KVF_N_STATUS, n_rejected, "stats.rejected:"},
        {KVF_N_STATUS, n_rejected_node, "stats.rejected.node"},
        {KVF_N_STATUS, n_rejected_frames, "stats.rejected.frames"}, {KVF_N_STATUS, n_links, "stats.links:"},
        {KVF_N_STATUS, n_links_node, "stats.links.node"}, {KVF_N_STATUS, n_links_transport, "stats.links.transport"},
        {KVF_N_WELCOME, n_role, "info.role"}, {KVF_N_WELCOME, n_node, "info.node"},
        {KVF_N_SNAPSHOT, n_snapshot, "snapshot.events_next"}, {KVF_N_EVENTS, n_events, "events.first"},
        {KVF_N_PROMPT_LOGPROBS, n_samples, "prompt_logprobs.count"}, {KVF_N_TOKENS, n_item_id, "tokens.items.request"},
        {KVF_N_TOKENS, n_item_index, "tokens.items.index"}, {KVF_N_TOKENS, n_item_end, "tokens.items.end"},
        {KVF_N_TOKENS, n_item_sample, "tokens.items.sample"}};
    arenas *a = arenas_new();
    kvf_rng rng = {.seed = 13};
    for (size_t i = 0; i < KVF_COUNT_OF(router); i++) {
        kvf_rmsg m, out = {.kind = KVF_R_ACK};
        kvf_span bytes;
        kvf_error err = {0};
        reset(a);
        wire_random_rmsg(&rng, router[i].kind, &m);
        router[i].spoil(&m);
        assert_int_equal(kvf_wire_rmsg_pack(&m, &a->make, &bytes), KVF_OK);
        assert_int_equal(kvf_wire_rmsg_parse(bytes, &a->read, &out, &err), KVF_ERR_FORMAT);
        assert_int_equal(strncmp(err.message, router[i].field, strlen(router[i].field)), 0);
        assert_int_equal(out.kind, KVF_R_ACK); /* written only on success */
    }
    for (size_t i = 0; i < KVF_COUNT_OF(node); i++) {
        kvf_nmsg m, out = {.kind = KVF_N_FLUSHED};
        kvf_span bytes;
        kvf_error err = {0};
        reset(a);
        wire_random_nmsg(&rng, node[i].kind, &m);
        node[i].spoil(&m);
        assert_int_equal(kvf_wire_nmsg_pack(&m, &a->make, &bytes), KVF_OK);
        assert_int_equal(kvf_wire_nmsg_parse(bytes, &a->read, &out, &err), KVF_ERR_FORMAT);
        if (strncmp(err.message, node[i].field, strlen(node[i].field)) != 0)
            fail_msg("expected %s, got: %s", node[i].field, err.message);
        assert_int_equal(out.kind, KVF_N_FLUSHED);
    }
    arenas_free(a);
}

/* Whatever happens to the bytes, they are refused or they are a message that can be written again. */
static void damaged(void **state) {
    (void)state;
    arenas *a = arenas_new();
    kvf_rng rng = {.seed = 14};
    uint32_t taken = 0, refused = 0;
    for (int round = 0; round < 20000; round++) {
        kvf_nmsg in, out;
        kvf_rmsg rin, rout;
        kvf_span bytes;
        bool from_router = round % 2;
        reset(a);
        if (from_router) {
            wire_random_rmsg(&rng, (kvf_r_kind)(KVF_R_HELLO + kvf_rng_below(&rng, KVF_R_SUPERSEDED)), &rin);
            assert_int_equal(kvf_wire_rmsg_pack(&rin, &a->make, &bytes), KVF_OK);
        } else {
            wire_random_nmsg(&rng, (kvf_n_kind)(KVF_N_WELCOME + kvf_rng_below(&rng, KVF_N_PREFILLING)), &in);
            assert_int_equal(kvf_wire_nmsg_pack(&in, &a->make, &bytes), KVF_OK);
        }
        uint8_t *spoilt = malloc(bytes.len_bytes + 1); /* of its exact size, so that a sanitizer sees a step too far */
        assert_non_null(spoilt);
        memcpy(spoilt, bytes.data, bytes.len_bytes);
        for (uint64_t i = kvf_rng_below(&rng, 4) + 1; i && bytes.len_bytes; i--)
            spoilt[kvf_rng_below(&rng, bytes.len_bytes)] = (uint8_t)kvf_rng_next(&rng);
        kvf_span cut = {spoilt, kvf_rng_below(&rng, 4) ? bytes.len_bytes : kvf_rng_below(&rng, bytes.len_bytes + 1)};
        kvf_status got = from_router ? kvf_wire_rmsg_parse(cut, &a->read, &rout, NULL)
                                     : kvf_wire_nmsg_parse(cut, &a->read, &out, NULL);
        if (got == KVF_OK) {
            taken++;
            a->make.used_bytes = 0;
            got =
                from_router ? kvf_wire_rmsg_pack(&rout, &a->make, &bytes) : kvf_wire_nmsg_pack(&out, &a->make, &bytes);
            assert_int_equal(got, KVF_OK);
        } else {
            refused++;
        }
        free(spoilt);
    }
    assert_true(taken > 100 && refused > 100);
    arenas_free(a);
}

/* Writes seeds for the fuzzer into the named folder. */
static int write_seeds(const char *folder) {
    arenas *a = arenas_new();
    kvf_rng rng = {.seed = 15};
    for (int kind = 0; kind < KVF_R_SUPERSEDED + KVF_N_PREFILLING; kind++) {
        char path[512];
        kvf_span bytes;
        bool router = kind < KVF_R_SUPERSEDED;
        kvf_rmsg r;
        kvf_nmsg n;
        reset(a);
        if (router) {
            wire_random_rmsg(&rng, (kvf_r_kind)(kind + 1), &r);
            if (kind + 1 == KVF_R_RESERVE || kind + 1 == KVF_R_PREFILL) r.reserve.sampling.len_bytes = 16;
            if (kvf_wire_rmsg_pack(&r, &a->make, &bytes) != KVF_OK) return 1;
        } else {
            wire_random_nmsg(&rng, (kvf_n_kind)(kind + 1 - KVF_R_SUPERSEDED), &n);
            if (n.kind == KVF_N_TOKENS) n.tokens.count = KVF_MIN(n.tokens.count, 2);
            if (n.kind == KVF_N_PROMPT_LOGPROBS) n.prompt_logprobs.samples.len_bytes = n.prompt_logprobs.count;
            if (kvf_wire_nmsg_pack(&n, &a->make, &bytes) != KVF_OK) return 1;
        }
        snprintf(path, sizeof path, "%s/%s-%02d", folder, router ? "router" : "node", kind);
        FILE *f = fopen(path, "wb");
        if (!f) return 1;
        fputc(router ? 'r' : 'n', f);
        fwrite(bytes.data, 1, bytes.len_bytes, f);
        fclose(f);
    }
    arenas_free(a);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) return write_seeds(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip), cmocka_unit_test(small_arena),
        cmocka_unit_test(refused_by_name), cmocka_unit_test(damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
