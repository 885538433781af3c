/* The waste ratio (empty slots of blocks that are taken; on the decode node also of those of running requests alone)
 * under the lengths of a real trace stays below 4 %. The trace lies outside the repository: $KVF_SHARED/traces, or
 * ../shared/traces beside it. Lengths are scaled into the tiny model's context where they exceed it. */
#include "harness.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 240, CONTEXT = 4096, EVERY = 61 /* of the trace's lines */ };

typedef struct {
    e2e_cluster *c;
    atomic_bool over;
    struct {
        double taken, running, empty; /* blocks, summed over samples */
        double max;
        uint32_t samples;
    } node[2];
} sampler;

static void sample(sampler *s) {
    static const char *const names[] = {"p0", "d0"};
    Kvferry__V1__AuditResponse *a = e2e_audit(s->c);
    for (size_t i = 0; i < a->n_nodes; i++)
        for (size_t k = 0; k < 2; k++) {
            const Kvferry__V1__NodeStatus *n = a->nodes[i];
            if (!kvf_proto_text_equal(n->id, names[k]) || n->running < (k ? 8 : 1)) continue;
            double taken = (double)(n->blocks->total - n->blocks->free), empty = (double)n->waste_ratio * taken;
            s->node[k].taken += taken;
            s->node[k].running += (double)n->blocks->pinned;
            s->node[k].empty += empty;
            s->node[k].max = KVF_MAX(s->node[k].max, (double)n->waste_ratio);
            s->node[k].samples++;
        }
    assert_int_equal(a->n_violations, 0);
    kvf_rpc_message_free(&a->base);
}

static void *sample_all(void *self) {
    sampler *s = self;
    while (!atomic_load(&s->over)) {
        sample(s);
        e2e_pause();
    }
    return NULL;
}

static FILE *open_trace(void) {
    char path[1024];
    const char *shared = getenv("KVF_SHARED");
    snprintf(path, sizeof path, "%s/traces/azure-2023-conv.csv", shared ? shared : KVF_SOURCE_DIR "/../shared");
    e2e_need_file(path, "trace of request lengths");
    return fopen(path, "r");
}

static size_t read_lengths(FILE *f, uint32_t (*out)[2]) {
    char line[256];
    size_t count = 0;
    for (size_t n = 0; count < COUNT && fgets(line, sizeof line, f); n++) {
        const char *comma = strchr(line, ',');
        unsigned prompt, answer;
        if (n % EVERY != 1 || !comma || sscanf(comma, ",%u,%u", &prompt, &answer) != 2 || prompt == 0 || answer == 0)
            continue;
        double scale = prompt + answer > CONTEXT ? (double)CONTEXT / (prompt + answer) : 1;
        out[count][0] = KVF_MAX((uint32_t)(prompt * scale), 1u);
        out[count++][1] = KVF_MAX((uint32_t)(answer * scale), 1u);
    }
    fclose(f);
    return count;
}

static void trace_lengths(void **state) {
    (void)state;
    static uint32_t lengths[COUNT][2];
    size_t count = read_lengths(open_trace(), lengths);
    assert_int_equal(count, COUNT);
    const char *args[] = {"--kv-memory", "64MiB", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), args);
    uint32_t *ids = malloc((size_t)COUNT * CONTEXT * sizeof *ids);
    e2e_ask *asks = calloc(COUNT, sizeof *asks);
    e2e_answer *answers = calloc(COUNT, sizeof *answers);
    uint64_t seed = 2023, prompt = 0, answer = 0;
    for (size_t i = 0; i < (size_t)COUNT * CONTEXT; i++) ids[i] = (uint32_t)(e2e_random(&seed) % 256);
    for (size_t i = 0; i < COUNT; i++) {
        e2e_ask_ids(&asks[i], ids + i * CONTEXT, lengths[i][0], lengths[i][1]);
        asks[i].dis = E2E_ALWAYS;
        prompt += lengths[i][0];
        answer += lengths[i][1];
    }
    sampler s = {.c = &c};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, sample_all, &s), 0);
    e2e_crowd(&c, asks, answers, COUNT, 32);
    atomic_store(&s.over, true);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        if (answers[i].result.code != KVF_RPC_OK) fail_msg("request %zu: %s", i, answers[i].result.message);
        e2e_answer_free(&answers[i]);
    }
    print_message("%d requests, %llu + %llu tokens\n", COUNT, (unsigned long long)prompt, (unsigned long long)answer);
    for (size_t k = 0; k < 2; k++) {
        double shown = s.node[k].empty / s.node[k].taken, strict = s.node[k].empty / s.node[k].running;
        print_message(
            "%s: %u samples, waste %.2f %% on average, %.2f %% at most; of running requests' blocks %.2f %%\n",
            k ? "decode" : "prefill", s.node[k].samples, 100 * shown, 100 * s.node[k].max, 100 * strict);
        assert_true(s.node[k].samples >= 10);
        assert_true(shown < 0.04);
        /* A prefill node's blocks are empty until the step that fills them ends, so that there only the shown figure
         * says something. */
        if (k) assert_true(strict < 0.04);
    }
    free(ids);
    free(asks);
    free(answers);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

int main(void) {
    fclose(open_trace());
    const struct CMUnitTest tests[] = {cmocka_unit_test(trace_lengths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
