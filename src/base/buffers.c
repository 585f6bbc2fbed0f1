/* SPDX-License-Identifier: Apache-2.0
 *
 * The growing buffers; see buffers.h.
 */
#include "base/buffers.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The capacity that holds `needed`, at least double the old one; 0 when it would wrap. */
static size_t grown_capacity(size_t capacity, size_t needed, size_t element)
{
    size_t wanted = capacity < SIZE_MAX / 2 ? capacity * 2 : needed, bytes;
    if (wanted < 64)
        wanted = 64;
    if (wanted < needed)
        wanted = needed;
    return qn__mul_size(wanted, element, &bytes) ? wanted : 0;
}

bool qn__text_reserve(qn_text *text, size_t n)
{
    size_t needed;
    if (!qn__add_size(text->n, n, &needed) || !qn__add_size(needed, 1, &needed))
        return false;
    if (needed <= text->capacity)
        return true;
    size_t capacity = grown_capacity(text->capacity, needed, 1);
    char *grown = capacity ? realloc(text->data, capacity) : NULL;
    if (!grown)
        return false;
    text->data = grown;
    text->capacity = capacity;
    return true;
}

bool qn__text_append(qn_text *text, const char *data, size_t n)
{
    if (!qn__text_reserve(text, n))
        return false;
    if (n > 0)
        memcpy(text->data + text->n, data, n);
    text->n += n;
    text->data[text->n] = '\0';
    return true;
}

bool qn__text_puts(qn_text *text, const char *s)
{
    return qn__text_append(text, s, strlen(s));
}

bool qn__text_append_json(qn_text *text, const char *data, size_t n)
{
    bool ok = qn__text_append(text, "\"", 1);
    for (size_t i = 0, begin = 0; ok && i <= n; i++) {
        unsigned char c = i < n ? (unsigned char)data[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\')
            continue;
        char escaped[8] = {'\\', c == '\n' ? 'n' : (char)c};
        if (c < 0x20 && c != '\n')
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
        ok = qn__text_append(text, data + begin, i - begin) &&
             (i == n || qn__text_append(text, escaped, strlen(escaped)));
        begin = i + 1;
    }
    return ok && qn__text_append(text, "\"", 1);
}

bool qn__tokens_reserve(qn_tokens *tokens, size_t n)
{
    size_t needed;
    if (!qn__add_size(tokens->n, n, &needed))
        return false;
    if (needed <= tokens->capacity)
        return true;
    size_t capacity = grown_capacity(tokens->capacity, needed, sizeof *tokens->ids);
    int32_t *grown = capacity ? realloc(tokens->ids, capacity * sizeof *tokens->ids) : NULL;
    if (!grown)
        return false;
    tokens->ids = grown;
    tokens->capacity = capacity;
    return true;
}

void qn_tokens_free(qn_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (qn_tokens){0};
}

void qn_text_free(qn_text *text)
{
    free(text->data);
    *text = (qn_text){0};
}
