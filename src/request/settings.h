/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said of sampling and generation, by options or by the fields of a request, whose names
 * are OpenAI's, and llama-server's where that has more. What is not said stays what it was.
 */
#ifndef QN_REQUEST_SETTINGS_H
#define QN_REQUEST_SETTINGS_H

#include "quern/model.h"
#include "request/fields.h"

#define QN__UNSAID INT64_MIN

enum { MOST_STOPS = 64, LONGEST_STOP = 1024 /* bytes */, MOST_TOP_LOGPROBS = 1000 };

/* Not said: NaN, QN__UNSAID, NULL, false. */
typedef struct qn__settings {
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t max_tokens, top_k, repeat_last, seed; /* seed -1: any */
    int64_t logprobs; /* of so many tokens beside the one that was drawn; -1: none at all */
    bool ignore_eos, keep_eos; /* keep_eos: that the first is false */
    qn_sampling samplers;      /* its chain alone; all zero: the usual one */
    char **stops;
    size_t n_stops;
    qn_token_bias *biases;
    size_t n_biases;
    int64_t vocab_size;        /* that biases are checked by; 0: they are not */
    int64_t most_top_logprobs; /* what a request may ask for */
    int64_t top_logprobs;      /* a request's; qn__settings_read makes them its logprobs */
} qn__settings;

/* Nothing said, any token, as many log probabilities as there can be. */
qn__settings qn__settings_begin(void);
void qn__settings_free(qn__settings *s);

/* What may stand several times. A text is copied. */
qn_status qn__settings_stop(qn__settings *s, const char *text, qn_error *err);
qn_status qn__settings_bias(qn__settings *s, int64_t id, double bias, qn_error *err);

/* Reads an object's fields of sampling and generation, and by other tables what else it has. */
qn_status qn__settings_read(qn__settings *s, const qn__json_at *object, const qn__fields *others,
                            size_t n_others, qn_error *err);

/* Says it to what a model asks for, or what was said before. The lists are borrowed. */
void qn__settings_apply(const qn__settings *s, qn_sampling *sampling,
                        qn_generation_options *generation);

#endif
