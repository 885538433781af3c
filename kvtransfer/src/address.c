/* address.c - "host:port" in both directions; IPv6 literals stand in brackets, as in URIs. */
#include "kvf/transport.h"
#include <errno.h>
#include <event2/dns.h>
#include <stdio.h>
#include <stdlib.h>

kvf_status kvf_address_split(const char *text, char host[KVF_ADDRESS_MAX], uint16_t *port, kvf_error *err) {
    const char *colon = strrchr(text, ':');
    const char *start = text, *end = colon;
    if (!colon) return kvf_fail(err, KVF_ERR_INVALID, "\"%s\": no port", text);
    if (text[0] == '[') {
        start = text + 1;
        end = colon - 1;
        if (end < start || *end != ']') return kvf_fail(err, KVF_ERR_INVALID, "\"%s\": expected [address]:port", text);
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return kvf_fail(err, KVF_ERR_INVALID, "\"%s\": an IPv6 address needs brackets, as in [::1]:7001", text);
    }
    char *stop;
    errno = 0;
    unsigned long value = strtoul(colon + 1, &stop, 10);
    if (colon[1] < '0' || colon[1] > '9' || *stop || errno || value > UINT16_MAX)
        return kvf_fail(err, KVF_ERR_INVALID, "\"%s\": port must be 0 to 65535", text);
    if (end - start >= KVF_ADDRESS_MAX) return kvf_fail(err, KVF_ERR_INVALID, "\"%s\": host is too long", text);
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = 0;
    *port = (uint16_t)value;
    return KVF_OK;
}

kvf_status kvf_address_join(const char *prefix, const char *host, uint16_t port, char out[KVF_ADDRESS_MAX]) {
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    int n = snprintf(out, KVF_ADDRESS_MAX, bare_v6 ? "%s:[%s]:%u" : "%s:%s:%u", prefix, host, port);
    return n > 0 && n < KVF_ADDRESS_MAX ? KVF_OK : KVF_ERR_INVALID;
}

void kvf_transport_env_fini(kvf_transport_env *env) {
    if (env->resolver) evdns_base_free(env->resolver, 0);
    env->resolver = NULL;
}
