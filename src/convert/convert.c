/* SPDX-License-Identifier: Apache-2.0
 *
 * qn_convert: checks what is asked for, opens the source, and hands over to the writer of the
 * output's kind.
 */
#include "convert/convert.h"

#include "base/sized.h"
#include "core/device.h"
#include "io/tensors.h"
#include "ops/ops.h"
#include "quant/layout.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MOST_OVERRIDES = 1000 };

/* ---- the list of tensors --------------------------------------------------------------------- */

qn__output_tensor *qn__conversion_add(qn__conversion *c)
{
    if (!qn__grow_table((void **)&c->tensors, c->n_tensors, &c->capacity, sizeof *c->tensors)) {
        qn__fail_memory(c->err, "a table of tensors");
        return NULL;
    }
    c->tensors[c->n_tensors] = (qn__output_tensor){0};
    return &c->tensors[c->n_tensors++];
}

void qn__output_from(qn__output_tensor *t, const qn_tensor_info *from)
{
    int named = from->encoding ? qn__encoding_named(from->encoding) : -1;
    t->from = from;
    t->ndim = from->ndim;
    memcpy(t->shape, from->shape, sizeof t->shape);
    t->source = named >= 0 ? &qn__encodings[named] : NULL;
    if (!from->encoding &&
        (from->dtype == QN_F32 || from->dtype == QN_F16 || from->dtype == QN_BF16))
        t->source = qn__encoding_of_dtype(from->dtype);
    if (named == QN__I2_S) /* its scale stands behind all rows */
        t->source = NULL;
    t->target = t->source;
    t->rows = t->columns = 1;
    for (int i = 0; i < t->ndim; i++)
        *(i == t->ndim - 1 && t->ndim > 1 ? &t->columns : &t->rows) *= t->shape[i];
    t->bytes = from->bytes;
}

/* What a tensor has behind all rows. */
static size_t tail_of(const qn__output_tensor *t)
{
    return t->target == &qn__encodings[QN__I2_S] ? QN__I2_S_TAIL : 0;
}

qn_status qn__output_from_parameter(qn__conversion *c, qn__output_tensor *t, const qn__parameter *p)
{
    const qn_tensors *file = c->source.tensors;
    qn__weight w;
    if (qn__weight_find(&w, file, p, &c->source.quantization, c->decoder.config.family,
                        qn__source_config_name(&c->source), c->err) != QN_OK)
        return c->err->code;
    t->ternary = p->ternary != QN__TERNARY_NOT;
    if (t->ternary && qn__weight_factor(&w, file, &t->times, c->err) != QN_OK)
        return c->err->code;
    qn__output_from(t, w.tensor);
    if (!w.kind && !w.packed && !t->ternary)
        return QN_OK;
    t->weight = w;
    t->source = t->target = w.encoding;
    t->ndim = 2;
    t->shape[0] = t->rows = p->shape[0];
    t->shape[1] = t->columns = p->shape[1];
    return QN_OK;
}

qn_status qn__output_measure(qn__conversion *c, qn__output_tensor *t)
{
    size_t row = t->target ? qn__encoding_row_bytes(t->target, t->columns) : 0;
    if (qn__fuse_check(c, t) != QN_OK)
        return c->err->code;
    if (!t->source)
        return QN_OK;
    if (row == 0 && t->columns > 0)
        return qn__fail(c->err, QN_UNSUPPORTED,
                        "tensor %s has rows of %lld values, which are no whole blocks of %d of %s",
                        t->name, (long long)t->columns, t->target->block_elements, t->target->name);
    if (t->units) {
        t->bytes = qn__layout_bytes(QN__UNITS_OF(t->target - qn__encodings), t->rows, t->columns);
        return QN_OK;
    }
    if (t->part != QN__BLOCK_WHOLE) {
        size_t codes, scale, bias;
        qn__encoding_parts(t->target, &codes, &scale, &bias);
        row = row / t->target->block_bytes *
              (t->part == QN__BLOCK_CODES   ? codes
               : t->part == QN__BLOCK_SCALE ? scale
                                            : bias);
    }
    t->bytes = (uint64_t)t->rows * row + tail_of(t);
    return QN_OK;
}

size_t qn__shard_end(const qn__conversion *c, size_t first)
{
    uint64_t most = c->options->shard_bytes, sum = 0;
    size_t i = first;
    while (i < c->n_tensors && (!most || i == first || c->tensors[i].bytes <= most - sum)) {
        sum += c->tensors[i++].bytes;
        if (most && sum > most)
            break;
    }
    return i;
}

size_t qn__count_shards(const qn__conversion *c)
{
    size_t n = 0, at = 0;
    do
        n++;
    while ((at = qn__shard_end(c, at)) < c->n_tensors);
    return n;
}

/* ---- overrides ------------------------------------------------------------------------------- */

static qn_status compile_override(qn__conversion *c, const char *text, qn__override *out)
{
    char problem[100];
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text || !equals[1])
        return qn__fail(c->err, QN_INVALID, "override \"%.100s\" is not PATTERN=TYPE", text);
    char *pattern = strndup(text, (size_t)(equals - text));
    regex_t *regex = pattern ? malloc(sizeof *regex) : NULL;
    int code = regex ? regcomp(regex, pattern, REG_EXTENDED | REG_NOSUB) : REG_ESPACE;
    free(pattern);
    if (code == 0) {
        *out = (qn__override){regex, equals + 1};
        return QN_OK;
    }
    if (regex)
        regerror(code, regex, problem, sizeof problem);
    free(regex);
    return code == REG_ESPACE
               ? qn__fail_memory(c->err, "a pattern")
               : qn__fail(c->err, QN_INVALID, "override \"%.100s\": %s", text, problem);
}

static qn_status compile_overrides(qn__conversion *c)
{
    const qn_convert_options *o = c->options;
    if (o->n_overrides > MOST_OVERRIDES)
        return qn__fail(c->err, QN_LIMIT, "more than %d overrides", MOST_OVERRIDES);
    c->overrides = calloc(o->n_overrides + 1, sizeof *c->overrides);
    if (!c->overrides)
        return qn__fail_memory(c->err, "overrides");
    for (size_t i = 0; i < o->n_overrides; i++)
        if (compile_override(c, o->overrides[i], &c->overrides[i]) != QN_OK)
            return c->err->code;
    return QN_OK;
}

const char *qn__override_for(const qn__conversion *c, const char *name)
{
    for (size_t i = 0; i < c->options->n_overrides; i++)
        if (regexec(c->overrides[i].pattern, name, 0, NULL, 0) == 0)
            return c->overrides[i].type;
    return NULL;
}

qn_status qn__output_choose(const qn__conversion *c, const qn__recipe_model *m,
                            const char *override, const char *name, int64_t columns, int *encoding)
{
    *encoding = override ? qn__encoding_to_write(override, c->err) : -1;
    if (override && *encoding < 0)
        return c->err->code;
    if (override)
        *encoding = (int)qn__encoding_that_fits((qn__encoding_id)*encoding, columns);
    else if (c->recipe && !(c->options->keep_head && qn__is_head(name)))
        *encoding = (int)qn__recipe_encoding(c->recipe, m, name, columns);
    return QN_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool ends_in_gguf(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcasecmp(path + n - 5, ".gguf");
}

/* Whether the output is one of the files, or the directory, that are read. */
static qn_status check_other(const qn__conversion *c)
{
    struct stat out, in;
    if (stat(c->out, &out) != 0)
        return QN_OK;
    bool same =
        stat(c->source.path, &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino;
    for (uint32_t i = 0; !same && i < c->source.tensors->n_files; i++)
        same = stat(qn_tensors_path(c->source.tensors, i), &in) == 0 && in.st_dev == out.st_dev &&
               in.st_ino == out.st_ino;
    return same ? qn__fail(c->err, QN_INVALID, "%s: is what the model is read from", c->out)
                : QN_OK;
}

static qn_status check_options(const qn__conversion *c, bool gguf)
{
    const qn_convert_options *o = c->options;
    if (gguf && (o->bits || o->group_size || o->dtype || o->mode))
        return qn__fail(c->err, QN_INVALID,
                        "%s: bits, group size, mode and dtype are for a directory; GGUF has types",
                        c->out);
    if (o->packed && (gguf || o->shard_bytes || (o->type && o->bits)))
        return qn__fail(c->err, QN_INVALID,
                        "%s: packed weights are for a directory, in one file, of one type", c->out);
    if (!gguf && o->type && !o->packed)
        return qn__fail(
            c->err, QN_INVALID,
            "%s: a type is for GGUF, whose name ends in .gguf; a directory has bits or a "
            "dtype",
            c->out);
    bool mxfp4 = o->mode && !strcmp(o->mode, "mxfp4");
    if (o->mode && !mxfp4 && strcmp(o->mode, "affine") != 0)
        return qn__fail(c->err, QN_INVALID, "mode \"%.40s\": it is affine or mxfp4", o->mode);
    if (mxfp4 && ((o->bits && o->bits != 4) || (o->group_size && o->group_size != 32)))
        return qn__fail(c->err, QN_INVALID, "mode mxfp4 has 4 bits in groups of 32");
    if (!gguf && (o->group_size || o->mode) && !o->bits && !mxfp4)
        return qn__fail(c->err, QN_INVALID, "a group size or mode needs bits");
    if (o->threads < 0)
        return qn__fail(c->err, QN_INVALID, "%d threads", o->threads);
    return QN_OK;
}

static qn_status run(qn__conversion *c, const char *path)
{
    bool gguf = ends_in_gguf(c->out);
    int threads = c->options->threads ? c->options->threads : qn__team_default_size();
    if (check_options(c, gguf) != QN_OK || compile_overrides(c) != QN_OK ||
        (c->options->type && !(c->recipe = qn__recipe_named(c->options->type, c->err))) ||
        qn__source_open(&c->source, path, c->err) != QN_OK ||
        qn__source_open_tensors(&c->source, c->err) != QN_OK || check_other(c) != QN_OK)
        return c->err->code;
    if (!(c->team = qn__team_new(threads)))
        return qn__fail_memory(c->err, "threads");
    return gguf ? qn__convert_to_gguf(c) : qn__convert_to_directory(c);
}

qn_status qn_convert(qn_device *device, const char *source, const char *out,
                     const qn_convert_options *given, qn_error *err)
{
    qn_error local = {0};
    qn_convert_options options;
    err = err ? err : &local;
    if (qn__sized_in(&options, sizeof options, given, "qn_convert_options", err) != QN_OK)
        return err->code;
    qn__conversion c = {.device = device, .options = &options, .out = out, .err = err};
    run(&c, source);
    for (size_t i = 0; c.overrides && i < options.n_overrides; i++) {
        if (c.overrides[i].pattern)
            regfree(c.overrides[i].pattern);
        free(c.overrides[i].pattern);
    }
    free(c.overrides);
    qn__team_free(c.team);
    qn__fuse_end(&c);
    qn__decoder_end(&c.decoder);
    qn__source_close(&c.source);
    free(c.tensors);
    free(c.divisors);
    free(c.in);
    free(c.converted);
    free(c.scratch);
    free(c.packed);
    return err->code;
}
