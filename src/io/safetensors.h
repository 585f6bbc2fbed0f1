/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors: a JSON table of tensors and their bytes. The reader is a kind of file behind
 * quern/io.h (io/tensors.h); this is the writer, for tensors in host memory.
 * https://github.com/huggingface/safetensors#format
 */
#ifndef QN_IO_SAFETENSORS_H
#define QN_IO_SAFETENSORS_H

#include "io/tensors.h"

#define QN__SAFETENSORS_MAX_HEADER 100000000u

typedef struct qn__tensor_data {
    const char *name;
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM];
    const void *data; /* dense, row-major, little-endian; borrowed */
} qn__tensor_data;

/* Writes one file atomically, replacing an existing one. The data are laid out by falling element
 * size, then by name, so that every tensor is aligned. */
qn_status qn__safetensors_write(const char *path, const qn__tensor_data *tensors, size_t n,
                                const qn__metadata *metadata, size_t n_metadata, qn_error *err);

/* The same of tensors that are not in memory: put writes the bytes of each, in the file's order;
 * `data` is put's own. */
typedef qn_status qn__tensor_put(void *user, qn__writer *writer, const qn__tensor_data *tensor,
                                 qn_error *err);
qn_status qn__safetensors_write_with(const char *path, const qn__tensor_data *tensors, size_t n,
                                     const qn__metadata *metadata, size_t n_metadata,
                                     qn__tensor_put *put, void *user, qn_error *err);

#endif
