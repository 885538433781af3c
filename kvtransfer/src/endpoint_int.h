/* endpoint_int.h - what the files of the endpoint share. */
#ifndef KVF_XFER_ENDPOINT_INT_H
#define KVF_XFER_ENDPOINT_INT_H
#include "kvf/endpoint.h"
#include "kvf/transport.h"

#define LINKS_MAX 250u /* of one endpoint; a link id is (serial << 8 | slot) */

/* LINK_LINGERS: REFUSE has been said and reported, the connection stays until the peer has read it or the connect
 * timeout. */
typedef enum {
    LINK_FREE,
    LINK_DIALLING,
    LINK_HELLO_SENT,
    LINK_HELLO_WAIT,
    LINK_UP,
    LINK_LINGERS,
    LINK_DEAD
} link_state;

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
} ep_link;

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

/* endpoint.c */
void ep_put_frame(ep_link *link, const kvf_frame *frame); /* there is room: the first frames of a connection */
void ep_link_up(ep_link *link);
void ep_fail(ep_link *link, kvf_status reason, const char *fmt, ...)
    KVF_PRINTF(3, 4); /* from the loop only: tells on_link_down */
void ep_linger(ep_link *link);
bool ep_proved(const ep_link *link, const char *name, char *who, size_t who_bytes); /* as kvf_conn_ops.proves */
#endif
