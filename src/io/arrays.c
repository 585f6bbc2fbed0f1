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

static qn__tensor_data described(const qn_named_array *from)
{
    const qn_array *a = from->array;
    qn__tensor_data t = {
        .name = from->name, .dtype = qn_array_dtype(a), .ndim = qn_array_ndim(a), .data = a};
    for (int d = 0; d < t.ndim; d++)
        t.shape[d] = qn_array_dim(a, d);
    return t;
}

/* The values of the array in t->data, in memory of their own, which the caller frees; NULL: it
 * failed. */
static void *read_values(qn_scope *s, const qn__tensor_data *t, size_t *bytes, qn_error *err)
{
    qn_array *a = (qn_array *)t->data;
    *bytes = (size_t)qn_array_elements(a) * (size_t)qn__safetensors_dtype_size(t->dtype);
    void *values = malloc(*bytes + 1);
    if (!values) {
        qn__fail_memory(err, "a tensor to be written");
    } else if (qn_read(s, a, values, *bytes) != QN_OK) {
        qn__fail(err, qn_scope_status(s), "tensor %s: %s", t->name, qn_scope_error(s));
        free(values);
        values = NULL;
    }
    return values;
}

static qn_status put_array(void *scope, qn__writer *writer, const qn__tensor_data *tensor,
                           qn_error *err)
{
    size_t n;
    void *values = read_values(scope, tensor, &n, err);
    qn_status status = values ? qn__writer_write(writer, values, n, err) : err->code;
    free(values);
    return status;
}

/* Of numpy's files, whose writer wants all values at once. */
static qn_status write_numpy(qn_scope *s, const char *path, bool archive, qn__tensor_data *tensors,
                             int n, qn_error *err)
{
    qn_status status = QN_OK;
    int read = 0;
    size_t bytes;
    for (; status == QN_OK && read < n; read++) {
        tensors[read].data = read_values(s, &tensors[read], &bytes, err);
        status = tensors[read].data ? QN_OK : err->code;
    }
    if (status == QN_OK)
        status = archive ? qn__npz_write(path, tensors, (size_t)n, err)
                         : qn__npy_write(path, tensors, err);
    for (int i = 0; i < read; i++)
        free((void *)tensors[i].data);
    return status;
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
    for (int i = 0; i < n; i++)
        data[i] = described(&arrays[i]);
    qn_status status =
        format == SAFETENSORS
            ? qn__safetensors_write_with(path, data, (size_t)n, NULL, 0, put_array, s, err)
            : write_numpy(s, path, format == NPZ, data, n, err);
    free(data);
    return status;
}
