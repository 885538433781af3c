/* stores.h - a certificate store over files of certs.h. */
#ifndef KVF_TEST_STORES_H
#define KVF_TEST_STORES_H
#include "certs.h"
#include "kvf/tls.h"
#include <stdio.h>
#include <stdlib.h>

/* Of NAME.pem, NAME.key and CA.pem. */
static inline kvf_tls_store *store_of(const certs *c, const char *name, const char *ca) {
    char p[3][CERTS_PATH_MAX], file[3][64];
    snprintf(file[0], sizeof file[0], "%s.pem", name);
    snprintf(file[1], sizeof file[1], "%s.key", name);
    snprintf(file[2], sizeof file[2], "%s.pem", ca);
    for (int i = 0; i < 3; i++) certs_path(c, file[i], p[i]);
    kvf_tls_store *s = NULL;
    kvf_error err;
    if (kvf_tls_store_open(&(kvf_tls_files){p[0], p[1], p[2]}, &s, &err) == KVF_OK) return s;
    fprintf(stderr, "%s\n", err.message);
    exit(1);
}

/* The folder and the certificate of one test program, for cmocka's group: every node of it is in `names`. */
typedef struct {
    certs folder;
    kvf_tls_store *tls;
} one_store;
static inline void one_store_open(one_store *s, const char *names) {
    certs_open(&s->folder);
    certs_authority(&s->folder, "ca");
    certs_simple(&s->folder, "ca", "all", names);
    s->tls = store_of(&s->folder, "all", "ca");
}
static inline void one_store_close(one_store *s) {
    kvf_tls_store_close(s->tls);
    certs_close(&s->folder);
}
#endif
