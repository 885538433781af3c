/* listener.h - a listening socket, for the transports that have one. */
#ifndef KVF_XFER_LISTENER_H
#define KVF_XFER_LISTENER_H
#include "kvf/transport.h"
#include <errno.h>
#include <event2/listener.h>
struct event;

typedef struct {
    kvf_listener base;
    kvf_transport_env *env;
    struct evconnlistener *listener;
    struct event *resume;
    kvf_accept_fn accept;
    void *self;
} sock_listener;

/* Listens on fd, which is bound and taken, on failure too; on_accept gets the listener as its self. base.address is the
 * caller's to fill in. NULL: no memory, or the system says no (errno). */
sock_listener *sock_listen(kvf_transport_env *env, const kvf_transport_ops *ops, int fd, evconnlistener_cb on_accept,
    kvf_accept_fn accept, void *self);
/* Of a sock_listen that has just failed. */
static inline kvf_status sock_listen_status(void) { return errno == ENOMEM ? KVF_ERR_NO_MEMORY : KVF_ERR_IO; }
void sock_unlisten(kvf_listener *l);
#endif
