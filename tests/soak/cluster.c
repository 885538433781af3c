/* cluster.c - eight processes with fixed names and addresses, the lanes between them, and the operator's calls.
 *
 *   router r --control lane (r, node)--> unix socket (node, turn)
 *   prefill node --page lane (node, turn)--> 127.0.0.1:port of node     advertised as 127.0.0.2, same port
 *
 * Two turns, because a frozen process still holds its own when another takes its place: for routers the address stays.
 * p1 and d1 move pages over TCP only, the others over shared memory where both can: every pair has a way. */
#include "soak.h"
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const ids[MEMBERS] = {"p0", "p1", "p2", "d0", "d1", "d2", "r0", "r1"};

static member_role role_of(uint32_t index) {
    return index < PREFILLS ? ROLE_PREFILL : index < NODES ? ROLE_DECODE : ROLE_ROUTER;
}

uint64_t cluster_roll(cluster *c, uint64_t bound) { return e2e_random(&c->random) % bound; }

/* ---- addresses ---- */

static bool port_is_free(uint16_t port) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool is_free = bind(fd, (struct sockaddr *)&in, sizeof in) == 0;
    close(fd);
    return is_free;
}

/* Below the range that the kernel gives to callers: what stays fixed over a restart must not be taken meanwhile. */
static uint16_t free_port(cluster *c) {
    uint64_t own = e2e_now_ns() ^ (uint64_t)getpid() << 32; /* not of the seed: runs may stand side by side */
    for (;;) {
        uint16_t port = (uint16_t)(15000 + e2e_random(&own) % 16000);
        if (port_is_free(port)) return port;
    }
}

static void make_node_lanes(cluster *c, member *m) {
    char target[64];
    for (uint32_t r = 0; r < ROUTERS; r++)
        assert_true(proxy_lane(c->net, "127.0.0.1", 0, "unix:/", &m->control_lane[r]));
    for (uint32_t turn = 0; turn < 2; turn++) do {
            m->page_port[turn] = free_port(c);
            snprintf(target, sizeof target, "127.0.0.1:%u", m->page_port[turn]);
        } while (!proxy_lane(c->net, "127.0.0.2", m->page_port[turn], target, &m->page_lane[turn]));
}

/* ---- processes ---- */

static void socket_path(const cluster *c, const member *m, uint32_t turn, char *out, size_t room) {
    char id[sizeof m->id];
    memcpy(id, m->id, sizeof id);
    snprintf(out, room, "unix:%s/%s.%u.sock", c->dir, id, turn);
}

static void spawn_node(cluster *c, member *m) {
    uint32_t number = (uint32_t)(m - c->m);
    char id[32], control[128], transfer[64];
    snprintf(id, sizeof id, "--node-id=%s", m->id);
    socket_path(c, m, m->starts % 2, m->control, sizeof m->control);
    snprintf(control, sizeof control, "--control=%s", m->control);
    snprintf(transfer, sizeof transfer, "--transfer=127.0.0.1:%u", m->page_port[m->starts % 2]);
    bool tcp_only = number % 3 == 1;
    const char *argv[] = {m->role == ROLE_PREFILL ? "prefill-node" : "decode-node", "--config", c->config, id, control,
        transfer, "--advertise=127.0.0.2", tcp_only ? "--transports=tcp" : "--transports=shm,tcp", NULL};
    e2e_spawn(&m->p, argv);
    for (uint32_t r = 0; r < ROUTERS; r++) proxy_retarget(c->net, m->control_lane[r], m->control);
}

static void spawn_router(cluster *c, member *m) {
    uint32_t r = (uint32_t)(m - c->m) - NODES;
    char id[32], node[NODES][64];
    const char *argv[E2E_ARGS_MAX] = {
        "router", "--config", c->config, id, "--listen", m->control, "--admin", m->admin, NULL};
    size_t count = 8;
    snprintf(id, sizeof id, "--node-id=%s", m->id);
    for (uint32_t i = 0; i < NODES; i++) {
        snprintf(node[i], sizeof node[i], "--node=%s,%s,127.0.0.1:%u", c->m[i].id,
            c->m[i].role == ROLE_PREFILL ? "prefill" : "decode", proxy_port(c->net, c->m[i].control_lane[r]));
        argv[count++] = node[i];
    }
    e2e_spawn(&m->p, argv);
}

void member_spawn(cluster *c, uint32_t index) {
    member *m = &c->m[index];
    e2e_process fresh;
    pthread_mutex_lock(&c->lock);
    if (m->role == ROLE_ROUTER)
        spawn_router(c, m);
    else
        spawn_node(c, m);
    m->starts++;
    m->started_ns = e2e_now_ns();
    fresh = m->p;
    pthread_mutex_unlock(&c->lock);
    journal_say(c->journal, "%s starts as process %d, log %s", m->id, (int)fresh.pid, fresh.log);
    if (!fresh.ready) journal_fail(c->journal, "%s does not become ready, its log is %s", m->id, fresh.log);
}

void member_gone(cluster *c, uint32_t index, bool old, const char *why, int expected) {
    member *m = &c->m[index];
    pthread_mutex_lock(&c->lock);
    e2e_process *p = old ? &m->old : &m->p, was = *p;
    int status = e2e_process_wait(p);
    *p = (e2e_process){.pid = 0};
    pthread_mutex_unlock(&c->lock);
    journal_say(c->journal, "%s process %d has ended with %d (%s)", m->id, (int)was.pid, status, why);
    if (expected >= 0 && status != expected)
        journal_fail(
            c->journal, "%s process %d ended with %d (%s), its log is %s", m->id, (int)was.pid, status, why, was.log);
    else if (c->log_count < LOGS_MAX)
        memcpy(c->logs[c->log_count++], was.log, sizeof was.log); /* a failure may show later whose they are */
    else
        unlink(was.log);
}

/* ---- the operator ---- */

bool cluster_admin(cluster *c, const char *method, const ProtobufCMessage *request, ProtobufCMessage **answer) {
    ProtobufCMessage *local = NULL;
    for (uint32_t r = 0; r < ROUTERS; r++) {
        if (c->m[NODES + r].state != UP) continue;
        if (kvf_rpc_unary(c->admin[r].admin, &kvferry__v1__cluster__descriptor, method, request, 3000, &local, NULL) !=
            KVF_OK)
            continue;
        if (answer)
            *answer = local;
        else
            kvf_rpc_message_free(local);
        return true;
    }
    return false;
}

static bool router_sees_all(cluster *c, uint32_t r) {
    Kvferry__V1__GetClusterRequest q = KVFERRY__V1__GET_CLUSTER_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    if (kvf_rpc_unary(
            c->admin[r].admin, &kvferry__v1__cluster__descriptor, "GetCluster", &q.base, 3000, &answer, NULL) != KVF_OK)
        return false;
    const Kvferry__V1__ClusterState *s = (const void *)answer;
    uint32_t ready = 0;
    for (size_t i = 0; i < s->n_nodes; i++)
        for (uint32_t n = 0; n < NODES; n++)
            ready +=
                kvf_proto_text_equal(s->nodes[i]->id, c->m[n].id) &&
                s->nodes[i]->state == KVFERRY__V1__NODE_STATE__NODE_STATE_READY &&
                s->nodes[i]->role == (n < PREFILLS ? KVFERRY__V1__ROLE__ROLE_PREFILL : KVFERRY__V1__ROLE__ROLE_DECODE);
    kvf_rpc_message_free(answer);
    return ready == NODES;
}

bool cluster_ready(cluster *c) {
    for (uint32_t r = 0; r < ROUTERS; r++)
        if (!router_sees_all(c, r)) return false;
    return true;
}

static bool is_ready(void *self) { return cluster_ready(self); }

/* ---- audits ---- */

static void tell_violations(cluster *c, const Kvferry__V1__AuditResponse *a) {
    for (size_t i = 0; i < a->n_violations; i++)
        journal_fail(c->journal, "audit: %.*s %.*s %.*s", (int)a->violations[i]->node_id.len,
            (const char *)a->violations[i]->node_id.data, (int)a->violations[i]->invariant.len,
            (const char *)a->violations[i]->invariant.data, (int)a->violations[i]->detail.len,
            (const char *)a->violations[i]->detail.data);
}

/* Blocks that nothing should hold at rest. */
static uint64_t held(cluster *c, const Kvferry__V1__AuditResponse *a, bool tell) {
    uint64_t sum = 0;
    for (size_t i = 0; i < a->n_nodes; i++) {
        const Kvferry__V1__NodeStatus *n = a->nodes[i];
        const Kvferry__V1__BlockCounts *b = n->blocks;
        if (!b) continue;
        uint64_t here = b->pinned + b->in_use + b->filling + b->booked;
        here += b->free + b->sealed == b->total ? 0 : 1;
        sum += here + n->running + n->waiting;
        if (tell && here + n->running + n->waiting)
            journal_fail(c->journal, "%.*s: running %u waiting %u pinned %u in use %u filling %u booked %u of %u",
                (int)n->id.len, (const char *)n->id.data, n->running, n->waiting, (unsigned)b->pinned,
                (unsigned)b->in_use, (unsigned)b->filling, (unsigned)b->booked, (unsigned)b->total);
    }
    return sum;
}

static bool audit_of(cluster *c, uint32_t r, uint64_t *checked, uint64_t *leaked, uint32_t *violations) {
    uint64_t end = e2e_now_ns() + 60000000000ull;
    for (;;) {
        Kvferry__V1__AuditResponse *a = e2e_audit(&c->admin[r]);
        bool last = e2e_now_ns() > end, rest = a->at_rest && held(c, a, false) == 0;
        if (rest || last || a->n_violations) {
            *checked += a->blocks_checked;
            *leaked += held(c, a, true);
            *violations += (uint32_t)a->n_violations;
            tell_violations(c, a);
            if (!a->at_rest) journal_fail(c->journal, "router %u says that the cluster is not at rest", r);
            rest = rest && a->n_violations == 0;
            kvf_rpc_message_free(&a->base);
            return rest;
        }
        kvf_rpc_message_free(&a->base);
        e2e_pause();
    }
}

bool cluster_audit(cluster *c, uint64_t *blocks_checked, uint64_t *leaked, uint32_t *violations) {
    bool clean = true;
    *blocks_checked = *leaked = 0;
    *violations = 0;
    for (uint32_t r = 0; r < ROUTERS; r++) clean &= audit_of(c, r, blocks_checked, leaked, violations);
    return clean;
}

void cluster_counters(cluster *c, e2e_counters *sum) {
    *sum = (e2e_counters){.cancels = 0};
    for (uint32_t i = 0; i < NODES; i++) {
        e2e_counters n;
        e2e_node_counters(&c->admin[0], c->m[i].id, &n);
        sum->cancels += n.cancels;
        sum->preemptions += n.preemptions;
        sum->evictions += n.evictions;
        sum->pages_sent += n.pages_sent;
        sum->pages_received += n.pages_received;
        sum->frames_rejected += n.frames_rejected;
        sum->cache_hit_tokens += n.cache_hit_tokens;
        sum->prefill_tokens += n.prefill_tokens;
        sum->decode_tokens += n.decode_tokens;
    }
}

/* ---- life ---- */

/* Leases are short, so that a freeze of a few seconds outlives each of them. */
static void write_config(cluster *c) {
    snprintf(c->config, sizeof c->config, "%s/soak.yaml", c->dir);
    FILE *f = fopen(c->config, "w");
    assert_non_null(f);
    fprintf(f,
        "model:\n  path: %s\nengine:\n  threads: 1\nkv:\n  memory: 3MiB\n"
        "router:\n  attempts_max: %u\n  queue_max_requests: 8\n  drain_timeout: 60s\n  ready_grace: 10s\n"
        "node:\n  router_grace: 3s\nprefill:\n  chunk_tokens: 64\ndecode:\n  expected_output: 16\n"
        "transfer:\n  grant_ttl: 2s\n  hold_ttl: 4s\n  heartbeat: 200ms\n  peer_timeout: 1s\n",
        SOAK_MODEL, c->attempts_max);
    assert_int_equal(fclose(f), 0);
}

void cluster_start(cluster *c) {
    snprintf(c->dir, sizeof c->dir, "/tmp/kvf-soak-XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    pthread_mutex_init(&c->lock, NULL);
    write_config(c);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        member *m = &c->m[i];
        snprintf(m->id, sizeof m->id, "%s", ids[i]);
        m->role = role_of(i);
        if (i < NODES) {
            make_node_lanes(c, m);
        } else {
            snprintf(m->control, sizeof m->control, "127.0.0.1:%u", free_port(c));
            snprintf(m->admin, sizeof m->admin, "127.0.0.1:%u", free_port(c));
            pthread_mutex_init(&c->outages[i - NODES].lock, NULL);
        }
        member_spawn(c, i);
        if (i < NODES) continue;
        c->admin[i - NODES].serve = m->p;
        e2e_attach(&c->admin[i - NODES]);
    }
    e2e_until("both routers see every node", is_ready, c);
}

/* After a failure they are what there is to look at. */
static void forget_logs(cluster *c) {
    for (uint32_t i = 0; i < c->log_count && c->journal->count == 0; i++) unlink(c->logs[i]);
    if (c->journal->count) journal_say(c->journal, "logs are kept, the lines above name them");
}

void cluster_stop(cluster *c) {
    for (uint32_t r = 0; r < ROUTERS; r++) e2e_detach(&c->admin[r]);
    for (uint32_t i = MEMBERS; i-- > 0;) {
        if (c->m[i].p.pid <= 0) continue;
        kill(c->m[i].p.pid, SIGTERM);
        member_gone(c, i, false, "told to at the end", 0);
    }
    unlink(c->config);
    for (uint32_t i = 0; i < 2 * NODES; i++) { /* those of killed ones are left */
        char path[96], lock[104];
        socket_path(c, &c->m[i / 2], i % 2, path, sizeof path);
        snprintf(lock, sizeof lock, "%s.lock", path + 5);
        unlink(path + 5);
        unlink(lock);
    }
    forget_logs(c);
    if (rmdir(c->dir) != 0) journal_fail(c->journal, "something is left in %s: %s", c->dir, strerror(errno));
}
