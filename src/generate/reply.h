/* SPDX-License-Identifier: Apache-2.0
 *
 * A reply: the tokens of a prompt and what a model said to it, how the next one is chosen from
 * logits, when it ends, and its text. Where the logits come from is not its business: a generation
 * has a session, an engine's request has rows of steps.
 */
#ifndef QN_GENERATE_REPLY_H
#define QN_GENERATE_REPLY_H

#include "generate/model.h"
#include "generate/stops.h"

typedef struct qn__reply {
    const qn_model *model;
    qn_sampling sampling;
    qn_token_bias *bias; /* the caller's, and of banned stop tokens */
    int64_t max_tokens;
    int32_t *stop;
    size_t n_stop;
    int32_t *history; /* prompt and generated */
    size_t n_history, n_prompt, n_before,
        room;             /* n_prompt: with the n_before ones that ran before */
    float *logits;        /* [vocab] the sampler's */
    qn_logprob *logprobs; /* [1 + n_top], where they are kept */
    size_t n_top;
    qn_decoder *decoder; /* NULL: no text was wanted yet */
    size_t n_decoded;    /* of history, from n_prompt on */
    qn__stops stops;
    qn_finish finish;
    int32_t prompt_lookup, draft_tokens; /* of the options */
} qn__reply;

/* Of a prompt of n tokens, at least one, behind options->before. On failure, too, qn__reply_end. */
qn_status qn__reply_begin(qn__reply *reply, const qn_model *model, const int32_t *ids, size_t n,
                          const qn_generation_options *options, qn_error *err);
void qn__reply_end(qn__reply *reply);

/* Tokens said so far. */
size_t qn__reply_generated(const qn__reply *reply);

/* Whether the most probable token is all that it needs of the logits. */
bool qn__reply_is_greedy(const qn__reply *reply);

/* Chooses from logits [vocab], which stay as they are. */
qn_status qn__reply_choose(qn__reply *reply, const float *logits, int32_t *id, qn_error *err);

/* Takes the token that was chosen; *id is -1 where it ends the reply and is not part of it. */
qn_status qn__reply_accept(qn__reply *reply, int32_t next, int32_t *id, qn_error *err);

/* As qn_generation_text. */
qn_status qn__reply_text(qn__reply *reply, bool all, qn_text *out, qn_error *err);

#endif
