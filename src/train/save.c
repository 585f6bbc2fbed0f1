/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing an adapter as PEFT does: adapter_config.json and adapter_model.safetensors.
 */
#include "train/lora.h"

#include "base/json.h"

#include <string.h>

static const char config_name[] = "adapter_config.json", model_name[] = "adapter_model.safetensors";

bool qn__is_adapter_file(const char *name)
{
    return !strcmp(name, config_name) || !strcmp(name, model_name) || !strcmp(name, "README.md");
}

static cJSON *make_config(const qn__lora *l)
{
    cJSON *c = cJSON_CreateObject();
    cJSON *targets = cJSON_AddArrayToObject(c, "target_modules");
    bool ok = targets && cJSON_AddStringToObject(c, "peft_type", "LORA") &&
              cJSON_AddStringToObject(c, "task_type", "CAUSAL_LM") &&
              cJSON_AddNumberToObject(c, "r", (double)l->rank) &&
              cJSON_AddNumberToObject(c, "lora_alpha", l->alpha) &&
              cJSON_AddNumberToObject(c, "lora_dropout", 0) &&
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

static qn_status write_config(const qn__lora *l, const char *directory, qn_error *err)
{
    cJSON *config = make_config(l);
    qn_status status = qn__json_write(config, directory, config_name, err);
    cJSON_Delete(config);
    return status;
}

qn_status qn__lora_write(const qn__trained *t, qn_scope *s, const char *directory, qn_error *err)
{
    return qn__trained_write(t, s, directory, model_name, 0, 1, t->dtype, err) == QN_OK
               ? write_config((const qn__lora *)t, directory, err)
               : err->code;
}
