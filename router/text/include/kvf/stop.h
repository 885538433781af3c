/* kvf/stop.h - stop strings over the streamed text of one choice.
 *
 * Pure, and no malloc per token. A set is compiled once per request (Aho-Corasick: time is linear in the text, whatever
 * the stops) and read by one stream per choice. Text comes in pieces of any size; what is decided depends on the bytes
 * only, not on where they were cut.
 *
 * The match that ends first wins; of those that end at the same byte, the longest. No byte of it is emitted (all of it
 * with include_stop). Held back is only the longest end of the text that may still begin a stop, so that a stop that is
 * valid UTF-8 never holds back a part of a character. */
#ifndef KVF_STOP_H
#define KVF_STOP_H
#include "kvf/base.h"
#ifdef __cplusplus
extern "C" {
#endif

#define KVF_STOP_STRINGS_MAX 16
#define KVF_STOP_BYTES_MAX 512 /* of one stop */

/* KVF_ERR_INVALID: err names what is wrong: too many, empty, too long. */
kvf_status kvf_stop_check(const kvf_span *stops, uint32_t count, kvf_error *err);

typedef struct kvf_stop_set kvf_stop_set;
size_t kvf_stop_set_size(const kvf_span *stops, uint32_t count);
/* memory: kvf_stop_set_size bytes, 16-byte aligned, kept; stops: checked before, borrowed. count may be 0: nothing is
 * ever held back. */
kvf_stop_set *kvf_stop_set_init(void *memory, const kvf_span *stops, uint32_t count, bool include_stop);

typedef struct kvf_stop_stream kvf_stop_stream;
size_t kvf_stop_stream_size(const kvf_stop_set *set);
/* memory as above; set: kept, and not changed by streams. */
kvf_stop_stream *kvf_stop_stream_init(void *memory, const kvf_stop_set *set);

typedef struct {
    kvf_span
        emit[2]; /* what may go out now, in this order; valid until the next call on the stream and while `text` is */
    bool matched; /* a stop was found: this is the last output */
    uint32_t stop; /* which, index in the set */
    uint32_t end_position; /* position after the token that completed it: what kvf_router_end_choice takes; later ones
                              do not count */
    uint32_t cut_position; /* first token that is not wholly in the emitted text */
} kvf_stop_out;

/* The text that the token at `position` added (empty: nothing yet). Positions rise. Not to be called again after a
 * match. */
void kvf_stop_feed(kvf_stop_stream *s, uint32_t position, kvf_span text, kvf_stop_out *out);
/* The choice has ended otherwise: what was held back goes out. */
void kvf_stop_flush(kvf_stop_stream *s, kvf_stop_out *out);
#ifdef __cplusplus
}
#endif
#endif
