/* SPDX-License-Identifier: Apache-2.0
 *
 * Zip archives, through libzip: what npz files and PyTorch's checkpoints are. Opening checks the
 * directory: number of members, their names, methods and sizes. Members are streams; their checksum
 * is compared when their last byte is read. err is never NULL here.
 */
#ifndef QN_IO_ARCHIVE_H
#define QN_IO_ARCHIVE_H

#include "io/tensors.h"

typedef struct qn__archive qn__archive;

/* QN_UNSUPPORTED in a build without libzip. `file` stays the caller's, and is to outlive the
 * archive. */
qn_status qn__archive_open(qn__archive **out, const qn__file *file, qn_error *err);
void qn__archive_close(qn__archive *archive); /* NULL is accepted */

uint32_t qn__archive_count(const qn__archive *archive);
const char *qn__archive_name(const qn__archive *archive, uint32_t member);
uint64_t qn__archive_size(const qn__archive *archive, uint32_t member); /* inflated */

/* The member of that name; -1: none. */
int64_t qn__archive_find(const qn__archive *archive, const char *name);

/* n bytes from `offset` of a member, which must have them. From several threads; fastest front to
 * back. */
qn_status qn__archive_read(qn__archive *archive, uint32_t member, uint64_t offset, size_t n,
                           void *dst, qn_error *err);

/* The tensors of an archive that has been opened as t->files[i].state. */
qn_status qn__npz_load(qn_tensors *t, uint32_t i, qn_error *err);
qn_status qn__torch_load(qn_tensors *t, uint32_t i, uint32_t pickle, qn_error *err);

/* The member PREFIX/data.pkl that makes an archive a PyTorch checkpoint; -1: none. */
int64_t qn__torch_find(const qn__archive *archive);

#endif
