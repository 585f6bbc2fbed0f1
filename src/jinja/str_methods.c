/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of strings in chat templates, as Python's.
 */
#include "jinja/jinja.h"

#include "base/unicode.h"

static bool is_str_or_none(qn__jinja_run *r, const qn__jinja_call *call, qn__jinja_value v)
{
    if (v.kind == QN__JINJA_STRING || v.kind == QN__JINJA_NONE || v.kind == QN__JINJA_ABSENT)
        return true;
    qn__jinja_refuse_undefined(r, v);
    qn__jinja_run_fail(r, "%s must be a string, not %s", call->name, qn__jinja_type_name(v));
    return false;
}

/* ---- strip, split --------------------------------------------------------------------------- */

static qn__jinja_value strip_sides(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call, int sides)
{
    static const char *const names[] = {"chars"};
    qn__jinja_value chars;
    if (!qn__jinja_bind(r, call, names, 1, &chars) || !is_str_or_none(r, call, chars))
        return qn__jinja_failed();
    return qn__jinja_strip(r, self.s, chars.kind == QN__JINJA_STRING ? chars.s : NULL, sides);
}

static qn__jinja_value str_strip(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    return strip_sides(r, self, call, 3);
}

static qn__jinja_value str_lstrip(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    return strip_sides(r, self, call, 1);
}

static qn__jinja_value str_rstrip(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    return strip_sides(r, self, call, 2);
}

static bool is_white(const qn__jinja_str *s, size_t at, size_t *k)
{
    unsigned char c = (unsigned char)s->data[at];
    return (qn__class_at(s->data, s->n, at, k) & QN__SPACE) || (c >= 0x1c && c <= 0x1f);
}

/* Words between white space, at most `most` cuts (negative: all). */
static bool split_words(qn__jinja_run *r, const qn__jinja_str *s, int64_t most,
                        qn__jinja_pile *pile)
{
    size_t i = 0, k;
    while (!r->failed) {
        while (i < s->n && is_white(s, i, &k))
            i += k;
        if (i >= s->n)
            break;
        size_t end = i;
        bool last = most >= 0 && (int64_t)pile->n >= most;
        while (end < s->n && !is_white(s, end, &k))
            end += k;
        if (last)
            end = s->n;
        qn__jinja_pile_push(r, pile, qn__jinja_substring(r, s, i, end));
        if (last)
            break;
        i = end;
    }
    return !r->failed;
}

static bool split_words_from_end(qn__jinja_run *r, const qn__jinja_str *s, int64_t most,
                                 qn__jinja_pile *pile)
{
    size_t end = s->n, k;
    while (!r->failed) {
        while (end > 0 && is_white(s, qn__char_before(s->data, end), &k))
            end = qn__char_before(s->data, end);
        if (end == 0)
            break;
        size_t from = end;
        bool last = most >= 0 && (int64_t)pile->n >= most;
        while (from > 0 && !is_white(s, qn__char_before(s->data, from), &k))
            from = qn__char_before(s->data, from);
        if (last)
            from = 0;
        qn__jinja_pile_push(r, pile, qn__jinja_substring(r, s, from, end));
        if (last)
            break;
        end = from;
    }
    return !r->failed;
}

/* The last place of t in s[0..end), as memmem finds the first; not in linear time, so it costs. */
static const char *find_last(qn__jinja_run *r, const char *s, size_t end, const qn__jinja_str *t)
{
    if (end < t->n || t->n == 0)
        return t->n == 0 ? s + end : NULL;
    for (size_t room = end - t->n + 1; room > 0;) {
        const char *hit = memrchr(s, t->data[0], room);
        size_t place = hit ? (size_t)(hit - s) : 0;
        if (!qn__jinja_run_spend(r, 1 + ((room - place) >> 5) + (t->n >> 5)) || !hit)
            return NULL;
        if (memcmp(hit, t->data, t->n) == 0)
            return hit;
        room = place;
    }
    return NULL;
}

static void reverse_pile(qn__jinja_pile *pile)
{
    for (size_t i = 0; i < pile->n / 2; i++) {
        qn__jinja_value swap = pile->items[i];
        pile->items[i] = pile->items[pile->n - 1 - i];
        pile->items[pile->n - 1 - i] = swap;
    }
}

static void split_at(qn__jinja_run *r, const qn__jinja_str *s, const qn__jinja_str *t, int64_t most,
                     bool from_end, qn__jinja_pile *pile)
{
    size_t from = 0, to = s->n;
    while (!r->failed && (most < 0 || (int64_t)pile->n < most)) {
        const char *hit = from_end ? find_last(r, s->data, to, t)
                                   : memmem(s->data + from, s->n - from, t->data, t->n);
        if (!hit)
            break;
        size_t place = (size_t)(hit - s->data);
        if (from_end) {
            qn__jinja_pile_push(r, pile, qn__jinja_substring(r, s, place + t->n, to));
            to = place;
        } else {
            qn__jinja_pile_push(r, pile, qn__jinja_substring(r, s, from, place));
            from = place + t->n;
        }
    }
    qn__jinja_pile_push(r, pile, qn__jinja_substring(r, s, from, to));
}

static qn__jinja_value split(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call,
                             bool from_end)
{
    static const char *const names[] = {"sep", "maxsplit"};
    qn__jinja_value a[2];
    int64_t most = -1;
    qn__jinja_pile pile = {0};
    if (!qn__jinja_bind(r, call, names, 2, a) || !is_str_or_none(r, call, a[0]) ||
        !qn__jinja_run_spend(r, self.s->n >> 3))
        return qn__jinja_failed();
    if (a[1].kind != QN__JINJA_ABSENT && !qn__jinja_as_int(a[1], &most))
        return qn__jinja_run_fail(r, "%s: maxsplit must be an integer", call->name);
    if (a[0].kind != QN__JINJA_STRING) {
        if (from_end)
            split_words_from_end(r, self.s, most, &pile);
        else
            split_words(r, self.s, most, &pile);
    } else if (a[0].s->n == 0) {
        return qn__jinja_run_fail(r, "empty separator");
    } else {
        split_at(r, self.s, a[0].s, most, from_end, &pile);
    }
    if (from_end)
        reverse_pile(&pile);
    return qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n);
}

static qn__jinja_value str_split(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    return split(r, self, call, false);
}

static qn__jinja_value str_rsplit(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    return split(r, self, call, true);
}

static qn__jinja_value str_splitlines(qn__jinja_run *r, qn__jinja_value self,
                                      const qn__jinja_call *call)
{
    static const char *const names[] = {"keepends"};
    qn__jinja_value keep;
    const qn__jinja_str *s = self.s;
    qn__jinja_pile pile = {0};
    if (!qn__jinja_bind(r, call, names, 1, &keep) || !qn__jinja_run_spend(r, s->n >> 3))
        return qn__jinja_failed();
    for (size_t at = 0; at < s->n && !r->failed;) {
        size_t next, end = qn__jinja_line_end(s, at, &next);
        qn__jinja_pile_push(r, &pile,
                            qn__jinja_substring(r, s, at, qn__jinja_truth(keep) ? next : end));
        at = next;
    }
    return qn__jinja_seq_new(r, QN__JINJA_LIST, pile.items, pile.n);
}

static qn__jinja_value cut_in_three(qn__jinja_run *r, qn__jinja_value self,
                                    const qn__jinja_call *call, bool last)
{
    if (call->n != 1 || call->args[0].kind != QN__JINJA_STRING || !call->args[0].s->n)
        return qn__jinja_run_fail(r, "%s takes a separator", call->name);
    const qn__jinja_str *s = self.s, *t = call->args[0].s;
    const char *hit = last ? find_last(r, s->data, s->n, t) : memmem(s->data, s->n, t->data, t->n);
    size_t place = hit    ? (size_t)(hit - s->data)
                   : last ? 0
                          : s->n,
           end = hit ? place + t->n : place;
    qn__jinja_value *three =
        qn__jinja_run_spend(r, s->n >> 5) ? qn__jinja_run_alloc(r, 3 * sizeof *three) : NULL;
    if (!three)
        return qn__jinja_failed();
    three[0] = qn__jinja_substring(r, s, 0, place);
    three[1] = hit ? call->args[0] : qn__jinja_text(r, "");
    three[2] = qn__jinja_substring(r, s, end, s->n);
    return qn__jinja_seq_new(r, QN__JINJA_TUPLE, three, 3);
}

static qn__jinja_value str_partition(qn__jinja_run *r, qn__jinja_value self,
                                     const qn__jinja_call *call)
{
    return cut_in_three(r, self, call, false);
}

static qn__jinja_value str_rpartition(qn__jinja_run *r, qn__jinja_value self,
                                      const qn__jinja_call *call)
{
    return cut_in_three(r, self, call, true);
}

/* ---- asking --------------------------------------------------------------------------------- */

/* The bytes that the range behind a method's first argument (start, end) says; false: it is none,
 * or it failed. Begins behind its end where `start` lies beyond the string. */
static bool ranged(qn__jinja_run *r, const qn__jinja_str *s, const qn__jinja_call *call,
                   qn_span *range)
{
    int64_t n = (int64_t)qn__jinja_length_of(s), part[2] = {0, n};
    if (call->n > 3 || call->n_named || !qn__jinja_run_spend(r, s->n >> 4))
        return qn__jinja_run_fail(r, "%s takes one to three arguments", call->name), false;
    for (size_t i = 1; i < call->n; i++) {
        if (call->args[i].kind != QN__JINJA_NONE && !qn__jinja_as_int(call->args[i], &part[i - 1]))
            return qn__jinja_run_fail(r, "%s: a range is of integers", call->name), false;
        if (part[i - 1] < 0)
            part[i - 1] = part[i - 1] < -n ? 0 : part[i - 1] + n;
    }
    if (part[1] > n)
        part[1] = n;
    if (part[0] > part[1])
        return false;
    range->begin = qn__jinja_str_offset(s, 0, (size_t)part[0]);
    range->end = qn__jinja_str_offset(s, range->begin, (size_t)(part[1] - part[0]));
    return true;
}

static bool has_affix(const qn__jinja_str *s, const qn__jinja_str *t, bool at_end)
{
    return s->n >= t->n && memcmp(s->data + (at_end ? s->n - t->n : 0), t->data, t->n) == 0;
}

static qn__jinja_value affix(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call,
                             bool at_end)
{
    qn__jinja_seq all = {.items = call->args, .n = 1};
    qn_span range = {0, self.s->n};
    if (call->n == 0)
        return qn__jinja_run_fail(r, "%s takes a string or strings", call->name);
    if (call->args[0].kind == QN__JINJA_TUPLE)
        all = *call->args[0].seq;
    if (call->n > 1 && !ranged(r, self.s, call, &range))
        return r->failed ? qn__jinja_failed() : qn__jinja_bool(false);
    const qn__jinja_str part = {.data = self.s->data + range.begin, .n = range.end - range.begin};
    for (size_t i = 0; i < all.n; i++) {
        if (all.items[i].kind != QN__JINJA_STRING) {
            qn__jinja_refuse_undefined(r, all.items[i]);
            return qn__jinja_run_fail(r, "%s first arg must be str or a tuple of str, not %s",
                                      call->name, qn__jinja_type_name(all.items[i]));
        }
        if (qn__jinja_run_spend(r, all.items[i].s->n >> 6) &&
            has_affix(&part, all.items[i].s, at_end))
            return qn__jinja_bool(true);
    }
    return qn__jinja_bool(false);
}

static qn__jinja_value str_startswith(qn__jinja_run *r, qn__jinja_value self,
                                      const qn__jinja_call *call)
{
    return affix(r, self, call, false);
}

static qn__jinja_value str_endswith(qn__jinja_run *r, qn__jinja_value self,
                                    const qn__jinja_call *call)
{
    return affix(r, self, call, true);
}

static qn__jinja_value remove_affix(qn__jinja_run *r, qn__jinja_value self,
                                    const qn__jinja_call *call, bool at_end)
{
    if (call->n != 1 || call->args[0].kind != QN__JINJA_STRING)
        return qn__jinja_run_fail(r, "%s takes a string", call->name);
    const qn__jinja_str *s = self.s, *t = call->args[0].s;
    if (!qn__jinja_run_spend(r, t->n >> 6))
        return qn__jinja_failed();
    if (!has_affix(s, t, at_end))
        return self;
    return at_end ? qn__jinja_substring(r, s, 0, s->n - t->n)
                  : qn__jinja_substring(r, s, t->n, s->n);
}

static qn__jinja_value str_removeprefix(qn__jinja_run *r, qn__jinja_value self,
                                        const qn__jinja_call *call)
{
    return remove_affix(r, self, call, false);
}

static qn__jinja_value str_removesuffix(qn__jinja_run *r, qn__jinja_value self,
                                        const qn__jinja_call *call)
{
    return remove_affix(r, self, call, true);
}

/* The place of a part in characters; -1: nowhere. */
static int64_t find_in(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call,
                       bool last)
{
    qn_span range;
    if (call->n == 0 || call->args[0].kind != QN__JINJA_STRING) {
        qn__jinja_run_fail(r, "%s takes a string", call->name);
        return -1;
    }
    const qn__jinja_str *s = self.s, *t = call->args[0].s;
    if (!ranged(r, s, call, &range))
        return -1;
    const char *from = s->data + range.begin;
    size_t n = range.end - range.begin;
    const char *hit = last        ? find_last(r, from, n, t)
                      : t->n == 0 ? from
                                  : memmem(from, n, t->data, t->n);
    return hit ? (int64_t)qn__jinja_length_of(
                     &(qn__jinja_str){.data = s->data, .n = (size_t)(hit - s->data)})
               : -1;
}

static qn__jinja_value str_find(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    return qn__jinja_int(find_in(r, self, call, false));
}

static qn__jinja_value str_rfind(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    return qn__jinja_int(find_in(r, self, call, true));
}

static qn__jinja_value str_index(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    int64_t at = find_in(r, self, call, false);
    return at < 0 ? qn__jinja_run_fail(r, "substring not found") : qn__jinja_int(at);
}

static qn__jinja_value str_rindex(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    int64_t at = find_in(r, self, call, true);
    return at < 0 ? qn__jinja_run_fail(r, "substring not found") : qn__jinja_int(at);
}

static qn__jinja_value str_count(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    qn_span range;
    if (call->n == 0 || call->args[0].kind != QN__JINJA_STRING)
        return qn__jinja_run_fail(r, "count takes a string");
    const qn__jinja_str *s = self.s, *t = call->args[0].s;
    int64_t count = 0;
    if (!ranged(r, s, call, &range))
        return r->failed ? qn__jinja_failed() : qn__jinja_int(0);
    const char *at = s->data + range.begin, *end = s->data + range.end;
    if (t->n == 0)
        return qn__jinja_int(
            (int64_t)qn__jinja_length_of(&(qn__jinja_str){.data = at, .n = (size_t)(end - at)}) +
            1);
    while (qn__jinja_run_spend(r, 1) && (at = memmem(at, (size_t)(end - at), t->data, t->n)))
        at += t->n, count++;
    return qn__jinja_int(count);
}

static qn__jinja_value str_isdigit(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_has_text_bits(r, self.s, 0, QN__TEXT_DIGIT);
}

static qn__jinja_value str_isdecimal(qn__jinja_run *r, qn__jinja_value self,
                                     const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_has_text_bits(r, self.s, 0, QN__TEXT_DECIMAL);
}

static qn__jinja_value str_isascii(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    bool all = qn__jinja_run_spend(r, self.s->n >> 4);
    (void)call;
    for (size_t i = 0; all && i < self.s->n; i++)
        all = (unsigned char)self.s->data[i] < 0x80;
    return qn__jinja_bool(all);
}

static qn__jinja_value str_isnumeric(qn__jinja_run *r, qn__jinja_value self,
                                     const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_has_text_bits(r, self.s, 0, QN__TEXT_NUMERIC);
}

static qn__jinja_value str_isalpha(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_has_text_bits(r, self.s, QN__LETTER, 0);
}

static qn__jinja_value str_isalnum(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_has_text_bits(r, self.s, QN__LETTER, QN__TEXT_NUMERIC);
}

static qn__jinja_value str_isspace(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_has_text_bits(r, self.s, QN__SPACE, 0);
}

static qn__jinja_value str_istitle(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_is_title(r, self.s);
}

static qn__jinja_value str_isupper(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_is_case(r, self.s, QN__TO_UPPER);
}

static qn__jinja_value str_islower(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_is_case(r, self.s, QN__TO_LOWER);
}

/* ---- changing ------------------------------------------------------------------------------- */

static qn__jinja_value str_upper(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_change_case(r, self.s, QN__TO_UPPER, QN__TO_UPPER, false);
}

static qn__jinja_value str_lower(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_change_case(r, self.s, QN__TO_LOWER, QN__TO_LOWER, false);
}

static qn__jinja_value str_capitalize(qn__jinja_run *r, qn__jinja_value self,
                                      const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_change_case(r, self.s, QN__TO_TITLE, QN__TO_LOWER, false);
}

static qn__jinja_value str_title(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    (void)call;
    return qn__jinja_change_case(r, self.s, QN__TO_TITLE, QN__TO_LOWER, true);
}

static qn__jinja_value str_replace(qn__jinja_run *r, qn__jinja_value self,
                                   const qn__jinja_call *call)
{
    static const char *const names[] = {"old", "new", "count"};
    qn__jinja_value a[3];
    int64_t count = -1;
    if (!qn__jinja_bind(r, call, names, 3, a))
        return qn__jinja_failed();
    for (int i = 0; i < 2; i++)
        if (a[i].kind != QN__JINJA_STRING) {
            qn__jinja_refuse_undefined(r, a[i]);
            return qn__jinja_run_fail(r, "replace() argument %d must be str, not %s", i + 1,
                                      qn__jinja_type_name(a[i]));
        }
    if (a[2].kind != QN__JINJA_ABSENT && !qn__jinja_as_int(a[2], &count))
        return qn__jinja_run_fail(r, "replace: count must be an integer");
    return qn__jinja_replace(r, self.s, a[0].s, a[1].s, count);
}

static qn__jinja_value str_join(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    if (call->n != 1)
        return qn__jinja_run_fail(r, "join takes one argument");
    return qn__jinja_join(r, call->args[0], self.s, true);
}

static qn__jinja_value str_format(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    return qn__jinja_format_braces(r, self.s, call);
}

/* The width and, but for zfill, what fills it. */
static bool read_padding(qn__jinja_run *r, const qn__jinja_call *call, int64_t *width,
                         qn__jinja_str *fill, bool zeros)
{
    *fill = (qn__jinja_str){.data = zeros ? "0" : " ", .n = 1};
    if (call->n < 1 || call->n > (zeros ? 1 : 2) || !qn__jinja_as_int(call->args[0], width))
        return qn__jinja_run_fail(r, "%s takes a width%s", call->name,
                                  zeros ? "" : " and a character"),
               false;
    if (call->n == 1)
        return true;
    if (call->args[1].kind != QN__JINJA_STRING || qn__jinja_length_of(call->args[1].s) != 1)
        return qn__jinja_run_fail(r, "The fill character must be exactly one character long"),
               false;
    *fill = *call->args[1].s;
    return true;
}

static qn__jinja_value str_center(qn__jinja_run *r, qn__jinja_value self,
                                  const qn__jinja_call *call)
{
    int64_t width;
    qn__jinja_str fill;
    return read_padding(r, call, &width, &fill, false) ? qn__jinja_center(r, self.s, width, &fill)
                                                       : qn__jinja_failed();
}

static qn__jinja_value justify(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call,
                               bool zeros, bool left)
{
    int64_t width = 0, n = (int64_t)qn__jinja_length_of(self.s);
    qn__jinja_str fill;
    qn__jinja_builder b;
    if (!read_padding(r, call, &width, &fill, zeros) || !qn__jinja_run_spend(r, self.s->n >> 6))
        return qn__jinja_failed();
    bool sign = zeros && self.s->n && (self.s->data[0] == '+' || self.s->data[0] == '-');
    qn__jinja_builder_begin(&b, r);
    qn__jinja_build_str(&b, self.s, 0, left ? self.s->n : sign);
    for (; n < width && qn__jinja_build_str(&b, &fill, 0, fill.n); n++)
        if (!qn__jinja_run_spend(r, 1))
            break;
    if (!left)
        qn__jinja_build_str(&b, self.s, sign, self.s->n);
    return qn__jinja_builder_end(&b);
}

static qn__jinja_value str_zfill(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    return justify(r, self, call, true, false);
}

static qn__jinja_value str_ljust(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    return justify(r, self, call, false, true);
}

static qn__jinja_value str_rjust(qn__jinja_run *r, qn__jinja_value self, const qn__jinja_call *call)
{
    return justify(r, self, call, false, false);
}

static const qn__jinja_named_function str_methods[] = {
    {"capitalize", str_capitalize},
    {"center", str_center},
    {"count", str_count},
    {"endswith", str_endswith},
    {"find", str_find},
    {"format", str_format},
    {"index", str_index},
    {"isalnum", str_isalnum},
    {"isalpha", str_isalpha},
    {"isascii", str_isascii},
    {"isdecimal", str_isdecimal},
    {"isdigit", str_isdigit},
    {"islower", str_islower},
    {"isnumeric", str_isnumeric},
    {"isspace", str_isspace},
    {"istitle", str_istitle},
    {"isupper", str_isupper},
    {"join", str_join},
    {"ljust", str_ljust},
    {"lower", str_lower},
    {"lstrip", str_lstrip},
    {"partition", str_partition},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace},
    {"rfind", str_rfind},
    {"rindex", str_rindex},
    {"rjust", str_rjust},
    {"rpartition", str_rpartition},
    {"rsplit", str_rsplit},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"splitlines", str_splitlines},
    {"startswith", str_startswith},
    {"strip", str_strip},
    {"title", str_title},
    {"upper", str_upper},
    {"zfill", str_zfill},
};

const qn__jinja_named_function *qn__jinja_str_method_find(const qn__jinja_str *name)
{
    return qn__jinja_named_find(str_methods, sizeof str_methods / sizeof *str_methods, name);
}
