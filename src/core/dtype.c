/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types: the tables behind dtype.h.
 */
#include "core/dtype.h"

size_t qn_dtype_size(qn_dtype dtype)
{
    return qn__dtype_size(dtype);
}

const char *qn_dtype_name(qn_dtype dtype)
{
    static const char *const names[] = {"bool", "u8",  "u16", "u32",  "u64", "i8", "i16",
                                        "i32",  "i64", "f16", "bf16", "f32", "f64"};
    return (unsigned)dtype < QN_DTYPE_COUNT ? names[dtype] : "?";
}

size_t qn__dtype_size(qn_dtype dtype)
{
    static const uint8_t sizes[] = {
#define DTYPE_SIZE(name, bytes, kind, file_name) [QN_##name] = bytes,
        QN_DTYPE_LIST(DTYPE_SIZE)
#undef DTYPE_SIZE
    };
    return (unsigned)dtype < QN_DTYPE_COUNT ? sizes[dtype] : 0;
}

qn__kind qn__dtype_kind(qn_dtype dtype)
{
    if (dtype == QN_BOOL)
        return QN__BOOL;
    if (dtype <= QN_U64)
        return QN__UNSIGNED;
    return dtype <= QN_I64 ? QN__SIGNED : QN__FLOAT;
}

qn_dtype qn__dtype_promote(qn_dtype a, qn_dtype b)
{
    if (a == b)
        return a;
    qn__kind ka = qn__dtype_kind(a), kb = qn__dtype_kind(b);
    if (ka > kb) {
        qn_dtype t = a;
        a = b;
        b = t;
        qn__kind k = ka;
        ka = kb;
        kb = k;
    }
    if (ka == QN__BOOL || (kb == QN__FLOAT && ka != QN__FLOAT))
        return b;
    if (ka == QN__FLOAT && (a > b ? a : b) == QN_BF16)
        return QN_F32; /* f16 with bf16 */
    if (ka == kb)
        return a > b ? a : b;
    /* a is unsigned, b signed */
    if (a == QN_U64)
        return QN_F32;
    qn_dtype holds_a = (qn_dtype)(QN_I16 + (a - QN_U8));
    return holds_a > b ? holds_a : b;
}

/* Towards zero; out of range saturates (past INT64_MAX only u64 goes on), NaN gives 0. */
static int64_t whole_of(double v, bool is_u64)
{
    if (v != v)
        return 0;
    if (v >= 0x1p63 && is_u64)
        return v >= 0x1p64 ? -1 : (int64_t)((uint64_t)(v - 0x1p63) + ((uint64_t)1 << 63));
    if (v >= 0x1p63)
        return INT64_MAX;
    return v <= -0x1p63 ? INT64_MIN : (int64_t)v;
}

double qn__element_to_f64(const void *p, qn_dtype dtype)
{
    switch (dtype) {
    case QN_F16: return qn__f16_to_f32(*(const uint16_t *)p);
    case QN_BF16: return qn__bf16_to_f32(*(const uint16_t *)p);
    case QN_F32: return *(const float *)p;
    case QN_F64: return *(const double *)p;
    case QN_U64: return (double)*(const uint64_t *)p;
    default: return (double)qn__element_to_i64(p, dtype);
    }
}

int64_t qn__element_to_i64(const void *p, qn_dtype dtype)
{
    switch (dtype) {
    case QN_BOOL: return *(const uint8_t *)p != 0;
    case QN_U8: return *(const uint8_t *)p;
    case QN_U16: return *(const uint16_t *)p;
    case QN_U32: return *(const uint32_t *)p;
    case QN_U64: return (int64_t) * (const uint64_t *)p;
    case QN_I8: return *(const int8_t *)p;
    case QN_I16: return *(const int16_t *)p;
    case QN_I32: return *(const int32_t *)p;
    case QN_I64: return *(const int64_t *)p;
    default: return whole_of(qn__element_to_f64(p, dtype), false);
    }
}

void qn__element_from_f64(void *p, qn_dtype dtype, double value)
{
    switch (dtype) {
    case QN_F16: *(uint16_t *)p = qn__f32_to_f16((float)value); break;
    case QN_BF16: *(uint16_t *)p = qn__f32_to_bf16((float)value); break;
    case QN_F32: *(float *)p = (float)value; break;
    case QN_F64: *(double *)p = value; break;
    case QN_BOOL: *(uint8_t *)p = value != 0; break;
    default: qn__element_from_i64(p, dtype, whole_of(value, dtype == QN_U64)); break;
    }
}

void qn__element_from_i64(void *p, qn_dtype dtype, int64_t value)
{
    switch (dtype) {
    case QN_BOOL: *(uint8_t *)p = value != 0; break;
    case QN_U8:
    case QN_I8: *(uint8_t *)p = (uint8_t)value; break;
    case QN_U16:
    case QN_I16: *(uint16_t *)p = (uint16_t)value; break;
    case QN_U32:
    case QN_I32: *(uint32_t *)p = (uint32_t)value; break;
    case QN_U64:
    case QN_I64: *(uint64_t *)p = (uint64_t)value; break;
    default: qn__element_from_f64(p, dtype, (double)value); break;
    }
}
