/* router, prefill-node, decode-node: one role in this process. */
#include "cmd.h"
#include "kvf/log.h"
#include "kvf/os.h"
#include "kvf/router_shell.h"
#include "kvf/worker.h"
#include "kvferry/v1/kvferry.pb-c.h"
#include "settings.h"
#include "signals.h"
#include "tls_settings.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The name of this process in the cluster: as configured, else role and host. */
static void node_name(const kvf_config *c, const char *role, char *out, size_t out_bytes) {
    char host[128] = "";
    if (kvf_config_is_set(c, "cluster.node_id")) {
        snprintf(out, out_bytes, "%s", kvf_config_string(c, "cluster.node_id"));
        return;
    }
    gethostname(host, sizeof host - 1);
    snprintf(out, out_bytes, "%s-%s", role, host);
}

static int guard(const kvf_config *c, const char *key, const kvf_tls_store *tls) {
    return kvf_tls_settings_guard(c, key, kvf_config_string(c, key), tls != NULL);
}

static int failed(const kvf_error *err) {
    kvf_cmd_failed(err);
    return KVF_EXIT_FAILED;
}

/* ---- nodes ---- */

static bool has_transport(const kvf_config *c, const char *name) {
    for (size_t i = 0; i < kvf_config_list_count(c, "node.transports"); i++)
        if (strcmp(kvf_config_list_string(c, "node.transports", i), name) == 0) return true;
    return false;
}

static const char *kernels_of(const kvf_config *c) {
    const char *family = kvf_config_string(c, "engine.kernels"), *cpu = getenv("KVFERRY_CPU");
    if (strcmp(family, "auto") != 0) return family;
    return cpu && *cpu ? cpu : NULL;
}

static kvf_kv_type kv_type_of(const kvf_config *c) {
    kvf_kv_type type = KVF_KV_F16;
    bool known = kvf_kv_type_find(kvf_config_string(c, "engine.kv_type"), &type);
    KVF_ASSERT(known); /* the schema lists them */
    return type;
}

static kvf_weights weights_of(const kvf_config *c) {
    kvf_weights weights = KVF_WEIGHTS_AUTO;
    bool known = kvf_weights_find(kvf_config_string(c, "engine.weights"), &weights);
    KVF_ASSERT(known); /* the schema lists them */
    return weights;
}

/* Where packed weights are kept, written to `room`; NULL: nowhere. A small file is packed sooner than looked up. */
static const char *cache_folder(const kvf_config *c, char *room, size_t room_bytes) {
    enum { CACHED_MIN_BYTES = 16 << 20 };
    const char *set = kvf_config_string(c, "engine.cache"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (strcmp(set, "off") == 0) return NULL;
    if (strcmp(set, "auto") != 0) return set;
    struct stat st;
    if (stat(kvf_config_string(c, "model.path"), &st) != 0 || st.st_size < CACHED_MIN_BYTES) return NULL;
    int length = -1;
    if (cache && cache[0] == '/')
        length = snprintf(room, room_bytes, "%s/kvferry", cache);
    else if (home && home[0] == '/')
        length = snprintf(room, room_bytes, "%s/.cache/kvferry", home);
    return length > 0 && (size_t)length < room_bytes ? room : NULL;
}

static void worker_options_of(const kvf_config *c, kvf_role role, const char *name, kvf_worker_options *w) {
    bool prefill = role == KVF_ROLE_PREFILL;
    kvf_worker_options_default(w);
    w->name = name;
    w->role = role;
    w->model_path = kvf_config_string(c, "model.path");
    w->precision = strcmp(kvf_config_string(c, "engine.precision"), "exact") ? KVF_PRECISION_FAST : KVF_PRECISION_EXACT;
    w->weights = weights_of(c);
    w->kv_type = kv_type_of(c);
    w->kernels = kernels_of(c);
    w->backend = kvf_config_string(c, "engine.backend");
    w->plugin = kvf_config_string(c, "engine.plugin");
    w->threads = kvf_config_u32(c, "engine.threads");
    w->cores = kvf_config_string(c, "engine.cores");
    w->cores_shared = kvf_config_string(c, "engine.cores_shared");
    w->context_max = kvf_config_u32(c, "engine.context");
    w->kv_memory_bytes = kvf_config_u64(c, "kv.memory");
    w->listen = kvf_config_string(c, "node.control");
    w->listen_transfer = has_transport(c, "tcp") ? kvf_config_string(c, "node.transfer") : NULL;
    w->advertise_host = kvf_config_string(c, "node.advertise");
    w->allow_unequal_numerics = kvf_config_bool(c, "cluster.unequal_numerics");
    w->shm = has_transport(c, "shm");
    w->cuda_ipc = has_transport(c, "cuda_ipc");
    w->nccl = has_transport(c, "nccl");
    w->comms_max = kvf_config_u32(c, "transfer.communicators_max");
    w->comm_idle_ns = kvf_config_u64(c, "transfer.communicator_idle");
    w->chunk_tokens = kvf_config_u32(c, "prefill.chunk_tokens");
    w->chunk_tokens_mixed = kvf_config_u32(c, "decode.prefill_chunk_tokens");
    w->sequences_max = kvf_config_u32(c, "decode.sequences_max");
    w->queue_max = kvf_config_u32(c, prefill ? "prefill.queue_max_requests" : "decode.queue_max_requests");
    w->expected_output = kvf_config_u32(c, "decode.expected_output");
    w->grant_ttl_ns = kvf_config_u64(c, "transfer.grant_ttl");
    w->hold_ttl_ns = kvf_config_u64(c, "transfer.hold_ttl");
    w->router_grace_ns = kvf_config_u64(c, "node.router_grace");
    w->queue_ttl_ns = kvf_config_u64(c, "decode.queue_timeout");
    w->heartbeat_ns = kvf_config_u64(c, "transfer.heartbeat");
    w->peer_timeout_ns = kvf_config_u64(c, "transfer.peer_timeout");
    w->status_interval_ns = kvf_config_u64(c, "node.heartbeat");
    w->drain_ns = kvf_config_u64(c, "node.drain_timeout");
    w->stall_limit_ns = kvf_config_u64(c, "node.stall_limit");
}

static void stop_worker(void *self, int signal, uint32_t times) { kvf_worker_stop(self); }

static int run_worker(const kvf_config *c, kvf_role role, const char *name, kvf_tls_settings *tls) {
    kvf_worker_options options;
    worker_options_of(c, role, name, &options);
    char cache[512];
    options.cache_folder = cache_folder(c, cache, sizeof cache);
    int status = kvf_settings_devices(c, &options.device);
    if (status != KVF_EXIT_OK) return status;
    options.device_memory_share = kvf_settings_memory_percent(c, 0) / 100.0;
    options.tls = tls->cluster;
    char source[64]; /* NCCL has no encryption: beside certificates it takes somebody who asks for it */
    kvf_config_source(c, "node.transports", source, sizeof source);
    if (tls->cluster && strcmp(source, "default") == 0) options.nccl = false;
    kvf_error err = {0};
    kvf_worker *w = NULL;
    kvf_signals_block();
    kvf_tls_settings_watch(tls);
    if (kvf_worker_create(&options, &w, &err) != KVF_OK) return failed(&err);
    kvf_signals *signals;
    status = KVF_EXIT_FAILED;
    if (kvf_signals_start(stop_worker, w, &signals) == KVF_OK) {
        printf("ready control=%s\n", kvf_worker_control_address(w));
        fflush(stdout);
        status = kvf_worker_run(w) == KVF_OK ? KVF_EXIT_OK : KVF_EXIT_FAILED;
        kvf_signals_stop(signals);
    }
    kvf_worker_destroy(w);
    return status;
}

static int run_node(const kvf_command *command, const kvf_settings_options *o, kvf_role role) {
    int status;
    kvf_config *c = kvf_settings_load(command, o, &status);
    if (!c) return status;
    char name[128];
    node_name(c, role == KVF_ROLE_PREFILL ? "prefill" : "decode", name, sizeof name);
    kvf_settings_apply_log(c, name);
    kvf_tls_settings tls = {0};
    if (!kvf_config_is_set(c, "model.path"))
        status = kvf_settings_wrong(c, "model.path", "is needed (--model FILE)");
    else if ((status = kvf_tls_settings_open(c, false, &tls)) == KVF_EXIT_OK &&
             (status = guard(c, "node.control", tls.cluster)) == KVF_EXIT_OK &&
             (status = guard(c, "node.transfer", tls.cluster)) == KVF_EXIT_OK)
        status = run_worker(c, role, name, &tls);
    kvf_tls_settings_close(&tls);
    kvf_config_destroy(c);
    return status;
}

static int run_prefill(const kvf_command *command, const void *options, const kvf_args *args) {
    return run_node(command, options, KVF_ROLE_PREFILL);
}
static int run_decode(const kvf_command *command, const void *options, const kvf_args *args) {
    return run_node(command, options, KVF_ROLE_DECODE);
}

/* ---- router ---- */

#define NODES_MAX KVF_ROUTER_NODES_MAX
typedef struct {
    kvf_router_shell_node nodes[NODES_MAX];
    uint32_t count;
    char texts[NODES_MAX][512]; /* of --node: cut in place */
} membership;

static bool role_of(const char *text, kvf_role *role) {
    if (strcmp(text, "prefill") == 0)
        *role = KVF_ROLE_PREFILL;
    else if (strcmp(text, "decode") == 0)
        *role = KVF_ROLE_DECODE;
    else
        return false;
    return true;
}

static int add_flag_node(const kvf_command *command, const char *text, membership *m) {
    if (m->count == NODES_MAX || strlen(text) >= sizeof m->texts[0])
        return kvf_cmd_usage(command, "--node: too many or too long (at most %d nodes)", NODES_MAX);
    char *copy = m->texts[m->count];
    strcpy(copy, text);
    kvf_router_shell_node *n = &m->nodes[m->count];
    char *role = strchr(copy, ','), *address = role ? strchr(role + 1, ',') : NULL;
    if (!address) return kvf_cmd_usage(command, "--node: \"%.80s\" is not ID,ROLE,ADDRESS", text);
    *role++ = 0;
    *address++ = 0;
    if (!role_of(role, &n->role))
        return kvf_cmd_usage(command, "--node: \"%.40s\" is not a role: prefill or decode", role);
    if (!kvf_config_address_valid(address))
        return kvf_cmd_usage(command, "--node: \"%.80s\" is not an address: host:port or unix:/path", address);
    n->id = copy;
    n->address = address;
    m->count++;
    return KVF_EXIT_OK;
}

/* Nodes named on the command line replace those of the file, as with every other key. */
static int read_membership(
    const kvf_command *command, const kvf_config *c, const kvf_settings_options *o, membership *m) {
    for (uint32_t i = 0; i < o->nodes.count; i++) {
        int status = add_flag_node(command, o->nodes.text[i], m);
        if (status != KVF_EXIT_OK) return status;
    }
    if (m->count) return KVF_EXIT_OK;
    size_t listed = kvf_config_list_count(c, "router.nodes");
    if (listed == 0)
        return kvf_settings_wrong(c, "router.nodes", "no nodes: list them in the file, or --node ID,ROLE,ADDRESS");
    if (listed > NODES_MAX) return kvf_settings_wrong(c, "router.nodes", "more than %d nodes", NODES_MAX);
    for (size_t i = 0; i < listed; i++) {
        kvf_router_shell_node *n = &m->nodes[m->count++];
        n->id = kvf_config_map_string(c, "router.nodes", i, "id");
        n->address = kvf_config_map_string(c, "router.nodes", i, "address");
        if (!role_of(kvf_config_map_string(c, "router.nodes", i, "role"), &n->role)) n->role = 0;
    }
    return KVF_EXIT_OK;
}

static int guard_router(const kvf_config *c, const membership *m, const kvf_tls_settings *tls) {
    int status = guard(c, "router.listen", tls->clients);
    if (status == KVF_EXIT_OK) status = guard(c, "router.admin", tls->admin);
    for (uint32_t i = 0; i < m->count && status == KVF_EXIT_OK; i++)
        status = kvf_tls_settings_guard(c, "router.nodes", m->nodes[i].address, tls->cluster != NULL);
    return status;
}

static uint32_t ship_min_of(const kvf_config *c) {
    const char *mode = kvf_config_string(c, "router.disaggregate");
    if (strcmp(mode, "always") == 0) return 0;
    return strcmp(mode, "never") == 0 ? UINT32_MAX : kvf_config_u32(c, "router.disaggregate_min_tokens");
}

static void router_options_of(const kvf_config *c, const char *name, const membership *m, kvf_router_shell_options *r) {
    kvf_router_shell_options_default(r);
    r->name = name;
    r->model_path = kvf_config_string(c, "model.path");
    r->model_id = kvf_config_string(c, "model.id");
    r->listen = kvf_config_string(c, "router.listen");
    r->listen_admin = kvf_config_string(c, "router.admin");
    r->nodes = m->nodes;
    r->nodes_count = m->count;
    r->core.context_max = kvf_config_u32(c, "engine.context");
    r->core.queue_max_requests = kvf_config_u32(c, "router.queue_max_requests");
    r->core.queue_max_tokens = kvf_config_u64(c, "router.queue_max_tokens");
    r->core.ready_grace_ns = kvf_config_u64(c, "router.ready_grace");
    r->core.ship_min = ship_min_of(c);
    r->core.allow_other_numerics = kvf_config_bool(c, "cluster.unequal_numerics");
    r->core.strict = !kvf_config_bool(c, "router.prefill_fallback");
    r->core.status_timeout_ns = kvf_config_u64(c, "router.node_timeout");
    r->core.reconnect_grace_ns = kvf_config_u64(c, "router.node_grace");
    r->core.transfer_stall_ns = kvf_config_u64(c, "router.transfer_stall");
    r->core.attempts_max = kvf_config_u32(c, "router.attempts_max");
    r->stop_sequences_max = kvf_config_u32(c, "router.stop_max_count");
    r->stop_sequence_bytes_max = kvf_config_u32(c, "router.stop_max_bytes");
    r->message_bytes_max = kvf_config_u64(c, "router.message_max");
    r->stream_buffer_bytes = kvf_config_u64(c, "router.stream_buffer");
    r->drain_ns = kvf_config_u64(c, "router.drain_timeout");
}

/* Says "ready" once, at once or (under serve) when every configured node is there. */
typedef struct {
    kvf_router_shell *shell;
    uint32_t nodes;
    atomic_bool stop;
} announcer;

static void *announce(void *arg) {
    announcer *a = arg;
    while (!atomic_load(&a->stop) && kvf_router_shell_ready(a->shell) < a->nodes) usleep(20000);
    if (!atomic_load(&a->stop)) {
        printf(
            "ready grpc=%s admin=%s\n", kvf_router_shell_address(a->shell), kvf_router_shell_admin_address(a->shell));
        fflush(stdout);
    }
    return NULL;
}

static void stop_router(void *self, int signal, uint32_t times) {
    announcer *a = self;
    atomic_store(&a->stop, true);
    kvf_router_shell_stop(a->shell);
}

static int run_shell(const kvf_router_shell_options *options, kvf_tls_settings *tls, bool when_connected) {
    kvf_error err = {0};
    announcer a = {.nodes = when_connected ? options->nodes_count : 0};
    kvf_signals_block();
    kvf_tls_settings_watch(tls);
    if (kvf_router_shell_create(options, &a.shell, &err) != KVF_OK) return failed(&err);
    int status = KVF_EXIT_FAILED;
    kvf_signals *signals;
    pthread_t thread;
    if (kvf_signals_start(stop_router, &a, &signals) != KVF_OK) goto undo_shell;
    if (pthread_create(&thread, NULL, announce, &a) != 0) goto undo_signals;
    status = kvf_router_shell_run(a.shell) == KVF_OK ? KVF_EXIT_OK : KVF_EXIT_FAILED;
    atomic_store(&a.stop, true);
    pthread_join(thread, NULL);
undo_signals:
    kvf_signals_stop(signals);
undo_shell:
    kvf_router_shell_destroy(a.shell);
    return status;
}

static int run_router(const kvf_command *command, const void *opts, const kvf_args *args) {
    const kvf_settings_options *o = opts;
    int status;
    kvf_config *c = kvf_settings_load(command, o, &status);
    membership *m = calloc(1, sizeof *m);
    kvf_tls_settings tls = {0};
    if (c && m) {
        char name[128];
        node_name(c, "router", name, sizeof name);
        kvf_settings_apply_log(c, name);
        if (!kvf_config_is_set(c, "model.path"))
            status = kvf_settings_wrong(c, "model.path", "is needed (--model FILE): the router tokenises");
        else if ((status = read_membership(command, c, o, m)) == KVF_EXIT_OK &&
                 (status = kvf_tls_settings_open(c, true, &tls)) == KVF_EXIT_OK &&
                 (status = guard_router(c, m, &tls)) == KVF_EXIT_OK) {
            kvf_router_shell_options r;
            router_options_of(c, name, m, &r);
            r.tls = tls.cluster;
            r.tls_clients = tls.clients;
            r.tls_admin = tls.admin;
            status = run_shell(&r, &tls, o->when_connected);
        }
    }
    kvf_tls_settings_close(&tls);
    free(m);
    if (c) kvf_config_destroy(c);
    return status;
}

#define AT(f) offsetof(kvf_settings_options, f)
#define CONFIG_ROW                                                                                                     \
    { "config", 'c', KVF_ARG_TEXT, "FILE", "YAML file", AT(file), 0, 0, "KVFERRY_CONFIG", false }
static const kvf_arg node_rows[] = {CONFIG_ROW};
static const kvf_arg router_rows[] = {
    CONFIG_ROW,
    {"node", 0, KVF_ARG_TEXTS, "ID,ROLE,ADDRESS", "a node and its control address; may be repeated", AT(nodes), 0, 0,
        NULL, false},
    {"when-connected", 0, KVF_ARG_FLAG, "", "say ready when all nodes are connected", AT(when_connected), 0, 0, NULL,
        true},
};

#define ROLE_COMMAND(var, text, what, table, fn)                                                                       \
    const kvf_command var = {.name = text,                                                                             \
        .positional = "",                                                                                              \
        .summary = what,                                                                                               \
        .about = "  Prints one line to stdout when it can answer: ready ...=ADDRESS. TERM or Ctrl-C: running "         \
                 "requests may finish; twice: "                                                                        \
                 "stop now.",                                                                                          \
        .rows = table,                                                                                                 \
        .rows_count = KVF_COUNT_OF(table),                                                                             \
        .options_bytes = sizeof(kvf_settings_options),                                                                 \
        .other = kvf_settings_other,                                                                                   \
        .other_help = kvf_settings_help,                                                                               \
        .fini = kvf_settings_fini,                                                                                     \
        .run = fn}
ROLE_COMMAND(kvf_cmd_router, "router", "the router: takes requests, assigns nodes", router_rows, run_router);
ROLE_COMMAND(kvf_cmd_prefill_node, "prefill-node", "a node that computes prompts", node_rows, run_prefill);
ROLE_COMMAND(kvf_cmd_decode_node, "decode-node", "a node that generates tokens", node_rows, run_decode);
