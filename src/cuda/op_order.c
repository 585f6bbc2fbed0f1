/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations in which elements meet in an order: scattering, sorting.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

static bool takes_plain(const qn_array *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i]->layout)
            return false;
    return true;
}

/* ---- scatter ------------------------------------------------------------------------------------
 */

enum { SCATTER_THREADS = 4096 }; /* where there are few columns, so many threads share them */

static bool launch_scatter_mode(qn__cuda_binder *b, const qn__call *call, qn_scatter_mode mode)
{
    const qn__operand *y = &call->operand[3];
    qn__cuda_scatter_args args = {.n_ids = qn__cuda_elements(&call->operand[1]),
                                  .columns = 1,
                                  .parts = 1,
                                  .y_rows = y->shape[0],
                                  .type = y->dtype,
                                  .mode = mode};
    for (int i = 1; i < y->ndim; i++)
        args.columns *= y->shape[i];
    if (args.columns && args.columns < SCATTER_THREADS)
        args.parts = SCATTER_THREADS / args.columns;
    return QN__CUDA_ADD(b, scatter, args.columns * args.parts, false, args, call, 1, 2, 3);
}

static bool launch_scatter_add(qn__cuda_binder *b, const qn__call *call)
{
    return launch_scatter_mode(b, call, QN_SCATTER_ADD);
}

static bool launch_scatter(qn__cuda_binder *b, const qn__call *call)
{
    const qn__scatter_params *p = call->params;
    return launch_scatter_mode(b, call, (qn_scatter_mode)p->mode);
}

const qn__cuda_routine qn__cuda_scatter_add = {QN__OP_SCATTER_ADD, takes_plain, launch_scatter_add,
                                               0};
const qn__cuda_routine qn__cuda_scatter = {QN__OP_SCATTER, takes_plain, launch_scatter, 0};

/* ---- argsort ------------------------------------------------------------------------------------
 */

static bool launch_argsort(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    int64_t total = qn__cuda_elements(x), n = x->shape[x->ndim - 1];
    qn__cuda_argsort_args args = {.rows = n ? total / n : 0,
                                  .n = n,
                                  .type = x->dtype,
                                  .descending =
                                      ((const qn__argsort_params *)call->params)->descending};
    return QN__CUDA_ADD(b, argsort, total, false, args, call, 0, 1);
}

const qn__cuda_routine qn__cuda_argsort = {QN__OP_ARGSORT, takes_plain, launch_argsort, 0};
