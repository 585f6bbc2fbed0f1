/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages: what a GPU can run as one kernel and a CPU as one parallel phase, found by structure
 * alone. A root (a linear layer), its siblings on the same input, before them a prologue that makes
 * that input of rows (a norm), behind them sinks: elementwise steps on what they give. Or
 * elementwise steps of one shape that share arrays, as an optimiser's do: a pass has one result,
 * but several can go through memory together. A device takes a stage or runs its steps one by one;
 * the values are the same.
 *
 * Siblings are moved up to their root. That changes no value: they read the root's input and
 * leaves, which are there, and an update in place waits for the last reader in the order of
 * recording.
 */
#include "core/dtype.h"
#include "core/plan.h"
#include "core/scope.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOOK_AHEAD = 64, /* nodes within which a root finds its siblings */
    MOST_ALONG = 8   /* elementwise steps that go together: what they read stays as long */
};

static qn__stage_role role_of(const qn_array *a)
{
    return qn__is_leaf(a) || a->base != a ? QN__STAGE_ALONE : qn__def(a)->stage;
}

/* Whether all inputs but the first are leaves, or views of leaves. */
static bool reads_leaves(const qn_array *a)
{
    for (int k = 1; k < a->n_in; k++)
        if (!qn__is_leaf(a->in[k]->base))
            return false;
    return true;
}

static bool are_siblings(const qn_array *root, const qn_array *a)
{
    return a->op == root->op && a->in[0] == root->in[0] && role_of(a) == QN__STAGE_ROOT &&
           reads_leaves(a);
}

void qn__stage_order(const qn__live *live, bool *has_step, uint32_t *order)
{
    for (uint32_t i = 0, n = 0; i < live->n; i++) {
        const qn_array *root = live->node[i];
        if (!has_step[i])
            continue;
        order[n++] = i;
        uint32_t end = i + LOOK_AHEAD < live->n ? i + LOOK_AHEAD : live->n;
        for (uint32_t k = i + 1; role_of(root) == QN__STAGE_ROOT && k < end; k++)
            if (has_step[k] && are_siblings(root, live->node[k])) {
                order[n++] = k;
                has_step[k] = false;
            }
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* A plan whose parts are being found. */
typedef struct finder {
    qn__plan *plan;
    const qn__live *live;
    uint32_t *readers;    /* [n_nodes] how often nodes read each one; a view is a reader */
    uint32_t begin, root; /* steps: of the stage so far */
} finder;

static const qn_array *output_of(const finder *f, uint32_t step)
{
    return f->live->node[f->plan->steps[step].node];
}

static uint32_t storage_of(const qn__plan *plan, uint32_t node)
{
    return plan->storage[node].place == QN__ALIAS ? plan->storage[node].slot : node;
}

/* Whether step i is the prologue of the root at i + 1: nothing else reads what it gives. */
static bool is_prologue(const finder *f, uint32_t i)
{
    const qn__plan *plan = f->plan;
    if (i + 1 >= plan->n_steps || role_of(output_of(f, i)) != QN__STAGE_PROLOGUE)
        return false;
    const qn_array *x = output_of(f, i), *root = output_of(f, i + 1);
    uint32_t n = 0;
    if (role_of(root) != QN__STAGE_ROOT || root->in[0] != x || x->flags & QN__TARGET)
        return false;
    while (i + 1 + n < plan->n_steps && are_siblings(root, output_of(f, i + 1 + n)))
        n++;
    return f->readers[x->index] == n;
}

/* Whether node `index` is what one of the stage's steps before `end` gives. */
static bool is_given(const finder *f, uint32_t index, uint32_t end)
{
    for (uint32_t i = f->root; i < end; i++)
        if (f->plan->steps[i].node == index)
            return true;
    return false;
}

/* Whether the storage that step i writes is any that another step of the stage reads or writes. */
static bool writes_into_stage(const finder *f, uint32_t i)
{
    const qn__plan *plan = f->plan;
    uint32_t own = storage_of(plan, plan->steps[i].node);
    for (uint32_t k = f->begin; k < i; k++)
        for (uint32_t j = 0; j < plan->steps[k].n_operands; j++)
            if (storage_of(plan, plan->operands[plan->steps[k].first_operand + j]) == own)
                return true;
    return false;
}

static bool is_sink(const finder *f, uint32_t i)
{
    const qn__step *step = &f->plan->steps[i];
    const qn_array *out = output_of(f, i);
    bool reads_stage = false;
    if (!step->program || writes_into_stage(f, i))
        return false;
    for (uint32_t k = 0; k + 1 < step->n_operands; k++) {
        const qn_array *x = f->live->node[f->plan->operands[step->first_operand + k]];
        if (!is_given(f, x->base->index, i))
            continue;
        reads_stage = true;
        if (!qn__covers(x) || !qn__same_shape(x, out))
            return false;
    }
    return reads_stage && out->flags & QN__CONTIGUOUS;
}

static const qn_array *operand_of(const finder *f, uint32_t step, uint32_t k)
{
    return f->live->node[f->plan->operands[f->plan->steps[step].first_operand + k]];
}

/* Whether each element of `out` meets only the same one of x. */
static bool is_aligned(const qn_array *x, const qn_array *out)
{
    return qn__covers(x) && qn__same_shape(x, out);
}

/* Whether one of the stage's steps before `end` writes the storage of node `index`. */
static bool is_written(const finder *f, uint32_t index, uint32_t end)
{
    for (uint32_t i = f->begin; i < end; i++)
        if (storage_of(f->plan, f->plan->steps[i].node) == storage_of(f->plan, index))
            return true;
    return false;
}

/* Whether the stage's steps before `end` touch the storage of node `index` elsewhere than at the
 * element that they write; *touched: they touch it at all. */
static bool is_read_across(const finder *f, uint32_t index, uint32_t end, bool *touched)
{
    uint32_t own = storage_of(f->plan, index);
    bool across = false;
    for (uint32_t i = f->begin; i < end; i++)
        for (uint32_t k = 0; k < f->plan->steps[i].n_operands; k++) {
            const qn_array *x = operand_of(f, i, k);
            if (storage_of(f->plan, x->index) != own)
                continue;
            *touched = true;
            across |= !is_aligned(x, output_of(f, i));
        }
    return across;
}

/* Whether step i goes along with an elementwise root: what is written by any of them, the others
 * touch at the same element alone, and it shares an array with them. */
static bool goes_along(const finder *f, uint32_t i)
{
    const qn__step *step = &f->plan->steps[i];
    const qn_array *root = output_of(f, f->root), *out = output_of(f, i);
    bool shares = false, ignored = false;
    if (!f->plan->steps[f->root].program || f->begin != f->root || i - f->root >= MOST_ALONG ||
        !step->program || !is_aligned(out, root) || !is_aligned(root, out))
        return false;
    for (uint32_t k = 0; k + 1 < step->n_operands; k++) {
        const qn_array *x = operand_of(f, i, k);
        bool touched = false;
        is_read_across(f, x->index, i, &touched);
        shares |= touched && is_aligned(x, out);
        if (!is_aligned(x, out) && is_written(f, x->index, i + 1))
            return false;
    }
    return shares && !is_read_across(f, step->node, i, &ignored);
}

static qn__stage_part part_of(finder *f, uint32_t i)
{
    const qn_array *root = i ? output_of(f, f->root) : NULL;
    bool in_stage = i > f->root && role_of(root) == QN__STAGE_ROOT;
    bool only_roots = in_stage && f->plan->steps[i - 1].part != QN__PART_SINK;
    if (only_roots && are_siblings(root, output_of(f, i)) && !writes_into_stage(f, i))
        return QN__PART_SIBLING;
    if (in_stage && is_sink(f, i))
        return QN__PART_SINK;
    if (i > f->root && goes_along(f, i))
        return QN__PART_ALONG;
    bool behind_prologue = i > f->begin && f->plan->steps[i - 1].part == QN__PART_PROLOGUE;
    f->begin = behind_prologue ? i - 1 : i;
    f->root = i;
    return is_prologue(f, i) ? QN__PART_PROLOGUE : QN__PART_ROOT;
}

bool qn__stage_parts(qn__plan *plan, const qn__live *live)
{
    finder f = {.plan = plan, .live = live, .readers = calloc(live->n + 1, sizeof *f.readers)};
    for (uint32_t i = 0; f.readers && i < live->n; i++) {
        const qn_array *a = live->node[i];
        if (a->base != a)
            f.readers[a->base->index]++;
        for (int k = 0; !qn__is_leaf(a) && a->base == a && k < a->n_in; k++)
            f.readers[a->in[k]->index]++;
    }
    for (uint32_t i = 0; f.readers && i < plan->n_steps; i++)
        plan->steps[i].part = (uint8_t)part_of(&f, i);
    free(f.readers);
    return f.readers != NULL;
}

uint32_t qn__stage_end(const qn__plan *plan, uint32_t step)
{
    bool rooted = plan->steps[step].part != QN__PART_PROLOGUE;
    for (step++; step < plan->n_steps; step++) {
        bool root = plan->steps[step].part == QN__PART_ROOT;
        if (plan->steps[step].part == QN__PART_PROLOGUE || (root && rooted))
            break;
        rooted |= root;
    }
    return step;
}
