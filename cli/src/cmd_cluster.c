/* nodes, kv, drain, undrain, role, audit, flush, health, models: one call each. */
#include "cluster.h"
#include "cmd.h"
#include "grpc/health/v1/health.pb-c.h"
#include "json.h"
#include "kvf/proto.h"
#include "units.h"
#include <stddef.h>
#include <stdio.h>

enum { DEADLINE_MS = 15000 };

typedef struct {
    const char *admin, *router, *node, *request, *prefix, *service;
    kvf_client_tls tls;
    uint32_t limit;
    bool json, blocks, strict;
} options;
static const options defaults = {.admin = KVF_CLI_ADMIN, .router = KVF_CLI_ROUTER, .limit = 100000};

#define CLUSTER (&kvferry__v1__cluster__descriptor)

/* One call to `address`; its answer, or NULL with the exit status. The client is gone when this returns. */
static ProtobufCMessage *ask(const options *o, const char *address, const ProtobufCServiceDescriptor *service,
    const char *method, const ProtobufCMessage *request, int *exit_status) {
    kvf_client *c = kvf_client_open(address, &o->tls, exit_status);
    if (!c) return NULL;
    ProtobufCMessage *answer = kvf_client_call(c, service, method, request, DEADLINE_MS, exit_status);
    kvf_client_close(c);
    return answer;
}

static int done(ProtobufCMessage *answer, const options *o, kvf_buf *text) {
    if (o->json)
        kvf_cmd_print_json(answer);
    else if (text->len_bytes)
        fwrite(text->text, 1, text->len_bytes, stdout);
    kvf_buf_fini(text);
    kvf_rpc_message_free(answer);
    return KVF_EXIT_OK;
}

static int run_nodes(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__GetClusterRequest r = KVFERRY__V1__GET_CLUSTER_REQUEST__INIT;
    int status;
    ProtobufCMessage *m = ask(o, o->admin, CLUSTER, "GetCluster", &r.base, &status);
    if (!m) return status;
    kvf_buf text = {0};
    kvf_cluster_nodes_table((const void *)m, &text);
    return done(m, o, &text);
}

static int run_kv(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__GetBlocksRequest r = KVFERRY__V1__GET_BLOCKS_REQUEST__INIT;
    r.node_id = kvf_proto_text(o->node);
    r.request_id = kvf_proto_text(o->request);
    r.prefix_hash = kvf_proto_text(o->prefix);
    r.limit = o->limit;
    int status;
    ProtobufCMessage *m = ask(o, o->admin, CLUSTER, "GetBlocks", &r.base, &status);
    if (!m) return status;
    kvf_buf text = {0};
    kvf_cluster_blocks_table((const void *)m, o->blocks || o->request || o->prefix, &text);
    return done(m, o, &text);
}

static int run_drain(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__DrainRequest r = KVFERRY__V1__DRAIN_REQUEST__INIT;
    r.node_id = kvf_proto_text(args->positional[0]);
    int status;
    ProtobufCMessage *m = ask(o, o->admin, CLUSTER, "Drain", &r.base, &status);
    if (!m) return status;
    kvf_buf text = {0};
    kvf_buf_printf(&text, "%s takes no new requests; %u run on it\n", args->positional[0],
        ((const Kvferry__V1__DrainResponse *)(const void *)m)->running);
    return done(m, o, &text);
}

static int run_undrain(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__UndrainRequest r = KVFERRY__V1__UNDRAIN_REQUEST__INIT;
    r.node_id = kvf_proto_text(args->positional[0]);
    int status;
    ProtobufCMessage *m = ask(o, o->admin, CLUSTER, "Undrain", &r.base, &status);
    if (!m) return status;
    kvf_buf text = {0};
    kvf_buf_printf(&text, "%s takes requests again\n", args->positional[0]);
    return done(m, o, &text);
}

static int run_role(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__SetRoleRequest r = KVFERRY__V1__SET_ROLE_REQUEST__INIT;
    r.node_id = kvf_proto_text(args->positional[0]);
    if (strcmp(args->positional[1], "prefill") == 0)
        r.role = KVFERRY__V1__ROLE__ROLE_PREFILL;
    else if (strcmp(args->positional[1], "decode") == 0)
        r.role = KVFERRY__V1__ROLE__ROLE_DECODE;
    else
        return kvf_cmd_usage(command, "\"%.40s\" is not a role: prefill or decode", args->positional[1]);
    int status;
    ProtobufCMessage *m = ask(o, o->admin, CLUSTER, "SetRole", &r.base, &status);
    if (!m) return status;
    kvf_buf text = {0};
    kvf_buf_printf(&text, "%s does %s work from now on\n", args->positional[0], args->positional[1]);
    return done(m, o, &text);
}

static int run_flush(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__FlushCacheRequest r = KVFERRY__V1__FLUSH_CACHE_REQUEST__INIT;
    r.node_id = kvf_proto_text(args->positional_count ? args->positional[0] : NULL);
    int status;
    ProtobufCMessage *m = ask(o, o->admin, CLUSTER, "FlushCache", &r.base, &status);
    if (!m) return status;
    kvf_buf text = {0};
    kvf_buf_printf(&text, "%llu blocks freed\n",
        (unsigned long long)((const Kvferry__V1__FlushCacheResponse *)(const void *)m)->blocks_freed);
    return done(m, o, &text);
}

static int run_audit(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__AuditRequest r = KVFERRY__V1__AUDIT_REQUEST__INIT;
    int status;
    ProtobufCMessage *m = ask(o, o->admin, CLUSTER, "Audit", &r.base, &status);
    if (!m) return status;
    const Kvferry__V1__AuditResponse *a = (const void *)m;
    kvf_buf text = {0}, held = {0};
    for (size_t i = 0; i < a->n_violations; i++) {
        const Kvferry__V1__Violation *v = a->violations[i];
        kvf_buf_printf(&text, "%.*s: %.*s: %.*s\n", (int)v->node_id.len,
            v->node_id.data ? (const char *)v->node_id.data : "", (int)v->invariant.len,
            v->invariant.data ? (const char *)v->invariant.data : "", (int)v->detail.len,
            v->detail.data ? (const char *)v->detail.data : "");
    }
    bool clean = !kvf_cluster_held_at_rest(a, &held) && a->n_violations == 0;
    if (held.len_bytes) kvf_buf_puts(&text, held.text);
    kvf_buf_printf(&text, "%s: %llu blocks on %zu nodes checked, %zu violations, %s\n", clean ? "clean" : "not clean",
        (unsigned long long)a->blocks_checked, a->n_nodes, a->n_violations,
        a->at_rest ? "at rest" : "requests are running");
    bool rest_wanted = o->strict && !a->at_rest;
    /* With --json the answer is all of stdout; what was found beyond its violations goes to stderr. */
    if (o->json && held.len_bytes) fputs(held.text, stderr);
    kvf_buf_fini(&held);
    done(m, o, &text);
    return clean && !rest_wanted ? KVF_EXIT_OK : KVF_EXIT_FAILED;
}

static int run_health(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Grpc__Health__V1__HealthCheckRequest r = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    char service[128];
    snprintf(service, sizeof service, "%s", args->positional_count ? args->positional[0] : "");
    r.service = service;
    int status;
    ProtobufCMessage *m = ask(o, o->router, &grpc__health__v1__health__descriptor, "Check", &r.base, &status);
    if (!m) return status;
    bool serving = ((const Grpc__Health__V1__HealthCheckResponse *)(const void *)m)->status ==
                   GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    kvf_buf text = {0};
    kvf_buf_puts(&text, serving ? "SERVING\n" : "NOT_SERVING\n");
    done(m, o, &text);
    return serving ? KVF_EXIT_OK : KVF_EXIT_FAILED;
}

static int run_models(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    Kvferry__V1__ListModelsRequest r = KVFERRY__V1__LIST_MODELS_REQUEST__INIT;
    int status;
    ProtobufCMessage *m = ask(o, o->router, &kvferry__v1__inference__descriptor, "ListModels", &r.base, &status);
    if (!m) return status;
    const Kvferry__V1__ListModelsResponse *a = (const void *)m;
    kvf_buf text = {0};
    for (size_t i = 0; i < a->n_models; i++) {
        const Kvferry__V1__ModelInfo *x = a->models[i];
        char bytes[KVF_UNITS_TEXT];
        kvf_buf_printf(&text, "%.*s: %.*s, context %u, vocabulary %u, blocks of %u tokens, %s of KV per token\n",
            (int)x->id.len, x->id.data ? (const char *)x->id.data : "", (int)x->architecture.len,
            x->architecture.data ? (const char *)x->architecture.data : "", x->max_context, x->vocab_size,
            x->block_tokens, kvf_units_bytes((double)x->kv_bytes_per_token, bytes));
    }
    return done(m, o, &text);
}

#define AT(f) offsetof(options, f)
#define ADMIN_ROW                                                                                                      \
    {                                                                                                                  \
        "router", 'r', KVF_ARG_TEXT, "HOST:PORT", "the router's admin address (default " KVF_CLI_ADMIN ")", AT(admin), \
            0, 0, "KVFERRY_ADMIN", false                                                                               \
    }
#define CLIENT_ROW                                                                                                     \
    {                                                                                                                  \
        "router", 'r', KVF_ARG_TEXT, "HOST:PORT", "the router's client address (default " KVF_CLI_ROUTER ")",          \
            AT(router), 0, 0, "KVFERRY_ROUTER", false                                                                  \
    }
#define TLS_ROWS KVF_CLIENT_TLS_ROWS(options, tls)
#define JSON_ROW                                                                                                       \
    { "json", 0, KVF_ARG_FLAG, "", "the answer as one line of JSON", AT(json), 0, 0, NULL, false }

static const kvf_arg admin_rows[] = {ADMIN_ROW, TLS_ROWS, JSON_ROW};
static const kvf_arg client_rows[] = {CLIENT_ROW, TLS_ROWS, JSON_ROW};
static const kvf_arg kv_rows[] = {
    ADMIN_ROW,
    TLS_ROWS,
    {"node", 0, KVF_ARG_TEXT, "NODE", "of this node only", AT(node), 0, 0, NULL, false},
    {"request", 0, KVF_ARG_TEXT, "ID", "held by this request", AT(request), 0, 0, NULL, false},
    {"prefix", 0, KVF_ARG_TEXT, "HASH", "of this prefix (32 hex digits)", AT(prefix), 0, 0, NULL, false},
    {"limit", 0, KVF_ARG_U32, "N", "at most N blocks (default 100000)", AT(limit), 1, 10000000, NULL, false},
    {"blocks", 'b', KVF_ARG_FLAG, "", "a line for each block: pins, holders, prefix", AT(blocks), 0, 0, NULL, false},
    JSON_ROW,
};
static const kvf_arg audit_rows[] = {
    ADMIN_ROW,
    TLS_ROWS,
    {"at-rest", 0, KVF_ARG_FLAG, "", "fail as well while requests run", AT(strict), 0, 0, NULL, false},
    JSON_ROW,
};

#define COMMAND(var, text, args_text, least, most, what, more, table, fn)                                              \
    const kvf_command var = {.name = text,                                                                             \
        .positional = args_text,                                                                                       \
        .positional_min = least,                                                                                       \
        .positional_max = most,                                                                                        \
        .summary = what,                                                                                               \
        .about = more,                                                                                                 \
        .rows = table,                                                                                                 \
        .rows_count = KVF_COUNT_OF(table),                                                                             \
        .options_bytes = sizeof(options),                                                                              \
        .defaults = &defaults,                                                                                         \
        .run = fn}
COMMAND(kvf_cmd_nodes, "nodes", "", 0, 0, "the nodes of a cluster, their blocks, and the pairs between them", NULL,
    admin_rows, run_nodes);
COMMAND(kvf_cmd_kv, "kv", "", 0, 0, "who holds which KV block, by node, request and prefix",
    "  CACHED: held by nobody, kept for its prefix. SHARED: held by two requests or more.\n"
    "  DUPLICATES: blocks whose prefix another block of the same node holds too.",
    kv_rows, run_kv);
COMMAND(kvf_cmd_drain, "drain", "NODE", 1, 1, "give a node no new requests; those on it finish", NULL, admin_rows,
    run_drain);
COMMAND(kvf_cmd_undrain, "undrain", "NODE", 1, 1, "give a drained node requests again", NULL, admin_rows, run_undrain);
COMMAND(kvf_cmd_role, "role", "NODE prefill|decode", 2, 2, "change what a node does", NULL, admin_rows, run_role);
COMMAND(kvf_cmd_audit, "audit", "", 0, 0, "every node checks its blocks; exit status 1 when something is wrong",
    "  Not clean: a broken invariant, or blocks pinned, filling or booked although nothing runs.", audit_rows,
    run_audit);
COMMAND(kvf_cmd_flush, "flush", "[NODE]", 0, 1, "forget cached prefixes, of one node or of all", NULL, admin_rows,
    run_flush);
COMMAND(kvf_cmd_health, "health", "[SERVICE]", 0, 1, "exit status 0 when serving, 1 when not, 69 when nothing answers",
    "  SERVICE: liveness, readiness, kvferry.v1.Inference (default: the server as a whole). Any listener answers.",
    client_rows, run_health);
COMMAND(kvf_cmd_models, "models", "", 0, 0, "what a router serves", NULL, client_rows, run_models);
