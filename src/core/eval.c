/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation: collect what the targets need, find its plan, give every slot a pointer, submit.
 *
 * A submission owns references to its binding and, when it is asynchronous, to every buffer it touches,
 * so that ending the scope does not disturb it. Results get their buffers at submission: a scope may
 * go on recording with them while they are computed.
 */
#include "base/error.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/scope.h"

#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void qn__submission_release(qn__submission *submission)
{
    if (!submission ||
        atomic_fetch_sub_explicit(&submission->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < submission->n_held; i++) {
        atomic_fetch_sub(&submission->held[i]->in_flight, 1);
        qn__buffer_release(submission->held[i]);
    }
    qn__binding_release(submission->binding);
    free(submission);
}

static qn__submission *new_submission(qn__binding *binding)
{
    const qn__plan *plan = binding->plan;
    uint32_t n_slots = plan->n_inputs + plan->n_outputs + 1;
    qn__submission *sub = calloc(1, sizeof *sub + 2 * n_slots * sizeof(void *));
    if (!sub)
        return NULL;
    atomic_init(&sub->refs, 1);
    sub->binding = binding;
    sub->slots = (void **)(sub + 1);
    sub->n_slots = n_slots;
    sub->held = (qn__buffer **)(sub->slots + n_slots);
    return sub;
}

/* The submission takes over one reference. */
static void hold(qn__submission *sub, uint32_t slot, qn__buffer *buffer)
{
    atomic_fetch_add(&buffer->in_flight, 1);
    sub->slots[slot] = buffer->data;
    sub->held[sub->n_held++] = buffer;
}

/* Makes the output buffers and fills the slots; every buffer is held by the submission. */
static bool fill_slots(qn_scope *s, qn__submission *sub, const qn__live *live)
{
    const qn__plan *plan = sub->binding->plan;
    for (uint32_t i = 0; i < live->n; i++)
        if (plan->storage[i].place == QN__SLOT_INPUT) {
            hold(sub, plan->storage[i].slot, qn__buffer_retain(live->node[i]->buffer));
        }
    for (uint32_t i = 0; i < plan->n_outputs; i++) {
        qn__buffer *buffer =
            qn__buffer_new(s->device, sub->binding->output_bytes[i], &s->error);
        if (!buffer)
            return false;
        hold(sub, plan->n_inputs + i, buffer);
    }
    return true;
}

/* held[] is in slot order, so a target's buffer is at its slot. */
static void give_results(const qn__submission *sub, const qn__live *live)
{
    const qn__plan *plan = sub->binding->plan;
    for (uint32_t i = 0; i < plan->n_targets; i++) {
        qn_array *a = live->node[plan->outputs[i]];
        a->buffer = qn__buffer_retain(sub->held[plan->output_slots[i]]);
    }
    for (uint32_t i = 0; i < live->n; i++)
        if (plan->storage[i].place == QN__ALIAS && live->node[i]->base == live->node[i])
            for (uint32_t k = i; plan->storage[k].place == QN__ALIAS;) {
                k = plan->storage[k].slot;
                if (plan->storage[k].place == QN__SLOT_INPUT)
                    live->node[k]->flags |= QN__SPENT;
            }
}

/* Who lent a buffer answers for what a failed run has written. */
void qn__submission_invalidate(const qn__submission *sub)
{
    const qn__plan *plan = sub->binding->plan;
    for (uint32_t i = 0; i < plan->n_targets; i++) {
        qn__buffer *buffer = sub->held[plan->output_slots[i]];
        if (!atomic_load_explicit(&buffer->lent, memory_order_relaxed))
            atomic_store(&buffer->invalid, true);
    }
}

static void count(qn_device *device, const qn__binding *binding, uint64_t ns, bool hit)
{
    const qn__plan *plan = binding->plan;
    qn__plan_cache *cache = &device->plans;
    pthread_mutex_lock(&cache->lock);
    qn_plan_stats *stats = &cache->stats;
    stats->evaluations++;
    stats->nodes += plan->n_nodes;
    stats->steps += plan->n_steps;
    stats->fused += plan->n_fused;
    stats->chain_bytes += binding->chain_bytes;
    stats->donation_copies += plan->n_copies;
    if (hit)
        stats->hit_ns += ns;
    pthread_mutex_unlock(&cache->lock);
}

static qn_status finish(qn_scope *s)
{
    qn__submission *sub = s->pending;
    if (!sub)
        return s->error.code;
    s->pending = NULL;
    if (s->device->ops->wait(s->device, sub, &s->error) != QN_OK)
        qn__submission_invalidate(sub);
    qn__submission_release(sub);
    return s->error.code;
}

/* Plans and submits targets that have no buffer yet. */
static qn_status start(qn_scope *s, qn_array *const *targets, int n, bool async)
{
    if (s->pending && finish(s) != QN_OK)
        return s->error.code;
    uint64_t begun = now_ns();
    qn__live *live = &s->live;
    if (!qn__live_collect(s, targets, n, live))
        return s->error.code;
    bool made;
    qn__binding *binding = qn__plan_lookup(s, live, &made);
    if (!binding)
        return s->error.code;
    qn__submission *sub = new_submission(binding);
    if (!sub) {
        qn__binding_release(binding);
        qn__scope_fail(s, QN_MEMORY, "out of memory while submitting");
        return s->error.code;
    }
    sub->cancel = s->cancel;
    sub->async = async;
    if (!fill_slots(s, sub, live)) {
        qn__submission_release(sub);
        return s->error.code;
    }
    count(s->device, binding, now_ns() - begun, !made);
    s->pending = sub;
    if (s->device->ops->submit(s->device, sub, &s->error) != QN_OK) {
        qn__submission_invalidate(sub);
        s->pending = NULL;
        qn__submission_release(sub);
        return s->error.code;
    }
    give_results(sub, live);
    return QN_OK;
}

static qn_status evaluate(qn_scope *s, qn_array *const *arrays, int n, bool async)
{
    if (!s)
        return QN_MEMORY;
    qn_array *few[16], **targets = few;
    if (n > 16 && !(targets = qn__scope_alloc(s, (size_t)n * sizeof *targets)))
        return s->error.code;
    int n_targets = 0;
    for (int i = 0; i < n; i++) {
        qn_array *a = qn__input(s, arrays[i], "eval");
        if (!a)
            return s->error.code;
        if (!a->base->buffer && !(a->base->flags & QN__TARGET)) {
            a->base->flags |= QN__TARGET;
            targets[n_targets++] = a->base;
        }
    }
    qn_status status = n_targets ? start(s, targets, n_targets, async) : s->error.code;
    for (int i = 0; i < n_targets; i++)
        targets[i]->flags &= (uint8_t)~QN__TARGET;
    return status;
}

qn_status qn_eval_async(qn_scope *s, qn_array *const *arrays, int n)
{
    return evaluate(s, arrays, n, true);
}

qn_status qn_eval_many(qn_scope *s, qn_array *const *arrays, int n)
{
    qn_status status = evaluate(s, arrays, n, false);
    return status == QN_OK ? qn_wait(s) : status;
}

qn_status qn_eval(qn_scope *s, qn_array *a)
{
    return qn_eval_many(s, &a, 1);
}

qn_status qn_wait(qn_scope *s)
{
    return s ? finish(s) : QN_MEMORY;
}
