/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of plain arrays, as training has it, and its gradients; over a cache it is op_attend.c.
 *
 * The scores of a tile of queries are all that is in memory of [L, S]: a thread's scratch holds
 * those of TILE queries and every key that one of them sees. The gradients make them again. All
 * products are the strided ones of the table, so each tier has its speed; a row's softmax goes over
 * what the row sees and nothing else.
 *
 * A unit is a tile of one head; of gradients a head, whose tiles add to the same dk and dv in
 * order. Heads that share keys each have a dk and dv of their own, which are added up behind.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"

#include <string.h>

enum { TILE = 96 }; /* queries: whole tiles of rows in every tier's products */

/* Where rows of an operand's head lie, in elements. */
typedef struct head_rows {
    ptrdiff_t at, row, column;
} head_rows;

typedef struct attention_tile {
    const qn__cpu_kernels *table;
    size_t rows, d, e;
    size_t low, high;              /* the keys that rows see */
    size_t begin[TILE], end[TILE]; /* those that one row sees; begin == end: none */
    double scale, softcap;
    head_rows q, k, v, o, g;
    ptrdiff_t dq_row, dk_row, dv_row;
} attention_tile;

#define REAL       float
#define PRODUCT    attention_product_f32
#define WEIGHTS    attention_weights_f32
#define FORWARD    attention_forward_f32
#define BACKWARD   attention_backward_f32
#define DENSE_ARGS qn__cpu_dense
#define DENSE      dense
#define SOFTMAX    softmax
#define TANH       map[QN__CPU_TANH]
#include "cpu/attention.inl"
#undef REAL
#undef PRODUCT
#undef WEIGHTS
#undef FORWARD
#undef BACKWARD
#undef DENSE_ARGS
#undef DENSE
#undef SOFTMAX
#undef TANH
#define REAL       double
#define PRODUCT    attention_product_f64
#define WEIGHTS    attention_weights_f64
#define FORWARD    attention_forward_f64
#define BACKWARD   attention_backward_f64
#define DENSE_ARGS qn__cpu_dense_f64
#define DENSE      dense_f64
#define SOFTMAX    softmax_f64
#define TANH       map_f64[QN__CPU_TANH]
#include "cpu/attention.inl"

static head_rows rows_of(const qn__operand *x, int64_t batch, int64_t head, int64_t row)
{
    return (head_rows){(ptrdiff_t)(batch * x->stride[0] + head * x->stride[1] + row * x->stride[2]),
                       (ptrdiff_t)x->stride[2], (ptrdiff_t)x->stride[3]};
}

/* What the rows of a tile see, rows from query l on. */
static void set_ranges(attention_tile *t, const qn__call *call, const int32_t *first, int64_t batch,
                       int64_t l)
{
    const qn__attention_params *p = call->params;
    int64_t n_queries = call->operand[0].shape[2], n_keys = call->operand[1].shape[2];
    t->low = (size_t)n_keys;
    t->high = 0;
    for (size_t r = 0; r < t->rows; r++) {
        int64_t last = l + (int64_t)r + n_keys - n_queries, begin = 0, end = n_keys;
        if (p->causal && last + 1 < end)
            end = last + 1 > 0 ? last + 1 : 0;
        if (p->window && last - p->window + 1 > 0)
            begin = last - p->window + 1;
        if (first && first[batch * n_queries + l + (int64_t)r] > begin)
            begin = first[batch * n_queries + l + (int64_t)r];
        t->begin[r] = (size_t)begin;
        t->end[r] = (size_t)end;
        if (begin >= end) {
            t->begin[r] = t->end[r] = SIZE_MAX;
            continue;
        }
        t->low = t->begin[r] < t->low ? t->begin[r] : t->low;
        t->high = t->end[r] > t->high ? t->end[r] : t->high;
    }
    t->low = t->low < t->high ? t->low : t->high;
    for (size_t r = 0; r < t->rows; r++)
        if (t->begin[r] == SIZE_MAX)
            t->begin[r] = t->end[r] = t->low;
}

/* A tile of head `unit` (all batches' heads in a row), from query l on. */
static attention_tile tile_of(const qn__cpu_job *job, const int32_t *first, int64_t unit, int64_t l)
{
    const qn__operand *q = &job->call->operand[0], *k = &job->call->operand[1],
                      *v = &job->call->operand[2];
    const qn__attention_params *p = job->call->params;
    int64_t batch = unit / q->shape[1], head = unit % q->shape[1],
            shared = head / (q->shape[1] / k->shape[1]);
    int64_t rows = q->shape[2] - l;
    attention_tile t = {.table = job->table,
                        .rows = (size_t)(rows < TILE ? rows : TILE),
                        .d = (size_t)q->shape[3],
                        .e = (size_t)v->shape[3],
                        .scale = (double)p->scale,
                        .softcap = (double)p->softcap,
                        .q = rows_of(q, batch, head, l),
                        .k = rows_of(k, batch, shared, 0),
                        .v = rows_of(v, batch, shared, 0)};
    set_ranges(&t, job->call, first, batch, l);
    return t;
}

static int64_t tiles_of(const qn__operand *q)
{
    return (q->shape[2] + TILE - 1) / TILE;
}

/* A tile's scores, `n` times. */
static size_t bytes_of_scores(const qn__cpu_job *job, size_t n)
{
    const qn__operand *q = &job->call->operand[0], *k = &job->call->operand[1];
    return n * TILE * (size_t)k->shape[2] * qn__dtype_size((qn_dtype)q->dtype) + 64;
}

static int64_t work_of(const qn__cpu_job *job)
{
    const qn__operand *q = &job->call->operand[0], *k = &job->call->operand[1];
    return qn__cpu_elements(q) * k->shape[2];
}

static bool accepts_attention(const qn_array *node)
{
    const qn__attention_params *p = node->params;
    return (node->dtype == QN_F32 || node->dtype == QN_F64) && !p->has_mask && !p->has_sinks;
}

/* ---- forward --------------------------------------------------------------------------------- */

static int64_t prepare_attention(qn__cpu_job *job)
{
    const qn__operand *q = &job->call->operand[0];
    job->n_phases = 1;
    job->units[0] = q->shape[0] * q->shape[1] * tiles_of(q);
    job->scratch = bytes_of_scores(job, 1);
    return work_of(job);
}

static void run_attention(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *q = &job->call->operand[0];
    const qn__attention_params *p = job->call->params;
    int output = 3 + p->has_first;
    const int32_t *first = p->has_first ? (const int32_t *)part->at[3] : NULL;
    int64_t tiles = tiles_of(q);
    for (int64_t unit = part->begin; unit < part->end; unit++) {
        int64_t head = unit / tiles, l = unit % tiles * TILE;
        attention_tile t = tile_of(job, first, head, l);
        t.o = rows_of(&job->call->operand[output], head / q->shape[1], head % q->shape[1], l);
        const char *const at[] = {part->at[0], part->at[1], part->at[2]};
        if (q->dtype == QN_F32)
            attention_forward_f32(&t, at, part->scratch, part->at[output]);
        else
            attention_forward_f64(&t, at, part->scratch, part->at[output]);
    }
}

const qn__cpu_routine qn__cpu_attention_routine = {QN__OP_ATTENTION, .accepts = accepts_attention,
                                                   .prepare = prepare_attention,
                                                   .run = run_attention};

/* ---- gradients ------------------------------------------------------------------------------- */

static int64_t prepare_attention_back(qn__cpu_job *job)
{
    const qn__operand *q = &job->call->operand[0];
    const qn__attention_params *p = job->call->params;
    job->n_phases = 1;
    job->units[0] = q->shape[0] * q->shape[1];
    job->scratch = bytes_of_scores(job, p->softcap > 0 ? 3 : 2);
    return work_of(job) * 3;
}

/* Of the output: dq [B, L, H, D], then dk [B, S, H, D], then dv [B, S, H, E], as `part` of sizes
 * says where. */
static void run_head(const qn__cpu_job *job, const qn__cpu_part *part, int64_t head)
{
    const qn__operand *q = &job->call->operand[0], *k = &job->call->operand[1],
                      *v = &job->call->operand[2];
    const qn__attention_params *p = job->call->params;
    const int32_t *first = p->has_first ? (const int32_t *)part->at[5] : NULL;
    int64_t h = q->shape[1], b = head / h, d = q->shape[3], e = v->shape[3], n = k->shape[2];
    int64_t row_dq = q->shape[0] * q->shape[2] * h * d, row_dk = q->shape[0] * n * h * d;
    int64_t dq = b * q->shape[2] * h * d + head % h * d, dk = row_dq + b * n * h * d + head % h * d,
            dv = row_dq + row_dk + b * n * h * e + head % h * e;
    size_t size = qn__dtype_size((qn_dtype)q->dtype);
    char *out = part->at[5 + p->has_first], *scores = part->scratch;
    size_t room = TILE * (size_t)n * size;
    for (int64_t s = 0; s < n; s++) {
        memset(out + (size_t)(dk + s * h * d) * size, 0, (size_t)d * size);
        memset(out + (size_t)(dv + s * h * e) * size, 0, (size_t)e * size);
    }
    for (int64_t l = 0; l < q->shape[2]; l += TILE, dq += TILE * h * d) {
        attention_tile t = tile_of(job, first, head, l);
        t.o = rows_of(&job->call->operand[3], b, head % h, l);
        t.g = rows_of(&job->call->operand[4], b, head % h, l);
        t.dq_row = t.dk_row = h * d;
        t.dv_row = h * e;
        const char *const *at = (const char *const *)part->at;
        if (q->dtype == QN_F32)
            attention_backward_f32(&t, at, (float *)scores, (float *)(scores + room),
                                   (float *)(scores + 2 * room), (float *)out + dq,
                                   (float *)out + dk, (float *)out + dv);
        else
            attention_backward_f64(&t, at, (double *)scores, (double *)(scores + room),
                                   (double *)(scores + 2 * room), (double *)out + dq,
                                   (double *)out + dk, (double *)out + dv);
    }
}

static void run_attention_back(const qn__cpu_job *job, const qn__cpu_part *part)
{
    for (int64_t head = part->begin; head < part->end; head++)
        run_head(job, part, head);
}

const qn__cpu_routine qn__cpu_attention_back_routine = {
    QN__OP_ATTENTION_BACK, .accepts = accepts_attention, .prepare = prepare_attention_back,
    .run = run_attention_back};
