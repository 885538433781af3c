/* The sampler: limits of parameters, the greedy cases, the distribution of draws, penalties, determinism, logprobs
 * against values of an independent implementation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "kvf/rng.h"
#include "kvf/sampler.h"
#include "sampler_int.h"

#define VOCAB 1000

typedef struct {
    kvf_sampling sampling;
    float logits[VOCAB];
    uint32_t tokens[64];
    kvf_sample_input in;
    void *scratch;
} bench;

/* Logits in [-4, 4) from a seed. */
static void bench_init(bench *b, uint64_t seed) {
    kvf_sampling_defaults(&b->sampling);
    kvf_rng rng = {seed, 0};
    for (int i = 0; i < VOCAB; i++) b->logits[i] = (float)(kvf_rng_next(&rng) >> 40) * 0x1p-21f - 4.0f;
    memset(b->tokens, 0, sizeof b->tokens);
    b->in = (kvf_sample_input){
        .sampling = &b->sampling, .logits = b->logits, .vocab = VOCAB, .vocab_used = VOCAB, .tokens = b->tokens};
    b->scratch = malloc(kvf_sample_scratch_bytes(VOCAB));
    assert_non_null(b->scratch);
}

static void bench_fini(bench *b) { free(b->scratch); }

static uint32_t pick(bench *b) {
    kvf_sample out;
    memset(b->scratch, 0xa5, kvf_sample_scratch_bytes(b->in.vocab)); /* nothing of an earlier call may matter */
    kvf_sample_token(&b->in, b->scratch, &out);
    return out.chosen.token;
}

static uint32_t best_of(const float *logits, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* --- parameters (field case AP-04) --- */

static void expect_refused(kvf_sampling s, const char *word) {
    kvf_error err = {0};
    assert_int_equal(kvf_sampling_check(&s, VOCAB, &err), KVF_ERR_INVALID);
    if (!strstr(err.message, word)) fail_msg("'%s' does not name %s", err.message, word);
}

static void bad_parameters_are_refused_by_name(void **state) {
    kvf_sampling good, s;
    kvf_sampling_defaults(&good);
    assert_int_equal(kvf_sampling_check(&good, VOCAB, NULL), KVF_OK);
#define REFUSE(field, value, word) (s = good, s.field = (value), expect_refused(s, word))
    REFUSE(temperature, -1.0f, "temperature is -1");
    REFUSE(temperature, NAN, "temperature is nan");
    REFUSE(temperature, INFINITY, "temperature is inf");
    REFUSE(top_p, 1.5f, "top_p is 1.5");
    REFUSE(top_p, -0.1f, "top_p");
    REFUSE(top_p, NAN, "top_p");
    REFUSE(min_p, 1.01f, "min_p");
    REFUSE(min_p, NAN, "min_p");
    REFUSE(repetition_penalty, 0.0f, "repetition_penalty is 0");
    REFUSE(repetition_penalty, NAN, "repetition_penalty");
    REFUSE(presence_penalty, 2.1f, "presence_penalty");
    REFUSE(frequency_penalty, -2.1f, "frequency_penalty");
    REFUSE(top_logprobs, 21, "top_logprobs is 21");
    REFUSE(bias_count, KVF_SAMPLER_BIAS_MAX + 1, "logit_bias entries is 301");
    REFUSE(stop_ids_count, KVF_SAMPLER_STOP_IDS_MAX + 1, "token_ids is 65");
    REFUSE(want_logprobs, 2, "want_logprobs");
    REFUSE(ignore_eos, 2, "ignore_eos");
    s = good;
    s.stop_ids_count = 2;
    s.stop_ids[1] = VOCAB;
    expect_refused(s, "token_ids[1] is 1000");
    s = good;
    s.bias_count = 1;
    s.bias[0] = (kvf_logit_bias){VOCAB, 1.0f};
    expect_refused(s, "logit_bias[0] token_id is 1000");
    s.bias[0] = (kvf_logit_bias){3, NAN};
    expect_refused(s, "logit_bias[0] bias is nan");
    s.bias[0] = (kvf_logit_bias){3, 1001.0f};
    expect_refused(s, "logit_bias[0] bias is 1001");
    static const float fine[] = {0, 1e-30f, 1e-5f, 1, 100, 3e38f};
    for (size_t i = 0; i < KVF_COUNT_OF(fine); i++) {
        s = good;
        s.temperature = fine[i];
        assert_int_equal(kvf_sampling_check(&s, VOCAB, NULL), KVF_OK);
    }
    s = good;
    s.top_p = 0; /* greedy, as documented */
    s.top_k = UINT32_MAX;
    assert_int_equal(kvf_sampling_check(&s, VOCAB, NULL), KVF_OK);
}

static void tiny_temperatures_top_p_0_and_top_k_1_are_greedy(void **state) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        bench b;
        bench_init(&b, seed);
        uint32_t want = best_of(b.logits, VOCAB);
        b.sampling.seed = seed;
        static const float greedy[] = {0, -0.0f, 1e-30f, 1e-5f, 1e-4f};
        for (size_t i = 0; i < KVF_COUNT_OF(greedy); i++) {
            b.sampling.temperature = greedy[i];
            assert_int_equal(pick(&b), want);
        }
        b.sampling.temperature = 1000;
        b.sampling.top_p = 0;
        assert_int_equal(pick(&b), want);
        b.sampling.top_p = 1;
        b.sampling.top_k = 1;
        assert_int_equal(pick(&b), want);
        b.sampling.top_k = 0;
        b.sampling.min_p = 1; /* only the best reaches the weight of the best */
        assert_int_equal(pick(&b), want);
        b.sampling.min_p = 0;
        b.sampling.top_p = 1e-6f;
        assert_int_equal(pick(&b), want);
        bench_fini(&b);
    }
}

static void greedy_takes_the_lowest_id_of_equals_wherever_they_are(void **state) {
    bench b;
    bench_init(&b, 1);
    b.sampling.temperature = 0;
    static const uint32_t pairs[][2] = {{0, 999}, {15, 16}, {3, 990}, {992, 999}, {100, 101}};
    for (size_t i = 0; i < KVF_COUNT_OF(pairs); i++) {
        float saved[2] = {b.logits[pairs[i][0]], b.logits[pairs[i][1]]};
        b.logits[pairs[i][0]] = b.logits[pairs[i][1]] = 9;
        assert_int_equal(pick(&b), pairs[i][0]);
        b.logits[pairs[i][0]] = saved[0];
        b.logits[pairs[i][1]] = saved[1];
    }
    bench_fini(&b);
}

static void top_k_at_or_above_the_vocabulary_is_off(void **state) {
    bench b;
    bench_init(&b, 5);
    for (uint64_t seed = 0; seed < 200; seed++) {
        b.sampling.seed = seed;
        b.sampling.top_k = 0;
        uint32_t want = pick(&b);
        b.sampling.top_k = VOCAB;
        assert_int_equal(pick(&b), want);
        b.sampling.top_k = UINT32_MAX;
        assert_int_equal(pick(&b), want);
    }
    bench_fini(&b);
}

/* --- the distribution --- */

/* The probabilities that the parameters define, computed the slow, plain way in double with the C library. */
typedef struct {
    double z;
    uint32_t id;
} ranked;
static int compare_ranked(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void expected_distribution(const bench *b, double p[VOCAB]) {
    const kvf_sampling *s = &b->sampling;
    uint32_t n = b->in.vocab_used;
    ranked r[VOCAB];
    double w[VOCAB], total = 0, kept = 0;
    for (uint32_t i = 0; i < n; i++) r[i] = (ranked){(double)b->logits[i], i};
    qsort(r, n, sizeof *r, compare_ranked);
    uint32_t count = s->top_k && s->top_k < n ? s->top_k : n;
    for (uint32_t i = 0; i < count; i++) total += w[i] = exp((r[i].z - r[0].z) / (double)s->temperature);
    uint32_t end = 0;
    for (double mass = 0; end < count && (end == 0 || mass < (double)s->top_p * total || s->top_p == 1.0f); end++)
        mass += w[end];
    memset(p, 0, VOCAB * sizeof *p);
    for (uint32_t i = 0; i < end; i++)
        if (w[i] >= (double)s->min_p) kept += w[i];
    for (uint32_t i = 0; i < end; i++)
        if (w[i] >= (double)s->min_p) p[r[i].id] = w[i] / kept;
}

/* Chi-square over cells of expected count >= 5 (the rest is one cell); mean dof, deviation sqrt(2 dof). Seeds are
 * fixed, so this never flickers. A token of probability 0 must never come. */
static void expect_distribution(bench *b, const char *what) {
    enum { DRAWS = 20000 };
    static uint32_t seen[VOCAB];
    double p[VOCAB], chi = 0, rest_expected = 0;
    expected_distribution(b, p);
    memset(seen, 0, sizeof seen);
    kvf_sample out;
    for (uint32_t i = 0; i < DRAWS; i++) {
        b->sampling.seed = i * 7919u;
        kvf_sample_token(&b->in, b->scratch, &out);
        seen[out.chosen.token]++;
    }
    uint32_t cells = 0, rest_seen = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        double expected = p[i] * DRAWS;
        if (p[i] == 0 && seen[i] > 0) fail_msg("%s: token %u has probability 0 and came %u times", what, i, seen[i]);
        if (expected < 5) {
            rest_expected += expected;
            rest_seen += seen[i];
            continue;
        }
        chi += (seen[i] - expected) * (seen[i] - expected) / expected;
        cells++;
    }
    if (rest_expected >= 5) {
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        cells++;
    }
    assert_true(cells > 1);
    double dof = cells - 1, limit = dof + 4 * sqrt(2 * dof) + 6;
    if (chi > limit) fail_msg("%s: chi-square %.1f over %.1f (%u cells)", what, chi, limit, cells);
}

static void draws_follow_the_distribution_of_the_parameters(void **state) {
    bench b;
    bench_init(&b, 42);
    expect_distribution(&b, "temperature 1");
    b.sampling.temperature = 0.5f;
    expect_distribution(&b, "temperature 0.5");
    b.sampling.temperature = 2.5f;
    expect_distribution(&b, "temperature 2.5");
    b.sampling.temperature = 1;
    b.sampling.top_k = 7;
    expect_distribution(&b, "top_k 7");
    b.sampling.top_k = 300;
    expect_distribution(&b, "top_k 300");
    b.sampling.top_k = 0;
    b.sampling.top_p = 0.3f;
    expect_distribution(&b, "top_p 0.3");
    b.sampling.top_p = 0.95f;
    expect_distribution(&b, "top_p 0.95");
    b.sampling.top_p = 1;
    b.sampling.min_p = 0.2f;
    expect_distribution(&b, "min_p 0.2");
    b.sampling.top_p = 0.8f;
    b.sampling.top_k = 50;
    b.sampling.min_p = 0.1f;
    b.sampling.temperature = 0.8f;
    expect_distribution(&b, "all together");
    bench_fini(&b);
}

static void equal_logits_fill_top_k_and_top_p_from_the_lowest_id(void **state) {
    bench b;
    bench_init(&b, 1);
    for (int i = 0; i < VOCAB; i++) b.logits[i] = i % 2 ? -0.0f : 0.0f;
    b.sampling.top_k = 10;
    expect_distribution(&b, "equal logits, top_k");
    b.sampling.top_k = 0;
    b.sampling.top_p = 0.25f;
    expect_distribution(&b, "equal logits, top_p");
    for (uint32_t i = 0; i < 2000; i++) {
        b.sampling.seed = i;
        assert_true(pick(&b) < 250);
    }
    bench_fini(&b);
}

/* --- adjustments --- */

static void bias_forces_and_bans(void **state) {
    bench b;
    bench_init(&b, 3);
    b.sampling.bias_count = 2;
    b.sampling.bias[0] = (kvf_logit_bias){77, 100.0f};
    b.sampling.bias[1] = (kvf_logit_bias){best_of(b.logits, VOCAB), -1000.0f};
    float before[VOCAB];
    memcpy(before, b.logits, sizeof before);
    for (uint32_t i = 0; i < 500; i++) {
        b.sampling.seed = i;
        assert_int_equal(pick(&b), 77);
    }
    assert_memory_equal(before, b.logits, sizeof before);
    b.sampling.temperature = 0;
    assert_int_equal(pick(&b), 77);
    bench_fini(&b);
}

static void penalties_change_the_logits_as_documented(void **state) {
    bench b;
    bench_init(&b, 3);
    for (int i = 0; i < VOCAB; i++) b.logits[i] = -10;
    b.sampling.temperature = 0;
    b.logits[10] = 4;
    b.logits[11] = 3;
    b.logits[12] = 2.5f;
    b.tokens[0] = 10; /* prompt */
    b.tokens[1] = 11; /* output, twice */
    b.tokens[2] = 11;
    b.in.tokens_count = 3;
    b.in.prompt_count = 1;
    assert_int_equal(pick(&b), 10);
    b.sampling.presence_penalty = 2; /* output only: the prompt's token is left alone */
    assert_int_equal(pick(&b), 10);
    b.sampling.presence_penalty = 0;
    b.sampling.repetition_penalty = 1.5f; /* prompt too: 4/1.5 = 2.67, 3/1.5 = 2 (once, though it came twice), 2.5 */
    assert_int_equal(pick(&b), 10);
    b.sampling.repetition_penalty = 1.7f; /* 2.35, 1.76, 2.5 */
    assert_int_equal(pick(&b), 12);
    b.sampling.repetition_penalty = 1;
    b.in.prompt_count = 0;
    b.sampling.presence_penalty = 1.4f; /* 2.6, 1.6, 2.5 */
    assert_int_equal(pick(&b), 10);
    b.sampling.presence_penalty = 1.6f; /* 2.4, 1.4, 2.5 */
    assert_int_equal(pick(&b), 12);
    b.sampling.presence_penalty = 0;
    b.logits[10] = 2.9f;
    b.sampling.frequency_penalty = 0.3f; /* 2.6, 3 - 0.6 = 2.4 */
    assert_int_equal(pick(&b), 10);
    b.sampling.frequency_penalty = -2; /* 4.9, 7 */
    assert_int_equal(pick(&b), 11);
    b.sampling.frequency_penalty = 0;
    for (int i = 0; i < VOCAB; i++) b.logits[i] = -10;
    b.logits[10] = -1; /* a negative logit is multiplied: -1.5 */
    b.logits[12] = -1.2f;
    b.sampling.repetition_penalty = 1.5f;
    assert_int_equal(pick(&b), 12);
    bench_fini(&b);
}

static void end_tokens_wait_for_min_tokens(void **state) {
    bench b;
    bench_init(&b, 3);
    static const uint32_t ends[] = {5, 6};
    b.sampling.temperature = 0;
    b.logits[5] = 30;
    b.logits[6] = 29;
    b.logits[7] = 28; /* a stop id of the request */
    b.logits[8] = 27;
    b.in.end_ids = ends;
    b.in.end_ids_count = 2;
    b.sampling.stop_ids_count = 1;
    b.sampling.stop_ids[0] = 7;
    b.sampling.min_tokens = 2;
    b.in.prompt_count = 3;
    b.in.tokens_count = 3;
    assert_int_equal(pick(&b), 8);
    b.in.tokens_count = 4;
    assert_int_equal(pick(&b), 8);
    b.sampling.ignore_eos = 1;
    assert_int_equal(pick(&b), 5);
    b.sampling.ignore_eos = 0;
    b.in.tokens_count = 5;
    assert_int_equal(pick(&b), 5);
    bench_fini(&b);
}

/* Field case MF-04 (e): rows beyond the tokenizer's ids. */
static void padding_is_never_sampled_nor_reported(void **state) {
    bench b;
    bench_init(&b, 9);
    b.in.vocab_used = 300;
    for (int i = 300; i < VOCAB; i++) b.logits[i] = 50;
    b.sampling.top_logprobs = 20;
    kvf_sample out;
    for (uint32_t i = 0; i < 300; i++) {
        b.sampling.seed = i;
        b.sampling.temperature = i % 3 ? 50.0f : 0.0f;
        b.sampling.top_k = i % 5 ? 0 : 400;
        b.sampling.top_p = i % 7 ? 1.0f : 0.9f;
        b.sampling.presence_penalty = i % 2 ? 1.0f : 0.0f;
        b.tokens[0] = 310;
        b.in.tokens_count = 1;
        kvf_sample_token(&b.in, b.scratch, &out);
        assert_true(out.chosen.token < 300);
        assert_int_equal(out.top_count, 20);
        double sum = 0;
        for (uint32_t t = 0; t < 20; t++) {
            assert_true(out.top[t].token < 300);
            sum += exp((double)out.top[t].logprob);
        }
        assert_true(sum < 1.0001 && sum > 0.1);
        assert_true(out.chosen.rank >= 1 && out.chosen.rank <= 300);
    }
    bench_fini(&b);
}

/* --- determinism --- */

static void the_same_request_gives_the_same_token_and_streams_differ(void **state) {
    bench b;
    bench_init(&b, 11);
    uint32_t same_choice = 0, same_position = 0, same_seed = 0;
    for (uint32_t i = 0; i < 300; i++) {
        b.sampling.seed = 1000 + i;
        b.in.choice = 0;
        b.in.tokens_count = b.in.prompt_count = 4;
        uint32_t first = pick(&b);
        b.in.choice = 1;
        same_choice += pick(&b) == first;
        b.in.choice = 0;
        b.in.tokens_count = b.in.prompt_count = 5;
        same_position += pick(&b) == first;
        b.in.tokens_count = b.in.prompt_count = 4;
        b.sampling.seed++;
        same_seed += pick(&b) == first;
        b.sampling.seed--;
        assert_int_equal(pick(&b), first);
    }
    /* Two independent draws agree with probability sum p^2, here about 1 in 400. */
    assert_true(same_choice < 10 && same_position < 10 && same_seed < 10);
    bench_fini(&b);
}

/* Fixed bits of the sampler's own functions: any machine, compiler or flag that changes them breaks "same bits". */
static void exp_and_log_give_known_bits(void **state) {
    kvf_rng rng = {77, 0};
    uint64_t digest = 0;
    double worst_exp = 0, worst_log = 0;
    for (int i = 0; i < 100000; i++) {
        float x = (float)(kvf_rng_next(&rng) >> 40) * (-87.0f / 16777216.0f), y = sampler_exp(x);
        double exact = exp((double)x), error = fabs((double)y - exact) / exact;
        worst_exp = KVF_MAX(worst_exp, error);
        double v = 1.0 + (double)(kvf_rng_next(&rng) >> 30), l = sampler_log(v);
        if (v > 1.0) worst_log = KVF_MAX(worst_log, fabs(l - log(v)) / log(v));
        uint32_t bits;
        uint64_t bits2;
        memcpy(&bits, &y, 4);
        memcpy(&bits2, &l, 8);
        digest = kvf_rng_mix(digest ^ bits ^ bits2 << 1);
    }
    assert_true(worst_exp < 2e-7);
    assert_true(worst_log < 1e-14);
    assert_true(sampler_exp(0.0f) == 1.0f && sampler_exp(-88.0f) == 0.0f && sampler_exp(NAN) == 0.0f);
    assert_true(sampler_exp(-INFINITY) == 0.0f && sampler_log(1.0) == 0.0);
    if (digest != 0x4fa84fb10474bfbfull) fail_msg("digest of exp and log is %016llx", (unsigned long long)digest);
}

/* 2,000 draws with every cut in play: the tokens themselves are pinned, not only the functions below them. */
static void draws_are_the_same_on_every_machine(void **state) {
    bench b;
    uint64_t digest = 0;
    bench_init(&b, 123);
    for (uint32_t i = 0; i < 2000; i++) {
        b.sampling.seed = i;
        b.in.choice = i % 3;
        b.in.tokens_count = b.in.prompt_count = i % 60;
        b.sampling.temperature = 0.3f + 0.01f * (float)(i % 200);
        b.sampling.top_k = i % 4 ? 0 : 40 + i % 300;
        b.sampling.top_p = i % 3 ? 1.0f : 0.9f;
        b.sampling.min_p = i % 5 ? 0.0f : 0.02f;
        b.sampling.repetition_penalty = i % 7 ? 1.0f : 1.3f;
        digest = kvf_rng_mix(digest ^ pick(&b));
    }
    if (digest != 0x55a620bab21f81a1ull) fail_msg("digest of draws is %016llx", (unsigned long long)digest);
    bench_fini(&b);
}

static void broken_logits_do_no_harm(void **state) {
    bench b;
    bench_init(&b, 2);
    kvf_sample out;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < VOCAB; i++) b.logits[i] = bad[round % 3];
        if (round >= 3 && round < 24) b.logits[500] = 1.0f;
        b.sampling.seed = (uint64_t)round;
        b.sampling.temperature = round % 2 ? 1.0f : 0.0f;
        b.sampling.top_k = round % 4 == 1 ? 5 : 0;
        b.sampling.top_p = round % 5 ? 1.0f : 0.5f;
        b.sampling.top_logprobs = 5;
        b.sampling.repetition_penalty = round % 7 ? 1.0f : 1e-30f;
        kvf_sample_token(&b.in, b.scratch, &out);
        if (round % 3 != 1 && round >= 3 && round < 24) assert_int_equal(out.chosen.token, 500);
        assert_true(isfinite(out.chosen.logprob));
        for (uint32_t t = 0; t < out.top_count; t++) assert_true(isfinite(out.top[t].logprob));
    }
    bench_fini(&b);
}

/* --- logprobs --- */

static void chosen_rank_and_top_agree_with_a_sort(void **state) {
    bench b;
    bench_init(&b, 21);
    b.logits[30] = b.logits[31] = b.logits[900] = 3.99999f;
    ranked r[VOCAB];
    for (uint32_t i = 0; i < VOCAB; i++) r[i] = (ranked){(double)b.logits[i], i};
    qsort(r, VOCAB, sizeof *r, compare_ranked);
    double sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++) sum += exp(r[i].z);
    assert_true(fabs(kvf_log_sum_exp(b.logits, VOCAB) - log(sum)) < 1e-6);
    for (uint32_t i = 0; i < VOCAB; i++) {
        kvf_sample out;
        kvf_sample_score(b.logits, VOCAB, VOCAB, r[i].id, i % 21, &out);
        assert_int_equal(out.chosen.rank, i + 1);
        assert_true(fabs((double)out.chosen.logprob - (r[i].z - log(sum))) < 1e-5);
        assert_int_equal(out.top_count, i % 21);
        for (uint32_t t = 0; t < out.top_count; t++) {
            assert_int_equal(out.top[t].token, r[t].id);
            assert_int_equal(out.top[t].rank, t + 1);
        }
    }
    bench_fini(&b);
}

static void logprobs_match_the_golden_values(void **state) {
    enum { V = 49152 };
    json_error_t error;
    FILE *f = fopen(KVF_SOURCE_DIR "/tests/golden/smollm2/logprobs.jsonl", "rb");
    FILE *g = fopen(KVF_SOURCE_DIR "/tests/golden/smollm2/logits.f32", "rb");
    assert_true(f && g);
    json_t *line = json_loadf(f, JSON_DISABLE_EOF_CHECK, &error);
    assert_non_null(line);
    json_t *ids = json_object_get(line, "ids"), *want = json_object_get(line, "token_logprobs"),
           *top = json_object_get(line, "top10");
    float *logits = malloc(V * sizeof *logits);
    assert_non_null(logits);
    size_t positions = json_array_size(ids);
    assert_true(positions > 1);
    for (size_t i = 0; i < positions; i++) {
        assert_int_equal(fread(logits, sizeof *logits, V, g), V);
        uint32_t next = i + 1 < positions ? (uint32_t)json_integer_value(json_array_get(ids, i + 1)) : 0;
        kvf_sample out;
        kvf_sample_score(logits, V, V, next, 10, &out);
        if (i + 1 < positions)
            assert_true(fabs((double)out.chosen.logprob - json_number_value(json_array_get(want, i + 1))) < 2e-5);
        assert_int_equal(out.top_count, 10);
        for (size_t t = 0; t < 10; t++) {
            json_t *pair = json_array_get(json_array_get(top, i), t);
            assert_int_equal(out.top[t].token, json_integer_value(json_array_get(pair, 0)));
            assert_true(fabs((double)out.top[t].logprob - json_number_value(json_array_get(pair, 1))) < 2e-5);
        }
    }
    free(logits);
    json_decref(line);
    fclose(f);
    fclose(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_parameters_are_refused_by_name),
        cmocka_unit_test(tiny_temperatures_top_p_0_and_top_k_1_are_greedy),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_equals_wherever_they_are),
        cmocka_unit_test(top_k_at_or_above_the_vocabulary_is_off),
        cmocka_unit_test(draws_follow_the_distribution_of_the_parameters),
        cmocka_unit_test(equal_logits_fill_top_k_and_top_p_from_the_lowest_id),
        cmocka_unit_test(bias_forces_and_bans),
        cmocka_unit_test(penalties_change_the_logits_as_documented),
        cmocka_unit_test(end_tokens_wait_for_min_tokens),
        cmocka_unit_test(padding_is_never_sampled_nor_reported),
        cmocka_unit_test(the_same_request_gives_the_same_token_and_streams_differ),
        cmocka_unit_test(exp_and_log_give_known_bits),
        cmocka_unit_test(draws_are_the_same_on_every_machine),
        cmocka_unit_test(broken_logits_do_no_harm),
        cmocka_unit_test(chosen_rank_and_top_agree_with_a_sort),
        cmocka_unit_test(logprobs_match_the_golden_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
