/* settings.h - how serve and the roles come to their configuration: flags > environment > YAML file > defaults, all
 * through the one table of kvf/kvferry_config.h. Every flag of that table is an option of these commands. */
#ifndef KVF_CLI_SETTINGS_H
#define KVF_CLI_SETTINGS_H
#include "cmd.h"
#include "kvf/kvferry_config.h"

#define KVF_SETTINGS_FLAGS_MAX 96
typedef struct {
    const char *file;
    char *flags[KVF_SETTINGS_FLAGS_MAX]; /* "name=value", owned, freed by kvf_settings_fini */
    uint32_t flags_count;
    kvf_arg_texts nodes; /* router: ID,ROLE,ADDRESS */
    uint32_t prefill, decode; /* serve */
    bool when_connected; /* router under serve: ready means that all nodes are there */
} kvf_settings_options;

/* For kvf_command, where kvf_settings_options are the options: those that are flags of the table. */
kvf_status kvf_settings_other(
    void *options, const char *name, const char *value, const char *next, bool *took_next, kvf_error *err);
void kvf_settings_fini(void *options);
void kvf_settings_help(const char *word, FILE *out);

/* NULL: every mistake was printed and *exit_status set (64 where a flag is wrong, else 78). */
kvf_config *kvf_settings_load(const kvf_command *command, const kvf_settings_options *o, int *exit_status);
/* What every process of ours does first: log level and name. */
void kvf_settings_apply_log(const kvf_config *c, const char *node);
/* Prints "kvferry: key: message"; returns KVF_EXIT_CONFIG. */
int kvf_settings_wrong(const kvf_config *c, const char *key, const char *fmt, ...) KVF_PRINTF(3, 4);
/* Checks engine.devices, all of it, and that engine.device_memory_percent is for one or for each of them; *first: the
 * device that a node takes. */
int kvf_settings_devices(const kvf_config *c, uint32_t *first);
/* Of the device at `index` of engine.devices, after that check. */
uint32_t kvf_settings_memory_percent(const kvf_config *c, size_t index);
/* Whether an address stays on this host: loopback or a Unix socket. */
bool kvf_settings_local(const char *address);
#endif
