/* SPDX-License-Identifier: Apache-2.0
 *
 * What steps cost, learned from steps: one without prompts, by its rows; a prompt's token; and what
 * each position before that token adds, which is attention's.
 */
#ifndef QN_GENERATE_PACE_H
#define QN_GENERATE_PACE_H

#include <stdint.h>

enum { QN__PACE_ROWS = 32 }; /* more cost as so many */

/* In seconds, lately; 0: not known. */
typedef struct qn__pace {
    double decode[QN__PACE_ROWS + 1];               /* a step without prompts, of so many rows */
    double token;                                   /* a prompt's token, beside others' tokens */
    double position;                                /* more of it for each position before it */
    double token_error, position_error, both_error; /* how far they may be off: covariances */
} qn__pace;

/* Tokens of prompts in a step. */
typedef struct qn__prompt_work {
    double tokens, positions; /* positions: those before each of them, added up */
} qn__prompt_work;

void qn__prompt_work_add(qn__prompt_work *work, int64_t tokens, int64_t from);

/* A step of so many rows without prompts: the nearest known, of fewer rows if there is one. */
double qn__pace_decode(const qn__pace *pace, int64_t rows);

double qn__pace_seconds(const qn__pace *pace, qn__prompt_work work);

/* Tokens of a prompt from a position on that take so long. */
double qn__pace_fits(const qn__pace *pace, double seconds, int64_t from);

/* A step took so long, with so many rows of others' next tokens, prompts' tokens, or both. */
void qn__pace_learn(qn__pace *pace, double seconds, int64_t rows, qn__prompt_work work);

#endif
