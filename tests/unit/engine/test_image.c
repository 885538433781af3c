/* The cache of packed weights: made once, believed only when it is whole, and never a reason to fail. */
#include "engine_int.h"
#include "golden.h"
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TINY GOLDEN "tiny/llama.gguf"
enum { TOKENS = 20 };

static char folder[64], file[512];

static int make(void **state) {
    snprintf(folder, sizeof folder, "/tmp/kvf-image-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static int count_files(const char *end) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    int count = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        if (length < strlen(end) || strcmp(e->d_name + length - strlen(end), end) != 0) continue;
        snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
        count++;
    }
    closedir(d);
    return count;
}
static int sweep(void **state) {
    while (count_files("kvfpack") || count_files(".lock") || count_files(".new")) unlink(file);
    return rmdir(folder);
}

static kvf_model *open_cached(const char *in) {
    kvf_model *m = NULL;
    kvf_error err = {0};
    kvf_model_options options = {.threads = 1, .cache_folder = in};
    if (kvf_model_open(TINY, &options, &m, &err) != KVF_OK) fail_msg("%s", err.message);
    return m;
}
/* Opens, compares with a model that knows no cache, closes. */
static void expect_model(const char *in, bool shared, bool found) {
    kvf_model *models[2] = {golden_model(TINY, KVF_PRECISION_FAST, NULL), open_cached(in)};
    static float logits[2][TOKENS * 320];
    uint32_t tokens[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) tokens[i] = i * 31 % 320;
    assert_int_equal(kvf_model_packed_is_shared(models[1]), shared);
    assert_int_equal(models[1]->image.filled, found);
    assert_false(kvf_model_packed_is_shared(models[0]));
    for (int i = 0; i < 2; i++) {
        kvf_engine *e = golden_engine(models[i], KVF_KV_F16, TOKENS, 1);
        golden_run(e, tokens, 0, TOKENS, TOKENS, true, logits[i], 320);
        kvf_engine_destroy(e);
        kvf_model_close(models[i]);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

static void second_start_finds_it(void **state) {
    expect_model(folder, true, false);
    assert_int_equal(count_files("kvfpack"), 1);
    expect_model(folder, true, true);
    assert_int_equal(count_files("kvfpack"), 1);
    assert_int_equal(count_files(".new"), 0);
}

static void edit(off_t at, off_t new_length) {
    assert_int_equal(count_files("kvfpack"), 1);
    assert_int_equal(chmod(file, 0600), 0);
    int fd = open(file, O_RDWR);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    if (new_length >= 0)
        assert_int_equal(ftruncate(fd, new_length), 0);
    else
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}
static void damage_is_found(void **state) {
    expect_model(folder, true, false);
    struct stat st;
    assert_int_equal(count_files("kvfpack"), 1);
    assert_int_equal(stat(file, &st), 0);
    const off_t end = st.st_size, places[] = {0, 8, 12, 16, 24, 39, 40, 56, 63, 4096, 4096 + 12345, end - 1};
    for (size_t i = 0; i < KVF_COUNT_OF(places); i++) {
        edit(places[i], -1);
        expect_model(folder, true, false);
    }
    const off_t lengths[] = {0, 63, 4096, end - 1, end - 4096, end + 1};
    for (size_t i = 0; i < KVF_COUNT_OF(lengths); i++) {
        edit(0, lengths[i]);
        expect_model(folder, true, false);
    }
    expect_model(folder, true, true);
    assert_int_equal(count_files("kvfpack"), 1);
    assert_int_equal(chmod(file, 0660), 0); /* others could have written it */
    expect_model(folder, true, false);
    expect_model(folder, true, true);
}

/* A folder that cannot be made or written to: private memory. */
static void no_folder(void **state) {
    char in[128];
    expect_model(NULL, false, false);
    expect_model("", false, false);
    expect_model(TINY "/below-a-file", false, false);
    snprintf(in, sizeof in, "%s/two/more/levels", folder);
    expect_model(in, false, false);
    if (geteuid() == 0) return; /* whom no mode keeps out */
    assert_int_equal(chmod(folder, 0500), 0);
    expect_model(folder, false, false);
    assert_int_equal(chmod(folder, 0700), 0);
}

/* Several at once: one packs, the others find what it made. */
static void race(void **state) {
    enum { PROCESSES = 4 };
    int start[2], found[2];
    assert_int_equal(pipe(start), 0);
    assert_int_equal(pipe(found), 0);
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] > 0) continue;
        char go;
        kvf_model *m = NULL;
        kvf_model_options options = {.threads = 1, .cache_folder = folder};
        if (read(start[0], &go, 1) != 1 || kvf_model_open(TINY, &options, &m, &(kvf_error){0}) != KVF_OK) _exit(1);
        char result = !kvf_model_packed_is_shared(m) ? 'p' : m->image.filled ? 'f' : 'm';
        _exit(write(found[1], &result, 1) == 1 ? 0 : 1);
    }
    assert_int_equal(write(start[1], "gogo", PROCESSES), PROCESSES);
    int made = 0;
    for (int i = 0; i < PROCESSES; i++) {
        char result;
        assert_int_equal(read(found[0], &result, 1), 1);
        assert_int_not_equal(result, 'p');
        made += result == 'm';
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    for (int i = 0; i < 2; i++) {
        close(start[i]);
        close(found[i]);
    }
    assert_int_equal(made, 1);
    assert_int_equal(count_files("kvfpack"), 1);
    assert_int_equal(count_files(".new"), 0);
    expect_model(folder, true, true);
}

/* Who comes while another packs waits for what that one makes. */
static void waits_for_the_maker(void **state) {
    enum { BYTES = 48 << 20 };
    const uint64_t hash[2] = {1, 2};
    int started[2];
    kvf_image i;
    assert_int_equal(pipe(started), 0);
    assert_int_equal(kvf_image_open(folder, hash, BYTES, &i), KVF_OK);
    assert_true(i.shared && !i.filled);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(i.lock_fd); /* a lock belongs to whoever inherits it, too */
        if (write(started[1], "s", 1) != 1) _exit(1);
        kvf_status status = kvf_image_open(folder, hash, BYTES, &i);
        _exit(status == KVF_OK && i.filled && i.data[BYTES - 1] == 9 ? 0 : 1);
    }
    char byte;
    assert_int_equal(read(started[0], &byte, 1), 1);
    memset(i.data, 9, BYTES);
    kvf_image_publish(&i);
    kvf_image_close(&i);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(started[0]);
    close(started[1]);
}

/* A maker that dies leaves a file under its working name; the next one takes the lock and its place. */
static void dead_maker(void **state) {
    const uint64_t hash[2] = {7, 8};
    pid_t pid = fork();
    assert_true(pid >= 0);
    kvf_image i;
    if (pid == 0) {
        kvf_status status = kvf_image_open(folder, hash, 10000, &i);
        _exit(status == KVF_OK && i.shared && !i.filled ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(count_files(".new"), 1);
    for (int found = 0; found < 2; found++) {
        assert_int_equal(kvf_image_open(folder, hash, 10000, &i), KVF_OK);
        assert_true(i.shared);
        assert_int_equal(i.filled, found);
        if (!found) memset(i.data, 5, 10000);
        if (!found) kvf_image_publish(&i);
        assert_int_equal(i.data[9999], 5);
        kvf_image_close(&i);
        assert_int_equal(count_files(".new"), 0);
    }
    /* other weights, or as many bytes of another layout */
    const uint64_t others[2] = {7, 9};
    assert_int_equal(kvf_image_open(folder, others, 10000, &i), KVF_OK);
    assert_false(i.filled);
    kvf_image_close(&i);
    assert_int_equal(kvf_image_open(folder, hash, 9999, &i), KVF_OK);
    assert_false(i.filled);
    kvf_image_close(&i);
    assert_int_equal(count_files(".new"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(second_start_finds_it, make, sweep),
        cmocka_unit_test_setup_teardown(damage_is_found, make, sweep),
        cmocka_unit_test_setup_teardown(no_folder, make, sweep), cmocka_unit_test_setup_teardown(race, make, sweep),
        cmocka_unit_test_setup_teardown(waits_for_the_maker, make, sweep),
        cmocka_unit_test_setup_teardown(dead_maker, make, sweep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
