/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights made up in memory: in any encoding and always the same, for timing; or in f32, as a model
 * begins that is to be trained.
 */
#ifndef QN_MODELS_RANDOM_WEIGHTS_H
#define QN_MODELS_RANDOM_WEIGHTS_H

#include "models/weight.h"

/* What they are written in, and the blocks that they are drawn from. */
typedef struct qn__random_weights {
    const qn__encoding *matrices, *head; /* head: of the embedding, too */
    char *matrix_bank, *head_bank;
    bool initial; /* f32, drawn one by one, as transformers' _init_weights does: what follows says
                     how */
    uint64_t seed;
    double deviation;
    int64_t padding; /* the embedding's row that is 0; -1: none */
} qn__random_weights;

/* The initial weights of a configuration: normal with its initializer_range. */
struct qn__json_at;
qn_status qn__random_initial(qn__random_weights *r, const struct qn__json_at *config, uint64_t seed,
                             qn_error *err);

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
