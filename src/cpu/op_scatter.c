/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows scattered into an array that is updated in place. A unit is a column of the rows, so that
 * rows with one index are applied in order by one thread.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"

static bool accepts_plain_scatter(const qn_array *node)
{
    return !node->in[0]->layout && !node->in[2]->layout;
}

static int64_t prepare_scatter(qn__cpu_job *job)
{
    const qn__operand *y = &job->call->operand[3];
    job->n_phases = 1;
    job->units[0] = y->shape[0] ? qn__cpu_elements(y) / y->shape[0] : 0;
    return qn__cpu_elements(&job->call->operand[2]);
}

typedef void apply_fn(char *y, const char *u, int64_t n, qn_dtype type);

/* Columns begin .. end - 1 of every row. */
static void scatter(const qn__cpu_job *job, const qn__cpu_part *part, apply_fn *apply)
{
    const qn__operand *y = &job->call->operand[3];
    int64_t rows = qn__cpu_elements(&job->call->operand[1]), n = job->units[0];
    size_t size = qn__dtype_size((qn_dtype)y->dtype);
    for (int64_t i = 0; i < rows; i++) {
        int64_t id = ((const int32_t *)part->at[1])[i];
        if (id < 0 || id >= y->shape[0])
            continue;
        apply(part->at[3] + (size_t)(id * n + part->begin) * size,
              part->at[2] + (size_t)(i * n + part->begin) * size, part->end - part->begin,
              (qn_dtype)y->dtype);
    }
}

/* Each sum is rounded to the type; integers wrap, and of bools it is "or". */
static void add(char *y, const char *u, int64_t n, qn_dtype type)
{
    size_t size = qn__dtype_size(type);
    if (type == QN_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)y)[i] += ((const float *)u)[i];
    } else if (type == QN_F64) {
        for (int64_t i = 0; i < n; i++)
            ((double *)y)[i] += ((const double *)u)[i];
    } else if (qn__is_float(type)) {
        for (int64_t i = 0; i < n; i++, y += size, u += size)
            qn__element_from_f64(
                y, type, (float)qn__element_to_f64(y, type) + (float)qn__element_to_f64(u, type));
    } else {
        for (int64_t i = 0; i < n; i++, y += size, u += size)
            qn__element_from_i64(y, type,
                                 (int64_t)((uint64_t)qn__element_to_i64(y, type) +
                                           (uint64_t)qn__element_to_i64(u, type)));
    }
}

static void set(char *y, const char *u, int64_t n, qn_dtype type)
{
    memcpy(y, u, (size_t)n * qn__dtype_size(type));
}

/* Whether u is to take the place of y: the larger, or NaN. */
static bool exceeds(const char *u, const char *y, qn_dtype type)
{
    if (qn__is_float(type)) {
        double a = qn__element_to_f64(u, type);
        return a > qn__element_to_f64(y, type) || a != a;
    }
    int64_t a = qn__element_to_i64(u, type), b = qn__element_to_i64(y, type);
    return type == QN_U64 ? (uint64_t)a > (uint64_t)b : a > b;
}

static void largest(char *y, const char *u, int64_t n, qn_dtype type)
{
    size_t size = qn__dtype_size(type);
    for (int64_t i = 0; i < n; i++, y += size, u += size)
        if (exceeds(u, y, type))
            memcpy(y, u, size);
}

static void smallest(char *y, const char *u, int64_t n, qn_dtype type)
{
    size_t size = qn__dtype_size(type);
    for (int64_t i = 0; i < n; i++, y += size, u += size)
        if (exceeds(y, u, type) ? !exceeds(y, y, type) : exceeds(u, u, type))
            memcpy(y, u, size); /* only NaN exceeds itself */
}

static void run_scatter_add(const qn__cpu_job *job, const qn__cpu_part *part)
{
    scatter(job, part, add);
}

static void run_scatter(const qn__cpu_job *job, const qn__cpu_part *part)
{
    static apply_fn *const apply[] = {
        [QN_SCATTER_SET] = set, [QN_SCATTER_MAX] = largest, [QN_SCATTER_MIN] = smallest};
    scatter(job, part, apply[((const qn__scatter_params *)job->call->params)->mode]);
}

const qn__cpu_routine qn__cpu_scatter_add_routine = {
    QN__OP_SCATTER_ADD, .accepts = accepts_plain_scatter, .prepare = prepare_scatter,
    .run = run_scatter_add};
const qn__cpu_routine qn__cpu_scatter_routine = {QN__OP_SCATTER, .accepts = accepts_plain_scatter,
                                                 .prepare = prepare_scatter, .run = run_scatter};
