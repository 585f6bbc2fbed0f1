/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a .npy file, which a member of an .npz is, too: versions 1 to 3, read and written.
 */
#ifndef QN_IO_NPY_H
#define QN_IO_NPY_H

#include "io/tensors.h"

/* Bytes of the file or member from `offset` on. */
typedef qn_status qn__npy_source(void *user, uint64_t offset, size_t n, void *dst, qn_error *err);

/* Reads the header of `size` bytes from the source and fills dtype, shape, size, offset and layout
 * of the tensor. `where` begins every message. The data must end where the source does. */
qn_status qn__npy_parse(qn_tensors *t, qn_tensor_info *info, const char *where, uint64_t size,
                        qn__npy_source *source, void *user, qn_error *err);

enum { QN__NPY_HEADER = 256 }; /* room that a header needs at most */

/* A version 1 header, padded so that the data begin at a multiple of 64; returns its bytes, or 0
 * for a type that NumPy has not (bf16). */
size_t qn__npy_format(char out[QN__NPY_HEADER], qn_dtype dtype, int ndim, const int64_t *shape);

#endif
