/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints. A training is a function of its model, data and options; what lies between two steps
 * is matrices, moments and the number of steps. So that is what is kept, with fingerprints of the
 * rest: going on with anything else would be another training, and is refused by the name of what
 * differs. The arrays' own hash finds files that were changed or exchanged.
 */
#include "train/checkpoint.h"

#include "base/directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "models/loaded.h"
#include "train/full.h"
#include "train/lora.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, LARGEST_STATE = 16 << 20, WORD = 24 };

static const char state_name[] = "trainer.json", moments_name[] = "optimizer.safetensors";

/* Any kind's: what is there may be of another. */
static bool is_checkpoint_file(const char *name)
{
    return qn__is_adapter_file(name) || qn__is_full_file(name) || !strcmp(name, state_name) ||
           !strcmp(name, moments_name);
}

/* The first of the states that are not in the files for whoever uses what is trained, or not as
 * they are. */
static int first_state(const qn__trained *t)
{
    return t->dtype == t->held ? 1 : 0;
}

static char *write_word(char out[WORD], uint64_t value)
{
    snprintf(out, WORD, "%016" PRIx64, value);
    return out;
}

/* ---- what it is of --------------------------------------------------------------------------- */

/* Nothing of cross-entropy, which is what there was at first. */
static bool add_objective(cJSON *o, const qn__objective *objective)
{
    return objective->kind != QN_LOSS_DPO ||
           (cJSON_AddStringToObject(o, "loss", "dpo") &&
            cJSON_AddNumberToObject(o, "beta", objective->beta) &&
            cJSON_AddNumberToObject(o, "label_smoothing", objective->label_smoothing));
}

/* What must be the same where training goes on. */
static cJSON *describe(const qn__trained *t, const qn__checkpoint *c, uint64_t model)
{
    static const char *const names[] = {
#define OPTIMIZER_NAME(name, text) text,
        QN_OPTIMIZER_LIST(OPTIMIZER_NAME)
#undef OPTIMIZER_NAME
    };
    char word[WORD], seed[WORD];
    cJSON *o = cJSON_CreateObject();
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"beta1", c->optimizer->beta1},
                   {"beta2", c->optimizer->beta2},
                   {"eps", c->optimizer->eps},
                   {"weight_decay", c->optimizer->decay},
                   {"clip", c->clip}};
    bool ok = cJSON_AddStringToObject(o, "model", write_word(word, model)) &&
              cJSON_AddStringToObject(o, "optimizer", names[c->optimizer->kind]) &&
              cJSON_AddStringToObject(o, "seed", write_word(seed, c->seed)) &&
              add_objective(o, c->objective) && t->kind->describe(t, o) &&
              (t->moments == QN_F32 || cJSON_AddStringToObject(o, "moments", "bf16"));
    for (size_t i = 0; ok && i < sizeof numbers / sizeof *numbers; i++)
        ok = cJSON_AddNumberToObject(o, numbers[i].name, numbers[i].value);
    cJSON *bound = c->bound ? cJSON_Parse(c->bound) : cJSON_CreateObject();
    if (ok && bound && cJSON_AddItemToObject(o, "bound", bound))
        return o;
    cJSON_Delete(bound);
    cJSON_Delete(o);
    return NULL;
}

static qn_status refuse_member(const char *path, const cJSON *was, const cJSON *is,
                               const char *name, qn_error *err)
{
    char *before = was ? cJSON_PrintUnformatted(was) : NULL;
    char *now = is ? cJSON_PrintUnformatted(is) : NULL;
    qn__fail(err, QN_STATE, "%s: %.60s was %.100s, and is %.100s: that is another training", path,
             name, before ? before : "not there", now ? now : "not there");
    free(before);
    free(now);
    return err->code;
}

/* Names the first member that differs. */
static qn_status compare(const char *path, const cJSON *was, const cJSON *is, qn_error *err)
{
    const cJSON *member;
    cJSON_ArrayForEach(member, is)
    {
        const cJSON *old = cJSON_GetObjectItemCaseSensitive(was, member->string);
        if (cJSON_IsObject(member) && cJSON_IsObject(old)) {
            if (compare(path, old, member, err) != QN_OK)
                return err->code;
        } else if (!old || !cJSON_Compare(old, member, true)) {
            return refuse_member(path, old, member, member->string, err);
        }
    }
    cJSON_ArrayForEach(member, was)
    {
        if (!cJSON_GetObjectItemCaseSensitive(is, member->string))
            return refuse_member(path, member, NULL, member->string, err);
    }
    return QN_OK;
}

/* Of all matrices and moments. */
static qn_status hash_arrays(const qn__trained *t, qn_scope *s, uint64_t *out, qn_error *err)
{
    uint64_t h = 1;
    for (int i = 0; i < t->n * t->n_state; i++) {
        qn_array *a = t->arrays[i / t->n_state].state[i % t->n_state];
        size_t n = (size_t)qn_array_elements(a);
        float *values = malloc(n * sizeof *values + 1);
        if (!values)
            return qn__fail_memory(err, "a checkpoint");
        if (qn_read_f32(s, a, values, n) == QN_OK)
            h = qn__hash_bytes(values, n * sizeof *values, h);
        free(values);
        if (qn_scope_status(s) != QN_OK)
            return qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    }
    *out = h;
    return QN_OK;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static qn_status write_state(const qn__trained *t, qn_scope *s, const qn__checkpoint *c,
                             const char *directory, qn_error *err)
{
    char word[WORD];
    uint64_t model, arrays;
    if (qn__model_fingerprint(c->model, 0, &model, err) != QN_OK ||
        hash_arrays(t, s, &arrays, err) != QN_OK)
        return err->code;
    cJSON *root = cJSON_CreateObject(), *of = describe(t, c, model);
    bool ok = of && cJSON_AddItemToObject(root, "of", of);
    if (!ok)
        cJSON_Delete(of);
    ok = ok && cJSON_AddNumberToObject(root, "version", VERSION) &&
         cJSON_AddNumberToObject(root, "steps", (double)c->steps) &&
         cJSON_AddNumberToObject(root, "learning_rate", c->optimizer->learning_rate) &&
         cJSON_AddStringToObject(root, "arrays", write_word(word, arrays)) &&
         cJSON_AddStringToObject(root, "note", c->note ? c->note : "");
    qn_status status = ok ? qn__json_write(root, directory, state_name, err)
                          : qn__fail_memory(err, "a checkpoint");
    cJSON_Delete(root);
    return status;
}

qn_status qn__checkpoint_save(const qn__trained *t, const qn__checkpoint *c, const char *directory,
                              qn_error *err)
{
    qn__directory out;
    qn_device *device = qn__model_device(c->model);
    qn_status status = qn__directory_begin(&out, directory, true, is_checkpoint_file, err);
    qn_scope *s = qn_scope_begin(device);
    if (status == QN_OK && !s)
        status = qn__fail_memory(err, "a checkpoint");
    if (status == QN_OK)
        status = t->kind->write(t, s, out.temporary, err);
    if (status == QN_OK)
        status = qn__trained_write(t, s, out.temporary, moments_name, first_state(t), t->n_state,
                                   t->held, NULL, err);
    if (status == QN_OK)
        status = write_state(t, s, c, out.temporary, err);
    qn_scope_end(s);
    return qn__directory_end(&out, status, err);
}

/* ---- going on -------------------------------------------------------------------------------- */

static qn_status read_state(const qn__trained *t, qn__checkpoint *c, const qn__json_at *root,
                            uint64_t *arrays, qn_error *err)
{
    int64_t version;
    uint64_t model;
    qn__json_at of;
    const char *word, *note;
    if (qn__json_get_int(root, "version", 1, 1 << 20, &version, err) != QN_OK)
        return err->code;
    if (version != VERSION)
        return qn__json_fail(root, QN_UNSUPPORTED, err, "version %lld; %d is supported",
                             (long long)version, VERSION);
    if (qn__json_get_object(root, "of", &of, err) != QN_OK ||
        qn__json_get_int(root, "steps", 0, INT64_C(1) << 50, &c->steps, err) != QN_OK ||
        qn__json_get_number(root, "learning_rate", 0, 1e3, &c->learning_rate, err) != QN_OK ||
        qn__json_get_string(root, "arrays", &word, err) != QN_OK ||
        qn__json_get_string(root, "note", &note, err) != QN_OK ||
        qn__model_fingerprint(c->model, 0, &model, err) != QN_OK)
        return err->code;
    *arrays = strtoull(word, NULL, 16);
    cJSON *now = describe(t, c, model);
    c->noted = strdup(note);
    if (!now || !c->noted)
        qn__fail_memory(err, "a checkpoint");
    else
        compare(root->file, of.node, now, err);
    cJSON_Delete(now);
    return err->code;
}

qn_status qn__checkpoint_read(qn__trained *t, qn__checkpoint *c, const char *directory,
                              qn_error *err)
{
    cJSON *tree = NULL;
    uint64_t arrays = 0, there = 0;
    char *path = qn__path_join(directory, state_name);
    if (!path)
        return qn__fail_memory(err, "a path");
    if (qn__json_read(&tree, path, LARGEST_STATE, err) == QN_OK) {
        qn__json_at root = qn__json_root(path, tree);
        read_state(t, c, &root, &arrays, err);
    }
    qn_scope *s = qn_scope_begin(qn__model_device(c->model));
    if (!s)
        qn__fail_memory(err, "a checkpoint");
    if (err->code == QN_OK && t->kind->read(t, s, directory, err) == QN_OK &&
        qn__trained_read_states(t, s, directory, moments_name, first_state(t), t->n_state, NULL,
                                err) == QN_OK &&
        hash_arrays(t, s, &there, err) == QN_OK && arrays != there)
        qn__fail(err, QN_INVALID,
                 "%s: matrices or moments are not those that were saved: a file was changed",
                 directory);
    qn_scope_end(s);
    cJSON_Delete(tree);
    free(path);
    return err->code;
}
