/* SPDX-License-Identifier: Apache-2.0
 *
 * Bindings: a plan's steps with the exact sizes of one evaluation filled in.
 */
#include "base/error.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/scope.h"

#include <stdlib.h>

/* Where a live node's bytes begin. */
static void locate(const qn__plan *plan, const size_t *offsets, uint32_t node, uint32_t *slot,
                   size_t *offset)
{
    if (plan->storage[node].place == QN__ALIAS)
        node = plan->storage[node].slot;
    bool inside = plan->storage[node].place == QN__WORKSPACE;
    *slot = inside ? plan->n_inputs + plan->n_outputs : plan->storage[node].slot;
    *offset = inside ? offsets[node] : 0;
}

static void fill_operand(const qn__plan *plan, const size_t *offsets, const qn_array *a,
                         qn__operand *o)
{
    size_t start;
    locate(plan, offsets, a->index, &o->slot, &start);
    o->dtype = a->dtype;
    o->ndim = a->ndim;
    o->layout = a->layout;
    o->offset = start;
    if (a->layout == 0)
        o->offset += (size_t)a->offset * qn__dtype_size((qn_dtype)a->dtype);
    memcpy(o->shape, a->shape, sizeof o->shape);
    memcpy(o->stride, a->stride, sizeof o->stride);
}

/* Gives an operand of an elementwise pass the output's shape: stride 0 where it is broadcast. */
static void broadcast_operand(qn__operand *o, const qn_array *out)
{
    int lead = out->ndim - o->ndim;
    int64_t stride[QN_MAX_NDIM] = {0};
    for (int i = 0; i < o->ndim; i++)
        stride[lead + i] = o->shape[i] == 1 ? 0 : o->stride[i];
    o->ndim = out->ndim;
    memcpy(o->shape, out->shape, sizeof o->shape);
    memcpy(o->stride, stride, sizeof o->stride);
}

static uint64_t pass_bytes(const qn__call *call, const qn__live *live, const qn__plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < call->n_operands; i++) {
        const qn_array *a = live->node[plan->operands[call->first_operand + i]];
        bytes += (uint64_t)qn__elements(a) * qn__dtype_size((qn_dtype)a->dtype);
    }
    return bytes;
}

static void fill_call(qn__binding *b, const qn__step *step, const size_t *offsets,
                      const qn__live *live, qn__call *call)
{
    const qn__plan *plan = b->plan;
    const qn_array *out = live->node[step->node];
    qn__operand *operands = b->operands + step->first_operand;
    call->routine = step->routine;
    call->params = step->params;
    call->program = step->program;
    call->constants = b->constants + step->first_constant;
    call->operand = operands;
    call->n_operands = step->n_operands;
    call->first_operand = step->first_operand;
    call->op = out->op;
    call->copy = step->copy;
    for (uint32_t i = 0; i < step->n_operands; i++) {
        fill_operand(plan, offsets, live->node[plan->operands[step->first_operand + i]],
                     &operands[i]);
        if (step->program)
            broadcast_operand(&operands[i], out);
    }
    if (step->program)
        b->chain_bytes += pass_bytes(call, live, plan);
}

/* A binding with its tables, still empty. */
static qn__binding *new_binding(qn__plan *plan, const qn__live *live)
{
    size_t bytes = sizeof(qn__binding) + live->n_sizes * sizeof(int64_t) +
                   plan->n_steps * sizeof(qn__call) + plan->n_operands * sizeof(qn__operand) +
                   plan->n_constants * sizeof(double) + plan->n_outputs * sizeof(size_t);
    qn__binding *b = calloc(1, bytes);
    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    b->plan = plan;
    atomic_fetch_add(&plan->refs, 1);
    b->bytes = bytes;
    b->sizes = (int64_t *)(b + 1);
    b->n_sizes = live->n_sizes;
    memcpy(b->sizes, live->sizes, live->n_sizes * sizeof *b->sizes);
    b->calls = (qn__call *)(b->sizes + b->n_sizes);
    b->operands = (qn__operand *)(b->calls + plan->n_steps);
    b->constants = (double *)(b->operands + plan->n_operands);
    b->output_bytes = (size_t *)(b->constants + plan->n_constants);
    return b;
}

static bool fill_binding(qn__binding *b, const qn__live *live)
{
    const qn__plan *plan = b->plan;
    size_t *offsets = malloc(((size_t)live->n + 1) * sizeof *offsets);
    if (!offsets || !qn__plan_layout(plan, live, offsets, &b->values)) {
        free(offsets);
        return false;
    }
    b->workspace = b->values;
    for (uint32_t i = 0; i < plan->n_constants; i++) {
        const qn_array *a = live->node[plan->constants[i]];
        b->constants[i] = qn__def(a)->number(a->params);
    }
    for (uint32_t i = 0; i < plan->n_steps; i++)
        fill_call(b, &plan->steps[i], offsets, live, &b->calls[i]);
    for (uint32_t i = 0; i < plan->n_targets; i++)
        if (plan->output_slots[i] >= plan->n_inputs)
            b->output_bytes[plan->output_slots[i] - plan->n_inputs] =
                qn__storage_bytes(live->node[plan->outputs[i]]);
    free(offsets);
    return true;
}

qn__binding *qn__binding_make(qn_scope *s, qn__plan *plan, const qn__live *live)
{
    qn__binding *b = new_binding(plan, live);
    if (!b || !fill_binding(b, live)) {
        qn__scope_fail(s, QN_MEMORY, "out of memory while binding a plan");
        qn__binding_release(b);
        return NULL;
    }
    if (s->device->ops->bind(s->device, plan, b, &s->error) != QN_OK) {
        qn__binding_release(b);
        return NULL;
    }
    return b;
}

void qn__binding_release(qn__binding *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
        return;
    qn_device *device = b->plan->device;
    device->ops->drop(device, b);
    qn__plan_release(b->plan);
    free(b);
}
