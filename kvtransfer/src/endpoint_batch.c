/* endpoint_batch.c - pages over a lane, in batches that fill one slot. Batch n of a link lies in slot n % slots, on
 * both sides; a slot is used again when the receiver has landed what was in it.
 *
 * Every page is judged (on_page) when its BATCH is read, in the order of the stream, and counts as moving from then on:
 * a COMMIT behind it waits for it, whenever its bytes come. A page is reported sent when it has been packed and its
 * frame stands in the stream: nothing that follows can overtake it. */
#include "endpoint_int.h"
#include "kvf/os.h"

static ep_batch *batch_at(ep_lane *l, uint32_t seq) { return &l->batches[seq % l->slots]; }
static uint32_t slot_of(const ep_lane *l, const ep_batch *b) { return (uint32_t)(b - l->batches); }

static void start(ep_lane *l, ep_batch *b, batch_state state, lane_work work) {
    b->state = state;
    l->used_ns = kvf_os_now_ns();
    lane_slot(l->work, slot_of(l, b))->count = b->count;
    lane_start(l->work, slot_of(l, b), work);
}

/* ---------------------------------------------------------------- sending */
bool ep_lane_has_room(ep_link *link) {
    ep_lane *l = link->lane;
    batch_state state = batch_at(l, l->seq)->state;
    if (state == BATCH_FREE || state == BATCH_FILLING) return true;
    l->asked_room = true;
    return false;
}

uint32_t kvf_endpoint_pages_held(const kvf_endpoint *e) {
    return e->pool ? e->device.slots * (uint32_t)(e->device.slot_bytes / e->identity.page_bytes) : 0;
}

void ep_lane_push(ep_lane *l) {
    ep_batch *b = batch_at(l, l->seq);
    if (b->state != BATCH_FILLING) return;
    l->seq++;
    start(l, b, BATCH_PACKING, LANE_PACK);
}

static ep_link *find_up(kvf_endpoint *e, kvf_link_id id) {
    uint32_t slot = id & 0xff;
    if (id == KVF_LINK_NONE || slot >= e->links_count) return NULL;
    ep_link *link = &e->links[slot];
    return link->id == id && link->state == LINK_UP ? link : NULL;
}

kvf_status kvf_endpoint_post_page(
    kvf_endpoint *e, kvf_link_id id, const kvf_page_header *header, uint32_t block, uint64_t token) {
    ep_link *link = find_up(e, id);
    if (!link) return KVF_ERR_NOT_FOUND;
    if (!link->outgoing || !link->lane || header->len_bytes != e->identity.page_bytes) return KVF_ERR_INVALID;
    if (!ep_lane_has_room(link)) return KVF_AGAIN;
    ep_lane *l = link->lane;
    ep_batch *b = batch_at(l, l->seq);
    if (b->state == BATCH_FREE) {
        ep_entry *entries = b->entries;
        *b = (ep_batch){.state = BATCH_FILLING, .seq = l->seq, .entries = entries};
        l->filling_ns = kvf_os_now_ns();
    }
    lane_slot(l->work, slot_of(l, b))->pages[b->count] =
        (kvf_page_at){block, header->layer, kvf_page_seed(header, link->peer_epoch)};
    b->entries[b->count++] = (ep_entry){.header = *header, .token = token};
    if (b->count == l->slot_pages) ep_lane_push(l);
    ep_soon(e); /* pushed at the end of this turn of the loop, if nothing holds it back */
    return KVF_OK;
}

static void slot_free(ep_lane *l, ep_batch *b) {
    b->state = BATCH_FREE;
    if (!l->link || !l->asked_room) return;
    l->asked_room = false;
    ep_tell_room(l->link);
}

/* Of every page from `told` to `end`; a callback may end the link. */
static void tell_sent(ep_lane *l, ep_batch *b, uint32_t end) {
    const kvf_endpoint_callbacks *cb = &l->endpoint->options.callbacks;
    while (l->link && b->told < end) {
        const ep_entry *entry = &b->entries[b->told++];
        cb->on_page_sent(cb->self, entry->token, true, entry->header.crc);
    }
}

static bool put_batch(ep_lane *l, ep_batch *b) {
    uint8_t pages[KVF_FRAME_BATCH_MAX * KVF_FRAME_BATCH_PAGE_BYTES];
    if (!ep_room_for(l->link, KVF_FRAME_BYTES_MAX)) return false;
    for (uint32_t i = 0; i < b->count; i++)
        kvf_batch_page_put(pages + (size_t)i * KVF_FRAME_BATCH_PAGE_BYTES, &b->entries[i].header);
    kvf_frame f = {.kind = KVF_FRAME_BATCH, .batch = {.seq = b->seq, .count = b->count, .pages = pages}};
    ep_put_frame(l->link, &f);
    b->state = BATCH_SENT;
    tell_sent(l, b, b->count);
    return true;
}

/* As frames of the stream, as far as there is room. */
static bool put_pages(ep_lane *l, ep_batch *b) {
    uint32_t page_bytes = l->endpoint->identity.page_bytes;
    const uint8_t *host = lane_slot(l->work, slot_of(l, b))->host;
    while (l->link && b->told < b->count) {
        if (!ep_room_for(l->link, KVF_FRAME_PAGE_BYTES + (size_t)page_bytes)) return false;
        ep_page_sent(l->link, &b->entries[b->told].header, host + (size_t)b->told * page_bytes);
        tell_sent(l, b, b->told + 1);
    }
    return l->link != NULL;
}

static void put_packed(ep_lane *l) {
    while (l->link && l->said != l->seq && batch_at(l, l->said)->state == BATCH_PACKED) {
        ep_batch *b = batch_at(l, l->said);
        if (l->kind == KVF_LANE_STREAM ? !put_pages(l, b) : !put_batch(l, b)) return;
        l->said++;
        if (l->kind == KVF_LANE_STREAM) slot_free(l, b);
    }
}

static void put_owed(ep_lane *l) {
    for (uint32_t i = 0; l->link && i < l->slots; i++) {
        ep_batch *b = &l->batches[i];
        for (int news = KVF_SLOT_POST; news <= KVF_SLOT_FREE; news++) {
            bool *owed = news == KVF_SLOT_POST ? &b->say_post : &b->say_free;
            if (!*owed || !ep_room_for(l->link, KVF_FRAME_HEAD_BYTES + 8)) continue;
            *owed = false;
            ep_put_frame(l->link, &(kvf_frame){.kind = KVF_FRAME_SLOT, .slot = {b->seq, (uint32_t)news}});
        }
    }
}

void ep_lane_go_on(ep_lane *l) {
    put_owed(l);
    if (l->outgoing) put_packed(l);
}

static void hear_slot(ep_link *link, const kvf_frame *f) {
    ep_lane *l = link->lane;
    ep_batch *b = batch_at(l, f->slot.seq);
    bool known = b->seq == f->slot.seq && (b->state == BATCH_SENT || b->state == BATCH_POSTING);
    bool nccl = l->kind == KVF_LANE_NCCL;
    if (known && f->slot.news == KVF_SLOT_POST && nccl && !b->posted) {
        b->posted = true;
        b->state = BATCH_POSTABLE;
        ep_batches_post(l->endpoint);
    } else if (known && f->slot.news == KVF_SLOT_FREE && !b->freed && b->posted == nccl) {
        b->freed = true;
        if (b->state == BATCH_SENT) slot_free(l, b);
    } else {
        ep_fail(link, KVF_ERR_FORMAT, "%s speaks of a slot that is not on its way", link->peer);
    }
}

/* ---------------------------------------------------------------- receiving */
bool ep_lane_takes(ep_link *link) {
    ep_lane *l = link->lane;
    batch_state state = batch_at(l, l->seq)->state;
    link->stalled = state != BATCH_FREE && state != BATCH_FILLING;
    return !link->stalled;
}

/* Whether the page is wanted: then `entry` and its place in the slot are filled in. */
static bool judge(ep_link *link, ep_batch *b, const kvf_page_header *h, kvf_page_at *at) {
    kvf_endpoint *e = link->endpoint;
    const kvf_endpoint_callbacks *cb = &e->options.callbacks;
    ep_entry *entry = &b->entries[b->count];
    void *target = NULL;
    *entry = (ep_entry){.header = *h};
    *at = (kvf_page_at){.block = UINT32_MAX};
    if (cb->on_page(cb->self, link->id, h, &target, &entry->landing) != KVF_PAGE_ACCEPT) return false;
    entry->accepted = true;
    *at = (kvf_page_at){entry->landing.block.index, entry->landing.layer, kvf_page_seed(h, e->options.epoch)};
    return true;
}

void ep_lane_gather(ep_link *link, const kvf_page_header *h) {
    ep_lane *l = link->lane;
    ep_batch *b = batch_at(l, l->seq);
    lane_view *view = lane_slot(l->work, slot_of(l, b));
    if (h->len_bytes != link->endpoint->identity.page_bytes) { /* its verdict counts it; there is nothing to land */
        kvf_landing landing;
        void *target = NULL;
        const kvf_endpoint_callbacks *cb = &link->endpoint->options.callbacks;
        if (cb->on_page(cb->self, link->id, h, &target, &landing) == KVF_PAGE_ACCEPT)
            cb->on_dropped(cb->self, link->id, &landing);
        return;
    }
    if (b->state == BATCH_FREE) *b = (ep_batch){.state = BATCH_FILLING, .seq = l->seq, .entries = b->entries};
    bool wanted = judge(link, b, h, &view->pages[b->count]);
    if (wanted && link->lane == l) /* the callback may have closed it */
        link->conn->ops->peek(
            link->conn, KVF_FRAME_PAGE_BYTES, view->host + (size_t)b->count * h->len_bytes, h->len_bytes);
    if (wanted) b->count++;
    if (link->lane == l && b->count == l->slot_pages) ep_lane_land(link);
}

void ep_lane_land(ep_link *link) {
    ep_lane *l = link->lane;
    ep_batch *b = batch_at(l, l->seq);
    if (l->outgoing || l->kind != KVF_LANE_STREAM || b->state != BATCH_FILLING) return;
    if (b->count == 0) {
        b->state = BATCH_FREE;
        return;
    }
    l->seq++;
    start(l, b, BATCH_LANDING, LANE_LAND);
}

static bool any_accepted(const ep_batch *b) {
    for (uint32_t i = 0; i < b->count; i++)
        if (b->entries[i].accepted) return true;
    return false;
}

/* The bytes are in the slot. */
static void land(ep_lane *l, ep_batch *b) {
    if (any_accepted(b)) {
        start(l, b, BATCH_LANDING, LANE_LAND);
    } else {
        b->state = BATCH_FREE;
        b->say_free = true;
        put_owed(l);
    }
}

static void hear_batch(ep_link *link, const kvf_frame *f) {
    ep_lane *l = link->lane;
    ep_batch *b = batch_at(l, l->seq);
    uint8_t pages[KVF_FRAME_BATCH_MAX * KVF_FRAME_BATCH_PAGE_BYTES];
    if (f->batch.seq != l->seq || f->batch.count > l->slot_pages || b->state != BATCH_FREE || b->say_free) {
        ep_fail(link, KVF_ERR_FORMAT, "%s overruns its slots", link->peer);
        return;
    }
    memcpy(pages, f->batch.pages, (size_t)f->batch.count * KVF_FRAME_BATCH_PAGE_BYTES); /* callbacks may read frames */
    kvf_frame kept = *f;
    kept.batch.pages = pages;
    *b = (ep_batch){.state = BATCH_POSTABLE, .seq = l->seq++, .entries = b->entries};
    lane_view *view = lane_slot(l->work, slot_of(l, b));
    for (uint32_t i = 0; i < kept.batch.count && link->lane == l; i++) {
        kvf_page_header h;
        kvf_batch_page_get(&kept, i, link->endpoint->identity.page_bytes, &h);
        (void)judge(link, b, &h, &view->pages[b->count]);
        b->count++;
    }
    if (link->lane != l) return; /* ep_batches_end tells the accepted ones */
    if (l->kind == KVF_LANE_IPC)
        land(l, b);
    else
        ep_batches_post(l->endpoint);
}

void ep_batch_heard(ep_link *link, const kvf_frame *f) {
    if (f->kind == KVF_FRAME_BATCH)
        hear_batch(link, f);
    else
        hear_slot(link, f);
}

static void on_landed(ep_lane *l, ep_batch *b) {
    const kvf_endpoint_callbacks *cb = &l->endpoint->options.callbacks;
    const uint32_t *crc = lane_slot(l->work, slot_of(l, b))->crc;
    while (b->told < b->count) {
        const ep_entry *entry = &b->entries[b->told++];
        if (entry->accepted)
            cb->on_landed(cb->self, l->link_id, &entry->landing, crc[b->told - 1] == entry->header.crc);
    }
    b->state = BATCH_FREE;
    if (!l->link) return;
    if (l->kind != KVF_LANE_STREAM) {
        b->say_free = true;
        put_owed(l);
    } else if (l->link->stalled) {
        l->link->stalled = false;
        l->link->read_on = true;
        ep_soon(l->endpoint);
    }
}

/* ---------------------------------------------------------------- news of the device */
void ep_batch_news(ep_lane *l, const lane_event *event) {
    kvf_endpoint *e = l->endpoint;
    ep_batch *b = &l->batches[event->slot];
    if (event->kind == LANE_POSTED) {
        b->say_post = l->link != NULL;
        if (l->link) put_owed(l);
        return;
    }
    switch (event->work) {
    case LANE_PACK:
        for (uint32_t i = 0; i < b->count; i++) b->entries[i].header.crc = lane_slot(l->work, event->slot)->crc[i];
        b->state = BATCH_PACKED;
        if (l->link) put_packed(l);
        break;
    case LANE_SEND:
        e->sends_posted--;
        b->state = BATCH_SENT;
        if (b->freed) slot_free(l, b);
        break;
    case LANE_RECV:
        e->recvs_posted--;
        b->state = BATCH_LANDING;
        if (l->link) land(l, b);
        break;
    case LANE_LAND: on_landed(l, b); break;
    }
}

/* One post of a lane and direction at a time, few in all: kernels of several communicators that wait for their peers
 * must not keep each other from the device. */
void ep_batches_post(kvf_endpoint *e) {
    for (ep_lane *l = e->lanes; l; l = l->next) {
        uint32_t *posted = l->outgoing ? &e->sends_posted : &e->recvs_posted;
        if (l->kind != KVF_LANE_NCCL || !l->link || *posted >= e->device.posts_max) continue;
        ep_batch *first = NULL;
        bool posting = false;
        for (uint32_t i = 0; i < l->slots; i++) {
            ep_batch *b = &l->batches[i];
            posting |= b->state == BATCH_POSTING;
            if (b->state == BATCH_POSTABLE && (!first || (int32_t)(b->seq - first->seq) < 0)) first = b;
        }
        if (posting || !first) continue;
        (*posted)++;
        start(l, first, BATCH_POSTING, l->outgoing ? LANE_SEND : LANE_RECV);
    }
}

/* The lane's device work is over, its link gone: nothing touches pages any more. */
void ep_batches_end(ep_lane *l) {
    const kvf_endpoint_callbacks *cb = &l->endpoint->options.callbacks;
    for (uint32_t i = 0; i < l->slots; i++) {
        ep_batch *b = &l->batches[i];
        if (b->state == BATCH_POSTING) --*(l->outgoing ? &l->endpoint->sends_posted : &l->endpoint->recvs_posted);
        while (b->state != BATCH_FREE && b->told < b->count) {
            const ep_entry *entry = &b->entries[b->told++];
            if (l->outgoing)
                cb->on_page_sent(cb->self, entry->token, false, 0);
            else if (entry->accepted)
                cb->on_dropped(cb->self, l->link_id, &entry->landing);
        }
        b->state = BATCH_FREE;
    }
}
