/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of what is trained.
 */
#include "train/trained.h"

#include "base/directory.h"
#include "base/error.h"
#include "base/file.h"
#include "core/dtype.h"
#include "core/scope.h"
#include "io/safetensors.h"

#include <stdio.h>
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
    qn_array *made[QN__OPTIMIZER_ARRAYS] = {qn_cast(s, value, t->held)};
    for (int k = 1; k < t->n_state; k++)
        made[k] = qn_zeros(s, t->moments, a->ndim, a->shape);
    if (qn_eval_many(s, made, t->n_state) == QN_OK)
        for (int k = 0; k < t->n_state; k++)
            a->state[k] = qn_retain(made[k]);
    return qn_scope_status(s);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Long enough for a suffix behind the name. */
typedef char state_name[QN__TRAINED_NAME + 4];

static void name_state(state_name out, const qn__trained *t, int i, int which,
                       qn__trained_naming *turned)
{
    static const char *const suffixes[QN__OPTIMIZER_ARRAYS] = {"", ".m", ".v"};
    if (turned)
        turned(out, t, i);
    else
        snprintf(out, sizeof(state_name), "%s%s", t->arrays[i].name, suffixes[which]);
}

static qn_status put_values(qn_scope *s, qn_array *a, qn__writer *writer,
                            const qn__tensor_data *tensor, qn_error *err)
{
    a = qn_cast(s, a, tensor->dtype);
    size_t bytes = s ? (size_t)qn_array_elements(a) * qn__dtype_size(tensor->dtype) : 0;
    char *values = s ? malloc(bytes + 1) : NULL;
    if (!values)
        qn__fail_memory(err, "what was trained");
    else if (qn_read(s, a, values, bytes) != QN_OK)
        qn__fail(err, qn_scope_status(s), "tensor %s: %s", tensor->name, qn_scope_error(s));
    else
        qn__writer_write(writer, values, bytes, err);
    free(values);
    return err->code;
}

/* The values of the array that a tensor's data is, as the tensor's type has them. */
static qn_status put_array(void *device, qn__writer *writer, const qn__tensor_data *tensor,
                           qn_error *err)
{
    qn_scope *s = qn_scope_begin(device);
    qn_status status = put_values(s, (qn_array *)tensor->data, writer, tensor, err);
    qn_scope_end(s);
    return status;
}

static qn_status put_turned(void *device, qn__writer *writer, const qn__tensor_data *tensor,
                            qn_error *err)
{
    qn_scope *s = qn_scope_begin(device);
    qn_array *a = qn_transpose(s, (qn_array *)tensor->data, NULL);
    qn_status status = put_values(s, a, writer, tensor, err);
    qn_scope_end(s);
    return status;
}

qn_status qn__trained_write(const qn__trained *t, qn_scope *s, const char *directory,
                            const char *file, int first, int end, qn_dtype dtype,
                            qn__trained_naming *turned, qn_error *err)
{
    static const qn__metadata format = {"format", "pt"};
    int each = end - first, n = t->n * each;
    qn__tensor_data *list = calloc((size_t)n + 1, sizeof *list);
    state_name *names = calloc((size_t)n + 1, sizeof *names);
    char *path = qn__path_join(directory, file);
    for (int i = 0; list && names && i < n; i++) {
        const qn__trained_array *a = &t->arrays[i / each];
        int which = first + i % each;
        name_state(names[i], t, i / each, which, turned);
        list[i] = (qn__tensor_data){.name = names[i],
                                    .dtype = which ? t->moments : dtype,
                                    .ndim = a->ndim,
                                    .shape = {a->shape[turned != NULL], a->shape[!turned]},
                                    .data = a->state[which]};
    }
    qn_status status =
        list && names && path
            ? qn__safetensors_write_with(path, list, (size_t)n, &format, !turned,
                                         turned ? put_turned : put_array, s->device, err)
            : qn__fail_memory(err, "what was trained");
    free(list);
    free(names);
    free(path);
    return status;
}

/* A tensor of array i's shape, or with that turned, in the place of its state `which`. */
static qn_status read_tensor_state(qn__trained *t, int i, int which, const qn_tensors *file,
                                   qn__trained_naming *turned, qn_scope *s, qn_error *err)
{
    state_name name;
    qn__trained_array *a = &t->arrays[i];
    const int64_t shape[] = {a->shape[turned != NULL], a->shape[!turned]};
    name_state(name, t, i, which, turned);
    const qn_tensor_info *info = qn_tensors_find(file, name);
    bool matrix = a->ndim == 2;
    if (!info || info->ndim != a->ndim || info->shape[0] != shape[0] ||
        (matrix && info->shape[1] != shape[1]))
        return qn__fail(err, QN_INVALID, "%s: there is no %s of [%lld%s%.0lld]",
                        qn_tensors_path(file, 0), name, (long long)shape[0], matrix ? ", " : "",
                        (long long)(matrix ? shape[1] : 0));
    qn_dtype dtype = which ? t->moments : t->held;
    qn_array *value = qn_tensors_read(s, file, name);
    value = qn_contiguous(s, qn_cast(s, turned ? qn_transpose(s, value, NULL) : value, dtype));
    if (qn_eval(s, value) != QN_OK)
        return qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    qn_release(a->state[which]);
    a->state[which] = qn_retain(value);
    return a->state[which] ? QN_OK : qn__fail_memory(err, "what is trained");
}

qn_status qn__trained_read_states(qn__trained *t, qn_scope *s, const char *directory,
                                  const char *name, int first, int end, qn__trained_naming *turned,
                                  qn_error *err)
{
    qn_tensors *file = NULL;
    char *path = qn__path_join(directory, name);
    qn_status status = path ? qn_tensors_open(&file, path, err) : qn__fail_memory(err, "a path");
    for (int i = 0; status == QN_OK && i < t->n; i++)
        for (int k = first; status == QN_OK && k < end; k++)
            status = read_tensor_state(t, i, k, file, turned, s, err);
    if (status == QN_OK && qn_tensors_count(file) != (size_t)(t->n * (end - first)))
        status =
            qn__fail(err, QN_INVALID, "%s: it has tensors of other layers than are trained", path);
    qn_tensors_close(file);
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
