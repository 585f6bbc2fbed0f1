/* SPDX-License-Identifier: Apache-2.0
 *
 * --dry-run: what a training needs, by taking some of its steps. The longest batch there can be
 * says the memory, some of those that come first the time.
 */
#include "cli/train.h"

#include "base/error.h"

#include <stdlib.h>

enum { TIMED = 3 };

/* Rows of the longest text: their tokens do not matter. */
static qn_status take_longest(training *r, const qn_dataset_info *info, qn_error *err)
{
    int64_t rows = r->rows < (int64_t)info->rows ? r->rows : (int64_t)info->rows;
    int64_t packed = r->data.longest_row, each = r->loss == QN_LOSS_DPO ? 2 : 1;
    qn_batch b = {.rows = each * rows, .length = packed ? packed : (int64_t)info->longest};
    b.tokens = calloc((size_t)(b.rows * b.length), sizeof *b.tokens);
    if (!b.tokens)
        return qn__fail_memory(err, "a batch");
    if (r->n_batches > 1) { /* whose gradients are kept beside */
        const qn_batch two[] = {b, b};
        qn_trainer_step_batches(r->trainer, two, 2, NULL, err);
    } else {
        qn_trainer_step_batches(r->trainer, &b, 1, NULL, err);
    }
    free(b.tokens);
    return err->code;
}

/* Seconds of a batch: some run, of which the first may prepare more than the others. */
static qn_status time_batches(training *r, double *seconds, qn_error *err)
{
    qn_batch *b = r->batches;
    for (int64_t i = 0; i <= TIMED; i++) {
        if (i == 1)
            *seconds = -qn__seconds();
        if (qn_dataset_batch(r->data.train, r->rows, i, b, err) != QN_OK ||
            qn_trainer_step_batches(r->trainer, b, 1, NULL, err) != QN_OK)
            return err->code;
    }
    *seconds = (*seconds + qn__seconds()) / TIMED;
    return QN_OK;
}

qn_status print_plan(training *r, qn_error *err)
{
    qn_dataset_info info = QN_INIT(qn_dataset_info);
    qn_memory_stats memory = QN_INIT(qn_memory_stats);
    double batch = 0;
    int64_t left = r->iters - qn_trainer_steps(r->trainer);
    qn_dataset_get_info(r->data.train, &info);
    if (take_longest(r, &info, err) != QN_OK || time_batches(r, &batch, err) != QN_OK)
        return err->code;
    qn_device_memory(r->device, &memory);
    double step = batch * (double)r->n_batches;
    printf("texts       %llu, of %llu tokens, the longest %llu\n", (unsigned long long)info.texts,
           (unsigned long long)info.tokens, (unsigned long long)info.longest);
    printf("%-12s%llu numbers\n", trains_fully(r->a) ? "trained" : "adapter",
           (unsigned long long)qn_trainer_parameters(r->trainer));
    printf("steps       %lld, of %lld %s: %.1f epochs\n", (long long)left,
           (long long)(r->rows * r->n_batches), r->a->pack ? "rows" : "texts",
           (double)(left * r->rows * r->n_batches) / (double)info.rows);
    printf("memory      %.0f MiB, of which the model and what is trained %.0f MiB\n",
           (double)memory.peak / (1 << 20), (double)memory.active / (1 << 20));
    printf("time        %.3g s a step, %.3g min in all, without validations\n", step,
           step * (double)left / 60);
    return QN_OK;
}
