/* SPDX-License-Identifier: Apache-2.0
 *
 * Turning vectors by a Hadamard matrix, which is its own inverse and leaves products of two turned
 * vectors what they were. One number that is far larger than the others becomes a little of each:
 * blocks with one scale then keep more of every number's bits (QuaRot, arXiv:2404.00456).
 */
#ifndef QN_NN_HADAMARD_H
#define QN_NN_HADAMARD_H

#include "ops/ops.h"

/* The matrix for vectors of `dim` numbers: of the largest power of two that divides it. Retained;
 * NULL: memory is out. */
qn_array *qn__hadamard_new(qn_device *device, int64_t dim);

/* Of x [..., dim], in f32. */
qn_array *qn__hadamard_turn(qn_scope *s, qn_array *matrix, qn_array *x);

#endif
