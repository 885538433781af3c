/* config check, explain, schema; version. */
#include "cmd.h"
#include "kvf/kvferry_config.h"
#include "settings.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef KVF_VERSION
#define KVF_VERSION "0"
#endif

static int run_check(const kvf_command *command, const void *options, const kvf_args *args) {
    int status = KVF_EXIT_OK;
    for (uint32_t i = 0; i < args->positional_count; i++) {
        kvf_config *c;
        if (kvf_config_create(kvf_kvferry_schema(), &c) != KVF_OK) return KVF_EXIT_FAILED;
        kvf_status loaded = kvf_config_load_file(c, args->positional[i]);
        size_t errors = kvf_config_error_count(c);
        for (size_t e = 0; e < errors; e++) fprintf(stderr, "%s\n", kvf_config_error_at(c, e));
        if (loaded == KVF_ERR_NO_MEMORY) {
            fprintf(stderr, "no memory for the configuration\n");
            status = KVF_EXIT_FAILED;
        } else if (errors)
            status = KVF_EXIT_CONFIG;
        else
            printf("%s: good\n", args->positional[i]);
        kvf_config_destroy(c);
    }
    return status;
}

static int run_explain(const kvf_command *command, const void *options, const kvf_args *args) {
    kvf_settings_options o = *(const kvf_settings_options *)options;
    int status;
    if (args->positional_count) o.file = args->positional[0];
    kvf_config *c = kvf_settings_load(command, &o, &status);
    if (c) kvf_config_explain(c, stdout);
    if (c) kvf_config_destroy(c);
    return status;
}

typedef struct {
    bool json;
} schema_options;

static int run_schema(const kvf_command *command, const void *options, const kvf_args *args) {
    const schema_options *o = options;
    if (o->json)
        kvf_config_schema_json(kvf_kvferry_schema(), stdout);
    else
        kvf_config_schema_text(kvf_kvferry_schema(), stdout);
    return KVF_EXIT_OK;
}

static int run_version(const kvf_command *command, const void *options, const kvf_args *args) {
    printf("kvferry %s\n", KVF_VERSION);
    return KVF_EXIT_OK;
}

const kvf_command kvf_cmd_config_check = {
    .name = "config check",
    .positional = "FILE...",
    .positional_min = 1,
    .positional_max = KVF_ARGS_POSITIONAL_MAX,
    .summary = "read configuration files and report every mistake at once; exit status 78",
    .run = run_check,
};
static const kvf_arg explain_rows[] = {
    {"config", 'c', KVF_ARG_TEXT, "FILE", "YAML file", offsetof(kvf_settings_options, file), 0, 0, "KVFERRY_CONFIG",
        false},
};
const kvf_command kvf_cmd_config_explain = {
    .name = "config explain",
    .positional = "[FILE]",
    .positional_max = 1,
    .summary = "each value and where it comes from: flag, environment, file or default",
    .rows = explain_rows,
    .rows_count = KVF_COUNT_OF(explain_rows),
    .options_bytes = sizeof(kvf_settings_options),
    .other = kvf_settings_other,
    .other_help = kvf_settings_help,
    .fini = kvf_settings_fini,
    .run = run_explain,
};
static const kvf_arg schema_rows[] = {
    {"json", 0, KVF_ARG_FLAG, "", "as JSON Schema", offsetof(schema_options, json), 0, 0, NULL, false},
};
const kvf_command kvf_cmd_config_schema = {
    .name = "config schema",
    .positional = "",
    .summary = "every key with its default and meaning, as a YAML file",
    .rows = schema_rows,
    .rows_count = KVF_COUNT_OF(schema_rows),
    .options_bytes = sizeof(schema_options),
    .run = run_schema,
};
const kvf_command kvf_cmd_version = {
    .name = "version",
    .positional = "",
    .summary = "which kvferry this is",
    .run = run_version,
};
