/* SPDX-License-Identifier: Apache-2.0
 *
 * A bump allocator for things that die together: a scope's nodes, a plan's tables, a file's names.
 * Blocks grow geometrically; freeing is one walk over the blocks. Not for use by two threads.
 */
#ifndef QN_BASE_ARENA_H
#define QN_BASE_ARENA_H

#include <stddef.h>
#include <string.h>

typedef struct qn__arena_block qn__arena_block;

typedef struct qn__arena {
    char *next;             /* first free byte, always 16-byte aligned */
    char *end;              /* end of the current block */
    qn__arena_block *block; /* the current block, the others behind it */
    size_t total;           /* bytes held in blocks */
} qn__arena;

/* The slow path: a new block. Returns NULL when memory is out. */
void *qn__arena_grow(qn__arena *arena, size_t size);

/* `size` bytes, 16-byte aligned, not zeroed; NULL when memory is out. A zeroed qn__arena is empty
 * and ready for use. */
static inline void *qn__arena_alloc(qn__arena *arena, size_t size)
{
    size_t n = (size + 15) & ~(size_t)15;
    if (n < size || (size_t)(arena->end - arena->next) < n)
        return qn__arena_grow(arena, size);
    void *p = arena->next;
    arena->next += n;
    return p;
}

static inline void *qn__arena_zalloc(qn__arena *arena, size_t size)
{
    void *p = qn__arena_alloc(arena, size);
    if (p)
        memset(p, 0, size);
    return p;
}

/* A copy of `n` bytes with a NUL behind them. */
char *qn__arena_strndup(qn__arena *arena, const char *s, size_t n);

void qn__arena_free(qn__arena *arena);

#endif
