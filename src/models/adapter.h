/* SPDX-License-Identifier: Apache-2.0
 *
 * Adapters: what low-rank matrices add to the products of linear layers (LoRA, arXiv:2106.09685):
 * y + scale (x A^T) B^T. A model may have several. Of each layer their matrices lie behind each
 * other, A [R, K] and B [N, R], R the ranks of all; a row of a step is multiplied by the numbers of
 * its adapter's columns and by 0 elsewhere, so that rows of different adapters run side by side.
 */
#ifndef QN_MODELS_ADAPTER_H
#define QN_MODELS_ADAPTER_H

#include "models/decoder.h"

enum { QN__MOST_ADAPTERS = 64, QN__MOST_RANK = 1024 };

/* A directory as PEFT (adapter_config.json, adapter_model.safetensors or .bin) or mlx-lm
 * (adapters.safetensors) writes it, and what its part is multiplied by besides. */
typedef struct qn__adapter_place {
    const char *path;
    double scale;
} qn__adapter_place;

/* Gives the linear layers of a decoder that is loaded the matrices of n adapters, 1 to n from then
 * on. */
qn_status qn__adapters_load(qn__decoder *m, qn_device *device, const qn__adapter_place *places,
                            int n, qn_error *err);

#endif
