/* cmd.h - the subcommands. Each file cmd_*.c owns some rows of the table in commands.c. */
#ifndef KVF_CLI_CMD_H
#define KVF_CLI_CMD_H
#include "args.h"
#include "client.h"

extern const kvf_command *const kvf_commands[];
extern const size_t kvf_commands_count;
/* argv without the program's name. */
int kvf_cli_main(int argc, char *const *argv);

extern const kvf_command kvf_cmd_serve, kvf_cmd_router, kvf_cmd_prefill_node, kvf_cmd_decode_node;
extern const kvf_command kvf_cmd_chat, kvf_cmd_complete, kvf_cmd_tokenize, kvf_cmd_detokenize;
extern const kvf_command kvf_cmd_perplexity, kvf_cmd_bench_engine, kvf_cmd_bench_serve, kvf_cmd_size;
extern const kvf_command kvf_cmd_nodes, kvf_cmd_kv, kvf_cmd_top, kvf_cmd_drain, kvf_cmd_undrain, kvf_cmd_role;
extern const kvf_command kvf_cmd_audit, kvf_cmd_health, kvf_cmd_flush, kvf_cmd_models;
extern const kvf_command kvf_cmd_config_check, kvf_cmd_config_explain, kvf_cmd_config_schema, kvf_cmd_version;

/* Prints "kvferry NAME: message" and where help is; returns KVF_EXIT_USAGE. */
int kvf_cmd_usage(const kvf_command *command, const char *fmt, ...) KVF_PRINTF(2, 3);
/* Prints "kvferry: message"; returns KVF_EXIT_CONFIG for KVF_ERR_FORMAT of a configuration, else KVF_EXIT_FAILED. */
int kvf_cmd_failed(const kvf_error *err);
/* A message as one line of JSON on stdout. */
void kvf_cmd_print_json(const ProtobufCMessage *message);
/* The text of a positional argument: itself, or all of stdin for "-" (or for NULL). Owned by the caller; NULL after an
 * error was printed. */
char *kvf_cmd_text(const char *argument, size_t *len_bytes);
/* "1,2,3", "[1, 2, 3]" or "1 2 3" into a malloc'ed list; false: something else is in it. */
bool kvf_cmd_parse_ids(const char *text, size_t len_bytes, uint32_t **ids, size_t *count);
#endif
