/* units.h - sizes, durations and rates as people write and read them. */
#ifndef KVF_CLI_UNITS_H
#define KVF_CLI_UNITS_H
#include "kvf/base.h"

/* "512MiB", "2GiB" (also "512M", "512Mi"): powers of 1024; "512MB": powers of 1000; "4096" or "4096B": bytes.
 * `from` names the option in err. */
kvf_status kvf_units_parse_size(const char *from, const char *text, uint64_t *bytes, kvf_error *err);
kvf_status kvf_units_parse_duration(
    const char *from, const char *text, uint64_t *ns, kvf_error *err); /* "250ms", "1.5s", "2m" */
/* Bits: "100Gbit/s", "100Gb/s", "100Gbps" (powers of 1000). Bytes: "12GB/s", "11GiB/s". */
kvf_status kvf_units_parse_rate(const char *from, const char *text, double *bytes_per_s, kvf_error *err);

#define KVF_UNITS_TEXT 24
/* Write into out[KVF_UNITS_TEXT] and return it. */
const char *kvf_units_bytes(double bytes, char *out); /* "512 KiB", "4.00 GiB" */
const char *kvf_units_seconds(double s, char *out); /* "85 ms", "1.20 s" */
const char *kvf_units_count(double count, char *out); /* "19,366", "1.3 M" */
const char *kvf_units_rate(double bytes_per_s, char *out); /* "6.55 GB/s" */
#endif
