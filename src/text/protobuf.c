/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader of protobuf.h.
 */
#include "text/protobuf.h"

static bool read_varint(qn__proto *proto, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && proto->at < proto->end; shift += 7) {
        unsigned char byte = (unsigned char)*proto->at++;
        if (shift == 63 && byte > 1)
            return false;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_fixed(qn__proto *proto, size_t n, uint64_t *value)
{
    if ((size_t)(proto->end - proto->at) < n)
        return false;
    *value = 0;
    for (size_t i = 0; i < n; i++)
        *value |= (uint64_t)(unsigned char)proto->at[i] << (8 * i);
    proto->at += n;
    return true;
}

static bool read_field(qn__proto *proto, qn__proto_field *field)
{
    uint64_t tag, size;
    *field = (qn__proto_field){0};
    if (!read_varint(proto, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
        return false;
    field->number = (uint32_t)(tag >> 3);
    field->kind = (qn__proto_kind)(tag & 7);
    switch (field->kind) {
    case QN__PROTO_VARINT: return read_varint(proto, &field->value);
    case QN__PROTO_FIXED64: return read_fixed(proto, 8, &field->value);
    case QN__PROTO_FIXED32: return read_fixed(proto, 4, &field->value);
    case QN__PROTO_BYTES:
        if (!read_varint(proto, &size) || size > (uint64_t)(proto->end - proto->at))
            return false;
        field->bytes = proto->at;
        field->size = (size_t)size;
        proto->at += size;
        return true;
    }
    return false;
}

bool qn__proto_next(qn__proto *proto, qn__proto_field *field)
{
    if (proto->at == proto->end || proto->broken_at)
        return false;
    const char *at = proto->at;
    if (read_field(proto, field))
        return true;
    proto->broken_at = at;
    return false;
}
