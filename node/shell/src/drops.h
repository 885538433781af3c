/* drops.h - frames that a node dropped, counted for each link and told at most once a second for each, so that a peer
 * that floods a node with stale frames is named in the log and does not fill it. */
#ifndef KVF_WORKER_DROPS_H
#define KVF_WORKER_DROPS_H
#include "kvf/xfer.h"

#define DROPS_LINKS 256u /* a link id's low byte is its slot in the endpoint */
#define DROPS_QUIET_NS KVF_NS_PER_S
typedef struct {
    struct {
        kvf_link_id link;
        char peer[KVF_NAME_MAX];
        uint64_t dropped, untold;
        kvf_time_ns quiet_until_ns;
    } rows[DROPS_LINKS];
} drops; /* zeroed: empty */

void drops_link_up(drops *d, kvf_link_id link, const char *peer);
/* One more of this link. How many to tell of now, this one included; 0: be quiet. *peer: borrowed. */
uint64_t drops_add(drops *d, kvf_time_ns now, kvf_link_id link, const char **peer);
uint64_t drops_link_down(drops *d, kvf_link_id link); /* how many there were */
#endif
