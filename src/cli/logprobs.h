/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens and their log probabilities as JSON, in OpenAI's words.
 */
#ifndef QN_CLI_LOGPROBS_H
#define QN_CLI_LOGPROBS_H

#include "quern/quern.h"

#include <stdio.h>

/* "id":1,"token":"...","bytes":[...]: a token may be a part of a character, and has no text then.
 */
void print_token(FILE *out, const qn_tokenizer *t, int32_t id);

/* A logarithm of a probability, as a number that JSON has. */
void print_logprob(FILE *out, double logprob);

/* ,"logprobs":[{...} ...] of n tokens: of each its own and those of the `each` - 1 most probable
 * ones. */
void print_logprobs(FILE *out, const qn_tokenizer *t, const qn_logprob *all, size_t n, size_t each);

#endif
