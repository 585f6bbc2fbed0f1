/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary embedding, and attention over a cache: writing it, attending to it.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"

_Static_assert(QN__KEY_GROUP == QN__CPU_KEY_GROUP && (int)QN__PAGE == (int)QN__CPU_PAGE &&
                   QN__SPAN_PAGES * QN__PAGE == (int)QN__CPU_SPAN,
               "keys lie as the kernels read them");

#include <math.h>

/* Of position l of a batch. Offsets are one for all, one for each batch, or one for each position.
 */
static int64_t position_of(const qn__operand *o, const char *data, int64_t batch, int64_t l)
{
    const int32_t *offset = (const int32_t *)data;
    if (o->ndim == 2)
        return offset[batch * o->shape[1] + l];
    return offset[qn__cpu_elements(o) == 1 ? 0 : batch] + l;
}

/* ---- rope: a unit is one position of one batch, all heads
 * ------------------------------------------------------ */

static int64_t prepare_rope(qn__cpu_job *job)
{
    const qn__operand *x = &job->call->operand[0], *f = &job->call->operand[2];
    job->n_phases = 1;
    job->units[0] = x->shape[0] * x->shape[2];
    job->scratch = (size_t)f->shape[0] * 2 * 8 + 64;
    return qn__cpu_elements(x) * 2;
}

static void rope_f32(const qn__cpu_job *job, const qn__cpu_part *part, int64_t b, int64_t l)
{
    const qn__operand *x = &job->call->operand[0], *y = &job->call->operand[3];
    size_t half = (size_t)job->call->operand[2].shape[0];
    float *cos = part->scratch, *sin = cos + half;
    const float *frequency = (const float *)part->at[2];
    float position = (float)position_of(&job->call->operand[1], part->at[1], b, l);
    for (size_t i = 0; i < half; i++)
        cos[i] = position * frequency[i];
    job->table->map[QN__CPU_SIN](sin, cos, half);
    job->table->map[QN__CPU_COS](cos, cos, half);
    qn__cpu_rope a = {.heads = (size_t)x->shape[1],
                      .d = (size_t)x->shape[3],
                      .half = half,
                      .interleaved = ((const qn__rope_params *)job->call->params)->traditional,
                      .x = (const float *)part->at[0] + b * x->stride[0] + l * x->stride[2],
                      .x_head = (size_t)x->stride[1],
                      .y = (float *)part->at[3] + b * y->stride[0] + l * y->stride[2],
                      .y_head = (size_t)y->stride[1],
                      .cos = cos,
                      .sin = sin};
    job->table->rope(&a, 0, 1);
}

static void rope_f64(const qn__cpu_job *job, const qn__cpu_part *part, int64_t b, int64_t l)
{
    const qn__operand *x = &job->call->operand[0], *y = &job->call->operand[3];
    size_t half = (size_t)job->call->operand[2].shape[0];
    double *cos = part->scratch, *sin = cos + half;
    const double *frequency = (const double *)part->at[2];
    double position = (double)position_of(&job->call->operand[1], part->at[1], b, l);
    for (size_t i = 0; i < half; i++)
        cos[i] = position * frequency[i];
    job->table->map_f64[QN__CPU_SIN](sin, cos, half);
    job->table->map_f64[QN__CPU_COS](cos, cos, half);
    qn__cpu_rope_f64 a = {.heads = (size_t)x->shape[1],
                          .d = (size_t)x->shape[3],
                          .half = half,
                          .interleaved = ((const qn__rope_params *)job->call->params)->traditional,
                          .x = (const double *)part->at[0] + b * x->stride[0] + l * x->stride[2],
                          .x_head = (size_t)x->stride[1],
                          .y = (double *)part->at[3] + b * y->stride[0] + l * y->stride[2],
                          .y_head = (size_t)y->stride[1],
                          .cos = cos,
                          .sin = sin};
    job->table->rope_f64(&a, 0, 1);
}

static void run_rope(const qn__cpu_job *job, const qn__cpu_part *part)
{
    int64_t length = job->call->operand[0].shape[2];
    bool wide = job->call->operand[0].dtype == QN_F64;
    for (int64_t i = part->begin; i < part->end; i++)
        (wide ? rope_f64 : rope_f32)(job, part, i / length, i % length);
}

/* The kernel wants a head's elements side by side. */
static bool accepts_rope(const qn_array *node)
{
    return (node->dtype == QN_F32 || node->dtype == QN_F64) && node->in[0]->stride[3] == 1;
}

const qn__cpu_routine qn__cpu_rope_routine = {QN__OP_ROPE, .accepts = accepts_rope,
                                              .prepare = prepare_rope, .run = run_rope};

/* ---- writing: a unit is one KV head by some rows
 * ------------------------------------------------------------------ */

enum { ROWS_OF_WRITE = 64 };

static bool cache_type(const qn_array *cache)
{
    return cache->dtype == QN_F32 || cache->dtype == QN_BF16 || cache->dtype == QN_F16;
}

static qn__cpu_type type_of(const qn__operand *cache)
{
    return cache->dtype == QN_F32    ? QN__CPU_F32
           : cache->dtype == QN_BF16 ? QN__CPU_BF16
                                     : QN__CPU_F16;
}

/* Bytes of one head's page. */
static size_t head_bytes(const qn__operand *cache)
{
    if (cache->layout)
        return qn__layout_bytes(cache->layout, QN__PAGE, cache->shape[3]);
    return (size_t)cache->stride[1] * qn__dtype_size((qn_dtype)cache->dtype);
}

static bool accepts_write(const qn_array *node)
{
    return cache_type(node) && node->in[1]->stride[3] == 1;
}

static int64_t pieces_of_write(const qn__call *call)
{
    return (call->operand[1].shape[2] + ROWS_OF_WRITE - 1) / ROWS_OF_WRITE;
}

static int64_t prepare_write(qn__cpu_job *job)
{
    const qn__operand *rows = &job->call->operand[1];
    job->n_phases = 1;
    job->units[0] = rows->shape[1] * pieces_of_write(job->call);
    const qn__layout *l = qn__layout_of(job->call->operand[3].layout);
    job->scratch = l ? qn__encoding_row_bytes(l->encoding, rows->shape[3]) : 0;
    return qn__cpu_elements(rows) * (l ? 16 : 1);
}

/* A row of blocks; one that is not finite stays so: all ones are a scale that is no number. */
static void write_blocks(const qn__layout *l, void *page, const float *row, int64_t d, int64_t at,
                         void *blocks)
{
    size_t bytes = qn__encoding_row_bytes(l->encoding, d);
    float sum = 0;
    for (int64_t i = 0; i < d; i++)
        sum += row[i] * 0.0f;
    if (sum == 0)
        l->encoding->encode(l->encoding, row, NULL, (size_t)d / l->encoding->block_elements,
                            blocks);
    else
        memset(blocks, 0xff, bytes);
    qn__layout_pack(l, page, QN__PAGE, d, blocks, bytes, at, 1);
}

/* Rows first .. end - 1 of head h; those that go side by side into one page, in one call. */
static void write_rows(const qn__cpu_job *job, const qn__cpu_part *part, int64_t h, int64_t first,
                       int64_t end)
{
    const qn__operand *rows = &job->call->operand[1], *y = &job->call->operand[3];
    const int32_t *slots = (const int32_t *)part->at[2];
    const qn__layout *layout = qn__layout_of(y->layout);
    int64_t n;
    for (int64_t l = first; l < end; l += n) {
        int64_t slot = slots[l], room = QN__PAGE - slot % QN__PAGE;
        for (n = 1; l + n < end && n < room && slots[l + n] == slot + n; n++)
            ;
        if (slot < 0 || slot / QN__PAGE >= y->shape[0]) {
            n = 1; /* a dead row; never write outside */
            continue;
        }
        char *page = part->at[3] + (size_t)(slot / QN__PAGE * y->shape[1] + h) * head_bytes(y);
        const float *row = (const float *)part->at[1] + h * rows->stride[1] + l * rows->stride[2];
        for (int64_t i = 0; layout && i < n; i++)
            write_blocks(layout, page, row + i * rows->stride[2], rows->shape[3],
                         slot % QN__PAGE + i, part->scratch);
        if (layout)
            continue;
        qn__cpu_cache_write w = {.type = type_of(y),
                                 .keys = job->call->op == QN__OP_WRITE_KEYS,
                                 .page = page,
                                 .d = (size_t)rows->shape[3],
                                 .at = (size_t)(slot % QN__PAGE),
                                 .n = (size_t)n,
                                 .rows = row,
                                 .ld_rows = (size_t)rows->stride[2]};
        job->table->cache_write(&w);
    }
}

static void run_write(const qn__cpu_job *job, const qn__cpu_part *part)
{
    int64_t pieces = pieces_of_write(job->call), n = job->call->operand[1].shape[2];
    for (int64_t i = part->begin; i < part->end; i++) {
        int64_t first = i % pieces * ROWS_OF_WRITE, end = first + ROWS_OF_WRITE;
        write_rows(job, part, i / pieces, first, end < n ? end : n);
    }
}

const qn__cpu_routine qn__cpu_write_keys_routine = {QN__OP_WRITE_KEYS, .accepts = accepts_write,
                                                    .prepare = prepare_write, .run = run_write};
const qn__cpu_routine qn__cpu_write_values_routine = {QN__OP_WRITE_VALUES, .accepts = accepts_write,
                                                      .prepare = prepare_write, .run = run_write};

/* ---- attending: a unit is a tile by one KV head, or one span of that
 * ------------------------------------------ */

/* Where tiles are few, their spans go to different threads; states of at most so many bytes. */
enum { UNITS_OF_THREAD = 4, MOST_STATES = 16 << 20 };

static bool accepts_attend(const qn_array *node)
{
    const qn__attention_params *p = node->params;
    return cache_type(node->in[1]) && cache_type(node->in[2]) && node->in[0]->stride[3] == 1 &&
           p->keep >= 0 && p->keep <= QN__PAGE;
}

static int64_t group_of(const qn__call *call)
{
    return call->operand[0].shape[1] / call->operand[1].shape[1];
}

/* Tokens in a tile of this call at most. */
static int64_t tile_of_call(const qn__call *call)
{
    int64_t tile = qn__attend_tile(group_of(call)), n = call->operand[0].shape[2];
    return tile < n ? tile : n;
}

static int64_t spans_of_call(const qn__call *call)
{
    return (call->operand[4].shape[1] + QN__SPAN_PAGES - 1) / QN__SPAN_PAGES;
}

static size_t state_bytes(const qn__cpu_job *job)
{
    return job->table->attend_state((size_t)tile_of_call(job->call), (size_t)group_of(job->call),
                                    (size_t)job->call->operand[2].shape[3]);
}

static size_t bounds_bytes(const qn__call *call)
{
    return ((size_t)tile_of_call(call) * 2 * sizeof(int32_t) + 63) & ~(size_t)63;
}

static int64_t prepare_attend(qn__cpu_job *job)
{
    const qn__operand *q = &job->call->operand[0], *table = &job->call->operand[4];
    int64_t pairs = job->call->operand[3].shape[0] * job->call->operand[1].shape[1];
    int64_t spans = spans_of_call(job->call);
    size_t state = state_bytes(job), all = state * (size_t)(pairs * spans);
    bool split =
        spans > 1 && pairs < (int64_t)job->n_threads * UNITS_OF_THREAD && all <= MOST_STATES;
    job->n_phases = split ? 2 : 1;
    job->units[0] = split ? pairs * spans : pairs;
    job->units[1] = pairs;
    job->shared = split ? all + 64 : 0;
    job->scratch =
        job->table->attend_scratch((size_t)tile_of_call(job->call), (size_t)group_of(job->call),
                                   (size_t)q->shape[3], (size_t)job->call->operand[2].shape[3]) +
        bounds_bytes(job->call) + 2 * state + 64;
    return qn__cpu_elements(q) * table->shape[1] * QN__PAGE;
}

/* The last tiles of a sequence see the most keys, so a thread's range takes tiles from both ends:
 * 0, n-1, 1, n-2 ... */
static int64_t balanced_tile(int64_t i, int64_t n)
{
    return i % 2 ? n - 1 - i / 2 : i / 2;
}

/* What each of n tokens from position `first` on sees. */
static void set_bounds(const qn__attention_params *p, int64_t first, int64_t n, int32_t *begin,
                       int32_t *end)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t last = first + i + 1;
        end[i] = (int32_t)last;
        begin[i] = p->window && last > p->window + p->keep ? (int32_t)(last - p->window) : 0;
    }
}

/* Whether each page that the tile's tokens see is one of the cache's. */
static bool pages_exist(const qn__cpu_attend *a, int64_t n_pages, int64_t n_places)
{
    int64_t last = a->end[a->tokens - 1] - 1;
    if (last / QN__PAGE >= n_pages)
        return false;
    for (int64_t i = a->begin[0] / QN__PAGE; i <= last / QN__PAGE; i++)
        if (a->pages[i] < 0 || a->pages[i] >= n_places)
            return false;
    return !a->keep || (a->pages[0] >= 0 && a->pages[0] < n_places);
}

/* Those of head g. */
static qn__cpu_pages pages_of(const qn__cpu_job *job, const qn__operand *cache, const char *at,
                              int64_t g)
{
    size_t head = head_bytes(cache);
    return (qn__cpu_pages){.type = type_of(cache),
                           .layout = qn__layout_of(cache->layout),
                           .unpack = job->table->unpack[cache->layout],
                           .at = at + (size_t)g * head,
                           .page = (size_t)cache->shape[1] * head};
}

/* A tile by head g; false where it is dead. Its bounds go to `bounds`. */
static bool begin_tile(const qn__cpu_job *job, const qn__cpu_part *part, int64_t tile, int64_t g,
                       int32_t *bounds, qn__cpu_attend *a)
{
    const qn__call *call = job->call;
    const qn__operand *q = &call->operand[0], *k = &call->operand[1], *v = &call->operand[2],
                      *table = &call->operand[4];
    const qn__attention_params *p = call->params;
    int output = 5 + p->has_sinks;
    const qn__operand *y = &call->operand[output];
    const int32_t *t = (const int32_t *)part->at[3] + tile * QN__TILE_FIELDS;
    int64_t sequence = t[QN__TILE_SEQUENCE], row = t[QN__TILE_ROW], n = t[QN__TILE_ROWS];
    if (n <= 0 || n > tile_of_call(call) || row < 0 || row + n > q->shape[2] || sequence < 0 ||
        sequence >= table->shape[0] || t[QN__TILE_POSITION] < 0)
        return false;
    int32_t *begin = bounds, *end = bounds + n;
    set_bounds(p, t[QN__TILE_POSITION], n, begin, end);
    int64_t group = group_of(call);
    *a = (qn__cpu_attend){
        .d = (size_t)q->shape[3],
        .dv = (size_t)v->shape[3],
        .k = pages_of(job, k, part->at[1], g),
        .v = pages_of(job, v, part->at[2], g),
        .pages = (const int32_t *)part->at[4] + sequence * table->shape[1],
        .tokens = (size_t)n,
        .heads = (size_t)group,
        .q = (const float *)part->at[0] + g * group * q->stride[1] + row * q->stride[2],
        .q_token = (size_t)q->stride[2],
        .q_head = (size_t)q->stride[1],
        .o = (float *)part->at[output] + g * group * y->stride[1] + row * y->stride[2],
        .o_token = (size_t)y->stride[2],
        .o_head = (size_t)y->stride[1],
        .begin = begin,
        .end = end,
        .sink = p->has_sinks ? (const float *)part->at[5] + g * group : NULL,
        .scale = p->scale,
        .softcap = p->softcap,
        .keep = (size_t)p->keep};
    return pages_exist(a, table->shape[1], k->shape[0]);
}

static size_t first_span(const qn__cpu_attend *a)
{
    return a->keep ? 0 : (size_t)a->begin[0] / QN__CPU_SPAN;
}

static size_t last_span(const qn__cpu_attend *a)
{
    return (size_t)(a->end[a->tokens - 1] - 1) / QN__CPU_SPAN;
}

/* All spans, one after the other. */
static void attend_whole(const qn__cpu_job *job, const qn__cpu_attend *a, char *room, size_t state)
{
    float *sum = (float *)room, *later = (float *)(room + state);
    void *scratch = room + 2 * state;
    job->table->attend(a, first_span(a), sum, scratch);
    for (size_t i = first_span(a) + 1; i <= last_span(a); i++) {
        job->table->attend(a, i, later, scratch);
        job->table->attend_merge(a, sum, later);
    }
    job->table->attend_finish(a, sum);
}

/* What other threads have made of the spans. */
static void attend_join(const qn__cpu_job *job, const qn__cpu_attend *a, char *states, size_t state)
{
    float *sum = (float *)(states + first_span(a) * state);
    for (size_t i = first_span(a) + 1; i <= last_span(a); i++)
        job->table->attend_merge(a, sum, (const float *)(states + i * state));
    job->table->attend_finish(a, sum);
}

static char *aligned(void *p)
{
    return (char *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static void run_attend(const qn__cpu_job *job, const qn__cpu_part *part)
{
    int64_t heads = job->call->operand[1].shape[1], tiles = job->call->operand[3].shape[0];
    int64_t spans = job->n_phases == 2 ? spans_of_call(job->call) : 1;
    size_t state = state_bytes(job);
    char *bounds = aligned(part->scratch), *room = bounds + bounds_bytes(job->call);
    for (int64_t i = part->begin; i < part->end; i++) {
        int64_t pair = part->phase == 0 ? i / spans : i, span = i % spans;
        char *states = aligned(part->shared) + (size_t)(pair * spans) * state;
        qn__cpu_attend a;
        if (!begin_tile(job, part, balanced_tile(pair / heads, tiles), pair % heads,
                        (int32_t *)bounds, &a))
            continue;
        if (job->n_phases == 1)
            attend_whole(job, &a, room, state);
        else if (part->phase == 1)
            attend_join(job, &a, states, state);
        else if ((size_t)span >= first_span(&a) && (size_t)span <= last_span(&a))
            job->table->attend(&a, (size_t)span, (float *)(states + (size_t)span * state), room);
    }
}

const qn__cpu_routine qn__cpu_attend_routine = {QN__OP_ATTEND, .accepts = accepts_attend,
                                                .prepare = prepare_attend, .run = run_attend};
