/* SPDX-License-Identifier: Apache-2.0
 *
 * Guessing tokens from the text itself: what followed the last place where its newest tokens stood
 * before. Right where a reply repeats its prompt, as in editing; a guess is checked by the model,
 * several tokens in one step, so that it never changes what is said.
 */
#ifndef QN_GENERATE_GUESS_H
#define QN_GENERATE_GUESS_H

#include <stddef.h>
#include <stdint.h>

enum { QN__MOST_GUESSES = 64 };

/* At most `most` tokens that may follow text[0..n); returns how many. */
size_t qn__guess(const int32_t *text, size_t n, int32_t *out, size_t most);

#endif
