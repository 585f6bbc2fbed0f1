/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products: strided batches, and linear layers on plain weights.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

static bool launch_matmul(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *l = &call->operand[0], *r = &call->operand[1], *y = &call->operand[2];
    int m = y->ndim - 2;
    qn__cuda_matmul_args args = {.a = qn__cuda_view_of(l, 0, m),
                                 .b = qn__cuda_view_of(r, 0, m),
                                 .batch = 1,
                                 .m = y->shape[m],
                                 .n = y->shape[m + 1],
                                 .k = l->shape[m + 1],
                                 .a_row = l->stride[m],
                                 .a_column = l->stride[m + 1],
                                 .b_row = r->stride[m],
                                 .b_column = r->stride[m + 1],
                                 .wide = y->dtype == QN_F64};
    for (int i = 0; i < m; i++)
        args.batch *= y->shape[i];
    return QN__CUDA_ADD(b, matmul, args.batch * args.m * args.n, false, args, call, 0, 1, 2);
}

const qn__cuda_routine qn__cuda_matmul = {QN__OP_MATMUL, NULL, launch_matmul, 0};

/* x is f32 with weights in f32, bf16 or units, or all is f64. */
static bool takes_linear(const qn_array *node)
{
    if (node->in[1]->layout)
        return qn__cuda_takes_units(node);
    qn_dtype w = (qn_dtype)node->in[1]->dtype;
    const qn__linear_params *p = node->params;
    if (node->dtype == QN_F64)
        return w == QN_F64;
    return node->dtype == QN_F32 &&
           (w == QN_BF16 ? p->products == QN_PRODUCTS_BF16 || p->products == QN_PRODUCTS_BY_ROWS
                         : (w == QN_F32 || w == QN_F16) && p->products == QN_PRODUCTS_F32);
}

static qn__cuda_linear_args linear_args(const qn__call *call)
{
    const qn__operand *x = &call->operand[0], *w = &call->operand[1];
    qn__cuda_linear_args args = {.rows = 1,
                                 .n = w->shape[0],
                                 .k = w->shape[1],
                                 .w_row = w->stride[0],
                                 .w_column = w->stride[1],
                                 .type = w->dtype};
    for (int i = 0; i + 1 < x->ndim; i++)
        args.rows *= x->shape[i];
    return args;
}

enum { WARP = 32 }; /* threads that share an element of the result */

static bool launch_linear(qn__cuda_binder *b, const qn__call *call)
{
    if (call->operand[1].layout)
        return qn__cuda_linear_units(b, call);
    qn__cuda_linear_args args = linear_args(call);
    if (args.rows && qn__cuda_streams(&call->operand[0], &call->operand[1]))
        return qn__cuda_stream_linear(b, call);
    return QN__CUDA_ADD(b, linear, args.rows * args.n * WARP, false, args, call, 0, 1, 2);
}

const qn__cuda_routine qn__cuda_linear = {QN__OP_LINEAR, takes_linear, launch_linear, 1 << 1};

static bool launch_linear_back(qn__cuda_binder *b, const qn__call *call)
{
    qn__cuda_linear_args args = linear_args(call);
    return QN__CUDA_ADD(b, linear_back, args.rows * args.k, false, args, call, 0, 1, 2);
}

const qn__cuda_routine qn__cuda_linear_back = {QN__OP_LINEAR_BACK, takes_linear, launch_linear_back,
                                               0};
