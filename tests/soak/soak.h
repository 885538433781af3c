/* soak.h - the parts of kvferry-soak.
 *
 * load: requests whose undisturbed answers are known, asked by many threads of both routers. cluster: the processes,
 * what happens to them, and how they are mended. measure: memory, descriptors, progress. One soak is one program run;
 * what the parts share stands here. */
#ifndef KVF_SOAK_H
#define KVF_SOAK_H
#include "harness.h"
#include "proxy.h"
#include <pthread.h>
#include <stdatomic.h>

enum { ROUTERS = 2, PREFILLS = 3, DECODES = 3, NODES = PREFILLS + DECODES, MEMBERS = NODES + ROUTERS };
#define SOAK_MODEL E2E_TINY("llama-mha")

/* ---- failures: anything that a user or an operator should not see ---- */

enum { FAILURES_KEPT = 20 };
typedef struct {
    pthread_mutex_t lock;
    uint64_t start_ns;
    uint32_t count;
    char text[FAILURES_KEPT][1024];
    FILE *log; /* what happened when */
} journal;
void journal_say(journal *j, const char *format, ...) __attribute__((format(printf, 2, 3)));
void journal_fail(journal *j, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- when a router was away ---- */

enum { OUTAGES_MAX = 512 };
typedef struct {
    pthread_mutex_t lock;
    struct {
        uint64_t from_ns, to_ns;
        bool graceful; /* told to end: what it had let in must be finished */
    } item[OUTAGES_MAX];
    uint32_t count;
} outages;
void outage_begin(outages *o, bool graceful);
void outage_end(outages *o); /* the router is ready: connections of clients may take a moment more */
/* It was frozen and goes on. Clients give a silent connection up after 5 s (keepalive): a shorter freeze was no outage.
 */
void outage_thaw(outages *o);
/* Whether UNAVAILABLE may be the end of a request of this time; begun: something had come. */
bool outage_excuses(outages *o, uint64_t from_ns, uint64_t to_ns, bool begun);

/* ---- load ---- */

typedef enum { PLAN_READ, PLAN_CANCEL, PLAN_DISCONNECT, PLAN_DEADLINE, PLAN_SLOW, PLAN_OVERSIZE, PLANS } plan;
extern const char *const plan_names[PLANS];

typedef struct {
    atomic_uint asked[PLANS], answered[PLANS], left[PLANS], refused[PLANS]; /* left: ended as its client wished */
    atomic_uint queue_full, router_lost, several_attempts, late;
    atomic_ullong tokens_compared, tokens_different, attempts_more;
    atomic_ullong last_progress_ns, longest_silence_ns; /* of one stream */
} tally;

typedef struct load load;
typedef struct {
    uint64_t seed;
    uint32_t threads;
    double per_s;
    journal *journal;
    outages *outages[ROUTERS];
    proxy *net;
    uint32_t fragile_lane[ROUTERS]; /* clients that vanish call through these */
    char address[ROUTERS][128];
} load_options;
load *load_create(const load_options *o); /* computes every answer on a quiet cluster of its own */
void load_start(load *l);
void load_hurry(load *l, bool on); /* each thread asks again at once; then the rate again, from now on */
void load_watch(load *l); /* a call that has heard nothing for too long is a failure, while it still waits */
void load_stop(load *l); /* waits for every request */
bool load_check_all(load *l); /* each kind once, from each router */
const tally *load_tally(const load *l);
uint32_t load_kinds(const load *l);
void load_destroy(load *l);

/* ---- cluster ---- */

typedef enum {
    FAULT_KILL_PREFILL,
    FAULT_KILL_DECODE,
    FAULT_KILL_ROUTER,
    FAULT_FREEZE_PREFILL,
    FAULT_FREEZE_DECODE,
    FAULT_FREEZE_ROUTER,
    FAULT_END_NODE,
    FAULT_END_ROUTER,
    FAULT_DRAIN,
    FAULT_ROLE,
    FAULT_FLUSH,
    FAULT_CUT_CONTROL,
    FAULT_CUT_PAGES,
    FAULT_SLOW_CONTROL,
    FAULT_SLOW_PAGES,
    FAULT_HOLD_CONTROL,
    FAULT_HOLD_PAGES,
    FAULT_CORRUPT_PAGES,
    FAULT_CORRUPT_RINGS,
    FAULT_REPLACE,
    FAULTS
} fault_kind;
extern const char *const fault_names[FAULTS];

typedef enum { ROLE_ANY, ROLE_PREFILL, ROLE_DECODE, ROLE_ROUTER } member_role; /* ANY: of a choice: any node */
typedef enum { UP, FROZEN, DOWN, ENDING, DRAINED, FLIPPED, WEATHER, REPLACED } member_state;
typedef struct {
    char id[8];
    member_role role;
    e2e_process p, old; /* old: the frozen one whose place p took; pid 0: none */
    bool old_thawed;
    member_state state;
    bool scribbled; /* WEATHER: bits of its shared-memory rings are turned */
    uint64_t until_ns; /* when the state is mended */
    uint32_t starts;
    uint64_t started_ns;
    char control[96]; /* nodes: unix:PATH, by turns; routers: client address */
    char admin[32];
    uint16_t page_port[2]; /* by turns: a replaced process still holds the other */
    uint32_t control_lane[ROUTERS], page_lane[2];
} member;

enum { DETECTIONS_MAX = 1024, LOGS_MAX = 2048 };
typedef struct {
    journal *journal;
    proxy *net;
    uint64_t random;
    char dir[32], config[64];
    uint32_t attempts_max;
    pthread_mutex_t lock; /* over p.pid of members, for the sampler */
    member m[MEMBERS]; /* prefill, decode, routers */
    e2e_cluster admin[ROUTERS];
    outages outages[ROUTERS];
    bool often[FAULTS];
    uint32_t faults[FAULTS], impossible;
    double detected_ms[DETECTIONS_MAX];
    uint32_t detections, undetected, old_ended, old_killed, ring_flips;
    uint64_t longest_end_ns;
    char logs[LOGS_MAX][64]; /* of processes that have ended */
    uint32_t log_count;
} cluster;
void cluster_start(cluster *c);
void cluster_fault(cluster *c); /* one, if anything may be broken now */
void cluster_mend(cluster *c, bool all); /* what is due, or everything, and waits until all are ready */
bool cluster_ready(cluster *c); /* every router sees every node ready, in its role */
/* At rest within a minute; then true when every audit is clean. leaked: blocks held by nobody. */
bool cluster_audit(cluster *c, uint64_t *blocks_checked, uint64_t *leaked, uint32_t *violations);
void cluster_counters(cluster *c, e2e_counters *sum); /* of the processes that live now */
void cluster_stop(cluster *c);

/* ---- faults.c uses of cluster.c ---- */
void member_spawn(cluster *c, uint32_t index);
void member_gone(cluster *c, uint32_t index, bool old, const char *why, int expected); /* waits for its end */
bool cluster_admin(cluster *c, const char *method, const ProtobufCMessage *request, ProtobufCMessage **answer);
uint32_t cluster_pick(cluster *c, member_role role, bool must_leave_one); /* MEMBERS: none */
uint64_t cluster_roll(cluster *c, uint64_t bound);

/* ---- rings.c ---- */

/* Turns bits of bytes that lie unread in the shared-memory rings of a process, for about a millisecond; how many. */
uint32_t rings_scribble(pid_t pid, uint64_t *random);

/* ---- measure ---- */

typedef struct {
    double slope, low, high; /* 95 % interval */
    double span; /* from the first point to the last: minutes or requests */
    uint32_t points;
} trend;
trend trend_of(const double *minutes, const double *values, uint32_t count); /* Theil and Sen */

typedef struct measure measure;
measure *measure_start(cluster *c, tally *t);
void measure_calm(measure *m); /* from now on no process is replaced, and all are warm */
void measure_stop(measure *m);
uint64_t measure_longest_silence_ns(const measure *m); /* of the whole cluster */
trend measure_anon(const measure *m, uint32_t who); /* KiB a minute */
trend measure_fds(const measure *m, uint32_t who);
/* Bytes a request, of all processes of the role together, in the first (0) or second half of the calm. */
trend measure_role(const measure *m, member_role role, uint32_t half);
double measure_last_anon(const measure *m, uint32_t who);
void measure_destroy(measure *m);

/* ---- one soak ---- */

typedef struct {
    uint32_t seconds, calm, attempts; /* calm 0: a quarter of seconds */
    double rate;
    uint64_t seed;
    const char *report, *log;
    bool often[FAULTS]; /* faults that come eight times as often */
} options;

typedef struct {
    options o;
    journal journal;
    cluster c;
    load *l;
    measure *m;
    uint64_t blocks_checked, leaked;
    uint32_t violations;
    bool clean;
    e2e_counters counters; /* of the nodes' last processes */
} soak;

void report_text(soak *s, FILE *to);
bool report_json(soak *s, const char *path);

#endif
