/* kvf/template.h - a sandboxed interpreter of the chat-template language (the Jinja2 subset that model files use).
 * No file, process, network or attribute of the host can be reached: values are JSON-like data, functions are a fixed
 * list. Budgets bound steps, depth and output. What is printed carries its origin byte by byte: literal text of the
 * template and trusted variables are trusted; text that came from messages, tools or other variables is not, through
 * every operation (slices, replace, join, filters). So a user's text can be printed but never become a control token.
 */
#ifndef KVF_TEMPLATE_H
#define KVF_TEMPLATE_H
#include "kvf/base.h"
#include <jansson.h>

typedef struct kvf_template kvf_template;

typedef struct {
    uint64_t steps_max; /* evaluated nodes; default 1,000,000 */
    uint32_t depth_max; /* nesting of expressions, blocks and macro calls; default 100 */
    size_t output_max; /* bytes; default 16 MiB; also bounds any string made on the way, and total memory to a small
                          multiple */
} kvf_template_limits;
void kvf_template_limits_default(kvf_template_limits *limits);

/* err names line and column. Unknown filters, tests and syntax are refused here, at load. */
kvf_status kvf_template_compile(const char *source, size_t len_bytes, kvf_template **out, kvf_error *err);
void kvf_template_destroy(kvf_template *t);

typedef struct {
    char *text; /* NUL-terminated; owned, freed by kvf_template_output_free */
    size_t len_bytes;
    uint8_t *trusted; /* one byte per byte of text: 1 = from the template or a trusted variable */
} kvf_template_output;

/* vars, trusted_vars: JSON objects, borrowed; a name in trusted_vars wins. Immutable template: any thread may render.
 * KVF_ERR_INVALID with the template's own words where it calls raise_exception; KVF_ERR_LIMIT where a budget ran out;
 * KVF_ERR_FORMAT for errors of evaluation; each message names the line. strftime_now uses `now_unix` seconds. */
kvf_status kvf_template_render(const kvf_template *t, const json_t *vars, const json_t *trusted_vars, int64_t now_unix,
    const kvf_template_limits *limits, kvf_template_output *out, kvf_error *err);
void kvf_template_output_free(kvf_template_output *out);
#endif
