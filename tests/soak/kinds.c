/* kinds.c - lengths around block and chunk ends, shared prefixes, greedy and seeded sampling, penalties, log
 * probabilities, several choices, stop strings over characters that a bias makes likely, stop ids, text. */
#include "kinds.h"
#include "soak.h"
#include <string.h>

static const char letters[] = "ABCDEFGH";

static void make_prompt(kind *k, size_t i, uint64_t *r) {
    static const uint32_t lengths[] = {5, 33, 200, 700, 16, 450, 97, 320, 1, 64, 161, 880};
    uint32_t shared = i % 3 ? 160 : 0; /* many share a prefix: one of two */
    for (uint32_t t = 0; t < PROMPT_MAX; t++)
        k->ids[t] = t < shared ? (uint32_t)(t * (i % 2 ? 5 : 7) % 256) : (uint32_t)(e2e_random(r) % 256);
    e2e_ask_ids(&k->ask, k->ids, lengths[i % KVF_COUNT_OF(lengths)], 0);
    if (i % 18 != 17) return;
    snprintf(k->text, sizeof k->text, "question %zu: how many cats of %u are black, and who says so?", i,
        (unsigned)(e2e_random(r) % 1000));
    k->ask.ids = NULL;
    k->ask.ids_count = 0;
    k->ask.text = k->text;
}

static void make_kind(kind *k, size_t i, uint64_t *r) {
    static const uint32_t outputs[] = {1, 20, 60, 150, 2, 400, 90, 700};
    make_prompt(k, i, r);
    e2e_ask *a = &k->ask;
    a->max = outputs[e2e_random(r) % KVF_COUNT_OF(outputs)];
    a->temperature = i % 2 ? 0.9f : 0;
    a->seeded = true;
    a->seed = i;
    a->logprobs = i % 4 < 2;
    if (i % 8 == 1) a->top_logprobs = 3;
    if (i % 5 == 4) a->n = 2 + i % 2;
    if (i % 7 == 3) a->top_k = 20;
    if (i % 6 == 1) a->repetition = 1.3f;
    if (i % 6 == 2) a->presence = 0.7f;
    if (i % 6 == 3) a->frequency = 0.5f;
    a->priority = i % 9 == 0 ? 1 : 0;
    if (i % 6 != 5) return;
    a->temperature = 1; /* readable text with a stop string in it */
    a->max = KVF_MAX(a->max, 60u);
    for (const char *c = letters; *c; c++) {
        a->bias_ids[a->bias_count] = (uint32_t)*c;
        a->bias[a->bias_count++] = 100;
    }
}

/* The stop is something that the whole answer says in its middle. */
static void stop_midway(e2e_cluster *c, kind *k, size_t i) {
    const e2e_choice *h = &k->want.choice[0];
    if (i % 6 == 5 && h->text_bytes >= 12) {
        memcpy(k->stop, h->text + h->text_bytes / 2, 3);
        k->ask.stops[0] = k->stop;
    } else if (i % 10 == 7 && h->ids_count > 2) {
        k->stop_id = h->ids[h->ids_count / 2];
        k->ask.stop_ids = &k->stop_id;
        k->ask.stop_ids_count = 1;
    } else {
        return;
    }
    e2e_answer_free(&k->want);
    e2e_gen_ok(c, &k->ask, &k->want);
}

kind *kinds_create(uint64_t seed) {
    kind *kinds = calloc(KINDS, sizeof *kinds);
    assert_non_null(kinds);
    e2e_cluster c;
    const char *args[] = {"--threads", "1", "--kv-memory", "64MiB", NULL};
    e2e_start(&c, SOAK_MODEL, args);
    for (size_t i = 0; i < KINDS; i++) {
        make_kind(&kinds[i], i, &seed);
        e2e_gen_ok(&c, &kinds[i].ask, &kinds[i].want);
        stop_midway(&c, &kinds[i], i);
    }
    e2e_stop(&c);
    return kinds;
}

void kinds_destroy(kind *kinds) {
    for (size_t i = 0; i < KINDS; i++) e2e_answer_free(&kinds[i].want);
    free(kinds);
}

/* ---- comparing ---- */

static void differs(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void differs(verdict *v, const char *format, ...) {
    if (v->text[0]) return; /* the first one says most */
    va_list args;
    va_start(args, format);
    vsnprintf(v->text, sizeof v->text, format, args);
    va_end(args);
}

static void compare_tokens(uint32_t index, const e2e_choice *want, const e2e_choice *got, verdict *v) {
    uint32_t count = KVF_MIN(want->ids_count, got->ids_count);
    v->compared += count;
    for (uint32_t i = 0; i < count; i++) {
        if (want->ids[i] == got->ids[i]) continue;
        v->different++;
        differs(v, "choice %u token %u is %u, not %u", index, i, got->ids[i], want->ids[i]);
    }
    count = KVF_MIN(want->logprobs_count, got->logprobs_count);
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&want->logprobs[i], &got->logprobs[i], sizeof(float)) != 0)
            differs(v, "choice %u log probability %u is %a, not %a", index, i, (double)got->logprobs[i],
                (double)want->logprobs[i]);
    if (got->text_bytes > want->text_bytes || (got->text_bytes && memcmp(got->text, want->text, got->text_bytes) != 0))
        differs(v, "choice %u says another text", index);
}

/* got may be cut short, but only where its choice is not finished. */
static void compare_choice(const kind *k, uint32_t index, const e2e_choice *got, verdict *v) {
    const e2e_choice *want = &k->want.choice[index];
    compare_tokens(index, want, got, v);
    bool held_back = k->ask.stops[0] != NULL; /* ids of text that a stop string then takes away */
    if (!got->finished) {
        if (!held_back && got->ids_count > want->ids_count)
            differs(v, "choice %u has %u tokens, not %u", index, got->ids_count, want->ids_count);
        return;
    }
    if (got->ids_count != want->ids_count || got->completion_tokens != want->completion_tokens)
        differs(v, "choice %u has %u tokens and counts %u, not %u and %u", index, got->ids_count,
            got->completion_tokens, want->ids_count, want->completion_tokens);
    if (got->text_bytes != want->text_bytes || got->logprobs_count != want->logprobs_count || got->tops != want->tops)
        differs(v, "choice %u has %zu bytes, %u log probabilities, %u others, not %zu, %u, %u", index, got->text_bytes,
            got->logprobs_count, got->tops, want->text_bytes, want->logprobs_count, want->tops);
    if (got->reason != want->reason || got->stop_token != want->stop_token ||
        strcmp(got->stop_sequence, want->stop_sequence) != 0)
        differs(v, "choice %u ends by %u '%s', not %u '%s'", index, got->reason, got->stop_sequence, want->reason,
            want->stop_sequence);
}

void kind_compare(const kind *k, const e2e_answer *got, bool whole, verdict *v) {
    *v = (verdict){.compared = 0};
    uint32_t n = k->ask.n ? k->ask.n : 1;
    for (uint32_t i = 0; i < E2E_CHOICES_MAX; i++) {
        const e2e_choice *h = &got->choice[i];
        if (i < n)
            compare_choice(k, i, h, v);
        else if (h->ids_count || h->finished)
            differs(v, "choice %u was not asked for", i);
    }
    if (got->admitted && got->prompt_tokens != k->want.prompt_tokens)
        differs(v, "%u prompt tokens, not %u", got->prompt_tokens, k->want.prompt_tokens);
    if (!whole) return;
    if (got->finished != n) differs(v, "%u of %u choices have ended", got->finished, n);
    if (got->usage_prompts != 1 || got->usage_prompt != k->want.usage_prompt)
        differs(v, "usage counts %u prompt tokens in %u places, not %u in one", got->usage_prompt, got->usage_prompts,
            k->want.usage_prompt);
}
