/* SPDX-License-Identifier: Apache-2.0
 *
 * A training as it stands, in a directory: the files of what is trained, optimizer.safetensors with
 * the moments, and trainer.json, which says what they are of.
 */
#ifndef QN_TRAIN_CHECKPOINT_H
#define QN_TRAIN_CHECKPOINT_H

#include "train/loss.h"
#include "train/trained.h"

typedef struct qn__checkpoint {
    qn_model *model;
    const qn__optimizer *optimizer; /* its learning rate is what it is, not what must be */
    const qn__objective *objective;
    double clip;
    uint64_t seed;
    const char *bound; /* a JSON object of the program's that must be the same; NULL: none */
    int64_t steps;
    double learning_rate; /* in and out, as is steps */
    const char *note;     /* to be saved */
    char *noted;          /* read; malloc */
} qn__checkpoint;

qn_status qn__checkpoint_save(const qn__trained *t, const qn__checkpoint *c, const char *directory,
                              qn_error *err);

/* Takes over matrices, moments and what else was saved. QN_STATE, naming what differs: it is of
 * another model or other options. QN_FORMAT, QN_INVALID: it is damaged. */
qn_status qn__checkpoint_read(qn__trained *t, qn__checkpoint *c, const char *directory,
                              qn_error *err);

#endif
