/* fake_node.h - a node without an engine: speaks kvferry.internal.v1 and answers every request with tokens that the
 * request's own seed names, so that a whole router process can be tested in one process. Bytes are tokens (tiny.h). */
#ifndef ROUTER_SHELL_FAKE_NODE_H
#define ROUTER_SHELL_FAKE_NODE_H
#include "tiny.h"
#include "kvf/arena.h"
#include "kvf/msg.h"
#include "kvf/sampler.h"
#include <pthread.h>

/* Low byte of the seed. */
typedef enum {
    FAKE_SCRIPT, /* says scripts[seed >> 8], choice c from its byte c on, then EOS */
    FAKE_HOLD, /* one token, then silence */
    FAKE_FLOOD, /* 'x' without end */
    FAKE_FAIL, /* Failed, not to be tried again */
    FAKE_REFUSE, /* Refused for ever */
    FAKE_SILENT, /* no answer */
    FAKE_SLOW_END, /* like SCRIPT, but the end waits for fake_release */
    FAKE_DIE /* tears its session down after half of the script, once */
} fake_mode;
#define FAKE_SEED(mode, script) ((uint64_t)(mode) | (uint64_t)(script) << 8)

enum { FAKE_SCRIPTS_MAX = 8, FAKE_WORKS_MAX = 64 };

typedef struct {
    bool used;
    kvf_request_id request;
    uint32_t attempt, n, choice_base, prompt_count, tokens_count, output_max;
    kvf_sampling sampling;
    uint32_t said[KVF_CHOICES_MAX]; /* output tokens so far */
    bool ended[KVF_CHOICES_MAX];
} fake_work;

typedef struct fake_node fake_node;
struct fake_node {
    char name[KVF_NAME_MAX];
    kvf_role role;
    const front_model *model;
    fake_node *decode; /* prefill node: whom it "ships" to */
    const char *scripts[FAKE_SCRIPTS_MAX];
    uint32_t steps_per_batch; /* steps in one message; 0: 1 */
    uint32_t byte_token[256];
    kvf_rpc_runtime *rt;
    kvf_rpc_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    kvf_rpc_call *call;
    uint8_t *memory; /* of messages being read or made */
    fake_work works[FAKE_WORKS_MAX];
    uint64_t batch, epoch;
    uint32_t next_grant;
    kvf_node_state state;
    uint32_t hellos, reserves, prefills, cancels, finished_cancels, drains, undrains, flushes;
    bool dirty_audit, mute_audit;
    kvf_rejected rejected;
    uint32_t deaths;
    uint64_t weights_hash_xor; /* another model */
};

/* address NULL: any port of 127.0.0.1 */
void fake_node_start(fake_node *n, const front_model *m, const char *name, kvf_role role, const char *address);
void fake_node_stop(fake_node *n);
const char *fake_node_address(const fake_node *n);
void fake_node_wait(fake_node *n, const uint32_t *counter, uint32_t at_least); /* fails the test after a minute */
void fake_release(fake_node *n); /* ends what waits */
void fake_reject(fake_node *n, const char *peer, uint64_t frames); /* tells the router so */
/* Other threads are at work: */
#define FAKE_SET(node, field, value)                                                                                   \
    do {                                                                                                               \
        pthread_mutex_lock(&(node)->lock);                                                                             \
        (node)->field = (value);                                                                                       \
        pthread_mutex_unlock(&(node)->lock);                                                                           \
    } while (0)
static inline uint32_t fake_get(fake_node *n, const uint32_t *counter) {
    pthread_mutex_lock(&n->lock);
    uint32_t value = *counter;
    pthread_mutex_unlock(&n->lock);
    return value;
}
#endif
