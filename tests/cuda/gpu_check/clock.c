/* clock.c - the one function of kvf/os.h that lanes use: the rest of it takes libraries that gpu-check does without. */
#include "kvf/os.h"
#include <time.h>

kvf_time_ns kvf_os_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (kvf_time_ns)t.tv_sec * KVF_NS_PER_S + (kvf_time_ns)t.tv_nsec;
}
