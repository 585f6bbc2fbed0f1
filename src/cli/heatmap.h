/* SPDX-License-Identifier: Apache-2.0
 *
 * A head's attention as a picture.
 */
#ifndef QN_CLI_HEATMAP_H
#define QN_CLI_HEATMAP_H

#include "quern/quern.h"

enum { MOST_PICTURED = 512 };

typedef struct heatmap {
    const char *title;    /* plain letters */
    const float *weights; /* [n, n]: rows are what reads, columns what is read */
    const qn_tokenizer *tokenizer;
    const int32_t *ids; /* [n], n up to MOST_PICTURED */
    size_t n;
} heatmap;

/* Writes an SVG 1.1 file (https://www.w3.org/TR/SVG11/), complete or not at all. */
qn_status heatmap_write(const heatmap *h, const char *path, qn_error *err);

#endif
