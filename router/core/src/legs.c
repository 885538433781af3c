/* Legs: one unit of work on its way over the nodes. Every change of state, of place and of what is owed to a node
 * happens here. */
#include "router_int.h"
#include <inttypes.h>
#include <stdio.h>

static void set_waiting(kvf_router *r, rt_seq *s, bool waiting) {
    rt_leg *l = &s->l;
    if (l->counted_waiting == waiting) return;
    l->counted_waiting = waiting;
    uint32_t tokens = rt_request_at(r, s)->prompt_count;
    if (waiting) {
        r->counters.waiting += l->n;
        r->counters.waiting_tokens += tokens;
    } else {
        KVF_ASSERT(r->counters.waiting >= l->n && r->counters.waiting_tokens >= tokens);
        r->counters.waiting -= l->n;
        r->counters.waiting_tokens -= tokens;
    }
}

/* The counter of legs in `state` at their decode node. */
static uint32_t *decode_counter(kvf_router *r, const rt_leg *l, rt_leg_state state) {
    if (l->decode == RT_NONE) return NULL;
    rt_node *n = &r->nodes[l->decode];
    switch (state) {
    case RT_LEG_RESERVING: return &n->reserving;
    case RT_LEG_QUEUED: return &n->queued;
    case RT_LEG_GRANTED:
    case RT_LEG_PREFILLING:
    case RT_LEG_DECODING: return &n->decoding;
    default: return NULL;
    }
}

/* The state with the counters and lists that go by it. */
static void leg_put(kvf_router *r, rt_seq *s, rt_leg_state state) {
    rt_leg *l = &s->l;
    uint32_t *counter = decode_counter(r, l, l->state);
    if (counter) {
        KVF_ASSERT(*counter > 0);
        (*counter)--;
    }
    if (l->state == RT_LEG_QUEUED) r->queued_legs--;
    if (l->state == RT_LEG_WAITING) rt_heap_take(&r->queue, rt_seq_index(r, s));
    rt_timer_set(r, rt_timer_seq(r, s), KVF_TIME_NEVER);
    l->unverified = false;
    l->stall_ns = 0;
    l->state = state;
    counter = decode_counter(r, l, state);
    if (counter) (*counter)++;
    if (state == RT_LEG_QUEUED) r->queued_legs++;
    if (state == RT_LEG_WAITING || state == RT_LEG_HELD || state == RT_LEG_QUEUED)
        set_waiting(r, s, true);
    else if (state != RT_LEG_RESERVING)
        set_waiting(r, s, false);
}

void rt_leg_set_state(kvf_router *r, rt_seq *s, rt_leg_state to) {
    rt_leg_state from = s->l.left != RT_LEG_NONE ? s->l.left : s->l.state;
    bool lawful = false
#define STATE(name)
#define MOVE(before, after, event) || (from == RT_LEG_##before && to == RT_LEG_##after)
#include "leg_moves.h"
#undef STATE
#undef MOVE
        ;
    KVF_ASSERT(lawful);
    KVF_MOVE_SEEN(LEG, from, to);
    s->l.left = RT_LEG_NONE;
    leg_put(r, s, to);
}

/* Off the counters of its decode node; what it becomes is said with rt_leg_set_state before the event is over. */
static void leg_take_off(kvf_router *r, rt_seq *s) {
    rt_leg_state from = s->l.state;
    if (from == RT_LEG_NONE) return;
    leg_put(r, s, RT_LEG_NONE);
    s->l.left = from;
}

void rt_leg_wait(kvf_router *r, rt_seq *s) {
    KVF_ASSERT(s->l.decode == RT_NONE && s->l.prefill == RT_NONE);
    rt_leg_set_state(r, s, RT_LEG_WAITING);
    rt_heap_put(&r->queue, rt_seq_index(r, s));
    r->pump_due = true;
}

void rt_leg_hold(kvf_router *r, rt_seq *s, kvf_time_ns until_ns) {
    KVF_ASSERT(s->l.decode == RT_NONE && s->l.prefill == RT_NONE);
    rt_leg_set_state(r, s, RT_LEG_HELD);
    rt_timer_set(r, rt_timer_seq(r, s), until_ns);
}

void rt_leg_send(kvf_router *r, rt_seq *s) {
    if (s->l.in_sends) return;
    s->l.in_sends = true;
    s->l.sends_next = RT_NONE;
    uint32_t place = rt_seq_index(r, s);
    if (r->sends_tail == RT_NONE)
        r->sends_head = place;
    else
        r->seqs[r->sends_tail].l.sends_next = place;
    r->sends_tail = place;
}

void rt_leg_reserve(kvf_router *r, rt_seq *s, uint32_t node, uint32_t ship_min) {
    rt_leg *l = &s->l;
    KVF_ASSERT(l->prefill == RT_NONE && (l->decode == RT_NONE || l->decode == node));
    if (l->decode == RT_NONE) l->decode_told = false;
    l->attempt = ++l->attempt_last;
    l->progress = l->shipped = l->ended_here = l->running = false;
    l->ship_min = ship_min;
    l->outputs_base = l->n == 1 ? s->output_count : 0;
    /* A node that owes no answer is taken to have room; what is sent beside that waits for it. */
    bool first = r->nodes[node].reserving == 0;
    leg_take_off(r, s);
    l->decode = node;
    rt_leg_set_state(r, s, RT_LEG_RESERVING);
    set_waiting(r, s, !first);
    l->reserve_due = true;
    l->prefill_due = false;
    rt_leg_send(r, s);
}

void rt_leg_prefill(kvf_router *r, rt_seq *s, uint32_t node, uint32_t load) {
    rt_leg *l = &s->l;
    KVF_ASSERT(l->state == RT_LEG_GRANTED && l->prefill == RT_NONE);
    rt_request *q = rt_request_at(r, s);
    rt_leg_set_state(r, s, RT_LEG_PREFILLING);
    l->prefill = node;
    l->prefill_told = false;
    l->prefill_load = load;
    r->nodes[node].prefilling++;
    r->nodes[node].prefill_load += load;
    rt_pair *pair = rt_pair_of(r, node, l->decode);
    if (pair->failures) pair->probing = true;
    q->prefill_node = node;
    l->prefill_due = true;
    rt_leg_send(r, s);
    r->counters.shipped++;
    rt_request_admitted(r, q);
}

void rt_leg_admitted(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    rt_request *q = rt_request_at(r, s);
    l->tried = 0;
    l->unready_since = KVF_TIME_NEVER;
    l->admitted_ns = r->now;
    q->decode_node = l->decode;
    q->prefill_node = RT_NONE;
    if (q->first_admitted_ns == KVF_TIME_NEVER) {
        q->first_admitted_ns = r->now;
        q->usage.queue_ns = r->now - q->submit_ns;
        q->cached_tokens = l->cached_tokens;
    }
}

void rt_request_admitted(kvf_router *r, rt_request *q) {
    if (q->admitted) return;
    q->admitted = q->admitted_due = true;
    rt_request_say(r, q);
}

void rt_leg_decoding(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    bool unverified = l->unverified && !l->old_attempt; /* its tokens may be old ones, said again after a reconnect */
    /* An attempt that was given up too early turns out to live: nothing is left of the one after it. */
    if (l->old_attempt) {
        l->attempt = l->old_attempt;
        l->old_attempt = 0;
        l->reserve_due = false;
    }
    rt_leg_set_state(r, s, RT_LEG_DECODING);
    if (unverified) rt_leg_verify(r, s);
    r->pump_due = true;
    /* The answer of that attempt may never have come. */
    rt_request *q = rt_request_at(r, s);
    if (q->admitted) return;
    rt_leg_admitted(r, s);
    rt_request_admitted(r, q);
}

/* ---- silence ---- */

/* PREFILLING and DECODING: the next of what is watched. */
static void arm(kvf_router *r, rt_seq *s) {
    kvf_time_ns at = s->l.unverified ? rt_after(s->l.heard_ns, RT_PROBE_NS) : KVF_TIME_NEVER;
    rt_timer_set(r, rt_timer_seq(r, s), s->l.stall_ns ? KVF_MIN(at, s->l.stall_ns) : at);
}

/* What a node said while its session was down is lost, but for tokens: it may have handed the leg back. Asking is a
 * Reserve of the next attempt: a node that goes on answers AlreadyStarted, one that does not begins again. Tokens put
 * the question off, but do not settle it: they may be old ones, said again. */
void rt_leg_verify(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    if (l->state != RT_LEG_DECODING && l->state != RT_LEG_PREFILLING) return;
    l->unverified = true;
    l->heard_ns = r->now;
    arm(r, s);
}

void rt_leg_first_token(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    if (l->state != RT_LEG_PREFILLING || l->shipped || l->stall_ns) return;
    l->stall_ns = rt_after(r->now, r->config.transfer_stall_ns);
    arm(r, s);
}

/* The link is alive, but what it was given does not arrive. */
static void stalled(kvf_router *r, rt_seq *s) {
    r->counters.links_stalled++;
    rt_pair_failed(r, s->l.prefill, s->l.decode, "a hand-off stalled");
    rt_leg_failed(r, s,
        &(rt_failure){.what = RT_STRAY,
            .link = true,
            .same_decode = true,
            .blame = RT_NONE,
            .reason = KVF_ERR_DEADLINE,
            .stage = "transfer",
            .text = "the hand-off stalls"});
}

static void probe(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    kvf_time_ns due = rt_after(l->heard_ns, RT_PROBE_NS);
    if (due > r->now) {
        arm(r, s);
        return;
    }
    l->unverified = false;
    if (l->state == RT_LEG_PREFILLING && !l->shipped) { /* the prefill node will say */
        arm(r, s);
        return;
    }
    uint32_t old = l->attempt;
    bool progress = l->progress;
    rt_leg_leave_prefill(r, s, true);
    rt_leg_reserve(r, s, l->decode, l->ship_min);
    l->old_attempt = old;
    l->progress = progress;
}

void rt_leg_on_time(kvf_router *r, rt_seq *s) {
    switch (s->l.state) {
    case RT_LEG_HELD: rt_leg_wait(r, s); return;
    case RT_LEG_GRANTED: rt_assign_prefill(r, s); return;
    case RT_LEG_DECODING:
    case RT_LEG_PREFILLING:
        if (s->l.stall_ns && s->l.stall_ns <= r->now) {
            stalled(r, s);
            return;
        }
        if (s->l.unverified && !rt_request_at(r, s)->finish_waits) probe(r, s);
        return;
    default: return;
    }
}

/* ---- leaving ---- */

void rt_cancel_push(kvf_router *r, uint32_t node, kvf_request_id id, uint32_t attempt, bool finished) {
    KVF_ASSERT(r->cancels_count <= r->cancels_mask);
    r->cancels[(r->cancels_head + r->cancels_count++) & r->cancels_mask] =
        (rt_cancel){.node = node, .attempt = attempt, .request = id, .finished = finished};
}

void rt_leg_leave_prefill(kvf_router *r, rt_seq *s, bool finished) {
    rt_leg *l = &s->l;
    if (l->prefill == RT_NONE) return;
    rt_node *n = &r->nodes[l->prefill];
    if (l->prefill_told && !l->shipped) rt_cancel_push(r, l->prefill, l->id, l->attempt, finished);
    KVF_ASSERT(n->prefilling > 0 && n->prefill_load >= l->prefill_load);
    n->prefilling--;
    n->prefill_load -= l->prefill_load;
    if (l->decode != RT_NONE) rt_pair_of(r, l->prefill, l->decode)->probing = false;
    l->prefill = RT_NONE;
    l->prefill_told = l->prefill_due = false;
    l->prefill_load = 0;
    r->pump_due = true;
}

static bool decode_knows_end(const kvf_router *r, const rt_seq *s) {
    if (s->l.state != RT_LEG_DECODING || s->l.ended_here) return false;
    const rt_request *q = rt_request_at(r, s);
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next)
        if (r->seqs[i].leg == rt_seq_index(r, s) && !r->seqs[i].ended) return false;
    return true;
}

void rt_leg_stop_decoding(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    if (l->decode != RT_NONE && l->decode_told && !decode_knows_end(r, s))
        rt_cancel_push(r, l->decode, l->id, l->attempt, true);
    l->decode_told = false;
}

static void leave_decode(kvf_router *r, rt_seq *s, bool finished) {
    rt_leg *l = &s->l;
    if (l->decode == RT_NONE) return;
    if (l->old_attempt) rt_cancel_push(r, l->decode, l->id, l->old_attempt, finished);
    if (l->decode_told && !decode_knows_end(r, s) && !MUTANT(2))
        rt_cancel_push(r, l->decode, l->id, l->attempt, finished);
    rt_node *n = &r->nodes[l->decode];
    if (l->state != RT_LEG_RESERVING) { /* what it held is free now */
        n->full = false;
        n->closed_until_ns = 0;
    }
    leg_take_off(r, s);
    l->decode = RT_NONE;
    l->old_attempt = 0;
    l->decode_told = l->reserve_due = false;
    r->pump_due = true;
}

void rt_leg_leave(kvf_router *r, rt_seq *s, bool finished) {
    rt_leg_leave_prefill(r, s, finished);
    leave_decode(r, s, finished);
}

void rt_leg_drop(kvf_router *r, rt_seq *s, bool finished) {
    rt_leg_leave(r, s, finished);
    rt_leg_set_state(r, s, RT_LEG_NONE);
    const rt_request *q = rt_request_at(r, s);
    uint32_t place = rt_seq_index(r, s);
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next)
        if (r->seqs[i].leg == place) r->seqs[i].leg = RT_NONE;
}

/* ---- failing ---- */

static bool must_split(const kvf_router *r, const rt_seq *s) {
    if (s->l.n == 1) return false;
    const rt_request *q = rt_request_at(r, s);
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next)
        if (r->seqs[i].leg == rt_seq_index(r, s) && (r->seqs[i].output_count || r->seqs[i].ended)) return true;
    return false;
}

/* Each choice that goes on becomes a leg of its own, with an id of its own: its tokens so far are part of its work. */
static void split(kvf_router *r, rt_seq *s, kvf_time_ns until_ns) {
    const rt_request *q = rt_request_at(r, s);
    uint32_t place = rt_seq_index(r, s);
    rt_leg from = s->l;
    rt_leg_drop(r, s, false);
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next) {
        rt_seq *c = &r->seqs[i];
        if (c->ended || (c->leg != RT_NONE && c->leg != place)) continue;
        KVF_ASSERT(c->l.state == RT_LEG_NONE);
        rt_seq_prompt_copy(r, c);
        c->leg = i;
        c->l = (rt_leg){.id = rt_seq_new_id(r, c),
            .in_sends = c->l.in_sends,
            .sends_next = c->l.sends_next,
            .n = 1,
            .choice_base = MUTANT(7) ? 0 : c->choice,
            .failures = from.failures,
            .deaths = from.deaths,
            .deaths_all = from.deaths_all,
            .death_first = from.death_first,
            .death_end = from.death_end,
            .death_node = from.death_node,
            .death_since = from.death_since,
            .strays = from.strays,
            .stray_since = from.stray_since,
            .links_lost = from.links_lost,
            .handbacks = from.handbacks,
            .retry = true,
            .local_only = from.local_only,
            .decode = RT_NONE,
            .prefill = RT_NONE,
            .avoid = from.avoid,
            .impossible = from.impossible,
            .arrival = from.arrival,
            .unready_since = KVF_TIME_NEVER,
            .model = from.model,
            .numerics = from.numerics};
        if (until_ns > r->now)
            rt_leg_hold(r, c, until_ns);
        else
            rt_leg_wait(r, c);
    }
}

static void count_failure(kvf_router *r, rt_seq *s, const rt_failure *why) {
    rt_leg *l = &s->l;
    rt_request *q = rt_request_at(r, s);
    if (l->progress) l->handbacks = 0;
    rt_blame what = MUTANT(12) && why->what == RT_HANDBACK ? RT_FAULT : why->what;
    if (what == RT_HANDBACK) r->counters.preempted++;
    if (!l->progress) {
        if (what == RT_HANDBACK) l->handbacks++;
        if (what == RT_FAULT) l->failures++;
        if (what == RT_STRAY && l->strays++ == 0) l->stray_since = r->now;
    }
    if (why->link) l->links_lost++;
    if (why->blame != RT_NONE) l->avoid |= 1ull << why->blame;
    r->counters.retries++;
    q->usage.attempts++;
}

static void fail_for_deaths(kvf_router *r, rt_seq *s) {
    const rt_leg *l = &s->l;
    char text[KVF_TEXT_MAX];
    bool one_place = l->failures + l->deaths >= r->config.attempts_max;
    snprintf(text, sizeof text,
        "%" PRIu32 " processes died while computing %sposition %" PRIu32 " of this request, the last on node %.64s",
        one_place ? l->deaths : l->deaths_all, one_place ? "" : "it, at last at ", l->death_first,
        r->nodes[l->death_node].id);
    rt_request_fail(r, rt_request_at(r, s), KVF_ERR_INTERNAL, "", text, 0); /* not one to send again */
}

/* Nothing may be tried for ever. While processes die, whoever strays has their deaths to thank for it. */
static bool strayed_enough(const kvf_router *r, const rt_leg *l) {
    kvf_time_ns span = r->config.stray_span_ns, strays_for = r->now - l->stray_since;
    if (l->strays < 4 * r->config.attempts_max || strays_for < span) return false;
    return !r->any_died || r->now - r->died_ns >= span || strays_for >= RT_STRAY_SPANS_MAX * span;
}

bool rt_leg_may_go_on(kvf_router *r, rt_seq *s, const rt_failure *why) {
    const rt_leg *l = &s->l;
    uint32_t max = r->config.attempts_max;
    if (rt_suspect_guilty(r, l)) {
        fail_for_deaths(r, s);
        return false;
    }
    bool strayed = strayed_enough(r, l);
    if (l->failures < max && l->handbacks < 4 * max && !strayed) return true;
    char text[KVF_TEXT_MAX];
    snprintf(text, sizeof text, "gave up after %" PRIu32 " attempts without a token; the last: %s%s%s (%s)",
        l->failures + l->handbacks + l->strays, why->stage, why->text[0] ? ": " : "", why->text,
        kvf_status_text(why->reason));
    bool later = why->reason == KVF_AGAIN || (strayed && l->failures < max);
    rt_request_fail(r, rt_request_at(r, s), why->reason, "", text, later ? r->config.retry_after_ns : 0);
    return false;
}

static kvf_time_ns backoff(const kvf_router *r, const rt_leg *l, uint32_t failures, kvf_time_ns span_max) {
    kvf_time_ns span = r->config.backoff_ns;
    for (uint32_t i = 1; i < failures && span < span_max; i++) span *= 2;
    return rt_jitter(r, KVF_MIN(span, span_max), l->id.counter, failures);
}

/* Who strays goes on at once; again and again, more slowly: what makes it stray may need a moment. */
static kvf_time_ns when_again(const kvf_router *r, const rt_leg *l, const rt_failure *why) {
    uint32_t count = l->failures + l->deaths;
    if (why->what == RT_STRAY && l->strays > 1 && !l->progress)
        return rt_after(
            r->now, backoff(r, l, l->strays - 1, KVF_MIN(r->config.backoff_max_ns, RT_STRAY_BACKOFF_MAX_NS)));
    if ((why->what == RT_FAULT || why->what == RT_DEATH) && count)
        return rt_after(r->now, backoff(r, l, count, r->config.backoff_max_ns));
    return 0;
}

/* Nobody can ship to its decode node at present, or shipping has failed often enough: that computes the prompt itself.
 * Who asked for shipping in so many words waits for a way, but not for long: each attempt takes a while to fail and
 * brings at best the one token that the prefill node makes. */
static bool ships_no_more(const kvf_router *r, const rt_seq *s) {
    const rt_leg *l = &s->l;
    if (l->ship_min == UINT32_MAX || r->config.strict) return false;
    return l->links_lost >= r->config.attempts_max ||
           (rt_request_at(r, s)->mode == KVF_ROUTER_AUTO && l->decode != RT_NONE && !rt_prefills_for(r, l->decode));
}

void rt_leg_failed(kvf_router *r, rt_seq *s, const rt_failure *why) {
    rt_leg *l = &s->l;
    rt_request *q = rt_request_at(r, s);
    KVF_ASSERT(l->state != RT_LEG_NONE && why->stage && why->text);
    if (q->finish_waits) { /* all tokens are there: only the account was missing */
        rt_leg_leave_prefill(r, s, true);
        rt_request_heard(r, q);
        return;
    }
    count_failure(r, s, why);
    if (!rt_leg_may_go_on(r, s, why)) return;
    bool splits = must_split(r, s), local = ships_no_more(r, s);
    if (local && l->links_lost >= r->config.attempts_max) l->local_only = true;
    kvf_time_ns leave = why->what == RT_FAULT || why->link ? rt_retry_wait(r) : 0;
    if (leave == 0 && why->same_decode && !splits && l->decode != RT_NONE && rt_node_ready(r, &r->nodes[l->decode])) {
        uint32_t old = l->old_attempt ? l->old_attempt : l->decode_told ? l->attempt : 0;
        uint32_t ship_min = l->ship_min;
        rt_leg_leave_prefill(r, s, false);
        if (local) {
            ship_min = UINT32_MAX;
            r->counters.fallback_local++;
        }
        rt_leg_reserve(r, s, l->decode, ship_min);
        l->old_attempt = MUTANT(13) ? 0 : old;
        return;
    }
    kvf_time_ns until = KVF_MAX(when_again(r, l, why), leave ? rt_after(r->now, leave) : 0);
    if (splits) {
        split(r, s, until);
        return;
    }
    rt_leg_leave(r, s, false);
    l->retry = true;
    if (until > r->now)
        rt_leg_hold(r, s, until);
    else
        rt_leg_wait(r, s);
}
