/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of named tensors: safetensors, GGUF, NumPy's npz and npy, PyTorch's checkpoints.
 *
 *     qn_tensors *file;
 *     if (qn_tensors_open(&file, "model.safetensors", &err) != QN_OK)
 *         fprintf(stderr, "%s\n", err.message);
 *     qn_array *w = qn_tensors_read(s, file, "model.norm.weight");
 *
 * Opening reads headers only, and checks them completely: afterwards every tensor's bytes are known
 * to lie inside its file as it was then. An open file is immutable; any number of threads may read
 * from it.
 *
 * Formats: https://github.com/huggingface/safetensors#format,
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html,
 * https://pytorch.org/docs/stable/notes/serialization.html,
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#ifndef QUERN_IO_H
#define QUERN_IO_H

#include "quern/array.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct qn_tensors qn_tensors;

/* Made by the library alone, which hands out pointers to its own: so it may grow at its end. Fields
 * up to `bytes` are for everyone; the others belong to the reader. Lives as long as the file is
 * open. */
typedef struct qn_tensor_info {
    const char *name; /* UTF-8 */
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM];
    uint64_t bytes;     /* the product of the shape times the dtype's size, but see encoding */
    uint32_t file;      /* for qn_tensors_path */
    uint32_t member;    /* of an archive */
    uint64_t offset;    /* of the first byte, from the beginning of the file or member */
    const void *layout; /* NULL: row-major */
    /* NULL: elements of dtype. Else how the values are packed in blocks, by GGUF's name of it
     * ("q4_0"): the shape counts values, `bytes` the blocks, and dtype is what decoding gives. */
    const char *encoding;
} qn_tensor_info;

/* Opens a file, told by its first bytes and not by its name:
 *   safetensors;
 *   GGUF, versions 2 and 3, little-endian; of a split model the first part, which brings the
 * others. Dimensions are the other way round than in the file: rows first, the contiguous ones
 * last; npz (stored or deflated) and npy, little-endian, whose one tensor has the file's name
 * without .npy; PyTorch's .pth, .pt, .bin (the zip format, since PyTorch 1.6): tensors and
 * dictionaries of them, by a reader that runs no code. {"state_dict": {...}}, {"model": {...}} and
 * the like are looked into; inner dictionaries give names joined with dots; or an .index.json with
 * its shards, or a model directory that holds one of these: model.safetensors,
 * model.safetensors.index.json, pytorch_model.bin, pytorch_model.bin.index.json, model.npz,
 * weights.npz, consolidated.safetensors, consolidated.00.pth. Archives need libzip, a build option:
 * without it they are QN_UNSUPPORTED. */
QN_API qn_status qn_tensors_open(qn_tensors **out, const char *path, qn_error *err);
QN_API void qn_tensors_close(qn_tensors *file); /* NULL is accepted */

/* Tensors are sorted by name (bytewise). i is below the count. */
QN_API size_t qn_tensors_count(const qn_tensors *file);
QN_API const qn_tensor_info *qn_tensors_get(const qn_tensors *file, size_t i);
QN_API const qn_tensor_info *qn_tensors_find(const qn_tensors *file,
                                             const char *name); /* NULL: none */

/* The path of a tensor's file, for messages; i is its `file`, or 0. */
QN_API const char *qn_tensors_path(const qn_tensors *file, uint32_t i);

/* A value of the first safetensors file's __metadata__; NULL when absent. */
QN_API const char *qn_tensors_metadata(const qn_tensors *file, const char *key);

/* The tensor as an array of its own type, what is encoded decoded to f32; poison, with file and
 * name in the scope's error, when it is not there or cannot be read. With an encoding:
 * QN_UNSUPPORTED. */
QN_API qn_array *qn_tensors_read(qn_scope *s, const qn_tensors *file, const char *name);

/* n bytes of the row-major tensor from byte_offset on into dst. Compressed members are read fastest
 * front to back. */
QN_API qn_status qn_tensors_read_bytes(const qn_tensors *file, const qn_tensor_info *tensor,
                                       uint64_t byte_offset, size_t n, void *dst, qn_error *err);

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct qn_named_array {
    const char *name;
    qn_array *array;
} qn_named_array;

/* Evaluates the arrays and writes them to one file that appears complete or not at all, replacing
 * an existing one. The suffix of `path` picks the format: .safetensors, .npz (stored) or .npy (one
 * array, whose name is not kept). NumPy has no bf16: QN_UNSUPPORTED there. */
QN_API qn_status qn_tensors_write(qn_scope *s, const char *path, const qn_named_array *arrays,
                                  int n, qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
