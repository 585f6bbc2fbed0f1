/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor's rows from one file into another: read a piece of whole heads, give each of its rows
 * its new place, type and values, on several threads, and write the piece. A row depends on nothing
 * but itself, so neither pieces nor threads change a bit. What would be lost without a word is an
 * error: a value that is not finite where blocks have a scale, one too large for f16.
 */
#include "convert/convert.h"

#include "quant/layout.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* PIECE_ACROSS: of matrices whose rows the source does not have side by side */
enum { PIECE_BYTES = 4 << 20, PIECE_ACROSS = 64 << 20, VALUES_A_GRAIN = 1 << 14 };

static const float largest_f16 = 65520; /* from here on it rounds to infinity */

/* ---- one piece ------------------------------------------------------------------------------- */

typedef struct piece {
    const qn__conversion *c;
    const qn__output_tensor *t;
    const char *in;
    char *out;
    size_t in_row, out_row, block_row; /* bytes: in the source, in the output, of all parts */
    int64_t first, rows, grain;        /* first: of the rows in the output */
    atomic_llong next, bad;            /* a row; the first bad one */
} piece;

/* Where a row of the output stands in the source's order; `n` rows make a head. */
static int64_t source_row(const qn__output_tensor *t, int64_t row)
{
    int64_t n = t->head_rows, i = n ? row % n : 0;
    if (!n)
        return row;
    return t->into_pairs ? qn__row_of_pairs(row, n) : row - i + i % (n / 2) * 2 + i / (n / 2);
}

static bool can_hold(const qn__encoding *target, const float *values, int64_t n)
{
    float most = 0;
    bool finite = true;
    if (target == &qn__encodings[QN__F32] || target == &qn__encodings[QN__BF16])
        return true;
    for (int64_t i = 0; i < n; i++) {
        finite = finite && isfinite(values[i]);
        most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
    }
    return finite && (target != &qn__encodings[QN__F16] || most < largest_f16);
}

/* The part of each block that a tensor keeps, side by side. */
static void take_part(const qn__output_tensor *t, const char *blocks, size_t n, char *out)
{
    const qn__encoding *e = t->target;
    char codes[128], scale[4], bias[4];
    size_t size[QN__BLOCK_BIAS + 1];
    const char *from = t->part == QN__BLOCK_CODES   ? codes
                       : t->part == QN__BLOCK_SCALE ? scale
                                                    : bias;
    qn__encoding_parts(e, &size[QN__BLOCK_CODES], &size[QN__BLOCK_SCALE], &size[QN__BLOCK_BIAS]);
    for (size_t i = 0; i < n; i++) {
        qn__encoding_unzip(e, blocks + i * e->block_bytes, codes, scale, bias);
        memcpy(out + i * size[t->part], from, size[t->part]);
    }
}

/* Blocks that are taken apart are MLX's. */
static qn__encode_fn *encoder_of(const qn__output_tensor *t)
{
    bool mlx = t->part != QN__BLOCK_WHOLE && t->target == &qn__encodings[QN__MXFP4];
    return !mlx                                  ? t->target->encode
           : t->dense == &qn__encodings[QN__F16] ? qn__encode_mxfp4_as_mlx_f16
                                                 : qn__encode_mxfp4_as_mlx;
}

/* Columns that are read in another order go back to their places. */
static void restore_columns(const int32_t *order, size_t n, float *values, float *room)
{
    memcpy(room, values, n * sizeof *room);
    for (size_t i = 0; i < n; i++)
        values[order[i]] = room[i];
}

/* False: a value cannot be written in that type. */
static bool convert_row(const piece *p, int64_t row, float *values, char *blocks)
{
    const qn__output_tensor *t = p->t;
    const char *from = p->in + (size_t)source_row(t, row) * p->in_row;
    char *to = p->out + (size_t)row * p->out_row;
    size_t n = (size_t)t->columns, n_blocks = n / t->target->block_elements;
    if (t->source == t->target && t->added == 0 && !t->weight.columns_order && !t->fused) {
        if (t->part == QN__BLOCK_WHOLE)
            memcpy(to, from, p->out_row);
        else
            take_part(t, from, n_blocks, to);
        return true;
    }
    t->source->decode(t->source, from, n / t->source->block_elements, values);
    if (t->weight.columns_order)
        restore_columns(t->weight.columns_order, n, values, (float *)(void *)blocks);
    for (size_t i = 0; t->added != 0 && i < n; i++)
        values[i] += t->added;
    for (size_t i = 0; t->ternary && i < n; i++)
        values[i] *= t->times;
    if (t->fused)
        qn__fuse_row(p->c, t, p->first + row, values);
    if (!can_hold(t->target, values, t->columns))
        return false;
    encoder_of(t)(t->target, values, NULL, n_blocks, t->part == QN__BLOCK_WHOLE ? to : blocks);
    if (t->part != QN__BLOCK_WHOLE)
        take_part(t, blocks, n_blocks, to);
    return true;
}

static void run_piece(void *context, int thread, int n_threads)
{
    piece *p = context;
    (void)n_threads;
    char *scratch = p->c->scratch + (size_t)thread * p->c->scratch_each;
    float *values = (float *)(void *)scratch;
    char *blocks = scratch + (size_t)p->t->columns * sizeof(float);
    for (int64_t r; (r = atomic_fetch_add(&p->next, p->grain)) < p->rows;)
        for (int64_t i = r; i < r + p->grain && i < p->rows; i++)
            if (!convert_row(p, i, values, blocks)) {
                long long first = atomic_load(&p->bad);
                while (i < first && !atomic_compare_exchange_weak(&p->bad, &first, i)) {
                }
            }
}

/* ---- all of a tensor ------------------------------------------------------------------------- */

static qn_status report(qn__conversion *c, size_t n)
{
    c->done += n;
    if (c->options->progress && !c->options->progress(c->options->progress_user, c->done, c->total))
        return qn__fail(c->err, QN_CANCELLED, "the conversion was cancelled");
    return QN_OK;
}

static bool grow(char **buffer, size_t *size, size_t wanted)
{
    if (wanted <= *size)
        return true;
    free(*buffer);
    *buffer = malloc(wanted);
    *size = *buffer ? wanted : 0;
    return *buffer != NULL;
}

static qn_status copy_bytes(qn__conversion *c, qn__writer *writer, const qn__output_tensor *t)
{
    const qn_tensors *file = c->source.tensors;
    if (!grow(&c->in, &c->in_size, PIECE_BYTES))
        return qn__fail_memory(c->err, "a weight's buffer");
    for (uint64_t at = 0; at < t->bytes; at += PIECE_BYTES) {
        size_t n = t->bytes - at < PIECE_BYTES ? (size_t)(t->bytes - at) : PIECE_BYTES;
        if (qn_tensors_read_bytes(file, t->from, at, n, c->in, c->err) != QN_OK ||
            qn__writer_write(writer, c->in, n, c->err) != QN_OK || report(c, n) != QN_OK)
            return c->err->code;
    }
    return QN_OK;
}

static qn_status fail_value(const qn__conversion *c, const qn__output_tensor *t, int64_t row)
{
    bool half = t->target == &qn__encodings[QN__F16];
    return qn__fail(c->err, QN_FORMAT,
                    "%s: tensor %s, row %lld: a value is not finite%s, which %s "
                    "cannot hold",
                    qn_tensors_path(c->source.tensors, t->from->file), t->from->name,
                    (long long)row, half ? " or above 65504" : "", t->target->name);
}

/* Whether rows come of several tensors. */
static bool is_put_together(const qn__output_tensor *t)
{
    return t->weight.kind || t->weight.packed || t->ternary;
}

static qn_status write_piece(qn__conversion *c, qn__writer *writer, piece *p, int64_t first)
{
    const qn__output_tensor *t = p->t;
    size_t n = (size_t)p->rows * p->out_row;
    const char *out = c->converted;
    qn_status status =
        is_put_together(t)
            ? qn__weight_read(&t->weight, c->source.tensors, first, p->rows, c->in, c->err)
            : qn_tensors_read_bytes(c->source.tensors, t->from, (uint64_t)first * p->in_row,
                                    (size_t)p->rows * p->in_row, c->in, c->err);
    if (status != QN_OK)
        return status;
    atomic_store(&p->next, 0);
    atomic_store(&p->bad, p->rows);
    qn__team_run(c->team, run_piece, p);
    if (atomic_load(&p->bad) < p->rows)
        return fail_value(c, t, first + atomic_load(&p->bad));
    if (t->units) { /* whole groups of rows, but for the last */
        qn__layout_id id = QN__UNITS_OF(t->target - qn__encodings);
        n = qn__layout_bytes(id, p->rows, t->columns);
        memset(c->packed, 0, n); /* what units leave out */
        qn__layout_pack(qn__layout_of(id), c->packed, p->rows, t->columns, c->converted, p->out_row,
                        0, p->rows);
        out = c->packed;
    }
    if (qn__writer_write(writer, out, n, c->err) != QN_OK)
        return c->err->code;
    return report(c, n);
}

/* What i2_s has behind all rows: what its values are multiples of. */
static qn_status write_tail(qn__conversion *c, qn__writer *writer, const qn__output_tensor *t)
{
    char tail[QN__I2_S_TAIL] = {0};
    memcpy(tail, &t->times, sizeof t->times);
    qn_status status = qn__writer_write(writer, tail, sizeof tail, c->err);
    return status == QN_OK ? report(c, sizeof tail) : status;
}

/* A tensor whose rows are converted. */
static qn_status write_rows(qn__conversion *c, qn__writer *writer, const qn__output_tensor *t)
{
    piece p = {.c = c, .t = t, .in_row = qn__encoding_row_bytes(t->source, t->columns)};
    p.block_row = qn__encoding_row_bytes(t->target, t->columns);
    bool tail = t->target == &qn__encodings[QN__I2_S];
    p.out_row = t->units ? p.block_row
                         : (size_t)((t->bytes - (tail ? QN__I2_S_TAIL : 0)) / (uint64_t)t->rows);
    size_t widest = (size_t)t->columns * sizeof(float), most = PIECE_BYTES;
    if (t->weight.kind && t->weight.kind->across)
        most = PIECE_ACROSS;
    if (p.block_row < widest) /* of which restore_columns takes as much */
        p.block_row = widest;
    int64_t whole = (t->head_rows ? t->head_rows : 1) * (t->units ? QN__UNIT_ROWS : 1),
            rows = (int64_t)(most / widest);
    rows = rows < whole ? whole : rows / whole * whole;
    rows = rows < t->rows ? rows : t->rows;
    p.grain = VALUES_A_GRAIN / t->columns + 1;
    c->scratch_each = (widest + p.block_row + 63) / 64 * 64;
    if (!grow(&c->in, &c->in_size, (size_t)rows * p.in_row) ||
        !grow(&c->converted, &c->converted_size, (size_t)rows * p.out_row) ||
        (t->units &&
         !grow(&c->packed, &c->packed_size,
               qn__layout_bytes(QN__UNITS_OF(t->target - qn__encodings), rows, t->columns))) ||
        !grow(&c->scratch, &c->scratch_size, c->scratch_each * (size_t)qn__team_size(c->team)))
        return qn__fail_memory(c->err, "a weight's buffer");
    p.in = c->in;
    p.out = c->converted;
    for (int64_t r = 0; r < t->rows; r += rows) {
        p.first = r;
        p.rows = t->rows - r < rows ? t->rows - r : rows;
        if (write_piece(c, writer, &p, r) != QN_OK)
            return c->err->code;
    }
    return tail ? write_tail(c, writer, t) : QN_OK;
}

qn_status qn__write_tensor(qn__conversion *c, qn__writer *writer, const qn__output_tensor *t)
{
    if (!t->from) {
        qn_status status = qn__writer_write(writer, t->values, (size_t)t->bytes, c->err);
        return status == QN_OK ? report(c, (size_t)t->bytes) : status;
    }
    bool same = t->source == t->target && t->part == QN__BLOCK_WHOLE && !t->units &&
                !is_put_together(t) && !t->head_rows && t->added == 0 && !t->fused;
    if (!t->source || same)
        return copy_bytes(c, writer, t);
    if (t->rows == 0 || t->columns == 0)
        return QN_OK;
    int32_t *order = NULL;
    qn__output_tensor ordered = *t;
    if (t->weight.kind && qn__weight_order(&t->weight, c->source.tensors, &order, c->err) != QN_OK)
        return c->err->code;
    ordered.weight.columns_order = order;
    if (order && t->source == t->target) {
        free(order);
        return qn__fail(c->err, QN_UNSUPPORTED,
                        "%s: tensor %s: its groups are of columns in another order, which only its "
                        "own format has; a type, bits or a dtype give it another",
                        c->source.path, t->name);
    }
    float *a = NULL, *b = NULL;
    qn_status status = QN_OK;
    if (t->fused)
        status = qn__adapters_read(c->adapters, t->fused, true, &a, &b, c->err);
    ordered.a = a;
    ordered.b = b;
    if (status == QN_OK)
        status = write_rows(c, writer, &ordered);
    free(a);
    free(b);
    free(order);
    return status;
}
