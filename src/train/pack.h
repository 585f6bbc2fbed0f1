/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing: which texts lie behind each other in a row.
 */
#ifndef QN_TRAIN_PACK_H
#define QN_TRAIN_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Row i has texts member[first[i]] to member[first[i + 1] - 1]. Zero it before use ({0}). */
typedef struct qn__packs {
    uint32_t *member;
    size_t *first, n;
} qn__packs;

/* Rows of `room` tokens at most, of n texts of lengths[] tokens, none longer; room 0: each has a
 * row of its own. false: out of memory. */
bool qn__packs_make(qn__packs *p, const uint32_t *lengths, size_t n, size_t room);
void qn__packs_free(qn__packs *p);

#endif
