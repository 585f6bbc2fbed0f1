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

/* ---- argsort ------------------------------------------------------------------------------------
 */

/* Sorts the places of rows of the call's operand x: runs in shared memory, then pairs of runs, from
 * `result` into `room` and back, so that the last come into the result. */
static bool add_sort(qn__cuda_binder *b, const qn__call *call, qn__cuda_argsort_args args,
                     uint8_t x, uint8_t result, uint8_t room)
{
    int merges = 0;
    while (args.run << merges < args.n)
        merges++;
    uint8_t at[] = {x, result, merges % 2 ? room : result};
    const int64_t total = args.rows * args.n, runs = args.rows * qn__cuda_parts(args.n, args.run);
    const qn__cuda_grid grid = {runs < QN__CUDA_BLOCKS ? runs : QN__CUDA_BLOCKS, QN__CUDA_THREADS,
                                0};
    if (!qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_argsort_runs], &grid, &args,
                           sizeof args, call, 3, at))
        return false;
    for (; merges; merges--, args.run *= 2) {
        at[1] = at[2];
        at[2] = at[1] == result ? room : result;
        if (!qn__cuda_add(b, b->cuda->kernels[QN__CUDA_KERNEL_argsort_merge], total, false, &args,
                          sizeof args, call, 3, at))
            return false;
    }
    return true;
}

static bool launch_argsort(qn__cuda_binder *b, const qn__call *call)
{
    const qn__operand *x = &call->operand[0];
    const int64_t total = qn__cuda_elements(x), n = x->shape[x->ndim - 1];
    const qn__cuda_argsort_args args = {.rows = n ? total / n : 0,
                                        .n = n,
                                        .run = QN__CUDA_SORT_RUN,
                                        .type = x->dtype,
                                        .descending =
                                            ((const qn__argsort_params *)call->params)->descending};
    qn__cuda_want_scratch(b, (size_t)total * sizeof(int32_t));
    return add_sort(b, call, args, 0, 1, QN__CUDA_SCRATCH);
}

const qn__cuda_routine qn__cuda_argsort = {QN__OP_ARGSORT, takes_plain, launch_argsort, 0};

/* ---- scatter ------------------------------------------------------------------------------------
 */

enum {
    SCATTER_THREADS = 4096, /* where there are few columns, so many threads share them */
    FEW_IDS = 64            /* that every thread looks through */
};

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
    if (args.n_ids > FEW_IDS && args.columns) {
        const qn__cuda_argsort_args sort = {
            .rows = 1, .n = args.n_ids, .run = QN__CUDA_SORT_RUN, .type = QN_I32};
        qn__cuda_want_scratch(b, (size_t)args.n_ids * sizeof(int32_t));
        qn__cuda_want_behind(b, (size_t)args.n_ids * sizeof(int32_t));
        return add_sort(b, call, sort, 1, QN__CUDA_SCRATCH, QN__CUDA_BEHIND) &&
               QN__CUDA_ADD(b, scatter_sorted, args.columns * args.n_ids, false, args, call, 1, 2,
                            3, QN__CUDA_SCRATCH);
    }
    if (args.columns && args.columns < SCATTER_THREADS)
        args.parts = SCATTER_THREADS / args.columns;
    return QN__CUDA_ADD(b, scatter, args.columns * args.parts, false, args, call, 1, 2, 3,
                        QN__CUDA_NONE);
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
