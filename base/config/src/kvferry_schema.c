/* kvferry_schema.c - every key of the kvferry program. One row each: name, type, default, range, flag, help. Keys of
 * one section stand together. A key exists where no heuristic could find its value. */
#include "kvf/kvferry_config.h"

#define KEY(name, kind, first, low, high, cli, text)                                                                   \
    { .key = name, .type = KVF_CONFIG_##kind, .initial = first, .min = low, .max = high, .flag = cli, .help = text }
#define CHOICE(name, kind, first, words, cli, text)                                                                    \
    { .key = name, .type = KVF_CONFIG_##kind, .initial = first, .choices = words, .flag = cli, .help = text }
#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define MS KVF_NS_PER_MS
#define S KVF_NS_PER_S

static const kvf_config_key node_fields[] = {
    {.key = "id", .type = KVF_CONFIG_STRING, .help = "the node's cluster.node_id"},
    {.key = "role", .type = KVF_CONFIG_ENUM, .choices = "prefill decode", .help = "prefill or decode"},
    {.key = "address", .type = KVF_CONFIG_ADDRESS, .help = "its node.control address"},
};

static const kvf_config_key keys[] = {
    KEY("cluster.node_id", STRING, NULL, 0, 0, "node-id",
        "name of this process in the cluster; of its role and host when not set"),
    KEY("cluster.insecure_networks", BOOL, "false", 0, 0, "insecure-networks",
        "allow connections beyond loopback and Unix sockets without encryption"),
    KEY("cluster.unequal_numerics", BOOL, "false", 0, 0, "unequal-numerics",
        "let nodes whose arithmetic differs (a GPU's and a CPU's) hand pages to each other"),

    KEY("model.path", STRING, NULL, 0, 0, "model", "model file (GGUF)"),
    KEY("model.id", STRING, NULL, 0, 0, "model-id", "name that clients use; the file's own name when not set"),

    KEY("engine.threads", U32, "0", 0, 1024, "threads",
        "compute threads of a node; 0: all cores that this process may use"),
    KEY("engine.cores", STRING, NULL, 0, 0, "cores",
        "cores that are this node's own, as 0-3,8; serve divides those of the host where engine.threads is 0"),
    KEY("engine.cores_shared", STRING, NULL, 0, 0, "cores-shared",
        "file in which the nodes of a host say which cores are busy: idle ones are lent; serve makes it"),
    CHOICE("engine.precision", ENUM, "fast", "fast exact", "precision",
        "arithmetic: 8-bit activations where the file is quantised, or f32"),
    CHOICE("engine.kv_type", ENUM, "f16", "f16 f32 q8 fp8", "kv-type",
        "number format of the KV cache; q8 (a scale for 32 values), f32: CPU only; fp8 (e4m3, one a head and "
        "position): devices only"),
    CHOICE("engine.weights", ENUM, "auto", "auto f16 bf16 fp8", "weights",
        "what a device keeps matrices in; auto: bf16 where the file has it, else f16; fp8: those of layers as e4m3, "
        "scaled by output (the CPU: as in the file)"),
    CHOICE("engine.kernels", ENUM, "auto",
        "auto ref avx2 avx-vnni avx512 avx512-vnni avx512-bf16 neon neon-dotprod neon-i8mm neon-bf16", "kernels",
        "kernel family; auto: the best that this machine has"),
    CHOICE("engine.backend", ENUM, "cpu", "cpu cuda auto", "backend",
        "what computes: the processor, a CUDA device, or auto: a device where one can be used"),
    KEY("engine.cache", STRING, "auto", 0, 0, "cache",
        "folder of packed weights, which the nodes of a host share; auto: in the user's cache folder; off: none"),
    KEY("engine.devices", STRINGS, "0", 0, 0, "devices",
        "numbers of the CUDA devices of this host; a node takes one, the nodes of serve take turns"),
    KEY("engine.device_memory_percent", U32S, "90", 0, 98, "device-memory-percent",
        "share of a device's memory for KV blocks, of what the weights leave free, divided between the nodes that "
        "serve "
        "puts on it: one for all devices or, as [90, 50], one for each of engine.devices; 0: kv.memory"),
    KEY("engine.plugin", STRING, NULL, 0, 0, "plugin",
        "device code (libkvferry-cuda.so); beside the program when not set"),
    KEY("engine.context", U32, "0", 0, 1u << 24, "context", "longest sequence in tokens; 0: what the model says"),

    KEY("kv.memory", SIZE, "512MiB", MIB, 1ull << 50, "kv-memory", "memory of one node's KV blocks"),

    KEY("router.listen", ADDRESS, "127.0.0.1:7070", 0, 0, "listen", "gRPC for clients; port 0: any free one"),
    KEY("router.admin", ADDRESS, "127.0.0.1:7071", 0, 0, "admin", "gRPC for operators"),
    KEY("router.tls_cert", STRING, NULL, 0, 0, "router-tls-cert",
        "certificate that clients and operators are shown (PEM); tls.cert when not set"),
    KEY("router.tls_key", STRING, NULL, 0, 0, "router-tls-key", "its key (PEM, no passphrase)"),
    KEY("router.tls_client_ca", STRING, NULL, 0, 0, "router-tls-client-ca",
        "authority whose certificate clients must show (PEM); none is asked for when not set"),
    KEY("router.queue_max_requests", U32, "256", 1, 1u << 20, "queue-max-requests",
        "requests that may wait; more are refused"),
    KEY("router.queue_max_tokens", U64, "1000000", 1, 1ull << 40, "queue-max-tokens",
        "prompt tokens that may wait; more are refused"),
    KEY("router.ready_grace", DURATION, "5s", 0, 600 * S, "ready-grace",
        "how long requests wait when no node is ready before they are refused"),
    CHOICE("router.disaggregate", ENUM, "auto", "auto always never", "disaggregate",
        "prefill and decode on different nodes"),
    KEY("router.disaggregate_min_tokens", U32, "256", 0, 1u << 24, "disaggregate-min-tokens",
        "auto ships when at least this many prompt tokens are not cached on the decode node"),
    KEY("router.prefill_fallback", BOOL, "true", 0, 0, "prefill-fallback",
        "let decode nodes compute prompts when no prefill node is ready"),
    KEY("router.stream_buffer", SIZE, "256KiB", 4 * KIB, GIB, "stream-buffer",
        "text kept for a client that reads slowly before its request ends"),
    KEY("router.message_max", SIZE, "4MiB", 64 * KIB, GIB, NULL, "longest message from a client"),
    KEY("router.stop_max_count", U32, "16", 0, 1024, NULL, "stop strings of one request"),
    KEY("router.stop_max_bytes", U32, "256", 1, 1u << 16, NULL, "bytes of one stop string"),
    KEY("router.attempts_max", U32, "3", 1, 100, NULL, "attempts without a new token before a request fails"),
    KEY("router.transfer_stall", DURATION, "5s", 50 * MS, 600 * S, "transfer-stall",
        "how long a hand-off may go on after the first token before its link counts as failed"),
    KEY("router.node_timeout", DURATION, "1500ms", 50 * MS, 600 * S, "node-timeout",
        "a node that has said nothing for so long is asked anew"),
    KEY("router.node_grace", DURATION, "2s", 50 * MS, 600 * S, "node-grace",
        "a node without a session for so long, or silent, is lost: its requests go on elsewhere"),
    KEY("router.drain_timeout", DURATION, "60s", 0, 3600 * S, "drain-timeout",
        "how long running requests may go on after SIGTERM"),
    {.key = "router.nodes",
        .type = KVF_CONFIG_MAPS,
        .max = 1024,
        .fields = node_fields,
        .field_count = KVF_COUNT_OF(node_fields),
        .help = "the nodes of the cluster"},

    KEY("node.control", ADDRESS, "127.0.0.1:0", 0, 0, "control", "gRPC of routers to this node"),
    KEY("node.transfer", ADDRESS, "127.0.0.1:0", 0, 0, "transfer", "page connections of other nodes to this one"),
    KEY("node.advertise", STRING, NULL, 0, 0, "advertise",
        "host that other nodes are told for page connections, where it is not the one of node.transfer"),
    CHOICE("node.transports", STRINGS, "cuda_ipc,nccl,shm,tcp", "cuda_ipc nccl shm tcp", "transports",
        "ways to move pages; cuda_ipc and nccl between devices only, over a link of shm or tcp"),
    KEY("node.heartbeat", DURATION, "200ms", 10 * MS, 60 * S, "node-heartbeat",
        "interval of a node's reports to its routers"),
    KEY("node.stall_limit", DURATION, "20s", 100 * MS, 3600 * S, "stall-limit",
        "a node whose core or engine thread stands still for so long, with work at hand, is NOT_SERVING"),
    KEY("node.drain_timeout", DURATION, "30s", 0, 3600 * S, "node-drain-timeout",
        "how long what runs on a node may go on after SIGTERM before it is handed over"),
    KEY("node.router_grace", DURATION, "10s", 100 * MS, 600 * S, "router-grace",
        "how long requests of a lost router live on"),

    KEY("prefill.chunk_tokens", U32, NULL, 16, 1u << 16, "prefill-chunk-tokens",
        "tokens of one prompt computed at a time; a multiple of 16; when not set 256, on a device 2048"),
    KEY("prefill.queue_max_requests", U32, "64", 1, 1u << 20, NULL,
        "prompts that may wait on the node; more are refused"),

    KEY("decode.sequences_max", U32, "64", 1, 1u << 16, "decode-sequences-max", "sequences that decode together"),
    KEY("decode.expected_output", U32, "256", 1, 1u << 24, "decode-expected-output",
        "tokens booked for an answer of unknown length, until answers were seen"),
    KEY("decode.queue_max_requests", U32, "64", 0, 1u << 20, NULL, "requests that may wait for room on the node"),
    KEY("decode.queue_timeout", DURATION, "30s", 0, 3600 * S, NULL, "how long a request may wait for room on the node"),
    KEY("decode.prefill_chunk_tokens", U32, NULL, 16, 1u << 16, NULL,
        "tokens of a prompt computed between two decode steps, prefill.chunk_tokens at most; when not set 32, on a "
        "device 512"),

    KEY("transfer.grant_ttl", DURATION, "10s", 100 * MS, 600 * S, NULL, "life of a grant that is not renewed"),
    KEY("transfer.hold_ttl", DURATION, "30s", 100 * MS, 3600 * S, NULL,
        "how long a prefill node keeps pages of which it has no answer"),
    KEY("transfer.heartbeat", DURATION, "500ms", 10 * MS, 60 * S, NULL,
        "interval of signs of life on a page connection"),
    KEY("transfer.peer_timeout", DURATION, "3s", 50 * MS, 600 * S, NULL, "silence after which a peer is lost"),
    KEY("transfer.communicator_idle", DURATION, "5m", S, 30 * 24 * 3600 * S, NULL,
        "after which an NCCL communicator that carries nothing is closed; the next hand-off makes another"),
    KEY("transfer.communicators_max", U32, "64", 1, 1000, NULL,
        "NCCL communicators of a node; beyond it the longest idle is closed, else pages go over the stream"),

    CHOICE("log.level", ENUM, "info", "error warn info debug", "log-level", "what is logged to stderr"),

    KEY("tls.cert", STRING, NULL, 0, 0, "tls-cert",
        "certificate of this process (PEM, with its chain), for its node name; control and page connections are "
        "encrypted then"),
    KEY("tls.key", STRING, NULL, 0, 0, "tls-key", "its key (PEM, no passphrase)"),
    KEY("tls.ca", STRING, NULL, 0, 0, "tls-ca", "authority that signs the cluster's certificates (PEM)"),
};

static const kvf_config_schema schema = {
    .title = "kvferry configuration", .env_prefix = "KVFERRY_", .keys = keys, .count = KVF_COUNT_OF(keys)};

const kvf_config_schema *kvf_kvferry_schema(void) { return &schema; }
