/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenizers; see pretokenize.h. All kinds reduce to "find matches, then place them": a
 * stream of pieces, alternately text and match, goes through `place_piece`, which knows the
 * behaviors of Split.
 */
#include "text/pretokenize.h"

#include "text/bpe.h"
#include "text/steps.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

/* ---- parsing -------------------------------------------------------------------------------- */

static qn_status parse_behavior(qn__pretokenize_step *step, const qn__json_at *at,
                                const char *behavior, qn_error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    size_t i = 0;
    while (i < 5 && strcmp(behavior, names[i]) != 0)
        i++;
    if (i == 5)
        return qn__json_fail(at, QN_UNSUPPORTED, err,
                             "behavior \"%.40s\" is not supported (supported: Isolated, Removed, "
                             "Contiguous, MergedWithPrevious, MergedWithNext)",
                             behavior);
    step->behavior = (qn__split_behavior)i;
    return QN_OK;
}

static qn_status parse_split(qn__pretokenize_step *step, const qn__json_at *at, qn_error *err)
{
    const char *behavior;
    qn_status status = qn__json_get_string(at, "behavior", &behavior, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "invert", &step->invert, err);
    if (status == QN_OK)
        status = parse_behavior(step, at, behavior, err);
    return status == QN_OK ? qn__pattern_parse(&step->pattern, at, err) : status;
}

static qn_status parse_punctuation(qn__pretokenize_step *step, const qn__json_at *at, qn_error *err)
{
    const char *behavior = "Isolated";
    qn_status status = qn__json_opt_string(at, "behavior", &behavior, err);
    return status == QN_OK ? parse_behavior(step, at, behavior, err) : status;
}

static qn_status parse_metaspace_step(qn__pretokenize_step *step, const qn__json_at *at,
                                      qn_error *err)
{
    const char *mark;
    uint32_t c;
    step->split = true;
    qn_status status = qn__json_get_string(at, "replacement", &mark, err);
    if (status == QN_OK)
        status = qn__json_opt_bool(at, "split", &step->split, err);
    if (status == QN_OK)
        status = qn__metaspace_parse(&step->scheme, at, err);
    if (status != QN_OK)
        return status;
    step->mark_size = qn__utf8_decode(mark, strlen(mark), &c);
    if (step->mark_size == 0 || step->mark_size != strlen(mark))
        return qn__json_fail(at, QN_FORMAT, err, "replacement: expected one character");
    memcpy(step->mark, mark, step->mark_size);
    return QN_OK;
}

static qn_status parse_digits(qn__pretokenize_step *step, const qn__json_at *at, qn_error *err)
{
    return qn__json_opt_bool(at, "individual_digits", &step->individual, err);
}

static qn_status parse_byte_level(qn__pretokenize_step *step, const qn__json_at *at, qn_error *err)
{
    step->add_prefix_space = true;
    step->use_regex = true;
    qn_status status = qn__json_opt_bool(at, "add_prefix_space", &step->add_prefix_space, err);
    return status == QN_OK ? qn__json_opt_bool(at, "use_regex", &step->use_regex, err) : status;
}

static qn_status parse_nothing(qn__pretokenize_step *step, const qn__json_at *at, qn_error *err)
{
    (void)step, (void)at, (void)err;
    return QN_OK;
}

static const char *const step_names[QN__PRETOKENIZE_COUNT] = {
    [QN__PRETOKENIZE_SPLIT] = "Split",
    [QN__PRETOKENIZE_DIGITS] = "Digits",
    [QN__PRETOKENIZE_PUNCTUATION] = "Punctuation",
    [QN__PRETOKENIZE_METASPACE] = "Metaspace",
    [QN__PRETOKENIZE_BYTE_LEVEL] = "ByteLevel",
    [QN__PRETOKENIZE_WHITESPACE] = "Whitespace",
    [QN__PRETOKENIZE_WHITESPACE_SPLIT] = "WhitespaceSplit",
};

static qn_status (*const step_parsers[QN__PRETOKENIZE_COUNT])(qn__pretokenize_step *,
                                                              const qn__json_at *, qn_error *) = {
    [QN__PRETOKENIZE_SPLIT] = parse_split,
    [QN__PRETOKENIZE_DIGITS] = parse_digits,
    [QN__PRETOKENIZE_PUNCTUATION] = parse_punctuation,
    [QN__PRETOKENIZE_METASPACE] = parse_metaspace_step,
    [QN__PRETOKENIZE_BYTE_LEVEL] = parse_byte_level,
    [QN__PRETOKENIZE_WHITESPACE] = parse_nothing,
    [QN__PRETOKENIZE_WHITESPACE_SPLIT] = parse_nothing,
};

static qn_status add_step(void *user, int kind, const qn__json_at *at, qn_error *err)
{
    qn__pretokenizer *out = user;
    if (out->byte_level &&
        (kind == QN__PRETOKENIZE_BYTE_LEVEL || kind == QN__PRETOKENIZE_METASPACE))
        return qn__json_fail(at, QN_UNSUPPORTED, err, "%s behind ByteLevel is not supported",
                             step_names[kind]);
    if (out->n == QN__MAX_PRETOKENIZERS)
        return qn__json_fail(at, QN_LIMIT, err, "more than %d steps", QN__MAX_PRETOKENIZERS);
    qn__pretokenize_step *step = &out->steps[out->n++];
    *step = (qn__pretokenize_step){.kind = (qn__pretokenize_kind)kind};
    out->mapped = out->byte_level;
    out->byte_level = out->byte_level || kind == QN__PRETOKENIZE_BYTE_LEVEL;
    return step_parsers[kind](step, at, err);
}

qn_status qn__pretokenizer_parse(qn__pretokenizer *out, const qn__json_at *at, qn_error *err)
{
    *out = (qn__pretokenizer){0};
    return qn__steps_parse(at, "pretokenizers", step_names, QN__PRETOKENIZE_COUNT, add_step, out,
                           err);
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
    for (int i = 0; i < QN__MAX_PRETOKENIZERS; i++)
        qn_text_free(&work->copies[i]);
    qn_text_free(&work->mapped);
    qn_text_free(&work->word);
}

/* ---- running -------------------------------------------------------------------------------- */

typedef struct run {
    const qn__pretokenizer *pretokenizer;
    qn__pretokenize_work *work;
    qn__word_fn word;
    void *user;
    qn_error *err;
} run;

/* first: the piece begins the whole text. */
static qn_status run_steps(const run *r, int i, const char *s, size_t n, bool first);

/* Pieces of one step on their way to the next. The pending piece may still grow. */
typedef struct placement {
    const run *r;
    int next; /* the next step */
    const char *s;
    bool first; /* s begins the whole text */
    qn__split_behavior behavior;
    size_t start, end; /* pending, empty when start == end */
    bool pending_match, previous_match;
} placement;

static qn_status emit_pending(placement *p)
{
    size_t start = p->start, end = p->end;
    p->start = p->end;
    return end > start ? run_steps(p->r, p->next, p->s + start, end - start, p->first && start == 0)
                       : QN_OK;
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

static qn_status run_split(const run *r, int i, const char *s, size_t n, bool first)
{
    const qn__pretokenize_step *step = &r->pretokenizer->steps[i];
    placement p = {.r = r, .next = i + 1, .s = s, .first = first, .behavior = step->behavior};
    qn_status status = QN_OK;
    size_t done = 0, at = 0, last_end = SIZE_MAX;
    while (status == QN_OK && at <= n) {
        size_t start, end;
        status = qn__pattern_next(step->pattern, &r->work->match, s, n, at, &start, &end, r->err);
        if (status != QN_OK || start > n)
            break;
        if (qn__pattern_skips(start, end, last_end)) {
            at = qn__char_behind(s, n, at);
            continue;
        }
        if (start > done)
            status = place_piece(&p, done, start, step->invert);
        if (status == QN_OK)
            status = place_piece(&p, start, end, !step->invert);
        done = at = last_end = end;
    }
    if (status == QN_OK && done < n)
        status = place_piece(&p, done, n, step->invert);
    return status == QN_OK ? emit_pending(&p) : status;
}

/* Characters of a class are matches of their own. */
static qn_status run_class(const run *r, int i, const char *s, size_t n, bool first, unsigned mask,
                           qn__split_behavior behavior)
{
    placement p = {.r = r, .next = i + 1, .s = s, .first = first, .behavior = behavior};
    qn_status status = QN_OK;
    size_t done = 0, k;
    for (size_t at = 0; status == QN_OK && at < n; at += k) {
        if (!(qn__class_at(s, n, at, &k) & mask))
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

static qn_status run_digits(const run *r, int i, const char *s, size_t n, bool first)
{
    bool individual = r->pretokenizer->steps[i].individual;
    return run_class(r, i, s, n, first, QN__NUMERIC,
                     individual ? QN__SPLIT_ISOLATED : QN__SPLIT_CONTIGUOUS);
}

static qn_status run_punctuation(const run *r, int i, const char *s, size_t n, bool first)
{
    return run_class(r, i, s, n, first, QN__OLD_PUNCTUATION, r->pretokenizer->steps[i].behavior);
}

/* Spaces become marks, with one more before the text; words begin at marks. */
static qn_status run_metaspace_step(const run *r, int i, const char *s, size_t n, bool first)
{
    const qn__pretokenize_step *step = &r->pretokenizer->steps[i];
    qn_text *copy = &r->work->copies[i];
    bool marked = s[0] == ' ' || (n >= step->mark_size && !memcmp(s, step->mark, step->mark_size));
    bool ok = true;
    copy->n = 0;
    if (!marked &&
        (step->scheme == QN__METASPACE_ALWAYS || (step->scheme == QN__METASPACE_FIRST && first)))
        ok = qn__text_append(copy, step->mark, step->mark_size);
    for (const char *space; ok && (space = memchr(s, ' ', n));) {
        size_t before = (size_t)(space - s);
        ok = qn__text_append(copy, s, before) && qn__text_append(copy, step->mark, step->mark_size);
        s += before + 1;
        n -= before + 1;
    }
    if (!ok || !qn__text_append(copy, s, n))
        return qn__fail_memory(r->err, "a text");
    if (!step->split)
        return run_steps(r, i + 1, copy->data, copy->n, first);
    qn_status status = QN_OK;
    for (size_t at = 0, end; status == QN_OK && at < copy->n; at = end) {
        size_t from = at < copy->n - 1 ? at + 1 : copy->n;
        const char *next = memmem(copy->data + from, copy->n - from, step->mark, step->mark_size);
        end = next ? (size_t)(next - copy->data) : copy->n;
        status = run_steps(r, i + 1, copy->data + at, end - at, first && at == 0);
    }
    return status;
}

static qn_status run_whitespace_split(const run *r, int i, const char *s, size_t n, bool first)
{
    return run_class(r, i, s, n, first, QN__SPACE, QN__SPLIT_REMOVED);
}

/* Runs of word characters, and runs of others that are not white space. */
static qn_status run_whitespace(const run *r, int i, const char *s, size_t n, bool first)
{
    qn_status status = QN_OK;
    size_t k;
    for (size_t at = 0, end; status == QN_OK && at < n; at = end) {
        unsigned kind = qn__class_at(s, n, at, &k) & (QN__WORD | QN__SPACE);
        for (end = at + k; end < n; end += k)
            if ((qn__class_at(s, n, end, &k) & (QN__WORD | QN__SPACE)) != kind)
                break;
        if (!(kind & QN__SPACE))
            status = run_steps(r, i + 1, s + at, end - at, first && at == 0);
    }
    return status;
}

/* A piece goes on as the characters that stand for its bytes, where steps follow; else they are in
 * the model's tables. */
static qn_status pass_bytes(const run *r, int i, const char *s, size_t n, bool first)
{
    qn_text *mapped = &r->work->mapped;
    if (!r->pretokenizer->mapped)
        return run_steps(r, i + 1, s, n, first);
    mapped->n = 0;
    if (!qn__text_reserve(mapped, 2 * n))
        return qn__fail_memory(r->err, "a text");
    for (size_t at = 0; at < n; at++)
        mapped->n += qn__utf8_encode(qn__byte_to_char((uint8_t)s[at]), mapped->data + mapped->n);
    return run_steps(r, i + 1, mapped->data, mapped->n, first);
}

static qn_status run_byte_level(const run *r, int i, const char *s, size_t n, bool first)
{
    const qn__pretokenize_step *step = &r->pretokenizer->steps[i];
    if (step->add_prefix_space && s[0] != ' ') {
        qn_text *copy = &r->work->copies[i];
        copy->n = 0;
        if (!qn__text_append(copy, " ", 1) || !qn__text_append(copy, s, n))
            return qn__fail_memory(r->err, "a text");
        s = copy->data;
        n = copy->n;
    }
    if (!step->use_regex)
        return pass_bytes(r, i, s, n, first);
    qn_status status = QN_OK;
    for (size_t at = 0; status == QN_OK && at < n;) {
        size_t end = qn__scan_gpt2(s, n, at);
        status = pass_bytes(r, i, s + at, end - at, first && at == 0);
        at = end;
    }
    return status;
}

static qn_status (*const step_runners[QN__PRETOKENIZE_COUNT])(const run *, int, const char *,
                                                              size_t, bool) = {
    [QN__PRETOKENIZE_SPLIT] = run_split,
    [QN__PRETOKENIZE_DIGITS] = run_digits,
    [QN__PRETOKENIZE_PUNCTUATION] = run_punctuation,
    [QN__PRETOKENIZE_METASPACE] = run_metaspace_step,
    [QN__PRETOKENIZE_BYTE_LEVEL] = run_byte_level,
    [QN__PRETOKENIZE_WHITESPACE] = run_whitespace,
    [QN__PRETOKENIZE_WHITESPACE_SPLIT] = run_whitespace_split,
};

/* A word of characters that stand for bytes, as bytes. */
static qn_status pass_mapped_word(const run *r, const char *s, size_t n)
{
    qn_text *word = &r->work->word;
    uint32_t c = 0;
    word->n = 0;
    if (!qn__text_reserve(word, n))
        return qn__fail_memory(r->err, "a text");
    for (size_t at = 0; at < n; at += qn__utf8_decode(s + at, n - at, &c), word->n++) {
        qn__utf8_decode(s + at, n - at, &c);
        word->data[word->n] = (char)qn__char_to_byte(c);
    }
    return r->word(r->user, word->data, word->n, r->err);
}

static qn_status run_steps(const run *r, int i, const char *s, size_t n, bool first)
{
    if (i == r->pretokenizer->n)
        return r->pretokenizer->mapped ? pass_mapped_word(r, s, n) : r->word(r->user, s, n, r->err);
    return step_runners[r->pretokenizer->steps[i].kind](r, i, s, n, first);
}

qn_status qn__pretokenize(const qn__pretokenizer *pretokenizer, qn__pretokenize_work *work,
                          const char *s, size_t n, bool first, qn__word_fn word, void *user,
                          qn_error *err)
{
    run r = {pretokenizer, work, word, user, err};
    return n > 0 ? run_steps(&r, 0, s, n, first) : QN_OK;
}
