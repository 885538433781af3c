#include "kvf/host_cores.h"
#include "kvf/os.h"
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    int32_t part[4]; /* package, die, core, cpu */
} place;

/* What the system says of a cpu under `name`; `otherwise` where it says nothing or, as some do, -1. */
static int32_t told(const char *sys, uint32_t cpu, const char *name, int32_t otherwise) {
    char path[256], text[16] = "";
    snprintf(path, sizeof path, "%s/cpu%u/topology/%s", sys, cpu, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return otherwise;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || text[0] < '0' || text[0] > '9') return otherwise;
    return (int32_t)strtol(text, NULL, 10);
}

static int compare_parts(const int32_t *a, const int32_t *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}
static int by_place(const void *a, const void *b) {
    return compare_parts(((const place *)a)->part, ((const place *)b)->part, 4);
}
static int by_number(const void *a, const void *b) { return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b; }

void kvf_host_cores_place(kvf_host_cores *h, const char *sys) {
    place places[KVF_CORES_MAX];
    for (uint32_t i = 0; i < h->count; i++) {
        uint32_t cpu = h->cpu[i];
        places[i] = (place){{told(sys, cpu, "physical_package_id", 0), told(sys, cpu, "die_id", 0),
            told(sys, cpu, "core_id", (int32_t)cpu), (int32_t)cpu}};
    }
    qsort(places, h->count, sizeof *places, by_place);
    for (uint32_t i = 0; i < h->count; i++) {
        bool same = i > 0 && compare_parts(places[i - 1].part, places[i].part, 3) == 0;
        h->cpu[i] = (uint16_t)places[i].part[3];
        h->core[i] = (uint16_t)(i == 0 ? 0 : h->core[i - 1] + !same);
    }
}

bool kvf_host_cores_read(kvf_host_cores *h) {
    cpu_set_t set;
    h->count = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
    for (uint32_t cpu = 0; cpu < KVF_CORES_MAX && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) h->cpu[h->count++] = (uint16_t)cpu;
    if (kvf_os_cpu_count() < h->count) h->count = 0;
    kvf_host_cores_place(h, "/sys/devices/system/cpu");
    return h->count > 0;
}

uint32_t kvf_host_cores_share(const kvf_host_cores *h, uint32_t index, uint32_t nodes, uint16_t cpus[KVF_CORES_MAX]) {
    KVF_ASSERT(index < nodes && nodes <= h->count);
    uint32_t physical = h->core[h->count - 1] + 1u, count = 0;
    bool whole = physical >= nodes;
    uint32_t units = whole ? physical : h->count, begin = index * units / nodes, end = (index + 1) * units / nodes;
    for (uint32_t i = 0; i < h->count; i++) {
        uint32_t unit = whole ? h->core[i] : i;
        if (unit >= begin && unit < end) cpus[count++] = h->cpu[i];
    }
    qsort(cpus, count, sizeof *cpus, by_number);
    return count;
}

void kvf_cores_text(const uint16_t *cpus, uint32_t count, char *text, size_t size) {
    size_t at = 0;
    if (size) text[0] = '\0';
    for (uint32_t i = 0; i < count && at < size;) {
        uint32_t end = i + 1;
        while (end < count && cpus[end] == cpus[end - 1] + 1) end++;
        int n = snprintf(text + at, size - at, "%s%u", i ? "," : "", cpus[i]);
        if (end - i > 1 && n > 0 && at + (size_t)n < size) {
            at += (size_t)n;
            n = snprintf(text + at, size - at, "-%u", cpus[end - 1]);
        }
        at += n > 0 ? (size_t)n : 0;
        i = end;
    }
}
