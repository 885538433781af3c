/* A failing plan is cut down: first whole requests and faults, in halves, quarters ... single ones (delta debugging);
 * then the numbers of what is left. Every candidate is run; what still fails is kept. Any failure counts as the same.
 */
#include "plan.h"

typedef struct {
    bool (*fails)(void *self, const plan *p);
    void *self;
    uint32_t asked;
} asker;

static bool still_fails(asker *a, const plan *p) {
    a->asked++;
    return a->fails(a->self, p);
}

static void drop(void *items, uint32_t *count, size_t size, uint32_t first, uint32_t n) {
    char *base = items;
    memmove(base + first * size, base + (first + n) * size, (*count - first - n) * size);
    *count -= n;
}

static bool cut_items(asker *a, plan *p, bool requests) {
    bool any = false;
    uint32_t *count = requests ? &p->requests : &p->faults;
    for (uint32_t chunk = *count; chunk > 0; chunk /= 2) {
        for (uint32_t first = 0; first < *count;) {
            plan before = *p;
            uint32_t n = KVF_MIN(chunk, *count - first);
            if (requests)
                drop(p->request, count, sizeof *p->request, first, n);
            else
                drop(p->fault, count, sizeof *p->fault, first, n);
            if (still_fails(a, p)) {
                any = true;
                continue;
            }
            *p = before;
            first += n;
        }
    }
    return any;
}

/* Tries `to`, and if that passes, half way there. */
static bool cut_number(asker *a, plan *p, uint64_t *number, uint64_t to) {
    bool any = false;
    while (*number != to) {
        uint64_t before = *number;
        *number = to;
        if (still_fails(a, p)) return true;
        *number = before > to ? to + (before - to) / 2 : to - (to - before) / 2;
        if (*number != before && *number != to && still_fails(a, p)) {
            any = true;
            continue;
        }
        *number = before;
        break;
    }
    return any;
}

static bool cut_request(asker *a, plan *p, plan_request *q) {
    bool any = cut_number(a, p, &q->n, 1);
    any |= cut_number(a, p, &q->prompt, 1);
    any |= cut_number(a, p, &q->output, 1);
    any |= cut_number(a, p, &q->shared, 0);
    any |= cut_number(a, p, &q->priority, 1);
    any |= cut_number(a, p, &q->salt, 0);
    any |= cut_number(a, p, &q->stop, 0);
    any |= cut_number(a, p, &q->logprobs, 0);
    any |= cut_number(a, p, &q->deadline_us, 0);
    any |= cut_number(a, p, &q->cancel_us, 0);
    return any;
}

static bool cut_world(asker *a, plan *p) {
    bool any = false;
    for (uint32_t i = 0; i < plan_nodes(p); i++) {
        plan_node *n = &p->node[i];
        any |= cut_number(a, p, &n->offset_ns, 0) | cut_number(a, p, &n->drift_ppm, 1000000);
        any |= cut_number(a, p, &n->slow, 1) | cut_number(a, p, &n->blocks, 64);
    }
    /* The last decode node, if nobody names it. */
    while (p->world.decode > 1) {
        plan before = *p;
        p->world.decode--;
        for (uint32_t i = 0; i < p->faults; i++)
            if (p->fault[i].node >= plan_nodes(p) || p->fault[i].peer >= plan_nodes(p)) p->fault[i] = (plan_fault){0};
        bool named = false;
        for (uint32_t i = 0; i < p->faults; i++) named |= p->fault[i].nth == 0;
        if (named || !still_fails(a, p)) {
            *p = before;
            break;
        }
        any = true;
    }
    return any;
}

uint32_t plan_shrink(plan *p, bool (*fails)(void *self, const plan *p), void *self) {
    asker a = {.fails = fails, .self = self};
    for (bool any = true; any && a.asked < 4000;) {
        any = cut_items(&a, p, false) | cut_items(&a, p, true);
        for (uint32_t i = 0; i < p->requests; i++) any |= cut_request(&a, p, &p->request[i]);
        any |= cut_world(&a, p);
        for (uint32_t i = 0; i < p->faults; i++) any |= cut_number(&a, p, &p->fault[i].for_us, 1);
    }
    return a.asked;
}
