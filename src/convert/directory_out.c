/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a directory: model.safetensors, or shards of it with an index, config.json and the
 * tokenizer's files, as Hugging Face has them, or with quantised matrices as mlx-lm has them: codes
 * in words of 32 bits as NAME.weight, NAME.scales and NAME.biases beside it, and bits and group in
 * config.json.
 *
 * It appears whole or not at all (base/directory.h).
 */
#include "base/directory.h"
#include "convert/convert.h"
#include "convert/tokenizer_out.h"
#include "core/device.h"
#include "io/safetensors.h"
#include "io/tensors.h"
#include "models/files.h"
#include "ops/ops.h"
#include "quant/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { USUAL_GROUP = 64 };

static const char single[] = "model.safetensors", index_name[] = "model.safetensors.index.json";
static const char *const written[] = {"config.json", single, index_name};

typedef struct layout {
    const qn__encoding *dense; /* NULL: as they are */
    int bits, group;
    bool mxfp4;
    cJSON *quantization; /* NULL: none */
} layout;

/* ---- tensors --------------------------------------------------------------------------------- */

static bool is_plain(const qn__encoding *e)
{
    return e && e->block_elements == 1;
}

static qn_status read_layout(qn__conversion *c, layout *l)
{
    const qn_convert_options *o = c->options;
    const char *dtype = o->dtype ? o->dtype : c->source.gguf && !o->packed ? "f16" : NULL;
    int dense = dtype ? qn__encoding_named(dtype) : -1;
    *l = (layout){.bits = (int)o->bits, .group = o->group_size ? (int)o->group_size : USUAL_GROUP};
    if (dtype && (dense < 0 || !is_plain(&qn__encodings[dense])))
        return qn__fail(c->err, QN_INVALID, "dtype \"%.40s\": it is f32, f16 or bf16", dtype);
    l->dense = dtype ? &qn__encodings[dense] : NULL;
    l->mxfp4 = o->mode && !strcmp(o->mode, "mxfp4");
    if (l->mxfp4) {
        l->bits = 4;
        l->group = 32;
    }
    if (o->bits && qn__encoding_affine(l->bits, l->group, QN__F16) < 0)
        return qn__fail(c->err, QN_INVALID,
                        "%d bits in groups of %d: there are 2, 3, 4, 5, 6 and 8 "
                        "bits in groups of 32, 64 and 128",
                        l->bits, l->group);
    return QN_OK;
}

/* The bits of a matrix; 0: it is not quantised, -1 with the error filled: its override is wrong. */
static int bits_of(const qn__conversion *c, const layout *l, const qn__parameter *p)
{
    bool head = p->id.role == QN__ROLE_HEAD || p->id.role == QN__ROLE_EMBEDDING;
    const char *override = p->ndim == 2 ? qn__override_for(c, p->name) : NULL;
    int bits = head && c->options->keep_head ? 0 : l->bits;
    if (override && !strcasecmp(override, "dense"))
        bits = 0;
    else if (override) {
        char *end;
        bits = (int)strtol(override, &end, 10);
        if (*end || !l->bits || (l->mxfp4 && bits != l->bits) ||
            qn__encoding_affine(bits, l->group, QN__F16) < 0) {
            qn__fail(
                c->err, QN_INVALID,
                "override \"%.40s\" of %s: it is 2, 3, 4, 5, 6 or 8 bits, where there are bits at "
                "all, or dense",
                override, p->name);
            return -1;
        }
    }
    return p->ndim == 2 && p->shape[1] % l->group == 0 ? bits : 0;
}

/* A layer's own bits, where they are not the model's. */
static bool note_bits(const layout *l, const qn__parameter *p, int bits, bool kept)
{
    char name[140];
    if (!l->quantization || bits == l->bits || (kept && !bits) || p->ndim != 2)
        return true;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(p->name) - strlen(".weight")), p->name);
    if (!bits)
        return cJSON_AddFalseToObject(l->quantization, name) != NULL;
    cJSON *own = cJSON_AddObjectToObject(l->quantization, name);
    return own && cJSON_AddNumberToObject(own, "group_size", l->group) &&
           cJSON_AddNumberToObject(own, "bits", bits);
}

static qn_status add_part(qn__conversion *c, const qn__output_tensor *like, const char *suffix,
                          qn__block_part part)
{
    qn__output_tensor base = *like, *t = qn__conversion_add(c); /* which may move the table */
    if (!t)
        return c->err->code;
    *t = base;
    t->part = part;
    if (part != QN__BLOCK_WHOLE) {
        size_t stem = strlen(t->name) - strlen("weight");
        snprintf(t->name + stem, sizeof t->name - stem, "%s", suffix);
    }
    return qn__output_measure(c, t);
}

/* What a tensor is without being quantised by this conversion: values of a directory's groups get
 * the type of their scales. */
static const qn__encoding *dense_of(const qn__output_tensor *t)
{
    if (!t->weight.kind)
        return t->source;
    return &qn__encodings[t->source->bits ? t->source->scale : QN__BF16];
}

/* The type of a packed matrix: a recipe's, by GGUF's name of it, or what it is. */
static qn_status choose_units(qn__conversion *c, const layout *l, const qn__parameter *p, int bits,
                              qn__output_tensor *t)
{
    static const qn__decoder_place place = {"", "", QN__NAMES_GGUF};
    const qn__decoder_config *d = &c->decoder.config;
    qn__recipe_model m = {d->n_layers, d->n_heads, d->n_kv_heads, d->tied};
    char name[140];
    t->units = true;
    qn__name_weight(name, sizeof name, QN__NAMES_GGUF, &place, p->id);
    const char *override = c->recipe ? qn__override_for(c, p->name) : NULL;
    int e;
    if (qn__output_choose(c, &m, override, name, p->shape[1], &e) != QN_OK)
        return c->err->code;
    if (e < 0 && bits)
        e = qn__encoding_affine(bits, l->group,
                                is_plain(t->target) ? (qn__encoding_id)(t->target - qn__encodings)
                                                    : QN__F16);
    t->target = e >= 0 ? &qn__encodings[e] : t->target;
    return add_part(c, t, NULL, QN__BLOCK_WHOLE);
}

/* The parts in which MLX keeps the blocks. */
static qn_status add_parts(qn__conversion *c, const qn__output_tensor *t)
{
    if (add_part(c, t, "weight", QN__BLOCK_CODES) != QN_OK ||
        add_part(c, t, "scales", QN__BLOCK_SCALE) != QN_OK)
        return c->err->code;
    return t->target->bits ? add_part(c, t, "biases", QN__BLOCK_BIAS) : QN_OK;
}

static qn_status add_parameter(qn__conversion *c, const layout *l, const qn__parameter *p)
{
    qn__output_tensor t = {0};
    int bits = bits_of(c, l, p);
    if (bits < 0)
        return c->err->code;
    bool kept = c->options->keep_head || p->shape[1] % l->group;
    if (!note_bits(l, p, bits, kept))
        return qn__fail_memory(c->err, "a configuration");
    if (qn__output_from_parameter(c, &t, p) != QN_OK)
        return c->err->code;
    snprintf(t.name, sizeof t.name, "%s", p->name);
    t.head_rows = p->paired_rows;
    t.added = c->source.norms_whole && p->ndim == 1 ? -1 : 0;
    qn__fuse_mark(c, &t, p, false);
    if (c->options->packed && p->ndim == 2) {
        t.target = l->dense ? l->dense : t.source;
        return choose_units(c, l, p, bits, &t);
    }
    t.target = t.dense = l->dense ? l->dense : dense_of(&t);
    if (!bits && !is_plain(t.target))
        return qn__fail(c->err, QN_UNSUPPORTED,
                        "%s: tensor %s is %s, which a directory has no form for; a dtype, bits or "
                        "packed weights give it one",
                        c->source.path, p->stored, t.target->name);
    if (!bits)
        return add_part(c, &t, NULL, QN__BLOCK_WHOLE);
    qn__encoding_id scale =
        is_plain(t.target) ? (qn__encoding_id)(t.target - qn__encodings) : QN__F16;
    t.target = &qn__encodings[l->mxfp4 ? QN__MXFP4 : qn__encoding_affine(bits, l->group, scale)];
    return add_parts(c, &t);
}

static qn_status list_tensors(qn__conversion *c, const layout *l)
{
    if (qn__decoder_describe_source(&c->decoder, c->device, &c->source, c->err) != QN_OK ||
        qn__fuse_begin(c) != QN_OK)
        return c->err->code;
    if (c->source.gguf && qn_tensors_find(c->source.tensors, "rope_freqs.weight"))
        return qn__fail(
            c->err, QN_UNSUPPORTED,
            "%s: its frequencies are a tensor (rope_freqs.weight), of which config.json "
            "has the rule only",
            c->source.path);
    if (c->decoder.config.byte_rows)
        return qn__fail(c->err, QN_UNSUPPORTED,
                        "%s: ternary layers have no other form in a directory; GGUF has tq1_0, "
                        "tq2_0 and i2_s",
                        c->source.path);
    for (int i = 0; i < c->decoder.n_parameters; i++)
        if (add_parameter(c, l, &c->decoder.parameters[i]) != QN_OK)
            return c->err->code;
    return QN_OK;
}

static qn_dtype dtype_of(const qn__output_tensor *t)
{
    int e = (int)(t->target - qn__encodings);
    e = t->part == QN__BLOCK_WHOLE ? e : t->target->scale;
    if (t->units)
        return QN_U8;
    if (t->part == QN__BLOCK_CODES)
        return QN_U32;
    if (t->part == QN__BLOCK_SCALE && !t->target->bits)
        return QN_U8;
    return e == QN__F32 ? QN_F32 : e == QN__F16 ? QN_F16 : QN_BF16;
}

static qn_status put_tensor(void *user, qn__writer *writer, const qn__tensor_data *t, qn_error *err)
{
    (void)err; /* the conversion's own, the same */
    return qn__write_tensor(user, writer, t->data);
}

/* ---- the other files ------------------------------------------------------------------------- */

static void describe_tensor(qn__tensor_data *out, const qn__output_tensor *t)
{
    *out = (qn__tensor_data){.name = t->name, .dtype = dtype_of(t), .ndim = t->ndim, .data = t};
    memcpy(out->shape, t->shape, sizeof t->shape);
    if (t->units) {
        out->ndim = 1;
        out->shape[0] = (int64_t)t->bytes;
    } else if (t->part == QN__BLOCK_CODES)
        out->shape[1] = t->columns * (t->target->bits ? t->target->bits : 4) / 32;
    else if (t->part != QN__BLOCK_WHOLE)
        out->shape[1] = t->columns / t->target->block_elements;
}

/* What the file says of itself, and of packed matrices by their names: see models/weight.h. */
typedef struct file_notes {
    qn__metadata *list;
    char (*texts)[60];
    size_t n;
} file_notes;

static qn_status make_notes(const qn__conversion *c, file_notes *notes)
{
    notes->list = calloc(c->n_tensors + 2, sizeof *notes->list);
    notes->texts = calloc(c->n_tensors + 2, sizeof *notes->texts);
    if (!notes->list || !notes->texts)
        return qn__fail_memory(c->err, "metadata");
    bool packed = c->options->packed, mlx = false;
    for (size_t i = 0; i < c->n_tensors; i++)
        mlx = mlx || c->tensors[i].part != QN__BLOCK_WHOLE;
    notes->list[notes->n++] = (qn__metadata){"format", mlx ? "mlx" : packed ? "quern" : "pt"};
    if (packed)
        notes->list[notes->n++] = (qn__metadata){"units", QN__UNITS_VERSION};
    for (size_t i = 0; i < c->n_tensors; i++) {
        const qn__output_tensor *t = &c->tensors[i];
        if (!t->units)
            continue;
        snprintf(notes->texts[i], sizeof notes->texts[i], "%s %lld %lld", t->target->name,
                 (long long)t->rows, (long long)t->columns);
        notes->list[notes->n++] = (qn__metadata){t->name, notes->texts[i]};
    }
    return QN_OK;
}

/* One file of `count`; its tensors' names go into `map`, where there is one. */
static qn_status write_shard(qn__conversion *c, const file_notes *notes, const char *directory,
                             size_t i, size_t count, const qn__tensor_data *tensors, size_t n,
                             cJSON *map)
{
    char name[60];
    snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, count);
    char *path = qn__path_join(directory, count > 1 ? name : single);
    qn_status status = path ? qn__safetensors_write_with(path, tensors, n, notes->list, notes->n,
                                                         put_tensor, c, c->err)
                            : qn__fail_memory(c->err, "a path");
    for (size_t j = 0; j < n && map && status == QN_OK; j++)
        if (!cJSON_AddStringToObject(map, tensors[j].name, name))
            status = qn__fail_memory(c->err, "an index");
    free(path);
    return status;
}

static qn_status write_safetensors(qn__conversion *c, const char *directory)
{
    size_t count = qn__count_shards(c), at = 0;
    qn__tensor_data *list = calloc(c->n_tensors + 1, sizeof *list);
    file_notes notes = {0};
    cJSON *index = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(index, "metadata"),
          *map = cJSON_AddObjectToObject(index, "weight_map");
    qn_status status = list && metadata && map ? QN_OK : qn__fail_memory(c->err, "a table");
    if (status == QN_OK && count > QN__MAX_SHARDS)
        status = qn__fail(c->err, QN_LIMIT, "%s: would be %zu files, more than %d", c->out, count,
                          QN__MAX_SHARDS);
    if (status == QN_OK)
        status = make_notes(c, &notes);
    for (size_t i = 0; i < c->n_tensors && status == QN_OK; i++) {
        describe_tensor(&list[i], &c->tensors[i]);
        c->total += c->tensors[i].bytes;
    }
    for (size_t i = 0; i < count && status == QN_OK; i++) {
        size_t end = qn__shard_end(c, at);
        status = write_shard(c, &notes, directory, i, count, list + at, end - at,
                             count > 1 ? map : NULL);
        at = end;
    }
    if (status == QN_OK && count > 1)
        status = cJSON_AddNumberToObject(metadata, "total_size", (double)c->total)
                     ? qn__json_write(index, directory, index_name, c->err)
                     : qn__fail_memory(c->err, "an index");
    cJSON_Delete(index);
    free(notes.list);
    free(notes.texts);
    free(list);
    return status;
}

static bool set_text(cJSON *object, const char *key, const char *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    return cJSON_AddStringToObject(object, key, value) != NULL;
}

/* The weights are no longer quantised as the source's were. */
static void forget_quantization(cJSON *config)
{
    static const char *const keys[] = {"quantization", "quantization_config", "compression_config"};
    for (size_t i = 0; config && i < sizeof keys / sizeof *keys; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, keys[i]);
    if (config)
        forget_quantization(cJSON_GetObjectItemCaseSensitive(config, "text_config"));
}

/* The configuration says of what type the weights are now, and how they are quantised. */
static qn_status write_config(qn__conversion *c, const layout *l, const char *directory)
{
    static const char *const names[] = {"float32", "float16", "bfloat16"};
    static const char *const keys[] = {"quantization", "quantization_config"};
    cJSON *config = c->source.config;
    bool ok = true;
    forget_quantization(config);
    if (l->dense) {
        bool newer = cJSON_HasObjectItem(config, "dtype");
        ok = set_text(config, newer ? "dtype" : "torch_dtype", names[l->dense - qn__encodings]);
    }
    bool packed = c->options->packed;
    if (packed && !c->decoder.config.dtype_given && !l->dense) {
        qn_dtype type = c->decoder.config.dtype;
        ok = ok && set_text(config, "torch_dtype",
                            names[type == QN_F16    ? 1
                                  : type == QN_BF16 ? 2
                                                    : 0]);
    }
    for (int i = 0; i < 2 && ok && l->quantization && !packed; i++) {
        cJSON *copy = cJSON_Duplicate(l->quantization, true);
        ok = copy && cJSON_AddItemToObject(config, keys[i], copy);
    }
    return ok ? qn__json_write(config, directory, "config.json", c->err)
              : qn__fail_memory(c->err, "a configuration");
}

/* The tokenizer and the templates that stand in a GGUF file's metadata. */
static qn_status write_tokenizer(qn__conversion *c, const char *directory)
{
    const qn__gguf *g = qn__tensors_gguf(c->source.tensors);
    qn_tokenizer *t = NULL;
    qn__template_set set = {0};
    qn_text json = {0};
    cJSON *config = NULL;
    qn_error missing = {0};
    qn_status status = qn_tokenizer_open(&t, c->source.path, &missing);
    if (status != QN_OK && status != QN_MEMORY) {
        qn__log(c->device, QN_LOG_WARN, "%s; no tokenizer is written", missing.message);
        return QN_OK;
    }
    if (status != QN_OK)
        return qn__fail(c->err, status, "%s", missing.message);
    char *path = qn__path_join(directory, "tokenizer.json");
    status = path ? qn__template_set_read(&set, c->source.path, c->err)
                  : qn__fail_memory(c->err, "a path");
    if (status == QN_OK)
        status = qn__tokenizer_json(t, g, &json, c->err);
    if (status == QN_OK)
        status = qn__file_write(path, json.data, json.n, 0, c->err);
    if (status == QN_OK &&
        !(config = qn__tokenizer_config(t, g, &set, c->decoder.config.max_positions, c->err)))
        status = c->err->code;
    if (status == QN_OK)
        status = qn__json_write(config, directory, "tokenizer_config.json", c->err);
    free(path);
    cJSON_Delete(config);
    qn_text_free(&json);
    qn__template_set_free(&set);
    qn_tokenizer_close(t);
    return status;
}

static qn_status write_files(qn__conversion *c, const layout *l, const char *directory)
{
    qn_status status = write_safetensors(c, directory);
    if (status == QN_OK)
        status = write_config(c, l, directory);
    if (status == QN_OK && !c->source.gguf)
        status = qn__model_files_copy(c->source.path, directory, c->err);
    if (status == QN_OK && c->source.generation)
        status = qn__json_write(c->source.generation, directory, "generation_config.json", c->err);
    if (status == QN_OK && c->source.gguf)
        status = write_tokenizer(c, directory);
    return status;
}

/* ---- the directory --------------------------------------------------------------------------- */

static bool is_shard(const char *name)
{
    unsigned i, n;
    int length = 0;
    return sscanf(name, "model-%5u-of-%5u.safetensors%n", &i, &n, &length) == 2 && length > 0 &&
           !name[length];
}

static bool is_ours(const char *name)
{
    bool ours = is_shard(name) || qn__is_model_file(name);
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        ours = ours || !strcmp(name, written[i]);
    return ours;
}

qn_status qn__convert_to_directory(qn__conversion *c)
{
    layout l;
    qn__directory out;
    if (qn__directory_begin(&out, c->out, c->options->replace, is_ours, c->err) != QN_OK)
        return c->err->code;
    if (read_layout(c, &l) == QN_OK && l.bits &&
        !((l.quantization = cJSON_CreateObject()) &&
          cJSON_AddNumberToObject(l.quantization, "group_size", l.group) &&
          cJSON_AddNumberToObject(l.quantization, "bits", l.bits) &&
          cJSON_AddStringToObject(l.quantization, "mode", l.mxfp4 ? "mxfp4" : "affine")))
        qn__fail_memory(c->err, "a configuration");
    if (c->err->code == QN_OK && list_tensors(c, &l) == QN_OK)
        write_files(c, &l, out.temporary);
    qn__directory_end(&out, c->err->code, c->err);
    cJSON_Delete(l.quantization);
    return c->err->code;
}
