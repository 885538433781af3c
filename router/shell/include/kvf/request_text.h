/* kvf/request_text.h - request ids and block names as people and clients see them: "7f03a1b2c3d4e5f6-12" (router epoch
 * in 16 hex digits, counter in decimal); 32 hex digits, high half first. */
#ifndef KVF_REQUEST_TEXT_H
#define KVF_REQUEST_TEXT_H
#include "kvf/msg.h"
#ifdef __cplusplus
extern "C" {
#endif
#define KVF_REQUEST_TEXT_MAX 40
#define KVF_HASH_TEXT_MAX 33
void kvf_request_id_format(kvf_request_id id, char out[KVF_REQUEST_TEXT_MAX]);
bool kvf_request_id_parse(const char *text, size_t len_bytes, kvf_request_id *out);
void kvf_hash_format(kvf_hash128 hash, char out[KVF_HASH_TEXT_MAX]);
bool kvf_hash_parse(const char *text, size_t len_bytes, kvf_hash128 *out);
#ifdef __cplusplus
}
#endif
#endif
