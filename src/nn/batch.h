/* SPDX-License-Identifier: Apache-2.0
 *
 * A token batch: what a step runs, T tokens of any sequences of a cache, one behind the other.
 * Which sequence a token belongs to, its position, its pages and its adapter are data: a chat's
 * next token, a long prompt's next piece beside other chats', and the check of guessed tokens are
 * the same graph, [1, T, ...], and plans are made by the bucket of T.
 *
 * Sequences are added, the graph is recorded with what qn__batch_record made, qn__batch_targets are
 * evaluated with the step's own results, and qn__batch_end commits: only then do the positions
 * count. A step that fails leaves what was committed.
 */
#ifndef QN_NN_BATCH_H
#define QN_NN_BATCH_H

#include "nn/cache.h"

/* Tokens of one sequence in a step: rows `row` to row + n - 1. */
typedef struct qn__batch_part {
    qn__sequence *sequence;
    int64_t row, n;
} qn__batch_part;

/* What layers of one kind need of a step, i32: the slot of each token [T], pages [parts, W]. */
typedef struct qn__batch_kind {
    qn_array *slots, *table;
} qn__batch_kind;

typedef struct qn__batch {
    qn__cache *cache;
    qn__batch_part *parts;
    int64_t n_parts, part_room;
    int32_t *ids, *positions, *outputs; /* [n_tokens]; of outputs n_outputs */
    int64_t n_tokens, n_outputs, token_room;
    qn_array *given; /* see qn__batch_give */
    int64_t n_given;
    qn_array **seen; /* [2 * n_layers] receives queries and keys, as they attend; NULL: none wants
                        them. The caller's, for all steps of the struct. */
    /* since qn__batch_record, i32: */
    qn_array *numbers;           /* what all of those that follow lie in */
    qn_array *tokens, *position; /* [1, T] */
    qn_array *output;            /* [n_outputs]: the rows whose results are wanted; NULL: all */
    qn_array *tiles;             /* [N, 4] */
    qn_array *adapter;           /* [1, T]: the number of each token's; NULL: none has one */
    qn_array
        *adapter_scale; /* f32 [1, T, ranks], the model's, which sets it for the step; or NULL */
    qn__batch_kind kind[QN__MOST_KINDS];
} qn__batch;

/* A step through a cache; one may follow another in the same struct. */
void qn__batch_begin(qn__batch *batch, qn__cache *cache);

/* n tokens behind those of a sequence, which is not in the step yet; results of the newest
 * `outputs` of them are wanted. On failure the step is as it was. */
qn_status qn__batch_add(qn__batch *batch, qn__sequence *sequence, const int32_t *ids, int64_t n,
                        int64_t outputs, qn_error *err);

/* The ids of the step's first n tokens are places in `given`, i32, evaluated or on its way, where
 * the tokens are. It is the caller's, until the step is recorded. */
void qn__batch_give(qn__batch *batch, qn_array *given, int64_t n);

/* Takes the step's data and the cache into the scope. */
void qn__batch_record(qn_scope *s, qn__batch *batch);

/* Writes k and v [1, G, T, D] of a layer and attends: q [1, H, T, D] -> [1, H, T, E]. The window is
 * the narrower of the layer's and the options'. */
qn_array *qn__batch_attend(qn_scope *s, qn__batch *batch, int layer, qn_array *q, qn_array *k,
                           qn_array *v, const qn_attention_options *options);

/* Of x [1, T, ...] the rows whose results are wanted, [1, n_outputs, ...]. */
qn_array *qn__batch_outputs(qn_scope *s, const qn__batch *batch, qn_array *x);

/* The arrays that must be evaluated for the step; *n receives their number. */
qn_array *const *qn__batch_targets(const qn__batch *batch, int *n);

/* Evaluates these with n results of the step; submit does not wait. */
qn_status qn__batch_submit(qn_scope *s, const qn__batch *batch, qn_array *const *results, int n);
void qn__batch_eval(qn_scope *s, const qn__batch *batch, qn_array *const *results, int n);

/* After the evaluation: the positions count, or, where the scope failed, their pages go back. With
 * s NULL the step is given up. */
void qn__batch_end(qn_scope *s, qn__batch *batch);

/* Frees what the struct holds between steps. */
void qn__batch_free(qn__batch *batch);

#endif
