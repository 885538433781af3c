/* kvf/config.h - configuration by one table: flags > environment > YAML file > defaults.
 * A schema is a static table of keys; a kvf_config holds a value for each, and where it came from. Loading never stops
 * at the first mistake: all are collected as "file:line:col: key.path: what, expected ..., did you mean ...". Order of
 * loading does not matter. Not for several threads while loading; afterwards it is only read. */
#ifndef KVF_CONFIG_H
#define KVF_CONFIG_H
#include "kvf/base.h"
#include <stdio.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    KVF_CONFIG_STRING,
    KVF_CONFIG_ADDRESS, /* host:port, [v6]:port or unix:/path, kept as text */
    KVF_CONFIG_ENUM, /* one of `choices` */
    KVF_CONFIG_BOOL,
    KVF_CONFIG_U32,
    KVF_CONFIG_U64,
    KVF_CONFIG_SIZE, /* bytes: 4096, 64KiB, 512MiB, 2GiB, 1GB */
    KVF_CONFIG_DURATION, /* nanoseconds: 250ms, 3s, 5m, 1h */
    KVF_CONFIG_DOUBLE,
    KVF_CONFIG_U32S, /* whole numbers: a list, or one alone; min and max are of each. In a flag or variable: 1,2 */
    KVF_CONFIG_STRINGS, /* a list; with `choices`, each one of them. In a flag or variable: a,b,c */
    KVF_CONFIG_MAPS, /* a list of maps with `fields`; only in a file */
} kvf_config_type;

typedef struct kvf_config_key {
    const char *key; /* "router.queue_max_requests" */
    kvf_config_type type;
    const char *initial; /* default, written as in a file; NULL: not set */
    uint64_t min, max; /* of whole numbers, sizes and durations, and items of lists; max 0: no limit */
    const char *choices; /* separated by spaces */
    const char *flag; /* "--<flag>"; NULL: none */
    const char *help;
    const struct kvf_config_key *fields; /* KVF_CONFIG_MAPS: keys of one map; a field without `initial` must be given */
    size_t field_count;
    double double_min, double_max; /* of KVF_CONFIG_DOUBLE, when they differ */
} kvf_config_key;

typedef struct {
    const char *title;
    const char *env_prefix; /* "KVFERRY_": router.listen is KVFERRY_ROUTER_LISTEN */
    const kvf_config_key *keys;
    size_t count;
} kvf_config_schema;

typedef struct kvf_config kvf_config;

kvf_status kvf_config_create(const kvf_config_schema *schema, kvf_config **out); /* schema: kept until destroy */
void kvf_config_destroy(kvf_config *c);

/* KVF_OK, KVF_ERR_IO (cannot be read) or KVF_ERR_FORMAT; the mistakes are added to the list of errors. */
kvf_status kvf_config_load_file(kvf_config *c, const char *path);
kvf_status kvf_config_load_text(kvf_config *c, const char *name, const char *text, size_t len_bytes);
kvf_status kvf_config_load_env(
    kvf_config *c, const char *const *environment); /* "NAME=value" ..., NULL; e.g. environ */
/* name: a key's flag or its whole key, without "--". KVF_ERR_NOT_FOUND: no such flag. */
kvf_status kvf_config_set_flag(kvf_config *c, const char *name, const char *value);
const kvf_config_key *kvf_config_flag_find(const kvf_config_schema *schema, const char *name);

size_t kvf_config_error_count(const kvf_config *c);
const char *kvf_config_error_at(const kvf_config *c, size_t index);

/* Values by key. An unknown key or another type is a bug. Not set: NULL, 0, false. */
bool kvf_config_is_set(const kvf_config *c, const char *key);
const char *kvf_config_string(const kvf_config *c, const char *key); /* also ADDRESS and ENUM; owned by c */
bool kvf_config_bool(const kvf_config *c, const char *key);
uint32_t kvf_config_u32(const kvf_config *c, const char *key);
uint64_t kvf_config_u64(const kvf_config *c, const char *key); /* also SIZE (bytes) and DURATION (ns) */
double kvf_config_double(const kvf_config *c, const char *key);
size_t kvf_config_list_count(const kvf_config *c, const char *key); /* U32S, STRINGS and MAPS */
uint32_t kvf_config_list_u32(const kvf_config *c, const char *key, size_t index); /* U32S */
const char *kvf_config_list_string(const kvf_config *c, const char *key, size_t index);
const char *kvf_config_map_string(
    const kvf_config *c, const char *key, size_t index, const char *field); /* the field's text */
/* "default", "file.yaml:3:5", "env KVFERRY_X", "flag --x", "not set". Returns buffer. */
const char *kvf_config_source(const kvf_config *c, const char *key, char *buffer, size_t size_bytes);

void kvf_config_explain(const kvf_config *c, FILE *out); /* each key, its value, where it came from */
void kvf_config_schema_text(const kvf_config_schema *s, FILE *out); /* a commented YAML file with all defaults */
void kvf_config_schema_json(const kvf_config_schema *s, FILE *out); /* JSON Schema, draft 2020-12 */
/* Rows "  --flag VALUE   help" of keys whose name starts with one of `prefixes` (separated by spaces; NULL: all). */
void kvf_config_flags_help(const kvf_config_schema *s, const char *prefixes, FILE *out);

/* host:port, [v6]:port, unix:/path: is it one? */
bool kvf_config_address_valid(const char *text);
#ifdef __cplusplus
}
#endif
#endif
