#include "interfaces.h"
#include <net/if.h>
#include <stdio.h>

bool interfaces_match(const char *wish, const char *name) {
    bool all_but = *wish == '^', named = false;
    wish += all_but;
    bool whole = *wish == '=';
    for (wish += whole; *wish && !named; wish += *wish == ',') {
        size_t len = strcspn(wish, ",");
        named = len > 0 && strncmp(wish, name, len) == 0 && (!whole || name[len] == 0);
        wish += len;
    }
    return named != all_but;
}

static void append(char *names, size_t names_bytes, const char *name) {
    size_t used = strlen(names);
    snprintf(names + used, names_bytes - used, "%s%s", used ? " " : "", name);
}

kvf_status interfaces_of(const char *wish, char *names, size_t names_bytes, kvf_error *err) {
    char others[256] = "";
    struct if_nameindex *all = if_nameindex();
    names[0] = 0;
    for (const struct if_nameindex *i = all; i && i->if_name; i++) {
        bool may = interfaces_match(wish, i->if_name);
        append(may ? names : others, may ? names_bytes : sizeof others, i->if_name);
    }
    if (all) if_freenameindex(all);
    if (names[0]) return KVF_OK;
    return kvf_fail(
        err, KVF_ERR_NOT_FOUND, "NCCL_SOCKET_IFNAME \"%s\" names no network interface of this host (%s)", wish, others);
}
