/* SPDX-License-Identifier: Apache-2.0
 *
 * Rope. Of few rows, and of many that are turned by vectors, keys are turned on their way to the
 * cache: queries, keys and values are one launch.
 */
#include "core/dtype.h"
#include "cuda/cuda.h"

enum { FEW_ROWS = 64, MOST_TURNED = 256, HEADS = 4, MOST_HEADS = 8, MOST_BLOCKS = 1 << 20 };

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

/* What a launch turns, if it is such a rope: one array or two; 0: it is none. */
static int find_ropes(const qn__cuda_binder *b, const qn__cuda_launch *last, newest_rope ropes[2],
                      bool *early)
{
    if (!last || last->function != b->cuda->kernels[QN__CUDA_KERNEL_rope])
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
    int n = find_ropes(b, newest(b, QN__CUDA_KERNEL_rope), ropes, &early), i = n - 1;
    while (i >= 0 && !is_written(&ropes[i].part, &operands[ropes[i].first + 3], &call->operand[1]))
        i--;
    if (i < 0)
        return false;
    keys = ropes[i];
    if (!qn__cuda_is_spent(b, call, &operands[keys.first + 3]))
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
    } else if (find_ropes(b, newest(b, QN__CUDA_KERNEL_rope), ropes, &early) == 1 &&
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

bool qn__cuda_may_put(const qn__cuda_binder *b, const qn__call *call, const qn__operand *y,
                      const uint32_t *own, int64_t query_head, bool *moves)
{
    *moves = !may_write(b, y, own, query_head);
    return !*moves || qn__cuda_may_move(b, call, y);
}

/* Whether what a launch turned and wrote is what attention reads: call's queries, and the keys it
 * has. */
static bool turns_for(const qn__cuda_binder *b, const qn__call *call,
                      const qn__cuda_turn_args *args, const uint32_t *at)
{
    const qn__operand *operands = b->binding->operands, *q = &operands[at[QUERIES + 3]];
    const qn__cuda_write_part *keys = &args->write[0];
    return args->early && args->blocks[0] && is_row(&args->rope[0]) && is_row(&args->rope[1]) &&
           qn__cuda_same_place(&operands[at[QUERIES + 1]], &operands[at[KEYS + 1]]) &&
           qn__cuda_same_place(&operands[at[QUERIES + 2]], &operands[at[KEYS + 2]]) &&
           qn__cuda_same_place(&operands[at[KEYS + 4]], &call->operand[1]) && keys->half &&
           keys->page == call->operand[1].stride[0] && keys->head == call->operand[1].stride[1] &&
           is_written(&args->rope[0], q, &call->operand[0]) && qn__cuda_is_spent(b, call, q);
}

/* The same of its values. */
static bool writes_for(const qn__cuda_binder *b, const qn__call *call,
                       const qn__cuda_turn_args *args, const uint32_t *at)
{
    const qn__operand *operands = b->binding->operands;
    const qn__cuda_write_part *values = &args->write[1];
    return qn__cuda_same_place(&operands[at[KEYS + 3]], &operands[at[VALUES + 1]]) &&
           qn__cuda_same_place(&operands[at[VALUES + 2]], &call->operand[2]) && values->half &&
           values->stride[3] == 1 && values->shape[2] == 1 &&
           values->page == call->operand[2].stride[0] && values->head == call->operand[2].stride[1];
}

/* Whether a launch makes norms of queries and keys, heads of d that lie side by side, for what is
 * turned alone: then who turns them can make them, of the rows that rows[] gets, with weights. */
static bool find_norms(const qn__cuda_binder *b, const qn__call *call,
                       const qn__cuda_launch *launch, int64_t d, uint32_t *const rows[2],
                       uint32_t weights[2])
{
    if (launch->function != b->cuda->kernels[QN__CUDA_KERNEL_rms_norm_pair] ||
        (d != QN__CUDA_WIDEST_HALF && d != QN__CUDA_WIDEST))
        return false;
    const qn__operand *operands = b->binding->operands;
    const qn__cuda_norm_args *args = (const qn__cuda_norm_args *)(b->bound->args + launch->args);
    const uint32_t *at = b->bound->at + launch->first_at;
    const bool exchanged = !qn__cuda_same_place(&operands[at[2]], &operands[*rows[0]]);
    const uint32_t *norms[] = {at + (exchanged ? QN__CUDA_NORM_BESIDE : 0),
                               at + (exchanged ? 0 : QN__CUDA_NORM_BESIDE)};
    if (args->n != d || !args->early)
        return false;
    for (int i = 0; i < 2; i++) {
        const qn__operand *y = &operands[norms[i][2]];
        if (!qn__cuda_same_place(y, &operands[*rows[i]]) || !qn__cuda_is_spent(b, call, y))
            return false;
    }
    for (int i = 0; i < 2; i++) {
        *rows[i] = norms[i][0];
        weights[i] = norms[i][1];
    }
    return true;
}

static float eps_of(const qn__cuda_binder *b, const qn__cuda_launch *norm)
{
    return (float)((const qn__cuda_norm_args *)(b->bound->args + norm->args))->eps;
}

/* Whether rows of heads that lie so far apart are read in vectors of 16 bytes. */
static bool in_vectors(const qn__operand *x, int64_t head)
{
    return x->offset % 16 == 0 && head % 4 == 0;
}

/* Takes what such a launch turns and writes, and the norms ahead of it, into attention's: `ahead`
 * launches from the newest one on, whose values' rows are operand `values`. */
static bool take_turns(qn__cuda_binder *b, const qn__call *call, const qn__cuda_launch *turns,
                       int ahead, uint32_t values, qn__cuda_attend_turn_args *to,
                       uint32_t *addresses, bool *moves)
{
    const uint32_t *at = b->bound->at + turns->first_at;
    const qn__cuda_turn_args *args = (const qn__cuda_turn_args *)(b->bound->args + turns->args);
    const qn__operand *y = &call->operand[call->n_operands - 1];
    to->query_head = args->rope[0].x_stride[1];
    to->key_head = args->rope[1].x_stride[1];
    const uint32_t own[OWN] = {at[QUERIES], at[QUERIES + 1], at[QUERIES + 2],  at[KEYS],
                               values,      at[KEYS + 3],    QN__CUDA_AT_NONE, QN__CUDA_AT_NONE};
    memcpy(addresses, own, sizeof own);
    const int64_t d = call->operand[0].shape[3];
    uint32_t *const rows[] = {&addresses[OWN_QUERIES], &addresses[OWN_KEYS]};
    const bool norms = turns > b->bound->launches && to->query_head == d && to->key_head == d &&
                       find_norms(b, call, turns - 1, d, rows, &addresses[OWN_NORMS]);
    const qn__operand *operands = b->binding->operands;
    if (!in_vectors(&operands[addresses[OWN_QUERIES]], to->query_head) ||
        !in_vectors(&operands[addresses[OWN_KEYS]], to->key_head) ||
        !in_vectors(&operands[addresses[OWN_VALUES]], to->value_head))
        return false;
    if (!qn__cuda_may_put(b, call, y, addresses, to->query_head, moves))
        return false;
    if (norms)
        to->norm_eps = eps_of(b, turns - 1);
    for (int i = 0; i < ahead + norms; i++)
        qn__cuda_forget_newest(b->bound);
    return true;
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
    if (!turns_for(b, call, args, at) || !writes_for(b, call, args, at))
        return false;
    to->value_head = args->write[1].stride[1];
    return take_turns(b, call, last, 1, at[VALUES], to, addresses, moves);
}

bool qn__cuda_take_values_turn(qn__cuda_binder *b, const qn__call *call,
                               qn__cuda_attend_blocks_args *to, uint32_t *addresses, bool *moves)
{
    enum { ROWS, SLOTS, CACHE, OF_OTHERS };
    const qn__cuda_binding *bound = b->bound;
    const qn__operand *operands = b->binding->operands;
    const int64_t d = call->operand[0].shape[3];
    const qn__cuda_launch *write =
        newest(b, d > 128 ? QN__CUDA_KERNEL_write_blocks_2 : QN__CUDA_KERNEL_write_blocks_1);
    if (!write || bound->n_launches < 2 ||
        write[-1].function != b->cuda->kernels[QN__CUDA_KERNEL_turn_and_write])
        return false;
    const uint32_t *of = bound->at + write->first_at, *at = bound->at + write[-1].first_at;
    const qn__cuda_encode_part *values =
        &((const qn__cuda_encode_args *)(bound->args + write->args))->part[0];
    if (of[OF_OTHERS] != QN__CUDA_AT_NONE || at[VALUES] != QN__CUDA_AT_NONE ||
        at[QUERIES] == QN__CUDA_AT_NONE || values->length != 1 || values->turn != d ||
        values->d != d || !values->vectors ||
        !qn__cuda_same_place(&operands[of[SLOTS]], &operands[at[KEYS + 3]]) ||
        !qn__cuda_same_place(&operands[of[CACHE]], &call->operand[2]) ||
        !turns_for(b, call, (const qn__cuda_turn_args *)(bound->args + write[-1].args), at))
        return false;
    to->t.value_head = values->head_stride;
    to->scale[2] = values->turn_scale;
    return take_turns(b, call, write - 1, 2, of[ROWS], &to->t, addresses, moves);
}

/* ---- rows on their way to a cache in blocks -------------------------------------------------- */

/* Whether a rope turns whole heads of d of a sequence's rows, which then lie side by side. */
static bool turns_heads(const newest_rope *r, const qn__operand *x, int64_t d)
{
    const qn__cuda_rope_part *p = &r->part;
    return 2 * p->half == d && p->shape[3] == d && !p->traditional && p->x_stride[3] == 1 &&
           x->offset % 16 == 0 && (p->x_stride[1] | p->x_stride[2]) % 4 == 0 &&
           p->y_stride[3] == 1 && p->y_stride[1] == d &&
           (p->shape[2] == 1 || p->y_stride[2] == p->shape[1] * d);
}

/* What launches from the newest one backwards make of the rows of a step: they write keys and
 * values to caches in blocks, turned by a matrix, and before that turn keys and queries, and make
 * norms of these. */
typedef struct blocks_chain {
    newest_rope ropes[2]; /* of queries, of keys */
    uint32_t rows[2], weights[2];
    int n_launches;
    bool early, has_norms;
} blocks_chain;

/* Finds the ropes of call's x and of the keys that `write` takes, in one launch or in two. */
static bool find_chain(const qn__cuda_binder *b, const qn__call *call, const qn__cuda_launch *write,
                       int64_t d, blocks_chain *c)
{
    const qn__operand *operands = b->binding->operands,
                      *turned[] = {&call->operand[0], &operands[b->bound->at[write->first_at]]};
    const qn__cuda_launch *first = b->bound->launches, *launch = write;
    bool has[2] = {false, false};
    c->early = true;
    while (launch > first && !(has[0] && has[1])) {
        newest_rope ropes[2];
        bool early;
        const int n = find_ropes(b, --launch, ropes, &early);
        c->early = c->early && early;
        for (int k = 0; k < n; k++) {
            const qn__operand *y = &operands[ropes[k].first + 3];
            const int i = !qn__cuda_same_place(y, turned[0]);
            if (has[i] || !qn__cuda_same_place(y, turned[i]) || !qn__cuda_is_spent(b, call, y) ||
                qn__cuda_elements(y) != qn__cuda_elements(turned[i]) ||
                !turns_heads(&ropes[k], &operands[ropes[k].first], d))
                return false;
            has[i] = true;
            c->ropes[i] = ropes[k];
            c->rows[i] = ropes[k].first;
        }
        if (!n)
            return false;
    }
    uint32_t *const rows[] = {&c->rows[0], &c->rows[1]};
    c->has_norms = has[0] && has[1] && launch > first && c->ropes[0].part.x_stride[1] == d &&
                   c->ropes[1].part.x_stride[1] == d &&
                   find_norms(b, call, launch - 1, d, rows, c->weights);
    c->n_launches = (int)(write - launch) + 1 + c->has_norms;
    return has[0] && has[1];
}

/* Whether warps that are done may write y, while others still read what is to be turned. */
static bool may_write_heads(const qn__cuda_binder *b, const blocks_chain *c, const qn__operand *y,
                            const qn__operand *values, int64_t d)
{
    const qn__operand *operands = b->binding->operands, *q = &operands[c->rows[0]];
    const int64_t *apart = c->ropes[0].part.x_stride;
    const bool in_place =
        qn__cuda_same_place(y, q) && apart[1] == d &&
        (c->ropes[0].part.shape[2] == 1 || apart[2] == c->ropes[0].part.shape[1] * d);
    return (in_place || !qn__cuda_overlap(y, q)) && !qn__cuda_overlap(y, &operands[c->rows[1]]) &&
           !qn__cuda_overlap(y, values);
}

bool qn__cuda_turn_blocks(qn__cuda_binder *b, const qn__call *call, int64_t n, float scale,
                          bool *added)
{
    enum { KEYS, SLOTS, VALUES = 3, VALUE_SLOTS, KEY_CACHE = 2, VALUE_CACHE = 5 };
    qn__cuda_binding *bound = b->bound;
    const qn__operand *operands = b->binding->operands;
    const qn__cuda_launch *write =
        bound->n_launches ? &bound->launches[bound->n_launches - 1] : NULL;
    if (!write || !qn__cuda_is_among(b->cuda, write->function, QN__CUDA_KERNEL_write_blocks_1,
                                     QN__CUDA_KERNEL_write_blocks_2))
        return false;
    const uint32_t *from = bound->at + write->first_at;
    const qn__cuda_encode_args *encode = (const qn__cuda_encode_args *)(bound->args + write->args);
    const qn__cuda_encode_part *keys = &encode->part[0], *values = &encode->part[1];
    blocks_chain chain;
    if (from[VALUES] == QN__CUDA_AT_NONE || keys->turn != n || values->turn != n || keys->d != n ||
        values->d != n || (n != 64 && n != 128 && n != 256) || !values->vectors ||
        keys->heads != values->heads || keys->length != values->length ||
        keys->length > MOST_TURNED ||
        !qn__cuda_same_place(&operands[from[SLOTS]], &operands[from[VALUE_SLOTS]]) ||
        !find_chain(b, call, write, n, &chain))
        return false;
    const qn__cuda_rope_part *q = &chain.ropes[0].part, *k = &chain.ropes[1].part;
    if (q->shape[2] != keys->length || k->shape[2] != keys->length || k->shape[1] != keys->heads ||
        q->row_offset != k->row_offset ||
        !qn__cuda_same_place(&operands[chain.ropes[0].first + 1],
                             &operands[chain.ropes[1].first + 1]) ||
        !qn__cuda_same_place(&operands[chain.ropes[0].first + 2],
                             &operands[chain.ropes[1].first + 2]) ||
        !may_write_heads(b, &chain, &call->operand[1], &operands[from[VALUES]], n))
        return false;
    qn__cuda_turn_blocks_args args = {
        .part = {*keys, *values},
        .head_stride = q->x_stride[1],
        .row_stride = q->x_stride[2],
        .heads = (int32_t)q->shape[1],
        .scale = scale,
        .norm_eps = chain.has_norms ? eps_of(b, write - chain.n_launches + 1) : 0,
        .row_offset = (int8_t)q->row_offset,
        .early = (int8_t)(chain.early && qn__cuda_is_fixed(b, &operands[from[SLOTS]]))};
    args.part[0].head_stride = k->x_stride[1];
    args.part[0].row_stride = k->x_stride[2];
    const uint32_t at[QN__CUDA_BLOCKS_AT] = {chain.rows[0],
                                             chain.rows[1],
                                             from[VALUES],
                                             chain.ropes[0].first + 1,
                                             chain.ropes[0].first + 2,
                                             from[SLOTS],
                                             call->first_operand + 1,
                                             from[KEY_CACHE],
                                             from[VALUE_CACHE],
                                             chain.has_norms ? chain.weights[0] : QN__CUDA_AT_NONE,
                                             chain.has_norms ? chain.weights[1] : QN__CUDA_AT_NONE};
    const int64_t warps = keys->length * (q->shape[1] + 2 * keys->heads);
    const qn__cuda_grid grid = {qn__cuda_parts(warps, QN__CUDA_THREADS / 32), QN__CUDA_THREADS, 0};
    uint8_t none[QN__CUDA_BLOCKS_AT];
    memset(none, QN__CUDA_NONE, sizeof none);
    for (int i = 0; i < chain.n_launches; i++)
        qn__cuda_forget_newest(bound);
    const int kernel = n > 128 ? QN__CUDA_KERNEL_turn_blocks_2 : QN__CUDA_KERNEL_turn_blocks_1;
    *added = qn__cuda_add_grid(b, b->cuda->kernels[kernel], &grid, &args, sizeof args, call,
                               QN__CUDA_BLOCKS_AT, none);
    if (*added)
        memcpy(bound->at + bound->launches[bound->n_launches - 1].first_at, at, sizeof at);
    return true;
}

bool qn__cuda_take_blocks_turn(qn__cuda_binder *b, const qn__call *call,
                               qn__cuda_attend_blocks_args *to, uint32_t *addresses, bool *moves)
{
    const int kernel = call->operand[0].shape[3] > 128 ? QN__CUDA_KERNEL_turn_blocks_2
                                                       : QN__CUDA_KERNEL_turn_blocks_1;
    const qn__cuda_launch *last = newest(b, kernel);
    if (!last)
        return false;
    const qn__operand *operands = b->binding->operands, *y = &call->operand[call->n_operands - 1];
    const uint32_t *at = b->bound->at + last->first_at;
    const qn__cuda_turn_blocks_args *args =
        (const qn__cuda_turn_blocks_args *)(b->bound->args + last->args);
    const qn__operand *q = &operands[at[QN__CUDA_BLOCKS_Y]];
    if (!args->early || args->part[0].length != 1 || !qn__cuda_same_place(q, &call->operand[0]) ||
        qn__cuda_elements(q) != qn__cuda_elements(&call->operand[0]) ||
        !qn__cuda_is_spent(b, call, q) ||
        !qn__cuda_same_place(&operands[at[QN__CUDA_BLOCKS_CACHE]], &call->operand[1]) ||
        !qn__cuda_same_place(&operands[at[QN__CUDA_BLOCKS_CACHE + 1]], &call->operand[2]))
        return false;
    const uint32_t own[OWN] = {at[QN__CUDA_BLOCKS_QUERIES],     at[QN__CUDA_BLOCKS_OFFSET],
                               at[QN__CUDA_BLOCKS_FREQUENCY],   at[QN__CUDA_BLOCKS_QUERIES + 1],
                               at[QN__CUDA_BLOCKS_QUERIES + 2], at[QN__CUDA_BLOCKS_SLOTS],
                               at[QN__CUDA_BLOCKS_NORM],        at[QN__CUDA_BLOCKS_NORM + 1]};
    if (!qn__cuda_may_put(b, call, y, own, args->head_stride, moves))
        return false;
    memcpy(addresses, own, sizeof own);
    to->t.query_head = args->head_stride;
    to->t.key_head = args->part[0].head_stride;
    to->t.value_head = args->part[1].head_stride;
    to->t.norm_eps = args->norm_eps;
    to->scale[0] = args->scale;
    to->scale[1] = args->part[0].turn_scale;
    to->scale[2] = args->part[1].turn_scale;
    qn__cuda_forget_newest(b->bound);
    return true;
}
