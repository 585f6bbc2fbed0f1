/* SPDX-License-Identifier: Apache-2.0
 *
 * A reply: the tokens of a prompt and what a model said to it, how the next one is chosen from
 * logits, when it ends, and its text. Where the logits come from is not its business: a generation
 * has a session, an engine's request has rows of steps.
 */
#ifndef QN_GENERATE_REPLY_H
#define QN_GENERATE_REPLY_H

#include "generate/draws.h"
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

/* How its next token is drawn, and those behind each of n guesses, were they right: rows first ..
 * first + n. */
qn_status qn__reply_draw(qn__reply *reply, qn__draws *draws, size_t first, const int32_t *guesses,
                         size_t n, qn_error *err);

/* The same of the token behind the next one, which is at `place` of what the draws are given, in
 * row r. */
qn_status qn__reply_draw_behind(const qn__reply *reply, qn__draws *draws, size_t r, int32_t place,
                                qn_error *err);

/* Whether a token can be drawn before the one before it is known, and nothing but it is wanted. */
bool qn__reply_goes_ahead(const qn__reply *reply);

/* Whether the logits of what is drawn are needed, too. */
bool qn__reply_wants_logits(const qn__reply *reply);

/* Fails where no token was drawn (id -1); keeps what is wanted of the logits [vocab], else NULL. */
qn_status qn__reply_take_draw(qn__reply *reply, int32_t id, const float *logits, qn_error *err);

/* Takes the token that was chosen; *id is -1 where it ends the reply and is not part of it. */
qn_status qn__reply_accept(qn__reply *reply, int32_t next, int32_t *id, qn_error *err);

/* As qn_generation_text. */
qn_status qn__reply_text(qn__reply *reply, bool all, qn_text *out, qn_error *err);

#endif
