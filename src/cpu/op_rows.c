/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations over the last axis: reductions, softmax, hadamard, rms_norm. A unit is one row. Rows
 * that are not adjacent elements are gathered into scratch first, so that strides never change a
 * sum's order.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"

/* ---- reductions
 * -------------------------------------------------------------------------------------------- */

static bool accepts_reduce(const qn_array *node)
{
    const qn__reduce_params *p = node->params;
    return node->in[0]->layout == 0 &&
           (p->reduction != QN__LOGSUMEXP || node->dtype == QN_F32 || node->dtype == QN_F64);
}

static int64_t row_length(const qn__operand *x)
{
    return x->ndim ? x->shape[x->ndim - 1] : 1;
}

static bool rows_are_adjacent(const qn__operand *x)
{
    int last = x->ndim - 1;
    return last < 0 || x->stride[last] == 1 || x->shape[last] <= 1;
}

/* Rows that are gathered together: in a sum over columns they are neighbours, and share each cache
 * line. */
enum { BESIDE = 16 };

static int64_t rows_beside(int64_t rows, int n_threads)
{
    int64_t each = rows / n_threads;
    return each < BESIDE ? each : BESIDE;
}

/* From one gathered row to the next. A line more, so that rows of whole pages do not fall on the
 * same places of the first cache. */
static size_t row_pitch(const qn__operand *x)
{
    return (size_t)row_length(x) * qn__dtype_size((qn_dtype)x->dtype) + 64;
}

/* Rows whose elements are not adjacent are gathered: each thread its own, a few at once, or, where
 * there are fewer rows than threads, all of them in a phase before. Either way there are hardly
 * more bytes than x has. */
static int64_t prepare_reduce(qn__cpu_job *job)
{
    const qn__operand *x = &job->call->operand[0];
    int64_t rows = x->ndim ? qn__cpu_rows(x) : 1;
    job->n_phases = 1;
    job->units[0] = job->units[1] = rows;
    if (!rows_are_adjacent(x)) {
        if (rows < job->n_threads) {
            job->n_phases = 2;
            job->shared = (size_t)rows * row_pitch(x);
        } else {
            job->scratch = (size_t)rows_beside(rows, job->n_threads) * row_pitch(x);
        }
    }
    return qn__cpu_elements(x);
}

static const char *row_start(const qn__operand *x, const char *base, int64_t r)
{
    int64_t size = (int64_t)qn__dtype_size((qn_dtype)x->dtype);
    return base + (x->ndim > 1 ? qn__cpu_offset(x, x->ndim - 1, r) : 0) * size;
}

/* n elements of `rows` rows each, which are `beside` elements apart. */
static inline void gather_beside(char *to, size_t pitch, const char *from, int64_t n,
                                 int64_t stride, int64_t rows, int64_t beside, size_t size)
{
    for (int64_t i = 0; i < n; i++, to += size, from += stride * (int64_t)size)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + (size_t)r * pitch, from + r * beside * (int64_t)size, size);
}

/* Gathers rows r .. r + most - 1, or those of them that are equally far apart: returns how many. */
static int64_t gather_rows(const qn__operand *x, const char *base, int64_t r, int64_t most,
                           char *to)
{
    int last = x->ndim - 1;
    int64_t n = x->shape[last], stride = x->stride[last], beside = 0, left = 1;
    if (last > 0) {
        left = x->shape[last - 1] - r % x->shape[last - 1];
        beside = x->stride[last - 1];
    }
    most = most < left ? most : left;
    const char *from = row_start(x, base, r);
    switch (qn__dtype_size((qn_dtype)x->dtype)) { /* of sizes that the compiler knows */
    case 1: gather_beside(to, row_pitch(x), from, n, stride, most, beside, 1); break;
    case 2: gather_beside(to, row_pitch(x), from, n, stride, most, beside, 2); break;
    case 4: gather_beside(to, row_pitch(x), from, n, stride, most, beside, 4); break;
    default: gather_beside(to, row_pitch(x), from, n, stride, most, beside, 8);
    }
    return most;
}

static void reduce_f32(const qn__cpu_kernels *k, int reduction, const float *x, size_t n, void *y)
{
    int64_t at;
    switch (reduction) {
    case QN__SUM: k->sum(y, x, n, n, 0, 1); break;
    case QN__MAX: k->max(y, x, n, n, 0, 1); break;
    case QN__LOGSUMEXP: k->logsumexp(y, x, n, n, 0, 1); break;
    default: k->argmax(&at, x, n, n, 0, 1); *(int32_t *)y = (int32_t)at;
    }
}

static void reduce_f64(const qn__cpu_kernels *k, int reduction, const double *x, size_t n, void *y)
{
    int64_t at;
    switch (reduction) {
    case QN__SUM: k->sum_f64(y, x, n, n, 0, 1); break;
    case QN__MAX: k->max_f64(y, x, n, n, 0, 1); break;
    case QN__LOGSUMEXP: k->logsumexp_f64(y, x, n, n, 0, 1); break;
    default: k->argmax_f64(&at, x, n, n, 0, 1); *(int32_t *)y = (int32_t)at;
    }
}

/* 16-bit floats and integers, exactly: floats are widened and rounded once. */
static void reduce_slowly(const qn__cpu_kernels *k, int reduction, const qn__operand *x,
                          const char *row, int64_t n, qn_dtype out, char *y)
{
    size_t size = qn__dtype_size((qn_dtype)x->dtype);
    if (qn__is_float((qn_dtype)x->dtype)) {
        double best = 0, sum = 0;
        int64_t at = 0;
        for (int64_t i = 0; i < n; i++) {
            double v = qn__element_to_f64(row + (size_t)i * size, (qn_dtype)x->dtype);
            sum += v;
            if (i == 0 || v > best || (v != v && best == best)) {
                best = v;
                at = i;
            }
        }
        (void)k;
        if (reduction == QN__ARGMAX)
            qn__element_from_i64(y, out, at);
        else
            qn__element_from_f64(y, out, reduction == QN__SUM ? sum : best);
        return;
    }
    int64_t best = 0, at = 0;
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = qn__element_to_i64(row + (size_t)i * size, (qn_dtype)x->dtype);
        bool larger = x->dtype == QN_U64 ? (uint64_t)v > (uint64_t)best : v > best;
        sum += (uint64_t)v;
        if (i == 0 || larger) {
            best = v;
            at = i;
        }
    }
    qn__element_from_i64(y, out,
                         reduction == QN__ARGMAX ? at
                         : reduction == QN__SUM  ? (int64_t)sum
                                                 : best);
}

static void reduce_row(const qn__cpu_job *job, const char *row, char *to)
{
    const qn__operand *x = &job->call->operand[0], *y = &job->call->operand[1];
    int reduction = ((const qn__reduce_params *)job->call->params)->reduction;
    int64_t n = row_length(x);
    if (x->dtype == QN_F32)
        reduce_f32(job->table, reduction, (const float *)row, (size_t)n, to);
    else if (x->dtype == QN_F64)
        reduce_f64(job->table, reduction, (const double *)row, (size_t)n, to);
    else
        reduce_slowly(job->table, reduction, x, row, n, (qn_dtype)y->dtype, to);
}

static void run_reduce(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0], *y = &job->call->operand[1];
    size_t out = qn__dtype_size((qn_dtype)y->dtype), pitch = row_pitch(x);
    bool adjacent = rows_are_adjacent(x), in_shared = job->n_phases == 2;
    int64_t rows = 1;
    for (int64_t r = part->begin; r < part->end; r += rows) {
        const char *row = part->scratch;
        if (in_shared) {
            char *to = (char *)part->shared + (size_t)r * pitch;
            if (part->phase == 0) {
                gather_rows(x, part->at[0], r, 1, to);
                continue;
            }
            row = to;
        } else if (adjacent) {
            row = row_start(x, part->at[0], r);
        } else {
            int64_t most = rows_beside(job->units[0], job->n_threads), left = part->end - r;
            rows = gather_rows(x, part->at[0], r, most < left ? most : left, part->scratch);
        }
        for (int64_t k = 0; k < rows; k++)
            reduce_row(job, row + (size_t)k * pitch, part->at[1] + (size_t)(r + k) * out);
    }
}

const qn__cpu_routine qn__cpu_reduce_routine = {QN__OP_REDUCE, .accepts = accepts_reduce,
                                                .prepare = prepare_reduce, .run = run_reduce};

/* ---- softmax, hadamard, rms_norm: contiguous rows
 * ---------------------------------------------------------------------- */

static int64_t prepare_rows(qn__cpu_job *job)
{
    const qn__operand *x = &job->call->operand[0];
    job->n_phases = 1;
    job->units[0] = qn__cpu_rows(x);
    return qn__cpu_elements(x) * 4;
}

static void run_softmax(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0];
    size_t n = (size_t)row_length(x), r0 = (size_t)part->begin, r1 = (size_t)part->end;
    if (x->dtype == QN_F32)
        job->table->softmax((float *)part->at[1], n, (const float *)part->at[0], n, n, r0, r1);
    else
        job->table->softmax_f64((double *)part->at[1], n, (const double *)part->at[0], n, n, r0,
                                r1);
}

const qn__cpu_routine qn__cpu_softmax_routine = {QN__OP_SOFTMAX, .prepare = prepare_rows,
                                                 .run = run_softmax};

static void run_hadamard(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0];
    const double scale = ((const qn__hadamard_params *)job->call->params)->scale;
    size_t n = (size_t)row_length(x), r0 = (size_t)part->begin, r1 = (size_t)part->end;
    if (x->dtype == QN_F32)
        job->table->hadamard((float *)part->at[1], n, (const float *)part->at[0], n, (float)scale,
                             n, r0, r1);
    else
        job->table->hadamard_f64((double *)part->at[1], n, (const double *)part->at[0], n, scale, n,
                                 r0, r1);
}

const qn__cpu_routine qn__cpu_hadamard_routine = {QN__OP_HADAMARD_TRANSFORM,
                                                  .prepare = prepare_rows, .run = run_hadamard};

static void run_rms_norm(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__norm_params *p = job->call->params;
    const qn__operand *x = &job->call->operand[0];
    const void *w = p->has_weight ? part->at[1] : NULL;
    void *y = part->at[job->call->n_operands - 1];
    size_t n = (size_t)row_length(x), r0 = (size_t)part->begin, r1 = (size_t)part->end;
    if (x->dtype == QN_F32)
        job->table->rms_norm(y, n, (const float *)part->at[0], n, w, p->eps, n, r0, r1);
    else
        job->table->rms_norm_f64(y, n, (const double *)part->at[0], n, w, (double)p->eps, n, r0,
                                 r1);
}

static bool accepts_rms_norm(const qn_array *node)
{
    return (node->dtype == QN_F32 || node->dtype == QN_F64) &&
           !((const qn__norm_params *)node->params)->has_bias;
}

const qn__cpu_routine qn__cpu_rms_norm_routine = {QN__OP_RMS_NORM, .accepts = accepts_rms_norm,
                                                  .prepare = prepare_rows, .run = run_rms_norm};
