/* SPDX-License-Identifier: Apache-2.0
 *
 * A step, enqueued and read.
 */
#include "generate/step.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/device.h"
#include "core/scope.h"

#include <string.h>

enum { WRITTEN = QN__DRAWS_WRITTEN + 1 };

/* In the order in which they got their buffers. */
static void keep_written(qn__model_step *step, const qn__draws_taken *taken, qn_array *numbers)
{
    qn_array *written[WRITTEN];
    memcpy(written, taken->written, sizeof taken->written);
    written[QN__DRAWS_WRITTEN] = numbers;
    for (int i = 0; i < WRITTEN && qn_scope_status(step->scope) == QN_OK; i++)
        if (written[i] && !(step->written[i] = qn_retain(written[i])))
            qn__scope_fail(step->scope, QN_MEMORY, "no memory for a step");
}

/* The newest buffer first: of those that go back the last one is the first to be given again. */
static void release(qn__model_step *step)
{
    qn_release(step->drawn);
    for (int i = WRITTEN; i-- > 0;)
        qn_release(step->written[i]);
}

/* Records the batch. Draws come into the scope first: see qn__model_step_forget_graph. */
static qn_array *record(qn__model_step *step, const qn_model *model, qn__batch *batch,
                        const qn__draws *draws)
{
    size_t n = (size_t)batch->n_outputs;
    if (!n) {
        qn__decoder_run(step->scope, &model->decoder, batch);
        return NULL;
    }
    qn__draws_taken taken = qn__draws_take(step->scope, draws, 0, n, batch->given);
    step->logits = qn__decoder_run(step->scope, &model->decoder, batch);
    keep_written(step, &taken, batch->numbers);
    return qn__draws_choose(step->scope, &taken, step->logits);
}

qn_status qn__model_step_enqueue(qn__model_step *step, const qn_model *model, qn__batch *batch,
                                 const qn__draws *draws, bool keeps_logits, const qn_flag *cancel,
                                 qn_error *err)
{
    qn_scope *s = qn_scope_begin(model->device);
    *step = (qn__model_step){.scope = s, .n_outputs = batch->n_outputs, .begun = qn__seconds()};
    if (!s) {
        qn__batch_end(NULL, batch);
        return qn__fail_memory(err, "a step");
    }
    qn_array *drawn = record(step, model, batch, draws), *results[2];
    int n = 0;
    if (drawn)
        results[n++] = drawn;
    if (drawn && keeps_logits)
        results[n++] = step->logits;
    else
        step->logits = NULL;
    s->cancel = cancel;
    if (model->device->ops->runs_ahead)
        qn__batch_submit(s, batch, results, n);
    else
        qn__batch_eval(s, batch, results, n);
    if (drawn && qn_scope_status(s) == QN_OK && !(step->drawn = qn_retain(drawn)))
        qn__scope_fail(s, QN_MEMORY, "no memory for a step");
    qn__batch_end(s, batch);
    if (qn_scope_status(s) == QN_OK)
        return QN_OK;
    release(step);
    *step = (qn__model_step){0};
    return qn__scope_end(s, err);
}

bool qn__model_step_is_under_way(const qn__model_step *step)
{
    return step->scope || step->drawn;
}

qn_status qn__model_step_read(const qn__model_step *step, qn_device *device, int32_t *drawn,
                              qn_error *err)
{
    if (!step->drawn) {
        qn_status status = qn_wait(step->scope);
        return status == QN_OK ? QN_OK : qn__fail(err, status, "%s", qn_scope_error(step->scope));
    }
    qn_scope *s = qn_scope_begin(device);
    if (!s)
        return qn__fail_memory(err, "a step");
    qn_read(s, step->drawn, drawn, (size_t)step->n_outputs * sizeof *drawn);
    return qn__scope_end(s, err);
}

bool qn__model_step_can_be_followed(const qn__model_step *step, const qn_model *model)
{
    return model->device->ops->runs_ahead && step->drawn && !step->logits;
}

void qn__model_step_forget_graph(qn__model_step *step)
{
    if (!step->drawn || step->logits)
        return;
    qn_scope_end(step->scope);
    step->scope = NULL;
}

void qn__model_step_end(qn__model_step *step)
{
    qn_scope_end(step->scope);
    release(step);
    *step = (qn__model_step){0};
}
