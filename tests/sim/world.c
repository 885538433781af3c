/* One run: the event loop, and what must be true when all is over. */
#include "sim.h"
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define EVENTS_MAX 1000000
#define END_AFTER_NS (60 * KVF_NS_PER_S) /* from healing to the end of the last request */
#define QUIET_NS (800 * SIM_MS) /* longer than every lease, and what may follow one */

/* ------------------------------------------------------------------ failing */

static char failure[1024];
static sigjmp_buf failed;
static const sim *running;

const char *sim_failure(void) { return failure; }

static void begin_failure(const sim *s, const char *text) {
    snprintf(failure, sizeof failure, "seed %" PRIu64 " at %" PRIu64 ".%03" PRIu64 " ms, event %" PRIu64 ": %s",
        s->plan->world.seed, s->now / SIM_MS, s->now / SIM_US % 1000, s->event_number, text);
}

void sim_fail(const sim *s, const char *fmt, ...) {
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    begin_failure(s, text);
    siglongjmp(failed, 1);
}

/* The cores' assertions end the run, not the program. */
KVF_NORETURN void __wrap_kvf_assert_failed(const char *expression, const char *file, int line);
void __wrap_kvf_assert_failed(const char *expression, const char *file, int line) {
    const char *slash = strrchr(file, '/');
    if (!running) {
        fprintf(stderr, "assertion failed: %s at %s:%d\n", expression, file, line);
        abort();
    }
    sim_fail(running, "assertion failed: %s at %s:%d", expression, slash ? slash + 1 : file, line);
}

static void on_signal(int number) {
    if (!running) _exit(1);
    begin_failure(running, number == SIGVTALRM ? "a core does not return" : "a core crashes");
    siglongjmp(failed, 1);
}

static void catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
    sigaction(SIGVTALRM, &a, NULL);
#ifndef __SANITIZE_ADDRESS__
    sigaction(SIGSEGV, &a, NULL);
    sigaction(SIGFPE, &a, NULL);
#endif
}

/* Names of blocks that collide: the pool has to compare what they stand for. */
kvf_hash128 __real_kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed);
kvf_hash128 __wrap_kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed);
kvf_hash128 __wrap_kvf_hash128_of(const void *data, size_t len_bytes, uint64_t seed) {
    kvf_hash128 h = __real_kvf_hash128_of(data, len_bytes, seed);
    return running && running->plan->world.weak_names ? (kvf_hash128){.lo = h.lo % 8 + 1} : h;
}

/* ------------------------------------------------------------------ small things */

void sim_trace(const sim *s, const char *fmt, ...) {
    va_list ap;
    printf("%7" PRIu64 " %6" PRIu64 ".%03" PRIu64 " ms  ", s->event_number, s->now / SIM_MS, s->now / SIM_US % 1000);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

void sim_note(sim *s, uint64_t what) { s->trace = kvf_rng_mix(s->trace ^ what ^ s->now); }

uint64_t sim_draw(const sim *s, uint32_t stream, uint64_t *drawn, uint64_t below) {
    kvf_rng r = {.seed = kvf_rng_at(s->plan->world.seed, 3, stream), .counter = (*drawn)++};
    return kvf_rng_below(&r, below);
}

static uint64_t run_clock(const process *p, kvf_time_ns t) {
    return p->offset_ns + t / 1000000 * p->drift_ppm + t % 1000000 * p->drift_ppm / 1000000 + 1;
}

kvf_time_ns sim_clock(const sim *s, uint32_t who) {
    const process *p = &s->process[who];
    return run_clock(p, p->stale_clock ? p->frozen_at : s->now);
}

kvf_time_ns sim_when(const sim *s, uint32_t who, kvf_time_ns local) {
    const process *p = &s->process[who];
    if (local <= run_clock(p, s->now)) return s->now;
    uint64_t span = local - p->offset_ns;
    kvf_time_ns t = span / p->drift_ppm * 1000000 + span % p->drift_ppm * 1000000 / p->drift_ppm;
    while (run_clock(p, t) < local) t += 100;
    return t;
}

/* ------------------------------------------------------------------ events */

/* true: it does not happen now (or never). */
static bool kept_back(sim *s, const event *e) {
    process *p = e->who == SIM_NOBODY ? NULL : &s->process[e->who];
    if (p && (!p->alive || p->incarnation != e->incarnation)) {
        free(e->payload);
        return true;
    }
    event_list *held = NULL;
    if (!e->arrived) {
        switch (e->kind) {
        case EV_TO_NODE:
        case EV_TO_ROUTER:
        case EV_NODE_SIDE_DOWN:
        case EV_ROUTER_SIDE_DOWN:
            if (session_blocked(s, &s->session[e->index])) held = &s->session[e->index].held;
            break;
        case EV_LINK_UP:
        case EV_LINK_DOWN:
        case EV_FRAME:
        case EV_PAGE:
            if (link_blocked(s, &s->link[e->index])) held = &s->link[e->index].held;
            break;
        default: break;
        }
    }
    if (!held && p && p->frozen) held = &p->held;
    if (!held) return false;
    sim_hold(held, e);
    return true;
}

static void on_start(sim *s, uint32_t who) {
    if (s->process[who].alive) return;
    if (who >= SIM_NODES) {
        router_start(s, who - SIM_NODES);
    } else if (s->place_node[place_of(who)] == who && !s->gone[place_of(who)]) {
        node_start(s, who);
        touch(s, who);
    }
    note_service(s);
}

static void on_timer(sim *s, uint32_t who) {
    touch(s, who);
    if (who >= SIM_NODES)
        kvf_router_on_time(s->router[who - SIM_NODES].core, sim_clock(s, who));
    else
        kvf_node_on_time(s->node[who].core, sim_clock(s, who));
}

static void handle(sim *s, event *e) {
    switch (e->kind) {
    case EV_SUBMIT:
        note_service(s);
        on_submit(s, e->index);
        break;
    case EV_CANCEL: on_cancel(s, e->index); break;
    case EV_TO_NODE: on_to_node(s, e); break;
    case EV_TO_ROUTER: on_to_router(s, e); break;
    case EV_NODE_SIDE_DOWN:
    case EV_ROUTER_SIDE_DOWN: on_session_side_down(s, e); break;
    case EV_CONNECT: on_connect(s, e->who - SIM_NODES, e->index); break;
    case EV_LINK_UP:
    case EV_LINK_DOWN: on_link(s, e); break;
    case EV_FRAME: on_frame(s, e); break;
    case EV_PAGE: on_page(s, e); break;
    case EV_LANDED: on_landed(s, e); break;
    case EV_SENT: on_sent(s, e); break;
    case EV_LAYER: on_layer(s, e); break;
    case EV_STEP_DONE: on_step_done(s, e); break;
    case EV_HEARTBEAT: on_heartbeat(s, e->who); break;
    case EV_TIMER: on_timer(s, e->who); break;
    case EV_FAULT: on_fault(s, e->index); break;
    case EV_DEAD_PEERS: on_dead_peers(s, e->index); break;
    case EV_RELEASE: on_release(s); break;
    case EV_THAW:
        if (s->process[e->index].incarnation == e->number) on_thaw(s, e->index);
        note_service(s);
        break;
    case EV_START: on_start(s, e->index); break;
    case EV_HEAL: heal(s); break;
    case EV_OPERATOR: on_operator(s); break;
    }
}

static void drain_all(sim *s) {
    while (s->dirty) {
        uint32_t who = (uint32_t)__builtin_ctz(s->dirty);
        s->dirty &= s->dirty - 1;
        if (who >= SIM_NODES)
            router_drain_actions(s, who - SIM_NODES);
        else
            node_drain_actions(s, who);
        s->process[who].stale_clock = false;
    }
}

static void run_until(sim *s, kvf_time_ns end, bool stop_when_over) {
    event e;
    while (
        !(stop_when_over && s->healed && s->over == s->requests) && s->heap.count > 0 && s->heap.events[0].at <= end) {
        sim_pop(s, &e);
        s->now = e.at;
        if (kept_back(s, &e)) continue;
        if (++s->event_number == s->break_at) raise(SIGTRAP);
        if (s->event_number > EVENTS_MAX) sim_fail(s, "%u events: something never rests", EVENTS_MAX);
        sim_note(s, ((uint64_t)e.kind << 56) ^ ((uint64_t)e.who << 24) ^ e.index);
        handle(s, &e);
        drain_all(s);
        free(e.payload);
    }
    if (s->now < end && !stop_when_over) s->now = end;
}

/* ------------------------------------------------------------------ a run */

static void make_world(sim *s) {
    uint32_t nodes = plan_nodes(s->plan);
    for (uint32_t i = 0; i < nodes; i++) {
        s->place_node[i] = i;
        node_start(s, i);
        touch(s, i);
    }
    for (uint32_t r = 0; r < s->plan->world.routers; r++) {
        router_make(s, r);
        router_start(s, r);
    }
    s->requests = s->plan->requests;
    for (uint32_t i = 0; i < s->requests; i++) {
        const plan_request *q = &s->plan->request[i];
        s->request[i].plan = q;
        sim_push(s, us(q->at_us), EV_SUBMIT, SIM_NOBODY, i);
        if (q->cancel_us) sim_push(s, us(q->at_us + q->cancel_us), EV_CANCEL, SIM_NOBODY, i);
    }
    s->count.requests = s->requests;
    faults_arm(s);
    sim_push(s, us(s->plan->world.heal_us), EV_HEAL, SIM_NOBODY, 0);
}

static void free_world(sim *s) {
    sim_list_free(&s->heap);
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) sim_list_free(&s->process[i].held);
    for (uint32_t i = 0; i < s->sessions; i++) sim_list_free(&s->session[i].held);
    for (uint32_t i = 0; i < s->links; i++) sim_list_free(&s->link[i].held);
    free(s->session);
    free(s->link);
    for (uint32_t i = 0; i < SIM_NODES; i++) {
        if (s->node[i].memory) munmap(s->node[i].memory, s->node[i].memory_bytes);
        if (s->node[i].pages) munmap(s->node[i].pages, sizeof(sim_block) * s->node[i].config.blocks);
    }
    for (uint32_t r = 0; r < PLAN_ROUTERS_MAX; r++)
        if (s->router[r].memory) munmap(s->router[r].memory, s->router[r].memory_bytes);
}

static void ask_for_audits(sim *s) {
    for (uint32_t r = 0; r < s->plan->world.routers; r++) {
        uint32_t who = router_process(r);
        for (uint32_t i = 0; i < plan_nodes(s->plan); i++)
            if (!s->gone[i] && kvf_router_audit(s->router[r].core, sim_clock(s, who), i, 1) == KVF_OK)
                s->router[r].audits_asked++;
        touch(s, who);
    }
    drain_all(s);
    run_until(s, s->now + 200 * SIM_MS, false);
}

/* After healing every request ends, nothing is held, the directories are true. */
static void check_end(sim *s) {
    for (uint32_t i = 0; i < s->requests; i++)
        if (!s->request[i].over)
            sim_fail(s, "request %u of %u has not ended (admitted %d, got %u of %u tokens)", i, s->requests,
                s->request[i].admitted, s->request[i].got[0], (uint32_t)s->request[i].plan->output);
    run_until(s, s->now + QUIET_NS, false);
    uint32_t alive = 0;
    for (uint32_t i = 0; i < plan_nodes(s->plan); i++) {
        if (s->gone[i]) continue;
        alive++;
        check_node_at_rest(s, s->place_node[i]);
    }
    ask_for_audits(s);
    for (uint32_t r = 0; r < s->plan->world.routers; r++) {
        const sim_router *k = &s->router[r];
        if (k->audits_answered != k->audits_asked || k->audits_asked != alive)
            sim_fail(s, "r%u: %" PRIu64 " of %" PRIu64 " audits of %u nodes are answered", r, k->audits_answered,
                k->audits_asked, alive);
        check_router_at_end(s, r);
    }
}

bool sim_run(sim *s, const plan *p) {
    bool verbose = s->verbose;
    uint64_t break_at = s->break_at;
    memset(s, 0, sizeof *s);
    s->plan = p;
    s->verbose = verbose;
    s->break_at = break_at;
    s->rng.seed = kvf_rng_at(p->world.seed, 5, 0);
    s->trace = p->world.seed;
    if (!running) catch_signals();
    running = s;
    bool ok = sigsetjmp(failed, 0) == 0;
    if (ok) {
        make_world(s);
        drain_all(s);
        run_until(s, us(p->world.heal_us) + END_AFTER_NS, true);
        check_end(s);
    }
    s->count.events = s->event_number;
    s->count.sim_ns = s->now;
    free_world(s);
    return ok;
}
