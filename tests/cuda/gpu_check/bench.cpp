/* bench.cpp - rates of the device kernels beside rates of the same device in the same run: copies, and cuBLAS.
 *
 *   bench [--small] [--json FILE]    exits 0; 2: a bar was missed; 77: no GPU. --small: toy sizes, for the emulator.
 *
 * A new measurement is one function and one line of main. */
#include "kvf/cuda_f8.h"
#include "kvf/cuda_gemm.h"
#include "kvf/cuda_pages.h"
#include "kvf/cuda_sample.h"
#include "rows.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <vector>

extern "C" void kvf_launched(const char *) {}

static bool small;
static cudaStream_t stream;
static double copy_rate; /* bytes read and written a second, of a plain copy */

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int e_ = (int)(call);                                                                                          \
        if (e_) {                                                                                                      \
            fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, e_);                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct memory { /* of the device, given back at the end of the scope */
    void *p = nullptr;
    explicit memory(size_t bytes) { MUST(cudaMalloc(&p, bytes)); }
    memory(const memory &) = delete;
    ~memory() { cudaFree(p); }
    template <class T> T *as() const { return (T *)p; }
};

template <class T> static void put(const memory &to, const std::vector<T> &from) {
    MUST(cudaMemcpy(to.p, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
}

/* Halves between -1/8 and 1/8, the same few megabytes again and again. */
static void fill_halves(const memory &to, size_t bytes) {
    std::vector<uint16_t> part(std::min(bytes, (size_t)4 << 20) / 2);
    uint64_t state = 1;
    for (auto &h : part) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        h = (uint16_t)((state >> 33 & 0x8000) | (0x2000 + (state >> 40 & 0x0FFF)));
    }
    for (size_t at = 0; at < bytes; at += part.size() * 2)
        MUST(
            cudaMemcpy(to.as<char>() + at, part.data(), std::min(part.size() * 2, bytes - at), cudaMemcpyHostToDevice));
}

/* Seconds of one call: the best of a few rounds, after one that does not count. */
static double seconds(const std::function<void()> &f, int calls = 10) {
    cudaEvent_t begin, end;
    double best = 1e9;
    if (small) calls = 1;
    MUST(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    MUST(cudaEventCreateWithFlags(&end, cudaEventDefault));
    f();
    for (int round = 0; round < (small ? 1 : 5); round++) {
        float ms;
        MUST(cudaEventRecord(begin, stream));
        for (int i = 0; i < calls; i++) f();
        MUST(cudaEventRecord(end, stream));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        best = std::min(best, std::max(1e-9, ms * 1e-3 / calls));
    }
    MUST(cudaGetLastError());
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return best;
}

static std::string text(const char *format, unsigned a, unsigned b) {
    char s[96];
    snprintf(s, sizeof s, format, a, b);
    return s;
}

static std::vector<uint32_t> shuffled(uint32_t count) {
    std::vector<uint32_t> v(count);
    uint64_t state = 7;
    for (uint32_t i = 0; i < count; i++) v[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::swap(v[i], v[(state >> 33) % (i + 1)]);
    }
    return v;
}

/* ---- measurements ---- */

static void plain_copy(void) {
    size_t bytes = small ? 1 << 20 : (size_t)1 << 30;
    memory from(bytes), to(bytes);
    fill_halves(from, bytes);
    double t = seconds([&] { cudaMemcpyAsync(to.p, from.p, bytes, cudaMemcpyDeviceToDevice, stream); });
    copy_rate = 2 * (double)bytes / t;
    rows_add("copy on the device, read and written", copy_rate * 1e-9, "GB/s");
}

/* Llama-3-8B's heads. */
static void decode_attention(kvf_cuda_cell cell, uint32_t batch, uint32_t context) {
    const uint32_t heads = 32, kv_heads = 8, dim = 128;
    if (small) batch = 2, context = 40;
    uint32_t blocks = (context + 15) / 16;
    size_t page_bytes = kvf_cuda_page_bytes(kv_heads, dim, cell);
    memory pages(batch * blocks * page_bytes), tables(batch * blocks * 4), contexts(batch * 4);
    memory q(batch * heads * dim * 2), out(batch * heads * dim * 2);
    memory partial(kvf_cuda_decode_partial_floats(batch, heads, dim, context) * 4);
    fill_halves(pages, batch * blocks * page_bytes);
    fill_halves(q, batch * heads * dim * 2);
    put(tables, shuffled(batch * blocks));
    put(contexts, std::vector<uint32_t>(batch, context));
    kvf_cuda_decode a = {};
    a.out = out.as<kvf_half_bits>();
    a.q = q.as<kvf_half_bits>();
    a.pages = pages.as<uint8_t>();
    a.page_bytes = page_bytes;
    a.cell = cell;
    a.block_tables = tables.as<uint32_t>();
    a.table_stride = blocks;
    a.contexts = contexts.as<uint32_t>();
    a.context_max = context;
    a.sequences = batch;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = dim;
    a.scale = 0.088f;
    a.partial = partial.as<float>();
    double t = seconds([&] { MUST(kvf_cuda_decode_attention(&a, stream)); });
    double share = (double)batch * blocks * page_bytes / t / copy_rate;
    std::string name = text(cell == KVF_CUDA_CELL_F16 ? "decode attention, f16 pages, %u x %u, of copy"
                                                      : "decode attention, 8-bit pages, %u x %u, of copy",
        batch, context);
    if (cell == KVF_CUDA_CELL_F16 && (uint64_t)batch * context >= 128 << 10)
        rows_judge(name.c_str(), share, "", 0.85, true);
    else
        rows_add(name.c_str(), share, "");
}

static void prefill_attention(kvf_cuda_cell cell, uint32_t tokens) {
    const uint32_t heads = 32, kv_heads = 8, dim = 128;
    if (small) tokens = 32;
    uint32_t blocks = (tokens + 15) / 16;
    size_t page_bytes = kvf_cuda_page_bytes(kv_heads, dim, cell), q_bytes = (size_t)tokens * heads * dim * 2;
    memory pages(blocks * page_bytes), tables(blocks * 4), q(q_bytes), out(q_bytes), runs(sizeof(kvf_cuda_run));
    fill_halves(pages, blocks * page_bytes);
    fill_halves(q, q_bytes);
    put(tables, shuffled(blocks));
    put(runs, std::vector<kvf_cuda_run>{{0, tokens, 0, 0}});
    kvf_cuda_prefill a = {};
    a.out = out.as<kvf_half_bits>();
    a.q = q.as<kvf_half_bits>();
    a.pages = pages.as<uint8_t>();
    a.page_bytes = page_bytes;
    a.cell = cell;
    a.block_tables = tables.as<uint32_t>();
    a.table_stride = blocks;
    a.runs = runs.as<kvf_cuda_run>();
    a.runs_count = 1;
    a.tokens_max = tokens;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = dim;
    a.scale = 0.088f;
    double t = seconds([&] { MUST(kvf_cuda_prefill_attention(&a, stream)); });
    rows_add(text(cell == KVF_CUDA_CELL_F16 ? "prefill attention, f16 pages, %u tokens"
                                            : "prefill attention, 8-bit pages, %u tokens",
                 tokens, 0)
                 .c_str(),
        2.0 * tokens * (tokens + 1) * heads * dim / t * 1e-12, "TFLOP/s");
}

static void pack_and_unpack(void) {
    const uint32_t layers = 32, blocks = small ? 2 : 256;
    const uint32_t count = layers * blocks; /* of 64 KiB: 512 MiB */
    size_t page_bytes = small ? 4096 : 65536;
    memory pool(count * page_bytes), slot(count * page_bytes), list(count * sizeof(kvf_cuda_page)), crc(count * 4);
    std::vector<kvf_cuda_page> pages;
    for (uint32_t at : shuffled(count)) pages.push_back({at % blocks, at / blocks, at});
    put(list, pages);
    fill_halves(pool, count * page_bytes);
    for (int with_crc = 0; with_crc < 2; with_crc++) {
        for (uint32_t some : {count, small ? 4u : 256u}) { /* the whole, and one slot of 16 MiB */
            kvf_cuda_pages a = {pool.as<uint8_t>(), blocks * page_bytes, page_bytes, slot.as<uint8_t>(),
                list.as<kvf_cuda_page>(), some, with_crc ? crc.as<uint32_t>() : NULL};
            for (int unpack = 0; unpack < 2; unpack++) {
                double t = seconds([&] { (unpack ? kvf_cuda_pages_unpack : kvf_cuda_pages_pack)(&a, stream); });
                std::string name = std::string(unpack ? "unpack" : "pack") + (with_crc ? " with CRC" : "") +
                                   text(", %u pages of %u bytes, of copy", some, (unsigned)page_bytes);
                double share = 2.0 * some * page_bytes / t / copy_rate;
                if (some == count)
                    rows_judge(name.c_str(), share, "", with_crc ? 0.4 : 0.8, true);
                else
                    rows_add(name.c_str(), share, "");
            }
        }
    }
}

/* ---- matrix products ---- */

typedef cublasStatus_t (*gemm_ex)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
    const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *, cudaDataType, int,
    cublasComputeType_t, cublasGemmAlgo_t);

struct bare { /* cuBLAS without us, if it is there */
    void *library = nullptr;
    cublasHandle_t handle = nullptr;
    gemm_ex run = nullptr;
};

static bare open_bare(void) {
    bare b;
    std::string name = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
    b.library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!b.library) return b;
    auto create = (cublasStatus_t(*)(cublasHandle_t *))dlsym(b.library, "cublasCreate_v2");
    auto on = (cublasStatus_t(*)(cublasHandle_t, cudaStream_t))dlsym(b.library, "cublasSetStream_v2");
    b.run = (gemm_ex)dlsym(b.library, "cublasGemmEx");
    if (!create || !on || !b.run || create(&b.handle) || on(b.handle, stream)) b.run = nullptr;
    return b;
}

static void product(kvf_cuda_gemm *g, const bare &b, uint32_t rows, uint32_t outputs, uint32_t inputs) {
    memory w((size_t)outputs * inputs * 2), x((size_t)rows * inputs * 2), y((size_t)rows * outputs * 2);
    fill_halves(w, (size_t)outputs * inputs * 2);
    fill_halves(x, (size_t)rows * inputs * 2);
    kvf_cuda_product p = {};
    p.w = w.as<kvf_half_bits>();
    p.x = x.as<kvf_half_bits>();
    p.y = y.p;
    p.rows = rows;
    p.outputs = outputs;
    p.inputs = inputs;
    double ours = seconds([&] { MUST(kvf_cuda_gemm_run(g, &p, stream)); });
    std::string name = text("product %u rows, %u outputs", rows, outputs) + text(" of %u", inputs, 0);
    if (rows < 256) {
        rows_add((name + ", weights read, of copy").c_str(), (double)outputs * inputs * 2 / ours / copy_rate, "");
        return;
    }
    rows_add(name.c_str(), 2.0 * rows * outputs * inputs / ours * 1e-12, "TFLOP/s");
    if (!b.run) return rows_skip((name + ", of cuBLAS").c_str(), "no libcublas");
    const float one = 1, zero = 0;
    double theirs = seconds([&] {
        MUST(b.run(b.handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)outputs, (int)rows, (int)inputs, &one, w.p, CUDA_R_16F,
            (int)inputs, x.p, CUDA_R_16F, (int)inputs, &zero, y.p, CUDA_R_16F, (int)outputs, CUBLAS_COMPUTE_32F,
            CUBLAS_GEMM_DEFAULT));
    });
    rows_judge((name + ", of cuBLAS").c_str(), theirs / ours, "", 0.95, true);
}

static void products(void) {
    const size_t room = small ? 1 << 20 : (size_t)64 << 20;
    memory workspace(room);
    kvf_cuda_gemm *g = nullptr;
    char why[256] = "";
    if (kvf_cuda_gemm_create(&g, workspace.p, room, why, sizeof why) != 0) return rows_skip("products", why);
    bare b = open_bare();
    static const uint32_t shapes[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
    for (auto &s : shapes) product(g, b, small ? 256 : 4096, small ? 64 : s[0], small ? 64 : s[1]);
    for (uint32_t rows : {1, 16, 64}) product(g, b, rows, small ? 64 : 28672, small ? 64 : 4096);
    kvf_cuda_gemm_destroy(g);
}

/* Weights as codes: half the bytes of f16 for few rows, and what unpacking costs where there are many. */
static void products8(void) {
    const uint32_t outputs = small ? 64 : 28672, inputs = small ? 64 : 4096, rows_max = 64;
    const size_t weights = (size_t)outputs * inputs;
    memory from(weights * 2), codes(weights), scales(outputs * 4), x(rows_max * inputs * 2), y(rows_max * outputs * 2);
    memory partial(kvf_cuda_f8_partial_floats(outputs, inputs) * 4 + 4);
    fill_halves(from, weights * 2);
    fill_halves(x, rows_max * inputs * 2);
    kvf_cuda_f8_pack(codes.as<uint8_t>(), scales.as<float>(), from.as<kvf_half_bits>(), outputs, inputs, stream);
    kvf_cuda_f8_product a = {};
    a.w = codes.as<uint8_t>();
    a.scales = scales.as<float>();
    a.x = x.as<kvf_half_bits>();
    a.y = y.as<kvf_half_bits>();
    a.outputs = outputs;
    a.inputs = inputs;
    a.partial = partial.as<float>();
    for (uint32_t rows : {1, 16, 64}) {
        a.rows = rows;
        double t = seconds([&] { MUST(kvf_cuda_f8_multiply(&a, stream)); });
        std::string name = text("fp8 product %u rows, %u outputs", rows, outputs) + text(" of %u", inputs, 0);
        rows_add((name + ", codes read, of copy").c_str(), (double)weights / t / copy_rate, "");
    }
    double t = seconds([&] {
        kvf_cuda_f8_unpack(from.as<kvf_half_bits>(), codes.as<uint8_t>(), scales.as<float>(), outputs, inputs, stream);
    });
    rows_add("fp8 weights unpacked, of copy", (double)weights * 3 / t / copy_rate, "");
}

/* ---- sampling ---- */

static void sampling(const char *kind, float temperature, float top_p, uint32_t top_k) {
    const uint32_t vocab = small ? 700 : 128256, rows = small ? 2 : 64;
    memory logits((size_t)rows * vocab * 4), out(rows * sizeof(kvf_cuda_sampled)),
        list(rows * sizeof(kvf_cuda_sampling));
    memory scratch(kvf_cuda_sample_scratch_bytes(vocab, rows));
    std::vector<float> z((size_t)rows * vocab);
    std::vector<kvf_cuda_sampling> asked(rows);
    uint64_t state = 3;
    for (auto &v : z) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        v = (float)(int64_t)state * 1e-18f;
    }
    put(logits, z);
    for (uint32_t i = 0; i < rows; i++) {
        asked[i].random = state * (i + 1);
        asked[i].temperature = temperature;
        asked[i].top_p = top_p;
        asked[i].top_k = top_k;
        asked[i].repetition_penalty = 1;
        asked[i].row = i;
        asked[i].given = KVF_CUDA_DRAW;
    }
    put(list, asked);
    kvf_cuda_sample a = {logits.as<float>(), vocab, vocab, list.as<kvf_cuda_sampling>(), rows, NULL, scratch.p,
        out.as<kvf_cuda_sampled>()};
    double t = seconds([&] { MUST(kvf_cuda_sample_rows(&a, stream)); });
    rows_add((text("sampling, %u rows of %u, ", rows, vocab) + kind).c_str(), t * 1e6, "us");
}

int main(int argc, char **argv) {
    const char *json = nullptr;
    int count = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) small = true;
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[++i];
    }
    int e = (int)cudaGetDeviceCount(&count);
    if (e || count == 0) {
        printf("no GPU here: error %d\n", e);
        return 77;
    }
    MUST(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    rows_begin(json);
    plain_copy();
    /* What has a bar first: time may run out. */
    decode_attention(KVF_CUDA_CELL_F16, 32, 4096);
    decode_attention(KVF_CUDA_CELL_F16, 8, 16384);
    decode_attention(KVF_CUDA_CELL_F16, 1, 131072);
    pack_and_unpack();
    products();
    decode_attention(KVF_CUDA_CELL_F16, 1, 4096);
    decode_attention(KVF_CUDA_CELL_F8, 32, 4096);
    prefill_attention(KVF_CUDA_CELL_F16, 4096);
    prefill_attention(KVF_CUDA_CELL_F8, 4096);
    products8();
    sampling("greedy", 0, 1, 0);
    sampling("drawn", 1, 1, 0);
    sampling("top-k 40", 1, 1, 40);
    sampling("top-p 0.9", 1, 0.9f, 0);
    MUST(cudaStreamSynchronize(stream));
    return rows_end() ? 2 : 0;
}
