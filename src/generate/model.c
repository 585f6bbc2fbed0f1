/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a model directory or GGUF file: weights, tokenizer, what ends a reply.
 */
#include "generate/model.h"

#include "base/error.h"
#include "base/file.h"
#include "base/gguf.h"
#include "base/recognize.h"
#include "base/sized.h"
#include "core/array.h"
#include "core/device.h"
#include "models/load.h"
#include "models/loaded.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_CONFIG = 4 << 20 };

/* What the model's chat templates put behind a reply. Templates that cannot be read are an error
 * only for who uses them. */
static qn_status add_ends(qn_model *m, const char *path, qn_error *err)
{
    qn_chat *chat;
    qn_error failure = {0};
    if (qn_chat_open(&chat, m->tokenizer, path, &failure) != QN_OK)
        return failure.code == QN_MEMORY ? qn__fail_memory(err, "a chat") : QN_OK;
    int32_t ends[16];
    size_t n = qn_chat_ends(chat, ends, 16);
    for (size_t i = 0; i < n && i < 16; i++)
        qn__model_add_stop(m, ends[i]);
    qn_chat_close(chat);
    return QN_OK;
}

/* What the model's tokenizer says of ends. */
static qn_status add_stops(qn_model *m, const char *path, qn_error *err)
{
    int32_t stops[16];
    size_t n = qn_chat_stop_tokens(m->tokenizer, stops, 16);
    for (size_t i = 0; i < n && i < 16; i++)
        qn__model_add_stop(m, stops[i]);
    return add_ends(m, path, err);
}

/* A large vocabulary takes a good part of the time that weights take, and the device has no part in
 * it: it is read by a thread of its own, beside them. */
typedef struct reading {
    const char *path;
    pthread_t thread;
    bool begun;
    qn_tokenizer *tokenizer;
    qn_error err;
} reading;

static void *read_tokenizer(void *context)
{
    reading *r = context;
    qn_tokenizer_open(&r->tokenizer, r->path, &r->err);
    return NULL;
}

static qn_status begin_tokenizer(reading *r, qn_error *err)
{
    int failure = pthread_create(&r->thread, NULL, read_tokenizer, r);
    r->begun = failure == 0;
    return r->begun ? QN_OK : qn__fail(err, QN_MEMORY, "a thread: %s", strerror(failure));
}

/* Gives the tokenizer to the model. If something else failed, that is what is told. */
static qn_status end_tokenizer(reading *r, qn_model *m, qn_error *err)
{
    if (!r->begun)
        return err->code;
    pthread_join(r->thread, NULL);
    m->tokenizer = r->tokenizer;
    if (err->code == QN_OK && r->err.code != QN_OK)
        *err = r->err;
    return err->code == QN_OK ? add_stops(m, r->path, err) : err->code;
}

static void take_options(qn__decoder *decoder, const qn_model_options *o)
{
    decoder->products = o->products;
    decoder->batch_invariant = o->batch_invariant;
}

static qn_status load_decoder(qn_model *m, qn__source *source, const qn_model_options *o,
                              qn_error *err)
{
    if (o->no_weights)
        return qn__decoder_describe_source(&m->decoder, m->device, source, err);
    qn_status status =
        qn__decoder_load_source(&m->decoder, m->device, source, o->progress, o->progress_user, err);
    take_options(&m->decoder, o);
    return status;
}

/* Whoever writes the model anew copies what lies beside its weights. */
static qn_status keep_paths(qn_model *m, const qn__source *source, qn_error *err)
{
    size_t n = strlen(source->config_path), k = strlen("/params.json"); /* Meta's */
    if (source->gguf || (n >= k && !strcmp(source->config_path + n - k, "/params.json")))
        return QN_OK;
    m->directory = strdup(source->path);
    m->config_path = strdup(source->config_path);
    return m->directory && m->config_path ? QN_OK : qn__fail_memory(err, "a path");
}

/* All that is read of the model's files. */
static qn_status read_model(qn_model *m, const char *path, const qn_model_options *o, qn_error *err)
{
    qn__source source;
    reading tokenizer = {.path = path};
    qn_status status = qn__source_open(&source, path, err);
    if (status == QN_OK && !o->no_tokenizer)
        status = begin_tokenizer(&tokenizer, err);
    if (status == QN_OK)
        status = load_decoder(m, &source, o, err);
    if (status == QN_OK)
        status = keep_paths(m, &source, err);
    if (status == QN_OK)
        status = qn__model_read_defaults(m, &source, err);
    if (status == QN_OK && m->n_stop == 0)
        status = qn__model_read_config_stops(m, &source, err);
    qn__source_close(&source);
    return end_tokenizer(&tokenizer, m, err);
}

/* A model is a directory or a GGUF file; a file that is something else is called that. */
static qn_status refuse_file(const char *path, qn_error *err)
{
    char first[QN__RECOGNIZE_BYTES];
    qn__file file;
    const char *is = NULL;
    if (qn__file_open(&file, path, NULL) == QN_OK) {
        size_t n = file.size < sizeof first ? (size_t)file.size : sizeof first;
        if (qn__file_pread(&file, 0, first, n, NULL) == QN_OK)
            is = qn__recognize_bytes(first, n);
    }
    qn__file_close(&file);
    return is ? qn__fail(err, QN_UNSUPPORTED, "%s: %s", path, is)
              : qn__fail(
                    err, QN_UNSUPPORTED,
                    "%s is no GGUF file; give the model's directory (with config.json in it), or "
                    "a GGUF file",
                    path);
}

static qn_status read_options(qn_model_options *options, const qn_model_options *given,
                              qn_error *err)
{
    if (qn__sized_in(options, sizeof *options, given, "qn_model_options", err) != QN_OK)
        return err->code;
    if (options->products != QN_PRODUCTS_AUTO && options->products != QN_PRODUCTS_F32)
        return qn__fail(err, QN_INVALID, "qn_model_options.products is %d: AUTO or F32 is possible",
                        (int)options->products);
    return QN_OK;
}

static qn_model *new_model(qn_device *device, qn_error *err)
{
    qn_model *m = calloc(1, sizeof *m);
    if (!m) {
        qn__fail_memory(err, "a model");
        return NULL;
    }
    atomic_init(&m->refs, 1);
    m->device = device;
    atomic_fetch_add(&device->refs, 1);
    m->sampling.size = sizeof m->sampling;
    return m;
}

qn_status qn_model_open(qn_model **out, qn_device *device, const char *path,
                        const qn_model_options *given, qn_error *err)
{
    qn_error local = {0};
    qn_model_options options;
    err = err ? err : &local;
    *out = NULL;
    if (read_options(&options, given, err) != QN_OK)
        return err->code;
    bool is_directory;
    if (qn__path_is_directory(path, &is_directory, err) != QN_OK)
        return err->code;
    if (!is_directory && !qn__gguf_is(path))
        return refuse_file(path, err);
    qn_model *m = new_model(device, err);
    if (!m)
        return err->code;
    if (read_model(m, path, &options, err) != QN_OK ||
        qn__model_open_adapters(m, &options, err) != QN_OK) {
        qn_model_close(m);
        return err->code;
    }
    *out = m;
    return QN_OK;
}

/* An encoding that weights can be made up in. */
static const qn__encoding *find_encoding(const char *name, qn_error *err)
{
    int id = qn__encoding_named(name);
    if (id < 0)
        qn__fail(err, QN_UNSUPPORTED,
                 "\"%.40s\" is no type of weights; bf16, f16, f32, q4_0, q8_0, q4_k, q6_k, "
                 "affine4-g64-bf16 are some",
                 name);
    return id < 0 ? NULL : &qn__encodings[id];
}

qn_status qn_model_open_random(qn_model **out, qn_device *device, const char *config, size_t n,
                               const char *type, const char *head_type,
                               const qn_model_options *given, qn_error *err)
{
    qn_error local = {0};
    qn_model_options options;
    err = err ? err : &local;
    *out = NULL;
    if (read_options(&options, given, err) != QN_OK)
        return err->code;
    qn__random_weights weights = {.matrices = find_encoding(type, err)};
    if (!weights.matrices || !(weights.head = find_encoding(head_type, err)))
        return err->code;
    qn__source source = {.config_path = "config.json"};
    qn_model *m = new_model(device, err);
    if (m && qn__json_parse(&source.config, "config.json", config, n, err) == QN_OK &&
        qn__decoder_load_random(&m->decoder, device, &source, &weights, err) == QN_OK) {
        take_options(&m->decoder, &options);
        *out = m;
    } else {
        qn_model_close(m);
    }
    cJSON_Delete(source.config);
    return err->code;
}

/* The configuration and where it is; of a file that has another name, too. */
static qn_status open_initial_source(qn__source *source, const char *path, qn_error *err)
{
    bool is_directory;
    if (qn__path_is_directory(path, &is_directory, err) != QN_OK)
        return err->code;
    source->path = is_directory ? strdup(path) : qn__path_parent(path);
    source->config_path = is_directory ? qn__path_join(path, "config.json") : strdup(path);
    return source->path && source->config_path
               ? qn__json_read(&source->config, source->config_path, LARGEST_CONFIG, err)
               : qn__fail_memory(err, "a path");
}

static qn_status read_initial(qn_model *m, const char *path, uint64_t seed,
                              const qn_model_options *o, qn_error *err)
{
    qn__source source = {0};
    qn__random_weights weights;
    if (open_initial_source(&source, path, err) == QN_OK) {
        qn__json_at config = qn__json_root(source.config_path, source.config);
        if (qn__random_initial(&weights, &config, seed, err) == QN_OK &&
            qn__decoder_load_random(&m->decoder, m->device, &source, &weights, err) == QN_OK &&
            keep_paths(m, &source, err) == QN_OK &&
            qn__model_read_defaults(m, &source, err) == QN_OK && m->n_stop == 0)
            qn__model_read_config_stops(m, &source, err);
        take_options(&m->decoder, o);
        if (err->code == QN_OK && !o->no_tokenizer &&
            qn_tokenizer_open(&m->tokenizer, source.path, err) == QN_OK)
            add_stops(m, source.path, err);
    }
    qn__source_close(&source);
    return err->code;
}

qn_status qn_model_open_initial(qn_model **out, qn_device *device, const char *path, uint64_t seed,
                                const qn_model_options *given, qn_error *err)
{
    qn_error local = {0};
    qn_model_options options;
    err = err ? err : &local;
    *out = NULL;
    if (read_options(&options, given, err) != QN_OK)
        return err->code;
    qn_model *m = new_model(device, err);
    if (m && read_initial(m, path, seed, &options, err) == QN_OK)
        *out = m;
    else
        qn_model_close(m);
    return err->code;
}

void qn_model_close(qn_model *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    qn__decoder_end(&m->decoder);
    qn__model_close_adapters(m);
    qn_tokenizer_close(m->tokenizer);
    qn_device_close(m->device);
    free(m->directory);
    free(m->config_path);
    for (size_t i = 0; i < m->n_stop_strings; i++)
        free(m->stop_strings[i]);
    free(m);
}

qn_model *qn__model_retain(qn_model *m)
{
    atomic_fetch_add(&m->refs, 1);
    return m;
}

qn_device *qn__model_device(const qn_model *m)
{
    return m->device;
}

const qn__decoder *qn__model_decoder(const qn_model *m)
{
    return &m->decoder;
}

const char *qn__model_directory(const qn_model *m)
{
    return m->directory;
}

const char *qn__model_config_path(const qn_model *m)
{
    return m->config_path;
}

/* See qn_model_info. */
static void list_types(const qn__decoder_sizes *sizes, char *to, size_t room)
{
    uint64_t left[QN__ENCODING_COUNT];
    memcpy(left, sizes->encoding_bytes, sizeof left);
    for (size_t length = 0;;) {
        int most = 0;
        for (int i = 1; i < QN__ENCODING_COUNT; i++)
            if (left[i] > left[most])
                most = i;
        if (!left[most])
            return;
        char one[80];
        double share = 100 * (double)left[most] / (double)sizes->file_bytes;
        size_t n = (size_t)snprintf(one, sizeof one, "%s%s %s%.0f %%", length ? ", " : "",
                                    qn__encodings[most].name, share < 1 ? "under " : "",
                                    share < 1 ? 1 : share);
        if (length + n >= room)
            return;
        memcpy(to + length, one, n + 1);
        length += n;
        left[most] = 0;
    }
}

qn_status qn_model_get_info(const qn_model *m, qn_model_info *out)
{
    const qn__decoder_config *c = &m->decoder.config;
    qn_model_info info = {.n_layers = c->n_layers,
                          .hidden_size = c->hidden,
                          .intermediate_size = c->ffn,
                          .n_heads = c->n_heads,
                          .n_kv_heads = c->n_kv_heads,
                          .head_dim = c->head_dim,
                          .vocab_size = c->vocab,
                          .max_positions = c->max_positions,
                          .parameters = m->decoder.sizes.parameters,
                          .weight_bytes = m->decoder.sizes.device_bytes,
                          .file_bytes = m->decoder.sizes.file_bytes,
                          .dtype = c->dtype};
    memcpy(info.family, c->family, sizeof info.family);
    list_types(&m->decoder.sizes, info.types, sizeof info.types);
    return qn__sized_out(out, &info, sizeof info);
}

const qn_tokenizer *qn_model_tokenizer(const qn_model *m)
{
    return m->tokenizer;
}

qn_status qn_model_get_defaults(const qn_model *m, qn_generation_defaults *out)
{
    qn_generation_defaults all = {.sampling = &m->sampling,
                                  .max_tokens = m->max_tokens,
                                  .stop = m->stop,
                                  .n_stop = m->n_stop,
                                  .stop_strings = (const char *const *)m->stop_strings,
                                  .n_stop_strings = m->n_stop_strings};
    return qn__sized_out(out, &all, sizeof all);
}

qn_status qn__model_check_tokens(const qn_model *m, const int32_t *ids, size_t n, qn_error *err)
{
    int64_t vocab = m->decoder.config.vocab;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return qn__fail(err, QN_INVALID, "token %zu is %d, the vocabulary has %lld", i, ids[i],
                            (long long)vocab);
    return QN_OK;
}
