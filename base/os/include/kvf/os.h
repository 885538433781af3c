/* kvf/os.h - what shells take from the operating system: clock, randomness, cores, host identity, a mailbox that wakes
 * an event loop. Cores never include this. */
#ifndef KVF_OS_H
#define KVF_OS_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

kvf_time_ns kvf_os_now_ns(void); /* CLOCK_MONOTONIC */
uint64_t kvf_os_wall_ns(void); /* CLOCK_REALTIME, since 1970: jumps, and differs between hosts */
void kvf_os_random(void *out, size_t len_bytes);
uint64_t kvf_os_random_u64(void);

/* Cores this process may really use: affinity mask cut by the cgroup CPU quota (v2 and v1), at least 1. */
uint32_t kvf_os_cpu_count(void);

/* Same value in two processes exactly when they can share memory: boot id and the IPC/network namespace. */
uint64_t kvf_os_host_id(void);

/* Anonymous resident bytes, all resident bytes and open descriptors of this process (/proc/self); 0 where unknown. */
void kvf_os_usage(uint64_t *anon_bytes, uint64_t *rss_bytes, uint32_t *fds);

/* A bounded multi-producer queue of pointers with a descriptor that polls readable while it is not empty.
 * put: any thread; KVF_AGAIN when full. take: one thread. Messages still inside at destroy are the owner's to drain
 * first. */
typedef struct kvf_mailbox kvf_mailbox;
kvf_status kvf_mailbox_create(uint32_t capacity, kvf_mailbox **out);
void kvf_mailbox_destroy(kvf_mailbox *m);
int kvf_mailbox_fd(const kvf_mailbox *m);
kvf_status kvf_mailbox_put(kvf_mailbox *m, void *message);
void *kvf_mailbox_take(kvf_mailbox *m); /* NULL: empty (and the descriptor is quiet again) */
#ifdef __cplusplus
}
#endif
#endif
