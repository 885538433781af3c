/* Nodes: sessions, who is who (names, epochs, identities), what they report, pairs that do not get on. */
#include "router_int.h"
#include <inttypes.h>
#include <stdio.h>

static bool bit(uint64_t bits, uint32_t i) { return bits >> i & 1; }

/* ---- members ---- */

kvf_status kvf_router_add_node(kvf_router *r, kvf_time_ns now, uint32_t node, const char *id, kvf_role role) {
    rt_clock(r, now);
    if (node >= r->config.nodes_max || strnlen(id, KVF_NAME_MAX) >= KVF_NAME_MAX) return KVF_ERR_INVALID;
    rt_node *n = &r->nodes[node];
    if (n->used) return KVF_ERR_BUSY;
    for (uint32_t i = 0; id[0] && i < r->config.nodes_max; i++)
        if (r->nodes[i].used && strcmp(r->nodes[i].id, id) == 0) return KVF_ERR_BUSY;
    *n = (rt_node){.used = true, .hint = role, .down_ns = now, .prefilling_said = n->prefilling_said};
    snprintf(n->id, sizeof n->id, "%s", id);
    for (uint32_t i = 0; i < r->config.nodes_max; i++) *rt_pair_of(r, node, i) = *rt_pair_of(r, i, node) = (rt_pair){0};
    rt_node_arm(r, node);
    return KVF_OK;
}

/* Everything this router has on the node goes on elsewhere. died: its process is gone, and what its engine was at may
 * be why. */
static bool leg_lost(kvf_router *r, rt_seq *s, uint32_t node, bool died, const char *text) {
    rt_leg *l = &s->l;
    bool suspect = died && rt_suspect_died(r, s, node);
    rt_failure why = {.what = suspect ? RT_DEATH : RT_STRAY, .blame = node, .reason = KVF_ERR_PEER_LOST, .text = text};
    if (l->decode == node) {
        l->decode_told = false;
        l->old_attempt = 0;
        why.stage = l->state == RT_LEG_DECODING ? "decode" : "reserve";
        rt_leg_failed(r, s, &why);
    } else if (l->prefill == node) {
        l->prefill_told = false;
        why.stage = "prefill";
        why.same_decode = true;
        if (l->state == RT_LEG_DECODING)
            rt_leg_leave_prefill(r, s, true);
        else
            rt_leg_failed(r, s, &why);
        if (s->request != RT_NONE) rt_request_heard(r, rt_request_at(r, s));
    } else if (suspect) { /* it had left already: the other side had told of the lost link */
        why.stage = "prefill";
        (void)rt_leg_may_go_on(r, s, &why);
    }
    return suspect;
}

static void forget_blocks(kvf_router *r, uint32_t node) {
    rt_node *n = &r->nodes[node];
    rt_directory_clear(&r->directory, node);
    n->events_synced = n->events_lagged = n->snapshot_running = n->snapshot_due = n->snapshot_compares = false;
    n->events_next = 0;
    n->difference_valid = false;
}

static void lose_node(kvf_router *r, uint32_t node, bool died, const char *text) {
    rt_node *n = &r->nodes[node];
    bool suspects = false, news = died && n->known && !n->lost;
    n->lost = true;
    n->full = false;
    n->closed_until_ns = 0;
    for (uint32_t i = 0; i < r->fresh_seqs && !MUTANT(4); i++) {
        rt_seq *s = &r->seqs[i];
        if (s->request != RT_NONE && s->l.state != RT_LEG_NONE) suspects |= leg_lost(r, s, node, died, text);
    }
    if (news && !suspects) rt_suspects_nobody(r);
    if (news) {
        r->any_died = true;
        r->died_ns = r->now;
    }
    n->prefilling_said++; /* nothing is in an engine there any more */
    KVF_ASSERT(MUTANT(4) || (n->reserving == 0 && n->queued == 0 && n->decoding == 0));
    if (!MUTANT(9)) forget_blocks(r, node);
    r->pump_due = true;
}

void kvf_router_remove_node(kvf_router *r, kvf_time_ns now, uint32_t node) {
    rt_clock(r, now);
    if (node >= r->config.nodes_max || !r->nodes[node].used) return;
    rt_node *n = &r->nodes[node];
    n->up = n->welcomed = false; /* not to be chosen again by what follows */
    lose_node(r, node, false, "the node was removed");
    n->used = false;
    rt_timer_set(r, rt_timer_node(r, node), KVF_TIME_NEVER);
    rt_nodes_wake(r);
}

void rt_nodes_wake(kvf_router *r) {
    for (uint32_t i = 0; i < r->fresh_seqs; i++) {
        rt_seq *s = &r->seqs[i];
        if (s->request == RT_NONE) continue;
        /* A leg that was set aside for lack of nodes, not one that backs off. */
        if (s->l.state == RT_LEG_HELD && s->l.unready_since != KVF_TIME_NEVER) rt_leg_wait(r, s);
        if (s->l.state == RT_LEG_GRANTED) rt_timer_set(r, rt_timer_seq(r, s), r->now);
    }
    r->pump_due = true;
}

/* ---- sessions ---- */

void rt_node_arm(kvf_router *r, uint32_t node) {
    const rt_node *n = &r->nodes[node];
    kvf_time_ns at = KVF_TIME_NEVER;
    if (n->up) at = rt_after(n->heard_ns, r->config.status_timeout_ns);
    if (!n->welcomed && !n->lost) at = KVF_MIN(at, rt_after(n->down_ns, r->config.reconnect_grace_ns));
    if (n->closed_until_ns > r->now) at = KVF_MIN(at, n->closed_until_ns);
    rt_timer_set(r, rt_timer_node(r, node), at);
}

void kvf_router_on_session_up(kvf_router *r, kvf_time_ns now, uint32_t node) {
    rt_clock(r, now);
    KVF_ASSERT(node < r->config.nodes_max);
    rt_node *n = &r->nodes[node];
    if (!n->used) return;
    r->nodes_due |= 1ull << node;
    n->up = n->hello_due = true;
    n->welcomed = n->bad = n->ack_due = n->close_due = n->superseded_due = n->snapshot_running = false;
    n->refused[0] = 0;
    n->heard_ns = now;
    rt_node_arm(r, node);
}

/* since_ns: from when on the node counts as away. A session that never said Welcome does not change that: who opens
 * sessions and says nothing is not back. */
static void session_down(kvf_router *r, uint32_t node, kvf_time_ns since_ns) {
    rt_node *n = &r->nodes[node];
    if (n->welcomed) n->down_ns = since_ns;
    n->up = n->welcomed = n->hello_due = n->ack_due = n->superseded_due = n->snapshot_running = false;
    n->full = false;
    rt_node_arm(r, node);
    r->pump_due = true;
}

void kvf_router_on_session_down(kvf_router *r, kvf_time_ns now, uint32_t node) {
    rt_clock(r, now);
    KVF_ASSERT(node < r->config.nodes_max);
    rt_node *n = &r->nodes[node];
    if (!n->used) return;
    n->close_due = false;
    if (n->up) session_down(r, node, now);
}

void kvf_router_on_node_gone(kvf_router *r, kvf_time_ns now, uint32_t node) {
    rt_clock(r, now);
    KVF_ASSERT(node < r->config.nodes_max);
    rt_node *n = &r->nodes[node];
    if (!n->used || !n->known || n->up || n->lost) return;
    r->counters.nodes_lost++;
    lose_node(r, node, true, "its process is gone");
    rt_node_arm(r, node);
}

static void close_session(kvf_router *r, uint32_t node, kvf_time_ns since_ns) {
    session_down(r, node, since_ns);
    r->nodes[node].close_due = true;
    r->nodes_due |= 1ull << node;
}

void rt_node_on_time(kvf_router *r, uint32_t node) {
    rt_node *n = &r->nodes[node];
    if (!n->used) return;
    if (n->up && rt_after(n->heard_ns, r->config.status_timeout_ns) <= r->now) close_session(r, node, n->heard_ns);
    if (!n->welcomed && !n->lost && rt_after(n->down_ns, r->config.reconnect_grace_ns) <= r->now) {
        /* A Hello that has been sent names legs which now go elsewhere: the node shall hear another. One that was
         * refused (bad) has answered, and has nothing of ours. */
        if (n->up && !n->bad) close_session(r, node, n->down_ns);
        r->counters.nodes_lost++;
        lose_node(r, node, true, "its session did not come back");
    }
    r->pump_due = true;
    rt_node_arm(r, node);
}

uint32_t rt_hello_live(kvf_router *r, uint32_t node) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->fresh_seqs; i++) {
        const rt_seq *s = &r->seqs[i];
        if (s->request == RT_NONE || s->ended || s->leg == RT_NONE) continue;
        const rt_leg *l = &r->seqs[s->leg].l;
        kvf_live live = {.request = l->id, .index = s->choice};
        const rt_request *q = rt_request_at(r, s);
        live.next_position = q->prompt_count + s->output_count;
        /* Inside the prompt: logprobs from there on are missing, and all tokens. */
        if (q->prompt_logprobs && s->choice == 0 && q->prompt_logprobs_next < q->prompt_count)
            live.next_position = q->prompt_logprobs_next;
        if (l->decode == node && l->old_attempt && !MUTANT(10)) {
            live.attempt = l->old_attempt;
            r->live[count++] = live;
        }
        live.attempt = l->attempt;
        if ((l->decode == node && l->decode_told) || (l->prefill == node && l->prefill_told && !l->shipped))
            r->live[count++] = live;
    }
    KVF_ASSERT(count <= 2 * r->config.requests_max);
    return count;
}

/* ---- welcome ---- */

static void refuse_node(kvf_router *r, uint32_t node, const char *text) {
    rt_node *n = &r->nodes[node];
    n->bad = true;
    n->welcomed = false;
    snprintf(n->refused, sizeof n->refused, "%s", text);
}

static bool is_retired(const rt_node *n, uint64_t epoch) {
    for (uint32_t i = 0; i < KVF_MIN(n->retired_count, RT_RETIRED_MAX); i++)
        if (n->retired[i] == epoch) return true;
    return false;
}

static void retire(rt_node *n, uint64_t epoch) {
    if (!is_retired(n, epoch)) n->retired[n->retired_count++ % RT_RETIRED_MAX] = epoch;
}

static void supersede(kvf_router *r, uint32_t node, const char *text) {
    r->nodes[node].superseded_due = r->nodes[node].up;
    r->nodes_due |= 1ull << node;
    r->counters.superseded++;
    refuse_node(r, node, text);
}

/* Epochs have no order, and the order in which a router meets two processes of a node need not be that of their starts.
 * Their clocks say more, but clocks differ: one that seems to be older only waits until the other is lost, and neither
 * is retired by that. */
static bool seems_older(const kvf_node_info *info, const kvf_node_info *known) {
    return info->started_ns < known->started_ns && !MUTANT(20);
}

/* Its session is closed too: the next one may lead to the process that is meant. */
static void wait_for_newer(kvf_router *r, uint32_t node) {
    refuse_node(r, node, "a newer process of this node is known");
    r->nodes[node].close_due = true;
    r->nodes_due |= 1ull << node;
}

/* Another index under the same name: a second address of the same process, or an older process. false: refused. */
static bool settle_name(kvf_router *r, uint32_t node, const kvf_node_info *info) {
    rt_node *n = &r->nodes[node];
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        rt_node *o = &r->nodes[i];
        if (i == node || !o->used || !o->known || strcmp(o->info.node, info->node) != 0) continue;
        if (is_retired(o, info->epoch)) {
            supersede(r, node, "an older process of this node");
            return false;
        }
        if (o->info.epoch == info->epoch) {
            if (o->up) {
                refuse_node(r, node, "the same process is already known at another address");
                return false;
            }
            lose_node(r, i, false, "its process answers at another address");
            o->known = false;
            continue;
        }
        if (seems_older(info, &o->info)) {
            if (o->lost) continue;
            wait_for_newer(r, node);
            return false;
        }
        retire(o, o->info.epoch);
        retire(n, o->info.epoch);
        if (o->up) supersede(r, i, "a newer process of this node is known");
        lose_node(r, i, true, "a newer process of this node is known");
    }
    return true;
}

static bool check_node(kvf_router *r, uint32_t node, const kvf_node_info *info) {
    rt_node *n = &r->nodes[node];
    char text[KVF_TEXT_MAX] = "";
    if (info->wire_version != KVF_WIRE_VERSION)
        snprintf(
            text, sizeof text, "wire_version differs: router %d, node %" PRIu32, KVF_WIRE_VERSION, info->wire_version);
    else if (n->id[0] && strncmp(n->id, info->node, KVF_NAME_MAX) != 0)
        snprintf(text, sizeof text, "configured as %.60s, calls itself %.60s", n->id, info->node);
    else if (r->config.model_known && memcmp(r->config.weights_hash, info->identity.weights_hash, 16) != 0)
        snprintf(text, sizeof text,
            "weights_hash differs: router %016" PRIx64 "%016" PRIx64 ", node %016" PRIx64 "%016" PRIx64,
            r->config.weights_hash[1], r->config.weights_hash[0], info->identity.weights_hash[1],
            info->identity.weights_hash[0]);
    else if (r->config.model_known && memcmp(r->config.tokenizer_hash, info->identity.tokenizer_hash, 16) != 0)
        snprintf(text, sizeof text,
            "tokenizer_hash differs: router %016" PRIx64 "%016" PRIx64 ", node %016" PRIx64 "%016" PRIx64,
            r->config.tokenizer_hash[1], r->config.tokenizer_hash[0], info->identity.tokenizer_hash[1],
            info->identity.tokenizer_hash[0]);
    if (!text[0]) return true;
    refuse_node(r, node, text);
    return false;
}

static void compare_pair(kvf_router *r, uint32_t prefill, uint32_t decode) {
    char a[64], b[64];
    rt_pair *p = rt_pair_of(r, prefill, decode);
    const char *field = kvf_identity_differs(&r->nodes[prefill].info.identity, &r->nodes[decode].info.identity, a, b);
    p->refused = field != NULL;
    p->numerics_only = field && strcmp(field, "numerics") == 0; /* compared last: all else is equal */
}

static void resend(kvf_router *r, uint32_t node) {
    /* What was sent without an answer may have been lost with the old session; nodes know it by request and attempt. */
    for (uint32_t i = 0; i < r->fresh_seqs; i++) {
        rt_seq *s = &r->seqs[i];
        if (s->request == RT_NONE) continue;
        rt_leg *l = &s->l;
        if (l->decode == node && (l->state == RT_LEG_RESERVING || l->state == RT_LEG_QUEUED))
            l->reserve_due = !MUTANT(15);
        if (l->prefill == node && l->state == RT_LEG_PREFILLING && !l->shipped) l->prefill_due = true;
        if (l->reserve_due || l->prefill_due) rt_leg_send(r, s);
        if (l->decode == node && !MUTANT(14)) rt_leg_verify(r, s);
    }
}

static void new_process(kvf_router *r, uint32_t node, const kvf_node_info *info) {
    rt_node *n = &r->nodes[node];
    if (n->known) {
        if (!seems_older(info, &n->info)) retire(n, n->info.epoch);
        lose_node(r, node, true, "its process was started again");
    }
    for (uint32_t i = 0; i < r->config.nodes_max; i++) { /* a new process starts without a bad name */
        rt_pair_of(r, node, i)->failures = rt_pair_of(r, i, node)->failures = 0;
        rt_pair_of(r, node, i)->probing = rt_pair_of(r, i, node)->probing = false;
        rt_pair_of(r, node, i)->page_ns = rt_pair_of(r, i, node)->page_ns = 0;
        rt_pair_of(r, node, i)->slow = rt_pair_of(r, i, node)->slow = 0;
    }
}

void rt_node_on_welcome(kvf_router *r, uint32_t node, const kvf_nmsg *msg) {
    const kvf_node_info *info = &msg->welcome.info;
    rt_node *n = &r->nodes[node];
    if (n->welcomed) {
        r->counters.malformed++;
        return;
    }
    n->bad = false;
    if (!check_node(r, node, info)) return;
    if (is_retired(n, info->epoch) && !MUTANT(5)) {
        supersede(r, node, "an older process of this node");
        return;
    }
    bool same = n->known && n->info.epoch == info->epoch;
    if (n->known && !same && !n->lost && seems_older(info, &n->info)) {
        wait_for_newer(r, node);
        return;
    }
    if (!settle_name(r, node, info)) return;
    if (!same) new_process(r, node, info);
    if (!n->id[0]) snprintf(n->id, sizeof n->id, "%s", info->node);
    n->info = *info;
    n->known = n->welcomed = true;
    n->lost = n->full = false;
    n->refused[0] = 0;
    n->closed_until_ns = 0;
    n->model = kvf_hash64_of(info->identity.weights_hash, 16, kvf_hash64_of(info->identity.tokenizer_hash, 16, 0)) | 1;
    n->numerics = kvf_hash64_of(info->identity.numerics, strnlen(info->identity.numerics, 64), 0) | 1;
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        if (i == node || !r->nodes[i].used || !r->nodes[i].known) continue;
        compare_pair(r, node, i);
        compare_pair(r, i, node);
    }
    if (!n->events_synced && msg->welcome.stats.events_next == 1) {
        n->events_synced = true;
        n->events_next = 1;
    }
    if (!n->events_synced) n->snapshot_due = true;
    n->events_lagged = false;
    rt_node_on_status(r, node, &msg->welcome.stats);
    if (same) resend(r, node);
    rt_nodes_wake(r);
}

/* ---- reports ---- */

/* By name: a node that has moved is known under two indices for a while. What comes before the prefill node is known is
 * not lost: the counts are sums, and the next status brings them again. */
static void note_rejected(kvf_router *r, uint32_t decode, const kvf_rejected *of) {
    const rt_node *d = &r->nodes[decode];
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        const rt_node *n = &r->nodes[i];
        if (i == decode || !n->used || !n->known || strncmp(n->info.node, of->node, KVF_NAME_MAX) != 0) continue;
        rt_pair *p = rt_pair_of(r, i, decode);
        if (p->rejected_epoch != d->info.epoch) {
            p->rejected_before += p->rejected_now;
            p->rejected_now = 0;
            p->rejected_epoch = d->info.epoch;
        }
        p->rejected_now = KVF_MAX(p->rejected_now, of->frames);
    }
}

/* The whole list each time: what it does not name is not there. */
static void note_links(kvf_router *r, uint32_t prefill, const kvf_node_stats *stats) {
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        const rt_node *n = &r->nodes[i];
        if (i == prefill || !n->used || !n->known) continue;
        rt_pair *p = rt_pair_of(r, prefill, i);
        p->transport[0] = 0;
        for (uint32_t l = 0; l < stats->links_count; l++)
            if (strncmp(n->info.node, stats->links[l].node, KVF_NAME_MAX) == 0)
                memcpy(p->transport, stats->links[l].transport, sizeof p->transport);
    }
}

void rt_node_on_status(kvf_router *r, uint32_t node, const kvf_node_stats *stats) {
    rt_node *n = &r->nodes[node];
    bool was_ready = rt_node_ready(r, n);
    kvf_role was_role = n->stats.role;
    for (uint32_t i = 0; i < stats->rejected_count; i++) note_rejected(r, node, &stats->rejected[i]);
    note_links(r, node, stats);
    n->stats = *stats;
    n->stats.rejected = NULL; /* was borrowed, as links were */
    n->stats.links = NULL;
    n->stats.rejected_count = n->stats.links_count = 0;
    n->others_load = stats->waiting_tokens - KVF_MIN(stats->waiting_tokens, n->prefill_load);
    /* Events may still be on their way when a status overtakes them in the node: only a lag without movement is a gap.
     */
    bool lags = n->events_synced && stats->events_next > n->events_next;
    if (lags && n->events_lagged && !n->snapshot_running) {
        n->events_synced = false;
        n->snapshot_due = true;
    }
    n->events_lagged = lags;
    if (rt_node_ready(r, n) && (!was_ready || was_role != stats->role)) rt_nodes_wake(r);
    r->pump_due = true;
}

void rt_node_on_events(kvf_router *r, uint32_t node, const kvf_nmsg *msg) {
    rt_node *n = &r->nodes[node];
    uint64_t first = msg->events.first;
    if (!n->events_synced) return; /* a snapshot is on its way, and holds what these say */
    n->events_lagged = false;
    if (first > n->events_next) {
        n->events_synced = false;
        n->snapshot_due = true;
        return;
    }
    for (uint32_t i = 0; i < msg->events.count; i++) {
        if (first + i < n->events_next) continue;
        const kvf_block_event *e = &msg->events.events[i];
        if (e->stored)
            rt_directory_add(&r->directory, node, e->name);
        else if (!MUTANT(8))
            rt_directory_remove(&r->directory, node, e->name);
        n->events_next = first + i + 1;
    }
}

void rt_node_on_snapshot(kvf_router *r, uint32_t node, const kvf_nmsg *msg) {
    rt_node *n = &r->nodes[node];
    if (msg->snapshot.first) {
        n->snapshot_running = true;
        n->snapshot_next = msg->snapshot.events_next;
        /* A comparison says something only when both stand at the same event. */
        n->snapshot_compares =
            n->events_synced && n->events_next == n->snapshot_next && !bit(r->directory.incomplete, node);
        rt_directory_snapshot_begin(&r->directory, node);
    }
    if (!n->snapshot_running) return;
    if (msg->snapshot.events_next != n->snapshot_next) { /* parts of two: ask again */
        n->snapshot_running = n->events_synced = false;
        n->snapshot_due = true;
        return;
    }
    for (uint32_t i = 0; i < msg->snapshot.count; i++)
        rt_directory_snapshot_name(&r->directory, node, msg->snapshot.names[i]);
    if (!msg->snapshot.last) return;
    n->difference = rt_directory_snapshot_end(&r->directory, node);
    n->difference_valid = n->snapshot_compares && !bit(r->directory.incomplete, node);
    n->snapshot_running = n->events_lagged = false;
    n->events_synced = true;
    n->events_next = n->snapshot_next;
    r->counters.snapshots++;
}

/* ---- pairs ---- */

void rt_pair_failed(kvf_router *r, uint32_t prefill, uint32_t decode, const char *why) {
    rt_pair *p = rt_pair_of(r, prefill, decode);
    p->why = why;
    kvf_time_ns span = r->config.backoff_ns;
    for (uint32_t i = 0; i < p->failures && span < r->config.backoff_max_ns; i++) span *= 2;
    if (p->failures < 64) p->failures++;
    p->probing = false;
    span = rt_jitter(r, KVF_MIN(span, r->config.backoff_max_ns), (uint64_t)prefill << 32 | decode, p->failures);
    p->until_ns = rt_after(r->now, span);
    r->counters.ejections++;
}

static uint64_t best_page_ns(const kvf_router *r, const rt_pair *but) {
    uint64_t best = 0;
    for (uint32_t i = 0; i < r->config.nodes_max * r->config.nodes_max; i++) {
        const rt_pair *p = &r->pairs[i];
        if (p != but && p->page_ns && p->failures == 0 && (best == 0 || p->page_ns < best)) best = p->page_ns;
    }
    return best;
}

/* Only what kept a request waiting counts: a hand-off that computing hides is fast enough. */
static bool was_slow(const kvf_router *r, const rt_pair *p, uint64_t page_ns, kvf_time_ns exposed_ns) {
    uint64_t best = best_page_ns(r, p);
    return exposed_ns >= r->config.slow_link_ns && best && page_ns / best >= RT_SLOW_TIMES;
}

void rt_pair_shipped(
    kvf_router *r, uint32_t prefill, uint32_t decode, uint64_t pages, uint64_t again, kvf_time_ns exposed_ns) {
    rt_pair *p = rt_pair_of(r, prefill, decode);
    if (again) {
        r->counters.links_corrupt++;
        rt_pair_failed(r, prefill, decode, "pages arrived spoilt");
        return;
    }
    uint64_t page_ns = pages ? KVF_MAX(exposed_ns / pages, 1u) : 0;
    if (pages && was_slow(r, p, page_ns, exposed_ns)) {
        if (++p->slow >= RT_SLOW_HANDOFFS) {
            r->counters.links_slow++;
            rt_pair_failed(r, prefill, decode, "much slower than others");
            return;
        }
    } else {
        p->slow = 0;
    }
    if (pages) p->page_ns = p->page_ns ? (3 * p->page_ns + page_ns) / 4 : page_ns;
    p->failures = 0;
    p->probing = false;
}
