/* lane_work.c - what a lane's thread asks of CUDA and NCCL.
 *
 * A group of a non-blocking communicator is on its stream only when its asynchronous state says success; an event that
 * is recorded earlier says nothing about it. So every post settles first. */
#include "lane_int.h"
#include <stdlib.h>
#include <time.h>

#define WARM_BYTES 16u
#define NAP_US_MAX 1000u

void lane_nap(uint32_t us) {
    struct timespec t = {.tv_nsec = (long)us * 1000};
    nanosleep(&t, NULL);
}

static bool fine(lane *l, const char *call, int error) {
    if (error) lane_fail(l, call, error, false);
    return error == 0;
}
#define CUDA(l, symbol, call) fine((l), symbol, LANE_CALL((l), symbol, (l)->pool->device->cuda->call))

/* ---------------------------------------------------------------- NCCL */
static bool comm_lives(lane *l) {
    pthread_mutex_lock(&l->lock);
    bool lives = l->comm && !l->comm_gone;
    pthread_mutex_unlock(&l->lock);
    return lives;
}

static bool settle(lane *l, const char *call, int result) {
    const kvf_nccl_api *nccl = l->pool->device->nccl;
    uint32_t us = 20;
    while (result == KVF_NCCL_IN_PROGRESS) {
        if (lane_is_closing(l) || !comm_lives(l)) return false;
        lane_nap(us);
        us = KVF_MIN(us * 2, NAP_US_MAX);
        int now = KVF_NCCL_OK, error = LANE_CALL(l, "ncclCommGetAsyncError", nccl->async_error(l->comm, &now));
        result = error ? error : now;
    }
    if (result != KVF_NCCL_OK) lane_fail(l, call, result, true);
    return result == KVF_NCCL_OK;
}

bool lane_look_at_comm(lane *l) {
    if (!comm_lives(l)) return true;
    int now = KVF_NCCL_OK;
    int error = LANE_CALL(l, "ncclCommGetAsyncError", l->pool->device->nccl->async_error(l->comm, &now));
    if (!error && now != KVF_NCCL_IN_PROGRESS) error = now;
    if (error) lane_fail(l, "transfer", error, true);
    return error == 0;
}

void lane_abort(lane *l) {
    pthread_mutex_lock(&l->lock);
    bool due = l->comm && !l->comm_gone;
    l->comm_gone = true;
    kvf_nccl_comm comm = l->comm;
    pthread_mutex_unlock(&l->lock);
    if (due) (void)l->pool->device->nccl->abort(comm);
}

/* ---------------------------------------------------------------- making it */
/* What a lane of this kind needs of a staging: its own slots, unless it packs into the peer's; pinned bytes of them. */
static bool needs_device(const lane *l) { return l->kind != KVF_LANE_IPC || !l->sends; }
static bool needs_host(const lane *l) { return l->kind == KVF_LANE_STREAM; }

/* The one that lacks least comes first; what it lacks is taken now. */
static bool staging_take(lane *l) {
    lane_pool *p = l->pool;
    size_t pages = (size_t)p->slots * p->slot_pages, bytes = p->slots * p->slot_bytes;
    pthread_mutex_lock(&p->lock);
    lane_staging **best = &p->idle;
    for (lane_staging **at = &p->idle; *at; at = &(*at)->next) {
        bool fits = (!needs_device(l) || (*at)->device) && (!needs_host(l) || (*at)->host);
        if (!fits) continue;
        best = at;
        break;
    }
    lane_staging *s = *best;
    if (s) *best = s->next;
    pthread_mutex_unlock(&p->lock);
    if (!s) s = calloc(1, sizeof *s);
    if (!s) {
        lane_fail(l, "staging", KVF_CUDA_OUT_OF_MEMORY, false);
        return false;
    }
    l->staging = s; /* whatever becomes of it, lane_release gives it back */
    if (needs_device(l) && !s->device && !CUDA(l, "cudaMalloc", memory_take((void **)&s->device, bytes))) return false;
    if (needs_host(l) && !s->host &&
        !CUDA(l, "cudaHostAlloc", host_take((void **)&s->host, bytes, KVF_CUDA_HOST_PORTABLE)))
        return false;
    if (!s->pages &&
        !CUDA(l, "cudaHostAlloc", host_take((void **)&s->pages, pages * sizeof *s->pages, KVF_CUDA_HOST_PORTABLE)))
        return false;
    return s->crc ||
           CUDA(l, "cudaHostAlloc", host_take((void **)&s->crc, pages * sizeof *s->crc, KVF_CUDA_HOST_PORTABLE));
}

static bool streams_make(lane *l) {
    int least = 0, greatest = 0;
    if (!CUDA(l, "cudaDeviceGetStreamPriorityRange", stream_priorities(&least, &greatest))) return false;
    l->streams_made = true;
    if (!CUDA(l, "cudaStreamCreateWithPriority", stream_create(&l->stream, KVF_CUDA_STREAM_NON_BLOCKING, greatest)))
        return false;
    for (uint32_t i = 0; i < l->pool->slots; i++) {
        lane_slot_of *s = &l->slots[i];
        if (!CUDA(
                l, "cudaStreamCreateWithPriority", stream_create(&s->stream, KVF_CUDA_STREAM_NON_BLOCKING, greatest)) ||
            !CUDA(l, "cudaEventCreateWithFlags",
                event_create(&s->event, KVF_CUDA_EVENT_NO_TIMING | KVF_CUDA_EVENT_BLOCKING_SYNC)))
            return false;
    }
    return true;
}

bool lane_do_open(lane *l) {
    const lane_pool *p = l->pool;
    lane_event event = {.kind = LANE_OPENED};
    if (!CUDA(l, "cudaSetDevice", device_set((int)p->device->device)) || !staging_take(l) || !streams_make(l))
        return false;
    for (uint32_t i = 0; i < p->slots; i++) {
        l->slots[i].device = l->staging->device ? l->staging->device + i * p->slot_bytes : NULL;
        l->slots[i].view = (lane_view){.pages = l->staging->pages + (size_t)i * p->slot_pages,
            .crc = l->staging->crc + (size_t)i * p->slot_pages,
            .host = l->staging->host ? l->staging->host + i * p->slot_bytes : NULL};
    }
    if (l->kind == KVF_LANE_IPC && !l->sends) {
        kvf_cuda_ipc_handle handle;
        if (!CUDA(l, "cudaIpcGetMemHandle", ipc_export(&handle, l->staging->device))) return false;
        memcpy(event.bytes, &handle, event.len_bytes = sizeof handle);
    } else if (l->kind == KVF_LANE_NCCL && !l->sends) {
        kvf_nccl_id id;
        int result = LANE_CALL(l, "ncclGetUniqueId", p->device->nccl->id(&id));
        if (result) {
            lane_fail(l, "ncclGetUniqueId", result, true);
            return false;
        }
        memcpy(event.bytes, &id, event.len_bytes = sizeof id);
    }
    lane_tell(l, &event);
    return true;
}

/* Waits for the stream of transfers without a call that blocks. */
static bool stream_ends(lane *l) {
    for (uint32_t us = 20;; us = KVF_MIN(us * 2, NAP_US_MAX)) {
        int error = LANE_CALL(l, "cudaStreamQuery", l->pool->device->cuda->stream_query(l->stream));
        if (error != KVF_CUDA_NOT_READY) return fine(l, "cudaStreamQuery", error);
        if (!lane_look_at_comm(l) || lane_is_closing(l)) return false;
        lane_nap(us);
    }
}

/* Connections are made at the first transfer of a pair and direction: now, rather than under the first page. */
static bool warm_up(lane *l) {
    const kvf_nccl_api *nccl = l->pool->device->nccl;
    uint8_t *at = l->slots[0].device;
    int peer = l->sends ? 1 : 0;
    int result = LANE_CALL(l, "ncclGroupStart", nccl->group_begin());
    if (!result)
        result = LANE_CALL(l, "ncclSend", nccl->send(at, WARM_BYTES, KVF_NCCL_BYTES, peer, l->comm, l->stream));
    if (!result)
        result =
            LANE_CALL(l, "ncclRecv", nccl->recv(at + WARM_BYTES, WARM_BYTES, KVF_NCCL_BYTES, peer, l->comm, l->stream));
    int end = LANE_CALL(l, "ncclGroupEnd", nccl->group_end());
    return settle(l, "first transfer", result ? result : end) && stream_ends(l);
}

static bool join_nccl(lane *l) {
    const kvf_nccl_api *nccl = l->pool->device->nccl;
    kvf_nccl_config config = KVF_NCCL_CONFIG;
    kvf_nccl_id id;
    kvf_nccl_comm comm = NULL;
    memcpy(&id, l->join_bytes, sizeof id);
    config.blocking = 0;
    config.ctas_min = 1;
    config.ctas_max = 4;
    int result = LANE_CALL(l, "ncclCommInitRankConfig", nccl->init(&comm, 2, id, l->sends ? 0 : 1, &config));
    pthread_mutex_lock(&l->lock);
    l->comm = comm;
    pthread_mutex_unlock(&l->lock);
    return settle(l, "ncclCommInitRankConfig", result) && warm_up(l);
}

bool lane_do_join(lane *l) {
    if (l->kind == KVF_LANE_IPC) {
        kvf_cuda_ipc_handle handle;
        memcpy(&handle, l->join_bytes, sizeof handle);
        if (!CUDA(l, "cudaIpcOpenMemHandle", ipc_open((void **)&l->remote, handle, KVF_CUDA_IPC_LAZY_PEER)))
            return false;
    } else if (l->kind == KVF_LANE_NCCL && !join_nccl(l)) {
        return false;
    }
    lane_tell(l, &(lane_event){.kind = LANE_JOINED});
    return true;
}

/* ---------------------------------------------------------------- work */
/* On the runtime's own thread: nothing of CUDA may be called here. */
static void wake(void *self) {
    lane *l = self;
    pthread_mutex_lock(&l->lock);
    l->woken = true;
    pthread_cond_signal(&l->moved);
    pthread_mutex_unlock(&l->lock);
}

static bool ends_here(lane *l, lane_slot_of *s, kvf_cuda_stream stream) {
    return CUDA(l, "cudaEventRecord", event_record(s->event, stream)) &&
           CUDA(l, "cudaLaunchHostFunc", host_call(stream, wake, l));
}

static bool do_pack(lane *l, uint32_t slot) {
    const lane_pool *p = l->pool;
    lane_slot_of *s = &l->slots[slot];
    uint8_t *to = l->kind == KVF_LANE_IPC ? l->remote + slot * l->stride_bytes : s->device;
    lane_enter(l, "packing");
    p->device->pack(p->device->self, s->view.pages, s->view.count, to, s->view.crc, s->stream);
    (void)lane_left(l, 0);
    if (!CUDA(l, "packing", last_error())) return false;
    if (l->kind == KVF_LANE_STREAM && !CUDA(l, "cudaMemcpyAsync",
                                          copy_async(s->view.host, s->device, (size_t)s->view.count * p->page_bytes,
                                              KVF_CUDA_DEVICE_TO_HOST, s->stream)))
        return false;
    return ends_here(l, s, s->stream);
}

static bool do_land(lane *l, uint32_t slot) {
    const lane_pool *p = l->pool;
    lane_slot_of *s = &l->slots[slot];
    const lane_view *v = &s->view;
    if (l->kind == KVF_LANE_STREAM &&
        !CUDA(l, "cudaMemcpyAsync",
            copy_async(s->device, v->host, (size_t)v->count * p->page_bytes, KVF_CUDA_HOST_TO_DEVICE, s->stream)))
        return false;
    for (uint32_t i = 0, n; i < v->count; i += n) { /* runs of pages that are wanted */
        for (n = 1; i + n < v->count && (v->pages[i + n].block == UINT32_MAX) == (v->pages[i].block == UINT32_MAX);)
            n++;
        if (v->pages[i].block == UINT32_MAX) continue;
        lane_enter(l, "unpacking");
        p->device->unpack(
            p->device->self, v->pages + i, n, s->device + (size_t)i * p->page_bytes, v->crc + i, s->stream);
        (void)lane_left(l, 0);
    }
    return CUDA(l, "unpacking", last_error()) && ends_here(l, s, s->stream);
}

static bool do_post(lane *l, uint32_t slot, bool sends) {
    const kvf_nccl_api *nccl = l->pool->device->nccl;
    lane_slot_of *s = &l->slots[slot];
    size_t bytes = (size_t)s->view.count * l->pool->page_bytes;
    if (!comm_lives(l)) return false;
    int result;
    if (sends)
        result = LANE_CALL(l, "ncclSend", nccl->send(s->device, bytes, KVF_NCCL_BYTES, 1, l->comm, l->stream));
    else
        result = LANE_CALL(l, "ncclRecv", nccl->recv(s->device, bytes, KVF_NCCL_BYTES, 0, l->comm, l->stream));
    if (!settle(l, sends ? "ncclSend" : "ncclRecv", result) || !ends_here(l, s, l->stream)) return false;
    if (!sends) lane_tell(l, &(lane_event){.kind = LANE_POSTED, .slot = slot});
    return true;
}

bool lane_do_work(lane *l, uint32_t slot) {
    switch (l->slots[slot].work) {
    case LANE_PACK: return do_pack(l, slot);
    case LANE_LAND: return do_land(l, slot);
    default: return do_post(l, slot, l->slots[slot].work == LANE_SEND);
    }
}

int lane_look(lane *l, uint32_t slot) {
    return LANE_CALL(l, "cudaEventQuery", l->pool->device->cuda->event_query(l->slots[slot].event));
}

/* ---------------------------------------------------------------- the end */
void lane_drain(lane *l) {
    const kvf_cuda_api *cuda = l->pool->device->cuda;
    pthread_mutex_lock(&l->lock);
    while (l->rescuing) pthread_cond_wait(&l->moved, &l->lock);
    pthread_mutex_unlock(&l->lock);
    for (uint32_t i = 0; l->streams_made && i <= l->pool->slots; i++) {
        kvf_cuda_stream stream = i < l->pool->slots ? l->slots[i].stream : l->stream;
        int error = stream ? KVF_CUDA_NOT_READY : 0;
        while (error == KVF_CUDA_NOT_READY) {
            error = LANE_CALL(l, "cudaStreamQuery", cuda->stream_query(stream));
            if (error == KVF_CUDA_NOT_READY) lane_nap(NAP_US_MAX);
        }
        if (kvf_cuda_is_sticky(error)) lane_fail(l, "cudaStreamQuery", error, false);
    }
}

void lane_release(lane *l) {
    const kvf_cuda_api *cuda = l->pool->device->cuda;
    if (l->remote) (void)cuda->ipc_close(l->remote);
    for (uint32_t i = 0; l->streams_made && i < l->pool->slots; i++) {
        if (l->slots[i].event) (void)cuda->event_destroy(l->slots[i].event);
        if (l->slots[i].stream) (void)cuda->stream_destroy(l->slots[i].stream);
    }
    if (l->stream) (void)cuda->stream_destroy(l->stream);
    if (!l->staging) return;
    pthread_mutex_lock(&l->pool->lock);
    l->staging->next = l->pool->idle;
    l->pool->idle = l->staging;
    pthread_mutex_unlock(&l->pool->lock);
}
