/* Admission: who gets room, who waits, who is told to go elsewhere. protocol.md, "Admission". */
#include "node_int.h"
#include <stdio.h>

#define RETRY_SOON_NS (100 * KVF_NS_PER_MS)

static uint32_t blocks_for(uint64_t tokens) { return (uint32_t)kvf_div_up(tokens, KVF_KV_BLOCK_TOKENS); }

/* NULL: fine. Else the field; text says what was expected. */
static const char *work_problem(const kvf_node *n, const kvf_work *w, char text[KVF_TEXT_MAX]) {
    const kvf_node_config *c = &n->config;
    snprintf(text, KVF_TEXT_MAX, "out of range");
    if (w->request.counter == 0) return "request";
    if (w->attempt == 0) return "attempt";
    if (w->prompt_count == 0 || w->prompt_count > w->tokens_count) return "prompt_count";
    if (w->n == 0 || w->n > KVF_CHOICES_MAX || w->n > c->sequences_max) return "n";
    if (w->n > 1 && w->tokens_count != w->prompt_count) return "n";
    if (w->output_max == 0) return "output_max";
    if ((uint64_t)w->prompt_count + w->output_max > c->context_max) {
        snprintf(text, KVF_TEXT_MAX, "prompt of %u plus %u output tokens exceeds the context of %u", w->prompt_count,
            w->output_max, c->context_max);
        return "output_max";
    }
    if (w->tokens_count - w->prompt_count >= w->output_max) return "tokens";
    if (w->sampling.len_bytes > c->sampling_bytes_max) return "sampling";
    for (uint32_t i = 0; i < w->tokens_count; i++)
        if (w->tokens[i] >= c->info.identity.vocab) {
            snprintf(text, KVF_TEXT_MAX, "token %u at position %u is not below the vocabulary of %u", w->tokens[i], i,
                c->info.identity.vocab);
            return "tokens";
        }
    return NULL;
}

/* Blocks of all choices together once every one of them has `length` tokens: the full blocks of the known tokens are
 * shared. */
static uint64_t blocks_of_choices(uint32_t n, uint32_t known, uint64_t length) {
    uint32_t each = blocks_for(length);
    return each + (uint64_t)(n - 1) * (each - known / KVF_KV_BLOCK_TOKENS);
}

/* A request that names no output limit gets what the pool can hold; one that names it must fit whole. */
static bool can_ever_fit(const kvf_node *n, node_req *r) {
    uint32_t pool = n->config.blocks;
    if (r->leg == LEG_PREFILL) return blocks_for(r->tokens_count) <= pool;
    if (blocks_of_choices(r->n, r->tokens_count, (uint64_t)r->prompt_count + r->output_max) <= pool) return true;
    if (r->output_max_given || blocks_for(r->tokens_count) > pool) return false;
    uint32_t shared = r->tokens_count / KVF_KV_BLOCK_TOKENS;
    uint64_t length = ((uint64_t)pool + (uint64_t)(r->n - 1) * shared) / r->n * KVF_KV_BLOCK_TOKENS;
    if (length <= r->tokens_count) return false;
    r->output_max = (uint32_t)(length - r->prompt_count);
    return true;
}

static uint32_t blocks_to_book(const kvf_node *n, const node_req *r, uint32_t hits) {
    if (r->leg == LEG_PREFILL) return blocks_for(r->tokens_count) - hits;
    uint32_t left = r->output_max - (r->tokens_count - r->prompt_count);
    uint32_t expected = kvf_decode_estimate_expected(&n->estimate, left);
    if (r->output_max_given && left <= 2 * expected) expected = left; /* small and named: book it all */
    return (uint32_t)blocks_of_choices(r->n, r->tokens_count, (uint64_t)r->tokens_count + expected) - hits;
}

/* Pins the cached prefix and books the rest. KVF_AGAIN: no room now, nothing has changed. */
static kvf_status take_room(kvf_node *n, node_req *r) {
    node_seq *s = node_first_seq(n, r);
    /* One token must be left to compute; scoring a prompt needs every one of them. */
    uint32_t hits_max = r->prompt_logprobs ? 0 : (r->tokens_count - (MUTANT(8) ? 0 : 1)) / KVF_KV_BLOCK_TOKENS;
    uint32_t hits = kvf_kv_match(n->kv, r->root, s->tokens, hits_max, n->hits);
    uint32_t book = blocks_to_book(n, r, hits);
    if (kvf_kv_room(n->kv) < (int64_t)book + (MUTANT(7) ? 0 : kvf_kv_pin_cost(n->kv, n->hits, hits))) return KVF_AGAIN;
    for (uint32_t i = 0; i < hits; i++) {
        KVF_ASSERT(kvf_kv_pin(n->kv, n->hits[i]) == KVF_OK);
        node_seq_add_block(s, n->hits[i]);
    }
    KVF_ASSERT(kvf_kv_book(n->kv, book) == KVF_OK);
    r->booked = book;
    s->sealed_count = hits;
    s->computed = hits * KVF_KV_BLOCK_TOKENS;
    r->cached = s->computed;
    n->stats.cache_hit_tokens += r->cached;
    return KVF_OK;
}

static void give_room_back(kvf_node *n, node_req *r) {
    node_seq *s = node_first_seq(n, r);
    while (s->blocks_count > 0) kvf_kv_unpin(n->kv, s->block[--s->blocks_count]);
    kvf_kv_unbook(n->kv, r->booked);
    n->stats.cache_hit_tokens -= r->cached;
    r->booked = r->cached = s->sealed_count = s->computed = 0;
}

static void start_computing(kvf_node *n, node_req *r) {
    node_req_set_state(r, REQ_COMPUTE);
    node_first_seq(n, r)->state = SEQ_PREFILL;
}

static void list_missing(node_req *r) {
    r->missing_count = 0;
    for (uint32_t b = r->cached / KVF_KV_BLOCK_TOKENS; b < blocks_for(r->tokens_count); b++)
        r->missing[r->missing_count++] = b;
}

static void say_granted(kvf_node *n, const node_req *r) {
    kvf_nmsg *m = node_msg_req(n, r, KVF_N_GRANTED);
    if (!m) return;
    m->granted.grant = r->grant;
    memcpy(m->granted.secret, r->secret, sizeof r->secret);
    m->granted.ttl_ns = n->config.grant_ttl_ns;
    m->granted.cached_tokens = r->cached;
    m->granted.missing = r->missing; /* stays as long as the record: longer than the drain */
    m->granted.missing_count = r->missing_count;
}

static void say_local(kvf_node *n, const node_req *r) {
    kvf_nmsg *m = node_msg_req(n, r, KVF_N_LOCAL);
    if (m) m->local.cached_tokens = r->cached;
}

static void new_secret(kvf_node *n, node_req *r) {
    uint8_t counter[8], mac[32];
    kvf_put_le64(counter, ++n->secret_counter);
    kvf_hmac_sha256(n->config.secret_seed, sizeof n->config.secret_seed, counter, sizeof counter, mac);
    memcpy(r->secret, mac, sizeof r->secret);
}

/* KVF_AGAIN: not now. */
static kvf_status admit_reserve(kvf_node *n, node_req *r) {
    kvf_status status = take_room(n, r);
    if (status != KVF_OK) return status;
    uint32_t uncached = r->tokens_count - r->cached;
    if (r->ship_min == UINT32_MAX || uncached < r->ship_min) {
        start_computing(n, r);
        say_local(n, r);
        return KVF_OK;
    }
    list_missing(r);
    new_secret(n, r);
    status = kvf_rx_offer(n->rx, n->now, r->id, r->attempt, r->secret, r->missing, r->missing_count, &r->grant);
    if (status != KVF_OK) {
        r->grant = 0;
        give_room_back(n, r);
        return KVF_AGAIN;
    }
    node_req_set_state(r, REQ_GRANTED);
    say_granted(n, r);
    return KVF_OK;
}

/* ------------------------------------------------------------------ the queue of reservations */

static bool queue_before(const node_req *a, const node_req *b) {
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

static node_req *queue_next(kvf_node *n, const node_req *after) {
    node_req *best = NULL;
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state != REQ_QUEUED || r == after || (after && queue_before(r, after))) continue;
        if (!best || queue_before(r, best)) best = r;
    }
    return best;
}

static uint32_t queue_length(const kvf_node *n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->config.requests_max; i++) count += n->reqs[i].state == REQ_QUEUED;
    return count;
}

/* A head that does not fit must not freeze the queue, and must not starve behind smaller ones: it may be overtaken
 * BYPASS_MAX times. */
void node_admit_queued(kvf_node *n) {
    if (n->queued == 0) return;
    node_req *blocked = NULL;
    for (node_req *r = queue_next(n, NULL); r;) {
        node_req *next = queue_next(n, r);
        if (admit_reserve(n, r) == KVF_OK) {
            r->in_queue = false;
            n->queued--;
            if (blocked && ++blocked->bypassed >= BYPASS_MAX) return;
        } else if (!blocked) {
            if (r->bypassed >= BYPASS_MAX) return;
            blocked = r;
        }
        r = next;
    }
}

/* ------------------------------------------------------------------ Reserve */

static void repeat_answer(kvf_node *n, node_req *r) {
    kvf_nmsg *m;
    switch (r->state) {
    case REQ_QUEUED:
        if ((m = node_msg_req(n, r, KVF_N_QUEUED))) m->queued.place = queue_length(n);
        break;
    case REQ_GRANTED: say_granted(n, r); break;
    case REQ_COMPUTE: say_local(n, r); break;
    default: node_msg_req(n, r, KVF_N_STARTED); break;
    }
}

static void next_attempt_of_granted(kvf_node *n, node_req *r, const kvf_work *w) {
    uint64_t grant;
    new_secret(n, r);
    if (kvf_rx_reoffer(n->rx, n->now, r->grant, w->attempt, r->secret, &grant, r->missing, &r->missing_count) !=
        KVF_OK) {
        node_refuse(n, r->session, w, KVF_AGAIN, "grant", "no free grant", RETRY_SOON_NS);
        node_release(n, r);
        return;
    }
    r->grant = grant;
    r->attempt = w->attempt;
    say_granted(n, r);
}

/* true: the message was about a request that is here and has been answered. */
static bool known_reserve(kvf_node *n, uint32_t session, const kvf_work *w) {
    node_req *r = node_find(n, w->request, LEG_RESERVE);
    if (!r) return false;
    r->session = session;
    if (w->attempt < r->attempt && !MUTANT(13)) {
        kvf_nmsg *m = node_msg(n, session, KVF_N_STALE);
        if (m) {
            m->request = w->request;
            m->attempt = w->attempt;
        }
        return true;
    }
    if (w->attempt == r->attempt) {
        repeat_answer(n, r);
        return true;
    }
    if (r->state == REQ_COMPUTE || r->state == REQ_DECODE) {
        kvf_nmsg *m = node_msg_req(n, r, KVF_N_ALREADY_STARTED);
        if (m) {
            m->attempt = w->attempt;
            m->already_started.attempt = r->attempt;
            m->already_started.position = node_first_seq(n, r)->count;
        }
        return true;
    }
    /* With more tokens than before the last landed page is no longer final: start over. */
    if (r->state == REQ_GRANTED && (w->tokens_count == r->tokens_count || MUTANT(14)) &&
        w->ship_min <= r->tokens_count - r->cached) {
        next_attempt_of_granted(n, r, w);
        return true;
    }
    node_release(n, r);
    return false;
}

static bool refuse_at_door(kvf_node *n, uint32_t session, const kvf_work *w) {
    char text[KVF_TEXT_MAX];
    const char *field = work_problem(n, w, text);
    if (field) {
        node_refuse(n, session, w, KVF_ERR_INVALID, field, text, 0);
        return true;
    }
    if (n->state == KVF_NODE_DRAINING) {
        node_refuse(n, session, w, KVF_AGAIN, "node", "draining", RETRY_SOON_NS);
        return true;
    }
    return false;
}

static void refuse_too_big(kvf_node *n, uint32_t session, const kvf_work *w, node_req *r) {
    char text[KVF_TEXT_MAX];
    snprintf(text, sizeof text,
        "prompt of %u and %u output tokens for %u choices need more than the whole pool of %u blocks", w->prompt_count,
        w->output_max, w->n, n->config.blocks);
    node_release(n, r);
    node_refuse(n, session, w, KVF_ERR_NO_ROOM, "output_max", text, 0);
}

void node_on_reserve(kvf_node *n, uint32_t session, const kvf_work *w) {
    if (node_was_cancelled(n, w->request, w->attempt) || known_reserve(n, session, w) || refuse_at_door(n, session, w))
        return;
    node_req *r = node_req_new(n, session, w, LEG_RESERVE);
    if (!r) {
        node_refuse(n, session, w, KVF_AGAIN, "requests", "all request or sequence slots are taken", RETRY_SOON_NS);
        return;
    }
    node_req_set_state(r, REQ_QUEUED);
    if (!can_ever_fit(n, r)) {
        refuse_too_big(n, session, w, r);
        return;
    }
    /* Whoever came earlier and still waits goes first. */
    bool waits = n->queued > 0;
    if (!waits && admit_reserve(n, r) == KVF_OK) return;
    if (n->queued >= n->config.queue_max) {
        node_release(n, r);
        node_refuse(n, session, w, KVF_AGAIN, "queue", "queue of reservations is full", RETRY_SOON_NS);
        return;
    }
    r->queue_until = n->now + n->config.queue_ttl_ns;
    r->in_queue = true;
    n->queued++;
    if (waits) node_admit_queued(n);
    if (r->state != REQ_QUEUED) return;
    kvf_nmsg *m = node_msg_req(n, r, KVF_N_QUEUED);
    if (m) m->queued.place = n->queued;
}

/* ------------------------------------------------------------------ Prefill */

/* None may be missing: an earlier attempt shipped them all and only the first token is still to be made. */
static bool missing_is_sane(const kvf_work *w, const kvf_ship_to *to) {
    for (uint32_t i = 0; i < to->missing_count; i++) {
        if (to->missing[i] >= blocks_for(w->tokens_count)) return false;
        if (i > 0 && to->missing[i] <= to->missing[i - 1]) return false;
    }
    return true;
}

/* A Prefill that is said again at a Welcome may cross the word that its hand-off has failed, or that word was lost with
 * the session. */
static bool failed_before(kvf_node *n, uint32_t session, const kvf_work *w) {
    const cancel_note *c = node_has_failed(n, w);
    kvf_nmsg *m = c ? node_msg(n, session, KVF_N_FAILED) : NULL;
    if (!m) return c != NULL;
    m->request = w->request;
    m->attempt = w->attempt;
    m->failed.stage = (kvf_stage)c->stage;
    m->failed.reason = (kvf_status)c->failed;
    m->failed.retryable = true;
    snprintf(m->failed.text, sizeof m->failed.text, "this attempt has failed here before");
    return true;
}

void node_on_prefill(kvf_node *n, uint32_t session, const kvf_work *w, const kvf_ship_to *to) {
    if (node_was_cancelled(n, w->request, w->attempt) || failed_before(n, session, w)) return;
    node_req *old = node_find(n, w->request, LEG_PREFILL);
    if (old && w->attempt <= old->attempt) {
        old->session = session;
        return; /* repeated, or from the past: the live one goes on */
    }
    if (old) node_release(n, old);
    if (refuse_at_door(n, session, w)) return;
    if (!missing_is_sane(w, to)) {
        node_refuse(n, session, w, KVF_ERR_INVALID, "missing", "blocks must ascend and lie in the prompt", 0);
        return;
    }
    node_req *r = node_req_new(n, session, w, LEG_PREFILL);
    if (!r) {
        node_refuse(n, session, w, KVF_AGAIN, "requests", "all request or sequence slots are taken", RETRY_SOON_NS);
        return;
    }
    node_req_set_state(r, REQ_QUEUED); /* so that release finds a live record */
    if (!can_ever_fit(n, r)) {
        refuse_too_big(n, session, w, r);
        return;
    }
    /* Never wait while holding the decode node's grant: no circle of waiting can arise. */
    if (take_room(n, r) != KVF_OK) {
        node_release(n, r);
        node_refuse(n, session, w, KVF_AGAIN, "blocks", "no room for the prompt", RETRY_SOON_NS);
        return;
    }
    start_computing(n, r);
    node_start_shipping(n, r, to);
}
