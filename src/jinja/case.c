/* SPDX-License-Identifier: Apache-2.0
 *
 * Case in chat templates, as Python's str has it: full mappings (sharp s becomes two letters), the
 * sigma that ends a word, and what upper() and its relatives ask of a character.
 */
#include "jinja/jinja.h"

#include "base/unicode.h"

static unsigned text_bits(uint32_t c)
{
    size_t low = 0, high = qn__unicode_n_text;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (qn__unicode_text[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    bool hit = low < qn__unicode_n_text && qn__unicode_text[low].first <= c;
    return hit ? qn__unicode_text[low].value : 0;
}

static const qn__unicode_case_many *find_many(const qn__unicode_case *map, uint32_t c)
{
    size_t low = 0, high = map->n_many;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (map->many[middle].c < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < map->n_many && map->many[low].c == c ? &map->many[low] : NULL;
}

static const qn__unicode_case_run *find_run(const qn__unicode_case *map, uint32_t c)
{
    size_t low = 0, high = map->n_runs;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (map->runs[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    const qn__unicode_case_run *run = low < map->n_runs ? &map->runs[low] : NULL;
    return run && run->first <= c && (c - run->first) % run->step == 0 ? run : NULL;
}

/* What a character becomes: up to three characters into out; returns how many. */
static int map_case(uint32_t c, qn__case to, uint32_t out[3])
{
    out[0] = c;
    if (c < 0x80) {
        if (to == QN__TO_LOWER ? c >= 'A' && c <= 'Z' : c >= 'a' && c <= 'z')
            out[0] = c ^ 0x20;
        return 1;
    }
    const qn__unicode_case *map = &qn__unicode_cases[to];
    const qn__unicode_case_many *many = find_many(map, c);
    if (many) {
        memcpy(out, many->to, sizeof many->to);
        return many->to[2] ? 3 : 2;
    }
    const qn__unicode_case_run *run = find_run(map, c);
    if (!run && to == QN__TO_TITLE)
        run = find_run(&qn__unicode_cases[QN__TO_UPPER], c);
    if (run)
        out[0] = (uint32_t)((int32_t)c + run->distance);
    return 1;
}

static uint32_t char_at(const qn__jinja_str *s, size_t at, size_t *k)
{
    uint32_t c = (unsigned char)s->data[at];
    *k = 1;
    if (c >= 0x80 && !(*k = qn__utf8_decode(s->data + at, s->n - at, &c)))
        *k = 1;
    return c;
}

/* Whether the capital sigma at s[at] ends a word: a cased character before it, none behind it,
 * passing over those that do not count. */
static bool is_final(const qn__jinja_str *s, size_t at)
{
    enum { SIGMA_SIZE = 2 };
    unsigned bits = QN__TEXT_IGNORABLE;
    size_t k;
    for (size_t i = at; i > 0 && (bits & QN__TEXT_IGNORABLE);) {
        i = qn__char_before(s->data, i);
        bits = text_bits(char_at(s, i, &k));
        if (i == 0 && (bits & QN__TEXT_IGNORABLE))
            bits = 0;
    }
    if ((bits & QN__TEXT_IGNORABLE) || !(bits & QN__TEXT_CASED))
        return false;
    for (size_t i = at + SIGMA_SIZE; i < s->n; i += k) {
        bits = text_bits(char_at(s, i, &k));
        if (!(bits & QN__TEXT_IGNORABLE))
            return !(bits & QN__TEXT_CASED);
    }
    return true;
}

/* Text in the making by single characters, appended in pieces. */
typedef struct case_piece {
    qn__jinja_builder b;
    char bytes[128];
    size_t n;
    bool is_data;
} case_piece;

static void flush(case_piece *p)
{
    qn__jinja_build(&p->b, p->bytes, p->n, p->is_data);
    p->n = 0;
}

static void put_char(case_piece *p, uint32_t c, bool is_data)
{
    if (p->n > sizeof p->bytes - 4 || (p->n > 0 && p->is_data != is_data))
        flush(p);
    p->is_data = is_data;
    p->n += qn__utf8_encode(c, p->bytes + p->n);
}

qn__jinja_value qn__jinja_change_case(qn__jinja_run *r, const qn__jinja_str *s, qn__case first,
                                      qn__case rest, bool words)
{
    case_piece piece = {.n = 0};
    bool inside = false;
    qn__jinja_builder_begin(&piece.b, r);
    if (!qn__jinja_run_spend(r, s->n >> 2))
        return qn__jinja_failed();
    for (size_t i = 0, k; i < s->n && !r->failed; i += k) {
        uint32_t c = char_at(s, i, &k), mapped[3];
        qn__case to = inside ? rest : first;
        int n = map_case(c, to, mapped);
        if (c == 0x3a3 && to == QN__TO_LOWER && is_final(s, i))
            mapped[0] = 0x3c2;
        inside = words ? text_bits(c) & QN__TEXT_CASED : true;
        bool is_data = s->n_spans > 0 && qn__jinja_str_from_data(s, i);
        for (int j = 0; j < n; j++)
            put_char(&piece, mapped[j], is_data);
    }
    flush(&piece);
    return qn__jinja_builder_end(&piece.b);
}

qn__jinja_value qn__jinja_is_case(qn__jinja_run *r, const qn__jinja_str *s, qn__case wanted)
{
    unsigned bit = wanted == QN__TO_UPPER ? QN__TEXT_UPPER : QN__TEXT_LOWER, seen = 0;
    if (!qn__jinja_run_spend(r, s->n >> 2))
        return qn__jinja_failed();
    for (size_t i = 0, k; i < s->n && !(seen & QN__TEXT_CASED & ~bit); i += k)
        seen |= text_bits(char_at(s, i, &k));
    return qn__jinja_bool((seen & QN__TEXT_CASED) == bit);
}

qn__jinja_value qn__jinja_is_title(qn__jinja_run *r, const qn__jinja_str *s)
{
    bool inside = false, any = false;
    if (!qn__jinja_run_spend(r, s->n >> 2))
        return qn__jinja_failed();
    for (size_t i = 0, k; i < s->n; i += k) {
        unsigned bits = text_bits(char_at(s, i, &k));
        bool begins = bits & (QN__TEXT_UPPER | QN__TEXT_TITLE);
        if (inside ? begins : bits & QN__TEXT_LOWER)
            return qn__jinja_bool(false);
        inside = bits & QN__TEXT_CASED;
        any = any || inside;
    }
    return qn__jinja_bool(any);
}

qn__jinja_value qn__jinja_has_text_bits(qn__jinja_run *r, const qn__jinja_str *s, unsigned classes,
                                        unsigned bits)
{
    bool all = s->n > 0;
    if (!qn__jinja_run_spend(r, s->n >> 2))
        return qn__jinja_failed();
    for (size_t i = 0, k; all && i < s->n; i += k) {
        unsigned class = qn__class_at(s->data, s->n, i, &k);
        uint32_t c = (unsigned char)s->data[i];
        bool separator = (classes & QN__SPACE) && c >= 0x1c && c <= 0x1f; /* white in Python */
        all = (class & classes) || separator || (bits && (text_bits(char_at(s, i, &k)) & bits));
    }
    return qn__jinja_bool(all);
}
