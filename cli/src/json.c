#include "json.h"
#include "kvf/rpc.h"
#include "kvf/utf8.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Length of the well-formed character at `at`, 0 where there is none. */
static size_t character(const unsigned char *at, size_t left) {
    size_t want = *at < 0x80 ? 1 : *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : *at >= 0xC2 ? 2 : 0;
    return want && want <= left && kvf_utf8_valid(at, want, NULL) ? want : 0;
}

void kvf_json_string(kvf_buf *out, const void *text, size_t len_bytes) {
    const unsigned char *at = text, *end = at + len_bytes;
    kvf_buf_putc(out, '"');
    while (at < end) {
        size_t len = character(at, (size_t)(end - at));
        if (len == 0) {
            kvf_buf_puts(out, "\xEF\xBF\xBD");
            at++;
            continue;
        }
        if (*at == '"' || *at == '\\')
            kvf_buf_printf(out, "\\%c", *at);
        else if (*at == '\n')
            kvf_buf_puts(out, "\\n");
        else if (*at < 0x20 || *at == 0x7F)
            kvf_buf_printf(out, "\\u%04x", *at);
        else
            kvf_buf_add(out, at, len);
        at += len;
    }
    kvf_buf_putc(out, '"');
}
void kvf_json_text(kvf_buf *out, const char *text) { kvf_json_string(out, text, strlen(text)); }

void kvf_json_double(kvf_buf *out, double v) {
    char text[40];
    if (!isfinite(v)) {
        kvf_buf_puts(out, "null");
        return;
    }
    if (v == floor(v) && fabs(v) < 9e15) {
        kvf_buf_printf(out, "%.0f", v); /* counts and bytes stay readable */
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    kvf_buf_puts(out, text);
}
void kvf_json_float(kvf_buf *out, float v) {
    char text[40];
    if (!isfinite(v)) {
        kvf_buf_puts(out, "null");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    kvf_buf_puts(out, text);
}

static void put_bytes(kvf_buf *out, const ProtobufCBinaryData *b) {
    if (kvf_utf8_valid(b->data, b->len, NULL)) {
        kvf_json_string(out, b->data, b->len);
        return;
    }
    for (size_t i = 0; i < b->len; i++) kvf_buf_printf(out, "%c%u", i ? ',' : '[', b->data[i]);
    kvf_buf_putc(out, ']');
}

static size_t element_bytes(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    default: return 4;
    }
}

static void put_value(kvf_buf *out, const ProtobufCFieldDescriptor *field, const void *at) {
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32: kvf_buf_printf(out, "%d", *(const int32_t *)at); break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32: kvf_buf_printf(out, "%u", *(const uint32_t *)at); break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64: kvf_buf_printf(out, "%lld", (long long)*(const int64_t *)at); break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: kvf_buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at); break;
    case PROTOBUF_C_TYPE_FLOAT: kvf_json_float(out, *(const float *)at); break;
    case PROTOBUF_C_TYPE_DOUBLE: kvf_json_double(out, *(const double *)at); break;
    case PROTOBUF_C_TYPE_BOOL: kvf_buf_puts(out, *(const protobuf_c_boolean *)at ? "true" : "false"); break;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(field->descriptor, *(const int *)at);
        if (v)
            kvf_json_text(out, v->name);
        else
            kvf_buf_printf(out, "%d", *(const int *)at);
        break;
    }
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)at;
        kvf_json_text(out, text ? text : "");
        break;
    }
    case PROTOBUF_C_TYPE_BYTES: put_bytes(out, at); break;
    case PROTOBUF_C_TYPE_MESSAGE: kvf_json_message(out, *(ProtobufCMessage *const *)at); break;
    }
}

static bool field_present(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *field) {
    const char *base = (const char *)m;
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)(const void *)(base + field->quantifier_offset) == field->id;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) return true;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) return *(void *const *)(const void *)(base + field->offset) != NULL;
    return true;
}

static void put_list(kvf_buf *out, const ProtobufCMessage *m, const ProtobufCFieldDescriptor *field) {
    const char *base = (const char *)m;
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const char *items = *(char *const *)(const void *)(base + field->offset);
    kvf_buf_putc(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i) kvf_buf_putc(out, ',');
        put_value(out, field, items + i * element_bytes(field->type));
    }
    kvf_buf_putc(out, ']');
}

void kvf_json_message(kvf_buf *out, const ProtobufCMessage *m) {
    bool first = true;
    kvf_buf_putc(out, '{');
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &m->descriptor->fields[i];
        if (!field_present(m, field)) continue;
        if (!first) kvf_buf_putc(out, ',');
        first = false;
        kvf_json_text(out, field->name);
        kvf_buf_putc(out, ':');
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            put_list(out, m, field);
        else
            put_value(out, field, (const char *)m + field->offset);
    }
    kvf_buf_putc(out, '}');
}
