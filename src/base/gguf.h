/* SPDX-License-Identifier: Apache-2.0
 *
 * The container of GGUF files: what stands before a model's weights. A header, named values
 * ("metadata"), and a table of tensors; https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 * describes it. Versions 2 and 3, little-endian.
 *
 * The part is read as far as it goes, into memory that grows with what the file holds, never with
 * what it claims. An open container has been checked completely: every value and text lies inside
 * it, keys are unique, booleans are 0 or 1, every tensor's place is inside the file. What a
 * tensor's type means and how long it is, io/gguf.c says; that names are unique, io/tensors.c.
 *
 * A getter that takes an error names file, key, what was expected and what there is.
 */
#ifndef QN_BASE_GGUF_H
#define QN_BASE_GGUF_H

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"

enum {
    QN__GGUF_MAX_HEADER = 64 << 20, /* bytes before the weights; real ones have up to 20 million */
    QN__GGUF_MAX_TEXT = 16 << 20,   /* bytes of one text */
    QN__GGUF_MAX_VALUES = 1 << 16,
    QN__GGUF_MAX_TENSORS = 1 << 18,
    QN__GGUF_MAX_DIMS = 4
};

/* The format's numbers. */
typedef enum qn__gguf_type {
    QN__GGUF_U8,
    QN__GGUF_I8,
    QN__GGUF_U16,
    QN__GGUF_I16,
    QN__GGUF_U32,
    QN__GGUF_I32,
    QN__GGUF_F32,
    QN__GGUF_BOOL,
    QN__GGUF_STRING,
    QN__GGUF_ARRAY,
    QN__GGUF_U64,
    QN__GGUF_I64,
    QN__GGUF_F64
} qn__gguf_type;

/* A text of the file; it is not terminated, and its bytes may be anything. */
typedef struct qn__gguf_text {
    const char *data;
    size_t n;
} qn__gguf_text;

/* A value, or an array of them. */
typedef struct qn__gguf_value {
    const char *key;    /* UTF-8 */
    qn__gguf_type type; /* of the elements */
    bool is_array;
    uint64_t n; /* elements; 1 where it is no array */
    const char *data;
    size_t size; /* bytes of data */
} qn__gguf_value;

typedef struct qn__gguf_tensor {
    const char *name; /* UTF-8 */
    uint32_t type;    /* ggml's number */
    int ndim;
    int64_t dims[QN__GGUF_MAX_DIMS]; /* the innermost, contiguous one first */
    uint64_t offset;                 /* from the beginning of the file */
} qn__gguf_tensor;

typedef struct qn__gguf {
    const char *path; /* for messages: the file's, borrowed */
    uint32_t version;
    qn__gguf_value *values; /* sorted by key */
    size_t n_values;
    qn__gguf_tensor *tensors; /* in the file's order */
    size_t n_tensors;
    uint64_t alignment, data_start, file_size;
    char *bytes; /* of the file, up to the weights */
    qn__arena names;
} qn__gguf;

/* Reads the container of an open file, which must outlive *out; on failure *out is empty. */
qn_status qn__gguf_read(qn__gguf *out, const qn__file *file, qn_error *err);

/* The same of a file that is opened for that alone; `path` must outlive *out. */
qn_status qn__gguf_open(qn__gguf *out, const char *path, qn_error *err);
void qn__gguf_free(qn__gguf *g);

/* Whether the file begins as GGUF does. What cannot be read does not. */
bool qn__gguf_is(const char *path);

/* The GGUF file that `path` stands for, into *out (malloc): itself, or the only one of a directory
 * without a config.json, where the parts of a split model are one, and mmproj files (what reads
 * images) are none. *out NULL: it stands for none. Several in a directory: QN_INVALID. */
qn_status qn__gguf_locate(const char *path, char **out, qn_error *err);

const char *qn__gguf_type_name(qn__gguf_type type);

/* NULL: none of that key. */
const qn__gguf_value *qn__gguf_find(const qn__gguf *g, const char *key);

/* A value that may be missing: *out keeps what it holds then. Integers may have any width, and
 * floating-point numbers are finite and in range. */
qn_status qn__gguf_opt_int(const qn__gguf *g, const char *key, int64_t min, int64_t max,
                           int64_t *out, qn_error *err);
qn_status qn__gguf_opt_number(const qn__gguf *g, const char *key, double min, double max,
                              double *out, qn_error *err);
qn_status qn__gguf_opt_bool(const qn__gguf *g, const char *key, bool *out, qn_error *err);
qn_status qn__gguf_opt_text(const qn__gguf *g, const char *key, qn__gguf_text *out, qn_error *err);

/* An array of `type` (any integers for QN__GGUF_I32); *out NULL: there is none. */
qn_status qn__gguf_opt_array(const qn__gguf *g, const char *key, qn__gguf_type type,
                             const qn__gguf_value **out, qn_error *err);

/* Fails with QN_FORMAT where the key is missing. */
qn_status qn__gguf_require(const qn__gguf *g, const char *key, qn_error *err);

/* Element i < v->n of numbers or booleans. */
int64_t qn__gguf_int_at(const qn__gguf_value *v, uint64_t i);
double qn__gguf_number_at(const qn__gguf_value *v, uint64_t i);

/* A walk over texts: *at is 0 first; false behind the last. */
bool qn__gguf_next_text(const qn__gguf_value *v, size_t *at, qn__gguf_text *out);

bool qn__gguf_text_is(const qn__gguf_text *text, const char *word);

#endif
