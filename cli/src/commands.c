/* The table of subcommands, and what happens before one of them runs. */
#include "cmd.h"
#include "json.h"
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const kvf_command *const kvf_commands[] = {
    &kvf_cmd_serve,
    &kvf_cmd_router,
    &kvf_cmd_prefill_node,
    &kvf_cmd_decode_node,
    &kvf_cmd_chat,
    &kvf_cmd_complete,
    &kvf_cmd_tokenize,
    &kvf_cmd_detokenize,
    &kvf_cmd_models,
    &kvf_cmd_nodes,
    &kvf_cmd_top,
    &kvf_cmd_kv,
    &kvf_cmd_drain,
    &kvf_cmd_undrain,
    &kvf_cmd_role,
    &kvf_cmd_audit,
    &kvf_cmd_health,
    &kvf_cmd_flush,
    &kvf_cmd_size,
    &kvf_cmd_perplexity,
    &kvf_cmd_bench_engine,
    &kvf_cmd_bench_serve,
    &kvf_cmd_config_check,
    &kvf_cmd_config_explain,
    &kvf_cmd_config_schema,
    &kvf_cmd_version,
};
const size_t kvf_commands_count = KVF_COUNT_OF(kvf_commands);

int kvf_cmd_usage(const kvf_command *command, const char *fmt, ...) {
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "kvferry %s: %s\n  kvferry %s --help says more\n", command->name, text, command->name);
    return KVF_EXIT_USAGE;
}

int kvf_cmd_failed(const kvf_error *err) {
    fprintf(stderr, "kvferry: %s\n", err->message[0] ? err->message : kvf_status_text(err->status));
    return KVF_EXIT_FAILED;
}

void kvf_cmd_print_json(const ProtobufCMessage *message) {
    kvf_buf line = {0};
    kvf_json_message(&line, message);
    kvf_buf_putc(&line, '\n');
    fwrite(line.text, 1, line.len_bytes, stdout);
    kvf_buf_fini(&line);
}

char *kvf_cmd_text(const char *argument, size_t *len_bytes) {
    enum { LIMIT = 64 << 20 };
    kvf_buf all = {0};
    if (argument && strcmp(argument, "-") != 0) {
        kvf_buf_puts(&all, argument);
    } else {
        char part[16384];
        size_t n;
        if (isatty(STDIN_FILENO)) fputs("(text from the keyboard; Ctrl-D ends it)\n", stderr);
        kvf_buf_puts(&all, "");
        while ((n = fread(part, 1, sizeof part, stdin)) > 0 && all.len_bytes <= LIMIT) kvf_buf_add(&all, part, n);
        if (ferror(stdin) || all.len_bytes > LIMIT) {
            fprintf(stderr, "kvferry: stdin: %s\n", ferror(stdin) ? "cannot be read" : "more than 64 MiB");
            kvf_buf_fini(&all);
            return NULL;
        }
    }
    *len_bytes = all.len_bytes;
    return all.text;
}

static int print_overview(FILE *out) {
    fputs("kvferry COMMAND [options]\n  serves large language models from prefill and decode nodes that hand KV pages "
          "over\n\n",
        out);
    for (size_t i = 0; i < kvf_commands_count; i++)
        fprintf(out, "  %-16s%s\n", kvf_commands[i]->name, kvf_commands[i]->summary);
    fputs("\n  kvferry COMMAND --help says more. Start with: kvferry serve --model FILE.gguf, then kvferry chat\n"
          "  Exit status: 0 done, 1 failed, 64 usage, 69 nothing answers, 78 configuration\n",
        out);
    return KVF_EXIT_OK;
}

/* Two-word commands first: "bench engine". *words: how many arguments the name took. */
static const kvf_command *find(int argc, char *const *argv, int *words) {
    char pair[64];
    for (*words = argc >= 2 ? 2 : 1; *words >= 1; --*words) {
        snprintf(pair, sizeof pair, *words == 2 ? "%s %s" : "%s", argv[0], *words == 2 ? argv[1] : "");
        for (size_t i = 0; i < kvf_commands_count; i++)
            if (strcmp(kvf_commands[i]->name, pair) == 0) return kvf_commands[i];
    }
    return NULL;
}

static int unknown_command(int argc, char *const *argv) {
    const char *names[64];
    size_t count = 0, len = strlen(argv[0]);
    bool group = false;
    for (size_t i = 0; i < kvf_commands_count; i++) {
        names[count++] = kvf_commands[i]->name;
        group |= strncmp(kvf_commands[i]->name, argv[0], len) == 0 && kvf_commands[i]->name[len] == ' ';
    }
    if (group) {
        bool help = argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
        FILE *out = help ? stdout : stderr;
        for (size_t i = 0; i < kvf_commands_count; i++)
            if (strncmp(kvf_commands[i]->name, argv[0], len) == 0 && kvf_commands[i]->name[len] == ' ')
                fprintf(out, "kvferry %s  %s\n", kvf_commands[i]->name, kvf_commands[i]->summary);
        return help ? KVF_EXIT_OK : KVF_EXIT_USAGE;
    }
    const char *near = kvf_nearest(argv[0], names, count);
    fprintf(stderr, "kvferry: no command \"%.80s\"", argv[0]);
    if (near) fprintf(stderr, " (did you mean \"%s\"?)", near);
    fputs("; kvferry --help lists them\n", stderr);
    return KVF_EXIT_USAGE;
}

static int run_command(const kvf_command *command, int argc, char *const *argv) {
    kvf_error err = {0};
    kvf_args args;
    const char *help;
    void *options = calloc(1, KVF_MAX(command->options_bytes, (size_t)1));
    if (!options) return KVF_EXIT_FAILED;
    if (command->defaults) memcpy(options, command->defaults, command->options_bytes);
    int status;
    if (kvf_args_parse(command, argc, argv, options, &args, &help, &err) != KVF_OK) {
        status = kvf_cmd_usage(command, "%s", err.message);
    } else if (help) {
        kvf_args_print_help(command, help, stdout);
        status = KVF_EXIT_OK;
    } else {
        status = command->run(command, options, &args);
    }
    kvf_args_fini(&args);
    if (command->fini) command->fini(options);
    free(options);
    /* A full disk must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == KVF_EXIT_OK) {
        fputs("kvferry: stdout cannot be written\n", stderr);
        status = KVF_EXIT_FAILED;
    }
    return status;
}

int kvf_cli_main(int argc, char *const *argv) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a log file at its limit is a failed write, not the end */
    if (argc == 0) {
        print_overview(stderr);
        return KVF_EXIT_USAGE;
    }
    if (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) return print_overview(stdout);
    if (!strcmp(argv[0], "--version")) return run_command(&kvf_cmd_version, 0, argv);
    if (!strcmp(argv[0], "help")) {
        int words;
        const kvf_command *about = argc > 1 ? find(argc - 1, argv + 1, &words) : NULL;
        if (about) kvf_args_print_help(about, "", stdout);
        if (about || argc == 1) return about ? KVF_EXIT_OK : print_overview(stdout);
        return unknown_command(argc - 1, argv + 1);
    }
    int words;
    const kvf_command *command = find(argc, argv, &words);
    return command ? run_command(command, argc - words, argv + words) : unknown_command(argc, argv);
}
