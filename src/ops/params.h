/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations' ids and parameter structs: what devices need to know of them. A parameter struct
 * is hashed and compared as bytes, so it holds no pointers and no padding.
 */
#ifndef QN_OPS_PARAMS_H
#define QN_OPS_PARAMS_H

#include "core/op.h"
#include "core/primitive.h"
#include "core/sample.h"
#include "quern/ops.h"

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

typedef struct qn__flip_params {
    int64_t axis;
} qn__flip_params;

typedef struct qn__as_strided_params {
    int64_t stride[QN_MAX_NDIM], offset;
} qn__as_strided_params;

/* The sizes of the block are the output's, and the update's. */
typedef struct qn__scatter_params {
    int32_t mode; /* qn_scatter_mode, not QN_SCATTER_ADD: that is an operation of its own */
} qn__scatter_params;

typedef enum qn__cumulation { QN__CUMSUM, QN__CUMPROD, QN__CUMMAX, QN__CUMMIN } qn__cumulation;

/* Along the last axis. */
typedef struct qn__cumulate_params {
    int32_t cumulation; /* qn__cumulation */
    int32_t reverse, exclusive;
} qn__cumulate_params;
QN__NO_PADDING(qn__cumulate_params, 12);

/* Along the last axis; equal elements stay in order, NaN counts as largest. */
typedef struct qn__argsort_params {
    int32_t descending;
} qn__argsort_params;

/* Which word of the two, or their exclusive or. */
typedef enum qn__threefry_word {
    QN__THREEFRY_0,
    QN__THREEFRY_1,
    QN__THREEFRY_XOR
} qn__threefry_word;

typedef struct qn__threefry_params {
    int32_t word; /* qn__threefry_word */
} qn__threefry_params;

typedef struct qn__linear_params {
    int32_t products; /* qn_products, never AUTO */
} qn__linear_params;

/* Whether the gradient of products, g W, multiplies in bf16 where W is packed: where the products
 * round x, too. That of a plain weight is in f32, as that of its decomposition. */
static inline bool qn__back_in_bf16(qn_products products)
{
    return products == QN_PRODUCTS_BF16 || products == QN_PRODUCTS_INT8;
}

typedef struct qn__quantized_params {
    int32_t bits, group_size;
    int32_t chosen; /* matrices by index */
} qn__quantized_params;
QN__NO_PADDING(qn__quantized_params, 12);

typedef struct qn__linear_cross_entropy_params {
    float softcap;
    int32_t products; /* qn_products, never AUTO */
    int32_t has_weights, loss_only;
} qn__linear_cross_entropy_params;
QN__NO_PADDING(qn__linear_cross_entropy_params, 16);

typedef struct qn__hadamard_params {
    double scale;
} qn__hadamard_params;

typedef struct qn__norm_params {
    float eps;
    int32_t has_weight, has_bias;
} qn__norm_params;
QN__NO_PADDING(qn__norm_params, 12);

typedef struct qn__rope_params {
    int32_t traditional;
} qn__rope_params;

/* A cache lies in pages of so many positions, in which keys are transposed in groups of 16:
 * [64 / 16, D, 16]. Attention over it goes in spans of so many pages. */
enum { QN__PAGE = 64, QN__KEY_GROUP = 16, QN__SPAN_PAGES = 16 };

/* A tile: consecutive tokens of one sequence, the first one's row and position, and the row of the
 * sequence in the table of pages. */
enum { QN__TILE_SEQUENCE, QN__TILE_ROW, QN__TILE_ROWS, QN__TILE_POSITION, QN__TILE_FIELDS };

/* Tokens in a tile at most, where `group` query heads share a key head: 64 query rows. */
static inline int64_t qn__attend_tile(int64_t group)
{
    return group < 64 ? 64 / group : 1;
}

/* keep: of attention over a cache alone: the first keys, at most QN__PAGE, seen besides the window.
 */
typedef struct qn__attention_params {
    int64_t window, keep;
    float scale, softcap;
    int32_t causal, has_mask, has_sinks, has_first;
} qn__attention_params;
QN__NO_PADDING(qn__attention_params, 40);

/* The one pointer in any parameters: a primitive stays where it is as long as its device lives. */
typedef struct qn__custom_params {
    const qn_primitive *primitive;
    unsigned char params[QN_MAX_CUSTOM_PARAMS]; /* the rest is zero */
} qn__custom_params;
QN__NO_PADDING(qn__custom_params, sizeof(void *) + QN_MAX_CUSTOM_PARAMS);

#endif
