/* SPDX-License-Identifier: Apache-2.0
 *
 * From the text: the longest of the newest tokens that stood there before, three or two, tell what
 * follows.
 */
#include "generate/guess.h"

#include <string.h>

enum { LONGEST = 3, SHORTEST = 2, FIRST = 4 };

size_t qn__guess(const int32_t *text, size_t n, int32_t *out, size_t most)
{
    for (size_t length = LONGEST; length >= SHORTEST; length--) {
        if (n <= length)
            continue;
        const int32_t *newest = text + n - length;
        for (size_t at = n - length; at-- > 0;) {
            if (text[at] != *newest || memcmp(text + at, newest, length * sizeof *text))
                continue;
            size_t behind = at + length, left = n - behind, count = left < most ? left : most;
            memcpy(out, text + behind, count * sizeof *out);
            return count;
        }
    }
    return 0;
}

static qn__guess_pace pace_of(size_t most)
{
    return (qn__guess_pace){most, most < FIRST ? most : FIRST};
}

void qn__guesses_begin(qn__guesses *u, size_t text, size_t draft)
{
    *u = (qn__guesses){.text = pace_of(text), .draft = pace_of(draft)};
}

void qn__guesses_from_text(qn__guesses *u, const int32_t *text, size_t n, size_t room)
{
    size_t most = u->text.now < room ? u->text.now : room;
    u->by = &u->text;
    u->n = most ? qn__guess(text, n, u->id, most) : 0;
}

void qn__guesses_learn(qn__guesses *u, size_t right)
{
    if (!u->n)
        return;
    size_t more = right == u->n ? 2 * u->by->now : right + 1;
    u->by->now = more < u->by->most ? more : u->by->most;
    u->made += u->n;
    u->right += right;
    u->n = 0;
}
