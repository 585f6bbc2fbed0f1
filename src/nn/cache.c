/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache: kinds of layers, and the pages of sequences.
 */
#include "nn/cache.h"

#include "base/error.h"
#include "core/device.h"
#include "core/scope.h"

#include <stdlib.h>

static int64_t blocks_of(int64_t positions)
{
    return (positions + QN__PAGE - 1) / QN__PAGE;
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* The kind of layers that see this, a new one if need be. */
static int kind_of(qn__cache *cache, qn__cache_window sees)
{
    int i = 0;
    while (i < cache->n_kinds &&
           (cache->kind[i].sees.window != sees.window || cache->kind[i].sees.keep != sees.keep))
        i++;
    if (i == QN__MOST_KINDS)
        return -1;
    if (i == cache->n_kinds)
        cache->kind[cache->n_kinds++].sees = sees;
    cache->kind[i].n_layers++;
    return i;
}

int64_t qn__cache_most_pages(const qn__cache *cache, const qn__cache_kind *kind, int64_t positions)
{
    int64_t all = blocks_of(positions), window = kind->sees.window;
    int64_t some = blocks_of(window - 1 + cache->reach) + 1 + (kind->sees.keep > 0);
    return window && some < all ? some : all;
}

/* Of all sequences: each ends within a page. */
static int64_t all_pages(const qn__cache *cache, const qn__cache_kind *kind,
                         const qn__cache_room *room)
{
    int64_t all = room->sequences * qn__cache_most_pages(cache, kind, room->positions);
    int64_t some = blocks_of(room->total) + room->sequences - 1;
    return room->total && some < all ? some : all;
}

qn_status qn__cache_begin(qn__cache *cache, const qn__cache_shape *shape,
                          const qn__cache_window *windows, const qn__cache_room *room,
                          qn_error *err)
{
    *cache = (qn__cache){.shape = *shape, .reach = room->reach};
    size_t n = (size_t)shape->n_layers;
    cache->kept = calloc(2 * n, sizeof *cache->kept);
    cache->current = calloc(2 * n, sizeof *cache->current);
    cache->kind_of = calloc(n, sizeof *cache->kind_of);
    qn_status status = QN_OK;
    if (!cache->kept || !cache->current || !cache->kind_of)
        status = qn__fail_memory(err, "a cache");
    for (size_t i = 0; status == QN_OK && i < n; i++) {
        cache->kind_of[i] = kind_of(cache, windows ? windows[i] : (qn__cache_window){0});
        if (cache->kind_of[i] < 0)
            status = qn__fail(err, QN_UNSUPPORTED,
                              "a cache: layers see positions in more than %d ways", QN__MOST_KINDS);
    }
    if (status != QN_OK) {
        qn__cache_end(cache);
        return status;
    }
    for (qn__cache_kind *k = cache->kind; k < cache->kind + cache->n_kinds; k++)
        qn__pages_begin(&k->pages, all_pages(cache, k, room));
    return QN_OK;
}

void qn__cache_end(qn__cache *cache)
{
    for (int i = 0; cache->kept && i < 2 * cache->shape.n_layers; i++)
        qn_release(cache->kept[i]);
    for (int i = 0; i < cache->n_kinds; i++)
        qn__pages_end(&cache->kind[i].pages);
    free(cache->kept);
    free(cache->current);
    free(cache->kind_of);
    *cache = (qn__cache){0};
}

size_t qn__cache_head_bytes(qn__encoding_id encoding, int64_t dim)
{
    const qn__encoding *e = &qn__encodings[encoding];
    return e->block_elements == 1 ? (size_t)dim * QN__PAGE * e->block_bytes
                                  : qn__layout_bytes(QN__UNITS_OF(encoding), QN__PAGE, dim);
}

/* Of a page's keys and values in one layer. */
static size_t page_bytes(const qn__cache *cache)
{
    return qn__cache_page_bytes(cache, 0) + qn__cache_page_bytes(cache, 1);
}

size_t qn__cache_bytes(const qn__cache *cache)
{
    size_t pages = 0;
    for (int i = 0; i < cache->n_kinds; i++)
        pages += (size_t)cache->kind[i].pages.in_use * (size_t)cache->kind[i].n_layers;
    return pages * page_bytes(cache);
}

size_t qn__cache_most_bytes(const qn__cache *cache)
{
    size_t pages = 0;
    for (int i = 0; i < cache->n_kinds; i++)
        pages += (size_t)cache->kind[i].pages.most * (size_t)cache->kind[i].n_layers;
    return pages * page_bytes(cache);
}

/* Bytes of the pages of array i up to the last one in use. */
static size_t bytes_in_use(const qn__cache *cache, int i)
{
    const qn_array *a = cache->kept[i];
    size_t top = (size_t)cache->kind[cache->kind_of[i / 2]].pages.top;
    return qn__storage_bytes(a) / (size_t)a->shape[0] * top;
}

/* All pages of a layer's keys or values: retained, and known to no scope, so that steps may write
 * them in place. */
static qn_array *reserve_pages(const qn__cache *cache, qn_device *device, int i)
{
    const qn__cache_shape *c = &cache->shape;
    bool keys = i % 2 == 0;
    qn_dtype dtype;
    qn__layout_id layout;
    device->ops->keep(device, &qn__encodings[keys ? c->keys : c->values], &dtype, &layout);
    int64_t most = cache->kind[cache->kind_of[i / 2]].pages.most;
    int64_t turned[] = {most, c->heads, QN__PAGE / QN__KEY_GROUP, c->key_dim, QN__KEY_GROUP};
    int64_t rows[] = {most, c->heads, QN__PAGE, keys ? c->key_dim : c->value_dim};
    qn_scope *own = qn_scope_begin(device);
    bool turn = keys && !layout;
    qn_array *a =
        qn_retain(qn__leaf_reserved(own, dtype, layout, turn ? 5 : 4, turn ? turned : rows));
    qn_scope_end(own);
    return a;
}

qn_status qn__cache_reserve(qn__cache *cache, qn_device *device, qn_error *err)
{
    for (int i = 0; i < 2 * cache->shape.n_layers; i++)
        if (!cache->kept[i] && !(cache->kept[i] = reserve_pages(cache, device, i)))
            return qn__fail(err, QN_MEMORY, "no memory for a cache of %d pages",
                            cache->kind[cache->kind_of[i / 2]].pages.most);
    return QN_OK;
}

qn_status qn__cache_commit(const qn__cache *cache, int i, qn_error *err)
{
    qn__buffer *buffer = cache->kept[i]->buffer;
    size_t bytes = bytes_in_use(cache, i);
    qn_error own = {0};
    if (bytes <= buffer->capacity || qn__buffer_commit(buffer, bytes, &own))
        return QN_OK;
    size_t page = qn__storage_bytes(cache->kept[i]) / (size_t)cache->kept[i]->shape[0];
    return qn__fail(err, own.code,
                    "%s; the cache has %zu positions until now: fewer, or keys and values of fewer "
                    "bits, need less",
                    own.message, buffer->capacity / page * QN__PAGE);
}

void qn__cache_trim(const qn__cache *cache)
{
    qn_error unused = {0};
    for (int i = 0; i < 2 * cache->shape.n_layers; i++)
        if (cache->kept[i])
            qn__buffer_commit(cache->kept[i]->buffer, bytes_in_use(cache, i), &unused);
}

/* ---- sequences ------------------------------------------------------------------------------- */

void qn__sequence_begin(qn__sequence *sequence, qn__cache *cache)
{
    *sequence = (qn__sequence){.cache = cache, .adapter = cache->adapter};
}

void qn__sequence_end(qn__sequence *sequence)
{
    sequence->length = 0;
    if (sequence->cache)
        qn__sequence_cut(sequence);
    for (int i = 0; i < QN__MOST_KINDS; i++)
        free(sequence->kind[i].page);
    *sequence = (qn__sequence){0};
}

static void give_back(qn__pages *pages, qn__sequence_pages *of, int64_t block)
{
    if (of->page[block] >= 0)
        qn__pages_give_back(pages, of->page[block]);
    of->page[block] = -1;
}

/* Gives back what lies before position `from`, but for the first page where its positions stay. */
static void give_back_before(qn__cache_kind *kind, qn__sequence_pages *of, int64_t from)
{
    int64_t block = kind->sees.keep ? 1 : 0, end = from / QN__PAGE;
    block = of->first > block ? of->first : block;
    for (; block < end && block < of->n; block++)
        give_back(&kind->pages, of, block);
    of->first = block > of->first ? block : of->first;
}

static void cut_kind(qn__cache_kind *kind, qn__sequence_pages *of, int64_t blocks)
{
    while (of->n > blocks)
        give_back(&kind->pages, of, --of->n);
    of->first = of->first < of->n ? of->first : of->n;
}

void qn__sequence_cut(qn__sequence *sequence)
{
    for (int i = 0; i < sequence->cache->n_kinds; i++)
        cut_kind(&sequence->cache->kind[i], &sequence->kind[i], blocks_of(sequence->length));
}

qn_status qn__sequence_reserve(qn__sequence_pages *of, int64_t n, qn_error *err)
{
    if (n <= of->room)
        return QN_OK;
    int64_t room = n + n / 2 + 8;
    int32_t *page = realloc(of->page, (size_t)room * sizeof *page);
    if (!page)
        return qn__fail_memory(err, "a sequence's pages");
    of->page = page;
    of->room = room;
    return QN_OK;
}

static qn_status grow_kind(qn__cache *cache, qn__cache_kind *kind, qn__sequence_pages *of,
                           int64_t length, int64_t n, qn_error *err)
{
    int64_t blocks = blocks_of(length + n), reach = n > cache->reach ? n : cache->reach;
    if (kind->sees.window)
        give_back_before(kind, of, length + n - (kind->sees.window - 1 + reach));
    if (qn__sequence_reserve(of, blocks, err) != QN_OK)
        return err->code;
    while (of->n < blocks) {
        if (qn__pages_take(&kind->pages, &of->page[of->n], err) != QN_OK)
            return err->code;
        of->n++;
    }
    return QN_OK;
}

qn_status qn__sequence_grow(qn__sequence *sequence, int64_t n, qn_error *err)
{
    qn__cache *cache = sequence->cache;
    for (int i = 0; i < cache->n_kinds; i++)
        if (grow_kind(cache, &cache->kind[i], &sequence->kind[i], sequence->length, n, err) !=
            QN_OK) {
            qn__sequence_cut(sequence);
            return err->code;
        }
    return QN_OK;
}

/* Whether every position that a query at `length` sees is there. */
static bool holds(const qn__sequence *sequence, int64_t length)
{
    for (int i = 0; i < sequence->cache->n_kinds; i++) {
        const qn__cache_window *sees = &sequence->cache->kind[i].sees;
        int64_t first = length - sees->window + 1, given_back = sequence->kind[i].first;
        int64_t block = first > 0 ? first / QN__PAGE : 0;
        if (sees->keep && block == 0) /* the first page stays; the next is what may be missing */
            block = 1;
        if (sees->window && block < given_back && block * QN__PAGE < length)
            return false;
    }
    return true;
}

int64_t qn__sequence_rewind(qn__sequence *sequence, int64_t length)
{
    if (length < 0 || length >= sequence->length)
        return sequence->length;
    sequence->length = holds(sequence, length) ? length : 0;
    qn__sequence_cut(sequence);
    return sequence->length;
}
