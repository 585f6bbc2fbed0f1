/* SPDX-License-Identifier: Apache-2.0
 *
 * Hadamard matrices, in the order of Sylvester: the sign of row i and column j is the parity of the
 * bits that both have.
 */
#include "nn/hadamard.h"

#include <math.h>
#include <stdlib.h>

static bool odd_bits(uint64_t x)
{
    bool odd = false;
    for (; x; x &= x - 1)
        odd = !odd;
    return odd;
}

qn_array *qn__hadamard_new(qn_device *device, int64_t dim)
{
    int64_t n = dim & -dim;
    float *values = malloc((size_t)(n * n) * sizeof *values), one = 1 / sqrtf((float)n);
    if (!values)
        return NULL;
    for (int64_t i = 0; i < n * n; i++)
        values[i] = odd_bits((uint64_t)(i / n & i % n)) ? -one : one;
    qn_scope *s = qn_scope_begin(device);
    qn_array *all = qn_from_f32(s, values, n * n);
    qn_array *matrix = qn_retain(qn_reshape(s, all, 2, (int64_t[]){n, n}));
    qn_scope_end(s);
    free(values);
    return matrix;
}

qn_array *qn__hadamard_turn(qn_scope *s, qn_array *matrix, qn_array *x)
{
    int ndim = qn_array_ndim(x);
    int64_t n = qn_array_dim(matrix, 0), shape[QN_MAX_NDIM], parts[QN_MAX_NDIM];
    for (int i = 0; i < ndim; i++)
        shape[i] = parts[i] = qn_array_dim(x, i);
    parts[ndim - 1] = shape[ndim - 1] / n;
    parts[ndim] = n;
    x = qn_reshape(s, qn_cast(s, x, QN_F32), ndim + 1, parts);
    return qn_reshape(s, qn_matmul(s, x, matrix), ndim, shape);
}
