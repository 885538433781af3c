#include "fake_node.h"
#include "kvf/wire.h"
#include "kvferry/internal/v1/node.pb-c.h"
#include <time.h>

enum { MEMORY_BYTES = 32 << 20 };

static kvf_arena arena_of(fake_node *n, bool reading) {
    return (kvf_arena){.base = n->memory + (reading ? 0 : MEMORY_BYTES / 2), .size_bytes = MEMORY_BYTES / 2};
}

static void say(fake_node *n, const kvf_nmsg *m) { /* under lock */
    kvf_arena arena = arena_of(n, false);
    Kvferry__Internal__V1__NodeMessage *out;
    assert_int_equal(kvf_wire_nmsg_encode(m, &arena, &out), KVF_OK);
    if (n->call) kvf_rpc_stream_push(n->call, &out->base);
}

static void say_about(fake_node *n, const fake_work *w, kvf_n_kind kind) {
    kvf_nmsg m = {.kind = kind, .request = w->request, .attempt = w->attempt};
    say(n, &m);
}

static kvf_node_stats stats_of(const fake_node *n) {
    return (kvf_node_stats){.state = n->state,
        .role = n->role,
        .blocks_total = 10000,
        .blocks_free = 10000,
        .events_next = 1,
        .prefill_tokens = 100,
        .prefill_busy_ns = KVF_NS_PER_S,
        .waste_ppm = 500000,
        .rejected = &n->rejected,
        .rejected_count = n->rejected.frames ? 1 : 0};
}

static void say_status(fake_node *n) {
    kvf_nmsg m = {.kind = KVF_N_STATUS, .status = stats_of(n)};
    say(n, &m);
}

void fake_reject(fake_node *n, const char *peer, uint64_t frames) {
    pthread_mutex_lock(&n->lock);
    snprintf(n->rejected.node, sizeof n->rejected.node, "%s", peer);
    n->rejected.frames = frames;
    say_status(n);
    pthread_mutex_unlock(&n->lock);
}

static void welcome(fake_node *n) {
    kvf_nmsg m = {.kind = KVF_N_WELCOME, .welcome.stats = stats_of(n)};
    kvf_node_info *info = &m.welcome.info;
    *info = (kvf_node_info){.epoch = n->epoch, .wire_version = KVF_WIRE_VERSION, .role = n->role, .host_id = 77};
    snprintf(info->node, sizeof info->node, "%s", n->name);
    snprintf(info->address, sizeof info->address, "tcp:127.0.0.1:1");
    snprintf(info->backend, sizeof info->backend, "fake");
    kvf_identity *id = &info->identity;
    *id = (kvf_identity){.wire_version = KVF_WIRE_VERSION,
        .block_tokens = 16,
        .layers = 3,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 16,
        .vocab = 320,
        .page_bytes = 2048,
        .context_max = 4096,
        .layout = 1,
        .rope_dims = 16,
        .rope_style = 0,
        .rope_base_bits = 0x461c4000};
    snprintf(id->numerics, sizeof id->numerics, "fake");
    snprintf(id->kv_type, sizeof id->kv_type, "f16");
    memcpy(id->weights_hash, n->model->weights_hash, sizeof id->weights_hash);
    id->weights_hash[0] ^= n->weights_hash_xor;
    memcpy(id->tokenizer_hash, kvf_tokenizer_get_info(n->model->tokenizer)->hash, sizeof id->tokenizer_hash);
    say(n, &m);
}

/* ---- tokens ---- */

static fake_mode mode_of(const fake_work *w) { return (fake_mode)(w->sampling.seed & 0xff); }

static uint32_t token_at(const fake_node *n, const fake_work *w, uint32_t choice, uint32_t index) {
    if (mode_of(w) == FAKE_FLOOD || mode_of(w) == FAKE_HOLD) return n->byte_token['x'];
    const char *script = n->scripts[w->sampling.seed >> 8 & (FAKE_SCRIPTS_MAX - 1)];
    size_t at = (size_t)index + choice;
    return at < strlen(script) ? n->byte_token[(uint8_t)script[at]] : TINY_EOS;
}

static kvf_end end_of(const fake_work *w, uint32_t token, uint32_t said) {
    if (token == TINY_EOS && !w->sampling.ignore_eos) return KVF_END_EOS;
    for (uint32_t i = 0; i < w->sampling.stop_ids_count; i++)
        if (w->sampling.stop_ids[i] == token) return KVF_END_STOP_ID;
    return said >= w->output_max ? KVF_END_LENGTH : KVF_END_NONE;
}

static kvf_sample sample_of(const fake_work *w, uint32_t token) {
    kvf_sample s = {.chosen = {.token = token, .logprob = -0.5f, .rank = 1}, .top_count = w->sampling.top_logprobs};
    for (uint32_t i = 0; i < s.top_count; i++)
        s.top[i] = (kvf_token_logprob){.token = i, .logprob = -1.0f - (float)i, .rank = i + 1};
    return s;
}

/* One step: a token of each choice that goes on. Returns how many. */
static uint32_t step(fake_node *n, fake_work *w, kvf_token_item *items, kvf_sample *samples) {
    uint32_t count = 0;
    for (uint32_t c = 0; c < w->n; c++) {
        if (w->ended[c]) continue;
        kvf_token_item *item = &items[count];
        uint32_t index = w->said[c]++;
        *item = (kvf_token_item){.request = w->request,
            .attempt = w->attempt,
            .index = w->choice_base + c,
            .position = w->prompt_count + index};
        item->token = token_at(n, w, w->choice_base + c, index);
        item->end = end_of(w, item->token, w->said[c]);
        w->ended[c] = item->end != KVF_END_NONE;
        if (w->sampling.want_logprobs) {
            samples[count] = sample_of(w, item->token);
            item->sample = (kvf_span){&samples[count], sizeof samples[count]};
        }
        count++;
    }
    return count;
}

static void say_tokens(fake_node *n, fake_work *w, uint32_t steps) {
    enum { ITEMS_MAX = 4096 };
    kvf_token_item *items = calloc(ITEMS_MAX, sizeof *items);
    kvf_sample *samples = calloc(ITEMS_MAX, sizeof *samples);
    assert_true(items && samples);
    uint32_t per_batch = n->steps_per_batch ? n->steps_per_batch : 1, count = 0, in_batch = 0;
    for (uint32_t s = 0; s < steps; s++) {
        uint32_t some = step(n, w, items + count, samples + count);
        count += some;
        if (some) in_batch++;
        if (count && (!some || in_batch == per_batch || s + 1 == steps || count + KVF_CHOICES_MAX > ITEMS_MAX)) {
            kvf_nmsg m = {.kind = KVF_N_TOKENS, .tokens = {++n->batch, items, count}};
            say(n, &m);
            count = in_batch = 0;
        }
        if (!some) break;
    }
    free(items);
    free(samples);
}

static void say_prompt_logprobs(fake_node *n, const fake_work *w, uint32_t wanted) {
    uint32_t count = w->prompt_count - 1;
    if (!wanted || !count) return;
    kvf_sample *samples = calloc(count, sizeof *samples);
    assert_non_null(samples);
    for (uint32_t i = 0; i < count; i++) {
        samples[i] = (kvf_sample){.chosen = {.token = i, .logprob = -2, .rank = 3}, .top_count = wanted - 1};
        for (uint32_t k = 0; k < wanted - 1; k++)
            samples[i].top[k] = (kvf_token_logprob){.token = k, .logprob = -1, .rank = k + 1};
    }
    kvf_nmsg m = {.kind = KVF_N_PROMPT_LOGPROBS,
        .request = w->request,
        .attempt = w->attempt,
        .prompt_logprobs = {.start = 1, .count = count, .samples = {samples, sizeof *samples * count}}};
    say(n, &m);
    free(samples);
}

/* ---- work ---- */

static fake_work *take_work(fake_node *n, const kvf_work *in) {
    fake_work *w = NULL;
    for (uint32_t i = 0; i < FAKE_WORKS_MAX && !w; i++)
        if (!n->works[i].used) w = &n->works[i];
    assert_non_null(w);
    *w = (fake_work){.used = true,
        .request = in->request,
        .attempt = in->attempt,
        .n = in->n,
        .choice_base = in->choice_base,
        .prompt_count = in->prompt_count,
        .tokens_count = in->tokens_count,
        .output_max = in->output_max};
    assert_int_equal(in->sampling.len_bytes, sizeof w->sampling);
    memcpy(&w->sampling, in->sampling.data, sizeof w->sampling);
    for (uint32_t c = 0; c < w->n; c++) w->said[c] = in->tokens_count - in->prompt_count;
    return w;
}

static fake_work *find_work(fake_node *n, kvf_request_id request) {
    for (uint32_t i = 0; i < FAKE_WORKS_MAX; i++)
        if (n->works[i].used && kvf_request_id_equal(n->works[i].request, request)) return &n->works[i];
    return NULL;
}

static bool all_ended(const fake_work *w) {
    for (uint32_t c = 0; c < w->n; c++)
        if (!w->ended[c]) return false;
    return true;
}

static void go_on(fake_node *n, fake_work *w) {
    switch (mode_of(w)) {
    case FAKE_HOLD: say_tokens(n, w, 1); return;
    case FAKE_SLOW_END:
        say_tokens(n, w, (uint32_t)strlen(n->scripts[w->sampling.seed >> 8 & (FAKE_SCRIPTS_MAX - 1)]));
        return;
    case FAKE_DIE:
        if (!n->deaths) {
            n->deaths++;
            n->epoch += 2; /* what comes back is another process */
            say_tokens(n, w, 3);
            kvf_rpc_fail(n->call, KVF_RPC_UNAVAILABLE, NULL, "the fake node dies");
            w->used = false;
            return;
        }
        break;
    default: break;
    }
    say_tokens(n, w, UINT32_MAX);
    if (all_ended(w)) w->used = false;
}

static void on_reserve(fake_node *n, const kvf_work *in) {
    n->reserves++;
    fake_work *w = take_work(n, in);
    kvf_nmsg m = {.request = w->request, .attempt = w->attempt};
    switch (mode_of(w)) {
    case FAKE_SILENT: return;
    case FAKE_FAIL:
        m.kind = KVF_N_FAILED;
        m.failed.stage = KVF_STAGE_RESERVE;
        m.failed.reason = KVF_ERR_INTERNAL;
        snprintf(m.failed.text, sizeof m.failed.text, "the fake node fails");
        say(n, &m);
        w->used = false;
        return;
    case FAKE_REFUSE:
        m.kind = KVF_N_REFUSED;
        m.refused.reason = KVF_ERR_NO_ROOM;
        snprintf(m.refused.field, sizeof m.refused.field, "input");
        snprintf(m.refused.text, sizeof m.refused.text, "more blocks than the pool of 4 has");
        say(n, &m);
        w->used = false;
        return;
    default: break;
    }
    if (in->ship_min == 0) { /* ALWAYS */
        uint32_t missing[256], blocks = (in->tokens_count + 15) / 16;
        for (uint32_t i = 0; i < blocks; i++) missing[i] = i;
        m.kind = KVF_N_GRANTED;
        m.granted.grant = ++n->next_grant;
        m.granted.secret[0] = 1;
        m.granted.ttl_ns = 60 * KVF_NS_PER_S;
        m.granted.missing = missing;
        m.granted.missing_count = blocks;
        say(n, &m);
        return;
    }
    m.kind = KVF_N_LOCAL;
    m.local.cached_tokens = in->prompt_logprobs ? 0 : 16 * ((in->prompt_count - 1) / 16);
    say(n, &m);
    say_prompt_logprobs(n, w, in->prompt_logprobs);
    go_on(n, w);
}

static void on_prefill(fake_node *n, const kvf_work *in) { /* under n->lock; takes the decode node's after it */
    n->prefills++;
    fake_work *w = take_work(n, in);
    say_prompt_logprobs(n, w, in->prompt_logprobs);
    say_tokens(n, w, 1);
    kvf_nmsg m = {.kind = KVF_N_SHIPPED,
        .request = w->request,
        .attempt = w->attempt,
        .shipped = {.pages = 3 * ((in->prompt_count + 15) / 16),
            .bytes = 4096,
            .prefill_ns = KVF_NS_PER_MS,
            .transfer_ns = KVF_NS_PER_MS}};
    say(n, &m);
    fake_node *d = n->decode;
    pthread_mutex_lock(&d->lock);
    fake_work *there = find_work(d, w->request);
    if (there) {
        /* It says the first tokens again: its messages may overtake those of the prefill node. */
        say_about(d, there, KVF_N_STARTED);
        go_on(d, there);
    }
    pthread_mutex_unlock(&d->lock);
    w->used = false;
}

static void on_cancel(fake_node *n, const kvf_rmsg *m) {
    fake_work *w = find_work(n, m->cancel.request);
    if (w) w->used = false;
    n->cancels++;
    n->finished_cancels += m->cancel.finished;
}

static void on_audit(fake_node *n, uint64_t query) {
    if (n->mute_audit) return;
    kvf_nmsg m = {.kind = KVF_N_AUDIT,
        .audit = {
            .query = query, .blocks_checked = 10000, .at_rest = true, .clean = !n->dirty_audit, .stats = stats_of(n)}};
    for (uint32_t i = 0; i < FAKE_WORKS_MAX; i++) m.audit.at_rest &= !n->works[i].used;
    if (n->dirty_audit) {
        snprintf(m.audit.invariant, sizeof m.audit.invariant, "I1");
        snprintf(m.audit.detail, sizeof m.audit.detail, "blk 7 is free and sealed");
    }
    say(n, &m);
}

static void on_blocks(fake_node *n, const kvf_rmsg *in) {
    kvf_block_report report = {.block = 7,
        .generation = 3,
        .state = 2,
        .pins = 1,
        .tokens = 16,
        .indexed = true,
        .name = {1, 2},
        .requests = {in->blocks.request}};
    kvf_nmsg m = {.kind = KVF_N_BLOCKS, .blocks = {in->blocks.query, &report, 1, false}};
    say(n, &m);
}

static void on_admin(fake_node *n, const kvf_rmsg *m) {
    kvf_nmsg out = {0};
    switch (m->kind) {
    case KVF_R_DRAIN:
        n->drains++;
        n->state = KVF_NODE_DRAINING;
        say_status(n);
        break;
    case KVF_R_UNDRAIN:
        n->undrains++;
        n->state = KVF_NODE_READY;
        say_status(n);
        break;
    case KVF_R_SET_ROLE:
        n->role = m->set_role.role;
        say_status(n);
        break;
    case KVF_R_FLUSH:
        n->flushes++;
        out.kind = KVF_N_FLUSHED;
        out.flushed.query = m->flush.query;
        out.flushed.blocks_freed = 7;
        say(n, &out);
        break;
    case KVF_R_AUDIT: on_audit(n, m->audit.query); break;
    case KVF_R_BLOCKS: on_blocks(n, m); break;
    case KVF_R_SNAPSHOT:
        out.kind = KVF_N_SNAPSHOT;
        out.snapshot.events_next = 1;
        out.snapshot.first = out.snapshot.last = true;
        say(n, &out);
        break;
    default: break;
    }
}

static void on_message(kvf_rpc_call *call, void *user, const ProtobufCMessage *message) {
    fake_node *n = user;
    pthread_mutex_lock(&n->lock);
    kvf_arena arena = arena_of(n, true);
    kvf_rmsg m;
    kvf_error err = {0};
    if (kvf_wire_rmsg_decode((const void *)message, &arena, &m, &err) != KVF_OK) fail_msg("%s", err.message);
    switch (m.kind) {
    case KVF_R_HELLO:
        n->hellos++;
        if (n->call) kvf_rpc_call_unref(n->call);
        n->call = kvf_rpc_call_ref(call);
        n->batch = 0;
        welcome(n);
        break;
    case KVF_R_RESERVE: on_reserve(n, &m.reserve); break;
    case KVF_R_PREFILL: on_prefill(n, &m.prefill.work); break;
    case KVF_R_CANCEL: on_cancel(n, &m); break;
    case KVF_R_ACK: break;
    default: on_admin(n, &m);
    }
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static const kvf_rpc_call_ops session_ops = {.on_message = on_message};

static void session_handler(void *self, kvf_rpc_call *call, const ProtobufCMessage *request) {
    (void)request;
    kvf_rpc_call_bind(call, &session_ops, self);
}

/* ---- life ---- */

void fake_node_start(fake_node *n, const front_model *m, const char *name, kvf_role role, const char *address) {
    n->model = m;
    n->role = role;
    n->state = KVF_NODE_READY;
    if (!n->epoch) n->epoch = kvf_hash64_of(name, strlen(name), 0) | 1;
    snprintf(n->name, sizeof n->name, "%s", name);
    n->memory = aligned_alloc(64, MEMORY_BYTES);
    assert_non_null(n->memory);
    for (uint32_t id = 0; id < TINY_VOCAB; id++) {
        kvf_span piece;
        if (kvf_tokenizer_piece(m->tokenizer, id, &piece) && piece.len_bytes == 1)
            n->byte_token[*(const uint8_t *)piece.data] = id;
    }
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    kvf_rpc_runtime_opts ro = {.loops = 1};
    assert_int_equal(kvf_rpc_runtime_create(&ro, &n->rt), KVF_OK);
    const char *listen[] = {address ? address : "127.0.0.1:0"};
    const kvf_rpc_method methods[] = {
        {&kvferry__internal__v1__node__descriptor, "Session", KVF_RPC_BIDI, session_handler, n}};
    kvf_rpc_server_opts so = {.listen = listen,
        .listen_count = 1,
        .methods = methods,
        .method_count = 1,
        .message_bytes_max = 64u << 20,
        .stream_buffer_bytes_max = 64u << 20};
    kvf_error err = {0};
    if (kvf_rpc_server_start(n->rt, &so, &n->server, &err) != KVF_OK) fail_msg("%s", err.message);
}

void fake_node_stop(fake_node *n) {
    if (!n->server) return;
    kvf_rpc_server_shutdown(n->server, 0);
    if (n->call) kvf_rpc_call_unref(n->call);
    kvf_rpc_runtime_destroy(n->rt);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    free(n->memory);
    n->server = NULL;
    n->call = NULL;
}

const char *fake_node_address(const fake_node *n) { return kvf_rpc_server_address(n->server, 0); }

void fake_node_wait(fake_node *n, const uint32_t *counter, uint32_t at_least) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&n->lock);
    while (*counter < at_least)
        if (pthread_cond_timedwait(&n->changed, &n->lock, &until) != 0) {
            pthread_mutex_unlock(&n->lock);
            fail_msg("a counter of %s stays at %u, %u is expected", n->name, *counter, at_least);
        }
    pthread_mutex_unlock(&n->lock);
}

void fake_release(fake_node *n) {
    pthread_mutex_lock(&n->lock);
    for (uint32_t i = 0; i < FAKE_WORKS_MAX; i++) {
        fake_work *w = &n->works[i];
        if (!w->used) continue;
        say_tokens(n, w, UINT32_MAX);
        w->used = !all_ended(w);
    }
    pthread_mutex_unlock(&n->lock);
}
