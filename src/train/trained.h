/* SPDX-License-Identifier: Apache-2.0
 *
 * What is trained: a list of arrays, made for an adapter (lora.c) or of a model's own parameters
 * (full.c). Steps, clipping and checkpoints go over the list and know no more of it.
 */
#ifndef QN_TRAIN_TRAINED_H
#define QN_TRAIN_TRAINED_H

#include "models/decoder.h"
#include "quern/io.h"
#include "train/optimizer.h"

#include <cjson/cJSON.h>

enum { QN__TRAINED_NAME = 200 };

typedef struct qn__trained_array {
    char name[QN__TRAINED_NAME]; /* in the files that are saved */
    int64_t shape[2];
    int ndim;
    bool decays;                           /* weight decay is of it, too */
    qn_array *state[QN__OPTIMIZER_ARRAYS]; /* itself and its moments; retained */
    qn_array **slot;                       /* where the trainer's decoder takes it */
    qn_array *leaf;                        /* bound: what gradients are of, f32 */
} qn__trained_array;

typedef struct qn__trained qn__trained;

/* What differs between kinds. */
typedef struct qn__trained_kind {
    /* Gives the decoder the arrays, for what is recorded in that scope. */
    void (*bind)(const qn__trained *t, qn_scope *s, qn__decoder *own);
    /* Adds what must be the same where training goes on. */
    bool (*describe)(const qn__trained *t, cJSON *of);
    /* The files for whoever uses what was trained, into a directory or from it. */
    qn_status (*write)(const qn__trained *t, qn_scope *s, const char *directory, qn_error *err);
    qn_status (*read)(qn__trained *t, qn_scope *s, const char *directory, qn_error *err);
    bool (*is_file)(const char *name);
    void (*end)(qn__trained *t); /* frees what is behind the list, and the list itself */
} qn__trained_kind;

struct qn__trained {
    const qn__trained_kind *kind;
    qn__trained_array *arrays;
    int n, n_state;         /* n_state: of each array, itself and its moments */
    qn_dtype held, moments; /* types of states: of the arrays and of what is behind them */
    qn_dtype dtype; /* of the files for whoever uses it; where it is held in another, a checkpoint
                       has the arrays beside the moments, too */
};

void qn__trained_end(qn__trained *t); /* NULL is accepted */

/* Numbers that are trained. */
uint64_t qn__trained_numbers(const qn__trained *t);

/* Array `value`, recorded, and moments of 0 become the state of array i. */
qn_status qn__trained_set(qn__trained *t, int i, qn_scope *s, qn_array *value);

/* The name of array i in a file whose matrices are turned. */
typedef void qn__trained_naming(char out[QN__TRAINED_NAME], const qn__trained *t, int i);

/* States first to end - 1 of each array, which are itself, of that type, NAME.m and NAME.v, as a
 * file. `turned` NULL: as they are, else the arrays alone, turned, under these names. */
qn_status qn__trained_write(const qn__trained *t, qn_scope *s, const char *directory,
                            const char *file, int first, int end, qn_dtype dtype,
                            qn__trained_naming *turned, qn_error *err);
qn_status qn__trained_read_states(qn__trained *t, qn_scope *s, const char *directory,
                                  const char *file, int first, int end, qn__trained_naming *turned,
                                  qn_error *err);

/* A directory of the kind's files, whole or not at all. */
qn_status qn__trained_save(const qn__trained *t, qn_device *device, const char *directory,
                           qn_error *err);

#endif
