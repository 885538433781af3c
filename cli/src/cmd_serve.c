/* serve: a whole cluster on this host: a router, prefill and decode nodes, each its own process, control over Unix
 * sockets in a private directory. This process only supervises them: it loads no model and never starts gRPC (see
 * supervisor.h). */
#include "buf.h"
#include "cmd.h"
#include "kvf/cores.h"
#include "kvf/log.h"
#include "kvf/model_spec.h"
#include "kvf/os.h"
#include "runtime_dir.h"
#include "settings.h"
#include "supervisor.h"
#include "tls_settings.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NODES_MAX = 32, STRINGS_MAX = NODES_MAX * 7 + KVF_SETTINGS_FLAGS_MAX + 16 };

typedef struct {
    const kvf_settings_options *o;
    const kvf_config *config;
    kvf_runtime_dir dir; /* of our sockets */
    const char *flags[KVF_SETTINGS_FLAGS_MAX]; /* what was given to us, for each of them */
    uint32_t nodes, nodes_all;
    kvf_host_cores cores; /* that the nodes divide; none: they are not divided */
    uint32_t threads; /* of each node; 0: all cores, its own and those lent */
    const char *cores_shared; /* the file in which they are lent, or NULL */
    kvf_child children[NODES_MAX + 1]; /* the router is the last */
    char *strings[STRINGS_MAX]; /* owned: what argv points at */
    uint32_t strings_count;
} cluster;

/* Parts, up to NULL, as one text that lives as long as the cluster. */
static const char *keep(cluster *k, const char *const *parts) {
    kvf_buf text = {0};
    for (; *parts; parts++) kvf_buf_puts(&text, *parts);
    KVF_ASSERT(k->strings_count < STRINGS_MAX);
    k->strings[k->strings_count++] = text.text;
    return text.text;
}

#define KEEP(k, ...) keep(k, (const char *const[]){__VA_ARGS__, NULL})

static void arg(kvf_child *c, const char *text) {
    for (uint32_t i = 0; i + 1 < KVF_CHILD_ARGS_MAX; i++) {
        if (c->argv[i]) continue;
        c->argv[i] = text;
        return;
    }
    KVF_ASSERT(!"too many arguments");
}

/* A free port of loopback, found by binding it: the fallback where no socket path is short enough. It must stay the
 * same when a node starts again, so the node cannot choose it. */
static uint32_t free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    uint32_t port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0) close(fd);
    return port;
}

static void add_common(cluster *k, kvf_child *c) {
    if (k->o->file) {
        arg(c, "--config");
        arg(c, k->o->file);
    }
    for (uint32_t i = 0; i < k->o->flags_count; i++) arg(c, k->flags[i]);
}

/* Where nobody said how many threads: each node has cores of its own, and the file makes idle ones common. Not where
 * there are fewer cores than nodes, or a quota instead of cores: then each has its share of threads anywhere. */
static void divide_cores(cluster *k, uint32_t nodes) {
    char path[128];
    k->nodes_all = nodes;
    k->threads = kvf_config_u32(k->config, "engine.threads");
    if (k->threads || strcmp(kvf_config_string(k->config, "engine.backend"), "cpu") != 0) return;
    if (kvf_config_string(k->config, "engine.cores")) return;
    if (!kvf_host_cores_read(&k->cores) || k->cores.count < nodes) {
        k->cores.count = 0;
        k->threads = KVF_MAX(kvf_os_cpu_count() / nodes, 1u);
        return;
    }
    if (!k->dir.path[0]) return;
    snprintf(path, sizeof path, "%s/cores", k->dir.path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && ftruncate(fd, KVF_CORES_FILE_BYTES) == 0) k->cores_shared = KEEP(k, path);
    if (fd >= 0) close(fd);
}

/* The cores of node `index`: "0-3". */
static void cores_text(const cluster *k, uint32_t index, char *text, size_t size) {
    uint16_t cpus[KVF_CORES_MAX];
    kvf_cores_text(cpus, kvf_host_cores_share(&k->cores, index, k->nodes_all, cpus), text, size);
}

static void add_cores(cluster *k, kvf_child *c) {
    char text[KVF_CORES_TEXT_MAX];
    if (k->threads && kvf_config_u32(k->config, "engine.threads") == 0) {
        snprintf(text, sizeof text, "%u", k->threads);
        arg(c, KEEP(k, "--threads=", text));
    } else if (k->cores.count) {
        cores_text(k, k->nodes, text, sizeof text);
        arg(c, KEEP(k, "--cores=", text));
        if (k->cores_shared) arg(c, "--cores-shared");
        if (k->cores_shared) arg(c, k->cores_shared);
    }
}

static void log_division(const cluster *k, uint32_t prefill, uint32_t decode) {
    kvf_buf text = {0};
    if (k->cores.count) {
        for (uint32_t i = 0; i < k->nodes_all; i++) {
            char cores[KVF_CORES_TEXT_MAX];
            cores_text(k, i, cores, sizeof cores);
            kvf_buf_printf(&text, "%s%s %s", i ? ", " : "cores ", k->children[i].name, cores);
        }
        kvf_buf_puts(&text, k->cores_shared ? ", idle ones are lent" : "");
    } else {
        uint32_t cores = kvf_os_cpu_count();
        kvf_buf_printf(&text, "%u threads each, on %u cores", k->threads ? k->threads : cores, cores);
    }
    kvf_log(KVF_LOG_INFO, "serve", "%u prefill + %u decode nodes, %s; KV memory %llu MiB each", prefill, decode,
        text.text, (unsigned long long)(kvf_config_u64(k->config, "kv.memory") >> 20));
    kvf_buf_fini(&text);
}

/* Which device of the list, and its share: nodes on the same device divide that, so that none finds it full. */
static void add_device(cluster *k, kvf_child *c) {
    static const char key[] = "engine.devices";
    if (strcmp(kvf_config_string(k->config, "engine.backend"), "cpu") == 0) return;
    size_t devices = kvf_config_list_count(k->config, key), mine = k->nodes % devices;
    const char *device = kvf_config_list_string(k->config, key, mine);
    uint32_t sharing = 0, percent = kvf_settings_memory_percent(k->config, mine);
    for (uint32_t i = 0; i < k->nodes_all; i++)
        sharing += strcmp(kvf_config_list_string(k->config, key, i % devices), device) == 0;
    char text[16];
    snprintf(text, sizeof text, "%u", percent ? KVF_MAX(percent / sharing, 1u) : 0);
    arg(c, KEEP(k, "--devices=", device));
    arg(c, KEEP(k, "--device-memory-percent=", text));
}

static void add_node(cluster *k, const char *command, char letter, uint32_t index, kvf_child *router) {
    kvf_child *c = &k->children[k->nodes];
    char id[16], address[160];
    snprintf(id, sizeof id, "%c%u", letter, index);
    if (k->dir.path[0])
        snprintf(address, sizeof address, "unix:%s/%s.sock", k->dir.path, id);
    else
        snprintf(address, sizeof address, "127.0.0.1:%u", free_port());
    c->name = KEEP(k, id);
    c->stage = 1;
    arg(c, "kvferry");
    arg(c, command);
    add_common(k, c);
    arg(c, KEEP(k, "--node-id=", id));
    arg(c, KEEP(k, "--control=", address));
    add_cores(k, c);
    add_device(k, c);
    arg(router, KEEP(k, "--node=", id, letter == 'p' ? ",prefill," : ",decode,", address));
    k->nodes++;
}

/* The admin listener follows the client listener: a free port where that one is free, so that two clusters never meet
 * on 7071. */
static const char *admin_of(cluster *k) {
    char source[64];
    const char *listen = kvf_config_string(k->config, "router.listen");
    kvf_config_source(k->config, "router.admin", source, sizeof source);
    size_t len = strlen(listen);
    bool free_choice = len > 2 && strcmp(listen + len - 2, ":0") == 0;
    return free_choice && strcmp(source, "default") == 0 ? "127.0.0.1:0" : kvf_config_string(k->config, "router.admin");
}

static void build(cluster *k, uint32_t prefill, uint32_t decode) {
    kvf_child *router = &k->children[prefill + decode];
    for (uint32_t i = 0; i < k->o->flags_count; i++) k->flags[i] = KEEP(k, "--", k->o->flags[i]);
    router->name = "router";
    router->front = true;
    arg(router, "kvferry");
    arg(router, "router");
    add_common(k, router);
    arg(router, "--when-connected");
    for (uint32_t i = 0; i < prefill; i++) add_node(k, "prefill-node", 'p', i, router);
    for (uint32_t i = 0; i < decode; i++) add_node(k, "decode-node", 'd', i, router);
    arg(router, "--node-id=router");
    arg(router, KEEP(k, "--admin=", admin_of(k)));
    arg(router, KEEP(k, "--listen=", kvf_config_string(k->config, "router.listen")));
}

/* The router took free ports: when it starts again it must take the same. */
static void on_ready(void *self, uint32_t index, const char *line) {
    cluster *k = self;
    kvf_child *router = &k->children[k->nodes];
    if (index != k->nodes || k->strings_count + 2 > STRINGS_MAX) return;
    uint32_t last = 0;
    while (router->argv[last + 1]) last++;
    static const struct {
        const char *key, *flag;
        uint32_t from_end;
    } fields[] = {{" grpc=", "--listen=", 0}, {" admin=", "--admin=", 1}};
    for (size_t i = 0; i < KVF_COUNT_OF(fields); i++) {
        const char *at = strstr(line, fields[i].key);
        if (!at) continue;
        at += strlen(fields[i].key);
        char address[256];
        snprintf(address, sizeof address, "%.*s", (int)KVF_MIN(strcspn(at, " "), sizeof address - 1), at);
        const char *flag = KEEP(k, fields[i].flag, address);
        if (strcmp(router->argv[last - fields[i].from_end], flag) != 0)
            router->argv[last - fields[i].from_end] = flag;
        else
            free(k->strings[--k->strings_count]);
    }
}

/* The model's head is read here, so that a bad file is one clear line and not one from each child. */
static kvf_status check_model(const char *path, kvf_error *err) {
    kvf_gguf *g;
    kvf_model_spec spec;
    kvf_status status = kvf_gguf_open(path, &g, err);
    if (status != KVF_OK) return status;
    status = kvf_model_spec_load(g, &spec, err);
    if (status == KVF_OK) kvf_model_spec_free(&spec);
    kvf_gguf_close(g);
    return status;
}

/* So are files and addresses that every child would refuse. */
static int check_networks(const kvf_config *c) {
    kvf_tls_settings tls;
    int status = kvf_tls_settings_open(c, true, &tls);
    static const char *const keys[] = {"router.listen", "router.admin", "node.transfer"};
    const kvf_tls_store *by[] = {tls.clients, tls.admin, tls.cluster};
    for (size_t i = 0; i < KVF_COUNT_OF(keys) && status == KVF_EXIT_OK; i++)
        status = kvf_tls_settings_guard(c, keys[i], kvf_config_string(c, keys[i]), by[i] != NULL);
    kvf_tls_settings_close(&tls);
    return status;
}

static int supervise(cluster *k, uint32_t prefill, uint32_t decode) {
    if (!kvf_runtime_dir_create(&k->dir))
        kvf_log(KVF_LOG_WARN, "serve", "no short private directory for sockets: nodes listen on loopback ports");
    divide_cores(k, prefill + decode);
    build(k, prefill, decode);
    log_division(k, prefill, decode);
    kvf_supervisor_options s = {.program = "/proc/self/exe",
        .children = k->children,
        .count = k->nodes + 1,
        .ready_fd = STDOUT_FILENO,
        .stop_limit_ns = kvf_config_u64(k->config, "router.drain_timeout") + 10 * KVF_NS_PER_S,
        .on_ready = on_ready,
        .self = k};
    int status = kvf_supervisor_run(&s);
    kvf_runtime_dir_remove(&k->dir);
    return status;
}

static int run(const kvf_command *command, const void *options, const kvf_args *args) {
    const kvf_settings_options *o = options;
    int status;
    uint32_t first; /* device: each node reads its own */
    kvf_error err = {0};
    cluster *k = calloc(1, sizeof *k);
    kvf_config *c = kvf_settings_load(command, o, &status);
    if (!k || !c) goto done;
    kvf_settings_apply_log(c, "");
    k->o = o;
    k->config = c;
    const char *model = kvf_config_string(c, "model.path");
    if (!model) {
        status = kvf_cmd_usage(command, "--model FILE is needed");
    } else if (o->prefill + o->decode > NODES_MAX) {
        status = kvf_cmd_usage(
            command, "--prefill %u --decode %u: at most %d nodes in all", o->prefill, o->decode, NODES_MAX);
    } else if ((status = kvf_settings_devices(c, &first)) != KVF_EXIT_OK) {
        goto done; /* which has been said */
    } else if (check_model(model, &err) != KVF_OK) {
        status = kvf_cmd_failed(&err);
    } else if ((status = check_networks(c)) == KVF_EXIT_OK) {
        status = supervise(k, o->prefill, o->decode);
    }
done:
    if (c) kvf_config_destroy(c);
    for (uint32_t i = 0; k && i < k->strings_count; i++) free(k->strings[i]);
    free(k);
    return status;
}

#define AT(f) offsetof(kvf_settings_options, f)
static const kvf_arg rows[] = {
    {"prefill", 0, KVF_ARG_U32, "N", "prefill nodes (default 1)", AT(prefill), 1, NODES_MAX, NULL, false},
    {"decode", 0, KVF_ARG_U32, "N", "decode nodes (default 1)", AT(decode), 1, NODES_MAX, NULL, false},
    {"config", 'c', KVF_ARG_TEXT, "FILE", "YAML file for all of them", AT(file), 0, 0, "KVFERRY_CONFIG", false},
};
static const kvf_settings_options defaults = {.prefill = 1, .decode = 1};
const kvf_command kvf_cmd_serve = {
    .name = "serve",
    .positional = "",
    .summary = "a whole cluster on this host, each role its own process",
    .about = "  Prints one line to stdout when it can answer: ready grpc=ADDRESS admin=ADDRESS. A process that dies is "
             "started again.\n"
             "  TERM or Ctrl-C: running requests may finish; twice: stop now. Threads and KV memory are of each node.",
    .rows = rows,
    .rows_count = KVF_COUNT_OF(rows),
    .options_bytes = sizeof(kvf_settings_options),
    .defaults = &defaults,
    .other = kvf_settings_other,
    .other_help = kvf_settings_help,
    .fini = kvf_settings_fini,
    .run = run,
};
