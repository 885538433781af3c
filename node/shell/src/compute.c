#include "compute.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert(sizeof(kvf_sample) <= KVF_SAMPLE_BYTES_MAX, "a kvf_sample fits into a token item");

struct compute {
    compute_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* guards state, step */
    pthread_cond_t changed;
    enum { IDLE, RUNNING, DONE, STOPPING } state;
    kvf_step step;
    atomic_uint layers_done;
    _Atomic kvf_time_ns moved_ns; /* when the running step began or finished a layer; KVF_TIME_NEVER: none runs */
    /* results of the last step, written by the engine thread while RUNNING */
    kvf_step_result result;
    kvf_step_sample *samples; /* [samples_max] */
    kvf_sample *sample_values; /* [samples_max] */
    kvf_step_scores *scores;
    kvf_sample *score_values; /* [rows_max] */
    /* what the backend is asked for */
    kvf_engine_run *runs;
    kvf_backend_sample *sample_wants; /* [samples_max] */
    kvf_backend_score *score_wants; /* [rows_max] */
    uint32_t score_wants_count;
};

static void on_layer(void *self, uint32_t layer) {
    compute *c = self;
    atomic_store_explicit(&c->layers_done, layer + 1, memory_order_release);
    atomic_store(&c->moved_ns, kvf_os_now_ns());
    c->o.wake(c->o.self);
}

static uint32_t rows_of(const kvf_step_run *run) { return run->score ? run->count : run->samples ? 1 : 0; }

static bool among(const uint32_t *ids, uint32_t count, uint32_t id) {
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Below min_tokens the sampler has suppressed these ids, so one that comes counts. */
static kvf_end end_of(const kvf_sample_input *in, uint32_t token) {
    if (!in->sampling->ignore_eos && among(in->end_ids, in->end_ids_count, token)) return KVF_END_EOS;
    return among(in->sampling->stop_ids, in->sampling->stop_ids_count, token) ? KVF_END_STOP_ID : KVF_END_NONE;
}

/* `row`: of the run's last logits. */
static void want_samples(compute *c, uint32_t run_index, uint32_t row) {
    const kvf_step_run *run = &c->step.runs[run_index];
    const kvf_sampling *sampling = run->sampling.data;
    KVF_ASSERT(run->sampling.len_bytes == sizeof *sampling);
    for (uint32_t i = 0; i < run->samples; i++) {
        uint32_t at = c->result.samples_count++;
        c->sample_wants[at] = (kvf_backend_sample){.row = row,
            .input = {.sampling = sampling,
                .vocab = c->o.backend->spec->vocab,
                .vocab_used = c->o.vocab_used,
                .tokens = run->tokens,
                .tokens_count = run->tokens_count,
                .prompt_count = run->prompt_count,
                .choice = run->choice_first + i,
                .end_ids = c->o.end_ids,
                .end_ids_count = c->o.end_ids_count},
            .out = &c->sample_values[at]};
        c->samples[at] = (kvf_step_sample){.run = run_index, .choice = run->choice_first + i};
    }
}

/* Row i of a scoring run predicts the token after it; the last row's next token is known only inside the prompt. */
static void want_scores(compute *c, uint32_t run_index, uint32_t first_row) {
    const kvf_step_run *run = &c->step.runs[run_index];
    kvf_step_scores *out = &c->scores[c->result.scores_count++];
    kvf_sample *values = c->score_values + c->score_wants_count;
    *out = (kvf_step_scores){.run = run_index, .start = run->position + 1, .samples = {values, 0}};
    for (uint32_t i = 0; i < run->count && run->position + i + 1 < run->tokens_count; i++) {
        c->score_wants[c->score_wants_count++] = (kvf_backend_score){.row = first_row + i,
            .vocab_used = c->o.vocab_used,
            .token = run->tokens[run->position + i + 1],
            .top = run->score - 1,
            .out = &values[i]};
        out->count++;
    }
    out->samples.len_bytes = sizeof *values * out->count;
}

static void lay_out(compute *c) {
    c->score_wants_count = 0;
    uint32_t row = 0;
    for (uint32_t i = 0; i < c->step.runs_count; i++) {
        const kvf_step_run *r = &c->step.runs[i];
        uint32_t rows = rows_of(r);
        c->runs[i] = (kvf_engine_run){.tokens = r->tokens + r->position,
            .count = r->count,
            .position = r->position,
            .blocks = r->blocks,
            .logit_rows = rows};
        if (r->score) want_scores(c, i, row);
        if (r->samples) want_samples(c, i, row + rows - 1);
        row += rows;
    }
}

static void take_samples(compute *c) {
    for (uint32_t i = 0; i < c->result.samples_count; i++) {
        const kvf_sample_input *in = &c->sample_wants[i].input;
        kvf_sample *value = &c->sample_values[i];
        bool want = in->sampling->want_logprobs || in->sampling->top_logprobs;
        c->samples[i].token = value->chosen.token;
        c->samples[i].end = end_of(in, value->chosen.token);
        c->samples[i].sample = (kvf_span){value, want ? sizeof *value : 0};
    }
}

static void run_step(compute *c) {
    const kvf_step *step = &c->step;
    kvf_backend *b = c->o.backend;
    kvf_time_ns begin = kvf_os_now_ns();
    c->result = (kvf_step_result){.samples = c->samples, .scores = c->scores};
    for (uint32_t i = 0; i < step->copies_count; i++)
        b->ops->copy_block(b, step->copies[i].to, step->copies[i].from, step->copies[i].tokens);
    lay_out(c);
    kvf_backend_step bs = {.runs = c->runs,
        .runs_count = step->runs_count,
        .samples = c->sample_wants,
        .samples_count = c->result.samples_count,
        .scores = c->score_wants,
        .scores_count = c->score_wants_count,
        .on_layer = on_layer,
        .self = c};
    if (step->runs_count) c->result.status = b->ops->run_step(b, &bs);
    if (c->result.status == KVF_OK)
        take_samples(c);
    else
        c->result.samples_count = c->result.scores_count = 0;
    c->result.busy_ns = kvf_os_now_ns() - begin;
}

/* What tests do to a step; nothing without hooks. */
static void apply_hooks(const compute *c) {
    const hooks *h = &c->o.hooks;
    hooks_hang(h->hang_engine);
    if (h->step_ms) usleep((useconds_t)(h->step_ms * 1000));
    for (uint32_t i = 0; h->poisoned && i < c->step.runs_count; i++) {
        const kvf_step_run *r = &c->step.runs[i];
        uint32_t left = r->prompt_count > r->position ? r->prompt_count - r->position : 0;
        if (hooks_poisonous(h, r->tokens + r->position, KVF_MIN(r->count, left))) abort();
    }
}

static void *engine_thread(void *self) {
    compute *c = self;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->state != RUNNING && c->state != STOPPING) pthread_cond_wait(&c->changed, &c->lock);
        if (c->state == STOPPING) break;
        pthread_mutex_unlock(&c->lock);
        apply_hooks(c);
        run_step(c);
        pthread_mutex_lock(&c->lock);
        atomic_store(&c->moved_ns, KVF_TIME_NEVER);
        if (c->state == RUNNING) c->state = DONE;
        c->o.wake(c->o.self);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

kvf_status compute_create(const compute_options *options, compute **out) {
    compute *c = calloc(1, sizeof *c);
    if (!c) return KVF_ERR_NO_MEMORY;
    c->o = *options;
    atomic_init(&c->moved_ns, KVF_TIME_NEVER);
    uint32_t n = options->samples_max;
    c->samples = calloc(n, sizeof *c->samples);
    c->sample_values = calloc(n, sizeof *c->sample_values);
    c->scores = calloc(n, sizeof *c->scores);
    c->score_values = calloc(options->rows_max, sizeof *c->score_values);
    c->runs = calloc(n, sizeof *c->runs);
    c->sample_wants = calloc(n, sizeof *c->sample_wants);
    c->score_wants = calloc(options->rows_max, sizeof *c->score_wants);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    bool ok =
        c->samples && c->sample_values && c->scores && c->score_values && c->runs && c->sample_wants && c->score_wants;
    if (ok && pthread_create(&c->thread, NULL, engine_thread, c) == 0) {
        *out = c;
        return KVF_OK;
    }
    c->thread = 0;
    compute_destroy(c);
    return KVF_ERR_NO_MEMORY;
}

void compute_destroy(compute *c) {
    if (!c) return;
    if (c->thread) {
        pthread_mutex_lock(&c->lock);
        c->state = STOPPING;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->samples);
    free(c->sample_values);
    free(c->scores);
    free(c->score_values);
    free(c->runs);
    free(c->sample_wants);
    free(c->score_wants);
    free(c);
}

void compute_start(compute *c, const kvf_step *step) {
    atomic_store(&c->layers_done, 0);
    atomic_store(&c->moved_ns, kvf_os_now_ns());
    pthread_mutex_lock(&c->lock);
    KVF_ASSERT(c->state == IDLE);
    c->step = *step;
    c->state = RUNNING;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

uint32_t compute_layers_done(compute *c) { return atomic_load_explicit(&c->layers_done, memory_order_acquire); }

kvf_time_ns compute_stalled_ns(compute *c, kvf_time_ns now) {
    kvf_time_ns moved = atomic_load(&c->moved_ns);
    return moved < now ? now - moved : 0;
}

bool compute_finished(compute *c, kvf_step_result *result) {
    pthread_mutex_lock(&c->lock);
    bool done = c->state == DONE;
    if (done) {
        c->state = IDLE;
        *result = c->result;
    }
    pthread_mutex_unlock(&c->lock);
    return done;
}
