/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws: how the tokens behind a step's outputs are chosen, each by settings and a history of its
 * own, gathered for the operation that chooses them all.
 */
#ifndef QN_GENERATE_DRAWS_H
#define QN_GENERATE_DRAWS_H

#include "ops/params.h"
#include "quern/model.h"

enum { QN__DRAWS_WRITTEN = 3 };

/* Zero: none. */
typedef struct qn__draws {
    qn__sample_row *rows;
    qn__sample_entry *entries;
    size_t row_room, n_entries, entry_room;
    size_t n_newest, newest_room;
    int32_t *newest; /* [2 * newest_room]: words of entries whose id is not known yet, and after
                        each the place where it will be */
    int32_t *place;  /* [vocab] 1 + where an id stands among the entries of the row that is being
                        set; 0: nowhere, as all are between two rows */
    size_t vocab;
} qn__draws;

/* Of n rows of logits over `vocab` tokens, greedy until they are set. */
qn_status qn__draws_begin(qn__draws *draws, size_t n, size_t vocab, qn_error *err);
void qn__draws_free(qn__draws *draws);

/* Row r is drawn as qn_sample does; the settings have been checked. */
qn_status qn__draws_set(qn__draws *draws, size_t r, const qn_sampling *sampling,
                        const int32_t *history, size_t n_history, size_t n_generated,
                        qn_error *err);

/* As if one more token had been generated: that at `place` of what qn__draws_take is given. */
qn_status qn__draws_set_behind(qn__draws *draws, size_t r, const qn_sampling *sampling,
                               const int32_t *history, size_t n_history, size_t n_generated,
                               int32_t place, qn_error *err);

/* The tokens i32 [n] of rows first .. first + n - 1, from their logits, [..., V]; -1: none. */
qn_array *qn__draws_record(qn_scope *s, const qn__draws *draws, size_t first, size_t n,
                           qn_array *logits);

/* The same in two: rows and entries come into the scope, with tokens of `given`, i32 [N], where
 * rows were set behind one (else it may be NULL), and the tokens are drawn. */
typedef struct qn__draws_taken {
    qn_array *rows, *entries;
    qn_array *written[QN__DRAWS_WRITTEN]; /* what the host wrote of it: rows, entries, and NULL or
                                             where tokens of `given` go */
    int64_t shape[2];                     /* of the logits */
} qn__draws_taken;
qn__draws_taken qn__draws_take(qn_scope *s, const qn__draws *draws, size_t first, size_t n,
                               qn_array *given);
qn_array *qn__draws_choose(qn_scope *s, const qn__draws_taken *taken, qn_array *logits);

/* Says why none was drawn. */
qn_status qn__draws_fail(const qn_sampling *sampling, qn_error *err);

#endif
