/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of characters of a pattern; see regex.h.
 */
#include "text/regex.h"

#include <stdlib.h>
#include <string.h>

enum { LAST_CHAR = 0x10ffff };

bool qn__charset_add(qn__arena *arena, qn__charset *set, uint32_t first, uint32_t last)
{
    if (set->n == set->capacity) {
        size_t capacity = set->capacity ? set->capacity * 2 : 4;
        qn__range *grown = qn__arena_alloc(arena, capacity * sizeof *grown);
        if (!grown)
            return false;
        if (set->n)
            memcpy(grown, set->ranges, set->n * sizeof *grown);
        set->ranges = grown;
        set->capacity = capacity;
    }
    set->ranges[set->n++] = (qn__range){first, last};
    return true;
}

static int compare_ranges(const void *a, const void *b)
{
    const qn__range *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : 0;
}

void qn__charset_finish(qn__charset *set)
{
    size_t kept = 0;
    if (set->n > 1)
        qsort(set->ranges, set->n, sizeof *set->ranges, compare_ranges);
    for (size_t i = 0; i < set->n; i++) {
        qn__range r = set->ranges[i];
        if (kept > 0 && r.first <= set->ranges[kept - 1].last + 1) {
            if (r.last > set->ranges[kept - 1].last)
                set->ranges[kept - 1].last = r.last;
        } else {
            set->ranges[kept++] = r;
        }
    }
    set->n = kept;
    set->low[0] = set->low[1] = 0;
    for (size_t i = 0; i < set->n; i++)
        for (uint32_t c = set->ranges[i].first; c <= set->ranges[i].last && c < 128; c++)
            set->low[c >> 6] |= (uint64_t)1 << (c & 63);
}

bool qn__charset_slow_has(const qn__charset *set, uint32_t c)
{
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (set->ranges[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->n && set->ranges[low].first <= c;
}

bool qn__charset_join(qn__arena *arena, qn__charset *set, const qn__charset *other)
{
    bool ok = true;
    for (size_t i = 0; ok && i < other->n; i++)
        ok = qn__charset_add(arena, set, other->ranges[i].first, other->ranges[i].last);
    return ok;
}

bool qn__charset_negate(qn__arena *arena, qn__charset *set)
{
    qn__charset others = {0};
    uint32_t next = 0;
    bool ok = true;
    qn__charset_finish(set);
    for (size_t i = 0; ok && i < set->n; i++) {
        if (set->ranges[i].first > next)
            ok = qn__charset_add(arena, &others, next, set->ranges[i].first - 1);
        next = set->ranges[i].last + 1;
    }
    if (ok && next <= LAST_CHAR)
        ok = qn__charset_add(arena, &others, next, LAST_CHAR);
    qn__charset_finish(&others);
    *set = others;
    return ok;
}

bool qn__charset_intersect(qn__arena *arena, qn__charset *set, const qn__charset *other)
{
    qn__charset both = {0};
    size_t i = 0, j = 0;
    bool ok = true;
    qn__charset_finish(set); /* the other is finished */
    while (ok && i < set->n && j < other->n) {
        qn__range a = set->ranges[i], b = other->ranges[j];
        uint32_t first = a.first > b.first ? a.first : b.first;
        uint32_t last = a.last < b.last ? a.last : b.last;
        if (first <= last)
            ok = qn__charset_add(arena, &both, first, last);
        if (a.last < b.last)
            i++;
        else
            j++;
    }
    qn__charset_finish(&both);
    *set = both;
    return ok;
}

bool qn__charset_fold(qn__arena *arena, qn__charset *set)
{
    bool ok = true;
    qn__charset_finish(set);
    qn__charset more = {0};
    for (size_t i = 0; ok && i < qn__regex_n_folds; i++)
        if (qn__charset_has(set, qn__regex_folds[i].c))
            ok = qn__charset_add(arena, &more, qn__regex_folds[i].least, qn__regex_folds[i].least);
    ok = ok && qn__charset_join(arena, set, &more);
    qn__charset_finish(set);
    more.n = 0;
    for (size_t i = 0; ok && i < qn__regex_n_folds; i++)
        if (qn__charset_has(set, qn__regex_folds[i].least))
            ok = qn__charset_add(arena, &more, qn__regex_folds[i].c, qn__regex_folds[i].c);
    ok = ok && qn__charset_join(arena, set, &more);
    qn__charset_finish(set);
    return ok;
}

/* ---- properties ----------------------------------------------------------------------------- */

/* Names are the same but for case, spaces, "_" and "-". */
static bool same_name(const char *name, size_t n, const char *known)
{
    size_t i = 0;
    for (;;) {
        while (i < n && strchr(" _-", name[i]))
            i++;
        while (*known && strchr(" _-", *known))
            known++;
        if (i == n || !*known)
            return i == n && !*known;
        char a = name[i], b = *known;
        a = (char)(a >= 'A' && a <= 'Z' ? a | 0x20 : a);
        b = (char)(b >= 'A' && b <= 'Z' ? b | 0x20 : b);
        if (a != b)
            return false;
        i++;
        known++;
    }
}

/* The runs whose name begins with `letters` (one or two). */
static bool add_category(qn__arena *arena, qn__charset *set, const char *letters)
{
    bool ok = true;
    for (size_t i = 0; ok && i < qn__regex_n_categories; i++) {
        const qn__regex_start *run = &qn__regex_categories[i];
        uint32_t last = i + 1 < qn__regex_n_categories ? run[1].first - 1 : LAST_CHAR;
        if (run->name != 255 &&
            strncmp(qn__regex_category_names[run->name], letters, strlen(letters)) == 0)
            ok = qn__charset_add(arena, set, run->first, last);
    }
    return ok;
}

/* A category by its short name or its long one. */
static int add_named_category(qn__arena *arena, qn__charset *set, const char *name, size_t n)
{
    static const struct {
        const char *letters, *name;
    } known[] = {
        {"L", "Letter"},
        {"Lu", "Uppercase_Letter"},
        {"Ll", "Lowercase_Letter"},
        {"Lt", "Titlecase_Letter"},
        {"Lm", "Modifier_Letter"},
        {"Lo", "Other_Letter"},
        {"M", "Mark"},
        {"Mn", "Nonspacing_Mark"},
        {"Mc", "Spacing_Mark"},
        {"Me", "Enclosing_Mark"},
        {"N", "Number"},
        {"Nd", "Decimal_Number"},
        {"Nl", "Letter_Number"},
        {"No", "Other_Number"},
        {"P", "Punctuation"},
        {"Pc", "Connector_Punctuation"},
        {"Pd", "Dash_Punctuation"},
        {"Ps", "Open_Punctuation"},
        {"Pe", "Close_Punctuation"},
        {"Pi", "Initial_Punctuation"},
        {"Pf", "Final_Punctuation"},
        {"Po", "Other_Punctuation"},
        {"S", "Symbol"},
        {"Sm", "Math_Symbol"},
        {"Sc", "Currency_Symbol"},
        {"Sk", "Modifier_Symbol"},
        {"So", "Other_Symbol"},
        {"Z", "Separator"},
        {"Zs", "Space_Separator"},
        {"Zl", "Line_Separator"},
        {"Zp", "Paragraph_Separator"},
        {"C", "Other"},
        {"Cc", "Control"},
        {"Cf", "Format"},
        {"Cn", "Unassigned"},
        {"Co", "Private_Use"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (same_name(name, n, known[i].letters) || same_name(name, n, known[i].name)) {
            bool ok = add_category(arena, set, known[i].letters);
            /* Surrogates are no characters, but a category's complement has them. */
            if (ok && known[i].letters[0] == 'C' && !known[i].letters[1])
                ok = qn__charset_add(arena, set, 0xd800, 0xdfff);
            return ok ? 1 : -1;
        }
    return 0;
}

static int add_table(qn__arena *arena, qn__charset *set, const char *name, size_t n)
{
    for (size_t i = 0; i < qn__regex_n_properties; i++) {
        const qn__regex_property *p = &qn__regex_properties[i];
        bool ok = true;
        if (!same_name(name, n, p->name))
            continue;
        for (size_t k = 0; ok && k < p->n; k++)
            ok = qn__charset_add(arena, set, p->ranges[k].first, p->ranges[k].last);
        return ok ? 1 : -1;
    }
    for (size_t i = 0; i < qn__regex_n_script_names; i++) {
        bool ok = true;
        if (!same_name(name, n, qn__regex_script_names[i]))
            continue;
        for (size_t k = 0; ok && k < qn__regex_n_scripts; k++) {
            const qn__regex_start *run = &qn__regex_scripts[k];
            uint32_t last = k + 1 < qn__regex_n_scripts ? run[1].first - 1 : LAST_CHAR;
            if (run->name == i)
                ok = qn__charset_add(arena, set, run->first, last);
        }
        return ok ? 1 : -1;
    }
    return 0;
}

/* A union of properties, characters "@0-9" among them: what POSIX classes are. */
static bool add_all(qn__arena *arena, qn__charset *set, const char *const *parts)
{
    bool ok = true;
    for (; ok && *parts; parts++) {
        const char *part = *parts;
        if (part[0] == '@')
            ok = qn__charset_add(arena, set, (unsigned char)part[1], (unsigned char)part[3]);
        else if (strlen(part) <= 2)
            ok = add_category(arena, set, part);
        else
            ok = add_table(arena, set, part, strlen(part)) > 0;
    }
    return ok;
}

int qn__charset_property(qn__arena *arena, qn__charset *set, const char *name, size_t n)
{
    static const struct {
        const char *name;
        const char *parts[5];
        bool negated;
    } known[] = {
        {"Alnum", {"Alphabetic", "Nd"}, false},
        {"Alpha", {"Alphabetic"}, false},
        {"Any", {NULL}, true},
        {"ASCII", {"@\0-\177"}, false},
        {"Assigned", {"Cn"}, true},
        {"Blank", {"Zs", "@\t-\t"}, false},
        {"Cntrl", {"Cc"}, false},
        {"Digit", {"Nd"}, false},
        {"Graph", {"Z", "Cc", "Cn"}, true},
        {"Lower", {"Lowercase"}, false},
        {"PosixPunct", {"P", "S"}, false},
        {"Print", {"Zl", "Zp", "Cc", "Cn"}, true},
        {"Punct", {"P"}, false},
        {"Space", {"Z", "@\t-\r", "@\205-\205"}, false},
        {"Upper", {"Uppercase"}, false},
        {"White_Space", {"Z", "@\t-\r", "@\205-\205"}, false},
        {"Word", {"Alphabetic", "M", "Nd", "Pc"}, false},
        {"XDigit", {"@0-9", "@A-F", "@a-f"}, false},
    };
    static const struct {
        const char *name, *script;
    } scripts[] = {
        {"Hani", "Han"},    {"Hira", "Hiragana"},   {"Kana", "Katakana"}, {"Hang", "Hangul"},
        {"Latn", "Latin"},  {"Cyrl", "Cyrillic"},   {"Grek", "Greek"},    {"Arab", "Arabic"},
        {"Hebr", "Hebrew"}, {"Deva", "Devanagari"}, {"Zyyy", "Common"},   {"Zinh", "Inherited"},
    };
    int found = add_named_category(arena, set, name, n);
    for (size_t i = 0; !found && i < sizeof known / sizeof *known; i++) {
        if (!same_name(name, n, known[i].name))
            continue;
        qn__charset one = {0};
        bool ok = add_all(arena, &one, known[i].parts);
        if (ok && known[i].negated)
            ok = qn__charset_negate(arena, &one);
        return ok && qn__charset_join(arena, set, &one) ? 1 : -1;
    }
    for (size_t i = 0; !found && i < sizeof scripts / sizeof *scripts; i++)
        if (same_name(name, n, scripts[i].name))
            found = add_table(arena, set, scripts[i].script, strlen(scripts[i].script));
    return found ? found : add_table(arena, set, name, n);
}
