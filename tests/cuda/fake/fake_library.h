/* fake_library.h - what fakes of libraries beside the runtime (NCCL, cuBLASLt) need of it. */
#ifndef KVF_FAKE_LIBRARY_H
#define KVF_FAKE_LIBRARY_H
#include "fake_cuda.h"
#include <pthread.h>
#include <stdbool.h>

/* First thing in every call of such a library: the planted error to answer, 0 to go on. No sticky errors of CUDA's. */
FAKE_API int fake_enter_nccl(const char *function);
/* Before a queued operation: false, it must not run. */
FAKE_API bool fake_begin_operation(const char *kind);
/* Whether [p, p + len) is live device memory of this process, or opened of another. */
FAKE_API bool fake_is_device(const void *p, size_t len_bytes);

extern FAKE_API fake_cuda_counts fake_counted;
extern FAKE_API pthread_mutex_t fake_lock; /* fake_counted, memory, settings */
#define FAKE_COUNT(field, by)                                                                                          \
    do {                                                                                                               \
        pthread_mutex_lock(&fake_lock);                                                                                \
        fake_counted.field += (by);                                                                                    \
        pthread_mutex_unlock(&fake_lock);                                                                              \
    } while (0)
#endif
