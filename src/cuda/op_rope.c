/* SPDX-License-Identifier: Apache-2.0
 *
 * Rope. Of few rows, and of many that are turned by vectors, keys are turned on their way to the
 * cache: queries, keys and values are one launch.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

enum { FEW_ROWS = 64, HEADS = 4, MOST_HEADS = 8, MOST_BLOCKS = 1 << 20 };

/* Whether an operand's rows are read or written in vectors of 16 bytes. */
static bool has_vectors(const qn__operand *o)
{
    return o->offset % 16 == 0 && o->stride[3] == 1 &&
           (o->stride[0] | o->stride[1] | o->stride[2]) % 4 == 0;
}

static qn__cuda_rope_part rope_part(const qn__call *call)
{
    const qn__operand *x = &call->operand[0], *offset = &call->operand[1], *y = &call->operand[3];
    qn__cuda_rope_part part = {
        .half = call->operand[2].shape[0],
        .traditional = ((const qn__rope_params *)call->params)->traditional,
        .row_offset = offset->ndim == 2,
        .batch_offset = offset->ndim == 2 ? offset->shape[1] : qn__cuda_elements(offset) > 1,
        .each = x->shape[0] * x->shape[2] > FEW_ROWS && x->shape[1] % HEADS == 0 ? HEADS : 1};
    part.quads = x->dtype == QN_F32 && x->shape[0] * x->shape[2] > FEW_ROWS && !part.traditional &&
                 part.half % 4 == 0 && part.half * 2 == x->shape[3] && has_vectors(x) &&
                 has_vectors(y) && call->operand[2].offset % 16 == 0 &&
                 qn__cuda_elements(x) <= INT32_MAX;
    if (part.quads && x->shape[1] % MOST_HEADS == 0)
        part.each = MOST_HEADS;
    memcpy(part.shape, x->shape, sizeof part.shape);
    memcpy(part.x_stride, x->stride, sizeof part.x_stride);
    memcpy(part.y_stride, y->stride, sizeof part.y_stride);
    return part;
}

/* A thread has one pair, or four, or one of the elements that do not rotate; of many rows, that of
 * some heads. Keys are turned in the launch that turns queries. */
static bool launch_rope(qn__cuda_binder *b, const qn__call *call)
{
    qn__cuda_rope_part part = rope_part(call);
    bool wide = call->operand[0].dtype == QN_F64,
         early = qn__cuda_is_fixed(b, &call->operand[1]) && qn__cuda_is_fixed(b, &call->operand[2]);
    int64_t work = part.shape[0] * part.shape[1] / part.each * part.shape[2] *
                   (part.quads ? part.half / 4 : part.shape[3] - part.half),
            blocks = qn__cuda_parts(work, QN__CUDA_THREADS);
    qn__cuda_grid grid = {blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, QN__CUDA_THREADS, 0};
    qn__cuda_rope_args *first = qn__cuda_beside(b, QN__CUDA_KERNEL_rope, call, 4);
    if (first && first->wide == wide) {
        first->part[1] = part;
        first->early = first->early && early;
        qn__cuda_put_beside(b, call, 4, (unsigned)grid.blocks);
        return true;
    }
    qn__cuda_rope_args args = {.part = {part}, .blocks = grid.blocks, .wide = wide, .early = early};
    const uint8_t none = QN__CUDA_NONE, operands[] = {0, 1, 2, 3, none, none, none, none};
    return qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_rope], &grid, &args, sizeof args,
                             call, 8, operands);
}

const qn__cuda_routine qn__cuda_rope = {QN__OP_ROPE, NULL, launch_rope, -1};

/* ---- turning on the way to the cache --------------------------------------------------------- */

/* Among the addresses of turn_and_write. */
enum { QUERIES = 0, KEYS = 4, VALUES = 9, TURN_AT = 12 };

static qn__cuda_launch *newest(const qn__cuda_binder *b, int kernel)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    return last && last->function == b->cuda->kernels[kernel] ? last : NULL;
}

/* The newest launch, if it is a rope of one array of few rows in f32, or of many by vectors: its
 * arguments, and where its operands begin. */
static const qn__cuda_rope_args *newest_rope(const qn__cuda_binder *b, uint32_t *first)
{
    const qn__cuda_launch *last = newest(b, QN__CUDA_KERNEL_rope);
    if (!last || b->bound->at[last->first_at + 4] != QN__CUDA_AT_NONE)
        return NULL;
    const qn__cuda_rope_args *args = (const qn__cuda_rope_args *)(b->bound->args + last->args);
    const int64_t *shape = args->part[0].shape;
    *first = b->bound->at[last->first_at];
    return !args->wide && shape[0] == 1 && (shape[2] <= FEW_ROWS || args->part[0].quads) ? args
                                                                                         : NULL;
}

static void forget_newest(qn__cuda_binding *bound)
{
    const qn__cuda_launch *last = &bound->launches[--bound->n_launches];
    bound->n_at = last->first_at;
    bound->n_args = last->args;
}

/* Whether a rope's result is what `rows` are, element by element. */
static bool is_written(const qn__cuda_rope_part *part, const qn__operand *y,
                       const qn__operand *rows)
{
    for (int i = 0; i < 4; i++)
        if (part->shape[i] != rows->shape[i] ||
            (part->shape[i] > 1 && part->y_stride[i] != rows->stride[i]))
            return false;
    return y->slot == rows->slot && y->offset == rows->offset;
}

static bool turn_keys(qn__cuda_binder *b, const qn__call *call, const qn__cuda_write_part *write)
{
    const qn__operand *operands = b->binding->operands;
    uint32_t keys, queries;
    const qn__cuda_rope_args *rope = newest_rope(b, &keys);
    if (!rope || !is_written(&rope->part[0], &operands[keys + 3], &call->operand[1]) ||
        operands[keys + 3].slot != b->binding->plan->n_inputs + b->binding->plan->n_outputs ||
        qn__cuda_is_read_behind(b, call, &operands[keys + 3]))
        return false;
    qn__cuda_turn_args args = {.rope = {{.half = 0}, rope->part[0]},
                               .write = {*write},
                               .blocks = {0, rope->blocks},
                               .early = rope->early && qn__cuda_is_fixed(b, &call->operand[2])};
    if (rope->part[0].quads) /* a thread has one head: they lie apart */
        args.blocks[1] *= rope->part[0].each;
    forget_newest(b->bound);
    rope = newest_rope(b, &queries);
    if (rope && !qn__cuda_overlap(&operands[queries + 3], &operands[keys])) {
        args.rope[0] = rope->part[0];
        args.blocks[0] = rope->blocks;
        args.early = args.early && rope->early;
        forget_newest(b->bound);
    }
    uint8_t at[TURN_AT];
    memset(at, QN__CUDA_NONE, sizeof at);
    qn__cuda_grid grid = {args.blocks[0] + args.blocks[1], QN__CUDA_THREADS, 0};
    if (!qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_turn_and_write], &grid, &args,
                           sizeof args, call, TURN_AT, at))
        return false;
    uint32_t *to = b->bound->at + b->bound->launches[b->bound->n_launches - 1].first_at;
    for (uint32_t i = 0; i < 4; i++)
        to[QUERIES + i] = args.blocks[0] ? queries + i : QN__CUDA_AT_NONE;
    for (uint32_t i = 0; i < 3; i++)
        to[KEYS + i] = keys + i;
    to[KEYS + 3] = call->first_operand + 2;
    to[KEYS + 4] = call->first_operand + 3;
    return true;
}

/* Values join the launch that has turned their keys. */
static bool join_values(qn__cuda_binder *b, const qn__call *call, const qn__cuda_write_part *write,
                        int64_t blocks)
{
    qn__cuda_launch *last = newest(b, QN__CUDA_KERNEL_turn_and_write);
    uint32_t *at = last ? b->bound->at + last->first_at : NULL;
    if (!last || at[VALUES] != QN__CUDA_AT_NONE)
        return false;
    for (int i = 0; i < VALUES; i++)
        for (uint32_t k = 1; at[i] != QN__CUDA_AT_NONE && k < 4; k++) {
            bool written = i == QUERIES + 3 || i == KEYS + 4 || k == 3;
            if (written && qn__cuda_overlap(&b->binding->operands[at[i]], &call->operand[k]))
                return false;
        }
    ((qn__cuda_turn_args *)(b->bound->args + last->args))->write[1] = *write;
    last->blocks += (unsigned)blocks;
    for (uint32_t i = 0; i < 3; i++)
        at[VALUES + i] = call->first_operand + 1 + i;
    return true;
}

bool qn__cuda_turn_and_write(qn__cuda_binder *b, const qn__call *call,
                             const qn__cuda_write_part *write, int64_t blocks)
{
    return write->keys ? turn_keys(b, call, write) : join_values(b, call, write, blocks);
}

/* ---- attention that turns its row ------------------------------------------------------------ */

static bool is_row(const qn__cuda_rope_part *part)
{
    return part->shape[0] == 1 && part->shape[2] == 1 && 2 * part->half == part->shape[3] &&
           !part->traditional && part->x_stride[3] == 1;
}

/* Whether blocks that are done may write y, while others still read what is to be turned: queries
 * of other heads, which lie elsewhere if y lies where the queries do. */
static bool may_write(const qn__cuda_binder *b, const qn__operand *y,
                      const qn__cuda_turn_args *args, const uint32_t *at)
{
    const qn__operand *operands = b->binding->operands, *q = &operands[at[QUERIES]];
    return (!qn__cuda_overlap(y, q) || (y->slot == q->slot && y->offset == q->offset &&
                                        y->stride[1] == args->rope[0].x_stride[1])) &&
           !qn__cuda_overlap(y, &operands[at[KEYS]]) && !qn__cuda_overlap(y, &operands[at[VALUES]]);
}

/* Whether what the newest launch turned and wrote is what attention reads: call's queries, and the
 * caches it has. */
static bool turns_for(const qn__cuda_binder *b, const qn__call *call,
                      const qn__cuda_turn_args *args, const uint32_t *at)
{
    const qn__operand *operands = b->binding->operands, *q = &operands[at[QUERIES + 3]];
    const qn__cuda_write_part *keys = &args->write[0], *values = &args->write[1];
    return args->early && args->blocks[0] && is_row(&args->rope[0]) && is_row(&args->rope[1]) &&
           qn__cuda_same_place(&operands[at[QUERIES + 1]], &operands[at[KEYS + 1]]) &&
           qn__cuda_same_place(&operands[at[QUERIES + 2]], &operands[at[KEYS + 2]]) &&
           qn__cuda_same_place(&operands[at[KEYS + 3]], &operands[at[VALUES + 1]]) &&
           qn__cuda_same_place(&operands[at[KEYS + 4]], &call->operand[1]) &&
           qn__cuda_same_place(&operands[at[VALUES + 2]], &call->operand[2]) && keys->half &&
           values->half && values->stride[3] == 1 && values->shape[2] == 1 &&
           keys->page == call->operand[1].stride[0] && keys->head == call->operand[1].stride[1] &&
           values->page == call->operand[2].stride[0] &&
           values->head == call->operand[2].stride[1] &&
           is_written(&args->rope[0], q, &call->operand[0]) &&
           may_write(b, &call->operand[call->n_operands - 1], args, at) &&
           q->slot == b->binding->plan->n_inputs + b->binding->plan->n_outputs &&
           !qn__cuda_is_read_behind(b, call, q);
}

bool qn__cuda_take_turn(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_turn_args *to,
                        uint32_t *addresses)
{
    const qn__cuda_launch *last = newest(b, QN__CUDA_KERNEL_turn_and_write);
    if (!last || b->bound->at[last->first_at + VALUES] == QN__CUDA_AT_NONE ||
        b->bound->at[last->first_at + QUERIES] == QN__CUDA_AT_NONE)
        return false;
    const uint32_t *at = b->bound->at + last->first_at;
    const qn__cuda_turn_args *args = (const qn__cuda_turn_args *)(b->bound->args + last->args);
    if (!turns_for(b, call, args, at))
        return false;
    to->query_head = args->rope[0].x_stride[1];
    to->key_head = args->rope[1].x_stride[1];
    to->value_head = args->write[1].stride[1];
    const uint32_t own[] = {at[QUERIES], at[QUERIES + 1], at[QUERIES + 2],
                            at[KEYS],    at[VALUES],      at[VALUES + 1]};
    memcpy(addresses, own, sizeof own);
    forget_newest(b->bound);
    return true;
}
