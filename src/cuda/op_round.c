/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches that do a part of what follows. x of linear layers on weights in bf16 or f16 is rounded:
 * norms, chains and attention write their result so, too, when they are asked; what then nobody
 * reads as f32 they do not write. And two calls of one kernel that know nothing of each other are
 * one launch.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

#include <assert.h>
#include <string.h>

enum { TURN = 32 /* columns */ };

void qn__cuda_may_round(qn__cuda_binder *b, uint8_t y_at, uint8_t rounded_at, size_t turned,
                        qn__cuda_rounds rounds)
{
    qn__cuda_launch *last = &b->bound->launches[b->bound->n_launches - 1];
    assert(y_at < last->n_at && rounded_at < last->n_at);
    last->y_at = y_at;
    last->rounded_at = rounded_at;
    last->turned = last->args + turned;
    last->rounds = (uint8_t)rounds;
}

bool qn__cuda_round_x(qn__cuda_binder *b, const qn__call *call, int64_t rows, bool turned,
                      bool always, uint8_t *place)
{
    qn__cuda_binding *bound = b->bound;
    const qn__operand *x = &call->operand[0], *operands = b->binding->operands;
    const bool half = call->operand[1].dtype == QN_F16;
    int64_t k = x->shape[x->ndim - 1], padded = turned ? qn__cuda_parts(k, TURN) * TURN : k;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    const qn__operand *y =
        last && last->rounded_at ? &operands[bound->at[last->first_at + last->y_at]] : NULL;
    bool made = y && last->rounds != (half ? QN__CUDA_ROUNDS_BF16 : QN__CUDA_ROUNDS_F16) &&
                y->slot == x->slot && y->offset == x->offset && qn__cuda_elements(y) == rows * k &&
                k == padded;
    /* what the launch reads stays until it has ended */
    bool behind = made && bound->at[last->first_at] == QN__CUDA_AT_SCRATCH;
    *place = behind ? QN__CUDA_BEHIND : made || always ? QN__CUDA_SCRATCH : 0;
    if (behind)
        qn__cuda_want_behind(b, (size_t)(rows * padded) * 2);
    else if (*place)
        qn__cuda_want_scratch(b, (size_t)(rows * padded) * 2);
    if (made) {
        const int8_t how =
            turned | (half && last->rounds == QN__CUDA_ROUNDS_EITHER ? QN__CUDA_AS_F16 : 0);
        bound->at[last->first_at + last->rounded_at] =
            behind ? QN__CUDA_AT_BEHIND : QN__CUDA_AT_SCRATCH;
        memcpy(bound->args + last->turned, &how, sizeof how);
        return true;
    }
    qn__cuda_round_args args = {.rows = rows, .columns = k, .padded = padded, .turned = turned};
    return !always ||
           qn__cuda_add(b, qn__cuda_weights_kernel(b->cuda, half, QN__CUDA_KERNEL_linear_round),
                        rows * padded / 4, false, &args, sizeof args, call, 2,
                        (const uint8_t[]){0, QN__CUDA_SCRATCH});
}

void qn__cuda_may_make_bytes(qn__cuda_binder *b, uint8_t bytes_at, size_t form)
{
    qn__cuda_launch *last = &b->bound->launches[b->bound->n_launches - 1];
    last->bytes_at = bytes_at;
    last->byte_form = last->args + form;
}

bool qn__cuda_bytes_of_x(qn__cuda_binder *b, const qn__call *call, const qn__cuda_byte_form *form)
{
    qn__cuda_binding *bound = b->bound;
    const qn__operand *x = &call->operand[0];
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!last || !last->bytes_at)
        return false;
    uint32_t *at = bound->at + last->first_at;
    const qn__operand *y = &b->binding->operands[at[last->y_at]];
    if (!qn__cuda_same_place(y, x) || qn__cuda_elements(y) != qn__cuda_elements(x) ||
        y->shape[y->ndim - 1] != x->shape[x->ndim - 1])
        return false;
    at[last->bytes_at] = QN__CUDA_AT_SCRATCH;
    memcpy(bound->args + last->byte_form, form, sizeof *form);
    return true;
}

/* ---- launches beside each other -------------------------------------------------------------- */

/* Whether the call neither reads nor writes what the newest launch writes, nor writes what that
 * reads. */
static bool is_apart(const qn__cuda_binder *b, const qn__call *call, uint32_t n_at)
{
    const qn__cuda_binding *bound = b->bound;
    const qn__cuda_launch *last = &bound->launches[bound->n_launches - 1];
    const qn__operand *operands = b->binding->operands, *y = &call->operand[call->n_operands - 1],
                      *before = &operands[bound->at[last->first_at + n_at - 1]];
    for (uint32_t i = 0; i < call->n_operands; i++)
        if (qn__cuda_overlap(&call->operand[i], before))
            return false;
    for (uint32_t i = 0; i < n_at; i++)
        if (qn__cuda_overlap(&operands[bound->at[last->first_at + i]], y))
            return false;
    return true;
}

void *qn__cuda_beside(qn__cuda_binder *b, int kernel, const qn__call *call, uint32_t n_at)
{
    qn__cuda_binding *bound = b->bound;
    const qn__cuda_launch *last =
        bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!last || last->function != b->cuda->kernels[kernel] ||
        bound->at[last->first_at + n_at] != QN__CUDA_AT_NONE || !is_apart(b, call, n_at))
        return NULL;
    return bound->args + last->args;
}

void qn__cuda_put_beside(qn__cuda_binder *b, const qn__call *call, uint32_t n_at, unsigned blocks)
{
    qn__cuda_launch *last = &b->bound->launches[b->bound->n_launches - 1];
    uint32_t first = call->first_operand + call->n_operands - n_at;
    for (uint32_t i = 0; i < n_at; i++)
        b->bound->at[last->first_at + n_at + i] = first + i;
    last->blocks += blocks;
}

/* What args.h has of such kernels. */
#define HAS_PARTS(args, n)                                                                         \
    _Static_assert(offsetof(args, part) == 2 * (n) * sizeof(void *) &&                             \
                       offsetof(args, blocks) ==                                                   \
                           offsetof(args, part) + sizeof(((args *)NULL)->part) &&                  \
                       sizeof(args) <= MOST_PART_ARGS,                                             \
                   #args)
enum { MOST_PART_ARGS = 512 };
HAS_PARTS(qn__cuda_write_args, 3);
HAS_PARTS(qn__cuda_encode_args, 3);

uint32_t *qn__cuda_add_part(qn__cuda_binder *b, int kernel, const qn__call *call,
                            const qn__cuda_grid *grid, uint32_t n_at, const void *part, size_t size)
{
    const size_t first = 2 * n_at * sizeof(void *), blocks = first + 2 * size;
    char args[MOST_PART_ARGS] = {0}, *beside = qn__cuda_beside(b, kernel, call, n_at);
    uint8_t operands[8];
    if (beside) {
        memcpy(beside + first + size, part, size);
        qn__cuda_put_beside(b, call, n_at, (unsigned)grid->blocks);
    } else {
        memcpy(args + first, part, size);
        memcpy(args + blocks, &grid->blocks, sizeof grid->blocks);
        memset(operands, QN__CUDA_NONE, sizeof operands);
        for (uint32_t i = 0; i < n_at; i++)
            operands[i] = (uint8_t)(call->n_operands - n_at + i);
        if (!qn__cuda_add_grid(b, b->cuda->kernels[kernel], grid, args,
                               blocks + sizeof grid->blocks, call, (int)(2 * n_at), operands))
            return NULL;
    }
    const qn__cuda_launch *last = &b->bound->launches[b->bound->n_launches - 1];
    return b->bound->at + last->first_at + (beside ? n_at : 0);
}

/* ---- results that nothing reads -------------------------------------------------------------- */

/* The bytes of a slot that an operand spans. */
static void span_of(const qn__operand *o, size_t *begin, size_t *end)
{
    int64_t last = 0;
    for (int i = 0; i < o->ndim; i++)
        last += (o->shape[i] - 1) * o->stride[i];
    *begin = o->offset;
    *end = o->offset + (size_t)(last + 1) * qn__dtype_size((qn_dtype)o->dtype);
}

bool qn__cuda_overlap(const qn__operand *a, const qn__operand *b)
{
    size_t begin, end, first, last;
    span_of(a, &begin, &end);
    span_of(b, &first, &last);
    return a->slot == b->slot && (a->layout || b->layout || (begin < last && first < end));
}

bool qn__cuda_is_read_behind(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y)
{
    const qn__call *end = b->binding->calls + b->binding->plan->n_steps;
    if (qn__cuda_overlap(&call->operand[call->n_operands - 1], y))
        return false;
    for (call++; call < end; call++) {
        for (uint32_t i = 0; i + 1 < call->n_operands; i++)
            if (qn__cuda_overlap(&call->operand[i], y))
                return true;
        if (qn__cuda_overlap(&call->operand[call->n_operands - 1], y))
            return false;
    }
    return false;
}

bool qn__cuda_is_spent(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y)
{
    return y->slot == b->binding->plan->n_inputs + b->binding->plan->n_outputs &&
           !qn__cuda_is_read_behind(b, call, y);
}

/* Whether a call updates its result in place: what it leaves as it was lay there before. */
static bool updates(const qn__call *call)
{
    return !call->program && !call->copy && qn__ops[call->op]->in_place;
}

bool qn__cuda_may_move(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y)
{
    const qn__call *end = b->binding->calls + b->binding->plan->n_steps;
    if (y->slot != b->binding->plan->n_inputs + b->binding->plan->n_outputs)
        return false;
    for (call++; call < end; call++) {
        for (uint32_t i = 0; i + 1 < call->n_operands; i++)
            if (qn__cuda_overlap(&call->operand[i], y) &&
                !qn__cuda_same_place(&call->operand[i], y))
                return false;
        if (qn__cuda_overlap(&call->operand[call->n_operands - 1], y))
            return !updates(call);
    }
    return true;
}

bool qn__cuda_is_for_call_alone(const qn__cuda_binder *b, const qn__call *call, int array,
                                const qn__operand *y)
{
    return qn__cuda_same_place(&call->operand[array], y) &&
           qn__cuda_elements(y) == qn__cuda_elements(&call->operand[call->n_operands - 1]) &&
           qn__cuda_is_spent(b, call, y);
}

/* Whose operand that is. */
static const qn__call *call_of(const qn__binding *binding, uint32_t operand)
{
    const qn__call *call = binding->calls;
    while (operand - call->first_operand >= call->n_operands)
        call++;
    return call;
}

bool qn__cuda_is_result(const qn__binding *binding, uint32_t operand)
{
    const qn__call *call = call_of(binding, operand);
    return operand == call->first_operand + call->n_operands - 1;
}

bool qn__cuda_launch_is_read(const qn__cuda_binder *b, uint32_t i, const qn__operand *y)
{
    const qn__cuda_binding *bound = b->bound;
    for (i++; i < bound->n_launches; i++) {
        const qn__cuda_launch *launch = &bound->launches[i];
        bool gone = false;
        for (uint32_t k = 0; k < launch->n_at; k++) {
            uint32_t at = bound->at[launch->first_at + k];
            if (at >= QN__CUDA_AT_KEPT || !qn__cuda_overlap(&b->binding->operands[at], y))
                continue;
            gone = qn__cuda_is_result(b->binding, at);
            if (!gone || updates(call_of(b->binding, at)))
                return true;
        }
        if (gone)
            return false;
    }
    return false;
}

uint32_t qn__cuda_keep(qn__cuda_binder *b, size_t bytes)
{
    enum { PIECE = 16, ALIGNED = 256 };
    const uint32_t at = QN__CUDA_AT_KEPT + (uint32_t)(b->bound->kept / PIECE);
    b->bound->kept += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return at;
}

bool qn__cuda_can_move_result(const qn__cuda_binder *b, uint32_t i, uint32_t k)
{
    const qn__cuda_binding *bound = b->bound;
    const qn__operand *operands = b->binding->operands;
    const uint32_t own = bound->at[bound->launches[i].first_at + k];
    if (own >= QN__CUDA_AT_KEPT)
        return own == QN__CUDA_AT_NONE;
    const qn__operand *y = &operands[own];
    if (y->slot != b->binding->plan->n_inputs + b->binding->plan->n_outputs)
        return false;
    for (i++; i < bound->n_launches; i++) {
        const qn__cuda_launch *launch = &bound->launches[i];
        bool gone = false;
        for (k = 0; k < launch->n_at; k++) {
            const uint32_t at = bound->at[launch->first_at + k];
            if (at >= QN__CUDA_AT_KEPT || !qn__cuda_overlap(&operands[at], y))
                continue;
            const bool result = qn__cuda_is_result(b->binding, at);
            if (result ? updates(call_of(b->binding, at)) : !qn__cuda_same_place(&operands[at], y))
                return false;
            gone = gone || result;
        }
        if (gone)
            return true;
    }
    return true;
}

void qn__cuda_move_result(qn__cuda_binder *b, uint32_t i, uint32_t k)
{
    qn__cuda_binding *bound = b->bound;
    const qn__operand *operands = b->binding->operands;
    uint32_t *result = bound->at + bound->launches[i].first_at + k;
    if (*result == QN__CUDA_AT_NONE)
        return;
    const qn__operand *y = &operands[*result];
    const uint32_t to = qn__cuda_keep(b, (size_t)qn__cuda_elements(y) * sizeof(float));
    bool gone = false;
    for (i++; i < bound->n_launches && !gone; i++) {
        const qn__cuda_launch *launch = &bound->launches[i];
        uint32_t *at = bound->at + launch->first_at;
        for (k = 0; k < launch->n_at; k++) {
            if (at[k] >= QN__CUDA_AT_KEPT || !qn__cuda_overlap(&operands[at[k]], y))
                continue;
            if (qn__cuda_is_result(b->binding, at[k]))
                gone = true;
            else
                at[k] = to;
        }
    }
    *result = to;
}

void qn__cuda_drop_unread(qn__cuda_binder *b)
{
    const qn__plan *plan = b->binding->plan;
    qn__cuda_binding *bound = b->bound;
    for (uint32_t i = 0; i < bound->n_launches; i++) {
        const qn__cuda_launch *launch = &bound->launches[i];
        uint32_t *at = bound->at + launch->first_at;
        if ((!launch->rounded_at || at[launch->rounded_at] == QN__CUDA_AT_NONE) &&
            (!launch->bytes_at || at[launch->bytes_at] == QN__CUDA_AT_NONE))
            continue;
        const qn__operand *y = &b->binding->operands[at[launch->y_at]];
        if (y->slot == plan->n_inputs + plan->n_outputs && !qn__cuda_launch_is_read(b, i, y))
            at[launch->y_at] = QN__CUDA_AT_NONE;
    }
}
