/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on units with one row of x (byte_row.cuh): how a block and its shared memory are
 * divided.
 *
 * Warps that multiply put the sums of their spans where another one finds them, which makes the
 * results, so that they need not wait for it: sums of several tiles take turns.
 */
#ifndef QN_CUDA_TURNS_H
#define QN_CUDA_TURNS_H

enum {
    QN__CUDA_TURNS = 4,
    QN__CUDA_TURN_BARS = 128, /* bytes: two barriers each, and whether x has been asked for */
    QN__CUDA_PACERS = 1,      /* warps that ask for weights at the pace at which they land */
    /* Spans of at most so many bytes come for two tiles at once, into a ring of two, others one at
     * a time into one of three. */
    QN__CUDA_TWO_TILES = 2900
};

/* What a place has for a span. */
#define QN__CUDA_SPAN_ROOM(bytes)        (((bytes) + 127) / 128 * 128)

/* Spans that a block has at most, where so many blocks share them. */
#define QN__CUDA_SHARE_OF(spans, blocks) (((spans) + (blocks)-1) / (blocks))

#endif
