/* Requests: what clients submit, how choices end, the one last action of each. */
#include "router_int.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- places ---- */

static uint32_t place_take(uint32_t *free_list, uint32_t *free_count, uint32_t *fresh, uint32_t max) {
    /* Last freed first: memory of places that load never needed stays untouched. */
    if (*free_count) return free_list[--*free_count];
    return *fresh < max ? (*fresh)++ : RT_NONE;
}

kvf_request_id rt_seq_new_id(kvf_router *r, rt_seq *s) {
    s->generation++;
    return (kvf_request_id){r->config.epoch, s->generation * r->config.requests_max + rt_seq_index(r, s)};
}

rt_seq *rt_seq_of(kvf_router *r, kvf_request_id part) {
    if (part.router_epoch != r->config.epoch) return NULL;
    uint32_t place = (uint32_t)(part.counter % r->config.requests_max);
    if (place >= r->fresh_seqs) return NULL;
    rt_seq *s = &r->seqs[place];
    if (s->request == RT_NONE || s->l.state == RT_LEG_NONE) return NULL;
    return s->l.id.counter == part.counter ? s : NULL;
}

rt_request *rt_request_by(const kvf_router *r, kvf_request_id id) {
    if (id.router_epoch != r->config.epoch) return NULL;
    uint32_t place = (uint32_t)(id.counter % r->config.requests_max);
    if (place >= r->fresh_seqs || r->seqs[place].request == RT_NONE) return NULL;
    rt_request *q = &r->requests[r->seqs[place].request];
    return q->id.counter == id.counter && !q->closed ? q : NULL;
}

rt_seq *rt_seq_choice(kvf_router *r, const rt_request *q, uint32_t choice) {
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next)
        if (r->seqs[i].choice == choice) return &r->seqs[i];
    return NULL;
}

void rt_seq_prompt_copy(kvf_router *r, rt_seq *s) {
    if (s->prompt_here) return;
    const rt_request *q = rt_request_at(r, s);
    memcpy(rt_seq_tokens(r, s), rt_seq_tokens(r, &r->seqs[q->first_seq]), q->prompt_count * sizeof(uint32_t));
    s->prompt_here = true;
}

void rt_request_free(kvf_router *r, rt_request *q) {
    KVF_ASSERT(q->used && q->closed);
    for (uint32_t i = q->first_seq; i != RT_NONE;) {
        rt_seq *s = &r->seqs[i];
        KVF_ASSERT(s->l.state == RT_LEG_NONE);
        uint32_t next = s->next;
        s->request = RT_NONE;
        r->free_seqs[r->free_seqs_count++] = i;
        i = next;
    }
    rt_timer_set(r, rt_timer_request(r, q), KVF_TIME_NEVER);
    q->used = false;
    r->free_requests[r->free_requests_count++] = (uint32_t)(q - r->requests);
    r->counters.live--;
}

/* ---- submit ---- */

KVF_PRINTF(5, 6)
static kvf_status refuse(kvf_router *r, kvf_refusal *out, kvf_status status, const char *field, const char *fmt, ...) {
    *out = (kvf_refusal){.status = status};
    snprintf(out->field, sizeof out->field, "%s", field);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out->text, sizeof out->text, fmt, args);
    va_end(args);
    if (status == KVF_AGAIN) out->retry_after_ns = r->config.retry_after_ns;
    r->counters.refused++;
    return status;
}

static kvf_status check_form(kvf_router *r, const kvf_router_request *in, uint32_t n, kvf_refusal *out) {
    uint32_t context = r->config.context_max;
    if (in->tokens_count == 0) return refuse(r, out, KVF_ERR_INVALID, "input", "the prompt is empty");
    if (n > KVF_CHOICES_MAX)
        return refuse(r, out, KVF_ERR_INVALID, "n", "n is %" PRIu32 ", the limit is %d", n, KVF_CHOICES_MAX);
    if (in->sampling.len_bytes > KVF_SAMPLING_MAX)
        return refuse(r, out, KVF_ERR_INVALID, "sampling", "%zu bytes of sampling parameters, the limit is %d",
            in->sampling.len_bytes, KVF_SAMPLING_MAX);
    bool prompt_only = in->output_max_given && in->output_max == 0;
    if (in->tokens_count > context || (in->tokens_count == context && !prompt_only))
        return refuse(r, out, KVF_ERR_INVALID, "input",
            "the prompt has %" PRIu32 " tokens, the context holds %" PRIu32 " with at least one of output",
            in->tokens_count, context);
    if (in->output_max_given && in->output_max > context - in->tokens_count)
        return refuse(r, out, KVF_ERR_INVALID, "stop.max_tokens",
            "prompt of %" PRIu32 " and max_tokens of %" PRIu32 " exceed the context of %" PRIu32, in->tokens_count,
            in->output_max, context);
    return KVF_OK;
}

static kvf_status check_room(
    kvf_router *r, kvf_time_ns now, const kvf_router_request *in, uint32_t n, kvf_refusal *out) {
    const kvf_router_config *c = &r->config;
    if (in->deadline_ns <= now) return refuse(r, out, KVF_ERR_DEADLINE, "deadline", "the deadline has passed");
    if (n > c->requests_max)
        return refuse(r, out, KVF_ERR_NO_ROOM, "n",
            "n is %" PRIu32 ", this router works on %" PRIu32 " choices at most", n, c->requests_max);
    if (r->counters.waiting > 0 && r->counters.waiting + n > c->queue_max_requests)
        return refuse(r, out, KVF_AGAIN, "queue", "the queue is full: %" PRIu32 " of %" PRIu32 " requests wait",
            r->counters.waiting, c->queue_max_requests);
    if (r->counters.waiting > 0 && r->counters.waiting_tokens + in->tokens_count > c->queue_max_tokens)
        return refuse(r, out, KVF_AGAIN, "queue", "the queue is full: %" PRIu64 " of %" PRIu64 " prompt tokens wait",
            r->counters.waiting_tokens, c->queue_max_tokens);
    if (r->free_seqs_count + (c->requests_max - r->fresh_seqs) < n)
        return refuse(
            r, out, KVF_AGAIN, "queue", "this router is at work on all of its %" PRIu32 " choices", c->requests_max);
    return KVF_OK;
}

static void seqs_take(kvf_router *r, rt_request *q) {
    uint32_t *link = &q->first_seq;
    for (uint32_t choice = 0; choice < q->n; choice++) {
        uint32_t place = place_take(r->free_seqs, &r->free_seqs_count, &r->fresh_seqs, r->config.requests_max);
        KVF_ASSERT(place != RT_NONE);
        rt_seq *s = &r->seqs[place];
        const rt_seq before = *s;
        *s = (rt_seq){
            .request = (uint32_t)(q - r->requests), .choice = choice, .next = RT_NONE, .generation = before.generation};
        s->leg = choice == 0 ? place : q->first_seq;
        s->l.in_sends = before.l.in_sends; /* it may still stand in that list, with nothing to send */
        s->l.sends_next = before.l.sends_next;
        s->l.decode = s->l.prefill = RT_NONE;
        s->l.unready_since = KVF_TIME_NEVER;
        *link = place;
        link = &s->next;
    }
}

static void request_fill(kvf_router *r, kvf_time_ns now, const kvf_router_request *in, uint32_t n, rt_request *q) {
    *q = (rt_request){.used = true,
        .client = in->client,
        .n = n,
        .prompt_count = in->tokens_count,
        .output_max = in->output_max_given ? in->output_max : r->config.context_max - in->tokens_count,
        .output_max_given = in->output_max_given,
        .prompt_only = in->output_max_given && in->output_max == 0,
        .priority = in->priority,
        .submit_ns = now,
        .deadline_ns = in->deadline_ns,
        .first_admitted_ns = KVF_TIME_NEVER,
        .first_token_ns = KVF_TIME_NEVER,
        .salt = in->salt,
        .mode = in->mode,
        .prompt_logprobs = in->prompt_logprobs,
        .prompt_logprobs_next = in->prompt_logprobs ? 1 : 0, /* nothing comes before the first token */
        .sampling_bytes = (uint32_t)in->sampling.len_bytes,
        .first_seq = RT_NONE,
        .open_choices = n,
        .prefill_node = RT_NONE,
        .decode_node = RT_NONE};
    q->usage = (kvf_router_usage){.prompt_tokens = in->tokens_count, .attempts = 1};
}

kvf_status kvf_router_submit(
    kvf_router *r, kvf_time_ns now, const kvf_router_request *in, kvf_request_id *id, kvf_refusal *refusal) {
    KVF_ASSERT(r && in && id && refusal);
    rt_clock(r, now);
    uint32_t n = in->n ? in->n : 1;
    kvf_status status = check_form(r, in, n, refusal);
    if (status == KVF_OK) status = check_room(r, now, in, n, refusal);
    if (status != KVF_OK) return status;

    uint32_t place = place_take(r->free_requests, &r->free_requests_count, &r->fresh_requests, r->config.requests_max);
    KVF_ASSERT(place != RT_NONE); /* no more requests than seqs */
    rt_request *q = &r->requests[place];
    request_fill(r, now, in, n, q);
    seqs_take(r, q);
    rt_seq *first = &r->seqs[q->first_seq];
    memcpy(rt_seq_tokens(r, first), in->tokens, in->tokens_count * sizeof(uint32_t));
    first->prompt_here = true;
    if (q->sampling_bytes) memcpy(r->sampling + (size_t)place * KVF_SAMPLING_MAX, in->sampling.data, q->sampling_bytes);
    first->l.id = q->id = rt_seq_new_id(r, first);
    first->l.n = n;
    first->l.arrival = ++r->arrivals;
    r->counters.live++;
    r->counters.submitted++;
    rt_retry_credit(r);
    rt_timer_set(r, rt_timer_request(r, q), q->deadline_ns);
    rt_leg_wait(r, first);
    *id = q->id;
    return KVF_OK;
}

/* ---- the end ---- */

void rt_request_say(kvf_router *r, rt_request *q) {
    if (q->in_events) return;
    uint32_t place = (uint32_t)(q - r->requests);
    q->in_events = true;
    q->events_next = RT_NONE;
    if (r->events_tail == RT_NONE)
        r->events_head = place;
    else
        r->requests[r->events_tail].events_next = place;
    r->events_tail = place;
}

static void request_close(kvf_router *r, rt_request *q, bool failed) {
    KVF_ASSERT(q->used && !q->closed);
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next) {
        rt_seq *s = &r->seqs[i];
        if (s->l.state != RT_LEG_NONE) rt_leg_drop(r, s, !failed);
        s->ended = true;
        s->leg = RT_NONE;
        q->usage.completion_tokens += s->output_count;
    }
    kvf_router_usage *u = &q->usage;
    u->cached_tokens = KVF_MAX(u->cached_tokens, q->cached_tokens);
    u->prefill_node = q->prefill_node;
    u->decode_node = q->decode_node;
    if (q->first_token_ns != KVF_TIME_NEVER) {
        u->ttft_ns = q->first_token_ns - q->submit_ns;
        u->decode_ns = q->last_token_ns - q->first_token_ns;
    }
    q->closed = true;
    q->failed = failed;
    rt_timer_set(r, rt_timer_request(r, q), KVF_TIME_NEVER);
    rt_request_say(r, q);
}

void rt_request_fail(
    kvf_router *r, rt_request *q, kvf_status status, const char *field, const char *text, kvf_time_ns retry_after_ns) {
    if (q->closed) return;
    kvf_refusal why = {.status = status, .retry_after_ns = retry_after_ns}; /* field and text may be those of q->why */
    snprintf(why.field, sizeof why.field, "%s", field);
    snprintf(why.text, sizeof why.text, "%s", text[0] ? text : kvf_status_text(status));
    q->why = why;
    request_close(r, q, true);
    if (status == KVF_ERR_CANCELLED)
        r->counters.cancelled++;
    else
        r->counters.failed++;
}

static void request_finish(kvf_router *r, rt_request *q) {
    request_close(r, q, false);
    r->counters.finished++;
}

/* The prefill node's account of the hand-off comes on another connection than the last token. */
static bool awaits_report(const kvf_router *r, const rt_request *q) {
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next) {
        const rt_leg *l = &r->seqs[i].l;
        if (l->state == RT_LEG_DECODING && l->prefill != RT_NONE && l->prefill_told && !l->shipped) return true;
    }
    return false;
}

/* The prefill node's account of the hand-off comes on another connection than the tokens of the decode node, which may
 * overtake it. */
static void request_all_ended(kvf_router *r, rt_request *q) {
    if (r->config.ship_report_wait_ns == 0 || !awaits_report(r, q)) {
        request_finish(r, q);
        return;
    }
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next)
        if (r->seqs[i].l.state != RT_LEG_NONE) rt_leg_stop_decoding(r, &r->seqs[i]);
    q->finish_waits = true;
    rt_timer_set(r, rt_timer_request(r, q), rt_after(r->now, r->config.ship_report_wait_ns));
}

void rt_request_heard(kvf_router *r, rt_request *q) {
    if (q->finish_waits && !q->closed && !awaits_report(r, q)) request_finish(r, q);
}

void rt_request_on_time(kvf_router *r, rt_request *q) {
    if (!q->used || q->closed) return;
    if (q->finish_waits)
        request_finish(r, q);
    else
        rt_request_fail(r, q, KVF_ERR_DEADLINE, "", "the deadline passed before the request was done", 0);
}

void rt_choice_end(kvf_router *r, rt_seq *s, bool ended_here) {
    rt_request *q = rt_request_at(r, s);
    KVF_ASSERT(!s->ended && q->open_choices > 0);
    s->ended = true;
    q->open_choices--;
    if (s->leg != RT_NONE && ended_here) r->seqs[s->leg].l.ended_here = true;
    if (q->open_choices == 0) {
        request_all_ended(r, q);
        return;
    }
    uint32_t leg = s->leg;
    if (leg == RT_NONE) return;
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next)
        if (r->seqs[i].leg == leg && !r->seqs[i].ended) return;
    rt_leg_drop(r, &r->seqs[leg], true);
}

void kvf_router_end_choice(kvf_router *r, kvf_time_ns now, kvf_request_id id, uint32_t choice, uint32_t end_position) {
    rt_clock(r, now);
    rt_request *q = rt_request_by(r, id);
    rt_seq *s = q ? rt_seq_choice(r, q, choice) : NULL;
    if (!s) return;
    uint32_t kept = end_position > q->prompt_count ? end_position - q->prompt_count : 0;
    /* A choice that has ended by itself in the same step may still turn out to end earlier, by a stop string. */
    s->output_count = KVF_MIN(s->output_count, kept);
    if (!s->ended) rt_choice_end(r, s, true);
}

void kvf_router_cancel(kvf_router *r, kvf_time_ns now, kvf_request_id id, kvf_cancel_why why) {
    rt_clock(r, now);
    rt_request *q = rt_request_by(r, id);
    if (!q) return;
    if (q->finish_waits) {
        request_finish(r, q);
        return;
    }
    static const struct {
        kvf_status status;
        const char *text;
    } reasons[] = {
        [KVF_CANCEL_CLIENT] = {KVF_ERR_CANCELLED, "cancelled by the client"},
        [KVF_CANCEL_DEADLINE] = {KVF_ERR_DEADLINE, "the deadline passed before the request was done"},
        [KVF_CANCEL_SLOW_READER] = {KVF_ERR_LIMIT, "the client reads too slowly: too much output is waiting for it"},
    };
    KVF_ASSERT((unsigned)why < KVF_COUNT_OF(reasons));
    rt_request_fail(r, q, reasons[why].status, "", reasons[why].text, 0);
}

bool kvf_router_request_of(const kvf_router *r, kvf_request_id part, kvf_request_id *id, uint64_t *client) {
    if (part.router_epoch != r->config.epoch) return false;
    uint32_t place = (uint32_t)(part.counter % r->config.requests_max);
    if (place >= r->fresh_seqs || r->seqs[place].request == RT_NONE) return false;
    const rt_seq *s = &r->seqs[place];
    const rt_request *q = rt_request_at(r, s);
    if (s->l.id.counter != part.counter && q->id.counter != part.counter) return false;
    *id = q->id;
    *client = q->client;
    return true;
}
