/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the decoder of a tokenizer.json; see decode.h.
 */
#include "text/decode.h"

#include "base/utf8.h"
#include "base/buffers.h"
#include "text/metaspace.h"
#include "text/steps.h"

#include <string.h>

enum { MAX_FIND = 4096, MAX_STRIP = 1 << 20 };

static const char *const decoder_names[QN__DECODE_COUNT] = {
    [QN__DECODE_BYTE_LEVEL] = "ByteLevel",
    [QN__DECODE_BYTE_FALLBACK] = "ByteFallback",
    [QN__DECODE_FUSE] = "Fuse",
    [QN__DECODE_REPLACE] = "Replace",
    [QN__DECODE_STRIP] = "Strip",
    [QN__DECODE_METASPACE] = "Metaspace",
};

static qn_status copy_string(qn_text *out, const qn__json_at *at, const char *key, qn_error *err)
{
    const char *text;
    qn_status status = qn__json_get_string(at, key, &text, err);
    if (status != QN_OK)
        return status;
    size_t n = strlen(text);
    if (n > MAX_FIND)
        return qn__json_fail(at, QN_LIMIT, err, "%s of %zu bytes, more than %d", key, n, MAX_FIND);
    return qn__text_append(out, text, n) ? QN_OK : qn__fail_memory(err, "a decoder");
}

/* The length of the first character; of an empty text, which no length equals, 1. */
static size_t first_char_size(const qn_text *text)
{
    uint32_t c;
    size_t n = qn__utf8_decode(text->data, text->n, &c);
    return n ? n : 1;
}

static qn_status parse_replace(qn__decode_step *step, const qn__json_at *at, qn_error *err)
{
    qn__json_at pattern, regex;
    qn_status status = copy_string(&step->put, at, "content", err);
    if (status == QN_OK)
        status = qn__json_get_object(at, "pattern", &pattern, err);
    if (status != QN_OK)
        return status;
    if (qn__json_find(&pattern, "Regex", &regex))
        return qn__json_fail(&pattern, QN_UNSUPPORTED, err,
                             "Regex is not supported (supported: String)");
    status = copy_string(&step->find, &pattern, "String", err);
    if (status == QN_OK && step->find.n == 0)
        status = qn__json_fail(&pattern, QN_FORMAT, err, "expected a String that is not empty");
    return status;
}

static qn_status parse_strip(qn__decode_step *step, const qn__json_at *at, qn_error *err)
{
    qn_status status = copy_string(&step->find, at, "content", err);
    if (status == QN_OK)
        status = qn__json_get_int(at, "start", 0, MAX_STRIP, &step->start, err);
    if (status == QN_OK)
        status = qn__json_get_int(at, "stop", 0, MAX_STRIP, &step->stop, err);
    if (status == QN_OK && step->find.n != first_char_size(&step->find))
        status = qn__json_fail(at, QN_FORMAT, err, "content: expected one character");
    return status;
}

static qn_status parse_metaspace(qn__decode_step *step, const qn__json_at *at, qn_error *err)
{
    qn__metaspace scheme;
    qn_status status = copy_string(&step->find, at, "replacement", err);
    if (status == QN_OK)
        status = qn__metaspace_parse(&scheme, at, err);
    if (status == QN_OK)
        step->strip_first = scheme != QN__METASPACE_NEVER;
    if (status == QN_OK && step->find.n != first_char_size(&step->find))
        status = qn__json_fail(at, QN_FORMAT, err, "replacement: expected one character");
    return status;
}

static qn_status add_decoder(void *user, int kind, const qn__json_at *at, qn_error *err)
{
    qn__decode_chain *out = user;
    bool whole = kind == QN__DECODE_BYTE_LEVEL || kind == QN__DECODE_BYTE_FALLBACK ||
                 kind == QN__DECODE_METASPACE;
    if (out->fused && whole)
        return qn__json_fail(at, QN_UNSUPPORTED, err,
                             "%s behind Fuse or ByteLevel is not supported", decoder_names[kind]);
    bool fused = out->fused;
    out->fused = out->fused || kind == QN__DECODE_FUSE || kind == QN__DECODE_BYTE_LEVEL;
    if (kind == QN__DECODE_FUSE)
        return QN_OK;
    if (out->n == QN__MAX_DECODE_STEPS)
        return qn__json_fail(at, QN_LIMIT, err, "more than %d steps", QN__MAX_DECODE_STEPS);
    qn__decode_step *step = &out->steps[out->n++];
    *step = (qn__decode_step){.kind = (qn__decode_kind)kind, .fused = fused};
    switch (kind) {
    case QN__DECODE_REPLACE: return parse_replace(step, at, err);
    case QN__DECODE_STRIP: return parse_strip(step, at, err);
    case QN__DECODE_METASPACE: return parse_metaspace(step, at, err);
    default: return QN_OK;
    }
}

qn_status qn__decode_parse(qn__decode_chain *out, const qn__json_at *at, qn_error *err)
{
    *out = (qn__decode_chain){0};
    if (!at->node || cJSON_IsNull(at->node)) {
        out->steps[out->n++] = (qn__decode_step){.kind = QN__DECODE_JOIN};
        return QN_OK;
    }
    return qn__steps_parse(at, "decoders", decoder_names, QN__DECODE_COUNT, add_decoder, out, err);
}

void qn__decode_clear(qn__decode_chain *chain)
{
    for (int i = 0; i < chain->n; i++) {
        qn_text_free(&chain->steps[i].find);
        qn_text_free(&chain->steps[i].put);
    }
    *chain = (qn__decode_chain){0};
}
