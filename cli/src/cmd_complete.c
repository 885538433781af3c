/* complete: one prompt, its continuation. */
#include "cmd.h"
#include "generate.h"
#include "json.h"
#include "kvf/proto.h"
#include "term.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    kvf_generate_options g; /* first: its rows are shared */
    bool special, ids;
    uint32_t add_bos, prompt_logprobs;
} options;

bool kvf_cmd_parse_ids(const char *text, size_t len, uint32_t **out, size_t *count) {
    uint32_t *ids = malloc((len / 2 + 1) * sizeof *ids);
    size_t n = 0;
    if (!ids) return false;
    for (const char *at = text, *end = text + len; at < end;) {
        if (strchr("[], \t\n\r", *at)) {
            at++;
            continue;
        }
        uint64_t v = 0;
        const char *start = at;
        for (; at < end && *at >= '0' && *at <= '9' && v <= UINT32_MAX; at++) v = v * 10 + (uint64_t)(*at - '0');
        if (at == start || v > UINT32_MAX || (at < end && !strchr("[], \t\n\r", *at))) {
            free(ids);
            return false;
        }
        ids[n++] = (uint32_t)v;
    }
    *out = ids;
    *count = n;
    return true;
}

static void print_choices(const Kvferry__V1__CompleteResponse *answer, bool clean) {
    for (size_t i = 0; i < answer->n_completions; i++) {
        const Kvferry__V1__Completion *c = answer->completions[i];
        kvf_buf shown = {0};
        if (clean)
            kvf_term_clean(&shown, c->text.data, c->text.len);
        else
            kvf_buf_add(&shown, c->text.data, c->text.len);
        if (answer->n_completions > 1) printf("--- %u\n", c->index);
        if (shown.len_bytes) fwrite(shown.text, 1, shown.len_bytes, stdout);
        if (!shown.len_bytes || shown.text[shown.len_bytes - 1] != '\n') putchar('\n');
        kvf_buf_fini(&shown);
    }
}

static int run_unary(kvf_client *client, const kvf_generate_request *r, const options *o) {
    int status;
    ProtobufCMessage *answer = kvf_client_call(client, &kvferry__v1__inference__descriptor, "Complete",
        &r->request.base, kvf_generate_deadline_ms(&o->g), &status);
    if (!answer) return status;
    if (o->g.json)
        kvf_cmd_print_json(answer);
    else
        print_choices((const void *)answer, kvf_term_is(stdout));
    kvf_rpc_message_free(answer);
    return KVF_EXIT_OK;
}

static int run_stream(kvf_client *client, const kvf_generate_request *r, const options *o) {
    kvf_rpc_result result;
    kvf_generate_run run = {.logprobs = r->output.logprobs};
    kvf_status status = kvf_generate_stream(client, r, kvf_generate_deadline_ms(&o->g), &run, &result);
    if (status != KVF_OK) return kvf_client_report(client, &result);
    if (o->g.stats) {
        kvf_buf line = {0};
        kvf_generate_stats(&run, &line);
        fprintf(stderr, "%s\n", line.text);
        kvf_buf_fini(&line);
    }
    return KVF_EXIT_OK;
}

static int run(const kvf_command *command, const void *opts, const kvf_args *args) {
    const options *o = opts;
    size_t len;
    uint32_t *ids = NULL;
    int status = KVF_EXIT_FAILED;
    char *prompt = kvf_cmd_text(args->positional_count ? args->positional[0] : NULL, &len);
    if (!prompt) return KVF_EXIT_FAILED;
    kvf_generate_request r;
    kvf_generate_request_init(&r, command, &o->g, args);
    if (o->ids) {
        size_t count;
        if (!kvf_cmd_parse_ids(prompt, len, &ids, &count)) {
            status = kvf_cmd_usage(command, "--ids: the prompt must be token ids, like \"1,2,3\"");
            goto done;
        }
        kvferry__v1__token_ids__init(&r.ids);
        r.ids.n_ids = count;
        r.ids.ids = ids;
        r.request.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
        r.request.token_ids = &r.ids;
    } else {
        r.request.input_case = KVFERRY__V1__GENERATE_REQUEST__INPUT_TEXT;
        r.request.text = kvf_proto_bytes(prompt, len);
    }
    r.request.parse_special = o->special;
    if (o->add_bos) {
        r.request._add_bos_case = KVFERRY__V1__GENERATE_REQUEST___ADD_BOS_ADD_BOS;
        r.request.add_bos = o->add_bos == 1;
    }
    if (kvf_args_given(command, args, "prompt-logprobs")) {
        r.output._prompt_logprobs_case = KVFERRY__V1__OUTPUT_OPTIONS___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
        r.output.prompt_logprobs = o->prompt_logprobs;
    }
    kvf_client *client = kvf_client_open(o->g.router, &o->g.tls, &status);
    if (!client) goto done;
    bool whole = o->g.json || o->g.choices > 1;
    status = whole ? run_unary(client, &r, o) : run_stream(client, &r, o);
    kvf_client_close(client);
done:
    free(ids);
    free(prompt);
    return status;
}

static const kvf_arg rows[] = {
    KVF_GENERATE_ROWS(options, g),
    {"choices", 'c', KVF_ARG_U32, "N", "N answers to the same prompt", offsetof(options, g.choices), 1, 128, NULL,
        false},
    {"special", 0, KVF_ARG_FLAG, "", "text like <|im_end|> in the prompt is a control token",
        offsetof(options, special), 0, 0, NULL, false},
    {"ids", 0, KVF_ARG_FLAG, "", "the prompt is token ids: \"1,2,3\"", offsetof(options, ids), 0, 0, NULL, false},
    {"add-bos", 0, KVF_ARG_CHOICE, "model|yes|no",
        "begin with the token that begins texts (default: as the model asks)", offsetof(options, add_bos), 0, 0, NULL,
        false},
    {"prompt-logprobs", 0, KVF_ARG_U32, "K", "with --json: log-probabilities of the prompt's tokens, and of the K best",
        offsetof(options, prompt_logprobs), 0, 0, NULL, false},
};
static const options defaults = {.g = KVF_GENERATE_DEFAULTS};

const kvf_command kvf_cmd_complete = {
    .name = "complete",
    .positional = "[PROMPT]",
    .positional_max = 1,
    .summary = "continue a text; without PROMPT (or with -) the text comes from stdin",
    .rows = rows,
    .rows_count = KVF_COUNT_OF(rows),
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run,
};
