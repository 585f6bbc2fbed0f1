/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on arrays. Each records a node and returns an array of the scope `s`; nothing runs until
 * evaluation. Types are promoted as in JAX's table, shapes broadcast as in NumPy. On a type or shape
 * that does not fit, the scope's error names operation and shapes, and the poison array comes back.
 * Any thread that owns the scope may call. Gradients: all of these but where noted.
 */
#ifndef QUERN_OPS_H
#define QUERN_OPS_H

#include "quern/array.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- elementwise: one operand; of its shape. Where the mathematics needs it integers become f32. */

QN_API qn_array *qn_negative(qn_scope *s, qn_array *x);
QN_API qn_array *qn_abs(qn_scope *s, qn_array *x);
QN_API qn_array *qn_sign(qn_scope *s, qn_array *x);
QN_API qn_array *qn_floor(qn_scope *s, qn_array *x);
QN_API qn_array *qn_ceil(qn_scope *s, qn_array *x);
QN_API qn_array *qn_round(qn_scope *s, qn_array *x); /* halves to even */
QN_API qn_array *qn_sqrt(qn_scope *s, qn_array *x);
QN_API qn_array *qn_rsqrt(qn_scope *s, qn_array *x); /* 1 / sqrt(x) */
QN_API qn_array *qn_square(qn_scope *s, qn_array *x);
QN_API qn_array *qn_exp(qn_scope *s, qn_array *x);
QN_API qn_array *qn_log(qn_scope *s, qn_array *x);
QN_API qn_array *qn_sin(qn_scope *s, qn_array *x);
QN_API qn_array *qn_cos(qn_scope *s, qn_array *x);
QN_API qn_array *qn_tanh(qn_scope *s, qn_array *x);
QN_API qn_array *qn_erf(qn_scope *s, qn_array *x);
QN_API qn_array *qn_sigmoid(qn_scope *s, qn_array *x);
QN_API qn_array *qn_silu(qn_scope *s, qn_array *x);      /* x sigmoid(x) */
QN_API qn_array *qn_relu(qn_scope *s, qn_array *x);
QN_API qn_array *qn_gelu(qn_scope *s, qn_array *x);      /* by erf */
QN_API qn_array *qn_gelu_tanh(qn_scope *s, qn_array *x); /* the tanh approximation */
QN_API qn_array *qn_logical_not(qn_scope *s, qn_array *x); /* bool */

/* Converts; rounds to nearest even, floats to integers towards zero. */
QN_API qn_array *qn_cast(qn_scope *s, qn_array *x, qn_dtype dtype);

/* The value without a derivative. */
QN_API qn_array *qn_stop_gradient(qn_scope *s, qn_array *x);

/* ---- elementwise: two operands, broadcast against each other --------------------------------- */

QN_API qn_array *qn_add(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_subtract(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_multiply(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_divide(qn_scope *s, qn_array *a, qn_array *b); /* integers become f32 */
QN_API qn_array *qn_power(qn_scope *s, qn_array *a, qn_array *b);  /* floats */
QN_API qn_array *qn_maximum(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_minimum(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_equal(qn_scope *s, qn_array *a, qn_array *b); /* these give bool */
QN_API qn_array *qn_not_equal(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_less(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_less_equal(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_greater(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_greater_equal(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_logical_and(qn_scope *s, qn_array *a, qn_array *b); /* of bool */
QN_API qn_array *qn_logical_or(qn_scope *s, qn_array *a, qn_array *b);

/* a where condition (bool) holds, else b. */
QN_API qn_array *qn_where(qn_scope *s, qn_array *condition, qn_array *a, qn_array *b);

/* ---- views: share the storage, cost nothing --------------------------------------------------- */

/* The same elements in row-major order under another shape; one size may be -1. Copies when the
 * strides do not allow a view. */
QN_API qn_array *qn_reshape(qn_scope *s, qn_array *x, int ndim, const int64_t *shape);
/* Axis i of the result is axis order[i] of x. NULL: reversed. */
QN_API qn_array *qn_transpose(qn_scope *s, qn_array *x, const int *order);
QN_API qn_array *qn_swap_axes(qn_scope *s, qn_array *x, int a, int b);
QN_API qn_array *qn_broadcast_to(qn_scope *s, qn_array *x, int ndim, const int64_t *shape);
/* x[start:stop:step] along one axis, as in Python; step > 0. INT64_MAX as stop: to the end. */
QN_API qn_array *qn_slice(qn_scope *s, qn_array *x, int axis, int64_t start, int64_t stop,
                          int64_t step);
QN_API qn_array *qn_expand_dims(qn_scope *s, qn_array *x, int axis);
QN_API qn_array *qn_squeeze(qn_scope *s, qn_array *x, int axis);
/* x itself when row-major without gaps, else a copy that is. */
QN_API qn_array *qn_contiguous(qn_scope *s, qn_array *x);

/* ---- moving elements --------------------------------------------------------------------------- */

QN_API qn_array *qn_concatenate(qn_scope *s, qn_array *const *arrays, int n, int axis);
/* Rows of x along an axis by index: for x [V, D] and ids [B, L], axis 0, gives [B, L, D]. ids are of an
 * integer type; an index outside the axis gives zeros. x may be packed (axis 0). */
QN_API qn_array *qn_take(qn_scope *s, qn_array *x, qn_array *ids, int axis);
/* x[..., ids[...]]: one element of the last axis for each index; of the shape of ids. */
QN_API qn_array *qn_take_along_last(qn_scope *s, qn_array *x, qn_array *ids);
/* x with x[start:start+size] replaced by update, all axes; in place when x was donated. */
QN_API qn_array *qn_slice_update(qn_scope *s, qn_array *x, qn_array *update, const int64_t *start);
/* x with rows added: x[ids[i]] += update[i] along axis 0, in the order of i. */
QN_API qn_array *qn_scatter_add(qn_scope *s, qn_array *x, qn_array *ids, qn_array *update);

/* ---- reductions: over one axis, or all with QN_ALL_AXES ------------------------------------------ */

#define QN_ALL_AXES INT32_MAX

QN_API qn_array *qn_sum(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_mean(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_max(qn_scope *s, qn_array *x, int axis, bool keep_dims); /* NaN wins */
QN_API qn_array *qn_min(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_logsumexp(qn_scope *s, qn_array *x, int axis, bool keep_dims);
/* Index of the first largest element along the axis, i32. No gradient. */
QN_API qn_array *qn_argmax(qn_scope *s, qn_array *x, int axis, bool keep_dims);
QN_API qn_array *qn_softmax(qn_scope *s, qn_array *x, int axis);

/* ---- matrices ------------------------------------------------------------------------------------ */

/* a [..., M, K] times b [..., K, N], leading axes broadcast; 1-d operands as in NumPy. */
QN_API qn_array *qn_matmul(qn_scope *s, qn_array *a, qn_array *b);

/* x [..., K] times the transpose of w [N, K], plus bias [N] unless NULL: a linear layer. When w is a
 * 16-bit type x is rounded to it first; products are summed in f32 and the result is f32. w may be
 * packed (qn_pack). f64 stays f64. */
QN_API qn_array *qn_linear(qn_scope *s, qn_array *x, qn_array *w, qn_array *bias);

/* A retained copy of w [N, K] (f32, bf16; f16 becomes f32) in the layout in which the device's linear
 * layers stream it; on devices without one, a plain copy. Only qn_linear and qn_take read it. NULL with
 * the scope's error set on failure. Release with qn_release. */
QN_API qn_array *qn_pack(qn_scope *s, qn_array *w);

/* ---- fused: one kernel, with a decomposition into the above ---------------------------------------- */

/* x / sqrt(mean(x^2) + eps) * weight along the last axis; weight [D] or NULL. arXiv:1910.07467 */
QN_API qn_array *qn_rms_norm(qn_scope *s, qn_array *x, qn_array *weight, float eps);

/* (x - mean) / sqrt(var + eps) * weight + bias along the last axis; both [D] or NULL. */
QN_API qn_array *qn_layer_norm(qn_scope *s, qn_array *x, qn_array *weight, qn_array *bias,
                               float eps);

/* Rotary position embedding of x [B, H, L, D] (arXiv:2104.09864). Position l of batch b has the angle
 * (offset[b] + l) * frequency[i]. offset: i32, [B] or one element. frequency: f32 [R/2] radians a
 * position; the first R elements of D rotate. traditional: pairs (2i, 2i+1), else (i, i + R/2).
 * Differentiable in x. */
QN_API qn_array *qn_rope(qn_scope *s, qn_array *x, qn_array *offset, qn_array *frequency,
                         bool traditional);

typedef struct qn_attention_options {
    size_t size;   /* sizeof(qn_attention_options) */
    float scale;   /* of the scores; 0: 1/sqrt(D) */
    bool causal;   /* query l sees keys up to l + S - L: aligned at the lower right */
    float softcap; /* c tanh(score / c); 0: none */
    int64_t window; /* a query sees this many newest keys; 0: all */
    qn_array *mask; /* broadcast to [B, H, L, S]: bool (true: keep) or added to the scores; or NULL */
} qn_attention_options;

/* softmax(scale q k^T + mask) v for q [B, H, L, D], k [B, G, S, D], v [B, G, S, E], H a multiple of G.
 * options may be NULL. */
QN_API qn_array *qn_attention(qn_scope *s, qn_array *q, qn_array *k, qn_array *v,
                              const qn_attention_options *options);

/* -log softmax(logits)[target] for logits [..., V] and integer targets [...]; of the targets' shape. */
QN_API qn_array *qn_cross_entropy(qn_scope *s, qn_array *logits, qn_array *targets);

/* ---- derivatives ------------------------------------------------------------------------------------ */

/* out[i] = the gradient of `loss` (one element) with respect to wrt[i]; zeros where it does not depend
 * on it. Adds the backward graph to the scope; the results can be differentiated again. */
QN_API qn_status qn_grad(qn_scope *s, qn_array *loss, qn_array *const *wrt, int n, qn_array **out);

/* The same for any y and its cotangent ct, of the shape of y. */
QN_API qn_status qn_vjp(qn_scope *s, qn_array *y, qn_array *ct, qn_array *const *wrt, int n,
                        qn_array **out);

/* The tangent of y when wrt[i] moves along tangents[i]. */
QN_API qn_array *qn_jvp(qn_scope *s, qn_array *y, qn_array *const *wrt, qn_array *const *tangents,
                        int n);

#ifdef __cplusplus
}
#endif
#endif
