/* SPDX-License-Identifier: Apache-2.0
 *
 * The lexer of chat templates, by Jinja's rules with trim_blocks and lstrip_blocks: the line end
 * behind a block or comment goes, and so does white space between the start of a line and one;
 * "-" strips all white space on its side, "+" keeps it. One newline at the end of the source goes.
 */
#include "jinja/jinja.h"

#include "base/unicode.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool qn__jinja_fail(qn_error *err, qn_status code, const char *name, int line, const char *format,
                    ...)
{
    char message[360];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    char quoted[400];
    qn__fail(err, code, "%.120s: line %d: %s", name, line,
             qn__utf8_quote(quoted, sizeof quoted, message, strlen(message)));
    return false;
}

static bool lex_fail(qn__jinja_lexer *x, const char *message)
{
    x->failed = true;
    return qn__jinja_fail(x->err, QN_FORMAT, x->name, x->line, "%s", message);
}

static bool lex_memory(qn__jinja_lexer *x)
{
    x->failed = true;
    qn__fail_memory(x->err, "a template");
    return false;
}

bool qn__jinja_lexer_begin(qn__jinja_lexer *x, const char *name, const char *source, size_t n,
                           qn__arena *arena, qn_error *err)
{
    *x = (qn__jinja_lexer){
        .name = name, .line = 1, .line_starting = true, .arena = arena, .err = err};
    char *copy = qn__arena_alloc(arena, n + 1);
    if (!copy)
        return lex_memory(x);
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n')
            continue;
        copy[x->n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (x->n > 0 && copy[x->n - 1] == '\n')
        x->n--;
    copy[x->n] = '\0';
    x->s = copy;
    return true;
}

static bool is_space(const qn__jinja_lexer *x, size_t at, size_t *length)
{
    unsigned char c = (unsigned char)x->s[at];
    *length = 1;
    if (c < 0x80) /* Python's white space: also the separators 0x1c to 0x1f */
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return qn__class_at(x->s, x->n, at, length) & QN__SPACE;
}

static size_t skip_space(const qn__jinja_lexer *x, size_t at)
{
    size_t k;
    while (at < x->n && is_space(x, at, &k))
        at += k;
    return at;
}

/* Moves on to `to`, counting lines. */
static void move_to(qn__jinja_lexer *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->line += x->s[x->at] == '\n';
}

static bool looking_at(const qn__jinja_lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);
    return at <= x->n && x->n - at >= n && memcmp(x->s + at, text, n) == 0;
}

/* Behind a tag's end at `at`, of which `close` are the two characters; 0: no end is there. */
static size_t tag_end(const qn__jinja_lexer *x, size_t at, const char *close, bool trim)
{
    char sign = x->s[at];
    bool signed_end = sign == '-' || (sign == '+' && trim);
    size_t end = at + signed_end;
    if (!looking_at(x, end, close))
        return 0;
    end += 2;
    if (signed_end && sign == '-')
        return skip_space(x, end);
    return end + (trim && !signed_end && end < x->n && x->s[end] == '\n');
}

/* "{% raw %}" at `at`: the place behind it, else 0. `word` is raw or endraw. */
static size_t raw_tag(const qn__jinja_lexer *x, size_t at, const char *word)
{
    size_t i = at + 2;
    if (i < x->n && (x->s[i] == '-' || x->s[i] == '+'))
        i++;
    i = skip_space(x, i);
    if (!looking_at(x, i, word))
        return 0;
    i = skip_space(x, i + strlen(word));
    if (word[0] == 'e')
        return tag_end(x, i, "%}", true);
    if (looking_at(x, i, "-%}"))
        return skip_space(x, i + 3);
    return looking_at(x, i, "%}") ? i + 2 : 0;
}

/* Cuts white space off the text [from, to) before a tag that begins at `to`. */
static size_t strip_before(const qn__jinja_lexer *x, size_t from, size_t to, bool is_variable)
{
    char sign = to + 2 < x->n ? x->s[to + 2] : 0;
    size_t k, start = to;
    if (sign == '-') {
        while (start > from && is_space(x, qn__char_before(x->s, start), &k))
            start = qn__char_before(x->s, start);
        return start;
    }
    if (sign == '+' || is_variable)
        return to;
    while (start > from && x->s[start - 1] != '\n') {
        size_t before = qn__char_before(x->s, start);
        if (!is_space(x, before, &k))
            return to;
        start = before;
    }
    return start > from || x->line_starting ? start : to;
}

static void emit_text(qn__jinja_lexer *x, qn__jinja_token *token, size_t from, size_t to)
{
    token->kind = QN__JINJA_TOKEN_TEXT;
    token->text = (qn__jinja_str){.data = x->s + from, .n = to - from};
}

/* A comment: passed over, with the text before it as a token. */
static bool skip_comment(qn__jinja_lexer *x, size_t from, size_t tag, qn__jinja_token *token)
{
    emit_text(x, token, from, strip_before(x, from, tag, false));
    size_t i = tag + 2;
    for (; i < x->n; i++) {
        bool sign = x->s[i] == '-' || x->s[i] == '+';
        size_t end = looking_at(x, i + sign, "#}") ? tag_end(x, i, "#}", true) : 0;
        if (end) {
            move_to(x, end);
            x->line_starting = x->s[end - 1] == '\n';
            return true;
        }
    }
    move_to(x, tag);
    return lex_fail(x, "the comment {# is never closed");
}

/* The text up to {% endraw %}. */
static bool lex_raw(qn__jinja_lexer *x, qn__jinja_token *token)
{
    size_t from = x->at;
    for (size_t i = from; i + 1 < x->n; i++) {
        size_t end = x->s[i] == '{' && x->s[i + 1] == '%' ? raw_tag(x, i, "endraw") : 0;
        if (!end)
            continue;
        emit_text(x, token, from, strip_before(x, from, i, false));
        move_to(x, end);
        x->line_starting = x->s[end - 1] == '\n';
        x->raw = false;
        return true;
    }
    return lex_fail(x, "{% raw %} is never closed");
}

/* Outside of tags: text up to the next tag, or that tag's beginning. */
static bool lex_text(qn__jinja_lexer *x, qn__jinja_token *token)
{
    if (x->raw)
        return lex_raw(x, token);
    size_t from = x->at, i = from;
    while (i < x->n) {
        const char *brace = memchr(x->s + i, '{', x->n - i);
        i = brace ? (size_t)(brace - x->s) : x->n;
        if (i + 1 < x->n && strchr("{%#", x->s[i + 1]))
            break;
        i += i < x->n;
    }
    if (i + 1 >= x->n) {
        emit_text(x, token, from, x->n);
        move_to(x, x->n);
        return true;
    }
    char kind = x->s[i + 1];
    if (kind == '#')
        return skip_comment(x, from, i, token);
    size_t raw = kind == '%' ? raw_tag(x, i, "raw") : 0;
    if (i > from || raw) {
        size_t end = strip_before(x, from, i, kind == '{');
        emit_text(x, token, from, end);
        x->line_starting = false;
        move_to(x, raw ? raw : i);
        if (raw) {
            x->raw = true;
            x->line_starting = x->s[raw - 1] == '\n';
        }
        return true;
    }
    token->kind = kind == '{' ? QN__JINJA_TOKEN_VARIABLE_BEGIN : QN__JINJA_TOKEN_BLOCK_BEGIN;
    x->state = kind == '{' ? QN__JINJA_LEX_VARIABLE : QN__JINJA_LEX_BLOCK;
    i += 2;
    if (i < x->n && (x->s[i] == '-' || x->s[i] == '+'))
        i++;
    move_to(x, i);
    return true;
}

/* ---- inside of tags ------------------------------------------------------------------------- */

/* digits, with single "_" between them; returns the place behind, writes the digits alone. */
static size_t lex_digits(const qn__jinja_lexer *x, size_t at, char *out, size_t *n, size_t room)
{
    while (at < x->n) {
        char c = x->s[at];
        bool gap = c == '_' && at + 1 < x->n && x->s[at + 1] >= '0' && x->s[at + 1] <= '9';
        if (!gap && (c < '0' || c > '9'))
            break;
        if (!gap && *n < room)
            out[(*n)++] = c;
        at++;
    }
    return at;
}

static bool lex_radix(qn__jinja_lexer *x, qn__jinja_token *token)
{
    char c = (char)(x->s[x->at + 1] | 0x20), digits[72];
    int base = c == 'x' ? 16 : c == 'o' ? 8 : 2;
    size_t n = 0, i = x->at + 2;
    for (; i < x->n; i++) {
        char d = x->s[i];
        int v = d >= '0' && d <= '9'                     ? d - '0'
                : (d | 0x20) >= 'a' && (d | 0x20) <= 'f' ? (d | 0x20) - 'a' + 10
                                                         : 99;
        if (d != '_' && v >= base)
            break;
        if (d != '_' && n < sizeof digits - 1)
            digits[n++] = d;
    }
    digits[n] = 0;
    errno = 0;
    token->i = strtoll(digits, NULL, base);
    token->kind = QN__JINJA_TOKEN_INT;
    if (n == 0 || errno)
        return lex_fail(x, "a number is malformed or does not fit 64 bits");
    move_to(x, i);
    return true;
}

static bool lex_number(qn__jinja_lexer *x, qn__jinja_token *token)
{
    if (x->s[x->at] == '0' && x->at + 1 < x->n && strchr("xXoObB", x->s[x->at + 1]))
        return lex_radix(x, token);
    char digits[400];
    size_t n = 0, room = 300, at = lex_digits(x, x->at, digits, &n, room), k = n;
    bool is_float = false, behind_dot = x->at > 0 && x->s[x->at - 1] == '.'; /* x.0.1: two items */
    if (!behind_dot && at + 1 < x->n && x->s[at] == '.' && x->s[at + 1] >= '0' &&
        x->s[at + 1] <= '9') {
        digits[n++] = '.';
        at = lex_digits(x, at + 1, digits, &n, room + 40);
        is_float = true;
    }
    if (!behind_dot && at < x->n && (x->s[at] == 'e' || x->s[at] == 'E')) {
        bool sign = at + 1 < x->n && (x->s[at + 1] == '+' || x->s[at + 1] == '-');
        size_t e = at + 1 + sign;
        if (e < x->n && x->s[e] >= '0' && x->s[e] <= '9') {
            digits[n++] = 'e';
            if (sign)
                digits[n++] = x->s[at + 1];
            at = lex_digits(x, e, digits, &n, sizeof digits - 1);
            is_float = true;
        }
    }
    digits[n] = 0;
    if (!is_float && digits[0] == '0' && strspn(digits, "0") < n)
        return lex_fail(x, "a number begins with 0");
    errno = 0;
    token->kind = is_float ? QN__JINJA_TOKEN_FLOAT : QN__JINJA_TOKEN_INT;
    if (is_float)
        token->f = strtod(digits, NULL);
    else
        token->i = strtoll(digits, NULL, 10);
    if ((!is_float && errno) || k >= room)
        return lex_fail(x, "a number does not fit 64 bits");
    move_to(x, at);
    return true;
}

static int hex_digits(const char *s, size_t n, size_t count, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < count; i++) {
        char c = i < n ? s[i] : 0;
        int v = c >= '0' && c <= '9'                     ? c - '0'
                : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                         : -1;
        if (v < 0)
            return 0;
        *out = *out << 4 | (uint32_t)v;
    }
    return 1;
}

/* One escape behind a backslash at s[0..n); returns its length, 0 where it is malformed. */
static size_t lex_escape(const char *s, size_t n, char *out, size_t *used)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *hit = memchr(from, s[0], sizeof from - 1);
    if (s[0] == '\n')
        return 1;
    if (hit) {
        out[(*used)++] = to[hit - from];
        return 1;
    }
    uint32_t c = 0;
    size_t length = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (length) {
        if (!hex_digits(s + 1, n - 1, length, &c) || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return 0;
        *used += qn__utf8_encode(c, out + *used);
        return length + 1;
    }
    if (s[0] == 'N')
        return 0;
    if (s[0] >= '0' && s[0] <= '7') {
        while (length < 3 && length < n && s[length] >= '0' && s[length] <= '7')
            c = c << 3 | (uint32_t)(s[length++] - '0');
        *used += qn__utf8_encode(c, out + *used);
        return length;
    }
    out[(*used)++] = '\\'; /* an unknown escape stays as it is */
    return 0 + (out[(*used)++] = s[0], (size_t)1);
}

static bool lex_string(qn__jinja_lexer *x, qn__jinja_token *token)
{
    char quote = x->s[x->at];
    size_t from = x->at + 1, end = from;
    while (end < x->n && x->s[end] != quote)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return lex_fail(x, "a string is never closed");
    char *out = qn__arena_alloc(x->arena, end - from + 1);
    if (!out)
        return lex_memory(x);
    size_t used = 0;
    for (size_t i = from; i < end;) {
        if (x->s[i] != '\\') {
            out[used++] = x->s[i++];
            continue;
        }
        size_t k = lex_escape(x->s + i + 1, end - i - 1, out, &used);
        if (k == 0)
            return lex_fail(x, "a string has an escape that is malformed or not supported");
        i += k + 1;
    }
    token->kind = QN__JINJA_TOKEN_STRING;
    token->text = (qn__jinja_str){.data = out, .n = used};
    move_to(x, end + 1);
    return true;
}

static bool lex_operator(qn__jinja_lexer *x, qn__jinja_token *token)
{
    static const char pairs[][3] = {"==", "!=", "<=", ">=", "//", "**"};
    static const char closing[] = ")]}", opening[] = "([{";
    char c = x->s[x->at];
    token->kind = QN__JINJA_TOKEN_OPERATOR;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (looking_at(x, x->at, pairs[i])) {
            token->op = QN__JINJA_OP2(pairs[i][0], pairs[i][1]);
            x->at += 2;
            return true;
        }
    char message[80];
    if (!strchr("+-/*%~[](){}><=.:|,;", c) || c == 0) {
        if ((unsigned char)c >= 0x20 && (unsigned char)c < 0x7f)
            snprintf(message, sizeof message, "unexpected character '%c'", c);
        else
            snprintf(message, sizeof message, "unexpected character 0x%02x", (unsigned char)c);
        return lex_fail(x, message);
    }
    if (strchr(opening, c)) {
        if (x->n_open == QN__JINJA_SOURCE_DEPTH) {
            snprintf(message, sizeof message, "more than %d open brackets", QN__JINJA_SOURCE_DEPTH);
            return lex_fail(x, message);
        }
        x->open[x->n_open++] = c;
    } else if (strchr(closing, c)) {
        char wanted = opening[strchr(closing, c) - closing];
        if (x->n_open == 0 || x->open[x->n_open - 1] != wanted) {
            snprintf(message, sizeof message, "unexpected '%c'", c);
            return lex_fail(x, message);
        }
        x->n_open--;
    }
    token->op = c;
    x->at++;
    return true;
}

static bool lex_tag(qn__jinja_lexer *x, qn__jinja_token *token)
{
    move_to(x, skip_space(x, x->at));
    token->line = x->line;
    if (x->at >= x->n)
        return lex_fail(x, x->state == QN__JINJA_LEX_BLOCK ? "a {% tag is never closed"
                                                           : "a {{ is never closed");
    bool block = x->state == QN__JINJA_LEX_BLOCK;
    size_t end = 0;
    if (x->n_open == 0)
        end = block ? tag_end(x, x->at, "%}", true) : tag_end(x, x->at, "}}", false);
    if (end) {
        token->kind = block ? QN__JINJA_TOKEN_BLOCK_END : QN__JINJA_TOKEN_VARIABLE_END;
        move_to(x, end);
        x->line_starting = x->s[end - 1] == '\n';
        x->state = QN__JINJA_LEX_TEXT;
        return true;
    }
    char c = x->s[x->at];
    if (c >= '0' && c <= '9')
        return lex_number(x, token);
    if (c == '\'' || c == '"')
        return lex_string(x, token);
    size_t i = x->at, k;
    while (i < x->n && (qn__class_at(x->s, x->n, i, &k) & QN__WORD))
        i += k;
    if (i == x->at)
        return lex_operator(x, token);
    token->kind = QN__JINJA_TOKEN_NAME;
    token->text = (qn__jinja_str){.data = x->s + x->at, .n = i - x->at};
    x->at = i;
    return true;
}

bool qn__jinja_lexer_next(qn__jinja_lexer *x, qn__jinja_token *token)
{
    *token = (qn__jinja_token){.line = x->line};
    if (x->failed)
        return false;
    if (x->state != QN__JINJA_LEX_TEXT)
        return lex_tag(x, token);
    if (x->at >= x->n && !x->raw)
        return true; /* QN__JINJA_TOKEN_END */
    return lex_text(x, token);
}
