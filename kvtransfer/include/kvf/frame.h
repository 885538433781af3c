/* kvf/frame.h - the frames of a link between two nodes, decoded. The byte tables stand in kvtransfer/README.md, golden
 * bytes in tests/unit/kvtransfer. A link is made by the sender of pages (P); frames of one link arrive in order, or the
 * link is gone.
 *
 *   P -> D  HELLO                          D -> P  WELCOME | REFUSE
 *           OPEN(grant, proof)                     OPENED | GONE
 *           PAGE(grant, block, layer) ...
 *           COMMIT(grant, count, digest)           COMMITTED | MISSING | GONE
 *           CANCEL(grant), RENEW                   (RENEW back: the same heartbeat)
 * Where pages of devices travel beside the stream (a lane: kvf/lanes.h):
 *           LANE                                   LANE (made after WELCOME, before anything else)
 *           BATCH(pages that fill one slot)        SLOT(post it | it is yours again)
 */
#ifndef KVF_FRAME_H
#define KVF_FRAME_H
#include "kvf/base.h"
#include "kvf/msg.h"

#define KVF_FRAME_COMMIT_PAYLOAD_MAX 16384
#define KVF_FRAME_MISSING_MAX 1024 /* pages named in one MISSING; more are asked for in the next round */

typedef enum {
    KVF_FRAME_HELLO = 1,
    KVF_FRAME_WELCOME,
    KVF_FRAME_REFUSE,
    KVF_FRAME_OPEN,
    KVF_FRAME_OPENED,
    KVF_FRAME_PAGE,
    KVF_FRAME_COMMIT,
    KVF_FRAME_COMMITTED,
    KVF_FRAME_MISSING,
    KVF_FRAME_GONE,
    KVF_FRAME_CANCEL,
    KVF_FRAME_RENEW,
    KVF_FRAME_LANE,
    KVF_FRAME_BATCH,
    KVF_FRAME_SLOT
} kvf_frame_kind;

#define KVF_FRAME_BATCH_MAX 800 /* pages of one BATCH */
#define KVF_FRAME_LANE_BYTES_MAX 256
typedef enum { KVF_LANE_OFFER = 1, KVF_LANE_READY, KVF_LANE_NOT } kvf_lane_step; /* NOT: the stream has to do */
typedef enum { KVF_SLOT_POST = 1, KVF_SLOT_FREE } kvf_slot_news;

typedef struct {
    uint64_t grant;
    uint32_t block; /* logical block of the request */
    uint32_t layer;
    uint32_t len_bytes;
    uint32_t crc; /* CRC32C over the bytes, seeded with grant, block, layer and the receiver's epoch: kvf_page_crc */
} kvf_page_header;

typedef struct {
    uint32_t block, layer;
} kvf_page_name;

typedef struct {
    kvf_frame_kind kind;
    union {
        struct {
            char node[KVF_NAME_MAX];
            uint64_t epoch;
            char peer[KVF_NAME_MAX]; /* who is called; another node at this address refuses */
            uint64_t peer_epoch;
            uint64_t generation; /* of this connection: grows with each that the caller makes. A newer one ends older */
            uint32_t lanes; /* kinds that the caller could make, bits of 1 << kvf_lane_kind; 0: none, and not written */
            kvf_identity identity;
        } hello;
        struct {
            char node[KVF_NAME_MAX];
            uint64_t epoch;
            uint8_t nonce[16]; /* of this connection; OPEN proves secrets over it */
            uint32_t lanes; /* the one that is made now, as a bit; 0: none, and not written */
            kvf_identity identity;
        } welcome;
        struct {
            kvf_status reason;
            char field[32];
            char mine[64], yours[64];
        } refuse;
        struct {
            uint64_t grant;
            kvf_request_id request;
            uint32_t attempt;
            uint32_t turn; /* 1 on the first link of this hand-off, higher on each that replaces it */
            uint8_t proof[32]; /* HMAC-SHA256(secret, nonce, grant, request, attempt, turn): kvf_grant_proof */
        } open;
        struct {
            uint64_t grant;
        } opened, committed, cancel;
        kvf_page_header page; /* payload travels beside the frame */
        struct {
            uint64_t grant;
            uint32_t page_count;
            uint64_t digest; /* sum over pages of kvf_page_digest */
            kvf_span payload; /* first tokens, opaque to the transfer core; borrowed */
        } commit;
        struct {
            uint64_t grant;
            uint32_t count;
            const kvf_page_name *pages; /* borrowed */
        } missing;
        struct {
            uint64_t grant;
            kvf_status reason;
        } gone;
        struct {
            uint32_t step; /* kvf_lane_step */
            uint32_t slots, slot_pages;
            kvf_span bytes; /* OFFER: memory handle or id of the communicator; NOT: why; borrowed */
        } lane;
        struct {
            uint32_t seq; /* counts the batches of a link; batch n lies in slot n % slots */
            uint32_t count;
            const uint8_t *pages; /* count times KVF_FRAME_BATCH_PAGE_BYTES, kvf_batch_page_get; borrowed */
        } batch;
        struct {
            uint32_t seq;
            uint32_t news; /* kvf_slot_news */
        } slot;
    };
} kvf_frame;

/* ---------------------------------------------------------------- bytes
 * head: u32 body length, u8 kind, u8 wire version, u16 zero, u32 CRC32C over the first 8 bytes and the body (without
 * page payload). */
#define KVF_FRAME_HEAD_BYTES 12
#define KVF_FRAME_PAGE_BYTES 36 /* head and page header; the payload follows */
#define KVF_FRAME_BYTES_MAX 16420 /* of any frame, page payload not counted */
/* Writes the frame (of a PAGE: head and page header). Returns its length; 0: does not fit, or a string is not
 * terminated. */
size_t kvf_frame_encode(const kvf_frame *frame, uint8_t *out, size_t room_bytes);
/* Judges the first KVF_FRAME_HEAD_BYTES bytes: kind and whole length (head, body, page payload). KVF_ERR_FORMAT: close
 * the link. */
kvf_status kvf_frame_measure(const uint8_t *head, uint32_t page_bytes_max, kvf_frame_kind *kind, uint32_t *whole_bytes);
/* Decodes a whole frame; of a PAGE exactly the first KVF_FRAME_PAGE_BYTES bytes. names: room for KVF_FRAME_MISSING_MAX,
 * filled by MISSING. Spans of the result are borrowed from `bytes` and `names`. KVF_ERR_FORMAT, KVF_ERR_CORRUPT: *out
 * is not to be used. */
kvf_status kvf_frame_decode(kvf_span bytes, kvf_page_name *names, kvf_frame *out);

/* What the bytes' CRC-32C goes on from: a device makes the rest where the page is. */
uint32_t kvf_page_seed(const kvf_page_header *h, uint64_t receiver_epoch);
uint32_t kvf_page_crc(const kvf_page_header *h, uint64_t receiver_epoch, const void *bytes);
#define KVF_FRAME_BATCH_PAGE_BYTES 20 /* u64 grant, u32 block, u32 layer, u32 page CRC */
void kvf_batch_page_put(uint8_t *at, const kvf_page_header *h);
void kvf_batch_page_get(const kvf_frame *batch, uint32_t index, uint32_t page_bytes, kvf_page_header *out);
uint64_t kvf_page_digest(uint32_t block, uint32_t layer, uint32_t crc);
void kvf_grant_proof(const uint8_t secret[16], const uint8_t nonce[16], uint64_t grant, kvf_request_id request,
    uint32_t attempt, uint32_t turn, uint8_t proof[32]);
#endif
