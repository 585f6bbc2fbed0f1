/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations' ids and parameter structs: what devices need to know of them. A parameter struct is
 * hashed and compared as bytes, so it holds no pointers and no padding.
 */
#ifndef QN_OPS_PARAMS_H
#define QN_OPS_PARAMS_H

#include "core/op.h"

enum {
#define OP_ENUM(name, definition) QN__OP_##name,
#include "ops/ops.def"
#undef OP_ENUM
    QN__OP_COUNT
};

#define QN__NO_PADDING(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has padding")

typedef struct qn__full_params {
    double value;
} qn__full_params;

typedef struct qn__round_to_params {
    int32_t dtype;
} qn__round_to_params;

typedef enum qn__reduction { QN__SUM, QN__MAX, QN__LOGSUMEXP, QN__ARGMAX } qn__reduction;

/* Reduces the last axis of the input; the output lacks it. */
typedef struct qn__reduce_params {
    int32_t reduction; /* qn__reduction */
} qn__reduce_params;

typedef struct qn__concatenate_params {
    int64_t axis;
} qn__concatenate_params;

typedef struct qn__slice_params {
    int64_t axis, start, stop, step;
} qn__slice_params;

typedef struct qn__transpose_params {
    int32_t order[QN_MAX_NDIM];
} qn__transpose_params;

typedef struct qn__slice_update_params {
    int64_t start[QN_MAX_NDIM];
} qn__slice_update_params;

typedef struct qn__norm_params {
    float eps;
    int32_t has_weight, has_bias;
} qn__norm_params;
QN__NO_PADDING(qn__norm_params, 12);

typedef struct qn__rope_params {
    int32_t traditional;
} qn__rope_params;

typedef struct qn__attention_params {
    int64_t window;
    float scale, softcap;
    int32_t causal, has_mask;
} qn__attention_params;
QN__NO_PADDING(qn__attention_params, 24);

#endif
