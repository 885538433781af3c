#include "settings.h"
#include "kvf/log.h"
#include "buf.h"
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

void kvf_settings_fini(void *options) {
    kvf_settings_options *o = options;
    for (uint32_t i = 0; i < o->flags_count; i++) free(o->flags[i]);
}

kvf_status kvf_settings_other(
    void *options, const char *name, const char *value, const char *next, bool *took_next, kvf_error *err) {
    kvf_settings_options *o = options;
    const kvf_config_schema *schema = kvf_kvferry_schema();
    const kvf_config_key *key = kvf_config_flag_find(schema, name);
    bool negated = false;
    if (!key && strncmp(name, "no-", 3) == 0 && !value) {
        key = kvf_config_flag_find(schema, name + 3);
        negated = key && key->type == KVF_CONFIG_BOOL;
        if (!negated) key = NULL;
    }
    if (!key) {
        const char *names[256];
        size_t count = 0;
        for (size_t i = 0; i < schema->count && count < KVF_COUNT_OF(names) - 4; i++)
            if (schema->keys[i].flag) names[count++] = schema->keys[i].flag;
        names[count++] = "config";
        names[count++] = "prefill";
        names[count++] = "decode";
        const char *near = kvf_nearest(name, names, count);
        if (near) kvf_fail(err, KVF_ERR_NOT_FOUND, "unknown option --%s (did you mean --%s?)", name, near);
        return KVF_ERR_NOT_FOUND;
    }
    if (!value && key->type == KVF_CONFIG_BOOL) value = negated ? "false" : "true";
    if (!value) {
        if (!next || strncmp(next, "--", 2) == 0) return kvf_fail(err, KVF_ERR_INVALID, "--%s needs a value", name);
        value = next;
        *took_next = true;
    }
    if (o->flags_count == KVF_SETTINGS_FLAGS_MAX)
        return kvf_fail(err, KVF_ERR_INVALID, "more than %d options", KVF_SETTINGS_FLAGS_MAX);
    size_t size = strlen(name) + strlen(value) + 2;
    char *flag = malloc(size);
    if (!flag) return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    snprintf(flag, size, "%s=%s", negated ? name + 3 : name, value);
    o->flags[o->flags_count++] = flag;
    return KVF_OK;
}

void kvf_settings_help(const char *word, FILE *out) {
    bool all = !strcmp(word, "all");
    if (!*word) {
        kvf_config_flags_help(kvf_kvferry_schema(),
            "model.path engine.threads kv.memory router.listen router.admin cluster.node_id log.level", out);
        fputs("  every key of `kvferry config schema` is an option too: --help=all, --help=WORD\n", out);
        return;
    }
    char *text = NULL;
    size_t size = 0;
    FILE *rows = open_memstream(&text, &size);
    if (!rows) return;
    kvf_config_flags_help(kvf_kvferry_schema(), NULL, rows);
    fclose(rows);
    for (char *at = text, *line; (line = strsep(&at, "\n"));)
        if (*line && (all || strstr(line, word))) fprintf(out, "%s\n", line);
    free(text);
}

static size_t print_errors(const kvf_config *c) {
    size_t count = kvf_config_error_count(c);
    for (size_t i = 0; i < count; i++) fprintf(stderr, "%s\n", kvf_config_error_at(c, i));
    return count;
}

/* What could not be kept for lack of memory is in no list of errors: it must not be taken for its default. */
static bool out_of_memory(kvf_status status) {
    if (status == KVF_ERR_NO_MEMORY) fprintf(stderr, "no memory for the configuration\n");
    return status == KVF_ERR_NO_MEMORY;
}

/* Short names for what people set most often. */
static kvf_status load_aliases(kvf_config *c) {
    static const struct {
        const char *alias, *name;
    } aliases[] = {{"KVFERRY_MODEL", "KVFERRY_MODEL_PATH"}, {"KVFERRY_THREADS", "KVFERRY_ENGINE_THREADS"}};
    for (size_t i = 0; i < KVF_COUNT_OF(aliases); i++) {
        const char *value = getenv(aliases[i].alias);
        if (!value || !*value) continue;
        kvf_buf entry = {0};
        kvf_buf_printf(&entry, "%s=%s", aliases[i].name, value);
        kvf_status status = kvf_config_load_env(c, (const char *const[]){entry.text, NULL});
        kvf_buf_fini(&entry);
        if (status == KVF_ERR_NO_MEMORY) return status;
    }
    return KVF_OK;
}

kvf_config *kvf_settings_load(const kvf_command *command, const kvf_settings_options *o, int *exit_status) {
    kvf_config *c;
    *exit_status = KVF_EXIT_FAILED;
    if (kvf_config_create(kvf_kvferry_schema(), &c) != KVF_OK) return NULL;
    for (uint32_t i = 0; i < o->flags_count; i++) {
        char name[128];
        size_t len = strcspn(o->flags[i], "=");
        snprintf(name, sizeof name, "%.*s", (int)KVF_MIN(len, sizeof name - 1), o->flags[i]);
        if (out_of_memory(kvf_config_set_flag(c, name, o->flags[i] + len + 1))) goto failed;
    }
    if (print_errors(c)) {
        *exit_status = KVF_EXIT_USAGE;
        goto failed;
    }
    if (out_of_memory(load_aliases(c)) || out_of_memory(kvf_config_load_env(c, (const char *const *)environ)) ||
        (o->file && out_of_memory(kvf_config_load_file(c, o->file))))
        goto failed;
    if (print_errors(c)) {
        *exit_status = KVF_EXIT_CONFIG;
        goto failed;
    }
    *exit_status = KVF_EXIT_OK;
    return c;
failed:
    kvf_config_destroy(c);
    return NULL;
}

void kvf_settings_apply_log(const kvf_config *c, const char *node) {
    kvf_log_level level;
    if (kvf_log_level_parse(kvf_config_string(c, "log.level"), &level)) kvf_log_set_level(level);
    kvf_log_set_node(node);
}

int kvf_settings_wrong(const kvf_config *c, const char *key, const char *fmt, ...) {
    char text[600], source[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s: %s: %s\n", kvf_config_source(c, key, source, sizeof source), key, text);
    return KVF_EXIT_CONFIG;
}

#define SHARES "engine.device_memory_percent"

int kvf_settings_devices(const kvf_config *c, uint32_t *first) {
    enum { MOST = 1023 };
    static const char key[] = "engine.devices", allowed[] = "expected numbers of CUDA devices from 0 on, as in [0, 1]";
    size_t count = kvf_config_list_count(c, key);
    if (count == 0) return kvf_settings_wrong(c, key, "the list is empty, %s", allowed);
    for (size_t i = count; i-- > 0;) {
        const char *text = kvf_config_list_string(c, key, i);
        size_t digits = strspn(text, "0123456789");
        unsigned long n = digits < 8 ? strtoul(text, NULL, 10) : MOST + 1ul;
        if (digits == 0 || text[digits] || n > MOST) return kvf_settings_wrong(c, key, "'%s': %s", text, allowed);
        *first = (uint32_t)n;
    }
    size_t shares = kvf_config_list_count(c, SHARES);
    if (shares != 1 && shares != count)
        return kvf_settings_wrong(c, SHARES,
            "%zu shares for %zu devices (engine.devices), expected one for all or one for each", shares, count);
    return KVF_EXIT_OK;
}

uint32_t kvf_settings_memory_percent(const kvf_config *c, size_t index) {
    return kvf_config_list_u32(c, SHARES, kvf_config_list_count(c, SHARES) == 1 ? 0 : index);
}

bool kvf_settings_local(const char *address) {
    bool v4 = strncmp(address, "127.", 4) == 0 && address[strspn(address, "0123456789.")] == ':'; /* no 127.example */
    return strncmp(address, "unix:", 5) == 0 || v4 || strncmp(address, "[::1]:", 6) == 0 ||
           strncmp(address, "localhost:", 10) == 0;
}
