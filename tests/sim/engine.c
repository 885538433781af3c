/* An engine whose cache can be checked: the value kept for a position is a hash chain over all tokens up to it, so a
 * sequence that reads a page of another request, a stale one or one that never came sees a wrong value. */
#include "sim.h"

uint64_t sim_chain(uint64_t before, uint32_t token) { return kvf_rng_mix(before ^ ((uint64_t)token + 0x1234567)); }

static uint64_t kept(uint64_t chain, uint32_t layer) { return chain + layer * 0x9e3779b97f4a7c15ull; }

uint32_t sim_next_token(const uint32_t *tokens, uint32_t count, uint32_t choice, bool *eos) {
    uint64_t chain = 0;
    for (uint32_t i = 0; i < count; i++) chain = sim_chain(chain, tokens[i]);
    uint64_t h = kvf_rng_mix(chain ^ (choice * 0x51ed27ull));
    *eos = h % 41 == 0;
    return (uint32_t)(kvf_rng_mix(h) % SIM_VOCAB);
}

static void check_and_write(sim *s, sim_node *n, const kvf_step_run *run, uint32_t layer) {
    uint64_t chain = 0;
    for (uint32_t p = 0; p < run->position + run->count; p++) {
        chain = sim_chain(chain, run->tokens[p]);
        uint64_t *slot = &n->pages[run->blocks[p / KVF_KV_BLOCK_TOKENS]].slot[layer][p % KVF_KV_BLOCK_TOKENS];
        if (p >= run->position)
            *slot = kept(chain, layer);
        else if (*slot != kept(chain, layer))
            sim_fail(s, "I4: node %s step %llu reads a wrong page: position %u layer %u block %u of a run at %u+%u",
                n->config.info.node, (unsigned long long)n->step.id, p, layer, run->blocks[p / KVF_KV_BLOCK_TOKENS],
                run->position, run->count);
        s->checked_positions++;
    }
}

void sim_engine_finish(sim *s, sim_node *n, kvf_step_result *result) {
    static kvf_step_sample samples[1024];
    const kvf_step *step = &n->step;
    *result = (kvf_step_result){.samples = samples};
    for (uint32_t i = 0; i < step->runs_count; i++) {
        const kvf_step_run *run = &step->runs[i];
        for (uint32_t k = 0; k < run->samples; k++) {
            bool eos;
            uint32_t choice = run->choice_first + k;
            uint32_t token = sim_next_token(run->tokens, run->position + run->count, choice, &eos);
            KVF_ASSERT(result->samples_count < KVF_COUNT_OF(samples));
            samples[result->samples_count++] =
                (kvf_step_sample){.run = i, .choice = choice, .token = token, .end = eos ? KVF_END_EOS : KVF_END_NONE};
        }
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
void sim_engine_layer(sim *s, sim_node *n, uint32_t layer) {
    for (uint32_t i = 0; i < n->step.runs_count; i++) check_and_write(s, n, &n->step.runs[i], layer);
}
