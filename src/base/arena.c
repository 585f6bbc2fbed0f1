/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena's slow path: taking and freeing blocks.
 */
#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>

struct qn__arena_block {
    qn__arena_block *previous;
    size_t size; /* usable bytes behind this header */
};

enum { FIRST_BLOCK = 16 << 10, LARGEST_BLOCK = 1 << 20, HEADER = 16 };
_Static_assert(sizeof(qn__arena_block) <= HEADER, "block header must fit its padding");

static char *block_bytes(qn__arena_block *block)
{
    return (char *)block + HEADER;
}

void *qn__arena_grow(qn__arena *arena, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    size_t n = (size + 15) & ~(size_t)15;
    size_t want = arena->block ? arena->block->size * 2 : FIRST_BLOCK;
    if (want > LARGEST_BLOCK)
        want = LARGEST_BLOCK;
    if (want < n)
        want = n;
    qn__arena_block *block = malloc(HEADER + want);
    if (!block)
        return NULL;
    block->previous = arena->block;
    block->size = want;
    arena->block = block;
    arena->total += want;
    arena->next = block_bytes(block) + n;
    arena->end = block_bytes(block) + want;
    return block_bytes(block);
}

char *qn__arena_strndup(qn__arena *arena, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? qn__arena_alloc(arena, n + 1) : NULL;
    if (copy) {
        memcpy(copy, s, n);
        copy[n] = 0;
    }
    return copy;
}

void qn__arena_free(qn__arena *arena)
{
    for (qn__arena_block *b = arena->block; b;) {
        qn__arena_block *previous = b->previous;
        free(b);
        b = previous;
    }
    *arena = (qn__arena){0};
}
