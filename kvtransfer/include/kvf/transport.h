/* kvf/transport.h - what carries frames between two nodes: loopback, shm, tcp, tls. Only kvtransfer's endpoint and its
 * tests use this.
 *
 * A connection is two streams of bytes through staging memory that belongs to it alone. `put` appends to staging,
 * `flush` hands it to the peer; `peek` copies out of staging, `consume` gives it back. A peer may write anything into
 * staging at any time: what is judged is always a copy. Callbacks come from the event loop, never from inside a call of
 * these tables; after `close` none comes. */
#ifndef KVF_TRANSPORT_H
#define KVF_TRANSPORT_H
#include "kvf/base.h"
#include "kvf/msg.h"
#include "kvf/tls.h"
struct event_base;
struct evdns_base;

typedef struct kvf_conn kvf_conn;
typedef struct kvf_listener kvf_listener;
typedef struct kvf_transport_ops kvf_transport_ops;
typedef struct kvf_loopback kvf_loopback; /* where listeners of one process find each other */

typedef struct {
    void *self;
    void (*on_open)(void *self); /* the dialled side: bytes may be put from now on */
    void (*on_readable)(void *self);
    void (*on_room)(void *self); /* once after want_room */
    void (*on_down)(void *self, kvf_status reason, const char *text); /* once, after what had arrived was readable */
} kvf_conn_events;

typedef struct {
    size_t (*room)(const kvf_conn *c); /* bytes that put takes now */
    void (*put)(kvf_conn *c, const void *data, size_t len_bytes); /* len_bytes <= room; borrowed */
    void (*flush)(kvf_conn *c);
    void (*want_room)(kvf_conn *c, size_t room_bytes); /* on_room when that many bytes are free */
    size_t (*ready)(kvf_conn *c); /* bytes that have arrived */
    void (*peek)(kvf_conn *c, size_t at, void *out, size_t len_bytes); /* at + len_bytes <= an answer of ready */
    void (*consume)(kvf_conn *c, size_t len_bytes);
    void (*close)(kvf_conn *c); /* frees it; what was flushed still leaves as far as the system has taken it */
    /* Whether the peer of an open connection has proved to be `name`; if not, who receives what it proved to be. NULL:
     * this transport asks nobody (one host, or the operator's word for the network). */
    bool (*proves)(kvf_conn *c, const char *name, char *who, size_t who_bytes);
} kvf_conn_ops;

struct kvf_conn {
    const kvf_conn_ops *ops;
    kvf_conn_events events; /* set by the owner right after dial or inside accept */
    uint32_t busy; /* callbacks under way: close frees when they are over */
    bool closed, told_down;
};

/* What transports share inside one endpoint. */
typedef struct {
    struct event_base *base; /* kept */
    uint32_t staging_bytes; /* of one direction, a power of two */
    kvf_loopback *loopback; /* kept; NULL: none */
    struct evdns_base *resolver; /* made when the first name is dialled */
    kvf_tls_store *tls; /* kept; NULL: no "tls" */
    uint64_t tls_key_update_bytes; /* sent under one key; 0: what the cipher bears */
} kvf_transport_env;

typedef void (*kvf_accept_fn)(void *self, kvf_conn *c); /* c: taken */

struct kvf_listener {
    const kvf_transport_ops *ops;
    char address[KVF_ADDRESS_MAX]; /* with the prefix of its transport: what others dial */
};

struct kvf_transport_ops {
    const char *name; /* also the prefix of its addresses: "tcp:..." */
    /* where: without prefix; tcp and tls "host:port", shm and loopback a name (empty: one is made up). */
    kvf_status (*listen)(kvf_transport_env *env, const char *where, kvf_accept_fn accept, void *self,
        kvf_listener **out, kvf_error *err);
    void (*unlisten)(kvf_listener *l);
    kvf_status (*dial)(kvf_transport_env *env, const char *where, kvf_conn **out, kvf_error *err);
};
extern const kvf_transport_ops kvf_transport_tcp, kvf_transport_tls, kvf_transport_shm, kvf_transport_loopback;

kvf_loopback *kvf_loopback_create(void);
void kvf_loopback_destroy(kvf_loopback *hub); /* after every endpoint that uses it */

/* "host:port", "[::1]:port", ":port". host gets no brackets. */
kvf_status kvf_address_split(const char *text, char host[KVF_ADDRESS_MAX], uint16_t *port, kvf_error *err);
/* "tcp:host:port", brackets where host needs them. */
kvf_status kvf_address_join(const char *prefix, const char *host, uint16_t port, char out[KVF_ADDRESS_MAX]);
void kvf_transport_env_fini(kvf_transport_env *env);
#endif
