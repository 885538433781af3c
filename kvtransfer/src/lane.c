/* lane.c - orders and news of a lane, its thread, its end. The calls themselves: lane_work.c. */
#include "lane_int.h"
#include "kvf/os.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS (2 * KVF_NS_PER_MS) /* how often running work is looked at when nothing says that it has ended */

/* ---------------------------------------------------------------- news */
void lane_tell(lane *l, const lane_event *event) {
    pthread_mutex_lock(&l->lock);
    /* A slot has one work under way and tells twice at most, the rest tells once: the ring holds all there can be. */
    KVF_ASSERT(l->news_count < LANE_NEWS_MAX);
    l->news[(l->news_first + l->news_count++) % LANE_NEWS_MAX] = *event;
    pthread_mutex_unlock(&l->lock);
    uint64_t one = 1;
    ssize_t n = write(l->pool->bell, &one, sizeof one); /* full: it is ringing already */
    (void)n;
}

bool lane_take(lane *l, lane_event *out) {
    pthread_mutex_lock(&l->lock);
    bool any = l->news_count > 0;
    if (any) {
        *out = l->news[l->news_first];
        l->news_first = (l->news_first + 1) % LANE_NEWS_MAX;
        l->news_count--;
    }
    pthread_mutex_unlock(&l->lock);
    return any;
}

void lane_fail(lane *l, const char *call, int error, bool nccl) {
    const kvf_page_device *d = l->pool->device;
    lane_event event = {.kind = LANE_FAILED, .lost = !nccl && kvf_cuda_is_sticky(error)};
    pthread_mutex_lock(&l->lock);
    bool said = event.lost ? l->lost_told : l->broken || l->closing;
    l->broken = true;
    l->lost_told |= event.lost;
    pthread_mutex_unlock(&l->lock);
    if (said) return;
    snprintf(event.text, sizeof event.text, "%s",
        nccl ? kvf_nccl_text(d->nccl, call, error) : kvf_cuda_text(d->cuda, call, error));
    lane_tell(l, &event);
}

/* ---------------------------------------------------------------- orders */
static void lane_order(lane *l, bool *what) {
    pthread_mutex_lock(&l->lock);
    *what = true;
    l->order_ns = kvf_os_now_ns();
    pthread_cond_signal(&l->moved);
    pthread_mutex_unlock(&l->lock);
}
void lane_open(lane *l) { lane_order(l, &l->open_wanted); }
void lane_join(lane *l, const uint8_t *bytes, uint32_t len_bytes, uint64_t stride_bytes) {
    KVF_ASSERT(len_bytes <= LANE_BYTES_MAX);
    pthread_mutex_lock(&l->lock);
    memset(l->join_bytes, 0, sizeof l->join_bytes);
    if (len_bytes) memcpy(l->join_bytes, bytes, len_bytes);
    l->stride_bytes = stride_bytes;
    pthread_mutex_unlock(&l->lock);
    lane_order(l, &l->join_wanted);
}
lane_view *lane_slot(lane *l, uint32_t slot) { return &l->slots[slot].view; }

void lane_start(lane *l, uint32_t slot, lane_work work) {
    pthread_mutex_lock(&l->lock);
    lane_slot_of *s = &l->slots[slot];
    KVF_ASSERT(s->state == SLOT_IDLE);
    s->state = SLOT_QUEUED;
    s->work = work;
    s->turn = ++l->turns;
    s->since_ns = kvf_os_now_ns();
    pthread_cond_signal(&l->moved);
    pthread_mutex_unlock(&l->lock);
}

void lane_close(lane *l) {
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    l->closing_ns = kvf_os_now_ns();
    pthread_cond_signal(&l->moved);
    pthread_mutex_unlock(&l->lock);
}
bool lane_is_closing(lane *l) {
    pthread_mutex_lock(&l->lock);
    bool closing = l->closing;
    pthread_mutex_unlock(&l->lock);
    return closing;
}

kvf_time_ns lane_since(lane *l, const char **what) {
    static const char *const works[] = {"packing", "sending", "receiving", "landing"};
    kvf_time_ns since = KVF_TIME_NEVER;
    pthread_mutex_lock(&l->lock);
    *what = "";
    for (uint32_t i = 0; i < l->pool->slots && !l->closing; i++) {
        if (l->slots[i].state == SLOT_IDLE || l->slots[i].since_ns >= since) continue;
        since = l->slots[i].since_ns;
        *what = works[l->slots[i].work];
    }
    if (l->call && l->call_ns < since) {
        since = l->call_ns;
        *what = l->call;
    }
    if (l->closing && l->closing_ns < since) {
        since = l->closing_ns;
        *what = "closing";
    }
    pthread_mutex_unlock(&l->lock);
    return since == KVF_TIME_NEVER ? 0 : since;
}

void lane_enter(lane *l, const char *call) {
    pthread_mutex_lock(&l->lock);
    l->call = call;
    l->call_ns = kvf_os_now_ns();
    pthread_mutex_unlock(&l->lock);
}
int lane_left(lane *l, int result) {
    pthread_mutex_lock(&l->lock);
    l->call = NULL;
    pthread_mutex_unlock(&l->lock);
    return result;
}

static void *rescue_main(void *arg) {
    lane *l = arg;
    lane_abort(l);
    pthread_mutex_lock(&l->lock);
    l->rescuing = false;
    pthread_cond_signal(&l->moved);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}
void lane_rescue(lane *l) {
    pthread_t thread;
    pthread_mutex_lock(&l->lock);
    bool due = !l->rescued && l->call && l->comm && !l->comm_gone;
    if (due) l->rescued = l->rescuing = true;
    pthread_mutex_unlock(&l->lock);
    if (!due) return;
    if (pthread_create(&thread, NULL, rescue_main, l) == 0) {
        pthread_detach(thread);
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->rescuing = false;
    pthread_mutex_unlock(&l->lock);
}

/* ---------------------------------------------------------------- the thread */
/* Of the queued slots the one that was asked for first; -1: none. */
static int next_slot(const lane *l, bool *running) {
    int first = -1;
    *running = false;
    for (uint32_t i = 0; i < l->pool->slots; i++) {
        const lane_slot_of *s = &l->slots[i];
        *running |= s->state == SLOT_RUNNING;
        if (s->state == SLOT_QUEUED && (first < 0 || s->turn < l->slots[first].turn)) first = (int)i;
    }
    return first;
}

static void wait_a_little(lane *l) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)LOOK_NS;
    if (until.tv_nsec >= (long)KVF_NS_PER_S) {
        until.tv_nsec -= (long)KVF_NS_PER_S;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&l->moved, &l->lock, &until);
}

static void tell_done(lane *l, uint32_t slot) {
    pthread_mutex_lock(&l->lock);
    lane_event event = {.kind = LANE_DONE, .slot = slot, .work = l->slots[slot].work};
    l->slots[slot].state = SLOT_IDLE;
    pthread_mutex_unlock(&l->lock);
    lane_tell(l, &event);
}

static void look_at_running(lane *l) {
    for (uint32_t i = 0; i < l->pool->slots; i++) {
        pthread_mutex_lock(&l->lock);
        bool running = l->slots[i].state == SLOT_RUNNING;
        pthread_mutex_unlock(&l->lock);
        if (!running) continue;
        int error = lane_look(l, i);
        if (error == 0)
            tell_done(l, i);
        else if (error != KVF_CUDA_NOT_READY)
            lane_fail(l, "device work", error, false);
    }
    (void)lane_look_at_comm(l);
}

static void run_slot(lane *l, uint32_t slot) {
    if (!lane_do_work(l, slot)) return;
    pthread_mutex_lock(&l->lock);
    l->slots[slot].state = SLOT_RUNNING;
    pthread_mutex_unlock(&l->lock);
}

/* One thing to do, or a wait. false: the lane is closing. */
static bool lane_step(lane *l) {
    bool open = false, join = false, running = false;
    int slot = -1;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        if (l->closing) break;
        slot = next_slot(l, &running);
        open = l->open_wanted;
        join = l->join_wanted;
        if (l->broken) {
            open = join = running = false;
            slot = -1;
        } else if (open || join || slot >= 0) {
            break;
        }
        if (running) {
            if (!l->woken) wait_a_little(l);
            l->woken = false;
            break;
        }
        pthread_cond_wait(&l->moved, &l->lock);
    }
    bool closing = l->closing;
    if (open)
        l->open_wanted = false;
    else if (join)
        l->join_wanted = false;
    pthread_mutex_unlock(&l->lock);
    if (closing) return false;
    if (open)
        (void)lane_do_open(l);
    else if (join)
        (void)lane_do_join(l);
    else if (slot >= 0)
        run_slot(l, (uint32_t)slot);
    if (running) look_at_running(l);
    return true;
}

static void *lane_main(void *arg) {
    lane *l = arg;
    while (lane_step(l)) {
    }
    lane_abort(l);
    lane_drain(l);
    lane_tell(l, &(lane_event){.kind = LANE_CLOSED});
    lane_release(l);
    lane_tell(l, &(lane_event){.kind = LANE_ENDED});
    return NULL;
}

/* ---------------------------------------------------------------- life */
lane *lane_create(lane_pool *pool, kvf_lane_kind kind, bool sends) {
    lane *l = calloc(1, sizeof *l);
    lane_event *news = calloc(LANE_NEWS_MAX, sizeof *news);
    pthread_condattr_t monotonic;
    if (!l || !news || pthread_condattr_init(&monotonic)) goto undo;
    *l = (lane){.pool = pool, .kind = kind, .sends = sends, .news = news};
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&l->thread, NULL, lane_main, l) == 0) return l;
    pthread_cond_destroy(&l->moved);
    pthread_mutex_destroy(&l->lock);
undo:
    free(news);
    free(l);
    return NULL;
}

void lane_free(lane *l) {
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->moved);
    pthread_mutex_destroy(&l->lock);
    free(l->news);
    free(l);
}

lane_pool *lane_pool_create(
    const kvf_page_device *device, uint32_t page_bytes, uint32_t slots, uint32_t slot_pages, int bell) {
    lane_pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (lane_pool){.device = device,
        .page_bytes = page_bytes,
        .slots = slots,
        .slot_pages = slot_pages,
        .slot_bytes = (uint64_t)slot_pages * page_bytes,
        .bell = bell};
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

void lane_pool_destroy(lane_pool *pool) {
    if (!pool) return;
    const kvf_cuda_api *cuda = pool->device->cuda;
    for (lane_staging *s = pool->idle, *next; s; s = next) {
        next = s->next;
        (void)cuda->memory_give(s->device);
        (void)cuda->host_give(s->host);
        (void)cuda->host_give(s->pages);
        (void)cuda->host_give(s->crc);
        free(s);
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
