#include "kinds.h"
#include <string.h>

static void letters(e2e_ask *a) { /* so that a stop string comes about, and not at once */
    for (uint32_t i = 0; i < 6; i++) {
        a->bias_ids[i] = 'a' + i;
        a->bias[i] = 100;
    }
    a->bias_count = 6;
}

static void make_ask(e2e_kinds *k, size_t i) {
    static const uint32_t lengths[] = {6, 40, 200, 600}, outputs[] = {12, 40, 90};
    uint64_t r = i + 1;
    /* Half of them begin alike, so that cached prefixes are part of the game. */
    for (size_t t = 0; t < E2E_KIND_TOKENS; t++)
        k->ids[i][t] = t < 130 && i % 2 ? (uint32_t)(t * 7 % 256) : (uint32_t)(e2e_random(&r) % 256);
    e2e_ask *a = &k->ask[i];
    e2e_ask_ids(a, k->ids[i], lengths[i % 4], outputs[i % 3]);
    a->dis = i % 5 == 4 ? E2E_AUTO : E2E_ALWAYS;
    a->seed = 100 + i;
    a->seeded = true;
    a->temperature = i % 4 == 0 ? 0 : 0.9f;
    switch (i % 8) {
    case 1: a->logprobs = true; break;
    case 2:
        a->presence = 0.7f;
        a->frequency = 0.4f;
        a->logprobs = true;
        break;
    case 3: a->n = 2; break;
    case 4:
        a->logprobs = true;
        a->top_logprobs = 3;
        break;
    case 5:
        letters(a);
        a->stops[0] = i < 8 ? "fddf" : "cfdc";
        a->max = 120;
        break;
    case 6: a->prompt_logprobs = a->logprobs = true; break;
    case 7:
        a->frequency = 0.5f;
        a->n = 2;
        a->logprobs = true;
        break;
    default: break;
    }
}

void e2e_kinds_make(e2e_kinds *k, e2e_cluster *undisturbed) {
    for (size_t i = 0; i < E2E_KINDS; i++) {
        make_ask(k, i);
        e2e_gen_ok(undisturbed, &k->ask[i], &k->want[i]);
    }
    assert_int_equal(k->want[5].choice[0].reason, KVFERRY__V1__FINISH_REASON__FINISH_REASON_STOP_SEQUENCE);
}

void e2e_kinds_free(e2e_kinds *k) {
    for (size_t i = 0; i < E2E_KINDS; i++) e2e_answer_free(&k->want[i]);
}

bool e2e_kind_same(const e2e_answer *want, const e2e_answer *got) {
    return e2e_same(want, got) && want->usage_prompt == got->usage_prompt && got->usage_prompts == 1 &&
           want->prompt_logprobs_count == got->prompt_logprobs_count &&
           (want->prompt_logprobs_count == 0 || memcmp(want->prompt_logprobs, got->prompt_logprobs,
                                                    want->prompt_logprobs_count * sizeof *want->prompt_logprobs) == 0);
}

static void note(e2e_clients *t, size_t kind, const e2e_answer *got, const char *what) {
    pthread_mutex_lock(&t->lock);
    if (!t->first[0])
        snprintf(t->first, sizeof t->first, "first: kind %zu, request %s %s: %s %s\n", kind, got->request_id, what,
            kvf_rpc_code_name(got->result.code), got->result.message);
    pthread_mutex_unlock(&t->lock);
}

static void *client(void *self) {
    e2e_clients *t = self;
    uint64_t r = t->seed * 1000 + atomic_fetch_add(&t->started, 1);
    while (!atomic_load(&t->stop)) {
        size_t i = e2e_random(&r) % E2E_KINDS;
        e2e_answer got;
        e2e_gen(t->c, &t->kinds->ask[i], &got);
        if (got.result.code != KVF_RPC_OK) {
            atomic_fetch_add(&t->failed, 1);
            note(t, i, &got, "failed");
        } else if (!e2e_kind_same(&t->kinds->want[i], &got)) {
            atomic_fetch_add(&t->differ, 1);
            note(t, i, &got, "differs");
        }
        atomic_fetch_add(&t->done, 1);
        if (got.attempts > 1) atomic_fetch_add(&t->retried, 1);
        e2e_answer_free(&got);
    }
    return NULL;
}

void e2e_clients_start(e2e_clients *t, const e2e_kinds *kinds, e2e_cluster *c, uint32_t count, uint64_t seed) {
    *t = (e2e_clients){.kinds = kinds, .c = c, .seed = seed, .count = count};
    assert_true(count <= KVF_COUNT_OF(t->threads));
    pthread_mutex_init(&t->lock, NULL);
    for (uint32_t i = 0; i < count; i++) assert_int_equal(pthread_create(&t->threads[i], NULL, client, t), 0);
}

void e2e_clients_stop(e2e_clients *t) {
    atomic_store(&t->stop, true);
    for (uint32_t i = 0; i < t->count; i++) pthread_join(t->threads[i], NULL);
    pthread_mutex_destroy(&t->lock);
}

void e2e_clients_all_well(e2e_clients *t, const char *what) {
    e2e_clients_stop(t);
    print_message("%s: %u answered, %u of them by more than one attempt, %u failed, %u differ\n%s", what, t->done,
        t->retried, t->failed, t->differ, t->first);
    assert_int_equal(t->failed, 0);
    assert_int_equal(t->differ, 0);
    assert_true(t->done > 0);
}
