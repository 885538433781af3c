/* interfaces.h - which network interfaces of this host NCCL may use, by NCCL_SOCKET_IFNAME. NCCL itself would look for
 * one that is not there until a pair's setup has run out of time, and then name none of those that are. */
#ifndef KVF_WORKER_INTERFACES_H
#define KVF_WORKER_INTERFACES_H
#include "kvf/base.h"

/* wish: prefixes between commas; "^" before all of them: all but these; "=" (behind it): whole names. As NCCL reads it.
 */
bool interfaces_match(const char *wish, const char *name);
/* names: of those that may be used, between blanks. KVF_ERR_NOT_FOUND, with those that there are: none may. */
kvf_status interfaces_of(const char *wish, char *names, size_t names_bytes, kvf_error *err);
#endif
