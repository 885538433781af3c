/* core_rx_commit.c - frames about a grant (OPEN, COMMIT, CANCEL, RENEW) and what kvf_rx_next tells.
 *
 * COMMIT, decided:
 *   a landing copy is under way            wait; judged again when the last one ends
 *   listed pages not landed, or landed under an earlier attempt and not repeated under this one   MISSING{those, at
 * most 1,024} every page here, but count or digest differ: the two sides hold different pages and landed ones are never
 * rewritten, so that sending again cannot help              GONE{CORRUPT}, the grant is lost else COMMITTED A COMMIT
 * repeated after COMMITTED, or an OPEN on another link by a sender that missed the answer, is answered COMMITTED again.
 */
#include "core_int.h"

static void rx_promise(kvf_rx *rx, rx_grant *g, bool *what) {
    if (!g->say_opened && !g->say_missing) rx->untold++;
    *what = true;
}

/* Of a grant that is not live: COMMITTED again, or GONE with what is remembered of it. true: it was committed. */
static bool rx_answer_late(kvf_rx *rx, kvf_link_id link, uint64_t grant) {
    kvf_status reason = KVF_ERR_GONE;
    bool committed = kvf_rx_buried(rx, grant, &reason) && reason == KVF_OK;
    rx->counts.repeats += committed;
    kvf_rx_say(rx, committed ? KVF_FRAME_COMMITTED : KVF_FRAME_GONE, link, grant, reason);
    return committed;
}

static kvf_status rx_on_open(
    kvf_rx *rx, kvf_time_ns now, kvf_link_id link, const uint8_t nonce[16], const kvf_frame *f) {
    rx_grant *g = kvf_rx_find_grant(rx, f->open.grant);
    if (!g) {
        if (rx_answer_late(rx, link, f->open.grant)) return KVF_OK;
        rx->counts.opens_refused++;
        return KVF_ERR_GONE;
    }
    uint8_t proof[32];
    kvf_grant_proof(g->secret, nonce, g->id, g->request, g->attempt, f->open.turn, proof);
    bool proven = kvf_bytes_equal_secret(proof, f->open.proof, sizeof proof) || KVF_MUTATED(MUTANT_NO_PROOF);
    if (!proven || !kvf_request_id_equal(g->request, f->open.request) || g->attempt != f->open.attempt) {
        rx->counts.opens_refused++;
        kvf_rx_say(rx, KVF_FRAME_GONE, link, f->open.grant, KVF_ERR_AUTH);
        return KVF_ERR_AUTH;
    }
    /* Late on a link that the sender has left, or said twice after its link was cut. No answer: the hand-off is on
     * another link, or back on this one under a later turn, and would take GONE for its own. */
    bool late = f->open.turn < g->turn || (f->open.turn == g->turn && g->link != link);
    if (late && !KVF_MUTATED(MUTANT_LATE_OPEN)) {
        rx->counts.opens_late++;
        return KVF_ERR_STALE;
    }
    rx_set_state(g, RX_OPEN);
    g->link = link;
    g->turn = f->open.turn;
    g->link_lost = false;
    g->expires_ns = time_after(now, rx->config.grant_ttl_ns);
    rx_promise(rx, g, &g->say_opened);
    return KVF_OK;
}

static bool rx_complete(const kvf_rx *rx, const rx_grant *g) {
    return g->pages_done == g->listed_count * rx->config.layers;
}

void kvf_rx_try_commit(kvf_rx *rx, rx_grant *g) {
    if (g->moving > 0 && !KVF_MUTATED(MUTANT_COMMIT_OVERTAKES)) {
        g->commit_waits = true;
        return;
    }
    g->commit_waits = false;
    if (!rx_complete(rx, g) && !KVF_MUTATED(MUTANT_COMMIT_OVERTAKES)) {
        rx->counts.commits_missing++;
        if (g->link != KVF_LINK_NONE) rx_promise(rx, g, &g->say_missing);
        return;
    }
    bool same = g->commit_count == g->listed_count * rx->config.layers && g->commit_digest == g->digest;
    if (!same && !KVF_MUTATED(MUTANT_DIGEST_IGNORED)) {
        rx->counts.commits_corrupt++;
        kvf_rx_say(rx, KVF_FRAME_GONE, g->link, g->id, KVF_ERR_CORRUPT);
        kvf_rx_lose(rx, g, KVF_ERR_CORRUPT);
        return;
    }
    kvf_rx_say(rx, KVF_FRAME_COMMITTED, g->link, g->id, KVF_OK);
    kvf_rx_bury(rx, g->id, KVF_OK);
    if (!g->say_opened && !g->say_missing) rx->untold++;
    g->say_opened = g->say_missing = false;
    rx_set_state(g, RX_COMMITTED);
    rx->counts.commits++;
}

static kvf_status rx_on_commit(kvf_rx *rx, kvf_link_id link, const kvf_frame *f) {
    rx_grant *g = kvf_rx_find_grant(rx, f->commit.grant);
    if (!g) {
        bool committed = rx_answer_late(rx, link, f->commit.grant);
        rx_grant *slot = &rx->grants[(f->commit.grant & UINT16_MAX) % rx->config.grants_max];
        if (KVF_MUTATED(MUTANT_COMMIT_TWICE) && committed && slot->state == RX_FREE) {
            rx_set_state(slot, RX_COMMITTED);
            rx->untold++;
        }
        rx->counts.frames_gone += !committed;
        return committed ? KVF_OK : KVF_ERR_GONE;
    }
    /* Of a link that the grant has left, or that never opened it: no answer, it would meet a hand-off that has moved
     * on. */
    if (g->state != RX_OPEN || (g->link != link && !KVF_MUTATED(MUTANT_NO_LINK_CHECK))) {
        rx->counts.frames_stale++;
        return KVF_ERR_STALE;
    }
    KVF_ASSERT(f->commit.payload.len_bytes <= KVF_FRAME_COMMIT_PAYLOAD_MAX);
    g->commit_count = f->commit.page_count;
    g->commit_digest = f->commit.digest;
    g->payload_bytes = (uint32_t)f->commit.payload.len_bytes;
    if (g->payload_bytes) memcpy(g->payload, f->commit.payload.data, g->payload_bytes);
    kvf_rx_try_commit(rx, g);
    return g->state == RX_LOST ? KVF_ERR_CORRUPT : KVF_OK;
}

static kvf_status rx_on_cancel(kvf_rx *rx, kvf_link_id link, uint64_t grant) {
    rx_grant *g = kvf_rx_find_grant(rx, grant);
    if (!g) { /* both sides gave it up at the same time */
        rx->counts.repeats++;
        return KVF_OK;
    }
    if (g->state != RX_OPEN || g->link != link) {
        rx->counts.frames_stale++;
        return KVF_ERR_STALE;
    }
    kvf_rx_lose(rx, g, KVF_ERR_CANCELLED);
    return KVF_OK;
}

kvf_status kvf_rx_on_frame(
    kvf_rx *rx, kvf_time_ns now, kvf_link_id link, const uint8_t nonce[16], const kvf_frame *frame) {
    KVF_ASSERT(link != KVF_LINK_NONE);
    switch (frame->kind) {
    case KVF_FRAME_OPEN: return rx_on_open(rx, now, link, nonce, frame);
    case KVF_FRAME_COMMIT: return rx_on_commit(rx, link, frame);
    case KVF_FRAME_CANCEL: return rx_on_cancel(rx, link, frame->cancel.grant);
    case KVF_FRAME_RENEW:
        for (uint32_t i = 0; i < rx->config.grants_max; i++) {
            rx_grant *g = &rx->grants[i];
            if (g->state == RX_OPEN && g->link == link) g->expires_ns = time_after(now, rx->config.grant_ttl_ns);
        }
        return KVF_OK;
    default: return KVF_ERR_FORMAT; /* the other direction's frames: the endpoint has closed such a link already */
    }
}

/* Every page that COMMIT waits for, in order of (block, layer), up to what one frame names. */
static uint32_t rx_list_missing(const kvf_rx *rx, const rx_grant *g) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->entries_count; i++) {
        if (!g->entries[i].listed) continue;
        for (uint32_t layer = 0; layer < rx->config.layers && n < KVF_FRAME_MISSING_MAX; layer++)
            if (!bit_get(rx_landed(rx, g, i), layer) || !bit_get(rx_counted(rx, g, i), layer))
                rx->names[n++] = (kvf_page_name){g->entries[i].logical, layer};
    }
    return n;
}

static void rx_tell_committed(kvf_rx *rx, rx_grant *g, kvf_rx_act *act) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->entries_count; i++) {
        if (g->entries[i].block.index == KVF_KV_NO_BLOCK) continue; /* never: a whole block has its pages */
        rx->out_logical[n] = g->entries[i].logical;
        rx->out_blocks[n++] = g->entries[i].block;
    }
    KVF_ASSERT(KVF_MUTANT != 0 || n == g->entries_count);
    act->kind = KVF_RX_COMMITTED;
    act->blocks_spent = g->blocks_spent;
    act->logical = rx->out_logical;
    act->blocks = rx->out_blocks;
    act->blocks_count = n;
    act->payload = (kvf_span){g->payload, g->payload_bytes};
    rx_set_state(g, RX_FREE); /* what act points to is written again by the next offer only */
}

static bool rx_tell_reply(kvf_rx *rx, kvf_rx_act *act) {
    if (rx->replies_count == 0) return false;
    rx_reply r = rx->replies[rx->replies_head];
    rx->replies_head = (rx->replies_head + 1) % rx->replies_max;
    rx->replies_count--;
    act->kind = KVF_RX_FRAME;
    act->link = r.link;
    act->grant = r.grant;
    act->frame.kind = r.kind;
    if (r.kind == KVF_FRAME_GONE) {
        act->frame.gone.grant = r.grant;
        act->frame.gone.reason = r.reason;
    } else {
        act->frame.committed.grant = r.grant;
    }
    return true;
}

static void rx_tell_grant(kvf_rx *rx, rx_grant *g, kvf_rx_act *act) {
    act->link = g->link;
    act->grant = g->id;
    act->request = g->request;
    act->attempt = g->attempt;
    if (g->say_opened) {
        act->kind = KVF_RX_FRAME;
        act->frame.kind = KVF_FRAME_OPENED;
        act->frame.opened.grant = g->id;
        g->say_opened = false;
        if (!g->say_missing) rx->untold--;
        return;
    }
    rx->untold--;
    if (g->say_missing) {
        act->kind = KVF_RX_FRAME;
        act->frame.kind = KVF_FRAME_MISSING;
        act->frame.missing.grant = g->id;
        act->frame.missing.count = rx_list_missing(rx, g);
        act->frame.missing.pages = rx->names;
        g->say_missing = false;
    } else if (g->state == RX_COMMITTED) {
        rx_tell_committed(rx, g, act);
    } else {
        KVF_ASSERT(g->state == RX_LOST);
        act->kind = KVF_RX_LOST;
        act->reason = g->lost_reason;
        act->blocks_spent = g->lost_spent;
        rx_set_state(g, RX_FREE);
    }
}

bool kvf_rx_next(kvf_rx *rx, kvf_rx_act *act) {
    memset(act, 0, sizeof *act);
    act->link = KVF_LINK_NONE;
    if (rx->untold > 0) {
        for (uint32_t i = 0; i < rx->config.grants_max; i++) {
            uint32_t slot = (rx->told_next + i) % rx->config.grants_max;
            rx_grant *g = &rx->grants[slot];
            if (!g->say_opened && !g->say_missing && g->state != RX_COMMITTED && g->state != RX_LOST) continue;
            rx->told_next = slot;
            rx_tell_grant(rx, g, act);
            return true;
        }
        KVF_ASSERT(!"something untold");
    }
    return rx_tell_reply(rx, act);
}
