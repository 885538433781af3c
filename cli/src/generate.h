/* generate.h - what chat and complete share: options of a generation, the request made of them, and the stream read
 * back. */
#ifndef KVF_CLI_GENERATE_H
#define KVF_CLI_GENERATE_H
#include "args.h"
#include "buf.h"
#include "client.h"
#include <stddef.h>
#include "kvferry/v1/kvferry.pb-c.h"

typedef struct {
    const char *router;
    kvf_client_tls tls;
    uint32_t max_tokens, top_k, top_logprobs, disaggregate, choices, min_tokens;
    double temperature, top_p, min_p, repetition, presence, frequency;
    uint64_t seed, deadline_ns;
    int32_t priority;
    const char *salt, *label, *model, *session;
    kvf_arg_texts stop;
    bool ignore_eos, include_stop, logprobs, stats, json, token_ids;
} kvf_generate_options;
/* Their rows, for a struct `type` that holds them as `member`. */
#define KVF_GENERATE_DEFAULTS                                                                                          \
    { .router = KVF_CLI_ROUTER, .choices = 1 }
#define KVF_GENERATE_ROWS(type, member)                                                                                \
    {"router", 'r', KVF_ARG_TEXT, "HOST:PORT", "the router's client address (default " KVF_CLI_ROUTER ")",             \
        offsetof(type, member.router), 0, 0, "KVFERRY_ROUTER", false},                                                 \
        KVF_CLIENT_TLS_ROWS(type, member.tls),                                                                         \
        {"max-tokens", 'n', KVF_ARG_U32, "N", "at most N new tokens (default: to the end of the context)",             \
            offsetof(type, member.max_tokens), 0, 0, NULL, false},                                                     \
        {"temperature", 't', KVF_ARG_F64, "T", "0 takes the likeliest token always (default 1)",                       \
            offsetof(type, member.temperature), 0, 0, NULL, false},                                                    \
        {"seed", 's', KVF_ARG_U64, "S", "the same seed gives the same tokens (default: random)",                       \
            offsetof(type, member.seed), 0, 0, NULL, false},                                                           \
        {"top-k", 0, KVF_ARG_U32, "K", "draw from the K likeliest tokens", offsetof(type, member.top_k), 0, 0, NULL,   \
            false},                                                                                                    \
        {"top-p", 0, KVF_ARG_F64, "P", "draw from the likeliest tokens that add up to P",                              \
            offsetof(type, member.top_p), 0, 0, NULL, false},                                                          \
        {"min-p", 0, KVF_ARG_F64, "P", "drop tokens less likely than P times the likeliest",                           \
            offsetof(type, member.min_p), 0, 0, NULL, false},                                                          \
        {"repetition-penalty", 0, KVF_ARG_F64, "X", "above 1: against tokens of prompt and output",                    \
            offsetof(type, member.repetition), 0, 0, NULL, false},                                                     \
        {"presence-penalty", 0, KVF_ARG_F64, "X", "-2 to 2: against tokens already in the output",                     \
            offsetof(type, member.presence), 0, 0, NULL, false},                                                       \
        {"frequency-penalty", 0, KVF_ARG_F64, "X", "-2 to 2: the same, by how often",                                  \
            offsetof(type, member.frequency), 0, 0, NULL, false},                                                      \
        {"stop", 0, KVF_ARG_TEXTS, "TEXT", "end before TEXT; may be repeated", offsetof(type, member.stop), 0, 0,      \
            NULL, false},                                                                                              \
        {"include-stop", 0, KVF_ARG_FLAG, "", "print the stop text too", offsetof(type, member.include_stop), 0, 0,    \
            NULL, false},                                                                                              \
        {"ignore-eos", 0, KVF_ARG_FLAG, "", "go on after the model's own end", offsetof(type, member.ignore_eos), 0,   \
            0, NULL, false},                                                                                           \
        {"min-tokens", 0, KVF_ARG_U32, "N", "no end before N tokens", offsetof(type, member.min_tokens), 0, 0, NULL,   \
            false},                                                                                                    \
        {"logprobs", 0, KVF_ARG_FLAG, "", "log-probability of each token, in a table below the text",                  \
            offsetof(type, member.logprobs), 0, 0, NULL, false},                                                       \
        {"top-logprobs", 0, KVF_ARG_U32, "K", "and of the K likeliest at each step",                                   \
            offsetof(type, member.top_logprobs), 0, 0, NULL, false},                                                   \
        {"disaggregate", 0, KVF_ARG_CHOICE, "auto|always|never",                                                       \
            "ship pages from a prefill to a decode node when that pays,\nalways, or never",                            \
            offsetof(type, member.disaggregate), 0, 0, NULL, false},                                                   \
        {"priority", 0, KVF_ARG_I32, "P", "higher goes first where requests wait", offsetof(type, member.priority), 0, \
            0, NULL, false},                                                                                           \
        {"salt", 0, KVF_ARG_TEXT, "TEXT", "share cached prefixes only with requests of the same salt",                 \
            offsetof(type, member.salt), 0, 0, NULL, false},                                                           \
        {"session", 0, KVF_ARG_TEXT, "TEXT", "requests of one session go to the same nodes where possible",            \
            offsetof(type, member.session), 0, 0, NULL, false},                                                        \
        {"label", 0, KVF_ARG_TEXT, "TEXT", "your own id, shown in logs and timelines", offsetof(type, member.label),   \
            0, 0, NULL, false},                                                                                        \
        {"model", 'm', KVF_ARG_TEXT, "ID", "where the router serves several", offsetof(type, member.model), 0, 0,      \
            NULL, false},                                                                                              \
        {"deadline", 0, KVF_ARG_DURATION, "TIME", "give up after TIME", offsetof(type, member.deadline_ns), 0, 0,      \
            NULL, false},                                                                                              \
        {"stats", 0, KVF_ARG_FLAG, "", "one line on stderr: times, nodes, pages", offsetof(type, member.stats), 0, 0,  \
            NULL, false},                                                                                              \
    {                                                                                                                  \
        "json", 0, KVF_ARG_FLAG, "", "the whole answer as one line of JSON", offsetof(type, member.json), 0, 0, NULL,  \
            false                                                                                                      \
    }

/* A request and all that it points at. Init fills everything but the input. */
typedef struct {
    Kvferry__V1__GenerateRequest request;
    Kvferry__V1__SamplingParams sampling;
    Kvferry__V1__StopParams stop;
    Kvferry__V1__OutputOptions output;
    Kvferry__V1__ChatInput chat;
    Kvferry__V1__TokenIds ids;
    ProtobufCBinaryData stops[KVF_ARG_TEXTS_MAX];
} kvf_generate_request;
/* command: whose rows hold KVF_GENERATE_ROWS. r must stay where it is. */
void kvf_generate_request_init(
    kvf_generate_request *r, const kvf_command *command, const kvf_generate_options *o, const kvf_args *args);

/* One run: prints text as it comes, keeps what a line of statistics needs. */
typedef struct {
    bool clean; /* drop control characters: stdout is a terminal */
    kvf_buf *keep; /* NULL, or the text is added here too */
    bool logprobs; /* print a table below the text */
    /* filled by the run */
    kvf_time_ns sent_ns, first_ns, last_ns;
    uint32_t chunks;
    bool admitted, finished, ends_with_newline;
    char prefill_node[64], decode_node[64], reason[32];
    uint32_t prompt_tokens, cached_tokens, completion_tokens, attempts;
    uint64_t seed, pages, bytes, server_ttft_us, transfer_us;
    kvf_buf table;
} kvf_generate_run;
/* Streams a request to stdout. KVF_OK: it finished. */
kvf_status kvf_generate_stream(
    kvf_client *c, const kvf_generate_request *r, uint64_t deadline_ms, kvf_generate_run *run, kvf_rpc_result *result);
/* "ttft 85 ms, tpot 12 ms ... p0 -> d0, 62 pages, 1.4 MiB" */
void kvf_generate_stats(const kvf_generate_run *run, kvf_buf *out);
uint64_t kvf_generate_deadline_ms(const kvf_generate_options *o);
#endif
