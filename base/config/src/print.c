/* print.c - what a configuration is (explain) and what it may be (schema as text and as JSON Schema, rows of --help).
 */
#include "config_int.h"

void kvf_config_format(const kvf_config_key *k, const config_value *v, FILE *out) {
    if (v->origin == KVF_CONFIG_FROM_NOWHERE) {
        fputs("-", out);
    } else if (k->type == KVF_CONFIG_U32S && v->item_count == 1) {
        fputs(v->items[0], out);
    } else if (kvf_config_is_list(k)) {
        fputs("[", out);
        for (size_t i = 0; i < v->item_count; i++) fprintf(out, "%s%s", i ? ", " : "", v->items[i]);
        fputs("]", out);
    } else if (k->type == KVF_CONFIG_MAPS) {
        fputs("[", out);
        for (size_t i = 0; i < v->item_count; i++) {
            size_t f = i % k->field_count;
            const char *text = v->items[i] ? v->items[i] : k->fields[f].initial;
            fprintf(out, "%s%s: %s%s",
                f   ? ", "
                : i ? ", {"
                    : "{",
                k->fields[f].key, text, f + 1 == k->field_count ? "}" : "");
        }
        fputs("]", out);
    } else {
        fputs(v->text[0] ? v->text : "\"\"", out);
    }
}

void kvf_config_explain(const kvf_config *c, FILE *out) {
    for (size_t i = 0; i < c->schema->count; i++) {
        char source[700];
        const kvf_config_key *k = &c->schema->keys[i];
        fprintf(out, "%-34s = ", k->key);
        kvf_config_format(k, &c->values[i], out);
        fprintf(out, "   (%s)\n", kvf_config_source(c, k->key, source, sizeof source));
    }
}

static void range_text(const kvf_config_key *k, FILE *out) {
    if (k->type == KVF_CONFIG_DOUBLE && k->double_min != k->double_max)
        fprintf(out, ", %g to %g", k->double_min, k->double_max);
    if (k->max && k->type != KVF_CONFIG_SIZE && k->type != KVF_CONFIG_DURATION)
        fprintf(out, ", %llu to %llu", (unsigned long long)k->min, (unsigned long long)k->max);
}

/* A YAML file with every key, its default as value (commented out where there is none). */
void kvf_config_schema_text(const kvf_config_schema *s, FILE *out) {
    char section[64] = "", expected[600];
    fprintf(out, "# %s\n", s->title);
    for (size_t i = 0; i < s->count; i++) {
        const kvf_config_key *k = &s->keys[i];
        size_t n = strcspn(k->key, ".");
        if (strncmp(section, k->key, n) != 0 || section[n]) {
            snprintf(section, sizeof section, "%.*s", (int)n, k->key);
            fprintf(out, "\n%s:\n", section);
        }
        fprintf(out, "  # %s (%s", k->help, kvf_config_expected(k, expected, sizeof expected));
        range_text(k, out);
        fprintf(out, "%s%s)\n", k->flag ? "; --" : "", k->flag ? k->flag : "");
        if (k->type == KVF_CONFIG_STRINGS && k->initial) {
            fprintf(out, "  %s: [%s]\n", k->key + n + 1, k->initial);
            continue;
        }
        for (size_t f = 0; f < k->field_count; f++)
            fprintf(out, "  #   %s: %s (%s)\n", k->fields[f].key, k->fields[f].help,
                kvf_config_expected(&k->fields[f], expected, sizeof expected));
        fprintf(out, "  %s%s:%s%s\n", k->initial ? "" : "# ", k->key + n + 1, k->initial ? " " : "",
            k->initial ? k->initial : "");
    }
}

/* ---- JSON Schema ---- */
static void json_string(const char *text, size_t len, FILE *out) {
    fputc('"', out);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '"' || text[i] == '\\') fputc('\\', out);
        fputc(text[i], out);
    }
    fputc('"', out);
}

static void json_choices(const char *choices, FILE *out) {
    fputs(", \"enum\": [", out);
    for (const char *p = choices; *p; p += *p == ' ') {
        size_t n = strcspn(p, " ");
        if (p != choices) fputs(", ", out);
        json_string(p, n, out);
        p += n;
    }
    fputs("]", out);
}

static void json_type(const kvf_config_key *k, FILE *out) {
    switch (k->type) {
    case KVF_CONFIG_BOOL: fputs("\"type\": \"boolean\"", out); break;
    case KVF_CONFIG_U32S: /* one of them */
    case KVF_CONFIG_U32:
    case KVF_CONFIG_U64:
        fprintf(out, "\"type\": \"integer\", \"minimum\": %llu", (unsigned long long)k->min);
        if (k->max) fprintf(out, ", \"maximum\": %llu", (unsigned long long)k->max);
        break;
    case KVF_CONFIG_DOUBLE:
        fputs("\"type\": \"number\"", out);
        if (k->double_min != k->double_max)
            fprintf(out, ", \"minimum\": %g, \"maximum\": %g", k->double_min, k->double_max);
        break;
    case KVF_CONFIG_SIZE:
        fputs("\"type\": [\"string\", \"integer\"], \"pattern\": \"^[0-9]+(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?$\"", out);
        break;
    case KVF_CONFIG_DURATION:
        fputs("\"type\": [\"string\", \"integer\"], \"pattern\": \"^([0-9]+(ns|us|ms|s|m|h)|0)$\"", out);
        break;
    default: fputs("\"type\": \"string\"", out);
    }
    if (k->choices) json_choices(k->choices, out);
}

static void json_default(const kvf_config_key *k, FILE *out) {
    if (!k->initial || k->type == KVF_CONFIG_STRINGS) return;
    bool bare = k->type == KVF_CONFIG_BOOL || k->type == KVF_CONFIG_U32 || k->type == KVF_CONFIG_U32S ||
                k->type == KVF_CONFIG_U64 || k->type == KVF_CONFIG_DOUBLE;
    fputs(", \"default\": ", out);
    if (bare)
        fputs(k->initial, out);
    else
        json_string(k->initial, strlen(k->initial), out);
}

static void json_key(const kvf_config_key *k, FILE *out) {
    fputs("{\"description\": ", out);
    json_string(k->help, strlen(k->help), out);
    fputs(", ", out);
    if (k->type == KVF_CONFIG_STRINGS || k->type == KVF_CONFIG_MAPS) fputs("\"type\": \"array\", \"items\": {", out);
    if (k->type == KVF_CONFIG_MAPS) {
        fputs("\"type\": \"object\", \"additionalProperties\": false, \"properties\": {", out);
        for (size_t f = 0; f < k->field_count; f++) {
            fprintf(out, "%s\"%s\": {\"description\": ", f ? ", " : "", k->fields[f].key);
            json_string(k->fields[f].help, strlen(k->fields[f].help), out);
            fputs(", ", out);
            json_type(&k->fields[f], out);
            json_default(&k->fields[f], out);
            fputs("}", out);
        }
        fputs("}, \"required\": [", out);
        for (size_t f = 0, n = 0; f < k->field_count; f++)
            if (!k->fields[f].initial) fprintf(out, "%s\"%s\"", n++ ? ", " : "", k->fields[f].key);
        fputs("]", out);
    } else if (k->type == KVF_CONFIG_U32S) {
        fputs("\"anyOf\": [{", out);
        json_type(k, out);
        fputs("}, {\"type\": \"array\", \"minItems\": 1, \"items\": {", out);
        json_type(k, out);
        fputs("}}]", out);
    } else {
        json_type(k, out);
    }
    if (k->type == KVF_CONFIG_STRINGS || k->type == KVF_CONFIG_MAPS) fputs("}", out);
    json_default(k, out);
    fputs("}", out);
}

/* Keys have the form section.name, and the table keeps a section's keys together. */
void kvf_config_schema_json(const kvf_config_schema *s, FILE *out) {
    const char *section = "";
    size_t length = 0;
    fputs("{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": ", out);
    json_string(s->title, strlen(s->title), out);
    fputs(",\n  \"type\": \"object\", \"additionalProperties\": false,\n  \"properties\": {", out);
    for (size_t i = 0; i < s->count; i++) {
        const kvf_config_key *k = &s->keys[i];
        size_t n = strcspn(k->key, ".");
        bool same = n == length && strncmp(section, k->key, n) == 0;
        if (!same)
            fprintf(out, "%s\n    \"%.*s\": {\"type\": \"object\", \"additionalProperties\": false, \"properties\": {",
                length ? "}}," : "", (int)n, k->key);
        fprintf(out, "%s\n      \"%s\": ", same ? "," : "", k->key + n + 1);
        json_key(k, out);
        section = k->key;
        length = n;
    }
    fprintf(out, "%s\n  }\n}\n", length ? "}}" : "");
}

static bool listed(const char *prefixes, const char *key) {
    for (const char *p = prefixes; *p; p += *p == ' ') {
        size_t n = strcspn(p, " ");
        if (n && strncmp(key, p, n) == 0) return true;
        p += n;
    }
    return false;
}

void kvf_config_flags_help(const kvf_config_schema *s, const char *prefixes, FILE *out) {
    static const char *const words[] = {
        "TEXT", "ADDRESS", "", "BOOL", "N", "N", "SIZE", "TIME", "X", "N,..", "LIST", ""};
    for (size_t i = 0; i < s->count; i++) {
        const kvf_config_key *k = &s->keys[i];
        char left[80];
        if (!k->flag || (prefixes && !listed(prefixes, k->key))) continue;
        snprintf(left, sizeof left, "--%s %s", k->flag, k->type == KVF_CONFIG_ENUM ? "NAME" : words[k->type]);
        fprintf(out, "  %-32s %s", left, k->help);
        if (k->choices) fprintf(out, ": %s", k->choices);
        if (k->initial && *k->initial) fprintf(out, " [%s]", k->initial);
        fputc('\n', out);
    }
}
