/* pair.c - hand-offs of a whole pool over one lane of kvtransfer, as the endpoint drives it, without its frames: batch
 * n lies in slot n % slots on both sides, an nccl send is posted when the peer has posted its receive, one at a time.
 */
#include "gpu.h"
#include "lane.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

typedef enum { AT_REST, PACKING, PACKED, POSTABLE, POSTING, SENT, RECEIVING, LANDING } slot_at;
struct gpu_pair {
    gpu *g;
    kvf_lane_kind kind;
    bool sends;
    int fd, bell;
    lane_pool *pool;
    lane *lane;
    struct {
        slot_at at;
        uint32_t batch;
        bool posted, freed;
        uint32_t crc[SLOT_PAGES_MAX]; /* the sender's */
    } slots[LANE_SLOTS_MAX];
    uint64_t bad;
};

static bool fail(char why[256], const char *text) {
    snprintf(why, 256, "%s", text);
    return false;
}

/* News of the lane, or a word of the other process (NULL: none are looked for). */
static bool next(gpu_pair *p, lane_event *event, gpu_word *word, bool *is_word, char why[256]) {
    double until = gpu_now_s() + PATIENCE_S;
    struct pollfd fds[2] = {{.fd = p->bell, .events = POLLIN}, {.fd = word ? p->fd : -1, .events = POLLIN}};
    while (gpu_now_s() < until) {
        *is_word = false;
        if (lane_take(p->lane, event)) return event->kind != LANE_FAILED || fail(why, event->text);
        if (poll(fds, 2, 100) <= 0) continue;
        uint64_t count;
        if (fds[0].revents && read(p->bell, &count, sizeof count) < 0) return fail(why, "the bell is broken");
        if (!fds[1].revents) continue;
        *is_word = true;
        ssize_t n = recv(p->fd, word, sizeof *word, 0);
        if (n != (ssize_t)sizeof *word) return fail(why, "the other process has ended");
        return word->kind != SAY_FAILED || fail(why, word->text);
    }
    const char *what;
    (void)lane_since(p->lane, &what);
    snprintf(why, 256, "nothing for %d s (%s)", PATIENCE_S, *what ? what : "the other process");
    return false;
}

static bool wait_for(gpu_pair *p, lane_news kind, lane_event *event, char why[256]) {
    bool is_word;
    do {
        if (!next(p, event, NULL, &is_word, why)) return false;
    } while (event->kind != kind);
    return true;
}

static bool join(gpu_pair *p, char why[256]) {
    gpu_word w = {.kind = SAY_HANDLE};
    lane_event event;
    uint64_t stride = (uint64_t)p->g->sizes.slot_pages * p->g->sizes.page_bytes;
    lane_open(p->lane);
    if (!wait_for(p, LANE_OPENED, &event, why)) return false;
    if (!p->sends) {
        w.len_bytes = event.len_bytes;
        memcpy(w.bytes, event.bytes, event.len_bytes);
        if (!gpu_say(p->fd, &w)) return fail(why, "the other process has ended");
    } else if (!gpu_hear(p->fd, SAY_HANDLE, &w)) {
        return fail(why, w.text);
    }
    if (!p->sends && p->kind == KVF_LANE_IPC) return true;
    lane_join(p->lane, w.bytes, w.len_bytes, stride);
    return wait_for(p, LANE_JOINED, &event, why);
}

gpu_pair *gpu_pair_open(gpu *g, kvf_lane_kind kind, bool sends, int fd, char why[256]) {
    gpu_pair *p = calloc(1, sizeof *p);
    if (!p) abort();
    *p = (gpu_pair){.g = g, .kind = kind, .sends = sends, .fd = fd, .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    p->pool = lane_pool_create(&g->device, g->sizes.page_bytes, g->sizes.slots, g->sizes.slot_pages, p->bell);
    p->lane = p->pool ? lane_create(p->pool, kind, sends) : NULL;
    if (!p->lane) abort();
    if (join(p, why)) return p;
    if (!sends) {
        gpu_word w = {.kind = SAY_FAILED};
        snprintf(w.text, sizeof w.text, "%s", why);
        (void)gpu_say(fd, &w);
    }
    gpu_pair_close(p);
    return NULL;
}

/* A lane that does not end is left behind: the process ends soon. */
void gpu_pair_close(gpu_pair *p) {
    lane_event event;
    double until = gpu_now_s() + PATIENCE_S;
    bool ended = false;
    lane_close(p->lane);
    while (!ended && gpu_now_s() < until) {
        if (!lane_take(p->lane, &event))
            usleep(200);
        else
            ended = event.kind == LANE_ENDED;
    }
    if (!ended) return;
    lane_free(p->lane);
    lane_pool_destroy(p->pool);
    close(p->bell);
    free(p);
}

/* ---- the sender ---- */
static uint32_t batches_of(const gpu_pair *p) {
    return (gpu_pages(p->g) + p->g->sizes.slot_pages - 1) / p->g->sizes.slot_pages;
}
static uint32_t count_of(const gpu_pair *p, uint32_t batch) {
    uint32_t first = batch * p->g->sizes.slot_pages;
    return KVF_MIN(p->g->sizes.slot_pages, gpu_pages(p->g) - first);
}
static void name_pages(gpu_pair *p, uint32_t slot, uint32_t first, uint32_t count) {
    lane_view *v = lane_slot(p->lane, slot);
    for (uint32_t i = 0; i < count; i++) v->pages[i] = gpu_page(p->g, first + i);
    v->count = count;
}
static void pack_next(gpu_pair *p, uint32_t *packed) {
    for (uint32_t s; *packed < batches_of(p); ++*packed) {
        s = *packed % p->g->sizes.slots;
        if (p->slots[s].at != AT_REST) return;
        p->slots[s].at = PACKING;
        p->slots[s].batch = *packed;
        p->slots[s].posted = p->slots[s].freed = false;
        name_pages(p, s, *packed * p->g->sizes.slot_pages, count_of(p, *packed));
        lane_start(p->lane, s, LANE_PACK);
    }
}
static bool say_packed(gpu_pair *p, uint32_t *said, char why[256]) {
    for (uint32_t s; s = *said % p->g->sizes.slots, p->slots[s].at == PACKED && p->slots[s].batch == *said; ++*said) {
        uint32_t batch = p->slots[s].batch;
        gpu_word w = {
            .kind = SAY_BATCH, .slot = s, .first = batch * p->g->sizes.slot_pages, .count = count_of(p, batch)};
        memcpy(w.crc, lane_slot(p->lane, s)->crc, w.count * sizeof w.crc[0]);
        p->slots[s].at = SENT;
        if (!gpu_say(p->fd, &w)) return fail(why, "the other process has ended");
    }
    return true;
}
/* The oldest that its peer waits for, when none is on its way. */
static void post_next(gpu_pair *p, slot_at ready, slot_at busy, lane_work work) {
    int first = -1;
    for (uint32_t s = 0; s < p->g->sizes.slots; s++) {
        if (p->slots[s].at == busy) return;
        if (p->slots[s].at == ready && (first < 0 || p->slots[s].batch < p->slots[first].batch)) first = (int)s;
    }
    if (first < 0) return;
    p->slots[first].at = busy;
    lane_start(p->lane, (uint32_t)first, work);
}
static void rest_if_over(gpu_pair *p, uint32_t slot, uint32_t *done) {
    if (p->slots[slot].at != SENT || !p->slots[slot].freed) return;
    p->slots[slot].at = AT_REST;
    ++*done;
}

double gpu_pair_send(gpu_pair *p, bool land, char why[256]) {
    uint32_t packed = 0, said = 0, done = 0;
    gpu_word w;
    lane_event event;
    bool is_word;
    double begin = gpu_now_s();
    while (done < batches_of(p)) {
        pack_next(p, &packed);
        if (!next(p, &event, &w, &is_word, why)) return -1;
        uint32_t s = is_word ? w.slot : event.slot;
        if (s >= p->g->sizes.slots) return fail(why, "a slot that is not there"), -1;
        if (!is_word && event.kind == LANE_DONE && event.work == LANE_PACK) {
            p->slots[s].at = PACKED;
            if (!land) p->slots[s].at = SENT, p->slots[s].freed = true;
            if (land && !say_packed(p, &said, why)) return -1;
        } else if (!is_word && event.kind == LANE_DONE) {
            p->slots[s].at = SENT;
        } else if (is_word && w.kind == SAY_POSTED) {
            p->slots[s].at = POSTABLE;
        } else if (is_word && w.kind == SAY_FREE) {
            p->slots[s].freed = true;
            p->bad += w.number;
        }
        rest_if_over(p, s, &done);
        if (p->kind == KVF_LANE_NCCL) post_next(p, POSTABLE, POSTING, LANE_SEND);
    }
    double took = gpu_now_s() - begin;
    if (p->bad == 0) return took;
    snprintf(why, 256, "%llu pages arrived with another checksum", (unsigned long long)p->bad);
    return -1;
}

/* ---- the receiver ---- */
static bool hear_word(gpu_pair *p, const gpu_word *w, char why[256]) {
    if (w->kind != SAY_BATCH || w->slot >= p->g->sizes.slots || w->count > p->g->sizes.slot_pages ||
        p->slots[w->slot].at != AT_REST)
        return fail(why, "a batch that cannot be");
    name_pages(p, w->slot, w->first, w->count);
    memcpy(p->slots[w->slot].crc, w->crc, sizeof w->crc);
    p->slots[w->slot].batch = w->first / p->g->sizes.slot_pages;
    p->slots[w->slot].at = POSTABLE;
    return true;
}
static bool landed(gpu_pair *p, uint32_t slot) {
    const lane_view *v = lane_slot(p->lane, slot);
    gpu_word w = {.kind = SAY_FREE, .slot = slot};
    for (uint32_t i = 0; i < v->count; i++) w.number += v->crc[i] != p->slots[slot].crc[i];
    p->slots[slot].at = AT_REST;
    return gpu_say(p->fd, &w);
}
static bool hear_news(gpu_pair *p, const lane_event *event) {
    uint32_t s = event->slot;
    if (event->kind == LANE_POSTED) return gpu_say(p->fd, &(gpu_word){.kind = SAY_POSTED, .slot = s});
    if (event->kind != LANE_DONE) return true;
    if (event->work == LANE_LAND) return landed(p, s);
    p->slots[s].at = LANDING;
    lane_start(p->lane, s, LANE_LAND);
    return true;
}

bool gpu_pair_serve(gpu_pair *p, gpu_word *last, char why[256]) {
    lane_event event;
    bool is_word;
    for (;;) {
        if (!next(p, &event, last, &is_word, why)) return false;
        if (is_word && (last->kind == SAY_CHECK || last->kind == SAY_END)) return true;
        if (is_word ? !hear_word(p, last, why) : !hear_news(p, &event)) return false;
        if (p->kind == KVF_LANE_NCCL)
            post_next(p, POSTABLE, RECEIVING, LANE_RECV);
        else if (is_word) {
            p->slots[last->slot].at = LANDING;
            lane_start(p->lane, last->slot, LANE_LAND);
        }
    }
}
