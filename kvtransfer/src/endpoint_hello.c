/* endpoint_hello.c - pairing. The caller says who it is and whom it calls; both sides compare names, epochs and every
 * field of the identity, and a refusal names the field and both values on both sides. */
#include "endpoint_int.h"
#include "kvf/os.h"
#include <inttypes.h>
#include <stdio.h>

void ep_say_hello(ep_link *link) {
    kvf_endpoint *e = link->endpoint;
    kvf_frame f = {.kind = KVF_FRAME_HELLO};
    memcpy(f.hello.node, e->node, sizeof f.hello.node);
    memcpy(f.hello.peer, link->peer, sizeof f.hello.peer);
    f.hello.epoch = e->options.epoch;
    f.hello.peer_epoch = link->peer_epoch;
    f.hello.generation = link->generation;
    f.hello.lanes = link->lanes_offered = ep_lanes_offered(link);
    f.hello.identity = e->identity;
    link->state = LINK_HELLO_SENT;
    ep_put_frame(link, &f);
}

/* NULL: they may pair. */
static const char *identity_obstacle(const kvf_endpoint *e, const kvf_identity *theirs, char mine[64], char yours[64]) {
    const char *field = kvf_identity_differs(&e->identity, theirs, mine, yours);
    if (field && e->options.allow_unequal_numerics && strcmp(field, "numerics") == 0) return NULL; /* compared last */
    return field;
}

static void refuse(ep_link *link, kvf_status reason, const char *field, const char *mine, const char *yours) {
    kvf_frame f = {.kind = KVF_FRAME_REFUSE};
    f.refuse.reason = reason;
    snprintf(f.refuse.field, sizeof f.refuse.field, "%s", field);
    snprintf(f.refuse.mine, sizeof f.refuse.mine, "%s", mine);
    snprintf(f.refuse.yours, sizeof f.refuse.yours, "%s", yours);
    ep_put_frame(link, &f);
    ep_linger(link);
    ep_fail(link, reason, "refused %s: %s here is %s, there %s", link->peer[0] ? link->peer : "a caller", field, mine,
        yours);
}

static ep_caller *caller_of(kvf_endpoint *e, const char *node, uint64_t epoch) {
    for (uint32_t i = 0; i < CALLERS_MAX; i++)
        if (e->callers[i].epoch == epoch && strcmp(e->callers[i].node, node) == 0) return &e->callers[i];
    ep_caller *c = &e->callers[e->caller_next];
    e->caller_next = (e->caller_next + 1) % CALLERS_MAX;
    *c = (ep_caller){.epoch = epoch};
    memcpy(c->node, node, strlen(node));
    return c;
}

/* The newest connection of the newest process speaks for a node: what an older one still has under way must not reach
 * a grant. false: the caller itself is the older one, and has been refused. */
static bool take_place(ep_link *link) {
    kvf_endpoint *e = link->endpoint;
    char mine[64], yours[64];
    const ep_caller *known = caller_of(e, link->peer, link->peer_epoch);
    bool superseded = known->superseded;
    if (link->generation <= known->generation) {
        snprintf(mine, sizeof mine, "%" PRIu64, known->generation);
        snprintf(yours, sizeof yours, "%" PRIu64, link->generation);
        refuse(link, KVF_ERR_STALE, "generation", mine, yours);
        return false;
    }
    for (uint32_t i = 0; i < e->links_count; i++) {
        ep_link *old = &e->links[i];
        if (old->state != LINK_UP || old->outgoing || strcmp(old->peer, link->peer) != 0) continue;
        bool other = old->peer_epoch != link->peer_epoch;
        if (other && superseded) {
            snprintf(mine, sizeof mine, "%016" PRIx64, old->peer_epoch);
            snprintf(yours, sizeof yours, "%016" PRIx64, link->peer_epoch);
            refuse(link, KVF_ERR_STALE, "caller_epoch", mine, yours);
            return false;
        }
        if (other) caller_of(e, old->peer, old->peer_epoch)->superseded = true;
        ep_fail(old, KVF_ERR_STALE, "%s has called again, %s", old->peer,
            other ? "as another process" : "by a newer connection");
    }
    ep_caller *c = caller_of(e, link->peer, link->peer_epoch); /* asked again: others may have taken its row */
    c->generation = link->generation;
    c->superseded = false;
    return true;
}

void ep_hello(ep_link *link, const kvf_frame *f) {
    kvf_endpoint *e = link->endpoint;
    char mine[64], yours[64];
    memcpy(link->peer, f->hello.node, sizeof link->peer);
    link->peer_epoch = f->hello.epoch;
    link->generation = f->hello.generation;
    if (!ep_proved(link, link->peer, mine, sizeof mine)) {
        refuse(link, KVF_ERR_AUTH, "certificate", mine, link->peer);
        return;
    }
    if (strcmp(f->hello.peer, e->node) != 0) {
        refuse(link, KVF_ERR_MISMATCH, "node", e->node, f->hello.peer);
        return;
    }
    if (f->hello.peer_epoch != e->options.epoch) {
        snprintf(mine, sizeof mine, "%016" PRIx64, e->options.epoch);
        snprintf(yours, sizeof yours, "%016" PRIx64, f->hello.peer_epoch);
        refuse(link, KVF_ERR_STALE, "epoch", mine, yours);
        return;
    }
    const char *field = identity_obstacle(e, &f->hello.identity, mine, yours);
    if (field) {
        refuse(link, KVF_ERR_MISMATCH, field, mine, yours);
        return;
    }
    if (!take_place(link)) return;
    kvf_frame w = {.kind = KVF_FRAME_WELCOME};
    memcpy(w.welcome.node, e->node, sizeof w.welcome.node);
    w.welcome.epoch = e->options.epoch;
    w.welcome.identity = e->identity;
    kvf_os_random(link->nonce, sizeof link->nonce);
    memcpy(w.welcome.nonce, link->nonce, sizeof w.welcome.nonce);
    kvf_lane_kind kind = ep_lane_choose(link, f->hello.lanes);
    w.welcome.lanes = kind == KVF_LANE_STREAM ? 0 : 1u << kind;
    ep_put_frame(link, &w);
    ep_lane_make(link, kind);
}

void ep_welcome(ep_link *link, const kvf_frame *f) {
    if (f->kind == KVF_FRAME_REFUSE) {
        /* "mine" and "yours" are the peer's words. */
        ep_fail(link, f->refuse.reason < 0 ? f->refuse.reason : KVF_ERR_MISMATCH, "%s refuses: %s there is %s, here %s",
            link->peer, f->refuse.field, f->refuse.mine, f->refuse.yours);
        return;
    }
    char mine[64], yours[64];
    if (strcmp(f->welcome.node, link->peer) != 0 || f->welcome.epoch != link->peer_epoch) {
        ep_fail(link, KVF_ERR_MISMATCH, "called %s epoch %016" PRIx64 ", answered by %s epoch %016" PRIx64, link->peer,
            link->peer_epoch, f->welcome.node, f->welcome.epoch);
        return;
    }
    const char *field = identity_obstacle(link->endpoint, &f->welcome.identity, mine, yours);
    if (field) {
        ep_fail(link, KVF_ERR_MISMATCH, "%s does not fit: %s there is %s, here %s", link->peer, field, yours, mine);
        return;
    }
    memcpy(link->nonce, f->welcome.nonce, sizeof link->nonce);
    uint32_t chosen = f->welcome.lanes;
    if (chosen & (chosen - 1) || chosen & ~link->lanes_offered) {
        ep_fail(link, KVF_ERR_FORMAT, "%s chose a lane that was not offered", link->peer);
        return;
    }
    ep_lane_make(link, chosen == 1u << KVF_LANE_NCCL  ? KVF_LANE_NCCL
                       : chosen == 1u << KVF_LANE_IPC ? KVF_LANE_IPC
                                                      : KVF_LANE_STREAM);
}

void ep_other_version(ep_link *link, const uint8_t *head) {
    char mine[64], yours[64];
    snprintf(mine, sizeof mine, "%u", KVF_WIRE_VERSION);
    snprintf(yours, sizeof yours, "%u", head[5]);
    if (link->state == LINK_HELLO_WAIT)
        refuse(link, KVF_ERR_MISMATCH, "wire_version", mine, yours);
    else
        ep_fail(link, KVF_ERR_MISMATCH, "%s does not fit: wire_version there is %s, here %s", link->peer, yours, mine);
}
