/* SPDX-License-Identifier: Apache-2.0
 *
 * What operations use to record themselves: argument checks, promotion, broadcasting.
 */
#ifndef QN_OPS_OPS_H
#define QN_OPS_OPS_H

#include "core/dtype.h"
#include "core/scope.h"
#include "ops/params.h"
#include "quant/encoding.h"
#include "quern/ops.h"

/* A failure of an operation on one or two arrays, with their shapes: "add: [2, 3] f32 and [4] f32:
 * what". b may be NULL. Returns the poison array. */
qn_array *qn__op_fail(qn_scope *s, const char *operation, const qn_array *a, const qn_array *b,
                      const char *what);

/* The broadcast of two shapes into `shape`; returns its ndim, or -1 when they do not fit. */
int qn__broadcast_shapes(const qn_array *a, const qn_array *b, int64_t *shape);

/* Sums ct over the axes along which `like` was broadcast, so that it has like's shape and type. */
qn_array *qn__unbroadcast(qn_scope *s, qn_array *ct, const qn_array *like);

/* One element of x's type. */
qn_array *qn__scalar_like(qn_scope *s, const qn_array *x, double value);

/* Zeros of x's type and shape. */
qn_array *qn__zeros_like(qn_scope *s, const qn_array *x);

/* What sums and products of a type are kept in: small integers wider, as NumPy does. */
qn_dtype qn__sum_type(qn_dtype type);

/* A non-negative axis, or -1 with the failure recorded. */
int qn__axis(qn_scope *s, const char *operation, const qn_array *x, int axis);

/* Indices as contiguous i32; wider ones that do not fit become ones that lie outside every axis. */
qn_array *qn__indices(qn_scope *s, qn_array *ids);

/* Records an elementwise node whose inputs have been brought to one type. */
qn_array *qn__elementwise(qn_scope *s, qn__op_id op, qn_dtype dtype, int n_in, qn_array *const *in);

/* ---- linear layers ---- */

/* x with every element rounded to a narrower type, but of its own type; its derivative is that of
 * the identity. */
qn_array *qn__round_to(qn_scope *s, qn_array *x, qn_dtype dtype);

/* What QN_PRODUCTS_AUTO means for w on the scope's device. */
qn_products qn__auto_products(const qn_scope *s, const qn_array *w);

/* The encoding of plain elements of a type; NULL: weights are not of that type. */
const qn__encoding *qn__encoding_of_dtype(qn_dtype dtype);

/* The bytes that a weight [rows, columns] takes on the device; false: it does not hold such. */
bool qn__packed_bytes(const qn_device *device, const qn__encoding *e, int64_t rows, int64_t columns,
                      size_t *bytes);

/* A retained, unfilled weight [rows, columns] in the device's layout; NULL with the scope's error.
 */
qn_array *qn__packed_new(qn_scope *s, const qn__encoding *e, int64_t rows, int64_t columns);

/* Whether such a weight lies on the device as encoded rows do (units: as units of that encoding
 * do), so that reading a file into place is all. */
bool qn__packed_is(const qn_array *w, const qn__encoding *e, bool units);

/* Where n bytes that belong `offset` bytes into such a weight may be written, each thread its own;
 * NULL: nowhere now, pack them. settle ends that: the bytes are there (n 0: there are none). */
void *qn__packed_lend(qn_array *w, size_t offset, size_t n);
qn_status qn__packed_settle(qn_array *w, void *lent, size_t offset, size_t n, qn_error *err);

/* How many threads may fill rows at once, each its own. */
int qn__packed_writers(const qn_device *device);

/* Fills rows first .. first + n - 1 from encoded rows, one behind the other. */
qn_status qn__packed_write(qn_array *w, const qn__encoding *e, const void *rows, int64_t first,
                           int64_t n, qn_error *err);

/* Sinks as `type`, for queries [B, H, L, D]. */
qn_array *qn__sinks(qn_scope *s, qn_array *sinks, const qn_array *q, qn_dtype type);

/* ---- attention over a cache (no gradients): used by nn/batch.c ----
 * Rows are tokens of any sequences. A cache has P pages of 64 positions; a row of its own goes to
 * slot page * 64 + place, and a sequence's pages stand in a row of a table. All of it i32. */

/* Writes rows [1, G, T, D] to slots [T] (negative: nowhere) of keys [P, G, 4, D, 16] or of values
 * [P, G, 64, D], or of one in blocks, [P, G, 64, D] either way; in place when the cache was
 * donated, as one in blocks must be. */
qn_array *qn__write_keys(qn_scope *s, qn_array *cache, qn_array *rows, qn_array *slots);
qn_array *qn__write_values(qn_scope *s, qn_array *cache, qn_array *rows, qn_array *slots);

/* Attention of q [1, H, T, D] over such a cache. tiles [N, 4] (QN__TILE_...) say which rows are
 * whose and where they stand, at most qn__attend_tile(H / G) rows each; table [B, W] has the pages
 * of B sequences in the order of their positions. A query sees the keys up to its own position, of
 * which a window takes the newest, and the first `keep` besides, QN__PAGE at most. The result is
 * [1, H, T, E] stored as [T, H, E]; rows of no tile are left as they are. */
qn_array *qn__attend(qn_scope *s, qn_array *q, qn_array *keys, qn_array *values, qn_array *tiles,
                     qn_array *table, int64_t keep, const qn_attention_options *options);

/* Tokens i32 [N] drawn from logits [N, V], -1 where none of a row's is a number. rows i32 [N,
 * QN__SAMPLE_ROW_WORDS] holds a qn__sample_row for each, entries i32 [M, QN__SAMPLE_ENTRY_WORDS]
 * their qn__sample_entry; the ids and ranges in them are not checked. No gradients. */
qn_array *qn__sample(qn_scope *s, qn_array *logits, qn_array *rows, qn_array *entries);

#endif
