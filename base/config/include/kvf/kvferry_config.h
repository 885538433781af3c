/* kvf/kvferry_config.h - the keys of the kvferry program, for all roles: see base/config/src/kvferry_schema.c. One file
 * may serve every process of a cluster; each role reads its own sections. */
#ifndef KVF_KVFERRY_CONFIG_H
#define KVF_KVFERRY_CONFIG_H
#include "kvf/config.h"
#ifdef __cplusplus
extern "C" {
#endif
const kvf_config_schema *kvf_kvferry_schema(void);
#ifdef __cplusplus
}
#endif
#endif
