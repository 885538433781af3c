/* transports.c - what pages cost on their way between two processes, and between two ranks of NCCL, on this machine.
 *
 *   transports [--small] [--json FILE] [--plugin FILE] PART
 *     ipc         a bare copy over a CUDA IPC mapping, then the product's cuda_ipc lane, push alone and whole
 *     nccl-self   one rank that sends to itself
 *     nccl-pair   the product's nccl lane between two processes; on one GPU where the library lets two ranks share it
 *     nccl-hosts  the same with each process calling itself a host, over sockets: for bytes, its rate means nothing
 *     about       a line of JSON on the devices and libraries here
 *
 * Each part is a run of its own: what hangs is killed alone. This process sends; it starts itself again as the receiver
 * before it touches the device, for CUDA survives no fork. Exits 0; 2: a bar was missed; 77: no GPU; 1: wrong. */
#include "gpu.h"
#include "rows.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_GPU = 77, COPIES = 6 };
#define IPC_BAR_MS 1.0
/* Of an 8B model: a page of one layer is 64 KiB; the slots are the product's. 512 MiB are 4,096 tokens. */
static const gpu_sizes usual = {32, 256, 65536, 128, 4, 5}, toy = {2, 16, 4096, 8, 4, 2};
static const gpu_sizes usual_hosts = {32, 32, 65536, 128, 4, 2};

typedef struct {
    const char *part, *plugin, *json;
    bool small;
    int fd; /* the receiver's end, or -1 */
    pid_t peer;
    uint32_t devices;
    gpu_sizes sizes;
} run;

static bool is(const run *r, const char *part) { return strcmp(r->part, part) == 0; }

/* What a machine may lack without anything of ours being wrong. */
static bool is_lack(const run *r, const char *why) {
    static const char *const lacks[] = {"not supported", "NotSupported", "OperatingSystem", "OS call failed",
        "DevicesUnavailable", "busy or unavailable", "NotPermitted"};
    bool shares = is(r, "nccl-hosts") || (is(r, "nccl-pair") && r->devices == 1);
    if (shares) return true; /* two ranks on one device: nobody promises it */
    for (size_t i = 0; i < KVF_COUNT_OF(lacks); i++)
        if (strstr(why, lacks[i])) return true;
    return false;
}
static int gave_up(const run *r, const char *name, const char *why) {
    if (is_lack(r, why)) {
        rows_skip(name, why);
        return 0;
    }
    rows_wrong(name, why);
    return 1;
}
static const char *mib(const gpu *g, char *out, size_t room_bytes, const char *format) {
    char size[32];
    if (g->pool_bytes >> 20)
        snprintf(size, sizeof size, "%llu MiB", (unsigned long long)g->pool_bytes >> 20);
    else
        snprintf(size, sizeof size, "%llu KiB", (unsigned long long)g->pool_bytes >> 10);
    snprintf(out, room_bytes, format, size);
    return out;
}
static void add_rate(const gpu *g, const char *format, double seconds) {
    char name[96];
    rows_add(mib(g, name, sizeof name, format), (double)g->pool_bytes / seconds * 1e-9, "GB/s");
}

/* ---- a bare copy ---- */
/* Milliseconds by the device's clock, the best of a few; below 0: minus the error. */
static double copy_ms(gpu *g, void *to, const void *from) {
    kvf_cuda_stream stream = NULL;
    kvf_cuda_event begin = NULL, end = NULL;
    double best = 1e9;
    int error = g->cuda.stream_create(&stream, KVF_CUDA_STREAM_NON_BLOCKING, 0);
    if (!error) error = g->cuda.event_create(&begin, 0);
    if (!error) error = g->cuda.event_create(&end, 0);
    for (int i = 0; i < COPIES && !error; i++) { /* the first warms up */
        float ms = 0;
        error = g->cuda.event_record(begin, stream);
        if (!error) error = g->cuda.copy_async(to, from, g->pool_bytes, KVF_CUDA_DEVICE_TO_DEVICE, stream);
        if (!error) error = g->cuda.event_record(end, stream);
        if (!error) error = g->cuda.event_synchronize(end);
        if (!error) error = g->cuda.event_elapsed(&ms, begin, end);
        if (i > 0 && ms < best) best = ms;
    }
    if (begin) (void)g->cuda.event_destroy(begin);
    if (end) (void)g->cuda.event_destroy(end);
    if (stream) (void)g->cuda.stream_destroy(stream);
    return error ? -error : KVF_MAX(best, 1e-6);
}

static bool checked(run *r, char why[256]) {
    gpu_word w = {.kind = SAY_CHECK};
    if (!gpu_say(r->fd, &w) || !gpu_hear(r->fd, SAY_CHECKED, &w)) {
        snprintf(why, 256, "%.255s", w.text);
        return false;
    }
    if (w.number == 0) return true;
    snprintf(why, 256, "%llu pages hold something else", (unsigned long long)w.number);
    return false;
}

/* The peer's copy of the pool lies at what the handle maps. */
static bool bare_into(run *r, gpu *g, void *remote, char why[256]) {
    void *other = NULL;
    char name[96];
    int error = g->cuda.memory_take(&other, g->pool_bytes);
    double local = error ? -error : copy_ms(g, other, g->pool);
    (void)g->cuda.memory_give(other);
    double push = local < 0 ? local : copy_ms(g, remote, g->pool);
    if (push < 0) {
        snprintf(why, 256, "%s", kvf_cuda_text(&g->cuda, "copy", (int)-push));
        return false;
    }
    if (r->small)
        rows_add(mib(g, name, sizeof name, "ipc, bare copy of %s"), push, "ms");
    else
        rows_judge(mib(g, name, sizeof name, "ipc, bare copy of %s"), push, "ms", IPC_BAR_MS, false);
    add_rate(g, "ipc, bare copy of %s, bytes moved", push * 1e-3);
    rows_add("ipc, bare copy, its rate of a device copy's", local / push, "");
    return checked(r, why);
}
static bool bare_copy(run *r, gpu *g, char why[256]) {
    gpu_word w;
    void *remote = NULL;
    kvf_cuda_ipc_handle handle;
    if (!gpu_hear(r->fd, SAY_HANDLE, &w)) {
        snprintf(why, 256, "%.255s", w.text);
        return false;
    }
    memcpy(&handle, w.bytes, sizeof handle);
    int error = g->cuda.ipc_open(&remote, handle, KVF_CUDA_IPC_LAZY_PEER);
    if (error) {
        snprintf(why, 256, "%s", kvf_cuda_text(&g->cuda, "cudaIpcOpenMemHandle", error));
        return false;
    }
    bool fine = bare_into(r, g, remote, why);
    (void)g->cuda.ipc_close(remote);
    return fine && gpu_say(r->fd, &(gpu_word){.kind = SAY_END});
}

/* ---- lanes ---- */
static double best_of(gpu_pair *p, uint32_t rounds, bool land, char why[256]) {
    double best = 1e9;
    for (uint32_t i = 0; i <= rounds; i++) { /* the first warms up */
        double took = gpu_pair_send(p, land, why);
        if (took < 0) return took;
        if (i > 0) best = KVF_MIN(best, took);
    }
    return best;
}
static bool lane_rows(run *r, gpu *g, gpu_pair *p, kvf_lane_kind kind, char why[256]) {
    char name[96];
    if (kind == KVF_LANE_IPC) {
        double push = best_of(p, g->sizes.rounds, false, why);
        if (push < 0) return false;
        rows_add(mib(g, name, sizeof name, "cuda_ipc lane, %s packed into the peer's slots"), push * 1e3, "ms");
        add_rate(g, "cuda_ipc lane, %s packed, bytes moved", push);
    }
    double whole = best_of(p, g->sizes.rounds, true, why);
    if (whole < 0 || !checked(r, why)) return false;
    bool ipc = kind == KVF_LANE_IPC, hosts = is(r, "nccl-hosts");
    const char *both = ipc ? "cuda_ipc lane, %s%s" : hosts ? "nccl lane over sockets, %s%s" : "nccl lane, %s%s";
    char format[64];
    snprintf(format, sizeof format, both, "%s", " packed, sent, landed");
    rows_add(mib(g, name, sizeof name, format), whole * 1e3, "ms");
    snprintf(format, sizeof format, both, "%s", ", bytes moved");
    add_rate(g, format, whole);
    return true;
}
static bool lane_part(run *r, gpu *g, char why[256]) {
    kvf_lane_kind kind = is(r, "ipc") ? KVF_LANE_IPC : KVF_LANE_NCCL;
    gpu_pair *p = gpu_pair_open(g, kind, true, r->fd, why);
    if (!p) return false;
    bool fine = lane_rows(r, g, p, kind, why);
    if (fine) gpu_pair_close(p); /* else the process ends, whatever the lane is in */
    return fine;
}

/* ---- one rank of NCCL ---- */
static int settle(gpu *g, kvf_nccl_comm comm, int result) {
    double until = gpu_now_s() + PATIENCE_S;
    while (result == KVF_NCCL_IN_PROGRESS && gpu_now_s() < until) {
        usleep(20);
        int error = g->nccl.async_error(comm, &result);
        if (error) return error;
    }
    return result;
}
/* `pieces` sends to itself of the pool's bytes in all, in one group. */
static int self_send(gpu *g, kvf_nccl_comm comm, kvf_cuda_stream stream, uint8_t *to, uint32_t pieces) {
    size_t len = g->pool_bytes / pieces;
    int error = g->nccl.group_begin();
    for (uint32_t i = 0; i < pieces && !error; i++) {
        error = g->nccl.send(g->pool + i * len, len, KVF_NCCL_BYTES, 0, comm, stream);
        if (!error) error = g->nccl.recv(to + i * len, len, KVF_NCCL_BYTES, 0, comm, stream);
    }
    int end = g->nccl.group_end();
    error = settle(g, comm, error ? error : end);
    return error ? error : g->cuda.stream_synchronize(stream) ? KVF_NCCL_CUDA_ERROR : 0;
}
static int self_rounds(gpu *g, kvf_nccl_comm comm, uint8_t *to, int ctas) {
    char name[96], format[64];
    kvf_cuda_stream stream = NULL;
    double best = 1e9;
    int error = g->cuda.stream_create(&stream, KVF_CUDA_STREAM_NON_BLOCKING, 0) ? KVF_NCCL_CUDA_ERROR : 0;
    for (uint32_t i = 0; i <= g->sizes.rounds && !error; i++) {
        double begin = gpu_now_s();
        error = self_send(g, comm, stream, to, g->pool_bytes > 8u << 20 ? (uint32_t)(g->pool_bytes >> 23) : 4);
        if (i > 0) best = KVF_MIN(best, gpu_now_s() - begin);
    }
    if (stream) (void)g->cuda.stream_destroy(stream);
    if (error) return error;
    snprintf(format, sizeof format, "nccl, one rank to itself, %d channels, %%s", ctas);
    rows_add(mib(g, name, sizeof name, format), (double)g->pool_bytes / best * 1e-9, "GB/s");
    return 0;
}
static bool self_with(gpu *g, uint8_t *to, int ctas, char why[256]) {
    kvf_nccl_config config = KVF_NCCL_CONFIG;
    kvf_nccl_comm comm = NULL;
    kvf_nccl_id id;
    size_t before = 0, after = 0, total;
    char name[96];
    config.blocking = 0;
    config.ctas_min = 1;
    config.ctas_max = ctas;
    double begin = gpu_now_s();
    (void)g->cuda.memory_info(&before, &total);
    int error = g->nccl.id(&id);
    if (!error) error = g->nccl.init(&comm, 1, id, 0, &config);
    error = comm ? settle(g, comm, error) : error;
    double made = gpu_now_s() - begin;
    if (!error) error = self_rounds(g, comm, to, ctas);
    if (error) {
        snprintf(why, 256, "%s", kvf_nccl_text(&g->nccl, "self-send", error));
        return false;
    }
    (void)g->cuda.memory_info(&after, &total);
    snprintf(name, sizeof name, "nccl, communicator of %d channels, its memory", ctas);
    rows_add(name, before > after ? (double)(before - after) / (1 << 20) : 0, "MiB");
    snprintf(name, sizeof name, "nccl, communicator of %d channels, made in", ctas);
    rows_add(name, made * 1e3, "ms");
    (void)g->nccl.abort(comm);
    uint64_t differ;
    if (gpu_compare(g, to, 1, &differ) || differ) snprintf(why, 256, "bytes differ after a send to itself");
    return why[0] == 0;
}
static bool self_part(gpu *g, char why[256]) {
    static const int channels[] = {1, 4, 16};
    void *to = NULL;
    if (g->cuda.memory_take(&to, g->pool_bytes)) return snprintf(why, 256, "no memory"), false;
    bool fine = true;
    for (size_t i = 0; i < KVF_COUNT_OF(channels) && fine; i++)
        fine = !g->cuda.fill_async(to, 0, g->pool_bytes, NULL) && !g->cuda.device_synchronize() &&
               self_with(g, to, channels[i], why);
    (void)g->cuda.memory_give(to);
    return fine;
}

/* ---- the receiver ---- */
static bool answer_check(gpu *g, int fd, const void *memory) {
    gpu_word w = {.kind = SAY_CHECKED};
    return gpu_compare(g, memory, 1, &w.number) == 0 && gpu_say(fd, &w);
}
static bool receive_bare(gpu *g, int fd, char why[256]) {
    kvf_cuda_ipc_handle handle;
    gpu_word w = {.kind = SAY_HANDLE, .len_bytes = sizeof handle};
    int error = g->cuda.ipc_export(&handle, g->pool);
    if (error) {
        snprintf(why, 256, "%s", kvf_cuda_text(&g->cuda, "cudaIpcGetMemHandle", error));
        return false;
    }
    memcpy(w.bytes, &handle, sizeof handle);
    if (!gpu_say(fd, &w) || !gpu_hear(fd, SAY_CHECK, &w) || !answer_check(g, fd, g->pool)) return false;
    return gpu_hear(fd, SAY_END, &w) && gpu_fill(g, g->pool, 2) == 0;
}
static int receive(const run *r) {
    gpu *g = calloc(1, sizeof *g);
    kvf_error err;
    gpu_word w = {.kind = SAY_FAILED};
    char why[256] = "";
    if (!g) abort();
    bool fine = gpu_open(g, &r->sizes, 0, r->plugin, &err) == KVF_OK;
    uint32_t device = fine && !is(r, "ipc") && g->cuda.devices_count > 1 ? 1 : 0;
    if (device) {
        gpu_close(g);
        fine = gpu_open(g, &r->sizes, device, r->plugin, &err) == KVF_OK;
    }
    if (!fine) snprintf(why, sizeof why, "%.255s", err.message);
    if (fine) fine = gpu_fill(g, g->pool, 2) == 0;
    if (fine && is(r, "ipc")) fine = receive_bare(g, r->fd, why);
    gpu_pair *p = fine ? gpu_pair_open(g, is(r, "ipc") ? KVF_LANE_IPC : KVF_LANE_NCCL, false, r->fd, why) : NULL;
    fine = p && gpu_pair_serve(p, &w, why) && w.kind == SAY_CHECK && answer_check(g, r->fd, g->pool);
    if (fine) fine = gpu_pair_serve(p, &w, why); /* until the end */
    if (!fine && why[0]) {
        w = (gpu_word){.kind = SAY_FAILED};
        snprintf(w.text, sizeof w.text, "%s", why);
        (void)gpu_say(r->fd, &w);
    }
    if (fine) gpu_pair_close(p);
    if (fine) gpu_close(g);
    return fine ? 0 : 1;
}

/* ---- both ---- */
static void as_host(const char *name) {
    setenv("NCCL_HOSTID", name, 1);
    setenv("NCCL_NET", "Socket", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}
static bool start_receiver(run *r) {
    int fds[2];
    char fd[16];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds)) return false;
    r->peer = fork();
    if (r->peer < 0) return false;
    if (r->peer == 0) {
        close(fds[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (is(r, "nccl-hosts")) as_host("kvferry-b");
        snprintf(fd, sizeof fd, "%d", fds[1]);
        execl("/proc/self/exe", "transports", "--plugin", r->plugin, "--receiver", fd, r->small ? "--small" : r->part,
            r->part, (char *)NULL);
        _exit(1);
    }
    close(fds[1]);
    r->fd = fds[0];
    return true;
}

static int send_part(run *r) {
    gpu *g = calloc(1, sizeof *g);
    kvf_error err;
    char why[256] = "";
    bool pair = !is(r, "nccl-self");
    if (!g || (pair && !start_receiver(r))) {
        perror("the receiving process");
        return 1;
    }
    if (is(r, "nccl-hosts")) as_host("kvferry-a");
    kvf_status status = gpu_open(g, &r->sizes, 0, r->plugin, &err);
    r->devices = g->cuda.devices_count;
    if (status != KVF_OK) {
        printf("%s\n", err.message);
        return status == KVF_ERR_UNSUPPORTED ? NO_GPU : 1;
    }
    if (!is(r, "ipc") && g->nccl_why[0]) {
        rows_skip(r->part, g->nccl_why);
        return 0;
    }
    int error = gpu_fill(g, g->pool, 1);
    if (error) snprintf(why, sizeof why, "%s", kvf_cuda_text(&g->cuda, "filling", error));
    bool fine = !error && (!is(r, "ipc") || bare_copy(r, g, why));
    if (fine) fine = pair ? lane_part(r, g, why) : self_part(g, why);
    if (!fine) return gave_up(r, r->part, why[0] ? why : "the other process has ended");
    if (pair) (void)gpu_say(r->fd, &(gpu_word){.kind = SAY_END});
    gpu_close(g);
    return 0;
}

static int about(void) {
    kvf_cuda_api cuda;
    kvf_nccl_api nccl;
    kvf_error err;
    if (kvf_cuda_load(NULL, &cuda, &err) != KVF_OK) {
        printf("null\n");
        return NO_GPU;
    }
    bool has_nccl = kvf_nccl_load(NULL, &nccl, &err) == KVF_OK;
    printf("{\"driver_cuda\":%d,\"runtime\":%d,\"nccl\":%d,\"devices\":[", cuda.driver_number, cuda.runtime_number,
        has_nccl ? nccl.number : 0);
    for (uint32_t i = 0; i < cuda.devices_count; i++)
        printf("%s{\"name\":\"%s\",\"capability\":%u,\"processors\":%u,\"total_bytes\":%llu}", i ? "," : "",
            cuda.devices[i].name, cuda.devices[i].capability, cuda.devices[i].processors,
            (unsigned long long)cuda.devices[i].total_bytes);
    printf("]}\n");
    return 0;
}

int main(int argc, char **argv) {
    run r = {.part = "", .fd = -1, .plugin = "./" KVF_CUDA_PLUGIN_FILE};
    bool receives = false;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--small") == 0)
            r.small = true;
        else if (strcmp(argv[i], "--json") == 0 && more)
            r.json = argv[++i];
        else if (strcmp(argv[i], "--plugin") == 0 && more)
            r.plugin = argv[++i];
        else if (strcmp(argv[i], "--receiver") == 0 && more)
            receives = true, r.fd = atoi(argv[++i]);
        else
            r.part = argv[i];
    }
    r.sizes = r.small ? toy : is(&r, "nccl-hosts") ? usual_hosts : usual;
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0); /* of 2.30 */
    setenv("NCCL_DEBUG", "WARN", 0); /* why it refuses */
    if (is(&r, "about")) return about();
    if (receives) return receive(&r);
    if (!is(&r, "ipc") && !is(&r, "nccl-self") && !is(&r, "nccl-pair") && !is(&r, "nccl-hosts")) {
        fprintf(
            stderr, "transports [--small] [--json FILE] [--plugin FILE] ipc|nccl-self|nccl-pair|nccl-hosts|about\n");
        return 64;
    }
    rows_begin(r.json);
    int status = send_part(&r);
    if (status && r.peer > 0) kill(r.peer, SIGKILL);
    int missed = rows_end();
    fflush(stdout);
    /* No destructors: a library that hangs in one would hold the whole check up. */
    if (r.fd >= 0) close(r.fd);
    if (r.peer > 0) waitpid(r.peer, NULL, 0);
    _exit(status ? status : missed ? 2 : 0);
}
