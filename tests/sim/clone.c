/* Messages borrow what they point to; on their way they need it for themselves. */
#include "sim.h"
#include <stdlib.h>

static void *with_room(const void *message, size_t bytes, size_t extra) {
    uint8_t *copy = malloc(bytes + extra + 64);
    KVF_ASSERT(copy);
    memcpy(copy, message, bytes);
    return copy;
}

static const void *append(uint8_t **at, const void *data, size_t bytes) {
    *at = (uint8_t *)kvf_align_up((uintptr_t)*at, 16);
    void *to = *at;
    if (bytes) memcpy(to, data, bytes);
    *at += bytes;
    return to;
}

static size_t work_bytes(const kvf_work *w) { return w->tokens_count * sizeof *w->tokens + w->sampling.len_bytes + 64; }

static void own_work(uint8_t **at, kvf_work *w) {
    w->tokens = append(at, w->tokens, w->tokens_count * sizeof *w->tokens);
    w->sampling.data = append(at, w->sampling.data, w->sampling.len_bytes);
}

kvf_rmsg *sim_clone_rmsg(const kvf_rmsg *m) {
    size_t extra = 0;
    if (m->kind == KVF_R_HELLO) extra = m->hello.live_count * sizeof *m->hello.live;
    if (m->kind == KVF_R_RESERVE) extra = work_bytes(&m->reserve);
    if (m->kind == KVF_R_PREFILL) extra = work_bytes(&m->prefill.work) + m->prefill.to.missing_count * sizeof(uint32_t);
    kvf_rmsg *c = with_room(m, sizeof *m, extra + 64);
    uint8_t *at = (uint8_t *)(c + 1);
    if (m->kind == KVF_R_HELLO) c->hello.live = append(&at, m->hello.live, m->hello.live_count * sizeof *m->hello.live);
    if (m->kind == KVF_R_RESERVE) own_work(&at, &c->reserve);
    if (m->kind == KVF_R_PREFILL) {
        own_work(&at, &c->prefill.work);
        c->prefill.to.missing = append(&at, m->prefill.to.missing, m->prefill.to.missing_count * sizeof(uint32_t));
    }
    return c;
}

static kvf_nmsg *clone_tokens(const kvf_nmsg *m) {
    size_t extra = m->tokens.count * (sizeof(kvf_token_item) + 16);
    for (uint32_t i = 0; i < m->tokens.count; i++) extra += m->tokens.items[i].sample.len_bytes + 16;
    kvf_nmsg *c = with_room(m, sizeof *m, extra);
    uint8_t *at = (uint8_t *)(c + 1);
    kvf_token_item *items = (kvf_token_item *)(uintptr_t)append(&at, m->tokens.items, m->tokens.count * sizeof *items);
    for (uint32_t i = 0; i < m->tokens.count; i++)
        items[i].sample.data = append(&at, items[i].sample.data, items[i].sample.len_bytes);
    c->tokens.items = items;
    return c;
}

static kvf_node_stats *stats_of(kvf_nmsg *m) {
    return m->kind == KVF_N_WELCOME  ? &m->welcome.stats
           : m->kind == KVF_N_STATUS ? &m->status
           : m->kind == KVF_N_AUDIT  ? &m->audit.stats
                                     : NULL;
}

static kvf_nmsg *clone_stats(const kvf_nmsg *m, const kvf_node_stats *stats) {
    size_t bytes = stats->rejected_count * sizeof *stats->rejected;
    kvf_nmsg *c = with_room(m, sizeof *m, bytes);
    uint8_t *at = (uint8_t *)(c + 1);
    stats_of(c)->rejected = append(&at, stats->rejected, bytes);
    return c;
}

kvf_nmsg *sim_clone_nmsg(const kvf_nmsg *m) {
    if (m->kind == KVF_N_TOKENS) return clone_tokens(m);
    const kvf_node_stats *stats = stats_of((kvf_nmsg *)(uintptr_t)m);
    if (stats) return clone_stats(m, stats);
    const void *data = NULL;
    size_t bytes = 0;
    if (m->kind == KVF_N_GRANTED) data = m->granted.missing, bytes = m->granted.missing_count * sizeof(uint32_t);
    if (m->kind == KVF_N_EVENTS) data = m->events.events, bytes = m->events.count * sizeof *m->events.events;
    if (m->kind == KVF_N_SNAPSHOT) data = m->snapshot.names, bytes = m->snapshot.count * sizeof *m->snapshot.names;
    if (m->kind == KVF_N_BLOCKS) data = m->blocks.blocks, bytes = m->blocks.count * sizeof *m->blocks.blocks;
    if (m->kind == KVF_N_PREFILLING)
        data = m->prefilling.items, bytes = m->prefilling.count * sizeof *m->prefilling.items;
    if (m->kind == KVF_N_PROMPT_LOGPROBS)
        data = m->prompt_logprobs.samples.data, bytes = m->prompt_logprobs.samples.len_bytes;
    kvf_nmsg *c = with_room(m, sizeof *m, bytes);
    uint8_t *at = (uint8_t *)(c + 1);
    const void *own = append(&at, data, bytes);
    if (m->kind == KVF_N_GRANTED) c->granted.missing = own;
    if (m->kind == KVF_N_EVENTS) c->events.events = own;
    if (m->kind == KVF_N_SNAPSHOT) c->snapshot.names = own;
    if (m->kind == KVF_N_BLOCKS) c->blocks.blocks = own;
    if (m->kind == KVF_N_PREFILLING) c->prefilling.items = own;
    if (m->kind == KVF_N_PROMPT_LOGPROBS) c->prompt_logprobs.samples.data = own;
    return c;
}

kvf_frame *sim_clone_frame(const kvf_frame *f) {
    const void *data = NULL;
    size_t bytes = 0;
    if (f->kind == KVF_FRAME_COMMIT) data = f->commit.payload.data, bytes = f->commit.payload.len_bytes;
    if (f->kind == KVF_FRAME_MISSING) data = f->missing.pages, bytes = f->missing.count * sizeof *f->missing.pages;
    kvf_frame *c = with_room(f, sizeof *f, bytes);
    uint8_t *at = (uint8_t *)(c + 1);
    const void *own = append(&at, data, bytes);
    if (f->kind == KVF_FRAME_COMMIT) c->commit.payload.data = own;
    if (f->kind == KVF_FRAME_MISSING) c->missing.pages = own;
    return c;
}
