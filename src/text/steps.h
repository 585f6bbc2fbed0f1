/* SPDX-License-Identifier: Apache-2.0
 *
 * The shape that normalizers, pre-tokenizers, post-processors and decoders share in a
 * tokenizer.json: {"type": "Digits", ...}, or {"type": "Sequence", "<list>": [...]}, or null.
 */
#ifndef QN_TEXT_STEPS_H
#define QN_TEXT_STEPS_H

#include "base/json.h"

typedef qn_status (*qn__step_fn)(void *user, int kind, const qn__json_at *at, qn_error *err);

/* Calls `add` for each step, in order, with the place of its type in names[0..n); types that stand
 * nowhere there are refused by name. Null is no step at all. */
qn_status qn__steps_parse(const qn__json_at *at, const char *list, const char *const *names, int n,
                          qn__step_fn add, void *user, qn_error *err);

#endif
