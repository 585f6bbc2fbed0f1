/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of patterns: Oniguruma's own syntax to a tree; see regex.h. One function a level of
 * the grammar: alternatives, items in a row, an item with its repeats, a class.
 */
#include "text/regex.h"

#include "base/utf8.h"

#include <string.h>
#include <strings.h>

enum { DEEPEST = 100, MOST_REPEATS = 1000, MOST_CAPTURES = 99, END = -1 };

typedef struct options {
    bool fold, dot_all, extended;
} options;

typedef struct group_name {
    const char *name;
    size_t n;
    int number;
} group_name;

typedef struct regex_parser {
    qn__regex_tree *tree;
    const char *s;
    size_t n, at;
    options options;
    int depth;
    bool named; /* groups with names there are: others do not capture */
    group_name names[MOST_CAPTURES];
    int n_names, most_backref;
} regex_parser;

/* ---- failing, making ------------------------------------------------------------------------ */

static void *regex_fail(regex_parser *p, const char *problem, bool unsupported)
{
    if (!p->tree->problem) {
        p->tree->problem = problem;
        p->tree->unsupported = unsupported;
        p->tree->problem_at = p->at < p->n ? p->at : p->n;
    }
    return NULL;
}

static void *not_supported(regex_parser *p, const char *what)
{
    return regex_fail(p, what, true);
}

static void *malformed(regex_parser *p, const char *problem)
{
    return regex_fail(p, problem, false);
}

/* For what returns a set: there, NULL without a problem has another meaning. */
static void *no_memory(regex_parser *p)
{
    p->tree->no_memory = true;
    return malformed(p, "memory is out");
}

static qn__regex_node *new_node(regex_parser *p, qn__regex_kind kind)
{
    qn__regex_node *node = qn__arena_zalloc(p->tree->arena, sizeof *node);
    if (node)
        node->kind = kind;
    return node;
}

static bool add_item(regex_parser *p, qn__regex_node *node, qn__regex_node *item)
{
    if (!item)
        return false;
    if (node->n == node->capacity) {
        size_t capacity = node->capacity ? node->capacity * 2 : 2;
        qn__regex_node **grown = qn__arena_alloc(p->tree->arena, capacity * sizeof *grown);
        if (!grown)
            return false;
        if (node->n)
            memcpy(grown, node->items, node->n * sizeof *grown);
        node->items = grown;
        node->capacity = capacity;
    }
    node->items[node->n++] = item;
    return true;
}

static qn__regex_node *wrap(regex_parser *p, qn__regex_kind kind, qn__regex_node *item)
{
    qn__regex_node *node = item ? new_node(p, kind) : NULL;
    return node && add_item(p, node, item) ? node : NULL;
}

static qn__regex_node *set_node(regex_parser *p, qn__charset *set)
{
    qn__regex_node *node = new_node(p, QN__RX_SET);
    if (!node || !set)
        return NULL;
    qn__charset_finish(set);
    node->set = set;
    return node;
}

static qn__charset *new_set(regex_parser *p)
{
    return qn__arena_zalloc(p->tree->arena, sizeof(qn__charset));
}

/* A property as a set of its own; NULL also where there is none of that name. */
static qn__charset *property_set(regex_parser *p, const char *name, size_t n, bool negated)
{
    qn__charset *set = new_set(p);
    int found = set ? qn__charset_property(p->tree->arena, set, name, n) : -1;
    if (found == 0)
        return not_supported(p, "this property of characters");
    if (found < 0 || (negated && !qn__charset_negate(p->tree->arena, set)))
        return no_memory(p);
    qn__charset_finish(set);
    return set;
}

static qn__regex_node *anchor_node(regex_parser *p, qn__regex_anchor anchor)
{
    qn__regex_node *node = new_node(p, QN__RX_ANCHOR);
    if (node)
        node->anchor = anchor;
    return node;
}

/* ---- characters ----------------------------------------------------------------------------- */

static int peek(const regex_parser *p)
{
    return p->at < p->n ? (unsigned char)p->s[p->at] : END;
}

static int peek_next(const regex_parser *p)
{
    return p->at + 1 < p->n ? (unsigned char)p->s[p->at + 1] : END;
}

static bool skip_char(regex_parser *p, char c)
{
    bool there = peek(p) == (unsigned char)c;
    p->at += there;
    return there;
}

static uint32_t take_char(regex_parser *p)
{
    uint32_t c = (unsigned char)p->s[p->at];
    size_t k = c < 0x80 ? 1 : qn__utf8_decode(p->s + p->at, p->n - p->at, &c);
    p->at += k ? k : 1;
    return c;
}

static int digit_value(int c, int base)
{
    int v = c >= '0' && c <= '9'   ? c - '0'
            : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                   : 99;
    return v < base ? v : -1;
}

/* Up to `most` digits; how many there were. */
static int take_digits(regex_parser *p, int base, int most, uint32_t *value)
{
    int count = 0;
    for (*value = 0; count < most && digit_value(peek(p), base) >= 0; count++, p->at++)
        *value = *value * (uint32_t)base + (uint32_t)digit_value(peek(p), base);
    return count;
}

static bool is_char(uint32_t c)
{
    return c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
}

/* \x61, \x{61}, \o{141}: a letter's code behind the letter. */
static bool take_code(regex_parser *p, char letter, uint32_t *c)
{
    int base = letter == 'o' ? 8 : 16, most = letter == 'u' ? 4 : 2;
    bool braces = letter != 'u' && skip_char(p, '{');
    int count = take_digits(p, base, braces ? 11 : most, c);
    if (braces && !skip_char(p, '}'))
        return not_supported(p, "several codes, or no code, within \\x{...}"), false;
    if (count == 0 || (letter == 'u' && count < 4))
        return malformed(p, "a code without its digits"), false;
    if (!is_char(*c) || (!braces && letter == 'x' && *c >= 0x80))
        return not_supported(p, "a code that is no character (\\x80 and above want braces)"), false;
    return true;
}

/* What an escape that stands for one character stands for; the backslash is passed, the letter is
 * not. 0: it is none of those. */
static int take_escape(regex_parser *p, uint32_t *c)
{
    static const char letters[] = "tnrfaev", codes[] = "\t\n\r\f\a\033\v";
    int letter = peek(p);
    const char *hit = letter > 0 && letter < 0x80 ? strchr(letters, letter) : NULL;
    if (hit) {
        *c = (unsigned char)codes[hit - letters];
        p->at++;
        return 1;
    }
    if (letter == 'x' || letter == 'u' || (letter == 'o' && peek_next(p) == '{')) {
        p->at++;
        return take_code(p, (char)letter, c) ? 1 : -1;
    }
    if (letter == '0') {
        take_digits(p, 8, 3, c);
        return 1;
    }
    if (letter == 'c' || ((letter == 'C' || letter == 'M') && peek_next(p) == '-'))
        return not_supported(p, "a control character as \\c, \\C- or \\M-"), -1;
    return 0;
}

/* ---- classes -------------------------------------------------------------------------------- */

/* \w, which has the superscripts and fractions of Latin-1 where it is not in a class. */
static qn__charset *word_set(regex_parser *p, bool negated)
{
    qn__charset *set = property_set(p, "Word", 4, false);
    bool ok = set && qn__charset_add(p->tree->arena, set, 0xb2, 0xb3) &&
              qn__charset_add(p->tree->arena, set, 0xb9, 0xb9) &&
              qn__charset_add(p->tree->arena, set, 0xbc, 0xbe);
    if (!ok || (negated && !qn__charset_negate(p->tree->arena, set)))
        return no_memory(p);
    qn__charset_finish(set);
    return set;
}

/* \d \s \w \h and their complements, \p{...}: the set; NULL without a problem: it is none. */
static qn__charset *take_class_escape(regex_parser *p, bool in_class)
{
    int letter = peek(p);
    bool negated = letter >= 'A' && letter <= 'Z';
    switch (letter | 0x20) {
    case 'd': p->at++; return property_set(p, "Digit", 5, negated);
    case 's': p->at++; return property_set(p, "Space", 5, negated);
    case 'w': p->at++; return in_class ? property_set(p, "Word", 4, negated) : word_set(p, negated);
    case 'h': p->at++; return property_set(p, "XDigit", 6, negated);
    case 'p': break;
    default: return NULL;
    }
    if (peek_next(p) != '{')
        return NULL;
    p->at += 2;
    if (skip_char(p, '^'))
        negated = !negated;
    size_t from = p->at;
    while (peek(p) != END && peek(p) != '}')
        p->at++;
    if (peek(p) == END)
        return malformed(p, "\\p{ without }");
    size_t n = p->at++ - from;
    if (n == 4 && !in_class && strncasecmp(p->s + from, "word", 4) == 0)
        return word_set(p, negated);
    return property_set(p, p->s + from, n, negated);
}

/* [:alpha:] at the place of its bracket; NULL without a problem: it is none. */
static qn__charset *take_posix(regex_parser *p)
{
    static const char *const names[] = {"alnum", "alpha", "ascii",  "blank", "cntrl",
                                        "digit", "graph", "lower",  "print", "punct",
                                        "space", "upper", "xdigit", "word"};
    size_t at = p->at + 2;
    bool negated = at < p->n && p->s[at] == '^';
    at += negated;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (p->n - at < n + 2 || memcmp(p->s + at, names[i], n) != 0 ||
            memcmp(p->s + at + n, ":]", 2) != 0)
            continue;
        p->at = at + n + 2;
        if (strcmp(names[i], "punct") == 0)
            return property_set(p, "PosixPunct", 10, negated);
        return property_set(p, names[i], n, negated);
    }
    return NULL;
}

static qn__charset *parse_class(regex_parser *p);

/* One thing of a class: a set, or (NULL without a problem) a character. */
static qn__charset *take_class_item(regex_parser *p, uint32_t *c)
{
    if (peek(p) == '[' && peek_next(p) == ':') {
        qn__charset *set = take_posix(p);
        if (set || p->tree->problem)
            return set;
        return not_supported(p, "[: in a class that begins no POSIX class");
    }
    if (peek(p) == '[')
        return parse_class(p);
    if (peek(p) != '\\') {
        *c = take_char(p);
        return NULL;
    }
    p->at++;
    if (peek(p) == END)
        return malformed(p, "a backslash at the end");
    qn__charset *set = take_class_escape(p, true);
    if (set || p->tree->problem)
        return set;
    int taken = take_escape(p, c);
    if (taken != 0)
        return NULL;
    int letter = peek(p);
    if (letter == 'b') {
        *c = '\b';
        p->at++;
        return NULL;
    }
    if (letter >= '1' && letter <= '7') {
        take_digits(p, 8, 3, c);
        return *c < 0x80 ? NULL : not_supported(p, "an octal code of 200 or more");
    }
    if ((letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z'))
        return not_supported(p, "this escape within a class");
    *c = take_char(p);
    return NULL;
}

/* Items up to && or the class's end, into set. */
static bool parse_class_items(regex_parser *p, qn__charset *set, bool *empty)
{
    qn__arena *arena = p->tree->arena;
    for (bool first = true; peek(p) != END; first = false) {
        if (peek(p) == ']' && !(first && *empty))
            return true;
        if (peek(p) == ']' && !memchr(p->s + p->at + 1, ']', p->n - p->at - 1))
            return malformed(p, "an empty class"), false;
        *empty = false;
        if (peek(p) == '&' && peek_next(p) == '&')
            return true;
        uint32_t c = 0, last = 0;
        bool dash = peek(p) == '-';
        qn__charset *inner = take_class_item(p, &c);
        if (p->tree->problem)
            return false;
        bool range = peek(p) == '-' && peek_next(p) != ']' && peek_next(p) != END;
        if (range && (dash || inner))
            return not_supported(p, "a - in a class behind a - or a class in it (write \\-)"),
                   false;
        if (inner) {
            if (!qn__charset_join(arena, set, inner))
                return no_memory(p), false;
            continue;
        }
        last = c;
        if (range) {
            p->at++;
            if (peek(p) == '-' || peek(p) == '[' || (peek(p) == '&' && peek_next(p) == '&'))
                return not_supported(p, "a range in a class that ends with -, [ or &&"), false;
            if (take_class_item(p, &last))
                return malformed(p, "a class at the end of a range"), false;
            if (p->tree->problem)
                return false;
            if (last < c)
                return malformed(p, "an empty range"), false;
        }
        if (!qn__charset_add(arena, set, c, last))
            return no_memory(p), false;
    }
    return malformed(p, "a class without ]"), false;
}

/* "[...]" at its bracket. */
static qn__charset *parse_class(regex_parser *p)
{
    qn__arena *arena = p->tree->arena;
    qn__charset *all = new_set(p), *part = new_set(p);
    bool empty = true, first = true;
    p->at++;
    bool negated = skip_char(p, '^');
    if (++p->depth > DEEPEST)
        return malformed(p, "nested too deep");
    if (!all || !part)
        return no_memory(p);
    for (;;) {
        part->n = 0;
        if (!parse_class_items(p, part, &empty))
            return NULL;
        qn__charset_finish(part);
        bool ok =
            first ? qn__charset_join(arena, all, part) : qn__charset_intersect(arena, all, part);
        if (!ok)
            return no_memory(p);
        if (skip_char(p, ']'))
            break;
        p->at += 2; /* && */
        first = false;
    }
    p->depth--;
    qn__charset_finish(all);
    if (p->options.fold) {
        for (size_t i = 0; !negated && i < qn__regex_n_manys; i++)
            if (qn__charset_has(all, qn__regex_manys[i].c))
                return not_supported(p, "a class without case of a letter that matches two");
        if (!qn__charset_fold(arena, all))
            return no_memory(p);
    }
    if (negated && !qn__charset_negate(arena, all))
        return no_memory(p);
    return all;
}

/* ---- groups --------------------------------------------------------------------------------- */

static qn__regex_node *parse_alternatives(regex_parser *p);

/* Up to `close`, which is passed. */
static bool take_name(regex_parser *p, char close, const char **name, size_t *n)
{
    *name = p->s + p->at;
    size_t from = p->at;
    while (peek(p) != END && peek(p) != (unsigned char)close) {
        int c = peek(p);
        bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    c == '_' || (c == '-' && p->at == from);
        if (!word)
            return not_supported(p, "this name of a group"), false;
        p->at++;
    }
    *n = p->at - from;
    if (*n == 0 || !skip_char(p, close))
        return malformed(p, "a group's name without its end"), false;
    return true;
}

static qn__regex_node *close_group(regex_parser *p, qn__regex_node *node)
{
    if (node && !skip_char(p, ')'))
        return malformed(p, "a ( without )");
    return node;
}

static qn__regex_node *parse_capture(regex_parser *p, const char *name, size_t n)
{
    if (!name && p->named)
        return close_group(p, parse_alternatives(p));
    if (p->tree->n_captures == MOST_CAPTURES)
        return not_supported(p, "more than 99 groups");
    int number = ++p->tree->n_captures;
    if (name) {
        for (int i = 0; i < p->n_names; i++)
            if (p->names[i].n == n && memcmp(p->names[i].name, name, n) == 0)
                return not_supported(p, "two groups of one name");
        if ((name[0] >= '0' && name[0] <= '9') || name[0] == '-')
            return malformed(p, "a group's name that is a number");
        p->names[p->n_names++] = (group_name){name, n, number};
    }
    qn__regex_node *node = wrap(p, QN__RX_CAPTURE, parse_alternatives(p));
    if (node)
        node->number = number;
    return close_group(p, node);
}

/* What Oniguruma takes in a look behind: no look ahead, no end of the text, no capture where it is
 * negated, no negated one where it is not; nor \R, which it reads otherwise there. */
static bool fits_behind(const qn__regex_node *node, bool negated)
{
    bool at_end = node->kind == QN__RX_ANCHOR &&
                  (node->anchor == QN__RX_TEXT_END || node->anchor == QN__RX_TEXT_LAST);
    bool fits = !(node->kind == QN__RX_LOOK && !node->behind) && !at_end && !node->line_break &&
                !(node->kind == QN__RX_LOOK && node->negated && !negated) &&
                !(negated && node->kind == QN__RX_CAPTURE);
    for (size_t i = 0; fits && i < node->n; i++)
        fits = fits_behind(node->items[i], negated);
    return fits;
}

static qn__regex_node *parse_look(regex_parser *p, bool behind, bool negated)
{
    qn__regex_node *node = wrap(p, QN__RX_LOOK, parse_alternatives(p));
    if (node && behind && !fits_behind(node->items[0], negated))
        return not_supported(p,
                             "in a look behind a look ahead, a negated one, a group, \\z or \\R");
    if (node) {
        node->behind = behind;
        node->negated = negated;
    }
    return close_group(p, node);
}

/* (?imx-imx) and (?imx-imx:...), behind the question mark. */
static qn__regex_node *parse_options(regex_parser *p)
{
    options before = p->options;
    bool on = true;
    for (;; p->at++) {
        int c = peek(p);
        if (c == '-')
            on = false;
        else if (c == 'i')
            p->options.fold = on;
        else if (c == 'm')
            p->options.dot_all = on;
        else if (c == 'x')
            p->options.extended = on;
        else
            break;
    }
    qn__regex_node *node = NULL;
    if (skip_char(p, ':')) {
        node = close_group(p, parse_alternatives(p));
    } else if (skip_char(p, ')')) {
        /* The rest of the group around it, alternatives and all; its ) is that group's. */
        node = parse_alternatives(p);
    } else {
        return not_supported(p, "this option or kind of group behind (?");
    }
    p->options = before;
    return node;
}

/* "(...)" at its bracket. */
static qn__regex_node *parse_group(regex_parser *p)
{
    const char *name;
    size_t n;
    options before = p->options;
    qn__regex_node *node = NULL;
    p->at++;
    if (!skip_char(p, '?')) {
        if (peek(p) == '*')
            return not_supported(p, "a callout (*...)");
        node = parse_capture(p, NULL, 0);
        p->options = before;
        return node;
    }
    int kind = peek(p);
    switch (kind) {
    case ':':
        p->at++;
        node = close_group(p, parse_alternatives(p));
        break;
    case '>':
        p->at++;
        node = close_group(p, wrap(p, QN__RX_ATOMIC, parse_alternatives(p)));
        break;
    case '=':
    case '!':
        p->at++;
        node = parse_look(p, false, kind == '!');
        break;
    case '#':
        while (peek(p) != END && peek(p) != ')')
            p->at += 1 + (peek(p) == '\\');
        return skip_char(p, ')') ? new_node(p, QN__RX_EMPTY)
                                 : malformed(p, "a comment without its end");
    case '\'':
    case '<':
        p->at++;
        if (kind == '<' && (peek(p) == '=' || peek(p) == '!')) {
            bool negated = peek(p) == '!';
            p->at++;
            node = parse_look(p, true, negated);
        } else if (take_name(p, kind == '<' ? '>' : '\'', &name, &n)) {
            node = parse_capture(p, name, n);
        }
        break;
    case '~': return not_supported(p, "an absent group (?~...)");
    case '(': return not_supported(p, "a condition (?(...)...)");
    default: return parse_options(p);
    }
    p->options = before;
    return node;
}

/* ---- items ---------------------------------------------------------------------------------- */

static qn__regex_node *char_node(regex_parser *p, uint32_t c)
{
    qn__regex_node *node = new_node(p, QN__RX_CHAR);
    if (node) {
        node->c = c;
        node->fold = p->options.fold;
    }
    return node;
}

/* Any character, or any but a line feed. */
static qn__regex_node *any_node(regex_parser *p, bool line_feed)
{
    qn__charset *set = new_set(p);
    bool ok = set && (line_feed || qn__charset_add(p->tree->arena, set, '\n', '\n')) &&
              qn__charset_negate(p->tree->arena, set);
    return ok ? set_node(p, set) : NULL;
}

/* \R: (?>\r\n|[\n-\r\x85\u2028\u2029]) */
static qn__regex_node *line_break_node(regex_parser *p)
{
    qn__charset *set = new_set(p);
    qn__regex_node *pair = new_node(p, QN__RX_CAT), *either = new_node(p, QN__RX_ALT);
    qn__arena *arena = p->tree->arena;
    options before = p->options;
    p->options.fold = false;
    bool ok = set && pair && either && qn__charset_add(arena, set, '\n', '\r') &&
              qn__charset_add(arena, set, 0x85, 0x85) &&
              qn__charset_add(arena, set, 0x2028, 0x2029) &&
              add_item(p, pair, char_node(p, '\r')) && add_item(p, pair, char_node(p, '\n')) &&
              add_item(p, either, pair) && add_item(p, either, set_node(p, set));
    p->options = before;
    qn__regex_node *node = ok ? wrap(p, QN__RX_ATOMIC, either) : NULL;
    if (node)
        node->line_break = true;
    return node;
}

static qn__regex_node *backref_node(regex_parser *p, int number)
{
    if (p->options.fold)
        return not_supported(p, "a reference to a group without case");
    qn__regex_node *node = new_node(p, QN__RX_BACKREF);
    if (node)
        node->number = number;
    if (number > p->most_backref)
        p->most_backref = number;
    return node;
}

/* \k<name>, \k<1>, \k'-1' */
static qn__regex_node *parse_reference(regex_parser *p)
{
    const char *name;
    size_t n;
    p->at++;
    int open = peek(p);
    if (open != '<' && open != '\'')
        return char_node(p, 'k');
    p->at++;
    if (!take_name(p, open == '<' ? '>' : '\'', &name, &n))
        return NULL;
    for (int i = 0; i < p->n_names; i++)
        if (p->names[i].n == n && memcmp(p->names[i].name, name, n) == 0)
            return backref_node(p, p->names[i].number);
    int number = 0;
    bool relative = name[0] == '-';
    for (size_t i = relative; i < n; i++) {
        if (name[i] < '0' || name[i] > '9' || number > MOST_CAPTURES)
            return malformed(p, "a reference to a group that is not there before it");
        number = number * 10 + (name[i] - '0');
    }
    if (relative)
        number = p->tree->n_captures + 1 - number;
    if (number < 1 || p->named)
        return malformed(p, "a reference to a group that is not there");
    return backref_node(p, number);
}

/* "\\" at its place. */
static qn__regex_node *parse_escape(regex_parser *p)
{
    static const char anchors[] = "AzZbBG";
    static const qn__regex_anchor kinds[] = {QN__RX_TEXT_BEGIN,  QN__RX_TEXT_END,
                                             QN__RX_TEXT_LAST,   QN__RX_WORD_EDGE,
                                             QN__RX_WORD_INSIDE, QN__RX_SEARCH_BEGIN};
    uint32_t c;
    p->at++;
    int letter = peek(p);
    if (letter == END)
        return malformed(p, "a backslash at the end");
    const char *anchor = letter < 0x80 ? strchr(anchors, letter) : NULL;
    if (anchor && letter) {
        p->at++;
        return anchor_node(p, kinds[anchor - anchors]);
    }
    qn__charset *set = take_class_escape(p, false);
    if (set)
        return set_node(p, set);
    if (p->tree->problem)
        return NULL;
    int taken = take_escape(p, &c);
    if (taken != 0)
        return taken > 0 ? char_node(p, c) : NULL;
    switch (letter) {
    case 'R': p->at++; return line_break_node(p);
    case 'N': p->at++; return any_node(p, false);
    case 'O': p->at++; return any_node(p, true);
    case 'K': p->at++; return new_node(p, QN__RX_KEEP);
    case 'k': return parse_reference(p);
    case 'X': return not_supported(p, "a grapheme \\X");
    case 'y':
    case 'Y': return not_supported(p, "a text segment's edge \\y");
    case 'g': return not_supported(p, "a call of a group \\g");
    default: break;
    }
    if (letter >= '1' && letter <= '9') {
        size_t from = p->at;
        int number = 0;
        while (peek(p) >= '0' && peek(p) <= '9' && number < 1000)
            number = number * 10 + (take_char(p) & 15);
        if (number <= 9 || number <= p->tree->n_captures)
            return p->named ? malformed(p, "a group with a name has no number")
                            : backref_node(p, number);
        p->at = from;
        return not_supported(p, "a code of octal digits without a 0 before them");
    }
    return char_node(p, take_char(p));
}

/* White space and comments of the extended syntax. */
static void skip_ignored(regex_parser *p)
{
    while (p->options.extended && peek(p) != END) {
        int c = peek(p);
        if (c == '#')
            while (peek(p) != END && peek(p) != '\n')
                p->at++;
        else if (c == ' ' || (c >= '\t' && c <= '\r'))
            p->at++;
        else
            return;
    }
}

static bool at_repeat(const regex_parser *p)
{
    return peek(p) == '*' || peek(p) == '+' || peek(p) == '?';
}

/* "{n,m}" and its kin; false where the brace is only a character. */
static bool take_interval(regex_parser *p, int *min, int *max)
{
    size_t from = p->at++;
    uint32_t low = 0, high = 0;
    int digits = take_digits(p, 10, 6, &low), more = 0;
    bool comma = skip_char(p, ',');
    if (comma)
        more = take_digits(p, 10, 6, &high);
    if ((digits == 0 && more == 0) || !skip_char(p, '}')) {
        p->at = from;
        return false;
    }
    if (low > MOST_REPEATS || high > MOST_REPEATS)
        not_supported(p, "more than 1000 repeats");
    *min = (int)low;
    *max = !comma ? (int)low : more ? (int)high : -1;
    if (*max >= 0 && *max < *min)
        not_supported(p, "an interval {n,m} with n above m");
    return true;
}

static qn__regex_node *parse_atom(regex_parser *p)
{
    switch (peek(p)) {
    case '(': return parse_group(p);
    case '\\': return parse_escape(p);
    case '[': {
        qn__charset *set = parse_class(p);
        return set ? set_node(p, set) : NULL;
    }
    case '.': p->at++; return any_node(p, p->options.dot_all);
    case '^': p->at++; return anchor_node(p, QN__RX_LINE_BEGIN);
    case '$': p->at++; return anchor_node(p, QN__RX_LINE_END);
    case '*':
    case '+':
    case '?': return malformed(p, "a repeat of nothing");
    case '{': {
        int min, max;
        return take_interval(p, &min, &max) ? malformed(p, "a repeat of nothing")
                                            : char_node(p, take_char(p));
    }
    default: return char_node(p, take_char(p));
    }
}

/* An anchor cannot be repeated, also as one of alternatives. */
static bool takes_repeat(const qn__regex_node *node)
{
    bool takes = node->kind != QN__RX_EMPTY && node->kind != QN__RX_ANCHOR &&
                 node->kind != QN__RX_KEEP && node->kind != QN__RX_LOOK;
    if (node->kind == QN__RX_ALT || (node->kind == QN__RX_CAT && node->n == 1))
        for (size_t i = 0; takes && i < node->n; i++)
            takes = takes_repeat(node->items[i]);
    return takes;
}

/* An item and what repeats it. */
static qn__regex_node *parse_item(regex_parser *p)
{
    qn__regex_node *node = parse_atom(p);
    for (int nested = 0; node && !p->tree->problem; nested++) {
        int min, max;
        bool interval = false;
        skip_ignored(p);
        if (at_repeat(p)) {
            int c = peek(p);
            p->at++;
            min = c == '+';
            max = c == '?' ? 1 : -1;
        } else if (peek(p) == '{' && take_interval(p, &min, &max)) {
            interval = true;
        } else {
            return node;
        }
        if (!takes_repeat(node))
            return not_supported(p, "a repeat of an anchor or of nothing");
        if (nested > 0 && nested > DEEPEST)
            return malformed(p, "nested too deep");
        qn__regex_node *inner = node;
        node = wrap(p, QN__RX_REPEAT, inner);
        if (!node)
            break;
        node->min = min;
        node->max = max;
        bool fixed = interval && min == max;
        if (!fixed && skip_char(p, '?'))
            node->mode = QN__RX_LAZY;
        else if (!interval && skip_char(p, '+'))
            node->mode = QN__RX_POSSESSIVE;
    }
    return p->tree->problem ? NULL : node;
}

static qn__regex_node *parse_row(regex_parser *p)
{
    qn__regex_node *row = new_node(p, QN__RX_CAT);
    while (row && !p->tree->problem) {
        skip_ignored(p);
        if (peek(p) == END || peek(p) == '|' || peek(p) == ')')
            return row;
        if (!add_item(p, row, parse_item(p)))
            return NULL;
    }
    return NULL;
}

static qn__regex_node *parse_alternatives(regex_parser *p)
{
    options before = p->options;
    qn__regex_node *either = new_node(p, QN__RX_ALT);
    if (++p->depth > DEEPEST)
        return malformed(p, "nested too deep");
    do {
        if (!either || !add_item(p, either, parse_row(p)))
            return NULL;
    } while (skip_char(p, '|'));
    p->depth--;
    p->options = before;
    return either->n == 1 ? either->items[0] : either;
}

/* Whether there is a group with a name: then those without one do not capture. */
static bool has_names(const char *s, size_t n)
{
    for (size_t i = 0; i + 3 < n; i++) {
        if (s[i] == '\\')
            i++;
        else if (memcmp(s + i, "(?'", 3) == 0 ||
                 (memcmp(s + i, "(?<", 3) == 0 && s[i + 3] != '=' && s[i + 3] != '!'))
            return true;
    }
    return false;
}

bool qn__regex_parse(qn__regex_tree *tree, const char *pattern, size_t n)
{
    regex_parser p = {.tree = tree, .s = pattern, .n = n, .named = has_names(pattern, n)};
    tree->word = word_set(&p, false);
    if (!tree->word)
        return false;
    tree->root = parse_alternatives(&p);
    if (tree->root && p.at < n)
        malformed(&p, "a ) without (");
    if (tree->root && p.most_backref > tree->n_captures)
        malformed(&p, "a reference to a group that is not there");
    return tree->root && !tree->problem;
}
