/* worker_int.h - what the parts of a node process share. Everything but `inbox` and `progress` belongs to the core
 * thread. */
#ifndef KVF_WORKER_INT_H
#define KVF_WORKER_INT_H
#include "compute.h"
#include "drops.h"
#include "kvf/endpoint.h"
#include "kvf/node.h"
#include "kvf/os.h"
#include "kvf/rpc.h"
#include "kvf/worker.h"
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>

#define SESSIONS_MAX 16
#define NO_SLOT UINT32_MAX

/* One router's stream. Made by a gRPC loop; the core thread gives it a slot when its first message is taken from the
 * inbox. */
typedef struct {
    kvf_worker *worker;
    kvf_rpc_call *call; /* our reference; core thread; NULL: the stream is over */
    uint32_t slot; /* core thread; NO_SLOT: none yet or no more */
    atomic_int refs; /* the stream's and one per inbox message */
    struct inbox_item *_Atomic closed_item; /* says that the stream is over: made with it, or it might not be said */
} session;

typedef enum { INBOX_MESSAGE, INBOX_CLOSED, INBOX_STOP } inbox_kind;
typedef struct inbox_item {
    inbox_kind kind;
    session *session;
    kvf_rmsg message;
    void *arena; /* what message points into; freed with it */
} inbox_item;

struct kvf_worker {
    kvf_worker_options options;
    char name[KVF_NAME_MAX];
    kvf_backend *backend;
    kvf_page_device device; /* where pages lie in a device's memory */
    kvf_nccl_api nccl;
    bool nccl_loaded;
    compute *compute;
    void *core_memory;
    size_t core_bytes;
    kvf_node *core;
    kvf_node_config config;
    struct event_base *base;
    struct event *inbox_event, *timer, *pump_event, *wake_event;
    kvf_mailbox *inbox;
    int wake_fd; /* eventfd: the engine thread has news */
    kvf_endpoint *endpoint;
    drops drops;
    kvf_rpc_runtime *rpc;
    kvf_rpc_server *control;
    session *sessions[SESSIONS_MAX];
    uint32_t end_ids[64], end_ids_count;
    uint64_t step_id;
    uint32_t layers_told;
    uint32_t stops;
    bool leaving;
    hooks hooks; /* constant */
    struct {
        struct event *beat; /* core thread */
        _Atomic kvf_time_ns core_ns; /* when the core thread last ran its timer */
        atomic_bool stalled;
        bool running, stop; /* stop: under lock */
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t changed;
    } progress;
};

/* A timer that finds no memory fires at once: early is harmless, never is not. */
static inline void worker_timer_set(struct event *timer, const struct timeval *tv) {
    if (evtimer_add(timer, tv) != 0) event_active(timer, EV_TIMEOUT, 1);
}
void worker_pump(kvf_worker *w);
/* session.c */
kvf_status session_server_start(kvf_worker *w, kvf_error *err);
void session_send(kvf_worker *w, uint32_t slot, const kvf_nmsg *m);
void session_take(kvf_worker *w, inbox_item *item); /* an inbox item of kind MESSAGE or CLOSED */
void inbox_free(inbox_item *item);
void session_forget(kvf_worker *w, uint32_t slot);
void session_drop_call(session *s);
void session_close_all(kvf_worker *w, const char *text);
/* progress.c */
kvf_status progress_start(kvf_worker *w);
void progress_stop(kvf_worker *w);
bool progress_stalled(const kvf_worker *w); /* any thread */
/* links.c */
kvf_status links_create(kvf_worker *w, const kvf_identity *identity, kvf_error *err);
void links_act(kvf_worker *w, const kvf_node_act *act);
bool links_have_room(void *worker, kvf_link_id link);
/* Ends the process at once: a device that is lost lets nothing be taken apart in order, whoever started this process
 * starts another, and routers see the connections end. */
void worker_device_lost(const kvf_worker *w, const char *text);
#endif
