/* core_int.h - what the files of the transfer core share: bit rows, saturating time, planted mutants.
 * KVF_MUTANT is 0 in every product build; tests build the core again with 1.. and demand that they notice
 * (tests/unit/kvtransfer). */
#ifndef KVF_XFER_CORE_INT_H
#define KVF_XFER_CORE_INT_H
#include "kvf/arena.h"
#include "kvf/xfer.h"

#ifndef KVF_MUTANT
#define KVF_MUTANT 0
#endif
#define KVF_MUTATED(n) (KVF_MUTANT == (n))
enum {
    MUTANT_ACK_BEFORE_VERIFY = 1,
    MUTANT_NO_LINK_CHECK = 2,
    MUTANT_COMMIT_TWICE = 3,
    MUTANT_USE_AFTER_REVOKE = 4,
    MUTANT_REWRITE_LANDED = 5,
    MUTANT_COMMIT_OVERTAKES = 6,
    MUTANT_DIGEST_IGNORED = 7,
    MUTANT_END_IN_FLIGHT = 8,
    MUTANT_NO_PROOF = 9,
    MUTANT_LATE_OPEN = 10
};

static inline bool bit_get(const uint64_t *row, uint32_t at) { return row[at / 64] >> (at % 64) & 1; }
static inline void bit_set(uint64_t *row, uint32_t at) { row[at / 64] |= (uint64_t)1 << (at % 64); }
static inline void bit_clear(uint64_t *row, uint32_t at) { row[at / 64] &= ~((uint64_t)1 << (at % 64)); }
static inline uint32_t bit_words(uint32_t bits) { return (bits + 63) / 64; }
static inline uint32_t bits_count(const uint64_t *row, uint32_t words) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < words; i++) n += (uint32_t)__builtin_popcountll(row[i]);
    return n;
}
static inline kvf_time_ns time_after(kvf_time_ns now, kvf_time_ns duration_ns) {
    return duration_ns > KVF_TIME_NEVER - now ? KVF_TIME_NEVER : now + duration_ns;
}

/* ---------------------------------------------------------------- receiving half
 * A grant's id is (serial << 16 | slot): looked up at once, never equal twice in an epoch. A re-offer keeps the slot,
 * so that a landing copy that began under the old grant finds its block by slot and physical block. */
typedef enum {
#define STATE(name) RX_##name,
#define MOVE(from, to, event)
#include "grant_moves.h"
#undef STATE
#undef MOVE
} rx_state; /* COMMITTED and LOST: only until kvf_rx_next has told */
typedef struct {
    uint32_t logical;
    kvf_block_id block; /* pinned by the grant; none until the first page */
    bool listed; /* else it was whole when the grant was re-offered: carried along */
} rx_entry;
typedef struct {
    rx_state state;
    uint64_t id;
    kvf_request_id request;
    uint32_t attempt;
    uint8_t secret[16];
    kvf_link_id link; /* that opened it; KVF_LINK_NONE: not opened, or the link is down */
    uint32_t turn; /* of the last OPEN with proof: an older one was late on a link that the sender has left */
    bool link_lost;
    kvf_time_ns expires_ns;
    uint32_t entries_count, listed_count, blocks_spent;
    uint32_t pages_done; /* listed pages that are landed and counted */
    uint32_t moving; /* landing copies under way */
    uint64_t digest; /* over counted pages */
    bool commit_waits; /* COMMIT has come while a landing was under way */
    uint32_t commit_count;
    uint64_t commit_digest;
    uint32_t payload_bytes;
    bool say_opened, say_missing;
    kvf_status lost_reason;
    uint32_t lost_spent;
    rx_entry *entries; /* ascending by logical */
    uint64_t *bits; /* per entry: landed, moving, counted */
    uint8_t *payload;
} rx_grant;
typedef struct {
    kvf_frame_kind kind; /* COMMITTED or GONE */
    kvf_link_id link;
    uint64_t grant;
    kvf_status reason;
} rx_reply;
typedef struct {
    uint64_t grant; /* 0: empty */
    kvf_status reason; /* KVF_OK: committed */
} rx_tombstone;
struct kvf_rx {
    kvf_rx_config config;
    kvf_kv *kv;
    uint32_t words; /* of one bit row */
    uint64_t serial;
    rx_grant *grants;
    rx_reply *replies;
    uint32_t replies_max, replies_head, replies_count;
    rx_tombstone *tombstones;
    uint32_t tombstone_next;
    uint32_t told_next; /* slot where kvf_rx_next looks first */
    uint32_t untold; /* slots with something to tell */
    kvf_page_name *names; /* of the MISSING handed out last */
    uint32_t *out_logical;
    kvf_block_id *out_blocks;
    kvf_rx_counts counts;
};
static inline uint64_t *rx_landed(const kvf_rx *rx, const rx_grant *g, uint32_t entry) {
    return g->bits + (size_t)entry * 3 * rx->words;
}
static inline uint64_t *rx_moving(const kvf_rx *rx, const rx_grant *g, uint32_t entry) {
    return rx_landed(rx, g, entry) + rx->words;
}
static inline uint64_t *rx_counted(const kvf_rx *rx, const rx_grant *g, uint32_t entry) {
    return rx_landed(rx, g, entry) + 2 * (size_t)rx->words;
}
static inline void rx_set_state(rx_grant *g, rx_state to) {
    rx_state from = g->state;
    bool lawful = false
#define STATE(name)
#define MOVE(before, after, event) || (from == RX_##before && to == RX_##after)
#include "grant_moves.h"
#undef STATE
#undef MOVE
        ;
    KVF_ASSERT(lawful || KVF_MUTANT != 0);
    KVF_MOVE_SEEN(GRANT, from, to);
    g->state = to;
}
static inline bool rx_live(const rx_grant *g) { return g->state == RX_OFFERED || g->state == RX_OPEN; }
rx_grant *kvf_rx_find_grant(const kvf_rx *rx, uint64_t grant); /* NULL: not live */
int64_t kvf_rx_find_entry(const rx_grant *g, uint32_t logical);
void kvf_rx_say(kvf_rx *rx, kvf_frame_kind kind, kvf_link_id link, uint64_t grant, kvf_status reason);
void kvf_rx_bury(kvf_rx *rx, uint64_t grant, kvf_status reason);
bool kvf_rx_buried(const kvf_rx *rx, uint64_t grant, kvf_status *reason);
void kvf_rx_lose(kvf_rx *rx, rx_grant *g, kvf_status reason);
void kvf_rx_try_commit(kvf_rx *rx, rx_grant *g);

/* ---------------------------------------------------------------- sending half */
typedef enum {
#define STATE(name) TX_##name,
#define MOVE(from, to, event)
#include "handoff_moves.h"
#undef STATE
#undef MOVE
} tx_state;
typedef struct {
    uint32_t logical;
    kvf_block_id block;
} tx_entry;
typedef struct {
    uint32_t first_entry, end_entry, layer;
} tx_range;
typedef struct {
    tx_state state;
    uint16_t generation;
    kvf_request_id request;
    uint32_t attempt;
    uint64_t grant;
    uint8_t secret[16], proof[32];
    kvf_link_id link;
    uint32_t link_serial; /* counts kvf_tx_set_link, and is OPEN's turn: what an earlier link did has not been done */
    bool say_open, opened_once, commit_said;
    uint32_t entries_count;
    uint32_t due_count; /* pages to hand out */
    uint32_t moving_now, moving_old; /* handed out over this link, over earlier ones */
    uint32_t sent_count;
    uint64_t digest;
    bool finished;
    bool held; /* by the caller: no COMMIT yet */
    uint32_t payload_bytes;
    uint32_t rounds; /* MISSINGs heard */
    kvf_status result;
    kvf_time_ns hold_from_ns, relink_until_ns, first_page_ns, finished_ns, ended_ns;
    uint32_t pages;
    uint64_t bytes;
    uint32_t ranges_head, ranges_count;
    uint32_t at_entry, at_layer; /* inside the first range */
    uint32_t scan_entry;
    tx_entry *entries;
    uint64_t *bits; /* per entry: ready, due, moving, sent */
    tx_range *ranges;
    uint8_t *payload;
} tx_handoff;
typedef struct {
    uint32_t serial; /* odd while in use, so that a token names one sending only */
    uint32_t slot, entry, layer, link_serial;
    kvf_block_id block;
    uint32_t next_free;
} tx_sending;
typedef struct {
    kvf_link_id link;
    uint64_t grant;
} tx_goodbye;
struct kvf_tx {
    kvf_tx_config config;
    kvf_kv *kv;
    uint32_t words, ranges_max;
    uint32_t active;
    uint32_t *live; /* the slots in use, in no order: what is asked for every page must not walk over empty ones */
    uint32_t turn; /* place in live that is asked first: hand-offs take turns */
    kvf_time_ns now_ns; /* of the last event */
    tx_handoff *handoffs;
    tx_sending *sendings;
    uint32_t sendings_max, sendings_free;
    uint32_t sendings_used; /* places from here on were never taken */
    tx_goodbye *goodbyes; /* CANCEL frames to say; the hand-off itself may have ended */
    uint32_t goodbyes_max, goodbyes_count;
};
static inline void tx_set_state(tx_handoff *h, tx_state to) {
    tx_state from = h->state;
    bool lawful = false
#define STATE(name)
#define MOVE(before, after, event) || (from == TX_##before && to == TX_##after)
#include "handoff_moves.h"
#undef STATE
#undef MOVE
        ;
    KVF_ASSERT(lawful || KVF_MUTANT != 0);
    KVF_MOVE_SEEN(HANDOFF, from, to);
    h->state = to;
}
static inline uint64_t *tx_row(const kvf_tx *tx, const tx_handoff *h, uint32_t entry, uint32_t which) {
    return h->bits + ((size_t)entry * 4 + which) * tx->words;
}
enum { ROW_READY, ROW_DUE, ROW_MOVING, ROW_SENT };
static inline tx_handoff *tx_at(const kvf_tx *tx, uint32_t place) { return &tx->handoffs[tx->live[place]]; }
bool kvf_tx_pick_page(kvf_tx *tx, tx_handoff *h, uint32_t *entry, uint32_t *layer);
#endif
