/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's checkpoints: an archive with a pickle, PREFIX/data.pkl, that describes tensors, and a
 * member PREFIX/data/KEY for each storage. Tensors may share a storage, each a part of it by offset
 * and strides. https://pytorch.org/docs/stable/notes/serialization.html
 */
#include "base/utf8.h"
#include "io/archive.h"
#include "io/pickle.h"
#include "io/safetensors_dtype.h"

#include <stdio.h>
#include <stdlib.h>

enum { LARGEST_PICKLE = 32 << 20 };

typedef struct torch_file {
    qn_tensors *t;
    uint32_t file;
    qn__archive *archive;
    const char *path, *prefix; /* prefix_size bytes */
    int prefix_size;
} torch_file;

/* PREFIX/name; -1 when it is not there. */
static int64_t find_member(const torch_file *f, const char *directory, const char *name, size_t n)
{
    char full[400];
    int m = snprintf(full, sizeof full, "%.*s/%s%.*s", f->prefix_size, f->prefix, directory,
                     n < 200 ? (int)n : 200, name);
    return m > 0 && (size_t)m < sizeof full && n < 200 ? qn__archive_find(f->archive, full) : -1;
}

/* Row-major order has no layout. */
static qn_status set_layout(torch_file *f, qn_tensor_info *info, const qn__pickled_tensor *p,
                            qn_error *err)
{
    int64_t dense = 1, last = 0;
    bool plain = true;
    for (int i = p->ndim - 1; i >= 0; i--) {
        plain &= p->shape[i] == 1 || p->stride[i] == dense;
        dense *= p->shape[i];
        last += (p->shape[i] - 1) * p->stride[i];
    }
    if (plain || info->bytes == 0)
        return QN_OK;
    qn__element_order *layout = qn__arena_zalloc(&f->t->names, sizeof *layout);
    if (!layout)
        return qn__fail_memory(err, "a tensor's layout");
    memcpy(layout->stride, p->stride, sizeof p->stride);
    layout->span = (uint64_t)(last + 1) * qn__safetensors_dtype_size(p->dtype);
    info->layout = layout;
    return QN_OK;
}

static qn_status add_tensor(void *user, const char *name, const qn__pickled_tensor *p,
                            qn_error *err)
{
    torch_file *f = user;
    char quoted[100], key[40];
    uint64_t stored;
    qn__utf8_quote(quoted, sizeof quoted, name, strlen(name));
    qn__utf8_quote(key, sizeof key, p->key, p->key_size);
    int64_t member = find_member(f, "data/", p->key, p->key_size);
    if (member < 0)
        return qn__fail(err, QN_FORMAT, "%s: tensor %s: its storage data/%s is not in the archive",
                        f->path, quoted, key);
    uint64_t size = qn__archive_size(f->archive, (uint32_t)member);
    if (!qn__tensor_bytes(p->dtype, 1, &p->n_stored, &stored) || stored != size)
        return qn__fail(err, QN_FORMAT,
                        "%s: tensor %s: storage %s should have %lld elements of %s, has %llu bytes",
                        f->path, quoted, key, (long long)p->n_stored, qn_dtype_name(p->dtype),
                        (unsigned long long)size);
    qn_tensor_info *info = qn__tensors_add(f->t);
    char *copy = info ? qn__arena_strndup(&f->t->names, name, strlen(name)) : NULL;
    if (!copy)
        return qn__fail_memory(err, "a tensor table");
    info->name = copy;
    info->file = f->file;
    info->member = (uint32_t)member;
    info->dtype = p->dtype;
    info->ndim = p->ndim;
    memcpy(info->shape, p->shape, (size_t)p->ndim * sizeof *p->shape);
    qn__tensor_bytes(p->dtype, p->ndim, p->shape, &info->bytes); /* lies in the storage */
    info->offset = (uint64_t)p->offset * qn__safetensors_dtype_size(p->dtype);
    if (set_layout(f, info, p, err) != QN_OK)
        return err->code;
    f->t->n_tensors++;
    return QN_OK;
}

static qn_status check_byte_order(const torch_file *f, qn_error *err)
{
    char order[6];
    int64_t member = find_member(f, "", "byteorder", 9);
    if (member < 0)
        return QN_OK; /* older files: little-endian */
    uint64_t n = qn__archive_size(f->archive, (uint32_t)member);
    if (n == 6 && qn__archive_read(f->archive, (uint32_t)member, 0, 6, order, err) != QN_OK)
        return err->code;
    if (n == 6 && !memcmp(order, "little", 6))
        return QN_OK;
    return qn__fail(err, QN_UNSUPPORTED, "%s: byteorder is not little-endian", f->path);
}

qn_status qn__torch_load(qn_tensors *t, uint32_t i, uint32_t pickle, qn_error *err)
{
    torch_file f = {t, i, t->files[i].state, t->files[i].file.path, NULL, 0};
    f.prefix = qn__archive_name(f.archive, pickle);
    f.prefix_size = (int)(strchr(f.prefix, '/') - f.prefix);
    if (find_member(&f, "", "constants.pkl", 13) >= 0)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: a TorchScript program; a checkpoint of tensors "
                        "(torch.save of a state_dict) is read",
                        f.path);
    uint64_t n = qn__archive_size(f.archive, pickle);
    if (n > LARGEST_PICKLE)
        return qn__fail(err, QN_LIMIT, "%s: data.pkl has %llu bytes, the limit is %d", f.path,
                        (unsigned long long)n, LARGEST_PICKLE);
    if (check_byte_order(&f, err) != QN_OK)
        return err->code;
    char *data = malloc((size_t)n + 1);
    if (!data)
        return qn__fail_memory(err, "a pickle");
    qn_status status = qn__archive_read(f.archive, pickle, 0, (size_t)n, data, err);
    if (status == QN_OK)
        status = qn__pickle_read(f.path, data, (size_t)n, add_tensor, &f, err);
    free(data);
    return status;
}
