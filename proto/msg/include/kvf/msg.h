/* kvf/msg.h - what routers and nodes say to each other, as plain C values: the vocabulary of the cores.
 * Shells turn them into protobuf (kvferry.internal.v1) and back; the simulator hands them over as they are. Pointers
 * are borrowed until the call returns. Nothing here is floating point: sampling parameters and logprobs travel as
 * opaque bytes. */
#ifndef KVF_MSG_H
#define KVF_MSG_H
#include "kvf/base.h"
#include "kvf/hash.h"

#define KVF_WIRE_VERSION 1
#define KVF_NAME_MAX 64 /* node and router names, with NUL */
#define KVF_ADDRESS_MAX 128
#define KVF_TEXT_MAX 240
#define KVF_CHOICES_MAX 32 /* n */
#define KVF_SAMPLE_BYTES_MAX 272 /* one kvf_sample */

/* Cluster-wide, made by the router: its random epoch and a counter. Clients' own ids are labels and never used here. */
typedef struct {
    uint64_t router_epoch;
    uint64_t counter; /* 0: none */
} kvf_request_id;
static inline bool kvf_request_id_equal(kvf_request_id a, kvf_request_id b) {
    return a.router_epoch == b.router_epoch && a.counter == b.counter;
}

typedef enum { KVF_ROLE_PREFILL = 1, KVF_ROLE_DECODE = 2 } kvf_role;
typedef enum { KVF_NODE_STARTING = 1, KVF_NODE_READY = 2, KVF_NODE_DRAINING = 3, KVF_NODE_LOST = 4 } kvf_node_state;

/* Why a choice ended; 0: it goes on. */
typedef enum { KVF_END_NONE = 0, KVF_END_EOS = 1, KVF_END_STOP_ID = 2, KVF_END_LENGTH = 3 } kvf_end;

/* Everything a node could ever need to compute a request alone. */
typedef struct {
    kvf_request_id request;
    uint32_t attempt; /* from 1 */
    const uint32_t *tokens; /* prompt, then the output tokens the router has accepted (only with n == 1) */
    uint32_t tokens_count;
    uint32_t prompt_count; /* never changes over attempts */
    uint32_t n; /* choices to make, 1..KVF_CHOICES_MAX */
    uint32_t choice_base; /* index of the first choice: stream of random numbers, name of its tokens */
    uint32_t output_max; /* output tokens per choice, counted from prompt_count; prompt + output_max <= context */
    bool output_max_given; /* the client named it: booked in full when small */
    int32_t priority; /* higher first */
    kvf_time_ns time_left_ns; /* KVF_TIME_NEVER: no deadline */
    kvf_hash128 salt; /* of the client's cache_salt, zero hash for none; part of the root */
    uint32_t ship_min; /* uncached tokens below which the decode node computes alone: 0 always ship, UINT32_MAX never */
    uint32_t prompt_logprobs; /* 0: not wanted; k + 1: wanted with k best; such a request reads no cached prefix */
    kvf_span sampling; /* a kvf_sampling, opaque to cores */
    bool alone; /* processes died computing it: until it has made a token, small steps that it shares with nobody */
} kvf_work;

/* Where a prefill node ships to. */
typedef struct {
    char node[KVF_NAME_MAX];
    uint64_t epoch;
    char address[KVF_ADDRESS_MAX]; /* "tcp:host:port" */
    char local_address[KVF_ADDRESS_MAX]; /* "shm:name", of use on host_id only; empty: none */
    uint64_t host_id;
    uint64_t grant;
    uint8_t secret[16];
    const uint32_t *missing; /* logical blocks, ascending */
    uint32_t missing_count;
} kvf_ship_to;

typedef struct {
    kvf_request_id request;
    uint32_t attempt;
    uint32_t index; /* choice */
    uint32_t next_position; /* first token position the router does not have */
} kvf_live;

typedef enum {
    KVF_R_HELLO = 1, /* opens a session, again after every reconnect */
    KVF_R_RESERVE, /* to the node that will decode; with ship_min UINT32_MAX: run it all there */
    KVF_R_PREFILL,
    KVF_R_CANCEL, /* idempotent, remembered when it comes first */
    KVF_R_ACK, /* batches of tokens and prompt logprobs up to and including `number` are accepted; the node forgets
                  them */
    KVF_R_DRAIN,
    KVF_R_UNDRAIN,
    KVF_R_SET_ROLE,
    KVF_R_FLUSH,
    KVF_R_AUDIT,
    KVF_R_BLOCKS,
    KVF_R_SNAPSHOT, /* "I lack events": send all block names */
    KVF_R_SUPERSEDED /* a newer epoch of this node is known: stop */
} kvf_r_kind;

typedef struct {
    kvf_r_kind kind;
    union {
        struct {
            char router[KVF_NAME_MAX];
            uint64_t router_epoch;
            uint32_t wire_version;
            const kvf_live *live;
            uint32_t live_count;
            uint64_t events_seen; /* block events known up to this number; 0: none */
        } hello;
        kvf_work reserve;
        struct {
            kvf_work work;
            kvf_ship_to to;
        } prefill;
        struct {
            kvf_request_id request;
            uint32_t attempt; /* 0: all */
            bool finished; /* the request ended well: not counted as an abort */
        } cancel;
        struct {
            uint64_t number;
        } ack;
        struct {
            kvf_time_ns deadline_ns; /* duration */
        } drain;
        struct {
            kvf_role role;
        } set_role;
        struct {
            uint64_t query; /* echoed in the answer */
        } flush, audit;
        struct {
            uint64_t query;
            kvf_request_id request; /* counter 0: any */
            kvf_hash128 name; /* zero: any */
            uint32_t limit;
        } blocks;
    };
} kvf_rmsg;

typedef struct {
    kvf_request_id request;
    uint32_t attempt;
    uint32_t index;
    uint32_t position; /* of this token in the sequence; the first output token of a fresh request has position
                          prompt_count */
    uint32_t token;
    kvf_end end;
    bool repeated; /* Started repeats what the prefill node has already said */
    kvf_span sample; /* a kvf_sample; empty when no logprobs are wanted */
} kvf_token_item;

/* A prompt whose tokens [position, position + count) the engine is at. */
typedef struct {
    kvf_request_id request;
    uint32_t attempt, position, count;
} kvf_prefilling_item;

#define KVF_REJECTED_MAX 64 /* peers that one status tells of */
#define KVF_LINKS_TOLD_MAX 64
#define KVF_TRANSPORT_MAX 16 /* of its name, with the NUL */

/* Page frames that came from this peer and were dropped, since the process started. */
typedef struct {
    char node[KVF_NAME_MAX];
    uint64_t frames; /* not 0 */
} kvf_rejected;

/* A link that is up, over which this node sends pages to that one. */
typedef struct {
    char node[KVF_NAME_MAX];
    char transport[KVF_TRANSPORT_MAX]; /* "shm", "nccl", ... */
} kvf_link_over;

typedef struct {
    kvf_node_state state;
    kvf_role role;
    uint32_t running, waiting;
    uint64_t waiting_tokens; /* prompt tokens not yet computed of waiting and prefilling requests */
    uint32_t blocks_total, blocks_free, blocks_filling, blocks_sealed, blocks_pinned, blocks_in_use, blocks_booked,
        blocks_evictable;
    uint32_t waste_ppm; /* empty slots of allocated blocks, parts per million */
    uint64_t prefill_tokens, decode_tokens; /* computed since start */
    uint64_t prefill_busy_ns, decode_busy_ns;
    uint64_t pages_sent, bytes_sent, pages_received, bytes_received, frames_rejected;
    uint64_t preemptions, cancels, evictions, cache_hit_tokens;
    uint64_t events_next; /* number the next block event will get */
    const kvf_rejected *rejected; /* frames_rejected by peer, as far as peers are known; borrowed like a message */
    uint32_t rejected_count;
    const kvf_link_over *links; /* borrowed, too */
    uint32_t links_count;
} kvf_node_stats;

/* All that pairing compares; a mismatch names the field and both values. */
typedef struct {
    uint32_t wire_version;
    uint64_t weights_hash[2], tokenizer_hash[2];
    char numerics[64];
    uint32_t block_tokens, layers, heads, kv_heads, head_dim, vocab, page_bytes, context_max;
    uint32_t layout; /* order of K, V, heads, tokens inside a page: 1 */
    uint32_t rope_dims, rope_base_bits, rope_style; /* base as the bits of its f32 */
    char kv_type[8];
} kvf_identity;
/* NULL: equal. Else the field's name; both values as text. */
const char *kvf_identity_differs(const kvf_identity *a, const kvf_identity *b, char a_text[64], char b_text[64]);

typedef struct {
    char node[KVF_NAME_MAX];
    uint64_t epoch;
    uint64_t started_ns; /* what its host's wall clock said at its start: compared with that of another process of the
                            same node, and with nothing else; 0: not known */
    uint32_t wire_version;
    kvf_role role;
    uint64_t host_id;
    char address[KVF_ADDRESS_MAX], local_address[KVF_ADDRESS_MAX];
    char backend[KVF_NAME_MAX]; /* "cpu avx512-vnni, 2 threads" */
    kvf_identity identity;
} kvf_node_info;

typedef enum { KVF_STAGE_RESERVE = 1, KVF_STAGE_PREFILL, KVF_STAGE_TRANSFER, KVF_STAGE_DECODE } kvf_stage;

typedef struct {
    bool stored;
    kvf_hash128 name;
} kvf_block_event;

typedef struct {
    uint32_t block, generation;
    uint32_t state, pins, uses, tokens; /* state: 0 free, 1 filling, 2 sealed */
    bool indexed;
    kvf_hash128 name;
    kvf_request_id requests[4]; /* holders, counter 0 ends */
} kvf_block_report;

typedef enum {
    KVF_N_WELCOME = 1, /* answer to Hello */
    KVF_N_GRANTED,
    KVF_N_LOCAL, /* taken, computed here alone */
    KVF_N_QUEUED,
    KVF_N_REFUSED,
    KVF_N_STALE,
    KVF_N_ALREADY_STARTED,
    KVF_N_TOKENS, /* one per step and router */
    KVF_N_STARTED, /* committed: decoding from here */
    KVF_N_SHIPPED, /* prefill node: the hand-off ended, with what it cost */
    KVF_N_FAILED,
    KVF_N_PREEMPTED,
    KVF_N_PROMPT_LOGPROBS,
    KVF_N_STATUS,
    KVF_N_EVENTS,
    KVF_N_SNAPSHOT,
    KVF_N_AUDIT,
    KVF_N_BLOCKS,
    KVF_N_FLUSHED,
    KVF_N_PREFILLING /* this router's prompts in the step that begins; in place of what was said before */
} kvf_n_kind;

typedef struct {
    kvf_n_kind kind;
    kvf_request_id request; /* where the kind is about one */
    uint32_t attempt;
    union {
        struct {
            kvf_node_info info;
            kvf_node_stats stats;
        } welcome;
        struct {
            uint64_t grant;
            uint8_t secret[16];
            kvf_time_ns ttl_ns;
            uint32_t cached_tokens;
            const uint32_t *missing; /* logical blocks, ascending */
            uint32_t missing_count;
        } granted;
        struct {
            uint32_t cached_tokens;
        } local;
        struct {
            uint32_t place;
        } queued;
        struct {
            kvf_status reason; /* KVF_ERR_NO_ROOM: can never fit; KVF_AGAIN: not now; KVF_ERR_INVALID ... */
            char field[32];
            char text[KVF_TEXT_MAX];
            kvf_time_ns retry_after_ns;
        } refused;
        struct {
            uint32_t attempt, position;
        } already_started;
        struct {
            uint64_t number; /* of this batch, from 1 per session of a router epoch */
            const kvf_token_item *items;
            uint32_t count;
        } tokens;
        struct {
            kvf_status result; /* KVF_OK: committed */
            uint32_t cached_tokens;
            uint32_t pages;
            uint64_t bytes;
            kvf_time_ns queue_ns, prefill_ns; /* waiting, computing */
            kvf_time_ns transfer_ns; /* first page sent to commit acknowledged */
            kvf_time_ns exposed_ns; /* the part of it after the last token was computed */
        } shipped;
        struct {
            kvf_stage stage;
            kvf_status reason;
            char peer[KVF_NAME_MAX]; /* empty: none */
            bool retryable;
            char text[KVF_TEXT_MAX];
        } failed;
        struct {
            uint32_t next_position;
        } preempted;
        struct {
            uint64_t number; /* of this batch, in one count with those of tokens */
            uint32_t start; /* position of the first item */
            uint32_t count;
            kvf_span samples; /* kvf_sample[count] */
        } prompt_logprobs;
        kvf_node_stats status;
        struct {
            uint64_t first; /* number of events[0] */
            const kvf_block_event *events;
            uint32_t count;
        } events;
        struct {
            uint64_t events_next; /* the names below are the truth just before this event */
            const kvf_hash128 *names;
            uint32_t count;
            bool first, last; /* long snapshots come in parts */
        } snapshot;
        struct {
            uint64_t query;
            uint64_t blocks_checked;
            bool at_rest; /* nothing pinned, in use or booked */
            bool clean;
            char invariant[KVF_NAME_MAX], detail[KVF_TEXT_MAX]; /* the first violation */
            kvf_node_stats stats;
        } audit;
        struct {
            uint64_t query;
            const kvf_block_report *blocks;
            uint32_t count;
            bool truncated;
        } blocks;
        struct {
            uint64_t query, blocks_freed;
        } flushed;
        struct {
            const kvf_prefilling_item *items;
            uint32_t count;
        } prefilling;
    };
} kvf_nmsg;
#endif
