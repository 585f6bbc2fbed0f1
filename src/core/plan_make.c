/* SPDX-License-Identifier: Apache-2.0
 *
 * Making a plan: group elementwise nodes into passes, decide which updates happen in place, lay out
 * the workspace, write the steps.
 *
 * Every decision here may depend only on what the key holds (plan_key.c), since the plan will serve
 * other graphs with the same key. In particular sizes enter as bucket tops. Fusion never changes a
 * value: a fused node is rounded to its own type inside the chain.
 */
#include "core/device.h"
#include "core/dtype.h"
#include "core/scope.h"

#include <assert.h>
#include <stdlib.h>

enum { NONE = 0xffffffffu, MANY = 0xfffffffeu, LARGEST_GROUP = 12, ALIGNMENT = 64 };

/* What is known of a live node while planning. */
typedef struct draft {
    uint32_t group;     /* elementwise: the node whose pass computes it */
    uint32_t wanted_by; /* elementwise: the one group of all consumers so far, NONE or MANY */
    uint32_t group_size;
    uint32_t last_read; /* position (node index) of the last step that reads its storage */
    size_t bytes;       /* of storage, at the bucket's top */
} draft;

typedef struct planner {
    qn_scope *s;
    const qn__live *live;
    qn__plan *plan;
    draft *drafts;
    uint32_t *operands; /* growing list */
    uint32_t n_operands, operand_room;
    uint32_t largest_group;
    qn__ir *ir;
} planner;

static const qn_array *node_at(const planner *p, uint32_t i)
{
    return p->live->node[i];
}

static bool is_elementwise(const qn_array *a)
{
    return a->base == a && !a->buffer && qn__def(a)->class == QN__ELEMENTWISE;
}

/* A value that chains emit where they use it, however its shape broadcasts. */
static bool is_constant(const qn_array *a)
{
    return is_elementwise(a) && a->n_in == 0;
}

static bool same_shape(const qn_array *a, const qn_array *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape);
}

/* ---- grouping ------------------------------------------------------------------------------- */

/* Notes that the step of `reader` (a group) reads input `in`. */
static void note_consumer(planner *p, const qn_array *in, const qn_array *reader, uint32_t group)
{
    draft *d = &p->drafts[in->index];
    if (is_constant(in) && is_elementwise(reader))
        return;
    bool joins = is_elementwise(in) && same_shape(in, reader) && is_elementwise(reader);
    if (!joins || (d->wanted_by != NONE && d->wanted_by != group))
        d->wanted_by = MANY;
    else
        d->wanted_by = group;
}

/* Newest first: a node's consumers have all been seen when it is reached. */
static void group_nodes(planner *p)
{
    for (uint32_t i = p->live->n; i-- > 0;) {
        const qn_array *a = node_at(p, i);
        draft *d = &p->drafts[i];
        d->group = i;
        if (qn__is_leaf(a))
            continue;
        if (a->base != a) {
            p->drafts[a->base->index].wanted_by = MANY;
            continue;
        }
        if (is_elementwise(a)) {
            uint32_t g = d->wanted_by;
            if (is_constant(a) && !(a->flags & QN__TARGET) && g == NONE) {
                d->group = NONE; /* emitted wherever it is read */
                p->plan->n_fused++;
            } else if (!(a->flags & QN__TARGET) && g < MANY &&
                p->drafts[g].group_size < p->largest_group) {
                d->group = g;
                p->drafts[g].group_size++;
                p->plan->n_fused++;
            } else {
                d->group_size = 1;
            }
        }
        for (int k = 0; k < a->n_in; k++)
            note_consumer(p, a->in[k], a, d->group);
    }
}

/* The last position at which each storage is read, fused reads counting where their pass runs. */
static void note_reads(planner *p)
{
    for (uint32_t i = 0; i < p->live->n; i++) {
        const qn_array *a = node_at(p, i);
        if (qn__is_leaf(a) || a->base != a)
            continue;
        for (int k = 0; k < a->n_in; k++) {
            draft *d = &p->drafts[a->in[k]->base->index];
            uint32_t at = p->drafts[i].group; /* constants, group NONE, have no inputs */
            if (d->last_read == NONE || d->last_read < at)
                d->last_read = at;
        }
    }
}

/* ---- steps ---------------------------------------------------------------------------------- */

static bool add_operand(planner *p, uint32_t node)
{
    if (p->n_operands == p->operand_room) {
        uint32_t room = p->operand_room ? p->operand_room * 2 : 256;
        uint32_t *operands = realloc(p->operands, room * sizeof *operands);
        if (!operands)
            return false;
        p->operands = operands;
        p->operand_room = room;
    }
    p->operands[p->n_operands++] = node;
    return true;
}

/* The number of `node` among the operands of the chain begun at `first`. */
static int chain_input(planner *p, uint32_t first, uint32_t node)
{
    for (uint32_t i = first; i < p->n_operands; i++)
        if (p->operands[i] == node)
            return (int)(i - first);
    return add_operand(p, node) ? (int)(p->n_operands - 1 - first) : -1;
}

/* Emits one node of a chain; values[] holds those emitted before, by node. */
static bool emit_node(planner *p, const qn_array *a, uint32_t first, qn__ir_value *values)
{
    qn__ir_value in[4];
    assert(a->n_in <= 4);
    uint32_t group = p->drafts[a->index].group;
    for (int k = 0; k < a->n_in; k++) {
        const qn_array *x = a->in[k];
        qn_dtype type = (qn_dtype)x->dtype;
        qn__ir_value v;
        if (is_elementwise(x) && p->drafts[x->index].group == group) {
            v = values[x->index];
        } else if (is_constant(x)) {
            v = qn__ir_cast(p->ir, qn__op_emit(qn__def(x), p->ir, x->params, NULL), type);
        } else {
            int number = chain_input(p, first, x->index);
            if (number < 0)
                return false;
            v = qn__ir_input(p->ir, number, type);
        }
        in[k] = qn__ir_cast(p->ir, v, qn__dtype_compute(type));
    }
    qn__ir_value v = qn__op_emit(qn__def(a), p->ir, a->params, in);
    values[a->index] = qn__ir_cast(p->ir, v, (qn_dtype)a->dtype);
    return true;
}

/* One pass over memory for a group; its root is the last node. */
static bool add_chain(planner *p, uint32_t root, qn__step *step, qn__ir_value *values)
{
    qn__ir_begin(p->ir);
    uint32_t first = p->n_operands;
    for (uint32_t i = 0; i <= root; i++) {
        const qn_array *a = node_at(p, i);
        if (is_elementwise(a) && p->drafts[i].group == root &&
            !emit_node(p, a, first, values))
            return false;
    }
    p->ir->result = values[root];
    if (!add_operand(p, root))
        return false;
    size_t used = offsetof(qn__ir, code) + (size_t)p->ir->n * sizeof *p->ir->code;
    qn__ir *program = qn__arena_alloc(&p->plan->arena, used);
    if (!program)
        return false;
    memcpy(program, p->ir, used);
    *step = (qn__step){.node = root, .first_operand = first,
                       .n_operands = p->n_operands - first, .program = program};
    return true;
}

static bool add_kernel(planner *p, uint32_t node, qn__step *step)
{
    const qn_array *a = node_at(p, node);
    uint32_t first = p->n_operands;
    for (int k = 0; k < a->n_in; k++)
        if (!add_operand(p, a->in[k]->index))
            return false;
    if (!add_operand(p, node))
        return false;
    void *params = NULL;
    if (a->params_size) {
        params = qn__arena_alloc(&p->plan->arena, a->params_size);
        if (!params)
            return false;
        memcpy(params, a->params, a->params_size);
    }
    *step = (qn__step){.kernel = p->s->device->ops->kernel(p->s->device, a),
                       .node = node,
                       .first_operand = first,
                       .n_operands = p->n_operands - first,
                       .params = params};
    return true;
}

static bool add_copy(planner *p, uint32_t from, uint32_t to, qn__step *step)
{
    uint32_t first = p->n_operands;
    if (!add_operand(p, from) || !add_operand(p, to))
        return false;
    *step = (qn__step){.node = to, .first_operand = first, .n_operands = 2, .copy = true};
    return true;
}

/* ---- places --------------------------------------------------------------------------------- */

static size_t top_bytes(const qn_array *a)
{
    if (a->format)
        return qn__storage_bytes(a);
    size_t n = qn__dtype_size((qn_dtype)a->dtype);
    for (int i = 0; i < a->ndim; i++)
        n *= (size_t)qn__bucket_top(a->shape[i]);
    return (n + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

/* Whether node `i`, computed at its position, is the last to read `in`, which has the form of its own
 * value: then both can live in one place. */
static bool same_place_fits(const planner *p, uint32_t i, const qn_array *in)
{
    const qn_array *a = node_at(p, i);
    return in->base == in && in->offset == 0 && in->dtype == a->dtype && same_shape(in, a) &&
           !in->format &&
           (in->flags & a->flags & QN__CONTIGUOUS) && p->drafts[in->index].last_read == i;
}

/* A donated leaf that `i` may overwrite. */
static bool may_take_over(const planner *p, uint32_t i, const qn_array *in)
{
    return qn__is_leaf(in) && same_place_fits(p, i, in) && qn__may_overwrite(in);
}

/* The input whose storage an elementwise pass overwrites: a donated one that the pass reads only at
 * the place it writes. NULL when there is none. */
static const qn_array *pass_overwrites(const planner *p, const qn__step *step)
{
    const qn_array *out = node_at(p, step->node), *found = NULL;
    if (!(out->flags & QN__TARGET))
        return NULL;
    for (uint32_t k = 0; k + 1 < step->n_operands; k++) {
        const qn_array *in = node_at(p, p->operands[step->first_operand + k]);
        if (!found && may_take_over(p, step->node, in))
            found = in;
    }
    if (!found)
        return NULL;
    for (uint32_t k = 0; k + 1 < step->n_operands; k++) {
        const qn_array *in = node_at(p, p->operands[step->first_operand + k]);
        if (in != found && in->base == found)
            return NULL; /* also read through a view */
    }
    return found;
}

/* The storage node behind aliases. */
static uint32_t owner_of(const qn__plan *plan, uint32_t node)
{
    while (plan->storage[node].place == QN__ALIAS)
        node = plan->storage[node].slot;
    return node;
}

static void place_at_alias(planner *p, uint32_t node, uint32_t other)
{
    p->plan->storage[node] = (qn__storage){.place = QN__ALIAS, .slot = other};
}

/* ---- the workspace -------------------------------------------------------------------------- */

typedef struct interval {
    size_t offset, bytes;
    uint32_t last_step;
} interval;

/* First fit among the intervals alive at a step; they are kept sorted by offset. */
static size_t first_fit(interval *alive, uint32_t *n, size_t bytes, uint32_t last_step)
{
    size_t offset = 0;
    uint32_t at = 0;
    while (at < *n && alive[at].offset - offset < bytes) {
        offset = alive[at].offset + alive[at].bytes;
        at++;
    }
    memmove(alive + at + 1, alive + at, (*n - at) * sizeof *alive);
    alive[at] = (interval){offset, bytes, last_step};
    (*n)++;
    return offset;
}

static void drop_dead(interval *alive, uint32_t *n, uint32_t step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (alive[i].last_step >= step)
            alive[kept++] = alive[i];
    *n = kept;
}

static bool lay_out_workspace(planner *p)
{
    qn__plan *plan = p->plan;
    uint32_t n_nodes = p->live->n;
    uint32_t *last_step = calloc(n_nodes + 1, sizeof *last_step);
    interval *alive = malloc((n_nodes + 1) * sizeof *alive);
    bool *placed = calloc(n_nodes + 1, sizeof *placed);
    bool ok = last_step && alive && placed;
    for (uint32_t i = 0; ok && i < plan->n_steps; i++)
        for (uint32_t k = 0; k < plan->steps[i].n_operands; k++)
            last_step[owner_of(plan, p->operands[plan->steps[i].first_operand + k])] = i;
    uint32_t n_alive = 0;
    for (uint32_t i = 0; ok && i < plan->n_steps; i++) {
        drop_dead(alive, &n_alive, i);
        uint32_t node = owner_of(plan, plan->steps[i].node);
        qn__storage *storage = &plan->storage[node];
        if (storage->place != QN__WORKSPACE || placed[node])
            continue;
        placed[node] = true;
        size_t bytes = top_bytes(node_at(p, node));
        storage->offset = first_fit(alive, &n_alive, bytes, last_step[node]);
        if (plan->workspace < storage->offset + bytes)
            plan->workspace = storage->offset + bytes;
    }
    free(last_step);
    free(alive);
    free(placed);
    return ok;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Numbers leaves; everything computed starts in the workspace, targets in output slots. */
static void place_nodes(planner *p)
{
    qn__plan *plan = p->plan;
    for (uint32_t i = 0; i < p->live->n; i++) {
        const qn_array *a = node_at(p, i);
        if (qn__is_leaf(a))
            plan->storage[i] = (qn__storage){.place = QN__SLOT_INPUT, .slot = plan->n_inputs++};
        else if (a->base != a)
            place_at_alias(p, i, a->base->index);
        else if (p->drafts[i].group != i)
            plan->storage[i] = (qn__storage){.place = QN__NOWHERE};
        else
            plan->storage[i] = (qn__storage){.place = QN__WORKSPACE};
    }
}

/* Lets an update in place and the value it updates share a place; false when the old value must be
 * copied first. */
static bool share_place(planner *p, uint32_t i)
{
    qn__plan *plan = p->plan;
    const qn_array *a = node_at(p, i), *old = a->in[0];
    if (qn__is_leaf(old)) {
        if (may_take_over(p, i, old))
            place_at_alias(p, i, old->index);
        return plan->storage[i].place == QN__ALIAS;
    }
    if (!same_place_fits(p, i, old) || old->flags & QN__TARGET)
        return false;
    uint32_t owner = owner_of(plan, old->index);
    if (plan->storage[owner].place == QN__WORKSPACE && a->flags & QN__TARGET)
        place_at_alias(p, owner, i); /* the old value is computed where the result will be */
    else
        place_at_alias(p, i, old->index);
    return true;
}

/* Writes the steps of one node: perhaps a copy, then its pass or kernel. */
static bool add_steps(planner *p, uint32_t i, qn__ir_value *values)
{
    qn__plan *plan = p->plan;
    const qn_array *a = node_at(p, i);
    if (is_elementwise(a)) {
        qn__step *step = &plan->steps[plan->n_steps++];
        if (!add_chain(p, i, step, values))
            return false;
        const qn_array *over = pass_overwrites(p, step);
        if (over)
            place_at_alias(p, i, over->index);
        return true;
    }
    if (qn__def(a)->in_place) {
        const qn_array *old = a->in[0];
        if (!share_place(p, i)) {
            plan->n_copies += (old->base->flags & QN__DONATED) != 0;
            if (!add_copy(p, old->index, i, &plan->steps[plan->n_steps++]))
                return false;
        }
    }
    return add_kernel(p, i, &plan->steps[plan->n_steps++]);
}

/* Targets that stayed in the workspace get output slots. */
static void place_targets(planner *p)
{
    qn__plan *plan = p->plan;
    for (uint32_t i = 0; i < p->live->n; i++) {
        if (!(node_at(p, i)->flags & QN__TARGET))
            continue;
        if (plan->storage[i].place == QN__WORKSPACE)
            plan->storage[i] = (qn__storage){.place = QN__SLOT_OUTPUT,
                                             .slot = plan->n_inputs + plan->n_outputs++};
        uint32_t owner = owner_of(plan, i);
        plan->outputs[plan->n_targets] = i;
        plan->output_slots[plan->n_targets++] = plan->storage[owner].slot;
    }
}

static void *table(qn__plan *plan, size_t n, size_t size)
{
    return qn__arena_zalloc(&plan->arena, (n + 1) * size);
}

static qn__plan *new_plan(const planner *p)
{
    const qn__live *live = p->live;
    qn__arena arena = {0};
    qn__plan *plan = qn__arena_zalloc(&arena, sizeof *plan);
    if (!plan)
        return NULL;
    plan->arena = arena;
    atomic_init(&plan->refs, 1);
    plan->device = p->s->device;
    plan->hash = live->hash;
    plan->n_nodes = live->n;
    plan->n_key = live->n_key;
    plan->key = table(plan, live->n_key, sizeof *plan->key);
    plan->steps = table(plan, 2u * live->n, sizeof *plan->steps);
    plan->storage = table(plan, live->n, sizeof *plan->storage);
    plan->outputs = table(plan, live->n, sizeof *plan->outputs);
    plan->output_slots = table(plan, live->n, sizeof *plan->output_slots);
    if (!plan->key || !plan->steps || !plan->storage || !plan->outputs || !plan->output_slots) {
        arena = plan->arena;
        qn__arena_free(&arena);
        return NULL;
    }
    memcpy(plan->key, live->key, live->n_key * sizeof *live->key);
    return plan;
}

/* Fills p->plan. False when memory is out, or p->ir failed: a chain did not fit a program. */
static bool fill_plan(planner *p)
{
    qn__plan *plan = p->plan;
    uint32_t n = p->live->n;
    for (uint32_t i = 0; i < n; i++)
        p->drafts[i] = (draft){.wanted_by = NONE, .last_read = NONE};
    group_nodes(p);
    note_reads(p);
    place_nodes(p);
    qn__ir_value *values = malloc((n + 1) * sizeof *values);
    bool ok = values != NULL;
    for (uint32_t i = 0; ok && i < n; i++) {
        const qn_array *a = node_at(p, i);
        if (!qn__is_leaf(a) && a->base == a && p->drafts[i].group == i)
            ok = add_steps(p, i, values) && !p->ir->failed;
    }
    free(values);
    if (!ok)
        return false;
    place_targets(p);
    plan->n_operands = p->n_operands;
    plan->operands = table(plan, p->n_operands, sizeof *plan->operands);
    if (!plan->operands)
        return false;
    memcpy(plan->operands, p->operands, p->n_operands * sizeof *p->operands);
    return lay_out_workspace(p);
}

static qn__plan *try_plan(planner *p, uint32_t largest_group)
{
    p->largest_group = largest_group;
    p->n_operands = 0;
    p->ir->failed = false;
    p->plan = new_plan(p);
    if (p->plan && !fill_plan(p)) {
        qn__plan_release(p->plan);
        p->plan = NULL;
    }
    return p->plan;
}

qn__plan *qn__plan_make(qn_scope *s, const qn__live *live)
{
    planner p = {.s = s, .live = live};
    p.drafts = malloc((live->n + 1) * sizeof *p.drafts);
    p.ir = malloc(sizeof *p.ir);
    if (p.ir)
        p.ir->failed = false;
    qn__plan *plan = NULL;
    if (p.drafts && p.ir) {
        plan = try_plan(&p, LARGEST_GROUP);
        if (!plan && p.ir->failed)
            plan = try_plan(&p, 1); /* a chain too large for one program */
    }
    if (!plan)
        qn__scope_fail(s, p.ir && p.ir->failed ? QN_LIMIT : QN_MEMORY,
                       p.ir && p.ir->failed ? "an operation's program does not fit the kernel IR"
                                            : "out of memory while planning");
    free(p.drafts);
    free(p.ir);
    free(p.operands);
    return plan;
}
