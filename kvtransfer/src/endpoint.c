/* endpoint.c - links: made, kept alive, written to, ended. Reading: endpoint_read.c; pairing: endpoint_hello.c.
 *
 *   dial --> DIALLING --open--> HELLO_SENT --WELCOME--> UP --> (closed by us: silent | lost: on_link_down once)
 *   accept --> HELLO_WAIT --HELLO--> UP
 *                  '--HELLO that does not fit--> LINGERS (reported at once; the peer may still read its REFUSE)
 * A slot is reused with a new serial, so that a link id names one connection only. */
#include "endpoint_int.h"
#include "kvf/log.h"
#include "kvf/os.h"
#include <event2/event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define RING_BYTES_DEFAULT (4u << 20)
#define READ_BUDGET_BYTES (1u << 20) /* of one link per turn of the loop */
static const char *const component = "transfer";

static ep_link *ep_find(const kvf_endpoint *e, kvf_link_id id) {
    uint32_t slot = id & 0xff;
    if (id == KVF_LINK_NONE || slot >= e->links_count) return NULL;
    const ep_link *link = &e->links[slot];
    return link->id == id && link->state != LINK_FREE && link->state != LINK_DEAD ? (ep_link *)(uintptr_t)link : NULL;
}

static ep_link *ep_link_new(kvf_endpoint *e, bool outgoing, const char *transport) {
    ep_link *link = NULL;
    for (uint32_t i = 0; i < LINKS_MAX && !link; i++)
        if (e->links[i].state == LINK_FREE) link = &e->links[i];
    if (!link) return NULL;
    uint32_t slot = (uint32_t)(link - e->links);
    e->links_count = KVF_MAX(e->links_count, slot + 1);
    e->serial = (e->serial + 1) & 0xffffff;
    *link = (ep_link){.endpoint = e,
        .state = outgoing ? LINK_DIALLING : LINK_HELLO_WAIT,
        .id = e->serial << 8 | slot,
        .transport = transport,
        .outgoing = outgoing};
    link->since_ns = link->heard_ns = kvf_os_now_ns();
    return link;
}

void ep_enter(ep_link *link) { link->busy++; }
void ep_leave(ep_link *link) {
    KVF_ASSERT(link->busy > 0);
    if (--link->busy == 0 && link->state == LINK_DEAD) link->state = LINK_FREE;
}

/* The connection goes, no callback comes any more. */
static void ep_drop(ep_link *link) {
    kvf_conn *c = link->conn;
    if (link->lane) ep_lane_drop(link);
    link->conn = NULL;
    link->stalled = false;
    link->dirty = link->asked_room = link->read_on = link->fail_later = false;
    link->state = link->busy ? LINK_DEAD : LINK_FREE;
    if (c) c->ops->close(c);
}

/* In the next turn of the loop: an event made active from inside a callback would run in this one and keep others from
 * being heard. Where there is no memory for it, the next tick does the same. */
void ep_soon(kvf_endpoint *e) {
    static const struct timeval now = {0};
    event_add(e->later, &now);
}

void ep_linger(ep_link *link) {
    if (link->conn) link->conn->ops->flush(link->conn);
    link->dirty = false;
    link->state = LINK_LINGERS;
    link->since_ns = kvf_os_now_ns();
}

void ep_fail(ep_link *link, kvf_status reason, const char *fmt, ...) {
    kvf_endpoint *e = link->endpoint;
    char text[KVF_TEXT_MAX], peer[KVF_NAME_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(peer, link->peer, sizeof peer);
    kvf_link_id id = link->id;
    ep_enter(link);
    if (link->state != LINK_LINGERS) ep_drop(link);
    kvf_log(KVF_LOG_INFO, component, "link %08x %s %s down: %s", id, link->transport, peer, text);
    e->options.callbacks.on_link_down(e->options.callbacks.self, id, peer, reason, text);
    ep_leave(link);
}

void ep_link_up(ep_link *link) {
    kvf_endpoint *e = link->endpoint;
    const kvf_endpoint_callbacks *cb = &e->options.callbacks;
    link->state = LINK_UP;
    link->heard_ns = kvf_os_now_ns();
    kvf_log(KVF_LOG_INFO, component, "link %08x %s %s up", link->id, link->transport, link->peer);
    cb->on_link_up(cb->self, link->id, link->peer, link->peer_epoch, link->nonce, link->outgoing, link->transport);
}

/* ---------------------------------------------------------------- writing */
static size_t ep_frame_need(const ep_link *link) {
    size_t page = link->outgoing ? KVF_FRAME_PAGE_BYTES + (size_t)link->endpoint->identity.page_bytes : 0;
    return KVF_MAX(page, (size_t)KVF_FRAME_BYTES_MAX);
}

bool ep_room_for(ep_link *link, size_t len_bytes) {
    if (link->conn->ops->room(link->conn) >= len_bytes) return true;
    if (link->asked_room) return false;
    link->asked_room = true;
    /* A quarter of staging at a time: waking for every page would cost more than it brings. */
    size_t want =
        link->outgoing ? KVF_MAX(ep_frame_need(link), link->endpoint->env.staging_bytes / 4) : 2 * ep_frame_need(link);
    link->conn->ops->want_room(link->conn, want);
    return false;
}

static void ep_dirty(ep_link *link) {
    if (link->dirty) return;
    link->dirty = true;
    ep_soon(link->endpoint); /* flushed at the end of this turn of the loop even if the caller forgets */
}

void ep_put_frame(ep_link *link, const kvf_frame *frame) {
    kvf_endpoint *e = link->endpoint;
    size_t len = kvf_frame_encode(frame, e->out_bytes, sizeof e->out_bytes);
    KVF_ASSERT(len > 0 && link->conn->ops->room(link->conn) >= len);
    link->conn->ops->put(link->conn, e->out_bytes, len);
    ep_dirty(link);
}

bool kvf_endpoint_has_room(const kvf_endpoint *e, kvf_link_id id) {
    ep_link *link = ep_find(e, id);
    if (!link || link->state != LINK_UP || !ep_room_for(link, ep_frame_need(link))) return false;
    return !link->lane || !link->outgoing || ep_lane_has_room(link);
}

kvf_status kvf_endpoint_send_frame(kvf_endpoint *e, kvf_link_id id, const kvf_frame *frame) {
    ep_link *link = ep_find(e, id);
    if (!link || link->state != LINK_UP) return KVF_ERR_NOT_FOUND;
    KVF_ASSERT(frame->kind != KVF_FRAME_PAGE);
    size_t len = kvf_frame_encode(frame, e->out_bytes, sizeof e->out_bytes);
    if (len == 0) return KVF_ERR_INVALID;
    if (!ep_room_for(link, len)) return KVF_AGAIN;
    link->conn->ops->put(link->conn, e->out_bytes, len);
    ep_dirty(link);
    return KVF_OK;
}

void ep_page_sent(ep_link *link, const kvf_page_header *header, const void *page) {
    kvf_endpoint *e = link->endpoint;
    kvf_frame f = {.kind = KVF_FRAME_PAGE, .page = *header};
    size_t len = kvf_frame_encode(&f, e->out_bytes, sizeof e->out_bytes);
    KVF_ASSERT(len == KVF_FRAME_PAGE_BYTES);
    link->conn->ops->put(link->conn, e->out_bytes, len);
    link->conn->ops->put(link->conn, page, header->len_bytes);
    ep_dirty(link);
}

kvf_status kvf_endpoint_send_page(
    kvf_endpoint *e, kvf_link_id id, const kvf_page_header *header, const void *page, uint32_t *crc) {
    ep_link *link = ep_find(e, id);
    if (!link || link->state != LINK_UP) return KVF_ERR_NOT_FOUND;
    if (!link->outgoing || link->lane || header->len_bytes > e->identity.page_bytes) return KVF_ERR_INVALID;
    if (!ep_room_for(link, KVF_FRAME_PAGE_BYTES + (size_t)header->len_bytes)) return KVF_AGAIN;
    kvf_page_header h = *header;
    h.crc = kvf_page_crc(header, link->peer_epoch, page);
    ep_page_sent(link, &h, page);
    *crc = h.crc;
    return KVF_OK;
}

void kvf_endpoint_flush(kvf_endpoint *e) {
    const kvf_endpoint_callbacks *cb = &e->options.callbacks;
    for (ep_lane *l = e->lanes; l; l = l->next)
        if (l->link && l->outgoing && (!cb->waits || cb->waits(cb->self, l->link_id))) ep_lane_push(l);
    for (uint32_t i = 0; i < e->links_count; i++) {
        ep_link *link = &e->links[i];
        if (!link->dirty || !link->conn) continue;
        link->dirty = false;
        link->conn->ops->flush(link->conn);
    }
}

/* ---------------------------------------------------------------- what connections tell */
bool ep_proved(const ep_link *link, const char *name, char *who, size_t who_bytes) {
    return !link->conn->ops->proves || link->conn->ops->proves(link->conn, name, who, who_bytes);
}

static void ep_on_open(void *self) {
    ep_link *link = self;
    char who[128];
    ep_enter(link);
    if (ep_proved(link, link->peer, who, sizeof who))
        ep_say_hello(link);
    else
        ep_fail(link, KVF_ERR_AUTH, "called %s, answered with a certificate for %s", link->peer, who);
    ep_leave(link);
}

static void ep_on_readable(void *self) {
    ep_link *link = self;
    kvf_endpoint *e = link->endpoint;
    ep_enter(link);
    link->heard_ns = kvf_os_now_ns();
    ep_read(link, READ_BUDGET_BYTES);
    if (link->read_on) ep_soon(e);
    ep_leave(link);
}

void ep_tell_room(ep_link *link) {
    const kvf_endpoint_callbacks *cb = &link->endpoint->options.callbacks;
    if (kvf_endpoint_has_room(link->endpoint, link->id)) cb->on_room(cb->self, link->id);
}

static void ep_on_room(void *self) {
    ep_link *link = self;
    link->asked_room = false;
    ep_enter(link);
    if (link->lane) ep_lane_go_on(link->lane);
    ep_tell_room(link);
    ep_leave(link);
}

static void ep_on_down(void *self, kvf_status reason, const char *text) {
    ep_link *link = self;
    ep_enter(link);
    ep_read(link, SIZE_MAX); /* what came before the end still counts */
    if (link->state == LINK_LINGERS)
        ep_drop(link);
    else if (link->state != LINK_DEAD)
        ep_fail(link, reason, "%s", ep_hears_tls(link) ? "the peer speaks TLS, this side does not" : text);
    ep_leave(link);
}

static void ep_watch(ep_link *link, kvf_conn *c) {
    link->conn = c;
    c->events = (kvf_conn_events){.self = link,
        .on_open = ep_on_open,
        .on_readable = ep_on_readable,
        .on_room = ep_on_room,
        .on_down = ep_on_down};
}

static void ep_accept(kvf_endpoint *e, kvf_conn *c, const char *transport) {
    ep_link *link = ep_link_new(e, false, transport);
    if (link)
        ep_watch(link, c);
    else
        c->ops->close(c);
}
static void ep_accept_tcp(void *self, kvf_conn *c) {
    kvf_endpoint *e = self;
    ep_accept(e, c, e->listeners[0]->ops->name);
}
static void ep_accept_shm(void *self, kvf_conn *c) { ep_accept(self, c, "shm"); }
static void ep_accept_loopback(void *self, kvf_conn *c) { ep_accept(self, c, "loopback"); }

/* ---------------------------------------------------------------- time */
static void ep_do_later(kvf_endpoint *e) {
    for (uint32_t i = 0; i < e->links_count; i++) {
        ep_link *link = &e->links[i];
        if (link->state == LINK_FREE || link->state == LINK_DEAD) continue;
        ep_enter(link);
        if (link->fail_later) {
            link->fail_later = false;
            ep_fail(link, link->fail_reason, "%s", link->fail_text);
        } else if (link->read_on) {
            ep_read(link, READ_BUDGET_BYTES);
            if (link->read_on) ep_soon(e);
        }
        ep_leave(link);
    }
    kvf_endpoint_flush(e);
}

static void ep_on_later(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    ep_do_later(self);
}

static void ep_watch_time(ep_link *link, kvf_time_ns now, bool beat) {
    const kvf_endpoint_options *o = &link->endpoint->options;
    switch (link->state) {
    case LINK_DIALLING:
    case LINK_HELLO_SENT:
    case LINK_HELLO_WAIT:
        if (now - link->since_ns >= o->connect_timeout_ns)
            ep_fail(link, KVF_ERR_DEADLINE, "no link within %llu ms",
                (unsigned long long)(o->connect_timeout_ns / KVF_NS_PER_MS));
        break;
    case LINK_LINGERS:
        if (now - link->since_ns >= o->connect_timeout_ns) ep_drop(link);
        break;
    case LINK_UP:
        if (now > link->heard_ns && now - link->heard_ns >= o->peer_timeout_ns) {
            ep_fail(link, KVF_ERR_PEER_LOST, "nothing heard for %llu ms",
                (unsigned long long)((now - link->heard_ns) / KVF_NS_PER_MS));
        } else if (beat) {
            /* No room for a heartbeat means that the peer has enough of ours to read. */
            (void)kvf_endpoint_send_frame(link->endpoint, link->id, &(kvf_frame){.kind = KVF_FRAME_RENEW});
        }
        break;
    default: break;
    }
}

static void ep_on_tick(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    kvf_endpoint *e = self;
    kvf_time_ns now = kvf_os_now_ns();
    bool beat = now - e->beat_ns >= e->options.heartbeat_ns;
    if (beat) e->beat_ns = now;
    for (uint32_t i = 0; i < e->links_count; i++) {
        ep_link *link = &e->links[i];
        if (link->state == LINK_FREE || link->state == LINK_DEAD || link->fail_later) continue;
        ep_enter(link);
        ep_watch_time(link, now, beat);
        ep_leave(link);
    }
    if (e->pool) ep_lanes_tick(e, now);
    ep_do_later(e);
}

/* ---------------------------------------------------------------- life */
static kvf_status ep_listen(kvf_endpoint *e, kvf_error *err) {
    const kvf_endpoint_options *o = &e->options;
    kvf_status status = KVF_OK;
    if (o->listen_tcp) {
        char host[KVF_ADDRESS_MAX];
        uint16_t port;
        status = kvf_address_split(o->listen_tcp, host, &port, err);
        if (status != KVF_OK) return status;
        bool wildcard = !*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
        if (wildcard && !o->advertise_host)
            return kvf_fail(err, KVF_ERR_INVALID,
                "transfer address %s is every address: name one that others can reach", o->listen_tcp);
        const kvf_transport_ops *ops = o->tls ? &kvf_transport_tls : &kvf_transport_tcp;
        status = ops->listen(&e->env, o->listen_tcp, ep_accept_tcp, e, &e->listeners[0], err);
        if (status != KVF_OK) return status;
        const char *bound = strrchr(e->listeners[0]->address, ':');
        status = kvf_address_join(ops->name, o->advertise_host ? o->advertise_host : host,
            (uint16_t)strtoul(bound + 1, NULL, 10), e->address);
        if (status != KVF_OK) return kvf_fail(err, status, "transfer address is too long");
    }
    if (o->listen_shm) {
        status = kvf_transport_shm.listen(&e->env, "", ep_accept_shm, e, &e->listeners[1], err);
        if (status != KVF_OK) return status;
        memcpy(e->local_address, e->listeners[1]->address, sizeof e->local_address);
    }
    if (o->loopback)
        status = kvf_transport_loopback.listen(&e->env, e->node, ep_accept_loopback, e, &e->listeners[2], err);
    return status;
}

static uint32_t ep_staging(const kvf_endpoint_options *o) {
    uint64_t least =
        KVF_MAX(4ull * (KVF_FRAME_PAGE_BYTES + (uint64_t)o->identity->page_bytes), 8ull * KVF_FRAME_BYTES_MAX);
    uint64_t want = KVF_MAX(o->ring_bytes ? o->ring_bytes : RING_BYTES_DEFAULT, least), size = 4096;
    while (size < want) size *= 2;
    return size > 1u << 30 ? 0 : (uint32_t)size;
}

kvf_status kvf_endpoint_create(const kvf_endpoint_options *o, kvf_endpoint **out, kvf_error *err) {
    if (strlen(o->node) >= KVF_NAME_MAX || !*o->node)
        return kvf_fail(err, KVF_ERR_INVALID, "node name of 1 to 63 bytes needed");
    if (!o->heartbeat_ns || !o->peer_timeout_ns || !o->connect_timeout_ns)
        return kvf_fail(err, KVF_ERR_INVALID, "heartbeat, peer timeout and connect timeout must be above 0");
    uint32_t staging = ep_staging(o);
    if (!staging)
        return kvf_fail(err, KVF_ERR_INVALID, "staging for pages of %u bytes is too large", o->identity->page_bytes);
    kvf_endpoint *e = calloc(1, sizeof *e);
    if (!e) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the transfer endpoint");
    e->options = *o;
    memcpy(e->node, o->node, strlen(o->node));
    e->identity = *o->identity;
    e->options.identity = &e->identity;
    e->options.node = e->node;
    e->env = (kvf_transport_env){.base = o->base, .staging_bytes = staging, .loopback = o->loopback, .tls = o->tls};
    e->host_id = kvf_os_host_id();
    e->tick = event_new(o->base, -1, EV_PERSIST, ep_on_tick, e);
    e->later = event_new(o->base, -1, 0, ep_on_later, e);
    kvf_time_ns tick = KVF_MIN(o->heartbeat_ns, KVF_MIN(o->peer_timeout_ns, o->connect_timeout_ns) / 4 + 1);
    struct timeval period = {
        .tv_sec = (time_t)(tick / KVF_NS_PER_S), .tv_usec = (suseconds_t)(tick % KVF_NS_PER_S / 1000)};
    kvf_status status = KVF_OK;
    if (!e->tick || !e->later || event_add(e->tick, &period))
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the transfer endpoint");
    if (status == KVF_OK && o->device) status = ep_lanes_open(e, err);
    if (status == KVF_OK) status = ep_listen(e, err);
    if (status != KVF_OK) {
        kvf_endpoint_destroy(e);
        return status;
    }
    *out = e;
    return KVF_OK;
}

void kvf_endpoint_destroy(kvf_endpoint *e) {
    if (!e) return;
    for (uint32_t i = 0; i < KVF_COUNT_OF(e->listeners); i++)
        if (e->listeners[i]) e->listeners[i]->ops->unlisten(e->listeners[i]);
    for (uint32_t i = 0; i < e->links_count; i++) {
        KVF_ASSERT(e->links[i].busy == 0); /* not from inside a callback */
        if (e->links[i].state != LINK_FREE) ep_drop(&e->links[i]);
    }
    if (e->pool) ep_lanes_close(e);
    kvf_transport_env_fini(&e->env);
    if (e->tick) event_free(e->tick);
    if (e->later) event_free(e->later);
    free(e);
}

const char *kvf_endpoint_address(const kvf_endpoint *e) { return e->address; }
const char *kvf_endpoint_local_address(const kvf_endpoint *e) { return e->local_address; }

static const kvf_transport_ops *ep_transport_of(const kvf_endpoint *e, const char *address, const char **where) {
    static const kvf_transport_ops *const all[] = {
        &kvf_transport_tcp, &kvf_transport_tls, &kvf_transport_shm, &kvf_transport_loopback};
    for (size_t i = 0; i < KVF_COUNT_OF(all); i++) {
        size_t n = strlen(all[i]->name);
        if (strncmp(address, all[i]->name, n) != 0 || address[n] != ':') continue;
        *where = address + n + 1;
        return all[i];
    }
    return NULL;
}

kvf_status kvf_endpoint_connect(kvf_endpoint *e, const char *peer, uint64_t peer_epoch, const char *address,
    const char *local_address, uint64_t host_id, kvf_link_id *out) {
    if (strlen(peer) >= KVF_NAME_MAX || !*peer) return KVF_ERR_INVALID;
    bool near = local_address && *local_address && host_id == e->host_id && e->options.listen_shm;
    const char *candidates[2] = {near ? local_address : address, near ? address : NULL};
    kvf_error err = {.status = KVF_ERR_INVALID, .message = "no address"};
    kvf_conn *c = NULL;
    const kvf_transport_ops *ops = NULL;
    for (uint32_t i = 0; i < 2 && !c; i++) {
        const char *where;
        if (!candidates[i] || !*candidates[i]) continue;
        ops = ep_transport_of(e, candidates[i], &where);
        if (!ops) return KVF_ERR_INVALID;
        if (ops == &kvf_transport_tcp && e->options.tls) { /* somebody may want us to talk in the open */
            kvf_fail(&err, KVF_ERR_AUTH, "%s at %s is not encrypted, and this node demands TLS", peer, where);
            continue;
        }
        if (ops->dial(&e->env, where, &c, &err) == KVF_ERR_INVALID) return KVF_ERR_INVALID;
    }
    if (!ops) return KVF_ERR_INVALID;
    ep_link *link = ep_link_new(e, true, ops->name);
    if (!link) {
        if (c) c->ops->close(c);
        return KVF_ERR_LIMIT;
    }
    memcpy(link->peer, peer, strlen(peer));
    link->peer_epoch = peer_epoch;
    link->generation = ++e->generation;
    link->near = host_id == e->host_id;
    if (c) {
        ep_watch(link, c);
    } else {
        link->fail_later = true;
        link->fail_reason = err.status;
        snprintf(link->fail_text, sizeof link->fail_text, "%.200s", err.message);
        ep_soon(e);
    }
    *out = link->id;
    return KVF_OK;
}

void kvf_endpoint_close(kvf_endpoint *e, kvf_link_id id) {
    ep_link *link = ep_find(e, id);
    if (!link || link->state == LINK_LINGERS) return;
    if (link->conn && link->dirty) link->conn->ops->flush(link->conn); /* a last CANCEL */
    ep_drop(link);
}
