/* Sampling on the emulator: tokens, logprobs and ranks of engine/sampler for the same logits. */
#include "cuda_test.h"
#include "kvf/cuda_sample.h"
#include <cfloat>
extern "C" {
#include "kvf/sampler.h"
}

static const uint32_t END_IDS[] = {3, 7};

struct request {
    kvf_sampling sampling;
    std::vector<uint32_t> tokens;
    uint32_t prompt_count, choice;
};

struct batch {
    uint32_t vocab, used;
    std::vector<float> logits;
    std::vector<request> requests;
};

/* What a host makes of a request: one entry a token, those of the bias list one each. */
static void adjustments_of(const request &r, uint32_t used, std::vector<kvf_cuda_adjustment> *list) {
    const kvf_sampling &s = r.sampling;
    bool penalties = s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
    bool too_short = r.tokens.size() - r.prompt_count < s.min_tokens;
    for (uint32_t token = 0; token < used; token++) {
        uint32_t flags = 0, uses = 0;
        for (size_t i = 0; i < r.tokens.size() && penalties; i++) {
            if (r.tokens[i] != token) continue;
            flags |= KVF_CUDA_SEEN;
            uses += i >= r.prompt_count;
        }
        for (uint32_t id : END_IDS) flags |= too_short && !s.ignore_eos && id == token ? KVF_CUDA_SUPPRESSED : 0;
        for (uint32_t i = 0; i < s.stop_ids_count; i++)
            flags |= too_short && s.stop_ids[i] == token ? KVF_CUDA_SUPPRESSED : 0;
        size_t before = list->size();
        for (uint32_t i = 0; i < s.bias_count; i++)
            if (s.bias[i].token == token) list->push_back({token, s.bias[i].bias, 0, KVF_CUDA_BIASED, 0});
        if (list->size() == before && flags) list->push_back({token, 0, 0, 0, 0});
        if (list->size() == before) continue;
        list->back().uses = uses;
        list->back().flags |= flags;
    }
}

static std::vector<kvf_cuda_sampled> by_kernel(const batch &b) {
    std::vector<kvf_cuda_sampling> rows;
    std::vector<kvf_cuda_adjustment> adjustments;
    for (const request &r : b.requests) {
        const kvf_sampling &s = r.sampling;
        uint32_t begin = (uint32_t)adjustments.size();
        adjustments_of(r, b.used, &adjustments);
        rows.push_back({kvf_rng_at(s.seed, r.choice, r.tokens.size()), s.temperature, s.top_p, s.min_p,
            s.repetition_penalty, s.presence_penalty, s.frequency_penalty, s.top_k, s.want_logprobs, s.top_logprobs,
            (uint32_t)rows.size(), begin, (uint32_t)adjustments.size() - begin, KVF_CUDA_DRAW});
    }
    std::vector<kvf_cuda_sampled> out(rows.size());
    std::vector<uint64_t> scratch(kvf_cuda_sample_scratch_bytes(b.vocab, (uint32_t)rows.size()) / 8 + 1, UINT64_MAX);
    std::vector<float> logits = b.logits;
    kvf_cuda_sample a = {logits.data(), b.vocab, b.used, rows.data(), (uint32_t)rows.size(), adjustments.data(),
        scratch.data(), out.data()};
    assert_int_equal(kvf_cuda_sample_rows(&a, NULL), 0);
    assert_memory_equal(logits.data(), b.logits.data(), logits.size() * sizeof(float)); /* put back */
    return out;
}

static void same(const char *what, size_t row, const kvf_cuda_token_logprob &got, const kvf_token_logprob &want) {
    if (memcmp(&got, &want, sizeof got))
        fail_msg("difference: row %zu, %s: token %u (%a, rank %u), not %u (%a, rank %u)", row, what, got.token,
            (double)got.logprob, got.rank, want.token, (double)want.logprob, want.rank);
}

static void check(const batch &b) {
    static_assert(sizeof(kvf_cuda_sampled) == sizeof(kvf_sample), "laid out alike");
    std::vector<kvf_cuda_sampled> got = by_kernel(b);
    std::vector<uint64_t> scratch(kvf_sample_scratch_bytes(b.vocab) / 8 + 1);
    for (size_t i = 0; i < b.requests.size(); i++) {
        const request &r = b.requests[i];
        kvf_sample_input in = {};
        in.sampling = &r.sampling;
        in.logits = &b.logits[i * b.vocab];
        in.vocab = b.vocab;
        in.vocab_used = b.used;
        in.tokens = r.tokens.data();
        in.tokens_count = (uint32_t)r.tokens.size();
        in.prompt_count = r.prompt_count;
        in.choice = r.choice;
        in.end_ids = END_IDS;
        in.end_ids_count = 2;
        kvf_sample want;
        kvf_sample_token(&in, scratch.data(), &want);
        same("chosen", i, got[i].chosen, want.chosen);
        assert_int_equal(got[i].top_count, want.top_count);
        for (uint32_t t = 0; t < want.top_count; t++) same("top", i, got[i].top[t], want.top[t]);
    }
}

static request plain(maker &m) {
    request r = {};
    kvf_sampling_defaults(&r.sampling);
    r.sampling.seed = m.below(1u << 30);
    r.choice = m.below(3);
    r.prompt_count = 2;
    for (uint32_t i = 0, n = 2 + m.below(6); i < n; i++) r.tokens.push_back(m.below(40));
    return r;
}

static batch make(uint32_t vocab, uint32_t used, size_t rows, float spread) {
    maker m;
    batch b = {vocab, used, {}, {}};
    for (size_t i = 0; i < rows; i++) b.requests.push_back(plain(m));
    for (size_t i = 0; i < rows * vocab; i++)
        b.logits.push_back(std::round(m.next() * 64) / 64 * spread); /* many ties */
    for (size_t i = 0; i < rows; i++) /* nobody may look at the padding */
        for (uint32_t t = used; t < vocab; t++) b.logits[i * vocab + t] = 1e30f;
    return b;
}

static void greedy_takes_the_lowest_of_equals(void **state) {
    batch b = make(700, 650, 4, 8);
    for (auto &r : b.requests) r.sampling.temperature = 0;
    b.logits[1 * 700 + 17] = b.logits[1 * 700 + 400] = 100;
    for (uint32_t t = 0; t < 650; t++) b.logits[2 * 700 + t] = NAN;
    for (uint32_t t = 0; t < 650; t++) b.logits[3 * 700 + t] = t < 5 ? NAN : -INFINITY;
    check(b);
    for (auto &r : b.requests) r.sampling.temperature = 1; /* nothing finite: greedy as well */
    check(b);
}

/* Every combination of cuts over flat and steep distributions. */
static void draws_of_every_kind(void **state) {
    static const float temperatures[] = {0.3f, 1, 3}, top_ps[] = {1, 0.9f, 0.35f}, min_ps[] = {0, 0.02f, 0.5f};
    static const uint32_t top_ks[] = {0, 3, 40, 5000};
    for (float spread : {0.5f, 12.0f, 200.0f}) {
        batch b = make(1100, 1000, 36, spread);
        for (size_t i = 0; i < b.requests.size(); i++) {
            kvf_sampling *s = &b.requests[i].sampling;
            s->temperature = temperatures[i % 3];
            s->top_k = top_ks[i % 4];
            s->top_p = top_ps[i / 4 % 3];
            s->min_p = min_ps[i / 12 % 3];
        }
        check(b);
    }
}

static void adjusted_logits(void **state) {
    batch b = make(300, 300, 16, 4);
    for (size_t i = 0; i < b.requests.size(); i++) {
        kvf_sampling *s = &b.requests[i].sampling;
        if (i & 1) s->repetition_penalty = 1.7f;
        if (i & 2) s->presence_penalty = 0.9f, s->frequency_penalty = -0.4f;
        if (i & 4) s->min_tokens = 20, s->stop_ids_count = 1, s->stop_ids[0] = 11;
        s->ignore_eos = i == 5;
        s->temperature = i & 8 ? 0.8f : 0;
        s->top_logprobs = 2; /* of the model's own distribution */
        s->bias_count = i % 3 * 2;
        for (uint32_t k = 0; k < s->bias_count; k++) s->bias[k] = {k < 2 ? 9 : k + 3, k % 2 ? 3.3f : -1.1f};
    }
    b.logits[4] = NAN;
    b.logits[300 + 9] = FLT_MAX;
    check(b);
}

static void logprobs_and_ranks(void **state) {
    batch b = make(800, 777, 7, 9);
    for (size_t i = 0; i < b.requests.size(); i++) {
        b.requests[i].sampling.want_logprobs = i & 1;
        b.requests[i].sampling.top_logprobs = i < 2 ? (uint32_t)i : 20;
    }
    b.logits[3 * 800 + 5] = NAN;
    b.logits[4 * 800 + 5] = INFINITY;
    for (uint32_t t = 3; t < 777; t++) b.logits[5 * 800 + t] = NAN; /* fewer than are asked for */
    for (uint32_t t = 0; t < 777; t++) b.logits[6 * 800 + t] = -INFINITY;
    check(b);
}

static void a_given_token_is_scored(void **state) {
    batch b = make(500, 500, 1, 5);
    std::vector<kvf_cuda_sampling> rows(1);
    kvf_cuda_sampling &row = rows[0];
    row.want_logprobs = 1;
    row.top_logprobs = 3;
    row.given = 123;
    std::vector<kvf_cuda_sampled> out(1);
    kvf_cuda_sampled &got = out[0];
    std::vector<uint64_t> scratch(kvf_cuda_sample_scratch_bytes(500, 1) / 8 + 1);
    kvf_cuda_sample a = {b.logits.data(), 500, 500, &row, 1, NULL, scratch.data(), &got};
    assert_int_equal(kvf_cuda_sample_rows(&a, NULL), 0);
    kvf_sample want = {};
    kvf_sample_score(b.logits.data(), 500, 500, 123, 3, &want);
    same("given", 0, got.chosen, want.chosen);
    for (int t = 0; t < 3; t++) same("top", 0, got.top[t], want.top[t]);
}

/* More chunks than one round of the block, more candidates than one step of a warp. */
static void a_large_vocabulary_in_all_orders(void **state) {
    batch b = make(9000, 8997, 3, 6);
    b.requests[0].sampling.top_p = 0.97f;
    b.requests[1].sampling.top_k = 4000;
    b.requests[1].sampling.top_p = 0.8f;
    in_all_orders([&] { check(b); });
}

static void a_vocabulary_beyond_reason_is_refused(void **state) {
    kvf_cuda_sample a = {};
    a.vocab = a.vocab_used = KVF_CUDA_VOCAB_MAX + 1;
    assert_int_equal(kvf_cuda_sample_rows(&a, NULL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(draws_of_every_kind),
        cmocka_unit_test(adjusted_logits),
        cmocka_unit_test(logprobs_and_ranks),
        cmocka_unit_test(a_given_token_is_scored),
        cmocka_unit_test(a_large_vocabulary_in_all_orders),
        cmocka_unit_test(a_vocabulary_beyond_reason_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
