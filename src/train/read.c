/* SPDX-License-Identifier: Apache-2.0
 *
 * Going on from an adapter: the matrices as they are in PEFT's file, where the loader of
 * src/models/adapter.c multiplies scales in and puts several adapters together.
 */
#include "train/lora.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "quern/io.h"

#include <stdlib.h>

enum { LARGEST_CONFIG = 4 << 20, NAME = 200 };

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

qn_status qn__lora_read_array(const qn_tensors *file, qn_scope *s, const char *name,
                              qn_array **kept, qn_error *err)
{
    const qn_tensor_info *t = qn_tensors_find(file, name);
    int64_t rows = qn_array_dim(*kept, 0), columns = qn_array_dim(*kept, 1);
    if (!t || t->ndim != 2 || t->shape[0] != rows || t->shape[1] != columns)
        return qn__fail(err, QN_INVALID, "%s: there is no %s of [%lld, %lld]",
                        qn_tensors_path(file, 0), name, (long long)rows, (long long)columns);
    qn_array *a = qn_contiguous(s, qn_cast(s, qn_tensors_read(s, file, name), QN_F32));
    if (qn_eval(s, a) != QN_OK)
        return qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    qn_release(*kept);
    *kept = qn_retain(a);
    return *kept ? QN_OK : qn__fail_memory(err, "an adapter");
}

qn_status qn__lora_read(qn__lora *l, qn_scope *s, const char *directory, qn_error *err)
{
    qn_tensors *file = NULL;
    char name[NAME], *path = qn__path_join(directory, "adapter_model.safetensors");
    qn_status status = path ? check_config(l, directory, err) : qn__fail_memory(err, "a path");
    if (status == QN_OK)
        status = qn_tensors_open(&file, path, err);
    for (int i = 0; status == QN_OK && i < 2 * l->n_pairs; i++) {
        qn__lora_pair *p = &l->pairs[i / 2];
        qn__lora_name(name, sizeof name, p, i % 2);
        status = qn__lora_read_array(file, s, name, i % 2 ? p->b : p->a, err);
    }
    if (status == QN_OK && qn_tensors_count(file) != 2 * (size_t)l->n_pairs)
        status =
            qn__fail(err, QN_INVALID, "%s: it has matrices of other layers than the targets", path);
    qn_tensors_close(file);
    free(path);
    return status;
}
