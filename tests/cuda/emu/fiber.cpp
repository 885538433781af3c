#include "fiber.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#ifdef KVF_EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef KVF_EMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 4096 };

/* The scheduler's side of the switch: one at a time, the caller holds the emulator's lock. */
static struct {
    void *sp;
    void *tsan;
    void *asan_fake;
    const void *stack;
    size_t stack_bytes;
} outside;

extern "C" void kvf_fiber_swap(void **save, void *load);

#if defined(__x86_64__)
enum { SAVED_WORDS = 6 };
__asm__(".text\n.globl kvf_fiber_swap\n.hidden kvf_fiber_swap\n.type kvf_fiber_swap,@function\nkvf_fiber_swap:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size kvf_fiber_swap,.-kvf_fiber_swap\n");
/* `ret` takes main's address; at its first instruction the stack is 8 below a multiple of 16, as after a call. */
static void *first_frame(char *top, void (*main)(void)) {
    void **sp = (void **)(void *)(top - 16);
    *--sp = nullptr; /* main's return address: it has none */
    *--sp = (void *)(uintptr_t)main;
    for (int i = 0; i < SAVED_WORDS; i++) *--sp = nullptr;
    return sp;
}
#elif defined(__aarch64__)
enum { SAVED_WORDS = 20 }; /* x19-x30, d8-d15 */
__asm__(".text\n.globl kvf_fiber_swap\n.hidden kvf_fiber_swap\n.type kvf_fiber_swap,%function\nkvf_fiber_swap:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
        "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
        "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n.size kvf_fiber_swap,.-kvf_fiber_swap\n");
static void *first_frame(char *top, void (*main)(void)) {
    void **sp = (void **)(void *)(top - 16) - SAVED_WORDS;
    for (int i = 0; i < SAVED_WORDS; i++) sp[i] = nullptr;
    sp[11] = (void *)(uintptr_t)main; /* x30 */
    return sp;
}
#else
#error "fiber.cpp: a stack switch for this processor is missing"
#endif

void kvf_fiber_create(kvf_fiber *f, void (*main)(void)) {
    f->stack_bytes = STACK_BYTES;
    void *memory = mmap(
        nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) {
        perror("emulator: no stack");
        abort();
    }
    f->stack = (char *)memory + GUARD_BYTES;
    f->sp = first_frame(f->stack + STACK_BYTES, main);
#ifdef KVF_EMU_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
}

void kvf_fiber_destroy(kvf_fiber *f) {
#ifdef KVF_EMU_TSAN
    __tsan_destroy_fiber(f->tsan);
#endif
    munmap(f->stack - GUARD_BYTES, f->stack_bytes + GUARD_BYTES);
    *f = kvf_fiber{};
}

KVF_EMU_PLAIN void kvf_fiber_enter(kvf_fiber *f) {
#ifdef KVF_EMU_ASAN
    __sanitizer_start_switch_fiber(&outside.asan_fake, f->stack, f->stack_bytes);
#endif
#ifdef KVF_EMU_TSAN
    outside.tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    kvf_fiber_swap(&outside.sp, f->sp);
#ifdef KVF_EMU_ASAN
    __sanitizer_finish_switch_fiber(outside.asan_fake, nullptr, nullptr);
#endif
}

KVF_EMU_PLAIN void kvf_fiber_leave(kvf_fiber *f) {
#ifdef KVF_EMU_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, outside.stack, outside.stack_bytes);
#endif
#ifdef KVF_EMU_TSAN
    __tsan_switch_to_fiber(outside.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    kvf_fiber_swap(&f->sp, outside.sp);
#ifdef KVF_EMU_ASAN
    __sanitizer_finish_switch_fiber(fake, &outside.stack, &outside.stack_bytes);
#endif
}

KVF_EMU_PLAIN void kvf_fiber_entered(void) {
#ifdef KVF_EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &outside.stack, &outside.stack_bytes);
#endif
}

void kvf_fiber_release(void *object) {
#ifdef KVF_EMU_TSAN
    __tsan_release(object);
#else
    (void)object;
#endif
}

void kvf_fiber_acquire(void *object) {
#ifdef KVF_EMU_TSAN
    __tsan_acquire(object);
#else
    (void)object;
#endif
}
