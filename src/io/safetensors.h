/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors: a table of tensors checked completely when opened, bytes read on demand.
 * https://github.com/huggingface/safetensors#format
 *
 * A path is one .safetensors file, an .index.json, or a directory that holds model.safetensors or
 * model.safetensors.index.json with its shards. Opening reads headers only. Afterwards every
 * tensor's bytes are known to lie inside its file as it was then; a file that is cut later is an
 * error of the read. A reader is immutable: any number of threads may read from it.
 */
#ifndef QN_IO_SAFETENSORS_H
#define QN_IO_SAFETENSORS_H

#include "base/error.h"
#include "quern/array.h"

#define QN__SAFETENSORS_MAX_HEADER 100000000u
#define QN__SAFETENSORS_MAX_SHARDS 1000

typedef struct qn__safetensors qn__safetensors;

typedef struct qn__tensor_info {
    const char *name;
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM];
    uint32_t file;   /* index of the shard, for qn__safetensors_path */
    uint64_t offset; /* of the first byte, from the beginning of that file */
    uint64_t size;   /* bytes: the product of the shape times the dtype's size */
} qn__tensor_info;

qn_status qn__safetensors_open(qn__safetensors **out, const char *path, qn_error *err);
void qn__safetensors_close(qn__safetensors *reader); /* NULL is accepted */

/* Tensors are sorted by name (bytewise); the infos live as long as the reader. */
size_t qn__safetensors_count(const qn__safetensors *reader);
const qn__tensor_info *qn__safetensors_tensor(const qn__safetensors *reader, size_t i);
const qn__tensor_info *qn__safetensors_find(const qn__safetensors *reader, const char *name);

/* Path of shard i for messages. */
const char *qn__safetensors_path(const qn__safetensors *reader, uint32_t file);

/* A value of the first file's __metadata__; NULL when absent. */
const char *qn__safetensors_metadata(const qn__safetensors *reader, const char *key);

/* n bytes of the tensor from byte_offset on into dst. */
qn_status qn__safetensors_read(const qn__safetensors *reader, const qn__tensor_info *tensor,
                               uint64_t byte_offset, size_t n, void *dst, qn_error *err);

/* ---- writing -------------------------------------------------------------------------------- */

typedef struct qn__tensor_data {
    const char *name;
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM];
    const void *data; /* dense, row-major, little-endian; borrowed */
} qn__tensor_data;

typedef struct qn__metadata {
    const char *key, *value;
} qn__metadata;

/* Writes one file atomically, replacing an existing one. The data are laid out by falling element
 * size, then by name, so that every tensor is aligned. */
qn_status qn__safetensors_write(const char *path, const qn__tensor_data *tensors, size_t n,
                                const qn__metadata *metadata, size_t n_metadata, qn_error *err);

#endif
