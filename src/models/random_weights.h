/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights made up in memory, always the same, in any encoding: for timing.
 */
#ifndef QN_MODELS_RANDOM_WEIGHTS_H
#define QN_MODELS_RANDOM_WEIGHTS_H

#include "models/weight.h"

/* What they are written in, and the blocks that they are drawn from. */
typedef struct qn__random_weights {
    const qn__encoding *matrices, *head; /* head: of the embedding, too */
    char *matrix_bank, *head_bank;
} qn__random_weights;

/* Makes the blocks, of a size that products with so many columns keep the size of what goes in. */
qn_status qn__random_begin(qn__random_weights *r, int64_t columns, qn_error *err);
void qn__random_end(qn__random_weights *r);

/* What a file would have for a parameter: vectors are f32. A row that blocks of the encoding do not
 * divide is QN_UNSUPPORTED. */
qn_status qn__random_find(qn__weight *out, const qn__random_weights *r, const qn__parameter *p,
                          qn_error *err);

/* Rows first .. first + n - 1 of the parameter with that number, as qn__weight_read gives them.
 * Norms are 1. From several threads. */
void qn__random_read(const qn__random_weights *r, const qn__parameter *p, uint64_t number,
                     int64_t first, int64_t n, void *to);

#endif
