/* SPDX-License-Identifier: Apache-2.0
 *
 * npz and npy, written; see npz_write.h. Members are stored, as numpy.savez does, so an archive is
 * a local header, an npy header and the data for each, then the directory. Sizes are written in 64
 * bits always (the zip64 extension), so that there is one way to write them.
 * https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
 */
#include "io/npz_write.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "io/npy.h"

#include <stdlib.h>

enum {
    LOCAL = 30,
    LOCAL_EXTRA = 20,
    CENTRAL = 46,
    CENTRAL_EXTRA = 28,
    END64 = 56 + 20,
    END = 22,
    DOS_DATE = 33 /* 1980-01-01 */,
    VERSION = 45,
    UTF8_NAMES = 1 << 11
};

typedef struct entry {
    const qn__tensor_data *tensor;
    char header[QN__NPY_HEADER];
    size_t header_size, name_size;
    uint64_t data_size, at; /* at: of the local header */
    uint32_t crc;
} entry;

/* ---- bytes ------------------------------------------------------------------------------------
 */

static void crc_table(uint32_t table[256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
        table[i] = c;
    }
}

static uint32_t crc_add(const uint32_t table[256], uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        crc = table[(crc ^ p[i]) & 255] ^ crc >> 8;
    return crc;
}

static unsigned char *put_number(unsigned char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *p++ = (unsigned char)(v >> 8 * i);
    return p;
}

/* ---- the parts ---------------------------------------------------------------------------------
 */

static uint64_t member_size(const entry *e)
{
    return e->header_size + e->data_size;
}

/* version, flags, method, time, date, checksum; the sizes stand in the extra field */
static unsigned char *put_common(unsigned char *p, const entry *e, int extra)
{
    p = put_number(p, VERSION, 2);
    p = put_number(p, UTF8_NAMES, 2);
    p = put_number(p, 0, 4); /* stored, midnight */
    p = put_number(p, DOS_DATE, 2);
    p = put_number(p, e->crc, 4);
    p = put_number(p, UINT64_MAX, 8);
    p = put_number(p, e->name_size + 4, 2);
    return put_number(p, (uint64_t)extra, 2);
}

static qn_status write_name(qn__writer *w, const entry *e, qn_error *err)
{
    qn_status status = qn__writer_write(w, e->tensor->name, e->name_size, err);
    return status == QN_OK ? qn__writer_write(w, ".npy", 4, err) : status;
}

static unsigned char *put_sizes(unsigned char *p, const entry *e, int bytes)
{
    p = put_number(p, 1, 2);
    p = put_number(p, (uint64_t)bytes, 2);
    p = put_number(p, member_size(e), 8);
    return put_number(p, member_size(e), 8);
}

static qn_status write_local(qn__writer *w, const entry *e, qn_error *err)
{
    unsigned char bytes[LOCAL], extra[LOCAL_EXTRA];
    put_common(put_number(bytes, 0x04034b50, 4), e, LOCAL_EXTRA);
    put_sizes(extra, e, 16);
    qn_status status = qn__writer_write(w, bytes, sizeof bytes, err);
    if (status == QN_OK)
        status = write_name(w, e, err);
    if (status == QN_OK)
        status = qn__writer_write(w, extra, sizeof extra, err);
    if (status == QN_OK)
        status = qn__writer_write(w, e->header, e->header_size, err);
    return status == QN_OK && e->data_size
               ? qn__writer_write(w, e->tensor->data, (size_t)e->data_size, err)
               : status;
}

static qn_status write_central(qn__writer *w, const entry *e, qn_error *err)
{
    unsigned char bytes[CENTRAL] = {0}, extra[CENTRAL_EXTRA];
    unsigned char *p = put_number(bytes, 0x02014b50, 4);
    p = put_common(put_number(p, VERSION, 2), e, CENTRAL_EXTRA);
    put_number(p + 10, UINT32_MAX,
               4); /* no comment, disk 0, no attributes; the offset in the extra */
    put_number(put_sizes(extra, e, 24), e->at, 8);
    qn_status status = qn__writer_write(w, bytes, sizeof bytes, err);
    if (status == QN_OK)
        status = write_name(w, e, err);
    return status == QN_OK ? qn__writer_write(w, extra, sizeof extra, err) : status;
}

static qn_status write_end(qn__writer *w, uint64_t n, uint64_t at, uint64_t size, qn_error *err)
{
    unsigned char bytes[END64 + END] = {0};
    if (n == 0) { /* readers know an empty archive by its one record, the old one */
        put_number(bytes, 0x06054b50, 4);
        return qn__writer_write(w, bytes, END, err);
    }
    unsigned char *p = put_number(bytes, 0x06064b50, 4);
    p = put_number(p, 44, 8);
    p = put_number(p, VERSION, 2);
    p = put_number(p, VERSION, 2) + 8; /* disks 0 and 0 */
    p = put_number(p, n, 8);
    p = put_number(p, n, 8);
    p = put_number(p, size, 8);
    p = put_number(p, at, 8);
    p = put_number(p, 0x07064b50, 4) + 4;
    p = put_number(p, at + size, 8);
    p = put_number(p, 1, 4);
    p = put_number(p, 0x06054b50, 4) + 4;
    p = put_number(p, UINT32_MAX, 4); /* the number of members, twice */
    put_number(p, UINT64_MAX, 8);
    return qn__writer_write(w, bytes, sizeof bytes, err);
}

/* ---- an archive ---------------------------------------------------------------------------------
 */

static qn_status make_header(const char *path, const qn__tensor_data *t, entry *e, qn_error *err)
{
    bool good = (unsigned)t->dtype < QN_DTYPE_COUNT && t->ndim >= 0 && t->ndim <= QN_MAX_NDIM &&
                qn__tensor_bytes(t->dtype, t->ndim, t->shape, &e->data_size) &&
                e->data_size < (uint64_t)INT64_MAX - QN__NPY_HEADER;
    if (!good)
        return qn__fail(err, QN_INVALID, "%s: %s: bad dtype or shape", path, t->name);
    e->tensor = t;
    e->header_size = qn__npy_format(e->header, t->dtype, t->ndim, t->shape);
    return e->header_size ? QN_OK
                          : qn__fail(err, QN_UNSUPPORTED,
                                     "%s: %s: NumPy has no %s; cast it first, "
                                     "or write safetensors",
                                     path, t->name, qn_dtype_name(t->dtype));
}

static int compare_entry(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->tensor->name, ((const entry *)b)->tensor->name);
}

static qn_status make_entries(const char *path, const qn__tensor_data *tensors, size_t n,
                              entry *entries, uint64_t *directory, qn_error *err)
{
    uint32_t table[256];
    uint64_t at = 0;
    crc_table(table);
    for (size_t i = 0; i < n; i++) {
        entry *e = &entries[i];
        if (make_header(path, &tensors[i], e, err) != QN_OK)
            return err->code;
        e->name_size = strlen(tensors[i].name);
        if (e->name_size == 0 || e->name_size > 60000 ||
            qn__utf8_check(tensors[i].name, e->name_size) != e->name_size)
            return qn__fail(err, QN_INVALID, "%s: a name is empty, too long or not UTF-8", path);
        e->crc = ~crc_add(table, crc_add(table, UINT32_MAX, e->header, e->header_size),
                          tensors[i].data, (size_t)e->data_size);
    }
    if (n > 0)
        qsort(entries, n, sizeof *entries, compare_entry);
    for (size_t i = 0; i < n; i++) {
        entry *e = &entries[i];
        if (i > 0 && compare_entry(e - 1, e) == 0)
            return qn__fail(err, QN_INVALID, "%s: tensor %s stands twice", path, e->tensor->name);
        e->at = at;
        if (__builtin_add_overflow(at, LOCAL + LOCAL_EXTRA + 4 + e->name_size + member_size(e),
                                   &at))
            return qn__fail(err, QN_INVALID, "%s: the tensors are too large", path);
    }
    *directory = at;
    return QN_OK;
}

static qn_status write_archive(qn__writer *w, const entry *entries, size_t n, uint64_t directory,
                               qn_error *err)
{
    qn_status status = QN_OK;
    uint64_t size = 0;
    for (size_t i = 0; status == QN_OK && i < n; i++)
        status = write_local(w, &entries[i], err);
    for (size_t i = 0; status == QN_OK && i < n; i++) {
        status = write_central(w, &entries[i], err);
        size += CENTRAL + CENTRAL_EXTRA + 4 + entries[i].name_size;
    }
    return status == QN_OK ? write_end(w, n, directory, size, err) : status;
}

qn_status qn__npz_write(const char *path, const qn__tensor_data *tensors, size_t n, qn_error *err)
{
    qn_error own = {0};
    uint64_t directory = 0;
    qn__writer *w = NULL;
    err = err ? err : &own;
    entry *entries = calloc(n + 1, sizeof *entries);
    if (!entries)
        return qn__fail_memory(err, "an npz file");
    if (make_entries(path, tensors, n, entries, &directory, err) == QN_OK &&
        qn__writer_open(&w, path, directory, QN__WRITER_REPLACE, err) == QN_OK) {
        if (write_archive(w, entries, n, directory, err) == QN_OK)
            qn__writer_commit(w, err);
        else
            qn__writer_abort(w);
    }
    free(entries);
    return err->code;
}

qn_status qn__npy_write(const char *path, const qn__tensor_data *tensor, qn_error *err)
{
    qn_error own = {0};
    entry e = {0};
    qn__writer *w;
    err = err ? err : &own;
    if (make_header(path, tensor, &e, err) != QN_OK ||
        qn__writer_open(&w, path, member_size(&e), QN__WRITER_REPLACE, err) != QN_OK)
        return err->code;
    if (qn__writer_write(w, e.header, e.header_size, err) == QN_OK &&
        (!e.data_size || qn__writer_write(w, tensor->data, (size_t)e.data_size, err) == QN_OK))
        return qn__writer_commit(w, err);
    qn__writer_abort(w);
    return err->code;
}
