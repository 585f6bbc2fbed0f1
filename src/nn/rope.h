/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary frequencies: the base series and the scalings that checkpoints ask for.
 */
#ifndef QN_NN_ROPE_H
#define QN_NN_ROPE_H

#include "base/error.h"

#include <stdbool.h>

typedef enum qn__rope_kind {
    QN__ROPE_DEFAULT,
    QN__ROPE_LINEAR,
    QN__ROPE_LLAMA3,
    QN__ROPE_YARN
} qn__rope_kind;

typedef struct qn__rope_config {
    qn__rope_kind kind;
    double theta;              /* base */
    double factor;             /* all but DEFAULT */
    double low, high;          /* LLAMA3: low_freq_factor, high_freq_factor */
    double original_positions; /* LLAMA3, YARN: original_max_position_embeddings */
    double fast, slow;         /* YARN: beta_fast, beta_slow, in turns over original_positions */
    bool fractional;           /* YARN: the bounds of the ramp are not rounded to pairs */
    bool unread_factor;        /* YARN: the file has an attn_factor besides, which does not count */
    double attention;          /* YARN: turned queries and keys are longer by this factor; 0: 1 */
} qn__rope_config;

/* YaRN's factor on queries and keys where the checkpoint names none. mscale, mscale_all: 0 where
 * absent. */
double qn__rope_yarn_attention(double factor, double mscale, double mscale_all);

/* The frequencies, radians a position, of pairs 0 .. n - 1 of a head of 2n elements. Steps are
 * rounded to f32 where transformers rounds them. */
void qn__rope_frequencies(const qn__rope_config *config, int n, float *frequency);

#endif
