/* model.h - what the router knows of the model: the file's tokenizer, template and limits. Immutable after loading. */
#ifndef FRONT_MODEL_H
#define FRONT_MODEL_H
#include "fault.h"
#include "kvf/template.h"
#include "kvf/tokenizer.h"
#include "kvferry/v1/kvferry.pb-c.h"

typedef struct {
    char id[128], arch[16], dtype[16];
    uint32_t vocab; /* ids below this are tokens */
    uint32_t context_max, block_tokens;
    uint64_t kv_bytes_per_token; /* with f16 KV */
    uint64_t weights_hash[2];
    kvf_hash128 template_hash;
    kvf_gguf *gguf;
    kvf_tokenizer *tokenizer;
    kvf_template *chat_template; /* NULL: none, template_why says why */
    char template_why[300];
    bool template_has_tools; /* the template mentions tools */
    json_t *trusted_vars; /* bos_token, eos_token */
} front_model;

kvf_status front_model_load(const char *path, const char *id, front_model *out, kvf_error *err);
/* From an open file (kept until free; not closed by it). For tests. */
kvf_status front_model_take(kvf_gguf *gguf, const char *id, front_model *out, kvf_error *err);
void front_model_free(front_model *m);
/* True: `name` is empty or this model. */
bool front_model_is(const front_model *m, ProtobufCBinaryData name);
void front_model_info(const front_model *m, Kvferry__V1__ModelInfo *out, char hashes[3][40]);
#endif
