/* A cluster of single processes. */
#include "parts.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static size_t add_args(const char **argv, size_t count, const char *const *more) {
    for (; *more; more++) {
        assert_true(count < E2E_ARGS_MAX);
        argv[count++] = *more;
    }
    return count;
}

typedef struct {
    char option[3][160];
} papers;

/* Its certificate, where the cluster has any. */
static size_t add_papers(const e2e_parts *k, const char *id, papers *p, const char **argv, size_t count) {
    static const char *const options[] = {"cert", "key", "ca"};
    for (size_t i = 0; k->certs && i < KVF_COUNT_OF(options); i++) {
        assert_true(count < E2E_ARGS_MAX);
        snprintf(p->option[i], sizeof p->option[i], "--tls-%s=%s/%s.%s", options[i], k->certs, i == 2 ? "ca" : id,
            i == 1 ? "key" : "pem");
        argv[count++] = p->option[i];
    }
    return count;
}

void e2e_part_start(e2e_parts *k, e2e_part *p) {
    char id[24];
    papers own;
    snprintf(id, sizeof id, "--node-id=%s", p->id);
    const char *argv[E2E_ARGS_MAX + 1] = {
        p->prefill ? "prefill-node" : "decode-node", "--model", k->model, id, p->control, "--threads=1"};
    add_args(argv, add_papers(k, p->id, &own, argv, 6), k->node_args);
    e2e_spawn_env(&p->process, argv, p->env ? p->env : k->node_env);
    if (!p->process.ready) fail_msg("%s did not start, its log is %s", p->id, p->process.log);
    if (!k->certs) return;
    snprintf(p->address, sizeof p->address, "%s", p->process.control);
    snprintf(p->control, sizeof p->control, "--control=%.100s", p->address); /* again there */
}

void e2e_part_kill(e2e_part *p) {
    kill(p->process.pid, SIGKILL);
    e2e_process_wait(&p->process);
    unlink(p->process.log);
}

void e2e_router_start(e2e_parts *k, size_t i) {
    e2e_cluster *c = &k->router[i];
    papers own;
    char listen[160], admin[160], id[24], name[8], nodes[E2E_NODES_MAX][160];
    snprintf(listen, sizeof listen, "%s", c->serve.grpc[0] ? c->serve.grpc : "127.0.0.1:0");
    snprintf(admin, sizeof admin, "%s", c->serve.admin[0] ? c->serve.admin : "127.0.0.1:0");
    snprintf(name, sizeof name, "r%u", (unsigned)i & 7);
    snprintf(id, sizeof id, "--node-id=%s", name);
    const char *argv[E2E_ARGS_MAX + 1] = {
        "router", "--model", k->model, "--listen", listen, "--admin", admin, id, "--ready-grace=30s"};
    size_t count = 9;
    for (size_t n = 0; n < k->nodes; n++) {
        const e2e_part *p = &k->node[n];
        snprintf(nodes[n], sizeof nodes[n], "--node=%s,%s,%s%s", p->id, p->prefill ? "prefill" : "decode", p->address,
            p->wire ? ".wire" : "");
        argv[count++] = nodes[n];
    }
    count = add_papers(k, name, &own, argv, count);
    add_args(argv, count, k->router_args);
    c->credentials = k->credentials;
    e2e_spawn(&c->serve, argv);
    if (!c->serve.ready) fail_msg("router %zu did not start, its log is %s", i, c->serve.log);
    e2e_attach(c);
}

void e2e_router_kill(e2e_parts *k, size_t i) {
    e2e_cluster *c = &k->router[i];
    kill(c->serve.pid, SIGKILL);
    e2e_detach(c);
    e2e_process_wait(&c->serve);
    unlink(c->serve.log);
}

void e2e_router_start_again(e2e_parts *k, size_t i) {
    e2e_detach(&k->router[i]);
    unlink(k->router[i].serve.log);
    e2e_router_start(k, i);
    e2e_parts_all_ready(k);
}

e2e_part *e2e_part_find(e2e_parts *k, const char *id) {
    for (size_t i = 0; i < k->nodes; i++)
        if (strcmp(k->node[i].id, id) == 0) return &k->node[i];
    fail_msg("no node %s", id);
    return NULL;
}

size_t e2e_parts_ready(e2e_parts *k, size_t router) {
    Kvferry__V1__ClusterState *s = e2e_state(&k->router[router]);
    size_t ready = 0;
    for (size_t i = 0; i < s->n_nodes; i++)
        ready += s->nodes[i]->role != KVFERRY__V1__ROLE__ROLE_ROUTER &&
                 s->nodes[i]->state == KVFERRY__V1__NODE_STATE__NODE_STATE_READY;
    kvf_rpc_message_free(&s->base);
    return ready;
}

static bool all_ready(void *self) {
    e2e_parts *k = self;
    for (size_t i = 0; i < k->routers; i++)
        if (e2e_parts_ready(k, i) != k->nodes) return false;
    return true;
}

void e2e_parts_all_ready(e2e_parts *k) { e2e_until("all nodes are ready", all_ready, k); }

static void name_node(e2e_parts *k, size_t i) {
    e2e_part *p = &k->node[i];
    p->prefill = i < k->prefill;
    snprintf(p->id, sizeof p->id, "%c%u", p->prefill ? 'p' : 'd', (unsigned)(p->prefill ? i : i - k->prefill) & 7);
    snprintf(p->socket, sizeof p->socket, "%s/%s.sock", k->dir, p->id);
    snprintf(p->address, sizeof p->address, "unix:%s", p->socket);
    snprintf(p->control, sizeof p->control, "--control=%.100s", k->certs ? "127.0.0.1:0" : p->address);
}

void e2e_parts_start(e2e_parts *k, size_t prefill, size_t decode, size_t routers) {
    snprintf(k->dir, sizeof k->dir, "/tmp/kvf-e2e-XXXXXX");
    assert_non_null(mkdtemp(k->dir));
    k->prefill = prefill;
    k->nodes = prefill + decode;
    k->routers = routers;
    assert_true(k->nodes <= E2E_NODES_MAX && routers <= E2E_ROUTERS_MAX);
    for (size_t i = 0; i < k->nodes; i++) {
        e2e_part *p = &k->node[i];
        char wire[112];
        name_node(k, i);
        e2e_part_start(k, p);
        snprintf(wire, sizeof wire, "%s.wire", p->socket);
        if (k->wires) p->wire = e2e_wire_open(wire, p->socket);
    }
    for (size_t i = 0; i < routers; i++) e2e_router_start(k, i);
    e2e_parts_all_ready(k);
}

void e2e_parts_stop(e2e_parts *k) {
    for (size_t i = 0; i < k->routers; i++) e2e_stop(&k->router[i]);
    for (size_t i = 0; i < k->nodes; i++) {
        e2e_part *p = &k->node[i];
        char log[64];
        snprintf(log, sizeof log, "%s", p->process.log);
        int status = e2e_process_stop(&p->process);
        if (status != 0) fail_msg("%s ended with %d, its log is %s", p->id, status, log);
        if (p->wire) e2e_wire_close(p->wire);
    }
    rmdir(k->dir);
}
