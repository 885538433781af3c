/* Requests that kill nodes. A process that dies takes with it all that it held, but only what its engine was at can
 * have killed it: prompts named by its last Prefilling, sequences it was decoding. Such a death counts against the
 * request; all else that was lost with the process only strayed.
 *
 * Deaths add up while there is a position that all of them were computing: the poison is a token at some place, and
 * chunks of different attempts may be cut differently around it. A new token clears the request. The last attempt a
 * request has runs alone and in small steps (kvf_work.alone): no innocent is failed for having shared them, and one
 * whose node is killed from outside is hardly caught in the same small step once more.
 *
 * Processes that die with no suspect in their engine are a sign of a storm from outside. Each of the last while asks
 * for one more death before a request is found guilty of its own. */
#include "router_int.h"

static bool note_holds(const kvf_router *r, const rt_note *note) {
    return note->said && note->said == r->nodes[note->node].prefilling_said;
}

static rt_note *note_of(rt_leg *l, uint32_t node) {
    for (uint32_t i = 0; i < RT_NOTES; i++)
        if (l->notes[i].said && l->notes[i].node == node) return &l->notes[i];
    return NULL;
}

/* The note about this node, else a place of one that no longer holds, else the oldest attempt's. */
static rt_note *note_place(const kvf_router *r, rt_leg *l, uint32_t node) {
    rt_note *own = note_of(l, node), *oldest = &l->notes[0];
    if (own) return own;
    for (uint32_t i = 0; i < RT_NOTES; i++) {
        if (!note_holds(r, &l->notes[i])) return &l->notes[i];
        if (l->notes[i].attempt < oldest->attempt) oldest = &l->notes[i];
    }
    return oldest;
}

/* An attempt that was left may still be in the engine, but it does not get there any more. */
static bool note_fits(const rt_leg *l, uint32_t node, uint32_t attempt, const rt_note *before) {
    if (before && before->attempt == attempt) return true;
    if (node != l->decode && node != l->prefill) return false;
    return attempt == l->attempt || (l->old_attempt && attempt == l->old_attempt);
}

static void told(kvf_router *r, uint32_t node, const kvf_prefilling_item *item) {
    rt_seq *s = rt_seq_of(r, item->request);
    if (!s) return;
    rt_leg *l = &s->l;
    uint32_t tokens = rt_request_at(r, s)->prompt_count + l->outputs_base;
    if (item->attempt > l->attempt_last || item->count == 0 || item->position >= r->config.context_max ||
        item->count > r->config.context_max - item->position) {
        r->counters.malformed++;
        return;
    }
    if (node == l->prefill && item->attempt == l->attempt && item->position < tokens) {
        uint32_t left = KVF_MIN(l->prefill_load, tokens - item->position);
        r->nodes[node].prefill_load -= l->prefill_load - left;
        l->prefill_load = left;
    }
    rt_note *before = note_of(l, node);
    if (before && before->said + 1 != r->nodes[node].prefilling_said) before = NULL;
    if (!note_fits(l, node, item->attempt, before)) return;
    *note_place(r, l, node) = (rt_note){.node = node,
        .attempt = item->attempt,
        .first = item->position,
        .end = item->position + item->count,
        .said = r->nodes[node].prefilling_said};
}

void rt_suspects_told(kvf_router *r, uint32_t node, const kvf_nmsg *msg) {
    r->nodes[node].prefilling_said++;
    for (uint32_t i = 0; i < msg->prefilling.count; i++) told(r, node, &msg->prefilling.items[i]);
}

/* The first choice that goes on stands for all of them. */
static uint32_t next_position(const kvf_router *r, const rt_seq *s) {
    const rt_request *q = rt_request_at(r, s);
    for (uint32_t i = q->first_seq; i != RT_NONE; i = r->seqs[i].next)
        if (r->seqs[i].leg == rt_seq_index(r, s) && !r->seqs[i].ended) return q->prompt_count + r->seqs[i].output_count;
    return q->prompt_count;
}

static void count_death(const kvf_router *r, rt_leg *l, uint32_t node, uint32_t first, uint32_t end) {
    uint32_t common_first = KVF_MAX(first, l->death_first), common_end = KVF_MIN(end, l->death_end);
    bool common = l->deaths && common_first < common_end;
    l->deaths = common ? l->deaths + 1 : 1;
    l->death_first = common ? common_first : first;
    l->death_end = common ? common_end : end;
    l->death_node = node;
    if (l->deaths_all++ == 0) l->death_since = r->now;
}

bool rt_suspect_died(kvf_router *r, rt_seq *s, uint32_t node) {
    rt_leg *l = &s->l;
    rt_note *note = note_of(l, node);
    if (note && note_holds(r, note)) {
        count_death(r, l, node, note->first, note->end);
        note->said = 0;
        return true;
    }
    if (l->decode != node || l->state != RT_LEG_DECODING || !l->running || l->progress) return false;
    uint32_t next = next_position(r, s);
    count_death(r, l, node, next - 1, next);
    return true;
}

void rt_suspect_cleared(rt_leg *l) {
    l->deaths = l->deaths_all = l->strays = 0;
    for (uint32_t i = 0; i < RT_NOTES; i++) l->notes[i].said = 0;
}

void rt_suspects_nobody(kvf_router *r) { r->storm[r->storm_count++ % RT_STORM] = r->now; }

static uint32_t storm(const kvf_router *r) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < KVF_MIN(r->storm_count, RT_STORM); i++)
        count += r->now - r->storm[i] < r->config.stray_span_ns;
    return count;
}

bool rt_suspect_guilty(const kvf_router *r, const rt_leg *l) {
    uint32_t max = r->config.attempts_max, others = storm(r);
    if (l->deaths && l->failures + l->deaths >= max + others) return true;
    return l->deaths_all >= 3 * max && (!others || r->now - l->death_since >= r->config.stray_span_ns);
}

bool rt_suspect_alone(const kvf_router *r, const rt_leg *l) {
    return l->deaths && l->failures + l->deaths + 1 >= r->config.attempts_max;
}
