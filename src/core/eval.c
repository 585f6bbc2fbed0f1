/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation: collect what the targets need, find its plan, give every slot a pointer, submit.
 *
 * A submission owns references to its binding and to every buffer it touches, so that ending the
 * scope does not disturb it. Results get their buffers at submission: a scope may go on recording
 * with them while they are computed, and submit what reads them: a device runs in order. A run
 * whose input is the result of one that failed fails, too.
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
    if (!submission || atomic_fetch_sub_explicit(&submission->refs, 1, memory_order_acq_rel) != 1)
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
        qn__buffer *buffer = qn__buffer_new(s->device, sub->binding->output_bytes[i], &s->error);
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
        if (plan->storage[i].place == QN__ALIAS && live->node[i]->base == live->node[i]) {
            uint32_t owner = plan->storage[i].slot;
            if (plan->storage[owner].place == QN__SLOT_INPUT)
                live->node[owner]->flags |= QN__SPENT;
        }
}

qn_status qn__submission_begin(qn__submission *sub, qn_error *err)
{
    const qn__binding *binding = sub->binding;
    if (sub->cancel && atomic_load_explicit(sub->cancel, memory_order_relaxed))
        return qn__fail(err, QN_CANCELLED, "cancelled");
    for (uint32_t i = 0; i < binding->plan->n_inputs; i++)
        if (atomic_load(&sub->held[i]->invalid))
            return qn__fail(err, QN_STATE,
                            "an input should have been computed or updated by a run that failed");
    void **workspace = &sub->slots[sub->n_slots - 1];
    *workspace = qn__pool_workspace(binding->plan->device, binding->workspace, err);
    if (!*workspace)
        return err && err->code != QN_OK ? err->code : QN_MEMORY;
    sub->began = true;
    return QN_OK;
}

/* Marks what a run that failed should have written. A donated input that it has not begun to
 * overwrite is as it was, and its scope still has it as such unless the submission had returned
 * before. Who lent a buffer answers for what has been written. */
static void invalidate(const qn__submission *sub)
{
    const qn__plan *plan = sub->binding->plan;
    for (uint32_t i = 0; i < plan->n_targets; i++) {
        uint32_t slot = plan->output_slots[i];
        bool unharmed = slot < plan->n_inputs && !sub->began && !sub->async;
        if (!unharmed && !atomic_load_explicit(&sub->held[slot]->lent, memory_order_relaxed))
            atomic_store(&sub->held[slot]->invalid, true);
    }
}

void qn__submission_end(qn__submission *sub, qn_status status)
{
    if (sub->ended)
        return;
    sub->ended = true;
    sub->status = status;
    if (status != QN_OK)
        invalidate(sub);
    qn__pool_workspace_done(sub->binding->plan->device);
    atomic_store_explicit(&sub->done, true, memory_order_release);
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
    stats->launches += binding->launches ? binding->launches : plan->n_steps;
    stats->fused += plan->n_fused;
    stats->chain_bytes += binding->chain_bytes;
    stats->donation_copies += plan->n_copies;
    if (hit)
        stats->hit_ns += ns;
    pthread_mutex_unlock(&cache->lock);
}

/* Takes the oldest submission of the scope off its list once it has run; its failure is the
 * scope's. */
static void settle_oldest(qn_scope *s)
{
    qn__submission *sub = s->pending;
    s->pending = sub->later;
    if (!s->pending)
        s->newest_pending = NULL;
    qn_error error = {0};
    if (s->device->ops->wait(s->device, sub, &error) != QN_OK)
        qn__scope_fail(s, error.code, "%s", error.message);
    qn__submission_release(sub);
}

static qn_status finish(qn_scope *s)
{
    while (s->pending)
        settle_oldest(s);
    return s->error.code;
}

static void settle_done(qn_scope *s)
{
    while (s->pending && atomic_load_explicit(&s->pending->done, memory_order_acquire))
        settle_oldest(s);
}

static void count_submitting(qn_device *device, uint64_t ns)
{
    qn__plan_cache *cache = &device->plans;
    pthread_mutex_lock(&cache->lock);
    cache->stats.submit_ns += ns;
    pthread_mutex_unlock(&cache->lock);
}

/* Hands the submission to the device; the scope keeps it until it is known how the run ended. */
static qn_status submit(qn_scope *s, qn__submission *sub, const qn__live *live)
{
    uint64_t begun = now_ns();
    qn_status status = s->device->ops->submit(s->device, sub, &s->error);
    count_submitting(s->device, now_ns() - begun);
    if (status != QN_OK) {
        qn__submission_end(sub, status);
        qn__submission_release(sub);
        return status;
    }
    give_results(sub, live);
    *(s->newest_pending ? &s->newest_pending->later : &s->pending) = sub;
    s->newest_pending = sub;
    return QN_OK;
}

/* Submits one run of a binding on what the live nodes have; takes over the reference. */
static qn_status run_binding(qn_scope *s, qn__binding *binding, bool async, uint64_t begun,
                             bool hit)
{
    qn__submission *sub = new_submission(binding);
    if (!sub) {
        qn__binding_release(binding);
        qn__scope_fail(s, QN_MEMORY, "out of memory while submitting");
        return s->error.code;
    }
    sub->cancel = s->cancel;
    sub->async = async;
    if (!qn__pool_workspace_reserve(s->device, binding->workspace, &s->error)) {
        qn__submission_release(sub);
        return s->error.code;
    }
    if (!fill_slots(s, sub, &s->live)) {
        qn__pool_workspace_done(s->device);
        qn__submission_release(sub);
        return s->error.code;
    }
    count(s->device, binding, now_ns() - begun, hit);
    return submit(s, sub, &s->live);
}

/* Plans and submits targets that have no buffer yet. *kept, where asked for, is a reference. */
static qn_status start(qn_scope *s, qn_array *const *targets, int n, bool async, qn__binding **kept)
{
    settle_done(s);
    if (s->error.code != QN_OK)
        return s->error.code;
    uint64_t begun = now_ns();
    if (!qn__live_collect(s, targets, n, &s->live))
        return s->error.code;
    bool made;
    qn__binding *binding = qn__plan_lookup(s, &s->live, &made);
    if (!binding)
        return s->error.code;
    if (kept) {
        *kept = binding;
        atomic_fetch_add(&binding->refs, 1);
    }
    return run_binding(s, binding, async, begun, !made);
}

static qn_status evaluate(qn_scope *s, qn_array *const *arrays, int n, bool async,
                          qn__binding **kept)
{
    if (!s)
        return QN_MEMORY;
    if (s->is_compiled)
        qn__scope_fail(s, QN_INVALID, "compile: the function evaluates or reads an array");
    qn_array *few[32], **targets = few;
    if (n > 16 && !(targets = qn__scope_alloc(s, 2 * (size_t)n * sizeof *targets)))
        return s->error.code;
    qn_array **leaves = targets + (n > 16 ? n : 16);
    int n_targets = 0, n_leaves = 0;
    qn_status status = QN_OK;
    for (int i = 0; status == QN_OK && i < n; i++) {
        qn_array *a = qn__input(s, arrays[i], "eval");
        if (!a) {
            status = s->error.code;
            break;
        }
        if (a->base->flags & (QN__TARGET | QN__KEPT))
            continue;
        a->base->flags |= a->base->buffer ? QN__KEPT : QN__TARGET;
        if (a->base->buffer)
            leaves[n_leaves++] = a->base;
        else
            targets[n_targets++] = a->base;
    }
    if (status == QN_OK)
        status = n_targets ? start(s, targets, n_targets, async, kept) : s->error.code;
    for (int i = 0; i < n_targets; i++)
        targets[i]->flags &= (uint8_t)~QN__TARGET;
    for (int i = 0; i < n_leaves; i++)
        leaves[i]->flags &= (uint8_t)~QN__KEPT;
    return status;
}

qn_status qn_eval_async(qn_scope *s, qn_array *const *arrays, int n)
{
    return evaluate(s, arrays, n, true, NULL);
}

qn_status qn_eval_many(qn_scope *s, qn_array *const *arrays, int n)
{
    return qn__eval_first(s, arrays, n, NULL);
}

qn_status qn__eval_first(qn_scope *s, qn_array *const *arrays, int n, qn__binding **binding)
{
    qn_status status = evaluate(s, arrays, n, false, binding);
    return status == QN_OK ? qn_wait(s) : status;
}

qn_status qn__eval_again(qn_scope *s, qn__binding *binding)
{
    atomic_fetch_add(&binding->refs, 1);
    qn_status status = run_binding(s, binding, false, now_ns(), true);
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
