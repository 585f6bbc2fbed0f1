/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary embedding, and attention over a cache: writing it, attending to it.
 */
#include "core/dtype.h"
#include "cpu/cpu.h"

_Static_assert(QN__KEY_GROUP == QN__CPU_KEY_GROUP, "keys lie as the kernels read them");

#include <math.h>

/* An offset array holds one element, or one for each batch. */
static int64_t offset_of(const qn__operand *o, const char *data, int64_t batch)
{
    return ((const int32_t *)data)[qn__cpu_elements(o) == 1 ? 0 : batch];
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
    float position = (float)(offset_of(&job->call->operand[1], part->at[1], b) + l);
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
    double position = (double)(offset_of(&job->call->operand[1], part->at[1], b) + l);
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

/* ---- writing: a unit is one KV head of one batch
 * ------------------------------------------------------------------ */

static bool cache_type(const qn_array *cache)
{
    return cache->dtype == QN_F32 || cache->dtype == QN_BF16;
}

static bool accepts_write(const qn_array *node)
{
    return cache_type(node) && node->in[1]->stride[3] == 1;
}

static int64_t prepare_write(qn__cpu_job *job)
{
    const qn__operand *rows = &job->call->operand[1];
    job->n_phases = 1;
    job->units[0] = rows->shape[0] * rows->shape[1];
    return qn__cpu_elements(rows);
}

/* Positions at .. at + n - 1 of head h of batch b, from row `row` on; they lie side by side. */
static void write_rows(const qn__cpu_job *job, const qn__cpu_part *part, int64_t b, int64_t h,
                       int64_t row, int64_t at, int64_t n)
{
    const qn__operand *rows = &job->call->operand[1], *y = &job->call->operand[3];
    size_t size = qn__dtype_size((qn_dtype)y->dtype);
    void *to = part->at[3] + (b * y->stride[0] + h * y->stride[1]) * (int64_t)size;
    const float *from = (const float *)part->at[1] + b * rows->stride[0] + h * rows->stride[1] +
                        row * rows->stride[2];
    qn__cpu_cache_write w = {.type = y->dtype == QN_BF16 ? QN__CPU_BF16 : QN__CPU_F32,
                             .pos = (size_t)at,
                             .n = (size_t)n,
                             .ldv = (size_t)y->shape[3]};
    if (job->call->op == QN__OP_WRITE_KEYS) {
        w.d = (size_t)rows->shape[3];
        w.k = to;
        w.k_rows = from;
        w.ldk_rows = (size_t)rows->stride[2];
    } else {
        w.dv = (size_t)rows->shape[3];
        w.v = to;
        w.v_rows = from;
        w.ldv_rows = (size_t)rows->stride[2];
    }
    job->table->cache_write(&w);
}

/* Position p goes to slot p mod capacity: a cache that grows is never at its end, one that does not
 * is a ring. Pinned slots are the first positions', and the ring lies behind them. */
static void run_write(const qn__cpu_job *job, const qn__cpu_part *part)
{
    const qn__operand *rows = &job->call->operand[1], *y = &job->call->operand[3];
    int64_t heads = rows->shape[1], n = rows->shape[2];
    int64_t capacity =
        job->call->op == QN__OP_WRITE_KEYS ? y->shape[2] * QN__KEY_GROUP : y->shape[2];
    int64_t pinned = ((const qn__write_params *)job->call->params)->pinned,
            ring = capacity - pinned;
    for (int64_t i = part->begin; i < part->end; i++) {
        int64_t b = i / heads, h = i % heads,
                at = offset_of(&job->call->operand[2], part->at[2], b);
        if (at < 0 || ring <= 0 || n > capacity)
            continue; /* the session checks positions; never write outside */
        for (int64_t row = 0, take; row < n; row += take) {
            int64_t p = at + row, slot = p < pinned ? p : pinned + (p - pinned) % ring;
            int64_t room = (p < pinned ? pinned : capacity) - slot;
            take = n - row < room ? n - row : room;
            write_rows(job, part, b, h, row, slot, take);
        }
    }
}

const qn__cpu_routine qn__cpu_write_keys_routine = {QN__OP_WRITE_KEYS, .accepts = accepts_write,
                                                    .prepare = prepare_write, .run = run_write};
const qn__cpu_routine qn__cpu_write_values_routine = {QN__OP_WRITE_VALUES, .accepts = accepts_write,
                                                      .prepare = prepare_write, .run = run_write};

/* ---- attending: a unit is one KV head of one batch by a tile of positions
 * ------------------------------------------ */

enum { BLOCK = 64 }; /* keys that the kernel visits at once, and a page of its page table */

static bool accepts_attend(const qn_array *node)
{
    const qn__attention_params *p = node->params;
    int64_t capacity = node->in[2]->shape[2];
    if (p->keep && (p->keep < 0 || p->keep > QN__PINNED || p->window <= 0 || capacity % BLOCK ||
                    capacity <= QN__PINNED))
        return false;
    return cache_type(node->in[1]) && node->in[1]->dtype == node->in[2]->dtype &&
           node->in[0]->stride[3] == 1;
}

/* Positions in a tile: about 64 query rows. */
static int64_t tile_of_call(const qn__call *call)
{
    int64_t group = call->operand[0].shape[1] / call->operand[1].shape[1];
    return group >= 64 ? 1 : 64 / group;
}

static int64_t tiles_of_call(const qn__call *call)
{
    int64_t tile = tile_of_call(call);
    return (call->operand[0].shape[2] + tile - 1) / tile;
}

static int64_t pinned_slots(const qn__attention_params *p)
{
    return p->keep ? QN__PINNED : 0;
}

/* Whether the cache is a ring: only what a window sees is in it. */
static bool is_ring(const qn__call *call)
{
    const qn__attention_params *p = call->params;
    int64_t ring = call->operand[2].shape[2] - pinned_slots(p);
    return p->window > 0 && p->window <= ring && ring % BLOCK == 0;
}

/* Pages that the queries of a tile see at most. */
static int64_t most_pages(const qn__call *call)
{
    const qn__attention_params *p = call->params;
    return is_ring(call) || p->keep ? (p->window + tile_of_call(call)) / BLOCK + 3 : 0;
}

/* Where block b of a ring's keys is. */
static uint32_t page_of(int64_t b, int64_t pinned, int64_t capacity)
{
    pinned /= BLOCK;
    return (uint32_t)(b < pinned ? b : pinned + (b - pinned) % (capacity / BLOCK - pinned));
}

/* A ring's blocks from the first one seen on become blocks 0, 1 ... of a page table, behind one for
 * the keys that are kept; the kernel's order is anchored at blocks, so no bit depends on where they
 * are counted from. */
static void find_pages(qn__cpu_attend *a, uint32_t *pages, int32_t *begin, int32_t *end,
                       int64_t pinned, int64_t capacity)
{
    int32_t first = begin[0] / BLOCK, kept = a->keep > 0;
    int32_t used = (end[a->tokens - 1] + BLOCK - 1) / BLOCK - first;
    if (kept)
        pages[0] = 0;
    for (int32_t i = 0; i < used; i++)
        pages[kept + i] = page_of(first + i, pinned, capacity);
    for (size_t i = 0; i < a->tokens; i++) {
        begin[i] += (kept - first) * BLOCK;
        end[i] += (kept - first) * BLOCK;
    }
    a->pages = pages;
}

static int64_t prepare_attend(qn__cpu_job *job)
{
    const qn__operand *q = &job->call->operand[0], *k = &job->call->operand[1],
                      *v = &job->call->operand[2];
    int64_t tile = tile_of_call(job->call);
    job->n_phases = 1;
    job->units[0] = q->shape[0] * k->shape[1] * tiles_of_call(job->call);
    job->scratch = job->table->attend_scratch((size_t)tile, (size_t)(q->shape[1] / k->shape[1]),
                                              (size_t)q->shape[3], (size_t)v->shape[3]) +
                   (size_t)(tile * 2 + most_pages(job->call)) * sizeof(int32_t) + 192;
    return qn__cpu_elements(q) * QN__KEY_GROUP * k->shape[2];
}

/* The last tiles see the most keys, so a thread's range takes tiles from both ends: 0, n-1, 1, n-2
 * ... */
static int64_t balanced_tile(int64_t i, int64_t n)
{
    return i % 2 ? n - 1 - i / 2 : i / 2;
}

/* Tokens whose window has left the first keys behind, those of them that are kept aside: they begin
 * at token n, and the ones before see all keys. */
static int64_t first_apart(const int32_t *begin, int64_t n)
{
    int64_t i = 0;
    while (i < n && begin[i] == 0)
        i++;
    return i;
}

static void attend_tile(const qn__cpu_job *job, const qn__cpu_part *part, int64_t b, int64_t g,
                        int64_t tile)
{
    const qn__call *call = job->call;
    const qn__operand *q = &call->operand[0], *k = &call->operand[1], *v = &call->operand[2],
                      *y = &call->operand[4];
    const qn__attention_params *p = call->params;
    int64_t group = q->shape[1] / k->shape[1], size = tile_of_call(call), first = tile * size;
    int64_t n = q->shape[2] - first < size ? q->shape[2] - first : size;
    int64_t offset = offset_of(&call->operand[3], part->at[3], b), capacity = v->shape[2];
    char *scratch = (char *)(((uintptr_t)part->scratch + 63) & ~(uintptr_t)63);
    int32_t *begin = (int32_t *)scratch, *end = begin + size;
    scratch += (size * 2 * (int64_t)sizeof(int32_t) + 63) & ~(int64_t)63;
    uint32_t *pages = (uint32_t *)scratch;
    scratch += (most_pages(call) * (int64_t)sizeof *pages + 63) & ~(int64_t)63;
    bool ring = is_ring(call);
    for (int64_t i = 0; i < n; i++) {
        int64_t last = offset + first + i + 1;
        last = last < 0 ? 0 : last > capacity && !ring ? capacity : last;
        end[i] = (int32_t)last;
        begin[i] = p->window && last > p->window + p->keep ? (int32_t)(last - p->window) : 0;
    }
    size_t bytes = qn__dtype_size((qn_dtype)k->dtype);
    qn__cpu_attend a = {.type = k->dtype == QN_BF16 ? QN__CPU_BF16 : QN__CPU_F32,
                        .d = (size_t)q->shape[3],
                        .dv = (size_t)v->shape[3],
                        .k = part->at[1] + (size_t)(b * k->stride[0] + g * k->stride[1]) * bytes,
                        .v = part->at[2] + (size_t)(b * v->stride[0] + g * v->stride[1]) * bytes,
                        .ldv = (size_t)v->stride[2],
                        .tokens = (size_t)n,
                        .heads = (size_t)group,
                        .q = (const float *)part->at[0] + b * q->stride[0] +
                             g * group * q->stride[1] + first * q->stride[2],
                        .q_token = (size_t)q->stride[2],
                        .q_head = (size_t)q->stride[1],
                        .o = (float *)part->at[4] + b * y->stride[0] + g * group * y->stride[1] +
                             first * y->stride[2],
                        .o_token = (size_t)y->stride[2],
                        .o_head = (size_t)y->stride[1],
                        .begin = begin,
                        .end = end,
                        .scale = p->scale,
                        .softcap = p->softcap};
    int64_t together = p->keep ? first_apart(begin, n) : 0;
    if (together) {
        a.tokens = (size_t)together;
        job->table->attend(&a, scratch);
        a.tokens = (size_t)(n - together);
        a.q += (size_t)together * a.q_token;
        a.o += (size_t)together * a.o_token;
        a.begin = begin += together;
        a.end = end += together;
    }
    if (!a.tokens)
        return;
    a.keep = (size_t)p->keep;
    if (a.keep || (ring && end[a.tokens - 1] > capacity))
        find_pages(&a, pages, begin, end, pinned_slots(p), capacity);
    job->table->attend(&a, scratch);
}

static void run_attend(const qn__cpu_job *job, const qn__cpu_part *part)
{
    int64_t heads = job->call->operand[1].shape[1], tiles = tiles_of_call(job->call);
    int64_t pairs = job->call->operand[0].shape[0] * heads;
    for (int64_t i = part->begin; i < part->end; i++) {
        int64_t tile = balanced_tile(i / pairs, tiles), pair = i % pairs;
        attend_tile(job, part, pair / heads, pair % heads, tile);
    }
}

const qn__cpu_routine qn__cpu_attend_routine = {QN__OP_ATTEND, .accepts = accepts_attend,
                                                .prepare = prepare_attend, .run = run_attend};
