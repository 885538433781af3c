/* tokenize, detokenize: by a model file here, or by a router. */
#include "cmd.h"
#include "json.h"
#include "kvf/proto.h"
#include "kvf/tokenizer.h"
#include "kvf/utf8.h"
#include "kvferry/v1/kvferry.pb-c.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *model, *router;
    kvf_client_tls tls;
    uint32_t add_bos;
    bool special, json, raw, pieces;
} options;

static const options defaults = {.router = KVF_CLI_ROUTER};

typedef struct {
    kvf_gguf *gguf;
    kvf_tokenizer *tokenizer;
} local;

static kvf_status open_local(const char *path, local *out, kvf_error *err) {
    kvf_status status = kvf_gguf_open(path, &out->gguf, err);
    if (status != KVF_OK) return status;
    status = kvf_tokenizer_create(out->gguf, &out->tokenizer, err);
    if (status != KVF_OK) kvf_gguf_close(out->gguf);
    return status;
}
static void close_local(local *l) {
    kvf_tokenizer_destroy(l->tokenizer);
    kvf_gguf_close(l->gguf);
}

/* A model file is used where one is named, unless a router is named later and the file only by the environment. */
static bool use_router(const kvf_command *command, const options *o, const kvf_args *args) {
    return !o->model || (kvf_args_given(command, args, "router") && !kvf_args_given(command, args, "model"));
}

static void print_ids(const uint32_t *ids, size_t count) {
    putchar('[');
    for (size_t i = 0; i < count; i++) printf(i ? ",%u" : "%u", ids[i]);
    puts("]");
}

/* One line per token: id, and its bytes as JSON, for people who wonder where a text was cut. */
static void print_pieces(const kvf_tokenizer *t, const uint32_t *ids, size_t count) {
    for (size_t i = 0; i < count; i++) {
        kvf_span piece;
        kvf_buf line = {0};
        if (kvf_tokenizer_piece(t, ids[i], &piece)) kvf_json_string(&line, piece.data, piece.len_bytes);
        printf("%u\t%s\n", ids[i], line.text ? line.text : "");
        kvf_buf_fini(&line);
    }
}

static int tokenize_here(const options *o, const char *text, size_t len) {
    kvf_error err;
    local l;
    if (open_local(o->model, &l, &err) != KVF_OK) return kvf_cmd_failed(&err);
    int exit_status = KVF_EXIT_FAILED;
    uint8_t *trusted = NULL;
    uint32_t *ids = NULL, *all = NULL;
    size_t count = 0, bad_at = 0;
    if (!kvf_utf8_valid(text, len, &bad_at)) {
        fprintf(stderr, "kvferry: the text is not UTF-8 at byte %zu\n", bad_at);
        goto done;
    }
    if (o->special) {
        trusted = malloc(len + 1);
        if (!trusted) goto done;
        memset(trusted, 1, len + 1);
    }
    kvf_status status = kvf_tokenizer_encode(l.tokenizer, text, len, trusted, SIZE_MAX / 8, &ids, &count);
    if (status != KVF_OK) {
        kvf_fail(&err, status, "%s", kvf_status_text(status));
        kvf_cmd_failed(&err);
        goto done;
    }
    const kvf_tokenizer_info *info = kvf_tokenizer_get_info(l.tokenizer);
    bool bos = info->bos != KVF_TOKEN_NONE && (o->add_bos == 0 ? info->add_bos : o->add_bos == 1);
    all = malloc((count + 1) * sizeof *all);
    if (!all) goto done;
    if (bos) all[0] = info->bos;
    if (count) memcpy(all + bos, ids, count * sizeof *ids);
    if (o->pieces)
        print_pieces(l.tokenizer, all, count + bos);
    else
        print_ids(all, count + bos);
    exit_status = KVF_EXIT_OK;
done:
    free(all);
    free(ids);
    free(trusted);
    close_local(&l);
    return exit_status;
}

static int tokenize_there(const options *o, const char *text, size_t len) {
    int status;
    kvf_client *c = kvf_client_open(o->router, &o->tls, &status);
    if (!c) return status;
    Kvferry__V1__TokenizeRequest r = KVFERRY__V1__TOKENIZE_REQUEST__INIT;
    r.input_case = KVFERRY__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    r.text = kvf_proto_bytes(text, len);
    r.parse_special = o->special;
    if (o->add_bos) {
        r._add_bos_case = KVFERRY__V1__TOKENIZE_REQUEST___ADD_BOS_ADD_BOS;
        r.add_bos = o->add_bos == 1;
    }
    ProtobufCMessage *m = kvf_client_call(c, &kvferry__v1__inference__descriptor, "Tokenize", &r.base, 30000, &status);
    if (m) {
        const Kvferry__V1__TokenizeResponse *answer = (const void *)m;
        print_ids(answer->token_ids, answer->n_token_ids);
    }
    kvf_rpc_message_free(m);
    kvf_client_close(c);
    return status;
}

static int run_tokenize(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    size_t len;
    bool there = use_router(command, o, args);
    if (there && o->pieces) return kvf_cmd_usage(command, "--pieces needs --model");
    char *text = kvf_cmd_text(args->positional_count ? args->positional[0] : NULL, &len);
    if (!text) return KVF_EXIT_FAILED;
    int status = there ? tokenize_there(o, text, len) : tokenize_here(o, text, len);
    free(text);
    return status;
}

/* `text`: whole characters, what was not UTF-8 as U+FFFD. */
static void print_text(const options *o, kvf_span text, kvf_span raw) {
    if (o->json) {
        kvf_buf line = {0};
        kvf_buf_puts(&line, "{\"text\":");
        kvf_json_string(&line, text.data, text.len_bytes);
        kvf_buf_putc(&line, '}');
        puts(line.text);
        kvf_buf_fini(&line);
        return;
    }
    kvf_span shown = o->raw ? raw : text;
    if (shown.len_bytes) fwrite(shown.data, 1, shown.len_bytes, stdout);
    if (!o->raw) putchar('\n');
}

static int detokenize_here(const options *o, const uint32_t *ids, size_t count) {
    kvf_error err;
    local l;
    if (open_local(o->model, &l, &err) != KVF_OK) return kvf_cmd_failed(&err);
    int exit_status = KVF_EXIT_FAILED;
    kvf_detok d;
    kvf_buf raw = {0}, text = {0};
    kvf_detok_init(&d, l.tokenizer, true);
    for (size_t i = 0; i < count; i++) {
        kvf_span piece;
        if (!kvf_tokenizer_piece(l.tokenizer, ids[i], &piece)) {
            fprintf(stderr, "kvferry: token id %u: the model has %u\n", ids[i],
                kvf_tokenizer_get_info(l.tokenizer)->vocab_size);
            goto done;
        }
        kvf_buf_add(&raw, piece.data, piece.len_bytes);
        char *out = malloc(kvf_detok_bound(&d, ids[i]) + 1);
        if (!out) goto done;
        kvf_buf_add(&text, out, kvf_detok_push(&d, ids[i], out));
        free(out);
    }
    char tail[16];
    kvf_buf_add(&text, tail, kvf_detok_finish(&d, tail));
    print_text(o, (kvf_span){text.text, text.len_bytes}, (kvf_span){raw.text, raw.len_bytes});
    exit_status = KVF_EXIT_OK;
done:
    kvf_buf_fini(&raw);
    kvf_buf_fini(&text);
    close_local(&l);
    return exit_status;
}

static int detokenize_there(const options *o, uint32_t *ids, size_t count) {
    int status;
    kvf_client *c = kvf_client_open(o->router, &o->tls, &status);
    if (!c) return status;
    Kvferry__V1__DetokenizeRequest r = KVFERRY__V1__DETOKENIZE_REQUEST__INIT;
    r.n_token_ids = count;
    r.token_ids = ids;
    ProtobufCMessage *m =
        kvf_client_call(c, &kvferry__v1__inference__descriptor, "Detokenize", &r.base, 30000, &status);
    if (m) {
        const Kvferry__V1__DetokenizeResponse *answer = (const void *)m;
        print_text(o, kvf_proto_span(answer->text), kvf_proto_span(answer->raw));
    }
    kvf_rpc_message_free(m);
    kvf_client_close(c);
    return status;
}

static int run_detokenize(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    kvf_buf joined = {0};
    for (uint32_t i = 0; i < args->positional_count; i++) {
        if (i) kvf_buf_putc(&joined, ' ');
        kvf_buf_puts(&joined, args->positional[i]);
    }
    size_t len = 0, count = 0;
    uint32_t *ids = NULL;
    char *text = kvf_cmd_text(args->positional_count ? joined.text : NULL, &len);
    kvf_buf_fini(&joined);
    if (!text) return KVF_EXIT_FAILED;
    int status;
    if (!kvf_cmd_parse_ids(text, len, &ids, &count))
        status = kvf_cmd_usage(command, "\"%.80s\" is not a list of token ids, like \"1,2,3\"", text);
    else
        status = use_router(command, o, args) ? detokenize_there(o, ids, count) : detokenize_here(o, ids, count);
    free(ids);
    free(text);
    return status;
}

#define COMMON_ROWS                                                                                                    \
    {"model", 'm', KVF_ARG_TEXT, "FILE", "use this model file", offsetof(options, model), 0, 0, "KVFERRY_MODEL",       \
        false},                                                                                                        \
        KVF_CLIENT_TLS_ROWS(options, tls), {                                                                           \
        "router", 'r', KVF_ARG_TEXT, "HOST:PORT",                                                                      \
            "ask this router (default " KVF_CLI_ROUTER ", where no model is named)", offsetof(options, router), 0, 0,  \
            "KVFERRY_ROUTER", false                                                                                    \
    }

static const kvf_arg tokenize_rows[] = {
    COMMON_ROWS,
    {"special", 0, KVF_ARG_FLAG, "", "text like <|im_end|> is that control token", offsetof(options, special), 0, 0,
        NULL, false},
    {"add-bos", 0, KVF_ARG_CHOICE, "model|yes|no",
        "begin with the token that begins texts (default: as the model asks)", offsetof(options, add_bos), 0, 0, NULL,
        false},
    {"pieces", 0, KVF_ARG_FLAG, "", "one line per token, with its text (needs --model)", offsetof(options, pieces), 0,
        0, NULL, false},
    {"json", 0, KVF_ARG_FLAG, "", "the answer is JSON anyway", offsetof(options, json), 0, 0, NULL, false},
};
const kvf_command kvf_cmd_tokenize = {
    .name = "tokenize",
    .positional = "[TEXT]",
    .positional_max = 1,
    .summary = "token ids of a text, as JSON; without TEXT (or with -) from stdin",
    .rows = tokenize_rows,
    .rows_count = KVF_COUNT_OF(tokenize_rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_tokenize,
};

static const kvf_arg detokenize_rows[] = {
    COMMON_ROWS,
    {"raw", 0, KVF_ARG_FLAG, "", "the bytes as they are, and no newline", offsetof(options, raw), 0, 0, NULL, false},
    {"json", 0, KVF_ARG_FLAG, "", "{\"text\": ...}", offsetof(options, json), 0, 0, NULL, false},
};
const kvf_command kvf_cmd_detokenize = {
    .name = "detokenize",
    .positional = "[IDS]",
    .positional_max = KVF_ARGS_POSITIONAL_MAX,
    .summary = "the text of token ids: \"1,2,3\", [1,2,3] or 1 2 3",
    .rows = detokenize_rows,
    .rows_count = KVF_COUNT_OF(detokenize_rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_detokenize,
};
