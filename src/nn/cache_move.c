/* SPDX-License-Identifier: Apache-2.0
 *
 * A cache's pages as bytes: how sequences go to sleep and wake.
 */
#include "base/error.h"
#include "core/device.h"
#include "nn/cache.h"

size_t qn__cache_page_bytes(const qn__cache *cache, int i)
{
    const qn__cache_shape *c = &cache->shape;
    return (size_t)c->heads * (i % 2 ? qn__cache_head_bytes(c->values, c->value_dim)
                                     : qn__cache_head_bytes(c->keys, c->key_dim));
}

qn_status qn__cache_read_page(const qn__cache *cache, int i, int32_t page, void *to, qn_error *err)
{
    const qn__buffer *buffer = cache->kept[i]->buffer;
    size_t bytes = qn__cache_page_bytes(cache, i);
    return buffer->device->ops->read(buffer->device, to, buffer, (size_t)page * bytes, bytes, err);
}

qn_status qn__cache_write_page(const qn__cache *cache, int i, int32_t page, const void *from,
                               qn_error *err)
{
    qn__buffer *buffer = cache->kept[i]->buffer;
    size_t bytes = qn__cache_page_bytes(cache, i);
    atomic_store(&buffer->written_since, true);
    return buffer->device->ops->write(buffer->device, (char *)buffer->data + (size_t)page * bytes,
                                      from, bytes, err);
}

/* The first block that holds one of the `positions` before `length`. */
static int64_t block_before(const qn__cache_kind *kind, int64_t length, int64_t positions)
{
    int64_t from = length - positions;
    return kind->sees.window && from > 0 ? from / QN__PAGE : 0;
}

int64_t qn__cache_first_needed(const qn__cache_kind *kind, int64_t length)
{
    return block_before(kind, length, kind->sees.window - 1);
}

int64_t qn__cache_first_kept(const qn__cache *cache, const qn__cache_kind *kind, int64_t length)
{
    return block_before(kind, length, kind->sees.window - 1 + cache->reach);
}

static qn_status wake_kind(qn__sequence *sequence, int k, int64_t length, int64_t first,
                           qn_error *err)
{
    qn__cache_kind *kind = &sequence->cache->kind[k];
    qn__sequence_pages *of = &sequence->kind[k];
    int64_t blocks = (length + QN__PAGE - 1) / QN__PAGE;
    if (qn__sequence_reserve(of, blocks, err) != QN_OK)
        return err->code;
    for (; of->n < blocks; of->n++) {
        of->page[of->n] = -1;
        if (qn__cache_holds(kind, first, of->n) &&
            qn__pages_take(&kind->pages, &of->page[of->n], err) != QN_OK)
            return err->code;
    }
    of->first = first;
    return QN_OK;
}

qn_status qn__sequence_wake(qn__sequence *sequence, int64_t length, const int64_t *first,
                            qn_error *err)
{
    qn__cache *cache = sequence->cache;
    qn_status status = QN_OK;
    for (int k = 0; status == QN_OK && k < cache->n_kinds; k++)
        status = wake_kind(sequence, k, length, first[k], err);
    for (int i = 0; status == QN_OK && i < 2 * cache->shape.n_layers; i++)
        status = qn__cache_commit(cache, i, err);
    if (status == QN_OK)
        sequence->length = length;
    else
        qn__sequence_cut(sequence);
    return status;
}
