/* SPDX-License-Identifier: Apache-2.0
 *
 * Full training. The model's own weights lie packed, in their files' type; what is trained are
 * copies in f32, as plain arrays, which the decoder's operations take just as well. Products and
 * their gradients are then those of f32.
 *
 * Norms that multiply by 1 + weight are held with the 1 by the decoder, and without it here: decay
 * and files are of the weight. (Vectors do not decay, but that is the optimiser's business.)
 */
#include "train/full.h"

#include "base/error.h"
#include "base/json.h"
#include "core/array.h"
#include "models/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_CONFIG = 4 << 20 };

static const char config_name[] = "config.json", weights_name[] = "model.safetensors";

/* Array i is parameter i of the model's decoder. */
typedef struct full {
    qn__trained trained;
    const qn_model *model;
} full;

static const qn__parameter *parameter(const qn__trained *t, int i)
{
    return &qn__model_decoder(((const full *)t)->model)->parameters[i];
}

/* ---- which models ---------------------------------------------------------------------------- */

static qn_status check_parameters(const qn__decoder *m, qn_error *err)
{
    for (int i = 0; i < m->n_parameters; i++) {
        const char *as = qn__parameter_quantised(&m->parameters[i]);
        if (as)
            return qn__fail(err, QN_UNSUPPORTED,
                            "full training is of dense weights, and %s is %s; train an adapter, or "
                            "the model that this one was made from",
                            m->parameters[i].name, as);
    }
    return QN_OK;
}

/* What is saved has the model's own config.json, and text alone. */
static qn_status check_directory(const qn_model *model, qn_error *err)
{
    const char *path = qn__model_config_path(model);
    cJSON *root = NULL;
    qn__json_at text;
    if (!path)
        return qn__fail(err, QN_UNSUPPORTED,
                        "full training saves a Hugging Face directory, and the model is none; "
                        "convert it first (quern convert)");
    if (qn__json_read(&root, path, LARGEST_CONFIG, err) == QN_OK) {
        qn__json_at config = qn__json_root(path, root);
        if (qn__json_find(&config, "text_config", &text))
            qn__json_fail(&text, QN_UNSUPPORTED, err,
                          "full training is of models of text alone; train an adapter");
    }
    cJSON_Delete(root);
    return err->code;
}

/* ---- their values ---------------------------------------------------------------------------- */

/* A parameter as f32, recorded. */
static qn_array *value_of(qn_scope *s, const qn__parameter *p)
{
    if (p->ndim == 2) {
        qn_array *rows = qn_arange(s, QN_I32, p->shape[0]);
        return qn_cast(s, qn_take(s, *p->slot, rows, 0), QN_F32);
    }
    qn_array *one = qn_scalar(s, QN_F32, 1); /* times which is a copy */
    return p->plus_one ? qn_subtract(s, *p->slot, one) : qn_multiply(s, *p->slot, one);
}

/* Where `own` has what is at `slot` of m. */
static qn_array **own_slot(const qn__decoder *m, qn__decoder *own, qn_array **slot)
{
    char *at = (char *)slot, *layers = (char *)m->layers;
    bool inside = at >= layers && at < (char *)(m->layers + m->config.n_layers);
    return (qn_array **)(inside ? (char *)own->layers + (at - layers)
                                : (char *)own + (at - (char *)m));
}

static qn_status take_values(qn__trained *t, const qn__decoder *m, qn__decoder *own,
                             qn_device *device, qn_error *err)
{
    t->arrays = calloc((size_t)m->n_parameters + 1, sizeof *t->arrays);
    if (!t->arrays)
        return qn__fail_memory(err, "what is trained");
    for (; t->n < m->n_parameters && err->code == QN_OK; t->n++) {
        const qn__parameter *p = &m->parameters[t->n];
        qn__trained_array *a = &t->arrays[t->n];
        *a = (qn__trained_array){.shape = {p->shape[0], p->shape[1]},
                                 .ndim = p->ndim,
                                 .decays = p->ndim == 2,
                                 .slot = own_slot(m, own, p->slot)};
        snprintf(a->name, sizeof a->name, "%s", p->name);
        qn_scope *s = qn_scope_begin(device);
        if (qn__trained_set(t, t->n, s, value_of(s, p)) != QN_OK)
            qn__fail(err, qn_scope_status(s), "%s: %s", p->name, qn_scope_error(s));
        qn_scope_end(s);
    }
    return err->code;
}

/* ---- as what is trained ---------------------------------------------------------------------- */

static void bind_full(const qn__trained *t, qn_scope *s, qn__decoder *own)
{
    (void)own;
    for (int i = 0; i < t->n; i++) {
        qn_array *a = t->arrays[i].leaf = t->arrays[i].state[0];
        *t->arrays[i].slot = parameter(t, i)->plus_one ? qn_add(s, a, qn_scalar(s, QN_F32, 1)) : a;
    }
}

static bool describe_full(const qn__trained *t, cJSON *of)
{
    (void)t;
    return cJSON_AddTrueToObject(of, "full") != NULL;
}

bool qn__is_full_file(const char *name)
{
    return !strcmp(name, config_name) || !strcmp(name, weights_name) || qn__is_model_file(name);
}

static qn_status copy_config(const char *path, const char *directory, qn_error *err)
{
    cJSON *root = NULL;
    if (qn__json_read(&root, path, LARGEST_CONFIG, err) == QN_OK)
        qn__json_write(root, directory, config_name, err);
    cJSON_Delete(root);
    return err->code;
}

static qn_status write_full(const qn__trained *t, qn_scope *s, const char *directory, qn_error *err)
{
    const qn_model *model = ((const full *)t)->model;
    return qn__trained_write(t, s, directory, weights_name, 0, 1, t->dtype, NULL, err) == QN_OK &&
                   copy_config(qn__model_config_path(model), directory, err) == QN_OK
               ? qn__model_files_copy(qn__model_directory(model), directory, err)
               : err->code;
}

/* What is rounded there stands beside the moments as it is. */
static qn_status read_full(qn__trained *t, qn_scope *s, const char *directory, qn_error *err)
{
    return t->dtype == QN_F32
               ? qn__trained_read_states(t, s, directory, weights_name, 0, 1, NULL, err)
               : QN_OK;
}

static void end_full(qn__trained *t)
{
    free(t);
}

static const qn__trained_kind full_kind = {.bind = bind_full,
                                           .describe = describe_full,
                                           .write = write_full,
                                           .read = read_full,
                                           .is_file = qn__is_full_file,
                                           .end = end_full};

qn_status qn__full_begin(qn__trained **out, const qn_model *model, qn__decoder *own,
                         const qn_trainer_options *o, qn_error *err)
{
    const qn__decoder *m = qn__model_decoder(model);
    *out = NULL;
    if (check_parameters(m, err) != QN_OK || check_directory(model, err) != QN_OK)
        return err->code;
    full *f = calloc(1, sizeof *f);
    if (!f)
        return qn__fail_memory(err, "what is trained");
    f->model = model;
    f->trained = (qn__trained){.kind = &full_kind,
                               .n_state = qn__optimizer_arrays(o->optimizer),
                               .held = QN_F32,
                               .moments = o->moments_bf16 ? QN_BF16 : QN_F32,
                               .dtype = m->config.dtype};
    *out = &f->trained;
    return take_values(*out, m, own, qn__model_device(model), err);
}
