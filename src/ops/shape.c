/* SPDX-License-Identifier: Apache-2.0
 *
 * Shapes and arrangements as compositions of views, concatenation and block updates.
 */
#include "ops/ops.h"

qn_array *qn_flatten(qn_scope *s, qn_array *x)
{
    return qn_reshape(s, x, 1, (const int64_t[]){-1});
}

qn_array *qn_move_axis(qn_scope *s, qn_array *x, int from, int to)
{
    x = qn__input(s, x, "move_axis");
    from = x ? qn__axis(s, "move_axis", x, from) : -1;
    to = from >= 0 ? qn__axis(s, "move_axis", x, to) : -1;
    if (to < 0)
        return qn__poison(s);
    int order[QN_MAX_NDIM];
    for (int i = 0, k = 0; i < x->ndim; i++) {
        k += k == from;
        order[i] = i == to ? from : k++;
    }
    return qn_transpose(s, x, order);
}

qn_status qn_split(qn_scope *s, qn_array *x, int n, int axis, qn_array **parts)
{
    for (int i = 0; i < n; i++)
        parts[i] = qn__poison(s);
    x = qn__input(s, x, "split");
    axis = x ? qn__axis(s, "split", x, axis) : -1;
    if (axis >= 0 && (n < 1 || x->shape[axis] % n))
        qn__op_fail(s, "split", x, NULL, "the axis does not split into that many equal parts");
    int64_t size = axis >= 0 && n > 0 ? x->shape[axis] / n : 0;
    for (int i = 0; i < n && axis >= 0 && qn_scope_status(s) == QN_OK; i++)
        parts[i] = qn_slice(s, x, axis, i * size, (i + 1) * size, 1);
    return qn_scope_status(s);
}

qn_array *qn_stack(qn_scope *s, qn_array *const *arrays, int n, int axis)
{
    qn_array *first = n > 0 ? qn__input(s, arrays[0], "stack") : NULL;
    if (n < 1)
        return qn__scope_fail(s, QN_INVALID, "stack: %d arrays", n);
    qn_array **wide = first ? qn__scope_alloc(s, (size_t)n * sizeof *wide) : NULL;
    if (!wide)
        return qn__poison(s);
    for (int i = 0; i < n; i++)
        wide[i] = qn_expand_dims(s, arrays[i], axis);
    return qn_concatenate(s, wide, n, axis < 0 ? axis + first->ndim + 1 : axis);
}

qn_array *qn_pad(qn_scope *s, qn_array *x, const int64_t *before, const int64_t *after,
                 double value)
{
    x = qn__input(s, x, "pad");
    if (!x)
        return qn__poison(s);
    int64_t shape[QN_MAX_NDIM] = {0};
    bool fits = !x->layout;
    for (int i = 0; fits && i < x->ndim; i++)
        fits = before[i] >= 0 && after[i] >= 0 &&
               !__builtin_add_overflow(x->shape[i], before[i], &shape[i]) &&
               !__builtin_add_overflow(shape[i], after[i], &shape[i]);
    if (!fits)
        return qn__op_fail(s, "pad", x, NULL, "widths must not be negative");
    return qn_slice_update(s, qn_full(s, (qn_dtype)x->dtype, x->ndim, shape, value), x, before);
}

/* x with `axis` repeated: each element `times` times (inner), [n] -> [n, 1] -> [n, times] -> [n
 * times], or all of them one after the other, [n] -> [1, n] -> [times, n] -> [times n]. */
static qn_array *repeat_axis(qn_scope *s, const char *name, qn_array *x, int axis, int64_t times,
                             bool inner)
{
    x = qn__input(s, x, name);
    axis = x ? qn__axis(s, name, x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    if (times < 0)
        return qn__op_fail(s, name, x, NULL, "a negative number of times");
    if (x->ndim == QN_MAX_NDIM) { /* no room for an axis more */
        qn_array *at = qn_arange(s, QN_I32, x->shape[axis]);
        return qn_take(s, x, repeat_axis(s, name, at, 0, times, inner), axis);
    }
    int64_t wide[QN_MAX_NDIM], shape[QN_MAX_NDIM];
    memcpy(shape, x->shape, sizeof shape);
    if (__builtin_mul_overflow(shape[axis], times, &shape[axis]))
        return qn__op_fail(s, name, x, NULL, "too many times");
    qn_array *y = qn_expand_dims(s, x, axis + inner);
    memcpy(wide, y->shape, sizeof wide);
    wide[axis + inner] = times;
    return qn_reshape(s, qn_broadcast_to(s, y, x->ndim + 1, wide), x->ndim, shape);
}

qn_array *qn_tile(qn_scope *s, qn_array *x, int axis, int64_t times)
{
    return repeat_axis(s, "tile", x, axis, times, false);
}

qn_array *qn_repeat(qn_scope *s, qn_array *x, int axis, int64_t times)
{
    return repeat_axis(s, "repeat", x, axis, times, true);
}

qn_array *qn_roll(qn_scope *s, qn_array *x, int64_t by, int axis)
{
    x = qn__input(s, x, "roll");
    axis = x ? qn__axis(s, "roll", x, axis) : -1;
    if (axis < 0)
        return qn__poison(s);
    int64_t n = x->shape[axis];
    by = n ? by % n : 0;
    by += by < 0 ? n : 0;
    if (!by)
        return x;
    qn_array *parts[] = {qn_slice(s, x, axis, n - by, n, 1), qn_slice(s, x, axis, 0, n - by, 1)};
    return qn_concatenate(s, parts, 2, axis);
}

/* ---- two axes
 * ------------------------------------------------------------------------------------------ */

/* column - row against k: [rows, columns] */
static qn_array *band(qn_scope *s, int64_t rows, int64_t columns, int64_t k,
                      qn_array *(*compare)(qn_scope *, qn_array *, qn_array *))
{
    qn_array *row = qn_expand_dims(s, qn_arange(s, QN_I64, rows), 1);
    qn_array *off = qn_subtract(s, qn_arange(s, QN_I64, columns), row);
    return compare(s, off, qn_scalar(s, QN_I64, (double)k));
}

qn_array *qn_eye(qn_scope *s, qn_dtype dtype, int64_t rows, int64_t columns, int64_t k)
{
    return qn_cast(s, band(s, rows, columns, k, qn_equal), dtype);
}

qn_array *qn_tri(qn_scope *s, qn_dtype dtype, int64_t rows, int64_t columns, int64_t k)
{
    return qn_cast(s, band(s, rows, columns, k, qn_less_equal), dtype);
}

static qn_array *part_of(qn_scope *s, const char *name, qn_array *x, int64_t k,
                         qn_array *(*compare)(qn_scope *, qn_array *, qn_array *))
{
    x = qn__input(s, x, name);
    if (!x)
        return qn__poison(s);
    if (x->ndim < 2)
        return qn__op_fail(s, name, x, NULL, "two axes are wanted");
    qn_array *in = band(s, x->shape[x->ndim - 2], x->shape[x->ndim - 1], k, compare);
    return qn_where(s, in, x, qn__scalar_like(s, x, 0));
}

qn_array *qn_tril(qn_scope *s, qn_array *x, int64_t k)
{
    return part_of(s, "tril", x, k, qn_less_equal);
}

qn_array *qn_triu(qn_scope *s, qn_array *x, int64_t k)
{
    return part_of(s, "triu", x, k, qn_greater_equal);
}

qn_array *qn_diagonal(qn_scope *s, qn_array *x, int64_t k)
{
    x = qn__input(s, x, "diagonal");
    if (!x)
        return qn__poison(s);
    if (x->ndim != 2)
        return qn__op_fail(s, "diagonal", x, NULL, "two axes are wanted");
    int64_t rows = x->shape[0], columns = x->shape[1];
    int64_t down = k < 0 ? (k < -rows ? rows : -k) : 0, right = k > columns ? columns
                                                                : k > 0     ? k
                                                                            : 0;
    int64_t n = rows - down < columns - right ? rows - down : columns - right;
    return qn_as_strided(s, x, 1, &n, (const int64_t[]){columns + 1},
                         n ? down * columns + right : 0);
}

/* v on the diagonal of zeros: each row has v[row], kept where the column is the row's own. */
qn_array *qn_diag(qn_scope *s, qn_array *v, int64_t k)
{
    v = qn__input(s, v, "diag");
    if (!v)
        return qn__poison(s);
    int64_t n = v->ndim ? v->shape[0] : 0, off = k < 0 ? -k : k;
    if (v->ndim != 1 || k < -INT32_MAX || k > INT32_MAX)
        return qn__op_fail(s, "diag", v, NULL, "one axis is wanted, and a diagonal within 2^31");
    const int64_t before = k < 0 ? off : 0, after = k < 0 ? 0 : off;
    qn_array *rows = qn_expand_dims(s, qn_pad(s, v, &before, &after, 0), 1);
    return qn_where(s, band(s, n + off, n + off, k, qn_equal), rows, qn__scalar_like(s, v, 0));
}

/* Computed on the host in double, rounded once, both ends exact. */
qn_array *qn_linspace(qn_scope *s, qn_dtype dtype, double start, double stop, int64_t n)
{
    if (!s || s->error.code != QN_OK)
        return qn__poison(s);
    if (n < 0 || n > INT64_MAX / 64 || (unsigned)dtype >= QN_DTYPE_COUNT || !qn__is_float(dtype))
        return qn__scope_fail(s, QN_INVALID, "linspace: %lld elements of %s", (long long)n,
                              qn_dtype_name(dtype));
    size_t size = qn__dtype_size(dtype);
    char *values = qn__scope_alloc(s, (size_t)n * size + 1);
    if (!values)
        return qn__poison(s);
    double step = n > 1 ? (stop - start) / (double)(n - 1) : 0;
    for (int64_t i = 0; i < n; i++)
        qn__element_from_f64(values + (size_t)i * size, dtype,
                             i && i == n - 1 ? stop : start + (double)i * step);
    return qn_from(s, dtype, 1, &n, values);
}
