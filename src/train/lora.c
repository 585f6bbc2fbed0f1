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

void qn__lora_name(char *out, size_t room, const qn__lora_pair *pair, bool is_b)
{
    snprintf(out, room, "base_model.model.%.*s.lora_%c.weight", (int)layer_length(pair->of),
             pair->of->name, is_b ? 'B' : 'A');
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

static qn_status fail_target(const qn__decoder *m, const char *target, qn_error *err)
{
    qn__lora all = {0};
    char names[LISTED] = "";
    size_t n = 0;
    add_all_targets(&all, m);
    for (size_t i = 0; i < all.n_targets && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", all.targets[i]);
    qn__lora_end(&all);
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

/* A pair for every layer that a target names. */
static qn_status list_pairs(qn__lora *l, const qn__decoder *m, const qn__decoder *own,
                            qn_error *err)
{
    l->pairs = calloc((size_t)m->n_parameters + 1, sizeof *l->pairs);
    if (!l->pairs)
        return qn__fail_memory(err, "an adapter");
    for (int i = 0; i < m->n_parameters; i++) {
        const qn__parameter *p = &m->parameters[i];
        bool wanted = false;
        for (size_t k = 0; p->linear && k < l->n_targets; k++)
            wanted |= is_target(p, l->targets[k]);
        if (!wanted || layer_of(m, p) < l->first_layer)
            continue;
        ptrdiff_t at = (char *)p->linear - (char *)m->layers;
        l->pairs[l->n_pairs++] =
            (qn__lora_pair){.of = p, .linear = (qn__linear *)((char *)own->layers + at)};
    }
    return l->n_pairs ? QN_OK
                      : qn__fail(err, QN_INVALID, "none of the targets is in the last %lld layers",
                                 (long long)(l->n_layers - l->first_layer));
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* The drawn matrices and zeros, recorded and evaluated; of one pair. */
static qn_status draw_pair(const qn__lora *l, qn__lora_pair *p, qn_scope *s, qn_array *key)
{
    const int64_t a[] = {l->rank, p->of->shape[1]}, b[] = {p->of->shape[0], l->rank};
    double bound = 1 / sqrt((double)a[1]);
    qn_array *made[2 * QN__OPTIMIZER_ARRAYS], **kept[2 * QN__OPTIMIZER_ARRAYS];
    for (int i = 0; i < l->n_arrays; i++) {
        made[i] =
            i ? qn_zeros(s, QN_F32, 2, a) : qn_random_uniform(s, key, QN_F32, -bound, bound, 2, a);
        made[l->n_arrays + i] = qn_zeros(s, QN_F32, 2, b);
        kept[i] = &p->a[i];
        kept[l->n_arrays + i] = &p->b[i];
    }
    qn_eval_many(s, made, 2 * l->n_arrays);
    for (int i = 0; i < 2 * l->n_arrays && qn_scope_status(s) == QN_OK; i++)
        *kept[i] = qn_retain(made[i]);
    return qn_scope_status(s);
}

static void draw_pairs(qn__lora *l, qn_scope *s, uint64_t seed)
{
    qn_array *key = qn_random_key(s, seed);
    for (int i = 0; i < l->n_pairs; i++) {
        qn_array *own = qn_random_fold_in(s, key, qn_scalar(s, QN_I32, i));
        if (draw_pair(l, &l->pairs[i], s, own) != QN_OK)
            return;
    }
}

qn_status qn__lora_begin(qn__lora *l, const qn__decoder *model, const qn__decoder *own,
                         qn_device *device, const qn_trainer_options *o, qn_error *err)
{
    int64_t n = model->config.n_layers;
    *l = (qn__lora){.rank = o->rank,
                    .alpha = o->alpha,
                    .n_arrays = qn__optimizer_arrays(o->optimizer),
                    .first_layer = o->num_layers && o->num_layers < n ? n - o->num_layers : 0,
                    .n_layers = n};
    if (choose_targets(l, model, o, err) != QN_OK || list_pairs(l, model, own, err) != QN_OK)
        return err->code;
    qn_scope *s = qn_scope_begin(device);
    draw_pairs(l, s, o->seed);
    if (qn_scope_status(s) == QN_OK && o->adapter)
        qn__lora_read(l, s, o->adapter, err);
    if (qn_scope_status(s) != QN_OK)
        qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    qn_scope_end(s);
    return err->code;
}

void qn__lora_end(qn__lora *l)
{
    for (int i = 0; i < l->n_pairs; i++)
        for (int k = 0; k < QN__OPTIMIZER_ARRAYS; k++) {
            qn_release(l->pairs[i].a[k]);
            qn_release(l->pairs[i].b[k]);
        }
    for (size_t i = 0; i < l->n_targets; i++)
        free(l->targets[i]);
    free(l->targets);
    free(l->pairs);
    *l = (qn__lora){0};
}
