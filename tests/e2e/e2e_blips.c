/* Connections that blip: cut, held for less than the limits, or led to another process. No client sees an error, no
 * token is lost or comes twice. A process that was replaced under its name while it was frozen is told so when it
 * thaws, and ends. */
#include "kinds.h"
#include "parts.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { CLIENTS = 6 };

static uint64_t seed_arg = 1;
static uint32_t cuts_arg = 24;

typedef struct {
    e2e_parts k;
    e2e_kinds kinds;
    e2e_clients clients;
} fixture;

static fixture *start(const char *transports) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->k = (e2e_parts){.model = E2E_TINY("llama-mha"),
        .node_args = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64", "--node-heartbeat=50ms", transports},
        .router_args = {"--node-timeout=1s", "--node-grace=2s"},
        .node_env = "KVFERRY_TEST_HOOKS=step_ms=3",
        .wires = true};
    e2e_parts_start(&f->k, 2, 2, 1);
    e2e_kinds_make(&f->kinds, &f->k.router[0]);
    e2e_clients_start(&f->clients, &f->kinds, &f->k.router[0], CLIENTS, seed_arg);
    return f;
}

static void stop(fixture *f) {
    e2e_assert_clean(&f->k.router[0]);
    e2e_kinds_free(&f->kinds);
    e2e_parts_stop(&f->k);
    free(f);
}

typedef struct {
    e2e_clients *clients;
    uint32_t until;
} more;

static bool answered(void *self) { return atomic_load(&((more *)self)->clients->done) >= ((more *)self)->until; }

static void some_more(fixture *f, uint32_t count) {
    e2e_until("requests are answered", answered, &(more){&f->clients, atomic_load(&f->clients.done) + count});
}

/* Sessions between router and nodes. */
static void sessions_blip(void **state) {
    (void)state;
    fixture *f = start("--transports=shm,tcp");
    uint64_t r = seed_arg;
    for (uint32_t i = 0; i < cuts_arg; i++) {
        e2e_wire_cut(f->k.node[e2e_random(&r) % f->k.nodes].wire);
        some_more(f, (uint32_t)(e2e_random(&r) % 3));
    }
    for (size_t i = 0; i < f->k.nodes; i++) { /* silence of less than the limit */
        e2e_wire_hold(f->k.node[i].wire, true);
        uint64_t end = e2e_now_ns() + 400u * 1000000u;
        while (e2e_now_ns() < end) e2e_pause();
        e2e_wire_hold(f->k.node[i].wire, false);
    }
    some_more(f, 10);
    e2e_clients_all_well(&f->clients, "sessions cut and held");
    assert_int_equal(f->clients.retried, 0); /* a blip costs nothing */
    stop(f);
}

typedef struct {
    fixture *f;
    const char *node;
    bool ready;
} readiness;

static bool is_ready(void *self) {
    const readiness *o = self;
    Kvferry__V1__ClusterState *s = e2e_state(&o->f->k.router[0]);
    bool ready = e2e_node(s, o->node)->state == KVFERRY__V1__NODE_STATE__NODE_STATE_READY;
    kvf_rpc_message_free(&s->base);
    return ready == o->ready;
}

/* A partition of one pair for longer than the limits: its work goes on elsewhere, and it comes back. */
static void partitions_heal(void **state) {
    (void)state;
    fixture *f = start("--transports=shm,tcp");
    for (size_t i = 0; i < f->k.nodes; i += 2) {
        const char *node = f->k.node[i].id;
        e2e_wire_hold(f->k.node[i].wire, true);
        e2e_until("a node out of reach is lost", is_ready, &(readiness){f, node, false});
        some_more(f, 4);
        e2e_wire_hold(f->k.node[i].wire, false);
        e2e_until("it is back", is_ready, &(readiness){f, node, true});
    }
    e2e_clients_all_well(&f->clients, "partitions");
    stop(f);
}

/* Page connections between prefill and decode nodes. */
static void links_blip(const char *transports) {
    fixture *f = start(transports);
    uint64_t r = seed_arg;
    uint32_t cut = 0;
    for (uint32_t i = 0; i < cuts_arg; i++) {
        const e2e_part *p = &f->k.node[e2e_random(&r) % 2], *d = &f->k.node[2 + e2e_random(&r) % 2];
        int now = e2e_cut_between(p->process.pid, d->process.pid);
        if (now < 0) {
            e2e_clients_stop(&f->clients);
            stop(f);
            print_message("skipped: this system does not let a test reach into another process's sockets\n");
            skip();
        }
        cut += (uint32_t)now;
        some_more(f, (uint32_t)(e2e_random(&r) % 3));
    }
    some_more(f, 10);
    print_message("%u page connections cut\n", cut);
    assert_true(cut > 0);
    e2e_clients_all_well(&f->clients, transports);
    assert_int_equal(f->clients.retried, 0); /* the hand-offs go on over the next connection */
    stop(f);
}

static void shm_links_blip(void **state) {
    (void)state;
    links_blip("--transports=shm");
}

static void tcp_links_blip(void **state) {
    (void)state;
    links_blip("--transports=tcp");
}

static bool old_is_gone(void *self) {
    e2e_process *p = self;
    return kill(p->pid, 0) != 0 || e2e_anon_kib(p->pid) == 0;
}

/* d0 freezes; a new process takes its name at another address; the old one thaws and is reached again. */
static void the_replaced_one_ends(void **state) {
    (void)state;
    fixture *f = start("--transports=shm,tcp");
    e2e_part *d0 = e2e_part_find(&f->k, "d0"), new = *d0;
    some_more(f, 4);
    kill(d0->process.pid, SIGSTOP);
    snprintf(new.socket, sizeof new.socket, "%s/d0.new.sock", f->k.dir);
    snprintf(new.control, sizeof new.control, "--control=unix:%s", new.socket);
    e2e_part_start(&f->k, &new);
    e2e_wire_lead(d0->wire, new.socket);
    e2e_wire_cut(d0->wire);
    e2e_until("the new process is known", is_ready, &(readiness){f, "d0", true});
    some_more(f, 8);
    kill(d0->process.pid, SIGCONT);
    e2e_wire_lead(d0->wire, d0->socket);
    e2e_wire_cut(d0->wire);
    e2e_until("the old process is told and ends", old_is_gone, &d0->process);
    char *log = e2e_read_file(d0->process.log);
    assert_int_equal(e2e_process_wait(&d0->process), 0);
    assert_non_null(strstr(log, "a newer process has this node's name"));
    free(log);
    e2e_wire_lead(d0->wire, new.socket);
    e2e_parts_all_ready(&f->k);
    some_more(f, 4);
    e2e_clients_all_well(&f->clients, "a node replaced under its name");
    *d0 = new;
    stop(f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sessions_blip), cmocka_unit_test(partitions_heal),
        cmocka_unit_test(shm_links_blip), cmocka_unit_test(tcp_links_blip), cmocka_unit_test(the_replaced_one_ends)};
    if (argc > 1) seed_arg = strtoull(argv[1], NULL, 10);
    if (argc > 2) cuts_arg = (uint32_t)strtoul(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
