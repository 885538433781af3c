#include "bench_run.h"
#include "kvf/os.h"
#include "kvf/proto.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

typedef struct run run;
typedef struct {
    run *r;
    kvf_rpc_session *session; /* under lock: one reference while it runs */
    bool closed; /* under lock */
    bool finished, counted_lost; /* loop */
} stream;

struct run {
    const kvf_bench_run_options *o;
    kvf_bench_run_result *out; /* loop, until all is over */
    kvf_load_answer *answers; /* [plan.count]; due, sent, input: before its session opens; the rest: loop */
    stream *streams;
    kvf_time_ns start_ns, shown_ns;
    pthread_mutex_t lock;
    int over_fd;
    uint32_t lost_max; /* more than these: cannot pass any more */
    atomic_uint over, failed, lost;
    atomic_ullong tokens;
};

/* ---- on the loop ---- */

static void note_lost(stream *s, const kvf_load_answer *a, kvf_time_ns now) {
    run *r = s->r;
    if (s->counted_lost || (uint32_t)(s - r->streams) < r->o->warmup) return;
    if (!kvf_load_lost(&r->o->limits, a, now)) return;
    s->counted_lost = true;
    atomic_fetch_add(&r->lost, 1);
}

static void take_tokens(stream *s, kvf_load_answer *a, size_t count) {
    run *r = s->r;
    kvf_time_ns now = kvf_os_now_ns();
    bool counts = (uint32_t)(s - r->streams) >= r->o->warmup;
    if (a->first_ns == 0)
        a->first_ns = now;
    else if (counts)
        kvf_hist_add(&r->out->tally.itl, now - a->last_ns);
    a->last_ns = now;
    a->tokens += (uint32_t)count;
    kvf_series_add(&r->out->tally.tokens, now - r->start_ns, (double)count);
    atomic_fetch_add(&r->tokens, count);
    note_lost(s, a, now);
}

static void on_message(kvf_rpc_session *session, void *user, const ProtobufCMessage *message) {
    stream *s = user;
    kvf_load_answer *a = &s->r->answers[s - s->r->streams];
    const Kvferry__V1__GenerateResponse *m = (const void *)message;
    if (m->event_case == KVFERRY__V1__GENERATE_RESPONSE__EVENT_ADMITTED) a->cached = m->admitted->cached_tokens;
    if (m->event_case == KVFERRY__V1__GENERATE_RESPONSE__EVENT_CHUNK && m->chunk->n_token_ids)
        take_tokens(s, a, m->chunk->n_token_ids);
    if (m->event_case == KVFERRY__V1__GENERATE_RESPONSE__EVENT_FINISHED) s->finished = true;
}

static void count_error(run *r, const kvf_rpc_result *result) { /* under lock */
    uint32_t code = (uint32_t)result->code < KVF_BENCH_CODES ? (uint32_t)result->code : KVF_RPC_UNKNOWN;
    r->out->errors[code]++;
    atomic_fetch_add(&r->failed, 1);
    if (r->out->first_error[0] == 0)
        snprintf(r->out->first_error, sizeof r->out->first_error, "%s: %.120s", kvf_rpc_code_name(result->code),
            result->code == KVF_RPC_OK ? "the stream ended without a token" : result->message);
}

static void end_request(stream *s, const kvf_rpc_result *result) {
    run *r = s->r;
    kvf_load_answer *a = &r->answers[s - r->streams];
    a->end_ns = kvf_os_now_ns();
    a->ok = result->code == KVF_RPC_OK && s->finished && a->tokens > 0;
    a->over = true;
    note_lost(s, a, a->end_ns);
    pthread_mutex_lock(&r->lock); /* the main thread takes it before the run goes away */
    if (!a->ok && (uint32_t)(s - r->streams) >= r->o->warmup) count_error(r, result);
    atomic_fetch_add(&r->over, 1); /* from here on the main thread may read what is said of the request */
    uint64_t one = 1;
    ssize_t written = write(r->over_fd, &one, sizeof one);
    (void)written; /* full: it is readable already */
    pthread_mutex_unlock(&r->lock);
}

static void on_closed(kvf_rpc_session *session, void *user, const kvf_rpc_result *result) {
    stream *s = user;
    pthread_mutex_lock(&s->r->lock);
    kvf_rpc_session *ours = s->session;
    s->session = NULL;
    s->closed = true;
    pthread_mutex_unlock(&s->r->lock);
    if (ours) kvf_rpc_session_unref(ours);
    end_request(s, result);
}

/* ---- on the main thread ---- */

typedef struct {
    Kvferry__V1__GenerateRequest request;
    Kvferry__V1__SamplingParams sampling;
    Kvferry__V1__StopParams stop;
    Kvferry__V1__OutputOptions output;
    Kvferry__V1__TokenIds ids;
    char salt[24];
} message;

/* The same for all requests but prompt and length. */
static void message_init(message *m, const kvf_bench_run_options *o, uint32_t *ids) {
    kvferry__v1__generate_request__init(&m->request);
    kvferry__v1__sampling_params__init(&m->sampling);
    kvferry__v1__stop_params__init(&m->stop);
    kvferry__v1__output_options__init(&m->output);
    kvferry__v1__token_ids__init(&m->ids);
    snprintf(m->salt, sizeof m->salt, "bench-%016llx", (unsigned long long)o->salt);
    m->request.model = kvf_proto_text(o->model);
    m->request.cache_salt = kvf_proto_text(m->salt);
    m->request.disaggregate = o->disaggregate;
    m->request.sampling = &m->sampling;
    m->request.stop = &m->stop;
    m->request.output = &m->output;
    m->sampling._temperature_case = KVFERRY__V1__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    m->stop._max_tokens_case = KVFERRY__V1__STOP_PARAMS___MAX_TOKENS_MAX_TOKENS;
    m->stop.ignore_eos = true; /* the workload says how long outputs are, not the model */
    m->output.token_ids = true;
    m->request.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
    m->request.token_ids = &m->ids;
    m->ids.ids = ids;
}

static void send_request(run *r, uint32_t i, message *m) {
    static const kvf_rpc_session_ops ops = {.on_message = on_message, .on_closed = on_closed};
    kvf_load_answer *a = &r->answers[i];
    stream *s = &r->streams[i];
    kvf_rpc_session *session = NULL;
    kvf_load_plan_prompt(r->o->plan, i, m->ids.ids);
    m->ids.n_ids = a->input;
    m->stop.max_tokens = a->output_asked;
    a->sent_ns = kvf_os_now_ns();
    kvf_status status = kvf_rpc_session_open(kvf_client_channel(r->o->client), &kvferry__v1__inference__descriptor,
        "Generate", r->o->timeout_ms, &ops, s, &session);
    if (status != KVF_OK) { /* no callback will come */
        kvf_rpc_result none = {.code = kvf_rpc_code_of(status)};
        snprintf(none.message, sizeof none.message, "%s", kvf_status_text(status));
        end_request(s, &none);
        return;
    }
    pthread_mutex_lock(&r->lock);
    if (!s->closed) s->session = kvf_rpc_session_ref(session);
    pthread_mutex_unlock(&r->lock);
    /* What cannot be pushed has been closed meanwhile, and on_closed says why. */
    if (kvf_rpc_session_push(session, &m->request.base) == KVF_OK) kvf_rpc_session_half_close(session);
    kvf_rpc_session_unref(session);
}

static void show_progress(run *r, uint32_t sent, kvf_time_ns now, bool last) {
    if (!r->o->progress || (!last && now < r->shown_ns + 250 * KVF_NS_PER_MS)) return;
    uint32_t over = atomic_load(&r->over);
    double elapsed_s = (double)(now > r->start_ns ? now - r->start_ns : 0) / (double)KVF_NS_PER_S;
    r->shown_ns = now;
    fprintf(stderr, "\r\033[K%s%.1f s: sent %u/%u, running %u, done %u, failed %u, %.0f tokens/s%s", r->o->progress,
        elapsed_s, sent, r->o->plan->count, sent - over, over, atomic_load(&r->failed),
        elapsed_s > 0 ? (double)atomic_load(&r->tokens) / elapsed_s : 0, last ? "\r\033[K" : "");
    fflush(stderr);
}

/* Sleeps to `until`, to a Ctrl-C, or (with over_fd) to the end of a request. */
static void wait_a_while(run *r, kvf_time_ns until, bool for_over) {
    /* A Ctrl-C that was seen stays readable: it is not looked at again. */
    struct pollfd fds[2] = {
        {r->out->interrupted ? -1 : kvf_client_interrupt_fd(r->o->client), POLLIN, 0}, {r->over_fd, POLLIN, 0}};
    kvf_time_ns now = kvf_os_now_ns();
    if (r->o->progress) until = KVF_MIN(until, now + 250 * KVF_NS_PER_MS);
    kvf_time_ns left = until > now ? until - now : 0;
    struct timespec t = {(time_t)(left / KVF_NS_PER_S), (long)(left % KVF_NS_PER_S)};
    uint64_t count;
    if (ppoll(fds, for_over ? 2 : 1, &t, NULL) > 0 && for_over && (fds[1].revents & POLLIN) &&
        read(r->over_fd, &count, sizeof count) < 0)
        return; /* somebody else cannot have read it; and if so, the counter is looked at anyway */
}

static bool ended_early(run *r) {
    if (kvf_client_interrupted(r->o->client)) r->out->interrupted = true;
    if (atomic_load(&r->lost) > r->lost_max) r->out->cut_short = true;
    return r->out->interrupted || r->out->cut_short;
}

static void cancel_all(run *r, uint32_t sent) {
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < sent; i++)
        if (r->streams[i].session) kvf_rpc_session_cancel(r->streams[i].session);
    pthread_mutex_unlock(&r->lock);
}

/* How many were sent. */
static uint32_t send_all(run *r, message *m) {
    uint32_t sent = 0;
    while (sent < r->o->plan->count && !ended_early(r)) {
        kvf_time_ns now = kvf_os_now_ns();
        show_progress(r, sent, now, false);
        if (r->o->unloaded && atomic_load(&r->over) < sent) {
            wait_a_while(r, now + KVF_NS_PER_S, true);
            continue;
        }
        if (r->o->unloaded) r->answers[sent].due_ns = now;
        if (r->answers[sent].due_ns > now)
            wait_a_while(r, r->answers[sent].due_ns, r->o->stop_share > 0);
        else
            send_request(r, sent++, m);
    }
    return sent;
}

static void wait_for_all(run *r, uint32_t sent) {
    bool cancelled = false;
    while (atomic_load(&r->over) < sent) {
        if (!cancelled && ended_early(r)) {
            cancel_all(r, sent);
            cancelled = true;
        }
        show_progress(r, sent, kvf_os_now_ns(), false);
        wait_a_while(r, kvf_os_now_ns() + KVF_NS_PER_S, true);
    }
}

static void begin(run *r) {
    const kvf_load_plan *p = r->o->plan;
    uint32_t counted = p->count - r->o->warmup;
    r->lost_max = r->o->stop_share > 0 ? (uint32_t)((1 - r->o->stop_share) * counted + 1e-9) : UINT32_MAX;
    for (uint32_t i = 0; i < p->count; i++) {
        r->streams[i].r = r;
        r->answers[i].input = p->requests[i].input;
        r->answers[i].output_asked = p->requests[i].output;
    }
    kvf_series_begin(&r->out->tally.tokens, KVF_NS_PER_S / 4);
    kvf_series_begin(&r->out->tally.arrivals, KVF_NS_PER_S / 4);
    r->start_ns = kvf_os_now_ns() + 10 * KVF_NS_PER_MS;
    for (uint32_t i = 0; i < p->count; i++) r->answers[i].due_ns = r->start_ns + p->requests[i].at_ns;
}

static uint32_t longest_prompt(const kvf_load_plan *p) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < p->count; i++) most = KVF_MAX(most, p->requests[i].input);
    return most;
}

kvf_status kvf_bench_run(const kvf_bench_run_options *o, kvf_bench_run_result *out) {
    KVF_ASSERT(o->warmup < o->plan->count);
    message m;
    run r = {.o = o, .out = out, .over_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    uint32_t *ids = malloc((size_t)longest_prompt(o->plan) * sizeof *ids);
    r.answers = calloc(o->plan->count, sizeof *r.answers);
    r.streams = calloc(o->plan->count, sizeof *r.streams);
    kvf_status status = KVF_ERR_NO_MEMORY;
    if (!ids || !r.answers || !r.streams || r.over_fd < 0) goto undo_memory;
    pthread_mutex_init(&r.lock, NULL);
    *out = (kvf_bench_run_result){0};
    message_init(&m, o, ids);
    begin(&r);
    uint32_t sent = send_all(&r, &m);
    wait_for_all(&r, sent);
    pthread_mutex_lock(&r.lock);
    pthread_mutex_unlock(&r.lock);
    show_progress(&r, sent, kvf_os_now_ns(), true);
    uint32_t warmup = KVF_MIN(o->warmup, sent);
    kvf_load_tally_take(&out->tally, r.answers, sent, warmup, &o->limits, r.start_ns);
    pthread_mutex_destroy(&r.lock);
    status = KVF_OK;
undo_memory:
    if (r.over_fd >= 0) close(r.over_fd);
    free(r.streams);
    free(r.answers);
    free(ids);
    return status;
}
