/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's string operations that filters and methods share: lines, columns, strip, replace, join.
 */
#include "jinja/jinja.h"

#include "base/unicode.h"

/* ---- lines, columns ------------------------------------------------------------------------- */

size_t qn__jinja_line_end(const qn__jinja_str *s, size_t at, size_t *next)
{
    for (size_t k; at < s->n; at += k) {
        uint32_t c = (unsigned char)s->data[at];
        k = 1;
        if (c >= 0x80 && !(k = qn__utf8_decode(s->data + at, s->n - at, &c)))
            k = 1;
        if ((c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
            c == 0x2029) {
            *next = at + k + (c == '\r' && at + 1 < s->n && s->data[at + 1] == '\n');
            return at;
        }
    }
    *next = s->n;
    return s->n;
}

qn__jinja_value qn__jinja_center(qn__jinja_run *r, const qn__jinja_str *s, int64_t width,
                                 const qn__jinja_str *fill)
{
    int64_t n = (int64_t)qn__jinja_length_of(s), pad = width > n ? width - n : 0;
    int64_t left = pad / 2 + (pad & width & 1);
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    qn__jinja_run_spend(r, s->n >> 6);
    for (int64_t i = 0; i < left && qn__jinja_build_str(&b, fill, 0, fill->n); i++)
        ;
    qn__jinja_build_str(&b, s, 0, s->n);
    for (int64_t i = left; i < pad && qn__jinja_build_str(&b, fill, 0, fill->n); i++)
        ;
    return qn__jinja_builder_end(&b);
}

/* ---- strip, replace, join ------------------------------------------------------------------- */

/* Whether the character at s[at..at + k) is to be stripped; chars NULL: white space. */
static bool strips(const qn__jinja_str *s, size_t at, size_t *k, const qn__jinja_str *chars)
{
    unsigned class = qn__class_at(s->data, s->n, at, k);
    unsigned char c = (unsigned char)s->data[at];
    if (!chars)
        return (class & QN__SPACE) || (c >= 0x1c && c <= 0x1f);
    for (size_t i = 0, m; i < chars->n; i += m) {
        m = qn__jinja_str_offset(chars, i, 1) - i;
        if (m == *k && memcmp(chars->data + i, s->data + at, m) == 0)
            return true;
    }
    return false;
}

qn__jinja_value qn__jinja_strip(qn__jinja_run *r, const qn__jinja_str *s,
                                const qn__jinja_str *chars, int sides)
{
    size_t from = 0, to = s->n, k;
    uint64_t each = chars ? 1 + (chars->n >> 5) : 0; /* steps for a character */
    while ((sides & 1) && from < to && qn__jinja_run_spend(r, each) && strips(s, from, &k, chars))
        from += k;
    while ((sides & 2) && to > from && qn__jinja_run_spend(r, each) &&
           strips(s, qn__char_before(s->data, to), &k, chars))
        to = qn__char_before(s->data, to);
    return r->failed ? qn__jinja_failed() : qn__jinja_substring(r, s, from, to);
}

qn__jinja_value qn__jinja_replace(qn__jinja_run *r, const qn__jinja_str *s,
                                  const qn__jinja_str *was, const qn__jinja_str *is, int64_t count)
{
    qn__jinja_builder b;
    qn__jinja_builder_begin(&b, r);
    size_t at = 0;
    while (count != 0 && !r->failed) {
        const char *hit = was->n ? memmem(s->data + at, s->n - at, was->data, was->n) : NULL;
        size_t place = hit ? (size_t)(hit - s->data) : at;
        if (!hit && was->n)
            break;
        qn__jinja_build_str(&b, s, at, place);
        qn__jinja_build_str(&b, is, 0, is->n);
        at = place + was->n;
        if (!was->n) { /* between all characters */
            if (at >= s->n)
                break;
            size_t next = qn__jinja_str_offset(s, at, 1);
            qn__jinja_build_str(&b, s, at, next);
            at = next;
        }
        count -= count > 0;
        if (!qn__jinja_run_spend(r, 1))
            break;
    }
    qn__jinja_build_str(&b, s, at, s->n);
    return qn__jinja_builder_end(&b);
}

/* strict: the method, which takes strings alone. */
qn__jinja_value qn__jinja_join(qn__jinja_run *r, qn__jinja_value items,
                               const qn__jinja_str *separator, bool strict)
{
    qn__jinja_seq seq;
    qn__jinja_builder b;
    if (!qn__jinja_items_of(r, items, &seq))
        return qn__jinja_failed();
    qn__jinja_builder_begin(&b, r);
    for (size_t i = 0; i < seq.n && qn__jinja_run_spend(r, 1); i++) {
        if (strict && seq.items[i].kind != QN__JINJA_STRING)
            return qn__jinja_run_fail(r, "sequence item %zu: expected str instance, %s found", i,
                                      qn__jinja_type_name(seq.items[i]));
        if (i)
            qn__jinja_build_str(&b, separator, 0, separator->n);
        qn__jinja_build_value(&b, seq.items[i]);
    }
    return qn__jinja_builder_end(&b);
}
