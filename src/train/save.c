/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing an adapter as PEFT does, adapter_config.json and adapter_model.safetensors, or as mlx-lm
 * does: adapter_config.json and adapters.safetensors, whose matrices are the transposes.
 */
#include "train/lora.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config_name[] = "adapter_config.json", model_name[] = "adapter_model.safetensors",
                  mlx_name[] = "adapters.safetensors";

bool qn__is_adapter_file(const char *name)
{
    return !strcmp(name, config_name) || !strcmp(name, model_name) || !strcmp(name, mlx_name) ||
           !strcmp(name, "README.md");
}

/* ---- PEFT ------------------------------------------------------------------------------------ */

static cJSON *peft_config(const qn__lora *l)
{
    cJSON *c = cJSON_CreateObject();
    cJSON *targets = cJSON_AddArrayToObject(c, "target_modules");
    bool ok = targets && cJSON_AddStringToObject(c, "peft_type", "LORA") &&
              cJSON_AddStringToObject(c, "task_type", "CAUSAL_LM") &&
              cJSON_AddNumberToObject(c, "r", (double)l->rank) &&
              cJSON_AddNumberToObject(c, "lora_alpha", l->alpha) &&
              cJSON_AddNumberToObject(c, "lora_dropout", l->dropout) &&
              cJSON_AddStringToObject(c, "bias", "none") &&
              cJSON_AddBoolToObject(c, "fan_in_fan_out", false) &&
              cJSON_AddBoolToObject(c, "use_rslora", false) &&
              cJSON_AddBoolToObject(c, "inference_mode", true);
    cJSON *layers = l->first_layer ? cJSON_AddArrayToObject(c, "layers_to_transform") : targets;
    ok = ok && layers;
    for (int64_t i = l->first_layer; ok && layers != targets && i < l->n_layers; i++)
        ok = cJSON_AddItemToArray(layers, cJSON_CreateNumber((double)i));
    for (size_t i = 0; ok && i < l->n_targets; i++)
        ok = cJSON_AddItemToArray(targets, cJSON_CreateString(l->targets[i]));
    if (ok)
        return c;
    cJSON_Delete(c);
    return NULL;
}

/* ---- mlx-lm ---------------------------------------------------------------------------------- */

void qn__lora_mlx_name(char out[QN__TRAINED_NAME], const qn__trained *t, int i)
{
    static const char before[] = "base_model.model.", behind[] = ".lora_A.weight";
    const char *name = t->arrays[i].name + sizeof before - 1;
    int n = (int)(strlen(name) - (sizeof behind - 1));
    snprintf(out, QN__TRAINED_NAME, "%.*s.lora_%c", n, name, i % 2 ? 'b' : 'a');
}

/* "self_attn.q_proj" of each kind of layer, once. */
static bool add_keys(cJSON *keys, const qn__trained *t)
{
    char name[QN__TRAINED_NAME];
    bool ok = true;
    for (int i = 0; ok && i < t->n; i += 2) {
        const cJSON *key;
        bool there = false;
        qn__lora_mlx_name(name, t, i);
        name[strlen(name) - strlen(".lora_a")] = 0;
        char *part = strstr(name, "layers.") + strlen("layers.");
        part = strchr(part, '.') + 1;
        cJSON_ArrayForEach(key, keys) there |= !strcmp(key->valuestring, part);
        ok = there || cJSON_AddItemToArray(keys, cJSON_CreateString(part));
    }
    return ok;
}

static cJSON *mlx_config(const qn__lora *l)
{
    cJSON *c = cJSON_CreateObject();
    cJSON *parameters = cJSON_AddObjectToObject(c, "lora_parameters");
    cJSON *keys = cJSON_AddArrayToObject(parameters, "keys");
    bool ok = keys && add_keys(keys, &l->trained) &&
              cJSON_AddStringToObject(c, "fine_tune_type", "lora") &&
              cJSON_AddNumberToObject(c, "num_layers", (double)(l->n_layers - l->first_layer)) &&
              cJSON_AddNumberToObject(parameters, "rank", (double)l->rank) &&
              cJSON_AddNumberToObject(parameters, "scale", l->alpha / (double)l->rank) &&
              cJSON_AddNumberToObject(parameters, "dropout", l->dropout);
    if (ok)
        return c;
    cJSON_Delete(c);
    return NULL;
}

/* ---- either ---------------------------------------------------------------------------------- */

qn_status qn__lora_write(const qn__trained *t, qn_scope *s, const char *directory, qn_error *err)
{
    const qn__lora *l = (const qn__lora *)t;
    bool mlx = l->format == QN_ADAPTER_MLX;
    qn_status status = qn__trained_write(t, s, directory, mlx ? mlx_name : model_name, 0, 1,
                                         t->dtype, mlx ? qn__lora_mlx_name : NULL, err);
    if (status != QN_OK)
        return status;
    cJSON *config = mlx ? mlx_config(l) : peft_config(l);
    status = qn__json_write(config, directory, config_name, err);
    cJSON_Delete(config);
    return status;
}
