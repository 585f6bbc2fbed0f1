/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's string operations that filters and methods share: lines, columns, strip, replace, join.
 */
#include "text/template.h"

#include "text/unicode.h"

/* ---- lines, columns ------------------------------------------------------------------------- */

size_t qn__line_end(const qn__str *s, size_t at, size_t *next)
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

qn__value qn__center(qn__run *r, const qn__str *s, int64_t width, const qn__str *fill)
{
    int64_t n = (int64_t)qn__length_of(s), pad = width > n ? width - n : 0;
    int64_t left = pad / 2 + (pad & width & 1);
    qn__builder b;
    qn__builder_begin(&b, r);
    qn__run_spend(r, s->n >> 6);
    for (int64_t i = 0; i < left && qn__build_str(&b, fill, 0, fill->n); i++)
        ;
    qn__build_str(&b, s, 0, s->n);
    for (int64_t i = left; i < pad && qn__build_str(&b, fill, 0, fill->n); i++)
        ;
    return qn__builder_end(&b);
}

/* ---- strip, replace, join ------------------------------------------------------------------- */

/* Whether the character at s[at..at + k) is to be stripped; chars NULL: white space. */
static bool strips(const qn__str *s, size_t at, size_t *k, const qn__str *chars)
{
    unsigned class = qn__class_at(s->data, s->n, at, k);
    unsigned char c = (unsigned char)s->data[at];
    if (!chars)
        return (class & QN__SPACE) || (c >= 0x1c && c <= 0x1f);
    for (size_t i = 0, m; i < chars->n; i += m) {
        m = qn__str_offset(chars, i, 1) - i;
        if (m == *k && memcmp(chars->data + i, s->data + at, m) == 0)
            return true;
    }
    return false;
}

qn__value qn__strip(qn__run *r, const qn__str *s, const qn__str *chars, int sides)
{
    size_t from = 0, to = s->n, k;
    uint64_t each = chars ? 1 + (chars->n >> 5) : 0; /* steps for a character */
    while ((sides & 1) && from < to && qn__run_spend(r, each) && strips(s, from, &k, chars))
        from += k;
    while ((sides & 2) && to > from && qn__run_spend(r, each) &&
           strips(s, qn__char_before(s->data, to), &k, chars))
        to = qn__char_before(s->data, to);
    return r->failed ? qn__failed() : qn__substring(r, s, from, to);
}

qn__value qn__replace(qn__run *r, const qn__str *s, const qn__str *was, const qn__str *is,
                      int64_t count)
{
    qn__builder b;
    qn__builder_begin(&b, r);
    size_t at = 0;
    while (count != 0 && !r->failed) {
        const char *hit = was->n ? memmem(s->data + at, s->n - at, was->data, was->n) : NULL;
        size_t place = hit ? (size_t)(hit - s->data) : at;
        if (!hit && was->n)
            break;
        qn__build_str(&b, s, at, place);
        qn__build_str(&b, is, 0, is->n);
        at = place + was->n;
        if (!was->n) { /* between all characters */
            if (at >= s->n)
                break;
            size_t next = qn__str_offset(s, at, 1);
            qn__build_str(&b, s, at, next);
            at = next;
        }
        count -= count > 0;
        if (!qn__run_spend(r, 1))
            break;
    }
    qn__build_str(&b, s, at, s->n);
    return qn__builder_end(&b);
}

/* strict: the method, which takes strings alone. */
qn__value qn__join(qn__run *r, qn__value items, const qn__str *separator, bool strict)
{
    qn__seq seq;
    qn__builder b;
    if (!qn__items_of(r, items, &seq))
        return qn__failed();
    qn__builder_begin(&b, r);
    for (size_t i = 0; i < seq.n && qn__run_spend(r, 1); i++) {
        if (strict && seq.items[i].kind != QN__V_STRING)
            return qn__run_fail(r, "sequence item %zu: expected str instance, %s found", i,
                                qn__type_name(seq.items[i]));
        if (i)
            qn__build_str(&b, separator, 0, separator->n);
        qn__build_value(&b, seq.items[i]);
    }
    return qn__builder_end(&b);
}
