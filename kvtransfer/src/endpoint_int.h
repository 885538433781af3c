/* endpoint_int.h - what the files of the endpoint share. */
#ifndef KVF_XFER_ENDPOINT_INT_H
#define KVF_XFER_ENDPOINT_INT_H
#include "kvf/endpoint.h"
#include "kvf/transport.h"
#include "lane.h"

#define LINKS_MAX 250u /* of one endpoint; a link id is (serial << 8 | slot) */

/* LINK_LINGERS: REFUSE has been said and reported, the connection stays until the peer has read it or the connect
 * timeout. */
typedef enum {
    LINK_FREE,
    LINK_DIALLING,
    LINK_HELLO_SENT,
    LINK_HELLO_WAIT,
    LINK_LANING, /* paired, its lane is being made */
    LINK_UP,
    LINK_LINGERS,
    LINK_DEAD
} link_state;

typedef struct ep_lane ep_lane;
typedef struct {
    kvf_endpoint *endpoint;
    link_state state;
    kvf_link_id id;
    kvf_conn *conn; /* owned; NULL: the dial failed before there was one */
    const char *transport;
    bool outgoing;
    char peer[KVF_NAME_MAX];
    uint64_t peer_epoch;
    uint64_t generation; /* of the caller's connections, by its own count */
    uint8_t nonce[16];
    kvf_time_ns since_ns, heard_ns;
    bool dirty; /* something was put and not flushed */
    bool asked_room; /* on_room is owed */
    bool read_on; /* the budget of one callback ended before the bytes did */
    bool fail_later; /* told from the loop with fail_reason, fail_text */
    kvf_status fail_reason;
    char fail_text[KVF_TEXT_MAX];
    uint32_t busy;
    bool near; /* the peer is of this host */
    bool stalled; /* a page waits in the stream for a free slot */
    uint32_t lanes_offered; /* in HELLO */
    ep_lane *lane; /* NULL: pages lie in memory of this process */
} ep_link;

/* A batch of pages on its way, and the slot it has. FREE and FILLING for both sides.
 *   sends     PACKING -> PACKED -> stream: FREE, as its frames find room
 *                                  cuda_ipc: SENT -> FREE by the peer's word
 *                                  nccl: SENT -> POSTABLE by the peer's word -> POSTING -> SENT -> FREE by the peer's
 * word receives  POSTABLE -> POSTING (nccl) -> LANDING -> FREE */
typedef enum {
    BATCH_FREE,
    BATCH_FILLING,
    BATCH_PACKING,
    BATCH_PACKED,
    BATCH_SENT,
    BATCH_POSTABLE,
    BATCH_POSTING,
    BATCH_LANDING
} batch_state;
typedef struct {
    kvf_page_header header;
    uint64_t token; /* sends */
    kvf_landing landing; /* receives */
    bool accepted;
} ep_entry;
typedef struct {
    batch_state state;
    uint32_t seq, count;
    uint32_t told; /* of the pages: on_page_sent or on_landed has been called */
    bool say_post, say_free; /* receives: frames that are owed */
    bool posted; /* sends: the peer has posted its receive */
    bool freed; /* the peer's word has come before our own send was over */
    ep_entry *entries; /* [slot_pages] */
} ep_batch;
typedef enum { LANE_OPENS, LANE_JOINS, LANE_WAITS_PEER, LANE_UP, LANE_CLOSES } lane_phase;
struct ep_lane {
    ep_lane *next;
    kvf_endpoint *endpoint;
    ep_link *link; /* NULL: gone; what is still under way is told when its device work is over */
    kvf_link_id link_id;
    lane *work;
    kvf_lane_kind kind;
    bool outgoing, peer_ready, opened, closed, lost_told;
    lane_phase phase;
    uint32_t slots, slot_pages; /* agreed */
    uint8_t offer[LANE_BYTES_MAX];
    uint32_t offer_bytes; /* 0: not heard yet */
    uint64_t stride_bytes;
    uint32_t seq; /* of the batch that is filled, or comes next */
    uint32_t said; /* outgoing: of the next batch that is told of */
    bool asked_room;
    kvf_time_ns filling_ns, used_ns;
    ep_batch batches[LANE_SLOTS_MAX];
};

/* A process that has called us: its newest connection, and whether a later process of the same name took its place. */
typedef struct {
    char node[KVF_NAME_MAX]; /* "": empty */
    uint64_t epoch, generation;
    bool superseded;
} ep_caller;
#define CALLERS_MAX 256u /* the oldest is forgotten: then a late HELLO is judged by the links that are up */

struct kvf_endpoint {
    kvf_endpoint_options options;
    char node[KVF_NAME_MAX];
    kvf_identity identity;
    kvf_transport_env env;
    kvf_listener *listeners[3]; /* tcp, shm, loopback */
    char address[KVF_ADDRESS_MAX], local_address[KVF_ADDRESS_MAX];
    uint64_t host_id;
    struct event *tick, *later;
    kvf_time_ns now_ns, beat_ns; /* now: as of the last callback */
    uint32_t serial;
    uint64_t generation; /* of the last connection that we made */
    ep_caller callers[CALLERS_MAX];
    uint32_t caller_next;
    uint32_t links_count; /* slots ever used */
    ep_link links[LINKS_MAX];
    lane_pool *pool; /* NULL: no device */
    int bell; /* of the lanes */
    struct event *ev_bell;
    ep_lane *lanes;
    uint32_t sends_posted, recvs_posted;
    kvf_page_device device; /* with its defaults filled in */
    bool lost; /* on_device_lost has been called */
    uint8_t frame_bytes[KVF_FRAME_BYTES_MAX]; /* the private copy of the frame that is judged */
    uint8_t out_bytes[KVF_FRAME_BYTES_MAX];
    kvf_page_name names[KVF_FRAME_MISSING_MAX];
};

/* endpoint_hello.c */
void ep_say_hello(ep_link *link);
void ep_hello(ep_link *link, const kvf_frame *frame); /* the called side */
void ep_welcome(ep_link *link, const kvf_frame *frame); /* the calling side: WELCOME or REFUSE */
void ep_other_version(ep_link *link, const uint8_t *head);

/* endpoint_read.c: every whole frame that has arrived, at most bytes_max. */
void ep_read(ep_link *link, size_t bytes_max);
/* Before the first frame: what has come looks like TLS, from a peer that demands what this side has not. */
bool ep_hears_tls(ep_link *link);

/* endpoint_lane.c: lanes are made, watched, ended */
kvf_status ep_lanes_open(kvf_endpoint *e, kvf_error *err);
void ep_lanes_close(kvf_endpoint *e);
void ep_lanes_tick(kvf_endpoint *e, kvf_time_ns now);
/* For HELLO, and of them for WELCOME. An idle communicator may be closed for the new one, by callbacks. */
uint32_t ep_lanes_offered(const ep_link *link);
kvf_lane_kind ep_lane_choose(const ep_link *link, uint32_t offered);
void ep_lane_make(ep_link *link, kvf_lane_kind kind); /* the link is up, or has failed, when the lane is there */
void ep_lane_heard(ep_link *link, const kvf_frame *f); /* LANE */
void ep_lane_drop(ep_link *link); /* the link goes */

/* endpoint_batch.c: pages over lanes */
bool ep_lane_has_room(ep_link *link);
void ep_lane_push(ep_lane *l); /* what has been gathered goes */
void ep_lane_go_on(ep_lane *l); /* whatever waits for room in the stream, or for a post */
void ep_batch_heard(ep_link *link, const kvf_frame *f); /* BATCH, SLOT */
bool ep_lane_takes(ep_link *link); /* a page of the stream: there is a slot for it */
void ep_lane_gather(ep_link *link, const kvf_page_header *h);
void ep_lane_land(ep_link *link); /* what has been gathered of the stream */
void ep_batch_news(ep_lane *l, const lane_event *event);
void ep_batches_end(ep_lane *l); /* tells what was still under way */
void ep_batches_post(kvf_endpoint *e);

/* endpoint.c */
bool ep_room_for(ep_link *link, size_t len_bytes); /* false: on_room is owed */
void ep_tell_room(ep_link *link); /* on_room, if there is; else it is owed */
void ep_soon(kvf_endpoint *e);
void ep_enter(ep_link *link);
void ep_leave(ep_link *link);
void ep_page_sent(ep_link *link, const kvf_page_header *header, const void *page); /* there is room */
void ep_put_frame(ep_link *link, const kvf_frame *frame); /* there is room: the first frames of a connection */
void ep_link_up(ep_link *link);
void ep_fail(ep_link *link, kvf_status reason, const char *fmt, ...)
    KVF_PRINTF(3, 4); /* from the loop only: tells on_link_down */
void ep_linger(ep_link *link);
bool ep_proved(const ep_link *link, const char *name, char *who, size_t who_bytes); /* as kvf_conn_ops.proves */
#endif
