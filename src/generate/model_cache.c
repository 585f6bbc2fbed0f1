/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache that a model's layers want.
 */
#include "base/error.h"
#include "generate/model.h"

#include <stdlib.h>

/* What a layer's queries see: with `limit`, every layer that many positions at most, of which those
 * that do not slide keep the first `keep`. */
static qn__cache_window window_of(const qn__decoder_config *c, int layer, int64_t positions,
                                  int64_t limit, int64_t keep)
{
    int64_t window = c->layer[layer].sliding ? c->window : 0;
    bool limited = limit && (!window || limit < window);
    if (limited)
        window = limit;
    keep = limited ? keep : 0;
    bool narrow = window && window < positions;
    return narrow ? (qn__cache_window){window - keep, keep} : (qn__cache_window){0};
}

qn_status qn__model_cache(qn__cache *cache, const qn__decoder *m, const qn__cache_room *room,
                          int64_t limit, int64_t keep, qn_error *err)
{
    const qn__decoder_config *c = &m->config;
    bool half = c->dtype == QN_BF16 && m->products == QN_PRODUCTS_AUTO;
    qn__cache_shape shape = {.n_layers = (int)c->n_layers,
                             .queries = c->n_heads,
                             .heads = c->n_kv_heads,
                             .key_dim = c->head_dim,
                             .value_dim = c->head_dim,
                             .dtype = half ? QN_BF16 : QN_F32};
    qn__cache_window *windows = calloc((size_t)c->n_layers, sizeof *windows);
    if (!windows)
        return qn__fail_memory(err, "a cache");
    for (int i = 0; i < c->n_layers; i++)
        windows[i] = window_of(c, i, room->positions, limit, keep);
    qn_status status = qn__cache_begin(cache, &shape, windows, room, err);
    free(windows);
    return status;
}
