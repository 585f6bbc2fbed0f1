/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of chat templates that lay text out in lines and columns: indent, center, truncate,
 * wordwrap; and wordcount. Columns are code points. wordwrap breaks where Python's textwrap does.
 */
#include "jinja/jinja.h"

#include "base/unicode.h"

static qn__jinja_value filter_indent(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    static const char *const names[] = {"width", "first", "blank"};
    qn__jinja_value a[3], s = qn__jinja_to_str(r, v), unit = {.kind = QN__JINJA_ABSENT};
    int64_t width = 4;
    if (!qn__jinja_bind(r, call, names, 3, a) || s.kind != QN__JINJA_STRING)
        return qn__jinja_failed();
    if (a[0].kind == QN__JINJA_STRING)
        unit = a[0];
    else if (a[0].kind != QN__JINJA_ABSENT && !qn__jinja_as_int(a[0], &width))
        return qn__jinja_run_fail(r, "indent: width must be an integer or a string");
    if (unit.kind == QN__JINJA_ABSENT)
        unit = qn__jinja_binary(r, QN__JINJA_OP_MULTIPLY, qn__jinja_text(r, " "),
                                qn__jinja_int(width));
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    bool first = qn__jinja_truth(a[1]), blank = qn__jinja_truth(a[2]);
    qn__jinja_run_spend(r, s.s->n >> 3);
    for (size_t at = 0, line = 0, next; !r->failed; at = next, line++) {
        size_t end = qn__jinja_line_end(s.s, at, &next);
        if (line == 0 ? first : (end > at || blank))
            qn__jinja_build_str(&b, unit.s, 0, unit.s->n);
        qn__jinja_build_str(&b, s.s, at, end);
        if (end == s.s->n || (next == s.s->n && s.s->data[end] == '\r' && end + 1 == next))
            break;
        qn__jinja_build_text(&b, "\n");
    }
    return qn__jinja_builder_end(&b);
}

static qn__jinja_value filter_center(qn__jinja_run *r, qn__jinja_value v,
                                     const qn__jinja_call *call)
{
    static const char *const names[] = {"width"};
    qn__jinja_value width, s = qn__jinja_to_str(r, v);
    int64_t n = 80;
    if (!qn__jinja_bind(r, call, names, 1, &width) || s.kind != QN__JINJA_STRING)
        return qn__jinja_failed();
    if (width.kind != QN__JINJA_ABSENT && !qn__jinja_as_int(width, &n))
        return qn__jinja_run_fail(r, "center: width must be an integer");
    return qn__jinja_center(r, s.s, n, &(qn__jinja_str){.data = " ", .n = 1});
}

static qn__jinja_value filter_truncate(qn__jinja_run *r, qn__jinja_value v,
                                       const qn__jinja_call *call)
{
    static const char *const names[] = {"length", "killwords", "end", "leeway"};
    static const qn__jinja_str dots = {.data = "...", .n = 3};
    qn__jinja_value a[4];
    int64_t length = 255, leeway = 5;
    if (!qn__jinja_bind(r, call, names, 4, a) || v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    const qn__jinja_str *s = v.s, *end = a[2].kind == QN__JINJA_STRING ? a[2].s : &dots;
    if (v.kind != QN__JINJA_STRING ||
        (a[0].kind > QN__JINJA_ABSENT && !qn__jinja_as_int(a[0], &length)) ||
        (a[2].kind > QN__JINJA_ABSENT && a[2].kind != QN__JINJA_STRING) ||
        (a[3].kind > QN__JINJA_NONE && !qn__jinja_as_int(a[3], &leeway)))
        return qn__jinja_run_fail(
            r, "truncate takes a string, a length, a boolean, a string, a leeway");
    int64_t n = (int64_t)qn__jinja_length_of(s), n_end = (int64_t)qn__jinja_length_of(end);
    if (!qn__jinja_run_spend(r, (s->n + end->n) >> 4))
        return qn__jinja_failed();
    if (length < n_end || leeway < 0)
        return qn__jinja_run_fail(r, "truncate: the length has to be at least %lld, the leeway 0",
                                  (long long)n_end);
    if (n <= length || n - length <= leeway)
        return v;
    size_t cut = qn__jinja_str_offset(s, 0, (size_t)(length - n_end)), space = cut;
    while (space > 0 && s->data[space - 1] != ' ')
        space--;
    if (space > 0 && !qn__jinja_truth(a[1]))
        cut = space - 1;
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_str(&b, s, 0, cut);
    qn__jinja_build_str(&b, end, 0, end->n);
    return qn__jinja_builder_end(&b);
}

static bool is_word_at(const char *s, size_t end, size_t at)
{
    size_t k;
    return at < end && (s[at] == '_' || (qn__class_at(s, end, at, &k) & (QN__LETTER | QN__NUMBER)));
}

static qn__jinja_value filter_wordcount(qn__jinja_run *r, qn__jinja_value v,
                                        const qn__jinja_call *call)
{
    qn__jinja_value s = qn__jinja_to_str(r, v);
    int64_t count = 0;
    bool inside = false;
    if (s.kind != QN__JINJA_STRING || !qn__jinja_bind(r, call, NULL, 0, NULL) ||
        !qn__jinja_run_spend(r, s.s->n >> 3))
        return qn__jinja_failed();
    for (size_t i = 0; i < s.s->n; i = qn__char_behind(s.s->data, s.s->n, i)) {
        bool word = is_word_at(s.s->data, s.s->n, i);
        count += word && !inside;
        inside = word;
    }
    return qn__jinja_int(count);
}

/* ---- wordwrap ------------------------------------------------------------------------------- */

/* A paragraph s[begin..end), and how to break it. */
typedef struct wrapping {
    const char *s;
    size_t begin, end;
    bool hyphens, break_words;
    int64_t width;
} wrapping;

static bool is_gap_at(const wrapping *w, size_t at)
{
    return at < w->end && w->s[at] && strchr("\t\n\v\f\r ", w->s[at]);
}

static bool is_letter_at(const wrapping *w, size_t at)
{
    size_t k;
    return at < w->end && (w->s[at] == '_' || (qn__class_at(w->s, w->end, at, &k) & QN__LETTER));
}

/* Steps back over one character that `is` holds for. */
static bool back_over(const wrapping *w, size_t *at, bool (*is)(const wrapping *, size_t))
{
    if (*at == w->begin)
        return false;
    *at = qn__char_before(w->s, *at);
    return is(w, *at);
}

static bool is_hyphen_at(const wrapping *w, size_t at)
{
    return w->s[at] == '-';
}

static bool is_word_or_point_at(const wrapping *w, size_t at)
{
    return is_word_at(w->s, w->end, at) || (w->s[at] && strchr("!\"'&.,?", w->s[at]));
}

/* Two letters, or a letter, a hyphen and a word character stand before `at`. */
static bool hyphenates_before(const wrapping *w, size_t at)
{
    size_t two = at, three = at;
    return (back_over(w, &two, is_letter_at) && back_over(w, &two, is_letter_at)) ||
           (back_over(w, &three, is_word_or_point_at) && back_over(w, &three, is_hyphen_at) &&
            back_over(w, &three, is_letter_at));
}

/* Two letters begin at `at`, maybe with a hyphen between them. */
static bool hyphenates_behind(const wrapping *w, size_t at)
{
    if (!is_letter_at(w, at))
        return false;
    at = qn__char_behind(w->s, w->end, at);
    return is_letter_at(w, at < w->end && w->s[at] == '-' ? at + 1 : at);
}

/* The end of a dash of several hyphens between words that begins at `at`; `at`: there is none. */
static size_t dash_end(const wrapping *w, size_t at)
{
    size_t before = at, end = at;
    if (at >= w->end || w->s[at] != '-' || !back_over(w, &before, is_word_or_point_at))
        return at;
    while (end < w->end && w->s[end] == '-')
        end++;
    return end - at >= 2 && is_word_at(w->s, w->end, end) ? end : at;
}

/* What cannot be broken from `at` on: white space, a dash, a word or what it has up to a hyphen. */
static size_t chunk_end(const wrapping *w, size_t at)
{
    size_t i = at;
    while (is_gap_at(w, i))
        i++;
    if (i > at || at >= w->end)
        return i;
    if (w->hyphens && dash_end(w, at) > at)
        return dash_end(w, at);
    for (i = qn__char_behind(w->s, w->end, at); i < w->end && !is_gap_at(w, i);
         i = qn__char_behind(w->s, w->end, i)) {
        if (!w->hyphens || w->s[i] != '-')
            continue;
        if (hyphenates_before(w, i) && hyphenates_behind(w, i + 1))
            return i + 1;
        if (dash_end(w, i) > i)
            return i;
    }
    return i < w->end ? i : w->end;
}

static bool is_blank(const wrapping *w, size_t from, size_t to)
{
    size_t k;
    for (; from < to; from += k) {
        unsigned char c = (unsigned char)w->s[from];
        if (!(qn__class_at(w->s, w->end, from, &k) & QN__SPACE) && (c < 0x1c || c > 0x1f))
            return false;
    }
    return true;
}

/* Where to cut a chunk of which only `room` characters fit: behind its last hyphen there. */
static size_t cut_chunk(const wrapping *w, size_t at, size_t end, int64_t room)
{
    const qn__jinja_str s = {.data = w->s, .n = end};
    size_t cut = qn__jinja_str_offset(&s, at, (size_t)room), hyphen = cut, other = at;
    if (!w->hyphens)
        return cut;
    while (hyphen > at && w->s[hyphen - 1] != '-')
        hyphen--;
    while (other < hyphen && w->s[other] == '-')
        other++;
    return other + 1 < hyphen ? hyphen : cut;
}

/* Appends a paragraph's lines with `newline` between them. */
static bool wrap_paragraph(qn__jinja_builder *b, const qn__jinja_str *s, const wrapping *w,
                           const qn__jinja_str *newline)
{
    size_t at = w->begin, end = chunk_end(w, at);
    int64_t length = 0; /* of the chunk s[at..end) */
    bool lines = false;
#define MEASURE() ((int64_t)qn__jinja_length_of(&(qn__jinja_str){.data = w->s + at, .n = end - at}))
    length = MEASURE();
    while (at < w->end && qn__jinja_run_spend(b->run, 1 + ((end - at) >> 3))) {
        if (lines && is_blank(w, at, end)) {
            at = end;
            end = chunk_end(w, at);
            length = MEASURE();
        }
        size_t line = at, last = at;
        int64_t used = 0;
        while (at < w->end && used + length <= w->width && qn__jinja_run_spend(b->run, 1)) {
            last = at;
            used += length;
            at = end;
            end = chunk_end(w, at);
            length = MEASURE();
        }
        bool too_long = at < w->end && length > w->width;
        if (too_long && w->break_words) {
            last = at;
            at = cut_chunk(w, at, end, w->width - used);
            length -=
                (int64_t)qn__jinja_length_of(&(qn__jinja_str){.data = w->s + last, .n = at - last});
        } else if (too_long && at == line) {
            last = at;
            at = end;
            end = chunk_end(w, at);
            length = MEASURE();
        }
        size_t line_end = is_blank(w, last, at) ? last : at;
        if (line_end > line) {
            if (lines && !qn__jinja_build_str(b, newline, 0, newline->n))
                return false;
            qn__jinja_build_str(b, s, line, line_end);
            lines = true;
        }
    }
#undef MEASURE
    return !b->run->failed;
}

static qn__jinja_value filter_wordwrap(qn__jinja_run *r, qn__jinja_value v,
                                       const qn__jinja_call *call)
{
    static const char *const names[] = {"width", "break_long_words", "wrapstring",
                                        "break_on_hyphens"};
    static const qn__jinja_str line_feed = {.data = "\n", .n = 1};
    qn__jinja_value a[4];
    wrapping w = {.width = 79};
    if (!qn__jinja_bind(r, call, names, 4, a) || v.kind == QN__JINJA_UNDEFINED)
        return qn__jinja_refuse_undefined(r, v);
    if (v.kind != QN__JINJA_STRING ||
        (a[0].kind > QN__JINJA_ABSENT && !qn__jinja_as_int(a[0], &w.width)) ||
        (a[2].kind > QN__JINJA_NONE && a[2].kind != QN__JINJA_STRING))
        return qn__jinja_run_fail(
            r, "wordwrap takes a string, a width, a boolean, a string, a boolean");
    if (w.width <= 0)
        return qn__jinja_run_fail(r, "invalid width %lld (must be > 0)", (long long)w.width);
    w.break_words = a[1].kind == QN__JINJA_ABSENT || qn__jinja_truth(a[1]);
    w.hyphens = a[3].kind == QN__JINJA_ABSENT || qn__jinja_truth(a[3]);
    const qn__jinja_str *newline = a[2].kind == QN__JINJA_STRING ? a[2].s : &line_feed;
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    w.s = v.s->data;
    qn__jinja_run_spend(r, v.s->n >> 2);
    for (size_t at = 0, next; at < v.s->n && !r->failed; at = next) {
        w.begin = at;
        w.end = qn__jinja_line_end(v.s, at, &next);
        if ((at == 0 || qn__jinja_build_str(&b, newline, 0, newline->n)) && w.begin < w.end)
            wrap_paragraph(&b, v.s, &w, newline);
    }
    return qn__jinja_builder_end(&b);
}

static const qn__jinja_named_function layout_filters[] = {
    {"center", filter_center},       {"indent", filter_indent},     {"truncate", filter_truncate},
    {"wordcount", filter_wordcount}, {"wordwrap", filter_wordwrap},
};

const qn__jinja_named_function *qn__jinja_layout_filter_find(const qn__jinja_str *name)
{
    return qn__jinja_named_find(layout_filters, sizeof layout_filters / sizeof *layout_filters,
                                name);
}
