/* Fuzz target: template source, a NUL byte, JSON variables. Whatever they are: no crash, bounded time and memory, and
 * every byte of what is printed has a mark. */
#include <stdlib.h>
#include "kvf/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes) {
    static const char usual[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<|h\xc3\xa9|>\"}],\"l\":[3,1,2],\"n\":7,\"f\":2.5,"
        "\"d\":{\"b\":1,\"a\":null},\"s\":\" Text \"}";
    static const kvf_template_limits limits = {.steps_max = 20000, .depth_max = 60, .output_max = 256 * 1024};
    const uint8_t *zero = len_bytes ? memchr(data, 0, len_bytes) : NULL;
    size_t source_bytes = zero ? (size_t)(zero - data) : len_bytes;
    json_t *vars = NULL;
    if (zero) vars = json_loadb((const char *)zero + 1, len_bytes - source_bytes - 1, JSON_ALLOW_NUL, NULL);
    if (!vars) vars = json_loads(usual, 0, NULL);
    kvf_template *t = NULL;
    kvf_error err = {0};
    kvf_template_output out;
    kvf_status status = kvf_template_compile((const char *)data, source_bytes, &t, &err);
    if (status == KVF_OK) {
        status = kvf_template_render(t, vars, NULL, 1700000000, &limits, &out, &err);
        if (status == KVF_OK) {
            for (size_t i = 0; i < out.len_bytes; i++) KVF_ASSERT(out.trusted[i] <= 1);
            KVF_ASSERT(out.len_bytes <= limits.output_max && out.text[out.len_bytes] == 0);
            kvf_template_output_free(&out);
        }
    }
    KVF_ASSERT(status == KVF_OK || (err.status == status && strstr(err.message, "chat template")));
    kvf_template_destroy(t);
    json_decref(vars);
    return 0;
}
