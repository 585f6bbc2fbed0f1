/* SPDX-License-Identifier: Apache-2.0
 *
 * The model object behind include/quern/model.h.
 */
#ifndef QN_GENERATE_MODEL_H
#define QN_GENERATE_MODEL_H

#include "models/decoder.h"
#include "quern/model.h"

enum { QN__MOST_STOPS = 64 };

struct qn_model {
    atomic_int refs; /* the opener's and sessions' */
    qn_device *device;
    qn__decoder decoder;
    qn_tokenizer *tokenizer;
    qn_sampling sampling;
    int32_t stop[QN__MOST_STOPS];
    size_t n_stop;
};

#endif
