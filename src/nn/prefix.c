/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefix reuse: a tree of pages.
 */
#include "nn/prefix.h"

#include "base/error.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { ROOT = 0, FIRST_ROOM = 64 };

/* ---- the table ------------------------------------------------------------------------------- */

static int32_t chain_of(const qn__prefix *p, int32_t parent, const int32_t *tokens)
{
    uint64_t h = qn__hash_bytes(tokens, QN__PAGE * sizeof *tokens, p->seed + (uint64_t)parent);
    return (int32_t)(h % (uint64_t)p->n_chains);
}

static int32_t find_below(const qn__prefix *p, int32_t parent, int32_t adapter,
                          const int32_t *tokens)
{
    int32_t i = p->chains[chain_of(p, parent, tokens)];
    while (i >= 0 && (p->nodes[i].parent != parent || p->nodes[i].adapter != adapter ||
                      memcmp(p->nodes[i].tokens, tokens, sizeof p->nodes[i].tokens) != 0))
        i = p->nodes[i].next;
    return i;
}

static void link_node(qn__prefix *p, int32_t i)
{
    qn__prefix_node *node = &p->nodes[i];
    int32_t *chain = &p->chains[chain_of(p, node->parent, node->tokens)];
    node->next = *chain;
    *chain = i;
}

static void unlink_node(qn__prefix *p, int32_t i)
{
    int32_t *at = &p->chains[chain_of(p, p->nodes[i].parent, p->nodes[i].tokens)];
    while (*at != i)
        at = &p->nodes[*at].next;
    *at = p->nodes[i].next;
}

/* Room for twice as many nodes, and as many chains. */
static bool grow_table(qn__prefix *p)
{
    int32_t room = p->room ? p->room * 2 : FIRST_ROOM;
    qn__prefix_node *nodes = realloc(p->nodes, (size_t)room * sizeof *nodes);
    if (!nodes)
        return false;
    p->nodes = nodes;
    int32_t *chains = malloc((size_t)room * sizeof *chains);
    if (!chains)
        return false;
    free(p->chains);
    p->chains = chains;
    p->n_chains = p->room = room;
    for (int32_t i = 0; i < room; i++)
        chains[i] = -1;
    for (int32_t i = ROOT + 1; i < p->n_nodes; i++)
        if (nodes[i].parent >= 0)
            link_node(p, i);
    return true;
}

qn_status qn__prefix_begin(qn__prefix *p, qn__cache *cache, qn_error *err)
{
    *p = (qn__prefix){.cache = cache, .free = -1, .seed = qn__hash_seed()};
    if (!grow_table(p)) {
        qn__prefix_end(p);
        return qn__fail_memory(err, "a prefix cache");
    }
    p->nodes[ROOT] = (qn__prefix_node){.parent = ROOT, .next = -1};
    p->n_nodes = 1;
    return QN_OK;
}

void qn__prefix_end(qn__prefix *p)
{
    while (p->cache && p->nodes && qn__prefix_forget(p))
        ;
    free(p->nodes);
    free(p->chains);
    *p = (qn__prefix){0};
}

/* ---- attaching ------------------------------------------------------------------------------- */

/* The first block of a kind that a query at position `length` sees, but for the kept one. */
static int64_t first_seen(const qn__cache_kind *kind, int64_t length)
{
    int64_t first = kind->sees.window ? length - kind->sees.window + 1 : 0;
    return first > 0 ? first / QN__PAGE : 0;
}

/* Whether the nodes of a path have what a query behind all of them sees. */
static bool path_serves(const qn__prefix *p, const int32_t *path, int64_t n)
{
    for (int k = 0; k < p->cache->n_kinds; k++) {
        const qn__cache_kind *kind = &p->cache->kind[k];
        for (int64_t b = first_seen(kind, n * QN__PAGE); b < n; b++)
            if (p->nodes[path[b]].page[k] < 0)
                return false;
        if (n && kind->sees.keep && p->nodes[path[0]].page[k] < 0)
            return false;
    }
    return true;
}

/* Pages of the path, shared; those that no query sees any more stay away. */
static bool share_path(const qn__prefix *p, qn__sequence *sequence, const int32_t *path, int64_t n)
{
    qn_error err = {0};
    for (int k = 0; k < p->cache->n_kinds; k++)
        if (qn__sequence_reserve(&sequence->kind[k], n, &err) != QN_OK)
            return false;
    for (int k = 0; k < p->cache->n_kinds; k++) {
        qn__cache_kind *kind = &p->cache->kind[k];
        qn__sequence_pages *of = &sequence->kind[k];
        int64_t first = first_seen(kind, n * QN__PAGE);
        for (int64_t b = 0; b < n; b++) {
            bool seen = b >= first || (b == 0 && kind->sees.keep);
            of->page[b] = seen ? p->nodes[path[b]].page[k] : -1;
            if (seen)
                qn__pages_share(&kind->pages, of->page[b]);
        }
        of->n = n;
        of->first = first;
    }
    sequence->length = n * QN__PAGE;
    return true;
}

int64_t qn__prefix_attach(qn__prefix *p, qn__sequence *sequence, const int32_t *ids, int64_t n)
{
    int64_t most = n > 0 ? (n - 1) / QN__PAGE : 0, found = 0;
    int32_t *path = malloc((size_t)(most + 1) * sizeof *path), at = ROOT;
    if (!path)
        return 0;
    while (found < most && (at = find_below(p, at, sequence->adapter, ids + found * QN__PAGE)) >= 0)
        path[found++] = at;
    while (found && !path_serves(p, path, found))
        found--;
    p->clock++;
    for (int64_t b = 0; b < found; b++)
        p->nodes[path[b]].used = p->clock;
    if (!share_path(p, sequence, path, found))
        found = 0;
    free(path);
    return found * QN__PAGE;
}

/* ---- keeping and forgetting ------------------------------------------------------------------ */

/* A new node below `parent`; -1: memory is out. */
static int32_t add_node(qn__prefix *p, int32_t parent, int32_t adapter, const int32_t *tokens)
{
    int32_t i = p->free;
    if (i < 0 && p->n_nodes == p->room && !grow_table(p))
        return -1;
    if (i >= 0)
        p->free = p->nodes[i].next;
    else
        i = p->n_nodes++;
    qn__prefix_node *node = &p->nodes[i];
    *node = (qn__prefix_node){.parent = parent, .adapter = adapter};
    memcpy(node->tokens, tokens, sizeof node->tokens);
    for (int k = 0; k < QN__MOST_KINDS; k++)
        node->page[k] = -1;
    p->nodes[parent].n_below++;
    link_node(p, i);
    return i;
}

void qn__prefix_keep(qn__prefix *p, const qn__sequence *sequence, const int32_t *ids, int64_t n)
{
    int32_t at = ROOT;
    n = n < sequence->length ? n : sequence->length;
    p->clock++;
    for (int64_t b = 0; (b + 1) * QN__PAGE <= n; b++) {
        const int32_t *tokens = ids + b * QN__PAGE;
        int32_t below = find_below(p, at, sequence->adapter, tokens);
        at = below >= 0 ? below : add_node(p, at, sequence->adapter, tokens);
        if (at < 0)
            return;
        p->nodes[at].used = p->clock;
        for (int k = 0; k < p->cache->n_kinds; k++) {
            int32_t page = sequence->kind[k].page[b];
            if (p->nodes[at].page[k] >= 0 || page < 0)
                continue;
            qn__pages_share(&p->cache->kind[k].pages, page);
            p->nodes[at].page[k] = page;
        }
    }
}

bool qn__prefix_forget(qn__prefix *p)
{
    int32_t oldest = -1;
    for (int32_t i = ROOT + 1; i < p->n_nodes; i++) {
        const qn__prefix_node *node = &p->nodes[i];
        if (node->parent >= 0 && !node->n_below &&
            (oldest < 0 || node->used < p->nodes[oldest].used))
            oldest = i;
    }
    if (oldest < 0)
        return false;
    qn__prefix_node *node = &p->nodes[oldest];
    for (int k = 0; k < p->cache->n_kinds; k++)
        if (node->page[k] >= 0)
            qn__pages_give_back(&p->cache->kind[k].pages, node->page[k]);
    unlink_node(p, oldest);
    p->nodes[node->parent].n_below--;
    node->parent = -1;
    node->next = p->free;
    p->free = oldest;
    return true;
}
