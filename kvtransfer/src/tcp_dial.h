/* tcp_dial.h - one attempt to reach a host: its name is resolved without blocking, its addresses are tried one after
 * the other, the next one 250 ms after the last even if that has not answered; the first that connects wins. */
#ifndef KVF_XFER_TCP_DIAL_H
#define KVF_XFER_TCP_DIAL_H
#include "kvf/transport.h"

typedef struct tcp_dial tcp_dial;
/* fd >= 0: connected, taken by the callee. Else text says what was tried last. Called once, from the loop; the dial is
 * gone then. */
typedef void (*tcp_dial_fn)(void *self, int fd, const char *text);
kvf_status tcp_dial_start(kvf_transport_env *env, const char *host, uint16_t port, tcp_dial_fn done, void *self,
    tcp_dial **out, kvf_error *err);
void tcp_dial_cancel(tcp_dial *d); /* done does not come */
#endif
