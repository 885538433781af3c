/* vocab.h - the token list: bytes of each id, id of given bytes. Private to the tokenizer.
 *
 * A token of a byte-level vocabulary is written in 256 letters, one per byte (GPT-2's table). Ordinary tokens are kept
 * as the bytes those letters stand for; control tokens, user-defined ones and ordinary ones that use other letters are
 * kept as written
 * ("raw"). The two live apart: the ordinary token for the bytes "stop" and a control token written "stop" may both
 * exist, and text can reach only the first. */
#ifndef KVF_TOKENIZER_VOCAB_H
#define KVF_TOKENIZER_VOCAB_H
#include "kvf/gguf.h"

#define KVF_VOCAB_NONE UINT32_MAX
#define KVF_VOCAB_TOKENS_MAX (1u << 22)

typedef enum { /* numbers of tokenizer.ggml.token_type */
    KVF_TOKEN_NORMAL = 1,
    KVF_TOKEN_UNKNOWN = 2,
    KVF_TOKEN_CONTROL = 3,
    KVF_TOKEN_USER_DEFINED = 4,
    KVF_TOKEN_UNUSED = 5,
    KVF_TOKEN_BYTE = 6,
} kvf_token_type;

typedef struct {
    uint32_t count;
    uint8_t *pool; /* all tokens' bytes, in order */
    uint32_t *starts; /* count + 1 offsets into pool */
    uint8_t *types; /* kvf_token_type */
    uint8_t *raw; /* 1: kept as written */
    uint32_t *slots; /* open addressing over (raw, bytes) -> id; KVF_VOCAB_NONE is free */
    uint32_t slots_mask;
    uint32_t longest_bytes;
} kvf_vocab;

/* g is not needed afterwards. On failure v is empty. */
kvf_status kvf_vocab_init(kvf_vocab *v, const kvf_gguf *g, kvf_error *err);
void kvf_vocab_fini(kvf_vocab *v);

/* Bytes of an id < count. */
static inline kvf_span kvf_vocab_bytes(const kvf_vocab *v, uint32_t id) {
    return (kvf_span){v->pool + v->starts[id], v->starts[id + 1] - v->starts[id]};
}
uint32_t kvf_vocab_find(const kvf_vocab *v, bool raw, const void *bytes, size_t len_bytes);

/* Letters -> bytes. out: room for len_bytes. false: a character that is none of the 256 letters. */
bool kvf_vocab_unletter(const uint8_t *text, size_t len_bytes, uint8_t *out, size_t *out_bytes);

/* Printable beginning of bytes from a file, for messages. */
#define KVF_QUOTE_MAX 48
const char *kvf_vocab_quote(kvf_span bytes, char out[KVF_QUOTE_MAX]);
#endif
