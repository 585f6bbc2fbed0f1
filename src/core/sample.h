/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sampling operation is told, row by row: the host writes it, kernels of every device read
 * it.
 */
#ifndef QN_CORE_SAMPLE_H
#define QN_CORE_SAMPLE_H

#include <stdint.h>

/* A step of a row's sampling chain; qn_sampler (quern/model.h) has the same numbers. */
typedef enum qn__sample_step {
    QN__SAMPLE_END,
    QN__SAMPLE_PENALTIES,
    QN__SAMPLE_TOP_K,
    QN__SAMPLE_TOP_P,
    QN__SAMPLE_MIN_P,
    QN__SAMPLE_TEMPERATURE
} qn__sample_step;

enum { QN__SAMPLE_STEP_BITS = 4 };

/* How a token is drawn from a row of logits, and its entries, of which a row has a range: data of
 * a step, as words of i32. An id has one entry of a row at most, but that the last one may be of
 * the newest token, which nobody had seen when the others were gathered. */
typedef struct qn__sample_row {
    uint32_t chain; /* its steps, the first one lowest, of so many bits each */
    float temperature, top_p, min_p;
    int32_t top_k;
    float repeat_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: none */
    uint32_t seed[2];                                          /* low, high */
    uint32_t position;                                         /* of the random number */
    int32_t first_entry, n_entries;
    int32_t newest; /* not 0: the last entry, without a bias, counts with the one that has its id;
                       its id may be -1: no token */
} qn__sample_row;

typedef struct qn__sample_entry {
    int32_t id;
    float bias;
    int32_t repeats;   /* not 0: repeat_penalty counts */
    int32_t generated; /* so often, for the other penalties */
} qn__sample_entry;

enum {
    QN__SAMPLE_ROW_WORDS = sizeof(qn__sample_row) / 4,
    QN__SAMPLE_ENTRY_WORDS = sizeof(qn__sample_entry) / 4
};

static inline uint64_t qn__sample_seed(const qn__sample_row *row)
{
    return row->seed[0] | (uint64_t)row->seed[1] << 32;
}

#endif
