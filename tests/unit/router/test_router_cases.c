/* Field cases of a router over time: prefill nodes with queues and a speed, driven through the whole core. What a node
 * does with a prompt takes virtual time by its uncached tokens; nothing else takes any. */
#include "bench.h"
#include "kvf/rng.h"
#include <string.h>

enum { D = 0, PREFILLS = 3, NODES = PREFILLS + 1, JOBS = 256, PREFIX = 1000, CACHED = 992, HOT = 1300 };
#define TOKEN_NS (MS / 10)

typedef struct {
    kvf_work w;
    uint32_t tokens, cost;
    bool hot;
} job;

typedef struct {
    bench b;
    uint32_t seen; /* actions answered */
    job queue[NODES][JOBS]; /* the first is being computed until done_ns */
    uint32_t count[NODES];
    kvf_time_ns done_ns[NODES];
    bool up[NODES], has_prefix[NODES];
    uint64_t events_next[NODES];
    uint32_t placed[NODES], hits, finished, unique, last;
    kvf_time_ns status_ns;
    kvf_hash128 names[CACHED / KVF_KV_BLOCK_TOKENS];
} cluster;

static uint32_t prefix_token(uint32_t i) { return 5000 + i; }

static void open_cluster(cluster *c) {
    kvf_router_config config;
    uint32_t tokens[PREFIX];
    bench_config(&config);
    config.context_max = 2048;
    memset(c, 0, sizeof *c);
    bench_open(&c->b, &config);
    bench_node(&c->b, D, KVF_ROLE_DECODE);
    for (uint32_t i = 0; i < NODES; i++) {
        if (i != D) bench_node(&c->b, i, KVF_ROLE_PREFILL);
        c->up[i] = true;
        c->events_next[i] = 1;
    }
    for (uint32_t i = 0; i < PREFIX; i++) tokens[i] = prefix_token(i);
    bench_names("f32", tokens, KVF_COUNT_OF(c->names), c->names);
    bench_forget(&c->b);
    c->status_ns = c->b.now;
}

static void learn_prefix(cluster *c, uint32_t node) {
    if (c->has_prefix[node]) return;
    c->has_prefix[node] = true;
    bench_blocks(&c->b, node, c->events_next[node], true, c->names, KVF_COUNT_OF(c->names));
    c->events_next[node] += KVF_COUNT_OF(c->names);
}

static void begin(cluster *c, uint32_t node) {
    job *j = &c->queue[node][0];
    bool hit = j->hot && c->has_prefix[node];
    c->hits += hit;
    j->cost = j->tokens - (hit ? CACHED : 0);
    c->done_ns[node] = c->b.now + j->cost * TOKEN_NS;
}

/* Nodes answer at once: the decode node grants, a prefill node queues. */
static void answer(cluster *c) {
    for (; c->seen < c->b.count; c->seen++) {
        const bench_action *k = &c->b.actions[c->seen];
        if (k->a.kind == KVF_ROUTER_FINISHED) c->finished++;
        assert_int_not_equal(k->a.kind, KVF_ROUTER_FAILED);
        if (k->a.kind != KVF_ROUTER_SEND) continue;
        if (k->m.kind == KVF_R_RESERVE) {
            assert_int_equal(k->a.node, D);
            kvf_rmsg m = k->m;
            bench_granted(&c->b, D, &m, 0);
        } else if (k->m.kind == KVF_R_PREFILL) {
            uint32_t node = k->a.node;
            assert_true(node != D && c->up[node] && c->count[node] < JOBS);
            c->queue[node][c->count[node]++] = (job){.w = k->m.prefill.work,
                .tokens = k->m.prefill.work.tokens_count,
                .hot = k->tokens[0] == prefix_token(0)};
            c->placed[node]++;
            c->last = node;
            if (c->count[node] == 1) begin(c, node);
        }
    }
    bench_forget(&c->b);
    c->seen = 0;
}

static void complete(cluster *c, uint32_t node) {
    job j = c->queue[node][0];
    c->count[node]--;
    memmove(&c->queue[node][0], &c->queue[node][1], c->count[node] * sizeof(job));
    bench_token(&c->b, node, &j.w, 0, j.tokens, 7, KVF_END_LENGTH);
    bench_shipped(&c->b, node, &j.w, KVF_OK);
    if (j.hot) learn_prefix(c, node);
    if (c->count[node]) begin(c, node);
    answer(c);
}

/* Tokens that a node has yet to compute. */
static uint64_t load_of(const cluster *c, uint32_t node) {
    uint64_t tokens = c->count[node] ? (c->done_ns[node] - c->b.now) / TOKEN_NS : 0;
    for (uint32_t k = 1; k < c->count[node]; k++) {
        const job *j = &c->queue[node][k];
        tokens += j->tokens - (j->hot && c->has_prefix[node] ? CACHED : 0);
    }
    return tokens;
}

static void tell_status(cluster *c) {
    for (uint32_t i = 0; i < NODES; i++) {
        if (!c->up[i]) continue;
        kvf_nmsg m = {.kind = KVF_N_STATUS};
        m.status = (kvf_node_stats){.state = KVF_NODE_READY,
            .role = i == D ? KVF_ROLE_DECODE : KVF_ROLE_PREFILL,
            .events_next = c->events_next[i]};
        m.status.waiting_tokens = load_of(c, i);
        bench_say(&c->b, i, &m);
    }
    answer(c);
}

static void run_until(cluster *c, kvf_time_ns until) {
    for (;;) {
        kvf_time_ns next = KVF_MIN(c->status_ns, kvf_router_deadline(c->b.r));
        uint32_t node = NODES;
        for (uint32_t i = 0; i < NODES; i++)
            if (c->count[i] && c->done_ns[i] <= next) {
                next = c->done_ns[i];
                node = i;
            }
        if (next > until) break;
        bench_at(&c->b, KVF_MAX(next, c->b.now));
        answer(c);
        if (node != NODES) {
            complete(c, node);
        } else if (next == c->status_ns) {
            c->status_ns += 200 * MS;
            tell_status(c);
        }
    }
    bench_at(&c->b, until);
    answer(c);
}

static void submit(cluster *c, bool hot, uint32_t count) {
    static uint32_t tokens[2048];
    for (uint32_t i = 0; i < count; i++) tokens[i] = hot && i < PREFIX ? prefix_token(i) : 10000 + c->unique + i;
    c->unique += 7;
    kvf_router_request in = bench_request(1, 1, KVF_ROUTER_ALWAYS);
    in.tokens = tokens;
    in.tokens_count = count;
    kvf_request_id id;
    kvf_refusal why;
    assert_int_equal(bench_try(&c->b, in, &id, &why), KVF_OK);
    answer(c);
}

static kvf_time_ns run_to_end(cluster *c, uint32_t total) {
    while (c->finished < total) {
        kvf_time_ns next = KVF_TIME_NEVER;
        for (uint32_t i = 0; i < NODES; i++)
            if (c->count[i]) next = KVF_MIN(next, c->done_ns[i]);
        if (next == KVF_TIME_NEVER) next = kvf_router_deadline(c->b.r);
        assert_true(next != KVF_TIME_NEVER);
        run_until(c, next);
    }
    return c->b.now;
}

/* ---- SC-05 ---- */

static void nobody_idles_beside_a_queue(const cluster *c) {
    uint32_t longest = 0, shortest = UINT32_MAX;
    for (uint32_t i = D + 1; i < NODES; i++) {
        longest = KVF_MAX(longest, c->count[i]);
        shortest = KVF_MIN(shortest, c->count[i]);
    }
    assert_true(shortest > 0 || longest <= 3); /* one is being computed, two wait */
}

static kvf_time_ns round_robin(uint32_t requests, kvf_time_ns gap, bool warm) {
    kvf_time_ns free_at[PREFILLS] = {0}, end = 0;
    bool has[PREFILLS] = {warm};
    for (uint32_t i = 0; i < requests; i++) {
        uint32_t node = i % PREFILLS;
        free_at[node] = KVF_MAX(free_at[node], i * gap) + (has[node] ? HOT - CACHED : HOT) * TOKEN_NS;
        has[node] = true;
        end = KVF_MAX(end, free_at[node]);
    }
    return end;
}

/* 90 requests with one prefix of 1,000 tokens and 300 of their own, at twice the rate of one worker that has the
 * prefix. Looked at after each arrival: work that a node has been given is not moved. */
static void sc05_hot_prefix_does_not_pin_its_node(void **state) {
    (void)state;
    enum { REQUESTS = 90 };
    const kvf_time_ns gap = (HOT - CACHED) * TOKEN_NS / 2;
    static cluster c;
    for (int warm = 0; warm < 2; warm++) {
        open_cluster(&c);
        if (warm) learn_prefix(&c, 1);
        answer(&c);
        kvf_time_ns start = c.b.now;
        for (uint32_t i = 0; i < REQUESTS; i++) {
            run_until(&c, start + i * gap);
            submit(&c, true, HOT);
            if (warm && i == 0) assert_int_equal(c.last, 1);
            nobody_idles_beside_a_queue(&c);
        }
        kvf_time_ns took = run_to_end(&c, REQUESTS) - start;
        for (uint32_t i = D + 1; i < NODES; i++) assert_true(c.placed[i] > 0 && c.placed[i] * 100 <= REQUESTS * 60);
        assert_true(c.hits * 2 >= REQUESTS);
        assert_true(took * 10 <= round_robin(REQUESTS, gap, warm) * 12);
        print_message("%s: %u %u %u, %u hits, %llu ms (round robin %llu)\n", warm ? "warm" : "cold", c.placed[1],
            c.placed[2], c.placed[3], c.hits, (unsigned long long)(took / MS),
            (unsigned long long)(round_robin(REQUESTS, gap, warm) / MS));
        bench_close(&c.b);
    }
}

static void sc05_misses_go_to_the_least_loaded(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c);
    learn_prefix(&c, 1);
    answer(&c);
    submit(&c, true, HOT); /* the node with the prefix is at work */
    assert_int_equal(c.last, 1);
    submit(&c, false, 1900);
    uint32_t stuck = c.last;
    assert_int_not_equal(stuck, 1);
    kvf_time_ns start = c.b.now;
    for (uint32_t i = 0; i < 20; i++) {
        run_until(&c, start + (1 + i) * 9 * MS); /* the long one takes 190 ms, these 20 each */
        uint64_t least = UINT64_MAX, load[NODES];
        for (uint32_t n = D + 1; n < NODES; n++) {
            load[n] = 64ull * c.count[n]; /* as the router weighs them: whole prompts, and each request */
            for (uint32_t k = 0; k < c.count[n]; k++)
                load[n] += c.queue[n][k].tokens - (c.queue[n][k].hot ? CACHED : 0);
            least = KVF_MIN(least, load[n]);
        }
        submit(&c, false, 200);
        assert_int_equal(load[c.last], least);
        assert_int_not_equal(c.last, stuck);
    }
    run_to_end(&c, 22);
    bench_close(&c.b);
}

/* ---- SC-06 ---- */

static void lose(cluster *c, uint32_t node) {
    c->up[node] = c->has_prefix[node] = false;
    c->count[node] = 0;
    c->events_next[node] = 1;
    bench_down(&c->b, node);
    kvf_router_on_node_gone(c->b.r, c->b.now, node);
    bench_drain(&c->b);
    answer(c);
}

/* Eight parts in ten of what three nodes can do, for eight seconds; one is away, empty when it is back. */
static void sc06_an_empty_worker_does_not_draw_all_new_work(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c);
    for (uint32_t i = D + 1; i < NODES; i++) learn_prefix(&c, i);
    answer(&c);
    kvf_rng rng = {.seed = 6};
    const kvf_time_ns gap = 24 * MS, start = c.b.now, down = start + 2000 * MS, up = start + 3000 * MS;
    uint32_t total = 0, before[NODES] = {0}, since = 0;
    bool was_lost = false, is_back = false;
    for (kvf_time_ns t = start; t < up + 5000 * MS; t += gap) {
        run_until(&c, t);
        if (!was_lost && t >= down) {
            lose(&c, 1);
            was_lost = true;
        }
        if (!is_back && t >= up) {
            c.up[1] = is_back = true;
            bench_up(&c.b, 1);
            bench_welcome(&c.b, 1, "n1", KVF_ROLE_PREFILL, 555, "f32");
            answer(&c);
            kvf_router_node view;
            assert_true(kvf_router_node_at(c.b.r, c.b.now, 1, &view));
            assert_int_equal(view.directory_blocks, 0); /* what the old process had is forgotten */
            assert_int_equal(bench_counters(&c.b).directory_entries, KVF_COUNT_OF(c.names)); /* of the others */
            memcpy(before, c.placed, sizeof before);
        }
        bool hot = kvf_rng_below(&rng, 10) < 6;
        submit(&c, hot, hot ? HOT : PREFIX);
        total++;
    }
    for (uint32_t i = D + 1; i < NODES; i++) since += c.placed[i] - before[i];
    uint32_t share = c.placed[1] - before[1];
    print_message("%u of %u in its first 5 s\n", share, since);
    assert_true(share * PREFILLS * 2 <= since * 3);
    assert_true(share * 10 >= since); /* and it is no outcast either */
    run_to_end(&c, total);
    bench_close(&c.b);
}

typedef struct {
    bool has[64];
    kvf_hash128 names[64];
    uint64_t next;
} cache;

static void say_snapshot(bench *b, const cache *k) {
    kvf_hash128 held[64];
    uint32_t count = 0;
    for (uint32_t i = 0; i < 64; i++)
        if (k->has[i]) held[count++] = k->names[i];
    for (uint32_t part = 0; part < 2; part++) {
        kvf_nmsg m = {.kind = KVF_N_SNAPSHOT};
        m.snapshot.events_next = k->next;
        m.snapshot.names = held + (part ? count / 2 : 0);
        m.snapshot.count = part ? count - count / 2 : count / 2;
        m.snapshot.first = part == 0;
        m.snapshot.last = part == 1;
        bench_say(b, 0, &m);
    }
}

/* Nothing is missing in the router's directory, and nothing is there that the node has not. */
static void expect_exact(bench *b, const cache *k) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < 64; i++) count += k->has[i];
    assert_int_equal(bench_counters(b).directory_entries, count);
    bench_forget(b);
    assert_int_equal(kvf_router_audit(b->r, b->now, 0, 9), KVF_OK);
    bench_drain(b);
    assert_int_equal(bench_count_sent(b, 0, KVF_R_SNAPSHOT), 1);
    say_snapshot(b, k);
    kvf_nmsg report = {.kind = KVF_N_AUDIT};
    report.audit.query = 9;
    report.audit.clean = true;
    bench_say(b, 0, &report);
    const bench_action *a = bench_find(b, KVF_ROUTER_ADMIN_ANSWER, 0);
    assert_non_null(a);
    assert_true(a->a.answer.directory_compared);
    assert_int_equal(a->a.answer.directory_missing, 0);
    assert_int_equal(a->a.answer.directory_extra, 0);
}

static void say_status(bench *b, const cache *k) {
    kvf_nmsg m = {.kind = KVF_N_STATUS};
    m.status = (kvf_node_stats){.state = KVF_NODE_READY, .role = KVF_ROLE_DECODE, .events_next = k->next};
    bench_say(b, 0, &m);
}

static void some_names(cache *k) {
    uint32_t tokens[64 * KVF_KV_BLOCK_TOKENS];
    for (uint32_t i = 0; i < KVF_COUNT_OF(tokens); i++) tokens[i] = 1000 + i;
    bench_names("f32", tokens, 64, k->names);
}

static void sc06_dropped_events_are_resynced_exactly(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        kvf_router_config c;
        bench b;
        cache k = {.next = 1};
        bench_config(&c);
        bench_open(&b, &c);
        bench_node(&b, 0, KVF_ROLE_DECODE);
        some_names(&k);
        kvf_rng rng = {.seed = seed};
        uint32_t dropped = 0, due = 0; /* a snapshot is under way for some events */
        for (uint32_t i = 0; i < 1000; i++) {
            uint32_t n = (uint32_t)kvf_rng_below(&rng, 64);
            k.has[n] = !k.has[n];
            uint64_t number = k.next++;
            bool drop = kvf_rng_below(&rng, 100) == 0;
            if (i == 999) drop = seed % 2; /* of this one only a report can tell */
            bench_forget(&b);
            if (drop)
                dropped++;
            else
                bench_blocks(&b, 0, number, k.has[n], &k.names[n], 1);
            if (bench_count_sent(&b, 0, KVF_R_SNAPSHOT)) due = 1 + (uint32_t)kvf_rng_below(&rng, 5);
            if (due && --due == 0) say_snapshot(&b, &k);
        }
        if (due) say_snapshot(&b, &k);
        bench_forget(&b);
        for (uint32_t i = 0; i < 2; i++) say_status(&b, &k);
        if (bench_count_sent(&b, 0, KVF_R_SNAPSHOT)) say_snapshot(&b, &k);
        assert_true(dropped > 1);
        expect_exact(&b, &k);
        bench_close(&b);
    }
}

static void sc06_a_restarted_router_serves_at_once_and_is_exact_after_snapshots(void **state) {
    (void)state;
    kvf_router_config c;
    bench b;
    cache k = {.next = 500};
    bench_config(&c);
    bench_open(&b, &c);
    some_names(&k);
    for (uint32_t i = 0; i < 40; i++) k.has[i] = i < 8 || i % 3 == 0;
    b.events_next = k.next;
    bench_node(&b, 0, KVF_ROLE_DECODE);
    b.events_next = 1;
    bench_node(&b, 1, KVF_ROLE_DECODE);
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_SNAPSHOT), 1);
    assert_int_equal(bench_count_sent(&b, 1, KVF_R_SNAPSHOT), 0); /* a fresh node has nothing to tell */
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE); /* before the directory is there */
    bench_local(&b, reserve.a.node, &reserve.m);
    k.has[60] = true;
    bench_blocks(&b, 0, k.next++, true, &k.names[60], 1); /* the snapshot will hold it */
    say_snapshot(&b, &k);
    k.has[3] = false;
    bench_blocks(&b, 0, k.next++, false, &k.names[3], 1);
    k.has[3] = true;
    bench_blocks(&b, 0, k.next++, true, &k.names[3], 1);
    expect_exact(&b, &k);
    bench_forget(&b);
    bench_submit(&b, 140, 5, KVF_ROUTER_NEVER);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, 0); /* where 128 tokens are */
    bench_close(&b);
}

/* ---- what a dead peer leaves behind (PD-01) ---- */

static void two_and_two(bench *b, uint32_t alive_d, uint32_t alive_p, bench_action *prefill) {
    kvf_router_config c;
    bench_config(&c);
    c.strict = true;
    c.ready_grace_ns = 10000 * MS; /* nobody is spared the word by the wait for another node */
    bench_open(b, &c);
    bench_node(b, 0, KVF_ROLE_DECODE);
    bench_node(b, 1, KVF_ROLE_PREFILL);
    bench_submit(b, 40, 20, KVF_ROUTER_ALWAYS);
    bench_action reserve = *bench_one(b, KVF_R_RESERVE);
    bench_granted(b, 0, &reserve.m, 0);
    *prefill = *bench_one(b, KVF_R_PREFILL);
    if (alive_d) bench_node(b, 2, KVF_ROLE_DECODE);
    if (alive_p) bench_node(b, 3, KVF_ROLE_PREFILL);
    bench_forget(b);
}

static void dies(bench *b, uint32_t node) {
    bench_down(b, node);
    kvf_router_on_node_gone(b->r, b->now, node);
    bench_drain(b);
}

/* The prefill node of a dead decode node holds nothing on: it is told at once. */
static void pd01_decode_dies_prefill_is_told(void **state) {
    (void)state;
    for (uint32_t other = 0; other < 2; other++) {
        bench b;
        bench_action prefill;
        two_and_two(&b, other, 0, &prefill);
        dies(&b, 0);
        assert_int_equal(bench_count_sent(&b, 1, KVF_R_CANCEL), 1);
        const kvf_rmsg *m = &bench_sent(&b, 1, KVF_R_CANCEL, 0)->m;
        assert_true(kvf_request_id_equal(m->cancel.request, prefill.m.prefill.work.request));
        assert_true(m->cancel.attempt == 0 || m->cancel.attempt == prefill.m.prefill.work.attempt);
        bench_close(&b);
    }
}

/* A decode node whose prefill node died is told at once that the old attempt is over, by the next one, whether there is
 * another prefill node or not. */
static void pd01_prefill_dies_decode_is_told(void **state) {
    (void)state;
    for (uint32_t other = 0; other < 2; other++) {
        bench b;
        bench_action prefill;
        two_and_two(&b, 0, other, &prefill);
        dies(&b, 1);
        const bench_action *again = bench_one(&b, KVF_R_RESERVE); /* at once */
        assert_int_equal(again->a.node, 0);
        assert_int_equal(again->m.reserve.attempt, 2);
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sc05_hot_prefix_does_not_pin_its_node),
        cmocka_unit_test(sc05_misses_go_to_the_least_loaded),
        cmocka_unit_test(sc06_an_empty_worker_does_not_draw_all_new_work),
        cmocka_unit_test(sc06_dropped_events_are_resynced_exactly),
        cmocka_unit_test(sc06_a_restarted_router_serves_at_once_and_is_exact_after_snapshots),
        cmocka_unit_test(pd01_decode_dies_prefill_is_told), cmocka_unit_test(pd01_prefill_dies_decode_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
