/* certs.h - certificates for tests, made when the test runs: a folder of its own under the system's folder for such
 * things, short lives, nothing kept. What cannot be made ends the program. */
#ifndef KVF_TEST_CERTS_H
#define KVF_TEST_CERTS_H
#include <stdbool.h>

#define CERTS_PATH_MAX 96
typedef struct {
    char dir[64];
} certs;
void certs_open(certs *c);
void certs_close(certs *c); /* removes the folder */
/* NAME.pem and NAME.key: an authority of that name. */
void certs_authority(certs *c, const char *name);
/* FILE.pem and FILE.key, signed by that authority. names: "DNS:d1,IP:127.0.0.1"; valid from now + from_s to now + to_s.
 * Replaces files by rename, the key last. */
void certs_make(certs *c, const char *authority, const char *file, const char *names, long from_s, long to_s);
#define certs_simple(c, authority, file, names) certs_make(c, authority, file, names, -60, 3600)
/* "DIR/file", in `out`; returns it. */
const char *certs_path(const certs *c, const char *file, char out[CERTS_PATH_MAX]);
void certs_write(const certs *c, const char *file, const char *text); /* replaces it */
void certs_copy(const certs *c, const char *from, const char *to);
void certs_lock(const certs *c, const char *from, const char *to); /* a key, behind a passphrase */
/* Tells one certificate from the next. */
unsigned long certs_serial(const certs *c, const char *file);
#endif
