/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions that go to sleep: their tokens, keys and values in a file, and back without running a
 * token. The file is safetensors: "tokens", of each layer the pages that the session has
 * ("keys.000", "values.000": bytes as the cache has them; those behind a window are what lets it go
 * back), and "verify", a hash of all that, which comes last. Its metadata bind it to the model, to
 * how the cache keeps numbers and to what queries see. Something else may stand beside
 * (conversation.c), which has its own checksum.
 */
#include "generate/sleep.h"

#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 24, FIRST_SEED = 7, PER_LAYER = 2, OWN_WORDS = 5, MOST_BESIDE = 4 };

/* What binds a file to a model and a cache. */
typedef struct binding {
    qn__sleep_word model, windows;
    const char *keys, *values;
} binding;

qn__sleep_word qn__sleep_word_of(uint64_t number)
{
    qn__sleep_word word;
    snprintf(word.hex, sizeof word.hex, "%016" PRIx64, number);
    return word;
}

qn__sleep_word qn__sleep_sum(const void *data, size_t n)
{
    return qn__sleep_word_of(qn__hash_bytes(data, n, FIRST_SEED));
}

/* What queries of each layer see. */
static qn__sleep_word windows_of(const qn__cache *cache)
{
    uint64_t h = FIRST_SEED;
    for (int i = 0; i < cache->shape.n_layers; i++) {
        const qn__cache_window *sees = &cache->kind[cache->kind_of[i]].sees;
        const int64_t numbers[] = {sees->window, sees->keep};
        h = qn__hash_bytes(numbers, sizeof numbers, h);
    }
    return qn__sleep_word_of(h);
}

static qn_status bind_file(const qn_session *session, binding *b, qn_error *err)
{
    uint64_t h;
    if (qn__model_fingerprint(session->model, session->sequences[0].adapter, &h, err) != QN_OK)
        return err->code;
    b->model = qn__sleep_word_of(h);
    b->windows = windows_of(&session->cache);
    b->keys = qn__encodings[session->cache.shape.keys].name;
    b->values = qn__encodings[session->cache.shape.values].name;
    return QN_OK;
}

static int64_t blocks_of(int64_t length)
{
    return (length + QN__PAGE - 1) / QN__PAGE;
}

/* Pages of a sequence whose blocks begin with `first`. */
static int64_t pages_from(const qn__cache_kind *kind, int64_t first, int64_t length)
{
    return blocks_of(length) - first + (first > 0 && kind->sees.keep);
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
    const qn__beside *beside;
    qn__tensor_data *tensors; /* tokens, arrays in the file's order, verify, what is beside */
    char (*names)[NAME];      /* of the arrays */
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
    const qn__sequence_pages *of = &sequence->kind[kind_of(cache, i)];
    size_t bytes = qn__cache_page_bytes(cache, i);
    for (int64_t b = 0; b < blocks_of(sequence->length); b++)
        if (qn__cache_holds(kind, of->first, b) &&
            (qn__cache_read_page(cache, i, of->page[b], s->page, err) != QN_OK ||
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
    if (at == arrays + 1)
        return qn__writer_write(writer, &s->hash, sizeof s->hash, err);
    return qn__writer_write(writer, s->beside->data, s->beside->n, err);
}

/* The file's table; returns how many tensors there are. */
static size_t list_tensors(saver *s)
{
    const qn__cache *cache = &s->session->cache;
    int64_t length = s->session->length;
    int arrays = PER_LAYER * cache->shape.n_layers;
    qn__tensor_data *t = s->tensors;
    t[0] = (qn__tensor_data){.name = "tokens", .dtype = QN_I32, .ndim = 1, .shape = {length}};
    for (int k = 0; k < arrays; k++) {
        int i = array_at(cache, k);
        name_array(s->names[k], i);
        t[1 + k] = (qn__tensor_data){.name = s->names[k], .dtype = QN_U8, .ndim = 2};
        int of = kind_of(cache, i);
        t[1 + k].shape[0] =
            pages_from(&cache->kind[of], s->session->sequences[0].kind[of].first, length);
        t[1 + k].shape[1] = (int64_t)qn__cache_page_bytes(cache, i);
    }
    t[1 + arrays] = (qn__tensor_data){.name = "verify", .dtype = QN_U8, .ndim = 1, .shape = {8}};
    if (s->beside)
        t[2 + arrays] = (qn__tensor_data){
            .name = s->beside->name, .dtype = QN_U8, .ndim = 1, .shape = {(int64_t)s->beside->n}};
    return (size_t)arrays + 2 + (s->beside != NULL);
}

static qn_status write_file(saver *s, const char *path, qn_error *err)
{
    binding b;
    size_t n = OWN_WORDS;
    if (bind_file(s->session, &b, err) != QN_OK)
        return err->code;
    qn__metadata metadata[OWN_WORDS + MOST_BESIDE] = {{"format", "quern session 2"},
                                                      {"model", b.model.hex},
                                                      {"keys", b.keys},
                                                      {"values", b.values},
                                                      {"windows", b.windows.hex}};
    for (size_t i = 0; s->beside && i < s->beside->n_metadata; i++)
        metadata[n++] = s->beside->metadata[i];
    return qn__safetensors_write_with(path, s->tensors, list_tensors(s), metadata, n, put_tensor, s,
                                      err);
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

qn_status qn__session_sleep(qn_session *session, const char *path, const qn__beside *beside,
                            qn_error *err)
{
    if (check_single(session, err) != QN_OK || qn__session_catch_up(session, err) != QN_OK)
        return err->code;
    size_t arrays = (size_t)(PER_LAYER * session->cache.shape.n_layers);
    saver s = {.session = session, .beside = beside, .hash = FIRST_SEED};
    s.tensors = calloc(arrays + 3, sizeof *s.tensors);
    s.names = calloc(arrays, sizeof *s.names);
    s.page = malloc(largest_page(&session->cache));
    if (s.tensors && s.names && s.page)
        write_file(&s, path, err);
    else
        qn__fail_memory(err, "a session's file");
    free(s.tensors);
    free(s.names);
    free(s.page);
    return err->code;
}

qn_status qn_session_save(qn_session *session, const char *path, qn_error *err)
{
    qn_error local = {0};
    return qn__session_sleep(session, path, NULL, err ? err : &local);
}

/* ---- waking ---------------------------------------------------------------------------------- */

qn_status qn__sleep_expect(const qn_tensors *file, const char *path, const char *key,
                           const char *want, const char *what, qn_error *err)
{
    const char *is = qn_tensors_metadata(file, key);
    if (is && !strcmp(is, want))
        return QN_OK;
    return qn__fail(err, QN_STATE, "%s: %s is \"%.40s\", not \"%s\": %s", path, key, is ? is : "",
                    want, what);
}

qn_status qn__session_check_file(const qn_session *session, const qn_tensors *file,
                                 const char *path, qn_error *err)
{
    binding b;
    if (bind_file(session, &b, err) != QN_OK)
        return err->code;
    const char *const words[][3] = {
        {"format", "quern session 2", "it is no sleeping session of this version"},
        {"model", b.model.hex,
         "it was made with another model, on another device, or with other options"},
        {"keys", b.keys, "open the session with this type of cache"},
        {"values", b.values, "open the session with this type of cache"},
        {"windows", b.windows.hex,
         "it was made with other windows; rotating sessions need the "
         "context that they had"}};
    for (size_t i = 0; err->code == QN_OK && i < sizeof words / sizeof *words; i++)
        qn__sleep_expect(file, path, words[i][0], words[i][1], words[i][2], err);
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
    qn_error wrong = {0};
    if (qn_tensors_read_bytes(file, t, 0, (size_t)n * sizeof *ids, ids, err) == QN_OK &&
        qn__model_check_tokens(session->model, ids, (size_t)n, &wrong) == QN_OK)
        qn__session_remember(session, ids, n, err);
    if (wrong.code != QN_OK)
        qn__fail(err, wrong.code, "%s: %s", path, wrong.message);
    *hash = qn__hash_bytes(ids, (size_t)n * sizeof *ids, *hash);
    *length = n;
    free(ids);
    return err->code;
}

/* Where the file's blocks of each kind begin: it says how many pages there are. */
static qn_status find_first(const qn_session *session, const qn_tensors *file, const char *path,
                            int64_t length, int64_t *first, qn_error *err)
{
    const qn__cache *cache = &session->cache;
    for (int i = 0; i < PER_LAYER * cache->shape.n_layers; i++) {
        char name[NAME];
        name_array(name, i);
        const qn__cache_kind *kind = &cache->kind[kind_of(cache, i)];
        const qn_tensor_info *t =
            find_tensor(file, path, name, QN_U8, -1, (int64_t)qn__cache_page_bytes(cache, i), err);
        if (!t)
            return err->code;
        int64_t given_back = blocks_of(length) - t->shape[0];
        int64_t from = given_back + (given_back > 0 && kind->sees.keep);
        if (from < 0 || from > qn__cache_first_needed(kind, length))
            return qn__fail(err, QN_INVALID, "%s: %s has %lld pages for %lld tokens", path, name,
                            (long long)t->shape[0], (long long)length);
        first[kind_of(cache, i)] = from;
    }
    return QN_OK;
}

/* Pages that this session would not have kept are read for the checksum alone. */
static qn_status wake_pages(qn_session *session, const qn_tensors *file, const char *path, int i,
                            int64_t first, char *page, uint64_t *hash, qn_error *err)
{
    const qn__sequence *sequence = &session->sequences[0];
    const qn__cache *cache = &session->cache;
    const qn__cache_kind *kind = &cache->kind[kind_of(cache, i)];
    const int32_t *pages = sequence->kind[kind_of(cache, i)].page;
    size_t bytes = qn__cache_page_bytes(cache, i);
    char name[NAME];
    name_array(name, i);
    const qn_tensor_info *t = find_tensor(
        file, path, name, QN_U8, pages_from(kind, first, sequence->length), (int64_t)bytes, err);
    uint64_t at = 0;
    for (int64_t b = 0; t && b < blocks_of(sequence->length); b++) {
        if (!qn__cache_holds(kind, first, b))
            continue;
        if (qn_tensors_read_bytes(file, t, at, bytes, page, err) != QN_OK ||
            (pages[b] >= 0 && qn__cache_write_page(cache, i, pages[b], page, err) != QN_OK))
            return err->code;
        *hash = qn__hash_bytes(page, bytes, *hash);
        at += bytes;
    }
    return err->code;
}

/* An empty sequence takes its pages, as many as this session has of so many positions. */
static qn_status take_pages(qn_session *session, int64_t length, const int64_t *first,
                            qn_error *err)
{
    qn__cache *cache = &session->cache;
    int64_t from[QN__MOST_KINDS];
    for (int k = 0; k < cache->n_kinds; k++) {
        int64_t own = qn__cache_first_kept(cache, &cache->kind[k], length);
        from[k] = first[k] > own ? first[k] : own;
    }
    if (qn__cache_reserve(cache, session->model->device, err) != QN_OK)
        return err->code;
    return qn__sequence_wake(&session->sequences[0], length, from, err);
}

static qn_status read_file(qn_session *session, const qn_tensors *file, const char *path,
                           char *page, qn_error *err)
{
    const qn__cache *cache = &session->cache;
    uint64_t hash = FIRST_SEED, verify = 0;
    int64_t length = 0, first[QN__MOST_KINDS] = {0};
    if (qn__session_check_file(session, file, path, err) != QN_OK ||
        wake_tokens(session, file, path, &length, &hash, err) != QN_OK ||
        find_first(session, file, path, length, first, err) != QN_OK ||
        take_pages(session, length, first, err) != QN_OK)
        return err->code;
    for (int k = 0; k < PER_LAYER * cache->shape.n_layers; k++) {
        int i = array_at(cache, k);
        if (wake_pages(session, file, path, i, first[kind_of(cache, i)], page, &hash, err) != QN_OK)
            return err->code;
    }
    const qn_tensor_info *t = find_tensor(file, path, "verify", QN_U8, sizeof verify, 0, err);
    if (!t || qn_tensors_read_bytes(file, t, 0, sizeof verify, &verify, err) != QN_OK)
        return err->code;
    if (verify != hash)
        return qn__fail(err, QN_INVALID, "%s: its bytes are not those that were written", path);
    session->length = length;
    return QN_OK;
}

qn_status qn__session_wake(qn_session *session, const qn_tensors *file, const char *path,
                           qn_error *err)
{
    if (check_single(session, err) != QN_OK)
        return err->code;
    if (session->length)
        return qn__fail(err, QN_STATE, "a session that has tokens cannot become another one");
    char *page = malloc(largest_page(&session->cache));
    if (!page)
        qn__fail_memory(err, "a session's file");
    else if (read_file(session, file, path, page, err) != QN_OK)
        qn__sequence_rewind(&session->sequences[0], 0);
    free(page);
    return err->code;
}

qn_status qn_session_restore(qn_session *session, const char *path, qn_error *err)
{
    qn_error local = {0};
    qn_tensors *file = NULL;
    err = err ? err : &local;
    if (qn_tensors_open(&file, path, err) == QN_OK)
        qn__session_wake(session, file, path, err);
    qn_tensors_close(file);
    return err->code;
}
