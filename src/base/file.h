/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: reading whole or by position, names that come from a file, and atomic writing.
 *
 * Reads go through read and pread, never mmap, so that a file that shrinks is an error with an
 * offset and not a signal. Only regular files are opened: a directory or FIFO is refused by name
 * before anything can block. Messages name the path as given.
 */
#ifndef QN_BASE_FILE_H
#define QN_BASE_FILE_H

#include "base/error.h"

#include <stdbool.h>

/* The whole file in *data (malloc; one NUL behind it that *size does not count). Longer than
 * max_size: QN_LIMIT. */
qn_status qn__file_read(const char *path, size_t max_size, char **data, size_t *size,
                        qn_error *err);

/* A file open for reading. Several threads may read at once. */
typedef struct qn__file {
    int fd;
    uint64_t size; /* when it was opened */
    char *path;
} qn__file;

/* On failure *file is {.fd = -1} and may be closed. */
qn_status qn__file_open(qn__file *file, const char *path, qn_error *err);
void qn__file_close(qn__file *file);

/* Exactly n bytes from `offset`; a file that ends before is QN_IO with both offsets. */
qn_status qn__file_pread(const qn__file *file, uint64_t offset, void *dst, size_t n, qn_error *err);

/* Whether `path` is a directory; a missing path is QN_NOT_FOUND. */
qn_status qn__path_is_directory(const char *path, bool *is_directory, qn_error *err);

/* Makes a directory, and those that it lies in, for the user alone; false, with errno: it cannot.
 */
bool qn__path_make(const char *path);

/* directory + "/" + name, unchecked; malloc, NULL when memory is out. */
char *qn__path_join(const char *directory, const char *name);

/* The directory part of `path` ("." when it has none); malloc, NULL when memory is out. */
char *qn__path_parent(const char *path);

/* Resolves a name that a model's file mentions to the real path inside the model's directory
 * (malloc). `name` is size bytes and hostile: refused are absolute names, "..", NUL, and links
 * that lead out of the directory, but for the layout of the Hugging Face cache, where
 * snapshots/REVISION/file is a link to ../../blobs/HASH. A missing file is QN_NOT_FOUND. */
qn_status qn__path_resolve(const char *directory, const char *name, size_t size, char **out,
                           qn_error *err);

/* ---- atomic writing -------------------------------------------------------------------------- */

/* A new file that appears under its name complete or not at all: written to a temporary file in
 * the same directory, synced, then renamed. */
typedef struct qn__writer qn__writer;

enum { QN__WRITER_REPLACE = 1 }; /* an existing file is replaced, else it's an error */

/* `expected` is the final size for the message when the disk is full; 0: unknown. */
qn_status qn__writer_open(qn__writer **out, const char *path, uint64_t expected, unsigned flags,
                          qn_error *err);
qn_status qn__writer_write(qn__writer *writer, const void *data, size_t n, qn_error *err);

/* Makes the file durable and visible. Frees the writer also when it fails: then the temporary
 * file is gone and an existing target untouched. */
qn_status qn__writer_commit(qn__writer *writer, qn_error *err);

/* Makes the names in a directory durable: what is complete could lose its name in a power cut.
 * Some file systems cannot: that is no failure. `path` is for messages. */
qn_status qn__path_sync(const char *directory, const char *path, qn_error *err);

/* Deletes the temporary file; NULL is accepted. */
void qn__writer_abort(qn__writer *writer);

/* All of these: a file of these n bytes. */
qn_status qn__file_write(const char *path, const void *data, size_t n, unsigned flags,
                         qn_error *err);

#endif
