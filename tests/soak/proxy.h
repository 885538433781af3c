/* proxy.h - a network between the processes under test: lanes that pass bytes on and can be cut, slowed, held and
 * corrupted while they run.
 *
 * A lane is one listening address and one target; every connection made to the first is joined with a new one to the
 * second. One thread moves all bytes. All functions may be called from any thread. */
#ifndef KVF_SOAK_PROXY_H
#define KVF_SOAK_PROXY_H
#include <stdbool.h>
#include <stdint.h>

enum { PROXY_LANES_MAX = 64, PROXY_ADDRESS_MAX = 108 };

typedef struct proxy proxy;

typedef struct {
    uint64_t delay_ns; /* of every piece, each way */
    uint64_t bytes_per_s; /* 0: as fast as it goes */
    uint64_t flip_bytes; /* one bit of every so many bytes towards the target is turned; 0: none */
    bool hold; /* nothing moves, nothing is closed */
} proxy_weather;

proxy *proxy_create(void);
void proxy_destroy(proxy *p); /* cuts everything */
/* Listens on host:port (port 0: any free one) for a target "127.0.0.1:PORT" or "unix:PATH", which may not exist yet.
 * False: the port is taken. */
bool proxy_lane(proxy *p, const char *host, uint16_t port, const char *target, uint32_t *lane);
void proxy_retarget(proxy *p, uint32_t lane, const char *target); /* for connections made from now on */
uint16_t proxy_port(proxy *p, uint32_t lane);
void proxy_set(proxy *p, uint32_t lane, const proxy_weather *weather);
uint32_t proxy_cut(proxy *p, uint32_t lane); /* resets all its connections; how many there were */
void proxy_totals(proxy *p, uint64_t *bytes, uint64_t *flips, uint64_t *cuts);

#endif
