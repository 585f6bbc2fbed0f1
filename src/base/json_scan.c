/* SPDX-License-Identifier: Apache-2.0
 *
 * The scanner of json_scan.h. Strings without escapes are returned in place; the others are
 * decoded into one growing buffer. The stack of open containers serves the grammar (comma or not)
 * and the paths in messages.
 */
#include "base/json_scan.h"

#include "base/recognize.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void qn__json_scan_begin(qn__json_scan *scan, const char *file, const char *text, size_t size,
                         qn_error *err)
{
    scan->file = file;
    scan->begin = scan->at = text;
    scan->end = text + size;
    scan->err = err;
    scan->status = QN_OK;
    scan->allow_nul = false;
    scan->depth = 0;
    scan->n_values = 0;
    scan->scratch = NULL;
    scan->scratch_size = 0;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        scan->at += 3;
}

/* "model.merges[3]" for the open levels; "" at the top. */
static void write_scan_path(const qn__json_scan *scan, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < scan->depth && used + 80 < size; i++) {
        const qn__json_level *level = &scan->levels[i];
        if (level->count == 0)
            break;
        int n;
        if (level->is_object) {
            char key[64];
            n = snprintf(out + used, size - used, "%s%s", i > 0 ? "." : "",
                         qn__utf8_quote(key, sizeof key, level->key, level->key_size));
        } else {
            n = snprintf(out + used, size - used, "[%zu]", level->count - 1);
        }
        used += (size_t)n;
    }
}

bool qn__json_scan_fail(qn__json_scan *scan, qn_status code, const char *format, ...)
{
    if (scan->status != QN_OK)
        return false;
    char path[256], message[256];
    write_scan_path(scan, path, sizeof path);
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    scan->status = code;
    qn__fail(scan->err, code, "%s: %s%s%s (byte %zu)", scan->file, path, path[0] ? ": " : "",
             message, (size_t)(scan->at - scan->begin));
    scan->at = scan->end;
    return false;
}

static bool fail_syntax(qn__json_scan *scan, const char *expected)
{
    if (scan->status != QN_OK)
        return false;
    if (scan->at == scan->end)
        return qn__json_scan_fail(scan, QN_FORMAT, "JSON ends where %s was expected", expected);
    const char *is = qn__recognize_bytes(scan->begin, (size_t)(scan->end - scan->begin));
    if (is)
        return qn__json_scan_fail(scan, QN_UNSUPPORTED, "%s", is);
    char got[24];
    size_t n = (size_t)(scan->end - scan->at);
    qn__utf8_quote(got, sizeof got, scan->at, n < 16 ? n : 16);
    return qn__json_scan_fail(scan, QN_FORMAT, "not JSON: expected %s, got %s", expected, got);
}

/* A value of another kind than the reader wants. */
static bool fail_kind_of_value(qn__json_scan *scan, const char *expected)
{
    char got[24];
    size_t n = (size_t)(scan->end - scan->at);
    qn__utf8_quote(got, sizeof got, scan->at, n < 16 ? n : 16);
    return qn__json_scan_fail(scan, QN_FORMAT, "expected %s, got %s", expected, got);
}

static void skip_space(qn__json_scan *scan)
{
    const char *p = scan->at;
    while (p < scan->end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    scan->at = p;
}

qn_status qn__json_scan_end(qn__json_scan *scan)
{
    if (scan->status == QN_OK) {
        skip_space(scan);
        if (scan->at != scan->end)
            fail_syntax(scan, "the end");
    }
    free(scan->scratch);
    scan->scratch = NULL;
    return scan->status;
}

qn__json_kind qn__json_peek(qn__json_scan *scan)
{
    skip_space(scan);
    if (scan->status != QN_OK)
        return QN__JSON_FAILED;
    switch (scan->at < scan->end ? *scan->at : '\0') {
    case '{': return QN__JSON_OBJECT;
    case '[': return QN__JSON_ARRAY;
    case '"': return QN__JSON_STRING;
    case 't': return QN__JSON_TRUE;
    case 'f': return QN__JSON_FALSE;
    case 'n': return QN__JSON_NULL;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return QN__JSON_NUMBER;
    default: fail_syntax(scan, "a value"); return QN__JSON_FAILED;
    }
}

static bool enter_container(qn__json_scan *scan, char bracket, const char *what)
{
    if (qn__json_peek(scan) == QN__JSON_FAILED)
        return false;
    if (*scan->at != bracket)
        return fail_kind_of_value(scan, what);
    if (scan->depth == QN__JSON_MAX_DEPTH)
        return qn__json_scan_fail(scan, QN_LIMIT, "JSON is nested more than %d levels deep",
                                  QN__JSON_MAX_DEPTH);
    scan->at++;
    scan->n_values++;
    scan->levels[scan->depth++] = (qn__json_level){.is_object = bracket == '{'};
    return true;
}

bool qn__json_enter_object(qn__json_scan *scan)
{
    return enter_container(scan, '{', "an object");
}

bool qn__json_enter_array(qn__json_scan *scan)
{
    return enter_container(scan, '[', "an array");
}

/* At the next member: true. At the closing bracket: consumes it, false. */
static bool next_member(qn__json_scan *scan, char close)
{
    skip_space(scan);
    if (scan->status != QN_OK)
        return false;
    qn__json_level *level = &scan->levels[scan->depth - 1];
    char c = scan->at < scan->end ? *scan->at : '\0';
    if (c == close) {
        scan->at++;
        scan->depth--;
        return false;
    }
    if (level->count > 0) {
        if (c != ',')
            return fail_syntax(scan, close == '}' ? "',' or '}'" : "',' or ']'");
        scan->at++;
        skip_space(scan);
    }
    return true;
}

static bool hex_unit(qn__json_scan *scan, uint32_t *out)
{
    uint32_t v = 0;
    if (scan->end - scan->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        char c = *scan->at++;
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A' + 10);
        else
            return false;
        v = v << 4 | digit;
    }
    *out = v;
    return true;
}

/* Behind "\u": one code point, surrogate pairs joined. */
static bool scan_unicode_escape(qn__json_scan *scan, uint32_t *out)
{
    uint32_t c, low;
    if (!hex_unit(scan, &c))
        return qn__json_scan_fail(scan, QN_FORMAT, "\\u without four hexadecimal digits");
    if (c == 0 && !scan->allow_nul)
        return qn__json_scan_fail(scan, QN_FORMAT, "a string contains NUL (\\u0000)");
    if (c >= 0xd800 && c < 0xe000) {
        bool pair =
            c < 0xdc00 && scan->end - scan->at >= 6 && scan->at[0] == '\\' && scan->at[1] == 'u';
        if (pair) {
            scan->at += 2;
            pair = hex_unit(scan, &low) && low >= 0xdc00 && low < 0xe000;
        }
        if (!pair)
            return qn__json_scan_fail(scan, QN_FORMAT, "a string contains a lone surrogate");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    *out = c;
    return true;
}

static bool append_scratch(qn__json_scan *scan, size_t *used, const char *data, size_t n)
{
    if (n == 0)
        return true;
    if (n > scan->scratch_size - *used) {
        /* What remains bounds the string, so one allocation would do; doubling keeps it small. */
        size_t size = scan->scratch_size ? scan->scratch_size : 64;
        while (size - *used < n)
            size *= 2;
        char *grown = realloc(scan->scratch, size);
        if (!grown) {
            scan->status = qn__fail_memory(scan->err, "a JSON string");
            scan->at = scan->end;
            return false;
        }
        scan->scratch = grown;
        scan->scratch_size = size;
    }
    memcpy(scan->scratch + *used, data, n);
    *used += n;
    return true;
}

/* One escape behind its backslash, decoded into the buffer. */
static bool scan_escape(qn__json_scan *scan, size_t *used)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (scan->at == scan->end)
        return fail_syntax(scan, "an escape");
    char c = *scan->at++;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple)
        return append_scratch(scan, used, &to[simple - from], 1);
    if (c != 'u')
        return qn__json_scan_fail(scan, QN_FORMAT, "unknown escape in a string");
    uint32_t code = 0;
    char bytes[4];
    if (!scan_unicode_escape(scan, &code))
        return false;
    return append_scratch(scan, used, bytes, qn__utf8_encode(code, bytes));
}

/* The string whose opening quote is next. raw_start and raw_size (may be NULL) tell its text as
 * written; `text` may be NULL when only checking. */
static bool scan_string(qn__json_scan *scan, qn__json_text *text, const char **raw_start,
                        size_t *raw_size)
{
    const char *start = ++scan->at, *run = start;
    size_t used = 0;
    bool copied = false;
    for (;;) {
        const unsigned char *p = (const unsigned char *)scan->at,
                            *end = (const unsigned char *)scan->end;
        while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
            p++;
        scan->at = (const char *)p;
        if (p == end)
            return qn__json_scan_fail(scan, QN_FORMAT, "JSON ends inside a string");
        if (*p == '"')
            break;
        if (*p >= 0x80) {
            uint32_t c;
            size_t n = qn__utf8_decode(scan->at, (size_t)(scan->end - scan->at), &c);
            if (n == 0)
                return qn__json_scan_fail(scan, QN_FORMAT, "a string is not valid UTF-8");
            scan->at += n;
        } else if (*p == '\\') {
            copied = true;
            if (!append_scratch(scan, &used, run, (size_t)(scan->at - run)))
                return false;
            scan->at++;
            if (!scan_escape(scan, &used))
                return false;
            run = scan->at;
        } else {
            return qn__json_scan_fail(scan, QN_FORMAT, "a string contains a raw control character");
        }
    }
    if (copied && !append_scratch(scan, &used, run, (size_t)(scan->at - run)))
        return false;
    if (text)
        *text = copied ? (qn__json_text){scan->scratch, used}
                       : (qn__json_text){start, (size_t)(scan->at - start)};
    if (raw_start) {
        *raw_start = start;
        *raw_size = (size_t)(scan->at - start);
    }
    scan->at++;
    return true;
}

bool qn__json_next_key(qn__json_scan *scan, qn__json_text *key)
{
    if (!next_member(scan, '}'))
        return false;
    qn__json_level *level = &scan->levels[scan->depth - 1];
    if (scan->at == scan->end || *scan->at != '"')
        return fail_syntax(scan, "a key in quotes");
    if (!scan_string(scan, key, &level->key, &level->key_size))
        return false;
    level->count++;
    skip_space(scan);
    if (scan->at == scan->end || *scan->at != ':')
        return fail_syntax(scan, "':'");
    scan->at++;
    return true;
}

bool qn__json_next_item(qn__json_scan *scan)
{
    if (!next_member(scan, ']'))
        return false;
    scan->levels[scan->depth - 1].count++;
    return true;
}

bool qn__json_read_string(qn__json_scan *scan, qn__json_text *text)
{
    qn__json_kind kind = qn__json_peek(scan);
    if (kind == QN__JSON_FAILED)
        return false;
    if (kind != QN__JSON_STRING)
        return fail_kind_of_value(scan, "a string");
    scan->n_values++;
    return scan_string(scan, text, NULL, NULL);
}

static bool scan_digits(qn__json_scan *scan)
{
    const char *start = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return scan->at > start;
}

/* -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)? */
static bool scan_number(qn__json_scan *scan, bool *is_integer)
{
    const char *start = scan->at;
    *is_integer = true;
    if (*scan->at == '-')
        scan->at++;
    const char *digits = scan->at;
    if (!scan_digits(scan))
        return fail_syntax(scan, "a digit");
    if (*digits == '0' && scan->at - digits > 1)
        return qn__json_scan_fail(scan, QN_FORMAT, "a number has a leading zero");
    if (scan->at < scan->end && *scan->at == '.') {
        *is_integer = false;
        scan->at++;
        if (!scan_digits(scan))
            return fail_syntax(scan, "a digit");
    }
    if (scan->at < scan->end && (*scan->at == 'e' || *scan->at == 'E')) {
        *is_integer = false;
        scan->at++;
        if (scan->at < scan->end && (*scan->at == '+' || *scan->at == '-'))
            scan->at++;
        if (!scan_digits(scan))
            return fail_syntax(scan, "a digit");
    }
    if (scan->at - start > QN__JSON_MAX_NUMBER)
        return qn__json_scan_fail(scan, QN_LIMIT, "a number has more than %d characters",
                                  QN__JSON_MAX_NUMBER);
    return true;
}

bool qn__json_read_int(qn__json_scan *scan, int64_t min, int64_t max, int64_t *value)
{
    qn__json_kind kind = qn__json_peek(scan);
    if (kind == QN__JSON_FAILED)
        return false;
    const char *start = scan->at;
    bool is_integer = false;
    if (kind == QN__JSON_NUMBER && !scan_number(scan, &is_integer))
        return false;
    bool negative = *start == '-', fits = is_integer;
    int64_t v = 0;
    for (const char *p = start + negative; fits && p < scan->at; p++)
        fits = !__builtin_mul_overflow(v, (int64_t)10, &v) &&
               !__builtin_sub_overflow(v, (int64_t)(*p - '0'), &v);
    if (fits && !negative)
        fits = !__builtin_sub_overflow((int64_t)0, v, &v);
    if (!fits || v < min || v > max) {
        char got[40];
        size_t n = (size_t)(scan->at - start);
        if (n == 0)
            n = (size_t)(scan->end - start) < 16 ? (size_t)(scan->end - start) : 16;
        return qn__json_scan_fail(scan, QN_FORMAT, "expected an integer in %lld..%lld, got %s",
                                  (long long)min, (long long)max,
                                  qn__utf8_quote(got, sizeof got, start, n));
    }
    scan->n_values++;
    *value = v;
    return true;
}

static bool scan_word(qn__json_scan *scan, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(scan->end - scan->at) < n || memcmp(scan->at, word, n) != 0)
        return fail_syntax(scan, word);
    scan->at += n;
    scan->n_values++;
    return true;
}

bool qn__json_read_bool(qn__json_scan *scan, bool *value)
{
    qn__json_kind kind = qn__json_peek(scan);
    if (kind == QN__JSON_FAILED)
        return false;
    if (kind != QN__JSON_TRUE && kind != QN__JSON_FALSE)
        return fail_kind_of_value(scan, "true or false");
    *value = kind == QN__JSON_TRUE;
    return scan_word(scan, *value ? "true" : "false");
}

static bool skip_scalar(qn__json_scan *scan, qn__json_kind kind)
{
    bool is_integer;
    switch (kind) {
    case QN__JSON_STRING: scan->n_values++; return scan_string(scan, NULL, NULL, NULL);
    case QN__JSON_NUMBER: scan->n_values++; return scan_number(scan, &is_integer);
    case QN__JSON_TRUE: return scan_word(scan, "true");
    case QN__JSON_FALSE: return scan_word(scan, "false");
    case QN__JSON_NULL: return scan_word(scan, "null");
    default: return false;
    }
}

bool qn__json_skip(qn__json_scan *scan, qn__json_text *span)
{
    qn__json_kind kind = qn__json_peek(scan);
    const char *start = scan->at;
    int floor = scan->depth;
    /* One value, then everything up to the end of what it opened. */
    for (;;) {
        bool ok = kind == QN__JSON_OBJECT  ? qn__json_enter_object(scan)
                  : kind == QN__JSON_ARRAY ? qn__json_enter_array(scan)
                                           : skip_scalar(scan, kind);
        if (!ok)
            return false;
        while (scan->depth > floor) {
            qn__json_text key;
            bool more = scan->levels[scan->depth - 1].is_object ? qn__json_next_key(scan, &key)
                                                                : qn__json_next_item(scan);
            if (scan->status != QN_OK)
                return false;
            if (more)
                break;
        }
        if (scan->depth == floor)
            break;
        kind = qn__json_peek(scan);
    }
    if (span)
        *span = (qn__json_text){start, (size_t)(scan->at - start)};
    return true;
}
