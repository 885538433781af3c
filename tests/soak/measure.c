/* measure.c - twice a second: anonymous memory and descriptors of every process, and how long nothing has come.
 *
 * Slopes are those of Theil and Sen (the median of the slopes of all pairs of points: one burst does not bend it), with
 * the 95 % interval that Kendall's statistic gives. They are taken over the calm time, when no process is replaced.
 * What a role's processes together gain with each request shows a leak that the noise of one of them would hide. */
#include "soak.h"
#include <math.h>
#include <string.h>
#include <time.h>

enum { SAMPLES_MAX = 20000, POINTS_MAX = 400 };

typedef struct {
    double minutes, requests;
    uint32_t anon_kib[MEMBERS], fds[MEMBERS];
} sample;

struct measure {
    cluster *c;
    tally *t;
    pthread_t thread;
    atomic_bool stop;
    atomic_uint count, calm_from;
    uint64_t start_ns, longest_silence_ns;
    sample samples[SAMPLES_MAX];
};

static void take(measure *m, sample *s) {
    s->minutes = (double)(e2e_now_ns() - m->start_ns) / 60e9;
    s->requests = 0;
    for (uint32_t i = 0; i < PLANS; i++) s->requests += atomic_load(&m->t->asked[i]);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        pthread_mutex_lock(&m->c->lock);
        pid_t pid = m->c->m[i].p.pid;
        pthread_mutex_unlock(&m->c->lock);
        s->anon_kib[i] = pid > 0 ? (uint32_t)e2e_anon_kib(pid) : 0;
        s->fds[i] = pid > 0 ? (uint32_t)e2e_fds(pid) : 0;
    }
}

static void say(measure *m, const sample *s) {
    char text[400];
    size_t used = 0;
    for (uint32_t i = 0; i < MEMBERS; i++)
        used += (size_t)snprintf(
            text + used, sizeof text - used, " %s %u KiB %u fds", m->c->m[i].id, s->anon_kib[i], s->fds[i]);
    journal_say(m->c->journal, "memory:%s", text);
}

static void *sampler(void *self) {
    measure *m = self;
    for (uint64_t round = 0; !atomic_load(&m->stop); round++) {
        uint64_t now = e2e_now_ns(), last = atomic_load(&m->t->last_progress_ns);
        if (last && now > last) m->longest_silence_ns = KVF_MAX(m->longest_silence_ns, now - last);
        uint32_t count = atomic_load(&m->count);
        if (round % 25 == 0 && count < SAMPLES_MAX) {
            take(m, &m->samples[count]);
            if (count % 20 == 0) say(m, &m->samples[count]);
            atomic_store(&m->count, count + 1);
        }
        e2e_pause();
    }
    return NULL;
}

measure *measure_start(cluster *c, tally *t) {
    measure *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->c = c;
    m->t = t;
    m->start_ns = e2e_now_ns();
    assert_int_equal(pthread_create(&m->thread, NULL, sampler, m), 0);
    return m;
}

void measure_calm(measure *m) { atomic_store(&m->calm_from, atomic_load(&m->count)); }

void measure_stop(measure *m) {
    atomic_store(&m->stop, true);
    pthread_join(m->thread, NULL);
}

uint64_t measure_longest_silence_ns(const measure *m) { return m->longest_silence_ns; }

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

trend trend_of(const double *x, const double *values, uint32_t count) {
    trend t = {.points = count};
    if (count < 8) return t;
    t.span = x[count - 1] - x[0];
    size_t pairs = 0, all = (size_t)count * (count - 1) / 2;
    double *slopes = malloc(all * sizeof *slopes);
    assert_non_null(slopes);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = i + 1; k < count; k++)
            if (x[k] > x[i]) slopes[pairs++] = (values[k] - values[i]) / (x[k] - x[i]);
    if (!pairs) goto out;
    qsort(slopes, pairs, sizeof *slopes, by_value);
    double n = count, half = 1.96 * sqrt(n * (n - 1) * (2 * n + 5) / 18) / 2;
    double low = (double)pairs / 2 - half, high = (double)pairs / 2 + half;
    t.slope = slopes[pairs / 2];
    t.low = slopes[low < 0 ? 0 : (size_t)low];
    t.high = slopes[high >= (double)pairs ? pairs - 1 : (size_t)high];
out:
    free(slopes);
    return t;
}

typedef double (*value_fn)(const sample *s, uint32_t who);

static double anon_of(const sample *s, uint32_t who) { return s->anon_kib[who]; }
static double fds_of(const sample *s, uint32_t who) { return s->fds[who]; }

static double role_of(const sample *s, uint32_t role) {
    uint32_t from = role == ROLE_PREFILL ? 0 : role == ROLE_DECODE ? PREFILLS : NODES;
    uint32_t end = role == ROLE_PREFILL ? PREFILLS : role == ROLE_DECODE ? NODES : MEMBERS;
    double sum = 0;
    for (uint32_t i = from; i < end; i++) sum += s->anon_kib[i] * 1024.0;
    return sum;
}

static trend trend_between(
    const measure *m, uint32_t from, uint32_t end, value_fn value, uint32_t who, bool by_request) {
    double x[POINTS_MAX], values[POINTS_MAX];
    uint32_t count = 0;
    uint32_t step = (end - from) / POINTS_MAX + 1;
    for (uint32_t i = from; i < end; i += step) {
        x[count] = by_request ? m->samples[i].requests : m->samples[i].minutes;
        values[count++] = value(&m->samples[i], who);
    }
    return trend_of(x, values, count);
}

static trend trend_in_calm(const measure *m, value_fn value, uint32_t who) {
    return trend_between(m, atomic_load(&m->calm_from), atomic_load(&m->count), value, who, false);
}

trend measure_anon(const measure *m, uint32_t who) { return trend_in_calm(m, anon_of, who); }
trend measure_fds(const measure *m, uint32_t who) { return trend_in_calm(m, fds_of, who); }

trend measure_role(const measure *m, member_role role, uint32_t half) {
    uint32_t from = atomic_load(&m->calm_from), end = atomic_load(&m->count), middle = from + (end - from) / 2;
    return half == 0 ? trend_between(m, from, middle, role_of, role, true)
                     : trend_between(m, middle, end, role_of, role, true);
}

double measure_last_anon(const measure *m, uint32_t who) {
    uint32_t count = atomic_load(&m->count);
    return count ? m->samples[count - 1].anon_kib[who] : 0;
}

void measure_destroy(measure *m) { free(m); }
