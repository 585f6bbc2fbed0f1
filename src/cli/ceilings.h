/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machine can do at best, by small loops: what speeds are compared with.
 */
#ifndef QN_CLI_CEILINGS_H
#define QN_CLI_CEILINGS_H

/* In 10^9 a second; a multiplication and an addition are two operations. 0: the tier has no such
 * instruction, or no loop here. */
typedef struct ceilings {
    double read;            /* bytes */
    double f32, bf16, int8; /* operations */
} ceilings;

/* The best of several runs on so many threads, with the instructions of a tier ("avx512"); keeps
 * what is better in *c. Half a second. */
void measure_ceilings(ceilings *c, const char *tier, int threads);

#endif
