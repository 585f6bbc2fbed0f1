/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch of tokens of any sequences. All its numbers go to the device as one array.
 */
#include "nn/batch.h"

#include "base/error.h"
#include "core/scope.h"

#include <stdlib.h>

void qn__batch_begin(qn__batch *batch, qn__cache *cache)
{
    batch->cache = cache;
    batch->n_parts = batch->n_tokens = batch->n_outputs = 0;
    batch->given = NULL;
    batch->n_given = 0;
}

void qn__batch_give(qn__batch *batch, qn_array *given, int64_t n)
{
    batch->given = given;
    batch->n_given = n;
}

void qn__batch_free(qn__batch *batch)
{
    free(batch->parts);
    free(batch->ids);
    *batch = (qn__batch){0};
}

/* ---- adding sequences ------------------------------------------------------------------------ */

static bool reserve_parts(qn__batch *batch)
{
    if (batch->n_parts < batch->part_room)
        return true;
    int64_t room = batch->part_room * 2 + 4;
    qn__batch_part *parts = realloc(batch->parts, (size_t)room * sizeof *parts);
    if (!parts)
        return false;
    batch->parts = parts;
    batch->part_room = room;
    return true;
}

static bool reserve_tokens(qn__batch *batch, int64_t n)
{
    if (n <= batch->token_room)
        return true;
    int64_t room = n + n / 2 + 16;
    int32_t *ids = malloc((size_t)room * 3 * sizeof *ids);
    if (!ids)
        return false;
    int32_t *positions = ids + room, *outputs = positions + room;
    if (batch->n_tokens) {
        memcpy(ids, batch->ids, (size_t)batch->n_tokens * sizeof *ids);
        memcpy(positions, batch->positions, (size_t)batch->n_tokens * sizeof *ids);
        memcpy(outputs, batch->outputs, (size_t)batch->n_outputs * sizeof *ids);
    }
    free(batch->ids);
    batch->ids = ids;
    batch->positions = positions;
    batch->outputs = outputs;
    batch->token_room = room;
    return true;
}

qn_status qn__batch_add(qn__batch *batch, qn__sequence *sequence, const int32_t *ids, int64_t n,
                        int64_t outputs, qn_error *err)
{
    if (!reserve_parts(batch) || !reserve_tokens(batch, batch->n_tokens + n))
        return qn__fail_memory(err, "a step");
    if (qn__sequence_grow(sequence, n, err) != QN_OK)
        return err->code;
    int64_t row = batch->n_tokens;
    batch->parts[batch->n_parts++] = (qn__batch_part){sequence, row, n};
    memcpy(batch->ids + row, ids, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++)
        batch->positions[row + i] = (int32_t)(sequence->length + i);
    for (int64_t i = n - outputs; i < n; i++)
        batch->outputs[batch->n_outputs++] = (int32_t)(row + i);
    batch->n_tokens += n;
    return QN_OK;
}

/* ---- the numbers ----------------------------------------------------------------------------- */

/* Where each array begins in the one that holds all. */
typedef struct sizes {
    int64_t tile, n_tiles; /* tokens in a tile at most */
    int64_t width;         /* pages of a sequence, in whole spans */
    int64_t outputs, adapters, tiles, kinds, one_kind, all;
    bool any_adapter;
} sizes;

static int64_t tiles_of(const qn__batch_part *part, int64_t tile)
{
    return (part->n + tile - 1) / tile;
}

static sizes measure(const qn__batch *batch)
{
    const qn__cache_shape *c = &batch->cache->shape;
    sizes z = {.tile = qn__attend_tile(c->queries / c->heads)};
    for (int64_t i = 0; i < batch->n_parts; i++) {
        const qn__batch_part *part = &batch->parts[i];
        int64_t pages = (part->sequence->length + part->n + QN__PAGE - 1) / QN__PAGE;
        z.n_tiles += tiles_of(part, z.tile);
        z.width = pages > z.width ? pages : z.width;
        z.any_adapter |= part->sequence->adapter > 0;
    }
    z.width = (z.width + QN__SPAN_PAGES - 1) / QN__SPAN_PAGES * QN__SPAN_PAGES;
    z.outputs = 2 * batch->n_tokens;
    z.adapters = z.outputs + batch->n_outputs;
    z.tiles = z.adapters + (z.any_adapter ? batch->n_tokens : 0);
    z.kinds = z.tiles + z.n_tiles * QN__TILE_FIELDS;
    z.one_kind = batch->n_tokens + batch->n_parts * z.width;
    z.all = z.kinds + batch->cache->n_kinds * z.one_kind;
    return z;
}

static void fill_tiles(const qn__batch *batch, const sizes *z, int32_t *tile)
{
    for (int64_t i = 0; i < batch->n_parts; i++) {
        const qn__batch_part *part = &batch->parts[i];
        for (int64_t row = 0; row < part->n; row += z->tile, tile += QN__TILE_FIELDS) {
            int64_t left = part->n - row;
            tile[QN__TILE_SEQUENCE] = (int32_t)i;
            tile[QN__TILE_ROW] = (int32_t)(part->row + row);
            tile[QN__TILE_ROWS] = (int32_t)(left < z->tile ? left : z->tile);
            tile[QN__TILE_POSITION] = (int32_t)(part->sequence->length + row);
        }
    }
}

static void fill_adapters(const qn__batch *batch, int32_t *adapter)
{
    for (int64_t i = 0; i < batch->n_parts; i++)
        for (int64_t row = 0; row < batch->parts[i].n; row++)
            adapter[batch->parts[i].row + row] = batch->parts[i].sequence->adapter;
}

static void fill_kind(const qn__batch *batch, const sizes *z, int kind, int32_t *slots)
{
    int32_t *table = slots + batch->n_tokens;
    for (int64_t i = 0; i < batch->n_parts; i++, table += z->width) {
        const qn__batch_part *part = &batch->parts[i];
        const qn__sequence_pages *pages = &part->sequence->kind[kind];
        memcpy(table, pages->page, (size_t)pages->n * sizeof *table);
        for (int64_t b = pages->n; b < z->width; b++)
            table[b] = -1;
        for (int64_t row = part->row; row < part->row + part->n; row++) {
            int32_t p = batch->positions[row];
            slots[row] = table[p / QN__PAGE] * QN__PAGE + p % QN__PAGE;
        }
    }
}

/* Elements at .. of all numbers, as an array of `ndim` axes. */
static qn_array *piece(qn_scope *s, qn_array *all, int64_t at, int ndim, int64_t rows, int64_t n)
{
    const int64_t shape[] = {rows, n};
    qn_array *a = qn_slice(s, all, 0, at, at + rows * n, 1);
    return ndim == 1 ? a : qn_reshape(s, a, 2, shape);
}

/* Whether the tokens are those that were given, in their order. */
static bool are_given(const qn__batch *batch)
{
    int64_t i = 0;
    while (i < batch->n_given && batch->ids[i] == i)
        i++;
    return i == batch->n_tokens && qn_array_elements(batch->given) == i;
}

/* The tokens [1, T], of which those that were given stand first; `all` begins with ids. */
static qn_array *record_tokens(qn_scope *s, const qn__batch *batch, qn_array *all)
{
    const int64_t n = batch->n_given, t = batch->n_tokens, flat[] = {1, t};
    if (!n)
        return piece(s, all, 0, 2, 1, t);
    if (are_given(batch))
        return qn_reshape(s, batch->given, 2, flat);
    qn_array *parts[2] = {qn_take(s, batch->given, piece(s, all, 0, 1, 1, n), 0)};
    if (n < t) {
        parts[1] = piece(s, all, n, 1, 1, t - n);
        parts[0] = qn_concatenate(s, parts, 2, 0);
    }
    return qn_reshape(s, parts[0], 2, flat);
}

static void record_numbers(qn_scope *s, qn__batch *batch)
{
    sizes z = measure(batch);
    int32_t *n = qn__scope_alloc(s, (size_t)z.all * sizeof *n);
    if (!n)
        return;
    memcpy(n, batch->ids, (size_t)batch->n_tokens * sizeof *n);
    memcpy(n + batch->n_tokens, batch->positions, (size_t)batch->n_tokens * sizeof *n);
    memcpy(n + z.outputs, batch->outputs, (size_t)batch->n_outputs * sizeof *n);
    if (z.any_adapter)
        fill_adapters(batch, n + z.adapters);
    fill_tiles(batch, &z, n + z.tiles);
    for (int k = 0; k < batch->cache->n_kinds; k++)
        fill_kind(batch, &z, k, n + z.kinds + k * z.one_kind);
    qn_array *all = batch->numbers = qn_from_i32(s, n, z.all);
    batch->tokens = record_tokens(s, batch, all);
    batch->position = piece(s, all, batch->n_tokens, 2, 1, batch->n_tokens);
    batch->output = batch->n_outputs ? piece(s, all, z.outputs, 1, 1, batch->n_outputs) : NULL;
    batch->adapter = z.any_adapter ? piece(s, all, z.adapters, 2, 1, batch->n_tokens) : NULL;
    batch->tiles = piece(s, all, z.tiles, 2, z.n_tiles, QN__TILE_FIELDS);
    for (int k = 0; k < batch->cache->n_kinds; k++) {
        int64_t at = z.kinds + k * z.one_kind;
        batch->kind[k].slots = piece(s, all, at, 1, 1, batch->n_tokens);
        batch->kind[k].table = piece(s, all, at + batch->n_tokens, 2, batch->n_parts, z.width);
    }
}

/* ---- the cache in the graph ------------------------------------------------------------------ */

void qn__batch_record(qn_scope *s, qn__batch *batch)
{
    qn__cache *cache = batch->cache;
    qn_error err = {0};
    record_numbers(s, batch);
    if (qn__cache_reserve(cache, s->device, &err) != QN_OK) {
        qn__scope_fail(s, err.code, "%s", err.message);
        return;
    }
    for (int i = 0; i < 2 * cache->shape.n_layers; i++) {
        if (qn__cache_commit(cache, i, &err) != QN_OK)
            qn__scope_fail(s, err.code, "%s", err.message);
        cache->current[i] = qn__lend(s, cache->kept[i]);
    }
}

/* x [1, H, T, D], which lies as [T, H, D], turned by a Hadamard matrix, of the largest power of two
 * that divides D, where keys or values are kept in blocks. The matrix is its own inverse and leaves
 * products of two turned vectors what they were; one number that is far larger than the others
 * becomes a little of each, and blocks with one scale keep more of every number's bits (QuaRot,
 * arXiv:2404.00456). */
static qn_array *turned(qn_scope *s, qn__encoding_id kept, qn_array *x)
{
    if (qn__encodings[kept].block_elements == 1)
        return x;
    x = qn_cast(s, qn_swap_axes(s, x, 1, 2), QN_F32);
    const int64_t d = qn_array_dim(x, 3), n = d & -d, heads = qn_array_dim(x, 2);
    const int64_t parts[] = {qn_array_elements(x) / n, n},
                  shape[] = {1, qn_array_dim(x, 1), heads, d};
    x = qn_hadamard_transform(s, qn_reshape(s, x, 2, parts), 0);
    return qn_swap_axes(s, qn_reshape(s, x, 4, shape), 1, 2);
}

qn_array *qn__batch_attend(qn_scope *s, qn__batch *batch, int layer, qn_array *q, qn_array *k,
                           qn_array *v, const qn_attention_options *options)
{
    qn__cache *cache = batch->cache;
    qn_array **keys = &cache->current[2 * layer], **values = keys + 1;
    const qn__cache_window *sees = &cache->kind[cache->kind_of[layer]].sees;
    const qn__batch_kind *kind = &batch->kind[cache->kind_of[layer]];
    qn_attention_options o = *options;
    o.window = sees->window && (!o.window || sees->window < o.window) ? sees->window : o.window;
    if (batch->seen) {
        batch->seen[2 * layer] = q;
        batch->seen[2 * layer + 1] = k;
    }
    const qn__cache_shape *c = &cache->shape;
    *keys = qn__write_keys(s, *keys, turned(s, c->keys, k), kind->slots);
    *values = qn__write_values(s, *values, turned(s, c->values, v), kind->slots);
    q = turned(s, c->keys, q);
    qn_array *y = qn__attend(s, q, *keys, *values, batch->tiles, kind->table, sees->keep, &o);
    return turned(s, c->values, y);
}

qn_array *qn__batch_outputs(qn_scope *s, const qn__batch *batch, qn_array *x)
{
    return batch->n_outputs == batch->n_tokens ? x : qn_take(s, x, batch->output, 1);
}

qn_array *const *qn__batch_targets(const qn__batch *batch, int *n)
{
    *n = 2 * batch->cache->shape.n_layers;
    return batch->cache->current;
}

/* All that the step makes: the cache's arrays, then n results; NULL: no memory. */
static qn_array **step_targets(qn_scope *s, const qn__batch *batch, qn_array *const *results, int n,
                               int *all)
{
    qn_array *const *targets = qn__batch_targets(batch, all);
    qn_array **y = qn__scope_alloc(s, (size_t)(*all + n) * sizeof *y);
    if (!y)
        return NULL;
    memcpy(y, targets, (size_t)*all * sizeof *y);
    for (int i = 0; i < n; i++)
        y[*all + i] = results[i];
    *all += n;
    return y;
}

qn_status qn__batch_submit(qn_scope *s, const qn__batch *batch, qn_array *const *results, int n)
{
    int all;
    qn_array **y = step_targets(s, batch, results, n, &all);
    return y ? qn_eval_async(s, y, all) : qn_scope_status(s);
}

void qn__batch_eval(qn_scope *s, const qn__batch *batch, qn_array *const *results, int n)
{
    int all;
    qn_array **y = step_targets(s, batch, results, n, &all);
    if (y)
        qn_eval_many(s, y, all);
}

/* The new buffers in the place of the old ones, all or none. */
static bool keep_current(qn__cache *cache)
{
    int n = 2 * cache->shape.n_layers, i = 0;
    for (; i < n; i++) /* a reference to each first, since that can fail */
        if (!(cache->current[i] = qn_retain(cache->current[i])))
            break;
    bool all = i == n;
    for (int k = 0; k < i; k++) {
        qn_array *dropped = all ? cache->kept[k] : cache->current[k];
        if (all)
            cache->kept[k] = cache->current[k];
        qn_release(dropped);
    }
    return all;
}

void qn__batch_end(qn_scope *s, qn__batch *batch)
{
    bool done = s && qn_scope_status(s) == QN_OK && keep_current(batch->cache);
    for (int64_t i = 0; i < batch->n_parts; i++) {
        qn__batch_part *part = &batch->parts[i];
        part->sequence->length += done ? part->n : 0;
        qn__sequence_cut(part->sequence);
    }
    batch->n_parts = batch->n_tokens = batch->n_outputs = 0;
}
