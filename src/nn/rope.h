/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary frequencies: the base series and the scalings that checkpoints ask for.
 */
#ifndef QN_NN_ROPE_H
#define QN_NN_ROPE_H

#include "base/error.h"

typedef enum qn__rope_kind { QN__ROPE_DEFAULT, QN__ROPE_LINEAR, QN__ROPE_LLAMA3 } qn__rope_kind;

typedef struct qn__rope_config {
    qn__rope_kind kind;
    double theta;              /* base */
    double factor;             /* LINEAR, LLAMA3 */
    double low, high;          /* LLAMA3: low_freq_factor, high_freq_factor */
    double original_positions; /* LLAMA3: original_max_position_embeddings */
} qn__rope_config;

/* The frequencies, radians a position, of pairs 0 .. n - 1 of a head of 2n elements. Steps are rounded
 * to f32 where transformers rounds them. */
void qn__rope_frequencies(const qn__rope_config *config, int n, float *frequency);

#endif
