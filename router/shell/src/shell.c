/* A router process: making one, its loop, its end. */
#include "cluster.h"
#include "generate.h"
#include "kvf/log.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define READ_LOOK_NS (20 * KVF_NS_PER_MS)

void kvf_router_shell_options_default(kvf_router_shell_options *o) {
    *o = (kvf_router_shell_options){.name = "router",
        .listen = "127.0.0.1:0",
        .listen_admin = "127.0.0.1:0",
        .stop_sequences_max = 16,
        .stop_sequence_bytes_max = 256,
        .message_bytes_max = 4u << 20,
        .stream_buffer_bytes = 256u << 10,
        .loops = 2,
        .workers = 2,
        .jobs_max = 1024,
        .timelines = 1000,
        .drain_ns = 30 * KVF_NS_PER_S,
        .node_answer_ns = 5 * KVF_NS_PER_S};
    kvf_router_config_defaults(&o->core);
    o->core.context_max = 0;
}

/* ------------------------------------------------------------------ the loop */

void front_shell_drain(kvf_router_shell *s) {
    kvf_router_action a;
    while (kvf_router_next(s->core, kvf_os_now_ns(), &a)) {
        switch (a.kind) {
        case KVF_ROUTER_SEND: front_nodes_send(s, a.node, a.send); break;
        case KVF_ROUTER_CLOSE: front_nodes_close(s, a.node); break;
        case KVF_ROUTER_ADMIN_ANSWER: front_query_answer(s, &a); break;
        default: front_generate_act(s, &a);
        }
    }
}

/* Requests are over, but their clients have not read all of it yet. */
static bool clients_read(const kvf_router_shell *s) {
    return s->draining && s->live == 0 && s->clients && kvf_rpc_server_calls(s->clients) > 0;
}

static void set_timer(kvf_router_shell *s) {
    kvf_time_ns at = kvf_router_deadline(s->core), now = kvf_os_now_ns();
    if (clients_read(s)) at = KVF_MIN(at, now + READ_LOOK_NS); /* nobody tells when the last one is through */
    if (at == KVF_TIME_NEVER) {
        evtimer_del(s->timer);
        return;
    }
    uint64_t left_us = at > now ? (at - now + KVF_NS_PER_US - 1) / KVF_NS_PER_US : 0;
    struct timeval tv = {.tv_sec = (time_t)(left_us / 1000000), .tv_usec = (suseconds_t)(left_us % 1000000)};
    front_timer_set(s->timer, &tv);
}

static kvf_status set_health(kvf_rpc_server *server, bool serving) {
    kvf_status status = KVF_OK;
    static const char *const names[] = {"", "readiness", "kvferry.v1.Inference"};
    for (size_t i = 0; i < KVF_COUNT_OF(names) && status == KVF_OK; i++)
        status = kvf_rpc_health_set(server, names[i], serving ? KVF_RPC_HEALTH_SERVING : KVF_RPC_HEALTH_NOT_SERVING);
    return status; /* names are made at start: only then memory may be missing */
}

kvf_rpc_credentials front_listener_credentials(kvf_tls_store *tls) {
    if (!tls) return (kvf_rpc_credentials){.mode = KVF_RPC_INSECURE};
    const kvf_tls_set *set = kvf_tls_store_set(tls);
    kvf_rpc_credentials c = {.mode = KVF_RPC_TLS, .files = tls, .demand_certificates = set->ca != NULL};
    kvf_tls_set_release(set);
    return c;
}

/* One role does the other's work, unless that is forbidden. */
static bool can_serve(const kvf_router_shell *s) {
    uint32_t decode = kvf_router_ready_nodes(s->core, KVF_ROLE_DECODE);
    uint32_t prefill = kvf_router_ready_nodes(s->core, KVF_ROLE_PREFILL);
    return s->config.strict ? decode > 0 && prefill > 0 : decode + prefill > 0;
}

static void update_health(kvf_router_shell *s) {
    atomic_store(&s->ready,
        kvf_router_ready_nodes(s->core, KVF_ROLE_DECODE) + kvf_router_ready_nodes(s->core, KVF_ROLE_PREFILL));
    bool serving = !s->draining && can_serve(s);
    if (serving == atomic_load(&s->serving)) return;
    atomic_store(&s->serving, serving);
    set_health(s->clients, serving);
    set_health(s->admin, serving);
    kvf_log(serving ? KVF_LOG_INFO : KVF_LOG_WARN, "router", "%s", serving ? "serving" : "not serving");
    if (s->options.on_serving) s->options.on_serving(s->options.self, serving);
}

static bool over(const kvf_router_shell *s) { return s->leaving || (s->draining && s->live == 0 && !clients_read(s)); }

/* Pairs that were set aside since the last look. */
static void log_ejections(kvf_router_shell *s) {
    kvf_router_counters count;
    kvf_router_count(s->core, &count);
    if (count.ejections == s->ejections) return;
    s->ejections = count.ejections;
    kvf_time_ns now = kvf_os_now_ns();
    for (uint32_t p = 0; p < s->config.nodes_max; p++)
        for (uint32_t d = 0; d < s->config.nodes_max; d++) {
            kvf_router_pair pair;
            if (kvf_router_pair_at(s->core, now, p, d, &pair) && pair.ejected)
                kvf_log(KVF_LOG_WARN, "router", "no pages from %s to %s for now: %s (%" PRIu32 " in a row)",
                    s->links[p].id, s->links[d].id, pair.why, pair.failures);
        }
}

void front_shell_pump(kvf_router_shell *s) {
    front_shell_drain(s);
    while (s->dirty) {
        front_generate_flush(s);
        front_shell_drain(s); /* a client that does not read has been cancelled */
    }
    log_ejections(s);
    update_health(s);
    set_timer(s);
    if (over(s)) event_base_loopbreak(s->base);
}

static void on_timer(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    kvf_router_shell *s = self;
    kvf_router_on_time(s->core, kvf_os_now_ns());
    front_shell_pump(s);
}

/* Everything that waits is given to the core before clients are told: tokens of one stream that came together leave
 * together. */
static void on_inbox(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    kvf_router_shell *s = self;
    for (inbox_item *item = front_inbox_take_all(&s->inbox); item;) {
        inbox_item *next = item->next;
        item->run(item, s);
        front_shell_drain(s);
        item = next;
    }
    front_shell_pump(s);
}

/* ------------------------------------------------------------------ the end */

static void on_drained(evutil_socket_t fd, short what, void *self) {
    (void)fd;
    (void)what;
    kvf_router_shell *s = self;
    kvf_log(KVF_LOG_WARN, "router",
        "%" PRIu32 " requests have not ended, %" PRIu64 " calls are not read within the time to drain: they are ended",
        s->live, kvf_rpc_server_calls(s->clients));
    front_generate_fail_all(s, KVF_RPC_UNAVAILABLE, "this router is shutting down");
    s->leaving = true;
    front_shell_pump(s);
}

static void run_stop(inbox_item *item, void *shell) {
    kvf_router_shell *s = shell;
    free(item);
    if (s->stops++ > 0) {
        kvf_log(KVF_LOG_WARN, "router", "told to stop twice: leaving now");
        front_generate_fail_all(s, KVF_RPC_UNAVAILABLE, "this router is shutting down");
        s->leaving = true;
        return;
    }
    kvf_log(KVF_LOG_INFO, "router", "draining: %" PRIu32 " requests may go on for at most %" PRIu64 " ms", s->live,
        (uint64_t)(s->options.drain_ns / KVF_NS_PER_MS));
    s->draining = true;
    struct timeval tv = {.tv_sec = (time_t)(s->options.drain_ns / KVF_NS_PER_S),
        .tv_usec = (suseconds_t)(s->options.drain_ns % KVF_NS_PER_S / 1000)};
    front_timer_set(s->drain_event, &tv);
}

static void drop_stop(inbox_item *item) { free(item); }

void kvf_router_shell_stop(kvf_router_shell *s) {
    inbox_item *item = calloc(1, sizeof *item);
    if (!item) return;
    *item = (inbox_item){.run = run_stop, .drop = drop_stop};
    front_inbox_put(&s->inbox, item);
}

kvf_status kvf_router_shell_run(kvf_router_shell *s) {
    front_shell_pump(s);
    while (!over(s))
        if (event_base_loop(s->base, EVLOOP_NO_EXIT_ON_EMPTY) != 0 && !over(s)) return KVF_ERR_INTERNAL;
    return KVF_OK;
}

/* ------------------------------------------------------------------ making one */

static kvf_status open_model(kvf_router_shell *s, kvf_error *err) {
    if (!s->options.model_path) return kvf_fail(err, KVF_ERR_INVALID, "model: a file is needed");
    kvf_status status = front_model_load(s->options.model_path, s->options.model_id, &s->model, err);
    if (status != KVF_OK) return status;
    kvf_router_config *c = &s->config;
    *c = s->options.core;
    snprintf(c->name, sizeof c->name, "%s", s->name);
    do c->epoch = kvf_os_random_u64();
    while (c->epoch == 0);
    c->context_max = c->context_max ? KVF_MIN(c->context_max, s->model.context_max) : s->model.context_max;
    c->model_known = true;
    memcpy(c->weights_hash, s->model.weights_hash, sizeof c->weights_hash);
    memcpy(c->tokenizer_hash, kvf_tokenizer_get_info(s->model.tokenizer)->hash, sizeof c->tokenizer_hash);
    s->limits = (front_limits){c->context_max, s->options.stop_sequences_max, s->options.stop_sequence_bytes_max};
    if (s->limits.stop_sequences_max > KVF_STOP_STRINGS_MAX || s->limits.stop_sequence_bytes_max > KVF_STOP_BYTES_MAX)
        return kvf_fail(err, KVF_ERR_INVALID, "stop sequences: at most %d of at most %d bytes", KVF_STOP_STRINGS_MAX,
            KVF_STOP_BYTES_MAX);
    return kvf_router_config_check(c, err);
}

static kvf_status make_core(kvf_router_shell *s, kvf_error *err) {
    s->core_bytes = kvf_router_size(&s->config);
    s->core_memory =
        mmap(NULL, s->core_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->core_memory == MAP_FAILED) {
        s->core_memory = NULL;
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot map %zu bytes for the router core", s->core_bytes);
    }
    s->core = kvf_router_init(s->core_memory, &s->config);
    s->slots_count = s->config.requests_max + 1; /* one is free while the core decides about a new request */
    s->slots = calloc(s->slots_count, sizeof *s->slots);
    s->free_slots = calloc(s->slots_count, sizeof *s->free_slots);
    if (!s->slots || !s->free_slots) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < s->slots_count; i++) s->free_slots[s->free_count++] = s->slots_count - 1 - i;
    return KVF_OK;
}

static kvf_status make_loop(kvf_router_shell *s, kvf_error *err) {
    s->base = event_base_new();
    if (!s->base || front_inbox_init(&s->inbox) != KVF_OK)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot make an event loop");
    s->inbox_event = event_new(s->base, s->inbox.fd, EV_READ | EV_PERSIST, on_inbox, s);
    s->timer = evtimer_new(s->base, on_timer, s);
    s->drain_event = evtimer_new(s->base, on_drained, s);
    if (!s->inbox_event || !s->timer || !s->drain_event) return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot make events");
    if (event_add(s->inbox_event, NULL) != 0) return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot make events");
    return KVF_OK;
}

static kvf_status make_threads(kvf_router_shell *s, kvf_error *err) {
    const kvf_router_shell_options *o = &s->options;
    if (front_timelines_init(&s->lines, o->timelines) != KVF_OK ||
        front_workers_create(KVF_MAX(o->workers, 1u), KVF_MAX(o->jobs_max, 1u), &s->workers) != KVF_OK)
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "cannot start the tokenising threads");
    kvf_rpc_runtime_opts ro = {.loops = o->loops};
    kvf_status status = kvf_rpc_runtime_create(&ro, &s->rpc);
    return status == KVF_OK ? status : kvf_fail(err, status, "cannot start the gRPC runtime");
}

static kvf_status listen_all(kvf_router_shell *s, kvf_error *err) {
    kvf_status status = front_inference_start(s, err);
    if (status == KVF_OK) status = front_cluster_start(s, err);
    if (status != KVF_OK) return status;
    kvf_rpc_server *servers[] = {s->clients, s->admin};
    for (size_t i = 0; i < KVF_COUNT_OF(servers) && status == KVF_OK; i++) {
        status = kvf_rpc_health_set(servers[i], "liveness", KVF_RPC_HEALTH_SERVING);
        if (status == KVF_OK) status = set_health(servers[i], false);
    }
    return status == KVF_OK ? status : kvf_fail(err, status, "no memory for the health service");
}

kvf_status kvf_router_shell_create(const kvf_router_shell_options *options, kvf_router_shell **out, kvf_error *err) {
    kvf_router_shell *s = calloc(1, sizeof *s);
    if (!s) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    s->options = *options;
    s->inbox.fd = -1;
    snprintf(s->name, sizeof s->name, "%s", options->name);
    kvf_status status = open_model(s, err);
    if (status == KVF_OK) status = make_loop(s, err);
    if (status == KVF_OK) status = make_core(s, err);
    if (status == KVF_OK) status = make_threads(s, err);
    if (status == KVF_OK) status = listen_all(s, err);
    if (status == KVF_OK) status = front_nodes_start(s, err);
    /* What was borrowed until here must not be used later. */
    s->options.nodes = NULL;
    s->options.nodes_count = 0;
    s->options.name = s->options.model_path = s->options.model_id = s->options.listen = s->options.listen_admin = NULL;
    if (status != KVF_OK) {
        kvf_router_shell_destroy(s);
        return status;
    }
    kvf_log(KVF_LOG_INFO, "router",
        "%s epoch %016" PRIx64 ": model %s, context %" PRIu32 ", clients at %s, admin at %s", s->name, s->config.epoch,
        s->model.id, s->limits.context_max, kvf_router_shell_address(s), kvf_router_shell_admin_address(s));
    *out = s;
    return KVF_OK;
}

uint32_t kvf_router_shell_ready(const kvf_router_shell *s) { return atomic_load(&s->ready); }

const char *kvf_router_shell_address(const kvf_router_shell *s) { return kvf_rpc_server_address(s->clients, 0); }
const char *kvf_router_shell_admin_address(const kvf_router_shell *s) { return kvf_rpc_server_address(s->admin, 0); }
bool kvf_router_shell_serving(const kvf_router_shell *s) { return atomic_load(&s->serving); }

uint32_t kvf_router_shell_timelines(kvf_router_shell *s, kvf_router_timeline *out, uint32_t max) {
    return front_timelines_copy(&s->lines, out, max);
}

/* Every call that is known gets its answer. */
static void end_calls(kvf_router_shell *s) {
    s->draining = true;
    if (s->workers) front_workers_stop(s->workers);
    if (!s->core || !s->clients) return;
    front_generate_fail_all(s, KVF_RPC_UNAVAILABLE, "this router is shutting down");
    for (inbox_item *item = front_inbox_take_all(&s->inbox); item;) {
        inbox_item *next = item->next;
        item->run(item, s);
        front_shell_drain(s);
        item = next;
    }
    front_shell_drain(s);
}

/* Calls end first, then who could still put something into the inbox, then the inbox. */
void kvf_router_shell_destroy(kvf_router_shell *s) {
    if (!s) return;
    end_calls(s);
    front_cluster_stop(s);
    front_nodes_stop(s);
    if (s->clients) kvf_rpc_server_shutdown(s->clients, 1000); /* for what was said to them last */
    if (s->admin) kvf_rpc_server_shutdown(s->admin, 1000);
    front_workers_destroy(s->workers);
    if (s->rpc) kvf_rpc_runtime_destroy(s->rpc);
    front_inbox_fini(&s->inbox);
    front_timelines_fini(&s->lines);
    struct event *events[] = {s->inbox_event, s->timer, s->drain_event};
    for (size_t i = 0; i < KVF_COUNT_OF(events); i++)
        if (events[i]) event_free(events[i]);
    if (s->base) event_base_free(s->base);
    if (s->core_memory) munmap(s->core_memory, s->core_bytes);
    free(s->slots);
    free(s->free_slots);
    front_scratch_fini(&s->scratch);
    free(s->send_arena.base);
    front_model_free(&s->model);
    free(s);
}
