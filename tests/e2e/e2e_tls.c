/* A whole cluster under TLS on 127.0.0.1, each process with a certificate of its own: the same tokens as in the open,
 * certificates and authority that change while streams run, and who is left outside and named in the log. */
#include "certs.h"
#include "kinds.h"
#include "kvf/log.h"
#include "parts.h"
#include "grpc/health/v1/health.pb-c.h"
#include <string.h>
#include <unistd.h>

#define MODEL E2E_TINY("llama-mha")
static certs c;
static e2e_kinds kinds; /* of a cluster in the open */

static kvf_tls_store *store(const char *name, const char *ca) {
    char p[3][CERTS_PATH_MAX], file[64];
    kvf_tls_store *s = NULL;
    kvf_error err;
    snprintf(file, sizeof file, "%s.pem", name ? name : "");
    certs_path(&c, file, p[0]);
    snprintf(file, sizeof file, "%s.key", name ? name : "");
    certs_path(&c, file, p[1]);
    snprintf(file, sizeof file, "%s.pem", ca);
    kvf_tls_files f = {name ? p[0] : NULL, name ? p[1] : NULL, certs_path(&c, file, p[2])};
    if (kvf_tls_store_open(&f, &s, &err) != KVF_OK) fail_msg("%s", err.message);
    return s;
}

static const char *const ids[] = {"p0", "p1", "d0", "d1", "r0"};

static void sign(const char *authority) {
    for (size_t i = 0; i < KVF_COUNT_OF(ids); i++) {
        char names[64];
        snprintf(names, sizeof names, "DNS:%s,IP:127.0.0.1", ids[i]);
        certs_simple(&c, authority, ids[i], names);
    }
    certs_simple(&c, authority, "operator", "DNS:operator");
}

static void start(e2e_parts *k, kvf_rpc_credentials *credentials, size_t prefill, size_t decode) {
    certs_copy(&c, "first.pem", "ca.pem");
    sign("first");
    *credentials = (kvf_rpc_credentials){.mode = KVF_RPC_TLS, .files = store("operator", "ca")};
    *k = (e2e_parts){.model = MODEL,
        .node_args = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64", "--transports=tcp"},
        .certs = c.dir,
        .credentials = credentials};
    e2e_parts_start(k, prefill, decode, 1);
}

static void stop(e2e_parts *k, kvf_rpc_credentials *credentials) {
    e2e_parts_stop(k);
    kvf_tls_store_close(credentials->files);
}

typedef struct {
    e2e_clients *clients;
    uint32_t until;
} more;
static bool answered(void *self) { return atomic_load(&((more *)self)->clients->done) >= ((more *)self)->until; }
static void some_more(e2e_clients *clients, uint32_t count) {
    e2e_until("some are answered", answered, &(more){clients, atomic_load(&clients->done) + count});
}

static void tokens_are_those_of_a_cluster_in_the_open(void **state) {
    (void)state;
    e2e_parts k;
    kvf_rpc_credentials credentials;
    start(&k, &credentials, 2, 2);
    e2e_clients *clients = calloc(1, sizeof *clients);
    e2e_clients_start(clients, &kinds, &k.router[0], 4, 1);
    some_more(clients, 60);
    e2e_clients_all_well(clients, "under TLS");
    free(clients);
    Kvferry__V1__ClusterState *s = e2e_state(&k.router[0]);
    uint64_t pages = 0;
    for (size_t i = 0; i < s->n_pairs; i++) {
        assert_true(kvf_proto_text_equal(s->pairs[i]->transport, "tls"));
        pages += s->pairs[i]->pages_moved;
    }
    kvf_rpc_message_free(&s->base);
    assert_true(pages > 0);
    e2e_assert_clean(&k.router[0]);
    stop(&k, &credentials);
}

/* ---- changes ---- */

typedef struct {
    const e2e_parts *k;
    const char *address, *peer, *ca;
} probe;

/* Whether a new connection with a certificate of `next` is let in, and shown one of `ca`. */
static bool lets_in(void *self) {
    const probe *p = self;
    kvf_rpc_credentials credentials = {.mode = KVF_RPC_TLS, .files = store("r0", p->ca), .peer_name = p->peer};
    kvf_rpc_channel_opts o = {.address = p->address, .credentials = &credentials};
    kvf_rpc_channel *channel = NULL;
    assert_int_equal(kvf_rpc_channel_create(p->k->router[0].rt, &o, &channel), KVF_OK);
    bool in = e2e_health(channel, "liveness") == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    kvf_rpc_channel_destroy(channel);
    kvf_tls_store_close(credentials.files);
    return in;
}

static void everybody_is_of(e2e_parts *k, const char *ca) {
    e2e_until("the router's listener has changed", lets_in, &(probe){k, k->router[0].serve.grpc, "r0", ca});
    e2e_until("the router's admin listener has changed", lets_in, &(probe){k, k->router[0].serve.admin, "r0", ca});
    for (size_t i = 0; i < k->nodes; i++)
        e2e_until("a node's listener has changed", lets_in, &(probe){k, k->node[i].process.control, k->node[i].id, ca});
}

typedef struct {
    const char *log, *words;
    size_t times;
} phrase;
static bool said(void *self) {
    const phrase *p = self;
    char *text = e2e_read_file(p->log);
    size_t times = 0;
    for (const char *at = text; at && (at = strstr(at, p->words)); at++) times++;
    free(text);
    return times >= p->times;
}
static void in_log(const e2e_process *p, const char *words) { e2e_until(words, said, &(phrase){p->log, words, 1}); }

static void trust_both(void) {
    char path[CERTS_PATH_MAX], both[8192];
    char *first = e2e_read_file(certs_path(&c, "first.pem", path)),
         *next = e2e_read_file(certs_path(&c, "next.pem", path));
    snprintf(both, sizeof both, "%s%s", first, next);
    certs_write(&c, "ca.pem", both);
    free(first);
    free(next);
}

/* From one authority to another, as docs/security.md says, under load; then a broken file; then a node that is lost and
 * comes back among the new ones. No client notices. */
static void authority_and_certificates_change_under_streams(void **state) {
    (void)state;
    e2e_parts k;
    kvf_rpc_credentials credentials;
    char path[CERTS_PATH_MAX];
    start(&k, &credentials, 2, 2);
    e2e_clients *clients = calloc(1, sizeof *clients);
    e2e_clients_start(clients, &kinds, &k.router[0], 3, 2);
    trust_both();
    for (size_t i = 0; i < k.nodes; i++) in_log(&k.node[i].process, "certificates have been read again");
    in_log(&k.router[0].serve, "certificates have been read again");
    sign("next");
    everybody_is_of(&k, "next");
    certs_copy(&c, "next.pem", "ca.pem");
    some_more(clients, 10);

    certs_write(&c, "d0.pem", "rubbish");
    e2e_part *d0 = e2e_part_find(&k, "d0"), *d1 = e2e_part_find(&k, "d1");
    in_log(&d0->process, certs_path(&c, "d0.pem", path));
    in_log(&d0->process, "new connections go on with generation");
    e2e_part_kill(d1);
    e2e_part_start(&k, d1);
    e2e_part_kill(e2e_part_find(&k, "p0"));
    e2e_part_start(&k, e2e_part_find(&k, "p0"));
    e2e_parts_all_ready(&k);
    some_more(clients, 20); /* pages of the new p0 reach d0, which goes on with what it had */
    e2e_clients_all_well(clients, "while certificates changed");
    free(clients);
    kvf_tls_store_check(credentials.files);
    stop(&k, &credentials);
}

/* ---- strangers ---- */

typedef struct {
    char id[40], cert[128], key[128], ca[128];
} papers;
static const papers *papers_of(papers *p, const char *id, const char *file) {
    snprintf(p->id, sizeof p->id, "--node-id=%s", id);
    snprintf(p->cert, sizeof p->cert, "--tls-cert=%s/%s.pem", c.dir, file);
    snprintf(p->key, sizeof p->key, "--tls-key=%s/%s.key", c.dir, file);
    snprintf(p->ca, sizeof p->ca, "--tls-ca=%s/ca.pem", c.dir);
    return p;
}

static void stranger_node(e2e_process *p, const char *id, const char *file) {
    papers x;
    papers_of(&x, id, file);
    const char *argv[] = {
        "decode-node", "--model", MODEL, x.id, "--kv-memory=6MiB", "--threads=1", x.cert, x.key, x.ca, NULL};
    e2e_spawn(p, argv);
    assert_true(p->ready);
}

/* A router that knows good nodes, one of another authority (d9) and one with the papers of another node (d8). */
static void strangers_are_left_outside_and_named(void **state) {
    (void)state;
    e2e_parts k;
    kvf_rpc_credentials credentials;
    start(&k, &credentials, 1, 1);
    certs_simple(&c, "foreign", "d9", "DNS:d9");
    e2e_process d9, d8;
    stranger_node(&d9, "d9", "d9");
    stranger_node(&d8, "d8", "d1");
    char nodes[4][192];
    snprintf(nodes[0], sizeof nodes[0], "--node=p0,prefill,%s", k.node[0].process.control);
    snprintf(nodes[1], sizeof nodes[1], "--node=d0,decode,%s", k.node[1].process.control);
    snprintf(nodes[2], sizeof nodes[2], "--node=d9,decode,%s", d9.control);
    snprintf(nodes[3], sizeof nodes[3], "--node=d8,decode,%s", d8.control);
    papers x;
    papers_of(&x, "r0", "r0");
    const char *argv[] = {"router", "--model", MODEL, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", x.id, x.cert,
        x.key, x.ca, nodes[0], nodes[1], nodes[2], nodes[3], NULL};
    e2e_cluster r = {.credentials = &credentials};
    e2e_spawn(&r.serve, argv);
    assert_true(r.serve.ready);
    e2e_attach(&r);
    in_log(&r.serve, "node d9 at 127.0.0.1:");
    in_log(&r.serve, "certificate verify failed");
    in_log(&r.serve, "Peer name d8 is not in peer certificate");
    for (size_t i = 0; i < E2E_KINDS; i++) { /* the cluster is well without them */
        e2e_answer a;
        e2e_gen_ok(&r, &kinds.ask[i], &a);
        assert_true(e2e_kind_same(&kinds.want[i], &a));
        assert_true(strcmp(a.decode_node, "d0") == 0 || strcmp(a.decode_node, "p0") == 0);
        e2e_answer_free(&a);
    }
    e2e_stop(&r);

    papers_of(&x, "r9", "operator"); /* a router with the papers of somebody else */
    e2e_process r9;
    e2e_spawn(&r9, argv);
    assert_true(r9.ready);
    in_log(&k.node[1].process, "says that it is router r9, its certificate is for operator: refused");
    in_log(&r9, "the certificate is for operator, not for router r9");
    assert_int_equal(e2e_process_stop(&r9), 0);
    assert_int_equal(e2e_process_stop(&d9), 0);
    assert_int_equal(e2e_process_stop(&d8), 0);
    stop(&k, &credentials);
}

/* ---- clients ---- */

static int run(const char *const *argv, const char *words) {
    e2e_process p;
    e2e_spawn(&p, argv);
    int status = e2e_process_wait(&p);
    char *log = e2e_read_file(p.log);
    if (words && !strstr(log, words)) fail_msg("%s %s: exit %d, %s", argv[0], words, status, log);
    free(log);
    unlink(p.log);
    return status;
}

static void clients_and_operators(void **state) {
    (void)state;
    e2e_parts k;
    kvf_rpc_credentials credentials;
    start(&k, &credentials, 1, 1);
    papers x, other;
    papers_of(&x, "-", "operator");
    papers_of(&other, "-", "strange");
    const char *grpc = k.router[0].serve.grpc, *admin = k.router[0].serve.admin;
    const char *complete[] = {"complete", "hello", "-n4", "--router", grpc, x.ca, NULL};
    const char *in_the_open[] = {"complete", "hello", "-n4", "--router", grpc, NULL};
    const char *wrong_name[] = {"complete", "hello", "-n4", "--router", grpc, x.ca, "--tls-name=r7", NULL};
    const char *nodes[] = {"nodes", "--router", admin, x.ca, x.cert, x.key, NULL};
    const char *nameless[] = {"nodes", "--router", admin, x.ca, NULL};
    const char *strange[] = {"nodes", "--router", admin, x.ca, other.cert, other.key, NULL};
    assert_int_equal(run(complete, NULL), 0);
    assert_int_equal(run(nodes, NULL), 0);
    assert_int_equal(run(in_the_open, "if it speaks TLS: --tls-ca FILE"), 69);
    assert_int_equal(run(wrong_name, "Peer name r7 is not in peer certificate"), 69);
    assert_int_equal(run(nameless, "nothing answers"), 69);
    assert_int_equal(run(strange, "nothing answers"), 69);
    in_log(&k.router[0].serve, "the peer shows no certificate");
    in_log(&k.router[0].serve, "the peer's certificate is refused");
    in_log(&k.router[0].serve, "the peer does not speak TLS");
    stop(&k, &credentials);
}

/* One certificate for all processes of `serve`, and clients that must show one of an authority of their own. */
static void serve_takes_one_certificate(void **state) {
    (void)state;
    char args[4][160];
    snprintf(args[0], 160, "--router-tls-cert=%s/r0.pem", c.dir);
    snprintf(args[1], 160, "--router-tls-key=%s/r0.key", c.dir);
    snprintf(args[2], 160, "--router-tls-client-ca=%s/foreign.pem", c.dir);
    certs_copy(&c, "first.pem", "ca.pem");
    sign("first");
    const char *argv[] = {"serve", "--model", MODEL, "--listen=127.0.0.1:0", "--kv-memory=6MiB", "--threads=1", args[0],
        args[1], args[2], NULL};
    kvf_rpc_credentials client = {.mode = KVF_RPC_TLS, .files = store("strange", "ca")};
    e2e_cluster s = {.credentials = &client};
    e2e_spawn(&s.serve, argv);
    assert_true(s.serve.ready);
    e2e_attach(&s);
    e2e_answer a;
    e2e_gen_ok(&s, &kinds.ask[0], &a);
    assert_true(e2e_kind_same(&kinds.want[0], &a));
    e2e_answer_free(&a);
    e2e_detach(&s);
    kvf_tls_store_close(client.files);
    client.files = store("operator", "ca"); /* not of the clients' authority */
    e2e_attach(&s);
    e2e_gen(&s, &kinds.ask[0], &a);
    assert_int_equal(a.result.code, KVF_RPC_UNAVAILABLE);
    e2e_answer_free(&a);
    e2e_stop(&s);
    kvf_tls_store_close(client.files);
}

static int setup(void **state) {
    (void)state;
    certs_open(&c);
    certs_authority(&c, "first");
    certs_authority(&c, "next");
    certs_authority(&c, "foreign");
    certs_simple(&c, "foreign", "strange", "DNS:strange.example");
    static const char *const more_args[] = {"--kv-memory=6MiB", "--prefill-chunk-tokens=64", "--threads=1", NULL};
    e2e_cluster plain;
    e2e_start(&plain, MODEL, more_args);
    e2e_kinds_make(&kinds, &plain);
    e2e_stop(&plain);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    e2e_kinds_free(&kinds);
    certs_close(&c);
    return 0;
}

int main(void) {
    kvf_log_set_level(KVF_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_a_cluster_in_the_open),
        cmocka_unit_test(authority_and_certificates_change_under_streams),
        cmocka_unit_test(strangers_are_left_outside_and_named),
        cmocka_unit_test(clients_and_operators),
        cmocka_unit_test(serve_takes_one_certificate),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
