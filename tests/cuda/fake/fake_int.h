/* fake_int.h - what the files of the fake runtime share. */
#ifndef KVF_FAKE_INT_H
#define KVF_FAKE_INT_H
#include "fake_library.h"

KVF_CUDA_RUNTIME_FUNCTIONS(FAKE_API KVF_CUDA_INT_PROTOTYPE)
KVF_CUDA_RUNTIME_TEXTS(FAKE_API KVF_CUDA_TEXT_PROTOTYPE)

/* First thing in every call: the error to answer, 0 to go on. */
int fake_enter(const char *function);
/* The same for calls that answer even after a sticky error. */
int fake_enter_plain(const char *function);
int fake_answer(int error); /* remembers it for cudaGetLastError */
bool fake_is_broken(void); /* a sticky error stands */

typedef struct fake_op fake_op;
struct fake_op {
    fake_op *next;
    const char *kind;
    uint32_t life; /* of the device, when it was queued */
    void (*run)(void *arg);
    void (*drop)(void *arg);
    void *arg;
};
/* Takes arg. Operations of `kind` NULL (events) run even when the device is broken. */
FAKE_API int fake_queue(
    kvf_cuda_stream stream, const char *kind, void (*run)(void *arg), void (*drop)(void *arg), void *arg);
uint32_t fake_life(void);
void fake_wait_device(void); /* for everything queued on every stream */

int fake_device_now(void);

#define FAKE_ENTER()                                                                                                   \
    do {                                                                                                               \
        int fault_ = fake_enter(__func__);                                                                             \
        if (fault_) return fault_;                                                                                     \
    } while (0)
/* For calls that give something back: they do so on a broken device too, and answer its error. */
#define FAKE_ENTER_TO_GIVE()                                                                                           \
    int fault_ = fake_enter(__func__);                                                                                 \
    do {                                                                                                               \
        if (fault_ && !fake_is_broken()) return fault_;                                                                \
    } while (0)
#endif
