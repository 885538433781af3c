/* args.h - command lines from tables: one row per option, one table per subcommand; parsing, help and "did you mean"
 * all come from the same rows. Values land in a plain struct of the subcommand, at the offset its row names.
 *
 * Forms: --name VALUE, --name=VALUE, -n VALUE, -nVALUE, --flag, --no-flag. A value may start with one dash (a negative
 * number, "-" for stdin) but not with two: `--stop=--x` says that. "--" ends the options; positional arguments may
 * stand anywhere. Order of belief: command line, then the row's environment variable, then what the struct held before.
 */
#ifndef KVF_CLI_ARGS_H
#define KVF_CLI_ARGS_H
#include "kvf/base.h"
#include <stdio.h>

typedef enum {
    KVF_ARG_FLAG, /* bool */
    KVF_ARG_TEXT, /* const char *, borrowed from argv or the environment */
    KVF_ARG_TEXTS, /* kvf_arg_texts: may be repeated */
    KVF_ARG_U32, /* uint32_t within [min, max] */
    KVF_ARG_I32, /* int32_t */
    KVF_ARG_U64, /* uint64_t, any */
    KVF_ARG_F64, /* double within [min, max] */
    KVF_ARG_SIZE, /* uint64_t bytes: "512MiB" */
    KVF_ARG_DURATION, /* uint64_t nanoseconds: "250ms" */
    KVF_ARG_RATE, /* double bytes per second: "100Gbit/s", "12GB/s" */
    KVF_ARG_CHOICE /* uint32_t: index into the words of `value`, "auto|always|never" */
} kvf_arg_kind;

#define KVF_ARG_TEXTS_MAX 64
typedef struct {
    uint32_t count;
    const char *text[KVF_ARG_TEXTS_MAX];
} kvf_arg_texts;

typedef struct {
    const char *name; /* without dashes */
    char letter; /* 0: none */
    kvf_arg_kind kind;
    const char *value; /* as help shows it: "FILE"; for CHOICE its words */
    const char *help;
    size_t offset; /* in the options struct */
    double min, max; /* numbers; both 0: what the type holds */
    const char *env; /* NULL: none */
    bool hidden; /* not in help: between our own processes */
} kvf_arg;

#define KVF_ARGS_POSITIONAL_MAX 4096
typedef struct {
    uint64_t given; /* bit i: row i was on the command line or in the environment */
    uint32_t positional_count;
    const char **positional; /* owned, freed by kvf_args_fini */
} kvf_args;

typedef struct kvf_command kvf_command;
struct kvf_command {
    const char *name; /* "size", "bench engine" */
    const char *positional; /* as help shows them: "[PROMPT]"; "" none */
    uint32_t positional_min, positional_max;
    const char *summary; /* one line */
    const char *about; /* more, or NULL */
    const kvf_arg *rows;
    size_t rows_count; /* at most 64 */
    size_t options_bytes;
    const void *defaults; /* options_bytes, or NULL: zeros */
    /* Options outside the rows; may be NULL. value: what stood after "=", else NULL; next: the argument that follows,
     * or NULL; *took_next: set when it was the value. KVF_ERR_NOT_FOUND: no such option. */
    kvf_status (*other)(
        void *options, const char *name, const char *value, const char *next, bool *took_next, kvf_error *err);
    void (*other_help)(const char *word, FILE *out);
    void (*fini)(void *options); /* frees what `other` allocated; may be NULL */
    /* Exit status. options: its texts stay valid. */
    int (*run)(const kvf_command *command, const void *options, const kvf_args *args);
};

/* KVF_OK, or KVF_ERR_INVALID with err. *help: NULL, or the word after --help= ("" where none): print help instead of
 * running. options: options_bytes, already holding the defaults. */
kvf_status kvf_args_parse(const kvf_command *command, int argc, char *const *argv, void *options, kvf_args *args,
    const char **help, kvf_error *err);
void kvf_args_fini(kvf_args *args);
bool kvf_args_given(const kvf_command *command, const kvf_args *args, const char *name);
/* Rows whose name or help holds `word`; "" all. */
void kvf_args_print_help(const kvf_command *command, const char *word, FILE *out);

/* The candidate nearest to `word`, or NULL where none is near enough to be meant. */
const char *kvf_nearest(const char *word, const char *const *candidates, size_t count);
#endif
