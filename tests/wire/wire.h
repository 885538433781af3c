/* wire.h - the world of kvferry-wire-faults: the real endpoint, receiving core and block pool of a decode node (d1);
 * the real sending core of a prefill node (p1), whose frames this program carries itself; a second prefill node (q1)
 * with a grant of its own; and what checks them.
 *
 * `image` is what D's memory must look like: it changes only where D has accepted a page, and a page that has landed
 * must then equal what the sending node computed. Every other difference is silent harm. */
#ifndef KVF_TEST_WIRE_H
#define KVF_TEST_WIRE_H
#include "kvf/endpoint.h"
#include "kvf/rng.h"
#include "kvf/transport.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    WIRE_LAYERS = 3,
    WIRE_PAGE_BYTES = 96,
    WIRE_POOL = 24,
    WIRE_BLOCKS = 4,
    WIRE_PAST = 64,
    WIRE_BYTES_MAX = 2 * KVF_FRAME_BYTES_MAX
};
#define WIRE_EPOCH_D 22u
#define WIRE_EPOCH_D_BEFORE 21u
#define WIRE_EPOCH_P 11u
#define WIRE_EPOCH_P_BEFORE 10u
#define WIRE_TTL_NS 1000u

/* By what a fault was caught. */
typedef enum {
    BY_NOTHING,
    BY_FRAME_CRC, /* the link ends */
    BY_FORMAT, /* the link ends */
    BY_PAGE_CRC,
    BY_PAIRING, /* node, epoch, identity: the caller is refused */
    BY_GENERATION, /* a newer connection, process or turn is known */
    BY_END_OF_LINK, /* the frame never became whole, or its connection had been given up */
    BY_GRANT, /* no such grant (any more) */
    BY_LINK, /* the grant is another link's, or not opened */
    BY_LIST, /* block or layer outside the grant */
    BY_LENGTH,
    BY_DUPLICATE,
    BY_PROOF,
    BY_MISSING, /* a commit before its pages */
    BY_DIGEST,
    BY_SAME, /* the same thing said twice means the same: answered again */
    BY_COUNT
} caught_by;
#define BIT(by) (1u << (by))

typedef struct {
    uint8_t bytes[KVF_FRAME_PAGE_BYTES + WIRE_PAGE_BYTES + 64];
    uint32_t len;
    kvf_frame_kind kind;
    uint64_t grant;
    uint32_t link; /* of ours */
} said;
typedef struct {
    kvf_conn *conn; /* NULL: none */
    const char *node;
    uint64_t epoch, generation;
    uint32_t id; /* of this connection, on our side */
    kvf_link_id d_link; /* on D's side */
    uint8_t nonce[16];
    size_t room_bytes; /* of the connection when nothing is on its way */
    bool open, welcome, lost;
} caller;
typedef struct {
    kvf_request_id request;
    uint32_t attempt, turn;
    uint64_t grant;
    uint8_t secret[16];
    uint32_t missing[WIRE_BLOCKS], missing_count;
    uint32_t landed[WIRE_BLOCKS]; /* layers as bits, by place in missing */
    kvf_link_id bound; /* D's link that has it */
    bool over, committed;
    uint64_t digest;
} grant_state;

typedef struct {
    uint64_t faults, caught[BY_COUNT];
} kind_count;

typedef struct {
    kvf_rng rng;
    uint64_t seed;
    kvf_time_ns now;
    struct event_base *base;
    kvf_loopback *hub;
    kvf_transport_env env;
    /* decode node */
    kvf_endpoint *d;
    kvf_kv *kv_d;
    kvf_rx *rx;
    uint8_t memory[WIRE_POOL][WIRE_LAYERS][WIRE_PAGE_BYTES], image[WIRE_POOL][WIRE_LAYERS][WIRE_PAGE_BYTES];
    struct {
        uint32_t generation;
        bool landed[WIRE_LAYERS];
    } pages[WIRE_POOL];
    uint8_t nonces[256][16];
    uint64_t downs, opened_said, pages_landed;
    kvf_status down_reason, frame_status; /* of the last link that ended, of the last frame that was judged */
    kvf_block_id kept[WIRE_BLOCKS]; /* of the last hand-off that was committed: still pinned, must not change */
    uint32_t kept_count;
    /* prefill nodes */
    kvf_kv *kv_p;
    kvf_tx *tx;
    uint8_t source[WIRE_POOL][WIRE_LAYERS][WIRE_PAGE_BYTES];
    kvf_block_id source_blocks[WIRE_BLOCKS];
    kvf_tx_id id;
    bool running;
    kvf_status result;
    caller p, q, old; /* old: p1's connection before this one, never closed by it */
    uint64_t generation;
    grant_state a, b, gone, done; /* p1's, q1's; one that was revoked or expired, one that was committed */
    said past[WIRE_PAST];
    uint32_t past_count;
    bool spoil_answer;
    caught_by answer_caught;
    /* what came of it */
    uint64_t handoffs, retries, relinks, silent;
    void *arenas[4];
} wire_world;
extern wire_world w;

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x)) wire_fail(#x, __FILE__, __LINE__);                                                                   \
    } while (0)
KVF_NORETURN void wire_fail(const char *what, const char *file, int line);
uint32_t pick(uint32_t bound);
bool chance(uint32_t percent);
void pattern(uint64_t request, uint32_t block, uint32_t layer, uint8_t out[WIRE_PAGE_BYTES]);

/* wire_world.c */
void wire_open(uint64_t seed);
void wire_close(void);
void wire_turn(void); /* D reads what is there, and answers */
void wire_hear(caller *c); /* p1 or q1 reads D's answers */
bool wire_dial(caller *c); /* connects and waits for nothing */
void wire_say(caller *c, const void *bytes, size_t len);
void wire_hang_up(caller *c);
size_t wire_hello(const caller *c, const char *peer, uint64_t peer_epoch, uint8_t *out);
void wire_call(caller *c); /* a new connection of c up to WELCOME; the grants of its old one are opened again */
void wire_check(void); /* memory equals image, audits are clean */
void wire_drain(void);
void wire_begin(void); /* a new request, or the next attempt of one that did not come through */
bool wire_step(void); /* the sending core's next act; false: the hand-off has ended */
void wire_mend(void); /* new connections for those that were lost */
void wire_lose(bool expired); /* D gives up p1's grant */

/* wire_kinds.c */
typedef struct {
    const char *name;
    bool (*inflict)(caught_by *by); /* false: not possible at this moment */
    uint32_t expected; /* bits of caught_by */
} fault_kind;
extern const fault_kind fault_kinds[];
extern const uint32_t fault_kinds_count;
#endif
