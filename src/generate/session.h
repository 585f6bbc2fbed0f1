/* SPDX-License-Identifier: Apache-2.0
 *
 * What generations need to know of a session.
 */
#ifndef QN_GENERATE_SESSION_H
#define QN_GENERATE_SESSION_H

#include "generate/model.h"

qn_model *qn__session_model(const qn_session *session);
int64_t qn__session_sequences(const qn_session *session);

#endif
