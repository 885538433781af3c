/* fake_driver.c - the few functions of libcuda.so.1 that kvf/cuda_api.h names, over the fake runtime's settings. */
#include "fake_cuda.h"
#include <stdio.h>

KVF_CUDA_DRIVER_FUNCTIONS(FAKE_API KVF_CUDA_INT_PROTOTYPE)

int cuInit(unsigned flags) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    if (s.init_error) return s.init_error;
    return flags ? KVF_CUDA_INVALID_VALUE : s.devices ? 0 : KVF_CUDA_NO_DEVICE;
}
int cuDriverGetVersion(int *version) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    *version = s.driver_number;
    return 0;
}
int cuDeviceGet(int *device, int ordinal) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    if (ordinal < 0 || ordinal >= (int)s.devices) return KVF_CUDA_INVALID_DEVICE;
    *device = ordinal;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *total_bytes, int device) {
    fake_cuda_settings s;
    fake_cuda_get(&s);
    if (device < 0 || device >= (int)s.devices) return KVF_CUDA_INVALID_DEVICE;
    *total_bytes = s.memory_bytes;
    return 0;
}
int cuDeviceGetName(char *name, int room_bytes, int device) {
    return snprintf(name, (size_t)room_bytes, "Fake %d", device) < room_bytes ? 0 : KVF_CUDA_INVALID_VALUE;
}
