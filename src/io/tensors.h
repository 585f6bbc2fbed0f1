/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands behind quern/io.h: a table of tensors over one or more files, each of a kind that
 * knows how to read its table and its bytes. Kinds append to the table; tensors.c sorts it and
 * refuses equal names. index.c spreads it over shards. Inside, err is never NULL.
 */
#ifndef QN_IO_TENSORS_H
#define QN_IO_TENSORS_H

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "quern/io.h"

#include <pthread.h>

enum { QN__MAX_SHARDS = 1000 };

typedef struct qn__metadata {
    const char *key, *value;
} qn__metadata;

typedef struct qn__tensor_file {
    qn__file file;
    const struct qn__file_kind *kind;
    void *state;        /* the kind's own; NULL: none */
    uint64_t name_hash; /* of the name in the index, to find it again */
    const char *name;
} qn__tensor_file;

typedef struct qn__file_kind {
    /* Appends the tensors of t->files[i], whose `file` is open, with absolute offsets. */
    qn_status (*load)(qn_tensors *t, uint32_t i, qn_error *err);
    /* n bytes from `offset` of a member; NULL: bytes of the file. From several threads. */
    qn_status (*read)(const qn__tensor_file *file, uint32_t member, uint64_t offset, size_t n,
                      void *dst, qn_error *err);
    void (*close)(void *state);
} qn__file_kind;

/* A tensor whose elements are not in row-major order: stored element at index i is i . stride. */
typedef struct qn__element_order {
    int64_t stride[QN_MAX_NDIM]; /* in elements, none negative */
    uint64_t span;               /* bytes from the first to the end of the last element */
} qn__element_order;

struct qn_tensors {
    qn__arena names;
    qn__tensor_file *files;
    uint32_t n_files;
    qn_tensor_info *tensors;
    size_t n_tensors, capacity;
    qn__metadata *metadata;
    size_t n_metadata;
    /* The tensor with a layout that was read last, in row-major order. */
    pthread_mutex_t lock;
    const qn_tensor_info *gathered;
    char *gathered_data;
};

extern const qn__file_kind qn__safetensors_kind, qn__gguf_kind, qn__npy_kind, qn__archive_kind;

/* The metadata of the first file where that is GGUF; else NULL. Lives as long as the table. */
const struct qn__gguf *qn__tensors_gguf(const qn_tensors *t);

/* Whether some are read fastest front to back, by one reader: streams, and what is gathered. */
bool qn__tensors_in_order(const qn_tensors *t);

/* Opens t->files[i] by its path and appends its tensors. */
qn_status qn__tensors_load(qn_tensors *t, uint32_t i, const char *path, qn_error *err);

/* Loads the shards that an index names, and checks its map. */
qn_status qn__tensors_load_index(qn_tensors *t, const char *path, qn_error *err);

/* A zeroed entry at the table's end, not counted yet; NULL: no memory. */
qn_tensor_info *qn__tensors_add(qn_tensors *t);

/* Sorts by name; a name that stands twice is an error. */
qn_status qn__tensors_sort(qn_tensors *t, qn_error *err);

/* Room for one more element of `size` bytes; false when memory is out. */
bool qn__grow_table(void **items, size_t n, size_t *capacity, size_t size);

/* The bytes of a shape; false when the product does not fit. */
bool qn__tensor_bytes(qn_dtype dtype, int ndim, const int64_t *shape, uint64_t *bytes);

#endif
