/* json.h - JSON out: strings and numbers that any strict parser takes, and whole protobuf-c messages by their
 * descriptors.
 *
 * A message is an object with the field names of the .proto file, all of them (scalars at their default and empty lists
 * too), except messages that are absent and members of a oneof that is set otherwise (so an `optional` field appears
 * only when present). Enums are their names (a number where unknown); 64-bit integers are numbers; floats are the
 * shortest decimal that reads back as the same float, null where not finite. Bytes are a string where they are UTF-8
 * (in kvferry.v1 all text is bytes in C), else a list of numbers. */
#ifndef KVF_CLI_JSON_H
#define KVF_CLI_JSON_H
#include "buf.h"
#include <protobuf-c/protobuf-c.h>

void kvf_json_string(kvf_buf *out, const void *text, size_t len_bytes); /* bytes that are not UTF-8 become U+FFFD */
void kvf_json_text(kvf_buf *out, const char *text);
void kvf_json_double(kvf_buf *out, double v);
void kvf_json_float(kvf_buf *out, float v);
void kvf_json_message(kvf_buf *out, const ProtobufCMessage *message);
#endif
