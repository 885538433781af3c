#include "worker_int.h"
#include "kvf/cuda_backend.h"
#include "kvf/log.h"
#include "kvf/tokenizer.h"
#include "kvf/sampler.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define SCORE_ROWS 16 /* the core asks for no more rows of logits of a scored prompt in one step */

void kvf_worker_options_default(kvf_worker_options *o) {
    *o = (kvf_worker_options){.name = "node",
        .role = KVF_ROLE_DECODE,
        .backend = "cpu",
        .precision = KVF_PRECISION_FAST,
        .kv_type = KVF_KV_F16,
        .kv_memory_bytes = 512ull << 20,
        .listen = "127.0.0.1:0",
        .listen_transfer = "127.0.0.1:0",
        .shm = true,
        .chunk_tokens = 256,
        .chunk_tokens_mixed = 64,
        .sequences_max = 64,
        .requests_max = 256,
        .queue_max = 64,
        .expected_output = 128,
        .grant_ttl_ns = 10 * KVF_NS_PER_S,
        .hold_ttl_ns = 10 * KVF_NS_PER_S,
        .router_grace_ns = 5 * KVF_NS_PER_S,
        .queue_ttl_ns = 60 * KVF_NS_PER_S,
        .heartbeat_ns = KVF_NS_PER_S / 2,
        .peer_timeout_ns = 3 * KVF_NS_PER_S,
        .status_interval_ns = 200 * KVF_NS_PER_MS,
        .stall_limit_ns = 20 * KVF_NS_PER_S,
        .drain_ns = 30 * KVF_NS_PER_S};
}

/* ------------------------------------------------------------------ the loop */

static void start_step(kvf_worker *w, const kvf_step *step) {
    w->step_id = step->id;
    w->layers_told = 0;
    compute_start(w->compute, step);
}

static void act(kvf_worker *w, const kvf_node_act *a) {
    switch (a->kind) {
    case KVF_NODE_STEP: start_step(w, &a->step); break;
    case KVF_NODE_MSG: session_send(w, a->session, &a->msg); break;
    case KVF_NODE_EXIT:
        kvf_log(KVF_LOG_WARN, "node", "a newer process has this node's name: leaving");
        w->leaving = true;
        break;
    default: links_act(w, a); break;
    }
}

static void set_timer(kvf_worker *w) {
    kvf_time_ns at = kvf_node_deadline(w->core), now = kvf_os_now_ns();
    if (at == KVF_TIME_NEVER) {
        evtimer_del(w->timer);
        return;
    }
    uint64_t left_us = at > now ? (at - now + KVF_NS_PER_US - 1) / KVF_NS_PER_US : 0;
    struct timeval tv = {.tv_sec = (time_t)(left_us / 1000000), .tv_usec = (suseconds_t)(left_us % 1000000)};
    worker_timer_set(w->timer, &tv);
}

void worker_pump(kvf_worker *w) {
    kvf_node_act a;
    while (kvf_node_next(w->core, links_have_room, w, &a)) act(w, &a);
    kvf_endpoint_flush(w->endpoint);
    set_timer(w);
    if (w->leaving || (w->stops > 0 && kvf_node_idle(w->core))) event_base_loopbreak(w->base);
}

static void on_pump(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    worker_pump(self);
}

static void on_timer(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    kvf_worker *w = self;
    kvf_node_on_time(w->core, kvf_os_now_ns());
    worker_pump(w);
}

static void on_stop(kvf_worker *w) {
    w->stops++;
    if (w->stops > 1) {
        kvf_log(KVF_LOG_WARN, "node", "told to stop twice: leaving now");
        w->leaving = true;
        return;
    }
    kvf_log(
        KVF_LOG_INFO, "node", "draining for at most %" PRIu64 " ms", (uint64_t)(w->options.drain_ns / KVF_NS_PER_MS));
    kvf_rpc_server_drain(w->control);
    kvf_node_drain(w->core, kvf_os_now_ns(), w->options.drain_ns);
}

static void on_inbox(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    kvf_worker *w = self;
    inbox_item *item;
    while ((item = kvf_mailbox_take(w->inbox))) {
        if (item->kind == INBOX_STOP)
            on_stop(w);
        else
            session_take(w, item);
        inbox_free(item);
        worker_pump(w);
    }
}

/* The engine thread has finished a layer or a step. */
void worker_device_lost(const kvf_worker *w, const char *text) {
    kvf_log(KVF_LOG_ERROR, "node", "%s: the device answers nothing any more (%s): this process ends", w->name, text);
    _exit(EXIT_FAILURE);
}

static void step_failed(const kvf_worker *w, kvf_status status) {
    const kvf_backend *b = w->backend;
    kvf_log(KVF_LOG_ERROR, "node", "an engine step failed: %s%s%s", kvf_status_text(status), b->trouble[0] ? ": " : "",
        b->trouble);
    if (b->broken) worker_device_lost(w, b->trouble);
}

static void on_engine(evutil_socket_t fd, short what, void *self) {
    (void)what;
    kvf_worker *w = self;
    uint64_t drained;
    ssize_t ignored = read(fd, &drained, sizeof drained);
    (void)ignored;
    kvf_step_result result;
    uint32_t layers = compute_layers_done(w->compute);
    if (compute_finished(w->compute, &result)) {
        if (result.status != KVF_OK) step_failed(w, result.status);
        kvf_node_on_step_done(w->core, kvf_os_now_ns(), w->step_id, &result);
    } else if (layers > w->layers_told) {
        w->layers_told = layers;
        kvf_node_on_layer(w->core, kvf_os_now_ns(), w->step_id, layers - 1);
    }
    worker_pump(w);
}

static void wake_core(void *self) {
    kvf_worker *w = self;
    uint64_t one = 1;
    ssize_t n;
    do n = write(w->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

/* ------------------------------------------------------------------ making one */

static uint32_t context_of(const kvf_worker *w) {
    uint32_t model = w->backend->spec->context_max, wanted = w->options.context_max;
    return wanted && wanted < model ? wanted : model;
}

static void fill_identity(kvf_identity *id, const kvf_worker *w, const kvf_tokenizer_info *tok) {
    const kvf_model_spec *s = w->backend->spec;
    *id = (kvf_identity){.wire_version = KVF_WIRE_VERSION,
        .block_tokens = KVF_BLOCK_TOKENS,
        .layers = s->layers,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .vocab = s->vocab,
        .page_bytes = (uint32_t)w->backend->page_bytes,
        .context_max = context_of(w),
        .layout = 1,
        .rope_dims = s->rope_dims,
        .rope_style = (uint32_t)s->rope_style};
    kvf_gguf_weights_hash(w->backend->gguf, id->weights_hash);
    memcpy(id->tokenizer_hash, tok->hash, sizeof id->tokenizer_hash);
    memcpy(&id->rope_base_bits, &s->rope_base, sizeof id->rope_base_bits);
    snprintf(id->numerics, sizeof id->numerics, "%s", w->backend->numerics);
    snprintf(id->kv_type, sizeof id->kv_type, "%s", kvf_kv_type_name(w->options.kv_type));
}

/* What there is, before the line that says what of it was chosen. */
static void say_found(const kvf_worker *w) {
    char text[1024];
    kvf_log(KVF_LOG_INFO, "node", "found %s", kvf_cuda_found(kvf_cuda_backend_api(w->backend), text, sizeof text));
}

/* Where nobody said: a device needs more rows than a processor to be busy, and is sooner done with them. */
static void settle_chunks(kvf_worker_options *o, bool on_device) {
    if (!o->chunk_tokens) o->chunk_tokens = on_device ? 2048 : 256;
    if (!o->chunk_tokens_mixed) o->chunk_tokens_mixed = on_device ? 512 : 32;
    o->chunk_tokens_mixed = KVF_MIN(o->chunk_tokens_mixed, o->chunk_tokens);
}

static kvf_backend_options backend_options(kvf_worker *w, bool on_device) {
    kvf_worker_options *o = &w->options;
    settle_chunks(o, on_device);
    return (kvf_backend_options){.model_path = o->model_path,
        .precision = o->precision,
        .kernels = o->kernels,
        .cache_folder = o->cache_folder,
        .threads = o->threads,
        .weights = o->weights,
        .cores = o->cores,
        .cores_shared = o->cores_shared,
        .kv_type = o->kv_type,
        .kv_memory_bytes = o->kv_memory_bytes,
        .tokens_max = o->chunk_tokens + o->sequences_max,
        .sequences_max = o->sequences_max,
        .logit_rows_max = o->sequences_max + SCORE_ROWS};
}

static kvf_status open_cpu(kvf_worker *w, kvf_error *err) {
    kvf_backend_options bo = backend_options(w, false);
    return kvf_backend_open_cpu(&bo, &w->backend, err);
}

static kvf_status open_cuda(kvf_worker *w, kvf_error *err) {
    const kvf_worker_options *o = &w->options;
    kvf_backend_options bo = backend_options(w, true);
    kvf_cuda_backend_options cuda = {.plugin = o->plugin, .device = o->device, .memory_share = o->device_memory_share};
    return kvf_backend_open_cuda(&bo, &cuda, &w->backend, err);
}

static kvf_status open_backend(kvf_worker *w, kvf_error *err) {
    const kvf_worker_options wanted = w->options;
    if (strcmp(wanted.backend, "cpu") == 0) return open_cpu(w, err);
    kvf_status status = open_cuda(w, err);
    if (status == KVF_OK) say_found(w);
    if (status != KVF_ERR_UNSUPPORTED || strcmp(wanted.backend, "auto") != 0) return status;
    kvf_log(KVF_LOG_INFO, "node", "backend cpu, for cuda cannot be used: %s", err->message);
    w->options = wanted;
    return open_cpu(w, err);
}

/* Block events kept for routers. Who missed more than the pool has blocks is served better by a snapshot of their names
 * than by what happened to them. */
static uint32_t events_kept(uint32_t blocks) {
    enum { LEAST = 1024, MOST = 65536 };
    uint32_t events = LEAST;
    while (events < MOST && events / 2 < blocks) events *= 2;
    return events;
}

static void configure_core(kvf_worker *w, const kvf_tokenizer_info *tok) {
    const kvf_worker_options *o = &w->options;
    const kvf_model_spec *spec = w->backend->spec;
    kvf_node_config *c = &w->config;
    *c = (kvf_node_config){.blocks = w->backend->blocks,
        .layers = spec->layers,
        .page_bytes = (uint32_t)w->backend->page_bytes,
        .context_max = context_of(w),
        .requests_max = o->requests_max,
        .sequences_max = o->sequences_max * 2,
        .step_sequences_max = o->sequences_max,
        .step_tokens_max = o->chunk_tokens + o->sequences_max,
        .chunk_tokens = o->chunk_tokens,
        .chunk_tokens_mixed = o->chunk_tokens_mixed,
        .queue_max = o->queue_max,
        .sessions_max = SESSIONS_MAX,
        .outbox_max = 4096,
        .links_max = 256,
        .sampling_bytes_max = sizeof(kvf_sampling),
        .expected_output = o->expected_output,
        .events_max = events_kept(w->backend->blocks),
        .relink_ttl_ns = KVF_MIN(KVF_NS_PER_S, o->grant_ttl_ns / 3),
        .grant_ttl_ns = o->grant_ttl_ns,
        .hold_ttl_ns = o->hold_ttl_ns,
        .router_grace_ns = o->router_grace_ns,
        .queue_ttl_ns = o->queue_ttl_ns,
        .cancel_memory_ns = 30 * KVF_NS_PER_S,
        .status_interval_ns = o->status_interval_ns};
    kvf_os_random(c->secret_seed, sizeof c->secret_seed);
    c->info = (kvf_node_info){.epoch = kvf_os_random_u64() | 1,
        .started_ns = kvf_os_wall_ns(),
        .wire_version = KVF_WIRE_VERSION,
        .role = o->role,
        .host_id = kvf_os_host_id()};
    snprintf(c->info.node, sizeof c->info.node, "%s", w->name);
    snprintf(c->info.backend, sizeof c->info.backend, "%s", w->backend->what);
    fill_identity(&c->info.identity, w, tok);
}

static kvf_status read_tokenizer(kvf_worker *w, kvf_tokenizer_info *out, kvf_error *err) {
    kvf_tokenizer *t;
    kvf_status status = kvf_tokenizer_create(w->backend->gguf, &t, err);
    if (status != KVF_OK) return status;
    *out = *kvf_tokenizer_get_info(t);
    kvf_tokenizer_destroy(t);
    w->end_ids_count = KVF_MIN(out->end_ids_count, (uint32_t)KVF_COUNT_OF(w->end_ids));
    memcpy(w->end_ids, out->end_ids, sizeof *w->end_ids * w->end_ids_count);
    return KVF_OK;
}

static kvf_status make_core(kvf_worker *w, kvf_error *err) {
    snprintf(w->config.info.address, KVF_ADDRESS_MAX, "%s", kvf_endpoint_address(w->endpoint));
    snprintf(w->config.info.local_address, KVF_ADDRESS_MAX, "%s", kvf_endpoint_local_address(w->endpoint));
    w->config.inflight_max = KVF_MAX(256u, kvf_endpoint_pages_held(w->endpoint));
    w->core_bytes = kvf_node_size(&w->config);
    w->core_memory =
        mmap(NULL, w->core_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (w->core_memory == MAP_FAILED) {
        w->core_memory = NULL;
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot map %zu bytes for the node core", w->core_bytes);
    }
    w->core = kvf_node_init(w->core_memory, &w->config, kvf_os_now_ns());
    return KVF_OK;
}

static kvf_status make_loop(kvf_worker *w, kvf_error *err) {
    w->base = event_base_new();
    w->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!w->base || w->wake_fd < 0 || kvf_mailbox_create(65536, &w->inbox) != KVF_OK)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot make an event loop");
    w->inbox_event = event_new(w->base, kvf_mailbox_fd(w->inbox), EV_READ | EV_PERSIST, on_inbox, w);
    w->wake_event = event_new(w->base, w->wake_fd, EV_READ | EV_PERSIST, on_engine, w);
    w->timer = evtimer_new(w->base, on_timer, w);
    w->pump_event = evtimer_new(w->base, on_pump, w);
    if (!w->inbox_event || !w->wake_event || !w->timer || !w->pump_event)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot make events");
    if (event_add(w->inbox_event, NULL) != 0 || event_add(w->wake_event, NULL) != 0)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot make events");
    return KVF_OK;
}

static kvf_status make_compute(kvf_worker *w, const kvf_tokenizer_info *tok, kvf_error *err) {
    const kvf_model_spec *spec = w->backend->spec;
    compute_options co = {.backend = w->backend,
        .vocab_used = KVF_MIN(spec->vocab, tok->vocab_size),
        .end_ids = w->end_ids,
        .end_ids_count = w->end_ids_count,
        .rows_max = w->options.sequences_max + SCORE_ROWS,
        .samples_max = w->options.sequences_max * KVF_CHOICES_MAX,
        .wake = wake_core,
        .self = w,
        .hooks = w->hooks};
    kvf_status status = compute_create(&co, &w->compute);
    return status == KVF_OK ? status : kvf_fail(err, status, "cannot start the engine thread");
}

static void say_ready(const kvf_worker *w) {
    const kvf_node_config *c = &w->config;
    kvf_log(KVF_LOG_INFO, "node",
        "%s epoch %016" PRIx64 " ready: %s, %s, %u blocks of 16 tokens (%" PRIu64 " MiB), transfer %s %s", w->name,
        c->info.epoch, c->info.backend, c->info.identity.numerics, c->blocks,
        (uint64_t)c->blocks * c->page_bytes * c->layers >> 20, c->info.address, c->info.local_address);
}

kvf_status kvf_worker_create(const kvf_worker_options *options, kvf_worker **out, kvf_error *err) {
    kvf_worker *w = calloc(1, sizeof *w);
    if (!w) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    w->options = *options;
    w->wake_fd = -1;
    if (!w->options.threads) w->options.threads = kvf_os_cpu_count();
    snprintf(w->name, sizeof w->name, "%s", options->name);
    hooks_read(&w->hooks);
    kvf_tokenizer_info tok;
    kvf_status status = open_backend(w, err);
    if (status == KVF_OK) status = read_tokenizer(w, &tok, err);
    if (status == KVF_OK) status = make_loop(w, err);
    if (status == KVF_OK) configure_core(w, &tok);
    if (status == KVF_OK) status = links_create(w, &w->config.info.identity, err);
    if (status == KVF_OK) status = make_core(w, err);
    if (status == KVF_OK) status = make_compute(w, &tok, err);
    if (status == KVF_OK) status = session_server_start(w, err);
    if (status == KVF_OK && (status = progress_start(w)) != KVF_OK) kvf_fail(err, status, "cannot start a thread");
    if (status != KVF_OK) {
        kvf_worker_destroy(w);
        return status;
    }
    say_ready(w);
    *out = w;
    return KVF_OK;
}

const char *kvf_worker_control_address(const kvf_worker *w) { return kvf_rpc_server_address(w->control, 0); }

kvf_status kvf_worker_run(kvf_worker *w) {
    worker_pump(w);
    while (!w->leaving && !(w->stops > 0 && kvf_node_idle(w->core)))
        if (event_base_loop(w->base, EVLOOP_NO_EXIT_ON_EMPTY) != 0 && !w->leaving) return KVF_ERR_INTERNAL;
    return KVF_OK;
}

void kvf_worker_stop(kvf_worker *w) {
    inbox_item *item = calloc(1, sizeof *item);
    if (!item) return;
    item->kind = INBOX_STOP;
    if (kvf_mailbox_put(w->inbox, item) != KVF_OK) free(item);
}

void kvf_worker_destroy(kvf_worker *w) {
    if (!w) return;
    progress_stop(w);
    if (w->control) kvf_rpc_server_shutdown(w->control, 0);
    if (w->rpc) kvf_rpc_runtime_destroy(w->rpc);
    compute_destroy(w->compute);
    if (w->endpoint) kvf_endpoint_destroy(w->endpoint);
    if (w->inbox) {
        inbox_item *item;
        while ((item = kvf_mailbox_take(w->inbox))) {
            if (item->session) session_drop_call(item->session);
            inbox_free(item);
        }
    }
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (w->sessions[i]) session_forget(w, i);
    struct event *events[] = {w->inbox_event, w->timer, w->pump_event, w->wake_event};
    for (size_t i = 0; i < KVF_COUNT_OF(events); i++)
        if (events[i]) event_free(events[i]);
    if (w->base) event_base_free(w->base);
    kvf_mailbox_destroy(w->inbox);
    if (w->wake_fd >= 0) close(w->wake_fd);
    if (w->core_memory) munmap(w->core_memory, w->core_bytes);
    if (w->nccl_loaded) kvf_nccl_unload(&w->nccl);
    kvf_backend_destroy(w->backend);
    free(w);
}
