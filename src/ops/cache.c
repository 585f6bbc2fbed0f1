/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache that any number of sequences share: writing keys and values in place,
 * attending to them. The cache is an array of pages of 64 positions; which page and which place of
 * it a row goes to, and which pages a sequence's positions are in, is data. Keys are stored
 * transposed in groups of 16, [P, G, 4, D, 16], so that a kernel computes 16 scores at once in one
 * order for prefill and for decode; values are [P, G, 64, E]. Either may lie in blocks, [P, G, 64,
 * D] in the units of a weight's rows (quant/layout.h). For inference: no derivatives.
 */
#include "ops/ops.h"

#include <math.h>

static bool are_numbers(const qn_array *a, int ndim)
{
    return a->ndim == ndim && a->dtype == QN_I32;
}

/* Whether it is a cache of keys, or of values; in blocks both lie alike. */
static bool are_pages(const qn_array *cache, bool keys)
{
    if (keys && !cache->layout)
        return cache->ndim == 5 && cache->shape[2] * cache->shape[4] == QN__PAGE;
    return cache->ndim == 4 && cache->shape[2] == QN__PAGE;
}

static qn_array *write_cache(qn_scope *s, qn__op_id op, qn_array *cache, qn_array *rows,
                             qn_array *slots)
{
    const char *name = qn__ops[op]->name;
    cache = qn__input(s, cache, name);
    rows = cache ? qn__input(s, rows, name) : NULL;
    slots = rows ? qn__input(s, slots, name) : NULL;
    if (!slots)
        return qn__poison(s);
    if (!are_pages(cache, op == QN__OP_WRITE_KEYS) || rows->ndim != 4 || rows->shape[0] != 1 ||
        rows->shape[1] != cache->shape[1] || rows->shape[3] != cache->shape[3])
        return qn__op_fail(s, name, cache, rows, "the rows do not fit the cache");
    if (cache->layout && !(cache->flags & QN__DONATED))
        return qn__op_fail(s, name, cache, rows, "a cache of blocks is written in place alone");
    if (!are_numbers(slots, 1) || slots->shape[0] != rows->shape[2])
        return qn__op_fail(s, name, rows, slots, "slots must be i32, one for each row");
    qn_array *in[] = {cache, qn_cast(s, rows, QN_F32), qn_contiguous(s, slots)};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    qn_array *written =
        qn__record(s, op, (qn_dtype)cache->dtype, cache->ndim, cache->shape, 3, in, NULL);
    if (!qn__is_poison(s, written))
        written->layout = cache->layout;
    return written;
}

qn_array *qn__write_keys(qn_scope *s, qn_array *cache, qn_array *rows, qn_array *slots)
{
    return write_cache(s, QN__OP_WRITE_KEYS, cache, rows, slots);
}

qn_array *qn__write_values(qn_scope *s, qn_array *cache, qn_array *rows, qn_array *slots)
{
    return write_cache(s, QN__OP_WRITE_VALUES, cache, rows, slots);
}

static bool cache_fits(const qn_array *q, const qn_array *keys, const qn_array *values)
{
    return q->ndim == 4 && q->shape[0] == 1 && are_pages(keys, true) && are_pages(values, false) &&
           q->shape[3] == keys->shape[3] && keys->shape[1] > 0 &&
           q->shape[1] % keys->shape[1] == 0 && keys->shape[0] == values->shape[0] &&
           keys->shape[1] == values->shape[1];
}

/* The parameters of options; keep is not among these. */
static qn__attention_params attend_params(const qn_attention_options *o, int64_t keep,
                                          int64_t head_dim)
{
    float scale = (float)(1 / sqrt((double)head_dim));
    return (qn__attention_params){.window = o ? o->window : 0,
                                  .scale = o && o->scale != 0 ? o->scale : scale,
                                  .softcap = o ? o->softcap : 0,
                                  .keep = keep,
                                  .causal = 1,
                                  .has_sinks = o && o->sinks};
}

qn_array *qn__attend(qn_scope *s, qn_array *q, qn_array *keys, qn_array *values, qn_array *tiles,
                     qn_array *table, int64_t keep, const qn_attention_options *options)
{
    q = qn__input(s, q, "attend");
    keys = q ? qn__input(s, keys, "attend") : NULL;
    values = keys ? qn__input(s, values, "attend") : NULL;
    tiles = values ? qn__input(s, tiles, "attend") : NULL;
    table = tiles ? qn__input(s, table, "attend") : NULL;
    if (!table)
        return qn__poison(s);
    if (!cache_fits(q, keys, values))
        return qn__op_fail(s, "attend", q, keys, "the query does not fit the cache");
    if (!are_numbers(tiles, 2) || tiles->shape[1] != QN__TILE_FIELDS || !are_numbers(table, 2))
        return qn__op_fail(s, "attend", tiles, table, "tiles are i32 [N, 4], pages i32 [B, W]");
    qn__attention_params params = attend_params(options, keep, q->shape[3]);
    qn_array *in[6] = {qn_cast(s, q, QN_F32), keys, values, qn_contiguous(s, tiles),
                       qn_contiguous(s, table)};
    if (params.has_sinks)
        in[5] = qn__sinks(s, options->sinks, q, QN_F32);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    int64_t h = q->shape[1], t = q->shape[2], e = values->shape[3];
    int64_t shape[] = {1, h, t, e}, stride[] = {t * h * e, e, h * e, 1};
    return qn__record_strided(s, QN__OP_ATTEND, QN_F32, 4, shape, stride, 5 + params.has_sinks, in,
                              &params);
}

const qn__op_def qn__write_keys_op = {.name = "write_keys", .class = QN__KERNEL, .in_place = true};
const qn__op_def qn__write_values_op = {
    .name = "write_values", .class = QN__KERNEL, .in_place = true};
const qn__op_def qn__attend_op = {
    .name = "attend", .class = QN__KERNEL, .params_size = sizeof(qn__attention_params)};
