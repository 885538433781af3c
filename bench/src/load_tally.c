#include "kvf/load_tally.h"
#include <stdlib.h>

double kvf_load_tpot_ns(const kvf_load_answer *a) {
    return a->tokens > 1 ? (double)(a->last_ns - a->first_ns) / (a->tokens - 1) : 0;
}

bool kvf_load_inside(const kvf_load_limits *l, const kvf_load_answer *a) {
    if (!a->ok) return false;
    if (l->ttft_ns && a->first_ns - a->due_ns > l->ttft_ns) return false;
    return !l->tpot_ns || kvf_load_tpot_ns(a) <= (double)l->tpot_ns;
}

bool kvf_load_lost(const kvf_load_limits *l, const kvf_load_answer *a, kvf_time_ns now) {
    if (a->over) return !kvf_load_inside(l, a);
    return l->ttft_ns && (a->first_ns ? a->first_ns : now) > a->due_ns + l->ttft_ns;
}

void kvf_series_begin(kvf_series *s, uint64_t slot_ns) { *s = (kvf_series){.slot_ns = KVF_MAX(slot_ns, (uint64_t)1)}; }

void kvf_series_add(kvf_series *s, uint64_t at_ns, double amount) {
    while (at_ns / s->slot_ns >= KVF_SERIES_SLOTS) {
        for (uint32_t i = 0; i < KVF_SERIES_SLOTS; i++)
            s->slots[i] = i < KVF_SERIES_SLOTS / 2 ? s->slots[2 * i] + s->slots[2 * i + 1] : 0;
        s->slot_ns *= 2;
        s->used = (s->used + 1) / 2;
    }
    uint32_t slot = (uint32_t)(at_ns / s->slot_ns);
    s->slots[slot] += amount;
    s->used = KVF_MAX(s->used, slot + 1);
}

typedef struct {
    kvf_time_ns at_ns;
    int change;
} edge;

static int by_time(const void *a, const void *b) {
    const edge *x = a, *y = b;
    if (x->at_ns != y->at_ns) return x->at_ns < y->at_ns ? -1 : 1;
    return x->change - y->change; /* one that ends as another begins is not beside it */
}

static uint64_t peak(const kvf_load_answer *answers, uint32_t count) {
    edge *edges = malloc((size_t)count * 2 * sizeof *edges);
    uint64_t now = 0, most = 0;
    if (!edges) return 0;
    for (uint32_t i = 0; i < count; i++) {
        edges[2 * i] = (edge){answers[i].due_ns, 1};
        edges[2 * i + 1] = (edge){KVF_MAX(answers[i].end_ns, answers[i].due_ns + 1), -1};
    }
    qsort(edges, (size_t)count * 2, sizeof *edges, by_time);
    for (size_t i = 0; i < (size_t)count * 2; i++) {
        now = edges[i].change > 0 ? now + 1 : now - 1;
        most = KVF_MAX(most, now);
    }
    free(edges);
    return most;
}

void kvf_load_tally_take(kvf_load_tally *t, const kvf_load_answer *answers, uint32_t count, uint32_t warmup,
    const kvf_load_limits *limits, kvf_time_ns start_ns) {
    kvf_time_ns end_ns = 0;
    t->peak_running = peak(answers, count);
    for (uint32_t i = 0; i < count; i++) {
        const kvf_load_answer *a = &answers[i];
        KVF_ASSERT(a->over);
        kvf_series_add(&t->arrivals, a->due_ns - start_ns, 1);
        if (i < warmup) continue;
        t->counted++;
        end_ns = KVF_MAX(end_ns, a->end_ns);
        kvf_hist_add(&t->late, a->sent_ns > a->due_ns ? a->sent_ns - a->due_ns : 0);
        t->inside += kvf_load_inside(limits, a);
        if (!a->ok) {
            t->failed++;
            continue;
        }
        t->completed++;
        t->input_tokens += a->input;
        t->output_tokens += a->tokens;
        t->cached_tokens += a->cached;
        kvf_hist_add(&t->ttft, a->first_ns - a->due_ns);
        kvf_hist_add(&t->e2e, a->end_ns - a->due_ns);
        if (a->tokens > 1) kvf_hist_add(&t->tpot, (uint64_t)(kvf_load_tpot_ns(a) + 0.5));
    }
    if (warmup < count && end_ns > answers[warmup].due_ns)
        t->duration_s = (double)(end_ns - answers[warmup].due_ns) / (double)KVF_NS_PER_S;
}
