#include "kvf/os.h"
#include "kvf/hash.h"
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

kvf_time_ns kvf_os_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * KVF_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t kvf_os_wall_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * KVF_NS_PER_S + (uint64_t)ts.tv_nsec;
}

void kvf_os_random(void *out, size_t len_bytes) {
    uint8_t *p = out;
    while (len_bytes > 0) {
        ssize_t n = getrandom(p, len_bytes, 0);
        KVF_ASSERT(n > 0 || errno == EINTR); /* without randomness no id is safe; and no spinning either */
        if (n > 0) {
            p += n;
            len_bytes -= (size_t)n;
        }
    }
}

uint64_t kvf_os_random_u64(void) {
    uint64_t v;
    kvf_os_random(&v, sizeof v);
    return v;
}

static bool read_small_file(const char *path, char *out, size_t out_bytes) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = fread(out, 1, out_bytes - 1, f);
    out[n] = 0;
    fclose(f);
    return n > 0;
}

/* Quota in cores, rounded up; 0: none. */
static uint32_t cgroup_cpu_quota(void) {
    char text[128];
    long long quota = 0, period = 0;
    if (read_small_file("/sys/fs/cgroup/cpu.max", text, sizeof text)) {
        if (sscanf(text, "%lld %lld", &quota, &period) != 2) return 0;
    } else if (read_small_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof text)) {
        quota = atoll(text);
        if (!read_small_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", text, sizeof text)) return 0;
        period = atoll(text);
    }
    if (quota <= 0 || period <= 0) return 0;
    return (uint32_t)((quota + period - 1) / period);
}

uint32_t kvf_os_cpu_count(void) {
    cpu_set_t set;
    uint32_t count = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = (uint32_t)CPU_COUNT(&set);
    uint32_t quota = cgroup_cpu_quota();
    if (quota > 0 && quota < count) count = quota;
    return count > 0 ? count : 1;
}

uint64_t kvf_os_host_id(void) {
    char text[256] = {0};
    struct stat st;
    if (!read_small_file("/proc/sys/kernel/random/boot_id", text, 64)) gethostname(text, 64);
    size_t n = strlen(text);
    /* Abstract Unix sockets live in the network namespace: without it in common, memory can't be handed over. */
    if (stat("/proc/self/ns/net", &st) == 0)
        snprintf(text + n, sizeof text - n, "/%llu", (unsigned long long)st.st_ino);
    return kvf_hash64_of(text, strlen(text), 0);
}

void kvf_os_usage(uint64_t *anon_bytes, uint64_t *rss_bytes, uint32_t *fds) {
    unsigned long long size = 0, resident = 0, shared = 0;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    char text[256];
    *anon_bytes = *rss_bytes = 0;
    *fds = 0;
    if (read_small_file("/proc/self/statm", text, sizeof text) &&
        sscanf(text, "%llu %llu %llu", &size, &resident, &shared) == 3) {
        *rss_bytes = resident * page;
        *anon_bytes = (resident - shared) * page;
    }
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return;
    while (readdir(dir)) (*fds)++;
    *fds -= KVF_MIN(*fds, 3u); /* ".", ".." and the directory itself */
    closedir(dir);
}
