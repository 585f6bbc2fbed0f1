/* SPDX-License-Identifier: Apache-2.0
 *
 * Cross-entropy of a linear layer, with its gradient, in one pass over the packed weight.
 *
 * A unit is a band of the rows that count (weight not 0). It meets the vocabulary in chunks of a
 * fixed size: the logits of a chunk, the softmax over what has come (online: what was summed before
 * fades where the maximum grows), and of its terms e the sum of e w, which becomes the gradient:
 *   d loss / d x = (sum of e c w) / (sum of e) - c_t w_t,
 * c the slope of the soft-cap, t the target. The chunks' order is that of the vocabulary, so rows,
 * bands and threads change nothing.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"
#include "quant/layout.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 512, LEAST_BAND = 16, MOST_BAND = 192, BANDS_A_THREAD = 2 };

/* One band of rows: pointers into a thread's scratch, all of `room` rows. */
typedef struct band {
    const qn__cpu_kernels *table;
    const qn__layout *layout;
    qn__cpu_unpack *unpack;
    const char *w;
    size_t k, vocab, room, rows;
    qn__cpu_type products, back;
    float softcap;
    bool loss_only;
    float *x, *logits, *slope; /* [room, K], [room, CHUNK], [room, K]: sum of e c w */
    void *x_prepared, *e_prepared;
    float *top, *fade, *hit, *hit_slope; /* [room]: the maximum; the target's logit, c_t */
    double *total;                       /* [room]: sum of e */
    int32_t *row, *target;               /* [room] */
} band;

static int64_t rows_of_band(const qn__cpu_job *job)
{
    int64_t rows = qn__cpu_rows(&job->call->operand[0]);
    int64_t bands = (int64_t)job->n_threads * BANDS_A_THREAD, most = (rows + bands - 1) / bands;
    most = (most + LEAST_BAND - 1) / LEAST_BAND * LEAST_BAND;
    return most > MOST_BAND ? MOST_BAND : most < LEAST_BAND ? LEAST_BAND : most;
}

/* Takes `bytes` of *at, whole lines; where *at is NULL it counts them. */
static void *take(char **at, size_t *size, size_t bytes)
{
    void *part = *at ? *at + *size : NULL;
    *size += (bytes + 63) & ~(size_t)63;
    return part;
}

/* Divides scratch (NULL: says how much it takes). */
static size_t divide_scratch(band *b, char *scratch)
{
    size_t size = 0, room = b->room;
    b->x = take(&scratch, &size, room * b->k * 4);
    b->logits = take(&scratch, &size, room * CHUNK * 4);
    b->slope = take(&scratch, &size, b->loss_only ? 0 : room * b->k * 4);
    b->x_prepared = take(&scratch, &size, qn__cpu_prepared_bytes(room, b->k));
    b->e_prepared = take(&scratch, &size, qn__cpu_prepared_bytes(room, CHUNK));
    b->top = take(&scratch, &size, room * 4);
    b->fade = take(&scratch, &size, room * 4);
    b->hit = take(&scratch, &size, room * 4);
    b->hit_slope = take(&scratch, &size, room * 4);
    b->total = take(&scratch, &size, room * 8);
    b->row = take(&scratch, &size, room * 4);
    b->target = take(&scratch, &size, room * 4);
    return size;
}

static band band_of(const qn__cpu_job *job)
{
    const qn__linear_cross_entropy_params *p = job->call->params;
    const qn__operand *w = &job->call->operand[1];
    return (band){.table = job->table,
                  .layout = qn__layout_of(w->layout),
                  .unpack = job->table->unpack[w->layout],
                  .k = (size_t)w->shape[1],
                  .vocab = (size_t)w->shape[0],
                  .room = (size_t)rows_of_band(job),
                  .products = qn__cpu_products((qn_products)p->products),
                  .back = qn__cpu_back_products((qn_products)p->products),
                  .softcap = p->softcap,
                  .loss_only = p->loss_only};
}

static int64_t prepare_linear_cross_entropy(qn__cpu_job *job)
{
    int64_t rows = qn__cpu_rows(&job->call->operand[0]), room = rows_of_band(job);
    band b = band_of(job);
    job->n_phases = 1;
    job->units[0] = (rows + room - 1) / room;
    job->scratch = divide_scratch(&b, NULL) + 64;
    return rows * (int64_t)b.k * (int64_t)b.vocab;
}

/* ---- a chunk --------------------------------------------------------------------------------- */

/* Rows v .. v + n - 1 of the weight as one of its own. */
static qn__cpu_linear chunk_of(const band *b, size_t v, size_t n)
{
    size_t bytes = qn__layout_group_bytes(b->layout, (int64_t)b->k);
    return (qn__cpu_linear){.layout = b->layout,
                            .unpack = b->unpack,
                            .w = b->w + v / QN__CPU_PANEL * bytes,
                            .n = n,
                            .k = b->k,
                            .m = b->rows,
                            .m1 = b->rows};
}

static void make_logits(const band *b, size_t v, size_t n)
{
    qn__cpu_linear a = chunk_of(b, v, n);
    a.x = b->x_prepared;
    a.y = b->logits;
    a.ldy = n;
    b->table->linear[b->products](&a, 0, qn__cpu_panels(n));
    if (b->softcap > 0) {
        for (size_t i = 0; i < b->rows * n; i++)
            b->logits[i] /= b->softcap;
        b->table->map[QN__CPU_TANH](b->logits, b->logits, b->rows * n);
        for (size_t i = 0; i < b->rows * n; i++)
            b->logits[i] *= b->softcap;
    }
}

static float slope_of_cap(const band *b, float logit)
{
    return b->softcap > 0 ? 1.0f - logit / b->softcap * (logit / b->softcap) : 1.0f;
}

static float exp_of(const band *b, float x)
{
    b->table->map[QN__CPU_EXP](&x, &x, 1);
    return x;
}

/* Row r's logits x[n] of columns v .. v + n - 1 become terms of the softmax, e, and these e c. */
static void make_terms(const band *b, size_t r, size_t v, float *x, size_t n)
{
    const qn__cpu_kernels *t = b->table;
    float slope[CHUNK], top, sum;
    size_t target = b->target[r] >= 0 ? (size_t)b->target[r] : SIZE_MAX;
    if (target >= v && target < v + n) {
        b->hit[r] = x[target - v];
        b->hit_slope[r] = slope_of_cap(b, b->hit[r]);
    }
    for (size_t i = 0; i < n && b->softcap > 0; i++)
        slope[i] = slope_of_cap(b, x[i]);
    t->max(&top, x, n, n, 0, 1);
    top = top < b->top[r] ? b->top[r] : top;
    b->fade[r] = exp_of(b, b->top[r] - top);
    b->top[r] = top;
    for (size_t i = 0; i < n; i++)
        x[i] -= top;
    t->map[QN__CPU_EXP](x, x, n);
    t->sum(&sum, x, n, n, 0, 1);
    b->total[r] = b->total[r] * (double)b->fade[r] + (double)sum;
    for (size_t i = 0; i < n && b->softcap > 0; i++)
        x[i] *= slope[i];
}

/* The terms' share of the gradients. */
static void add_slopes(const band *b, size_t v, size_t n)
{
    qn__cpu_linear a = chunk_of(b, v, n);
    for (size_t r = 0; r < b->rows && v > 0; r++)
        for (size_t i = 0; i < b->k && b->fade[r] != 1.0f; i++)
            b->slope[r * b->k + i] *= b->fade[r];
    b->table->prepare_back[b->back](b->e_prepared, b->logits, n, b->rows, n, 0, b->rows);
    a.x = b->e_prepared;
    a.y = b->slope;
    a.ldy = b->k;
    a.add = v > 0;
    b->table->linear_back[b->back](&a, 0, qn__cpu_panels(b->k));
}

/* ---- a band ---------------------------------------------------------------------------------- */

static float weight_of(const qn__cpu_job *job, const qn__cpu_part *part, int64_t row)
{
    const qn__linear_cross_entropy_params *p = job->call->params;
    return p->has_weights ? ((const float *)part->at[3])[row] : 1.0f;
}

/* The rows of the unit: those that count are numbered, and units have equally many of them. Those
 * that do not count get their zeros here. */
static void gather(band *b, const qn__cpu_job *job, const qn__cpu_part *part, int64_t unit)
{
    size_t columns = b->loss_only ? 1 : 1 + b->k, number = 0;
    size_t first = (size_t)unit * b->room, rows = (size_t)qn__cpu_rows(&job->call->operand[0]);
    float *y = (float *)part->at[job->call->n_operands - 1];
    b->rows = 0;
    for (size_t i = 0; i < rows; i++) {
        bool counts = weight_of(job, part, (int64_t)i) != 0;
        if (!counts && i >= first && i < first + b->room)
            memset(y + i * columns, 0, columns * sizeof *y);
        if (!counts || number++ < first || number > first + b->room)
            continue;
        size_t r = b->rows++;
        b->row[r] = (int32_t)i;
        b->target[r] = ((const int32_t *)part->at[2])[i];
        b->top[r] = -INFINITY;
        b->total[r] = b->hit[r] = b->hit_slope[r] = 0;
        memcpy(b->x + r * b->k, (const float *)part->at[0] + i * b->k, b->k * sizeof *b->x);
    }
    b->table->prepare[b->products](b->layout, b->x_prepared, b->x, b->k, b->rows, b->k, 0, b->rows);
}

/* The loss of a row, and its gradient. `x` is room for a row of the weight. */
static void finish(const band *b, size_t r, float weight, float *x, float *y)
{
    float of_target = -weight * b->hit_slope[r], scale = (float)((double)weight / b->total[r]);
    y[0] = weight * (float)((double)b->top[r] + log(b->total[r]) - (double)b->hit[r]);
    if (b->loss_only)
        return;
    const float *slope = b->slope + r * b->k;
    for (size_t i = 0; i < b->k; i++)
        y[1 + i] = scale * slope[i];
    if (b->target[r] < 0 || (size_t)b->target[r] >= b->vocab)
        return; /* as where cross_entropy takes a target that is not there */
    qn__layout_row_values(b->layout, b->w, (int64_t)b->k, b->target[r], x);
    for (size_t i = 0; i < b->k; i++)
        y[1 + i] += of_target * x[i];
}

static void run_linear_cross_entropy(const qn__cpu_job *job, const qn__cpu_part *part)
{
    band b = band_of(job);
    char *scratch = (char *)(((uintptr_t)part->scratch + 63) & ~(uintptr_t)63);
    size_t columns = b.loss_only ? 1 : 1 + b.k;
    b.w = part->at[1];
    divide_scratch(&b, scratch);
    for (int64_t unit = part->begin; unit < part->end; unit++) {
        gather(&b, job, part, unit);
        for (size_t v = 0; v < b.vocab && b.rows; v += CHUNK) {
            size_t n = b.vocab - v < CHUNK ? b.vocab - v : CHUNK;
            make_logits(&b, v, n);
            for (size_t r = 0; r < b.rows; r++)
                make_terms(&b, r, v, b.logits + r * n, n);
            if (!b.loss_only)
                add_slopes(&b, v, n);
        }
        for (size_t r = 0; r < b.rows; r++)
            finish(&b, r, weight_of(job, part, b.row[r]), b.x,
                   (float *)part->at[job->call->n_operands - 1] + (size_t)b.row[r] * columns);
    }
}

static bool accepts_linear_cross_entropy(const qn_array *node)
{
    const qn__linear_cross_entropy_params *p = node->params;
    const qn__layout *l = qn__layout_of(node->in[1]->layout);
    return node->dtype == QN_F32 && l && p->products != QN_PRODUCTS_F16 &&
           (p->products != QN_PRODUCTS_INT8_ROWS || l->step);
}

const qn__cpu_routine qn__cpu_linear_cross_entropy_routine = {
    QN__OP_LINEAR_CROSS_ENTROPY, .accepts = accepts_linear_cross_entropy,
    .prepare = prepare_linear_cross_entropy, .run = run_linear_cross_entropy};
