/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model's files say about generating: generation_config.json, as transformers reads it, or
 * what a GGUF file's metadata has of it. The file is advice: whatever stands in it, the model
 * opens. Off is top_k 0 (and -1, which vLLM writes), top_p 1, repetition_penalty 1; temperature 0,
 * which transformers refuses, is greedy as everywhere else; without do_sample everything is greedy.
 */
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "core/device.h"
#include "generate/model.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_GENERATION_CONFIG = 1 << 20 };

void qn__model_add_stop(qn_model *m, int64_t id)
{
    for (size_t i = 0; i < m->n_stop; i++)
        if (m->stop[i] == id)
            return;
    if (m->n_stop < QN__MOST_STOPS)
        m->stop[m->n_stop++] = (int32_t)id;
}

/* One or several; those that are none are an error, the others are taken. */
static qn_status read_stops(qn_model *m, const qn__json_at *at, qn_error *err)
{
    int64_t id;
    qn__json_at item = *at;
    if (cJSON_IsArray(at->node) && !qn__json_first(at, &item))
        return QN_OK;
    do {
        if (qn__json_as_int(&item, 0, INT32_MAX, &id, err) == QN_OK)
            qn__model_add_stop(m, id);
    } while (cJSON_IsArray(at->node) && qn__json_next(&item));
    return err->code;
}

static void add_stop_text(qn_model *m, const qn__json_at *at, qn_error *err)
{
    const char *text;
    if (qn__json_as_string(at, &text, err) != QN_OK)
        return;
    bool full = m->n_stop_strings == QN__MOST_STOPS;
    char *copy = *text && !full ? strdup(text) : NULL;
    if (copy)
        m->stop_strings[m->n_stop_strings++] = copy;
    else if (full)
        qn__json_fail(at, QN_LIMIT, err, "more than %d stop strings", QN__MOST_STOPS);
    else if (!*text)
        qn__json_fail(at, QN_FORMAT, err, "is empty");
    else
        qn__fail_memory(err, "a stop string");
}

/* One text or several, like stop tokens. */
static qn_status read_stop_strings(qn_model *m, const qn__json_at *at, qn_error *err)
{
    qn__json_at item = *at;
    if (cJSON_IsArray(at->node) && !qn__json_first(at, &item))
        return QN_OK;
    do
        add_stop_text(m, &item, err);
    while (cJSON_IsArray(at->node) && qn__json_next(&item));
    return err->code;
}

/* A value that makes no sense is left out and warned of; *failure is fresh again unless memory is
 * out. */
static void forgive(const qn_model *m, qn_error *failure)
{
    if (failure->code == QN_OK || failure->code == QN_MEMORY)
        return;
    qn__log(m->device, QN_LOG_WARN, "%s; this is left out", failure->message);
    *failure = (qn_error){0};
}

static void read_sampling(qn_model *m, const qn__json_at *c, qn_error *failure)
{
    bool sample = false;
    qn_sampling *p = &m->sampling;
    double temperature = 1, top_p = 1, min_p = 0, penalty = 1;
    int64_t top_k = 0;
    qn__json_opt_bool(c, "do_sample", &sample, failure);
    forgive(m, failure);
    qn__json_opt_number(c, "temperature", 0, 1e6, &temperature, failure);
    forgive(m, failure);
    qn__json_opt_number(c, "top_p", 0, 1, &top_p, failure);
    forgive(m, failure);
    qn__json_opt_number(c, "min_p", 0, 1, &min_p, failure);
    forgive(m, failure);
    qn__json_opt_int(c, "top_k", -1, INT32_MAX, &top_k, failure);
    forgive(m, failure);
    qn__json_opt_number(c, "repetition_penalty", 1e-3, 1e3, &penalty, failure);
    forgive(m, failure);
    p->temperature = sample ? (float)temperature : 0;
    p->top_p = top_p > 0 ? (float)top_p : FLT_MIN; /* 0 leaves one token */
    p->min_p = (float)min_p;
    p->top_k = top_k > 0 ? (int32_t)top_k : 0;
    p->repeat_penalty = (float)penalty;
    p->repeat_last = -1; /* all of them, as in transformers */
}

static void read_ends(qn_model *m, const qn__json_at *c, qn_error *failure)
{
    qn__json_at at;
    if (qn__json_find(c, "eos_token_id", &at))
        read_stops(m, &at, failure);
    forgive(m, failure);
    if (qn__json_find(c, "stop_strings", &at))
        read_stop_strings(m, &at, failure);
    forgive(m, failure);
    qn__json_opt_int(c, "max_new_tokens", 1, INT64_C(1) << 40, &m->max_tokens, failure);
    forgive(m, failure);
}

static void read_generation(qn_model *m, const char *path, const cJSON *root, qn_error *failure)
{
    qn__json_at c = qn__json_root(path, root);
    if (!cJSON_IsObject(root))
        qn__json_fail(&c, QN_FORMAT, failure, "is not an object");
    forgive(m, failure);
    read_sampling(m, &c, failure);
    read_ends(m, &c, failure);
}

static qn_status read_generation_file(qn_model *m, const char *directory, qn_error *failure)
{
    char *path = qn__path_join(directory, "generation_config.json");
    cJSON *root = NULL;
    if (!path)
        return qn__fail_memory(failure, "a path");
    if (qn__json_read(&root, path, LARGEST_GENERATION_CONFIG, failure) == QN_OK)
        read_generation(m, path, root, failure);
    else if (failure->code == QN_NOT_FOUND)
        memset(failure, 0, sizeof *failure);
    cJSON_Delete(root);
    free(path);
    return failure->code;
}

qn_status qn__model_read_defaults(qn_model *m, const qn__source *source, qn_error *err)
{
    qn_error failure = {0};
    if (!source->gguf)
        read_generation_file(m, source->path, &failure);
    else if (source->generation)
        read_generation(m, source->config_path, source->generation, &failure);
    forgive(m, &failure);
    return failure.code == QN_OK ? QN_OK : qn__fail(err, failure.code, "%s", failure.message);
}

qn_status qn__model_read_config_stops(qn_model *m, const qn__source *source, qn_error *err)
{
    qn__json_at c = qn__json_root(source->config_path, source->config), eos;
    return qn__json_find(&c, "eos_token_id", &eos) ? read_stops(m, &eos, err) : QN_OK;
}
