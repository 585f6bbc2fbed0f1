/* SPDX-License-Identifier: Apache-2.0
 *
 * An adapter that is trained: a pair of matrices for each linear layer of a decoder that the
 * targets name.
 */
#ifndef QN_TRAIN_LORA_H
#define QN_TRAIN_LORA_H

#include "train/trained.h"

/* Array 2 i is A [rank, K] of a layer, 2 i + 1 its B [N, rank]. */
typedef struct qn__lora {
    qn__trained trained;
    int64_t rank;
    double alpha, dropout;
    qn_adapter_format format;
    char **targets; /* as an adapter's configuration names them */
    size_t n_targets;
    int64_t first_layer, n_layers; /* those that are trained, of all that there are */
} qn__lora;

/* Finds the layers of `model` that the options name, and where they are in `own`, a copy of it with
 * layers of its own; draws the matrices, or reads them. */
qn_status qn__lora_begin(qn__trained **out, const qn__decoder *model, const qn__decoder *own,
                         qn_device *device, const qn_trainer_options *options, qn_error *err);

/* save.c: a directory of PEFT's or mlx-lm's files. */
qn_status qn__lora_write(const qn__trained *t, qn_scope *s, const char *directory, qn_error *err);
bool qn__is_adapter_file(const char *name);

/* The name of array i in mlx-lm's file. */
void qn__lora_mlx_name(char out[QN__TRAINED_NAME], const qn__trained *t, int i);

/* read.c: takes the matrices of such a directory, each in the place of a drawn one. */
qn_status qn__lora_read(qn__trained *t, qn_scope *s, const char *directory, qn_error *err);

#endif
