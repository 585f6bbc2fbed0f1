/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products: plain strided batches, and linear layers on packed weights.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"
#include "quant/layout.h"

/* ---- plain
 * ----------------------------------------------------------------------------------------------------
 */

/* How C of every batch is cut: a unit is a band of rows by a block of columns. Units that follow
 * each other are bands of one block, and go to the kernel together: it copies B for all of them. */
typedef struct dense_cut {
    int64_t m, n, columns; /* of a batch; of a block */
    int64_t bands, blocks; /* of a batch */
} dense_cut;

enum {
    DENSE_BAND = 24,    /* rows: whole tiles of every tier */
    DENSE_COLUMNS = 48, /* likewise */
    UNITS_A_THREAD = 4,
    MANY_ROWS = 64,          /* from here on B is laid out once, in a phase of its own */
    MOST_LAID_OUT = 16 << 20 /* elements of it */
};

static int64_t parts_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

static void *aligned64(void *p)
{
    return (void *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

/* Columns are cut only where bands are too few for all threads: each block copies A once more. */
static dense_cut dense_cut_of(const qn__cpu_job *job)
{
    const qn__operand *y = &job->call->operand[2];
    dense_cut c = {.m = y->shape[y->ndim - 2], .n = y->shape[y->ndim - 1]};
    int64_t batches = c.m && c.n ? qn__cpu_elements(y) / (c.m * c.n) : 0;
    c.bands = parts_of(c.m, DENSE_BAND);
    int64_t blocks = batches ? parts_of(job->n_threads * UNITS_A_THREAD, c.bands * batches) : 1;
    c.columns = parts_of(parts_of(c.n, blocks), DENSE_COLUMNS) * DENSE_COLUMNS;
    c.blocks = c.n ? parts_of(c.n, c.columns) : 0;
    return c;
}

/* Whether all batches have the same B, so many rows of them that it is laid out first. */
static bool lays_out(const qn__cpu_job *job)
{
    const qn__operand *b = &job->call->operand[1], *y = &job->call->operand[2];
    int64_t k = b->shape[b->ndim - 2], n = b->shape[b->ndim - 1];
    int64_t columns = (int64_t)qn__cpu_panels((size_t)n) * QN__CPU_PANEL;
    bool same = true;
    for (int i = 0; i < b->ndim - 2; i++)
        same = same && (b->shape[i] == 1 || b->stride[i] == 0);
    return same && job->table->dense_panels && y->dtype == QN_F32 && k && n &&
           qn__cpu_rows(y) >= MANY_ROWS && columns <= MOST_LAID_OUT / k;
}

static int64_t prepare_matmul(qn__cpu_job *job)
{
    const qn__operand *a = &job->call->operand[0], *y = &job->call->operand[2];
    dense_cut c = dense_cut_of(job);
    bool first = lays_out(job);
    job->n_phases = first ? 2 : 1;
    job->units[0] = (int64_t)qn__cpu_panels((size_t)c.n);
    job->units[first] = c.m ? qn__cpu_rows(y) / c.m * c.bands * c.blocks : 0;
    job->shared =
        first ? (size_t)(job->units[0] * QN__CPU_PANEL * a->shape[a->ndim - 1]) * 4 + 64 : 0;
    return qn__cpu_elements(y) * a->shape[a->ndim - 1];
}

/* Rows m0 .. m1 - 1 of columns n0 .. n0 + n - 1 of a batch. */
static void multiply_block(const qn__cpu_job *job, const qn__cpu_part *part, int64_t batch,
                           int64_t n0, int64_t n, int64_t m0, int64_t m1)
{
    const qn__operand *a = &job->call->operand[0], *b = &job->call->operand[1],
                      *y = &job->call->operand[2];
    int r = a->ndim - 2, c = a->ndim - 1; /* axes of rows and columns */
    int64_t oa = qn__cpu_offset(a, r, batch), ob = qn__cpu_offset(b, r, batch) + n0 * b->stride[c];
    int64_t oy = batch * y->shape[r] * y->shape[c] + n0;
    const float *panels = job->n_phases == 2 ? aligned64(part->shared) : NULL;
    if (y->dtype == QN_F32) {
        qn__cpu_dense d = {.n = (size_t)n,
                           .k = (size_t)a->shape[c],
                           .a = (const float *)part->at[0] + oa,
                           .ras = a->stride[r],
                           .cas = a->stride[c],
                           .b = (const float *)part->at[1] + ob,
                           .rbs = b->stride[r],
                           .cbs = b->stride[c],
                           .c = (float *)part->at[2] + oy,
                           .ldc = y->shape[c],
                           .panels = panels ? panels + n0 * a->shape[c] : NULL};
        job->table->dense(&d, (size_t)m0, (size_t)m1);
    } else {
        qn__cpu_dense_f64 d = {.n = (size_t)n,
                               .k = (size_t)a->shape[c],
                               .a = (const double *)part->at[0] + oa,
                               .ras = a->stride[r],
                               .cas = a->stride[c],
                               .b = (const double *)part->at[1] + ob,
                               .rbs = b->stride[r],
                               .cbs = b->stride[c],
                               .c = (double *)part->at[2] + oy,
                               .ldc = y->shape[c]};
        job->table->dense_f64(&d, (size_t)m0, (size_t)m1);
    }
}

static void lay_out(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *b = &job->call->operand[1];
    int r = b->ndim - 2, c = b->ndim - 1;
    qn__cpu_dense d = {.n = (size_t)b->shape[c],
                       .k = (size_t)b->shape[r],
                       .b = (const float *)part->at[1],
                       .rbs = b->stride[r],
                       .cbs = b->stride[c]};
    job->table->dense_panels(&d, (size_t)part->begin, (size_t)part->end, aligned64(part->shared));
}

static void run_matmul(const qn__cpu_job *job, const qn__cpu_part *part)
{
    dense_cut c = dense_cut_of(job);
    if (job->n_phases == 2 && part->phase == 0) {
        lay_out(job, part);
        return;
    }
    for (int64_t unit = part->begin, next; unit < part->end; unit = next) {
        next = (unit / c.bands + 1) * c.bands;
        next = next < part->end ? next : part->end;
        int64_t block = unit / c.bands % c.blocks, n0 = block * c.columns;
        int64_t m0 = unit % c.bands * DENSE_BAND, m1 = m0 + (next - unit) * DENSE_BAND;
        multiply_block(job, part, unit / (c.bands * c.blocks), n0,
                       c.n - n0 < c.columns ? c.n - n0 : c.columns, m0, m1 < c.m ? m1 : c.m);
    }
}

const qn__cpu_routine qn__cpu_matmul_routine = {QN__OP_MATMUL, .prepare = prepare_matmul,
                                                .run = run_matmul};

/* ---- packed weights
 * --------------------------------------------------------------------------------------------- */

static bool accepts_packed(const qn_array *node)
{
    return node->dtype == QN_F32 && node->in[1]->layout;
}

/* Bytes need codes to meet: what is no codes is decomposed; and so is what rounds x to f16. */
static bool accepts_linear(const qn_array *node)
{
    const qn__linear_params *p = node->params;
    return accepts_packed(node) && p->products != QN_PRODUCTS_F16 &&
           (p->products != QN_PRODUCTS_INT8_ROWS || qn__layout_of(node->in[1]->layout)->step > 0);
}

static qn__cpu_type products_of(const qn__call *call)
{
    const qn__linear_params *p = call->params;
    return qn__cpu_products((qn_products)p->products);
}

enum { FEW_ROWS = 8 }; /* up to here each thread prepares x for itself: cheaper than a phase */

/* Phase 0 lays x[m, k] out for the kernel, phase 1 multiplies; a unit of it is a band of rows by a
 * tile's panels: whole tiles alone leave a thread idle for up to a tile at the end. */
static void cut_in_bands(qn__cpu_job *job, const qn__cpu_cut *cut, int64_t m, int64_t k,
                         int64_t panels, size_t tile_panels)
{
    job->n_phases = 2;
    job->units[0] = parts_of(m, (int64_t)cut->block_rows);
    job->units[1] = parts_of(panels, (int64_t)tile_panels) * parts_of(m, (int64_t)cut->band_rows);
    job->shared = qn__cpu_prepared_bytes((size_t)m, (size_t)k) + 64;
}

/* A unit of few rows is a panel of 16 columns. */
static int64_t prepare_linear(qn__cpu_job *job)
{
    const qn__operand *x = &job->call->operand[0], *w = &job->call->operand[1];
    int64_t m = qn__cpu_rows(x), k = w->shape[1];
    int64_t panels = (int64_t)qn__cpu_panels((size_t)w->shape[0]);
    const qn__cpu_cut *cut = &job->table->cut[products_of(job->call)];
    if (m <= FEW_ROWS) {
        job->n_phases = 1;
        job->units[0] = panels;
        job->scratch = qn__cpu_prepared_bytes((size_t)m, (size_t)k) + 64;
    } else {
        cut_in_bands(job, cut, m, k, panels, cut->tile_panels);
    }
    return m * k * w->shape[0];
}

typedef void multiply_panels(const qn__cpu_linear *a, size_t p0, size_t p1);

/* Units are bands of a tile, then those of the next; neighbouring bands go in one call. */
static void multiply_bands(const qn__cpu_part *part, qn__cpu_linear *a, multiply_panels *multiply,
                           const qn__cpu_cut *cut, size_t panels, size_t tile_panels)
{
    int64_t bands = parts_of((int64_t)a->m, (int64_t)cut->band_rows), next;
    for (int64_t unit = part->begin; unit < part->end; unit = next) {
        next = (unit / bands + 1) * bands;
        next = next < part->end ? next : part->end;
        size_t tile = (size_t)(unit / bands) * tile_panels;
        a->m0 = (size_t)(unit % bands) * cut->band_rows;
        a->m1 = a->m0 + (size_t)(next - unit) * cut->band_rows;
        a->m1 = a->m1 < a->m ? a->m1 : a->m;
        multiply(a, tile, tile + tile_panels < panels ? tile + tile_panels : panels);
    }
}

static void run_linear(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0], *w = &job->call->operand[1];
    size_t m = (size_t)qn__cpu_rows(x), k = (size_t)w->shape[1], n = (size_t)w->shape[0];
    qn__cpu_type products = products_of(job->call);
    const qn__layout *layout = qn__layout_of(w->layout);
    const float *rows = (const float *)part->at[0];
    char *prepared = aligned64(job->n_phases == 1 ? part->scratch : part->shared);
    if (job->n_phases == 1 && !part->prepared) {
        job->table->prepare[products](layout, prepared, rows, k, m, k, 0, m);
    } else if (job->n_phases == 2 && part->phase == 0) {
        size_t block = job->table->cut[products].block_rows, end = (size_t)part->end * block;
        job->table->prepare[products](layout, prepared, rows, k, m, k, (size_t)part->begin * block,
                                      end < m ? end : m);
        return;
    }
    qn__cpu_linear a = {.layout = layout,
                        .unpack = job->table->unpack[w->layout],
                        .w = part->at[1],
                        .n = n,
                        .k = k,
                        .m = m,
                        .m1 = m,
                        .x = prepared,
                        .y = (float *)part->at[2],
                        .ldy = n};
    if (job->n_phases == 1)
        job->table->linear[products](&a, (size_t)part->begin, (size_t)part->end);
    else
        multiply_bands(part, &a, job->table->linear[products], &job->table->cut[products],
                       qn__cpu_panels(n), job->table->cut[products].tile_panels);
}

/* Siblings have the same x; for weights of the same kind it is laid out alike. */
static bool shares_linear(const qn__cpu_job *job, const qn__cpu_job *before)
{
    return job->call->operand[1].layout == before->call->operand[1].layout &&
           products_of(job->call) == products_of(before->call);
}

const qn__cpu_routine qn__cpu_linear_routine = {
    QN__OP_LINEAR,     .accepts = accepts_linear, .prepare = prepare_linear,
    .run = run_linear, .shares = shares_linear,   .columns = QN__CPU_PANEL};

static size_t back_panels(const qn__operand *w)
{
    return qn__cpu_back_panels(qn__layout_of(w->layout));
}

static qn__cpu_type products_back(const qn__call *call)
{
    const qn__linear_params *p = call->params;
    return qn__cpu_back_products((qn_products)p->products);
}

/* Neighbouring bands share what is turned of the weight. */
static int64_t prepare_linear_back(qn__cpu_job *job)
{
    const qn__operand *x = &job->call->operand[0], *w = &job->call->operand[1];
    int64_t m = qn__cpu_rows(x), n = w->shape[0], k = w->shape[1];
    cut_in_bands(job, &job->table->cut[QN__CPU_F32], m, n, (int64_t)qn__cpu_panels((size_t)k),
                 back_panels(w));
    return m * n * k;
}

static void run_linear_back(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *x = &job->call->operand[0], *w = &job->call->operand[1];
    const qn__cpu_cut *cut = &job->table->cut[QN__CPU_F32];
    qn__cpu_type products = products_back(job->call);
    size_t m = (size_t)qn__cpu_rows(x), n = (size_t)w->shape[0], k = (size_t)w->shape[1];
    char *prepared = aligned64(part->shared);
    if (part->phase == 0) {
        size_t end = (size_t)part->end * cut->block_rows;
        job->table->prepare_back[products](prepared, (const float *)part->at[0], n, m, n,
                                           (size_t)part->begin * cut->block_rows,
                                           end < m ? end : m);
        return;
    }
    qn__cpu_linear a = {.layout = qn__layout_of(w->layout),
                        .unpack = job->table->unpack[w->layout],
                        .w = part->at[1],
                        .n = n,
                        .k = k,
                        .m = m,
                        .x = prepared,
                        .y = (float *)part->at[2],
                        .ldy = k};
    multiply_bands(part, &a, job->table->linear_back[products], cut, qn__cpu_panels(k),
                   back_panels(w));
}

const qn__cpu_routine qn__cpu_linear_back_routine = {QN__OP_LINEAR_BACK, .accepts = accepts_packed,
                                                     .prepare = prepare_linear_back,
                                                     .run = run_linear_back};
