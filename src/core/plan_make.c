/* SPDX-License-Identifier: Apache-2.0
 *
 * Making a plan: group elementwise nodes into passes, decide which updates happen in place, write
 * the steps.
 *
 * Every decision here may depend only on what the key holds (plan_key.c), since the plan will serve
 * other graphs with the same key. Where intermediates lie in the workspace depends on exact sizes
 * and is the binding's. Fusion never changes a value: a fused node is rounded to its own type
 * inside the chain.
 */
#include "core/device.h"
#include "core/dtype.h"
#include "core/scope.h"

#include <assert.h>
#include <stdlib.h>

enum { NONE = 0xffffffffu, MANY = 0xfffffffeu, LARGEST_GROUP = 12 };

/* What is known of a live node while planning. */
typedef struct draft {
    uint32_t group;     /* elementwise: the node whose pass computes it */
    uint32_t wanted_by; /* elementwise: the one group of all consumers so far, NONE or MANY */
    uint32_t next; /* of the same group: the member recorded just after it, NONE after the root */
    uint32_t last_read; /* position (node index) of the last step that reads its storage */
    /* of a group, at its root */
    uint32_t first; /* the member recorded first */
    uint16_t size, code,
        inputs; /* members; at most so many instructions and inputs of its program */
} draft;

typedef struct planner {
    qn_scope *s;
    const qn__live *live;
    qn__plan *plan;
    draft *drafts;
    uint32_t *operands, *constants; /* growing lists */
    uint32_t n_operands, operand_room, n_constants, constant_room;
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

/* ---- grouping ------------------------------------------------------------------------------- */

/* Notes that the step of `reader` (a group) reads input `in`. */
static void note_consumer(planner *p, const qn_array *in, const qn_array *reader, uint32_t group)
{
    draft *d = &p->drafts[in->index];
    if (is_constant(in) && is_elementwise(reader))
        return;
    bool joins = is_elementwise(in) && qn__same_shape(in, reader) && is_elementwise(reader);
    if (!joins || (d->wanted_by != NONE && d->wanted_by != group))
        d->wanted_by = MANY;
    else
        d->wanted_by = group;
}

/* The instructions that a node's program has when it is fused with nothing: what it adds to a group
 * at most. */
static int code_of(const planner *p, const qn_array *a)
{
    qn__ir_value in[4];
    assert(a->n_in <= 4);
    qn__ir_begin(p->ir);
    for (int k = 0; k < a->n_in; k++)
        in[k] = qn__ir_cast(p->ir, qn__ir_input(p->ir, k, (qn_dtype)a->in[k]->dtype),
                            qn__dtype_compute((qn_dtype)a->in[k]->dtype));
    if (!qn__is_number(a))
        qn__ir_cast(p->ir, qn__op_emit(qn__def(a), p->ir, a->params, in), (qn_dtype)a->dtype);
    return p->ir->n + a->n_in + 1; /* what stands for a constant is a little more than an input */
}

/* Puts an elementwise node into the group of its consumers, or begins one. */
static void join_group(planner *p, uint32_t i)
{
    const qn_array *a = node_at(p, i);
    draft *d = &p->drafts[i];
    uint32_t g = d->wanted_by;
    bool target = a->flags & QN__TARGET;
    if (is_constant(a) && !target && g == NONE) {
        d->group = NONE; /* emitted wherever it is read */
        p->plan->n_fused++;
        return;
    }
    int code = code_of(p, a), inputs = a->n_in;
    if (!target && g < MANY) {
        draft *root = &p->drafts[g];
        if (root->size < LARGEST_GROUP && root->code + code <= QN__IR_LARGEST &&
            root->inputs + inputs - 1 <= QN__IR_INPUTS) {
            d->group = g;
            d->next = root->first;
            root->first = i;
            root->size++;
            root->code = (uint16_t)(root->code + code);
            root->inputs = (uint16_t)(root->inputs + inputs - 1);
            p->plan->n_fused++;
            return;
        }
    }
    d->first = i;
    d->size = 1;
    d->code = (uint16_t)code;
    d->inputs = (uint16_t)inputs;
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
        if (is_elementwise(a))
            join_group(p, i);
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

static bool add_to(uint32_t **list, uint32_t *n, uint32_t *room, uint32_t node)
{
    if (*n == *room) {
        uint32_t more = *room ? *room * 2 : 256;
        uint32_t *grown = realloc(*list, more * sizeof **list);
        if (!grown)
            return false;
        *list = grown;
        *room = more;
    }
    (*list)[(*n)++] = node;
    return true;
}

static bool add_operand(planner *p, uint32_t node)
{
    return add_to(&p->operands, &p->n_operands, &p->operand_room, node);
}

/* The number of `node` among the operands of the chain begun at `first`. */
static int chain_input(planner *p, uint32_t first, uint32_t node)
{
    for (uint32_t i = first; i < p->n_operands; i++)
        if (p->operands[i] == node)
            return (int)(i - first);
    return add_operand(p, node) ? (int)(p->n_operands - 1 - first) : -1;
}

/* The value of a node without inputs, in a chain whose numbers begin at `first`; false: no memory.
 */
static bool emit_constant(planner *p, const qn_array *a, uint32_t first, qn__ir_value *value)
{
    if (!qn__is_number(a)) {
        *value = qn__op_emit(qn__def(a), p->ir, a->params, NULL);
        return true;
    }
    uint32_t k = first;
    while (k < p->n_constants && p->constants[k] != a->index)
        k++;
    if (k == p->n_constants && !add_to(&p->constants, &p->n_constants, &p->constant_room, a->index))
        return false;
    *value = qn__ir_number(p->ir, (int)(k - first));
    return true;
}

/* Emits one node of a chain; values[] holds those emitted before, by node. */
static bool emit_node(planner *p, const qn_array *a, const qn__step *chain, qn__ir_value *values)
{
    qn__ir_value in[4], v;
    uint32_t group = p->drafts[a->index].group;
    for (int k = 0; k < a->n_in; k++) {
        const qn_array *x = a->in[k];
        qn_dtype type = (qn_dtype)x->dtype;
        if (is_elementwise(x) && p->drafts[x->index].group == group) {
            v = values[x->index];
        } else if (is_constant(x)) {
            if (!emit_constant(p, x, chain->first_constant, &v))
                return false;
            v = qn__ir_cast(p->ir, v, type);
        } else {
            int number = chain_input(p, chain->first_operand, x->index);
            if (number < 0)
                return false;
            v = qn__ir_input(p->ir, number, type);
        }
        in[k] = qn__ir_cast(p->ir, v, qn__dtype_compute(type));
    }
    if (!a->n_in) {
        if (!emit_constant(p, a, chain->first_constant, &v))
            return false;
    } else {
        v = qn__op_emit(qn__def(a), p->ir, a->params, in);
    }
    values[a->index] = qn__ir_cast(p->ir, v, (qn_dtype)a->dtype);
    return true;
}

/* One pass over memory for a group; its root is the last node. */
static bool add_chain(planner *p, uint32_t root, qn__step *step, qn__ir_value *values)
{
    qn__ir_begin(p->ir);
    *step =
        (qn__step){.node = root, .first_operand = p->n_operands, .first_constant = p->n_constants};
    for (uint32_t i = p->drafts[root].first; i != NONE; i = p->drafts[i].next)
        if (!emit_node(p, node_at(p, i), step, values))
            return false;
    p->ir->result = values[root];
    if (!add_operand(p, root))
        return false;
    step->n_operands = p->n_operands - step->first_operand;
    size_t used = offsetof(qn__ir, code) + (size_t)p->ir->n * sizeof *p->ir->code;
    qn__ir *program = qn__arena_alloc(&p->plan->arena, used);
    if (!program)
        return false;
    memcpy(program, p->ir, used);
    step->program = program;
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
    *step = (qn__step){.routine = p->s->device->ops->routine(p->s->device, a),
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

/* Whether node `i`, computed at its position, may be written where `in` lies: it is the last to
 * read that storage, and `in` shows all of it in the order of its own value. */
static bool fits_over(const planner *p, uint32_t i, const qn_array *in)
{
    const qn_array *a = node_at(p, i);
    return in->dtype == a->dtype && qn__same_shape(in, a) && a->flags & QN__CONTIGUOUS &&
           qn__covers(in) && p->drafts[in->base->index].last_read == i;
}

/* Whether an input of step `i` is a donated leaf's storage that it may overwrite. */
static bool may_take_over(const planner *p, uint32_t i, const qn_array *in)
{
    return in->base->flags & QN__MAY_OVERWRITE && qn__is_leaf(in->base) && fits_over(p, i, in);
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
        if (in != found && in->base == found->base)
            return NULL; /* also read through a view */
    }
    return found->base;
}

/* The storage node behind aliases; shortens the way to it. */
static uint32_t owner_of(qn__plan *plan, uint32_t node)
{
    uint32_t owner = node;
    while (plan->storage[owner].place == QN__ALIAS)
        owner = plan->storage[owner].slot;
    while (node != owner && plan->storage[node].slot != owner) {
        uint32_t next = plan->storage[node].slot;
        plan->storage[node].slot = owner;
        node = next;
    }
    return owner;
}

static void place_at_alias(planner *p, uint32_t node, uint32_t other)
{
    p->plan->storage[node] = (qn__storage){.place = QN__ALIAS, .slot = other};
}

/* Makes aliases direct. */
static void settle_aliases(planner *p)
{
    for (uint32_t i = 0; i < p->live->n; i++)
        owner_of(p->plan, i);
}

/* Notes for each value in the workspace the last step that touches it, or may while its stage runs.
 */
static void note_lifetimes(planner *p)
{
    qn__plan *plan = p->plan;
    for (uint32_t i = 0, end = 0; i < plan->n_steps; i++) {
        end = i == end ? qn__stage_end(plan, i) : end;
        for (uint32_t k = 0; k < plan->steps[i].n_operands; k++) {
            uint32_t node = p->operands[plan->steps[i].first_operand + k];
            qn__storage *storage = &plan->storage[owner_of(plan, node)];
            if (storage->place == QN__WORKSPACE)
                storage->slot = end - 1;
        }
    }
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
 * copied first: it is still needed, or the update reads it elsewhere, too. */
static bool share_place(planner *p, uint32_t i)
{
    qn__plan *plan = p->plan;
    const qn_array *a = node_at(p, i), *old = a->in[0];
    for (int k = 1; k < a->n_in; k++)
        if (a->in[k]->base == old->base)
            return false;
    if (qn__is_leaf(old->base)) {
        if (!may_take_over(p, i, old))
            return false;
        place_at_alias(p, i, old->base->index);
        return true;
    }
    if (!fits_over(p, i, old) || old->base->flags & QN__TARGET)
        return false;
    uint32_t owner = owner_of(plan, old->base->index);
    if (plan->storage[owner].place == QN__WORKSPACE && a->flags & QN__TARGET)
        place_at_alias(p, owner, i); /* the old value is computed where the result will be */
    else
        place_at_alias(p, i, owner);
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
            plan->storage[i] =
                (qn__storage){.place = QN__SLOT_OUTPUT, .slot = plan->n_inputs + plan->n_outputs++};
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

/* The steps of all nodes, in the order in which they run. */
static bool add_all_steps(planner *p)
{
    uint32_t n = p->live->n, n_steps = 0;
    qn__ir_value *values = malloc((n + 1) * sizeof *values);
    bool *has_step = malloc((n + 1) * sizeof *has_step);
    uint32_t *order = malloc((n + 1) * sizeof *order);
    bool ok = values && has_step && order;
    for (uint32_t i = 0; ok && i < n; i++) {
        const qn_array *a = node_at(p, i);
        has_step[i] = !qn__is_leaf(a) && a->base == a && p->drafts[i].group == i;
        n_steps += has_step[i];
    }
    if (ok)
        qn__stage_order(p->live, has_step, order);
    for (uint32_t i = 0; ok && i < n_steps; i++)
        ok = add_steps(p, order[i], values) && !p->ir->failed;
    free(values);
    free(has_step);
    free(order);
    return ok;
}

/* Fills p->plan. False when memory is out, or p->ir failed: an operation does not fit a program. */
static bool fill_plan(planner *p)
{
    qn__plan *plan = p->plan;
    uint32_t n = p->live->n;
    for (uint32_t i = 0; i < n; i++)
        p->drafts[i] = (draft){.wanted_by = NONE, .next = NONE, .last_read = NONE};
    group_nodes(p);
    note_reads(p);
    place_nodes(p);
    if (!add_all_steps(p))
        return false;
    place_targets(p);
    settle_aliases(p);
    plan->n_operands = p->n_operands;
    plan->operands = table(plan, p->n_operands, sizeof *plan->operands);
    if (!plan->operands)
        return false;
    memcpy(plan->operands, p->operands, p->n_operands * sizeof *p->operands);
    plan->n_constants = p->n_constants;
    plan->constants = table(plan, p->n_constants, sizeof *plan->constants);
    if (!plan->constants)
        return false;
    if (p->n_constants)
        memcpy(plan->constants, p->constants, p->n_constants * sizeof *p->constants);
    if (!qn__stage_parts(plan, p->live))
        return false;
    note_lifetimes(p);
    return true;
}

qn__plan *qn__plan_make(qn_scope *s, const qn__live *live)
{
    planner p = {.s = s, .live = live};
    p.drafts = malloc((live->n + 1) * sizeof *p.drafts);
    p.ir = malloc(sizeof *p.ir);
    if (p.ir)
        p.ir->failed = false;
    if (p.drafts && p.ir && (p.plan = new_plan(&p)) && !fill_plan(&p)) {
        qn__plan_release(p.plan);
        p.plan = NULL;
    }
    if (!p.plan)
        qn__scope_fail(s, p.ir && p.ir->failed ? QN_LIMIT : QN_MEMORY,
                       p.ir && p.ir->failed ? "an operation's program does not fit the kernel IR"
                                            : "out of memory while planning");
    free(p.drafts);
    free(p.ir);
    free(p.operands);
    free(p.constants);
    return p.plan;
}
