/* SPDX-License-Identifier: Apache-2.0
 *
 * A pull reader for Protocol Buffers in memory: field after field, each checked against the end of
 * its message. Groups are refused. https://protobuf.dev/programming-guides/encoding/
 *
 *     qn__proto p = qn__proto_begin(data, size);
 *     qn__proto_field field;
 *     while (qn__proto_next(&p, &field))
 *         if (field.number == 1 && field.kind == QN__PROTO_BYTES)
 *             ... field.bytes, field.size ...
 *     if (p.broken_at)
 *         ... p.broken_at - data is where ...
 */
#ifndef QN_TEXT_PROTOBUF_H
#define QN_TEXT_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum qn__proto_kind {
    QN__PROTO_VARINT = 0,
    QN__PROTO_FIXED64 = 1,
    QN__PROTO_BYTES = 2, /* also strings and messages */
    QN__PROTO_FIXED32 = 5
} qn__proto_kind;

typedef struct qn__proto_field {
    uint32_t number;
    qn__proto_kind kind;
    uint64_t value; /* of a varint or a fixed one */
    const char *bytes;
    size_t size;
} qn__proto_field;

typedef struct qn__proto {
    const char *at, *end;
    const char *broken_at; /* NULL: all is well so far */
} qn__proto;

static inline qn__proto qn__proto_begin(const char *data, size_t size)
{
    return (qn__proto){data, data + size, NULL};
}

/* False at the end, or where the message is broken. */
bool qn__proto_next(qn__proto *proto, qn__proto_field *field);

#endif
