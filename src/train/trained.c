/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of what is trained.
 */
#include "train/trained.h"

#include "base/directory.h"
#include "base/error.h"
#include "base/file.h"

#include <stdlib.h>

void qn__trained_end(qn__trained *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->n_state; k++)
            qn_release(t->arrays[i].state[k]);
    free(t->arrays);
    t->kind->end(t);
}

uint64_t qn__trained_numbers(const qn__trained *t)
{
    uint64_t n = 0;
    for (int i = 0; i < t->n; i++) {
        const qn__trained_array *a = &t->arrays[i];
        n += (uint64_t)(a->shape[0] * (a->ndim == 2 ? a->shape[1] : 1));
    }
    return n;
}

qn_status qn__trained_set(qn__trained *t, int i, qn_scope *s, qn_array *value)
{
    qn__trained_array *a = &t->arrays[i];
    qn_array *made[QN__OPTIMIZER_ARRAYS] = {value};
    for (int k = 1; k < t->n_state; k++)
        made[k] = qn_zeros(s, QN_F32, a->ndim, a->shape);
    if (qn_eval_many(s, made, t->n_state) == QN_OK)
        for (int k = 0; k < t->n_state; k++)
            a->state[k] = qn_retain(made[k]);
    return qn_scope_status(s);
}

qn_status qn__trained_read(qn__trained *t, int i, int which, const qn_tensors *file, qn_scope *s,
                           const char *name, qn_error *err)
{
    qn__trained_array *a = &t->arrays[i];
    const qn_tensor_info *info = qn_tensors_find(file, name);
    bool matrix = a->ndim == 2;
    if (!info || info->ndim != a->ndim || info->shape[0] != a->shape[0] ||
        (matrix && info->shape[1] != a->shape[1]))
        return qn__fail(err, QN_INVALID, "%s: there is no %s of [%lld%s%.0lld]",
                        qn_tensors_path(file, 0), name, (long long)a->shape[0], matrix ? ", " : "",
                        (long long)(matrix ? a->shape[1] : 0));
    qn_array *value = qn_contiguous(s, qn_cast(s, qn_tensors_read(s, file, name), QN_F32));
    if (qn_eval(s, value) != QN_OK)
        return qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    qn_release(a->state[which]);
    a->state[which] = qn_retain(value);
    return a->state[which] ? QN_OK : qn__fail_memory(err, "what is trained");
}

qn_status qn__trained_write(const qn__trained *t, qn_scope *s, const char *directory,
                            const char *name, qn_error *err)
{
    qn_named_array *list = calloc((size_t)t->n + 1, sizeof *list);
    char *path = qn__path_join(directory, name);
    for (int i = 0; list && i < t->n; i++)
        list[i] = (qn_named_array){t->arrays[i].name, t->arrays[i].state[0]};
    qn_status status = list && path ? qn_tensors_write(s, path, list, t->n, err)
                                    : qn__fail_memory(err, "what was trained");
    free(list);
    free(path);
    return status;
}

qn_status qn__trained_save(const qn__trained *t, qn_device *device, const char *directory,
                           qn_error *err)
{
    qn__directory out;
    qn_status status = qn__directory_begin(&out, directory, true, t->kind->is_file, err);
    qn_scope *s = qn_scope_begin(device);
    if (status == QN_OK)
        status =
            s ? t->kind->write(t, s, out.temporary, err) : qn__fail_memory(err, "what was trained");
    qn_scope_end(s);
    return qn__directory_end(&out, status, err);
}
