/* yaml.c - a YAML file into the store, with libyaml's event parser. The file is a tree of sections whose leaves are the
 * keys of the schema. Refused: aliases, anchors, tags, several documents, duplicates, NUL, text that is not UTF-8, more
 * than 256 KiB or eight levels. Every mistake gets its line and column; only broken syntax ends the walk. */
#include "config_int.h"
#include <errno.h>
#include <stdlib.h>
#include <yaml.h>

enum { FILE_MAX_BYTES = 256 * 1024, DEPTH_MAX = 8, PATH_MAX_BYTES = 256, SEEN_MAX = 512 };

typedef struct {
    kvf_config *c;
    const char *name;
    yaml_parser_t parser;
    char place[600];
    bool broken; /* syntax error or a limit: stop */
    uint32_t depth;
    struct {
        char *path; /* owned */
        unsigned line;
    } seen[SEEN_MAX];
    size_t seen_count;
} loader;

static const char *place_of(loader *l, yaml_mark_t mark) {
    snprintf(l->place, sizeof l->place, "%s:%zu:%zu", l->name, mark.line + 1, mark.column + 1);
    return l->place;
}

static bool next(loader *l, yaml_event_t *e) {
    if (l->broken || l->c->no_memory) return false;
    if (yaml_parser_parse(&l->parser, e)) return true;
    l->broken = true;
    kvf_config_error_add(l->c, place_of(l, l->parser.problem_mark), "", "%s%s%s",
        l->parser.problem ? l->parser.problem : "not YAML", l->parser.context ? " " : "",
        l->parser.context ? l->parser.context : "");
    return false;
}

static bool deeper(loader *l, yaml_mark_t mark) {
    if (l->depth < DEPTH_MAX) {
        l->depth++;
        return true;
    }
    kvf_config_error_add(l->c, place_of(l, mark), "", "nests deeper than %d levels", DEPTH_MAX);
    l->broken = true;
    return false;
}

/* Consumes what follows a start event that nobody wants. */
static void skip(loader *l, const yaml_event_t *start) {
    uint32_t open = start->type == YAML_MAPPING_START_EVENT || start->type == YAML_SEQUENCE_START_EVENT;
    while (open) {
        yaml_event_t e;
        if (!next(l, &e)) return;
        if (e.type == YAML_MAPPING_START_EVENT || e.type == YAML_SEQUENCE_START_EVENT) open++;
        if (e.type == YAML_MAPPING_END_EVENT || e.type == YAML_SEQUENCE_END_EVENT) open--;
        if (open > 64) {
            kvf_config_error_add(l->c, place_of(l, e.start_mark), "", "nests deeper than %d levels", DEPTH_MAX);
            l->broken = true;
        }
        yaml_event_delete(&e);
    }
}

/* Aliases, anchors and tags are refused where they stand; the node itself is read on. */
static void refuse_extras(loader *l, const yaml_event_t *e, const char *path) {
    const char *extra = NULL;
    if (e->type == YAML_ALIAS_EVENT) extra = "an alias (*name)";
    if (e->type == YAML_SCALAR_EVENT)
        extra = e->data.scalar.anchor ? "an anchor (&name)" : e->data.scalar.tag ? "a tag (!name)" : NULL;
    if (e->type == YAML_MAPPING_START_EVENT)
        extra = e->data.mapping_start.anchor ? "an anchor (&name)" : e->data.mapping_start.tag ? "a tag (!name)" : NULL;
    if (e->type == YAML_SEQUENCE_START_EVENT)
        extra = e->data.sequence_start.anchor ? "an anchor (&name)"
                : e->data.sequence_start.tag  ? "a tag (!name)"
                                              : NULL;
    if (extra)
        kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "%s is refused, expected the value itself", extra);
}

static const char *kind_of(const yaml_event_t *e) {
    return e->type == YAML_MAPPING_START_EVENT ? "a map" : e->type == YAML_SEQUENCE_START_EVENT ? "a list" : "an alias";
}

/* The text of a scalar; NULL (and an error) for an empty one, or a quoted one where a number or bool is wanted. */
static const char *scalar_text(loader *l, const yaml_event_t *e, const kvf_config_key *k, const char *path) {
    const char *text = (const char *)e->data.scalar.value;
    bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    char expected[600];
    if (plain && (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0)) {
        kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "has no value, expected %s",
            kvf_config_expected(k, expected, sizeof expected));
        return NULL;
    }
    if (!plain && (k->type == KVF_CONFIG_BOOL || k->type == KVF_CONFIG_U32 || k->type == KVF_CONFIG_U32S ||
                      k->type == KVF_CONFIG_U64 || k->type == KVF_CONFIG_DOUBLE)) {
        kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "is a quoted text, expected %s",
            kvf_config_expected(k, expected, sizeof expected));
        return NULL;
    }
    if (strlen(text) != e->data.scalar.length || strlen(text) > CONFIG_TEXT_MAX) {
        kvf_config_error_add(l->c, place_of(l, e->start_mark), path,
            "is too long or holds a NUL, expected at most %d bytes", CONFIG_TEXT_MAX);
        return NULL;
    }
    return text;
}

static void wrong_kind(loader *l, const yaml_event_t *e, const kvf_config_key *k, const char *path) {
    char expected[600];
    kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "is %s, expected %s", kind_of(e),
        kvf_config_expected(k, expected, sizeof expected));
    skip(l, e);
}

static bool parse_scalar(
    loader *l, const yaml_event_t *e, const kvf_config_key *k, const char *path, const char **text) {
    uint64_t number;
    double real;
    char why[1000];
    *text = scalar_text(l, e, k, path);
    if (!*text) return false;
    if (kvf_config_parse(k, *text, &number, &real, why, sizeof why)) return true;
    kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "%s", why);
    return false;
}

/* ---- lists ---- */
typedef struct {
    char **texts; /* owned; NULL for a field that was not given */
    size_t count, cap;
} text_list;

/* false: no memory. */
static bool list_add(kvf_config *c, text_list *t, const char *text) {
    if (t->count == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 16;
        char **grown = realloc(t->texts, cap * sizeof *grown);
        if (!grown) {
            c->no_memory = true;
            return false;
        }
        t->texts = grown;
        t->cap = cap;
    }
    char *copy = text ? kvf_config_copy(c, text) : NULL;
    if (text && !copy) return false;
    t->texts[t->count++] = copy;
    return true;
}

static void list_free(text_list *t) {
    for (size_t i = 0; i < t->count; i++) free(t->texts[i]);
    free(t->texts);
}

static size_t field_index(const kvf_config_key *k, const char *name) {
    size_t f = 0;
    while (f < k->field_count && strcmp(k->fields[f].key, name) != 0) f++;
    return f;
}

static void unknown_field(loader *l, const yaml_event_t *e, const kvf_config_key *k, const char *path) {
    char words[256] = "", near[64];
    for (size_t f = 0; f < k->field_count; f++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", f ? " " : "", k->fields[f].key);
    const char *name = (const char *)e->data.scalar.value, *meant = kvf_config_nearest(words, name, near, sizeof near);
    kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "unknown field '%.60s', expected: %s%s%s%s", name,
        words, meant ? ", did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

/* One "- {field: value, ...}" whose start has been consumed; appends field_count texts. */
static bool load_map(loader *l, const kvf_config_key *k, const char *path, yaml_mark_t start, text_list *out) {
    size_t base = out->count;
    bool ok = true;
    for (size_t f = 0; f < k->field_count; f++)
        if (!list_add(l->c, out, NULL)) return false;
    for (;;) {
        yaml_event_t name, value;
        if (!next(l, &name)) return false;
        if (name.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&name);
            break;
        }
        refuse_extras(l, &name, path);
        size_t f =
            name.type == YAML_SCALAR_EVENT ? field_index(k, (const char *)name.data.scalar.value) : k->field_count;
        if (f == k->field_count && name.type == YAML_SCALAR_EVENT) unknown_field(l, &name, k, path);
        if (name.type != YAML_SCALAR_EVENT) wrong_kind(l, &name, k, path);
        bool got = next(l, &value);
        if (got) {
            char field_path[PATH_MAX_BYTES];
            const char *text;
            snprintf(field_path, sizeof field_path, "%.190s.%.60s", path, f < k->field_count ? k->fields[f].key : "?");
            refuse_extras(l, &value, field_path);
            if (f == k->field_count)
                skip(l, &value), ok = false;
            else if (value.type != YAML_SCALAR_EVENT)
                wrong_kind(l, &value, &k->fields[f], field_path), ok = false;
            else if (out->texts[base + f])
                kvf_config_error_add(l->c, place_of(l, name.start_mark), field_path, "is given twice"), ok = false;
            else if (!parse_scalar(l, &value, &k->fields[f], field_path, &text))
                ok = false;
            else
                out->texts[base + f] = kvf_config_copy(l->c, text);
            yaml_event_delete(&value);
        }
        yaml_event_delete(&name);
        if (!got) return false;
    }
    for (size_t f = 0; ok && f < k->field_count; f++)
        if (!out->texts[base + f] && !k->fields[f].initial) {
            kvf_config_error_add(
                l->c, place_of(l, start), path, "lacks '%s', expected %s", k->fields[f].key, k->fields[f].help);
            ok = false;
        }
    return ok;
}

/* The first field names a map: two with the same one are a mistake. */
static bool names_differ(loader *l, const kvf_config_key *k, const char *path, const text_list *t, yaml_mark_t mark) {
    for (size_t i = 0; i < t->count; i += k->field_count)
        for (size_t j = 0; j < i; j += k->field_count)
            if (t->texts[i] && t->texts[j] && strcmp(t->texts[i], t->texts[j]) == 0) {
                kvf_config_error_add(
                    l->c, place_of(l, mark), path, "%s '%.60s' is given twice", k->fields[0].key, t->texts[i]);
                return false;
            }
    return true;
}

static bool load_items(loader *l, const kvf_config_key *k, const char *path, text_list *out) {
    bool ok = true;
    for (size_t n = 0;; n++) {
        yaml_event_t e;
        char item[PATH_MAX_BYTES];
        const char *text;
        snprintf(item, sizeof item, "%.200s[%zu]", path, n);
        if (!next(l, &e)) return false;
        bool last = e.type == YAML_SEQUENCE_END_EVENT;
        refuse_extras(l, &e, item);
        if (!last && out->count >= CONFIG_ITEMS_MAX) {
            if (ok)
                kvf_config_error_add(l->c, place_of(l, e.start_mark), path, "has more than %d items", CONFIG_ITEMS_MAX);
            skip(l, &e);
            ok = false;
        } else if (!last && k->type == KVF_CONFIG_MAPS) {
            if (e.type == YAML_MAPPING_START_EVENT)
                ok = load_map(l, k, item, e.start_mark, out) && ok;
            else
                kvf_config_error_add(
                    l->c, place_of(l, e.start_mark), item, "is not a map, expected one with '%s'", k->fields[0].key),
                    skip(l, &e), ok = false;
        } else if (!last) {
            if (e.type != YAML_SCALAR_EVENT)
                wrong_kind(l, &e, k, item), ok = false;
            else if (!parse_scalar(l, &e, k, item, &text) || !list_add(l->c, out, text))
                ok = false;
        }
        yaml_event_delete(&e);
        if (last) return ok;
    }
}

static void load_list(loader *l, const yaml_event_t *start, size_t index, const char *path) {
    const kvf_config_key *k = &l->c->schema->keys[index];
    text_list t = {0};
    yaml_mark_t mark = start->start_mark;
    bool ok = load_items(l, k, path, &t) && !l->broken && !l->c->no_memory;
    size_t count = k->type == KVF_CONFIG_MAPS ? t.count / k->field_count : t.count;
    if (ok && k->type == KVF_CONFIG_MAPS) ok = names_differ(l, k, path, &t, mark);
    char why[200];
    if (ok && !kvf_config_count_fits(k, count, why, sizeof why)) {
        kvf_config_error_add(l->c, place_of(l, mark), path, "%s", why);
        ok = false;
    }
    if (ok) kvf_config_store(l->c, index, KVF_CONFIG_FROM_FILE, place_of(l, mark), NULL, t.texts, t.count);
    list_free(&t);
}

/* ---- sections ---- */
static bool is_section(const kvf_config_schema *s, const char *path) {
    size_t n = strlen(path);
    for (size_t i = 0; i < s->count; i++)
        if (strncmp(s->keys[i].key, path, n) == 0 && s->keys[i].key[n] == '.') return true;
    return false;
}

static void unknown_key(loader *l, const yaml_event_t *e, const char *path) {
    const kvf_config_schema *s = l->c->schema;
    char meant[64] = "";
    unsigned best = 1 + (unsigned)KVF_MAX(strlen(path) / 5, (size_t)2);
    for (size_t i = 0; i < s->count; i++) {
        const char *key = s->keys[i].key, *dot = strchr(key, '.');
        int length = (int)strlen(key);
        unsigned d = kvf_config_distance(key, path);
        if (dot && strcmp(dot + 1, path) == 0) d = 0; /* the section was left out */
        if (dot && d && !strchr(path, '.')) { /* or a section is misspelt */
            char section[64];
            snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
            unsigned of_section = kvf_config_distance(section, path);
            if (of_section < d && of_section <= 2 && of_section * 2 <= strlen(path)) {
                d = of_section;
                length = (int)(dot - key);
            }
        }
        if (d >= best) continue;
        best = d;
        snprintf(meant, sizeof meant, "%.*s", length, key);
    }
    kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "unknown key%s%s%s", *meant ? ", did you mean '" : "",
        meant, *meant ? "'?" : "");
}

static bool seen_before(loader *l, const yaml_event_t *e, const char *path) {
    for (size_t i = 0; i < l->seen_count; i++)
        if (strcmp(l->seen[i].path, path) == 0) {
            kvf_config_error_add(
                l->c, place_of(l, e->start_mark), path, "is given twice, first in line %u", l->seen[i].line);
            return true;
        }
    if (l->seen_count < SEEN_MAX) {
        char *copy = kvf_config_copy(l->c, path);
        if (!copy) return false;
        l->seen[l->seen_count].path = copy;
        l->seen[l->seen_count++].line = (unsigned)e->start_mark.line + 1;
    }
    return false;
}

static void load_section(loader *l, const char *prefix);

static void load_value(loader *l, const yaml_event_t *name, const yaml_event_t *e, const char *path) {
    const kvf_config_schema *s = l->c->schema;
    size_t index = kvf_config_key_index(s, path);
    const char *text;
    refuse_extras(l, e, path);
    if (index == s->count && !is_section(s, path)) {
        unknown_key(l, name, path);
        skip(l, e);
    } else if (seen_before(l, name, path)) {
        skip(l, e);
    } else if (index == s->count) {
        if (e->type == YAML_MAPPING_START_EVENT) {
            load_section(l, path);
        } else if (e->type != YAML_SCALAR_EVENT || e->data.scalar.length) { /* "section:" with nothing in it is empty */
            kvf_config_error_add(
                l->c, place_of(l, e->start_mark), path, "is not a map, expected the section's keys below it");
            skip(l, e);
        }
    } else if (s->keys[index].type == KVF_CONFIG_U32S && e->type == YAML_SCALAR_EVENT) {
        if (parse_scalar(l, e, &s->keys[index], path, &text))
            kvf_config_store(
                l->c, index, KVF_CONFIG_FROM_FILE, place_of(l, e->start_mark), NULL, (char *const[]){(char *)text}, 1);
    } else if (kvf_config_is_list(&s->keys[index]) || s->keys[index].type == KVF_CONFIG_MAPS) {
        if (e->type == YAML_SEQUENCE_START_EVENT)
            load_list(l, e, index, path);
        else if (e->type == YAML_SCALAR_EVENT)
            kvf_config_error_add(l->c, place_of(l, e->start_mark), path, "is one value, expected a list");
        else
            wrong_kind(l, e, &s->keys[index], path);
    } else if (e->type != YAML_SCALAR_EVENT) {
        wrong_kind(l, e, &s->keys[index], path);
    } else if (parse_scalar(l, e, &s->keys[index], path, &text)) {
        kvf_config_store(l->c, index, KVF_CONFIG_FROM_FILE, place_of(l, e->start_mark), text, NULL, 0);
    }
}

/* The keys of a map whose start has been consumed. */
static void load_section(loader *l, const char *prefix) {
    yaml_event_t name, e;
    if (!deeper(l, l->parser.mark)) return;
    while (next(l, &name)) {
        char path[PATH_MAX_BYTES];
        if (name.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&name);
            break;
        }
        refuse_extras(l, &name, prefix);
        bool usable = name.type == YAML_SCALAR_EVENT && name.data.scalar.length < 100 &&
                      strlen((const char *)name.data.scalar.value) == name.data.scalar.length && strlen(prefix) < 100;
        if (usable)
            snprintf(
                path, sizeof path, "%.100s%s%.100s", prefix, *prefix ? "." : "", (const char *)name.data.scalar.value);
        else
            kvf_config_error_add(l->c, place_of(l, name.start_mark), prefix, "expected the name of a key"),
                skip(l, &name);
        bool got = next(l, &e);
        if (got && usable) load_value(l, &name, &e, path);
        if (got && !usable) skip(l, &e);
        if (got) yaml_event_delete(&e);
        yaml_event_delete(&name);
    }
    l->depth--;
}

static void load_stream(loader *l) {
    yaml_event_t e;
    unsigned documents = 0;
    while (next(l, &e)) {
        bool last = e.type == YAML_STREAM_END_EVENT;
        if (e.type == YAML_DOCUMENT_START_EVENT && ++documents > 1) {
            kvf_config_error_add(l->c, place_of(l, e.start_mark), "", "a second document begins, expected one");
            last = true;
        }
        refuse_extras(l, &e, "");
        if (e.type == YAML_MAPPING_START_EVENT) {
            load_section(l, "");
        } else if (e.type == YAML_SEQUENCE_START_EVENT || (e.type == YAML_SCALAR_EVENT && e.data.scalar.length)) {
            kvf_config_error_add(l->c, place_of(l, e.start_mark), "", "expected a map of sections");
            skip(l, &e);
        }
        yaml_event_delete(&e);
        if (last) return;
    }
}

/* The first byte that is NUL or not part of UTF-8 text, as line and column; false when all is well. */
static bool bad_byte(const char *text, size_t len, size_t *line, size_t *column) {
    size_t at = 0;
    *line = *column = 1;
    while (at < len) {
        unsigned char b = (unsigned char)text[at];
        size_t n = b < 0x80 ? 1 : b >= 0xc2 && b < 0xe0 ? 2 : (b & 0xf0) == 0xe0 ? 3 : b >= 0xf0 && b < 0xf5 ? 4 : 0;
        if (b == 0 || n == 0 || at + n > len) return true;
        for (size_t i = 1; i < n; i++)
            if (((unsigned char)text[at + i] & 0xc0) != 0x80) return true;
        unsigned char second = n > 2 ? (unsigned char)text[at + 1] : 0;
        if ((b == 0xe0 && second < 0xa0) || (b == 0xed && second > 0x9f) || (b == 0xf0 && second < 0x90) ||
            (b == 0xf4 && second > 0x8f))
            return true;
        *column = b == '\n' ? 1 : *column + 1;
        *line += b == '\n';
        at += n;
    }
    return false;
}

kvf_status kvf_config_load_text(kvf_config *c, const char *name, const char *text, size_t len_bytes) {
    size_t before = c->error_count, line, column;
    char place[600];
    if (len_bytes > FILE_MAX_BYTES) {
        kvf_config_error_add(c, name, "", "has %zu bytes, expected at most %d", len_bytes, FILE_MAX_BYTES);
        return KVF_ERR_FORMAT;
    }
    if (bad_byte(text, len_bytes, &line, &column)) {
        snprintf(place, sizeof place, "%s:%zu:%zu", name, line, column);
        kvf_config_error_add(c, place, "", "a byte is NUL or not UTF-8, expected text");
        return KVF_ERR_FORMAT;
    }
    loader *l = calloc(1, sizeof *l);
    if (!l || !yaml_parser_initialize(&l->parser)) {
        free(l);
        return KVF_ERR_NO_MEMORY;
    }
    l->c = c;
    l->name = name;
    yaml_parser_set_encoding(&l->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&l->parser, (const unsigned char *)text, len_bytes);
    load_stream(l);
    yaml_parser_delete(&l->parser);
    for (size_t i = 0; i < l->seen_count; i++) free(l->seen[i].path);
    free(l);
    return kvf_config_verdict(c, before);
}

kvf_status kvf_config_load_file(kvf_config *c, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        kvf_config_error_add(c, path, "", "cannot be opened: %s", strerror(errno));
        return KVF_ERR_IO;
    }
    char *text = malloc(FILE_MAX_BYTES + 1);
    if (!text) {
        fclose(f);
        return KVF_ERR_NO_MEMORY;
    }
    size_t n = fread(text, 1, FILE_MAX_BYTES + 1, f);
    kvf_status status = KVF_ERR_IO;
    if (ferror(f))
        kvf_config_error_add(c, path, "", "cannot be read: %s", strerror(errno));
    else
        status = kvf_config_load_text(c, path, text, n);
    free(text);
    fclose(f);
    return status;
}
