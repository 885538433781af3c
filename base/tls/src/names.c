/* names.c - whom a certificate is for. One matcher for page connections and control connections. */
#include "kvf/tls.h"
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>

static void list_names(const X509 *x, char *out, size_t out_bytes) {
    GENERAL_NAMES *names = X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL);
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *n = sk_GENERAL_NAME_value(names, i);
        if (n->type != GEN_DNS) continue;
        int printed = snprintf(out + used, out_bytes - used, "%s%.*s", used ? ", " : "",
            ASN1_STRING_length(n->d.dNSName), (const char *)ASN1_STRING_get0_data(n->d.dNSName));
        if (printed < 0 || (size_t)printed >= out_bytes - used) break;
        used += (size_t)printed;
    }
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?'; /* it goes to the log */
    if (!used) snprintf(out, out_bytes, "no name");
    GENERAL_NAMES_free(names);
}

bool kvf_tls_names(const struct x509_st *certificate, const char *name, char *who, size_t who_bytes) {
    X509 *x = (X509 *)(uintptr_t)certificate; /* X509_check_host wants to cache what it has parsed */
    if (x && *name && X509_check_host(x, name, 0, 0, NULL) == 1) return true;
    if (x)
        list_names(x, who, who_bytes);
    else
        snprintf(who, who_bytes, "no certificate");
    return false;
}

bool kvf_tls_names_pem(kvf_span pem, const char *name, char *who, size_t who_bytes) {
    BIO *bio = BIO_new_mem_buf(pem.data, (int)pem.len_bytes);
    X509 *x = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    bool proved = kvf_tls_names(x, name, who, who_bytes);
    X509_free(x);
    BIO_free(bio);
    ERR_clear_error();
    return proved;
}
