/* conn.h - callbacks of a connection that survive being closed from inside one. */
#ifndef KVF_XFER_CONN_H
#define KVF_XFER_CONN_H
#include "kvf/transport.h"

static inline void conn_enter(kvf_conn *c) { c->busy++; }
/* true: closed meanwhile and the last callback is over; the transport frees it now. */
static inline bool conn_leave(kvf_conn *c) {
    KVF_ASSERT(c->busy > 0);
    return --c->busy == 0 && c->closed;
}
/* true: nobody is inside, the transport frees it now. */
static inline bool conn_close(kvf_conn *c) {
    KVF_ASSERT(!c->closed);
    c->closed = true;
    return c->busy == 0;
}
static inline void conn_tell_open(kvf_conn *c) {
    if (!c->closed && !c->told_down && c->events.on_open) c->events.on_open(c->events.self);
}
static inline void conn_tell_readable(kvf_conn *c) {
    if (!c->closed && !c->told_down && c->events.on_readable) c->events.on_readable(c->events.self);
}
static inline void conn_tell_room(kvf_conn *c) {
    if (!c->closed && !c->told_down && c->events.on_room) c->events.on_room(c->events.self);
}
static inline void conn_tell_down(kvf_conn *c, kvf_status reason, const char *text) {
    if (c->closed || c->told_down) return;
    c->told_down = true;
    if (c->events.on_down) c->events.on_down(c->events.self, reason, text);
}
#endif
