/* SPDX-License-Identifier: Apache-2.0
 *
 * The element types of safetensors by name: those of QN_DTYPE_LIST, and those that the format
 * knows but we don't, for a clear message.
 */
#ifndef QN_IO_SAFETENSORS_DTYPE_H
#define QN_IO_SAFETENSORS_DTYPE_H

#include "quern/array.h"

#define QN__SAFETENSORS_DTYPES "BOOL, U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64"

/* QN_OK and the type; QN_UNSUPPORTED for a type of the format that we lack; QN_FORMAT otherwise. */
qn_status qn__safetensors_dtype(const char *name, size_t size, qn_dtype *dtype);

const char *qn__safetensors_dtype_name(qn_dtype dtype);
uint64_t qn__safetensors_dtype_size(qn_dtype dtype);

#endif
