/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache: writing keys and values in place, attending to them. Keys are stored
 * transposed in blocks of 16, [B, G, S/16, D, 16], so that a kernel computes 16 scores at once in
 * one order for prefill and for decode. Position p lies in slot p mod S: a cache whose queries have
 * a window of at most S - L + 1 positions is a ring (S then a multiple of 64), others must hold
 * every position. A ring whose queries see the first keys, too, begins behind the slots of the
 * first QN__PINNED positions. For inference: no derivatives.
 */
#include "ops/ops.h"

#include <math.h>

static bool offset_fits(const qn_array *offset, int64_t batch)
{
    return !qn__is_float((qn_dtype)offset->dtype) &&
           (qn__elements(offset) == 1 || qn__elements(offset) == batch);
}

static qn_array *write_cache(qn_scope *s, qn__op_id op, qn_array *cache, qn_array *rows,
                             qn_array *offset, bool pin)
{
    const char *name = qn__ops[op]->name;
    cache = qn__input(s, cache, name);
    rows = cache ? qn__input(s, rows, name) : NULL;
    offset = rows ? qn__input(s, offset, name) : NULL;
    if (!offset)
        return qn__poison(s);
    int ndim = op == QN__OP_WRITE_KEYS ? 5 : 4, d_axis = 3;
    if (cache->ndim != ndim || rows->ndim != 4 || rows->shape[0] != cache->shape[0] ||
        rows->shape[1] != cache->shape[1] || rows->shape[3] != cache->shape[d_axis] ||
        !offset_fits(offset, rows->shape[0]))
        return qn__op_fail(s, name, cache, rows, "the rows do not fit the cache");
    qn_array *in[] = {cache, qn_cast(s, rows, QN_F32),
                      qn_contiguous(s, qn_cast(s, offset, QN_I32))};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    qn__write_params params = {pin ? QN__PINNED : 0};
    return qn__record(s, op, (qn_dtype)cache->dtype, cache->ndim, cache->shape, 3, in, &params);
}

qn_array *qn__write_keys(qn_scope *s, qn_array *cache, qn_array *rows, qn_array *offset, bool pin)
{
    return write_cache(s, QN__OP_WRITE_KEYS, cache, rows, offset, pin);
}

qn_array *qn__write_values(qn_scope *s, qn_array *cache, qn_array *rows, qn_array *offset, bool pin)
{
    return write_cache(s, QN__OP_WRITE_VALUES, cache, rows, offset, pin);
}

qn_array *qn__attend(qn_scope *s, qn_array *q, qn_array *keys, qn_array *values, qn_array *offset,
                     int64_t keep, const qn_attention_options *options)
{
    q = qn__input(s, q, "attend");
    keys = q ? qn__input(s, keys, "attend") : NULL;
    values = keys ? qn__input(s, values, "attend") : NULL;
    offset = values ? qn__input(s, offset, "attend") : NULL;
    if (!offset)
        return qn__poison(s);
    if (q->ndim != 4 || keys->ndim != 5 || values->ndim != 4 || q->shape[3] != keys->shape[3] ||
        keys->shape[1] != values->shape[1] || q->shape[1] % keys->shape[1] ||
        keys->shape[2] * QN__KEY_GROUP != values->shape[2] || !offset_fits(offset, q->shape[0]))
        return qn__op_fail(s, "attend", q, keys, "the query does not fit the cache");
    qn__attention_params params = {.keep = keep};
    params.scale =
        options && options->scale != 0 ? options->scale : (float)(1 / sqrt((double)q->shape[3]));
    params.softcap = options ? options->softcap : 0;
    params.window = options ? options->window : 0;
    params.causal = 1;
    qn_array *in[] = {qn_cast(s, q, QN_F32), keys, values,
                      qn_contiguous(s, qn_cast(s, offset, QN_I32))};
    if (s->error.code != QN_OK)
        return qn__poison(s);
    int64_t h = q->shape[1], l = q->shape[2], e = values->shape[3];
    int64_t shape[] = {q->shape[0], h, l, e}, stride[] = {l * h * e, e, h * e, 1};
    return qn__record_strided(s, QN__OP_ATTEND, QN_F32, 4, shape, stride, 4, in, &params);
}

const qn__op_def qn__write_keys_op = {.name = "write_keys",
                                      .class = QN__KERNEL,
                                      .params_size = sizeof(qn__write_params),
                                      .in_place = true};
const qn__op_def qn__write_values_op = {.name = "write_values",
                                        .class = QN__KERNEL,
                                        .params_size = sizeof(qn__write_params),
                                        .in_place = true};
const qn__op_def qn__attend_op = {
    .name = "attend", .class = QN__KERNEL, .params_size = sizeof(qn__attention_params)};
