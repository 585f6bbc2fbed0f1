/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a GGUF file: a header, the metadata, the table of tensors, the weights.
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 *
 * Of a GGUF source metadata and tensors are taken as they are, whatever they say, but for the types
 * of the weights; of a directory both are made from the decoder's description.
 */
#include "convert/convert.h"
#include "convert/gguf_model.h"
#include "core/device.h"
#include "io/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, QUANTIZATION_VERSION = 2, GUESSED = 1024 };

/* ---- types ----------------------------------------------------------------------------------- */

static qn_status choose_target(qn__conversion *c, const qn__recipe_model *m, qn__output_tensor *t)
{
    if (!t->source || !qn__recipe_applies(t->name, t->ndim))
        return qn__output_measure(c, t);
    const char *override = qn__override_for(c, t->name);
    int e;
    if (qn__output_choose(c, m, override, t->name, t->columns, &e) != QN_OK)
        return c->err->code;
    bool ternary = e >= 0 && !override && c->recipe->plain == QN__I2_S && !qn__is_head(t->name);
    if (ternary && !t->ternary)
        return qn__fail(c->err, QN_UNSUPPORTED,
                        "%s: tensor %s is not ternary, as type i2_s has to be; tq1_0 and tq2_0 "
                        "make it so",
                        c->source.path, t->name);
    if (e >= 0)
        t->target = &qn__encodings[e];
    if (t->target->ggml_type < 0)
        return qn__fail(c->err, QN_UNSUPPORTED,
                        "tensor %s is quantised as %s, which GGUF does not have: a type is needed",
                        t->name, t->target->name);
    return qn__output_measure(c, t);
}

static qn_status choose_targets(qn__conversion *c, const qn__recipe_model *m)
{
    bool again = false;
    for (size_t i = 0; i < c->n_tensors; i++) {
        qn__output_tensor *t = &c->tensors[i];
        if (choose_target(c, m, t) != QN_OK)
            return c->err->code;
        again = again || (t->source && !t->ternary && (t->source != t->target || t->fused) &&
                          t->source->block_elements > 1 && t->target->block_elements > 1);
    }
    if (again)
        qn__log(
            c->device, QN_LOG_WARN,
            "%s: its weights are quantised already and lose once more; the model they were made "
            "from gives better ones",
            c->source.path);
    return QN_OK;
}

/* What general.file_type says of weights that stay as they are: what most of them are. */
static uint32_t guess_file_type(const qn__conversion *c)
{
    uint64_t bytes[QN__ENCODING_COUNT] = {0};
    int most = QN__F32;
    for (size_t i = 0; i < c->n_tensors; i++)
        if (c->tensors[i].target && c->tensors[i].ndim > 1)
            bytes[c->tensors[i].target - qn__encodings] += c->tensors[i].bytes;
    for (int i = 0; i < QN__ENCODING_COUNT; i++)
        most = bytes[i] > bytes[most] ? i : most;
    const qn__recipe *r = qn__recipe_named(qn__encodings[most].name, NULL);
    return r ? (uint32_t)r->file_type : GUESSED;
}

static void put_file_type(qn__conversion *c, qn__gguf_keys *k)
{
    qn__put_u32(k, "general.file_type",
                c->recipe ? (uint32_t)c->recipe->file_type : guess_file_type(c));
    qn__put_u32(k, "general.quantization_version", QUANTIZATION_VERSION);
}

/* ---- from a GGUF file ------------------------------------------------------------------------ */

static qn_status rules_of_gguf(qn__conversion *c, const qn__gguf *g, qn__recipe_model *m)
{
    static const char *const names[] = {"block_count", "attention.head_count",
                                        "attention.head_count_kv"};
    int64_t *to[] = {&m->layers, &m->heads, &m->kv_heads};
    qn__gguf_text arch = {"", 0};
    if (qn__gguf_opt_text(g, "general.architecture", &arch, c->err) != QN_OK)
        return c->err->code;
    for (int i = 0; i < 3; i++) {
        char key[200];
        snprintf(key, sizeof key, "%.*s.%s", (int)(arch.n < 100 ? arch.n : 100), arch.data,
                 names[i]);
        *to[i] = i == 2 ? m->heads : 1;
        if (qn__gguf_opt_int(g, key, 1, INT32_MAX, to[i], c->err) != QN_OK)
            return c->err->code;
    }
    m->tied = !qn_tensors_find(c->source.tensors, "output.weight");
    return QN_OK;
}

/* Tensors that are taken as they are, but for what adapters add. */
static qn_status mark_fused(qn__conversion *c)
{
    if (!c->options->n_adapters)
        return QN_OK;
    if (qn__decoder_describe_source(&c->decoder, c->device, &c->source, c->err) != QN_OK ||
        qn__fuse_begin(c) != QN_OK)
        return c->err->code;
    for (int i = 0; i < c->decoder.n_parameters; i++) {
        const qn__parameter *p = &c->decoder.parameters[i];
        for (size_t j = 0; j < c->n_tensors; j++)
            if (!strcmp(c->tensors[j].name, p->stored))
                qn__fuse_mark(c, &c->tensors[j], p, p->paired_rows != 0);
    }
    return QN_OK;
}

static qn_status list_gguf(qn__conversion *c, const qn__gguf *g, qn__gguf_keys *k)
{
    static const char *const left_out[] = {
        "general.alignment", "general.file_type", "general.quantization_version",
        "split.no",          "split.count",       "split.tensors.count"};
    qn__recipe_model m = {0};
    if (rules_of_gguf(c, g, &m) != QN_OK)
        return c->err->code;
    for (size_t i = 0; i < qn_tensors_count(c->source.tensors); i++) {
        const qn_tensor_info *from = qn_tensors_get(c->source.tensors, i);
        qn__output_tensor *t = qn__conversion_add(c);
        if (!t)
            return c->err->code;
        qn__output_from(t, from);
        if (snprintf(t->name, sizeof t->name, "%s", from->name) >= (int)sizeof t->name)
            return qn__fail(c->err, QN_LIMIT, "tensor %.60s...: the name is too long", from->name);
    }
    for (size_t i = 0; i < g->n_values; i++) {
        bool kept = true;
        for (size_t j = 0; j < sizeof left_out / sizeof *left_out; j++)
            kept = kept && strcmp(g->values[i].key, left_out[j]) != 0;
        if (kept)
            qn__put_value(k, &g->values[i]);
    }
    if (mark_fused(c) != QN_OK || choose_targets(c, &m) != QN_OK)
        return c->err->code;
    put_file_type(c, k);
    return QN_OK;
}

/* ---- from a directory ------------------------------------------------------------------------ */

static qn_status list_decoder(qn__conversion *c, const qn__gguf_layout *kind)
{
    static const qn__decoder_place place = {"", "", QN__NAMES_GGUF};
    const qn__decoder *d = &c->decoder;
    for (int i = 0; i < d->n_parameters; i++) {
        const qn__parameter *p = &d->parameters[i];
        qn__output_tensor *t = qn__conversion_add(c);
        if (!t)
            return c->err->code;
        if (qn__output_from_parameter(c, t, p) != QN_OK)
            return c->err->code;
        qn__name_weight(t->name, sizeof t->name, QN__NAMES_GGUF, &place, p->id);
        if (t->ndim == 1)
            t->target = &qn__encodings[QN__F32];
        bool turned = p->id.role == QN__ROLE_Q || p->id.role == QN__ROLE_K;
        if (turned && kind->paired != (p->paired_rows != 0))
            t->head_rows = d->config.head_dim;
        t->into_pairs = kind->paired;
        qn__fuse_mark(c, t, p, turned && kind->paired);
        t->added = kind->norms_whole && p->plus_one ? 1 : 0;
    }
    return QN_OK;
}

static qn_status list_directory(qn__conversion *c, qn__gguf_keys *k)
{
    qn__gguf_layout kind;
    const qn__decoder_config *d = &c->decoder.config;
    if (qn__decoder_describe_source(&c->decoder, c->device, &c->source, c->err) != QN_OK ||
        qn__fuse_begin(c) != QN_OK || qn__gguf_put_model(c, k, &kind) != QN_OK ||
        list_decoder(c, &kind) != QN_OK)
        return c->err->code;
    qn__recipe_model m = {d->n_layers, d->n_heads, d->n_kv_heads, d->tied};
    if (choose_targets(c, &m) != QN_OK)
        return c->err->code;
    put_file_type(c, k);
    return qn__gguf_put_vocab(c, k);
}

/* ---- the file -------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint32_t type_number(const qn__output_tensor *t)
{
    if (t->target)
        return (uint32_t)t->target->ggml_type;
    if (t->from->encoding)
        return (uint32_t)qn__encodings[qn__encoding_named(t->from->encoding)].ggml_type;
    switch (t->from->dtype) {
    case QN_I8: return 24;
    case QN_I16: return 25;
    case QN_I32: return 26;
    case QN_I64: return 27;
    default: return 28;
    }
}

/* A file of those that a model is cut into: tensors first .. end - 1. */
typedef struct gguf_part {
    size_t first, end;
    char *path;
    qn__writer *writer; /* NULL: not open */
} gguf_part;

/* Everything up to the weights. */
static void put_header(const qn__conversion *c, const gguf_part *p, const qn__gguf_keys *k,
                       qn__gguf_keys *out)
{
    const uint32_t version = 3;
    const uint64_t n_tensors = p->end - p->first;
    static const char zeros[ALIGNMENT];
    uint64_t offset = 0;
    qn__put_bytes(out, "GGUF", 4);
    qn__put_bytes(out, &version, 4);
    qn__put_bytes(out, &n_tensors, 8);
    qn__put_bytes(out, &k->n, 8);
    qn__put_bytes(out, k->text.data, k->text.n);
    for (size_t i = p->first; i < p->end; i++) {
        const qn__output_tensor *t = &c->tensors[i];
        uint32_t number = type_number(t), ndim = (uint32_t)t->ndim;
        qn__put_element(out, t->name, strlen(t->name));
        qn__put_bytes(out, &ndim, 4);
        for (int d = t->ndim - 1; d >= 0; d--)
            qn__put_bytes(out, &t->shape[d], 8);
        qn__put_bytes(out, &number, 4);
        qn__put_bytes(out, &offset, 8);
        offset += aligned(t->bytes);
    }
    qn__put_bytes(out, zeros, (size_t)(aligned(out->text.n) - out->text.n));
}

static qn_status write_weights(qn__conversion *c, const gguf_part *p)
{
    static const char zeros[ALIGNMENT];
    for (size_t i = p->first; i < p->end; i++) {
        const qn__output_tensor *t = &c->tensors[i];
        if (qn__write_tensor(c, p->writer, t) != QN_OK ||
            qn__writer_write(p->writer, zeros, (size_t)(aligned(t->bytes) - t->bytes), c->err) !=
                QN_OK)
            return c->err->code;
    }
    return QN_OK;
}

/* Writes a part up to its commit. */
static qn_status write_part(qn__conversion *c, gguf_part *p, const qn__gguf_keys *keys)
{
    qn__gguf_keys header = {0};
    put_header(c, p, keys, &header);
    uint64_t all = header.text.n;
    for (size_t i = p->first; i < p->end; i++)
        all += aligned(c->tensors[i].bytes);
    qn_status status = QN_OK;
    if (header.failed || keys->failed)
        status = qn__fail_memory(c->err, "a GGUF file's metadata");
    else if (header.text.n > QN__GGUF_MAX_HEADER)
        status = qn__fail(c->err, QN_LIMIT, "%s: the metadata takes %zu bytes, more than %d",
                          p->path, header.text.n, QN__GGUF_MAX_HEADER);
    if (status == QN_OK)
        status = qn__writer_open(&p->writer, p->path, all,
                                 c->options->replace ? QN__WRITER_REPLACE : 0, c->err);
    if (status == QN_OK)
        status = qn__writer_write(p->writer, header.text.data, header.text.n, c->err);
    qn__keys_free(&header);
    return status == QN_OK ? write_weights(c, p) : status;
}

/* Where a part lies among the others: llama.cpp wants these types. */
static void put_place(const qn__conversion *c, qn__gguf_keys *k, size_t i, size_t count)
{
    qn__put_u16(k, "split.no", (uint16_t)i);
    qn__put_u16(k, "split.count", (uint16_t)count);
    qn__put_i32(k, "split.tensors.count", (int32_t)c->n_tensors);
}

/* The parts' tensors and names, OUT-00001-of-00003.gguf for OUT.gguf. */
static qn_status plan_parts(const qn__conversion *c, gguf_part *parts, size_t count)
{
    size_t at = 0, stem = strlen(c->out) - strlen(".gguf"), room = stem + 40;
    for (size_t i = 0; i < count; i++) {
        parts[i] = (gguf_part){.first = at, .end = qn__shard_end(c, at), .path = malloc(room)};
        at = parts[i].end;
        if (!parts[i].path)
            return qn__fail_memory(c->err, "a path");
        if (count == 1)
            snprintf(parts[i].path, room, "%s", c->out);
        else
            snprintf(parts[i].path, room, "%.*s-%05zu-of-%05zu.gguf", (int)stem, c->out, i + 1,
                     count);
    }
    return QN_OK;
}

/* The metadata go into the first part, which gets its name last: without it the others are none. */
static qn_status write_parts(qn__conversion *c, gguf_part *parts, size_t count, qn__gguf_keys *keys)
{
    for (size_t i = 0; i < count && c->err->code == QN_OK; i++) {
        qn__gguf_keys place = {0};
        if (count > 1)
            put_place(c, i ? &place : keys, i, count);
        write_part(c, &parts[i], i ? &place : keys);
        qn__keys_free(&place);
    }
    for (size_t i = count; i-- > 0;) {
        qn__writer *writer = parts[i].writer;
        if (writer && c->err->code == QN_OK)
            qn__writer_commit(writer, c->err);
        else if (writer)
            qn__writer_abort(writer);
    }
    return c->err->code;
}

static qn_status write_gguf_files(qn__conversion *c, qn__gguf_keys *keys)
{
    size_t count = qn__count_shards(c);
    if (count > QN__MAX_SHARDS)
        return qn__fail(c->err, QN_LIMIT, "%s: would be %zu files, more than %d", c->out, count,
                        QN__MAX_SHARDS);
    gguf_part *parts = calloc(count, sizeof *parts);
    if (!parts)
        return qn__fail_memory(c->err, "a table of files");
    for (size_t i = 0; i < c->n_tensors; i++)
        c->total += c->tensors[i].bytes;
    if (plan_parts(c, parts, count) == QN_OK)
        write_parts(c, parts, count, keys);
    for (size_t i = 0; i < count; i++)
        free(parts[i].path);
    free(parts);
    return c->err->code;
}

qn_status qn__convert_to_gguf(qn__conversion *c)
{
    qn__gguf_keys keys = {0};
    const qn__gguf *g = qn__tensors_gguf(c->source.tensors);
    qn_status status = g ? list_gguf(c, g, &keys) : list_directory(c, &keys);
    if (status == QN_OK)
        status = write_gguf_files(c, &keys);
    qn__keys_free(&keys);
    return status;
}
