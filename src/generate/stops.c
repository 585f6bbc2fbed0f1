/* SPDX-License-Identifier: Apache-2.0
 *
 * Stop strings; see stops.h.
 */
#include "generate/stops.h"

#include "base/error.h"
#include "base/utf8.h"
#include "base/buffers.h"

#include <stdlib.h>
#include <string.h>

void qn__stops_end(qn__stops *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->strings[i]);
    free(s->strings);
    qn_text_free(&s->text);
    *s = (qn__stops){0};
}

qn_status qn__stops_add(qn__stops *s, const char *string, qn_error *err)
{
    size_t n = string ? strlen(string) : 0;
    if (n == 0 || qn__utf8_check(string, n) != n)
        return qn__fail(err, QN_INVALID, "stop string %zu is %s", s->n, n ? "not UTF-8" : "empty");
    char **strings = realloc(s->strings, (s->n + 1) * sizeof *strings);
    if (strings)
        s->strings = strings;
    char *copy = strings ? strdup(string) : NULL;
    if (!copy)
        return qn__fail_memory(err, "a stop string");
    s->strings[s->n++] = copy;
    return QN_OK;
}

void qn__stops_look(qn__stops *s, size_t before)
{
    size_t n = s->text.n, end = n;
    for (size_t i = 0; i < s->n; i++) {
        size_t length = strlen(s->strings[i]), from = before >= length ? before - length + 1 : 0;
        from = from > s->given ? from : s->given;
        const char *at =
            n > from ? memmem(s->text.data + from, n - from, s->strings[i], length) : NULL;
        if (at && (size_t)(at - s->text.data) < end)
            end = (size_t)(at - s->text.data);
    }
    if (end == n)
        return;
    s->found = true;
    s->text.n = end;
    s->text.data[end] = 0;
}

/* Bytes at the text's end that may be the beginning of a stop string. */
static size_t held_back(const qn__stops *s)
{
    size_t most = 0, left = s->text.n - s->given;
    const char *end = s->text.data + s->text.n;
    for (size_t i = 0; i < s->n; i++) {
        size_t n = strlen(s->strings[i]) - 1;
        for (n = n < left ? n : left; n > most; n--)
            if (!memcmp(end - n, s->strings[i], n))
                most = n;
    }
    return most;
}

qn_status qn__stops_give(qn__stops *s, bool all, qn_text *out, qn_error *err)
{
    if (s->text.n == s->given)
        return QN_OK;
    size_t end = s->text.n - (all || s->found ? 0 : held_back(s));
    if (end > s->given && !qn__text_append(out, s->text.data + s->given, end - s->given))
        return qn__fail_memory(err, "a generation's text");
    s->given = end;
    return QN_OK;
}
