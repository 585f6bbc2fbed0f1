/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenizers; see pretokenize.h. All kinds reduce to "find matches, then place them": a
 * stream of pieces, alternately text and match, goes through `place_piece`, which knows the
 * behaviors of Split.
 */
#include "text/pretokenize.h"

#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* ---- parsing -------------------------------------------------------------------------------- */

static qn_status parse_split(qn__step *step, const qn__json_at *at, qn_error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *behavior, *text;
    qn__json_at pattern, kind;
    qn_status status = qn__json_get_string(at, "behavior", &behavior, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "invert", &step->invert, err);
    if (status == QN_OK)
        status = qn__json_get_object(at, "pattern", &pattern, err);
    if (status != QN_OK)
        return status;
    size_t i = 0;
    while (i < 5 && strcmp(behavior, names[i]) != 0)
        i++;
    if (i == 5)
        return qn__json_fail(at, QN_UNSUPPORTED, err,
                             "behavior \"%.40s\" is not supported (supported: Isolated, Removed, "
                             "Contiguous, MergedWithPrevious, MergedWithNext)",
                             behavior);
    step->behavior = (qn__split_behavior)i;
    bool is_regex = qn__json_find(&pattern, "Regex", &kind);
    if (!is_regex && !qn__json_find(&pattern, "String", &kind))
        return qn__json_fail(&pattern, QN_FORMAT, err, "expected Regex or String");
    status = qn__json_as_string(&kind, &text, err);
    return status == QN_OK ? qn__pattern_new(&step->pattern, text, is_regex, at->file, err)
                           : status;
}

static qn_status parse_digits(qn__step *step, const qn__json_at *at, qn_error *err)
{
    return qn__json_opt_bool(at, "individual_digits", &step->individual, err);
}

static qn_status parse_byte_level(qn__step *step, const qn__json_at *at, qn_error *err)
{
    step->add_prefix_space = true;
    step->use_regex = true;
    qn_status status = qn__json_opt_bool(at, "add_prefix_space", &step->add_prefix_space, err);
    return status == QN_OK ? qn__json_opt_bool(at, "use_regex", &step->use_regex, err) : status;
}

typedef struct step_parser {
    const char *name;
    qn_status (*parse)(qn__step *step, const qn__json_at *at, qn_error *err);
} step_parser;

static const step_parser step_parsers[QN__STEP_COUNT] = {
    [QN__STEP_SPLIT] = {"Split", parse_split},
    [QN__STEP_DIGITS] = {"Digits", parse_digits},
    [QN__STEP_BYTE_LEVEL] = {"ByteLevel", parse_byte_level},
};

static qn_status parse_step(qn__pretokenizer *out, const qn__json_at *at, qn_error *err)
{
    const char *type;
    qn_status status = qn__json_get_string(at, "type", &type, err);
    if (status != QN_OK)
        return status;
    if (strcmp(type, "Sequence") == 0) {
        qn__json_at list, item;
        status = qn__json_get_array(at, "pretokenizers", &list, err);
        if (status == QN_OK && qn__json_first(&list, &item))
            do
                status = parse_step(out, &item, err);
            while (status == QN_OK && qn__json_next(&item));
        return status;
    }
    int kind = 0;
    while (kind < QN__STEP_COUNT && strcmp(type, step_parsers[kind].name) != 0)
        kind++;
    if (kind == QN__STEP_COUNT)
        return qn__json_fail(at, QN_UNSUPPORTED, err,
                             "type \"%.40s\" is not supported (supported: Sequence, Split, "
                             "Digits, ByteLevel)",
                             type);
    if (out->byte_level)
        return qn__json_fail(at, QN_UNSUPPORTED, err, "a step behind ByteLevel is not supported");
    if (out->n == QN__MAX_STEPS)
        return qn__json_fail(at, QN_LIMIT, err, "more than %d steps", QN__MAX_STEPS);
    qn__step *step = &out->steps[out->n++];
    *step = (qn__step){.kind = (qn__step_kind)kind};
    out->byte_level = kind == QN__STEP_BYTE_LEVEL;
    return step_parsers[kind].parse(step, at, err);
}

qn_status qn__pretokenizer_parse(qn__pretokenizer *out, const qn__json_at *at, qn_error *err)
{
    *out = (qn__pretokenizer){0};
    return cJSON_IsNull(at->node) ? QN_OK : parse_step(out, at, err);
}

void qn__pretokenizer_clear(qn__pretokenizer *pretokenizer)
{
    for (int i = 0; i < pretokenizer->n; i++)
        qn__pattern_free(pretokenizer->steps[i].pattern);
    *pretokenizer = (qn__pretokenizer){0};
}

void qn__pretokenize_work_free(qn__pretokenize_work *work)
{
    qn__match_free(&work->match);
    qn_text_free(&work->prefixed);
}

/* ---- running -------------------------------------------------------------------------------- */

typedef struct run {
    const qn__pretokenizer *pretokenizer;
    qn__pretokenize_work *work;
    qn__word_fn word;
    void *user;
    qn_error *err;
} run;

static qn_status run_steps(const run *r, int i, const char *s, size_t n);

/* Pieces of one step on their way to the next. The pending piece may still grow. */
typedef struct placement {
    const run *r;
    int next; /* the next step */
    const char *s;
    qn__split_behavior behavior;
    size_t start, end; /* pending, empty when start == end */
    bool pending_match, previous_match;
} placement;

static qn_status emit_pending(placement *p)
{
    size_t start = p->start, end = p->end;
    p->start = p->end;
    return end > start ? run_steps(p->r, p->next, p->s + start, end - start) : QN_OK;
}

static qn_status place_piece(placement *p, size_t start, size_t end, bool is_match)
{
    bool grow = false, has = p->end > p->start;
    switch (p->behavior) {
    case QN__SPLIT_ISOLATED: break;
    case QN__SPLIT_REMOVED:
        if (is_match)
            return emit_pending(p);
        break;
    case QN__SPLIT_CONTIGUOUS: grow = has && p->pending_match == is_match; break;
    case QN__SPLIT_PREVIOUS: grow = has && is_match && !p->previous_match; break;
    case QN__SPLIT_NEXT: grow = has && p->pending_match && !is_match; break;
    }
    p->previous_match = is_match;
    qn_status status = QN_OK;
    if (!grow) {
        status = emit_pending(p);
        p->start = start;
    }
    p->end = end;
    p->pending_match = is_match;
    return status;
}

static qn_status run_split(const run *r, int i, const char *s, size_t n)
{
    const qn__step *step = &r->pretokenizer->steps[i];
    placement p = {.r = r, .next = i + 1, .s = s, .behavior = step->behavior};
    qn_status status = QN_OK;
    size_t done = 0, at = 0;
    while (status == QN_OK && at <= n) {
        size_t start, end;
        status = qn__pattern_next(step->pattern, &r->work->match, s, n, at, &start, &end, r->err);
        if (status != QN_OK || start > n)
            break;
        if (start > done)
            status = place_piece(&p, done, start, step->invert);
        if (status == QN_OK)
            status = place_piece(&p, start, end, !step->invert);
        done = end;
        at = end;
        if (end == start) { /* an empty match: look on behind the next character */
            size_t k = 1;
            if (end < n)
                qn__class_at(s, n, end, &k);
            at = end + k;
        }
    }
    if (status == QN_OK && done < n)
        status = place_piece(&p, done, n, step->invert);
    return status == QN_OK ? emit_pending(&p) : status;
}

static qn_status run_digits(const run *r, int i, const char *s, size_t n)
{
    const qn__step *step = &r->pretokenizer->steps[i];
    placement p = {
        .r = r,
        .next = i + 1,
        .s = s,
        .behavior = step->individual ? QN__SPLIT_ISOLATED : QN__SPLIT_CONTIGUOUS,
    };
    qn_status status = QN_OK;
    size_t done = 0, k;
    for (size_t at = 0; status == QN_OK && at < n; at += k) {
        if (!(qn__class_at(s, n, at, &k) & QN__NUMERIC))
            continue;
        if (at > done)
            status = place_piece(&p, done, at, false);
        if (status == QN_OK)
            status = place_piece(&p, at, at + k, true);
        done = at + k;
    }
    if (status == QN_OK && done < n)
        status = place_piece(&p, done, n, false);
    return status == QN_OK ? emit_pending(&p) : status;
}

/* The bytes become characters in the model's tables, not here. */
static qn_status run_byte_level(const run *r, int i, const char *s, size_t n)
{
    const qn__step *step = &r->pretokenizer->steps[i];
    if (step->add_prefix_space && s[0] != ' ') {
        qn_text *copy = &r->work->prefixed;
        copy->n = 0;
        if (!qn__text_append(copy, " ", 1) || !qn__text_append(copy, s, n))
            return qn__fail_memory(r->err, "a text");
        s = copy->data;
        n = copy->n;
    }
    if (!step->use_regex)
        return run_steps(r, i + 1, s, n);
    qn_status status = QN_OK;
    for (size_t at = 0; status == QN_OK && at < n;) {
        size_t end = qn__scan_gpt2(s, n, at);
        status = run_steps(r, i + 1, s + at, end - at);
        at = end;
    }
    return status;
}

static qn_status (*const step_runners[QN__STEP_COUNT])(const run *, int, const char *, size_t) = {
    [QN__STEP_SPLIT] = run_split,
    [QN__STEP_DIGITS] = run_digits,
    [QN__STEP_BYTE_LEVEL] = run_byte_level,
};

static qn_status run_steps(const run *r, int i, const char *s, size_t n)
{
    if (i == r->pretokenizer->n)
        return r->word(r->user, s, n, r->err);
    return step_runners[r->pretokenizer->steps[i].kind](r, i, s, n);
}

qn_status qn__pretokenize(const qn__pretokenizer *pretokenizer, qn__pretokenize_work *work,
                          const char *s, size_t n, qn__word_fn word, void *user, qn_error *err)
{
    run r = {pretokenizer, work, word, user, err};
    return n > 0 ? run_steps(&r, 0, s, n) : QN_OK;
}
