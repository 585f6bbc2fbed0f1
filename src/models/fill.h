/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling: the parameters of a decoder get their values, from a model's files or made up.
 */
#ifndef QN_MODELS_FILL_H
#define QN_MODELS_FILL_H

#include "models/load.h"
#include "models/random_weights.h"

typedef struct qn__fill {
    qn_device *device;
    const qn_tensors *file;
    const qn__random_weights *random; /* NULL: they are the file's */
    qn__weight *weights;              /* of each parameter, found */
    qn__load_progress *progress;      /* NULL: nobody asks */
    void *user;
} qn__fill;

/* Fills every slot of the decoder's parameters. */
qn_status qn__decoder_fill(const qn__decoder *m, const qn__fill *from, qn_error *err);

#endif
