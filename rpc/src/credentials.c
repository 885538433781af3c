/* Credentials: what gRPC's own TLS is told, from the certificates of a store. Channels take the set of the moment at
 * which they are made; listeners ask for it at each connection. Unix sockets stay plain whatever is configured: who may
 * open them is the file system's to say. */
#include "rpc_int.h"
#include "kvf/tls.h"
#include <stdio.h>
#include <stdlib.h>

bool rpc_is_unix(const char *address) { return strncmp(address, "unix", 4) == 0; }

static bool wanted(const kvf_rpc_credentials *c, const char *address) {
    return c && c->mode == KVF_RPC_TLS && !rpc_is_unix(address);
}

static grpc_ssl_pem_key_cert_pair pair_of(const kvf_tls_set *set) {
    return (grpc_ssl_pem_key_cert_pair){.private_key = set->key, .cert_chain = set->cert};
}

/* ---- Listeners ---- */

struct rpc_listener_tls {
    kvf_tls_store *store;
    bool demand;
    pthread_mutex_t lock;
    uint64_t generation; /* of what gRPC holds; 0: nothing yet */
};

/* Each connection asks here. Whatever fails, gRPC goes on with what it had. */
static grpc_ssl_certificate_config_reload_status fetch(void *self, grpc_ssl_server_certificate_config **out) {
    rpc_listener_tls *l = self;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const kvf_tls_set *set = kvf_tls_store_set(l->store);
    pthread_mutex_lock(&l->lock);
    if (set->generation != l->generation) {
        grpc_ssl_pem_key_cert_pair pair = pair_of(set);
        /* gRPC asserts that there are roots, also where it asks nobody. */
        *out = grpc_ssl_server_certificate_config_create(l->demand ? set->ca : set->cert, &pair, 1);
        status = *out ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
        if (*out) l->generation = set->generation;
    }
    pthread_mutex_unlock(&l->lock);
    kvf_tls_set_release(set);
    return status;
}

grpc_server_credentials *rpc_listener_credentials(
    const kvf_rpc_credentials *c, const char *address, rpc_listener_tls **out) {
    *out = NULL;
    if (!wanted(c, address)) return grpc_insecure_server_credentials_create();
    rpc_listener_tls *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->store = c->files;
    l->demand = c->demand_certificates;
    pthread_mutex_init(&l->lock, NULL);
    *out = l;
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            l->demand ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                      : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            fetch, l));
}

void rpc_listener_tls_free(rpc_listener_tls *l) {
    if (!l) return;
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- Channels ---- */

grpc_channel_credentials *rpc_channel_credentials(const kvf_rpc_credentials *c, const char *address) {
    if (!wanted(c, address)) return grpc_insecure_credentials_create();
    const kvf_tls_set *set = kvf_tls_store_set(c->files);
    grpc_ssl_pem_key_cert_pair pair = pair_of(set);
    grpc_channel_credentials *made = grpc_ssl_credentials_create_ex(set->ca, set->cert ? &pair : NULL, NULL, NULL);
    kvf_tls_set_release(set);
    return made;
}

const char *rpc_channel_peer_name(const kvf_rpc_credentials *c, const char *address) {
    return wanted(c, address) && c->peer_name && *c->peer_name ? c->peer_name : NULL;
}

kvf_status rpc_credentials_check(const kvf_rpc_credentials *c, bool listener, kvf_error *err) {
    if (!c || c->mode == KVF_RPC_INSECURE) return KVF_OK;
    if (c->mode != KVF_RPC_TLS || !c->files) return kvf_fail(err, KVF_ERR_INVALID, "TLS needs certificate files");
    const kvf_tls_set *set = kvf_tls_store_set(c->files);
    kvf_status status = KVF_OK;
    if (listener && !set->cert)
        status = kvf_fail(err, KVF_ERR_INVALID, "a TLS listener needs a certificate and its key");
    else if ((!listener || c->demand_certificates) && !set->ca)
        status = kvf_fail(err, KVF_ERR_INVALID, "TLS needs an authority to judge the peer by");
    kvf_tls_set_release(set);
    return status;
}

/* ---- Callers ---- */

bool kvf_rpc_call_proves(kvf_rpc_call *call, const char *name, char *who, size_t who_bytes) {
    bool proved = false;
    snprintf(who, who_bytes, "nobody");
    pthread_mutex_lock(&call->flow.lock);
    grpc_auth_context *context = call->flow.grpc ? grpc_call_auth_context(call->flow.grpc) : NULL;
    if (context) {
        grpc_auth_property_iterator i =
            grpc_auth_context_find_properties_by_name(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
        const grpc_auth_property *pem = grpc_auth_property_iterator_next(&i);
        proved = !pem || kvf_tls_names_pem((kvf_span){pem->value, pem->value_length}, name, who, who_bytes);
        grpc_auth_context_release(context);
    }
    pthread_mutex_unlock(&call->flow.lock);
    return proved;
}
