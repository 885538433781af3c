/* The file reader: values, hostile files (MF-01), cut files (MF-02), damaged headers, the hash of the weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include "gguf_writer.h"
#include "hostile.h"
#include "kvf/gguf.h"
#include "kvf/model_spec.h"

static const char *const tiny_names[] = {"llama", "llama-mha", "llama3-rope", "mistral-wide-head", "qwen2", "qwen3"};

static kvf_gguf *open_good(writer *w) {
    kvf_error err = {0};
    kvf_gguf *g = NULL;
    writer_finish(w);
    if (kvf_gguf_open_memory(w->file, w->file_bytes, "test.gguf", &g, &err)) fail_msg("%s", err.message);
    return g;
}

static kvf_status open_and_load(const void *data, size_t len_bytes, kvf_error *err) {
    kvf_gguf *g;
    kvf_status status = kvf_gguf_open_memory(data, len_bytes, "test.gguf", &g, err);
    if (status) return status;
    kvf_model_spec spec;
    status = kvf_model_spec_load(g, &spec, err);
    if (!status) kvf_model_spec_free(&spec);
    kvf_gguf_close(g);
    return status;
}

static uint8_t *read_tiny(const char *name, size_t *len_bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/tiny/%s.gguf", KVF_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing", path);
    fseek(f, 0, SEEK_END);
    *len_bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = aligned_alloc(64, (size_t)kvf_align_up(*len_bytes, 64));
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *len_bytes, f), *len_bytes);
    fclose(f);
    return data;
}

/* --- values --- */

static void integers_convert_when_they_fit(void **state) {
    writer *w = writer_new();
    writer_key(w, "i8", 1);
    writer_raw(w, "\xff", 1);
    writer_key(w, "u8", 0);
    writer_raw(w, "\xff", 1);
    writer_key(w, "i16", 3);
    writer_raw(w, "\xff\x7f", 2);
    writer_key(w, "u16", 2);
    writer_raw(w, "\xff\xff", 2);
    writer_key(w, "i64", 11);
    writer_raw_u64(w, 1ull << 63);
    writer_u64(w, "u64", UINT64_MAX);
    writer_u32(w, "u32", 16777217);
    writer_f32(w, "f32", 1.5f);
    writer_key(w, "f64", 12);
    writer_raw_u64(w, 0x7fe0000000000000ull); /* 2^1023 */
    writer_key(w, "yes", 7);
    writer_raw(w, "\1", 1);
    writer_string(w, "text", "abc");
    kvf_gguf *g = open_good(w);
    uint32_t u32 = 9;
    uint64_t u64 = 9;
    float f = 9;
    bool yes = false;
    kvf_span text;
    assert_false(kvf_gguf_get_u32(g, "i8", &u32));
    assert_true(kvf_gguf_get_u32(g, "u8", &u32) && u32 == 255);
    assert_true(kvf_gguf_get_u32(g, "i16", &u32) && u32 == 32767);
    assert_true(kvf_gguf_get_u32(g, "u16", &u32) && u32 == 65535);
    assert_false(kvf_gguf_get_u64(g, "i64", &u64));
    assert_true(kvf_gguf_get_u64(g, "u64", &u64) && u64 == UINT64_MAX);
    assert_false(kvf_gguf_get_u32(g, "u64", &u32));
    assert_true(kvf_gguf_get_f32(g, "i8", &f) && f == -1);
    assert_false(kvf_gguf_get_f32(g, "u32", &f)); /* 2^24 + 1 is no float */
    assert_true(kvf_gguf_get_f32(g, "f32", &f) && f == 1.5f);
    assert_false(kvf_gguf_get_f32(g, "f64", &f));
    assert_false(kvf_gguf_get_u32(g, "f32", &u32));
    assert_false(kvf_gguf_get_u32(g, "yes", &u32));
    assert_true(kvf_gguf_get_bool(g, "yes", &yes) && yes);
    assert_false(kvf_gguf_get_bool(g, "u8", &yes));
    assert_true(kvf_gguf_get_string(g, "text", &text) && text.len_bytes == 3 && memcmp(text.data, "abc", 3) == 0);
    assert_false(kvf_gguf_get_string(g, "u8", &text));
    assert_true(kvf_gguf_has(g, "f64") && !kvf_gguf_has(g, "f6") && !kvf_gguf_has(g, "f640") && !kvf_gguf_has(g, ""));
    assert_int_equal(u32, 65535); /* a refused read leaves the output alone */
    kvf_gguf_close(g);
    writer_free(w);
}

static void arrays_give_their_elements_and_nothing_beyond(void **state) {
    writer *w = writer_new();
    writer_strings(w, "words", 1000, "w");
    writer_strings(w, "none", 0, "w");
    writer_key(w, "numbers", 9);
    writer_raw_u32(w, 5);
    writer_raw_u64(w, 2);
    writer_raw(w, "\xfe\xff\xff\xff\7\0\0\0", 8);
    writer_key(w, "scores", 9);
    writer_raw_u32(w, 6);
    writer_raw_u64(w, 1);
    writer_raw(w, "\0\0\x80\xbf", 4);
    kvf_gguf *g = open_good(w);
    kvf_gguf_array a;
    kvf_span text;
    int64_t i;
    float f;
    assert_true(kvf_gguf_get_array(g, "words", &a) && a.count == 1000);
    for (uint32_t k = 1000; k-- > 0;) {
        char want[16];
        snprintf(want, sizeof want, "w%u", k);
        assert_true(kvf_gguf_array_string(&a, k, &text));
        assert_int_equal(text.len_bytes, strlen(want));
        assert_memory_equal(text.data, want, text.len_bytes);
    }
    assert_false(kvf_gguf_array_string(&a, 1000, &text) || kvf_gguf_array_string(&a, UINT64_MAX, &text));
    assert_false(kvf_gguf_array_i64(&a, 0, &i) || kvf_gguf_array_f32(&a, 0, &f));
    assert_true(kvf_gguf_get_array(g, "none", &a) && a.count == 0 && !kvf_gguf_array_string(&a, 0, &text));
    assert_true(kvf_gguf_get_array(g, "numbers", &a));
    assert_true(kvf_gguf_array_i64(&a, 0, &i) && i == -2 && kvf_gguf_array_i64(&a, 1, &i) && i == 7);
    assert_false(kvf_gguf_array_i64(&a, 2, &i) || kvf_gguf_array_string(&a, 0, &text));
    assert_true(kvf_gguf_get_array(g, "scores", &a) && kvf_gguf_array_f32(&a, 0, &f) && f == -1);
    assert_false(kvf_gguf_array_i64(&a, 0, &i));
    assert_false(kvf_gguf_get_array(g, "absent", &a));
    kvf_gguf_close(g);
    writer_free(w);
}

static void tensors_are_found_by_name_and_lie_in_the_file(void **state) {
    for (size_t n = 0; n < KVF_COUNT_OF(tiny_names); n++) {
        size_t len_bytes;
        uint8_t *data = read_tiny(tiny_names[n], &len_bytes);
        kvf_gguf *g;
        assert_int_equal(kvf_gguf_open_memory(data, len_bytes, tiny_names[n], &g, NULL), KVF_OK);
        assert_int_equal(kvf_gguf_version(g), 3);
        assert_string_equal(kvf_gguf_path(g), tiny_names[n]);
        assert_true(kvf_gguf_tensor_count(g) >= 29);
        for (size_t i = 0; i < kvf_gguf_tensor_count(g); i++) {
            const kvf_gguf_tensor *t = kvf_gguf_tensor_at(g, i);
            assert_ptr_equal(kvf_gguf_tensor_find(g, t->name), t);
            assert_true((const uint8_t *)t->data >= data && (uintptr_t)t->data % 32 == 0);
            assert_true((const uint8_t *)t->data + t->bytes <= data + len_bytes);
        }
        assert_null(kvf_gguf_tensor_find(g, "blk.0.attn"));
        assert_null(kvf_gguf_tensor_find(g, ""));
        kvf_gguf_close(g);
        free(data);
    }
}

static void unaligned_memory_is_read_the_same(void **state) {
    size_t len_bytes;
    uint8_t *data = read_tiny("llama3-rope", &len_bytes), *moved = malloc(len_bytes + 64);
    assert_non_null(moved);
    uint8_t *odd = (uint8_t *)(uintptr_t)kvf_align_up((uintptr_t)moved, 32) + 1;
    memcpy(odd, data, len_bytes);
    kvf_gguf *a, *b;
    assert_int_equal(kvf_gguf_open_memory(data, len_bytes, "a", &a, NULL), KVF_OK);
    assert_int_equal(kvf_gguf_open_memory(odd, len_bytes, "b", &b, NULL), KVF_OK);
    assert_int_equal((uintptr_t)kvf_gguf_tensor_at(b, 3)->data % 32, 0);
    uint64_t x[2], y[2];
    kvf_gguf_weights_hash(a, x);
    kvf_gguf_weights_hash(b, y);
    assert_memory_equal(x, y, sizeof x);
    kvf_gguf_close(a);
    kvf_gguf_close(b);
    free(moved);
    free(data);
}

/* --- refusals --- */

static void hostile_files_are_refused_by_name(void **state) {
    for (size_t i = 0; i < hostile_cases_count; i++) {
        const hostile_case *c = &hostile_cases[i];
        writer *w = writer_new();
        c->make(w);
        writer_finish(w);
        kvf_error err = {0};
        kvf_status status = open_and_load(w->file, w->file_bytes, &err);
        if (!c->word && status) fail_msg("%s: refused: %s", c->name, err.message);
        if (c->word && !status) fail_msg("%s: accepted", c->name);
        if (c->word && (status != err.status || !strstr(err.message, c->word) || !strstr(err.message, "test.gguf") ||
                           strchr(err.message, '\n')))
            fail_msg("%s: status %s, message '%s' lacks '%s'", c->name, kvf_status_name(status), err.message, c->word);
        writer_free(w);
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    assert_true(usage.ru_maxrss < 64 * 1024); /* KiB, over all the files above */
#endif
}

static void a_file_cut_anywhere_is_refused(void **state) {
    size_t len_bytes;
    uint8_t *data = read_tiny("llama3-rope", &len_bytes);
    kvf_gguf *g;
    assert_int_equal(kvf_gguf_open_memory(data, len_bytes, "whole", &g, NULL), KVF_OK);
    size_t data_at = (size_t)((const uint8_t *)kvf_gguf_tensor_at(g, 0)->data - data), last = 0;
    for (size_t i = 0; i < kvf_gguf_tensor_count(g); i++) {
        const kvf_gguf_tensor *t = kvf_gguf_tensor_at(g, i);
        size_t end = (size_t)((const uint8_t *)t->data - data) + t->bytes;
        if (end > last) last = end;
    }
    size_t half = kvf_gguf_tensor_at(g, kvf_gguf_tensor_count(g) - 1)->bytes / 2;
    kvf_gguf_close(g);
    assert_int_equal(last, len_bytes);
    kvf_error err;
    for (size_t cut = 0; cut <= data_at; cut++) {
        err = (kvf_error){0};
        if (open_and_load(data, cut, &err) >= 0) fail_msg("accepted when cut to %zu bytes", cut);
        if (!strstr(err.message, "expected") && !strstr(err.message, "count is"))
            fail_msg("cut to %zu: %s", cut, err.message);
    }
    assert_int_equal(open_and_load(data, len_bytes - 1, &err), KVF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "tensor 'blk.2.attn_k.weight': expected 4096 bytes"));
    assert_non_null(strstr(err.message, "found 4095"));
    assert_int_equal(open_and_load(data, len_bytes - half, &err), KVF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "expected 4096 bytes"));
    assert_non_null(strstr(err.message, "found 2048"));
    free(data);
}

/* Each byte before the tensor data set to four other values: refused or accepted, but never a fault (sanitizers watch).
 */
static void damaged_headers_do_no_harm(void **state) {
    writer *w = writer_new();
    writer_shape s = {
        .arch = "llama", .layers = 1, .hidden = 8, .heads = 2, .kv_heads = 1, .head_dim = 4, .ffn = 8, .vocab = 4};
    writer_strings(w, "tokenizer.ggml.tokens", 4, "t");
    writer_model(w, &s);
    writer_finish(w);
    static const uint8_t values[] = {0x00, 0x01, 0x80, 0xff};
    size_t refused = 0, header = w->file_bytes - (size_t)w->data_bytes;
    for (size_t i = 0; i < header; i++) {
        uint8_t saved = w->file[i];
        for (size_t v = 0; v < sizeof values; v++) {
            w->file[i] = values[v];
            refused += open_and_load(w->file, w->file_bytes, NULL) < 0;
        }
        w->file[i] = saved;
    }
    assert_true(refused > header); /* most damage is noticed */
    assert_int_equal(open_and_load(w->file, w->file_bytes, NULL), KVF_OK);
    writer_free(w);
}

static void paths_that_are_no_model_are_refused(void **state) {
    kvf_gguf *g;
    kvf_error err;
    assert_int_equal(kvf_gguf_open("/nonexistent/model.gguf", &g, &err), KVF_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent/model.gguf"));
    assert_int_equal(kvf_gguf_open(KVF_SOURCE_DIR "/tests", &g, &err), KVF_ERR_INVALID);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(kvf_gguf_open(KVF_SOURCE_DIR "/CMakeLists.txt", &g, &err), KVF_ERR_FORMAT);
    assert_non_null(strstr(err.message, "not a GGUF file"));
    assert_int_equal(kvf_gguf_open("/dev/null", &g, &err), KVF_ERR_INVALID);
    assert_int_equal(kvf_gguf_open_memory("", 0, "nothing", &g, &err), KVF_ERR_FORMAT);
}

static void a_mapped_file_equals_the_same_bytes_in_memory(void **state) {
    size_t len_bytes;
    uint8_t *data = read_tiny("qwen3", &len_bytes);
    kvf_gguf *a, *b;
    assert_int_equal(kvf_gguf_open_memory(data, len_bytes, "memory", &a, NULL), KVF_OK);
    assert_int_equal(kvf_gguf_open(KVF_SOURCE_DIR "/tests/golden/tiny/qwen3.gguf", &b, NULL), KVF_OK);
    uint64_t x[2], y[2];
    kvf_gguf_weights_hash(a, x);
    kvf_gguf_weights_hash(b, y);
    assert_memory_equal(x, y, sizeof x);
    kvf_gguf_close(a);
    kvf_gguf_close(b);
    free(data);
}

/* --- failing allocations: the linker sends the module's calls here --- */

static long allocations_until_failure = -1; /* -1: none fails */
static bool fails_now(void) { return allocations_until_failure >= 0 && allocations_until_failure-- == 0; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
char *__wrap_strdup(const char *text);
void *__wrap_malloc(size_t bytes) { return fails_now() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails_now() ? NULL : __real_calloc(count, bytes); }
void *__wrap_aligned_alloc(size_t align, size_t bytes) {
    return fails_now() ? NULL : __real_aligned_alloc(align, bytes);
}
char *__wrap_strdup(const char *text) { return fails_now() ? NULL : __real_strdup(text); }

static void each_failing_allocation_is_reported_and_leaves_nothing(void **state) {
    size_t len_bytes;
    uint8_t *data = read_tiny("llama3-rope", &len_bytes), *odd = malloc(len_bytes + 1);
    assert_non_null(odd);
    memcpy(odd + 1, data, len_bytes); /* not aligned: the copy is one of the allocations */
    long n = 0;
    for (;; n++) {
        kvf_error err = {0};
        allocations_until_failure = n;
        kvf_status status = open_and_load(odd + 1, len_bytes, &err);
        bool reached = allocations_until_failure < 0;
        allocations_until_failure = -1;
        if (!reached) {
            assert_int_equal(status, KVF_OK);
            break;
        }
        assert_int_equal(status, KVF_ERR_NO_MEMORY);
        assert_non_null(strstr(err.message, "out of memory"));
    }
    assert_true(n > 10);
    free(odd);
    free(data);
}

/* --- the hash --- */

static void hash_of(writer *w, uint64_t hash[2]) {
    kvf_gguf *g = open_good(w);
    kvf_gguf_weights_hash(g, hash);
    kvf_gguf_close(g);
    writer_free(w);
}

static void the_hash_names_the_weights_and_nothing_else(void **state) {
    static const writer_shape s = {
        .arch = "llama", .layers = 1, .hidden = 8, .heads = 2, .kv_heads = 1, .head_dim = 4, .ffn = 8, .vocab = 4};
    uint64_t base[2], other[2];
    writer *w = writer_new();
    writer_model(w, &s);
    hash_of(w, base);

    w = writer_new(); /* other keys, other order of keys and tensors */
    writer_string(w, "general.url", "x");
    writer_strings(w, "tokenizer.ggml.tokens", 4, "t");
    writer_u32(w, "llama.block_count", 1);
    writer_skip(w, "llama.block_count");
    writer_tensor_add(w, "blk.0.ffn_norm.weight", 8, 0);
    writer_skip(w, "blk.0.ffn_norm.weight");
    writer_model(w, &s);
    hash_of(w, other);
    assert_memory_equal(base, other, sizeof base);

    static const float changed[8] = {0, 1, 2, 3, 4, 5, 6, 7.5f};
    w = writer_new(); /* one value of one tensor */
    writer_model(w, &s);
    w->tensors[1].data = changed;
    hash_of(w, other);
    assert_memory_not_equal(base, other, sizeof base);

    w = writer_new(); /* a hyperparameter */
    writer_f32(w, "llama.rope.freq_base", 500000);
    writer_model(w, &s);
    hash_of(w, other);
    assert_memory_not_equal(base, other, sizeof base);

    static const float rows[2][32] = {
        {1, 2, 3}, {4, 5, 6}}; /* the contents of two tensors of one shape change places */
    for (int turn = 0; turn < 2; turn++) {
        w = writer_new();
        writer_model(w, &s);
        w->tensors[0].data = rows[turn];
        w->tensors[2].data = rows[1 - turn];
        hash_of(w, turn ? other : base);
    }
    assert_memory_not_equal(base, other, sizeof base);
}

static void *hash_in_thread(void *g) {
    uint64_t *hash = malloc(16);
    KVF_ASSERT(hash);
    kvf_gguf_weights_hash(g, hash);
    return hash;
}

static void threads_agree_on_the_hash(void **state) {
    kvf_gguf *g;
    assert_int_equal(kvf_gguf_open(KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf", &g, NULL), KVF_OK);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, hash_in_thread, g), 0);
    uint64_t want[2];
    kvf_gguf_weights_hash(g, want);
    assert_true(want[0] != 0 && want[1] != 0);
    for (int i = 0; i < 4; i++) {
        void *got;
        pthread_join(threads[i], &got);
        assert_memory_equal(got, want, sizeof want);
        free(got);
    }
    kvf_gguf_close(g);
}

static int write_corpus(const char *folder) {
    for (size_t i = 0; i < hostile_cases_count; i++) {
        char path[512];
        writer *w = writer_new();
        hostile_cases[i].make(w);
        writer_finish(w);
        snprintf(path, sizeof path, "%s/%s", folder, hostile_cases[i].name);
        FILE *f = fopen(path, "wb");
        bool good = f && fwrite(w->file, 1, w->file_bytes, f) == w->file_bytes;
        if (f) good = fclose(f) == 0 && good;
        writer_free(w);
        if (!good) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write-corpus") == 0) return write_corpus(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_files_are_refused_by_name), /* first: it looks at the peak of memory */
        cmocka_unit_test(integers_convert_when_they_fit),
        cmocka_unit_test(arrays_give_their_elements_and_nothing_beyond),
        cmocka_unit_test(tensors_are_found_by_name_and_lie_in_the_file),
        cmocka_unit_test(unaligned_memory_is_read_the_same),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(damaged_headers_do_no_harm),
        cmocka_unit_test(paths_that_are_no_model_are_refused),
        cmocka_unit_test(a_mapped_file_equals_the_same_bytes_in_memory),
        cmocka_unit_test(each_failing_allocation_is_reported_and_leaves_nothing),
        cmocka_unit_test(the_hash_names_the_weights_and_nothing_else),
        cmocka_unit_test(threads_agree_on_the_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
