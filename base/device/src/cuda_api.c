/* cuda_api.c - opens the libraries, checks versions, looks at devices.
 *
 * Order: the driver first (its absence is the usual case and costs nothing to find), then the runtime, then devices.
 * cudaGetDeviceCount leaves its result untouched when it fails, cudaDriverGetVersion answers 0 where no driver is. */
#include "kvf/cuda_api.h"
#include <dlfcn.h>
#include <stdio.h>

static const char *const driver_names[] = {"libcuda.so.1", NULL};
static const char *const runtime_names[] = {"libcudart.so.13", "libcudart.so.12", NULL};
static const char *const nccl_names[] = {"libnccl.so.2", NULL};

static void *library_open(const char *wanted, const char *const *names, const char *what, kvf_error *err) {
    const char *one[] = {wanted, NULL};
    if (wanted) names = one;
    char why[256] = "";
    for (; *names; names++) {
        void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        const char *text = dlerror();
        if (!why[0]) snprintf(why, sizeof why, "%s", text ? text : *names);
    }
    kvf_fail(err, KVF_ERR_UNSUPPORTED, "no %s here: %s", what, why);
    return NULL;
}

typedef struct {
    const char *symbol;
    size_t at; /* of the field in its table */
} entry;

static kvf_status library_fill(
    void *library, void *table, const entry *entries, size_t count, const char *what, kvf_error *err) {
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, entries[i].symbol);
        if (!symbol) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%s is too old: it has no %s", what, entries[i].symbol);
        memcpy((char *)table + entries[i].at, &symbol, sizeof symbol);
    }
    return KVF_OK;
}

#define ENTRY(field, symbol, parameters) {#symbol, offsetof(TABLE, field)},

typedef struct {
    KVF_CUDA_DRIVER_FUNCTIONS(KVF_CUDA_INT_FIELD)
} driver_table;

enum { OS_REFUSES = 304 }; /* CUDA_ERROR_OPERATING_SYSTEM */

static kvf_status load_driver(const char *wanted, kvf_cuda_api *api, kvf_error *err) {
#define TABLE driver_table
    static const entry entries[] = {KVF_CUDA_DRIVER_FUNCTIONS(ENTRY)};
#undef TABLE
    api->libraries[0] = library_open(wanted, driver_names, "NVIDIA driver", err);
    if (!api->libraries[0]) return KVF_ERR_UNSUPPORTED;
    kvf_status status =
        library_fill(api->libraries[0], &api->driver, entries, KVF_COUNT_OF(entries), "the NVIDIA driver", err);
    if (status != KVF_OK) return status;
    int error = api->driver.init(0);
    if (error == KVF_CUDA_NO_DEVICE) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "no GPU: the driver sees no device");
    if (error)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "the NVIDIA driver does not start: error %d%s", error,
            error == OS_REFUSES ? " (may this process open /dev/nvidia*?)" : "");
    return KVF_OK;
}

static kvf_status load_runtime(const char *wanted, kvf_cuda_api *api, kvf_error *err) {
#define TABLE kvf_cuda_api
    static const entry entries[] = {KVF_CUDA_RUNTIME_FUNCTIONS(ENTRY) KVF_CUDA_RUNTIME_TEXTS(ENTRY)};
#undef TABLE
    api->libraries[1] = library_open(wanted, runtime_names, "CUDA runtime", err);
    if (!api->libraries[1]) return KVF_ERR_UNSUPPORTED;
    kvf_status status = library_fill(api->libraries[1], api, entries, KVF_COUNT_OF(entries), "the CUDA runtime", err);
    if (status != KVF_OK) return status;
    int runtime = 0, driver = 0;
    if (api->runtime_version(&runtime)) runtime = 0;
    if (api->driver_version(&driver)) driver = 0;
    api->runtime_number = runtime;
    api->driver_number = driver;
    if (runtime < KVF_CUDA_RUNTIME_MIN || runtime >= KVF_CUDA_RUNTIME_END)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "CUDA runtime %d.%d: versions %d to %d are known here",
            runtime / 1000, runtime % 1000 / 10, KVF_CUDA_RUNTIME_MIN / 1000, KVF_CUDA_RUNTIME_END / 1000 - 1);
    /* Inside one major version any driver serves. */
    if (driver < runtime / 1000 * 1000)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED,
            "the NVIDIA driver is too old: it serves CUDA %d.%d, the runtime is %d.%d", driver / 1000,
            driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return KVF_OK;
}

static kvf_status look_at_device(kvf_cuda_api *api, uint32_t index, kvf_error *err) {
    kvf_cuda_device *d = &api->devices[index];
    int major = 0, minor = 0, processors = 0, handle = 0;
    size_t total_bytes = 0;
    const char *call = "cudaDeviceGetAttribute";
    int error = api->device_attribute(&major, KVF_CUDA_ATTR_MAJOR, (int)index);
    if (!error) error = api->device_attribute(&minor, KVF_CUDA_ATTR_MINOR, (int)index);
    if (!error) error = api->device_attribute(&processors, KVF_CUDA_ATTR_PROCESSORS, (int)index);
    if (!error) { /* the runtime's own call for it would make a context */
        call = "cuDeviceTotalMem";
        error = api->driver.device_get(&handle, (int)index);
        if (!error) error = api->driver.device_memory(&total_bytes, handle);
    }
    if (error) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "GPU %u: %s", index, kvf_cuda_text(api, call, error));
    *d = (kvf_cuda_device){.index = index,
        .capability = (uint32_t)(major * 10 + minor),
        .processors = (uint32_t)processors,
        .total_bytes = total_bytes};
    if (api->driver.device_name(d->name, (int)sizeof d->name, handle))
        snprintf(d->name, sizeof d->name, "GPU %u", index);
    d->name[sizeof d->name - 1] = 0;
    return KVF_OK;
}

static kvf_status look_at_devices(kvf_cuda_api *api, kvf_error *err) {
    int count = 0, error = api->device_count(&count);
    if (error == KVF_CUDA_DRIVER_TOO_OLD)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "the NVIDIA driver is too old for CUDA %d.%d",
            api->runtime_number / 1000, api->runtime_number % 1000 / 10);
    if (error == KVF_CUDA_NO_DEVICE || (!error && count <= 0))
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "no GPU: the CUDA runtime sees no device");
    if (error) return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%s", kvf_cuda_text(api, "cudaGetDeviceCount", error));
    api->devices_count = (uint32_t)KVF_MIN(count, KVF_CUDA_DEVICES_MAX);
    kvf_status status = KVF_OK;
    for (uint32_t i = 0; i < api->devices_count && status == KVF_OK; i++) status = look_at_device(api, i, err);
    return status;
}

kvf_status kvf_cuda_load(const kvf_cuda_libraries *libraries, kvf_cuda_api *out, kvf_error *err) {
    memset(out, 0, sizeof *out);
    kvf_status status = load_driver(libraries ? libraries->driver : NULL, out, err);
    if (status == KVF_OK) status = load_runtime(libraries ? libraries->runtime : NULL, out, err);
    if (status == KVF_OK) status = look_at_devices(out, err);
    if (status != KVF_OK) kvf_cuda_unload(out);
    return status;
}

void kvf_cuda_unload(kvf_cuda_api *api) {
    for (size_t i = 0; i < KVF_COUNT_OF(api->libraries); i++)
        if (api->libraries[i]) dlclose(api->libraries[i]);
    memset(api, 0, sizeof *api);
}

const char *kvf_cuda_found(const kvf_cuda_api *api, char *out, size_t room_bytes) {
    int used = snprintf(out, room_bytes, "CUDA runtime %d.%d, driver %d.%d", api->runtime_number / 1000,
        api->runtime_number % 1000 / 10, api->driver_number / 1000, api->driver_number % 1000 / 10);
    for (uint32_t i = 0; i < api->devices_count && used > 0 && (size_t)used < room_bytes; i++) {
        const kvf_cuda_device *d = &api->devices[i];
        used += snprintf(out + used, room_bytes - (size_t)used, ", GPU %u %s (sm_%u, %llu GiB)", i, d->name,
            d->capability, (unsigned long long)(d->total_bytes >> 30));
    }
    return out;
}

kvf_status kvf_cuda_usable(const kvf_cuda_api *api, uint32_t device, kvf_error *err) {
    if (device >= api->devices_count)
        return kvf_fail(err, KVF_ERR_NOT_FOUND, "no GPU %u: there are %u", device, api->devices_count);
    const kvf_cuda_device *d = &api->devices[device];
    if (d->capability < KVF_CUDA_CAPABILITY_MIN)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "GPU %u (%s) is sm_%u, sm_%u or later is needed", device, d->name,
            d->capability, KVF_CUDA_CAPABILITY_MIN);
    return KVF_OK;
}

kvf_status kvf_nccl_load(const kvf_cuda_libraries *libraries, kvf_nccl_api *out, kvf_error *err) {
#define TABLE kvf_nccl_api
    static const entry entries[] = {KVF_NCCL_FUNCTIONS(ENTRY) KVF_NCCL_TEXTS(ENTRY)};
#undef TABLE
    memset(out, 0, sizeof *out);
    out->library = library_open(libraries ? libraries->nccl : NULL, nccl_names, "NCCL", err);
    if (!out->library) return KVF_ERR_UNSUPPORTED;
    kvf_status status = library_fill(out->library, out, entries, KVF_COUNT_OF(entries), "NCCL", err);
    if (status == KVF_OK && (out->version(&out->number) || out->number < KVF_NCCL_MIN)) {
        int major = out->number < 10000 ? 1000 : 10000; /* until 2.8 a digit less */
        status = kvf_fail(err, KVF_ERR_UNSUPPORTED, "NCCL %d.%d is too old: %d.%d or later is needed",
            out->number / major, out->number % major / 100, KVF_NCCL_MIN / 10000, KVF_NCCL_MIN / 100 % 100);
    }
    if (status != KVF_OK) kvf_nccl_unload(out);
    return status;
}

void kvf_nccl_unload(kvf_nccl_api *api) {
    if (api->library) dlclose(api->library);
    memset(api, 0, sizeof *api);
}

#define NAME(field, symbol, parameters) .field = #symbol,
const kvf_cuda_names kvf_cuda_symbols = {KVF_CUDA_RUNTIME_FUNCTIONS(NAME)};
#undef NAME

static _Thread_local char said[256];

const char *kvf_cuda_text(const kvf_cuda_api *api, const char *call, int error) {
    const char *name = api->error_name(error), *text = api->error_text(error);
    snprintf(said, sizeof said, "%s: %s (%s)", call, text ? text : "?", name ? name : "?");
    return said;
}

const char *kvf_nccl_text(const kvf_nccl_api *api, const char *call, int result) {
    const char *text = api->error_text(result);
    snprintf(said, sizeof said, "%s: %s", call, text ? text : "?");
    return said;
}

bool kvf_cuda_is_sticky(int error) {
    switch (error) {
    case 214: /* uncorrectable memory error */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 710: /* device assert */
    case 714: /* hardware stack error */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid program counter */
    case 719: /* launch failure */
    case 721: /* contained */
    case 999: return true;
    default: return false;
    }
}
