/* Retries under a budget: a storm of failures must not become a storm of attempts.
 *
 * The budget is a number of attempts that may go below zero. Each new request adds a share of one, time adds some, up
 * to one second's worth; each attempt after a failure takes one. What is taken on credit waits until time has paid for
 * it, so that late attempts are slow, in order, and never refused. Delays are spread by a hash of the router's epoch
 * and what they are about: the same run has the same delays, two routers do not meet. */
#include "router_int.h"

#define ATTEMPT 1000000ll /* in units of the budget */

kvf_time_ns rt_jitter(const kvf_router *r, kvf_time_ns span, uint64_t a, uint64_t b) {
    const uint64_t words[] = {r->config.epoch, a, b, r->now};
    uint64_t part = span / 2 + 1;
    return span - span / 4 + kvf_hash64_of(words, sizeof words, 0) % part;
}

static int64_t ceiling(const kvf_router *r) { return (int64_t)r->config.retries_per_s * ATTEMPT; }

static void add(kvf_router *r, int64_t units) { r->retry_budget = KVF_MIN(r->retry_budget + units, ceiling(r)); }

void rt_retry_credit(kvf_router *r) { add(r, (int64_t)r->config.retries_percent * ATTEMPT / 100); }

static void credit_time(kvf_router *r) {
    kvf_time_ns passed = r->now - KVF_MIN(r->now, r->retry_budget_ns);
    kvf_time_ns us = KVF_MIN(passed, 3600 * KVF_NS_PER_S) / KVF_NS_PER_US; /* an attempt a second is a unit a us */
    add(r, (int64_t)(us * r->config.retries_per_s));
    r->retry_budget_ns = passed > 3600 * KVF_NS_PER_S ? r->now : r->retry_budget_ns + us * KVF_NS_PER_US;
}

kvf_time_ns rt_retry_wait(kvf_router *r) {
    credit_time(r);
    r->retry_budget -= ATTEMPT;
    if (r->retry_budget >= 0) return 0;
    r->counters.retries_delayed++;
    return (kvf_time_ns)-r->retry_budget / r->config.retries_per_s * KVF_NS_PER_US;
}
