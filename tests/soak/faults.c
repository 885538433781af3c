/* faults.c - what happens to the members, from a seed, and how each of it ends.
 *
 * A fault takes a member out of UP until its time is over; one of each role always stays UP, so that every request can
 * be served. Cuts and flushes take nothing away: they may hit anybody. */
#include "soak.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

const char *const fault_names[FAULTS] = {"kill prefill", "kill decode", "kill router", "freeze prefill",
    "freeze decode", "freeze router", "end node", "end router", "drain", "change role", "flush", "cut control",
    "cut pages", "slow control", "slow pages", "hold control", "hold pages", "corrupt pages", "corrupt rings",
    "replace"};

static const uint32_t weights[FAULTS] = {10, 10, 7, 7, 7, 5, 5, 4, 6, 6, 4, 8, 8, 4, 4, 4, 4, 8, 8, 5};

static uint32_t weight_of(const cluster *c, uint32_t kind) {
    enum { OFTEN = 8 };
    return weights[kind] * (c->often[kind] ? OFTEN : 1);
}

static fault_kind pick_kind(cluster *c) {
    uint32_t sum = 0, at = 0;
    for (uint32_t i = 0; i < FAULTS; i++) sum += weight_of(c, i);
    uint64_t dice = cluster_roll(c, sum);
    while (dice >= weight_of(c, at)) dice -= weight_of(c, at++);
    return (fault_kind)at;
}

/* role 0: a node of any role. */
uint32_t cluster_pick(cluster *c, member_role role, bool must_leave_one) {
    uint32_t able[ROLE_ROUTER + 1] = {0}, candidates[MEMBERS], count = 0;
    for (uint32_t i = 0; i < MEMBERS; i++) able[c->m[i].role] += c->m[i].state == UP;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const member *m = &c->m[i];
        if (m->state != UP || (must_leave_one && able[m->role] < 2)) continue;
        if (role ? m->role == role : m->role != ROLE_ROUTER) candidates[count++] = i;
    }
    return count ? candidates[cluster_roll(c, count)] : MEMBERS;
}

static uint64_t random_ns(cluster *c, uint64_t low_ms, uint64_t high_ms) {
    return (low_ms + cluster_roll(c, high_ms - low_ms + 1)) * 1000000u;
}

static void leave(cluster *c, member *m, member_state state, uint64_t low_ms, uint64_t high_ms) {
    m->state = state;
    m->until_ns = e2e_now_ns() + random_ns(c, low_ms, high_ms);
}

/* ---- how long the death of a node stays unseen: until the router's log says that the session is closed ---- */

static long log_end(const char *path) {
    FILE *f = fopen(path, "r");
    long end = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;
    if (f) fclose(f);
    return end;
}

static bool log_says(const char *path, long from, const char *what, const char *more) {
    char line[512];
    bool found = false;
    FILE *f = fopen(path, "r");
    if (f && fseek(f, from, SEEK_SET) == 0)
        while (!found && fgets(line, sizeof line, f)) found = strstr(line, what) && strstr(line, more);
    if (f) fclose(f);
    return found;
}

static void watch_death(cluster *c, const char *id, uint64_t from_ns, const long *from) {
    char what[32];
    snprintf(what, sizeof what, "node %s at", id);
    for (uint32_t r = 0; r < ROUTERS; r++) {
        const member *m = &c->m[NODES + r];
        if (m->state != UP) continue;
        bool seen = false;
        while (!(seen = log_says(m->p.log, from[r], what, "session closed")) && e2e_now_ns() < from_ns + 3000000000u)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (!seen)
            c->undetected++;
        else if (c->detections < DETECTIONS_MAX)
            c->detected_ms[c->detections++] = (double)(e2e_now_ns() - from_ns) / 1e6;
    }
}

/* ---- faults ---- */

static void kill_member(cluster *c, uint32_t i) {
    member *m = &c->m[i];
    long ends[ROUTERS];
    for (uint32_t r = 0; r < ROUTERS; r++) ends[r] = log_end(c->m[NODES + r].p.log);
    uint64_t from = e2e_now_ns();
    if (i >= NODES) outage_begin(&c->outages[i - NODES], false);
    kill(m->p.pid, SIGKILL);
    leave(c, m, DOWN, 200, 5000);
    if (i < NODES) watch_death(c, m->id, from, ends);
    member_gone(c, i, false, "killed", 256 + SIGKILL);
}

static void freeze_member(cluster *c, uint32_t i) {
    if (i >= NODES) outage_begin(&c->outages[i - NODES], false);
    kill(c->m[i].p.pid, SIGSTOP);
    leave(c, &c->m[i], FROZEN, 100, cluster_roll(c, 2) ? 1000 : 8000);
}

static void end_member(cluster *c, uint32_t i) {
    if (i >= NODES) outage_begin(&c->outages[i - NODES], true);
    kill(c->m[i].p.pid, SIGTERM);
    leave(c, &c->m[i], ENDING, 0, 0);
}

static bool drain(cluster *c, const member *m, bool on) {
    Kvferry__V1__DrainRequest d = KVFERRY__V1__DRAIN_REQUEST__INIT;
    Kvferry__V1__UndrainRequest u = KVFERRY__V1__UNDRAIN_REQUEST__INIT;
    d.node_id = u.node_id = kvf_proto_text(m->id);
    return cluster_admin(c, on ? "Drain" : "Undrain", on ? &d.base : &u.base, NULL);
}

static bool set_role(cluster *c, const member *m, bool other) {
    Kvferry__V1__SetRoleRequest r = KVFERRY__V1__SET_ROLE_REQUEST__INIT;
    r.node_id = kvf_proto_text(m->id);
    r.role = (m->role == ROLE_PREFILL) != other ? KVFERRY__V1__ROLE__ROLE_PREFILL : KVFERRY__V1__ROLE__ROLE_DECODE;
    return cluster_admin(c, "SetRole", &r.base, NULL);
}

static void flush(cluster *c) {
    Kvferry__V1__FlushCacheRequest f = KVFERRY__V1__FLUSH_CACHE_REQUEST__INIT;
    if (cluster_roll(c, 2)) f.node_id = kvf_proto_text(c->m[cluster_roll(c, NODES)].id);
    cluster_admin(c, "FlushCache", &f.base, NULL);
}

/* One router's control connection, or all; or all page connections to the node. */
static void cut(cluster *c, uint32_t i, bool control) {
    uint32_t only = (uint32_t)cluster_roll(c, 3);
    for (uint32_t k = 0; k < 2; k++)
        if (!control || only == 2 || only == k)
            proxy_cut(c->net, control ? c->m[i].control_lane[k] : c->m[i].page_lane[k]);
}

static void weather(cluster *c, uint32_t i, fault_kind kind) {
    proxy_weather w = {.delay_ns = 0};
    c->m[i].scribbled = kind == FAULT_CORRUPT_RINGS;
    bool control = kind == FAULT_SLOW_CONTROL || kind == FAULT_HOLD_CONTROL;
    if (kind == FAULT_SLOW_CONTROL) w.delay_ns = random_ns(c, 5, 200);
    if (kind == FAULT_SLOW_PAGES) w.delay_ns = random_ns(c, 1, 50);
    if (kind == FAULT_SLOW_PAGES && cluster_roll(c, 2)) w.bytes_per_s = 20000 + cluster_roll(c, 400000);
    if (kind == FAULT_HOLD_CONTROL || kind == FAULT_HOLD_PAGES) w.hold = true;
    if (kind == FAULT_CORRUPT_PAGES) w.flip_bytes = 2000 + cluster_roll(c, 40000);
    for (uint32_t k = 0; k < 2; k++) proxy_set(c->net, control ? c->m[i].control_lane[k] : c->m[i].page_lane[k], &w);
    leave(c, &c->m[i], WEATHER, 300, cluster_roll(c, 3) ? 2000 : 7000);
}

/* A second process takes name and address of a frozen one, which wakes up later. */
static void replace(cluster *c, uint32_t i) {
    member *m = &c->m[i];
    kill(m->p.pid, SIGSTOP);
    pthread_mutex_lock(&c->lock);
    m->old = m->p;
    m->old_thawed = false;
    pthread_mutex_unlock(&c->lock);
    member_spawn(c, i);
    leave(c, m, REPLACED, 100, 6000);
}

static void break_member(cluster *c, fault_kind kind, uint32_t i) {
    member *m = &c->m[i];
    switch (kind) {
    case FAULT_KILL_PREFILL:
    case FAULT_KILL_DECODE:
    case FAULT_KILL_ROUTER: kill_member(c, i); break;
    case FAULT_FREEZE_PREFILL:
    case FAULT_FREEZE_DECODE:
    case FAULT_FREEZE_ROUTER: freeze_member(c, i); break;
    case FAULT_END_NODE:
    case FAULT_END_ROUTER: end_member(c, i); break;
    case FAULT_DRAIN:
        leave(c, m, DRAINED, 300, 5000);
        drain(c, m, true);
        break;
    case FAULT_ROLE:
        leave(c, m, FLIPPED, 300, 5000);
        set_role(c, m, true);
        break;
    case FAULT_REPLACE: replace(c, i); break;
    default: weather(c, i, kind); break;
    }
}

static uint32_t victim_of(cluster *c, fault_kind kind) {
    switch (kind) {
    case FAULT_KILL_PREFILL:
    case FAULT_FREEZE_PREFILL: return cluster_pick(c, ROLE_PREFILL, true);
    case FAULT_KILL_DECODE:
    case FAULT_FREEZE_DECODE: return cluster_pick(c, ROLE_DECODE, true);
    case FAULT_KILL_ROUTER:
    case FAULT_FREEZE_ROUTER:
    case FAULT_END_ROUTER: return cluster_pick(c, ROLE_ROUTER, true);
    case FAULT_CUT_CONTROL:
    case FAULT_CUT_PAGES: return (uint32_t)cluster_roll(c, NODES);
    case FAULT_FLUSH: return 0;
    default: return cluster_pick(c, ROLE_ANY, true);
    }
}

void cluster_fault(cluster *c) {
    fault_kind kind = pick_kind(c);
    uint32_t i = victim_of(c, kind);
    if (i == MEMBERS) {
        c->impossible++;
        return;
    }
    c->faults[kind]++;
    journal_say(c->journal, "%s: %s", fault_names[kind], kind == FAULT_FLUSH ? "" : c->m[i].id);
    if (kind == FAULT_FLUSH)
        flush(c);
    else if (kind == FAULT_CUT_CONTROL || kind == FAULT_CUT_PAGES)
        cut(c, i, kind == FAULT_CUT_CONTROL);
    else
        break_member(c, kind, i);
}

/* ---- mending ---- */

static bool has_ended(pid_t pid) {
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

static void start_again(cluster *c, uint32_t i) {
    member_spawn(c, i);
    if (i >= NODES) outage_end(&c->outages[i - NODES]);
    c->m[i].state = UP;
}

static void clear_weather(cluster *c, member *m) {
    proxy_weather none = {.delay_ns = 0};
    m->scribbled = false;
    for (uint32_t k = 0; k < 2; k++) {
        proxy_set(c->net, m->control_lane[k], &none);
        proxy_set(c->net, m->page_lane[k], &none);
    }
    m->state = UP;
}

/* The thawed one ought to learn that it was replaced, and end; nobody may have a connection left to tell it. */
static void mend_replaced(cluster *c, uint32_t i) {
    member *m = &c->m[i];
    if (!m->old_thawed) {
        kill(m->old.pid, SIGCONT);
        m->old_thawed = true;
        m->until_ns = e2e_now_ns() + 8000000000u;
        return;
    }
    c->old_killed++;
    kill(m->old.pid, SIGKILL);
    member_gone(c, i, true, "replaced, woke up, was not told", 256 + SIGKILL);
    m->state = UP;
}

static void watch_ends(cluster *c, uint32_t i, uint64_t now) {
    member *m = &c->m[i];
    if (m->old.pid > 0 && m->old_thawed && has_ended(m->old.pid)) {
        c->old_ended++;
        member_gone(c, i, true, "replaced", -1);
        m->state = UP;
    }
    if (m->state == DOWN || m->p.pid <= 0 || !has_ended(m->p.pid)) return;
    bool told = m->state == ENDING;
    if (told) c->longest_end_ns = KVF_MAX(c->longest_end_ns, now - m->until_ns);
    if (!told) journal_fail(c->journal, "%s process %d has ended by itself", m->id, (int)m->p.pid);
    if (!told && i >= NODES) outage_begin(&c->outages[i - NODES], false);
    member_gone(c, i, false, told ? "told to" : "by itself", 0);
    leave(c, m, DOWN, 200, 3000);
}

static void mend(cluster *c, uint32_t i, bool now_please) {
    member *m = &c->m[i];
    uint64_t now = e2e_now_ns();
    watch_ends(c, i, now);
    if (m->state == UP) return;
    if (m->state == ENDING && now > m->until_ns + 90000000000ull) {
        journal_fail(c->journal, "%s does not end after SIGTERM, its log is %s", m->id, m->p.log);
        kill(m->p.pid, SIGKILL);
        return;
    }
    bool waits = m->state == ENDING || (m->state == REPLACED && m->old_thawed); /* nothing makes these faster */
    if (now < m->until_ns && (waits || !now_please)) return;
    switch (m->state) {
    case FROZEN:
        kill(m->p.pid, SIGCONT);
        if (i >= NODES) outage_thaw(&c->outages[i - NODES]);
        m->state = UP;
        break;
    case DOWN: start_again(c, i); break;
    case DRAINED:
        if (drain(c, m, false)) m->state = UP;
        break;
    case FLIPPED:
        if (set_role(c, m, false)) m->state = UP;
        break;
    case WEATHER: clear_weather(c, m); break;
    case REPLACED: mend_replaced(c, i); break;
    case ENDING:
    case UP: break;
    }
}

static bool all_up(const cluster *c) {
    for (uint32_t i = 0; i < MEMBERS; i++)
        if (c->m[i].state != UP) return false;
    return true;
}

void cluster_mend(cluster *c, bool all) {
    for (uint32_t i = 0; i < MEMBERS; i++) {
        if (c->m[i].scribbled && c->m[i].state == WEATHER) c->ring_flips += rings_scribble(c->m[i].p.pid, &c->random);
        mend(c, i, all);
    }
    if (!all) return;
    uint64_t end = e2e_now_ns() + (uint64_t)E2E_WAIT_MS * 1000000u;
    while (!(all_up(c) && cluster_ready(c)) && e2e_now_ns() < end) {
        e2e_pause();
        for (uint32_t i = 0; i < MEMBERS; i++) mend(c, i, true);
    }
    if (!all_up(c) || !cluster_ready(c)) journal_fail(c->journal, "not every node is ready again after two minutes");
}
