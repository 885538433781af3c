/* kvf/xfer.h - the transfer core: grants on the receiving node (rx), hand-offs on the sending node (tx).
 *
 * Pure: no socket, clock, thread, random source, floating point or malloc. Feed events with their time, then drain
 * `next`. Memory is sized at init. Both halves work on the node's kvf_kv: rx takes blocks late and pins them for the
 * grant, tx holds a use on a block while a page of it is being sent. One thread at a time drives a node's kv, rx and
 * tx.
 *
 * rx grant:  OFFERED --open--> OPEN --commit, all pages landed--> COMMITTED (closed; blocks handed over)
 *            any --revoke, cancel, expiry, link down + ttl--> GONE (tombstone answers late frames with Gone{reason})
 * tx hand-off: WAITING(link) -> OPENING -> MOVING -> COMMITTING -> ENDED{result}; CANCEL from any; ends exactly once
 * and only when no send of it is in flight. */
#ifndef KVF_XFER_H
#define KVF_XFER_H
#include "kvf/frame.h"
#include "kvf/kvcache.h"

#define KVF_LINK_NONE UINT32_MAX
typedef uint32_t kvf_link_id; /* index of a connection of this node; the shell never reuses one within its quarantine */

/* ---------------------------------------------------------------- receiving half */
typedef struct kvf_rx kvf_rx;
typedef struct {
    uint32_t grants_max;
    uint32_t blocks_max; /* logical blocks of one request */
    uint32_t layers;
    uint32_t page_bytes;
    uint64_t epoch; /* of this node */
    kvf_time_ns grant_ttl_ns;
    uint32_t tombstones_max;
} kvf_rx_config;

size_t kvf_rx_size(const kvf_rx_config *config);
kvf_rx *kvf_rx_init(void *memory, const kvf_rx_config *config, kvf_kv *kv); /* memory zeroed, kept; kv kept */

/* Opens a grant for the pages of `missing` (logical blocks, ascending; copied). The caller has booked room for every
 * one of them: rx spends a booked unit when a block's first page arrives, and sets it filled - but for the last block,
 * whose fill only the caller knows. KVF_AGAIN: no grant slot free. */
kvf_status kvf_rx_offer(kvf_rx *rx, kvf_time_ns now, kvf_request_id request, uint32_t attempt, const uint8_t secret[16],
    const uint32_t *missing, uint32_t missing_count, uint64_t *grant);
/* A higher attempt of a grant that is not committed: the old grant is revoked, verified pages stay with the new one.
 * missing: the blocks that are not whole yet (caller's array of at least the old missing_count). */
kvf_status kvf_rx_reoffer(kvf_rx *rx, kvf_time_ns now, uint64_t old_grant, uint32_t attempt, const uint8_t secret[16],
    uint64_t *grant, uint32_t *missing, uint32_t *missing_count);
/* Unpins what landed (private blocks go back to FREE when landing copies end). Returns how many booked units the grant
 * had spent, so that the caller can settle its booking. The peer is told GONE{why} if the grant is open.
 * KVF_ERR_NOT_FOUND: no such grant, or it is over already and its COMMITTED or LOST waits in kvf_rx_next (a COMMITTED
 * one then hands over blocks all the same). */
kvf_status kvf_rx_revoke(kvf_rx *rx, kvf_time_ns now, uint64_t grant, kvf_status why, uint32_t *blocks_spent);
/* The router's session renews reservations: grants that nobody has opened yet. An open one lives by its link's RENEW.
 */
void kvf_rx_renew(kvf_rx *rx, kvf_time_ns now, uint64_t grant);

/* A page header has arrived; its payload is still in staging. ACCEPT: copy the payload into (block, layer), then check
 * the copy's CRC and call landed. The block is in use until then. Everything else: drop the payload (counted by
 * reason). */
typedef enum {
    KVF_PAGE_ACCEPT,
    KVF_PAGE_DUPLICATE,
    KVF_PAGE_GONE, /* no such grant (any more) */
    KVF_PAGE_NOT_YOURS, /* grant of another link, or not opened */
    KVF_PAGE_NOT_LISTED, /* block or layer outside the grant */
    KVF_PAGE_BAD_LENGTH,
    KVF_PAGE_NO_ROOM,
    KVF_PAGE_VERDICTS /* how many there are */
} kvf_page_verdict;
const char *kvf_page_verdict_text(kvf_page_verdict verdict);
typedef struct {
    uint64_t grant;
    uint32_t block_logical, layer;
    kvf_block_id block;
    uint32_t crc; /* as the header claims */
    kvf_link_id link; /* that it came by */
} kvf_landing;
kvf_page_verdict kvf_rx_on_page(
    kvf_rx *rx, kvf_time_ns now, kvf_link_id link, const kvf_page_header *header, kvf_landing *out);
void kvf_rx_on_landed(kvf_rx *rx, kvf_time_ns now, const kvf_landing *landing, bool crc_ok);
/* Instead of landed: the payload never came, its link is gone. What the page holds is unknown; nothing is corrupt. */
void kvf_rx_on_dropped(kvf_rx *rx, kvf_time_ns now, const kvf_landing *landing);

/* OPEN, COMMIT, CANCEL, RENEW. nonce: of this link. KVF_OK: taken, or answered again. Else it was dropped, counted, and
 * this is why: KVF_ERR_GONE no such grant (any more), KVF_ERR_AUTH wrong proof, KVF_ERR_STALE of a link that the grant
 * has left or never had, KVF_ERR_CORRUPT count or digest differ and the grant is over, KVF_ERR_FORMAT not for us. */
kvf_status kvf_rx_on_frame(
    kvf_rx *rx, kvf_time_ns now, kvf_link_id link, const uint8_t nonce[16], const kvf_frame *frame);
/* The grants of the link are not over: their ttl runs on, and an OPEN with proof on another link takes them up again.
 */
void kvf_rx_on_link_down(kvf_rx *rx, kvf_time_ns now, kvf_link_id link);
bool kvf_rx_uses(const kvf_rx *rx, kvf_link_id link); /* a grant is open on it */
void kvf_rx_on_time(kvf_rx *rx, kvf_time_ns now);
kvf_time_ns kvf_rx_deadline(const kvf_rx *rx);

typedef enum {
    KVF_RX_FRAME, /* send it */
    KVF_RX_COMMITTED, /* all pages are here; `blocks` and their pins are the caller's now; the grant is closed */
    KVF_RX_LOST /* the grant is over: expired, cancelled by the peer, its link down for a ttl, or commit and pages
                   differ (KVF_ERR_CORRUPT); blocks are unpinned already */
} kvf_rx_act_kind;
typedef struct {
    kvf_rx_act_kind kind;
    kvf_link_id link;
    kvf_frame frame; /* FRAME; borrowed until the next call */
    uint64_t grant;
    kvf_request_id request;
    uint32_t attempt;
    kvf_status reason; /* LOST */
    uint32_t blocks_spent; /* LOST: booked units the grant had spent */
    const uint32_t *logical; /* COMMITTED: [blocks_count], borrowed until the next call */
    const kvf_block_id *blocks;
    uint32_t blocks_count;
    kvf_span payload; /* COMMITTED: of the commit; borrowed until the next call */
} kvf_rx_act;
bool kvf_rx_next(kvf_rx *rx, kvf_rx_act *act);

typedef struct {
    uint64_t pages_landed, bytes_landed, pages_duplicate, pages_corrupt, pages_rejected, commits, commits_missing,
        grants_lost, opens_refused, opens_late;
    uint64_t rejected[KVF_PAGE_VERDICTS]; /* pages_rejected by verdict */
    uint64_t frames_gone, frames_stale, commits_corrupt; /* COMMIT and CANCEL that were dropped */
    uint64_t repeats; /* COMMIT, OPEN or CANCEL of a grant that had ended just so: no harm, not dropped */
} kvf_rx_counts;
/* Everything that was dropped. */
uint64_t kvf_rx_counts_dropped(const kvf_rx_counts *counts);
void kvf_rx_count(const kvf_rx *rx, kvf_rx_counts *out);
uint32_t kvf_rx_open_grants(const kvf_rx *rx);

/* ---------------------------------------------------------------- sending half */
typedef struct kvf_tx kvf_tx;
typedef uint32_t kvf_tx_id; /* slot and generation in one number */
typedef struct {
    uint32_t handoffs_max;
    uint32_t blocks_max;
    uint32_t layers;
    uint32_t page_bytes;
    uint32_t inflight_max; /* pages handed to the shell and not yet reported sent, of one link */
    kvf_time_ns
        hold_ttl_ns; /* how long a finished hand-off goes without progress or answer before it ends KVF_ERR_DEADLINE */
    kvf_time_ns
        relink_ttl_ns; /* how long a hand-off whose link broke waits for the next kvf_tx_set_link; 0: it ends at once */
} kvf_tx_config;
size_t kvf_tx_size(const kvf_tx_config *config);
kvf_tx *kvf_tx_init(void *memory, const kvf_tx_config *config, kvf_kv *kv);

/* missing: logical blocks to ship, ascending (copied). Nothing moves before kvf_tx_set_link. */
kvf_status kvf_tx_start(kvf_tx *tx, kvf_time_ns now, kvf_request_id request, uint32_t attempt, uint64_t grant,
    const uint8_t secret[16], const uint32_t *missing, uint32_t missing_count, kvf_tx_id *out);
/* The link to the receiver is up: OPEN goes out. A second call (the link was replaced) opens again and goes on where it
 * was; what the cut swallowed is named by MISSING after COMMIT and sent again. */
void kvf_tx_set_link(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, kvf_link_id link, const uint8_t nonce[16]);
/* The physical block that holds logical block `logical` now. The caller keeps it pinned until END. May be called again
 * when sealing swaps a copy for its twin; pages already handed out keep their use on the old one. */
void kvf_tx_set_block(kvf_tx *tx, kvf_tx_id id, uint32_t logical, kvf_block_id block);
/* Layer `layer` of logical blocks [first, first + count) is final and readable. Blocks not in `missing` are skipped.
 * Order is kept. At most 2 * layers + blocks_max ranges may be pending. layer == KVF_TX_ALL_LAYERS: a cached block, all
 * its pages. */
#define KVF_TX_ALL_LAYERS UINT32_MAX
void kvf_tx_pages_ready(kvf_tx *tx, kvf_tx_id id, uint32_t first, uint32_t count, uint32_t layer);
/* The prompt is computed: COMMIT follows the last page. payload is copied (<= KVF_FRAME_COMMIT_PAYLOAD_MAX). */
void kvf_tx_finish(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, kvf_span payload);
/* While it is held no COMMIT goes out, and its hold time does not run. */
void kvf_tx_hold(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, bool held);
void kvf_tx_cancel(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, kvf_status why);

/* Once per PAGE action, also when its link has died. ok: the page's memory is no longer needed. crc as sent. */
void kvf_tx_on_page_sent(kvf_tx *tx, kvf_time_ns now, uint64_t token, bool ok, uint32_t crc);
void kvf_tx_on_frame(
    kvf_tx *tx, kvf_time_ns now, kvf_link_id link, const kvf_frame *frame); /* OPENED, COMMITTED, MISSING, GONE */
/* Hand-offs on it end KVF_ERR_PEER_LOST, after relink_ttl_ns without a new link. */
void kvf_tx_on_link_down(kvf_tx *tx, kvf_time_ns now, kvf_link_id link);
void kvf_tx_on_time(kvf_tx *tx, kvf_time_ns now);
kvf_time_ns kvf_tx_deadline(const kvf_tx *tx);

typedef enum { KVF_TX_FRAME, KVF_TX_PAGE, KVF_TX_END } kvf_tx_act_kind;
typedef struct {
    kvf_tx_act_kind kind;
    kvf_link_id link;
    kvf_frame frame; /* FRAME: borrowed until the next call */
    kvf_page_header header; /* PAGE: crc is left for the sender of bytes to fill */
    kvf_block_id block; /* PAGE: read layer header.layer of it; in use until kvf_tx_on_page_sent(token) */
    uint64_t token;
    kvf_tx_id id; /* END */
    kvf_status
        result; /* END: KVF_OK committed; KVF_ERR_GONE, KVF_ERR_PEER_LOST, KVF_ERR_DEADLINE, KVF_ERR_CANCELLED ... */
    uint32_t pages;
    uint64_t bytes;
    kvf_time_ns first_page_ns, finished_ns, ended_ns; /* END: times of first page sent, kvf_tx_finish, end; 0: never */
} kvf_tx_act;
/* link_has_room(self, link): false holds back that link's pages and frames (back-pressure); END actions always come.
 * NULL: always room. */
bool kvf_tx_next(kvf_tx *tx, bool (*link_has_room)(void *self, kvf_link_id link), void *self, kvf_tx_act *act);
uint32_t kvf_tx_active(const kvf_tx *tx);
/* Whether hand-offs of this link can only go on when pages handed out already are reported sent: no more pages of
 * theirs will come. A transport that gathers pages moves what it holds then. */
bool kvf_tx_waits(const kvf_tx *tx, kvf_link_id link);
bool kvf_tx_uses(const kvf_tx *tx, kvf_link_id link); /* a hand-off goes over it */

/* Checks of both halves for the audit: every grant's and hand-off's counts, uses and pins. */
kvf_status kvf_rx_audit(const kvf_rx *rx, kvf_error *err);
kvf_status kvf_tx_audit(const kvf_tx *tx, kvf_error *err);
#endif
