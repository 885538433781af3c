/* load.c - open loop: request i is due at its own time whatever became of the others; a thread that is late takes the
 * next one at once, and the report counts it. Requests come in bursts, so that pools and queues are full at times. */
#include "kinds.h"
#include "soak.h"
#include <math.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 96, CHANNELS = 6, RETRY_S = 300 };

const char *const plan_names[PLANS] = {"read", "cancel", "disconnect", "deadline", "slow reader", "oversize"};

/* What a thread waits for, for the eyes of load_watch. */
typedef struct {
    atomic_ullong since_ns; /* of the last message, or of the call; 0: it does not wait */
    atomic_uint kind, router, said;
} waiting;

struct load {
    load_options o;
    kind *kinds;
    uint32_t oversize[OVERSIZE];
    tally t;
    e2e_cluster to[CHANNELS][ROUTERS];
    pthread_t threads[THREADS_MAX];
    waiting waits[THREADS_MAX];
    atomic_bool stop, hurries;
    atomic_uint next, numbers;
    atomic_ullong start_ns;
};

typedef struct {
    load *l;
    uint64_t random;
    const kind *k;
    plan plan;
    e2e_ask ask;
    uint32_t router, thread, vanish_after;
    e2e_answer got;
    bool vanished;
} job;

static void sleep_until(uint64_t at_ns) {
    uint64_t now = e2e_now_ns();
    if (at_ns <= now) return;
    struct timespec t = {
        .tv_sec = (time_t)((at_ns - now) / 1000000000u), .tv_nsec = (long)((at_ns - now) % 1000000000u)};
    nanosleep(&t, NULL);
}

static void raise_to(atomic_ullong *most, uint64_t value) {
    unsigned long long old = atomic_load(most);
    while (value > old && !atomic_compare_exchange_weak(most, &old, value)) continue;
}

/* ---- one call ---- */

static void on_message(job *j, uint32_t seen, uint64_t *last, kvf_rpc_reader *reader) {
    uint64_t now = e2e_now_ns();
    atomic_store(&j->l->t.last_progress_ns, now);
    if (j->plan != PLAN_SLOW) raise_to(&j->l->t.longest_silence_ns, now - *last);
    if (seen == j->ask.cancel_after) kvf_rpc_reader_cancel(reader);
    if (j->plan == PLAN_SLOW) sleep_until(now + e2e_random(&j->random) % 60 * 1000000u);
    if (j->vanish_after && seen == j->vanish_after) {
        j->vanished = true;
        proxy_cut(j->l->o.net, j->l->o.fragile_lane[j->router]); /* others that called this way vanish with it */
    }
    *last = e2e_now_ns();
    atomic_store(&j->l->waits[j->thread].since_ns, *last);
}

static void call(job *j, e2e_cluster *c) {
    j->got = (e2e_answer){0};
    kvf_rpc_reader *reader = e2e_open(c, &j->ask);
    ProtobufCMessage *message;
    uint32_t seen = 0;
    uint64_t last = e2e_now_ns();
    waiting *w = &j->l->waits[j->thread];
    atomic_store(&w->kind, (uint32_t)(j->k - j->l->kinds));
    atomic_store(&w->router, j->router);
    atomic_store(&w->said, 0);
    atomic_store(&w->since_ns, last);
    if (j->ask.cancel_at_once) kvf_rpc_reader_cancel(reader);
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        e2e_take(&j->got, message);
        kvf_rpc_message_free(message);
        on_message(j, ++seen, &last, reader);
    }
    atomic_store(&w->since_ns, 0);
    j->got.result = *kvf_rpc_reader_result(reader);
    kvf_rpc_reader_close(reader);
}

/* A connection of its own, through the lane that is cut. */
static void call_and_vanish(job *j) {
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", proxy_port(j->l->o.net, j->l->o.fragile_lane[j->router]));
    kvf_rpc_channel_opts o = {.address = address};
    e2e_cluster c = {.rt = j->l->to[0][0].rt};
    assert_int_equal(kvf_rpc_channel_create(c.rt, &o, &c.client), KVF_OK);
    call(j, &c);
    kvf_rpc_channel_destroy(c.client);
}

/* ---- what the end means ---- */

static void tell_fail(job *j, const char *what, const char *more) {
    const kvf_rpc_result *r = &j->got.result;
    journal_fail(j->l->o.journal,
        "request %s (kind %d, %s, router %u, mode %d, %llu attempts, %u choices ended): %s%s%s; %s %s %s",
        j->got.request_id, (int)(j->k - j->l->kinds), plan_names[j->plan], j->router, (int)j->ask.dis,
        (unsigned long long)j->got.attempts, j->got.finished, what, more[0] ? ": " : "", more,
        kvf_rpc_code_name(r->code), r->reason, r->message);
}

static void compare(job *j, bool whole) {
    verdict v;
    kind_compare(j->k, &j->got, whole, &v);
    atomic_fetch_add(&j->l->t.tokens_compared, v.compared);
    atomic_fetch_add(&j->l->t.tokens_different, v.different);
    if (v.text[0]) tell_fail(j, whole ? "differs" : "differs as far as it went", v.text);
}

static bool as_wished(const job *j) {
    kvf_rpc_code code = j->got.result.code;
    switch (j->plan) {
    case PLAN_CANCEL: return code == KVF_RPC_CANCELLED;
    case PLAN_DEADLINE: return code == KVF_RPC_DEADLINE_EXCEEDED;
    case PLAN_DISCONNECT: return code == KVF_RPC_UNAVAILABLE || code == KVF_RPC_CANCELLED;
    case PLAN_SLOW: return code == KVF_RPC_RESOURCE_EXHAUSTED && j->got.finished == 0 && j->got.admitted;
    default: return false;
    }
}

typedef enum { OVER, AGAIN_ELSEWHERE, AGAIN_LATER } next_step;

static next_step judge(job *j, uint64_t from_ns) {
    tally *t = &j->l->t;
    const kvf_rpc_result *r = &j->got.result;
    if (r->code == KVF_RPC_OK && j->plan != PLAN_OVERSIZE) {
        atomic_fetch_add(&t->answered[j->plan], 1);
        if (j->got.attempts > 1) atomic_fetch_add(&t->several_attempts, 1);
        if (j->got.attempts > 1) atomic_fetch_add(&t->attempts_more, j->got.attempts - 1);
        compare(j, true);
        return OVER;
    }
    if (j->plan == PLAN_OVERSIZE && r->code == KVF_RPC_INVALID_ARGUMENT && r->field[0] && !j->got.admitted) {
        atomic_fetch_add(&t->refused[j->plan], 1);
        return OVER;
    }
    compare(j, false);
    if (as_wished(j)) {
        atomic_fetch_add(&t->left[j->plan], 1);
        return OVER;
    }
    if (r->code == KVF_RPC_RESOURCE_EXHAUSTED && !j->got.admitted && r->retry_after_ms) {
        atomic_fetch_add(&t->queue_full, 1);
        return AGAIN_LATER;
    }
    if (r->code == KVF_RPC_UNAVAILABLE &&
        outage_excuses(j->l->o.outages[j->router], from_ns, e2e_now_ns(), j->got.admitted != 0)) {
        atomic_fetch_add(&t->router_lost, 1);
        return AGAIN_ELSEWHERE;
    }
    tell_fail(j, "failed", "");
    return OVER;
}

static void run(job *j, uint32_t thread) {
    load *l = j->l;
    j->thread = thread;
    uint64_t end = e2e_now_ns() + RETRY_S * 1000000000ull;
    atomic_fetch_add(&l->t.asked[j->plan], 1);
    for (;;) {
        uint64_t from = e2e_now_ns();
        if (j->plan == PLAN_DISCONNECT)
            call_and_vanish(j);
        else
            call(j, &l->to[thread % CHANNELS][j->router]);
        next_step step = judge(j, from);
        uint64_t wait_ms = step == AGAIN_LATER ? KVF_MIN(j->got.result.retry_after_ms, 2000u) : 50;
        bool given_up = step != OVER && e2e_now_ns() > end;
        if (given_up) tell_fail(j, "was sent away for too long", "");
        e2e_answer_free(&j->got);
        if (step == OVER || given_up) return;
        if (step == AGAIN_ELSEWHERE) j->router = 1 - j->router;
        sleep_until(e2e_now_ns() + wait_ms * 1000000u);
    }
}

/* ---- which request ---- */

static void make_job(job *j) {
    uint64_t *r = &j->random;
    uint64_t dice = e2e_random(r) % 100;
    j->k = &j->l->kinds[e2e_random(r) % KINDS];
    j->router = e2e_random(r) % ROUTERS;
    j->ask = j->k->ask;
    j->ask.dis = (Kvferry__V1__Disaggregate)(E2E_AUTO + e2e_random(r) % 3);
    j->vanish_after = 0;
    j->vanished = false;
    j->plan = dice < 70   ? PLAN_READ
              : dice < 80 ? PLAN_CANCEL
              : dice < 83 ? PLAN_DISCONNECT
              : dice < 90 ? PLAN_DEADLINE
              : dice < 96 ? PLAN_SLOW
                          : PLAN_OVERSIZE;
    switch (j->plan) {
    case PLAN_CANCEL:
        if (e2e_random(r) % 4 == 0)
            j->ask.cancel_at_once = true;
        else
            j->ask.cancel_after = 1 + (uint32_t)(e2e_random(r) % 12);
        break;
    case PLAN_DISCONNECT: j->vanish_after = 1 + (uint32_t)(e2e_random(r) % 10); break;
    case PLAN_DEADLINE: j->ask.deadline_ms = 1 + e2e_random(r) % 120; break;
    case PLAN_OVERSIZE:
        j->ask.text = NULL;
        j->ask.ids = j->l->oversize;
        j->ask.ids_count = OVERSIZE;
        break;
    default: break;
    }
}

/* Half of the requests come in the first second of every ten. */
static uint64_t due_of(const load *l, uint32_t ticket, double jitter) {
    double cycles = ((double)ticket + jitter) / (l->o.per_s * 10), whole = floor(cycles), part = cycles - whole;
    double second = part < 0.5 ? 2 * part : 1 + 18 * (part - 0.5);
    return (uint64_t)((whole * 10 + second) * 1e9);
}

/* True: the turn was over a while ago. */
static bool wait_for_turn(const load *l, uint32_t ticket, double jitter) {
    for (;;) {
        uint64_t due = atomic_load(&l->start_ns) + due_of(l, ticket, jitter), now = e2e_now_ns();
        if (atomic_load(&l->stop) || atomic_load(&l->hurries)) return false;
        if (now >= due) return now > due + 100000000u;
        sleep_until(KVF_MIN(due, now + 100000000u));
    }
}

static void *client(void *self) {
    load *l = self;
    uint32_t thread = atomic_fetch_add(&l->numbers, 1);
    while (!atomic_load(&l->stop)) {
        uint32_t ticket = atomic_fetch_add(&l->next, 1);
        job j = {.l = l, .random = l->o.seed * 1000003 + ticket};
        double jitter = (double)(e2e_random(&j.random) % 1000) / 1000;
        bool late = wait_for_turn(l, ticket, jitter);
        if (atomic_load(&l->stop)) break;
        if (late) atomic_fetch_add(&l->t.late, 1);
        make_job(&j);
        run(&j, thread);
    }
    return NULL;
}

/* ---- life ---- */

load *load_create(const load_options *o) {
    load *l = calloc(1, sizeof *l);
    assert_non_null(l);
    assert_true(o->threads <= THREADS_MAX);
    l->o = *o;
    l->kinds = kinds_create(o->seed);
    for (uint32_t i = 0; i < OVERSIZE; i++) l->oversize[i] = i % 256;
    return l;
}

static void connect_all(load *l) {
    kvf_rpc_runtime *rt = NULL;
    assert_int_equal(kvf_rpc_runtime_create(NULL, &rt), KVF_OK);
    for (size_t i = 0; i < CHANNELS; i++)
        for (size_t r = 0; r < ROUTERS; r++) {
            kvf_rpc_channel_opts o = {.address = l->o.address[r]};
            l->to[i][r].rt = rt;
            assert_int_equal(kvf_rpc_channel_create(rt, &o, &l->to[i][r].client), KVF_OK);
        }
}

void load_start(load *l) {
    connect_all(l);
    atomic_store(&l->start_ns, e2e_now_ns());
    atomic_store(&l->t.last_progress_ns, atomic_load(&l->start_ns));
    for (uint32_t i = 0; i < l->o.threads; i++) assert_int_equal(pthread_create(&l->threads[i], NULL, client, l), 0);
}

void load_hurry(load *l, bool on) {
    if (!on) atomic_store(&l->start_ns, e2e_now_ns() - due_of(l, atomic_load(&l->next), 0));
    atomic_store(&l->hurries, on);
}

void load_watch(load *l) {
    enum { TOO_LONG_S = 40 };
    for (uint32_t i = 0; i < l->o.threads; i++) {
        waiting *w = &l->waits[i];
        uint64_t since = atomic_load(&w->since_ns), now = e2e_now_ns();
        if (!since || now < since + TOO_LONG_S * 1000000000ull || atomic_exchange(&w->said, 1)) continue;
        journal_fail(l->o.journal, "a request of kind %u has heard nothing of router %u for %d s",
            atomic_load(&w->kind), atomic_load(&w->router), TOO_LONG_S);
    }
}

void load_stop(load *l) {
    atomic_store(&l->stop, true);
    for (uint32_t i = 0; i < l->o.threads; i++) pthread_join(l->threads[i], NULL);
}

bool load_check_all(load *l) {
    uint32_t before = l->o.journal->count;
    for (size_t i = 0; i < KINDS; i++)
        for (uint32_t r = 0; r < ROUTERS; r++) {
            job j = {.l = l, .k = &l->kinds[i], .plan = PLAN_READ, .ask = l->kinds[i].ask, .router = r};
            j.ask.dis = (Kvferry__V1__Disaggregate)(E2E_AUTO + (i + r) % 3);
            run(&j, 0);
        }
    return l->o.journal->count == before;
}

const tally *load_tally(const load *l) { return &l->t; }
uint32_t load_kinds(const load *l) { return KINDS; }

void load_destroy(load *l) {
    for (size_t i = 0; i < CHANNELS; i++)
        for (size_t r = 0; r < ROUTERS; r++) kvf_rpc_channel_destroy(l->to[i][r].client);
    kvf_rpc_runtime_destroy(l->to[0][0].rt);
    kinds_destroy(l->kinds);
    free(l);
}
