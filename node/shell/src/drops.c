#include "drops.h"
#include <stdio.h>

void drops_link_up(drops *d, kvf_link_id link, const char *peer) {
    memset(&d->rows[link % DROPS_LINKS], 0, sizeof d->rows[0]);
    d->rows[link % DROPS_LINKS].link = link;
    snprintf(d->rows[link % DROPS_LINKS].peer, KVF_NAME_MAX, "%s", peer);
}

uint64_t drops_add(drops *d, kvf_time_ns now, kvf_link_id link, const char **peer) {
    uint32_t at = link % DROPS_LINKS;
    if (d->rows[at].link != link) drops_link_up(d, link, "?");
    d->rows[at].dropped++;
    d->rows[at].untold++;
    *peer = d->rows[at].peer;
    if (now < d->rows[at].quiet_until_ns) return 0;
    uint64_t told = d->rows[at].untold;
    d->rows[at].untold = 0;
    d->rows[at].quiet_until_ns = now + DROPS_QUIET_NS;
    return told;
}

uint64_t drops_link_down(drops *d, kvf_link_id link) {
    uint32_t at = link % DROPS_LINKS;
    return d->rows[at].link == link ? d->rows[at].dropped : 0;
}
