/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers: y = x w^T. The weight may lie in a packed layout that streams; its two
 * orientations are two operations, since a gradient needs the other one on the same bytes.
 *
 * What the products are is a parameter, since it changes values: packed or not, on every device,
 * the same products give the same meaning. matmul promotes instead.
 */
#include "core/device.h"
#include "core/dtype.h"
#include "ops/ops.h"
#include "quant/layout.h"

static qn_products products_of(const qn_array *node)
{
    const qn__linear_params *p = node->params;
    return (qn_products)p->products;
}

qn_products qn__auto_products(const qn_scope *s, const qn_array *w)
{
    const qn__layout *l = qn__layout_of(w->layout);
    if (l && l->step)
        return QN_PRODUCTS_INT8;
    return w->dtype == QN_BF16                            ? QN_PRODUCTS_BF16
           : w->dtype == QN_F16 && s->device->ops->halves ? QN_PRODUCTS_F16
                                                          : QN_PRODUCTS_F32;
}

/* What is recorded: not AUTO, and BY_ROWS where it makes a difference alone. */
static qn_products recorded(const qn_scope *s, const qn_array *w, qn_products products)
{
    const qn_products kind = qn__auto_products(s, w);
    if (products == QN_PRODUCTS_AUTO)
        return kind;
    if (products != QN_PRODUCTS_BY_ROWS || (s->device->ops->by_rows && kind != QN_PRODUCTS_F32))
        return products;
    return kind;
}

/* Those of the gradient. */
static qn_products products_back(const qn_array *node)
{
    const qn_products products = products_of(node);
    return products == QN_PRODUCTS_BY_ROWS ? qn__auto_products(node->scope, node->in[1]) : products;
}

/* What x was rounded to, whose gradient is that of x, as the kernel's is: x - x has it and adds
 * nothing. */
static qn_array *rounded_as(qn_scope *s, qn_array *rounded, qn_array *x)
{
    return qn_add(s, qn_stop_gradient(s, rounded), qn_subtract(s, x, qn_stop_gradient(s, x)));
}

/* Whole numbers of which 127 is the largest magnitude in a row, over their scale. */
static qn_array *rounded_rows(qn_scope *s, qn_array *x)
{
    qn_array *most = qn_max(s, qn_abs(s, x), -1, true);
    if (qn__is_poison(s, most))
        return most;
    qn_array *scale = qn_divide(s, qn__scalar_like(s, x, 127),
                                qn_maximum(s, most, qn__scalar_like(s, x, QN__LEAST_OF_ROW)));
    qn_array *rounded = qn_divide(s, qn_round(s, qn_multiply(s, x, scale)), scale);
    return rounded_as(s, rounded, x);
}

/* What is too large is the largest there is. */
static qn_array *rounded_halves(qn_scope *s, qn_array *x)
{
    const double largest = 65504;
    qn_array *within =
        qn_clip(s, x, qn__scalar_like(s, x, -largest), qn__scalar_like(s, x, largest));
    return rounded_as(s, qn__round_to(s, within, QN_F16), x);
}

/* x as the products see it. */
static qn_array *rounded_for(qn_scope *s, const qn_array *node)
{
    switch (products_back(node)) {
    case QN_PRODUCTS_BF16: return qn__round_to(s, node->in[0], QN_BF16);
    case QN_PRODUCTS_F16: return rounded_halves(s, node->in[0]);
    case QN_PRODUCTS_INT8_ROWS: return rounded_rows(s, node->in[0]);
    default: return node->in[0];
    }
}

/* Whether w has such products. */
static bool has_products(const qn_array *w, qn_products products)
{
    const qn__layout *l = qn__layout_of(w->layout);
    if (products == QN_PRODUCTS_INT8)
        return l && l->step;
    return products == QN_PRODUCTS_F32 || products == QN_PRODUCTS_INT8_ROWS ||
           products == QN_PRODUCTS_BY_ROWS ||
           (products == QN_PRODUCTS_BF16 && w->dtype == QN_BF16) ||
           (products == QN_PRODUCTS_F16 && w->dtype == QN_F16);
}

/* Records LINEAR (columns == N) or LINEAR_BACK (columns == K). x is contiguous f32 or f64. */
static qn_array *record(qn_scope *s, qn__op_id op, qn_array *x, qn_array *w, int64_t columns,
                        qn_products products)
{
    int64_t shape[QN_MAX_NDIM];
    qn__linear_params params = {.products = products};
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = columns;
    qn_array *in[] = {x, w};
    return qn__record(s, op, (qn_dtype)x->dtype, x->ndim, shape, 2, in, &params);
}

static bool takes(const qn_array *x, const qn_array *w, int w_axis)
{
    return w->ndim == 2 && x->ndim >= 1 && x->shape[x->ndim - 1] == w->shape[w_axis] &&
           qn__is_float((qn_dtype)w->dtype);
}

qn_array *qn_linear_with(qn_scope *s, qn_array *x, qn_array *w, qn_array *bias,
                         qn_products products)
{
    x = qn__input(s, x, "linear");
    w = x ? qn__input(s, w, "linear") : NULL;
    if (!w)
        return qn__poison(s);
    if (!takes(x, w, 1))
        return qn__op_fail(s, "linear", x, w, "x must be [..., K] and w [N, K]");
    qn_dtype type = x->dtype == QN_F64 || w->dtype == QN_F64 ? QN_F64 : QN_F32;
    products = recorded(s, w, products);
    if (!has_products(w, products))
        return qn__op_fail(
            s, "linear", x, w,
            products == QN_PRODUCTS_INT8  ? "products of bytes need a packed, quantised weight"
            : products == QN_PRODUCTS_F16 ? "products in f16 need a weight in f16"
                                          : "products in bf16 need a weight in bf16");
    x = qn_contiguous(s, qn_cast(s, x, type));
    if (qn__is_poison(s, x))
        return qn__poison(s);
    qn_array *y = record(s, QN__OP_LINEAR, x, w, w->shape[0], products);
    return bias ? qn_add(s, y, qn_cast(s, bias, type)) : y;
}

qn_array *qn_linear(qn_scope *s, qn_array *x, qn_array *w, qn_array *bias)
{
    return qn_linear_with(s, x, w, bias, QN_PRODUCTS_AUTO);
}

/* It has the products of what it is the gradient of: of a packed weight qn__back_in_bf16 says how
 * they multiply here. */
static qn_array *linear_back(qn_scope *s, qn_array *g, qn_array *w, qn_products products)
{
    g = qn_contiguous(s, g);
    return qn__is_poison(s, g) ? g : record(s, QN__OP_LINEAR_BACK, g, w, w->shape[1], products);
}

static qn_array *decompose_linear(qn_scope *s, const qn_array *node)
{
    qn_array *x = node->in[0], *w = node->in[1];
    const qn__layout *l = qn__layout_of(w->layout);
    if (l && !l->step &&
        (products_of(node) == QN_PRODUCTS_INT8_ROWS || products_of(node) == QN_PRODUCTS_F16)) {
        x = qn_contiguous(s, rounded_for(s, node));
        return qn__is_poison(s, x) ? x
                                   : record(s, QN__OP_LINEAR, x, w, w->shape[0], QN_PRODUCTS_F32);
    }
    if (l)
        return qn__op_fail(s, "linear", x, w, "the device has no kernel for this packed layout");
    qn_array *wide = qn_cast(s, w, (qn_dtype)node->dtype);
    return qn_matmul(s, rounded_for(s, node), qn_swap_axes(s, wide, 0, 1));
}

static qn_array *decompose_linear_back(qn_scope *s, const qn_array *node)
{
    qn_array *w = node->in[1];
    if (w->layout)
        return qn__op_fail(s, "linear", node->in[0], w,
                           "the device has no gradient kernel for this packed layout");
    return qn_matmul(s, node->in[0], qn_cast(s, w, (qn_dtype)node->dtype));
}

/* [..., N] as [rows, N] */
static qn_array *flat_rows(qn_scope *s, qn_array *x)
{
    int64_t shape[] = {-1, x->shape[x->ndim - 1]};
    return qn_reshape(s, x, 2, shape);
}

/* The weight's gradient g^T x [N, K], in the weight's type. */
static qn_array *weight_gradient(qn_scope *s, const qn_array *w, qn_array *g, qn_array *x)
{
    if (w->layout)
        return qn__op_fail(s, "linear", x, w, "a packed weight has no gradient of its own");
    g = flat_rows(s, g);
    x = flat_rows(s, x);
    if (s->error.code != QN_OK)
        return qn__poison(s);
    return qn_cast(s, qn_matmul(s, qn_swap_axes(s, g, 0, 1), x), (qn_dtype)w->dtype);
}

static void vjp_linear(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                       qn_array **grads)
{
    qn_array *w = node->in[1];
    if (want[0])
        grads[0] = linear_back(s, ct, w, products_back(node));
    if (want[1])
        grads[1] = weight_gradient(s, w, ct, rounded_for(s, node));
}

static qn_array *jvp_linear(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    qn_array *a = t[0] ? qn_linear_with(s, t[0], node->in[1], NULL, products_of(node)) : NULL;
    qn_array *b = t[1] ? qn_linear_with(s, node->in[0], t[1], NULL, products_of(node)) : NULL;
    return a && b ? qn_add(s, a, b) : a ? a : b;
}

static void vjp_linear_back(qn_scope *s, const qn_array *node, qn_array *ct, const bool *want,
                            qn_array **grads)
{
    qn_array *g = node->in[0], *w = node->in[1];
    if (want[0])
        grads[0] = qn_linear_with(s, ct, w, NULL, products_of(node));
    if (want[1])
        grads[1] = weight_gradient(s, w, g, ct);
}

static qn_array *jvp_linear_back(qn_scope *s, const qn_array *node, qn_array *const *t)
{
    qn_array *a = t[0] ? linear_back(s, t[0], node->in[1], products_of(node)) : NULL;
    qn_array *b = t[1] ? linear_back(s, node->in[0], t[1], products_of(node)) : NULL;
    return a && b ? qn_add(s, a, b) : a ? a : b;
}

const qn__op_def qn__linear_op = {.name = "linear",
                                  .params_size = sizeof(qn__linear_params),
                                  .class = QN__KERNEL,
                                  .stage = QN__STAGE_ROOT,
                                  .decompose = decompose_linear,
                                  .vjp = vjp_linear,
                                  .jvp = jvp_linear};
const qn__op_def qn__linear_back_op = {.name = "linear_back",
                                       .params_size = sizeof(qn__linear_params),
                                       .class = QN__KERNEL,
                                       .decompose = decompose_linear_back,
                                       .vjp = vjp_linear_back,
                                       .jvp = jvp_linear_back};
