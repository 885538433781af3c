/* kvf/router_shell.h - a router process: the router core, its sessions to nodes, the client API and the admin API.
 *
 * Threads: the caller of run owns the core and everything that is told to clients (one libevent base). Two workers
 * check input, render templates and tokenise. gRPC loops only hand over. They meet in one inbox. */
#ifndef KVF_ROUTER_SHELL_H
#define KVF_ROUTER_SHELL_H
#include "kvf/router.h"
#include "kvf/tls.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *id; /* configured name; "" or NULL: the first Welcome names it */
    kvf_role role; /* 0: unknown */
    const char *address; /* of its control listener: "host:port", "unix:/path" */
} kvf_router_shell_node;

typedef struct {
    const char *name;
    const char *model_path; /* GGUF: tokenizer, template, limits, identity */
    const char *model_id; /* NULL: the name in the file */
    const char *listen; /* clients: "127.0.0.1:0", "unix:/path" */
    const char *listen_admin;
    /* All kept; NULL: plain, as Unix sockets always are. tls: ours towards nodes. Of the listeners, each that has an
     * authority demands a certificate of it. */
    kvf_tls_store *tls, *tls_clients, *tls_admin;
    const kvf_router_shell_node *nodes;
    uint32_t nodes_count;
    /* name, epoch and the model's hashes are filled here; context_max is cut to the model's (0: the model's). */
    kvf_router_config core;
    uint32_t stop_sequences_max, stop_sequence_bytes_max;
    size_t message_bytes_max; /* one request */
    size_t stream_buffer_bytes; /* waiting for a slow reader; past it the request ends */
    uint32_t loops, workers; /* threads of gRPC; threads that tokenise */
    uint32_t jobs_max; /* requests that wait for a worker */
    uint32_t timelines; /* finished requests that are remembered */
    kvf_time_ns drain_ns; /* running streams may go on for so long after stop */
    kvf_time_ns node_answer_ns; /* an admin call waits so long for nodes */
    /* Core thread, at each change: whether requests can be served. May be NULL. */
    void (*on_serving)(void *self, bool serving);
    void *self;
} kvf_router_shell_options;
void kvf_router_shell_options_default(kvf_router_shell_options *options);

typedef struct kvf_router_shell kvf_router_shell;
/* Reads the model and listens. options and what it points at: borrowed (copied). err names file, field or address. */
kvf_status kvf_router_shell_create(const kvf_router_shell_options *options, kvf_router_shell **out, kvf_error *err);
const char *kvf_router_shell_address(const kvf_router_shell *s);
const char *kvf_router_shell_admin_address(const kvf_router_shell *s);
bool kvf_router_shell_serving(const kvf_router_shell *s); /* any thread */
uint32_t kvf_router_shell_ready(const kvf_router_shell *s); /* nodes that are ready; any thread */

/* Any thread, also while it runs: one more node. The id of a node that is known: its process is now at this address. */
kvf_status kvf_router_shell_add_node(kvf_router_shell *s, const char *id, kvf_role role, const char *address);
kvf_status kvf_router_shell_remove_node(kvf_router_shell *s, const char *id); /* any thread; unknown ids are ignored */

/* Serves until stop: then health says NOT_SERVING, new requests are refused, running ones may finish within drain_ns.
 */
kvf_status kvf_router_shell_run(kvf_router_shell *s);
void kvf_router_shell_stop(kvf_router_shell *s); /* any thread, not a signal handler; call twice to stop now */
void kvf_router_shell_destroy(kvf_router_shell *s);

/* ---- what finished requests went through ---- */

typedef struct {
    kvf_request_id request;
    char label[64]; /* the client's, cut */
    kvf_time_ns received_ns; /* on the clock of kvf_os_now_ns; 0 below: did not happen */
    kvf_time_ns prepared_ns, submitted_ns, admitted_ns, first_token_ns, last_token_ns, ended_ns;
    char prefill_node[KVF_NAME_MAX], decode_node[KVF_NAME_MAX];
    uint32_t choices;
    kvf_router_usage usage;
    char end[32]; /* "stop_token", "length", ... of the last choice, or the reason of the failure */
} kvf_router_timeline;
/* The newest first; returns how many were written. Any thread. */
uint32_t kvf_router_shell_timelines(kvf_router_shell *s, kvf_router_timeline *out, uint32_t max);
#ifdef __cplusplus
}
#endif
#endif
