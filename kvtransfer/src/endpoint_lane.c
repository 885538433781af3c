/* endpoint_lane.c - lanes of links: agreed on after WELCOME, watched, ended. Pages over them: endpoint_batch.c.
 *
 *   sends (P)                                     receives (D)
 *   HELLO, lanes it could make ------------------>
 *             <--------------------- WELCOME, the one chosen; both open their staging
 *             <------------------ LANE OFFER: memory handle or id, slots
 *   maps the slots, or joins the communicator     joins it, too
 *   LANE READY, slots agreed -------------------->
 *             <------------------------- LANE READY
 *   either, when it can't: LANE NOT, and both go on over the stream
 * A stream lane needs no word: each side is up when its staging is there, and reads nothing before. */
#include "endpoint_int.h"
#include "kvf/log.h"
#include "kvf/os.h"
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SLOTS_DEFAULT 4u
#define SLOT_BYTES_DEFAULT (8ull << 20)
#define POSTS_DEFAULT 4u
#define SETUP_DEFAULT_NS (10 * KVF_NS_PER_S)
#define COMMS_DEFAULT 64u
#define IDLE_DEFAULT_NS (300 * KVF_NS_PER_S)
#define STALL_DEFAULT_NS (4 * KVF_NS_PER_S)
#define LINGER_NS KVF_NS_PER_S /* that a batch which is not full waits for more, whatever the core says */
static const char *const component = "transfer";
static const char *const kind_names[] = {"stream", "cuda_ipc", "nccl"};

static void say(ep_link *link, kvf_lane_step step, const void *bytes, size_t len_bytes) {
    const ep_lane *l = link->lane;
    kvf_frame f = {.kind = KVF_FRAME_LANE,
        .lane = {.step = step, .slots = l->slots, .slot_pages = l->slot_pages, .bytes = {bytes, len_bytes}}};
    ep_put_frame(link, &f);
}

/* ---------------------------------------------------------------- idle communicators */
static bool is_idle(const ep_lane *l) {
    const kvf_endpoint_callbacks *cb = &l->endpoint->options.callbacks;
    if (l->kind != KVF_LANE_NCCL || !l->link || l->link->state != LINK_UP) return false;
    for (uint32_t i = 0; i < l->slots; i++)
        if (l->batches[i].state != BATCH_FREE || l->batches[i].say_free) return false;
    return !cb->uses || !cb->uses(cb->self, l->link_id);
}

/* Giving a communicator's memory back waits for the whole device: not while a transfer of another pair may wait for its
 * peer. */
static bool may_free(const kvf_endpoint *e) { return e->sends_posted == 0 && e->recvs_posted == 0; }

/* The link goes with it: to take a lane off a link that both sides use would need an agreement of its own, and whoever
 * has a hand-off for that peer calls it again, long before the first page is there. */
static void close_idle(ep_lane *l) {
    ep_link *link = l->link;
    unsigned long long ms = (kvf_os_now_ns() - l->used_ns) / KVF_NS_PER_MS;
    ep_enter(link);
    if (ep_room_for(link, KVF_FRAME_BYTES_MAX)) {
        say(link, KVF_LANE_NOT, "idle", 4);
        link->conn->ops->flush(link->conn);
    }
    ep_fail(link, KVF_ERR_GONE, "communicator closed, nothing has gone over it for %llu ms", ms);
    ep_leave(link);
}

/* Whether there may be one communicator more. */
static bool comm_room(kvf_endpoint *e) {
    uint32_t count = 0;
    ep_lane *oldest = NULL;
    for (ep_lane *l = e->lanes; l; l = l->next) {
        count += l->kind == KVF_LANE_NCCL && l->link;
        if (is_idle(l) && (!oldest || l->used_ns < oldest->used_ns)) oldest = l;
    }
    if (count < e->device.comms_max) return true;
    if (!oldest || !may_free(e)) return false;
    close_idle(oldest);
    return true;
}

/* ---------------------------------------------------------------- agreeing */
uint32_t ep_lanes_offered(const ep_link *link) {
    const kvf_endpoint *e = link->endpoint;
    if (!e->pool) return 0;
    uint32_t lanes = 0;
    if (e->device.ipc && link->near) lanes |= 1u << KVF_LANE_IPC;
    if (e->device.nccl && comm_room(link->endpoint)) lanes |= 1u << KVF_LANE_NCCL;
    return lanes;
}

kvf_lane_kind ep_lane_choose(const ep_link *link, uint32_t offered) {
    const kvf_endpoint *e = link->endpoint;
    if (!e->pool) return KVF_LANE_STREAM;
    if (e->device.ipc && offered & 1u << KVF_LANE_IPC) return KVF_LANE_IPC;
    if (e->device.nccl && offered & 1u << KVF_LANE_NCCL && comm_room(link->endpoint)) return KVF_LANE_NCCL;
    return KVF_LANE_STREAM;
}

static ep_lane *lane_of(ep_link *link, kvf_lane_kind kind) {
    kvf_endpoint *e = link->endpoint;
    ep_lane *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    *l = (ep_lane){.endpoint = e,
        .link = link,
        .link_id = link->id,
        .kind = kind,
        .outgoing = link->outgoing,
        .slots = e->device.slots,
        .slot_pages = (uint32_t)(e->device.slot_bytes / e->identity.page_bytes)};
    ep_entry *entries = calloc((size_t)l->slots * l->slot_pages, sizeof *entries);
    for (uint32_t i = 0; entries && i < l->slots; i++) l->batches[i].entries = entries + (size_t)i * l->slot_pages;
    l->work = entries ? lane_create(e->pool, kind, link->outgoing) : NULL;
    if (!l->work) {
        free(entries);
        free(l);
        return NULL;
    }
    l->next = e->lanes;
    e->lanes = l;
    return l;
}

void ep_lane_make(ep_link *link, kvf_lane_kind kind) {
    if (!link->endpoint->pool) {
        ep_link_up(link);
        return;
    }
    link->state = LINK_LANING;
    link->since_ns = link->heard_ns = kvf_os_now_ns();
    link->lane = lane_of(link, kind);
    if (link->lane)
        lane_open(link->lane->work);
    else
        ep_fail(link, KVF_ERR_NO_MEMORY, "no memory for the pages of %s", link->peer);
}

/* The link has its lane. */
static void lane_up(ep_link *link) {
    ep_lane *l = link->lane;
    l->phase = LANE_UP;
    l->used_ns = kvf_os_now_ns();
    if (l->kind != KVF_LANE_STREAM) link->transport = kind_names[l->kind];
    ep_link_up(link);
    if (link->state != LINK_UP) return;
    link->read_on = true; /* what came early */
    ep_soon(link->endpoint);
}

static void lane_ready(ep_link *link) {
    ep_lane *l = link->lane;
    if (l->phase != LANE_WAITS_PEER || !l->peer_ready) return;
    if (!l->outgoing) say(link, KVF_LANE_READY, NULL, 0);
    lane_up(link);
}

/* Pages go over the stream instead; the other side knows, or is told by the caller. */
static void fall_back(ep_link *link, const char *why) {
    kvf_log(KVF_LOG_WARN, component, "link %08x %s: no %s lane, pages go over %s: %s", link->id, link->peer,
        kind_names[link->lane->kind], link->transport, why);
    ep_lane_drop(link);
    ep_lane_make(link, KVF_LANE_STREAM);
}

static void take_offer(ep_link *link, const kvf_frame *f) {
    ep_lane *l = link->lane;
    if (!l->outgoing || l->offer_bytes || f->lane.bytes.len_bytes == 0 || f->lane.bytes.len_bytes > sizeof l->offer ||
        f->lane.slots < 2 || f->lane.slots > LANE_SLOTS_MAX || f->lane.slot_pages == 0 ||
        f->lane.slot_pages > KVF_FRAME_BATCH_MAX) {
        ep_fail(link, KVF_ERR_FORMAT, "%s offers a lane that cannot be", link->peer);
        return;
    }
    l->offer_bytes = (uint32_t)f->lane.bytes.len_bytes;
    memcpy(l->offer, f->lane.bytes.data, l->offer_bytes);
    l->stride_bytes = (uint64_t)f->lane.slot_pages * link->endpoint->identity.page_bytes;
    l->slots = KVF_MIN(l->slots, f->lane.slots);
    l->slot_pages = KVF_MIN(l->slot_pages, f->lane.slot_pages);
    if (!l->opened) return;
    l->phase = LANE_JOINS;
    lane_join(l->work, l->offer, l->offer_bytes, l->stride_bytes);
}

static void take_ready(ep_link *link, const kvf_frame *f) {
    ep_lane *l = link->lane;
    bool fits = l->outgoing || (f->lane.slots >= 2 && f->lane.slots <= l->slots && f->lane.slot_pages >= 1 &&
                                   f->lane.slot_pages <= l->slot_pages);
    if (l->peer_ready || !fits) {
        ep_fail(link, KVF_ERR_FORMAT, "%s has a lane that was not offered", link->peer);
        return;
    }
    l->peer_ready = true;
    if (!l->outgoing) {
        l->slots = f->lane.slots;
        l->slot_pages = f->lane.slot_pages;
    }
    lane_ready(link);
}

void ep_lane_heard(ep_link *link, const kvf_frame *f) {
    ep_lane *l = link->lane;
    char why[KVF_FRAME_LANE_BYTES_MAX + 1];
    if (f->lane.step == KVF_LANE_NOT) {
        snprintf(why, sizeof why, "%.*s", (int)f->lane.bytes.len_bytes, (const char *)f->lane.bytes.data);
        if (link->state == LINK_UP)
            ep_fail(link, KVF_ERR_GONE, "%s gave its lane up: %s", link->peer, why);
        else if (l->kind != KVF_LANE_STREAM)
            fall_back(link, why);
        return;
    }
    if (link->state != LINK_LANING || l->kind == KVF_LANE_STREAM) return; /* said before it heard our NOT */
    if (f->lane.step == KVF_LANE_OFFER)
        take_offer(link, f);
    else
        take_ready(link, f);
}

/* ---------------------------------------------------------------- news */
static void device_lost(kvf_endpoint *e, const char *text) {
    const kvf_endpoint_callbacks *cb = &e->options.callbacks;
    if (e->lost) return;
    e->lost = true;
    kvf_log(KVF_LOG_ERROR, component, "GPU %u is lost to this process: %s", e->device.device, text);
    if (cb->on_device_lost) cb->on_device_lost(cb->self, text);
}

static void on_opened(ep_link *link, const lane_event *event) {
    ep_lane *l = link->lane;
    l->opened = true;
    if (l->kind == KVF_LANE_STREAM) {
        lane_up(link);
        return;
    }
    l->phase = LANE_JOINS;
    if (!l->outgoing) {
        say(link, KVF_LANE_OFFER, event->bytes, event->len_bytes);
        l->stride_bytes = (uint64_t)l->slot_pages * link->endpoint->identity.page_bytes;
        if (l->kind == KVF_LANE_NCCL) {
            lane_join(l->work, event->bytes, event->len_bytes, l->stride_bytes);
        } else {
            l->phase = LANE_WAITS_PEER;
            lane_ready(link);
        }
    } else if (l->offer_bytes) {
        lane_join(l->work, l->offer, l->offer_bytes, l->stride_bytes);
    }
}

static void cannot(ep_link *link, const char *why) {
    ep_lane *l = link->lane;
    if (l->kind == KVF_LANE_STREAM || link->state != LINK_LANING) {
        ep_fail(link, KVF_ERR_IO, "%s lane: %s", kind_names[l->kind], why);
        return;
    }
    say(link, KVF_LANE_NOT, why, KVF_MIN(strlen(why), (size_t)KVF_FRAME_LANE_BYTES_MAX));
    fall_back(link, why);
}

static void on_news(ep_lane *l, const lane_event *event) {
    ep_link *link = l->link;
    switch (event->kind) {
    case LANE_OPENED:
        if (link) on_opened(link, event);
        break;
    case LANE_JOINED:
        if (!link) break;
        l->phase = LANE_WAITS_PEER;
        if (l->outgoing) say(link, KVF_LANE_READY, NULL, 0);
        lane_ready(link);
        break;
    case LANE_FAILED:
        if (link) cannot(link, event->text);
        if (event->lost) device_lost(l->endpoint, event->text);
        break;
    case LANE_CLOSED:
        l->closed = true;
        ep_batches_end(l);
        break;
    case LANE_ENDED: break;
    default: ep_batch_news(l, event);
    }
}

static void lane_forget(ep_lane **at) {
    ep_lane *l = *at;
    *at = l->next;
    lane_free(l->work);
    free(l->batches[0].entries);
    free(l);
}

static void hear_lanes(kvf_endpoint *e) {
    for (ep_lane **at = &e->lanes; *at;) {
        ep_lane *l = *at;
        lane_event event = {.kind = LANE_OPENED};
        while (lane_take(l->work, &event)) {
            ep_link *link = l->link;
            if (link) ep_enter(link);
            on_news(l, &event);
            if (link) ep_leave(link);
            if (event.kind == LANE_ENDED) break;
        }
        /* Lanes may have been added in front meanwhile. */
        for (at = &e->lanes; *at != l;) at = &(*at)->next;
        if (event.kind == LANE_ENDED)
            lane_forget(at);
        else
            at = &l->next;
    }
    ep_batches_post(e);
}

static void on_bell(evutil_socket_t fd, short what, void *self) {
    (void)what;
    uint64_t count;
    ssize_t n = read((int)fd, &count, sizeof count);
    (void)n;
    hear_lanes(self);
    kvf_endpoint_flush(self);
}

/* ---------------------------------------------------------------- watching */
static void watch_lane(kvf_endpoint *e, ep_lane *l, kvf_time_ns now) {
    const char *what;
    kvf_time_ns since = lane_since(l->work, &what);
    kvf_time_ns age = since && now > since ? now - since : 0;
    ep_link *link = l->link;
    char text[200];
    if (link && link->state == LINK_LANING) {
        if (now - link->since_ns < e->device.setup_ns) return;
        snprintf(
            text, sizeof text, "not made within %llu ms", (unsigned long long)(e->device.setup_ns / KVF_NS_PER_MS));
        cannot(link, text);
    } else if (link && age >= e->device.stall_ns) {
        ep_fail(link, KVF_ERR_DEADLINE, "%s lane: %s has not ended for %llu ms", kind_names[l->kind], what,
            (unsigned long long)(age / KVF_NS_PER_MS));
    } else if (link && l->outgoing && l->batches[l->seq % l->slots].state == BATCH_FILLING &&
               now - l->filling_ns >= LINGER_NS) {
        ep_lane_push(l);
    } else if (link && l->outgoing && now - l->used_ns >= e->device.idle_ns && now > l->used_ns && is_idle(l) &&
               may_free(e)) {
        close_idle(l);
    } else if (!link && !l->closed && age >= KVF_MIN(e->device.stall_ns, KVF_NS_PER_S)) {
        lane_rescue(l->work);
        if (age < e->device.stall_ns || l->lost_told) return;
        l->lost_told = true;
        snprintf(text, sizeof text, "work of a link that is over does not end (%s for %llu ms)", what,
            (unsigned long long)(age / KVF_NS_PER_MS));
        device_lost(e, text);
    }
}

void ep_lanes_tick(kvf_endpoint *e, kvf_time_ns now) {
    for (ep_lane *l = e->lanes; l; l = l->next) {
        ep_link *link = l->link;
        if (link) ep_enter(link);
        watch_lane(e, l, now);
        if (link) ep_leave(link);
    }
    hear_lanes(e);
}

void ep_lane_drop(ep_link *link) {
    ep_lane *l = link->lane;
    link->lane = NULL;
    l->link = NULL;
    l->phase = LANE_CLOSES;
    lane_close(l->work);
}

/* ---------------------------------------------------------------- life */
kvf_status ep_lanes_open(kvf_endpoint *e, kvf_error *err) {
    const kvf_page_device *given = e->options.device;
    kvf_page_device *d = &e->device;
    uint32_t page = e->identity.page_bytes;
    *d = *given;
    if (!d->slots) d->slots = SLOTS_DEFAULT;
    if (!d->slot_bytes) d->slot_bytes = SLOT_BYTES_DEFAULT;
    if (!d->posts_max) d->posts_max = POSTS_DEFAULT;
    if (!d->comms_max) d->comms_max = COMMS_DEFAULT;
    if (!d->idle_ns) d->idle_ns = IDLE_DEFAULT_NS;
    if (!d->setup_ns) d->setup_ns = SETUP_DEFAULT_NS;
    if (!d->stall_ns) d->stall_ns = STALL_DEFAULT_NS;
    if (d->slots < 2 || d->slots > LANE_SLOTS_MAX)
        return kvf_fail(err, KVF_ERR_INVALID, "%u staging slots: 2 to %u are possible", d->slots, LANE_SLOTS_MAX);
    if (page == 0 || page % 16)
        return kvf_fail(err, KVF_ERR_INVALID, "pages of %u bytes: a device needs a multiple of 16", page);
    uint64_t pages = KVF_MIN((d->slot_bytes + page - 1) / page, (uint64_t)KVF_FRAME_BATCH_MAX);
    d->slot_bytes = pages * page;
    e->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->bell < 0) return kvf_fail(err, KVF_ERR_IO, "no descriptor for the transfer endpoint");
    e->pool = lane_pool_create(d, page, d->slots, (uint32_t)pages, e->bell);
    e->ev_bell = event_new(e->options.base, e->bell, EV_READ | EV_PERSIST, on_bell, e);
    if (e->pool && e->ev_bell && event_add(e->ev_bell, NULL) == 0) return KVF_OK;
    if (e->pool) lane_pool_destroy(e->pool);
    if (e->ev_bell) event_free(e->ev_bell);
    close(e->bell);
    e->pool = NULL;
    e->ev_bell = NULL;
    return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for the transfer endpoint");
}

/* Every link is gone. What does not end within the patience of a stalled device is left behind: the process is about
 * to end. */
void ep_lanes_close(kvf_endpoint *e) {
    kvf_time_ns until = kvf_os_now_ns() + 2 * e->device.stall_ns;
    bool left = false;
    while (e->lanes && !left) {
        bool heard = false;
        for (ep_lane **at = &e->lanes; *at;) {
            lane_event event;
            bool ended = false;
            while (!ended && lane_take((*at)->work, &event)) {
                heard = true;
                ended = event.kind == LANE_ENDED;
            }
            if (ended)
                lane_forget(at);
            else
                at = &(*at)->next;
        }
        kvf_time_ns now = kvf_os_now_ns();
        for (ep_lane *l = e->lanes; l && now + e->device.stall_ns > until; l = l->next) lane_rescue(l->work);
        left = now > until;
        if (!heard && e->lanes) usleep(200);
    }
    event_free(e->ev_bell);
    if (left) {
        kvf_log(
            KVF_LOG_ERROR, component, "GPU %u: device work does not end, its memory is left behind", e->device.device);
        return; /* pool, bell and lanes stay: threads may still come back to them */
    }
    lane_pool_destroy(e->pool);
    close(e->bell);
}
