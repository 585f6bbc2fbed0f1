/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers; see normalize.h.
 */
#include "text/normalize.h"

#include "base/buffers.h"
#include "text/nfc.h"
#include "text/steps.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONTENT = 4096 };

static const char *const normalizer_names[QN__NORMALIZE_COUNT] = {
    [QN__NORMALIZE_NFC] = "NFC",         [QN__NORMALIZE_PREPEND] = "Prepend",
    [QN__NORMALIZE_REPLACE] = "Replace", [QN__NORMALIZE_PRECOMPILED] = "Precompiled",
    [QN__NORMALIZE_STRIP] = "Strip",
};

static qn_status parse_content(qn_text *out, const qn__json_at *at, const char *key, qn_error *err)
{
    const char *text;
    qn_status status = qn__json_get_string(at, key, &text, err);
    if (status != QN_OK)
        return status;
    size_t n = strlen(text);
    if (n > MAX_CONTENT)
        return qn__json_fail(at, QN_LIMIT, err, "%s of %zu bytes, more than %d", key, n,
                             MAX_CONTENT);
    return qn__text_append(out, text, n) ? QN_OK : qn__fail_memory(err, "a normalizer");
}

static qn_status add_normalizer(void *user, int kind, const qn__json_at *at, qn_error *err)
{
    qn__normalizer *out = user;
    if (out->n == QN__MAX_NORMALIZERS)
        return qn__json_fail(at, QN_LIMIT, err, "more than %d steps", QN__MAX_NORMALIZERS);
    qn__normalize_step *step = &out->steps[out->n++];
    *step = (qn__normalize_step){.kind = (qn__normalizer_kind)kind};
    if (kind == QN__NORMALIZE_PREPEND)
        return parse_content(&step->text, at, "prepend", err);
    if (kind == QN__NORMALIZE_PRECOMPILED) {
        const char *text;
        qn_status status = qn__json_get_string(at, "precompiled_charsmap", &text, err);
        if (status == QN_OK && out->spm.units)
            return qn__json_fail(at, QN_UNSUPPORTED, err,
                                 "two Precompiled steps are not supported");
        return status == QN_OK ? qn__spm_charsmap_text(&out->spm, at->file, text, err) : status;
    }
    if (kind == QN__NORMALIZE_STRIP) {
        step->left = step->right = true;
        qn_status status = qn__json_opt_bool(at, "strip_left", &step->left, err);
        return status == QN_OK ? qn__json_opt_bool(at, "strip_right", &step->right, err) : status;
    }
    if (kind == QN__NORMALIZE_REPLACE) {
        qn_status status = parse_content(&step->text, at, "content", err);
        return status == QN_OK ? qn__pattern_parse(&step->pattern, at, err) : status;
    }
    return QN_OK;
}

qn_status qn__normalizer_parse(qn__normalizer *out, const qn__json_at *at, qn_error *err)
{
    *out = (qn__normalizer){0};
    return qn__steps_parse(at, "normalizers", normalizer_names, QN__NORMALIZE_COUNT, add_normalizer,
                           out, err);
}

void qn__normalizer_clear(qn__normalizer *normalizer)
{
    for (int i = 0; i < normalizer->n; i++) {
        qn__pattern_free(normalizer->steps[i].pattern);
        qn_text_free(&normalizer->steps[i].text);
    }
    qn__spm_normalizer_clear(&normalizer->spm);
    *normalizer = (qn__normalizer){0};
}

static qn_status fail_growth(size_t limit, qn_error *err)
{
    return qn__fail(err, QN_LIMIT,
                    "the normalizer makes more than %zu bytes of the text (the limit: 16 times its "
                    "size and 4096)",
                    limit);
}

static qn_status replace_all(const qn__normalize_step *step, qn__match *match, bool *first,
                             qn_text *out, const char *s, size_t n, size_t limit, qn_error *err)
{
    size_t done = 0, at = 0, last_end = SIZE_MAX;
    bool ok = qn__text_reserve(out, n);
    while (ok && at <= n) {
        size_t start, end;
        qn_status status = qn__pattern_next(step->pattern, match, s, n, at, &start, &end, err);
        if (status != QN_OK)
            return status;
        if (start > n)
            break;
        if (qn__pattern_skips(start, end, last_end)) {
            at = qn__char_behind(s, n, at);
            continue;
        }
        if (out->n + (start - done) + step->text.n > limit)
            return fail_growth(limit, err);
        ok = qn__text_append(out, s + done, start - done) &&
             qn__text_append(out, step->text.data, step->text.n);
        if (start == 0 && end > 0 && step->text.n == 0)
            *first = false;
        done = at = last_end = end;
    }
    ok = ok && qn__text_append(out, s + done, n - done);
    return ok ? QN_OK : qn__fail_memory(err, "a normalized text");
}

static bool strip_ends(const qn__normalize_step *step, bool *first, qn_text *out, const char *s,
                       size_t n)
{
    size_t from = 0, k;
    while (step->left && from < n && (qn__class_at(s, n, from, &k) & QN__SPACE))
        from += k;
    while (step->right && n > from && (qn__class_at(s, n, qn__char_before(s, n), &k) & QN__SPACE))
        n = qn__char_before(s, n);
    *first = *first && from == 0;
    return qn__text_append(out, s + from, n - from);
}

static qn_status run_step(const qn__normalizer *normalizer, const qn__normalize_step *step,
                          qn__match *match, bool *first, qn_text *out, const char *s, size_t n,
                          size_t limit, qn_error *err)
{
    bool ok = true;
    switch (step->kind) {
    case QN__NORMALIZE_NFC: ok = qn__nfc_append(out, s, n); break;
    case QN__NORMALIZE_PREPEND:
        ok = (n == 0 || qn__text_append(out, step->text.data, step->text.n)) &&
             qn__text_append(out, s, n);
        break;
    case QN__NORMALIZE_REPLACE: return replace_all(step, match, first, out, s, n, limit, err);
    case QN__NORMALIZE_PRECOMPILED:
        ok = qn__precompiled_normalize(&normalizer->spm, out, s, n, limit);
        break;
    case QN__NORMALIZE_STRIP: ok = strip_ends(step, first, out, s, n); break;
    case QN__NORMALIZE_SPM:
        ok = qn__spm_normalize(&normalizer->spm, *first, out, s, n, limit);
        break;
    }
    if (out->n > limit)
        return fail_growth(limit, err);
    return ok ? QN_OK : qn__fail_memory(err, "a normalized text");
}

qn_status qn__normalize(const qn__normalizer *normalizer, qn__match *match, qn_text *buffer,
                        bool *first, const char **s, size_t *n, qn_error *err)
{
    size_t limit = qn__normalized_limit(*n);
    for (int i = 0; i < normalizer->n; i++) {
        qn_text result = {0};
        qn_status status =
            run_step(normalizer, &normalizer->steps[i], match, first, &result, *s, *n, limit, err);
        if (status != QN_OK) {
            qn_text_free(&result);
            return status;
        }
        qn_text_free(buffer);
        *buffer = result;
        *s = result.data;
        *n = result.n;
    }
    return QN_OK;
}
