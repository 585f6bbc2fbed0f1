/* SPDX-License-Identifier: Apache-2.0
 *
 * What the loops that measure a GPU's ceilings (ceilings.cu, ceilings_wide.cu) and who launches
 * them (ceilings.c) share.
 */
#ifndef QN_CUDA_CEILINGS_H
#define QN_CUDA_CEILINGS_H

#include <stdint.h>

typedef struct qn__cuda_read_args {
    const char *data;
    int64_t turns;    /* of a block, each QN__CUDA_READ_TURN bytes */
    uint32_t *result; /* what comes of it */
} qn__cuda_read_args;

typedef struct qn__cuda_multiply_args {
    int64_t rounds;
    uint32_t *result;
} qn__cuda_multiply_args;

enum {
    QN__CUDA_READ_TURN = 16 << 10,
    QN__CUDA_READ_THREADS = 256, /* of loads, */
    QN__CUDA_READ_BLOCKS = 8,    /* with so many blocks a multiprocessor */
    QN__CUDA_READ_RING = 6,      /* turns of the copy engine at once, on each */

    QN__CUDA_MULTIPLY_THREADS = 256,
    QN__CUDA_MULTIPLY_BLOCKS = 2, /* of mma.sync, a multiprocessor */
    QN__CUDA_MULTIPLY_SUMS = 8,
    QN__CUDA_MULTIPLY_STAGES = 4, /* of x and of a weight, which wgmma takes in turn */
    QN__CUDA_MULTIPLY_STAGE = (128 + 256) * 128,
    QN__CUDA_MULTIPLY_SHARED = QN__CUDA_MULTIPLY_STAGES * QN__CUDA_MULTIPLY_STAGE + 1024,

    /* Multiplications of a block in a round. */
    QN__CUDA_FEW_ROUND = QN__CUDA_MULTIPLY_THREADS / 32 * QN__CUDA_MULTIPLY_SUMS * 16 * 8 * 16,
    QN__CUDA_WIDE_ROUND = 128 * 256 * 64
};

#endif
