/* fiber.h - stacks that give way to each other: one per CUDA thread of the emulator.
 *
 * A switch saves what the calling convention keeps and nothing else (10 ns; ucontext's 350 ns are a system call for the
 * signal mask). AddressSanitizer and ThreadSanitizer are told of every switch; to the latter a switch orders nothing:
 * only a barrier does, so that a missing one is a reported race. */
#ifndef KVF_EMU_FIBER_H
#define KVF_EMU_FIBER_H
#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVF_EMU_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define KVF_EMU_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) && !defined(KVF_EMU_TSAN)
#define KVF_EMU_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(KVF_EMU_ASAN)
#define KVF_EMU_ASAN 1
#endif

/* Code that runs between two fibers must not look like either of them to the sanitizers. */
#define KVF_EMU_PLAIN __attribute__((no_sanitize("thread"), no_sanitize("address"), noinline))

struct kvf_fiber {
    void *sp;
    char *stack; /* lowest usable byte; an inaccessible page lies below */
    size_t stack_bytes;
    void *tsan;
};

/* `main` is run by each fiber the first time it is entered, and must never return. */
void kvf_fiber_create(kvf_fiber *f, void (*main)(void));
void kvf_fiber_destroy(kvf_fiber *f);
/* From the scheduler's stack to f; returns when f gives way. */
void kvf_fiber_enter(kvf_fiber *f);
/* From f back to the scheduler. */
void kvf_fiber_leave(kvf_fiber *f);
/* First thing in `main`. */
void kvf_fiber_entered(void);

/* Orders what came before a release of `object` before what follows an acquire of it. Nothing without TSan. */
void kvf_fiber_release(void *object);
void kvf_fiber_acquire(void *object);
#endif
