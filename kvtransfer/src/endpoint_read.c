/* endpoint_read.c - frames in. Nothing is judged in staging: head and page header are copied out once, and that copy
 * decides; a payload is copied to its page and the CRC is made over the page. */
#include "endpoint_int.h"

static uint32_t page_max(const kvf_endpoint *e) { return e->identity.page_bytes; }

/* Who may say what: the calling side sends pages, the called side answers. */
static bool allowed(const ep_link *link, kvf_frame_kind kind) {
    switch (link->state) {
    case LINK_HELLO_WAIT: return kind == KVF_FRAME_HELLO;
    case LINK_HELLO_SENT: return kind == KVF_FRAME_WELCOME || kind == KVF_FRAME_REFUSE;
    case LINK_LANING:
    case LINK_UP: break;
    default: return false;
    }
    if (kind == KVF_FRAME_RENEW) return true;
    if (kind == KVF_FRAME_LANE) return link->lane != NULL;
    if (link->outgoing)
        return kind == KVF_FRAME_OPENED || kind == KVF_FRAME_COMMITTED || kind == KVF_FRAME_MISSING ||
               kind == KVF_FRAME_GONE || (kind == KVF_FRAME_SLOT && link->lane && link->lane->kind != KVF_LANE_STREAM);
    return kind == KVF_FRAME_OPEN || kind == KVF_FRAME_PAGE || kind == KVF_FRAME_COMMIT || kind == KVF_FRAME_CANCEL ||
           (kind == KVF_FRAME_BATCH && link->lane && link->lane->kind != KVF_LANE_STREAM);
}

static void read_page(ep_link *link, const kvf_page_header *h) {
    kvf_endpoint *e = link->endpoint;
    if (link->lane) {
        ep_lane_gather(link, h);
        return;
    }
    const kvf_endpoint_callbacks *cb = &e->options.callbacks;
    kvf_landing landing;
    void *target = NULL;
    kvf_link_id id = link->id;
    if (cb->on_page(cb->self, id, h, &target, &landing) != KVF_PAGE_ACCEPT || !target) return;
    bool fine = false;
    if (link->state == LINK_UP) { /* the callback may have closed it */
        link->conn->ops->peek(link->conn, KVF_FRAME_PAGE_BYTES, target, h->len_bytes);
        fine = kvf_page_crc(h, e->options.epoch, target) == h->crc;
    }
    cb->on_landed(cb->self, id, &landing, fine);
}

static void read_frame(ep_link *link, const kvf_frame *f) {
    const kvf_endpoint_callbacks *cb = &link->endpoint->options.callbacks;
    switch (link->state) {
    case LINK_HELLO_WAIT: ep_hello(link, f); break;
    case LINK_HELLO_SENT: ep_welcome(link, f); break;
    default:
        switch (f->kind) {
        case KVF_FRAME_PAGE: read_page(link, &f->page); break;
        case KVF_FRAME_LANE: ep_lane_heard(link, f); break;
        case KVF_FRAME_BATCH:
        case KVF_FRAME_SLOT: ep_batch_heard(link, f); break;
        default:
            if (link->state == LINK_UP) cb->on_frame(cb->self, link->id, f); /* else a heartbeat, before on_link_up */
        }
    }
}

/* What has to stay in the stream for now: all but the making of the lane until it is made; pages without a slot. */
static bool must_wait(ep_link *link, kvf_frame_kind kind) {
    if (link->state == LINK_LANING) return kind != KVF_FRAME_LANE && kind != KVF_FRAME_RENEW;
    return kind == KVF_FRAME_PAGE && link->lane && !ep_lane_takes(link);
}

static const char *kind_name(kvf_frame_kind kind) {
    static const char *const names[] = {"?", "HELLO", "WELCOME", "REFUSE", "OPEN", "OPENED", "PAGE", "COMMIT",
        "COMMITTED", "MISSING", "GONE", "CANCEL", "RENEW", "LANE", "BATCH", "SLOT"};
    return names[kind];
}

bool ep_hears_tls(ep_link *link) {
    uint8_t head[3]; /* a record's kind (alert, handshake) and version 3.x */
    if (link->state != LINK_HELLO_SENT && link->state != LINK_HELLO_WAIT) return false;
    if (link->conn->ops->ready(link->conn) < sizeof head) return false;
    link->conn->ops->peek(link->conn, 0, head, sizeof head);
    return (head[0] == 21 || head[0] == 22) && head[1] == 3 && head[2] <= 4;
}

/* The length of the frame read; 0: it is not whole yet, or the link is over. */
static size_t read_one(ep_link *link) {
    kvf_endpoint *e = link->endpoint;
    kvf_conn *c = link->conn;
    uint8_t *bytes = e->frame_bytes;
    size_t ready = c->ops->ready(c);
    if (ready < KVF_FRAME_HEAD_BYTES) return 0;
    c->ops->peek(c, 0, bytes, KVF_FRAME_HEAD_BYTES);
    kvf_frame_kind kind;
    uint32_t whole;
    kvf_status status = kvf_frame_measure(bytes, page_max(e), &kind, &whole);
    if (status == KVF_ERR_UNSUPPORTED && link->state != LINK_UP) {
        ep_other_version(link, bytes);
        return 0;
    }
    if (status != KVF_OK) {
        ep_fail(link, KVF_ERR_FORMAT,
            ep_hears_tls(link) ? "%s speaks TLS, this side does not" : "malformed frame from %s",
            link->peer[0] ? link->peer : "a caller");
        return 0;
    }
    if (!allowed(link, kind)) {
        ep_fail(link, KVF_ERR_FORMAT, "frame %s out of place", kind_name(kind));
        return 0;
    }
    if (ready < whole || must_wait(link, kind)) return 0;
    size_t copied = kind == KVF_FRAME_PAGE ? KVF_FRAME_PAGE_BYTES : whole;
    c->ops->peek(c, 0, bytes, copied);
    kvf_frame frame;
    status = kvf_frame_decode((kvf_span){bytes, copied}, e->names, &frame);
    /* The head may have changed between the two copies: the second one counts, and must still fit what is here. */
    if (status == KVF_OK &&
        (frame.kind != kind || (kind == KVF_FRAME_PAGE && frame.page.len_bytes != whole - KVF_FRAME_PAGE_BYTES)))
        status = KVF_ERR_FORMAT;
    if (status != KVF_OK) {
        ep_fail(link, status, "%s frame %s", status == KVF_ERR_CORRUPT ? "corrupt" : "malformed", kind_name(kind));
        return 0;
    }
    read_frame(link, &frame);
    return whole;
}

void ep_read(ep_link *link, size_t bytes_max) {
    size_t done = 0;
    link->read_on = false;
    while (link->state == LINK_HELLO_SENT || link->state == LINK_HELLO_WAIT || link->state == LINK_LANING ||
           link->state == LINK_UP) {
        if (done >= bytes_max) {
            link->read_on = true;
            return;
        }
        size_t len = read_one(link);
        if (len == 0) break;
        done += len;
        if (link->state == LINK_DEAD || link->state == LINK_LINGERS) return; /* conn may be gone */
        link->conn->ops->consume(link->conn, len);
    }
    if (link->state == LINK_UP && link->lane) ep_lane_land(link);
}
