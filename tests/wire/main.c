/* kvferry-wire-faults - faults on the wire between a prefill and a decode node, one at a time, each of them caught.
 *
 *   kvferry-wire-faults [--faults N] [--seed S]
 *
 * Hand-offs run one after the other from the real sending core over frames to the real endpoint, receiving core and
 * block pool (loopback transport). Between any two of their frames faults are inflicted, all kinds in turn. After each:
 * it was caught by one of the means that its kind allows (a counter moved, or the link ended with that reason); memory
 * is as it was; all audits are clean. Every hand-off ends well in the end, with its pages equal to what was computed.
 * Prints a table; exit status 1 and the seed when anything is otherwise. */
#include "wire.h"
#include "kvf/log.h"
#include "kvf/os.h"

static const char *const by_names[BY_COUNT] = {"nothing", "frame crc", "format", "page crc", "pairing", "generation",
    "end of link", "grant", "link", "list", "length", "duplicate", "proof", "missing", "digest", "same answer"};

/* The kind that was inflicted least so far, of those that are possible now. */
static void inflict_one(kind_count *counts) {
    uint64_t tried = 0;
    for (uint32_t n = 0; n < fault_kinds_count; n++) {
        uint32_t k = fault_kinds_count;
        for (uint32_t i = 0; i < fault_kinds_count; i++)
            if (!(tried >> i & 1) && (k == fault_kinds_count || counts[i].faults < counts[k].faults)) k = i;
        tried |= UINT64_C(1) << k;
        caught_by by = BY_NOTHING;
        if (!fault_kinds[k].inflict(&by)) continue;
        counts[k].faults++;
        counts[k].caught[by]++;
        if (!(fault_kinds[k].expected & BIT(by))) {
            fprintf(stderr, "\"%s\" was caught by %s\n", fault_kinds[k].name, by_names[by]);
            wire_fail("a fault was caught as it should", __FILE__, __LINE__);
        }
        wire_check();
        return;
    }
}

static uint64_t run(uint64_t faults, kind_count *counts) {
    uint64_t done = 0;
    while (done < faults) {
        wire_begin();
        for (bool more = true; more; more = wire_step()) {
            for (uint32_t n = pick(4); n > 0 && done < faults && !w.p.lost; n--, done++) inflict_one(counts);
            wire_mend();
        }
        wire_check();
    }
    while (w.result != KVF_OK) { /* the last one comes through as well */
        wire_begin();
        while (wire_step()) wire_mend();
    }
    return done;
}

static void report(const kind_count *counts, uint64_t done, double seconds) {
    uint64_t nothing = 0;
    printf("%-28s %9s  caught by\n", "fault", "inflicted");
    for (uint32_t k = 0; k < fault_kinds_count; k++) {
        printf("%-28s %9llu ", fault_kinds[k].name, (unsigned long long)counts[k].faults);
        for (uint32_t by = 0; by < BY_COUNT; by++)
            if (counts[k].caught[by]) printf(" %s %llu,", by_names[by], (unsigned long long)counts[k].caught[by]);
        printf("\b \n");
        nothing += counts[k].caught[BY_NOTHING];
    }
    printf("%llu faults, %llu caught, %llu silent; %llu hand-offs came through, after %llu new attempts and %llu new "
           "links; "
           "%.1f s\n",
        (unsigned long long)done, (unsigned long long)(done - nothing), (unsigned long long)w.silent,
        (unsigned long long)w.handoffs, (unsigned long long)w.retries, (unsigned long long)w.relinks, seconds);
}

int main(int argc, char **argv) {
    static kind_count counts[64];
    uint64_t faults = 100000, seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--faults") == 0) faults = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 10);
    }
    CHECK(fault_kinds_count <= KVF_COUNT_OF(counts));
    kvf_log_set_level(KVF_LOG_ERROR);
    kvf_time_ns start_ns = kvf_os_now_ns();
    wire_open(seed);
    uint64_t done = run(faults, counts);
    report(counts, done, (double)(kvf_os_now_ns() - start_ns) / 1e9);
    bool fine = w.silent == 0 && counts[0].faults > 0;
    for (uint32_t k = 0; k < fault_kinds_count; k++) fine = fine && (faults < 10000 || counts[k].faults > 0);
    wire_close();
    return fine ? 0 : 1;
}
