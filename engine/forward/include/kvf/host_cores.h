/* kvf/host_cores.h - the processors that a process may use, and how the nodes of a host divide them.
 *
 * Every node gets the same number of physical cores, one more or less; neighbours, of one package and one die as far as
 * that goes; and each core with all its hardware threads, which share what computes: two nodes on one core would fight
 * for it. Only where there are fewer physical cores than nodes are hardware threads divided.
 * "cpu" is what the system counts, a hardware thread; numbers of hosts often count first all cores, then all again. */
#ifndef KVF_HOST_CORES_H
#define KVF_HOST_CORES_H
#include "kvf/base.h"

#define KVF_CORES_MAX 1024 /* cpus of a host */
#define KVF_CORES_TEXT_MAX (KVF_CORES_MAX * 5 + 1) /* bytes that hold any list of them */

typedef struct {
    uint16_t cpu[KVF_CORES_MAX]; /* threads of a core, cores of a die, dies of a package side by side */
    uint16_t core[KVF_CORES_MAX]; /* which physical core cpu[i] is of: 0, 0, 1, 1, ... */
    uint32_t count;
} kvf_host_cores;

/* Those of the calling process; false: not known, or it may use fewer at a time than it may choose from (a quota), so
 * that choosing makes no sense. */
bool kvf_host_cores_read(kvf_host_cores *h);
/* Puts cpu[count] in order and numbers the cores. `sys`: where the system tells of them (/sys/devices/system/cpu); a
 * cpu that it does not tell of is a core of its own. */
void kvf_host_cores_place(kvf_host_cores *h, const char *sys);
/* The cpus of node `index` of `nodes` (1 to count), ascending; returns how many. */
uint32_t kvf_host_cores_share(const kvf_host_cores *h, uint32_t index, uint32_t nodes, uint16_t cpus[KVF_CORES_MAX]);
/* Writes "0-3,8" for `count` ascending numbers. */
void kvf_cores_text(const uint16_t *cpus, uint32_t count, char *text, size_t size);
#endif
