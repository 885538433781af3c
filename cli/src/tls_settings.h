/* tls_settings.h - certificates of a role, from its configuration, and the rule that nothing beyond this host goes out
 * in the open unless the operator says so. */
#ifndef KVF_CLI_TLS_SETTINGS_H
#define KVF_CLI_TLS_SETTINGS_H
#include "kvf/kvferry_config.h"
#include "kvf/tls.h"

/* NULL: that side is plain. */
typedef struct {
    kvf_tls_store *cluster; /* tls.*: towards other processes of the cluster, both ways */
    kvf_tls_store *clients, *admin; /* the router's listeners */
    kvf_tls_watch *watch; /* looks whether files have changed */
} kvf_tls_settings;

/* Exit status; not KVF_EXIT_OK: what is wrong was printed, with key or file. */
int kvf_tls_settings_open(const kvf_config *c, bool router, kvf_tls_settings *t);
/* New connections use new files from now on. Signals are to be blocked before: it makes a thread. */
void kvf_tls_settings_watch(kvf_tls_settings *t);
void kvf_tls_settings_close(kvf_tls_settings *t);

/* Exit status: not KVF_EXIT_OK when the address of this key leaves this host, unencrypted and not allowed to. */
int kvf_tls_settings_guard(const kvf_config *c, const char *key, const char *address, bool encrypted);
#endif
