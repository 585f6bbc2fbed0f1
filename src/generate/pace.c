/* SPDX-License-Identifier: Apache-2.0
 *
 * A step's seconds are taken for decode + token * tokens + position * positions. The latter two are
 * followed by a Kalman filter: pieces at a prompt's beginning teach what a token costs, pieces
 * behind thousands of positions what those add, and neither forgets the other.
 */
#include "generate/pace.h"

#include <math.h>

static const double even = 2048; /* before it is learned: positions that cost as much as the rest */
static const double noise = 0.1; /* of a step's seconds */
static const double drift = 0.02;   /* of a cost, from step to step: machines get busy */
static const double most_wrong = 1; /* of a step's seconds: the machine may have been elsewhere */

void qn__prompt_work_add(qn__prompt_work *work, int64_t tokens, int64_t from)
{
    double n = (double)tokens;
    work->tokens += n;
    work->positions += n * (double)from + n * (n - 1) / 2;
}

double qn__pace_decode(const qn__pace *p, int64_t rows)
{
    int at = rows < QN__PACE_ROWS ? (int)rows : QN__PACE_ROWS, below = at, above = at;
    while (below > 0 && p->decode[below] <= 0)
        below--;
    while (above < QN__PACE_ROWS && p->decode[above] <= 0)
        above++;
    return p->decode[below > 0 ? below : above];
}

double qn__pace_seconds(const qn__pace *p, qn__prompt_work work)
{
    return p->token * work.tokens + p->position * work.positions;
}

/* n of position n^2 / 2 + (token + position from) n = seconds */
double qn__pace_fits(const qn__pace *p, double seconds, int64_t from)
{
    double first = p->token + p->position * (double)from;
    return first > 0 ? 2 * seconds / (first + sqrt(first * first + 2 * p->position * seconds)) : 0;
}

/* What a first prompt alone tells: in small pieces a token costs about twice. */
static void begin(qn__pace *p, double seconds, qn__prompt_work work)
{
    p->token = 2 * seconds / (work.tokens + work.positions / even);
    p->position = p->token / even;
    p->token_error = p->token * p->token;
    p->position_error = p->position * p->position;
    p->both_error = 0;
}

/* Prompts took `wrong` seconds more than is known, in a step of `expected`. */
static void correct(qn__pace *p, double wrong, double expected, qn__prompt_work work)
{
    double token_drift = drift * p->token, position_drift = drift * (p->position + p->token / even);
    p->token_error += token_drift * token_drift;
    p->position_error += position_drift * position_drift;
    double of_token = p->token_error * work.tokens + p->both_error * work.positions;
    double of_position = p->both_error * work.tokens + p->position_error * work.positions;
    double variance =
        of_token * work.tokens + of_position * work.positions + noise * expected * noise * expected;
    p->token = fmax(p->token + wrong * of_token / variance, p->token / 4);
    p->position = fmax(p->position + wrong * of_position / variance, 0);
    p->token_error -= of_token * of_token / variance;
    p->position_error -= of_position * of_position / variance;
    p->both_error -= of_token * of_position / variance;
}

void qn__pace_learn(qn__pace *p, double seconds, int64_t rows, qn__prompt_work work)
{
    double *decode = &p->decode[rows < QN__PACE_ROWS ? rows : QN__PACE_ROWS];
    if (!rows && work.tokens > 0 && p->token <= 0)
        begin(p, seconds, work);
    if (rows && work.tokens <= 0)
        *decode = *decode > 0 ? 0.75 * *decode + 0.25 * seconds : seconds;
    if (!rows || work.tokens <= 0 || p->token <= 0)
        return;
    double prompts = qn__pace_seconds(p, work), known = qn__pace_decode(p, rows);
    if (*decode <= 0)
        *decode = fmax(seconds - prompts, known > 0 ? known : seconds / 4);
    double expected = prompts + *decode, wrong = fmin(seconds - expected, most_wrong * expected);
    correct(p, wrong, expected, work);
    *decode *= 1 + 0.05 * wrong / expected; /* more likely the prompts' fault */
}
