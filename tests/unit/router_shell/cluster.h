/* cluster.h - a router process and fake nodes in this process, and a client that collects one answer. */
#ifndef ROUTER_SHELL_CLUSTER_H
#define ROUTER_SHELL_CLUSTER_H
#include "fake_node.h"
#include "kvf/router_shell.h"

typedef struct {
    front_model model;
    fake_node decode, prefill;
    kvf_router_shell *shell;
    pthread_t thread;
    kvf_rpc_runtime *rt;
    kvf_rpc_channel *channel, *admin;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool serving; /* guarded by lock */
    bool running;
} cluster;

typedef struct {
    bool no_prefill, no_nodes, strict;
    uint32_t context_max, requests_max, queue_max;
    size_t stream_buffer_bytes, message_bytes_max;
    uint64_t drain_ms, grace_ms;
} cluster_options;

void cluster_start(cluster *c, const cluster_options *o); /* waits until the router knows its nodes */
void cluster_stop(cluster *c);
void cluster_wait_serving(cluster *c, bool serving);
void cluster_join(cluster *c); /* waits for the end of run after kvf_router_shell_stop */

enum { ANSWER_CHOICES = 8 };
typedef struct {
    uint32_t admitted, chunks, finished, prompt_items;
    bool ended[ANSWER_CHOICES];
    char request_id[64], prefill_node[64], decode_node[64];
    uint32_t prompt_tokens, cached_tokens;
    uint64_t seed, finished_seed;
    char text[ANSWER_CHOICES][8192];
    size_t text_bytes[ANSWER_CHOICES];
    uint32_t ids[ANSWER_CHOICES][4096], ids_count[ANSWER_CHOICES], logprobs[ANSWER_CHOICES], tops;
    uint32_t reason[ANSWER_CHOICES], stop_token[ANSWER_CHOICES], tokens[ANSWER_CHOICES];
    char stop_sequence[ANSWER_CHOICES][64];
    uint32_t usage_prompt, usage_cached, usage_prompts; /* usage_prompts: how many Finished counted the prompt */
    uint64_t pages, attempts, timings;
    kvf_rpc_result result;
} answer;

/* A request with text input and a seed that the fake nodes understand. */
typedef struct {
    Kvferry__V1__GenerateRequest r;
    Kvferry__V1__SamplingParams sampling;
    Kvferry__V1__StopParams stop;
    Kvferry__V1__OutputOptions output;
    ProtobufCBinaryData stops[8];
} ask;
void ask_init(ask *a, const char *text, uint64_t seed);
void ask_max(ask *a, uint32_t max);
void ask_stop(ask *a, const char *stop);

void answer_take(answer *got, const ProtobufCMessage *message);
answer *generate(cluster *c, const ask *a, kvf_rpc_code want); /* freed with free */
kvf_rpc_reader *generate_open(cluster *c, const ask *a);
Kvferry__V1__CompleteResponse *complete(cluster *c, const ask *a, kvf_rpc_code want, kvf_rpc_result *result);
/* Blocking unary call on the admin listener; NULL when it fails (result says how). */
void *admin_call(cluster *c, const char *method, const ProtobufCMessage *request, kvf_rpc_result *result);
int health(cluster *c, bool admin, const char *service); /* the serving status, or minus the code */
#endif
