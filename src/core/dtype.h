/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about element types: size, kind, promotion, and conversion of one 16-bit float.
 */
#ifndef QN_CORE_DTYPE_H
#define QN_CORE_DTYPE_H

#include "quern/array.h"

#include <string.h>

typedef enum qn__kind { QN__BOOL, QN__UNSIGNED, QN__SIGNED, QN__FLOAT } qn__kind;

size_t qn__dtype_size(qn_dtype dtype);
qn__kind qn__dtype_kind(qn_dtype dtype);

static inline bool qn__is_float(qn_dtype dtype)
{
    return dtype >= QN_F16;
}

/* The type both operands are brought to, as in JAX's table: bool below integers below floats,
 * f16 with bf16 gives f32, unsigned with signed the next signed that holds both (u64: f32). */
qn_dtype qn__dtype_promote(qn_dtype a, qn_dtype b);

/* The type that arithmetic on `dtype` is done in: f32 for 16-bit floats, otherwise itself. */
static inline qn_dtype qn__dtype_compute(qn_dtype dtype)
{
    return dtype == QN_F16 || dtype == QN_BF16 ? QN_F32 : dtype;
}

static inline float qn__bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, 4);
    return f;
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t qn__f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float qn__f16_to_f32(uint16_t bits);
uint16_t qn__f32_to_f16(float f);

/* One element as a double or an integer: for constants and typed reads, not for loops. */
double qn__element_to_f64(const void *p, qn_dtype dtype);
int64_t qn__element_to_i64(const void *p, qn_dtype dtype);
void qn__element_from_f64(void *p, qn_dtype dtype, double value);
void qn__element_from_i64(void *p, qn_dtype dtype, int64_t value);

#endif
