/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: the configuration picks the family, the family's description lists the weights it needs,
 * each is found in the files, and all are filled (fill.c), straight into the layout the device
 * wants, so a weight is in memory once.
 */
#include "models/load.h"

#include "base/error.h"
#include "base/file.h"
#include "core/device.h"
#include "core/dtype.h"
#include "quern/io.h"
#include "models/family.h"
#include "models/fill.h"
#include "models/weight.h"
#include "models/source.h"

#include <stdio.h>
#include <stdlib.h>

enum { COMPARED = 1 << 20, DESCRIBED = 1 << 20 };

static qn_status unknown_family(const qn__json_at *config, const char *type, qn_error *err)
{
    char names[200];
    size_t n = 0;
    for (int i = 0; qn__families[i] && n < sizeof names - 40; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "",
                              qn__families[i]->model_type);
    return qn__json_fail(config, QN_UNSUPPORTED, err,
                         "model_type \"%s\" is not supported; there %s "
                         "%s",
                         type, qn__families[1] ? "are" : "is", names);
}

static const qn__family *family_named(const char *type)
{
    for (int i = 0; qn__families[i]; i++)
        if (!strcmp(qn__families[i]->model_type, type))
            return qn__families[i];
    return NULL;
}

/* ---- where the file keeps it
 * ------------------------------------------------------------------------------ */

/* Alone; inside a checkpoint that reads images, by three conventions; without any prefix. */
static const qn__decoder_place places[] = {
    {"model.", "", QN__NAMES_HUGGING_FACE},
    {"language_model.model.", "language_model.", QN__NAMES_HUGGING_FACE},
    {"model.language_model.", "", QN__NAMES_HUGGING_FACE},
    {"language_model.", "language_model.", QN__NAMES_HUGGING_FACE},
    {"", "", QN__NAMES_HUGGING_FACE}};
static const qn__decoder_place gguf_place = {"model.", "", QN__NAMES_GGUF};
static const qn__decoder_place meta_place = {"model.", "", QN__NAMES_META};

static const qn_tensor_info *find_behind(const qn_tensors *file, const char *prefix,
                                         const char *name)
{
    char full[120];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return qn_tensors_find(file, full);
}

/* The place where the embedding is; the first, whose absence will be reported, where it is nowhere.
 */
static const qn__decoder_place *find_place(const qn_tensors *file)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (find_behind(file, places[i].prefix, "embed_tokens.weight"))
            return &places[i];
    return qn_tensors_find(file, "tok_embeddings.weight") ? &meta_place : &places[0];
}

/* model_type where config.json has none: some converters of Qwens leave it out. NULL: nothing
 * tells. */
static const char *type_of_weights(const qn_tensors *file)
{
    const char *prefix = find_place(file)->prefix;
    if (find_behind(file, prefix, "layers.0.self_attn.q_norm.weight"))
        return find_behind(file, prefix, "layers.0.pre_feedforward_layernorm.weight") ? NULL
                                                                                      : "qwen3";
    bool biased = find_behind(file, prefix, "layers.0.self_attn.q_proj.bias") &&
                  !find_behind(file, prefix, "layers.0.self_attn.o_proj.bias");
    return biased ? "qwen2" : NULL;
}

static qn_status read_family(const qn__json_at *config, const qn_tensors *weights,
                             qn__decoder_config *out, qn__quantization *quantization, qn_error *err)
{
    qn__json_at at;
    const char *type = NULL;
    if (!qn__json_find(config, "model_type", &at) && weights)
        type = type_of_weights(weights);
    if (!type && qn__json_get_string(config, "model_type", &type, err) != QN_OK)
        return err->code;
    const qn__family *family = family_named(type);
    if (!family)
        return unknown_family(config, type, err);
    if (qn__quantization_read(config, quantization, err) != QN_OK)
        return err->code;
    memset(out, 0, sizeof *out);
    snprintf(out->family, sizeof out->family, "%s", type);
    if (family->configure(config, out, err) != QN_OK)
        return err->code;
    bool ternary = qn__json_find(config, "quantization_config", &at) && qn__is_ternary(&at);
    return ternary ? qn__config_ternary(&at, out, err) : QN_OK;
}

/* The family's description, and the weights opened; these first where they have to tell the family.
 */
static qn_status read_source(qn__source *source, qn__decoder_config *out, qn_error *err)
{
    qn__json_at config = qn__json_root(source->config_path, source->config), type;
    bool untold = !qn__json_find(&config, "model_type", &type);
    if (untold && qn__source_open_tensors(source, err) != QN_OK)
        return err->code;
    if (read_family(&config, source->tensors, out, &source->quantization, err) != QN_OK)
        return err->code;
    if (source->norms_whole)
        out->norm_plus_one = false;
    out->byte_rows = out->byte_rows || source->byte_rows;
    return qn__source_open_tensors(source, err);
}

/* ---- weights
 * -----------------------------------------------------------------------------------------------
 */

typedef struct loader {
    qn_device *device;
    qn__source *source;
    const qn_tensors *file;     /* the source's */
    qn__random_weights *random; /* NULL: they are the file's */
    qn__weight *weights;        /* of each parameter */
    float *divisors;            /* of the frequencies, half a head of them; NULL: none */
    qn__load_progress *progress;
    void *user;
    bool describe; /* headers are read, of values DESCRIBED bytes at most */
    qn_error *err;
} loader;

static const qn__parameter *find_parameter(const qn__decoder *m, const char *name)
{
    for (int i = 0; i < m->n_parameters; i++)
        if (!strcmp(m->parameters[i].stored, name))
            return &m->parameters[i];
    return NULL;
}

/* Whether it holds codes, scales, a factor or such of a parameter. */
static bool is_beside(const loader *l, const qn__decoder *m, const char *name)
{
    char of[140];
    size_t stem;
    if (!qn__weight_beside(name, &l->source->quantization, &stem))
        return false;
    snprintf(of, sizeof of, "%.*s.weight", (int)(stem < 120 ? stem : 120), name);
    const qn__parameter *p = find_parameter(m, of);
    bool ternary = p && (p->ternary == QN__TERNARY_TIMES || p->ternary == QN__TERNARY_OVER);
    return p && (l->source->quantization.kind ||
                 ((strcmp(name + stem, ".weight_scale") != 0 || ternary) &&
                  (strcmp(name + stem, ".scale") != 0 || (p->factor && !p->ternary))));
}

/* Tensors that the family does not know are not read; a line in the log says so, since they may
 * mean that config.json leaves something out. Rotary tables in old files are the harmless case. */
static void warn_of_unread(const loader *l, const qn__decoder *m)
{
    size_t n = 0, length = 0;
    char names[300] = "";
    for (size_t i = 0; i < qn_tensors_count(l->file); i++) {
        const char *name = qn_tensors_get(l->file, i)->name;
        if (find_parameter(m, name) || is_beside(l, m, name) ||
            strstr(name, "rotary_emb.inv_freq") || !strcmp(name, "rope.freqs") ||
            (l->source->gguf && !strcmp(name, "rope_freqs.weight")) ||
            (m->config.tied && strstr(name, "lm_head.weight")))
            continue;
        if (n++ < 3)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%.80s",
                                       length ? ", " : "", name);
    }
    if (n)
        qn__log(l->device, QN_LOG_WARN,
                "%s: %zu tensor%s not part of a %s as %s describes it and %s not "
                "read: %s%s",
                qn_tensors_path(l->file, 0), n, n > 1 ? "s are" : " is", m->config.family,
                qn__source_config_name(l->source), n > 1 ? "were" : "was", names,
                n > 3 ? " ..." : "");
}

static qn_status find_weight(const loader *l, const qn__decoder *m, const qn__parameter *p,
                             qn__weight *out)
{
    if (l->random)
        return qn__random_find(out, l->random, p, l->err);
    char what[80];
    snprintf(what, sizeof what, "a %s of %lld layers", m->config.family,
             (long long)m->config.n_layers);
    return qn__weight_find(out, l->file, p, &l->source->quantization, what,
                           qn__source_config_name(l->source), l->err);
}

/* Checks that each parameter is there as the family needs it, and adds up what they take. */
static qn_status check_weights(loader *l, qn__decoder *m)
{
    qn__decoder_sizes *sizes = &m->sizes;
    *sizes = (qn__decoder_sizes){0};
    l->weights = calloc((size_t)m->n_parameters + 1, sizeof *l->weights);
    if (!l->weights)
        return qn__fail_memory(l->err, "a list of weights");
    for (int i = 0; i < m->n_parameters; i++) {
        const qn__parameter *p = &m->parameters[i];
        qn__weight *w = &l->weights[i];
        if (find_weight(l, m, p, w) != QN_OK)
            return l->err->code;
        /* bitnet.cpp's own type, whatever the architecture, meets one scale a row */
        if (l->source->gguf && w->encoding == &qn__encodings[QN__I2_S])
            m->config.byte_rows = true;
        uint64_t n = (uint64_t)(p->shape[0] * (p->ndim == 2 ? p->shape[1] : 1));
        size_t packed = n * sizeof(float);
        if (p->ndim == 2)
            qn__packed_bytes(l->device, w->encoding, p->shape[0], p->shape[1], &packed);
        sizes->parameters += n;
        sizes->file_bytes += w->bytes;
        sizes->encoding_bytes[w->encoding - qn__encodings] += w->bytes;
        sizes->device_bytes += packed;
    }
    return QN_OK;
}

/* The frequencies of one kind of layers, over their divisors if any, retained; NULL with *err
 * filled on failure. */
static qn_array *make_frequency(const qn__rope_config *rope, int64_t head_dim,
                                const float *divisors, qn_device *device, qn_error *err)
{
    int64_t n = head_dim / 2;
    float *values = malloc((size_t)n * sizeof *values);
    qn_scope *s = values ? qn_scope_begin(device) : NULL;
    if (values)
        qn__rope_frequencies(rope, (int)n, values);
    for (int64_t i = 0; values && divisors && i < n; i++)
        values[i] /= divisors[i];
    qn_array *a = qn_from_f32(s, values, n), *kept = NULL;
    if (qn_eval(s, a) == QN_OK)
        kept = qn_retain(a);
    if (!kept)
        qn__fail(err, qn_scope_status(s), "%s", qn_scope_error(s));
    qn_scope_end(s);
    free(values);
    return kept;
}

static qn_status make_frequencies(const loader *l, qn__decoder *m)
{
    const qn__decoder_config *c = &m->config;
    qn_error *err = l->err;
    m->frequency = make_frequency(&c->rope, c->head_dim, l->divisors, l->device, err);
    if (m->frequency && c->sliding_rope.theta > 0)
        m->sliding_frequency = make_frequency(&c->sliding_rope, c->head_dim, NULL, l->device, err);
    return m->frequency && (m->sliding_frequency || c->sliding_rope.theta == 0) ? QN_OK : err->code;
}

/* The widest of some encodings of matrices that would fit, a tenth of the room left for all else;
 * NULL: none. */
static const char *what_fits(const loader *l, const qn__decoder *m, size_t room)
{
    static const struct {
        int encoding;
        double bits;
    } narrower[] = {{QN__BF16, 16},  {QN__Q8_0, 8.5},    {QN__Q6_K, 6.5625}, {QN__Q5_K, 5.5},
                    {QN__Q4_K, 4.5}, {QN__Q3_K, 3.4375}, {QN__Q2_K, 2.625}};
    for (size_t i = 0; i < sizeof narrower / sizeof *narrower; i++) {
        const qn__encoding *e = &qn__encodings[narrower[i].encoding];
        qn_dtype dtype;
        qn__layout_id layout;
        double bytes = (double)m->sizes.parameters * narrower[i].bits / 8;
        if (bytes <= 0.9 * (double)room && bytes < (double)m->sizes.device_bytes &&
            l->device->ops->hold(l->device, e, &dtype, &layout))
            return e->name;
    }
    return NULL;
}

/* Whether the device has room for the weights, before any is read. */
static qn_status check_room(const loader *l, const qn__decoder *m)
{
    size_t room = qn__pool_room(l->device), bytes = m->sizes.device_bytes;
    if (bytes <= room)
        return QN_OK;
    const char *fits = what_fits(l, m, room);
    qn__size_text wanted, there, missing;
    return qn__fail(l->err, l->device->pool.limit ? QN_LIMIT : QN_MEMORY,
                    "%s: the weights need %s, and %s are there%s: %s are missing%s%s%s",
                    l->device->name, qn__say_size(bytes, &wanted), qn__say_size(room, &there),
                    l->device->pool.limit ? " within the limit" : "",
                    qn__say_size(bytes - room, &missing), fits ? "; as " : "", fits ? fits : "",
                    fits ? " they would fit" : "");
}

/* All values of a decoder whose weights were found. */
static qn_status fill(const loader *l, qn__decoder *m)
{
    if (check_room(l, m) != QN_OK)
        return l->err->code;
    qn__fill from = {l->device, l->file, l->random, l->weights, l->progress, l->user};
    return qn__decoder_fill(m, &from, l->err) == QN_OK ? make_frequencies(l, m) : l->err->code;
}

static qn_status end_loader(loader *l, qn__decoder *m)
{
    free(l->divisors);
    free(l->weights);
    if (l->err->code != QN_OK)
        qn__decoder_end(m);
    return l->err->code;
}

/* The divisors that a GGUF file has for the frequencies in the place of a rule: Llama 3's. */
static qn_status read_divisors(loader *l, int64_t head_dim)
{
    const qn_tensor_info *t =
        l->source->gguf ? qn_tensors_find(l->file, "rope_freqs.weight") : NULL;
    if (!t)
        return QN_OK;
    const char *path = qn_tensors_path(l->file, t->file);
    if (t->encoding || t->dtype != QN_F32 || t->ndim != 1 || t->shape[0] != head_dim / 2)
        return qn__fail(l->err, QN_FORMAT,
                        "%s: tensor %s: expected %lld divisors in f32, got a %s of %lld", path,
                        t->name, (long long)(head_dim / 2),
                        t->encoding ? t->encoding : qn_dtype_name(t->dtype),
                        (long long)(t->ndim > 0 ? t->shape[0] : 1));
    if (!(l->divisors = malloc((size_t)t->bytes)))
        return qn__fail_memory(l->err, "rotary frequencies");
    if (qn_tensors_read_bytes(l->file, t, 0, (size_t)t->bytes, l->divisors, l->err) != QN_OK)
        return l->err->code;
    for (int64_t i = 0; i < head_dim / 2; i++)
        if (!(l->divisors[i] >= 1e-6f && l->divisors[i] <= 1e6f))
            return qn__fail(l->err, QN_FORMAT, "%s: tensor %s: divisor %lld is %g", path, t->name,
                            (long long)i, (double)l->divisors[i]);
    return QN_OK;
}

/* The type of the embedding, for a configuration that names none. GGUF's blocks have scales in f16,
 * and llama.cpp keeps keys and values so. */
static qn_dtype dtype_of_weights(const qn_tensors *file, const qn__decoder_place *place)
{
    char name[120];
    qn__name_weight(name, sizeof name, place->convention, place,
                    (qn__weight_id){QN__ROLE_EMBEDDING, -1, "weight"});
    const qn_tensor_info *t = qn_tensors_find(file, name);
    if (t && t->dtype == QN_U32) { /* codes: their scales have it */
        size_t stem = strlen(name) - strlen("weight");
        snprintf(name + stem, sizeof name - stem, "scales");
        t = qn_tensors_find(file, name);
    }
    if (t && t->encoding)
        return QN_F16;
    return t && (t->dtype == QN_BF16 || t->dtype == QN_F16) ? t->dtype : QN_F32;
}

/* ---- the head
 * ---------------------------------------------------------------------------------------------- */

/* Whether two tensors are the same, to the byte, in their first `most` bytes; false also where they
 * cannot be read. Where they lie in one place, as PyTorch's tied weights do, nothing is. */
static bool same_values(const qn_tensors *file, const qn_tensor_info *a, const qn_tensor_info *b,
                        uint64_t most)
{
    if (a->dtype != b->dtype || a->ndim != b->ndim ||
        memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return false;
    if (a->file == b->file && a->member == b->member && a->offset == b->offset && !a->layout &&
        !b->layout)
        return true;
    most = most < a->bytes ? most : a->bytes;
    char *both = malloc(2 * COMPARED);
    bool same = both != NULL;
    for (uint64_t at = 0; same && at < most; at += COMPARED) {
        size_t n = most - at < COMPARED ? (size_t)(most - at) : COMPARED;
        same = qn_tensors_read_bytes(file, a, at, n, both, NULL) == QN_OK &&
               qn_tensors_read_bytes(file, b, at, n, both + COMPARED, NULL) == QN_OK &&
               memcmp(both, both + COMPARED, n) == 0;
    }
    free(both);
    return same;
}

/* A file may have a head of its own although config.json says that it is the embedding: then it
 * counts, as in transformers 5 (4 dropped it). */
static void take_own_head(const loader *l, const qn__decoder_place *place,
                          qn__decoder_config *config)
{
    const qn_tensor_info *head = find_behind(l->file, place->head_prefix, "lm_head.weight");
    const qn_tensor_info *embedding = find_behind(l->file, place->prefix, "embed_tokens.weight");
    uint64_t most = l->describe ? DESCRIBED : UINT64_MAX;
    if (!config->tied || !head || !embedding || same_values(l->file, head, embedding, most))
        return;
    config->tied = false;
    qn__log(l->device, QN_LOG_WARN,
            "%s: %s differs from the embedding and is used, although config.json ties them "
            "(tie_word_embeddings)",
            qn_tensors_path(l->file, head->file), head->name);
}

/* Opens the files, lists the decoder's parameters and checks them against the files. */
static qn_status open_decoder(loader *l, qn__decoder *m)
{
    qn__decoder_config config;
    if (read_source(l->source, &config, l->err) != QN_OK)
        return l->err->code;
    l->file = l->source->tensors;
    const qn__decoder_place *place = l->source->gguf ? &gguf_place : find_place(l->file);
    if (!config.dtype_given)
        config.dtype = dtype_of_weights(l->file, place);
    if (!l->source->gguf)
        take_own_head(l, place, &config);
    if (l->source->quantization.activations)
        qn__log(
            l->device, QN_LOG_WARN,
            "%s: input_activations are not applied: what is multiplied is not rounded to 8 bits "
            "for each token",
            l->source->config_path);
    if (config.rope.unread_factor)
        qn__log(l->device, QN_LOG_WARN,
                "%s: attn_factor is not applied, as in transformers; vLLM and llama.cpp multiply "
                "queries and keys by it",
                l->source->config_path);
    if (qn__decoder_begin(m, &config, place, l->err) != QN_OK)
        return l->err->code;
    bool paired = l->source->paired || place->convention == QN__NAMES_META;
    for (int i = 0; paired && i < m->n_parameters; i++)
        if (m->parameters[i].id.role == QN__ROLE_Q || m->parameters[i].id.role == QN__ROLE_K)
            m->parameters[i].paired_rows = config.head_dim;
    warn_of_unread(l, m);
    if (check_weights(l, m) != QN_OK)
        return l->err->code;
    return read_divisors(l, config.head_dim);
}

qn_status qn__decoder_load_source(qn__decoder *m, qn_device *device, qn__source *source,
                                  qn__load_progress *progress, void *user, qn_error *err)
{
    *m = (qn__decoder){0};
    loader l = {.device = device, .source = source, .progress = progress, .user = user, .err = err};
    if (open_decoder(&l, m) == QN_OK)
        fill(&l, m);
    return end_loader(&l, m);
}

qn_status qn__decoder_load_random(qn__decoder *m, qn_device *device, qn__source *source,
                                  qn__random_weights *weights, qn_error *err)
{
    qn__decoder_config config;
    qn__json_at root = qn__json_root(source->config_path, source->config);
    *m = (qn__decoder){0};
    loader l = {.device = device, .source = source, .random = weights, .err = err};
    bool read = read_family(&root, NULL, &config, &source->quantization, err) == QN_OK;
    if (read && !config.dtype_given) /* as checkpoints are, unless it is to be f32 */
        config.dtype = weights->matrices == &qn__encodings[QN__F32] ? QN_F32 : QN_BF16;
    if (read && qn__decoder_begin(m, &config, &places[0], err) == QN_OK &&
        check_weights(&l, m) == QN_OK && qn__random_begin(weights, config.hidden, err) == QN_OK)
        fill(&l, m);
    qn__random_end(weights);
    return end_loader(&l, m);
}

qn_status qn__decoder_describe_source(qn__decoder *m, qn_device *device, qn__source *source,
                                      qn_error *err)
{
    *m = (qn__decoder){0};
    loader l = {.device = device, .source = source, .describe = true, .err = err};
    open_decoder(&l, m);
    return end_loader(&l, m);
}

qn_status qn__decoder_load(qn__decoder *m, qn_device *device, const char *path,
                           qn__load_progress *progress, void *user, qn_error *err)
{
    qn__source source;
    *m = (qn__decoder){0};
    qn_status status = qn__source_open(&source, path, err);
    if (status == QN_OK)
        status = qn__decoder_load_source(m, device, &source, progress, user, err);
    qn__source_close(&source);
    return status;
}
