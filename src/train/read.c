/* SPDX-License-Identifier: Apache-2.0
 *
 * Going on from an adapter: the matrices as they are in PEFT's file, where the loader of
 * src/models/adapter.c multiplies scales in and puts several adapters together.
 */
#include "train/lora.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>

enum { LARGEST_CONFIG = 4 << 20 };

/* What the adapter adds must be multiplied by what the options say. */
static qn_status check_config(const qn__lora *l, const char *directory, qn_error *err)
{
    char *path = qn__path_join(directory, "adapter_config.json");
    cJSON *root = NULL;
    bool stabilised = false;
    double rank = 0, alpha = 0;
    if (!path)
        return qn__fail_memory(err, "a path");
    if (qn__json_read(&root, path, LARGEST_CONFIG, err) == QN_OK) {
        qn__json_at config = qn__json_root(path, root), patterns, at;
        qn__json_get_number(&config, "r", 1, 1e6, &rank, err);
        qn__json_get_number(&config, "lora_alpha", 1e-6, 1e6, &alpha, err);
        qn__json_opt_bool(&config, "use_rslora", &stabilised, err);
        bool other =
            qn__json_find(&config, "alpha_pattern", &patterns) && qn__json_first(&patterns, &at);
        if (err->code == QN_OK &&
            (rank != (double)l->rank || alpha != l->alpha || stabilised || other))
            qn__fail(err, QN_INVALID,
                     "%s: rank %g, alpha %g%s; training is of rank %lld, alpha %g and "
                     "alpha / rank",
                     path, rank, alpha, stabilised || other ? " and another scale" : "",
                     (long long)l->rank, l->alpha);
    }
    cJSON_Delete(root);
    free(path);
    return err->code;
}

qn_status qn__lora_read(qn__trained *t, qn_scope *s, const char *directory, qn_error *err)
{
    return check_config((qn__lora *)t, directory, err) == QN_OK
               ? qn__trained_read_states(t, s, directory, "adapter_model.safetensors", 0, 1, err)
               : err->code;
}
