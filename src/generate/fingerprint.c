/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's fingerprint: what keys and values depend on, as one number. Of each weight its name,
 * its shape and some of its bytes as the device has them, so that other weights, other types of
 * them and other files are another model.
 */
#include "base/hash.h"
#include "core/device.h"
#include "generate/model.h"

#include <string.h>

enum { PIECES = 4, PIECE = 256 };

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    return qn__hash_bytes(data, n, h);
}

/* Some bytes of an array, the last ones too. */
static qn_status mix_array(uint64_t *h, const qn_array *a, qn_error *err)
{
    size_t bytes = qn__storage_bytes(a), size = bytes < PIECE ? bytes : PIECE;
    char data[PIECE];
    qn_device *device = a->buffer->device;
    *h = mix(*h, a->shape, (size_t)a->ndim * sizeof *a->shape);
    for (size_t i = 0; i < PIECES; i++) {
        size_t at = (bytes - size) / (PIECES - 1) * i;
        if (i == PIECES - 1)
            at = bytes - size;
        if (device->ops->read(device, data, a->buffer, at, size, err) != QN_OK)
            return err->code;
        *h = mix(*h, data, size);
    }
    return QN_OK;
}

/* Which adapter, and all of them: their columns lie side by side. */
static qn_status mix_adapters(uint64_t *h, const qn__decoder *m, int32_t adapter, qn_error *err)
{
    *h = mix(*h, &adapter, sizeof adapter);
    if (mix_array(h, m->adapter_scales, err) != QN_OK)
        return err->code;
    for (int i = 0; i < m->n_parameters; i++) {
        const qn__linear *l = m->parameters[i].linear;
        if (l && l->lora_a &&
            (mix_array(h, l->lora_a, err) != QN_OK || mix_array(h, l->lora_b, err) != QN_OK))
            return err->code;
    }
    return QN_OK;
}

qn_status qn__model_fingerprint(const qn_model *model, int32_t adapter, uint64_t *out,
                                qn_error *err)
{
    const qn__decoder *m = &model->decoder;
    const qn__decoder_config *c = &m->config;
    const int64_t numbers[] = {c->n_layers, c->hidden,     c->n_heads, c->n_kv_heads,
                               c->head_dim, c->vocab,      c->window,  c->norm_plus_one,
                               c->qk_norm,  c->activation, c->dtype,   (int64_t)m->products};
    const double reals[] = {c->norm_eps, c->query_scale, c->score_cap, c->rope.attention};
    qn_array *const turns[] = {m->frequency, m->sliding_frequency};
    uint64_t h = mix(mix(1, numbers, sizeof numbers), reals, sizeof reals);
    if (m->batch_invariant) /* what others made may have other bits */
        h = mix(h, &m->batch_invariant, sizeof m->batch_invariant);
    for (int i = 0; i < 2; i++)
        if (turns[i] && mix_array(&h, turns[i], err) != QN_OK)
            return err->code;
    for (int i = 0; i < m->n_parameters; i++) {
        h = mix(h, m->parameters[i].name, strlen(m->parameters[i].name));
        if (mix_array(&h, *m->parameters[i].slot, err) != QN_OK)
            return err->code;
    }
    if (adapter && mix_adapters(&h, m, adapter, err) != QN_OK)
        return err->code;
    *out = h;
    return QN_OK;
}
