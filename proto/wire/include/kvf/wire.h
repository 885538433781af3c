/* kvf/wire.h - kvf_rmsg and kvf_nmsg as protobuf messages of kvferry.internal.v1, both ways.
 *
 * No malloc: what is made lies in an arena of the caller, used for one message and then reset (used_bytes = 0). What is
 * made also borrows: a protobuf message from the kvf message it was made of, a kvf message from the protobuf message
 * (or bytes) it was read from. Both must live as long as the result.
 *
 * Reading judges everything: enums, counts, lengths, order, ids; a message that is out of bounds is KVF_ERR_FORMAT and
 * err names the field. KVF_ERR_NO_ROOM: the arena is too small for it; nothing is said about the message then. */
#ifndef KVF_WIRE_H
#define KVF_WIRE_H
#include "kvf/arena.h"
#include "kvf/base.h"
#include "kvf/msg.h"
#ifdef __cplusplus
extern "C" {
#endif

#define KVF_WIRE_TOKENS_MAX (1u << 22) /* of one Work */
#define KVF_WIRE_MISSING_MAX (1u << 20) /* blocks of one grant */
#define KVF_WIRE_LIVE_MAX (1u << 20)
#define KVF_WIRE_ITEMS_MAX (1u << 16) /* tokens of one batch */
#define KVF_WIRE_NAMES_MAX (1u << 17) /* block names of one part of a snapshot, events of one message */
#define KVF_WIRE_REPORTS_MAX (1u << 16)
#define KVF_WIRE_SAMPLING_MAX 4096
#define KVF_WIRE_PROMPT_LOGPROBS_MAX 21 /* k + 1 */

/* The generated types, whose header users include when they need it: kvferry/internal/v1/node.pb-c.h. */
struct Kvferry__Internal__V1__RouterMessage;
struct Kvferry__Internal__V1__NodeMessage;

/* Arena bytes that are always enough to encode this message (and to pack it). */
size_t kvf_wire_rmsg_bytes(const kvf_rmsg *msg);
size_t kvf_wire_nmsg_bytes(const kvf_nmsg *msg);

kvf_status kvf_wire_rmsg_encode(
    const kvf_rmsg *msg, kvf_arena *arena, struct Kvferry__Internal__V1__RouterMessage **out);
kvf_status kvf_wire_nmsg_encode(const kvf_nmsg *msg, kvf_arena *arena, struct Kvferry__Internal__V1__NodeMessage **out);
kvf_status kvf_wire_rmsg_decode(
    const struct Kvferry__Internal__V1__RouterMessage *in, kvf_arena *arena, kvf_rmsg *out, kvf_error *err);
kvf_status kvf_wire_nmsg_decode(
    const struct Kvferry__Internal__V1__NodeMessage *in, kvf_arena *arena, kvf_nmsg *out, kvf_error *err);

/* The same to and from bytes; the bytes made lie in the arena. */
kvf_status kvf_wire_rmsg_pack(const kvf_rmsg *msg, kvf_arena *arena, kvf_span *out);
kvf_status kvf_wire_nmsg_pack(const kvf_nmsg *msg, kvf_arena *arena, kvf_span *out);
kvf_status kvf_wire_rmsg_parse(kvf_span bytes, kvf_arena *arena, kvf_rmsg *out, kvf_error *err);
kvf_status kvf_wire_nmsg_parse(kvf_span bytes, kvf_arena *arena, kvf_nmsg *out, kvf_error *err);
#ifdef __cplusplus
}
#endif
#endif
