/* Plans: made from a seed, written and read as text, cut down. */
#include "plan.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------------ from a seed */

typedef struct {
    kvf_rng rng;
} dice;

static uint64_t below(dice *d, uint64_t n) { return kvf_rng_below(&d->rng, n); }
static bool chance(dice *d, uint32_t percent) { return below(d, 100) < percent; }
static uint64_t between(dice *d, uint64_t low, uint64_t high) { return low + below(d, high - low + 1); }

uint32_t plan_prompt_token(const plan_request *q, uint32_t position) {
    if (position < q->shared) return (uint32_t)((q->family * 100 + (uint64_t)position * 7) % PLAN_VOCAB);
    return (uint32_t)(kvf_rng_at(q->content, 1, position) % PLAN_VOCAB);
}

const char *plan_fault_name(uint64_t kind) {
    static const char *const names[] = {
#define PLAN_FAULT_TEXT(name) #name,
        PLAN_FAULT_LIST(PLAN_FAULT_TEXT)
#undef PLAN_FAULT_TEXT
    };
    return kind < FAULT_KINDS ? names[kind] : "?";
}

static void make_node(dice *d, plan_node *n, bool tiny, bool skewed) {
    n->blocks = tiny ? between(d, 10, 18) : between(d, 20, 64);
    n->step_sequences = between(d, 2, 10);
    n->chunk_mixed = 16 * between(d, 1, 3);
    n->queue = between(d, 1, 10);
    n->expected = between(d, 4, 32);
    n->slow = chance(d, 15) ? between(d, 2, 8) : 1;
    n->requests = chance(d, 20) ? between(d, 3, 6) : 20;
    n->offset_ns = skewed ? below(d, 1ull << 50) : 0;
    n->drift_ppm = skewed ? between(d, 995000, 1005000) : 1000000;
}

/* Before: those made so far; now and then one comes again word for word. */
static void make_request(
    dice *d, plan_request *q, uint64_t at_us, const plan_world *w, bool logprobs, uint32_t before) {
    bool long_one = chance(d, 25);
    q->at_us = at_us;
    q->router = below(d, w->routers);
    q->prompt = between(d, 1, long_one ? 150 : 50);
    if (chance(d, 20)) q->prompt = 16 * (1 + q->prompt / 16); /* whole blocks */
    q->family = below(d, 3);
    q->shared = chance(d, 60) ? below(d, q->prompt + 1) : 0;
    q->content = below(d, 1u << 30);
    if (before && chance(d, 15)) {
        const plan_request *o = q - 1 - below(d, before);
        q->prompt = o->prompt;
        q->family = o->family;
        q->shared = o->shared;
        q->content = o->content;
    }
    q->n = chance(d, 15) ? between(d, 2, 4) : 1;
    q->output = between(d, 1, chance(d, 25) ? 60 : 16);
    q->mode = below(d, 3);
    q->priority = chance(d, 10) ? below(d, 3) : 1;
    q->salt = chance(d, w->weak_names ? 50 : 12) ? between(d, 1, 2) : 0;
    q->stop = chance(d, 20) ? between(d, 1, 12) : 0;
    q->logprobs = logprobs && chance(d, 40);
    q->deadline_us = chance(d, 5) ? between(d, 2000, 100000) : 0;
    q->cancel_us = chance(d, 15) ? 1 + below(d, 50000) : 0;
    q->slow_reader = q->cancel_us && chance(d, 20);
}

static uint64_t span_us(dice *d) {
    /* Shorter than any lease, about as long, longer than all. */
    static const uint64_t most[] = {3000, 60000, 400000, 1500000};
    return 1 + below(d, most[below(d, KVF_COUNT_OF(most))]);
}

static void make_fault(dice *d, plan_fault *f, const plan_world *w, uint64_t last_us, uint32_t character) {
    static const uint8_t weights[FAULT_KINDS] = {[FAULT_crash] = 20,
        [FAULT_router_crash] = 3,
        [FAULT_session_cut] = 12,
        [FAULT_link_cut] = 8,
        [FAULT_part_links] = 5,
        [FAULT_part_session] = 5,
        [FAULT_part_host] = 4,
        [FAULT_freeze] = 7,
        [FAULT_router_freeze] = 2,
        [FAULT_slow] = 3,
        [FAULT_lag] = 3,
        [FAULT_drain] = 4,
        [FAULT_undrain] = 1,
        [FAULT_role] = 4,
        [FAULT_flush] = 4,
        [FAULT_replace] = 4,
        [FAULT_corrupt] = 4,
        [FAULT_torn] = 3,
        [FAULT_repeat] = 5,
        [FAULT_forge] = 4,
        [FAULT_step_fails] = 1,
        [FAULT_alter] = 2};
    uint64_t nodes = w->prefill + w->decode, sum = 0;
    *f = (plan_fault){.kind = character, .nth = 1};
    if (character == FAULT_KINDS) {
        for (uint32_t i = 0; i < FAULT_KINDS; i++) sum += weights[i];
        uint64_t at = below(d, sum);
        for (f->kind = 0; at >= weights[f->kind]; f->kind++) at -= weights[f->kind];
    }
    f->at_us = below(d, last_us + 60000);
    f->node = below(d, nodes);
    f->peer = (f->node + 1 + below(d, nodes - 1)) % nodes;
    f->router = below(d, w->routers);
    f->for_us = span_us(d);
    f->arg = between(d, 1, 6);
    if (f->kind == FAULT_role) f->arg = between(d, 1, 2);
    if (f->kind == FAULT_repeat || f->kind == FAULT_forge) f->arg = between(d, 5, 60);
    if (f->kind == FAULT_lag) f->arg = between(d, 5, 100);
    if (chance(d, 45)) {
        f->on = between(d, 1, TRIGGER_KINDS - 1);
        f->nth = between(d, 1, 12);
        if (f->on == TRIGGER_message) f->of = between(d, 2, 5); /* Reserve, Prefill, Cancel, Ack */
        if (f->on == TRIGGER_answer) f->of = between(d, 2, 12); /* Granted .. Preempted */
        if (f->on == TRIGGER_said) f->of = between(d, 2, 12);
        if (f->on == TRIGGER_frame || f->on == TRIGGER_told) f->of = between(d, 4, 12); /* OPEN .. RENEW */
        if (chance(d, 20)) f->of = 0;
    }
}

/* Trouble upon trouble: the second strikes the same place at once or a moment later. */
static void close_upon(dice *d, plan_fault *f, const plan_fault *before) {
    f->node = before->node;
    f->peer = before->peer;
    f->router = before->router;
    f->on = before->on;
    f->of = before->of;
    f->nth = before->nth;
    f->at_us = before->at_us + (before->on == TRIGGER_time ? below(d, 4000) : 0);
}

static plan_fault whole_run(dice *d, const plan_world *w, fault_kind kind) {
    return (plan_fault){.kind = kind,
        .nth = 1,
        .node = below(d, w->prefill + w->decode),
        .for_us = 10000000,
        .arg = between(d, 10, 60)};
}

/* Meetings that are rare where everything goes wrong everywhere: some seeds are about one of them. */
typedef enum {
    USUAL,
    HANDED_BACK, /* little room, nodes that drain in turn, sessions that take with them what was said last */
    SAID_TWICE, /* one place to go, and all that is said there comes again, some of it much later */
    SICK, /* engines fail a step now and then */
    LINKS_BREAK, /* right after something has been said on them */
    REPLACED, /* processes by new ones, while the old ones still answer */
    CALM /* little room, and nothing goes wrong */
} situation;

static situation pick(dice *d) {
    static const uint8_t what[] = {HANDED_BACK, SAID_TWICE, SAID_TWICE, SICK, LINKS_BREAK, LINKS_BREAK, REPLACED, CALM};
    return chance(d, 50) ? (situation)what[below(d, sizeof what)] : USUAL;
}

static plan_fault at_node(dice *d, const plan_world *w, fault_kind kind, uint64_t last_us) {
    uint64_t nodes = w->prefill + w->decode;
    plan_fault f = {.kind = kind, .nth = 1, .at_us = below(d, last_us), .node = below(d, nodes)};
    f.peer = (f.node + 1 + below(d, nodes - 1)) % nodes;
    f.router = below(d, w->routers);
    return f;
}

static void add_drains(dice *d, plan *p, uint64_t last_us, bool of_decode) {
    for (uint32_t i = 0; i < 9; i++) {
        plan_fault *f = &p->fault[p->faults++], *back = &p->fault[p->faults++];
        *f = at_node(d, &p->world, FAULT_drain, last_us);
        if (of_decode) f->node = p->world.prefill + below(d, p->world.decode);
        f->for_us = 1 + below(d, 3000);
        *back = *f;
        back->kind = FAULT_undrain;
        back->at_us += between(d, 2000, 20000);
    }
}

static void add_cuts_after(dice *d, plan *p, uint64_t last_us) {
    for (uint32_t i = 0; i < 10; i++) {
        plan_fault *f = &p->fault[p->faults++];
        *f = at_node(d, &p->world, FAULT_session_cut, last_us);
        f->on = TRIGGER_said;
        f->of = chance(d, 70) ? 12 : 11; /* Preempted, Failed */
        f->node = p->world.prefill + below(d, p->world.decode);
    }
}

static void add_breaks(dice *d, plan *p, uint64_t last_us) {
    static const uint8_t after[] = {4, 4, 7, 8, 8, 8}; /* OPEN, COMMIT, COMMITTED */
    for (uint32_t i = 0; i < 12; i++) {
        plan_fault *f = &p->fault[p->faults++];
        *f = at_node(d, &p->world, FAULT_link_cut, last_us);
        f->on = TRIGGER_told;
        f->of = after[below(d, sizeof after)];
        bool from_prefill = f->of != 8;
        f->node = from_prefill ? below(d, p->world.prefill) : p->world.prefill + below(d, p->world.decode);
        f->peer = from_prefill ? p->world.prefill + below(d, p->world.decode) : below(d, p->world.prefill);
        f->nth = between(d, 1, 3);
        if (!chance(d, 75) || from_prefill) continue;
        plan_fault *too = &p->fault[p->faults++]; /* and with it what was said of it */
        *too = *f;
        too->kind = FAULT_session_cut;
    }
}

static void add_crashes(dice *d, plan *p, uint64_t last_us) {
    for (uint32_t i = 0; i < 8; i++) {
        plan_fault *f = &p->fault[p->faults++];
        *f = at_node(d, &p->world, FAULT_crash, last_us);
        f->node = p->world.prefill + below(d, p->world.decode);
        f->on = TRIGGER_page;
        f->nth = between(d, 1, 12);
        f->for_us = 1 + below(d, 20000);
    }
}

/* The prefill node's account of a hand-off comes long after the tokens. */
static void add_late_reports(dice *d, plan *p, uint64_t last_us) {
    for (uint32_t i = 0; i < 8; i++) {
        plan_fault *f = &p->fault[p->faults++];
        *f = at_node(d, &p->world, FAULT_session_cut, last_us);
        f->on = TRIGGER_told;
        f->of = 7; /* COMMIT */
        f->node = below(d, p->world.prefill);
        f->nth = between(d, 1, 3);
    }
}

static void add_repeats(dice *d, plan *p) {
    for (uint32_t i = 0; i < plan_nodes(p); i++)
        p->fault[p->faults++] =
            (plan_fault){.kind = FAULT_repeat, .nth = 1, .node = i, .for_us = 10000000, .arg = between(d, 20, 80)};
}

static void add_replacements(dice *d, plan *p, uint64_t last_us) {
    for (uint32_t i = 0; i < 6; i++) {
        plan_fault *f = &p->fault[p->faults++];
        *f = at_node(d, &p->world, FAULT_replace, last_us);
        f->at_us += 10; /* later than the first process claims to have started */
        for (uint32_t k = 0; k < 3; k++) { /* the next session may lead to either */
            plan_fault *cut = &p->fault[p->faults++];
            *cut = *f;
            cut->kind = FAULT_session_cut;
            cut->at_us += below(d, 60000);
            cut->router = below(d, p->world.routers);
        }
    }
}

static void make_situation(dice *d, plan *p, situation what, uint64_t last_us) {
    switch (what) {
    case HANDED_BACK:
        if (chance(d, 50))
            add_drains(d, p, last_us, false);
        else
            add_cuts_after(d, p, last_us);
        break;
    case SAID_TWICE:
        add_repeats(d, p);
        if (p->world.decode == 1)
            add_late_reports(d, p, last_us);
        else if (chance(d, 50))
            add_crashes(d, p, last_us);
        else
            add_drains(d, p, last_us, true);
        if (chance(d, 40)) add_breaks(d, p, last_us);
        break;
    case SICK:
        for (uint32_t i = 0; i < 24; i++) {
            p->fault[p->faults] = at_node(d, &p->world, FAULT_step_fails, last_us + 60000);
            p->fault[p->faults++].arg = 1;
        }
        break;
    case LINKS_BREAK:
        add_breaks(d, p, last_us);
        if (chance(d, 40)) add_repeats(d, p);
        break;
    case REPLACED: add_replacements(d, p, last_us); break;
    default: break;
    }
}

void plan_of_seed(plan *p, uint64_t seed, bool faults) {
    dice d = {.rng = {.seed = seed}};
    *p = (plan){.world = {.seed = seed}};
    plan_world *w = &p->world;
    w->prefill = between(&d, 1, 3);
    w->decode = between(&d, 1, 3);
    w->routers = chance(&d, 35) ? 2 : 1;
    w->latency_us = between(&d, 20, 400);
    w->queue_max = chance(&d, 10) ? between(&d, 2, 8) : 200;
    w->lease_ms = chance(&d, 40) ? 40 : 200;
    w->weak_names = chance(&d, 10);
    situation what = pick(&d);
    if (what == SAID_TWICE) *(chance(&d, 60) ? &w->decode : &w->prefill) = 1;
    bool tight = what == HANDED_BACK || what == CALM || what == SAID_TWICE;
    bool tiny = chance(&d, tight ? 75 : 20), skewed = chance(&d, 50), logprobs = chance(&d, 20);
    for (uint32_t i = 0; i < plan_nodes(p); i++) make_node(&d, &p->node[i], tiny, skewed);
    for (uint32_t i = 0; what == LINKS_BREAK && i < w->prefill; i++) /* mostly hand-offs that end with their link */
        if (chance(&d, 60)) p->node[i].expected = 3 * between(&d, 2, 10);
    for (uint32_t i = 0; what == SAID_TWICE && i < plan_nodes(p); i++) {
        if (chance(&d, 50)) p->node[i].queue = 1;
        if (chance(&d, 50)) p->node[i].requests = between(&d, 3, 6);
    }
    p->requests = (uint32_t)between(&d, 2, chance(&d, 20) ? PLAN_REQUESTS_MAX : 20);
    uint64_t pace_us = between(&d, 200, tight ? 2000 : 6000), at_us = 5000;
    for (uint32_t i = 0; i < p->requests; i++) {
        at_us += below(&d, 2 * pace_us) + (chance(&d, 5) ? below(&d, 300000) : 0);
        make_request(&d, &p->request[i], at_us, w, logprobs, i);
    }
    w->heal_us = at_us + between(&d, 100000, chance(&d, 30) ? 1500000 : 300000);
    if (!faults) return;
    if (what != USUAL) {
        make_situation(&d, p, what, at_us);
        return;
    }
    p->faults = (uint32_t)between(&d, 1, chance(&d, 25) ? 24 : 10);
    /* Some seeds have one kind of trouble only, so that nothing else hides what it does. */
    uint32_t character = chance(&d, 25) ? (uint32_t)below(&d, FAULT_KINDS) : FAULT_KINDS;
    for (uint32_t i = 0; i < p->faults; i++) {
        make_fault(&d, &p->fault[i], w, at_us, character);
        if (i > 0 && chance(&d, 25)) close_upon(&d, &p->fault[i], &p->fault[i - 1]);
    }
    if (chance(&d, 15)) p->fault[p->faults++] = whole_run(&d, w, FAULT_repeat);
    if (chance(&d, 8)) p->fault[p->faults++] = whole_run(&d, w, FAULT_forge);
}

/* ------------------------------------------------------------------ as text */

typedef struct {
    const char *name;
    size_t offset;
} field;
#define F(type, name)                                                                                                  \
    { #name, offsetof(type, name) }
static const field world_fields[] = {F(plan_world, seed), F(plan_world, prefill), F(plan_world, decode),
    F(plan_world, routers), F(plan_world, latency_us), F(plan_world, queue_max), F(plan_world, lease_ms),
    F(plan_world, weak_names), F(plan_world, heal_us), {0}};
static const field node_fields[] = {F(plan_node, blocks), F(plan_node, step_sequences), F(plan_node, chunk_mixed),
    F(plan_node, queue), F(plan_node, expected), F(plan_node, slow), F(plan_node, requests), F(plan_node, offset_ns),
    F(plan_node, drift_ppm), {0}};
static const field request_fields[] = {F(plan_request, at_us), F(plan_request, router), F(plan_request, prompt),
    F(plan_request, family), F(plan_request, shared), F(plan_request, content), F(plan_request, n),
    F(plan_request, output), F(plan_request, mode), F(plan_request, priority), F(plan_request, salt),
    F(plan_request, stop), F(plan_request, logprobs), F(plan_request, deadline_us), F(plan_request, cancel_us),
    F(plan_request, slow_reader), {0}};
static const field fault_fields[] = {F(plan_fault, at_us), F(plan_fault, of), F(plan_fault, nth), F(plan_fault, node),
    F(plan_fault, peer), F(plan_fault, router), F(plan_fault, for_us), F(plan_fault, arg), {0}};
#undef F

static uint64_t *at(void *record, const field *f) { return (uint64_t *)((char *)record + f->offset); }

static void print_fields(FILE *out, const char *word, const field *f, const void *record) {
    fprintf(out, "%s", word);
    for (; f->name; f++) {
        uint64_t value;
        memcpy(&value, (const char *)record + f->offset, sizeof value);
        fprintf(out, " %s=%" PRIu64, f->name, value);
    }
    fputc('\n', out);
}

static const char *const trigger_names[] = {
#define PLAN_TRIGGER_TEXT(name) #name,
    PLAN_TRIGGER_LIST(PLAN_TRIGGER_TEXT)
#undef PLAN_TRIGGER_TEXT
};

void plan_print(const plan *p, void *file) {
    FILE *out = file;
    print_fields(out, "world", world_fields, &p->world);
    for (uint32_t i = 0; i < plan_nodes(p); i++) print_fields(out, "node", node_fields, &p->node[i]);
    for (uint32_t i = 0; i < p->requests; i++) print_fields(out, "request", request_fields, &p->request[i]);
    for (uint32_t i = 0; i < p->faults; i++) {
        const plan_fault *f = &p->fault[i];
        char word[64];
        snprintf(word, sizeof word, "fault %s on %s", plan_fault_name(f->kind), trigger_names[f->on]);
        print_fields(out, word, fault_fields, f);
    }
}

static bool read_fields(char *rest, const field *fields, void *record) {
    char *save = NULL;
    for (char *word = strtok_r(rest, " \n", &save); word; word = strtok_r(NULL, " \n", &save)) {
        char *equals = strchr(word, '='), *end;
        if (!equals) return false;
        *equals = 0;
        const field *f = fields;
        while (f->name && strcmp(f->name, word) != 0) f++;
        if (!f->name) return false;
        *at(record, f) = strtoull(equals + 1, &end, 10);
        if (*end) return false;
    }
    return true;
}

static bool read_fault(char *rest, plan_fault *f) {
    char kind[32], on[32];
    int used = 0;
    if (sscanf(rest, "%31s on %31s%n", kind, on, &used) != 2 || !used) return false;
    for (f->kind = 0; f->kind < FAULT_KINDS && strcmp(kind, plan_fault_name(f->kind)) != 0;) f->kind++;
    for (f->on = 0; f->on < TRIGGER_KINDS && strcmp(on, trigger_names[f->on]) != 0;) f->on++;
    return f->kind < FAULT_KINDS && f->on < TRIGGER_KINDS && read_fields(rest + used, fault_fields, f);
}

static bool plan_is_sane(const plan *p, uint32_t nodes) {
    const plan_world *w = &p->world;
    if (w->prefill < 1 || w->decode < 1 || w->prefill > PLAN_NODES_MAX || w->decode > PLAN_NODES_MAX) return false;
    if (w->lease_ms < 20 || w->lease_ms > 1000) return false;
    if (plan_nodes(p) > PLAN_NODES_MAX || plan_nodes(p) != nodes || w->routers < 1 || w->routers > PLAN_ROUTERS_MAX)
        return false;
    for (uint32_t i = 0; i < p->requests; i++) {
        const plan_request *q = &p->request[i];
        if (q->router >= w->routers || q->prompt < 1 || q->output < 1 || q->prompt + q->output > PLAN_CONTEXT)
            return false;
        if (q->n < 1 || q->n > 8 || q->mode > 2) return false;
    }
    for (uint32_t i = 0; i < p->faults; i++)
        if (p->fault[i].node >= nodes || p->fault[i].peer >= nodes || p->fault[i].router >= w->routers) return false;
    return true;
}

bool plan_read(plan *p, void *file, char text[160]) {
    char line[1024];
    uint32_t nodes = 0, number = 0;
    bool ok = true;
    memset(p, 0, sizeof *p);
    while (ok && fgets(line, sizeof line, file)) {
        char word[16];
        int used = 0;
        number++;
        if (line[0] == '#' || sscanf(line, "%15s%n", word, &used) != 1) continue;
        char *rest = line + used;
        if (strcmp(word, "world") == 0)
            ok = read_fields(rest, world_fields, &p->world);
        else if (strcmp(word, "node") == 0)
            ok = nodes < PLAN_NODES_MAX && read_fields(rest, node_fields, &p->node[nodes++]);
        else if (strcmp(word, "request") == 0)
            ok = p->requests < PLAN_REQUESTS_MAX && read_fields(rest, request_fields, &p->request[p->requests++]);
        else if (strcmp(word, "fault") == 0)
            ok = p->faults < PLAN_FAULTS_MAX && read_fault(rest, &p->fault[p->faults++]);
        else
            ok = false;
    }
    if (!ok)
        snprintf(text, 160, "line %u is not understood", number);
    else if (!(ok = plan_is_sane(p, nodes)))
        snprintf(text, 160, "the parts do not fit together, or a number is out of range");
    return ok;
}
