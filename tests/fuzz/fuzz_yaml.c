/* Fuzz target: a configuration file. Whatever it holds: no crash, and errors if and only if the status says so. */
#include <stdlib.h>
#include "kvf/kvferry_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes) {
    kvf_config *c = NULL;
    if (kvf_config_create(kvf_kvferry_schema(), &c) != KVF_OK) return 0;
    kvf_status status = kvf_config_load_text(c, "f.yaml", (const char *)data, len_bytes);
    KVF_ASSERT((status == KVF_OK) == (kvf_config_error_count(c) == 0));
    for (size_t i = 0; i < kvf_config_error_count(c); i++)
        KVF_ASSERT(strncmp(kvf_config_error_at(c, i), "f.yaml:", 7) == 0);
    for (size_t i = 0; i < kvf_config_list_count(c, "router.nodes"); i++)
        KVF_ASSERT(kvf_config_address_valid(kvf_config_map_string(c, "router.nodes", i, "address")));
    KVF_ASSERT(kvf_config_u64(c, "kv.memory") >= 1024 * 1024 &&
               kvf_config_address_valid(kvf_config_string(c, "router.listen")));
    kvf_config_destroy(c);
    return 0;
}
