/* Between the node core and the endpoint: callbacks become events, actions become sends. */
#include "interfaces.h"
#include "worker_int.h"
#include "kvf/cuda_backend.h"
#include "kvf/log.h"
#include <inttypes.h>
#include <stdlib.h>

/* A zero timeout, not event_active: libevent would run that in the same pass and never come back to the sockets. */
static void pump_soon(kvf_worker *w) {
    static const struct timeval at_once = {0, 0};
    worker_timer_set(w->pump_event, &at_once);
}

static void on_link_up(void *self, kvf_link_id link, const char *peer, uint64_t peer_epoch, const uint8_t nonce[16],
    bool outgoing, const char *transport) {
    kvf_worker *w = self;
    kvf_log(KVF_LOG_INFO, "link", "link %u %s %s epoch %016" PRIx64 " over %s is up", link, outgoing ? "to" : "from",
        peer, peer_epoch, transport);
    drops_link_up(&w->drops, link, peer);
    kvf_node_on_link_up(w->core, kvf_os_now_ns(), link, peer, peer_epoch, nonce, outgoing);
    kvf_node_on_link_over(w->core, link, transport);
    pump_soon(w);
}

static void on_link_down(void *self, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    kvf_worker *w = self;
    bool idle = reason == KVF_ERR_GONE; /* closed because nothing went over it */
    kvf_log(idle ? KVF_LOG_INFO : KVF_LOG_WARN, "link",
        "link %u to %s is down: %s: %s (frames of it dropped: %" PRIu64 ")", link, peer,
        idle ? "idle" : kvf_status_text(reason), text, drops_link_down(&w->drops, link));
    kvf_node_on_link_down(w->core, kvf_os_now_ns(), link, peer, reason, text);
    pump_soon(w);
}

/* late: frames that were right once; they come whenever a request ends while its pages are on their way. */
static void dropped(kvf_worker *w, kvf_link_id link, uint64_t grant, const char *what, const char *why, bool late) {
    const char *peer;
    uint64_t count = drops_add(&w->drops, kvf_os_now_ns(), link, &peer);
    if (count)
        kvf_log(late ? KVF_LOG_INFO : KVF_LOG_WARN, "link",
            "link %u of %s: %" PRIu64 " frames dropped, the last a %s of grant %016" PRIx64 ": %s", link, peer, count,
            what, grant, why);
}

static void on_frame(void *self, kvf_link_id link, const kvf_frame *frame) {
    kvf_worker *w = self;
    kvf_status status = kvf_node_on_frame(w->core, kvf_os_now_ns(), link, frame);
    if (status != KVF_OK) /* every body that can be refused begins with its grant */
        dropped(w, link, frame->cancel.grant,
            frame->kind == KVF_FRAME_OPEN     ? "OPEN"
            : frame->kind == KVF_FRAME_COMMIT ? "COMMIT"
                                              : "CANCEL",
            kvf_status_text(status), status == KVF_ERR_GONE || status == KVF_ERR_STALE);
    pump_soon(w);
}

static kvf_page_verdict on_page(
    void *self, kvf_link_id link, const kvf_page_header *header, void **target, kvf_landing *landing) {
    kvf_worker *w = self;
    kvf_page_verdict verdict = kvf_node_on_page(w->core, kvf_os_now_ns(), link, header, landing);
    if (verdict == KVF_PAGE_ACCEPT)
        *target = w->backend->in_device_memory
                      ? NULL
                      : w->backend->ops->page(w->backend, landing->layer, landing->block.index);
    else
        dropped(w, link, header->grant, "PAGE", kvf_page_verdict_text(verdict),
            verdict == KVF_PAGE_GONE || verdict == KVF_PAGE_DUPLICATE);
    return verdict;
}

static void on_landed(void *self, kvf_link_id link, const kvf_landing *landing, bool crc_ok) {
    kvf_worker *w = self;
    if (!crc_ok) dropped(w, link, landing->grant, "PAGE", kvf_status_text(KVF_ERR_CORRUPT), false);
    kvf_node_on_landed(w->core, kvf_os_now_ns(), landing, crc_ok);
    /* Of a device's pages it comes later than the frames behind it: a COMMIT may have waited for it. */
    if (w->backend->in_device_memory) pump_soon(w);
}

static void on_dropped(void *self, kvf_link_id link, const kvf_landing *landing) {
    (void)link;
    kvf_worker *w = self;
    kvf_node_on_dropped(w->core, kvf_os_now_ns(), landing);
    pump_soon(w);
}

static void on_page_sent(void *self, uint64_t token, bool ok, uint32_t crc) {
    kvf_worker *w = self;
    kvf_node_on_page_sent(w->core, kvf_os_now_ns(), token, ok, crc);
    pump_soon(w);
}

static bool link_waits(void *self, kvf_link_id link) { return kvf_node_link_waits(((kvf_worker *)self)->core, link); }

static bool link_used(void *self, kvf_link_id link) { return kvf_node_link_used(((kvf_worker *)self)->core, link); }

static void on_device_lost(void *self, const char *text) { worker_device_lost(self, text); }

static void on_room(void *self, kvf_link_id link) {
    (void)link;
    pump_soon(self);
}

static void pack(
    void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
    kvf_cuda_backend_pack(self, pages, count, slot, crc, stream);
}
static void unpack(
    void *self, const kvf_page_at *pages, uint32_t count, uint8_t *slot, uint32_t *crc, kvf_cuda_stream stream) {
    kvf_cuda_backend_unpack(self, pages, count, slot, crc, stream);
}

static kvf_status find_nccl(kvf_worker *w, kvf_error *err) {
    char names[256];
    const char *wish = getenv("NCCL_SOCKET_IFNAME");
    kvf_status status = kvf_nccl_load(NULL, &w->nccl, err);
    if (status != KVF_OK || !wish) return status;
    status = interfaces_of(wish, names, sizeof names, err);
    if (status == KVF_OK)
        kvf_log(KVF_LOG_INFO, "link", "NCCL may use network interfaces %s (NCCL_SOCKET_IFNAME \"%s\")", names, wish);
    else
        kvf_nccl_unload(&w->nccl);
    return status;
}

/* A wish for NCCL where there is none leaves the other ways. */
static void describe_device(kvf_worker *w) {
    kvf_error err;
    w->device = (kvf_page_device){.cuda = kvf_cuda_backend_api(w->backend),
        .ipc = w->options.cuda_ipc,
        .device = kvf_cuda_backend_device(w->backend),
        .comms_max = w->options.comms_max,
        .idle_ns = w->options.comm_idle_ns,
        .pack = pack,
        .unpack = unpack,
        .self = w->backend};
    if (!w->options.nccl) return;
    w->nccl_loaded = find_nccl(w, &err) == KVF_OK;
    if (!w->nccl_loaded) {
        kvf_log(KVF_LOG_WARN, "link", "pages do not go over NCCL: %s", err.message);
        return;
    }
    w->device.nccl = &w->nccl;
    int number = w->nccl.number; /* 2.18 is the oldest that is taken: major, minor and patch in two digits each */
    kvf_log(KVF_LOG_INFO, "link", "found NCCL %d.%d.%d", number / 10000, number / 100 % 100, number % 100);
}

kvf_status links_create(kvf_worker *w, const kvf_identity *identity, kvf_error *err) {
    const kvf_worker_options *o = &w->options;
    if (w->backend->in_device_memory) describe_device(w);
    kvf_endpoint_options eo = {.base = w->base,
        .node = w->name,
        .epoch = w->config.info.epoch,
        .identity = identity,
        .allow_unequal_numerics = o->allow_unequal_numerics,
        .listen_tcp = o->listen_transfer,
        .advertise_host = o->advertise_host,
        .tls = o->tls,
        .listen_shm = o->shm,
        .connect_timeout_ns = 2 * KVF_NS_PER_S,
        .heartbeat_ns = o->heartbeat_ns,
        .peer_timeout_ns = o->peer_timeout_ns,
        .device = w->backend->in_device_memory ? &w->device : NULL,
        .callbacks = {.self = w,
            .on_link_up = on_link_up,
            .on_link_down = on_link_down,
            .on_frame = on_frame,
            .on_page = on_page,
            .on_landed = on_landed,
            .on_room = on_room,
            .on_dropped = on_dropped,
            .on_page_sent = on_page_sent,
            .waits = link_waits,
            .uses = link_used,
            .on_device_lost = on_device_lost}};
    return kvf_endpoint_create(&eo, &w->endpoint, err);
}

bool links_have_room(void *worker, kvf_link_id link) {
    kvf_worker *w = worker;
    return kvf_endpoint_has_room(w->endpoint, link);
}

static void connect_peer(kvf_worker *w, const kvf_node_act *act) {
    kvf_link_id link;
    kvf_status status = kvf_endpoint_connect(w->endpoint, act->connect.peer, act->connect.peer_epoch,
        act->connect.address, act->connect.local_address, act->connect.host_id, &link);
    if (status == KVF_OK) {
        kvf_node_on_calling(w->core, act->connect.peer, act->connect.peer_epoch, link);
    } else {
        kvf_node_on_link_down(
            w->core, kvf_os_now_ns(), KVF_LINK_NONE, act->connect.peer, status, "no transport reaches this node");
        pump_soon(w);
    }
}

/* The core asked for room before, so a page that is not taken met the end of its link. */
static void post_page(kvf_worker *w, const kvf_node_act *act) {
    if (kvf_endpoint_post_page(w->endpoint, act->link, &act->page.header, act->page.block.index, act->page.token) !=
        KVF_OK)
        kvf_node_on_page_sent(w->core, kvf_os_now_ns(), act->page.token, false, 0);
}

static void send_page(kvf_worker *w, const kvf_node_act *act) {
    uint32_t crc = 0;
    const void *page = w->backend->ops->page(w->backend, act->page.header.layer, act->page.block.index);
    kvf_status status = kvf_endpoint_send_page(w->endpoint, act->link, &act->page.header, page, &crc);
    kvf_node_on_page_sent(w->core, kvf_os_now_ns(), act->page.token, status == KVF_OK, crc);
}

void links_act(kvf_worker *w, const kvf_node_act *act) {
    switch (act->kind) {
    case KVF_NODE_CONNECT: connect_peer(w, act); break;
    case KVF_NODE_PAGE: w->backend->in_device_memory ? post_page(w, act) : send_page(w, act); break;
    case KVF_NODE_FRAME:
        /* The core asked for room before, so KVF_AGAIN only follows a link that has just gone: its on_link_down is on
         * the way. */
        if (kvf_endpoint_send_frame(w->endpoint, act->link, &act->frame) != KVF_OK)
            kvf_log(KVF_LOG_DEBUG, "link", "link %u: frame %d not sent, the link is going down", act->link,
                (int)act->frame.kind);
        break;
    default: KVF_ASSERT(!"not a link action");
    }
}
