/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing an adapter as PEFT does: adapter_config.json and adapter_model.safetensors.
 */
#include "train/lora.h"

#include "base/directory.h"
#include "base/file.h"
#include "base/json.h"
#include "quern/io.h"

#include <stdlib.h>
#include <string.h>

enum { NAME = 200 };

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

static qn_status write_matrices(const qn__lora *l, qn_device *device, const char *directory,
                                qn_error *err)
{
    int n = 2 * l->n_pairs;
    qn_named_array *list = calloc((size_t)n + 1, sizeof *list);
    char(*names)[NAME] = calloc((size_t)n + 1, sizeof *names);
    char *path = qn__path_join(directory, model_name);
    qn_status status = list && names && path ? QN_OK : qn__fail_memory(err, "an adapter");
    for (int i = 0; status == QN_OK && i < n; i++) {
        const qn__lora_pair *p = &l->pairs[i / 2];
        qn__lora_name(names[i], NAME, p, i % 2);
        list[i] = (qn_named_array){names[i], i % 2 ? p->b[0] : p->a[0]};
    }
    if (status == QN_OK) {
        qn_scope *s = qn_scope_begin(device);
        status = s ? qn_tensors_write(s, path, list, n, err) : qn__fail_memory(err, "an adapter");
        qn_scope_end(s);
    }
    free(list);
    free(names);
    free(path);
    return status;
}

qn_status qn__lora_write(const qn__lora *l, qn_device *device, const char *directory, qn_error *err)
{
    return write_matrices(l, device, directory, err) == QN_OK ? write_config(l, directory, err)
                                                              : err->code;
}

qn_status qn__lora_save(const qn__lora *l, qn_device *device, const char *directory, qn_error *err)
{
    qn__directory out;
    qn_status status = qn__directory_begin(&out, directory, true, qn__is_adapter_file, err);
    if (status == QN_OK)
        status = qn__lora_write(l, device, out.temporary, err);
    return qn__directory_end(&out, status, err);
}
