/* config_int.h - the store behind kvf/config.h, shared by its loaders and printers. */
#ifndef KVF_CONFIG_INT_H
#define KVF_CONFIG_INT_H
#include "kvf/config.h"

typedef enum {
    KVF_CONFIG_FROM_NOWHERE,
    KVF_CONFIG_FROM_DEFAULT,
    KVF_CONFIG_FROM_FILE,
    KVF_CONFIG_FROM_ENV,
    KVF_CONFIG_FROM_FLAG
} kvf_config_origin;

typedef struct {
    kvf_config_origin origin;
    char *place; /* owned: "file:line:col", name of the variable or flag */
    char *text; /* owned: as written; of scalars */
    char **items; /* owned: texts of U32S and STRINGS; of MAPS, field_count texts a map (NULL: not given) */
    size_t item_count;
    uint64_t number; /* also of BOOL */
    double real;
} config_value;

struct kvf_config {
    const kvf_config_schema *schema;
    config_value *values; /* one a key */
    char **errors; /* owned */
    size_t error_count, error_cap;
    bool no_memory; /* something that was said could not be kept: what is being loaded fails with that */
};

enum { CONFIG_ERRORS_MAX = 100, CONFIG_TEXT_MAX = 4096, CONFIG_ITEMS_MAX = 4096 };

/* A list whose items are scalars. */
static inline bool kvf_config_is_list(const kvf_config_key *k) {
    return k->type == KVF_CONFIG_U32S || k->type == KVF_CONFIG_STRINGS;
}
/* false: why says how many items there may be. */
bool kvf_config_count_fits(const kvf_config_key *k, size_t count, char *why, size_t why_bytes);

/* Adds "place: key: <text>". */
void kvf_config_error_add(kvf_config *c, const char *place, const char *key, const char *fmt, ...) KVF_PRINTF(4, 5);
size_t kvf_config_key_index(const kvf_config_schema *s, const char *key); /* count: absent */
/* Checks `text` against the key's type, range and choices; false with the reason in why. */
bool kvf_config_parse(
    const kvf_config_key *k, const char *text, uint64_t *number, double *real, char *why, size_t why_bytes);
const char *kvf_config_expected(
    const kvf_config_key *k, char *buffer, size_t size_bytes); /* "a duration like 250ms or 3s" */
/* The one of the words (separated by spaces) that is nearest to `text`, copied to buffer; NULL: none is near. */
const char *kvf_config_nearest(const char *words, const char *text, char *buffer, size_t size_bytes);
unsigned kvf_config_distance(const char *a, const char *b);

/* Takes ownership of nothing: texts are copied. items: texts of a list, or NULL for a scalar. */
void kvf_config_store(kvf_config *c, size_t index, kvf_config_origin origin, const char *place, const char *text,
    char *const *items, size_t item_count);
void kvf_config_format(const kvf_config_key *k, const config_value *v, FILE *out);
char *kvf_config_copy(kvf_config *c, const char *text); /* NULL: sets no_memory */
kvf_status kvf_config_verdict(const kvf_config *c, size_t errors_before); /* of one load */
#endif
