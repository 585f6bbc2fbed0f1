/* SPDX-License-Identifier: Apache-2.0
 *
 * Training: a LoRA adapter (arXiv:2106.09685) of a loaded model, by AdamW (arXiv:1711.05101). The
 * model's own weights, dense or quantised, stay as they are. Experimental: it will grow.
 *
 *     qn_trainer *trainer;
 *     qn_trainer_options options = QN_INIT(qn_trainer_options);
 *     options.rank = 16;
 *     options.learning_rate = 1e-4;
 *     qn_trainer_open(&trainer, model, &options, &err);
 *     for (int i = 0; i < steps; i++)
 *         qn_trainer_step(trainer, tokens[i], mask[i], rows, length, &loss, &err);
 *     qn_trainer_save(trainer, "my-adapter", &err);
 *     qn_trainer_close(trainer);
 *
 * A trainer belongs to one thread; its model may be used by others at the same time. Losses and
 * matrices are the same to the bit with any number of the device's threads.
 */
#ifndef QUERN_TRAIN_H
#define QUERN_TRAIN_H

#include "quern/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero means default. To the products of a layer with weights [N, K] the adapter adds
 * (alpha / rank) (x A^T) B^T, A f32 [rank, K], B f32 [N, rank]. */
typedef struct qn_trainer_options {
    size_t size;  /* sizeof(qn_trainer_options) */
    int64_t rank; /* 0: 8; 1024 at most */
    double alpha; /* 0: twice the rank */
    /* The linear layers, by the end of their names, as PEFT has it: "q_proj" is that of every
     * layer, "layers.0.self_attn.q_proj" one. Borrowed while opening. None: all in the layers. */
    const char *const *targets;
    size_t n_targets;
    double learning_rate; /* 0: 1e-5 */
    double beta1, beta2;  /* 0: 0.9, 0.999 */
    double eps;           /* 0: 1e-8 */
    double weight_decay;  /* decoupled; 0: 0.01, negative: none */
    double clip;          /* the gradients' norm, all of them together, at most; 0: any */
    uint64_t seed;        /* of A, uniform within 1 / sqrt(K) as PEFT draws it; B is 0 */
    const char *adapter;  /* NULL, or a directory of PEFT's files to go on from, of this
                             rank and alpha and these targets; AdamW begins anew */
} qn_trainer_options;

typedef struct qn_trainer qn_trainer;

/* Keeps the model open. options may be NULL. QN_INVALID: a number out of its range, a target that
 * no layer has, an adapter of other options; QN_STATE: the model has no weights; QN_UNSUPPORTED: it
 * was opened with adapters. */
QN_API qn_status qn_trainer_open(qn_trainer **out, qn_model *model,
                                 const qn_trainer_options *options, qn_error *err);
QN_API void qn_trainer_close(qn_trainer *trainer); /* NULL is accepted */

/* One step of AdamW on tokens [rows, length], each row a text of its own. *loss, which may be NULL,
 * receives what it was before: the mean of -log p over the tokens that count, each given those
 * before it in its row. mask [rows, length]: not 0 where a token counts; NULL: all do. The first
 * of a row never counts, as nothing is before it. Rows that are shorter are filled behind their end
 * with any tokens that do not count.
 *
 * QN_INVALID: a token outside the vocabulary, none that counts; QN_LIMIT: rows longer than the
 * model's context, or more memory than the device's limit. After these the trainer is as it was.
 * QN_STATE: the loss is no finite number, or a run broke off, then and from then on. */
QN_API qn_status qn_trainer_step(qn_trainer *trainer, const int32_t *tokens, const uint8_t *mask,
                                 int64_t rows, int64_t length, double *loss, qn_error *err);

/* The loss alone; nothing is learned. */
QN_API qn_status qn_trainer_loss(qn_trainer *trainer, const int32_t *tokens, const uint8_t *mask,
                                 int64_t rows, int64_t length, double *loss, qn_error *err);

/* Of the steps from then on; above 0, else QN_INVALID. */
QN_API qn_status qn_trainer_set_learning_rate(qn_trainer *trainer, double learning_rate,
                                              qn_error *err);

QN_API int64_t qn_trainer_steps(const qn_trainer *trainer);       /* taken */
QN_API uint64_t qn_trainer_parameters(const qn_trainer *trainer); /* numbers that are trained */

/* Writes the adapter as PEFT has it, adapter_config.json and adapter_model.safetensors in f32, into
 * a directory that appears whole or not at all. One that exists is replaced where it holds these
 * files alone (and a README.md), else it is QN_INVALID. qn_model_options.adapters reads it. */
QN_API qn_status qn_trainer_save(qn_trainer *trainer, const char *directory, qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
