#include "generate.h"
#include "kvf/log.h"
#include "kvf/proto.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- life ---- */

void front_request_unref(front_request *r) {
    if (atomic_fetch_sub(&r->refs, 1) != 1) return;
    if (r->choices)
        for (uint32_t i = 0; i < r->plan.n; i++) front_choice_fini(&r->choices[i]);
    free(r->choices);
    front_rules_fini(&r->rules);
    free(r->prompt_samples);
    front_plan_free(&r->plan);
    free(r);
}

/* Gives back the owner's reference and that to the call. */
static void give_up(front_request *r) {
    kvf_rpc_call *call = r->call;
    front_request_unref(r);
    kvf_rpc_call_unref(call);
}

static void run_left(inbox_item *item, void *shell) {
    front_request *r = (front_request *)(void *)((char *)item - offsetof(front_request, left_item));
    kvf_router_shell *s = shell;
    if (r->slot != NO_SLOT && !r->over) {
        bool late = kvf_rpc_call_left_ms(r->call) == 0;
        r->dropped = true;
        kvf_router_cancel(s->core, kvf_os_now_ns(), r->id, late ? KVF_CANCEL_DEADLINE : KVF_CANCEL_CLIENT);
    }
    front_request_unref(r);
}

static void drop_left(inbox_item *item) {
    front_request_unref((front_request *)(void *)((char *)item - offsetof(front_request, left_item)));
}

static void on_cancel(kvf_rpc_call *call, void *user) {
    (void)call;
    front_request *r = user;
    atomic_store(&r->left, true);
    atomic_fetch_add(&r->refs, 1);
    front_inbox_put(&r->shell->inbox, &r->left_item);
}

static void on_release(void *user) { front_request_unref(user); }

static const kvf_rpc_call_ops call_ops = {.on_cancel = on_cancel, .on_release = on_release};

/* ---- worker ---- */

static bool prepare(front_request *r, fault *f) {
    kvf_router_shell *s = r->shell;
    uint64_t seed = kvf_os_random_u64();
    if (!front_plan_make(&s->model, &s->limits, r->message, seed, (int64_t)time(NULL), &r->plan, f)) return false;
    r->choices = calloc(r->plan.n, sizeof *r->choices);
    bool ok = r->choices && front_rules_init(&r->rules, s->model.tokenizer, &r->plan) == KVF_OK;
    for (uint32_t i = 0; i < r->plan.n && ok; i++) ok = front_choice_init(&r->choices[i], &r->rules) == KVF_OK;
    r->untold = r->plan.n;
    return ok || front_fault_set(f, KVF_RPC_RESOURCE_EXHAUSTED, "NO_MEMORY", NULL, "out of memory");
}

static void run_prepare(worker_job *job) {
    front_request *r = (front_request *)(void *)((char *)job - offsetof(front_request, job));
    fault f;
    if (atomic_load(&r->left)) {
        give_up(r);
    } else if (!prepare(r, &f)) {
        front_fault_send(r->call, &f);
        give_up(r);
    } else {
        r->line.prepared_ns = kvf_os_now_ns();
        front_inbox_put(&r->shell->inbox, &r->submit_item);
    }
}

static void refuse_draining(front_request *r) {
    fault f;
    front_fault_draining(&f, KVF_MAX(r->shell->config.retry_after_ns / KVF_NS_PER_MS, 1u));
    front_fault_send(r->call, &f);
    give_up(r);
}

static void drop_prepare(worker_job *job) {
    refuse_draining((front_request *)(void *)((char *)job - offsetof(front_request, job)));
}

/* ---- core: submit ---- */

static void enter(kvf_router_shell *s, front_request *r, kvf_request_id id) {
    r->id = id;
    kvf_request_id_format(id, r->id_text);
    s->slots[r->slot].request = r;
    s->live++;
    r->line.request = id;
    r->line.choices = r->plan.n;
    snprintf(r->line.label, sizeof r->line.label, "%.*s", (int)KVF_MIN(r->message->label.len, sizeof r->line.label - 1),
        (const char *)r->message->label.data);
}

void front_request_end(front_request *r) {
    kvf_router_shell *s = r->shell;
    KVF_ASSERT(r->slot != NO_SLOT && s->slots[r->slot].request == r && !r->in_dirty);
    s->slots[r->slot].request = NULL;
    s->slots[r->slot].generation++;
    s->free_slots[s->free_count++] = r->slot;
    s->live--;
    r->slot = NO_SLOT;
    r->over = true;
    give_up(r);
}

static bool submit(kvf_router_shell *s, front_request *r, fault *f) {
    const front_plan *p = &r->plan;
    KVF_ASSERT(s->free_count > 0); /* no more live requests than the core takes, and one more slot than that */
    uint32_t slot = s->free_slots[s->free_count - 1];
    kvf_router_request request = {.tokens = p->prompt.ids,
        .tokens_count = (uint32_t)p->prompt.count,
        .n = p->n,
        .output_max = p->max_tokens,
        .output_max_given = p->max_given,
        .priority = p->priority,
        .deadline_ns = r->deadline_ns,
        .salt = p->salt,
        .mode = p->mode,
        .prompt_logprobs = p->prompt_logprobs,
        .sampling = {&p->sampling, sizeof p->sampling},
        .client = (uint64_t)s->slots[slot].generation << 32 | slot};
    kvf_request_id id;
    kvf_refusal why;
    r->line.submitted_ns = kvf_os_now_ns();
    if (kvf_router_submit(s->core, r->line.submitted_ns, &request, &id, &why) != KVF_OK) {
        front_fault_of_refusal(f, &why);
        return false;
    }
    s->free_count--;
    r->slot = slot;
    enter(s, r, id);
    /* The core has its own copy. */
    front_prompt_free(&r->plan.prompt);
    r->plan.prompt.count = request.tokens_count;
    return true;
}

static void run_submit(inbox_item *item, void *shell) {
    front_request *r = (front_request *)(void *)((char *)item - offsetof(front_request, submit_item));
    fault f;
    if (atomic_load(&r->left)) {
        give_up(r);
    } else if (((kvf_router_shell *)shell)->draining) {
        refuse_draining(r);
    } else if (!submit(shell, r, &f)) {
        kvf_log(KVF_LOG_DEBUG, "router", "refused: %s: %s", f.reason, f.text);
        front_fault_send(r->call, &f);
        give_up(r);
    }
}

static void drop_submit(inbox_item *item) {
    refuse_draining((front_request *)(void *)((char *)item - offsetof(front_request, submit_item)));
}

/* ---- handlers ---- */

static void start(kvf_router_shell *s, kvf_rpc_call *call, const ProtobufCMessage *message, bool unary) {
    front_request *r = calloc(1, sizeof *r);
    fault f;
    if (!r) {
        front_fault_set(&f, KVF_RPC_RESOURCE_EXHAUSTED, "NO_MEMORY", NULL, "out of memory");
        front_fault_send(call, &f);
        return;
    }
    r->shell = s;
    r->message = (const Kvferry__V1__GenerateRequest *)(const void *)message;
    r->unary = unary;
    r->slot = NO_SLOT;
    r->job = (worker_job){.run = run_prepare, .drop = drop_prepare};
    r->submit_item = (inbox_item){.run = run_submit, .drop = drop_submit};
    r->left_item = (inbox_item){.run = run_left, .drop = drop_left};
    atomic_init(&r->refs, 2); /* the call's and the owner's */
    atomic_init(&r->left, false);
    r->line.received_ns = kvf_os_now_ns();
    uint64_t left_ms = kvf_rpc_call_left_ms(call);
    r->deadline_ns =
        left_ms > UINT64_MAX / KVF_NS_PER_MS / 2 ? KVF_TIME_NEVER : r->line.received_ns + left_ms * KVF_NS_PER_MS;
    r->call = kvf_rpc_call_ref(call);
    kvf_rpc_call_bind(call, &call_ops, r);
    kvf_status status = front_workers_put(s->workers, &r->job);
    if (status == KVF_OK) return;
    if (status == KVF_ERR_GONE) {
        refuse_draining(r);
        return;
    }
    front_fault_set(&f, KVF_RPC_RESOURCE_EXHAUSTED, "QUEUE_FULL", NULL, "%u requests wait to be tokenised, the limit",
        s->options.jobs_max);
    f.retry_after_ms = KVF_MAX(s->config.retry_after_ns / KVF_NS_PER_MS, 1u);
    front_fault_send(call, &f);
    give_up(r);
}

void front_generate_handler(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request) {
    start(shell, call, request, false);
}

void front_complete_handler(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request) {
    start(shell, call, request, true);
}

/* ---- core: what comes back ---- */

static front_request *find(kvf_router_shell *s, uint64_t client) {
    request_slot *slot = &s->slots[(uint32_t)client];
    KVF_ASSERT(
        slot->request && slot->generation == (uint32_t)(client >> 32)); /* the core says FINISHED or FAILED last */
    return slot->request;
}

static void mark_dirty(kvf_router_shell *s, front_request *r) {
    if (r->in_dirty) return;
    r->in_dirty = true;
    r->dirty_next = s->dirty;
    s->dirty = r;
}

static void unmark_dirty(kvf_router_shell *s, front_request *r) {
    if (!r->in_dirty) return;
    front_request **at = &s->dirty;
    while (*at != r) at = &(*at)->dirty_next;
    *at = r->dirty_next;
    r->in_dirty = false;
}

static void name_node(kvf_router_shell *s, uint32_t node, char out[KVF_NAME_MAX]) {
    kvf_router_node n;
    out[0] = 0;
    if (node != KVF_ROUTER_NO_NODE && kvf_router_node_at(s->core, kvf_os_now_ns(), node, &n))
        snprintf(out, KVF_NAME_MAX, "%s", n.id);
}

static void on_admitted(kvf_router_shell *s, front_request *r, const kvf_router_action *a) {
    r->line.admitted_ns = kvf_os_now_ns();
    r->admitted = true;
    r->cached_tokens = a->admitted.cached_tokens;
    name_node(s, a->admitted.prefill_node, r->line.prefill_node);
    name_node(s, a->admitted.decode_node, r->line.decode_node);
    if (r->dropped) return;
    front_tell_admitted(r);
    /* The first token of a prompt has no probability: nothing comes before it. */
    if (r->plan.prompt_logprobs) front_tell_prompt_logprobs(r, 0, NULL, 1);
}

static void on_token(kvf_router_shell *s, front_request *r, const kvf_router_action *a) {
    KVF_ASSERT(a->token.choice < r->plan.n);
    front_choice *c = &r->choices[a->token.choice];
    if (r->dropped || c->ended) return;
    kvf_time_ns now = kvf_os_now_ns();
    if (!r->line.first_token_ns) r->line.first_token_ns = now;
    r->line.last_token_ns = now;
    switch (front_choice_push(c, &r->rules, a->token.token, a->token.end, a->token.sample)) {
    case FRONT_GOES_ON:
    case FRONT_ENDED: break;
    case FRONT_STOPPED: kvf_router_end_choice(s->core, now, r->id, a->token.choice, a->token.position + 1); break;
    case FRONT_NO_MEMORY:
        r->dropped = true;
        kvf_router_cancel(s->core, now, r->id, KVF_CANCEL_SLOW_READER);
        return;
    }
    if (!r->unary) mark_dirty(s, r);
}

static void finish_line(kvf_router_shell *s, front_request *r, const kvf_router_usage *usage, const char *end) {
    kvf_router_timeline *line = &r->line;
    line->usage = *usage;
    line->ended_ns = kvf_os_now_ns();
    name_node(s, usage->prefill_node, line->prefill_node);
    name_node(s, usage->decode_node, line->decode_node);
    snprintf(line->end, sizeof line->end, "%.*s", (int)sizeof line->end - 1, end);
    front_timelines_add(&s->lines, line);
}

static void on_finished(kvf_router_shell *s, front_request *r, const kvf_router_usage *usage) {
    unmark_dirty(s, r);
    for (uint32_t i = 0; i < r->plan.n; i++) front_choice_close(&r->choices[i], &r->rules);
    finish_line(s, r, usage, front_end_name(&r->choices[r->plan.n - 1]));
    front_tell_finished(r, usage);
    front_request_end(r);
}

static void on_failed(kvf_router_shell *s, front_request *r, const kvf_router_action *a) {
    const kvf_refusal *why = &a->failed.why;
    fault f;
    front_fault_of_refusal(&f, why);
    unmark_dirty(s, r);
    if (!r->dropped && !r->unary) front_tell_news(r); /* what came before is not lost */
    if (why->status == KVF_ERR_LIMIT && r->dropped) {
        snprintf(f.reason, sizeof f.reason, "SLOW_READER");
        kvf_rpc_abort(r->call, KVF_RPC_RESOURCE_EXHAUSTED, f.text);
    } else {
        front_fault_send(r->call, &f);
    }
    if (f.code != KVF_RPC_CANCELLED && f.code != KVF_RPC_DEADLINE_EXCEEDED)
        kvf_log(KVF_LOG_WARN, "router", "req %s failed: %s: %s", r->id_text, f.reason, f.text);
    finish_line(s, r, &a->failed.usage, f.reason);
    front_request_end(r);
}

static void on_prompt_logprobs(front_request *r, const kvf_router_action *a) {
    uint32_t count = a->prompt_logprobs.count;
    if (r->dropped || a->prompt_logprobs.samples.len_bytes != count * sizeof(kvf_sample)) return;
    front_tell_prompt_logprobs(r, a->prompt_logprobs.start, a->prompt_logprobs.samples.data, count);
}

void front_generate_act(kvf_router_shell *s, const kvf_router_action *a) {
    front_request *r = find(s, a->client);
    switch (a->kind) {
    case KVF_ROUTER_ADMITTED: on_admitted(s, r, a); break;
    case KVF_ROUTER_TOKEN: on_token(s, r, a); break;
    case KVF_ROUTER_PROMPT_LOGPROBS: on_prompt_logprobs(r, a); break;
    case KVF_ROUTER_FINISHED: on_finished(s, r, &a->finished); break;
    case KVF_ROUTER_FAILED: on_failed(s, r, a); break;
    default: KVF_ASSERT(!"an action about a request");
    }
}

void front_generate_flush(kvf_router_shell *s) {
    while (s->dirty) {
        front_request *r = s->dirty;
        s->dirty = r->dirty_next;
        r->in_dirty = false;
        if (!r->dropped) front_tell_news(r);
    }
}

void front_generate_fail_all(kvf_router_shell *s, kvf_rpc_code code, const char *text) {
    for (uint32_t i = 0; i < s->slots_count; i++) {
        front_request *r = s->slots[i].request;
        if (!r) continue;
        fault f;
        front_fault_set(&f, code, "DRAINING", NULL, "%s", text);
        if (!r->dropped) front_fault_send(r->call, &f); /* first: what the core says of the cancel comes too late */
        r->dropped = true;
        kvf_router_cancel(s->core, kvf_os_now_ns(), r->id, KVF_CANCEL_CLIENT);
    }
}
