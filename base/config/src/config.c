/* config.c - the store: values with their origin, environment, flags, getters. A value of a stronger origin is never
 * replaced by a weaker one, so files, environment and flags may be loaded in any order. */
#include "config_int.h"
#include <stdarg.h>
#include <stdlib.h>

char *kvf_config_copy(kvf_config *c, const char *text) {
    char *copy = strdup(text);
    if (!copy) c->no_memory = true;
    return copy;
}

void kvf_config_error_add(kvf_config *c, const char *place, const char *key, const char *fmt, ...) {
    char text[1500], line[2000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (c->error_count == CONFIG_ERRORS_MAX) return;
    snprintf(line, sizeof line, "%s: %s%s%s", place, key, *key ? ": " : "", text);
    if (c->error_count == c->error_cap) {
        size_t cap = c->error_cap ? c->error_cap * 2 : 8;
        char **grown = realloc(c->errors, cap * sizeof *grown);
        if (!grown) {
            c->no_memory = true;
            return;
        }
        c->errors = grown;
        c->error_cap = cap;
    }
    char *copy = kvf_config_copy(c, line);
    if (copy) c->errors[c->error_count++] = copy;
}

size_t kvf_config_error_count(const kvf_config *c) { return c->error_count; }
const char *kvf_config_error_at(const kvf_config *c, size_t index) {
    KVF_ASSERT(index < c->error_count);
    return c->errors[index];
}

size_t kvf_config_key_index(const kvf_config_schema *s, const char *key) {
    size_t i = 0;
    while (i < s->count && strcmp(s->keys[i].key, key) != 0) i++;
    return i;
}

static void value_clear(config_value *v) {
    for (size_t i = 0; i < v->item_count; i++) free(v->items[i]);
    free(v->items);
    free(v->text);
    free(v->place);
    *v = (config_value){0};
}

/* false: no memory, and v holds what there was to copy. */
static bool value_copy(
    kvf_config *c, config_value *v, const char *place, const char *text, char *const *items, size_t item_count) {
    v->place = kvf_config_copy(c, place);
    if (text) v->text = kvf_config_copy(c, text);
    if (!v->place || (text && !v->text)) return false;
    if (!item_count) return true;
    v->items = calloc(item_count, sizeof *v->items);
    if (!v->items) {
        c->no_memory = true;
        return false;
    }
    v->item_count = item_count;
    for (size_t i = 0; i < item_count; i++)
        if (items[i] && !(v->items[i] = kvf_config_copy(c, items[i]))) return false;
    return true;
}

void kvf_config_store(kvf_config *c, size_t index, kvf_config_origin origin, const char *place, const char *text,
    char *const *items, size_t item_count) {
    config_value v = {.origin = origin};
    char why[1000];
    if (!value_copy(c, &v, place, text, items, item_count) || origin < c->values[index].origin) {
        value_clear(&v);
        return;
    }
    if (text) {
        bool ok = kvf_config_parse(&c->schema->keys[index], text, &v.number, &v.real, why, sizeof why);
        KVF_ASSERT(ok); /* callers have checked */
    }
    value_clear(&c->values[index]);
    c->values[index] = v;
}

/* A value written as one text: a scalar, or a list separated by commas. */
static bool set_text(kvf_config *c, size_t index, kvf_config_origin origin, const char *place, const char *text) {
    const kvf_config_key *k = &c->schema->keys[index];
    uint64_t number;
    double real;
    char why[1000];
    if (!kvf_config_is_list(k)) {
        if (!kvf_config_parse(k, text, &number, &real, why, sizeof why)) {
            kvf_config_error_add(c, place, k->key, "%s", why);
            return false;
        }
        kvf_config_store(c, index, origin, place, text, NULL, 0);
        return true;
    }
    char *copy = kvf_config_copy(c, text), *items[64], *save = NULL;
    if (!copy) return false;
    size_t count = 0;
    bool ok = true;
    for (char *p = strtok_r(copy, ",", &save); p && ok; p = strtok_r(NULL, ",", &save)) {
        ok = count < KVF_COUNT_OF(items) && kvf_config_parse(k, p, &number, &real, why, sizeof why);
        if (ok) items[count++] = p;
    }
    if (!ok) kvf_config_error_add(c, place, k->key, "%s", count == KVF_COUNT_OF(items) ? "too many items" : why);
    if (ok && !kvf_config_count_fits(k, count, why, sizeof why)) {
        kvf_config_error_add(c, place, k->key, "%s", why);
        ok = false;
    }
    if (ok) kvf_config_store(c, index, origin, place, NULL, items, count);
    free(copy);
    return ok;
}

kvf_status kvf_config_verdict(const kvf_config *c, size_t errors_before) {
    if (c->no_memory) return KVF_ERR_NO_MEMORY;
    return c->error_count == errors_before ? KVF_OK : KVF_ERR_FORMAT;
}

kvf_status kvf_config_create(const kvf_config_schema *schema, kvf_config **out) {
    kvf_config *c = calloc(1, sizeof *c);
    if (!c) return KVF_ERR_NO_MEMORY;
    c->schema = schema;
    c->values = calloc(schema->count, sizeof *c->values);
    if (!c->values) {
        free(c);
        return KVF_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < schema->count; i++) {
        if (!schema->keys[i].initial) continue;
        bool ok = set_text(c, i, KVF_CONFIG_FROM_DEFAULT, "default", schema->keys[i].initial);
        KVF_ASSERT(ok || c->no_memory); /* a table with a wrong default */
    }
    if (c->no_memory) {
        kvf_config_destroy(c);
        return KVF_ERR_NO_MEMORY;
    }
    *out = c;
    return KVF_OK;
}

void kvf_config_destroy(kvf_config *c) {
    if (!c) return;
    for (size_t i = 0; i < c->schema->count; i++) value_clear(&c->values[i]);
    for (size_t i = 0; i < c->error_count; i++) free(c->errors[i]);
    free(c->errors);
    free(c->values);
    free(c);
}

/* ---- environment and flags ---- */
static void env_name(const kvf_config_schema *s, const kvf_config_key *k, char *b, size_t n) {
    snprintf(b, n, "%s%s", s->env_prefix, k->key);
    for (char *p = b + strlen(s->env_prefix); *p; p++)
        *p = (char)(*p == '.' ? '_' : *p >= 'a' && *p <= 'z' ? *p - 32 : *p);
}

kvf_status kvf_config_load_env(kvf_config *c, const char *const *environment) {
    size_t before = c->error_count;
    for (size_t i = 0; i < c->schema->count; i++) {
        char name[160], place[180];
        env_name(c->schema, &c->schema->keys[i], name, sizeof name);
        size_t n = strlen(name);
        snprintf(place, sizeof place, "env %s", name);
        for (const char *const *e = environment; e && *e; e++)
            if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') set_text(c, i, KVF_CONFIG_FROM_ENV, place, *e + n + 1);
    }
    return kvf_config_verdict(c, before);
}

const kvf_config_key *kvf_config_flag_find(const kvf_config_schema *s, const char *name) {
    for (size_t i = 0; i < s->count; i++)
        if ((s->keys[i].flag && strcmp(s->keys[i].flag, name) == 0) || strcmp(s->keys[i].key, name) == 0)
            return &s->keys[i];
    return NULL;
}

kvf_status kvf_config_set_flag(kvf_config *c, const char *name, const char *value) {
    char place[200], near[64];
    snprintf(place, sizeof place, "flag --%.150s", name);
    const kvf_config_key *k = kvf_config_flag_find(c->schema, name);
    if (k) {
        size_t before = c->error_count;
        set_text(c, (size_t)(k - c->schema->keys), KVF_CONFIG_FROM_FLAG, place, value);
        return kvf_config_verdict(c, before);
    }
    const char *meant = NULL;
    unsigned best = 3;
    for (size_t i = 0; i < c->schema->count; i++) {
        const char *flag = c->schema->keys[i].flag ? c->schema->keys[i].flag : c->schema->keys[i].key;
        unsigned d = kvf_config_distance(flag, name);
        if (d >= best) continue;
        best = d;
        snprintf(near, sizeof near, "%s", flag);
        meant = near;
    }
    kvf_config_error_add(c, place, "", "there is no such flag%s%s%s", meant ? ", did you mean '--" : "",
        meant ? meant : "", meant ? "'?" : "");
    return KVF_ERR_NOT_FOUND;
}

/* ---- getters ---- */
static const config_value *value_of(
    const kvf_config *c, const char *key, kvf_config_type a, kvf_config_type b, kvf_config_type d) {
    size_t i = kvf_config_key_index(c->schema, key);
    KVF_ASSERT(i < c->schema->count);
    kvf_config_type t = c->schema->keys[i].type;
    KVF_ASSERT(t == a || t == b || t == d);
    return &c->values[i];
}

bool kvf_config_is_set(const kvf_config *c, const char *key) {
    size_t i = kvf_config_key_index(c->schema, key);
    KVF_ASSERT(i < c->schema->count);
    return c->values[i].origin != KVF_CONFIG_FROM_NOWHERE;
}
const char *kvf_config_string(const kvf_config *c, const char *key) {
    return value_of(c, key, KVF_CONFIG_STRING, KVF_CONFIG_ADDRESS, KVF_CONFIG_ENUM)->text;
}
bool kvf_config_bool(const kvf_config *c, const char *key) {
    return value_of(c, key, KVF_CONFIG_BOOL, KVF_CONFIG_BOOL, KVF_CONFIG_BOOL)->number != 0;
}
uint32_t kvf_config_u32(const kvf_config *c, const char *key) {
    return (uint32_t)value_of(c, key, KVF_CONFIG_U32, KVF_CONFIG_U32, KVF_CONFIG_U32)->number;
}
uint64_t kvf_config_u64(const kvf_config *c, const char *key) {
    return value_of(c, key, KVF_CONFIG_U64, KVF_CONFIG_SIZE, KVF_CONFIG_DURATION)->number;
}
double kvf_config_double(const kvf_config *c, const char *key) {
    return value_of(c, key, KVF_CONFIG_DOUBLE, KVF_CONFIG_DOUBLE, KVF_CONFIG_DOUBLE)->real;
}
size_t kvf_config_list_count(const kvf_config *c, const char *key) {
    const config_value *v = value_of(c, key, KVF_CONFIG_U32S, KVF_CONFIG_STRINGS, KVF_CONFIG_MAPS);
    const kvf_config_key *k = &c->schema->keys[v - c->values];
    return k->type == KVF_CONFIG_MAPS ? v->item_count / k->field_count : v->item_count;
}
uint32_t kvf_config_list_u32(const kvf_config *c, const char *key, size_t index) {
    const config_value *v = value_of(c, key, KVF_CONFIG_U32S, KVF_CONFIG_U32S, KVF_CONFIG_U32S);
    uint64_t number;
    double real;
    char why[1000];
    KVF_ASSERT(index < v->item_count);
    bool ok = kvf_config_parse(&c->schema->keys[v - c->values], v->items[index], &number, &real, why, sizeof why);
    KVF_ASSERT(ok); /* it was, when it was stored */
    return (uint32_t)number;
}
const char *kvf_config_list_string(const kvf_config *c, const char *key, size_t index) {
    const config_value *v = value_of(c, key, KVF_CONFIG_STRINGS, KVF_CONFIG_STRINGS, KVF_CONFIG_STRINGS);
    KVF_ASSERT(index < v->item_count);
    return v->items[index];
}
const char *kvf_config_map_string(const kvf_config *c, const char *key, size_t index, const char *field) {
    const config_value *v = value_of(c, key, KVF_CONFIG_MAPS, KVF_CONFIG_MAPS, KVF_CONFIG_MAPS);
    const kvf_config_key *k = &c->schema->keys[v - c->values];
    size_t f = 0;
    while (f < k->field_count && strcmp(k->fields[f].key, field) != 0) f++;
    KVF_ASSERT(f < k->field_count && index < v->item_count / k->field_count);
    const char *text = v->items[index * k->field_count + f];
    return text ? text : k->fields[f].initial;
}

const char *kvf_config_source(const kvf_config *c, const char *key, char *b, size_t n) {
    size_t i = kvf_config_key_index(c->schema, key);
    KVF_ASSERT(i < c->schema->count);
    snprintf(b, n, "%s", c->values[i].origin == KVF_CONFIG_FROM_NOWHERE ? "not set" : c->values[i].place);
    return b;
}
