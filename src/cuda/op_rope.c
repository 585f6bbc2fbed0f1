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

const qn__cuda_routine qn__cuda_rope = {QN__OP_ROPE, NULL, launch_rope, 0};

/* ---- turning on the way to the cache --------------------------------------------------------- */

/* Among the addresses of turn_and_write. */
enum { QUERIES = 0, KEYS = 4, VALUES = 9, TURN_AT = 12 };

static qn__cuda_launch *newest(const qn__cuda_binder *b, int kernel)
{
    qn__cuda_binding *bound = b->bound;
    qn__cuda_launch *last = bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    return last && last->function == b->cuda->kernels[kernel] ? last : NULL;
}

/* A rope of an array of few rows in f32, or of many by vectors: its blocks, and where its operands
 * begin. */
typedef struct newest_rope {
    qn__cuda_rope_part part;
    int64_t blocks;
    uint32_t first;
} newest_rope;

/* What the newest launch turns, if it is such a rope: one array or two; 0: it is none. */
static int find_ropes(const qn__cuda_binder *b, newest_rope ropes[2], bool *early)
{
    const qn__cuda_launch *last = newest(b, QN__CUDA_KERNEL_rope);
    if (!last)
        return 0;
    const qn__cuda_rope_args *args = (const qn__cuda_rope_args *)(b->bound->args + last->args);
    const uint32_t *at = b->bound->at + last->first_at;
    const int n = at[4] == QN__CUDA_AT_NONE ? 1 : 2;
    *early = args->early;
    for (int i = 0; i < n; i++) {
        const int64_t *shape = args->part[i].shape;
        if (args->wide || shape[0] != 1 || (shape[2] > FEW_ROWS && !args->part[i].quads))
            return 0;
        ropes[i] =
            (newest_rope){args->part[i], i ? last->blocks - args->blocks : args->blocks, at[4 * i]};
    }
    return n;
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

/* Keys and, from the same launch or the one before, queries. */
static bool turn_keys(qn__cuda_binder *b, const qn__call *call, const qn__cuda_write_part *write)
{
    const qn__operand *operands = b->binding->operands;
    newest_rope ropes[2], keys, queries;
    bool early, both = false;
    int n = find_ropes(b, ropes, &early), i = n - 1;
    while (i >= 0 && !is_written(&ropes[i].part, &operands[ropes[i].first + 3], &call->operand[1]))
        i--;
    if (i < 0)
        return false;
    keys = ropes[i];
    if (operands[keys.first + 3].slot != b->binding->plan->n_inputs + b->binding->plan->n_outputs ||
        qn__cuda_is_read_behind(b, call, &operands[keys.first + 3]))
        return false;
    qn__cuda_turn_args args = {.rope = {{.half = 0}, keys.part},
                               .write = {*write},
                               .blocks = {0, keys.blocks},
                               .early = early && qn__cuda_is_fixed(b, &call->operand[2])};
    if (keys.part.quads) /* a thread has one head: they lie apart */
        args.blocks[1] *= keys.part.each;
    qn__cuda_forget_newest(b->bound);
    if (n == 2) {
        queries = ropes[1 - i];
        both = true;
    } else if (find_ropes(b, ropes, &early) == 1 &&
               !qn__cuda_overlap(&operands[ropes[0].first + 3], &operands[keys.first])) {
        queries = ropes[0];
        both = true;
        args.early = args.early && early;
        qn__cuda_forget_newest(b->bound);
    }
    if (both) {
        args.rope[0] = queries.part;
        args.blocks[0] = queries.blocks;
    }
    uint8_t at[TURN_AT];
    memset(at, QN__CUDA_NONE, sizeof at);
    qn__cuda_grid grid = {args.blocks[0] + args.blocks[1], QN__CUDA_THREADS, 0};
    if (!qn__cuda_add_grid(b, b->cuda->kernels[QN__CUDA_KERNEL_turn_and_write], &grid, &args,
                           sizeof args, call, TURN_AT, at))
        return false;
    uint32_t *to = b->bound->at + b->bound->launches[b->bound->n_launches - 1].first_at;
    for (uint32_t k = 0; both && k < 4; k++)
        to[QUERIES + k] = queries.first + k;
    for (uint32_t k = 0; k < 3; k++)
        to[KEYS + k] = keys.first + k;
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

/* Where attention's launch finds what it turns: some of its addresses, which are operands, from
 * QN__CUDA_TURN_QUERIES on. */
enum {
    OWN_QUERIES = 0,
    OWN_KEYS = QN__CUDA_TURN_KEYS - QN__CUDA_TURN_QUERIES,
    OWN_VALUES = QN__CUDA_TURN_VALUES - QN__CUDA_TURN_QUERIES,
    OWN_NORMS = QN__CUDA_TURN_QUERY_NORM - QN__CUDA_TURN_QUERIES, /* of queries, of keys */
    OWN = QN__CUDA_ATTEND_AT - QN__CUDA_TURN_QUERIES
};

/* Whether blocks that are done may write y, while others still read what is to be turned: queries
 * of other heads, which lie elsewhere if y lies where the queries do. */
static bool may_write(const qn__cuda_binder *b, const qn__operand *y, const uint32_t own[OWN],
                      int64_t query_head)
{
    const qn__operand *operands = b->binding->operands, *q = &operands[own[OWN_QUERIES]];
    return (!qn__cuda_overlap(y, q) ||
            (y->slot == q->slot && y->offset == q->offset && y->stride[1] == query_head)) &&
           !qn__cuda_overlap(y, &operands[own[OWN_KEYS]]) &&
           !qn__cuda_overlap(y, &operands[own[OWN_VALUES]]);
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
           q->slot == b->binding->plan->n_inputs + b->binding->plan->n_outputs &&
           !qn__cuda_is_read_behind(b, call, q);
}

/* Whether a launch makes norms of queries and keys, each of a head, for what is turned alone: then
 * attention's can make them, of the rows and with the weights that `own` gets. */
static bool find_norms(const qn__cuda_binder *b, const qn__call *call,
                       const qn__cuda_launch *launch, const qn__cuda_attend_turn_args *to,
                       uint32_t own[OWN])
{
    const int64_t d = call->operand[0].shape[3];
    if (launch->function != b->cuda->kernels[QN__CUDA_KERNEL_rms_norm_pair] ||
        (d != QN__CUDA_WIDEST_HALF && d != QN__CUDA_WIDEST))
        return false;
    const qn__operand *operands = b->binding->operands;
    const qn__cuda_norm_args *args = (const qn__cuda_norm_args *)(b->bound->args + launch->args);
    const uint32_t *at = b->bound->at + launch->first_at;
    const bool exchanged = !qn__cuda_same_place(&operands[at[2]], &operands[own[OWN_QUERIES]]);
    const uint32_t *norms[] = {at + (exchanged ? QN__CUDA_NORM_BESIDE : 0),
                               at + (exchanged ? 0 : QN__CUDA_NORM_BESIDE)},
                   turned[] = {own[OWN_QUERIES], own[OWN_KEYS]};
    if (args->n != d || !args->early || to->query_head != d || to->key_head != d)
        return false;
    for (int i = 0; i < 2; i++) {
        const qn__operand *y = &operands[norms[i][2]];
        if (!qn__cuda_same_place(y, &operands[turned[i]]) ||
            y->slot != b->binding->plan->n_inputs + b->binding->plan->n_outputs ||
            qn__cuda_is_read_behind(b, call, y))
            return false;
    }
    own[OWN_QUERIES] = norms[0][0];
    own[OWN_KEYS] = norms[1][0];
    own[OWN_NORMS] = norms[0][1];
    own[OWN_NORMS + 1] = norms[1][1];
    return true;
}

/* Whether rows of heads that lie so far apart are read in vectors of 16 bytes. */
static bool in_vectors(const qn__operand *x, int64_t head)
{
    return x->offset % 16 == 0 && head % 4 == 0;
}

bool qn__cuda_take_turn(qn__cuda_binder *b, const qn__call *call, qn__cuda_attend_turn_args *to,
                        uint32_t *addresses, bool *moves)
{
    const qn__cuda_launch *last = newest(b, QN__CUDA_KERNEL_turn_and_write);
    if (!last || b->bound->at[last->first_at + VALUES] == QN__CUDA_AT_NONE ||
        b->bound->at[last->first_at + QUERIES] == QN__CUDA_AT_NONE)
        return false;
    const uint32_t *at = b->bound->at + last->first_at;
    const qn__cuda_turn_args *args = (const qn__cuda_turn_args *)(b->bound->args + last->args);
    const qn__operand *y = &call->operand[call->n_operands - 1];
    if (!turns_for(b, call, args, at))
        return false;
    to->query_head = args->rope[0].x_stride[1];
    to->key_head = args->rope[1].x_stride[1];
    to->value_head = args->write[1].stride[1];
    const uint32_t own[OWN] = {at[QUERIES], at[QUERIES + 1], at[QUERIES + 2],  at[KEYS],
                               at[VALUES],  at[VALUES + 1],  QN__CUDA_AT_NONE, QN__CUDA_AT_NONE};
    memcpy(addresses, own, sizeof own);
    const bool norms = b->bound->n_launches > 1 && find_norms(b, call, last - 1, to, addresses);
    const qn__operand *operands = b->binding->operands;
    if (!in_vectors(&operands[addresses[OWN_QUERIES]], to->query_head) ||
        !in_vectors(&operands[addresses[OWN_KEYS]], to->key_head) ||
        !in_vectors(&operands[addresses[OWN_VALUES]], to->value_head))
        return false;
    *moves = !may_write(b, y, addresses, to->query_head);
    if (*moves && !qn__cuda_may_move(b, call, y))
        return false;
    if (norms) {
        to->norm_eps = (float)((const qn__cuda_norm_args *)(b->bound->args + last[-1].args))->eps;
        qn__cuda_forget_newest(b->bound);
    }
    qn__cuda_forget_newest(b->bound);
    return true;
}
