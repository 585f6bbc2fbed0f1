/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions that go to sleep: their tokens, keys and values in a file, and back without running a
 * token. The file is safetensors: "tokens", of each layer the pages that what follows needs
 * ("keys.000", "values.000": bytes as the cache has them), and "verify", a hash of all that, which
 * comes last. Its metadata bind it to the model and to how the cache keeps numbers.
 */
#include "base/error.h"
#include "base/hash.h"
#include "generate/session.h"
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 24, FIRST_SEED = 7, PER_LAYER = 2 };

/* What binds a file to a model and a cache. */
typedef struct binding {
    char model[20];
    const char *keys, *values;
} binding;

static qn_status bind_file(const qn_session *session, binding *b, qn_error *err)
{
    uint64_t h;
    if (qn__model_fingerprint(session->model, &h, err) != QN_OK)
        return err->code;
    snprintf(b->model, sizeof b->model, "%016" PRIx64, h);
    b->keys = qn__encodings[session->cache.shape.keys].name;
    b->values = qn__encodings[session->cache.shape.values].name;
    return QN_OK;
}

/* Pages that a layer's tokens behind `length` need. */
static int64_t pages_needed(const qn__cache_kind *kind, int64_t length)
{
    int64_t n = 0;
    for (int64_t b = 0; b * QN__PAGE < length; b++)
        n += qn__cache_needs(kind, length, b);
    return n;
}

/* Array i of the cache: the pages of which kind. */
static int kind_of(const qn__cache *cache, int i)
{
    return cache->kind_of[i / PER_LAYER];
}

/* In the file's order: all layers' keys, then all values. */
static int array_at(const qn__cache *cache, int position)
{
    int n = cache->shape.n_layers;
    return position < n ? PER_LAYER * position : PER_LAYER * (position - n) + 1;
}

static void name_array(char *name, int i)
{
    snprintf(name, NAME, "%s.%03d", i % PER_LAYER ? "values" : "keys", i / PER_LAYER);
}

/* ---- going to sleep -------------------------------------------------------------------------- */

typedef struct saver {
    const qn_session *session;
    const qn__tensor_data *tensors; /* tokens, arrays in the file's order, verify */
    char *page;
    uint64_t hash;
} saver;

static qn_status put_hashed(saver *s, qn__writer *writer, const void *data, size_t n, qn_error *err)
{
    s->hash = qn__hash_bytes(data, n, s->hash);
    return qn__writer_write(writer, data, n, err);
}

static qn_status put_pages(saver *s, qn__writer *writer, int i, qn_error *err)
{
    const qn__sequence *sequence = &s->session->sequences[0];
    const qn__cache *cache = &s->session->cache;
    const qn__cache_kind *kind = &cache->kind[kind_of(cache, i)];
    const int32_t *page = sequence->kind[kind_of(cache, i)].page;
    size_t bytes = qn__cache_page_bytes(cache, i);
    for (int64_t b = 0; b * QN__PAGE < sequence->length; b++)
        if (qn__cache_needs(kind, sequence->length, b) &&
            (qn__cache_read_page(cache, i, page[b], s->page, err) != QN_OK ||
             put_hashed(s, writer, s->page, bytes, err) != QN_OK))
            return err->code;
    return QN_OK;
}

static qn_status put_tensor(void *user, qn__writer *writer, const qn__tensor_data *tensor,
                            qn_error *err)
{
    saver *s = user;
    int at = (int)(tensor - s->tensors), arrays = PER_LAYER * s->session->cache.shape.n_layers;
    if (at == 0)
        return put_hashed(s, writer, s->session->ids, (size_t)s->session->length * sizeof(int32_t),
                          err);
    if (at <= arrays)
        return put_pages(s, writer, array_at(&s->session->cache, at - 1), err);
    return qn__writer_write(writer, &s->hash, sizeof s->hash, err);
}

static qn_status write_file(saver *s, const char *path, qn__tensor_data *t, char (*names)[NAME],
                            qn_error *err)
{
    const qn__cache *cache = &s->session->cache;
    int64_t length = s->session->length;
    int arrays = PER_LAYER * cache->shape.n_layers;
    binding b;
    if (bind_file(s->session, &b, err) != QN_OK)
        return err->code;
    const qn__metadata metadata[] = {
        {"format", "quern session 1"}, {"model", b.model}, {"keys", b.keys}, {"values", b.values}};
    t[0] = (qn__tensor_data){.name = "tokens", .dtype = QN_I32, .ndim = 1, .shape = {length}};
    for (int k = 0; k < arrays; k++) {
        int i = array_at(cache, k);
        name_array(names[k], i);
        t[1 + k] = (qn__tensor_data){.name = names[k], .dtype = QN_U8, .ndim = 2};
        t[1 + k].shape[0] = pages_needed(&cache->kind[kind_of(cache, i)], length);
        t[1 + k].shape[1] = (int64_t)qn__cache_page_bytes(cache, i);
    }
    t[1 + arrays] = (qn__tensor_data){.name = "verify", .dtype = QN_U8, .ndim = 1, .shape = {8}};
    return qn__safetensors_write_with(path, t, (size_t)arrays + 2, metadata, 4, put_tensor, s, err);
}

static size_t largest_page(const qn__cache *cache)
{
    size_t keys = qn__cache_page_bytes(cache, 0), values = qn__cache_page_bytes(cache, 1);
    return keys > values ? keys : values;
}

static qn_status check_single(const qn_session *session, qn_error *err)
{
    if (session->n_sequences == 1)
        return QN_OK;
    return qn__fail(err, QN_UNSUPPORTED, "sessions of one sequence go to sleep; this one has %lld",
                    (long long)session->n_sequences);
}

qn_status qn_session_save(qn_session *session, const char *path, qn_error *err)
{
    qn_error local = {0};
    err = err ? err : &local;
    if (check_single(session, err) != QN_OK || qn__session_catch_up(session, err) != QN_OK)
        return err->code;
    size_t arrays = (size_t)(PER_LAYER * session->cache.shape.n_layers);
    qn__tensor_data *tensors = calloc(arrays + 2, sizeof *tensors);
    char(*names)[NAME] = calloc(arrays, sizeof *names),
    *page = malloc(largest_page(&session->cache));
    if (tensors && names && page)
        write_file(&(saver){session, tensors, page, FIRST_SEED}, path, tensors, names, err);
    else
        qn__fail_memory(err, "a session's file");
    free(tensors);
    free(names);
    free(page);
    return err->code;
}

/* ---- waking ---------------------------------------------------------------------------------- */

static qn_status expect_word(const qn_tensors *file, const char *path, const char *key,
                             const char *want, const char *what, qn_error *err)
{
    const char *is = qn_tensors_metadata(file, key);
    if (is && !strcmp(is, want))
        return QN_OK;
    return qn__fail(err, QN_STATE, "%s: %s is \"%.40s\", not \"%s\": %s", path, key, is ? is : "",
                    want, what);
}

static qn_status check_binding(const qn_session *session, const qn_tensors *file, const char *path,
                               qn_error *err)
{
    binding b;
    if (bind_file(session, &b, err) == QN_OK &&
        expect_word(file, path, "format", "quern session 1",
                    "it is no sleeping session of this "
                    "version",
                    err) == QN_OK &&
        expect_word(file, path, "model", b.model,
                    "it was made with another model, or other options "
                    "of it",
                    err) == QN_OK &&
        expect_word(file, path, "keys", b.keys, "open the session with this type of cache", err) ==
            QN_OK)
        expect_word(file, path, "values", b.values, "open the session with this type of cache",
                    err);
    return err->code;
}

static const qn_tensor_info *find_tensor(const qn_tensors *file, const char *path, const char *name,
                                         qn_dtype dtype, int64_t rows, int64_t columns,
                                         qn_error *err)
{
    const qn_tensor_info *t = qn_tensors_find(file, name);
    int64_t all = rows < 0 && t ? t->shape[0] : rows;
    if (!t)
        qn__fail(err, QN_INVALID, "%s: there is no tensor %s", path, name);
    else if (t->dtype != dtype || t->ndim != (columns ? 2 : 1) || t->shape[0] != all ||
             (columns && t->shape[1] != columns))
        qn__fail(err, QN_INVALID, "%s: %s is not of the shape that this session's cache has", path,
                 name);
    return err->code == QN_OK ? t : NULL;
}

static qn_status wake_tokens(qn_session *session, const qn_tensors *file, const char *path,
                             int64_t *length, uint64_t *hash, qn_error *err)
{
    const qn_tensor_info *t = find_tensor(file, path, "tokens", QN_I32, -1, 0, err);
    if (!t)
        return err->code;
    int64_t n = t->shape[0];
    if (n > session->context)
        return qn__fail(err, QN_LIMIT, "%s: its %lld tokens do not fit a context of %lld", path,
                        (long long)n, (long long)session->context);
    int32_t *ids = malloc((size_t)n * sizeof *ids + 1);
    if (!ids)
        return qn__fail_memory(err, "a session's tokens");
    if (qn_tensors_read_bytes(file, t, 0, (size_t)n * sizeof *ids, ids, err) == QN_OK &&
        qn__model_check_tokens(session->model, ids, (size_t)n, err) == QN_OK)
        qn__session_remember(session, ids, n, err);
    *hash = qn__hash_bytes(ids, (size_t)n * sizeof *ids, *hash);
    *length = n;
    free(ids);
    return err->code;
}

static qn_status wake_pages(qn_session *session, const qn_tensors *file, const char *path, int i,
                            char *page, uint64_t *hash, qn_error *err)
{
    const qn__sequence *sequence = &session->sequences[0];
    const qn__cache *cache = &session->cache;
    const qn__cache_kind *kind = &cache->kind[kind_of(cache, i)];
    const int32_t *pages = sequence->kind[kind_of(cache, i)].page;
    size_t bytes = qn__cache_page_bytes(cache, i);
    char name[NAME];
    name_array(name, i);
    const qn_tensor_info *t = find_tensor(
        file, path, name, QN_U8, pages_needed(kind, sequence->length), (int64_t)bytes, err);
    uint64_t at = 0;
    for (int64_t b = 0; t && b * QN__PAGE < sequence->length; b++) {
        if (!qn__cache_needs(kind, sequence->length, b))
            continue;
        if (qn_tensors_read_bytes(file, t, at, bytes, page, err) != QN_OK ||
            qn__cache_write_page(cache, i, pages[b], page, err) != QN_OK)
            return err->code;
        *hash = qn__hash_bytes(page, bytes, *hash);
        at += bytes;
    }
    return err->code;
}

static qn_status wake(qn_session *session, const qn_tensors *file, const char *path, char *page,
                      qn_error *err)
{
    qn__cache *cache = &session->cache;
    uint64_t hash = FIRST_SEED, verify = 0;
    int64_t length = 0;
    if (check_binding(session, file, path, err) != QN_OK ||
        wake_tokens(session, file, path, &length, &hash, err) != QN_OK ||
        qn__cache_reserve(cache, session->model->device, err) != QN_OK ||
        qn__sequence_wake(&session->sequences[0], length, err) != QN_OK)
        return err->code;
    for (int k = 0; k < PER_LAYER * cache->shape.n_layers; k++)
        if (wake_pages(session, file, path, array_at(cache, k), page, &hash, err) != QN_OK)
            return err->code;
    const qn_tensor_info *t = find_tensor(file, path, "verify", QN_U8, sizeof verify, 0, err);
    if (!t || qn_tensors_read_bytes(file, t, 0, sizeof verify, &verify, err) != QN_OK)
        return err->code;
    if (verify != hash)
        return qn__fail(err, QN_INVALID, "%s: its bytes are not those that were written", path);
    session->length = length;
    return QN_OK;
}

qn_status qn_session_restore(qn_session *session, const char *path, qn_error *err)
{
    qn_error local = {0};
    qn_tensors *file = NULL;
    err = err ? err : &local;
    if (check_single(session, err) != QN_OK)
        return err->code;
    if (session->length)
        return qn__fail(err, QN_STATE, "a session that has tokens cannot become another one");
    char *page = malloc(largest_page(&session->cache));
    if (!page)
        qn__fail_memory(err, "a session's file");
    else if (qn_tensors_open(&file, path, err) == QN_OK &&
             wake(session, file, path, page, err) != QN_OK)
        qn__sequence_rewind(&session->sequences[0], 0);
    qn_tensors_close(file);
    free(page);
    return err->code;
}
