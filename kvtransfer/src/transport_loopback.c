/* transport_loopback.c - two ends in one process and one event loop: for tests and the embedded cluster in one process.
 * Same promises as the others: bounded staging, callbacks from the loop only. */
#include "bytes.h"
#include "conn.h"
#include <event2/event.h>
#include <stdio.h>

typedef struct lo_listener lo_listener;
struct kvf_loopback {
    lo_listener *listeners;
    uint32_t names;
};
typedef struct lo_end lo_end;
typedef struct {
    bytes_ring rings[2]; /* rings[i] is written by end i */
    lo_end *ends[2]; /* NULL: closed */
} lo_pair;
struct lo_end {
    kvf_conn base;
    lo_pair *pair;
    uint32_t side; /* 0: dialled */
    struct event *ev;
    bool open, tell_open, tell_readable, tell_room;
    size_t room_wanted;
};
struct lo_listener {
    kvf_listener base;
    kvf_loopback *hub;
    lo_listener *next;
    kvf_accept_fn accept;
    void *self;
};

kvf_loopback *kvf_loopback_create(void) { return calloc(1, sizeof(kvf_loopback)); }
void kvf_loopback_destroy(kvf_loopback *hub) {
    KVF_ASSERT(!hub || !hub->listeners);
    free(hub);
}

static const kvf_conn_ops lo_conn_ops;
static lo_end *lo_of(kvf_conn *c) { return (lo_end *)(void *)c; }
static lo_end *lo_other(const lo_end *e) { return e->pair->ends[1 - e->side]; }
static bytes_ring *lo_in(const lo_end *e) { return &e->pair->rings[1 - e->side]; }
static bytes_ring *lo_out(const lo_end *e) { return &e->pair->rings[e->side]; }

static void lo_soon(lo_end *e) {
    static const struct timeval now = {0};
    event_add(e->ev, &now);
}

static void lo_release(kvf_conn *c) {
    lo_end *e = lo_of(c);
    lo_pair *p = e->pair;
    p->ends[e->side] = NULL;
    lo_end *other = p->ends[1 - e->side];
    if (other)
        lo_soon(other);
    else {
        bytes_fini(&p->rings[0]);
        bytes_fini(&p->rings[1]);
        free(p);
    }
    event_free(e->ev);
    free(e);
}

static void lo_on_event(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    lo_end *e = self;
    kvf_conn *c = &e->base;
    conn_enter(c);
    if (e->tell_open) {
        e->tell_open = false;
        e->open = true;
        conn_tell_open(c);
    }
    if (!c->closed && e->open && e->tell_readable) {
        e->tell_readable = false;
        if (bytes_used(lo_in(e)) > 0) conn_tell_readable(c);
    }
    if (!c->closed && e->tell_room) {
        e->tell_room = false;
        conn_tell_room(c);
    }
    if (!c->closed && !lo_other(e)) conn_tell_down(c, KVF_ERR_PEER_LOST, "peer closed the connection");
    if (conn_leave(c)) lo_release(c);
}

static lo_end *lo_end_new(kvf_transport_env *env, lo_pair *pair, uint32_t side) {
    lo_end *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    *e = (lo_end){.base.ops = &lo_conn_ops, .pair = pair, .side = side};
    e->ev = event_new(env->base, -1, 0, lo_on_event, e);
    if (!e->ev) {
        free(e);
        return NULL;
    }
    pair->ends[side] = e;
    return e;
}

static kvf_status lo_dial(kvf_transport_env *env, const char *where, kvf_conn **out, kvf_error *err) {
    lo_listener *l = env->loopback ? env->loopback->listeners : NULL;
    while (l && strcmp(l->base.address + strlen("loopback:"), where) != 0) l = l->next;
    if (!l) return kvf_fail(err, KVF_ERR_PEER_LOST, "connect to loopback:%s: nobody listens", where);
    lo_pair *p = calloc(1, sizeof *p);
    bool fine = p && bytes_init(&p->rings[0], env->staging_bytes) && bytes_init(&p->rings[1], env->staging_bytes);
    lo_end *dialled = fine ? lo_end_new(env, p, 0) : NULL, *accepted = dialled ? lo_end_new(env, p, 1) : NULL;
    if (!accepted) {
        if (dialled) {
            event_free(dialled->ev);
            free(dialled);
        }
        if (p) {
            bytes_fini(&p->rings[0]);
            bytes_fini(&p->rings[1]);
        }
        free(p);
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the connection");
    }
    accepted->open = true;
    l->accept(l->self, &accepted->base); /* the accepting endpoint only takes note */
    dialled->tell_open = true;
    lo_soon(dialled);
    *out = &dialled->base;
    return KVF_OK;
}

static kvf_status lo_listen(
    kvf_transport_env *env, const char *where, kvf_accept_fn accept, void *self, kvf_listener **out, kvf_error *err) {
    if (!env->loopback) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "no loopback here");
    lo_listener *l = calloc(1, sizeof *l);
    if (!l) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory to listen");
    *l = (lo_listener){.base.ops = &kvf_transport_loopback, .hub = env->loopback, .accept = accept, .self = self};
    if (*where)
        snprintf(l->base.address, sizeof l->base.address, "loopback:%s", where);
    else
        snprintf(l->base.address, sizeof l->base.address, "loopback:%u", ++env->loopback->names);
    l->next = env->loopback->listeners;
    env->loopback->listeners = l;
    *out = &l->base;
    return KVF_OK;
}

static void lo_unlisten(kvf_listener *base) {
    lo_listener *l = (lo_listener *)(void *)base, **at = &l->hub->listeners;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    free(l);
}

static size_t lo_room(const kvf_conn *c) {
    const lo_end *e = (const lo_end *)(const void *)c;
    return e->open ? bytes_room(lo_out(e)) : 0;
}
static void lo_put(kvf_conn *c, const void *data, size_t len_bytes) { bytes_put(lo_out(lo_of(c)), data, len_bytes); }
static void lo_flush(kvf_conn *c) {
    lo_end *other = lo_other(lo_of(c));
    if (!other) return;
    other->tell_readable = true;
    lo_soon(other);
}
static void lo_want_room(kvf_conn *c, size_t room_bytes) {
    lo_end *e = lo_of(c);
    e->room_wanted = room_bytes;
    if (e->open && bytes_room(lo_out(e)) >= room_bytes) {
        e->room_wanted = 0;
        e->tell_room = true;
        lo_soon(e);
    }
    lo_flush(c);
}
static size_t lo_ready(kvf_conn *c) { return bytes_used(lo_in(lo_of(c))); }
static void lo_peek(kvf_conn *c, size_t at, void *out, size_t len_bytes) {
    bytes_peek(lo_in(lo_of(c)), at, out, len_bytes);
}
static void lo_consume(kvf_conn *c, size_t len_bytes) {
    lo_end *e = lo_of(c), *other = lo_other(e);
    bytes_consume(lo_in(e), len_bytes);
    if (!other || !other->room_wanted || bytes_room(lo_in(e)) < other->room_wanted) return;
    other->room_wanted = 0;
    other->tell_room = true;
    lo_soon(other);
}
static void lo_close(kvf_conn *c) {
    if (conn_close(c)) lo_release(c);
}

static const kvf_conn_ops lo_conn_ops = {
    .room = lo_room,
    .put = lo_put,
    .flush = lo_flush,
    .want_room = lo_want_room,
    .ready = lo_ready,
    .peek = lo_peek,
    .consume = lo_consume,
    .close = lo_close,
};
const kvf_transport_ops kvf_transport_loopback = {
    .name = "loopback",
    .listen = lo_listen,
    .unlisten = lo_unlisten,
    .dial = lo_dial,
};
