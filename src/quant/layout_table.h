/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of layouts, here so that a kernel for one layout sees its numbers as constants.
 */
#ifndef QN_QUANT_LAYOUT_TABLE_H
#define QN_QUANT_LAYOUT_TABLE_H

#include "quant/layout.h"

/* Sizes of each encoding's blocks, as constants. */
enum {
#define QN__SIZES(id, name, ggml, elements, bytes)                                                 \
    QN__ELEMENTS_##id = elements, QN__BYTES_##id = bytes,
    QN__BLOCK_ENCODINGS(QN__SIZES)
#undef QN__SIZES
};

#define QN__UNIT_OF(id, elements, row, n, bytes, step_, zero_, top_, biased_, ...)                 \
    [QN__##id] = {.encoding = &qn__encodings[QN__##id],                                            \
                  .columns = (elements) * (n),                                                     \
                  .row_bytes = (row) * (n),                                                        \
                  .unit_bytes = bytes,                                                             \
                  .blocks = n,                                                                     \
                  .step = step_,                                                                   \
                  .zero = zero_,                                                                   \
                  .top = top_,                                                                     \
                  .biased = biased_,                                                               \
                  .field = {__VA_ARGS__}}
#define QN__UNIT(id, n, bytes, step, zero, top, biased, ...)                                       \
    QN__UNIT_OF(id, QN__ELEMENTS_##id, QN__BYTES_##id, n, bytes, step, zero, top, biased,          \
                __VA_ARGS__)

#define QN__GROUPS_OF(KIND, bits, group, type, size, n)                                            \
    QN__UNIT_OF(KIND##bits##_G##group##_##type, group, group *bits / 8 + 2 * (size), n,            \
                (group * bits / 8 + 2 * (size)) * 16 * (n), group > 64 ? 64 : group, 0,            \
                (1 << bits) - 1, true, {0, group * bits / 8, 4}, {group * bits / 8, size, size},   \
                {group * bits / 8 + (size), size, size}),
#define QN__GROUPS(KIND, bits, group)                                                              \
    QN__GROUPS_OF(KIND, bits, group, F32, 4, group == 32 ? 2 : 1)                                  \
    QN__GROUPS_OF(KIND, bits, group, F16, 2, group == 32 ? 2 : 1)                                  \
    QN__GROUPS_OF(KIND, bits, group, BF16, 2, group == 32 ? 2 : 1)
#define QN__AFFINE(bits, group) QN__GROUPS(AFFINE, bits, group)
#define QN__ZEROED(bits, group) QN__GROUPS(ZEROED, bits, group)

/* clang-format off */
static const qn__layout qn__layouts[QN__ENCODING_COUNT] = {
    /*   id      blocks bytes step zero top biased  fields {offset in the block, bytes, word} */
    QN__UNIT(F32,    1,     64,   0,   0,   0,   false,  {0, 4, 4}),
    QN__UNIT_OF(F16,  2, 4, 1, 64, 0, 0, 0, false,     {0, 4, 4}), /* two columns are one word */
    QN__UNIT_OF(BF16, 2, 4, 1, 64, 0, 0, 0, false,     {0, 4, 4}),
    QN__UNIT(Q4_0,   2,     576,  32,  8,   15,  false,  {2, 16, 4}, {0, 2, 2}),
    QN__UNIT(Q4_1,   2,     640,  32,  0,   15,  true,   {4, 16, 4}, {0, 2, 2}, {2, 2, 2}),
    QN__UNIT(Q5_0,   2,     704,  32,  16,  31,  false,  {6, 16, 4}, {2, 4, 4}, {0, 2, 2}),
    QN__UNIT(Q5_1,   2,     768,  32,  0,   31,  true,   {8, 16, 4}, {4, 4, 4}, {0, 2, 2}, {2, 2, 2}),
    QN__UNIT(Q8_0,   2,     1088, 32,  128, 255, false,  {2, 32, 4}, {0, 2, 2}),
    QN__UNIT(Q2_K,   1,     1344, 16,  0,   3,   true,   {16, 64, 4}, {0, 16, 1}, {80, 2, 2}, {82, 2, 2}),
    QN__UNIT(Q3_K,   1,     1792, 16,  4,   7,   false,  {32, 64, 4}, {0, 32, 4}, {96, 12, 4}, {108, 2, 2}),
    QN__UNIT(Q4_K,   1,     2304, 32,  0,   15,  true,   {16, 128, 4}, {4, 12, 4}, {0, 2, 2}, {2, 2, 2}),
    QN__UNIT(Q5_K,   1,     2816, 32,  0,   31,  true,   {48, 128, 4}, {16, 32, 4}, {4, 12, 4}, {0, 2, 2}, {2, 2, 2}),
    QN__UNIT(Q6_K,   1,     3392, 16,  32,  63,  false,  {0, 128, 4}, {128, 64, 4}, {192, 16, 1}, {208, 2, 2}),
    QN__UNIT(IQ4_NL, 2,     576,  32,  128, 241, false,  {2, 16, 4}, {0, 2, 2}),
    QN__UNIT(IQ4_XS, 1,     2176, 32,  128, 241, false,  {8, 128, 4}, {4, 4, 4}, {2, 2, 2}, {0, 2, 2}),
    QN__UNIT(TQ1_0,  1,     896,  64,  1,   2,   false,  {0, 48, 4}, {48, 4, 4}, {52, 2, 2}),
    QN__UNIT(TQ2_0,  1,     1088, 64,  1,   3,   false,  {0, 64, 4}, {64, 2, 2}),
    QN__UNIT(MXFP4,  4,     1088, 32,  12,  24,  false,  {1, 16, 4}, {0, 1, 1}),
    QN__UNIT(I2_S,   1,     512,  64,  1,   3,   false,  {0, 32, 4}),
    QN__AFFINE_WIDTHS(QN__AFFINE)
    QN__ZEROED_WIDTHS(QN__ZEROED)
};
/* clang-format on */

#endif
