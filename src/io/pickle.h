/* SPDX-License-Identifier: Apache-2.0
 *
 * The pickle inside a PyTorch checkpoint, read as data: a machine that builds numbers, strings,
 * tuples, lists, dictionaries, storages and tensors, and calls nothing. What a pickle may name is a
 * short list; every other name is refused, and said.
 */
#ifndef QN_IO_PICKLE_H
#define QN_IO_PICKLE_H

#include "base/arena.h"
#include "base/error.h"
#include "quern/array.h"

/* A tensor that lies inside its storage, which has `n_stored` elements under the name `key`. */
typedef struct qn__pickled_tensor {
    qn_dtype dtype;
    int ndim;
    int64_t shape[QN_MAX_NDIM], stride[QN_MAX_NDIM]; /* in elements, none negative */
    int64_t offset;                                  /* of the first element */
    const char *key;                                 /* key_size bytes */
    size_t key_size;
    int64_t n_stored;
} qn__pickled_tensor;

/* Called for each tensor found, in the order of the dictionaries; `name` is borrowed. */
typedef qn_status qn__pickle_visit(void *user, const char *name, const qn__pickled_tensor *tensor,
                                   qn_error *err);

/* `where` begins every message. */
qn_status qn__pickle_read(const char *where, const char *data, size_t n, qn__pickle_visit *visit,
                          void *user, qn_error *err);

#endif
