#include "tls_settings.h"
#include "cmd.h"
#include "kvf/log.h"
#include "settings.h"

/* Both or neither. */
static int check_pair(const kvf_config *c, const char *cert, const char *key) {
    bool has_cert = kvf_config_is_set(c, cert), has_key = kvf_config_is_set(c, key);
    if (has_cert == has_key) return KVF_EXIT_OK;
    return has_cert ? kvf_settings_wrong(c, cert, "needs %s as well", key)
                    : kvf_settings_wrong(c, key, "needs %s as well", cert);
}

static int open_store(const kvf_tls_files *files, kvf_tls_store **out) {
    kvf_error err = {0};
    return kvf_tls_store_open(files, out, &err) == KVF_OK ? KVF_EXIT_OK : kvf_cmd_failed(&err);
}

static int open_cluster(const kvf_config *c, kvf_tls_settings *t) {
    kvf_tls_files f = {
        kvf_config_string(c, "tls.cert"), kvf_config_string(c, "tls.key"), kvf_config_string(c, "tls.ca")};
    int status = check_pair(c, "tls.cert", "tls.key");
    if (status != KVF_EXIT_OK || (!f.cert && !f.ca)) return status;
    if (!f.ca) return kvf_settings_wrong(c, "tls.cert", "needs tls.ca as well: each side proves itself to the other");
    if (!f.cert) return kvf_settings_wrong(c, "tls.ca", "needs tls.cert and tls.key as well");
    return open_store(&f, &t->cluster);
}

/* Operators must always show a certificate where there is an authority to judge it by; clients only where one of theirs
 * is named. */
static int open_listeners(const kvf_config *c, kvf_tls_settings *t) {
    const char *own = kvf_config_string(c, "router.tls_cert"),
               *client_ca = kvf_config_string(c, "router.tls_client_ca");
    int status = check_pair(c, "router.tls_cert", "router.tls_key");
    if (status != KVF_EXIT_OK) return status;
    kvf_tls_files f = {.cert = own ? own : kvf_config_string(c, "tls.cert"),
        .key = own ? kvf_config_string(c, "router.tls_key") : kvf_config_string(c, "tls.key"),
        .ca = client_ca};
    if (!f.cert)
        return client_ca ? kvf_settings_wrong(c, "router.tls_client_ca", "needs router.tls_cert or tls.cert as well")
                         : KVF_EXIT_OK;
    status = open_store(&f, &t->clients);
    f.ca = kvf_config_is_set(c, "tls.ca") ? kvf_config_string(c, "tls.ca") : client_ca;
    return status == KVF_EXIT_OK ? open_store(&f, &t->admin) : status;
}

int kvf_tls_settings_open(const kvf_config *c, bool router, kvf_tls_settings *t) {
    *t = (kvf_tls_settings){0};
    int status = open_cluster(c, t);
    if (status == KVF_EXIT_OK && router) status = open_listeners(c, t);
    if (status != KVF_EXIT_OK) kvf_tls_settings_close(t);
    return status;
}

void kvf_tls_settings_watch(kvf_tls_settings *t) {
    kvf_tls_store *stores[] = {t->cluster, t->clients, t->admin};
    if (!t->cluster && !t->clients) return;
    if (kvf_tls_watch_start(stores, KVF_COUNT_OF(stores), KVF_NS_PER_S, &t->watch) != KVF_OK)
        kvf_log(KVF_LOG_ERROR, "tls", "no thread to watch certificate files: a change needs a restart");
}

void kvf_tls_settings_close(kvf_tls_settings *t) {
    kvf_tls_watch_stop(t->watch);
    kvf_tls_store_close(t->cluster);
    kvf_tls_store_close(t->clients);
    kvf_tls_store_close(t->admin);
    *t = (kvf_tls_settings){0};
}

int kvf_tls_settings_guard(const kvf_config *c, const char *key, const char *address, bool encrypted) {
    if (encrypted || !address || kvf_settings_local(address) || kvf_config_bool(c, "cluster.insecure_networks"))
        return KVF_EXIT_OK;
    return kvf_settings_wrong(c, key,
        "\"%s\" is beyond this host and the connection would not be encrypted: set tls.cert, tls.key and tls.ca, or "
        "allow it with cluster.insecure_networks (--insecure-networks)",
        address);
}
