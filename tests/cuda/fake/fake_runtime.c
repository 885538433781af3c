/* fake_runtime.c - devices, versions, errors and planted faults of the fake CUDA runtime. */
#include "fake_int.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RULES_MAX = 32 };
typedef struct {
    char function[48];
    uint32_t nth, seen;
    fake_fault_kind kind;
    int error;
} rule;

fake_cuda_counts fake_counted;
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool known; /* settings have been read */
    fake_cuda_settings settings;
    rule rules[RULES_MAX];
    uint32_t rules_count;
    int sticky;
    uint32_t life; /* a broken device that is reset begins another one */
    uint32_t hanging, releases;
    pthread_cond_t released;
} fake = {.released = PTHREAD_COND_INITIALIZER};
static _Thread_local int thread_error, thread_device;

/* ---------------------------------------------------------------- settings */
static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void add_rule(const char *function, uint32_t nth, fake_fault_kind kind, int error) {
    if (fake.rules_count == RULES_MAX) abort();
    rule *r = &fake.rules[fake.rules_count++];
    *r = (rule){.nth = nth, .kind = kind, .error = error};
    snprintf(r->function, sizeof r->function, "%s", function);
}

static void rules_from(const char *text) {
    char function[48], how[24];
    unsigned nth;
    int used = 0;
    for (; text && sscanf(text, "%47[^:,]:%u=%23[a-z0-9]%n", function, &nth, how, &used) == 3; text += used) {
        if (strcmp(how, "hang") == 0)
            add_rule(function, nth, FAKE_HANG, 0);
        else if (strcmp(how, "die") == 0)
            add_rule(function, nth, FAKE_DIE, 0);
        else if (strncmp(how, "sticky", 6) == 0)
            add_rule(function, nth, FAKE_STICKY, how[6] ? atoi(how + 6) : KVF_CUDA_ILLEGAL_ADDRESS);
        else
            add_rule(function, nth, FAKE_FAIL, atoi(how));
        if (text[used] == ',') used++;
    }
    if (text && *text) {
        fprintf(stderr, "fake cuda: faults not understood from \"%s\"\n", text);
        abort();
    }
}

static void know(void) {
    if (fake.known) return;
    fake.known = true;
    fake.settings = (fake_cuda_settings){.devices = (uint32_t)number_of("KVF_FAKE_CUDA_DEVICES", 1),
        .capability = (uint32_t)number_of("KVF_FAKE_CUDA_CAPABILITY", 90),
        .driver_number = (int)number_of("KVF_FAKE_CUDA_DRIVER", 13000),
        .runtime_number = (int)number_of("KVF_FAKE_CUDA_RUNTIME", 13000),
        .nccl_number = (int)number_of("KVF_FAKE_CUDA_NCCL", 22809),
        .memory_bytes = number_of("KVF_FAKE_CUDA_MEMORY", 1ull << 30),
        .delay_us = (uint32_t)number_of("KVF_FAKE_CUDA_DELAY_US", 0),
        .free_at_once = fake.settings.free_at_once};
    rules_from(getenv("KVF_FAKE_CUDA_FAULTS"));
}

void fake_cuda_get(fake_cuda_settings *settings) {
    pthread_mutex_lock(&fake_lock);
    know();
    *settings = fake.settings;
    pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_set(const fake_cuda_settings *settings) {
    pthread_mutex_lock(&fake_lock);
    know();
    fake.settings = *settings;
    pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_reset(void) {
    pthread_mutex_lock(&fake_lock);
    fake.known = false;
    fake.rules_count = 0;
    bool was_broken = fake.sticky != 0;
    if (was_broken) fake.life++; /* what a broken device had to do is never done */
    fake.sticky = 0;
    fake_counted.copies = fake_counted.kernels = fake_counted.sends = fake_counted.recvs = 0;
    fake_counted.contexts = 0;
    fake_counted.calls = 0;
    know();
    pthread_mutex_unlock(&fake_lock);
    thread_error = 0;
    fake_cuda_release();
    if (was_broken) fake_wait_device();
}

void fake_cuda_count(fake_cuda_counts *out) {
    pthread_mutex_lock(&fake_lock);
    *out = fake_counted;
    pthread_mutex_unlock(&fake_lock);
}

/* ---------------------------------------------------------------- faults */
void fake_cuda_fault(const char *function, uint32_t nth, fake_fault_kind kind, int error) {
    pthread_mutex_lock(&fake_lock);
    know();
    add_rule(function, nth, kind, error);
    pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_release(void) {
    pthread_mutex_lock(&fake_lock);
    fake.releases++;
    pthread_cond_broadcast(&fake.released);
    while (fake.hanging) pthread_cond_wait(&fake.released, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
}

uint32_t fake_cuda_hanging(void) {
    pthread_mutex_lock(&fake_lock);
    uint32_t n = fake.hanging;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

static bool has(const char *name, const char *const *parts) {
    for (; *parts; parts++)
        if (strstr(name, *parts)) return true;
    return false;
}
/* "any": calls that do something, and operations; "call": only such calls, without those that give something back. */
static bool rule_names(const rule *r, const char *name, bool operation) {
    static const char *const looks[] = {"Query", "AsyncError", "LastError", NULL};
    static const char *const gives[] = {"Free", "Destroy", "Close", "Abort", NULL};
    if (strcmp(r->function, "any") == 0) return operation || !has(name, looks);
    if (strcmp(r->function, "call") == 0) return !operation && !has(name, looks) && !has(name, gives);
    return strcmp(r->function, name) == 0;
}

/* Under the lock. The error that this call, or operation, meets. */
static int meet_rules(const char *name, bool operation) {
    static const rule call = {.function = "call"};
    int error = 0;
    fake_counted.calls += rule_names(&call, name, operation);
    for (uint32_t i = 0; i < fake.rules_count; i++) {
        rule *r = &fake.rules[i];
        if (!rule_names(r, name, operation) || ++r->seen != r->nth) continue;
        if (r->kind == FAKE_DIE) kill(getpid(), SIGKILL);
        if (r->kind == FAKE_HANG) {
            uint32_t until = fake.releases + 1;
            fake.hanging++;
            while (fake.releases < until) pthread_cond_wait(&fake.released, &fake_lock);
            fake.hanging--;
            pthread_cond_broadcast(&fake.released);
            error = operation ? 0 : KVF_CUDA_UNKNOWN;
        } else {
            error = r->error;
            if (r->kind == FAKE_STICKY || operation) fake.sticky = error;
        }
    }
    return error;
}

int fake_answer(int error) {
    if (error) thread_error = error;
    return error;
}

bool fake_is_broken(void) {
    pthread_mutex_lock(&fake_lock);
    bool broken = fake.sticky != 0;
    pthread_mutex_unlock(&fake_lock);
    return broken;
}

int fake_enter_plain(const char *function) {
    pthread_mutex_lock(&fake_lock);
    know();
    int error = meet_rules(function, false);
    pthread_mutex_unlock(&fake_lock);
    return fake_answer(error);
}

int fake_enter_nccl(const char *function) {
    pthread_mutex_lock(&fake_lock);
    know();
    int error = meet_rules(function, false);
    pthread_mutex_unlock(&fake_lock);
    return error == KVF_CUDA_UNKNOWN ? KVF_NCCL_SYSTEM_ERROR : error;
}

static int device_trouble(void) {
    if (fake.settings.driver_number < fake.settings.runtime_number / 1000 * 1000) return KVF_CUDA_DRIVER_TOO_OLD;
    return fake.settings.devices ? 0 : KVF_CUDA_NO_DEVICE;
}

int fake_enter(const char *function) {
    pthread_mutex_lock(&fake_lock);
    know();
    int error = fake.sticky;
    if (!error) error = device_trouble();
    if (!error) error = meet_rules(function, false);
    pthread_mutex_unlock(&fake_lock);
    return fake_answer(error);
}

uint32_t fake_life(void) {
    pthread_mutex_lock(&fake_lock);
    uint32_t life = fake.life;
    pthread_mutex_unlock(&fake_lock);
    return life;
}
bool fake_begin_operation(const char *kind) {
    pthread_mutex_lock(&fake_lock);
    know();
    bool fine = !fake.sticky && meet_rules(kind, true) == 0;
    if (fine && strcmp(kind, "copy") == 0) fake_counted.copies++;
    if (fine && strcmp(kind, "kernel") == 0) fake_counted.kernels++;
    pthread_mutex_unlock(&fake_lock);
    return fine;
}

/* ---------------------------------------------------------------- calls */
int cudaRuntimeGetVersion(int *version) {
    int fault = fake_enter_plain(__func__);
    if (fault) return fault;
    fake_cuda_settings s;
    fake_cuda_get(&s);
    *version = s.runtime_number;
    return 0;
}
int cudaDriverGetVersion(int *version) {
    int fault = fake_enter_plain(__func__);
    if (fault) return fault;
    fake_cuda_settings s;
    fake_cuda_get(&s);
    *version = s.driver_number;
    return 0;
}
int cudaGetDeviceCount(int *count) {
    FAKE_ENTER();
    fake_cuda_settings s;
    fake_cuda_get(&s);
    *count = (int)s.devices;
    return 0;
}
static int check_device(int device) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    return device >= 0 && device < (int)s.devices ? 0 : fake_answer(KVF_CUDA_INVALID_DEVICE);
}
int cudaSetDevice(int device) {
    FAKE_ENTER();
    int error = check_device(device);
    if (error) return error;
    thread_device = device;
    pthread_mutex_lock(&fake_lock);
    fake_counted.contexts |= 1u << device; /* since CUDA 12 at once, not at the first use */
    pthread_mutex_unlock(&fake_lock);
    return 0;
}
int cudaGetDevice(int *device) {
    FAKE_ENTER();
    *device = thread_device;
    return 0;
}
int fake_device_now(void) { return thread_device; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    FAKE_ENTER();
    int error = check_device(device);
    if (error) return error;
    fake_cuda_settings s;
    fake_cuda_get(&s);
    switch (attribute) {
    case KVF_CUDA_ATTR_SHARED_BYTES: *value = 48 << 10; return 0;
    case KVF_CUDA_ATTR_PROCESSORS: *value = 4; return 0;
    case KVF_CUDA_ATTR_INTEGRATED: *value = 0; return 0;
    case KVF_CUDA_ATTR_MAJOR: *value = (int)s.capability / 10; return 0;
    case KVF_CUDA_ATTR_MINOR: *value = (int)s.capability % 10; return 0;
    case KVF_CUDA_ATTR_SHARED_OPTIN_BYTES: *value = 227 << 10; return 0;
    default: return fake_answer(KVF_CUDA_INVALID_VALUE);
    }
}
int cudaDeviceGetPCIBusId(char *id, int room_bytes, int device) {
    FAKE_ENTER();
    int error = check_device(device);
    if (error) return error;
    return snprintf(id, (size_t)room_bytes, "0000:%02x:00.0", device + 1) < room_bytes
               ? 0
               : fake_answer(KVF_CUDA_INVALID_VALUE);
}
int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    FAKE_ENTER();
    int error = check_device(device);
    if (!error) error = check_device(peer);
    if (!error) *can = device != peer;
    return error;
}
int cudaDeviceSynchronize(void) {
    FAKE_ENTER();
    fake_wait_device();
    FAKE_ENTER();
    return 0;
}
int cudaGetLastError(void) {
    int error = thread_error;
    pthread_mutex_lock(&fake_lock);
    if (fake.sticky) error = fake.sticky;
    pthread_mutex_unlock(&fake_lock);
    thread_error = 0;
    return error;
}
int cudaPeekAtLastError(void) {
    int error = cudaGetLastError();
    thread_error = error;
    return error;
}

static const struct {
    int error;
    const char *name, *text;
} words[] = {{0, "cudaSuccess", "no error"}, {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {205, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {304, "cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"}, {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"}};

const char *cudaGetErrorName(int error) {
    for (size_t i = 0; i < KVF_COUNT_OF(words); i++)
        if (words[i].error == error) return words[i].name;
    return "cudaErrorUnknown";
}
const char *cudaGetErrorString(int error) {
    for (size_t i = 0; i < KVF_COUNT_OF(words); i++)
        if (words[i].error == error) return words[i].text;
    return "unknown error";
}
