/* kvf/endpoint.h - the shell of page transfer: links to other nodes over the transports of kvf/transport.h, driven by
 * one libevent base.
 *
 * Staging belongs to one connection (a memfd ring, a socket buffer); the receiver copies out of it, checks the copy and
 * only then counts the page. All callbacks run on the base's thread, never from inside a call of this header. A link id
 * is not reused. The handshake (HELLO/WELCOME/REFUSE) is made here: identities are compared field by field, epochs and
 * names too. */
#ifndef KVF_ENDPOINT_H
#define KVF_ENDPOINT_H
#include "kvf/lanes.h"
#include "kvf/tls.h"
#include "kvf/xfer.h"
struct event_base;

typedef struct kvf_endpoint kvf_endpoint;
typedef struct {
    void *self;
    /* nonce: the receiving side's of this connection. outgoing: we called. transport: "shm", "tcp", "tls", "loopback",
     * "cuda_ipc", "nccl". */
    void (*on_link_up)(void *self, kvf_link_id link, const char *peer, uint64_t peer_epoch, const uint8_t nonce[16],
        bool outgoing, const char *transport);
    /* Once per link, also for one that never came up: then reason and text say why (KVF_ERR_MISMATCH names field and
     * both values). peer is empty for a caller that ended before it said who it is. */
    void (*on_link_down)(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text);
    void (*on_frame)(void *self, kvf_link_id link, const kvf_frame *frame);
    /* ACCEPT and *target: where the payload is copied to. Afterwards on_landed with the verdict on the copy. */
    kvf_page_verdict (*on_page)(
        void *self, kvf_link_id link, const kvf_page_header *header, void **target, kvf_landing *landing);
    void (*on_landed)(void *self, kvf_link_id link, const kvf_landing *landing, bool crc_ok);
    void (*on_room)(void *self, kvf_link_id link); /* after KVF_AGAIN: there is room again */
    /* With a device only. on_dropped: in place of on_landed, the payload never came. on_page_sent: once for each page
     * that kvf_endpoint_post_page took, also after its link has gone. waits: kvf_tx_waits, whether pages that are held
     * back for a full slot should go now (NULL: always). on_device_lost: nothing works on the device any more, or work
     * on it does not end; this process must. */
    void (*on_dropped)(void *self, kvf_link_id link, const kvf_landing *landing);
    void (*on_page_sent)(void *self, uint64_t token, bool ok, uint32_t crc);
    bool (*waits)(void *self, kvf_link_id link);
    bool (*uses)(void *self, kvf_link_id link); /* a link that must not be closed as idle. NULL: none */
    void (*on_device_lost)(void *self, const char *text);
} kvf_endpoint_callbacks;

typedef struct {
    struct event_base *base;
    const char *node;
    uint64_t epoch;
    const kvf_identity *identity;
    bool allow_unequal_numerics;
    const char *listen_tcp; /* "host:port", port 0 any; NULL: none */
    const char *advertise_host; /* host that others are told; NULL: the one listened on */
    /* kept; NULL: plain TCP, and peers that demand TLS cannot be reached. Else all TCP is "tls": peers that are plain
     * are refused, and a peer must show a certificate with the node name that it claims or is called by. */
    kvf_tls_store *tls;
    bool listen_shm;
    uint32_t ring_bytes; /* staging of one shm connection; 0: default */
    kvf_time_ns connect_timeout_ns, heartbeat_ns, peer_timeout_ns;
    kvf_endpoint_callbacks callbacks;
    struct kvf_loopback
        *loopback; /* for tests: kvf/transport.h; listens there under the node's name, "loopback:<node>". NULL: none */
    const kvf_page_device *device; /* kept; pages lie in its memory. NULL: in this process's own */
} kvf_endpoint_options;

kvf_status kvf_endpoint_create(const kvf_endpoint_options *options, kvf_endpoint **out, kvf_error *err);
void kvf_endpoint_destroy(kvf_endpoint *e); /* closes every link without callbacks */
/* Addresses to tell others. */
const char *kvf_endpoint_address(const kvf_endpoint *e); /* "tcp:127.0.0.1:4711", "tls:...", "" when none */
const char *kvf_endpoint_local_address(const kvf_endpoint *e); /* "shm:..." , "" when none */

/* Prefers local_address when host_id is this host's and shm is allowed here. Result comes as on_link_up or
 * on_link_down. */
kvf_status kvf_endpoint_connect(kvf_endpoint *e, const char *peer, uint64_t peer_epoch, const char *address,
    const char *local_address, uint64_t host_id, kvf_link_id *out);
void kvf_endpoint_close(kvf_endpoint *e, kvf_link_id link); /* no on_link_down follows */
bool kvf_endpoint_has_room(const kvf_endpoint *e, kvf_link_id link);
kvf_status kvf_endpoint_send_frame(kvf_endpoint *e, kvf_link_id link, const kvf_frame *frame); /* KVF_AGAIN: full */
/* Copies page into staging (CRC made on the way, stored in *crc). KVF_OK: the page's memory is no longer needed. */
kvf_status kvf_endpoint_send_page(
    kvf_endpoint *e, kvf_link_id link, const kvf_page_header *header, const void *page, uint32_t *crc);
/* With a device: takes layer header.layer of `block` of the pool; on_page_sent follows, then the page's memory is no
 * longer needed. KVF_AGAIN: full. on_page's target is not used: the landing says where a page goes. */
kvf_status kvf_endpoint_post_page(
    kvf_endpoint *e, kvf_link_id link, const kvf_page_header *header, uint32_t block, uint64_t token);
/* Pages that one link can have under way: what kvf_tx_config.inflight_max has to be at least. 0 without a device. */
uint32_t kvf_endpoint_pages_held(const kvf_endpoint *e);
void kvf_endpoint_flush(kvf_endpoint *e); /* wakes peers after a burst of sends; call once per pump */
#endif
