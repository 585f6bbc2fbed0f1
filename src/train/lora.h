/* SPDX-License-Identifier: Apache-2.0
 *
 * The matrices that are trained: a pair for each linear layer of a decoder that the targets name.
 */
#ifndef QN_TRAIN_LORA_H
#define QN_TRAIN_LORA_H

#include "models/decoder.h"
#include "quern/io.h"
#include "train/optimizer.h"

#include <cjson/cJSON.h>

/* A [rank, K] and B [N, rank], each with its moments; retained arrays of f32. */
typedef struct qn__lora_pair {
    const qn__parameter *of; /* of the model's decoder */
    qn__linear *linear;      /* of the trainer's own */
    qn_array *a[QN__OPTIMIZER_ARRAYS], *b[QN__OPTIMIZER_ARRAYS];
} qn__lora_pair;

typedef struct qn__lora {
    qn__lora_pair *pairs;
    int n_pairs, n_arrays; /* n_arrays: of each matrix, itself and its moments */
    int64_t rank;
    double alpha;
    char **targets; /* as an adapter's configuration names them */
    size_t n_targets;
    int64_t first_layer, n_layers; /* those that are trained, of all that there are */
} qn__lora;

/* Finds the layers of `model` that the options name, and where they are in `own`, a copy of it with
 * layers of its own; draws the matrices, or reads them. */
qn_status qn__lora_begin(qn__lora *l, const qn__decoder *model, const qn__decoder *own,
                         qn_device *device, const qn_trainer_options *options, qn_error *err);
void qn__lora_end(qn__lora *l);

/* "base_model.model.LAYER.lora_A.weight", PEFT's name of a matrix. */
void qn__lora_name(char *out, size_t room, const qn__lora_pair *pair, bool is_b);

/* save.c: a directory of PEFT's files, whole or not at all; the same into one that is there. */
qn_status qn__lora_save(const qn__lora *l, qn_device *device, const char *directory, qn_error *err);
qn_status qn__lora_write(const qn__lora *l, qn_device *device, const char *directory,
                         qn_error *err);
bool qn__is_adapter_file(const char *name);

/* read.c: takes the matrices of such a directory, each in the place of a drawn one. */
qn_status qn__lora_read(qn__lora *l, qn_scope *s, const char *directory, qn_error *err);

/* A matrix of that name in the place of *kept, which has its shape. */
qn_status qn__lora_read_array(const qn_tensors *file, qn_scope *s, const char *name,
                              qn_array **kept, qn_error *err);

#endif
