/* An engine whose cache can be checked: the value kept for a position is a hash chain over salt and all tokens up to
 * it, so that a sequence that reads a page of another request, a stale one or one that never came sees a wrong value.
 * The sampling bytes of a request are its salt; sampled and scored tokens carry eight bytes that stand for a logprob.
 */
#include "sim.h"

#define ROWS_MAX 1024

uint64_t sim_root(uint64_t salt) { return kvf_rng_mix(salt * 0x9e3779b97f4a7c15ull + 11); }
uint64_t sim_chain(uint64_t before, uint32_t token) { return kvf_rng_mix(before ^ ((uint64_t)token + 0x1234567)); }
uint64_t sim_kept(uint64_t chain, uint32_t layer) { return chain + layer * 0x9e3779b97f4a7c15ull; }
uint64_t sim_logprob(uint64_t chain, uint32_t token) { return kvf_rng_mix(chain + token); }

/* Where the prompt ends matters too, as it does to penalties. */
uint32_t sim_next_token(uint64_t chain, uint32_t prompt_count, uint32_t choice, bool *eos) {
    uint64_t h = kvf_rng_mix(chain ^ (choice * 0x51ed27ull) ^ ((uint64_t)prompt_count << 40));
    *eos = h % 41 == 0;
    return (uint32_t)(kvf_rng_mix(h) % PLAN_VOCAB);
}

static uint64_t root_of(const kvf_step_run *run) {
    uint64_t salt;
    KVF_ASSERT(run->sampling.len_bytes == sizeof salt);
    memcpy(&salt, run->sampling.data, sizeof salt);
    return sim_root(salt);
}

static void check_and_write(sim *s, uint32_t node, const kvf_step_run *run, uint32_t layer) {
    sim_node *n = &s->node[node];
    uint64_t chain = root_of(run);
    for (uint32_t p = 0; p < run->position + run->count; p++) {
        chain = sim_chain(chain, run->tokens[p]);
        uint64_t *slot = &n->pages[run->blocks[p / KVF_KV_BLOCK_TOKENS]].slot[layer][p % KVF_KV_BLOCK_TOKENS];
        if (p >= run->position)
            *slot = sim_kept(chain, layer);
        else if (*slot != sim_kept(chain, layer))
            sim_fail(s, "I4: node %s step %llu reads a wrong page: position %u layer %u block %u of a run at %u+%u",
                n->config.info.node, (unsigned long long)n->step.id, p, layer, run->blocks[p / KVF_KV_BLOCK_TOKENS],
                run->position, run->count);
    }
    s->count.checked_positions += run->position;
}

typedef struct {
    kvf_step_sample samples[ROWS_MAX];
    kvf_step_scores scores[ROWS_MAX];
    uint64_t values[2 * ROWS_MAX];
    uint32_t values_count;
} outcome;

static void add_value(outcome *o, uint64_t value) {
    KVF_ASSERT(o->values_count < KVF_COUNT_OF(o->values));
    o->values[o->values_count++] = value;
}

static void score(outcome *o, kvf_step_result *result, uint32_t index, const kvf_step_run *run) {
    uint32_t first = o->values_count;
    uint64_t chain = root_of(run);
    for (uint32_t p = 0; p < run->position + run->count && p + 1 < run->tokens_count; p++) {
        chain = sim_chain(chain, run->tokens[p]);
        if (p >= run->position) add_value(o, sim_logprob(chain, run->tokens[p + 1]));
    }
    uint32_t count = o->values_count - first;
    KVF_ASSERT(result->scores_count < ROWS_MAX);
    o->scores[result->scores_count++] = (kvf_step_scores){.run = index,
        .start = run->position + 1,
        .count = count,
        .samples = {o->values + first, count * sizeof *o->values}};
}

static void sample(outcome *o, kvf_step_result *result, uint32_t index, const kvf_step_run *run) {
    uint64_t chain = root_of(run);
    for (uint32_t p = 0; p < run->position + run->count; p++) chain = sim_chain(chain, run->tokens[p]);
    for (uint32_t k = 0; k < run->samples; k++) {
        bool eos;
        uint32_t choice = run->choice_first + k, token = sim_next_token(chain, run->prompt_count, choice, &eos);
        KVF_ASSERT(result->samples_count < ROWS_MAX);
        add_value(o, sim_logprob(chain, token));
        o->samples[result->samples_count++] = (kvf_step_sample){.run = index,
            .choice = choice,
            .token = token,
            .end = eos ? KVF_END_EOS : KVF_END_NONE,
            .sample = {&o->values[o->values_count - 1], sizeof(uint64_t)}};
    }
}

void sim_engine_finish(sim_node *n, kvf_step_result *result) {
    static outcome o; /* borrowed by the core until the call returns */
    o.values_count = 0;
    *result = (kvf_step_result){.samples = o.samples, .scores = o.scores, .busy_ns = 1000};
    for (uint32_t i = 0; i < n->step.runs_count; i++) {
        const kvf_step_run *run = &n->step.runs[i];
        if (run->score) score(&o, result, i, run);
        if (run->samples) sample(&o, result, i, run);
    }
}

void sim_engine_begin(sim_node *n) {
    for (uint32_t i = 0; i < n->step.copies_count; i++) {
        const kvf_step_copy *c = &n->step.copies[i];
        for (uint32_t l = 0; l < SIM_LAYERS; l++)
            memcpy(n->pages[c->to].slot[l], n->pages[c->from].slot[l], c->tokens * sizeof(uint64_t));
    }
}

/* Layer by layer, as a real one: whoever sends a page before its layer is done ships yesterday's contents. */
void sim_engine_layer(sim *s, uint32_t node, uint32_t layer) {
    const kvf_step *step = &s->node[node].step;
    for (uint32_t i = 0; i < step->runs_count; i++) check_and_write(s, node, &step->runs[i], layer);
}
