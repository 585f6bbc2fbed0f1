/* SPDX-License-Identifier: Apache-2.0
 *
 * The wrapper around libzip; see archive.h. A zip file can promise terabytes in a few bytes, so
 * what is promised is held against what can be: deflate makes at most 1032 bytes of one, members
 * may not share their bytes, and large members may not be nearly empty. Nothing is ever inflated
 * beyond what was asked for, and what is asked for is a tensor's size. libzip is not made for
 * several threads: one lock.
 */
#include "io/archive.h"

#include "base/utf8.h"

#include <stdlib.h>

int64_t qn__torch_find(const qn__archive *archive)
{
    static const char tail[] = "/data.pkl";
    for (uint32_t i = 0; i < qn__archive_count(archive); i++) {
        const char *name = qn__archive_name(archive, i), *slash = strchr(name, '/');
        if (slash && slash > name && !strcmp(slash, tail))
            return i;
    }
    return -1;
}

static qn_status load_archive(qn_tensors *t, uint32_t i, qn_error *err)
{
    qn__archive *archive;
    if (qn__archive_open(&archive, &t->files[i].file, err) != QN_OK)
        return err->code;
    t->files[i].state = archive;
    int64_t pickle = qn__torch_find(archive);
    return pickle < 0 ? qn__npz_load(t, i, err) : qn__torch_load(t, i, (uint32_t)pickle, err);
}

static qn_status read_archive(const qn__tensor_file *file, uint32_t member, uint64_t offset,
                              size_t n, void *dst, qn_error *err)
{
    return qn__archive_read(file->state, member, offset, n, dst, err);
}

static void close_archive(void *state)
{
    qn__archive_close(state);
}

const qn__file_kind qn__archive_kind = {load_archive, read_archive, close_archive};

#ifdef QN_LIBZIP

#include <unistd.h>
#include <zip.h>

enum { MOST_MEMBERS = 200000, DEFLATE_RATIO = 1032, LARGE_RATIO = 200, LARGE = 256 << 20 };

typedef struct member {
    const char *name; /* libzip's */
    uint64_t size;
} member;

struct qn__archive {
    const char *path;
    zip_t *zip;
    member *members;
    uint32_t n;
    pthread_mutex_t lock;
    /* The stream that was read last: where it stands, or NULL. */
    zip_file_t *stream;
    uint32_t streamed;
    uint64_t at;
};

static qn_status fail_zip(const char *path, const char *name, zip_error_t *e, qn_error *err)
{
    char quoted[100];
    int code = zip_error_code_zip(e);
    if (code == ZIP_ER_MEMORY)
        return qn__fail_memory(err, "an archive");
    bool io = code == ZIP_ER_READ || code == ZIP_ER_SEEK;
    return qn__fail(err, io ? QN_IO : QN_FORMAT, "%s: %s%s%s", path,
                    qn__utf8_quote(quoted, sizeof quoted, name, strlen(name)), *name ? ": " : "",
                    zip_error_strerror(e));
}

/* Relative, without "..": nothing is written under these names, but tensors get them. */
static bool good_name(const char *name)
{
    size_t n = strlen(name);
    if (!n || name[0] == '/' || strchr(name, '\\') || qn__utf8_check(name, n) != n)
        return false;
    for (const char *p = name; p; p = strchr(p, '/'), p += p != NULL)
        if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
            return false;
    return true;
}

static qn_status check_member(const qn__archive *a, const zip_stat_t *st, uint64_t *packed,
                              uint64_t file_size, qn_error *err)
{
    char name[100];
    qn__utf8_quote(name, sizeof name, st->name, strlen(st->name));
    if (!good_name(st->name))
        return qn__fail(err, QN_FORMAT,
                        "%s: member \"%s\": the name leads out of the archive or is "
                        "not UTF-8",
                        a->path, name);
    if (st->encryption_method != ZIP_EM_NONE)
        return qn__fail(err, QN_UNSUPPORTED, "%s: member %s is encrypted", a->path, name);
    if (st->comp_method != ZIP_CM_STORE && st->comp_method != ZIP_CM_DEFLATE)
        return qn__fail(err, QN_UNSUPPORTED,
                        "%s: member %s is packed by method %d; supported are "
                        "stored (0) and deflated (8)",
                        a->path, name, (int)st->comp_method);
    if (__builtin_add_overflow(*packed, st->comp_size, packed) || *packed > file_size)
        return qn__fail(err, QN_FORMAT,
                        "%s: member %s: the members claim more than the file's %llu "
                        "bytes",
                        a->path, name, (unsigned long long)file_size);
    uint64_t ratio = st->comp_method == ZIP_CM_STORE ? 1
                     : st->size > LARGE              ? LARGE_RATIO
                                                     : DEFLATE_RATIO;
    if (st->size / ratio > st->comp_size)
        return qn__fail(err, QN_LIMIT,
                        "%s: member %s claims %llu bytes in %llu packed ones; at "
                        "most %llu times as many are accepted",
                        a->path, name, (unsigned long long)st->size,
                        (unsigned long long)st->comp_size, (unsigned long long)ratio);
    return QN_OK;
}

static qn_status read_directory(qn__archive *a, uint64_t file_size, qn_error *err)
{
    zip_int64_t n = zip_get_num_entries(a->zip, 0);
    uint64_t packed = 0;
    if (n > MOST_MEMBERS)
        return qn__fail(err, QN_LIMIT, "%s: %lld members, the limit is %d", a->path, (long long)n,
                        MOST_MEMBERS);
    a->members = calloc((size_t)n + 1, sizeof *a->members);
    if (!a->members)
        return qn__fail_memory(err, "an archive's directory");
    for (zip_int64_t i = 0; i < n; i++) {
        zip_stat_t st;
        if (zip_stat_index(a->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW, &st) != 0)
            return fail_zip(a->path, "", zip_get_error(a->zip), err);
        if (check_member(a, &st, &packed, file_size, err) != QN_OK)
            return err->code;
        a->members[a->n++] = (member){st.name, st.size};
    }
    return QN_OK;
}

qn_status qn__archive_open(qn__archive **out, const qn__file *file, qn_error *err)
{
    *out = NULL;
    qn__archive *a = calloc(1, sizeof *a);
    if (!a)
        return qn__fail_memory(err, "an archive");
    pthread_mutex_init(&a->lock, NULL);
    a->path = file->path;
    int code = ZIP_ER_OPEN, fd = dup(file->fd);
    a->zip = fd >= 0 ? zip_fdopen(fd, ZIP_CHECKCONS, &code) : NULL;
    if (!a->zip) {
        zip_error_t e;
        zip_error_init_with_code(&e, code);
        fail_zip(a->path, "", &e, err);
        zip_error_fini(&e);
        if (fd >= 0)
            close(fd);
    }
    if (!a->zip || read_directory(a, file->size, err) != QN_OK) {
        qn__archive_close(a);
        return err->code;
    }
    *out = a;
    return QN_OK;
}

void qn__archive_close(qn__archive *a)
{
    if (!a)
        return;
    if (a->stream)
        zip_fclose(a->stream);
    if (a->zip)
        zip_discard(a->zip);
    pthread_mutex_destroy(&a->lock);
    free(a->members);
    free(a);
}

uint32_t qn__archive_count(const qn__archive *a)
{
    return a->n;
}

const char *qn__archive_name(const qn__archive *a, uint32_t i)
{
    return a->members[i].name;
}

uint64_t qn__archive_size(const qn__archive *a, uint32_t i)
{
    return a->members[i].size;
}

int64_t qn__archive_find(const qn__archive *a, const char *name)
{
    return zip_name_locate(a->zip, name, ZIP_FL_ENC_RAW);
}

/* Exactly n bytes of the open stream; dst NULL: they are passed over. */
static qn_status pull(qn__archive *a, uint64_t n, char *dst, qn_error *err)
{
    char waste[16384];
    const char *name = a->members[a->streamed].name;
    while (n > 0) {
        uint64_t most = dst ? (uint64_t)1 << 30 : sizeof waste;
        zip_int64_t got = zip_fread(a->stream, dst ? dst : waste, n < most ? n : most);
        if (got < 0)
            return fail_zip(a->path, name, zip_file_get_error(a->stream), err);
        if (got == 0)
            return qn__fail(err, QN_FORMAT, "%s: member %s ends at byte %llu of the %llu it claims",
                            a->path, name, (unsigned long long)a->at,
                            (unsigned long long)a->members[a->streamed].size);
        dst = dst ? dst + got : NULL;
        a->at += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return QN_OK;
}

/* At the end of a member: nothing follows, and libzip compares the checksum. */
static qn_status check_end(qn__archive *a, qn_error *err)
{
    char more;
    const member *m = &a->members[a->streamed];
    if (a->at != m->size)
        return QN_OK;
    zip_int64_t got = zip_fread(a->stream, &more, 1);
    if (got < 0)
        return fail_zip(a->path, m->name, zip_file_get_error(a->stream), err);
    if (got > 0)
        return qn__fail(err, QN_FORMAT,
                        "%s: member %s inflates to more than the %llu bytes that it "
                        "claims",
                        a->path, m->name, (unsigned long long)m->size);
    return QN_OK;
}

static qn_status read_locked(qn__archive *a, uint32_t i, uint64_t offset, size_t n, char *dst,
                             qn_error *err)
{
    if (a->stream && (a->streamed != i || a->at > offset)) {
        zip_fclose(a->stream);
        a->stream = NULL;
    }
    if (!a->stream) {
        a->stream = zip_fopen_index(a->zip, i, 0);
        a->streamed = i;
        a->at = 0;
        if (!a->stream)
            return fail_zip(a->path, a->members[i].name, zip_get_error(a->zip), err);
    }
    qn_status status = pull(a, offset - a->at, NULL, err);
    if (status == QN_OK)
        status = pull(a, n, dst, err);
    if (status == QN_OK)
        status = check_end(a, err);
    if (status != QN_OK || a->at == a->members[i].size) {
        zip_fclose(a->stream); /* broken, or of no further use */
        a->stream = NULL;
    }
    return status;
}

qn_status qn__archive_read(qn__archive *a, uint32_t i, uint64_t offset, size_t n, void *dst,
                           qn_error *err)
{
    pthread_mutex_lock(&a->lock);
    qn_status status = read_locked(a, i, offset, n, dst, err);
    pthread_mutex_unlock(&a->lock);
    return status;
}

#else /* without libzip nothing is ever open */

struct qn__archive {
    char nothing;
};

qn_status qn__archive_open(qn__archive **out, const qn__file *file, qn_error *err)
{
    *out = NULL;
    return qn__fail(
        err, QN_UNSUPPORTED,
        "%s: a zip archive (npz or a PyTorch checkpoint), which this build does not read: "
        "it was configured with -Dlibzip=disabled",
        file->path);
}

void qn__archive_close(qn__archive *a)
{
    (void)a;
}

uint32_t qn__archive_count(const qn__archive *a)
{
    (void)a;
    return 0;
}

const char *qn__archive_name(const qn__archive *a, uint32_t i)
{
    (void)a, (void)i;
    return "";
}

uint64_t qn__archive_size(const qn__archive *a, uint32_t i)
{
    (void)a, (void)i;
    return 0;
}

int64_t qn__archive_find(const qn__archive *a, const char *name)
{
    (void)a, (void)name;
    return -1;
}

qn_status qn__archive_read(qn__archive *a, uint32_t i, uint64_t offset, size_t n, void *dst,
                           qn_error *err)
{
    (void)a, (void)i, (void)offset, (void)n, (void)dst;
    return qn__fail(err, QN_UNSUPPORTED,
                    "archives are not read: configured with -Dlibzip=disabled");
}

#endif
