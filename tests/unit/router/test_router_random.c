/* The router's core against make-believe nodes, thousands of seeds. What must hold, whatever nodes do: each submit ends
 * exactly once; the tokens of a choice are gap-free and are the ones its prompt determines; at rest no node keeps
 * anything of this router; the directory equals the nodes' caches. Usage: test_router_random [first seed] [count]; a
 * failure prints its seed. */
#include "router_int.h"
#include "sim_node.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define MS KVF_NS_PER_MS
#define REQUESTS_MAX 160

typedef struct {
    bool submitted, ended, finished, admitted;
    kvf_request_id id;
    uint64_t hash;
    uint32_t prompt_count, n, output_max, logprobs, logprobs_next;
    uint32_t next[SIM_CHOICES];
    bool choice_ended[SIM_CHOICES];
    uint32_t stop_after; /* a stop string matches after so many tokens; 0: never */
    bool cancelled, has_deadline;
} client;

typedef struct {
    sim s;
    client clients[REQUESTS_MAX];
    uint32_t clients_count, open;
    uint32_t finished, failed, refused, admits;
    uint64_t trace;
    bool calm; /* no fault is planted: nothing may fail but by its own deadline or cancel */
} world;

static void trace(world *w, uint64_t value) { w->trace = kvf_rng_mix(w->trace ^ value); }

static void on_token(world *w, client *c, const kvf_router_action *a) {
    uint32_t k = a->token.choice;
    KVF_ASSERT(c->admitted && k < c->n && !c->choice_ended[k]);
    KVF_ASSERT(a->token.position == c->next[k]);
    KVF_ASSERT(a->token.token == sim_token(c->hash, k, c->next[k]));
    uint32_t made = ++c->next[k] - c->prompt_count;
    KVF_ASSERT(made <= c->output_max);
    bool ends = sim_token_ends(c->hash, k, a->token.position) || made == c->output_max;
    KVF_ASSERT(ends == (a->token.end != KVF_END_NONE));
    if (ends) c->choice_ended[k] = true;
    if (!ends && c->stop_after == made) {
        c->choice_ended[k] = true;
        kvf_router_end_choice(w->s.router, w->s.now, c->id, k, c->next[k] - 1);
    }
}

static void on_end(world *w, client *c, const kvf_router_action *a) {
    KVF_ASSERT(!c->ended);
    c->ended = true;
    w->open--;
    if (a->kind == KVF_ROUTER_FAILED) {
        w->failed++;
        KVF_ASSERT(a->failed.why.status != KVF_OK && a->failed.why.text[0]);
        if (w->calm && !c->cancelled && !c->has_deadline) fprintf(stderr, "%s\n", a->failed.why.text);
        if (w->calm) KVF_ASSERT(c->cancelled || c->has_deadline);
        return;
    }
    w->finished++;
    KVF_ASSERT(c->admitted || c->output_max == 0);
    KVF_ASSERT(a->finished.prompt_tokens == c->prompt_count && a->finished.attempts >= 1);
    KVF_ASSERT(c->logprobs == 0 || c->logprobs_next == c->prompt_count);
    for (uint32_t k = 0; k < c->n; k++) KVF_ASSERT(c->choice_ended[k] || c->output_max == 0);
}

static void on_action(void *self, const kvf_router_action *a) {
    world *w = self;
    trace(w, (uint64_t)a->kind << 32 | a->client);
    if (a->kind == KVF_ROUTER_ADMIN_ANSWER) {
        if (a->answer.directory_compared) KVF_ASSERT(!a->answer.directory_missing && !a->answer.directory_extra);
        return;
    }
    KVF_ASSERT(a->client < w->clients_count);
    client *c = &w->clients[a->client];
    KVF_ASSERT(c->submitted && !c->ended && kvf_request_id_equal(a->request, c->id));
    switch (a->kind) {
    case KVF_ROUTER_ADMITTED:
        KVF_ASSERT(!c->admitted);
        c->admitted = true;
        w->admits++;
        break;
    case KVF_ROUTER_PROMPT_LOGPROBS:
        KVF_ASSERT(c->admitted && a->prompt_logprobs.start == c->logprobs_next);
        KVF_ASSERT(a->prompt_logprobs.samples.len_bytes == a->prompt_logprobs.count * sizeof(uint32_t));
        for (uint32_t i = 0; i < a->prompt_logprobs.count; i++)
            KVF_ASSERT(((const uint32_t *)a->prompt_logprobs.samples.data)[i] == (c->logprobs_next + i) * 3 + 1);
        c->logprobs_next += a->prompt_logprobs.count;
        break;
    case KVF_ROUTER_TOKEN:
        trace(w, (uint64_t)a->token.position << 32 | a->token.token);
        on_token(w, c, a);
        break;
    case KVF_ROUTER_FINISHED:
    case KVF_ROUTER_FAILED: on_end(w, c, a); break;
    default: KVF_ASSERT(!"unexpected action");
    }
}

static void submit(world *w) {
    kvf_rng *rng = &w->s.rng;
    client *c = &w->clients[w->clients_count];
    uint32_t tokens[SIM_CONTEXT];
    *c = (client){.prompt_count = 1 + (uint32_t)kvf_rng_below(rng, 90)};
    uint64_t family = kvf_rng_below(rng, 4); /* prompts share prefixes */
    for (uint32_t i = 0; i < c->prompt_count; i++)
        tokens[i] = i < 48 ? (uint32_t)kvf_rng_at(family, 1, i) % 1000 : (uint32_t)kvf_rng_below(rng, 1000);
    c->hash = sim_prompt_hash(tokens, c->prompt_count);
    c->n = sim_chance(&w->s, 2500) ? 1 + (uint32_t)kvf_rng_below(rng, SIM_CHOICES) : 1;
    bool given = !sim_chance(&w->s, 1500);
    c->output_max = given ? (uint32_t)kvf_rng_below(rng, 25) : SIM_CONTEXT - c->prompt_count;
    c->logprobs = c->prompt_count > 1 && sim_chance(&w->s, 1000) ? 1 : 0;
    c->logprobs_next = 1;
    c->stop_after = sim_chance(&w->s, 2000) ? 1 + (uint32_t)kvf_rng_below(rng, 8) : 0;
    c->has_deadline = sim_chance(&w->s, 500);
    for (uint32_t k = 0; k < SIM_CHOICES; k++) c->next[k] = c->prompt_count;
    kvf_router_request in = {.tokens = tokens,
        .tokens_count = c->prompt_count,
        .n = c->n,
        .output_max = c->output_max,
        .output_max_given = given,
        .priority = (int32_t)kvf_rng_below(rng, 3) - 1,
        .deadline_ns = c->has_deadline ? w->s.now + kvf_rng_below(rng, 60 * MS) + 1 : KVF_TIME_NEVER,
        .mode = (kvf_router_mode)kvf_rng_below(rng, 3),
        .prompt_logprobs = c->logprobs,
        .sampling = {"sampling", 8},
        .client = w->clients_count};
    if (sim_chance(&w->s, 1000)) in.salt.lo = 5;
    kvf_refusal refusal;
    if (kvf_router_submit(w->s.router, w->s.now, &in, &c->id, &refusal) != KVF_OK) {
        KVF_ASSERT(refusal.status == KVF_AGAIN && refusal.retry_after_ns && refusal.text[0]);
        w->refused++;
        return;
    }
    c->submitted = true;
    w->clients_count++;
    w->open++;
}

static void on_wake(void *self, uint64_t tag) {
    world *w = self;
    if (tag == 0 && w->clients_count < REQUESTS_MAX) {
        submit(w);
        sim_at(&w->s, w->s.now + kvf_rng_below(&w->s.rng, 6 * MS), 0);
    }
    if (tag == 1 && w->clients_count) {
        client *c = &w->clients[kvf_rng_below(&w->s.rng, w->clients_count)];
        if (c->submitted && !c->ended) {
            c->cancelled = true;
            kvf_router_cancel(w->s.router, w->s.now, c->id, (kvf_cancel_why)kvf_rng_below(&w->s.rng, 3));
        }
        sim_at(&w->s, w->s.now + kvf_rng_below(&w->s.rng, 40 * MS), 1);
    }
}

static void choose_faults(world *w) {
    sim *s = &w->s;
    uint32_t level = (uint32_t)kvf_rng_below(&s->rng, 4);
    w->calm = level == 0;
    if (w->calm) return;
        /* Each kind is on or off for a whole run, so that runs differ in character. */
#define MAYBE(field, value) s->faults.field = kvf_rng_below(&s->rng, 2) ? (value)*level : 0
    MAYBE(refuse, 300);
    MAYBE(queue, 1000);
    MAYBE(preempt, 60);
    MAYBE(fail, 60);
    MAYBE(link, 400);
    MAYBE(half_link, 400);
    MAYBE(twice, 800);
    MAYBE(drop_session, 8);
    MAYBE(crash, 4);
    MAYBE(never, 100);
    MAYBE(gap, 500);
    MAYBE(rude, 1);
#undef MAYBE
}

static kvf_router_config config_of(kvf_rng *rng) {
    kvf_router_config c;
    kvf_router_config_defaults(&c);
    snprintf(c.name, sizeof c.name, "router");
    c.epoch = 77;
    c.nodes_max = SIM_NODES;
    c.requests_max = 24 + (uint32_t)kvf_rng_below(rng, 64);
    c.context_max = SIM_CONTEXT;
    c.queue_max_requests = 4 + (uint32_t)kvf_rng_below(rng, 40);
    c.queue_max_tokens = 100 + kvf_rng_below(rng, 4000);
    c.ship_min = (uint32_t)kvf_rng_below(rng, 60);
    c.strict = kvf_rng_below(rng, 2);
    c.ready_grace_ns = 200 * MS;
    c.directory_entries_max = 4096;
    c.status_timeout_ns = 100 * MS;
    c.reconnect_grace_ns = 50 * MS;
    c.backoff_ns = 5 * MS;
    c.backoff_max_ns = 40 * MS;
    c.retry_after_ns = 5 * MS;
    c.ship_report_wait_ns = kvf_rng_below(rng, 2) ? 5 * MS : 0;
    c.reserve_window = 1 + (uint32_t)kvf_rng_below(rng, 8);
    c.queued_window = 1 + (uint32_t)kvf_rng_below(rng, 4);
    return c;
}

static void heal(world *w) { memset(&w->s.faults, 0, sizeof w->s.faults); }

/* At rest: nothing kept anywhere, and what the router believes of caches is true. */
static void check_rest(world *w) {
    KVF_ASSERT(sim_live_works(&w->s) == 0);
    kvf_router_counters counters;
    kvf_router_count(w->s.router, &counters);
    KVF_ASSERT(counters.live == 0 && counters.waiting == 0 && counters.waiting_tokens == 0);
    KVF_ASSERT(counters.divergent == 0);
    uint64_t entries = 0;
    for (uint32_t i = 0; i < w->s.nodes_count; i++) {
        const sim_node *n = &w->s.nodes[i];
        kvf_router_node view;
        KVF_ASSERT(kvf_router_node_at(w->s.router, w->s.now, i, &view) && view.ready && view.legs == 0);
        KVF_ASSERT(view.directory_blocks == n->names_count);
        entries += n->names_count;
        for (uint32_t k = 0; k < n->names_count; k++)
            KVF_ASSERT(rt_directory_find(&w->s.router->directory, n->names[k]) >> i & 1);
    }
    KVF_ASSERT(counters.directory_entries <= entries);
    if (w->calm) KVF_ASSERT(counters.gaps == 0 && counters.malformed == 0 && counters.nodes_lost == 0);
}

static uint64_t run_seed(uint64_t seed, kvf_router_counters *sum, uint64_t *finished, uint64_t *failed) {
    static world w; /* large; every run begins by clearing it */
    memset(&w, 0, sizeof w);
    kvf_rng rng = {.seed = seed ^ 0x5eed};
    kvf_router_config config = config_of(&rng);
    uint32_t prefills = (uint32_t)kvf_rng_below(&rng, 4), decodes = 1 + (uint32_t)kvf_rng_below(&rng, 3);
    if (prefills == 0) config.strict = false;
    sim_init(&w.s, seed, &config, prefills, decodes);
    w.s.self = &w;
    w.s.action = on_action;
    w.s.wake = on_wake;
    choose_faults(&w);
    sim_at(&w.s, 5 * MS, 0);
    sim_at(&w.s, 20 * MS, 1);
    uint64_t steps = 0;
    while (w.s.now < 1000 * MS) {
        KVF_ASSERT(sim_step(&w.s));
        if (++steps % 16 == 0) rt_check(w.s.router);
    }
    heal(&w);
    /* Nothing fails any more: all that is open must end within the grace times, and then there must be rest. */
    while (w.s.now < 4000 * MS && w.open) KVF_ASSERT(sim_step(&w.s));
    if (w.open) fprintf(stderr, "seed %" PRIu64 ": %" PRIu32 " requests hang\n", seed, w.open);
    KVF_ASSERT(w.open == 0);
    kvf_time_ns rest = w.s.now + 500 * MS;
    for (uint32_t i = 0; i < w.s.nodes_count; i++) kvf_router_audit(w.s.router, w.s.now, i, i);
    while (w.s.now < rest) KVF_ASSERT(sim_step(&w.s));
    rt_check(w.s.router);
    check_rest(&w);
    kvf_router_counters c;
    kvf_router_count(w.s.router, &c);
    sum->retries += c.retries;
    sum->preempted += c.preempted;
    sum->shipped += c.shipped;
    sum->local += c.local;
    sum->late += c.late;
    sum->repeated += c.repeated;
    sum->nodes_lost += c.nodes_lost;
    sum->ejections += c.ejections;
    sum->snapshots += c.snapshots;
    sum->gaps += c.gaps;
    sum->tokens += c.tokens;
    sum->fallback_local += c.fallback_local;
    sum->fallback_prefill += c.fallback_prefill;
    *finished += w.finished;
    *failed += w.failed;
    sim_fini(&w.s);
    return w.trace;
}

/* An assertion aborts: say which seed to run again. */
static volatile uint64_t seed_now;
static void on_abort(int signal_number) {
    (void)signal_number;
    fprintf(stderr, "seed %" PRIu64 "\n", seed_now);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 10) : 300;
    signal(SIGABRT, on_abort);
    kvf_router_counters sum = {0};
    uint64_t finished = 0, failed = 0, last = 0;
    for (uint64_t seed = first; seed < first + count; seed++) {
        seed_now = seed;
        last = run_seed(seed, &sum, &finished, &failed);
    }
    kvf_router_counters again = {0};
    uint64_t f = 0;
    KVF_ASSERT(run_seed(first + count - 1, &again, &f, &f) == last); /* the same seed is the same run */
    printf("%" PRIu64 " seeds: finished %" PRIu64 ", failed %" PRIu64 ", tokens %" PRIu64 ", shipped %" PRIu64
           ", local %" PRIu64 ", retries %" PRIu64 ", preempted %" PRIu64 ", repeated %" PRIu64 ", late %" PRIu64
           ", lost %" PRIu64 ", ejections %" PRIu64 ", snapshots %" PRIu64 ", gaps %" PRIu64 ", fallbacks %" PRIu64
           "+%" PRIu64 "\n",
        count, finished, failed, sum.tokens, sum.shipped, sum.local, sum.retries, sum.preempted, sum.repeated, sum.late,
        sum.nodes_lost, sum.ejections, sum.snapshots, sum.gaps, sum.fallback_local, sum.fallback_prefill);
    /* A run that met none of these has tested nothing. */
    return finished && sum.retries && sum.preempted && sum.repeated && sum.late && sum.nodes_lost && sum.ejections ? 0
                                                                                                                   : 1;
}
