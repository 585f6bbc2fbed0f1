/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling a decoder's parameters.
 *
 * Problem: a matrix is read, then packed, and one thread does neither as fast as memory allows.
 * Approach: first comes what is small, parameter by parameter, and the memory for all matrices;
 * then threads take pieces of these, some rows each, and whoever has read one packs it, so that
 * reading and packing go on side by side. A piece fits into a second cache: it is packed before
 * it has left that.
 *
 * Progress is told by the calling thread. Pieces are taken in order and those that were taken are
 * ended, so the failure that is reported, that of the first piece that has one, does not depend
 * on the threads.
 */
#include "models/fill.h"

#include "base/error.h"
#include "base/team.h"
#include "core/array.h"
#include "io/tensors.h"
#include "models/quantized.h"
#include "ops/ops.h"
#include "quant/layout.h"

#include <pthread.h>
#include <stdlib.h>

/* PIECE_ACROSS: of matrices whose rows a file does not have side by side. PIECE_AS_IS: of those
 * that are not packed. ROOM: for the pieces of all threads. */
enum { PIECE = 512 << 10, PIECE_ACROSS = 8 << 20, PIECE_AS_IS = 1 << 20, ROOM = 32 << 20 };

typedef struct matrix {
    const qn__parameter *p;
    uint64_t number; /* of the parameter */
    qn__weight w;
    int32_t *order; /* of its columns, or NULL */
    qn_array *packed;
    bool as_is; /* it lies in memory as in the file: reading is all */
    int64_t rows_a_piece, rows_a_room;
} matrix;

typedef struct piece {
    const matrix *of;
    int64_t first, n; /* rows */
} piece;

typedef struct filling {
    const qn__fill *from;
    uint64_t total;
    matrix *matrices;
    int n_matrices;
    char *rooms; /* of room_size bytes, one a thread */
    size_t room_size;
    pthread_mutex_t lock; /* of what follows, while there are threads */
    int next;             /* matrix, of which rows before next_row are taken */
    int64_t next_row;
    uint64_t done;
    piece failed; /* where err has a failure: the first that failed */
    qn_error *err;
} filling;

static qn_status report(const filling *f, uint64_t done, qn_error *err)
{
    const qn__fill *from = f->from;
    if (from->progress && !from->progress(from->user, done, f->total))
        return qn__fail(err, QN_CANCELLED, "loading was cancelled");
    return QN_OK;
}

/* ---- what is small --------------------------------------------------------------------------- */

/* Rows first .. first + n - 1 of a parameter, encoded. */
static qn_status read_rows(const qn__fill *from, const qn__parameter *p, uint64_t number,
                           const qn__weight *w, int64_t first, int64_t n, char *to, qn_error *err)
{
    if (!from->random)
        return qn__weight_read(w, from->file, first, n, to, err);
    qn__random_read(from->random, p, number, first, n, to);
    return QN_OK;
}

/* Computes what belongs to a parameter into its slot, and ends the scope. */
static qn_status keep_value(const qn__parameter *p, qn_scope *s, qn_array *a, qn_array **slot,
                            qn_error *err)
{
    if (qn_eval(s, a) == QN_OK)
        *slot = qn_retain(a);
    if (!*slot)
        qn__fail(err, qn_scope_status(s), "tensor %s: %s", p->name, qn_scope_error(s));
    qn_scope_end(s);
    return err->code;
}

/* A vector, as f32. */
static qn_status fill_vector(filling *f, const qn__parameter *p, uint64_t number,
                             const qn__weight *w)
{
    qn_dtype type = w->tensor ? w->tensor->dtype : QN_F32;
    if (w->bytes > f->room_size)
        return qn__fail(f->err, QN_LIMIT, "tensor %s of %llu bytes is too long for a vector",
                        p->name, (unsigned long long)w->bytes);
    if (read_rows(f->from, p, number, w, 0, p->shape[0], f->rooms, f->err) != QN_OK)
        return f->err->code;
    qn_scope *s = qn_scope_begin(f->from->device);
    qn_array *a = qn_cast(s, qn_from(s, type, 1, p->shape, f->rooms), QN_F32);
    if (p->plus_one)
        a = qn_add(s, a, qn_scalar(s, QN_F32, 1));
    if (keep_value(p, s, a, p->slot, f->err) != QN_OK)
        return f->err->code;
    f->done += w->bytes;
    return report(f, f->done, f->err);
}

/* What the products are multiplied by, where that is not 1. */
static qn_status fill_factor(const filling *f, const qn__parameter *p, qn__weight *w)
{
    float factor = 1;
    if (f->from->random || !p->factor ||
        qn__weight_factor(w, f->from->file, &factor, f->err) != QN_OK || factor == 1)
        return f->err->code;
    qn_scope *s = qn_scope_begin(f->from->device);
    return keep_value(p, s, qn_from_f32(s, &factor, 1), p->factor, f->err);
}

/* Keeps the order of a matrix's columns where a linear layer can take it. */
static qn_status fill_order(const filling *f, const qn__parameter *p, const int32_t *order)
{
    if (!p->order)
        return qn__fail(f->err, QN_UNSUPPORTED,
                        "tensor %s: columns are in another order; supported is that of linear "
                        "layers",
                        p->name);
    qn_scope *s = qn_scope_begin(f->from->device);
    return keep_value(p, s, qn_from(s, QN_I32, 1, &p->shape[1], order), p->order, f->err);
}

/* How many encoded rows so many bytes hold: whole groups of them, if they hold any. */
static int64_t rows_within(const matrix *m, size_t bytes)
{
    int64_t rows = (int64_t)(bytes / qn__encoding_row_bytes(m->w.encoding, m->p->shape[1]));
    return rows >= QN__UNIT_ROWS ? rows / QN__UNIT_ROWS * QN__UNIT_ROWS : rows;
}

/* The memory of a matrix, and into what pieces it is cut. */
static qn_status begin_matrix(filling *f, matrix *m)
{
    const qn__encoding *e = m->w.encoding;
    qn_scope *s = qn_scope_begin(f->from->device);
    *m->p->slot = m->packed = qn__packed_new(s, e, m->p->shape[0], m->p->shape[1]);
    if (!m->packed)
        qn__fail(f->err, qn_scope_status(s), "tensor %s: %s", m->p->name, qn_scope_error(s));
    qn_scope_end(s);
    if (!m->packed)
        return f->err->code;
    m->as_is = qn__packed_is(m->packed, e, m->w.packed);
    m->rows_a_room = m->rows_a_piece = rows_within(m, f->room_size);
    if (m->as_is) {
        int64_t rows = rows_within(m, PIECE_AS_IS);
        m->rows_a_piece = rows > m->rows_a_room ? rows : m->rows_a_room;
        if (m->w.packed && m->rows_a_piece < QN__UNIT_ROWS)
            m->rows_a_piece = QN__UNIT_ROWS;
    }
    return QN_OK;
}

/* A parameter as far as one thread does it. */
static qn_status begin_parameter(filling *f, const qn__parameter *p, uint64_t number, qn__weight *w)
{
    if (fill_factor(f, p, w) != QN_OK)
        return f->err->code;
    if (p->ndim == 1)
        return fill_vector(f, p, number, w);
    matrix *m = &f->matrices[f->n_matrices++];
    *m = (matrix){.p = p, .number = number};
    if (qn__weight_order(w, f->from->file, &m->order, f->err) != QN_OK)
        return f->err->code;
    m->w = *w;
    m->w.columns_order = m->order;
    if (m->order && fill_order(f, p, m->order) != QN_OK)
        return f->err->code;
    return begin_matrix(f, m);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* The next piece; false: there is none, or all has ended in a failure. */
static bool take_piece(filling *f, piece *out)
{
    pthread_mutex_lock(&f->lock);
    bool any = f->next < f->n_matrices && f->err->code == QN_OK;
    if (any) {
        const matrix *m = &f->matrices[f->next];
        int64_t left = m->p->shape[0] - f->next_row;
        *out = (piece){m, f->next_row, left < m->rows_a_piece ? left : m->rows_a_piece};
        f->next += out->n == left;
        f->next_row = out->n == left ? 0 : f->next_row + out->n;
    }
    pthread_mutex_unlock(&f->lock);
    return any;
}

static qn_status fail_piece(filling *f, const piece *at, const qn_error *err)
{
    pthread_mutex_lock(&f->lock);
    if (f->err->code == QN_OK || at->of < f->failed.of ||
        (at->of == f->failed.of && at->first < f->failed.first)) {
        f->failed = *at;
        *f->err = *err;
    }
    pthread_mutex_unlock(&f->lock);
    return err->code;
}

/* The bytes in its file that rows before `row` have as their share. */
static uint64_t bytes_up_to(const matrix *m, int64_t row)
{
    int64_t rows = m->p->shape[0];
    return row == rows ? m->w.bytes : m->w.bytes / (uint64_t)rows * (uint64_t)row;
}

/* Of a matrix that lies in memory as in its file: where a piece lies, and its bytes. */
static size_t place_of(const piece *at, size_t *bytes)
{
    const matrix *m = at->of;
    int64_t columns = m->p->shape[1];
    if (!m->w.packed) {
        size_t row = qn__encoding_row_bytes(m->w.encoding, columns);
        *bytes = (size_t)at->n * row;
        return (size_t)at->first * row;
    }
    size_t group = qn__layout_group_bytes(qn__layout_of(m->packed->layout), columns);
    *bytes = (size_t)((at->n + QN__UNIT_ROWS - 1) / QN__UNIT_ROWS) * group;
    return (size_t)(at->first / QN__UNIT_ROWS) * group;
}

/* A piece of such a matrix, if the device lends a place for it (else *done stays false). */
static qn_status read_piece(const qn__fill *from, const piece *at, bool *done, qn_error *err)
{
    const matrix *m = at->of;
    qn_error own = {0};
    size_t bytes, offset = place_of(at, &bytes);
    char *to = qn__packed_lend(m->packed, offset, bytes);
    if (!to)
        return QN_OK;
    *done = true;
    qn_status status = m->w.packed
                           ? qn_tensors_read_bytes(from->file, m->w.tensor, offset, bytes, to, err)
                           : read_rows(from, m->p, m->number, &m->w, at->first, at->n, to, err);
    if (qn__packed_settle(m->packed, to, offset, status == QN_OK ? bytes : 0, &own) != QN_OK &&
        status == QN_OK)
        qn__fail(err, own.code, "tensor %s: %s", m->p->name, own.message);
    return err->code;
}

/* Any piece, as many rows at once as the room holds. */
static qn_status pack_piece(const qn__fill *from, const piece *at, char *room, qn_error *err)
{
    const matrix *m = at->of;
    qn_error own = {0};
    int64_t end = at->first + at->n;
    for (int64_t i = at->first, n; i < end && err->code == QN_OK; i += n) {
        n = end - i < m->rows_a_room ? end - i : m->rows_a_room;
        if (read_rows(from, m->p, m->number, &m->w, i, n, room, err) == QN_OK &&
            qn__packed_write(m->packed, m->w.encoding, room, i, n, &own) != QN_OK)
            qn__fail(err, own.code, "tensor %s: %s", m->p->name, own.message);
    }
    return err->code;
}

static qn_status fill_piece(const qn__fill *from, const piece *at, char *room, qn_error *err)
{
    bool done = false;
    if (at->of->as_is && read_piece(from, at, &done, err) == QN_OK && done)
        return QN_OK;
    return err->code == QN_OK ? pack_piece(from, at, room, err) : err->code;
}

/* What each thread does; the first is the caller's. */
static void fill_pieces(void *context, int thread, int n_threads)
{
    (void)n_threads;
    filling *f = context;
    piece at;
    while (take_piece(f, &at)) {
        qn_error err = {0};
        char *room = f->rooms + (size_t)thread * f->room_size;
        if (fill_piece(f->from, &at, room, &err) == QN_OK) {
            pthread_mutex_lock(&f->lock);
            f->done += bytes_up_to(at.of, at.first + at.n) - bytes_up_to(at.of, at.first);
            uint64_t done = f->done;
            pthread_mutex_unlock(&f->lock);
            if (thread == 0 && done < f->total)
                report(f, done, &err);
        }
        if (err.code != QN_OK)
            fail_piece(f, &at, &err);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Makes room for the pieces of as many threads as are of use; returns how many, 0 where memory is
 * out. */
static int make_rooms(filling *f, const qn__decoder *m)
{
    const qn__fill *from = f->from;
    f->room_size = PIECE;
    for (int i = 0; i < m->n_parameters; i++) {
        const qn__parameter *p = &m->parameters[i];
        const qn__weight_kind *kind = from->weights[i].kind;
        size_t row = (size_t)p->shape[p->ndim - 1] * 4,
               least = kind && kind->across ? PIECE_ACROSS : row;
        f->room_size = least > f->room_size ? least : f->room_size;
    }
    int n = qn__packed_writers(from->device), most = (int)(ROOM / f->room_size);
    if (from->file && qn__tensors_in_order(from->file))
        n = 1;
    n = n < most ? n : most > 1 ? most : 1;
    f->rooms = malloc((size_t)n * f->room_size);
    return f->rooms ? n : 0;
}

static qn_status fill_matrices(filling *f, int n_threads)
{
    qn__team *team = qn__team_new(n_threads);
    if (!team)
        return qn__fail(f->err, QN_MEMORY, "the threads that load could not be started");
    pthread_mutex_init(&f->lock, NULL);
    qn__team_run(team, fill_pieces, f);
    qn__team_free(team);
    pthread_mutex_destroy(&f->lock);
    return f->err->code == QN_OK ? report(f, f->done, f->err) : f->err->code;
}

qn_status qn__decoder_fill(const qn__decoder *m, const qn__fill *from, qn_error *err)
{
    filling f = {.from = from, .total = m->sizes.file_bytes, .err = err};
    int n_threads = make_rooms(&f, m);
    f.matrices = calloc((size_t)m->n_parameters + 1, sizeof *f.matrices);
    if (!n_threads || !f.matrices)
        qn__fail_memory(err, "a weight's buffer");
    for (int i = 0; err->code == QN_OK && i < m->n_parameters; i++)
        begin_parameter(&f, &m->parameters[i], (uint64_t)i, &from->weights[i]);
    if (err->code == QN_OK)
        fill_matrices(&f, n_threads);
    for (int i = 0; i < f.n_matrices; i++)
        free(f.matrices[i].order);
    free(f.matrices);
    free(f.rooms);
    return err->code;
}
