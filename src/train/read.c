/* SPDX-License-Identifier: Apache-2.0
 *
 * Going on from an adapter: the matrices as they are in PEFT's or mlx-lm's file, where the loader
 * of src/models/adapter.c multiplies scales in and puts several adapters together.
 */
#include "train/lora.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST_CONFIG = 4 << 20 };

/* ---- what the adapter adds must be multiplied by what the options say ------------------------ */

static void check_peft(const qn__lora *l, const qn__json_at *config, qn_error *err)
{
    bool stabilised = false;
    double rank = 0, alpha = 0;
    qn__json_at patterns, at;
    qn__json_get_number(config, "r", 1, 1e6, &rank, err);
    qn__json_get_number(config, "lora_alpha", 1e-6, 1e6, &alpha, err);
    qn__json_opt_bool(config, "use_rslora", &stabilised, err);
    bool other =
        qn__json_find(config, "alpha_pattern", &patterns) && qn__json_first(&patterns, &at);
    if (err->code == QN_OK && (rank != (double)l->rank || alpha != l->alpha || stabilised || other))
        qn__fail(err, QN_INVALID,
                 "%s: rank %g, alpha %g%s; training is of rank %lld, alpha %g and alpha / rank",
                 config->file, rank, alpha, stabilised || other ? " and another scale" : "",
                 (long long)l->rank, l->alpha);
}

static void check_mlx(const qn__lora *l, const qn__json_at *config, qn_error *err)
{
    double rank = 0, scale = 0, own = l->alpha / (double)l->rank;
    const char *type = "lora";
    qn__json_at parameters;
    if (qn__json_opt_string(config, "fine_tune_type", &type, err) != QN_OK ||
        qn__json_get_object(config, "lora_parameters", &parameters, err) != QN_OK ||
        qn__json_get_number(&parameters, "rank", 1, 1e6, &rank, err) != QN_OK ||
        qn__json_get_number(&parameters, "scale", -1e6, 1e6, &scale, err) != QN_OK)
        return;
    if (strcmp(type, "lora") != 0)
        qn__fail(err, QN_UNSUPPORTED, "%s: fine_tune_type \"%.40s\"; \"lora\" is supported",
                 config->file, type);
    else if (rank != (double)l->rank || fabs(scale - own) > 1e-12 * fabs(own))
        qn__fail(err, QN_INVALID,
                 "%s: rank %g, scale %g; training is of rank %lld and scale %g (alpha %g / rank)",
                 config->file, rank, scale, (long long)l->rank, own, l->alpha);
}

static qn_status check_config(const qn__lora *l, const char *directory, bool mlx, qn_error *err)
{
    char *path = qn__path_join(directory, "adapter_config.json");
    cJSON *root = NULL;
    if (!path)
        return qn__fail_memory(err, "a path");
    if (qn__json_read(&root, path, LARGEST_CONFIG, err) == QN_OK) {
        qn__json_at config = qn__json_root(path, root);
        (mlx ? check_mlx : check_peft)(l, &config, err);
    }
    cJSON_Delete(root);
    free(path);
    return err->code;
}

/* ---- what cannot be learned from ------------------------------------------------------------- */

static qn_status check_numbers(const qn__trained *t, qn_scope *s, const char *directory,
                               qn_error *err)
{
    for (int i = 0; i < t->n; i++) {
        size_t n = (size_t)qn_array_elements(t->arrays[i].state[0]);
        float *values = malloc(n * sizeof *values + 1);
        if (!values)
            return qn__fail_memory(err, "an adapter");
        bool finite = qn_read_f32(s, t->arrays[i].state[0], values, n) == QN_OK;
        for (size_t k = 0; finite && k < n; k++)
            finite = isfinite(values[k]);
        free(values);
        if (qn_scope_status(s) != QN_OK)
            return qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
        if (!finite)
            return qn__fail(err, QN_FORMAT, "%s: tensor %s: it has numbers that are not finite",
                            directory, t->arrays[i].name);
    }
    return QN_OK;
}

/* ---- either ---------------------------------------------------------------------------------- */

qn_status qn__lora_read(qn__trained *t, qn_scope *s, const char *directory, qn_error *err)
{
    static const char mlx_name[] = "adapters.safetensors";
    char *path = qn__path_join(directory, mlx_name);
    bool is_directory;
    if (!path)
        return qn__fail_memory(err, "a path");
    bool mlx = qn__path_is_directory(path, &is_directory, NULL) == QN_OK;
    if (check_config((qn__lora *)t, directory, mlx, err) == QN_OK && mlx)
        qn__trained_read_states(t, s, directory, mlx_name, 0, 1, qn__lora_mlx_name, err);
    else if (err->code == QN_OK)
        qn__trained_read_states(t, s, directory, "adapter_model.safetensors", 0, 1, NULL, err);
    free(path);
    return err->code == QN_OK ? check_numbers(t, s, directory, err) : err->code;
}
