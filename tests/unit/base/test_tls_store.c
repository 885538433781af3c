/* Certificate files: what is refused at the start and with which words, and what a change does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "certs.h"
#include "kvf/log.h"
#include "kvf/tls.h"

static char logged[4096];
static void keep_log(void *self, kvf_log_level level, const char *component, const char *message) {
    (void)self, (void)component;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%d %s\n", (int)level, message);
}

static certs c;
static int setup(void **state) {
    (void)state;
    certs_open(&c);
    certs_authority(&c, "ca");
    certs_authority(&c, "other");
    certs_simple(&c, "ca", "d1", "DNS:d1");
    certs_simple(&c, "ca", "d2", "DNS:d2");
    kvf_log_set_sink(keep_log, NULL);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    kvf_log_set_sink(NULL, NULL);
    certs_close(&c);
    return 0;
}

static kvf_status open_store(const char *cert, const char *key, const char *ca, kvf_tls_store **out, kvf_error *err) {
    char p[3][CERTS_PATH_MAX];
    kvf_tls_files f = {cert ? certs_path(&c, cert, p[0]) : NULL, key ? certs_path(&c, key, p[1]) : NULL,
        ca ? certs_path(&c, ca, p[2]) : NULL};
    return kvf_tls_store_open(&f, out, err);
}

static void refused(const char *cert, const char *key, const char *ca, const char *file, const char *words) {
    kvf_tls_store *s = NULL;
    kvf_error err;
    char path[CERTS_PATH_MAX];
    if (open_store(cert, key, ca, &s, &err) == KVF_OK) fail_msg("%s %s %s: taken", cert, key, ca);
    if (!strstr(err.message, certs_path(&c, file, path)) || !strstr(err.message, words))
        fail_msg("\"%s\" names not %s or not \"%s\"", err.message, path, words);
}

static void bad_files_are_named(void **state) {
    (void)state;
    char path[CERTS_PATH_MAX];
    refused("none.pem", "d1.key", "ca.pem", "none.pem", "No such file");
    refused("d1.pem", "none.key", "ca.pem", "none.key", "No such file");
    refused("d1.pem", "d1.key", "none.pem", "none.pem", "No such file");
    refused("d1.pem", "d2.key", "ca.pem", "d2.key", "is not the key of the certificate in");
    refused("d1.key", "d1.key", "ca.pem", "d1.key", "no certificate");
    refused("d1.pem", "d1.pem", "ca.pem", "d1.pem", "no private key");
    refused("d1.pem", "d1.key", "d1.key", "d1.key", "no authority");
    refused("d1.pem", NULL, "ca.pem", "d1.pem", "without its key");
    refused(NULL, "d1.key", "ca.pem", "d1.key", "without its certificate");
    refused(".", "d1.key", "ca.pem", ".", "no file of PEM text");
    certs_write(&c, "empty.pem", "");
    refused("empty.pem", "d1.key", "ca.pem", "empty.pem", "no certificate");
    certs_write(&c, "cut.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n");
    refused("cut.pem", "d1.key", "ca.pem", "cut.pem", "no certificate");
    certs_lock(&c, "d1.key", "locked.key");
    refused("d1.pem", "locked.key", "ca.pem", "locked.key", "without passphrase");
    certs_make(&c, "ca", "old", "DNS:d1", -7200, -3600);
    refused("old.pem", "old.key", "ca.pem", "old.pem", "has expired on");
    certs_make(&c, "ca", "early", "DNS:d1", 3600, 7200);
    refused("early.pem", "early.key", "ca.pem", "early.pem", "is not valid before");
    if (geteuid() != 0) {
        certs_copy(&c, "d1.key", "shut.key");
        assert_int_equal(chmod(certs_path(&c, "shut.key", path), 0), 0);
        refused("d1.pem", "shut.key", "ca.pem", "shut.key", "Permission denied");
    }
}

static void what_is_odd_is_said(void **state) {
    (void)state;
    kvf_tls_store *s;
    kvf_error err;
    char path[CERTS_PATH_MAX];
    logged[0] = 0;
    assert_int_equal(open_store("d1.pem", "d1.key", "other.pem", &s, &err), KVF_OK);
    kvf_tls_store_close(s);
    assert_non_null(strstr(logged, "is not signed by an authority of"));
    logged[0] = 0;
    certs_copy(&c, "d1.key", "wide.key");
    assert_int_equal(chmod(certs_path(&c, "wide.key", path), 0644), 0);
    assert_int_equal(open_store("d1.pem", "wide.key", "ca.pem", &s, &err), KVF_OK);
    kvf_tls_store_close(s);
    assert_non_null(strstr(logged, "can be read by every user"));
    logged[0] = 0;
    assert_int_equal(open_store("d1.pem", "d1.key", "ca.pem", &s, &err), KVF_OK);
    kvf_tls_store_close(s);
    assert_string_equal(logged, "");
    assert_int_equal(open_store(NULL, NULL, "ca.pem", &s, &err), KVF_OK); /* a client without a certificate */
    kvf_tls_store_close(s);
}

static void a_change_is_taken_and_a_broken_one_is_not(void **state) {
    (void)state;
    kvf_tls_store *s;
    kvf_error err;
    char path[CERTS_PATH_MAX];
    certs_copy(&c, "d1.pem", "live.pem");
    certs_copy(&c, "d1.key", "live.key");
    assert_int_equal(open_store("live.pem", "live.key", "ca.pem", &s, &err), KVF_OK);
    const kvf_tls_set *first = kvf_tls_store_set(s);
    assert_int_equal(first->generation, 1);
    logged[0] = 0;
    for (int i = 0; i < 3; i++) assert_false(kvf_tls_store_check(s));
    assert_string_equal(logged, "");

    certs_write(&c, "live.pem", "rubbish");
    assert_false(kvf_tls_store_check(s));
    assert_non_null(strstr(logged, certs_path(&c, "live.pem", path)));
    assert_memory_equal(logged, "0 ", 2); /* an error */
    size_t said = strlen(logged);
    for (int i = 0; i < 3; i++) assert_false(kvf_tls_store_check(s));
    assert_int_equal(strlen(logged), said); /* once */
    const kvf_tls_set *same = kvf_tls_store_set(s);
    assert_ptr_equal(same, first);
    kvf_tls_set_release(same);

    unlink(path);
    assert_false(kvf_tls_store_check(s));
    assert_non_null(strstr(logged + said, "No such file"));

    certs_copy(&c, "d2.pem", "live.pem"); /* half of a change: the key is still the old one */
    assert_false(kvf_tls_store_check(s));
    certs_copy(&c, "d2.key", "live.key");
    assert_true(kvf_tls_store_check(s));
    const kvf_tls_set *second = kvf_tls_store_set(s);
    assert_int_equal(second->generation, 2);
    assert_string_not_equal(second->cert, first->cert);
    assert_ptr_not_equal(second->context, first->context);
    kvf_tls_store_close(s);
    assert_non_null(strstr(first->cert, "BEGIN CERTIFICATE")); /* who holds a set keeps it */
    kvf_tls_set_release(first);
    kvf_tls_set_release(second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(what_is_odd_is_said),
        cmocka_unit_test(a_change_is_taken_and_a_broken_one_is_not),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
