/* SPDX-License-Identifier: Apache-2.0
 *
 * Between files and arrays: the functions of quern/io.h that take a scope.
 */
#include "core/scope.h"
#include "io/npz_write.h"
#include "io/safetensors_dtype.h"
#include "io/tensors.h"
#include "quant/encoding.h"

#include <stdlib.h>

/* The values of an encoded tensor, f32. */
static qn_array *decoded(qn_scope *s, const qn_tensor_info *t, const char *blocks)
{
    const qn__encoding *e = &qn__encodings[qn__encoding_named(t->encoding)];
    uint64_t n = 1, values;
    for (int i = 0; i < t->ndim; i++)
        n *= (uint64_t)t->shape[i];
    float *f = !__builtin_mul_overflow(n, sizeof *f, &values) ? malloc(values + 1) : NULL;
    if (!f)
        return qn__scope_fail(s, QN_MEMORY, "out of memory for the values of %s", t->name);
    e->decode(e, blocks, n / e->block_elements, f);
    if (e == &qn__encodings[QN__I2_S] && n > 0) {
        float scale;
        memcpy(&scale, blocks + t->bytes - QN__I2_S_TAIL, sizeof scale);
        for (uint64_t i = 0; i < n; i++)
            f[i] *= scale;
    }
    qn_array *a = qn_from(s, QN_F32, t->ndim, t->shape, f);
    free(f);
    return a;
}

qn_array *qn_tensors_read(qn_scope *s, const qn_tensors *file, const char *name)
{
    qn_error err = {0};
    const qn_tensor_info *t = qn_tensors_find(file, name);
    char *data = NULL;
    if (!t) {
        qn__fail(&err, QN_NOT_FOUND, "%s: no tensor %s", qn_tensors_path(file, 0), name);
    } else if (!(data = malloc((size_t)t->bytes + 1))) {
        qn__fail_memory(&err, name);
    } else if (qn_tensors_read_bytes(file, t, 0, (size_t)t->bytes, data, &err) == QN_OK) {
        qn_array *a =
            t->encoding ? decoded(s, t, data) : qn_from(s, t->dtype, t->ndim, t->shape, data);
        free(data);
        return a;
    }
    free(data);
    return qn__scope_fail(s, err.code, "%s", err.message);
}

/* Reads every array into memory of its own, which the caller frees, also after a failure. */
static qn_status read_arrays(qn_scope *s, const qn_named_array *arrays, int n, qn__tensor_data *out,
                             qn_error *err)
{
    for (int i = 0; i < n; i++) {
        qn_array *a = arrays[i].array;
        qn__tensor_data *t = &out[i];
        *t = (qn__tensor_data){
            .name = arrays[i].name, .dtype = qn_array_dtype(a), .ndim = qn_array_ndim(a)};
        for (int d = 0; d < t->ndim; d++)
            t->shape[d] = qn_array_dim(a, d);
        size_t bytes = (size_t)qn_array_elements(a) * (size_t)qn__safetensors_dtype_size(t->dtype);
        void *data = malloc(bytes + 1);
        if (!data)
            return qn__fail_memory(err, "a tensor to be written");
        t->data = data;
        if (qn_read(s, a, data, bytes) != QN_OK)
            return qn__fail(err, qn_scope_status(s), "tensor %s: %s", t->name, qn_scope_error(s));
    }
    return QN_OK;
}

typedef enum file_format { NO_FORMAT, SAFETENSORS, NPZ, NPY } file_format;

static file_format format_of(const char *path)
{
    static const char *const suffixes[] = {"", ".safetensors", ".npz", ".npy"};
    size_t n = strlen(path);
    for (int i = SAFETENSORS; i <= NPY; i++)
        if (n > strlen(suffixes[i]) && !strcmp(path + n - strlen(suffixes[i]), suffixes[i]))
            return (file_format)i;
    return NO_FORMAT;
}

qn_status qn_tensors_write(qn_scope *s, const char *path, const qn_named_array *arrays, int n,
                           qn_error *err)
{
    qn_error own = {0};
    err = err ? err : &own;
    file_format format = format_of(path);
    if (!s || n < 0 || format == NO_FORMAT || (format == NPY && n != 1))
        return qn__fail(err, QN_INVALID,
                        format == NPY ? "%s: an npy file takes one array"
                        : format      ? "%s: there is no scope"
                                      : "%s: files to be written end in .safetensors, .npz or .npy",
                        path);
    qn__tensor_data *data = calloc((size_t)n + 1, sizeof *data);
    if (!data)
        return qn__fail_memory(err, "a table of tensors");
    qn_status status = read_arrays(s, arrays, n, data, err);
    if (status == QN_OK)
        status = format == NPZ   ? qn__npz_write(path, data, (size_t)n, err)
                 : format == NPY ? qn__npy_write(path, data, err)
                                 : qn__safetensors_write(path, data, (size_t)n, NULL, 0, err);
    for (int i = 0; i < n; i++)
        free((void *)data[i].data);
    free(data);
    return status;
}
