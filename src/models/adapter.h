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

/* Adapters that are open, for a decoder that is described. */
typedef struct qn__adapters qn__adapters;
qn_status qn__adapters_open(qn__adapters **out, const qn__decoder *m,
                            const qn__adapter_place *places, int n, qn_error *err);
void qn__adapters_close(qn__adapters *adapters); /* NULL is accepted */

/* Ranks of all, which is R. */
int64_t qn__adapters_ranks(const qn__adapters *adapters);

/* Whether any has matrices of the parameter. */
bool qn__adapters_have(const qn__adapters *adapters, const qn__parameter *of);

/* The matrices of a parameter, A [R, K] and B [N, R], which the caller frees; NULL where no adapter
 * has any. B is times the files' scales, and where `placed` also times the places'. */
qn_status qn__adapters_read(const qn__adapters *adapters, const qn__parameter *of, bool placed,
                            float **a, float **b, qn_error *err);

/* Gives the linear layers of a decoder that is loaded the matrices of n adapters, 1 to n from then
 * on. */
qn_status qn__adapters_load(qn__decoder *m, qn_device *device, const qn__adapter_place *places,
                            int n, qn_error *err);

#endif
