/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside a conversion: what is to be written, tensor by tensor, and by whom.
 *
 * Problem: the same weight lies in files in several ways: rows of queries and keys in pairs or not,
 * norms with their 1 or without, blocks of some encoding. Approach: a plan lists the tensors of the
 * output, each with where its rows come from and what happens to them on the way; rows.c carries it
 * out, one piece at a time, and the two writers (gguf_out.c, directory_out.c) put a header before.
 */
#ifndef QN_CONVERT_CONVERT_H
#define QN_CONVERT_CONVERT_H

#include "base/file.h"
#include "base/team.h"
#include "convert/recipe.h"
#include "models/adapter.h"
#include "models/load.h"
#include "models/quantized.h"
#include "quern/convert.h"

/* Which part of each block goes into a tensor: MLX keeps them apart. */
typedef enum qn__block_part {
    QN__BLOCK_WHOLE,
    QN__BLOCK_CODES,
    QN__BLOCK_SCALE,
    QN__BLOCK_BIAS
} qn__block_part;

typedef struct qn__output_tensor {
    char name[140];
    const qn_tensor_info *from; /* NULL: `values` has it, in f32 */
    const float *values;
    qn__weight weight;          /* of codes, scales and such, ternary, units: how rows are read */
    const qn__encoding *source; /* NULL: the bytes are copied as they are */
    const qn__encoding *target;
    const qn__encoding *dense; /* of parts: the type that the values have before */
    int ndim;
    int64_t shape[QN_MAX_NDIM]; /* values, rows first */
    int64_t rows, columns;      /* the same as a matrix; a vector is a column */
    /* Rows of a head, of which there are so many, change their order: into pairs, or out of them.
     * 0: they stay. */
    int64_t head_rows;
    bool into_pairs;
    float added;  /* to every value */
    bool ternary; /* rows come as -1, 0 and 1, and `times` is what they mean */
    float times;
    qn__block_part part;
    bool units;                 /* rows are packed as the CPU has them */
    const qn__parameter *fused; /* whose adapters' products are added to the rows; NULL: none */
    bool pairs;                 /* the output's rows, of heads of head_dim, are in pairs */
    const float *a, *b;         /* of fused ones, the parameter's [ranks, columns], [rows, ranks] */
    uint64_t bytes;             /* in the output */
} qn__output_tensor;

typedef struct qn__override {
    void *pattern; /* regex_t */
    const char *type;
} qn__override;

typedef struct qn__conversion {
    qn_device *device; /* for the log */
    const qn_convert_options *options;
    const char *out;
    qn__source source;
    qn__decoder
        decoder; /* described; zero where the tensors of a GGUF file are taken as they are */
    qn__override *overrides;
    const qn__recipe *recipe; /* NULL: as they are */
    qn__output_tensor *tensors;
    size_t n_tensors, capacity;
    float *divisors; /* of the frequencies, where they become a tensor */
    qn__adapter_place *places;
    qn__adapters *adapters; /* NULL: none */
    qn__team *team;
    char *in, *converted, *scratch, *packed; /* a piece; of each thread two rows */
    size_t in_size, converted_size, scratch_size, scratch_each, packed_size;
    uint64_t done, total;
    qn_error *err;
} qn__conversion;

/* Appends a zeroed tensor; NULL with the error filled: no memory. */
qn__output_tensor *qn__conversion_add(qn__conversion *c);

/* Takes over a tensor's shape and encoding; it stays what it is until its target is set. */
void qn__output_from(qn__output_tensor *t, const qn_tensor_info *from);

/* The same of a decoder's parameter, whose rows may be of several tensors. */
qn_status qn__output_from_parameter(qn__conversion *c, qn__output_tensor *t,
                                    const qn__parameter *p);

/* fuse.c: opens the options' adapters for the decoder, which is described. */
qn_status qn__fuse_begin(qn__conversion *c);
void qn__fuse_end(qn__conversion *c);

/* Marks a tensor to which adapters add. `pairs`: its rows come out in pairs. */
void qn__fuse_mark(const qn__conversion *c, qn__output_tensor *t, const qn__parameter *p,
                   bool pairs);

/* Fails where a marked tensor has a target that cannot be written anew. */
qn_status qn__fuse_check(const qn__conversion *c, const qn__output_tensor *t);

/* Adds their product to a row of the output. */
void qn__fuse_row(const qn__conversion *c, const qn__output_tensor *t, int64_t row, float *values);

/* Fills `bytes` for source, target and part; fails where the rows are no whole blocks. */
qn_status qn__output_measure(qn__conversion *c, qn__output_tensor *t);

/* The TYPE of the first pattern that matches; NULL: none does. */
const char *qn__override_for(const qn__conversion *c, const char *name);

/* The end of the file that begins with tensor `first`, and how many files there are. */
size_t qn__shard_end(const qn__conversion *c, size_t first);
size_t qn__count_shards(const qn__conversion *c);

/* The type that an override (NULL: there is none) or the recipe gives a matrix by GGUF's name of
 * it, in *encoding; -1: neither says any. */
qn_status qn__output_choose(const qn__conversion *c, const qn__recipe_model *m,
                            const char *override, const char *name, int64_t columns, int *encoding);

/* Where a row of heads of n rows in pairs stands when half a head lies behind the other. */
static inline int64_t qn__row_of_pairs(int64_t row, int64_t n)
{
    int64_t i = row % n;
    return row - i + i / 2 + i % 2 * (n / 2);
}

/* rows.c: writes the bytes of a tensor. */
qn_status qn__write_tensor(qn__conversion *c, qn__writer *writer, const qn__output_tensor *t);

/* gguf_out.c: the whole of a GGUF file. */
qn_status qn__convert_to_gguf(qn__conversion *c);

/* directory_out.c: the whole of a directory. */
qn_status qn__convert_to_directory(qn__conversion *c);

#endif
