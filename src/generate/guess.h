/* SPDX-License-Identifier: Apache-2.0
 *
 * Guesses: tokens that may follow the newest one, which the model checks in the step that runs it,
 * each in the row behind the one before. Those that it would have chosen itself are kept, so that a
 * guess never changes what is said. They come from the text itself, where its newest tokens stood
 * before, or from a smaller model (draft.h).
 */
#ifndef QN_GENERATE_GUESS_H
#define QN_GENERATE_GUESS_H

#include <stddef.h>
#include <stdint.h>

enum { QN__MOST_GUESSES = 64 };

/* At most `most` tokens that may follow text[0..n), from what stood behind its newest ones before;
 * returns how many. Right where a reply repeats its prompt, as in editing. */
size_t qn__guess(const int32_t *text, size_t n, int32_t *out, size_t most);

/* How many at once: more while they are right. */
typedef struct qn__guess_pace {
    size_t most, now; /* most 0: never */
} qn__guess_pace;

/* Those of one reply. */
typedef struct qn__guesses {
    int32_t id[QN__MOST_GUESSES];
    size_t n; /* behind the newest token */
    qn__guess_pace text, draft;
    qn__guess_pace *by;   /* whose these are */
    uint64_t made, right; /* so far */
} qn__guesses;

/* So many at once at most of each kind, 0: none. */
void qn__guesses_begin(qn__guesses *guesses, size_t text, size_t draft);

/* Guesses from the text, `room` at most. */
void qn__guesses_from_text(qn__guesses *guesses, const int32_t *text, size_t n, size_t room);

/* The first `right` were what the model chose; there are none any more. */
void qn__guesses_learn(qn__guesses *guesses, size_t right);

#endif
