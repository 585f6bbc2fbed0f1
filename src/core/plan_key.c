/* SPDX-License-Identifier: Apache-2.0
 *
 * What an evaluation needs, and the key that its plan is found by.
 *
 * One walk back from the newest target marks what is reached, until nothing more is owed: an
 * evaluation costs what it evaluates, not what its scope holds. A second walk numbers it and writes
 * two vectors. The key holds structure: operations, parameters, types, edges, donations,
 * contiguity, sizes rounded to buckets; no pointers. The sizes hold the exact rest: sizes, strides,
 * offsets and the values of constants. Equal keys share a plan, equal sizes also share its binding.
 * A view appears only as a way to look at its base, so how it was spelled does not matter.
 */
#include "core/device.h"
#include "core/scope.h"

#include <stdlib.h>

/* Sizes up to 2 are exact; (2^e, 2^(e+1)] is cut into four. Codes fit 8 bits. */
static uint64_t bucket_code(int64_t size)
{
    if (size <= 2)
        return (uint64_t)size;
    int e = 63 - __builtin_clzll((uint64_t)size - 1);
    int64_t low = (int64_t)1 << e, step = e > 2 ? low >> 2 : 1;
    return (uint64_t)(e * 4) + (uint64_t)((size - low + step - 1) / step) - 1;
}

/* Whether a leaf's buffer may be overwritten: donated, not wanted as it is, and no one else refers
 * to it. */
static bool nobody_else_reads(const qn_array *leaf)
{
    if (!(leaf->flags & QN__DONATED) || leaf->flags & QN__KEPT)
        return false;
    /* The leaf's own reference and, behind it, the retained array that nobody else holds but, where
     * it was lent, the lender. Earlier submissions run first, so what they hold does not count. One
     * that ends meanwhile lowers in_flight, then refs: read in the other order, they cannot hide a
     * reference. */
    int refs = atomic_load_explicit(&leaf->buffer->refs, memory_order_acquire);
    int in_flight = atomic_load_explicit(&leaf->buffer->in_flight, memory_order_acquire);
    return refs == (leaf->origin ? 2 : 1) + in_flight &&
           (!leaf->origin || atomic_load_explicit(&leaf->origin->refs, memory_order_acquire) ==
                                 (leaf->flags & QN__LENT ? 2 : 1));
}

/* Other threads release references whenever they like, so this is decided once an evaluation: key
 * and plan read the flag. */
static void decide_overwriting(qn_array *leaf)
{
    leaf->flags &= (uint8_t)~QN__MAY_OVERWRITE;
    if (nobody_else_reads(leaf))
        leaf->flags |= QN__MAY_OVERWRITE;
}

static bool reserve(void **room_for, uint32_t *room, uint32_t want, size_t size)
{
    if (want <= *room)
        return true;
    uint32_t n = *room ? *room : 256;
    while (n < want)
        n *= 2;
    void *p = realloc(*room_for, n * size);
    if (!p)
        return false;
    *room_for = p;
    *room = n;
    return true;
}

/* The list being made: leaves and their views from the front, the rest from the back. */
typedef struct reach {
    qn_array **node;
    uint32_t epoch, n_leaves;
    uint32_t owed; /* reached, and still to be met by the walk */
} reach;

static void reach_node(reach *r, qn_array *a)
{
    if (a->epoch == r->epoch)
        return;
    a->epoch = r->epoch;
    if (a->base != a)
        reach_node(r, a->base);
    if (a->base->buffer)
        r->node[r->n_leaves++] = a;
    else
        r->owed++;
}

/* Fills live->node with what is reached. */
static bool mark(qn_scope *s, qn_array *const *targets, int n_targets, qn__live *live)
{
    if (!reserve((void **)&live->node, &live->node_room, s->n_nodes, sizeof *live->node))
        return false;
    reach r = {.node = live->node, .epoch = ++s->epoch};
    uint32_t from = s->n_nodes;
    qn_array *newest = NULL;
    for (int i = 0; i < n_targets; i++) {
        reach_node(&r, targets[i]);
        if (!newest || targets[i]->number > newest->number)
            newest = targets[i];
    }
    for (qn_array *a = newest; r.owed; a = a->previous) {
        if (a->epoch != r.epoch || a->base->buffer)
            continue;
        r.node[--from] = a;
        r.owed--;
        for (int i = 0; a->base == a && i < a->n_in; i++)
            reach_node(&r, a->in[i]);
    }
    memmove(r.node + r.n_leaves, r.node + from, (s->n_nodes - from) * sizeof *r.node);
    live->n = r.n_leaves + s->n_nodes - from;
    return true;
}

enum { VIEW_MARK = 0xffff, WORDS_PER_NODE = 6 };

static uint64_t mix(uint64_t h, uint64_t w)
{
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Words of one node behind `key`; returns how many. */
static uint32_t describe_node(const qn_array *a, uint64_t *key)
{
    bool leaf = qn__is_leaf(a), view = a->base != a;
    uint64_t op = leaf ? QN__LEAF_OP : view ? VIEW_MARK : a->op;
    uint64_t overwrite = leaf && (a->flags & QN__MAY_OVERWRITE) != 0;
    uint64_t donated = leaf && (a->flags & QN__DONATED) != 0;
    uint64_t n_in = leaf ? 0 : view ? 1 : a->n_in;
    key[0] = op | (uint64_t)a->dtype << 16 | (uint64_t)a->ndim << 20 | (uint64_t)a->layout << 24 |
             n_in << 32 | (uint64_t)(a->flags & (QN__CONTIGUOUS | QN__TARGET)) << 40 |
             overwrite << 48 | donated << 49 | (uint64_t)(leaf && a->offset != 0) << 50 |
             (uint64_t)(view && qn__covers(a)) << 51;
    key[1] = 0;
    for (int i = 0; i < a->ndim; i++)
        key[1] |= bucket_code(a->shape[i]) << 8 * i;
    uint32_t n = 2;
    if (leaf)
        return n;
    if (view) {
        key[n++] = a->base->index;
        return n;
    }
    for (int i = 0; i < a->n_in; i += 2)
        key[n++] = a->in[i]->index | (uint64_t)(i + 1 < a->n_in ? a->in[i + 1]->index : 0) << 32;
    uint32_t words = qn__is_number(a) ? 0 : (a->params_size + 7) / 8;
    if (words) {
        key[n + words - 1] = 0;
        memcpy(key + n, a->params, a->params_size);
    }
    return n + words;
}

static uint32_t describe_sizes(const qn_array *a, int64_t *sizes)
{
    uint32_t n = 0;
    for (int i = 0; i < a->ndim; i++)
        sizes[n++] = a->shape[i];
    /* what the key tells decides whether a layout follows, so vectors of one key line up */
    if (qn__is_leaf(a) || a->base != a || !(a->flags & QN__CONTIGUOUS)) {
        for (int i = 0; i < a->ndim; i++)
            sizes[n++] = a->stride[i];
        sizes[n++] = a->offset;
    }
    if (qn__is_number(a)) {
        double number = qn__def(a)->number(a->params);
        memcpy(&sizes[n++], &number, sizeof number);
    }
    return n;
}

bool qn__live_collect(qn_scope *s, qn_array *const *targets, int n, qn__live *live)
{
    if (!mark(s, targets, n, live))
        return qn__scope_fail(s, QN_MEMORY, "out of memory while planning"), false;
    live->n_key = live->n_sizes = 0;
    uint64_t h = live->n;
    for (uint32_t i = 0; i < live->n; i++) {
        qn_array *a = live->node[i];
        if (a->flags & QN__SPENT) {
            qn__scope_fail(s, QN_STATE, "an array was read after it was overwritten in place");
            return false;
        }
        a->index = i;
        if (qn__is_leaf(a))
            decide_overwriting(a);
        uint32_t most = WORDS_PER_NODE + (a->n_in + 1u) / 2 + (a->params_size + 7u) / 8;
        if (!reserve((void **)&live->key, &live->key_room, live->n_key + most, 8) ||
            !reserve((void **)&live->sizes, &live->size_room, live->n_sizes + 2 * QN_MAX_NDIM + 2,
                     8))
            return qn__scope_fail(s, QN_MEMORY, "out of memory while planning"), false;
        uint64_t *key = live->key + live->n_key;
        uint32_t words = describe_node(a, key);
        for (uint32_t w = 0; w < words; w++)
            h = mix(h, key[w]);
        live->n_key += words;
        live->n_sizes += describe_sizes(a, live->sizes + live->n_sizes);
    }
    live->hash = h;
    return true;
}
