/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of sampling share: the settings, checked, and questions about them.
 */
#ifndef QN_GENERATE_SAMPLING_H
#define QN_GENERATE_SAMPLING_H

#include "quern/model.h"

/* Fails unless every number is in its range and the chain has each step once at most. */
qn_status qn__sampling_check(const qn_sampling *p, size_t vocab, qn_error *err);

/* The chain, QN_SAMPLER_END behind it: the default one where none is set. */
const qn_sampler *qn__sampling_chain(const qn_sampling *p);

/* Whether the step of penalties changes anything. */
bool qn__sampling_penalises(const qn_sampling *p);

/* Whether the token is simply the one of the largest logit. */
bool qn__sampling_is_argmax(const qn_sampling *p);

#endif
