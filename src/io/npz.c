/* SPDX-License-Identifier: Apache-2.0
 *
 * npz: an archive of npy arrays, each a member NAME.npy.
 */
#include "base/utf8.h"
#include "io/archive.h"
#include "io/npy.h"

#include <stdio.h>

typedef struct npz_member {
    qn__archive *archive;
    uint32_t member;
} npz_member;

static qn_status read_npz(void *user, uint64_t offset, size_t n, void *dst, qn_error *err)
{
    const npz_member *m = user;
    return qn__archive_read(m->archive, m->member, offset, n, dst, err);
}

static qn_status load_member(qn_tensors *t, uint32_t file, uint32_t i, qn_error *err)
{
    qn__archive *archive = t->files[file].state;
    npz_member member = {archive, i};
    const char *path = t->files[file].file.path, *name = qn__archive_name(archive, i);
    char where[400], quoted[100];
    size_t n = strlen(name);
    snprintf(where, sizeof where, "%.280s: %s", path,
             qn__utf8_quote(quoted, sizeof quoted, name, n));
    if (n <= 4 || strcmp(name + n - 4, ".npy") != 0)
        return qn__fail(err, QN_FORMAT, "%s: is no member of an npz, whose names end in .npy",
                        where);
    qn_tensor_info *info = qn__tensors_add(t);
    char *copy = info ? qn__arena_strndup(&t->names, name, n - 4) : NULL;
    if (!copy)
        return qn__fail_memory(err, "a tensor table");
    info->name = copy;
    info->file = file;
    info->member = i;
    if (qn__npy_parse(t, info, where, qn__archive_size(archive, i), read_npz, &member, err) !=
        QN_OK)
        return err->code;
    t->n_tensors++;
    return QN_OK;
}

qn_status qn__npz_load(qn_tensors *t, uint32_t file, qn_error *err)
{
    uint32_t n = qn__archive_count(t->files[file].state);
    for (uint32_t i = 0; i < n; i++)
        if (load_member(t, file, i, err) != QN_OK)
            return err->code;
    return QN_OK;
}
