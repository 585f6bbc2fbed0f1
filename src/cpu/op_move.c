/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that move elements without computing: any type, byte by byte or row by row.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"
#include "quant/layout.h"

static bool accepts_plain_move(const qn_array *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i]->layout)
            return false;
    return true;
}

void qn__cpu_copy(const qn__operand *from, const char *a, const qn__operand *to, char *y,
                  int64_t begin, int64_t end)
{
    size_t size = qn__dtype_size((qn_dtype)from->dtype);
    int last = from->ndim - 1;
    if (last < 0) {
        memcpy(y, a, size);
        return;
    }
    int64_t n = from->shape[last];
    bool runs = from->stride[last] == 1 && to->stride[last] == 1;
    for (int64_t i = begin; i < end;) {
        int64_t take = runs ? n - i % n : 1;
        if (take > end - i)
            take = end - i;
        memcpy(y + qn__cpu_offset(to, to->ndim, i) * (int64_t)size,
               a + qn__cpu_offset(from, from->ndim, i) * (int64_t)size, (size_t)take * size);
        i += take;
    }
}

/* ---- arange
 * ---------------------------------------------------------------------------------------------- */

static int64_t prepare_elements(qn__cpu_job *job)
{
    job->n_phases = 1;
    return job->units[0] = qn__cpu_elements(&job->call->operand[job->call->n_operands - 1]);
}

static void run_arange(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *y = &job->call->operand[0];
    qn_dtype dtype = (qn_dtype)y->dtype;
    size_t size = qn__dtype_size(dtype);
    uint32_t *words = (uint32_t *)part->at[0]; /* counters of random numbers */
    if (dtype == QN_U32 || dtype == QN_I32)
        for (int64_t i = part->begin; i < part->end; i++)
            words[i] = (uint32_t)i;
    else
        for (int64_t i = part->begin; i < part->end; i++)
            qn__element_from_i64(part->at[0] + (size_t)i * size, dtype, i);
}

const qn__cpu_routine qn__cpu_arange_routine = {QN__OP_ARANGE, .accepts = accepts_plain_move,
                                                .prepare = prepare_elements, .run = run_arange};

/* ---- concatenate: a unit is one input
 * ---------------------------------------------------------------------- */

static int64_t prepare_concatenate(qn__cpu_job *job)
{
    job->n_phases = 1;
    job->units[0] = job->call->n_operands - 1;
    return qn__cpu_elements(&job->call->operand[job->call->n_operands - 1]);
}

static void run_concatenate(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__call *call = job->call;
    const qn__operand *y = &call->operand[call->n_operands - 1];
    int axis = (int)((const qn__concatenate_params *)call->params)->axis;
    size_t size = qn__dtype_size((qn_dtype)y->dtype);
    int64_t at = 0;
    for (int64_t k = 0; k < part->end; k++) {
        const qn__operand *in = &call->operand[k];
        if (k >= part->begin) {
            qn__operand block = *y;
            memcpy(block.shape, in->shape, sizeof block.shape);
            qn__cpu_copy(in, part->at[k], &block,
                         part->at[call->n_operands - 1] + at * y->stride[axis] * (int64_t)size, 0,
                         qn__cpu_elements(in));
        }
        at += in->shape[axis];
    }
}

const qn__cpu_routine qn__cpu_concatenate_routine = {
    QN__OP_CONCATENATE, .accepts = accepts_plain_move, .prepare = prepare_concatenate,
    .run = run_concatenate};

/* ---- take: a unit is one row of the result
 * ------------------------------------------------------------------ */

static bool accepts_take(const qn_array *node)
{
    (void)node;
    return true;
}

static int64_t prepare_take(qn__cpu_job *job)
{
    job->n_phases = 1;
    job->units[0] = qn__cpu_elements(&job->call->operand[1]);
    return qn__cpu_elements(&job->call->operand[2]);
}

/* One row of a packed weight, in the type that its values have. */
static void take_packed(const qn__layout *l, const void *w, int64_t columns, int64_t row, void *out)
{
    if (l->step)
        qn__layout_row_values(l, w, columns, row, out);
    else
        qn__layout_unpack_row(l, w, columns, row, out);
}

static void run_take(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0], *y = &job->call->operand[2];
    qn__operand row = *x; /* x without its first axis */
    row.ndim--;
    memmove(row.shape, x->shape + 1, row.ndim * sizeof *row.shape);
    memmove(row.stride, x->stride + 1, row.ndim * sizeof *row.stride);
    qn__operand to = row;
    int64_t n = qn__cpu_elements(&row), step_size = 1;
    for (int i = row.ndim - 1; i >= 0; i--) {
        to.stride[i] = step_size;
        step_size *= row.shape[i];
    }
    size_t size = qn__dtype_size((qn_dtype)y->dtype);
    for (int64_t i = part->begin; i < part->end; i++) {
        int64_t id = ((const int32_t *)part->at[1])[i];
        char *out = part->at[2] + (size_t)(i * n) * size;
        if (id < 0 || id >= x->shape[0])
            memset(out, 0, (size_t)n * size);
        else if (x->layout)
            take_packed(qn__layout_of(x->layout), part->at[0], x->shape[1], id, out);
        else
            qn__cpu_copy(&row, part->at[0] + id * x->stride[0] * (int64_t)size, &to, out, 0, n);
    }
}

const qn__cpu_routine qn__cpu_take_routine = {QN__OP_TAKE, .accepts = accepts_take,
                                              .prepare = prepare_take, .run = run_take};

static void run_take_along_last(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0];
    size_t size = qn__dtype_size((qn_dtype)x->dtype);
    int last = x->ndim - 1;
    for (int64_t i = part->begin; i < part->end; i++) {
        int64_t id = ((const int32_t *)part->at[1])[i];
        char *out = part->at[2] + (size_t)i * size;
        int64_t at = qn__cpu_offset(x, last, i) + id * x->stride[last];
        if (id < 0 || id >= x->shape[last])
            memset(out, 0, size);
        else
            memcpy(out, part->at[0] + at * (int64_t)size, size);
    }
}

const qn__cpu_routine qn__cpu_take_along_last_routine = {
    QN__OP_TAKE_ALONG_LAST, .accepts = accepts_plain_move, .prepare = prepare_elements,
    .run = run_take_along_last};

/* ---- updates in place: the output holds the old values already
 * ------------------------------------------------ */

static int64_t prepare_slice_update(qn__cpu_job *job)
{
    job->n_phases = 1;
    return job->units[0] = qn__cpu_elements(&job->call->operand[1]);
}

static void run_slice_update(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__slice_update_params *p = job->call->params;
    const qn__operand *u = &job->call->operand[1], *y = &job->call->operand[2];
    qn__operand block = *y;
    memcpy(block.shape, u->shape, sizeof block.shape);
    int64_t at = 0;
    for (int i = 0; i < y->ndim; i++)
        at += p->start[i] * y->stride[i];
    qn__cpu_copy(u, part->at[1], &block,
                 part->at[2] + at * (int64_t)qn__dtype_size((qn_dtype)y->dtype), part->begin,
                 part->end);
}

const qn__cpu_routine qn__cpu_slice_update_routine = {
    QN__OP_SLICE_UPDATE, .accepts = accepts_plain_move, .prepare = prepare_slice_update,
    .run = run_slice_update};

/* ---- blocks at a place that is data
 * --------------------------------------------------------------------------- */

/* The element offset of a block of `shape` in o at start, clamped so that it lies inside. */
static int64_t block_offset(const qn__operand *o, const int64_t *shape, const int32_t *start)
{
    int64_t at = 0;
    for (int i = 0; i < o->ndim; i++) {
        int64_t from = start[i], last = o->shape[i] - shape[i];
        at += (from < 0 ? 0 : from > last ? last : from) * o->stride[i];
    }
    return at;
}

static void run_slice_at(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0], *y = &job->call->operand[2];
    qn__operand block = *x;
    memcpy(block.shape, y->shape, sizeof block.shape);
    int64_t at = block_offset(x, y->shape, (const int32_t *)part->at[1]);
    qn__cpu_copy(&block, part->at[0] + at * (int64_t)qn__dtype_size((qn_dtype)x->dtype), y,
                 part->at[2], part->begin, part->end);
}

const qn__cpu_routine qn__cpu_slice_at_routine = {QN__OP_SLICE_AT, .accepts = accepts_plain_move,
                                                  .prepare = prepare_elements, .run = run_slice_at};

static void run_slice_update_at(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *u = &job->call->operand[1], *y = &job->call->operand[3];
    qn__operand block = *y;
    memcpy(block.shape, u->shape, sizeof block.shape);
    int64_t at = block_offset(y, u->shape, (const int32_t *)part->at[2]);
    qn__cpu_copy(u, part->at[1], &block,
                 part->at[3] + at * (int64_t)qn__dtype_size((qn_dtype)y->dtype), part->begin,
                 part->end);
}

const qn__cpu_routine qn__cpu_slice_update_at_routine = {
    QN__OP_SLICE_UPDATE_AT, .accepts = accepts_plain_move, .prepare = prepare_slice_update,
    .run = run_slice_update_at};
