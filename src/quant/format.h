/* SPDX-License-Identifier: Apache-2.0
 *
 * Storage formats of arrays: plain strided elements, or an opaque packed layout for weights that
 * linear layers and embedding look-ups know. A format is one row of the table in format.c; adding
 * one is that row plus the kernels that read it.
 */
#ifndef QN_QUANT_FORMAT_H
#define QN_QUANT_FORMAT_H

#include <stddef.h>
#include <stdint.h>

typedef enum qn__format {
    QN__PLAIN,
    QN__PANEL_BF16, /* panels of 16 rows; two columns of each row in 64 bytes: [n/16][k/2][16][2] */
    QN__PANEL_F32,  /* panels of 16 rows, one column in 64 bytes: [n/16][k][16] */
    QN__FORMAT_COUNT
} qn__format;

/* The bytes of [rows, columns] in a packed weight format, padding included; 0 when it would wrap.
 */
size_t qn__format_bytes(uint8_t format, int64_t rows, int64_t columns);

const char *qn__format_name(uint8_t format);

#endif
