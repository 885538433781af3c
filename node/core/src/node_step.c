/* Engine steps: what runs next, and what its results mean. A step takes one token of each picked decoding sequence and
 * chunks of the prompts being computed. */
#include "node_int.h"

/* ------------------------------------------------------------------ blocks for tokens about to be computed */

static node_req *req_of(kvf_node *n, const node_seq *s) { return &n->reqs[s->req]; }

static void take_block(kvf_node *n, node_req *r, node_seq *s) {
    kvf_block_id id;
    KVF_ASSERT(r->booked > 0);
    KVF_ASSERT(kvf_kv_take(n->kv, &id) == KVF_OK);
    r->booked--;
    if (r->tx_active) kvf_tx_set_block(n->tx, r->tx, s->blocks_count, id);
    node_seq_add_block(s, id);
}

/* Gives a running request back to its router, which will queue it as the next attempt. Bounded: each preemption frees
 * at least the blocks of one whole request, and whoever made no token since it started is spared while another can go
 * (decode_plan.h). */
static void preempt(kvf_node *n, node_req *r) {
    kvf_nmsg *m = node_msg_req(n, r, KVF_N_PREEMPTED);
    if (m) m->preempted.next_position = node_first_seq(n, r)->count;
    n->stats.preemptions++;
    node_release(n, r);
}

static uint32_t collect_holders(kvf_node *n, kvf_decode_holder *out, uint32_t *req_of_holder) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        const node_req *r = &n->reqs[i];
        if (r->state != REQ_DECODE || r->ending) continue;
        uint32_t made = 0;
        for (uint32_t k = 0; k < r->n; k++) made += n->seqs[r->seq[k]].emitted;
        out[count] = (kvf_decode_holder){.priority = r->priority, .arrival = r->arrival, .progress = made};
        req_of_holder[count++] = i;
    }
    return count;
}

/* false: the sequence's own request was preempted. */
static bool ensure_block(kvf_node *n, node_seq *s) {
    node_req *r = req_of(n, s);
    if (s->computed / KVF_KV_BLOCK_TOKENS < s->blocks_count) return true;
    while (r->booked == 0) {
        if (kvf_kv_book(n->kv, 1) == KVF_OK) {
            r->booked = 1;
            break;
        }
        uint32_t count = collect_holders(n, n->holders, n->index_scratch);
        node_req *victim =
            &n->reqs[n->index_scratch[kvf_decode_preempt(n->holders, count)]]; /* r itself is among them */
        bool self = victim == r;
        preempt(n, victim);
        if (self) return false;
    }
    take_block(n, r, s);
    return true;
}

/* ------------------------------------------------------------------ planning */

static bool may_emit(kvf_node *n, const node_req *r, uint32_t items) {
    /* What commits may repeat meanwhile stays free, so that only a router that stopped acknowledging ever loses a
     * hand-off. */
    if (node_outbox_full(n, r->session, n->emit_planned[r->session] + items + n->config.sequences_max)) return false;
    n->emit_planned[r->session] += items;
    return true;
}

static void add_run(kvf_node *n, uint32_t seq, uint32_t count, uint32_t samples) {
    node_seq *s = &n->seqs[seq];
    node_req *r = req_of(n, s);
    uint32_t at = n->runs_count++;
    n->run_seq[at] = seq;
    n->runs[at] = (kvf_step_run){.tokens = s->tokens,
        .position = s->computed,
        .count = count,
        .tokens_count = s->count,
        .prompt_count = r->prompt_count,
        .blocks = s->physical,
        .samples = samples,
        .choice_first = s->state == SEQ_DECODE ? s->choice : r->choice_base,
        .score = s->state == SEQ_PREFILL ? r->prompt_logprobs : 0,
        .sampling = {r->sampling, r->sampling_bytes}};
    uint32_t last = (s->computed + count - 1) / KVF_KV_BLOCK_TOKENS;
    for (uint32_t b = s->computed / KVF_KV_BLOCK_TOKENS; b <= last; b++)
        KVF_ASSERT(kvf_kv_use_begin(n->kv, s->block[b]) == KVF_OK);
    s->in_step = true;
    s->last_step = n->step_id;
    r->ready_layers = 0;
}

static void plan_decodes(kvf_node *n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->config.sequences_max; i++) {
        node_seq *s = &n->seqs[i];
        if (s->state != SEQ_DECODE) continue;
        const node_req *r = req_of(n, s);
        if (r->ending || r->alone) continue;
        n->decode_candidates[count] = (kvf_decode_candidate){
            .priority = r->priority, .arrival = r->arrival, .last_step = s->last_step, .last_place = s->last_place};
        n->index_scratch[count++] = i;
    }
    if (count == 0) return;
    uint32_t picked =
        kvf_decode_pick(n->decode_candidates, count, n->step_id, n->config.step_sequences_max, n->decode_picks);
    for (uint32_t i = 0; i < picked; i++) n->decode_picks[i] = n->index_scratch[n->decode_picks[i]];
    /* All blocks first: getting one may preempt a sequence that was picked. */
    for (uint32_t i = 0; i < picked; i++) {
        node_seq *s = &n->seqs[n->decode_picks[i]];
        if (s->state == SEQ_DECODE && !req_of(n, s)->ending) (void)ensure_block(n, s);
    }
    for (uint32_t i = 0; i < picked; i++) {
        node_seq *s = &n->seqs[n->decode_picks[i]];
        s->last_place = i;
        if (s->state != SEQ_DECODE || req_of(n, s)->ending || !may_emit(n, req_of(n, s), 1)) continue;
        add_run(n, n->decode_picks[i], 1, 1);
        n->step_decode++;
    }
}

static uint32_t collect_prompts(kvf_node *n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        const node_req *r = &n->reqs[i];
        if (r->state != REQ_COMPUTE || r->ending || r->alone) continue;
        const node_seq *s = &n->seqs[r->seq[0]];
        n->prefill_candidates[count++] = (kvf_prefill_candidate){.id = i,
            .remaining = s->count - s->computed,
            .position = s->computed,
            .priority = r->priority,
            .arrival = r->arrival};
    }
    return count;
}

static void add_chunk(kvf_node *n, node_req *r, uint32_t tokens, bool *scoring) {
    node_seq *s = node_first_seq(n, r);
    if (r->prompt_logprobs) {
        if (*scoring) return;
        tokens = KVF_MIN(tokens, SCORE_ROWS_MAX);
    }
    bool last = s->computed + tokens == s->count;
    uint32_t items = (last ? r->n : 0) + (r->prompt_logprobs ? tokens : 0);
    if (r->prompt_logprobs && n->sessions[r->session].score_runs == SCORE_RUNS_MAX) return;
    if (items && !may_emit(n, r, items)) return;
    *scoring |= r->prompt_logprobs != 0;
    while (s->blocks_count < kvf_div_up(s->computed + tokens, KVF_KV_BLOCK_TOKENS)) take_block(n, r, s);
    if (!r->computing_at) r->computing_at = n->now;
    add_run(n, r->seq[0], tokens, last ? r->n : 0);
    n->step_prefill += tokens;
}

static void plan_prompts(kvf_node *n) {
    uint32_t count = collect_prompts(n);
    if (count == 0) return;
    const kvf_node_config *c = &n->config;
    kvf_prefill_budget budget = {.tokens_max = KVF_MIN(n->step_decode ? c->chunk_tokens_mixed : c->chunk_tokens,
                                     c->step_tokens_max - n->step_decode),
        .runs_max = c->step_sequences_max - n->runs_count};
    if (budget.runs_max == 0 || budget.tokens_max < KVF_KV_BLOCK_TOKENS)
        return; /* the next step has fewer decodes or rotates */
    uint32_t runs = kvf_prefill_plan(n->prefill_candidates, count, budget, n->prefill_scratch, n->prefill_runs);
    bool scoring = false;
    for (uint32_t i = 0; i < runs; i++)
        add_chunk(
            n, &n->reqs[n->prefill_candidates[n->prefill_runs[i].candidate].id], n->prefill_runs[i].tokens, &scoring);
}

/* A request that processes died of runs by itself, so that nobody else falls with it and is taken for the culprit. */
static node_req *next_alone(kvf_node *n) {
    node_req *first = NULL;
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (!r->alone || r->ending || (r->state != REQ_COMPUTE && r->state != REQ_DECODE)) continue;
        if (!first || r->arrival < first->arrival) first = r;
    }
    return first;
}

static void plan_chunk_alone(kvf_node *n, node_req *r) {
    const node_seq *s = node_first_seq(n, r);
    bool scoring = false;
    /* The smallest: should it die again, then of a token among these few. */
    add_chunk(n, r, KVF_MIN(s->count - s->computed, KVF_KV_BLOCK_TOKENS), &scoring);
}

static void plan_choices_alone(kvf_node *n, node_req *r) {
    uint32_t count = KVF_MIN(r->n, n->config.step_sequences_max);
    /* All blocks first: getting one may preempt this very request. */
    for (uint32_t i = 0; i < count && r->state == REQ_DECODE; i++)
        if (n->seqs[r->seq[i]].state == SEQ_DECODE) (void)ensure_block(n, &n->seqs[r->seq[i]]);
    for (uint32_t i = 0; i < count && r->state == REQ_DECODE; i++) {
        if (n->seqs[r->seq[i]].state != SEQ_DECODE || !may_emit(n, r, 1)) continue;
        add_run(n, r->seq[i], 1, 1);
        n->step_decode++;
    }
}

static void plan_alone(kvf_node *n) {
    node_req *r = next_alone(n);
    if (!r) return;
    if (r->state == REQ_COMPUTE)
        plan_chunk_alone(n, r);
    else
        plan_choices_alone(n, r);
    if (n->runs_count) n->alone_step = n->step_id;
}

static void say_prefilling(kvf_node *n) {
    for (uint32_t i = 0; i < n->config.sessions_max; i++) {
        if (!n->step_prefill && !n->sessions[i].prefilling_said) continue;
        n->sessions[i].prefilling_due = true;
        node_say_prefilling(n, i);
    }
}

void node_plan(kvf_node *n) {
    if (n->step_running || n->state == KVF_NODE_STARTING) return;
    n->runs_count = n->step_prefill = n->step_decode = n->step_layer = 0;
    memset(n->emit_planned, 0, sizeof *n->emit_planned * n->config.sessions_max);
    n->step_id++;
    bool turn = n->alone_step + 1 < n->step_id; /* every second step at most */
    if (turn) plan_alone(n);
    if (n->runs_count == 0) {
        plan_decodes(n);
        plan_prompts(n);
    }
    if (n->runs_count == 0 && !turn) plan_alone(n);
    /* Copies alone are worth a step too: their blocks are in use until they are made. */
    if (n->runs_count == 0 && n->copies_count == 0) {
        n->step_id--;
        say_prefilling(n);
        return;
    }
    n->step_running = true;
    n->step_copies = n->copies_count;
    say_prefilling(n); /* before the engine can die of it */
    kvf_node_act *a = node_act(n, KVF_NODE_STEP);
    a->step = (kvf_step){.id = n->step_id,
        .copies = n->copies,
        .copies_count = n->copies_count,
        .runs = n->runs,
        .runs_count = n->runs_count,
        .prefill_tokens = n->step_prefill,
        .decode_tokens = n->step_decode};
}

/* ------------------------------------------------------------------ results */

/* One more token of a sequence. The node decides about lengths, end tokens and stop ids; stop strings are the router's.
 */
static void append_token(kvf_node *n, node_req *r, node_seq *s, const kvf_step_sample *sample, bool repeated) {
    kvf_end end = sample->end;
    uint32_t position = s->count;
    s->tokens[s->count++] = sample->token;
    s->emitted++;
    if (!repeated) r->alone = false;
    if (end == KVF_END_NONE && s->count - r->prompt_count >= r->output_max) end = KVF_END_LENGTH;
    node_emit_token(n, r, s->choice, position, sample->token, end, repeated, sample->sample);
    if (end == KVF_END_NONE) {
        if (s->state != SEQ_DECODE) s->last_step = n->step_id; /* ready now: waits from here */
        s->state = SEQ_DECODE;
        return;
    }
    s->state = SEQ_DONE;
    kvf_decode_estimate_add(&n->estimate, s->count - r->prompt_count);
    while (s->blocks_count > 0) kvf_kv_unpin(n->kv, s->block[--s->blocks_count]);
    r->live--;
}

/* A further choice shares every full block and copies the partly filled one, before the next step's runs. */
static void fork_choice(kvf_node *n, node_req *r, const node_seq *from, node_seq *to) {
    memcpy(to->tokens, from->tokens, sizeof *to->tokens * r->tokens_count);
    to->count = to->computed = r->tokens_count;
    uint32_t full = r->tokens_count / KVF_KV_BLOCK_TOKENS, rest = r->tokens_count % KVF_KV_BLOCK_TOKENS;
    for (uint32_t b = 0; b < full; b++) {
        KVF_ASSERT(kvf_kv_pin(n->kv, from->block[b]) == KVF_OK); /* pinned by `from`: costs no room */
        node_seq_add_block(to, from->block[b]);
    }
    to->sealed_count = full;
    if (rest == 0) return;
    take_block(n, r, to);
    kvf_kv_set_filled(n->kv, to->block[full], rest);
    KVF_ASSERT(n->copies_count < n->config.sequences_max);
    uint32_t at = n->copies_count++;
    n->copies[at] = (kvf_step_copy){.from = from->physical[full], .to = to->physical[full], .tokens = rest};
    n->copy_blocks[2 * at] = from->block[full];
    n->copy_blocks[2 * at + 1] = to->block[full];
    for (uint32_t i = 0; i < 2; i++) KVF_ASSERT(kvf_kv_use_begin(n->kv, n->copy_blocks[2 * at + i]) == KVF_OK);
}

static void begin_shipping_choices(kvf_node *n, node_req *r, const kvf_step_sample *samples, uint32_t count) {
    node_seq *s = node_first_seq(n, r);
    kvf_step_sample first[KVF_CHOICES_MAX];
    uint32_t live = 0;
    for (uint32_t i = 0; i < count; i++) {
        first[i] = samples[i];
        if (first[i].end == KVF_END_NONE && r->tokens_count + 1 - r->prompt_count >= r->output_max)
            first[i].end = KVF_END_LENGTH;
        live += first[i].end == KVF_END_NONE;
        node_emit_token(n, r, first[i].choice, r->tokens_count, first[i].token, first[i].end, false, first[i].sample);
    }
    s->state = SEQ_HELD;
    r->computed_at = n->now;
    if (live == 0)
        node_release(n, r); /* the request is over: cancels the grant, ships no more */
    else
        node_ship_first(n, r, first, count);
}

/* The router hears so by the ends of its tokens, and owes no Cancel. A Reserve that comes once more would get room that
 * nobody gives back. */
static void ended(kvf_node *n, node_req *r) {
    if (!MUTANT(21)) node_note_cancel(n, r->id, r->attempt);
    node_release(n, r);
}

void node_begin_choices(kvf_node *n, node_req *r, const kvf_step_sample *samples, uint32_t count, bool repeated) {
    KVF_ASSERT(count == r->n);
    if (r->leg == LEG_PREFILL) {
        begin_shipping_choices(n, r, samples, count);
        return;
    }
    if (r->state == REQ_COMPUTE) node_req_set_state(r, REQ_DECODE); /* else its commit has done so */
    node_seq *first = node_first_seq(n, r);
    for (uint32_t i = 1; i < r->n; i++) fork_choice(n, r, first, &n->seqs[r->seq[i]]);
    for (uint32_t i = 0; i < r->n; i++) append_token(n, r, &n->seqs[r->seq[i]], &samples[i], repeated);
    if (r->live == 0) ended(n, r);
}

static void end_uses(kvf_node *n) {
    for (uint32_t i = 0; i < n->runs_count; i++) {
        const kvf_step_run *run = &n->runs[i];
        node_seq *s = &n->seqs[n->run_seq[i]];
        uint32_t last = (run->position + run->count - 1) / KVF_KV_BLOCK_TOKENS;
        for (uint32_t b = run->position / KVF_KV_BLOCK_TOKENS; b <= last; b++) kvf_kv_use_end(n->kv, s->block[b]);
        s->in_step = false;
    }
    for (uint32_t i = 0; i < 2 * n->step_copies; i++) kvf_kv_use_end(n->kv, n->copy_blocks[i]);
    n->copies_count -= n->step_copies;
    memmove(n->copies, n->copies + n->step_copies, sizeof *n->copies * n->copies_count);
    memmove(n->copy_blocks, n->copy_blocks + 2 * n->step_copies, sizeof *n->copy_blocks * 2 * n->copies_count);
}

static void run_done(kvf_node *n, uint32_t index, const kvf_step_sample *samples, uint32_t count) {
    const kvf_step_run *run = &n->runs[index];
    node_seq *s = &n->seqs[n->run_seq[index]];
    node_req *r = req_of(n, s);
    if (s->state == SEQ_FREE) return; /* given back with another choice of its request, a moment ago */
    if (r->ending) {
        node_release(n, r);
        return;
    }
    s->computed += run->count;
    node_seal(n, r, s);
    KVF_ASSERT(count == run->samples);
    if (count == 0) return;
    if (s->state == SEQ_PREFILL) {
        node_begin_choices(n, r, samples, count, false);
        return;
    }
    append_token(n, r, s, &samples[0], false);
    if (r->live == 0) ended(n, r);
}

static void fail_runs(kvf_node *n, kvf_status status) {
    for (uint32_t i = 0; i < n->runs_count; i++) {
        node_req *r = req_of(n, &n->seqs[n->run_seq[i]]);
        if (r->state == REQ_FREE) continue;
        if (r->ending)
            node_release(n, r);
        else
            node_fail(n, r, r->state == REQ_DECODE ? KVF_STAGE_DECODE : KVF_STAGE_PREFILL, status, "", true,
                kvf_status_text(status));
    }
}

static void send_scores(kvf_node *n, const kvf_step_result *result) {
    for (uint32_t i = 0; i < result->scores_count; i++) {
        const kvf_step_scores *sc = &result->scores[i];
        node_req *r = req_of(n, &n->seqs[n->run_seq[sc->run]]);
        if (r->state == REQ_FREE || r->ending || sc->start >= r->prompt_count) continue;
        /* What follows the prompt was accepted in an earlier attempt: nobody asked for its scores. */
        uint32_t count = KVF_MIN(sc->count, r->prompt_count - sc->start);
        if (count == 0) continue;
        size_t bytes = sc->samples.len_bytes / sc->count * count;
        node_emit_scores(n, r, sc->start, count, (kvf_span){sc->samples.data, bytes});
    }
}

void kvf_node_on_layer(kvf_node *n, kvf_time_ns now, uint64_t step, uint32_t layer) {
    n->now = now;
    if (!n->step_running || step != n->step_id) return;
    n->step_layer = KVF_MAX(n->step_layer, layer + 1);
    node_tell_layers(n);
}

void kvf_node_on_step_done(kvf_node *n, kvf_time_ns now, uint64_t step, const kvf_step_result *result) {
    n->now = now;
    KVF_ASSERT(n->step_running && step == n->step_id);
    bool ok = result->status == KVF_OK;
    if (ok) {
        n->step_layer = n->config.layers;
        node_tell_layers(n);
        n->stats.prefill_tokens += n->step_prefill;
        n->stats.decode_tokens += n->step_decode;
        if (n->step_prefill)
            n->stats.prefill_busy_ns += result->busy_ns;
        else
            n->stats.decode_busy_ns += result->busy_ns;
    }
    end_uses(n);
    n->step_running = false;
    if (!ok) {
        fail_runs(n, result->status);
        return;
    }
    send_scores(n, result);
    for (uint32_t i = 0, at = 0; i < n->runs_count; i++) {
        run_done(n, i, result->samples + at, n->runs[i].samples);
        at += n->runs[i].samples;
    }
}
