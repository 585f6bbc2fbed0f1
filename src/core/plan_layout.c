/* SPDX-License-Identifier: Apache-2.0
 *
 * Where intermediate values lie in the workspace: first fit, in the order of the steps. The plan
 * knows when each value is written first and read last, a binding how large it is, so nothing is
 * larger than it must be.
 *
 * What is free below the top is a list of holes, ordered by place; neighbours are one hole. A
 * value's bytes come free once the last step that touches it has run, so a step's output never lies
 * over its inputs.
 */
#include "core/dtype.h"
#include "core/scope.h"

#include <stdlib.h>

enum { ALIGNMENT = 64, NOBODY = 0xffffffffu };

typedef struct hole {
    size_t offset, bytes;
} hole;

typedef struct layout {
    hole *holes; /* ordered, none adjacent */
    uint32_t n_holes;
    size_t top, most;
} layout;

static size_t take_room(layout *l, size_t bytes)
{
    for (uint32_t i = 0; i < l->n_holes; i++) {
        hole *h = &l->holes[i];
        if (h->bytes < bytes)
            continue;
        size_t offset = h->offset;
        h->offset += bytes;
        h->bytes -= bytes;
        if (!h->bytes)
            memmove(h, h + 1, (--l->n_holes - i) * sizeof *h);
        return offset;
    }
    size_t offset = l->top;
    l->top += bytes;
    if (l->most < l->top)
        l->most = l->top;
    return offset;
}

/* The first hole behind `offset`. */
static uint32_t hole_behind(const layout *l, size_t offset)
{
    uint32_t low = 0, high = l->n_holes;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (l->holes[middle].offset > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Each value has its own bytes, so there are at most as many holes as values. */
static void give_room(layout *l, size_t offset, size_t bytes)
{
    uint32_t at = hole_behind(l, offset);
    hole *before = at ? &l->holes[at - 1] : NULL, *behind = &l->holes[at];
    bool joins_before = before && before->offset + before->bytes == offset;
    bool joins_behind = at < l->n_holes && behind->offset == offset + bytes;
    if (joins_before) {
        before->bytes += bytes + (joins_behind ? behind->bytes : 0);
        if (joins_behind)
            memmove(behind, behind + 1, (--l->n_holes - at) * sizeof *behind);
    } else if (joins_behind) {
        behind->offset = offset;
        behind->bytes += bytes;
    } else {
        memmove(behind + 1, behind, (l->n_holes++ - at) * sizeof *behind);
        *behind = (hole){offset, bytes};
    }
    hole *last = &l->holes[l->n_holes - 1];
    if (last->offset + last->bytes == l->top) {
        l->top = last->offset;
        l->n_holes--;
    }
}

static size_t aligned_bytes(const qn_array *a)
{
    return (qn__storage_bytes(a) + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

/* The value in the workspace that a step writes; NOBODY: it writes elsewhere. */
static uint32_t written_by(const qn__plan *plan, const qn__step *step)
{
    uint32_t node = step->node;
    if (plan->storage[node].place == QN__ALIAS)
        node = plan->storage[node].slot;
    return plan->storage[node].place == QN__WORKSPACE ? node : NOBODY;
}

bool qn__plan_layout(const qn__plan *plan, const qn__live *live, size_t *offsets, size_t *total)
{
    enum { UNPLACED = 1 }; /* no offset is odd */
    layout l = {.holes = malloc(((size_t)plan->n_steps + 1) * sizeof *l.holes)};
    uint32_t *dying =
        malloc(((size_t)plan->n_steps + 1) * sizeof *dying); /* by last step: a value, or NOBODY */
    uint32_t *next = malloc(((size_t)live->n + 1) * sizeof *next); /* ... and others of that step */
    bool ok = l.holes && dying && next;
    for (uint32_t i = 0; ok && i < live->n; i++)
        offsets[i] = UNPLACED;
    for (uint32_t i = 0; ok && i < plan->n_steps; i++)
        dying[i] = NOBODY;
    for (uint32_t i = 0; ok && i < plan->n_steps; i++) {
        uint32_t node = written_by(plan, &plan->steps[i]);
        if (node != NOBODY && offsets[node] == UNPLACED) {
            uint32_t last = plan->storage[node].slot;
            offsets[node] = take_room(&l, aligned_bytes(live->node[node]));
            next[node] = dying[last];
            dying[last] = node;
        }
        for (node = dying[i]; node != NOBODY; node = next[node])
            give_room(&l, offsets[node], aligned_bytes(live->node[node]));
    }
    *total = l.most;
    free(l.holes);
    free(dying);
    free(next);
    return ok;
}
