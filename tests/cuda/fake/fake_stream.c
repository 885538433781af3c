/* fake_stream.c - streams (one thread each), events, copies, captured graphs.
 *
 * A captured graph is the list of what was queued on the capturing streams, in the order of the calls: any order that
 * the streams' events allow would do, this is one of them. */
#include "fake_int.h"
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct capture capture;
struct kvf_cuda_graph_of { /* and of a graph_exec */
    pthread_mutex_t lock;
    uint32_t holders;
    fake_op *first, **end;
};
typedef struct kvf_cuda_graph_of graph;
struct capture {
    kvf_cuda_stream origin;
    graph *graph;
    bool spoiled;
    uint32_t streams, joined; /* other streams that take part; of them, those that the origin waits for */
};
struct kvf_cuda_stream_of {
    kvf_cuda_stream next; /* all streams */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    fake_op *first, **end;
    uint64_t queued, done;
    uint32_t holders; /* whoever made it, its thread, those that wait for it */
    bool over;
    capture *capture;
    bool joined; /* taking part in a capture: its work is waited for by the origin */
    unsigned random;
};
struct kvf_cuda_event_of {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t recorded, done;
    struct timespec at;
    uint32_t holders;
    capture *capture;
    kvf_cuda_stream stream; /* that it was recorded on, while captured */
};
static struct {
    pthread_mutex_t lock;
    kvf_cuda_stream all, null;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---------------------------------------------------------------- streams */
static void stream_let_go(kvf_cuda_stream s) {
    pthread_mutex_lock(&s->lock);
    bool last = --s->holders == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last) return;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->moved);
    free(s);
}

static void op_run(kvf_cuda_stream s, const fake_op *op, uint32_t delay_us) {
    if (delay_us && op->kind) usleep((useconds_t)(rand_r(&s->random) % delay_us));
    if (!op->kind || (op->life == fake_life() && fake_begin_operation(op->kind))) op->run(op->arg);
}

static void *stream_main(void *self) {
    kvf_cuda_stream s = self;
    fake_cuda_settings settings;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->over) pthread_cond_wait(&s->moved, &s->lock);
        fake_op *op = s->first;
        if (!op) break;
        s->first = op->next;
        if (!s->first) s->end = &s->first;
        pthread_mutex_unlock(&s->lock);
        fake_cuda_get(&settings);
        op_run(s, op, settings.delay_us);
        if (op->drop) op->drop(op->arg);
        free(op);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->moved);
    }
    pthread_mutex_unlock(&s->lock);
    stream_let_go(s);
    return NULL;
}

static kvf_cuda_stream stream_new(void) {
    static unsigned serial;
    kvf_cuda_stream s = calloc(1, sizeof *s);
    pthread_t thread;
    if (!s) abort();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    s->end = &s->first;
    s->holders = 2;
    s->random = ++serial;
    if (pthread_create(&thread, NULL, stream_main, s)) abort();
    pthread_detach(thread);
    return s;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    FAKE_ENTER();
    *least = 0;
    *greatest = -5;
    return 0;
}

int cudaStreamCreateWithPriority(kvf_cuda_stream *out, unsigned flags, int priority) {
    FAKE_ENTER();
    if (flags > KVF_CUDA_STREAM_NON_BLOCKING) return fake_answer(KVF_CUDA_INVALID_VALUE);
    (void)priority;
    pthread_mutex_lock(&streams.lock);
    kvf_cuda_stream s = stream_new();
    s->next = streams.all;
    streams.all = s;
    pthread_mutex_unlock(&streams.lock);
    *out = s;
    FAKE_COUNT(streams, 1);
    return 0;
}

/* A hold on the stream, or on the default one; NULL: no such stream. */
static kvf_cuda_stream stream_hold(kvf_cuda_stream wanted) {
    pthread_mutex_lock(&streams.lock);
    kvf_cuda_stream s = streams.all;
    if (!wanted && !streams.null) streams.null = stream_new();
    if (!wanted)
        s = streams.null;
    else
        while (s && s != wanted) s = s->next;
    if (s) {
        pthread_mutex_lock(&s->lock);
        s->holders++;
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&streams.lock);
    return s;
}

int cudaStreamDestroy(kvf_cuda_stream stream) {
    FAKE_ENTER_TO_GIVE();
    pthread_mutex_lock(&streams.lock);
    kvf_cuda_stream *link = &streams.all;
    while (*link && *link != stream) link = &(*link)->next;
    bool found = *link != NULL;
    if (found) *link = stream->next;
    pthread_mutex_unlock(&streams.lock);
    if (!found) return fake_answer(KVF_CUDA_INVALID_HANDLE);
    pthread_mutex_lock(&stream->lock);
    stream->over = true; /* what is queued is still done */
    pthread_cond_broadcast(&stream->moved);
    pthread_mutex_unlock(&stream->lock);
    stream_let_go(stream);
    FAKE_COUNT(streams, -1u);
    return fault_;
}

static void stream_wait_all(kvf_cuda_stream s) {
    pthread_mutex_lock(&s->lock);
    uint64_t until = s->queued;
    while (s->done < until) pthread_cond_wait(&s->moved, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void fake_wait_device(void) {
    enum { MANY = 256 };
    kvf_cuda_stream held[MANY];
    uint32_t count = 0;
    pthread_mutex_lock(&streams.lock);
    for (kvf_cuda_stream s = streams.all; s && count < MANY - 1; s = s->next) held[count++] = s;
    if (streams.null) held[count++] = streams.null;
    for (uint32_t i = 0; i < count; i++) {
        pthread_mutex_lock(&held[i]->lock);
        held[i]->holders++;
        pthread_mutex_unlock(&held[i]->lock);
    }
    pthread_mutex_unlock(&streams.lock);
    for (uint32_t i = 0; i < count; i++) {
        stream_wait_all(held[i]);
        stream_let_go(held[i]);
    }
}

/* A stream that captures must not be looked at: the capture is spoiled. */
static int spoil_capture(kvf_cuda_stream s) {
    if (!s->capture) return 0;
    s->capture->spoiled = true;
    return KVF_CUDA_CAPTURE_UNSUPPORTED;
}

int cudaStreamSynchronize(kvf_cuda_stream stream) {
    FAKE_ENTER();
    kvf_cuda_stream s = stream_hold(stream);
    if (!s) return fake_answer(KVF_CUDA_INVALID_HANDLE);
    int error = spoil_capture(s);
    if (!error) stream_wait_all(s);
    stream_let_go(s);
    if (error) return fake_answer(error);
    FAKE_ENTER();
    return 0;
}

int cudaStreamQuery(kvf_cuda_stream stream) {
    FAKE_ENTER();
    kvf_cuda_stream s = stream_hold(stream);
    if (!s) return fake_answer(KVF_CUDA_INVALID_HANDLE);
    int error = spoil_capture(s);
    if (!error) {
        pthread_mutex_lock(&s->lock);
        if (s->done < s->queued) error = KVF_CUDA_NOT_READY;
        pthread_mutex_unlock(&s->lock);
    }
    stream_let_go(s);
    return error == KVF_CUDA_NOT_READY ? error : fake_answer(error);
}

static void op_append(fake_op ***end, fake_op *op) {
    **end = op;
    *end = &op->next;
}

int fake_queue(kvf_cuda_stream stream, const char *kind, void (*run)(void *arg), void (*drop)(void *arg), void *arg) {
    kvf_cuda_stream s = stream_hold(stream);
    fake_op *op = s ? calloc(1, sizeof *op) : NULL;
    if (!op) {
        if (s) stream_let_go(s);
        if (drop) drop(arg);
        return fake_answer(KVF_CUDA_INVALID_HANDLE);
    }
    *op = (fake_op){.kind = kind, .life = fake_life(), .run = run, .drop = drop, .arg = arg};
    if (s->capture) {
        op_append(&s->capture->graph->end, op);
        if (s != s->capture->origin && s->joined) {
            s->joined = false;
            s->capture->joined--;
        }
    } else {
        pthread_mutex_lock(&s->lock);
        op_append(&s->end, op);
        s->queued++;
        pthread_cond_broadcast(&s->moved);
        pthread_mutex_unlock(&s->lock);
    }
    stream_let_go(s);
    return 0;
}

int fake_cuda_enqueue(kvf_cuda_stream stream, void (*run)(void *arg), void (*drop)(void *arg), void *arg) {
    int fault = fake_enter("cudaLaunchKernel");
    if (fault) {
        if (drop) drop(arg);
        return fault;
    }
    return fake_queue(stream, "kernel", run, drop, arg);
}

/* ---------------------------------------------------------------- events */
typedef struct {
    kvf_cuda_event event;
    uint64_t turn;
} event_turn;

static void event_let_go(kvf_cuda_event e) {
    pthread_mutex_lock(&e->lock);
    bool last = --e->holders == 0;
    pthread_mutex_unlock(&e->lock);
    if (!last) return;
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->moved);
    free(e);
}
static void turn_drop(void *arg) {
    event_turn *t = arg;
    event_let_go(t->event);
    free(t);
}
static void turn_set(void *arg) {
    event_turn *t = arg;
    pthread_mutex_lock(&t->event->lock);
    t->event->done = KVF_MAX(t->event->done, t->turn);
    clock_gettime(CLOCK_MONOTONIC, &t->event->at);
    pthread_cond_broadcast(&t->event->moved);
    pthread_mutex_unlock(&t->event->lock);
}
static void turn_wait(void *arg) {
    event_turn *t = arg;
    pthread_mutex_lock(&t->event->lock);
    while (t->event->done < t->turn) pthread_cond_wait(&t->event->moved, &t->event->lock);
    pthread_mutex_unlock(&t->event->lock);
}
static event_turn *turn_new(kvf_cuda_event e, bool record) {
    event_turn *t = calloc(1, sizeof *t);
    if (!t) abort();
    pthread_mutex_lock(&e->lock);
    e->holders++;
    if (record) e->recorded++;
    *t = (event_turn){e, e->recorded};
    pthread_mutex_unlock(&e->lock);
    return t;
}

int cudaEventCreateWithFlags(kvf_cuda_event *out, unsigned flags) {
    FAKE_ENTER();
    if (flags > 7) return fake_answer(KVF_CUDA_INVALID_VALUE);
    kvf_cuda_event e = calloc(1, sizeof *e);
    if (!e) abort();
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->moved, NULL);
    e->holders = 1;
    *out = e;
    FAKE_COUNT(events, 1);
    return 0;
}
int cudaEventDestroy(kvf_cuda_event event) {
    FAKE_ENTER_TO_GIVE();
    event_let_go(event);
    FAKE_COUNT(events, -1u);
    return fault_;
}
int cudaEventRecord(kvf_cuda_event event, kvf_cuda_stream stream) {
    FAKE_ENTER();
    kvf_cuda_stream s = stream_hold(stream);
    if (!s) return fake_answer(KVF_CUDA_INVALID_HANDLE);
    event->capture = s->capture;
    event->stream = s->capture ? s : NULL;
    stream_let_go(s);
    if (event->capture) return 0; /* the graph's list is in order already */
    return fake_queue(stream, NULL, turn_set, turn_drop, turn_new(event, true));
}
int cudaStreamWaitEvent(kvf_cuda_stream stream, kvf_cuda_event event, unsigned flags) {
    FAKE_ENTER();
    (void)flags;
    kvf_cuda_stream s = stream_hold(stream);
    if (!s) return fake_answer(KVF_CUDA_INVALID_HANDLE);
    int error = 0;
    if (event->capture && !s->capture) { /* this stream takes part from now on */
        s->capture = event->capture;
        s->joined = false;
        s->capture->streams++;
    } else if (event->capture && s == s->capture->origin && event->stream != s && !event->stream->joined) {
        event->stream->joined = true;
        s->capture->joined++;
    } else if (!event->capture && s->capture) {
        s->capture->spoiled = true;
        error = KVF_CUDA_CAPTURE_ISOLATION;
    } else if (!event->capture) {
        error = fake_queue(stream, NULL, turn_wait, turn_drop, turn_new(event, false));
    }
    stream_let_go(s);
    return fake_answer(error);
}
int cudaEventQuery(kvf_cuda_event event) {
    FAKE_ENTER();
    pthread_mutex_lock(&event->lock);
    bool done = event->done >= event->recorded;
    pthread_mutex_unlock(&event->lock);
    return done ? 0 : KVF_CUDA_NOT_READY;
}
int cudaEventSynchronize(kvf_cuda_event event) {
    FAKE_ENTER();
    event_turn *t = turn_new(event, false);
    turn_wait(t);
    turn_drop(t);
    FAKE_ENTER();
    return 0;
}
int cudaEventElapsedTime(float *ms, kvf_cuda_event from, kvf_cuda_event to) {
    FAKE_ENTER();
    kvf_cuda_event both[2] = {from, to};
    double at[2] = {0};
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&both[i]->lock);
        bool done = both[i]->recorded && both[i]->done >= both[i]->recorded;
        at[i] = (double)both[i]->at.tv_sec * 1e3 + (double)both[i]->at.tv_nsec * 1e-6;
        pthread_mutex_unlock(&both[i]->lock);
        if (!done) return KVF_CUDA_NOT_READY;
    }
    *ms = (float)(at[1] - at[0]);
    return 0;
}

/* ---------------------------------------------------------------- copies */
typedef struct {
    void *to;
    const void *from;
    size_t len_bytes;
    int value;
} move;
static void move_run(void *arg) {
    const move *m = arg;
    if (m->from)
        memmove(m->to, m->from, m->len_bytes);
    else
        memset(m->to, m->value, m->len_bytes);
}
static int move_queue(kvf_cuda_stream stream, move m) {
    move *copy = malloc(sizeof *copy);
    if (!copy) abort();
    *copy = m;
    return fake_queue(stream, "copy", move_run, free, copy);
}
int cudaMemcpyAsync(void *to, const void *from, size_t len_bytes, int kind, kvf_cuda_stream stream) {
    FAKE_ENTER();
    bool to_device = kind == KVF_CUDA_HOST_TO_DEVICE || kind == KVF_CUDA_DEVICE_TO_DEVICE;
    bool from_device = kind == KVF_CUDA_DEVICE_TO_HOST || kind == KVF_CUDA_DEVICE_TO_DEVICE;
    if (len_bytes == 0) return 0;
    if (kind < 0 || kind > KVF_CUDA_DEVICE_TO_DEVICE || fake_is_device(to, to_device ? len_bytes : 1) != to_device ||
        fake_is_device(from, from_device ? len_bytes : 1) != from_device)
        return fake_answer(KVF_CUDA_INVALID_VALUE);
    return move_queue(stream, (move){to, from, len_bytes, 0});
}
int cudaMemsetAsync(void *to, int value, size_t len_bytes, kvf_cuda_stream stream) {
    FAKE_ENTER();
    if (len_bytes == 0) return 0;
    if (!fake_is_device(to, len_bytes)) return fake_answer(KVF_CUDA_INVALID_VALUE);
    return move_queue(stream, (move){to, NULL, len_bytes, value});
}
int cudaMemcpy(void *to, const void *from, size_t len_bytes, int kind) {
    int error = cudaMemcpyAsync(to, from, len_bytes, kind, NULL);
    return error ? error : cudaStreamSynchronize(NULL);
}

typedef struct {
    kvf_cuda_host_fn fn;
    void *self;
} host_call;
static void host_call_run(void *arg) {
    const host_call *c = arg;
    c->fn(c->self);
}
int cudaLaunchHostFunc(kvf_cuda_stream stream, kvf_cuda_host_fn fn, void *self) {
    FAKE_ENTER();
    host_call *c = malloc(sizeof *c);
    if (!c) abort();
    *c = (host_call){fn, self};
    return fake_queue(stream, "host", host_call_run, free, c);
}

/* ---------------------------------------------------------------- graphs */
static void graph_let_go(graph *g) {
    pthread_mutex_lock(&g->lock);
    bool last = --g->holders == 0;
    pthread_mutex_unlock(&g->lock);
    if (!last) return;
    for (fake_op *op = g->first, *next; op; op = next) {
        next = op->next;
        if (op->drop) op->drop(op->arg);
        free(op);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
    FAKE_COUNT(graphs, -1u);
}
static void graph_hold(graph *g) {
    pthread_mutex_lock(&g->lock);
    g->holders++;
    pthread_mutex_unlock(&g->lock);
}
static void graph_run(void *arg) {
    const graph *g = arg;
    for (const fake_op *op = g->first; op; op = op->next)
        if (!op->kind || fake_begin_operation(op->kind)) op->run(op->arg);
}
static void graph_drop(void *arg) { graph_let_go(arg); }

int cudaStreamBeginCapture(kvf_cuda_stream stream, int mode) {
    FAKE_ENTER();
    kvf_cuda_stream s = stream ? stream_hold(stream) : NULL; /* the default stream cannot */
    if (!s) return fake_answer(KVF_CUDA_CAPTURE_UNSUPPORTED);
    if (mode < 0 || mode > 2 || s->capture) {
        stream_let_go(s);
        return fake_answer(KVF_CUDA_INVALID_VALUE);
    }
    capture *c = calloc(1, sizeof *c);
    graph *g = calloc(1, sizeof *g);
    if (!c || !g) abort();
    pthread_mutex_init(&g->lock, NULL);
    g->holders = 1;
    g->end = &g->first;
    *c = (capture){.origin = s, .graph = g};
    s->capture = c;
    stream_let_go(s);
    FAKE_COUNT(graphs, 1);
    return 0;
}

int cudaStreamEndCapture(kvf_cuda_stream stream, kvf_cuda_graph *out) {
    FAKE_ENTER();
    kvf_cuda_stream s = stream_hold(stream);
    capture *c = s ? s->capture : NULL;
    if (s) stream_let_go(s);
    if (!c || c->origin != s) return fake_answer(KVF_CUDA_INVALID_VALUE);
    int error = c->spoiled ? KVF_CUDA_CAPTURE_INVALIDATED : c->joined < c->streams ? KVF_CUDA_CAPTURE_UNJOINED : 0;
    pthread_mutex_lock(&streams.lock);
    for (kvf_cuda_stream one = streams.all; one; one = one->next)
        if (one->capture == c) one->capture = NULL;
    pthread_mutex_unlock(&streams.lock);
    if (error)
        graph_let_go(c->graph);
    else
        *out = c->graph;
    free(c);
    return fake_answer(error);
}
int cudaGraphInstantiateWithFlags(kvf_cuda_graph_exec *out, kvf_cuda_graph g, unsigned long long flags) {
    FAKE_ENTER();
    (void)flags;
    graph_hold(g);
    *out = (kvf_cuda_graph_exec)(void *)g;
    return 0;
}
int cudaGraphLaunch(kvf_cuda_graph_exec exec, kvf_cuda_stream stream) {
    FAKE_ENTER();
    graph *g = (graph *)(void *)exec;
    graph_hold(g);
    return fake_queue(stream, NULL, graph_run, graph_drop, g);
}
int cudaGraphDestroy(kvf_cuda_graph g) {
    FAKE_ENTER_TO_GIVE();
    graph_let_go(g);
    return fault_;
}
int cudaGraphExecDestroy(kvf_cuda_graph_exec exec) {
    FAKE_ENTER_TO_GIVE();
    graph_let_go((graph *)(void *)exec);
    return fault_;
}
