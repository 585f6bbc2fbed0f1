/* SPDX-License-Identifier: Apache-2.0
 *
 * Choosing the layers of an adapter and drawing its matrices: A uniform within 1 / sqrt(K), which
 * is PEFT's (Kaiming's with a = sqrt(5)), B zero, so that the adapter adds nothing at first.
 */
#include "train/lora.h"

#include "base/error.h"
#include "models/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 160, LISTED = 300 };

static const qn__trained_kind lora_kind;

/* ---- names ----------------------------------------------------------------------------------- */

/* The layer's name: the parameter's without ".weight". */
static size_t layer_length(const qn__parameter *p)
{
    return strlen(p->name) - strlen(".weight");
}

/* Whether the layer's name is `target`, or ends in ".target". */
static bool is_target(const qn__parameter *p, const char *target)
{
    size_t n = layer_length(p), k = strlen(target);
    return k && n >= k && !memcmp(p->name + n - k, target, k) &&
           (n == k || p->name[n - k - 1] == '.');
}

/* The last part of a layer's name, "q_proj". */
static void last_part(const qn__parameter *p, char out[NAME])
{
    size_t n = layer_length(p), at = n;
    while (at > 0 && p->name[at - 1] != '.')
        at--;
    snprintf(out, NAME, "%.*s", (int)(n - at), p->name + at);
}

/* "base_model.model.LAYER.lora_A.weight", PEFT's. */
static void name_matrix(char out[QN__TRAINED_NAME], const qn__parameter *p, char which)
{
    snprintf(out, QN__TRAINED_NAME, "base_model.model.%.*s.lora_%c.weight", (int)layer_length(p),
             p->name, which);
}

/* ---- targets --------------------------------------------------------------------------------- */

static bool has_target(const qn__lora *l, const char *name)
{
    for (size_t i = 0; i < l->n_targets; i++)
        if (!strcmp(l->targets[i], name))
            return true;
    return false;
}

static bool add_target(qn__lora *l, const char *name)
{
    char **more = realloc(l->targets, (l->n_targets + 1) * sizeof *more);
    if (!more)
        return false;
    l->targets = more;
    l->targets[l->n_targets] = strdup(name);
    return l->targets[l->n_targets] && ++l->n_targets;
}

/* Every kind of linear layer that the model has. */
static bool add_all_targets(qn__lora *l, const qn__decoder *m)
{
    char name[NAME];
    for (int i = 0; i < m->n_parameters; i++) {
        if (!m->parameters[i].linear)
            continue;
        last_part(&m->parameters[i], name);
        if (!has_target(l, name) && !add_target(l, name))
            return false;
    }
    return true;
}

static void free_targets(qn__lora *l)
{
    for (size_t i = 0; i < l->n_targets; i++)
        free(l->targets[i]);
    free(l->targets);
}

static qn_status fail_target(const qn__decoder *m, const char *target, qn_error *err)
{
    qn__lora all = {0};
    char names[LISTED] = "";
    size_t n = 0;
    add_all_targets(&all, m);
    for (size_t i = 0; i < all.n_targets && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", all.targets[i]);
    free_targets(&all);
    return qn__fail(err, QN_INVALID, "no linear layer's name ends in \"%.60s\"; there are %s",
                    target, names);
}

static qn_status choose_targets(qn__lora *l, const qn__decoder *m, const qn_trainer_options *o,
                                qn_error *err)
{
    for (size_t i = 0; i < o->n_targets; i++) {
        bool found = false;
        for (int k = 0; k < m->n_parameters; k++)
            found |= m->parameters[k].linear && is_target(&m->parameters[k], o->targets[i]);
        if (!found)
            return fail_target(m, o->targets[i], err);
        if (!has_target(l, o->targets[i]) && !add_target(l, o->targets[i]))
            return qn__fail_memory(err, "an adapter");
    }
    if (!o->n_targets && !add_all_targets(l, m))
        return qn__fail_memory(err, "an adapter");
    return QN_OK;
}

/* Which of the decoder's layers a linear layer is in. */
static int64_t layer_of(const qn__decoder *m, const qn__parameter *p)
{
    return ((char *)p->linear - (char *)m->layers) / (ptrdiff_t)sizeof *m->layers;
}

static void add_pair(qn__lora *l, const qn__decoder *m, const qn__decoder *own,
                     const qn__parameter *p)
{
    qn__linear *linear =
        (qn__linear *)((char *)own->layers + ((char *)p->linear - (char *)m->layers));
    qn__trained_array *a = &l->trained.arrays[l->trained.n], *b = a + 1;
    *a = (qn__trained_array){
        .shape = {l->rank, p->shape[1]}, .ndim = 2, .decays = true, .slot = &linear->lora_a};
    *b = (qn__trained_array){
        .shape = {p->shape[0], l->rank}, .ndim = 2, .decays = true, .slot = &linear->lora_b};
    name_matrix(a->name, p, 'A');
    name_matrix(b->name, p, 'B');
    l->trained.n += 2;
}

/* A pair for every layer that a target names. */
static qn_status list_pairs(qn__lora *l, const qn__decoder *m, const qn__decoder *own,
                            qn_error *err)
{
    l->trained.arrays = calloc(2 * (size_t)m->n_parameters + 1, sizeof *l->trained.arrays);
    if (!l->trained.arrays)
        return qn__fail_memory(err, "an adapter");
    for (int i = 0; i < m->n_parameters; i++) {
        const qn__parameter *p = &m->parameters[i];
        bool wanted = false;
        for (size_t k = 0; p->linear && k < l->n_targets; k++)
            wanted |= is_target(p, l->targets[k]);
        if (wanted && layer_of(m, p) >= l->first_layer)
            add_pair(l, m, own, p);
    }
    return l->trained.n
               ? QN_OK
               : qn__fail(err, QN_INVALID, "none of the targets is in the last %lld layers",
                          (long long)(l->n_layers - l->first_layer));
}

/* ---- matrices -------------------------------------------------------------------------------- */

static void draw_pairs(qn__lora *l, qn_scope *s, uint64_t seed)
{
    qn_array *key = qn_random_key(s, seed);
    for (int i = 0; i < l->trained.n; i++) {
        const int64_t *shape = l->trained.arrays[i].shape;
        double bound = 1 / sqrt((double)shape[1]);
        qn_array *own = qn_random_fold_in(s, key, qn_scalar(s, QN_I32, i / 2));
        qn_array *drawn = i % 2 ? qn_zeros(s, QN_F32, 2, shape)
                                : qn_random_uniform(s, own, QN_F32, -bound, bound, 2, shape);
        if (qn__trained_set(&l->trained, i, s, drawn) != QN_OK)
            return;
    }
}

qn_status qn__lora_begin(qn__trained **out, const qn__decoder *model, const qn__decoder *own,
                         qn_device *device, const qn_trainer_options *o, qn_error *err)
{
    int64_t n = model->config.n_layers;
    qn__lora *l = calloc(1, sizeof *l);
    *out = l ? &l->trained : NULL;
    if (!l)
        return qn__fail_memory(err, "an adapter");
    qn_dtype dtype = o->adapter_bf16 ? QN_BF16 : QN_F32;
    *l = (qn__lora){.trained = {.kind = &lora_kind,
                                .n_state = qn__optimizer_arrays(o->optimizer),
                                .held = dtype,
                                .moments = o->moments_bf16 ? QN_BF16 : QN_F32,
                                .dtype = dtype},
                    .rank = o->rank,
                    .alpha = o->alpha,
                    .dropout = o->dropout,
                    .format = o->adapter_format,
                    .first_layer = o->num_layers && o->num_layers < n ? n - o->num_layers : 0,
                    .n_layers = n};
    if (choose_targets(l, model, o, err) != QN_OK || list_pairs(l, model, own, err) != QN_OK)
        return err->code;
    qn_scope *s = qn_scope_begin(device);
    draw_pairs(l, s, o->seed);
    if (qn_scope_status(s) == QN_OK && o->adapter)
        qn__lora_read(*out, s, o->adapter, err);
    qn__scope_end(s, err);
    return err->code;
}

/* ---- as what is trained ---------------------------------------------------------------------- */

static void end_lora(qn__trained *t)
{
    free_targets((qn__lora *)t);
    free(t);
}

static void bind_lora(const qn__trained *t, qn_scope *s, qn__decoder *own)
{
    const qn__lora *l = (const qn__lora *)t;
    for (int i = 0; i < t->n; i++) {
        qn__trained_array *a = &t->arrays[i];
        a->leaf = t->held == QN_F32 ? a->state[0] : qn_cast(s, a->state[0], QN_F32);
        *a->slot = a->leaf;
    }
    own->dropout = l->dropout;
    own->adapter_scale = qn_scalar(s, QN_F32, l->alpha / (double)l->rank);
}

static bool describe_lora(const qn__trained *t, cJSON *of)
{
    const qn__lora *l = (const qn__lora *)t;
    cJSON *targets = cJSON_AddArrayToObject(of, "targets");
    bool ok = targets && cJSON_AddNumberToObject(of, "rank", (double)l->rank) &&
              cJSON_AddNumberToObject(of, "alpha", l->alpha) &&
              (l->dropout == 0 || cJSON_AddNumberToObject(of, "dropout", l->dropout)) &&
              (t->held == QN_F32 || cJSON_AddStringToObject(of, "adapter_dtype", "bf16")) &&
              cJSON_AddNumberToObject(of, "layers", (double)(l->n_layers - l->first_layer));
    for (size_t i = 0; ok && i < l->n_targets; i++)
        ok = cJSON_AddItemToArray(targets, cJSON_CreateString(l->targets[i]));
    return ok;
}

static const qn__trained_kind lora_kind = {.bind = bind_lora,
                                           .describe = describe_lora,
                                           .write = qn__lora_write,
                                           .read = qn__lora_read,
                                           .is_file = qn__is_adapter_file,
                                           .end = end_lora};
