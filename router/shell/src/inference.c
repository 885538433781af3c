/* The client listener: Tokenize, Detokenize, ListModels, and the way in for Generate and Complete. */
#include "kvf/proto.h"
#include "shell_int.h"
#include <stdlib.h>
#include <time.h>

/* ---- Tokenize and Detokenize: whole on a worker ---- */

typedef struct {
    kvf_router_shell *shell;
    kvf_rpc_call *call;
    const ProtobufCMessage *message;
    worker_job job;
} text_call;

static text_call *of_job(worker_job *job) { return (text_call *)(void *)((char *)job - offsetof(text_call, job)); }

static void text_call_free(worker_job *job) {
    text_call *t = of_job(job);
    kvf_rpc_call_unref(t->call);
    free(t);
}

static void refuse_draining(worker_job *job) {
    fault f;
    front_fault_draining(&f, 100);
    front_fault_send(of_job(job)->call, &f);
    text_call_free(job);
}

static void start(kvf_router_shell *s, kvf_rpc_call *call, const ProtobufCMessage *message, void (*run)(worker_job *)) {
    fault f;
    text_call *t = calloc(1, sizeof *t);
    if (t) {
        *t = (text_call){.shell = s,
            .call = kvf_rpc_call_ref(call),
            .message = message,
            .job = {.run = run, .drop = refuse_draining}};
        kvf_status status = front_workers_put(s->workers, &t->job);
        if (status == KVF_ERR_GONE) refuse_draining(&t->job);
        if (status == KVF_OK || status == KVF_ERR_GONE) return;
        text_call_free(&t->job);
    }
    front_fault_set(&f, KVF_RPC_RESOURCE_EXHAUSTED, "QUEUE_FULL", NULL,
        "%u calls wait for a tokenising thread, the limit", s->options.jobs_max);
    f.retry_after_ms = 100;
    front_fault_send(call, &f);
}

static bool tokenize(const front_model *m, const Kvferry__V1__TokenizeRequest *r, front_prompt *out, fault *f) {
    front_bos bos = r->_add_bos_case ? (r->add_bos ? BOS_YES : BOS_NO) : BOS_AS_MODEL;
    if (!front_check_model(m, r->model, f)) return false;
    switch (r->input_case) {
    case KVFERRY__V1__TOKENIZE_REQUEST__INPUT_TEXT:
        return front_encode_text(m, r->text, r->parse_special, bos, SIZE_MAX / 16, out, f);
    case KVFERRY__V1__TOKENIZE_REQUEST__INPUT_CHAT:
        return front_encode_chat(m, r->chat, bos, SIZE_MAX / 16, (int64_t)time(NULL), out, f);
    default:
        return front_fault_set(
            f, KVF_RPC_INVALID_ARGUMENT, "INVALID_FIELD", "input", "input: one of text and chat is needed");
    }
}

static void run_tokenize(worker_job *job) {
    text_call *t = of_job(job);
    front_prompt prompt = {0};
    fault f;
    if (tokenize(&t->shell->model, (const Kvferry__V1__TokenizeRequest *)(const void *)t->message, &prompt, &f)) {
        Kvferry__V1__TokenizeResponse m = KVFERRY__V1__TOKENIZE_RESPONSE__INIT;
        m.n_token_ids = prompt.count;
        m.token_ids = prompt.ids;
        m.prompt = kvf_proto_bytes(prompt.rendered, prompt.rendered_bytes);
        kvf_rpc_reply(t->call, &m.base);
        front_prompt_free(&prompt);
    } else {
        front_fault_send(t->call, &f);
    }
    text_call_free(job);
}

/* text: as a client sees output, control tokens included; raw: the bytes as they are. */
static bool detokenize(
    const front_model *m, const Kvferry__V1__DetokenizeRequest *r, Kvferry__V1__DetokenizeResponse *out, fault *f) {
    size_t raw_bytes = 0, text_bytes = 16;
    kvf_span piece;
    kvf_detok d;
    kvf_detok_init(&d, m->tokenizer, true);
    for (size_t i = 0; i < r->n_token_ids; i++) {
        uint32_t id = r->token_ids[i];
        if (id >= m->vocab || !kvf_tokenizer_piece(m->tokenizer, id, &piece))
            return front_fault_set(f, KVF_RPC_INVALID_ARGUMENT, "INVALID_FIELD", "token_ids",
                "token_ids[%zu] is %u, the vocabulary has %u", i, id, m->vocab);
        raw_bytes += piece.len_bytes;
        text_bytes += 3 * (piece.len_bytes + 4);
    }
    uint8_t *raw = malloc(raw_bytes + 1), *text = malloc(text_bytes);
    if (!raw || !text) {
        free(raw);
        free(text);
        return front_fault_set(f, KVF_RPC_RESOURCE_EXHAUSTED, "NO_MEMORY", NULL, "out of memory");
    }
    raw_bytes = text_bytes = 0;
    for (size_t i = 0; i < r->n_token_ids; i++) {
        kvf_tokenizer_piece(m->tokenizer, r->token_ids[i], &piece);
        if (piece.len_bytes) memcpy(raw + raw_bytes, piece.data, piece.len_bytes);
        raw_bytes += piece.len_bytes;
        text_bytes += kvf_detok_push(&d, r->token_ids[i], (char *)text + text_bytes);
    }
    text_bytes += kvf_detok_finish(&d, (char *)text + text_bytes);
    out->raw = kvf_proto_bytes(raw, raw_bytes);
    out->text = kvf_proto_bytes(text, text_bytes);
    return true;
}

static void run_detokenize(worker_job *job) {
    text_call *t = of_job(job);
    const Kvferry__V1__DetokenizeRequest *r = (const void *)t->message;
    Kvferry__V1__DetokenizeResponse m = KVFERRY__V1__DETOKENIZE_RESPONSE__INIT;
    fault f;
    if (front_check_model(&t->shell->model, r->model, &f) && detokenize(&t->shell->model, r, &m, &f)) {
        kvf_rpc_reply(t->call, &m.base);
        free(m.raw.data);
        free(m.text.data);
    } else {
        front_fault_send(t->call, &f);
    }
    text_call_free(job);
}

static void tokenize_handler(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request) {
    start(shell, call, request, run_tokenize);
}

static void detokenize_handler(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request) {
    start(shell, call, request, run_detokenize);
}

static void list_models_handler(void *shell, kvf_rpc_call *call, const ProtobufCMessage *request) {
    (void)request;
    kvf_router_shell *s = shell;
    char hashes[3][40];
    Kvferry__V1__ModelInfo info, *list[1] = {&info};
    Kvferry__V1__ListModelsResponse m = KVFERRY__V1__LIST_MODELS_RESPONSE__INIT;
    front_model_info(&s->model, &info, hashes);
    info.max_context = s->limits.context_max;
    m.n_models = 1;
    m.models = list;
    kvf_rpc_reply(call, &m.base);
}

kvf_status front_inference_start(kvf_router_shell *s, kvf_error *err) {
    const ProtobufCServiceDescriptor *service = &kvferry__v1__inference__descriptor;
    const kvf_rpc_method methods[] = {{service, "Generate", KVF_RPC_SERVER_STREAM, front_generate_handler, s},
        {service, "Complete", KVF_RPC_UNARY, front_complete_handler, s},
        {service, "Tokenize", KVF_RPC_UNARY, tokenize_handler, s},
        {service, "Detokenize", KVF_RPC_UNARY, detokenize_handler, s},
        {service, "ListModels", KVF_RPC_UNARY, list_models_handler, s}};
    const char *listen[] = {s->options.listen};
    kvf_span sets[] = {kvf_proto_public_set()};
    kvf_rpc_credentials credentials = front_listener_credentials(s->options.tls_clients);
    kvf_rpc_server_opts opts = {.listen = listen,
        .listen_count = 1,
        .methods = methods,
        .method_count = KVF_COUNT_OF(methods),
        .descriptor_sets = sets,
        .descriptor_set_count = 1,
        .credentials = &credentials,
        .message_bytes_max = s->options.message_bytes_max,
        .stream_buffer_bytes_max = s->options.stream_buffer_bytes};
    return kvf_rpc_server_start(s->rpc, &opts, &s->clients, err);
}
