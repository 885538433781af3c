/* kvf/router.h - the router's core: which node does what, when a request is tried again, what its client is told.
 *
 * Pure: no socket, clock, thread, random source, floating point or malloc. One thread at a time. The contract it keeps
 * with nodes is protocol.md; the words are those of kvf/msg.h.
 *
 * Shape: call one event (`on_...`, submit, cancel, end_choice, an admin call), then drain `next` until it is false,
 * then ask `deadline` for the time of the next on_time. While draining, submit, cancel, end_choice and the admin calls
 * are allowed; on_msg and the session events are not. A message given to on_msg is borrowed until the drain after it is
 * over (its tokens become actions one by one, without a copy). Pointers inside an action are borrowed until the next
 * call of anything on the same router.
 *
 * What a client sees of one submit, in this order: ADMITTED at most once, then PROMPT_LOGPROBS and TOKEN, then exactly
 * one of FINISHED or FAILED. TOKENs of a choice come by position, without a gap and without a repeat, whatever nodes
 * resend. FAILED may be the only one.
 *
 * Identity of cached blocks on nodes, hashed here for the directory: kvf_kv_root(the 16 bytes of identity.weights_hash
 * as two little-endian u64, the numerics string without NUL, the 16 bytes of the salt as lo, hi little-endian - or
 * empty for a zero salt). */
#ifndef KVF_ROUTER_H
#define KVF_ROUTER_H
#include "kvf/base.h"
#include "kvf/hash.h"
#include "kvf/msg.h"
#ifdef __cplusplus
extern "C" {
#endif

#define KVF_ROUTER_NODES_MAX 64
#define KVF_SAMPLING_MAX 4096 /* bytes of one kvf_sampling */
#define KVF_ROUTER_NO_NODE UINT32_MAX

typedef struct {
    char name[KVF_NAME_MAX]; /* of this router */
    uint64_t epoch; /* random, not 0, new at each start */
    uint32_t nodes_max; /* 1..KVF_ROUTER_NODES_MAX */
    uint32_t requests_max; /* live choices: a request with n choices takes n of these */
    uint32_t context_max; /* prompt + output of one choice; also bounds what nodes may grant */
    uint32_t queue_max_requests; /* choices that wait for room (a request let in while nothing waits may exceed it) */
    uint64_t queue_max_tokens; /* their prompt tokens */
    uint32_t ship_min; /* AUTO: uncached tokens from which shipping pays */
    bool strict; /* no READY node of a role: true: refuse after the grace; false: the other role does all the work */
    kvf_time_ns ready_grace_ns;
    uint32_t attempts_max; /* attempts that failed, or in which a process died computing the same tokens, without a new
                              token; 3. Deaths wherever: three times as many in a row */
    kvf_time_ns stray_span_ns; /* attempts that came to nothing otherwise, in a row without a new token: 4 *
                                  attempts_max of them over so long a time end the request, unless processes
                                  died meanwhile: then ten times as long */
    uint32_t directory_entries_max; /* block names known over all nodes */
    kvf_time_ns status_timeout_ns; /* a session silent for so long is closed */
    kvf_time_ns reconnect_grace_ns; /* without a Welcome for so long: the node is lost */
    kvf_time_ns backoff_ns, backoff_max_ns; /* of failed pairs and of further attempts: doubles */
    kvf_time_ns transfer_stall_ns; /* from the first token of a shipped request to the end of its hand-off; then its
                                      link has failed */
    kvf_time_ns slow_link_ns; /* a hand-off that keeps a request waiting for less is never called slow */
    uint32_t retries_percent, retries_per_s; /* of attempts after a failure: of new requests, and besides; more of them
                                                wait their turn. Lost nodes' requests need no leave */
    kvf_time_ns retry_after_ns; /* told to clients where no node named a time */
    kvf_time_ns ship_report_wait_ns; /* FINISHED waits so long for the prefill node's costs; 0: not at all */
    uint32_t reserve_window; /* Reserves without an answer, per node; 0: 32 */
    uint32_t queued_window; /* requests that may stand in one node's own queue; 0: 8 */
    uint32_t running_charge_tokens; /* what one running request weighs when nodes are compared; 0: 64 */
    bool allow_other_numerics; /* prefill and decode nodes of different numerics ids may pair */
    bool model_known; /* the two hashes below are what every node must have */
    uint64_t weights_hash[2], tokenizer_hash[2];
} kvf_router_config;

void kvf_router_config_defaults(kvf_router_config *config); /* all but name and epoch */
/* KVF_ERR_INVALID: err names the field. */
kvf_status kvf_router_config_check(const kvf_router_config *config, kvf_error *err);

typedef struct kvf_router kvf_router;
/* Most of it (tokens of requests, directory) is touched only when used: give a fresh mapping. */
size_t kvf_router_size(const kvf_router_config *config);
/* memory: kvf_router_size bytes, 64-byte aligned, zeroed (not touched here more than needed), kept until the router is
 * dropped. */
kvf_router *kvf_router_init(void *memory, const kvf_router_config *config);

/* ---- membership and sessions. node: the caller's index below nodes_max, of one configured node. ---- */

/* id: the configured name, "" where only an address is known (then the first Welcome names it). role: what is expected;
 * 0: unknown. */
kvf_status kvf_router_add_node(kvf_router *r, kvf_time_ns now, uint32_t node, const char *id, kvf_role role);
/* Its requests go on elsewhere. The shell closes the session. */
void kvf_router_remove_node(kvf_router *r, kvf_time_ns now, uint32_t node);
void kvf_router_on_session_up(
    kvf_router *r, kvf_time_ns now, uint32_t node); /* an ordered stream is open; Hello follows */
void kvf_router_on_session_down(
    kvf_router *r, kvf_time_ns now, uint32_t node); /* idempotent; the shell connects again by itself */
/* Nothing listens at the address of a node that was there: its process has ended, and there is no use in waiting for a
 * session. Ignored while one is up, and for a node never seen (it may be starting). */
void kvf_router_on_node_gone(kvf_router *r, kvf_time_ns now, uint32_t node);
void kvf_router_on_msg(kvf_router *r, kvf_time_ns now, uint32_t node, const kvf_nmsg *msg);
void kvf_router_on_time(kvf_router *r, kvf_time_ns now);
kvf_time_ns kvf_router_deadline(const kvf_router *r);

/* ---- requests ---- */

typedef enum { KVF_ROUTER_AUTO = 0, KVF_ROUTER_ALWAYS = 1, KVF_ROUTER_NEVER = 2 } kvf_router_mode;

typedef struct {
    const uint32_t *tokens; /* the prompt; copied */
    uint32_t tokens_count;
    uint32_t n; /* choices; 0 counts as 1 */
    uint32_t output_max; /* per choice, valid when output_max_given; else to the end of the context. 0: only the prompt
                            is computed */
    bool output_max_given;
    int32_t priority; /* higher first */
    kvf_time_ns deadline_ns; /* on the clock of `now`; KVF_TIME_NEVER: none */
    kvf_hash128 salt; /* zero: none */
    kvf_router_mode mode;
    uint32_t prompt_logprobs; /* 0, or k + 1 */
    kvf_span sampling; /* at most KVF_SAMPLING_MAX bytes; copied */
    uint64_t client; /* handle of the front end, comes back in every action */
} kvf_router_request;

typedef struct {
    kvf_status status; /* KVF_AGAIN: later, see retry_after_ns; KVF_ERR_NO_ROOM, KVF_ERR_INVALID: never */
    char field[32]; /* as in kvferry.proto: "input", "stop.max_tokens", "n", "sampling"; "queue"; empty: none */
    char text[KVF_TEXT_MAX];
    kvf_time_ns retry_after_ns;
} kvf_refusal;

/* On success *id names the request until its FINISHED or FAILED has been drained. Otherwise *refusal is filled and no
 * action follows. */
kvf_status kvf_router_submit(
    kvf_router *r, kvf_time_ns now, const kvf_router_request *request, kvf_request_id *id, kvf_refusal *refusal);

typedef enum { KVF_CANCEL_CLIENT = 0, KVF_CANCEL_DEADLINE = 1, KVF_CANCEL_SLOW_READER = 2 } kvf_cancel_why;
/* FAILED follows with KVF_ERR_CANCELLED, KVF_ERR_DEADLINE or KVF_ERR_LIMIT. An id that is over is ignored. The router
 * enforces the deadline of the request by itself. */
void kvf_router_cancel(kvf_router *r, kvf_time_ns now, kvf_request_id id, kvf_cancel_why why);

/* A stop string matched: the choice ends; its tokens at position `end_position` and above are not counted and no more
 * are given. The request finishes when all its choices have ended. Ignored when the choice or the request is over. */
void kvf_router_end_choice(kvf_router *r, kvf_time_ns now, kvf_request_id id, uint32_t choice, uint32_t end_position);

/* Nodes know a request by ids of its parts; false: no part of a live request. */
bool kvf_router_request_of(const kvf_router *r, kvf_request_id part, kvf_request_id *id, uint64_t *client);

/* ---- actions ---- */

typedef enum {
    KVF_ROUTER_SEND = 1, /* to a node whose session is up */
    KVF_ROUTER_ADMITTED,
    KVF_ROUTER_TOKEN,
    KVF_ROUTER_PROMPT_LOGPROBS, /* from position 1 on: nothing comes before the first token, whatever the node says of
                                   it */
    KVF_ROUTER_FINISHED,
    KVF_ROUTER_FAILED,
    KVF_ROUTER_ADMIN_ANSWER, /* AUDIT, BLOCKS or FLUSHED of a node, with the query of the call */
    KVF_ROUTER_CLOSE /* close this node's session (silent, superseded, malformed) and connect again later */
} kvf_router_action_kind;

typedef struct {
    uint32_t prompt_tokens, cached_tokens, completion_tokens; /* completion: over all choices */
    kvf_time_ns queue_ns; /* submit to the first admission by a node */
    kvf_time_ns prefill_ns; /* computing the prompt; admission to first token where a decode node computed it */
    kvf_time_ns transfer_ns; /* first page sent to commit acknowledged */
    kvf_time_ns exposed_ns; /* the part of it that computing did not hide */
    kvf_time_ns ttft_ns; /* submit to first token */
    kvf_time_ns decode_ns; /* first to last token */
    uint64_t pages, bytes;
    uint32_t attempts;
    uint32_t prefill_node, decode_node; /* of the last attempt; prefill: KVF_ROUTER_NO_NODE where nothing was shipped */
} kvf_router_usage;

typedef struct {
    kvf_router_action_kind kind;
    uint32_t node; /* SEND, ADMIN_ANSWER, CLOSE */
    uint64_t client; /* ADMITTED .. FAILED */
    kvf_request_id request; /* ADMITTED .. FAILED */
    union {
        const kvf_rmsg *send;
        struct {
            uint32_t prompt_tokens, cached_tokens;
            uint32_t prefill_node, decode_node; /* prefill: KVF_ROUTER_NO_NODE when the decode node computes all */
        } admitted;
        struct {
            uint32_t choice, position, token;
            kvf_end end;
            kvf_span sample; /* a kvf_sample, or empty */
        } token;
        struct {
            uint32_t start, count;
            kvf_span samples;
        } prompt_logprobs;
        kvf_router_usage finished;
        struct {
            kvf_refusal why; /* status: KVF_AGAIN with retry_after_ns where waiting helps */
            kvf_router_usage usage;
        } failed;
        struct {
            uint64_t query;
            const kvf_nmsg *msg;
            uint32_t directory_missing, directory_extra; /* AUDIT: names the node has and we lacked; the reverse */
            bool directory_compared; /* false: events were still on their way */
        } answer;
    };
} kvf_router_action;

bool kvf_router_next(kvf_router *r, kvf_time_ns now, kvf_router_action *action); /* false: nothing left to do */

/* ---- admin: each goes to one node. KVF_ERR_NOT_FOUND: no such node; KVF_ERR_PEER_LOST: no session; KVF_AGAIN: too
 * many at once. Answers are not owed: a node may be lost before it answers, so the caller keeps a deadline. ---- */
kvf_status kvf_router_drain(kvf_router *r, kvf_time_ns now, uint32_t node, kvf_time_ns deadline_ns); /* a duration */
kvf_status kvf_router_undrain(kvf_router *r, kvf_time_ns now, uint32_t node);
kvf_status kvf_router_set_role(kvf_router *r, kvf_time_ns now, uint32_t node, kvf_role role);
kvf_status kvf_router_flush(kvf_router *r, kvf_time_ns now, uint32_t node, uint64_t query);
/* The node checks itself; the router also asks for its block names and compares them with the directory. */
kvf_status kvf_router_audit(kvf_router *r, kvf_time_ns now, uint32_t node, uint64_t query);
kvf_status kvf_router_blocks(kvf_router *r, kvf_time_ns now, uint32_t node, uint64_t query, kvf_request_id request,
    kvf_hash128 name, uint32_t limit);

/* ---- what there is to see ---- */

typedef struct {
    bool used;
    char id[KVF_NAME_MAX];
    kvf_role role; /* as last reported, else as expected, 0: unknown */
    kvf_node_state state; /* LOST: no session and the grace is over */
    bool session; /* up and welcomed */
    bool ready; /* gets new work */
    const kvf_node_info *info; /* NULL before the first Welcome; valid until the next event */
    kvf_node_stats stats; /* last reported, without its list: see kvf_router_pair */
    kvf_time_ns silent_ns; /* since it last said something; 0 before the first Welcome */
    uint32_t legs; /* parts of requests that this router has there */
    uint64_t directory_blocks;
    char refused[KVF_TEXT_MAX]; /* why it gets nothing, empty: no reason */
} kvf_router_node;
bool kvf_router_node_at(
    const kvf_router *r, kvf_time_ns now, uint32_t node, kvf_router_node *out); /* false: unused index */

typedef struct {
    uint32_t prefill_node, decode_node;
    uint64_t pages, bytes;
    uint64_t frames_rejected; /* by the decode node, all its processes that this router has met */
    char transport[KVF_TRANSPORT_MAX]; /* of the link that is up between them, as the prefill node told; "": none */
    uint32_t failures; /* in a row */
    bool ejected; /* avoided now */
    const char *why; /* it was ejected last; static text, "" while it works */
    char refused[KVF_TEXT_MAX]; /* identities differ: field and both values; empty: they may pair */
} kvf_router_pair;
/* false: these two are not a prefill and a decode node that have both been welcomed. */
bool kvf_router_pair_at(
    const kvf_router *r, kvf_time_ns now, uint32_t prefill_node, uint32_t decode_node, kvf_router_pair *out);

typedef struct {
    uint32_t live; /* requests */
    uint32_t waiting; /* choices waiting for room */
    uint64_t waiting_tokens;
    uint64_t submitted, refused, finished, failed, cancelled;
    uint64_t retries, preempted, shipped,
        local; /* attempts after the first; of which handed back; attempts by way of travel */
    uint64_t fallback_local; /* wanted a prefill node, none was usable: the decode node did it all */
    uint64_t fallback_prefill; /* no decode node: a prefill node did it all */
    uint64_t late; /* messages about attempts that are over */
    uint64_t tokens, repeated, divergent, gaps; /* accepted; said again; said again differently; out of order */
    uint64_t nodes_lost, superseded, ejections, snapshots, malformed;
    uint64_t links_stalled, links_corrupt, links_slow; /* ejections of pairs by what was seen besides plain failures */
    uint64_t retries_delayed; /* that waited for the retry budget */
    uint64_t directory_entries, directory_dropped; /* names in it; names that found no room */
} kvf_router_counters;
void kvf_router_count(const kvf_router *r, kvf_router_counters *out);
uint32_t kvf_router_ready_nodes(const kvf_router *r, kvf_role role);
#ifdef __cplusplus
}
#endif
#endif
