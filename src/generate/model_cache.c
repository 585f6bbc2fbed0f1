/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache that a model's layers want.
 */
#include "base/error.h"
#include "core/device.h"
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

/* What the model's own numbers want: halves that products round to, too. */
static qn__encoding_id usual_encoding(const qn_model *model)
{
    const qn_dtype type = model->decoder.config.dtype;
    if (model->decoder.products != QN_PRODUCTS_AUTO)
        return QN__F32;
    return type == QN_BF16                                ? QN__BF16
           : type == QN_F16 && model->device->ops->halves ? QN__F16
                                                          : QN__F32;
}

/* The encoding that is named, or the usual one. */
static qn_status encoding_of(const qn_model *model, const char *name, qn__encoding_id *out,
                             qn_error *err)
{
    int id = name ? qn__encoding_named(name) : (int)usual_encoding(model);
    qn_device *device = model->device;
    qn_dtype dtype;
    qn__layout_id layout;
    if (id < 0 || !device->ops->keep(device, &qn__encodings[id], &dtype, &layout))
        return qn__fail(
            err, QN_UNSUPPORTED,
            "device %s keeps no keys and values in \"%.40s\"; f32, bf16, f16, q8_0, q5_1, q5_0, "
            "q4_1, q4_0, iq4_nl and affine groups such as affine8-g64-bf16 are possible",
            device->name, name);
    int64_t block = qn__encodings[id].block_elements, dim = model->decoder.config.head_dim;
    if (dim % block)
        return qn__fail(err, QN_UNSUPPORTED,
                        "keys and values of %lld numbers are no whole blocks of %s, which have "
                        "%lld; f32, bf16 and f16 are possible",
                        (long long)dim, qn__encodings[id].name, (long long)block);
    *out = (qn__encoding_id)id;
    return QN_OK;
}

qn_status qn__model_cache(qn__cache *cache, const qn_model *model, const qn__cache_room *room,
                          const qn__model_cache_options *options, qn_error *err)
{
    const qn__decoder_config *c = &model->decoder.config;
    *cache = (qn__cache){0};
    qn__cache_shape shape = {.n_layers = (int)c->n_layers,
                             .queries = c->n_heads,
                             .heads = c->n_kv_heads,
                             .key_dim = c->head_dim,
                             .value_dim = c->head_dim};
    if (encoding_of(model, options->keys, &shape.keys, err) != QN_OK ||
        encoding_of(model, options->values, &shape.values, err) != QN_OK)
        return err->code;
    qn__cache_window *windows = calloc((size_t)c->n_layers, sizeof *windows);
    if (!windows)
        return qn__fail_memory(err, "a cache");
    for (int i = 0; i < c->n_layers; i++)
        windows[i] = window_of(c, i, room->positions, options->limit, options->keep);
    qn_status status = qn__cache_begin(cache, &shape, windows, room, err);
    if (status == QN_OK)
        status = qn__model_adapter(model, QN_ADAPTER_DEFAULT, &cache->adapter, err);
    free(windows);
    return status;
}

uint64_t qn__model_cache_bytes(const qn_model *model, int64_t positions,
                               const qn__model_cache_options *options)
{
    int64_t most = model->decoder.config.max_positions;
    int64_t n = positions > 0 && positions <= INT32_MAX ? positions : most;
    int64_t step = qn__device_step_tokens(model->device); /* windows keep what a step sees */
    qn__cache_room room = {.sequences = 1, .positions = n, .reach = n < step ? n : step};
    qn__cache cache;
    qn_error err = {0};
    if (qn__model_cache(&cache, model, &room, options, &err) != QN_OK)
        return 0;
    uint64_t bytes = qn__cache_most_bytes(&cache);
    qn__cache_end(&cache);
    return bytes;
}
