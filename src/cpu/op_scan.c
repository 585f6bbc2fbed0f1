/* SPDX-License-Identifier: Apache-2.0
 *
 * Running sums, products, maxima and minima of rows, and the order that sorts a row. A unit is one
 * row; both read row-major rows of any type.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"

static bool accepts_plain_scan(const qn_array *node)
{
    return !node->in[0]->layout;
}

/* ---- cumulate
 * -------------------------------------------------------------------------------------------- */

static int64_t prepare_cumulate(qn__cpu_job *job)
{
    const qn__operand *y = &job->call->operand[1];
    job->n_phases = 1;
    job->units[0] = qn__cpu_rows(y);
    return qn__cpu_elements(y);
}

/* Floats are kept in double and rounded at each place. */
static double next_real(int what, double so_far, double v)
{
    switch (what) {
    case QN__CUMSUM: return so_far + v;
    case QN__CUMPROD: return so_far * v;
    case QN__CUMMAX: return v > so_far || v != v ? v : so_far;
    default: return v < so_far || v != v ? v : so_far;
    }
}

static int64_t next_whole(int what, bool is_unsigned, int64_t so_far, int64_t v)
{
    bool larger = is_unsigned ? (uint64_t)v > (uint64_t)so_far : v > so_far;
    switch (what) {
    case QN__CUMSUM: return (int64_t)((uint64_t)so_far + (uint64_t)v);
    case QN__CUMPROD: return (int64_t)((uint64_t)so_far * (uint64_t)v);
    case QN__CUMMAX: return larger ? v : so_far;
    default: return larger ? so_far : v;
    }
}

static void cumulate_row(const qn__cumulate_params *p, qn_dtype type, const char *x, char *y,
                         int64_t n)
{
    size_t size = qn__dtype_size(type);
    bool real = qn__is_float(type), is_unsigned = qn__dtype_kind(type) <= QN__UNSIGNED;
    double sum = p->cumulation == QN__CUMPROD;
    int64_t whole = p->cumulation == QN__CUMPROD;
    bool begun = p->cumulation <= QN__CUMPROD;
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)(p->reverse ? n - 1 - i : i) * size;
        double v = real ? qn__element_to_f64(x + at, type) : 0;
        int64_t w = real ? 0 : qn__element_to_i64(x + at, type);
        double next = begun ? next_real(p->cumulation, sum, v) : v;
        int64_t next_w = begun ? next_whole(p->cumulation, is_unsigned, whole, w) : w;
        begun = true;
        if (real)
            qn__element_from_f64(y + at, type, p->exclusive ? sum : next);
        else
            qn__element_from_i64(y + at, type, p->exclusive ? whole : next_w);
        sum = next;
        whole = next_w;
    }
}

static void run_cumulate(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *y = &job->call->operand[1];
    int64_t n = y->shape[y->ndim - 1];
    size_t row = (size_t)n * qn__dtype_size((qn_dtype)y->dtype);
    for (int64_t r = part->begin; r < part->end; r++)
        cumulate_row(job->call->params, (qn_dtype)y->dtype, part->at[0] + (size_t)r * row,
                     part->at[1] + (size_t)r * row, n);
}

const qn__cpu_routine qn__cpu_cumsum_routine = {QN__OP_CUMSUM, .accepts = accepts_plain_scan,
                                                .prepare = prepare_cumulate, .run = run_cumulate};
const qn__cpu_routine qn__cpu_cumulate_routine = {QN__OP_CUMULATE, .accepts = accepts_plain_scan,
                                                  .prepare = prepare_cumulate, .run = run_cumulate};

/* ---- argsort: keys that order as unsigned numbers do, then a radix sort by bytes, which is stable
 * ------ */

enum { FEW = 32 };

static uint64_t sort_key(const char *x, qn_dtype type)
{
    int bits = 8 * (int)qn__dtype_size(type);
    uint64_t mask = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    uint64_t sign = (uint64_t)1 << (bits - 1), key = 0;
    memcpy(&key, x, (size_t)bits / 8); /* little-endian */
    if (!qn__is_float(type))
        return qn__dtype_kind(type) == QN__SIGNED ? key ^ sign : key;
    double v = qn__element_to_f64(x, type);
    if (v != v)
        return mask;
    if (v == 0)
        return sign;
    return key & sign ? ~key & mask : key | sign;
}

typedef struct sorter {
    uint64_t *key, *other_key;
    int32_t *at, *other_at;
} sorter;

static void sort_few(sorter *t, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        uint64_t key = t->key[i];
        int32_t at = t->at[i];
        int64_t k = i;
        for (; k > 0 && t->key[k - 1] > key; k--) {
            t->key[k] = t->key[k - 1];
            t->at[k] = t->at[k - 1];
        }
        t->key[k] = key;
        t->at[k] = at;
    }
}

/* One pass over byte `byte` of the keys; left out where all have the same. */
static void sort_by_byte(sorter *t, int64_t n, int byte)
{
    int64_t place[257] = {0};
    for (int64_t i = 0; i < n; i++)
        place[(t->key[i] >> 8 * byte & 255) + 1]++;
    if (place[(t->key[0] >> 8 * byte & 255) + 1] == n)
        return;
    for (int b = 0; b < 256; b++)
        place[b + 1] += place[b];
    for (int64_t i = 0; i < n; i++) {
        int64_t to = place[t->key[i] >> 8 * byte & 255]++;
        t->other_key[to] = t->key[i];
        t->other_at[to] = t->at[i];
    }
    sorter swapped = {t->other_key, t->key, t->other_at, t->at};
    *t = swapped;
}

static int64_t prepare_argsort(qn__cpu_job *job)
{
    const qn__operand *y = &job->call->operand[1];
    job->n_phases = 1;
    job->units[0] = qn__cpu_rows(y);
    job->scratch = (size_t)y->shape[y->ndim - 1] * 24 + 64;
    return 16 * qn__cpu_elements(y);
}

static void run_argsort(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0], *y = &job->call->operand[1];
    qn_dtype type = (qn_dtype)x->dtype;
    int size = (int)qn__dtype_size(type);
    int64_t n = y->shape[y->ndim - 1];
    uint64_t flip = ((const qn__argsort_params *)job->call->params)->descending ? UINT64_MAX : 0;
    if (size < 8)
        flip &= ((uint64_t)1 << 8 * size) - 1;
    for (int64_t r = part->begin; r < part->end && n; r++) {
        sorter t = {.key = part->scratch, .other_key = (uint64_t *)part->scratch + n};
        t.at = (int32_t *)(t.other_key + n);
        t.other_at = t.at + n;
        for (int64_t i = 0; i < n; i++) {
            t.key[i] = sort_key(part->at[0] + (size_t)((r * n + i) * size), type) ^ flip;
            t.at[i] = (int32_t)i;
        }
        if (n <= FEW)
            sort_few(&t, n);
        for (int byte = 0; n > FEW && byte < size; byte++)
            sort_by_byte(&t, n, byte);
        memcpy(part->at[1] + (size_t)(r * n) * 4, t.at, (size_t)n * 4);
    }
}

const qn__cpu_routine qn__cpu_argsort_routine = {QN__OP_ARGSORT, .accepts = accepts_plain_scan,
                                                 .prepare = prepare_argsort, .run = run_argsort};
