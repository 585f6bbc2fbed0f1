/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts: how a device lays a weight out in memory.
 *
 * Problem: a file writes row after row; a kernel wants the same columns of many rows side by side,
 * every byte once, nothing wider than in the file. Approach: a packed weight is a sequence of units
 * of 16 rows by U columns, for each group of 16 rows one unit after the other along the columns. A
 * unit holds the 16 rows' blocks as the file encodes them (quant/encoding.h), but turned: word i of
 * row 0, of row 1, ... of row 15, then word i + 1; so that a 64-byte load is four bytes of each of
 * 16 rows, and every field that a decoder takes apart in a scalar is taken apart in lanes. Only
 * affine and zeroed codes are put into another order, by planes of bits.
 *
 * So a slice of 16 r rows, an expert or a shard is "some units", and packing can be undone to the
 * byte. Rows past the last and blocks past the last column are zero, and so are their values.
 *
 * A layout is one row of the table in layout.c; a kernel needs of it no more than how a unit
 * becomes codes, scales and biases (cpu/kernels/units.inl). The value of a column is scale * (code
 * - zero) + bias, both rounded.
 */
#ifndef QN_QUANT_LAYOUT_H
#define QN_QUANT_LAYOUT_H

#include "quant/encoding.h"

enum { QN__UNIT_ROWS = 16, QN__UNIT_FIELDS = 5 };

/* Where a row of activations becomes bytes with one scale, the largest magnitude is 127, but no
 * less than this is: BitNet's. */
#define QN__LEAST_OF_ROW  1e-5f

/* Files hold units, too (models/weight.h): raise it when any unit's bytes change. */
#define QN__UNITS_VERSION "1"

/* 0: plain strided elements. Else 1 + the encoding whose blocks the units hold. */
typedef uint8_t qn__layout_id;
enum { QN__PLAIN = 0, QN__LAYOUT_COUNT = QN__ENCODING_COUNT + 1 };
#define QN__UNITS_OF(encoding) ((qn__layout_id)(1 + (encoding)))

/* A part of each block, in words of `word` bytes (1, 2, 4). */
typedef struct qn__unit_field {
    uint8_t offset, bytes, word;
} qn__unit_field;

typedef struct qn__layout {
    const qn__encoding *encoding;
    uint16_t columns;    /* U */
    uint16_t row_bytes;  /* of U columns of one row in the file */
    uint16_t unit_bytes; /* a multiple of 64 */
    uint8_t blocks;      /* of the encoding, in U columns */
    uint8_t step;        /* columns that share scale and bias, 64 at most; 0: plain floats */
    uint8_t zero;        /* the code of 0 */
    uint8_t top;         /* the largest code */
    bool biased;
    qn__unit_field field[QN__UNIT_FIELDS]; /* in their order in the unit; bytes 0 ends them */
} qn__layout;

/* NULL: plain. */
const qn__layout *qn__layout_of(qn__layout_id id);

/* The encoding's name, "plain" for 0. */
const char *qn__layout_name(qn__layout_id id);

/* Bytes of the units of 16 rows, and of all rows; 0 when it would wrap. */
size_t qn__layout_group_bytes(const qn__layout *l, int64_t columns);
size_t qn__layout_bytes(qn__layout_id id, int64_t rows, int64_t columns);

/* Fills rows first .. first + n - 1 of w[rows, columns] from encoded rows that lie row_bytes apart.
 * Calls on different rows may run at the same time, and any cut is allowed; the rows that pad the
 * last group become zero with row rows - 1. */
void qn__layout_pack(const qn__layout *l, void *w, int64_t rows, int64_t columns, const void *from,
                     size_t row_bytes, int64_t first, int64_t n);

/* One row back, encoded as it was. */
void qn__layout_unpack_row(const qn__layout *l, const void *w, int64_t columns, int64_t row,
                           void *to);

/* One row's values. */
void qn__layout_row_values(const qn__layout *l, const void *w, int64_t columns, int64_t row,
                           float *to);

#endif
