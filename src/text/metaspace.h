/* SPDX-License-Identifier: Apache-2.0
 *
 * When a Metaspace pre-tokenizer puts a mark before the text (and its decoder takes it off).
 */
#ifndef QN_TEXT_METASPACE_H
#define QN_TEXT_METASPACE_H

#include "base/json.h"

typedef enum qn__metaspace {
    QN__METASPACE_ALWAYS,
    QN__METASPACE_FIRST, /* before the beginning of the whole text only */
    QN__METASPACE_NEVER
} qn__metaspace;

/* From prepend_scheme, or the older add_prefix_space. */
qn_status qn__metaspace_parse(qn__metaspace *out, const qn__json_at *at, qn_error *err);

#endif
