/* chat.h - from what a client typed to token ids. Text of clients never becomes a control token, unless they ask for it
 * in their own plain-text prompt (parse_special). Pure but for malloc; any thread. */
#ifndef FRONT_CHAT_H
#define FRONT_CHAT_H
#include "model.h"

typedef struct {
    uint32_t *ids; /* malloc'ed, freed with free; NULL when count is 0 */
    size_t count;
    char *rendered; /* chat: the prompt as text, malloc'ed; NULL: none */
    size_t rendered_bytes;
} front_prompt;
void front_prompt_free(front_prompt *p);

typedef enum { BOS_AS_MODEL, BOS_YES, BOS_NO } front_bos;

/* field: how the input is called in messages ("text", "chat"). False: *f says why.
 * BOS comes exactly once where it is wanted, also when a template prints it by itself. */
bool front_encode_text(const front_model *m, ProtobufCBinaryData text, bool parse_special, front_bos bos,
    size_t ids_max, front_prompt *out, fault *f);
bool front_encode_chat(const front_model *m, const Kvferry__V1__ChatInput *chat, front_bos bos, size_t ids_max,
    int64_t now_unix, front_prompt *out, fault *f);
/* Sets f to INVALID_ARGUMENT when the bytes are not UTF-8. */
bool front_check_utf8(ProtobufCBinaryData text, const char *field, fault *f);
#endif
