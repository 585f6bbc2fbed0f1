/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about element types: size, kind, promotion, one element as a number.
 */
#ifndef QN_CORE_DTYPE_H
#define QN_CORE_DTYPE_H

#include "quern/array.h"

#include "base/half.h"

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

/* One element as a double or an integer: for constants and typed reads, not for loops. */
double qn__element_to_f64(const void *p, qn_dtype dtype);
int64_t qn__element_to_i64(const void *p, qn_dtype dtype);
void qn__element_from_f64(void *p, qn_dtype dtype, double value);
void qn__element_from_i64(void *p, qn_dtype dtype, int64_t value);

#endif
