#include "generate.h"
#include "json.h"
#include "kvf/os.h"
#include "kvf/proto.h"
#include "term.h"
#include "units.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>

static ProtobufCBinaryData text(const char *s) { return kvf_proto_text(s ? s : ""); }

static void fill_sampling(
    kvf_generate_request *r, const kvf_command *c, const kvf_generate_options *o, const kvf_args *args) {
    Kvferry__V1__SamplingParams *s = &r->sampling;
    kvferry__v1__sampling_params__init(s);
    r->request.sampling = s;
#define SET(option, field, FIELD, from)                                                                                \
    if (kvf_args_given(c, args, option)) {                                                                             \
        s->_##field##_case = KVFERRY__V1__SAMPLING_PARAMS___##FIELD##_##FIELD;                                         \
        s->field = from;                                                                                               \
    }
    SET("temperature", temperature, TEMPERATURE, (float)o->temperature)
    SET("top-p", top_p, TOP_P, (float)o->top_p)
    SET("top-k", top_k, TOP_K, o->top_k)
    SET("min-p", min_p, MIN_P, (float)o->min_p)
    SET("repetition-penalty", repetition_penalty, REPETITION_PENALTY, (float)o->repetition)
    SET("presence-penalty", presence_penalty, PRESENCE_PENALTY, (float)o->presence)
    SET("frequency-penalty", frequency_penalty, FREQUENCY_PENALTY, (float)o->frequency)
    SET("seed", seed, SEED, o->seed)
#undef SET
}

void kvf_generate_request_init(
    kvf_generate_request *r, const kvf_command *c, const kvf_generate_options *o, const kvf_args *args) {
    kvferry__v1__generate_request__init(&r->request);
    fill_sampling(r, c, o, args);
    kvferry__v1__stop_params__init(&r->stop);
    r->request.stop = &r->stop;
    if (kvf_args_given(c, args, "max-tokens")) {
        r->stop._max_tokens_case = KVFERRY__V1__STOP_PARAMS___MAX_TOKENS_MAX_TOKENS;
        r->stop.max_tokens = o->max_tokens;
    }
    r->stop.min_tokens = o->min_tokens;
    r->stop.ignore_eos = o->ignore_eos;
    r->stop.include_stop = o->include_stop;
    for (uint32_t i = 0; i < o->stop.count; i++) r->stops[i] = text(o->stop.text[i]);
    r->stop.n_sequences = o->stop.count;
    r->stop.sequences = r->stops;
    kvferry__v1__output_options__init(&r->output);
    r->request.output = &r->output;
    r->output.token_ids = o->json || o->token_ids;
    r->output.logprobs = o->logprobs || o->top_logprobs;
    r->output.top_logprobs = o->top_logprobs;
    r->request.n = o->choices;
    r->request.priority = o->priority;
    r->request.cache_salt = text(o->salt);
    r->request.label = text(o->label);
    r->request.model = text(o->model);
    r->request.session = text(o->session);
    r->request.disaggregate =
        (Kvferry__V1__Disaggregate)(KVFERRY__V1__DISAGGREGATE__DISAGGREGATE_AUTO + (int)o->disaggregate);
}

uint64_t kvf_generate_deadline_ms(const kvf_generate_options *o) {
    return o->deadline_ns ? kvf_div_up(o->deadline_ns, KVF_NS_PER_MS) : KVF_RPC_NO_DEADLINE;
}

static void print_text(kvf_generate_run *run, ProtobufCBinaryData t) {
    if (t.len == 0) return;
    if (run->keep) kvf_buf_add(run->keep, t.data, t.len);
    run->ends_with_newline = t.data[t.len - 1] == '\n';
    if (run->clean) {
        kvf_buf shown = {0};
        kvf_term_clean(&shown, t.data, t.len);
        if (shown.len_bytes) fwrite(shown.text, 1, shown.len_bytes, stdout);
        kvf_buf_fini(&shown);
    } else {
        fwrite(t.data, 1, t.len, stdout);
    }
    fflush(stdout);
}

static void add_logprob(kvf_buf *out, const Kvferry__V1__TokenLogprob *p) {
    kvf_buf_printf(out, "%u ", p->token_id);
    kvf_buf piece = {0};
    kvf_json_string(&piece, p->token.data, p->token.len);
    kvf_buf_puts(out, piece.text);
    kvf_buf_fini(&piece);
    kvf_buf_printf(out, " %.4f", (double)p->logprob);
}

static void take_logprobs(kvf_generate_run *run, const Kvferry__V1__Chunk *chunk) {
    for (size_t i = 0; run->logprobs && i < chunk->n_logprobs; i++) {
        const Kvferry__V1__TokenLogprobs *at = chunk->logprobs[i];
        if (at->chosen) add_logprob(&run->table, at->chosen);
        for (size_t k = 0; k < at->n_top; k++) {
            kvf_buf_puts(&run->table, k ? ", " : "   of ");
            add_logprob(&run->table, at->top[k]);
        }
        kvf_buf_putc(&run->table, '\n');
    }
}

static void take_finished(kvf_generate_run *run, const Kvferry__V1__Finished *f) {
    run->finished = true;
    run->seed = f->seed;
    const ProtobufCEnumValue *reason =
        protobuf_c_enum_descriptor_get_value(&kvferry__v1__finish_reason__descriptor, (int)f->reason);
    const char *name = reason ? reason->name : "?";
    if (strncmp(name, "FINISH_REASON_", 14) == 0) name += 14;
    snprintf(run->reason, sizeof run->reason, "%s", name);
    if (f->usage) {
        run->completion_tokens += f->usage->completion_tokens;
        run->prompt_tokens = KVF_MAX(run->prompt_tokens, f->usage->prompt_tokens);
        run->cached_tokens = KVF_MAX(run->cached_tokens, f->usage->cached_tokens);
    }
    if (!f->timings) return;
    run->pages = f->timings->pages_moved;
    run->bytes = f->timings->bytes_moved;
    run->server_ttft_us = f->timings->ttft_us;
    run->transfer_us = f->timings->transfer_us;
    run->attempts = f->timings->attempts;
}

static bool on_response(void *self, ProtobufCMessage **message) {
    kvf_generate_run *run = self;
    const Kvferry__V1__GenerateResponse *m = (const void *)*message;
    switch (m->event_case) {
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_ADMITTED:
        run->admitted = true;
        run->prompt_tokens = m->admitted->prompt_tokens;
        run->cached_tokens = m->admitted->cached_tokens;
        kvf_proto_text_copy(m->admitted->prefill_node, run->prefill_node, sizeof run->prefill_node);
        kvf_proto_text_copy(m->admitted->decode_node, run->decode_node, sizeof run->decode_node);
        break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_CHUNK:
        run->last_ns = kvf_os_now_ns();
        if (!run->chunks++) run->first_ns = run->last_ns;
        print_text(run, m->chunk->text);
        take_logprobs(run, m->chunk);
        break;
    case KVFERRY__V1__GENERATE_RESPONSE__EVENT_FINISHED: take_finished(run, m->finished); break;
    default: break;
    }
    return true;
}

kvf_status kvf_generate_stream(
    kvf_client *c, const kvf_generate_request *r, uint64_t deadline_ms, kvf_generate_run *run, kvf_rpc_result *result) {
    run->clean = kvf_term_is(stdout);
    run->sent_ns = kvf_os_now_ns();
    kvf_status status = kvf_client_stream(
        c, &kvferry__v1__inference__descriptor, "Generate", &r->request.base, deadline_ms, on_response, run, result);
    if (run->chunks && !run->ends_with_newline) fputc('\n', stdout);
    if (run->table.len_bytes) fwrite(run->table.text, 1, run->table.len_bytes, stdout);
    fflush(stdout);
    kvf_buf_fini(&run->table);
    return status;
}

void kvf_generate_stats(const kvf_generate_run *run, kvf_buf *out) {
    char a[KVF_UNITS_TEXT], b[KVF_UNITS_TEXT];
    if (run->chunks) kvf_buf_printf(out, "ttft %s", kvf_units_seconds((double)(run->first_ns - run->sent_ns) / 1e9, a));
    if (run->chunks && run->completion_tokens > 1) {
        double per_token = (double)(run->last_ns - run->first_ns) / 1e9 / (run->completion_tokens - 1);
        kvf_buf_printf(out, ", tpot %s", kvf_units_seconds(per_token, a));
        if (per_token > 0) kvf_buf_printf(out, " (%.1f tokens/s)", 1 / per_token);
    }
    kvf_buf_printf(out, "%s%u prompt tokens (%u cached), %u new", out->len_bytes ? ", " : "", run->prompt_tokens,
        run->cached_tokens, run->completion_tokens);
    if (run->reason[0]) kvf_buf_printf(out, ", end %s", run->reason);
    if (run->prefill_node[0] && run->decode_node[0] && strcmp(run->prefill_node, run->decode_node) != 0)
        kvf_buf_printf(out, ", prefill %s -> decode %s", run->prefill_node, run->decode_node);
    else if (run->decode_node[0] || run->prefill_node[0])
        kvf_buf_printf(out, ", all on %s", run->decode_node[0] ? run->decode_node : run->prefill_node);
    if (run->pages)
        kvf_buf_printf(out, ", %llu pages (%s) moved in %s", (unsigned long long)run->pages,
            kvf_units_bytes((double)run->bytes, a), kvf_units_seconds((double)run->transfer_us / 1e6, b));
    if (run->attempts > 1) kvf_buf_printf(out, ", %u attempts", run->attempts);
    kvf_buf_printf(out, ", seed %llu", (unsigned long long)run->seed);
}
