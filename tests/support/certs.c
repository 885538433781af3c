#include "certs.h"
#include <dirent.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void need(bool fine, const char *what) {
    if (fine) return;
    fprintf(stderr, "certificates for a test: %s failed\n", what);
    exit(1);
}

void certs_open(certs *c) {
    snprintf(c->dir, sizeof c->dir, "/tmp/kvf-certs-XXXXXX");
    need(mkdtemp(c->dir) != NULL, "mkdtemp");
}

const char *certs_path(const certs *c, const char *file, char out[CERTS_PATH_MAX]) {
    int n = snprintf(out, CERTS_PATH_MAX, "%s/%s", c->dir, file);
    need(n > 0 && n < CERTS_PATH_MAX, file);
    return out;
}

void certs_close(certs *c) {
    DIR *d = opendir(c->dir);
    char path[CERTS_PATH_MAX];
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') unlink(certs_path(c, e->d_name, path));
    if (d) closedir(d);
    rmdir(c->dir);
}

static FILE *start(const certs *c, const char *file, char temporary[CERTS_PATH_MAX]) {
    char name[80];
    snprintf(name, sizeof name, "%.70s.new", file);
    FILE *f = fopen(certs_path(c, name, temporary), "wb");
    need(f != NULL, temporary);
    return f;
}

static void finish(const certs *c, const char *file, FILE *f, const char *temporary) {
    char path[CERTS_PATH_MAX];
    need(fclose(f) == 0 && rename(temporary, certs_path(c, file, path)) == 0, file);
}

void certs_write(const certs *c, const char *file, const char *text) {
    char temporary[CERTS_PATH_MAX];
    FILE *f = start(c, file, temporary);
    fputs(text, f);
    finish(c, file, f, temporary);
}

void certs_copy(const certs *c, const char *from, const char *to) {
    char path[CERTS_PATH_MAX], temporary[CERTS_PATH_MAX], bytes[4096];
    FILE *in = fopen(certs_path(c, from, path), "rb"), *out = start(c, to, temporary);
    need(in != NULL, from);
    for (size_t got; (got = fread(bytes, 1, sizeof bytes, in)) > 0;) fwrite(bytes, 1, got, out);
    fclose(in);
    need(fchmod(fileno(out), 0600) == 0, to);
    finish(c, to, out, temporary);
}

static void add(X509 *x, X509 *issuer, int nid, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    need(e && X509_add_ext(x, e, -1), value);
    X509_EXTENSION_free(e);
}

static X509 *make(
    const char *common_name, EVP_PKEY *key, X509 *issuer, EVP_PKEY *signer, const char *names, long from_s, long to_s) {
    X509 *x = X509_new();
    uint32_t serial;
    need(x && RAND_bytes((unsigned char *)&serial, sizeof serial) == 1, "X509_new");
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), (long)(serial | 1) & 0x7fffffff);
    X509_gmtime_adj(X509_getm_notBefore(x), from_s);
    X509_gmtime_adj(X509_getm_notAfter(x), to_s);
    X509_NAME_add_entry_by_txt(
        X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)common_name, -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(issuer ? issuer : x));
    X509_set_pubkey(x, key);
    add(x, issuer ? issuer : x, NID_basic_constraints, issuer ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (!issuer) add(x, x, NID_key_usage, "critical,keyCertSign,cRLSign");
    if (names) add(x, issuer ? issuer : x, NID_subject_alt_name, names);
    need(X509_sign(x, signer, EVP_sha256()) > 0, "X509_sign");
    return x;
}

static void save(certs *c, const char *name, X509 *x, EVP_PKEY *key) {
    char file[64], temporary[CERTS_PATH_MAX];
    snprintf(file, sizeof file, "%s.pem", name);
    FILE *f = start(c, file, temporary);
    need(PEM_write_X509(f, x) == 1, file);
    finish(c, file, f, temporary);
    snprintf(file, sizeof file, "%s.key", name);
    f = start(c, file, temporary);
    need(fchmod(fileno(f), 0600) == 0 && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) == 1, file);
    finish(c, file, f, temporary);
}

void certs_authority(certs *c, const char *name) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    need(key != NULL, "EVP_EC_gen");
    X509 *x = make(name, key, NULL, key, NULL, -3600, 24 * 3600);
    save(c, name, x, key);
    X509_free(x);
    EVP_PKEY_free(key);
}

static X509 *read_certificate(const certs *c, const char *file) {
    char path[CERTS_PATH_MAX];
    FILE *f = fopen(certs_path(c, file, path), "rb");
    X509 *x = f ? PEM_read_X509(f, NULL, NULL, NULL) : NULL;
    need(x != NULL, file);
    fclose(f);
    return x;
}

static EVP_PKEY *read_key(const certs *c, const char *file) {
    char path[CERTS_PATH_MAX];
    FILE *f = fopen(certs_path(c, file, path), "rb");
    EVP_PKEY *key = f ? PEM_read_PrivateKey(f, NULL, NULL, NULL) : NULL;
    need(key != NULL, file);
    fclose(f);
    return key;
}

void certs_lock(const certs *c, const char *from, const char *to) {
    char temporary[CERTS_PATH_MAX];
    EVP_PKEY *key = read_key(c, from);
    FILE *f = start(c, to, temporary);
    need(PEM_write_PrivateKey(f, key, EVP_aes_128_cbc(), (const unsigned char *)"secret", 6, NULL, NULL) == 1, to);
    finish(c, to, f, temporary);
    EVP_PKEY_free(key);
}

void certs_make(certs *c, const char *authority, const char *file, const char *names, long from_s, long to_s) {
    char name[64];
    snprintf(name, sizeof name, "%s.pem", authority);
    X509 *issuer = read_certificate(c, name);
    snprintf(name, sizeof name, "%s.key", authority);
    EVP_PKEY *signer = read_key(c, name), *key = EVP_EC_gen("P-256");
    need(key != NULL, "EVP_EC_gen");
    X509 *x = make("kvferry test", key, issuer, signer, names, from_s, to_s);
    save(c, file, x, key);
    X509_free(x);
    X509_free(issuer);
    EVP_PKEY_free(key);
    EVP_PKEY_free(signer);
}

unsigned long certs_serial(const certs *c, const char *file) {
    X509 *x = read_certificate(c, file);
    unsigned long serial = (unsigned long)ASN1_INTEGER_get(X509_get_serialNumber(x));
    X509_free(x);
    return serial;
}
